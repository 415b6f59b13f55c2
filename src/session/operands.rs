//! The operands on this machine: files that the sources name, and the place of the destination.
//! Also the check of a server's answers to remote operands.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::dest::{
    Backups, ModeRules, Rules, ScpPlaces, SharedInodes, SinkSpec, Spec, process_umask,
};
use crate::dir::Handles;
use crate::error::{Error, Kind, Result, Side};
use crate::file_list::{FileList, NamesFrom};
use crate::manifest::{Root, Totals};
use crate::mapping::Mapping;
use crate::pipeline::receive::destination::{CopyDestination, Sessions, To, Typed};
use crate::progress::{Phase, Progress};
use crate::session::context::{ClientContext, SharedSource};
use crate::session::request::{CopyOptions, EndKind, Request};
use crate::session::{owner, probe_place};
use crate::source::{
    self, Counter, ListBase, ListedSource, Lookup, NamedSource, Parts, PipeOrigin, PipeSpec,
    RelativeOperands, SourceCount, Sources, Walk, WalkOptions,
};
use crate::units::printable;
use crate::wire::message::{
    Fault, Message, ROOTS_MAX, RootSpace, RootSpaces, Roots, UncountedRoots,
};

/// How long a copy waits for the totals, if it may begin without them.
const COUNT_PATIENCE: Duration = Duration::from_millis(50);

/// The files that this machine's operands name, and the operand of each.
#[derive(Clone, Default)]
pub struct Expanded {
    /// Shared by the count, the walk and `--delete`.
    named: Vec<Arc<NamedSource>>,
    operands: Vec<u32>,
    /// Stdin or a command; `named` is then empty.
    pipe: Option<PipeOrigin>,
    /// Some operand was not found, or cannot be copied.
    lacks_some: bool,
    /// Number of operands.
    typed: usize,
    /// An operand names an entry that may be left out, and is not in `named`.
    may_lack_names: bool,
    /// Only these entries of the only directory in `named` are copied.
    listed: Option<Arc<ListedSource>>,
    /// The parts of the first one in `named` that follow it (`--map`).
    parts: Arc<Parts>,
    /// The space that each of them needs, once they are counted.
    spaces: Arc<OnceLock<RootSpaces>>,
}

impl Expanded {
    /// A source without a name.
    pub fn nameless(pipe: PipeOrigin) -> Expanded {
        Expanded {
            pipe: Some(pipe),
            ..Expanded::default()
        }
    }

    /// Adds the files that the operand `typed` names. `has_failed`: it names others too.
    ///
    /// # Errors
    /// Usage, if the operands name too many files.
    pub fn add(
        &mut self,
        named: Vec<NamedSource>,
        (operand, typed): (usize, &[u8]),
        has_failed: bool,
    ) -> Result<()> {
        // Of what a pattern matches, a part may be left out.
        let is_known = !source::is_pattern(typed) && (has_failed || !named.is_empty());
        self.may_lack_names |= !is_known;
        self.lacks_some |= has_failed;
        self.typed += 1;
        self.operands.extend(named.iter().map(|_| operand as u32));
        self.named.extend(named.into_iter().map(Arc::new));
        self.check_number()
    }

    fn check_number(&self) -> Result<()> {
        match self.named.len() > ROOTS_MAX {
            true => Err(Error::usage(format!(
                "more than {ROOTS_MAX} files and directories are named, and one copy takes no \
                 more: copy the directory that holds them"
            ))),
            false => Ok(()),
        }
    }

    /// Adds the parts of the only source that go to separate places.
    ///
    /// # Errors
    /// Usage, if the source is not one directory; `Kind::Read`, if a part is missing.
    pub fn add_parts(&mut self, maps: &[Mapping], lookup: &Lookup) -> Result<()> {
        let source = match &self.named[..] {
            // It was reported.
            [] => return Ok(()),
            _ if maps.is_empty() => return Ok(()),
            [source] if source.is_directory() => source,
            [source] => {
                let message = "is not a directory, and --map divides one";
                return Err(Error::new(Kind::Usage, Side::Source, message).at(&source.path));
            }
            several => {
                return Err(Error::usage(format!(
                    "--map divides one directory, and SOURCE matches {}",
                    several.len()
                )));
            }
        };
        let (found, parts) = source::find_parts(source, maps, lookup)?;
        self.operands.extend((1..).take(found.len()));
        self.named.extend(found.into_iter().map(Arc::new));
        self.parts = Arc::new(parts);
        Ok(())
    }

    /// The listed entries of `source`, a directory.
    ///
    /// # Errors
    /// Usage, if `--delete` cannot tell where they are.
    pub fn listed(
        source: NamedSource,
        (list, bases): (Arc<FileList>, Vec<ListBase>),
        options: &CopyOptions,
    ) -> Result<Expanded> {
        if options.mirror.deletes && bases.len() > 1 {
            return Err(delete_needs_one_base());
        }
        let copy = options.relative.as_ref();
        let listed = ListedSource {
            list,
            bases,
            recursive: options.recursive,
            plain_parents: copy.is_some_and(|copy| copy.plain_parents),
        };
        Ok(Expanded {
            // Nothing is made if nothing is listed.
            operands: vec![0; usize::from(!listed.list.is_empty())],
            named: (!listed.list.is_empty())
                .then(|| Arc::new(source))
                .into_iter()
                .collect(),
            typed: 1,
            listed: Some(Arc::new(listed)),
            ..Expanded::default()
        })
    }

    /// Some operand was not found, or cannot be copied.
    pub fn lacks_some(&mut self) {
        self.lacks_some = true;
    }

    /// True if no operand names anything that exists.
    pub fn is_nothing(&self) -> bool {
        self.named.is_empty() && self.pipe.is_none()
    }

    /// The sources to read.
    pub fn sources(self, options: &CopyOptions) -> Sources {
        match self.pipe {
            Some(pipe) => Sources::Pipe(pipe),
            None => {
                let handles = Arc::new(Handles::default());
                let walk_options = WalkOptions {
                    lacks_operands: self.lacks_some,
                    may_lack_names: self.may_lack_names
                        && self.typed > 1
                        && options.selector.has_bounds(),
                    ..self.walk_options(options)
                };
                let walk = Walk::new(self.named, walk_options, handles);
                Sources::Files(Box::new(walk))
            }
        }
    }

    fn walk_options(&self, options: &CopyOptions) -> WalkOptions {
        WalkOptions {
            follow_links: options.follow_links,
            scp: options.scp,
            selector: options.selector.clone(),
            keep: options.keep,
            compares_modes: options.update.asks(),
            // Sums do not show which existing files are one (`--inplace`).
            holds: options.update.sums_up()
                && !options.digests
                && !options.fsync
                && !options.inplace,
            sums_names: options.mirror.deletes,
            lacks_operands: false,
            may_lack_names: false,
            listed: self.listed.clone(),
            parts: self.parts.clone(),
        }
    }

    /// Totals of the sources, as far as they can be known before the copy. Calls `goes_on` with the
    /// totals so far; if that returns false, the count ends without a result.
    fn count(
        &self,
        options: &CopyOptions,
        goes_on: &mut dyn FnMut(&Totals) -> bool,
    ) -> Option<Totals> {
        let totals = match &self.pipe {
            None if !self.parts.is_empty() => self.count_each(options, goes_on)?,
            None => source::scan(&self.named, &self.walk_options(options), goes_on)?,
            Some(pipe) => Totals {
                files: 1,
                streams: 1,
                bytes: pipe.length().unwrap_or(0),
                ..Totals::default()
            },
        };
        Some(options.totals(totals))
    }

    /// The same for a source and its parts, which may go to several file systems.
    fn count_each(
        &self,
        options: &CopyOptions,
        goes_on: &mut dyn FnMut(&Totals) -> bool,
    ) -> Option<Totals> {
        let mut all = Totals::default();
        let mut each = Vec::new();
        for root in self.named.chunks(1) {
            let before = all;
            let totals = source::scan(root, &self.walk_options(options), &mut |totals| {
                let mut so_far = before;
                so_far.add(totals);
                goes_on(&so_far)
            })?;
            each.push(RootSpace {
                allocated: totals.allocated,
                largest: totals.largest,
            });
            all.add(&totals);
        }
        // The sources are counted once.
        let _ = self.spaces.set(RootSpaces { each });
        Some(all)
    }

    /// The roots, as the receiver gets them.
    fn roots(&self) -> Result<Vec<Root>> {
        if let Some(pipe) = &self.pipe {
            return Ok(vec![pipe.spec().root(source::root_id(0))]);
        }
        self.check_number()?;
        let operands = self.named.iter().zip(&self.operands).enumerate();
        let root = |(n, (named, operand)): (usize, (&Arc<NamedSource>, &u32))| {
            named.to_root(source::root_id(n), *operand)
        };
        Ok(operands.map(root).collect())
    }
}

/// Looks up the operands of this machine; a missing one is a failed entry. The lookup has its own
/// thread: a disk that hangs blocks neither this session nor another.
///
/// # Errors
/// `Kind::Usage` if the operands do not fit the options, or another host has one of the names;
/// `Kind::Read` for a missing part (`--map`) or an unreadable list; the cause, if the copy ends.
pub async fn expand(request: &Request, client: &ClientContext) -> Result<Expanded> {
    let (asked, told) = (request.clone(), client.clone());
    let looking = tokio::task::spawn_blocking(move || look_up(&asked, &told));
    let found = tokio::select! {
        found = looking => found.map_err(|_| Error::panicked())??,
        () = client.shutdown.wait() => return Err(client.shutdown.error()),
    };
    client.take_roots(request, &found.roots()?)?;
    Ok(found)
}

fn look_up(request: &Request, client: &ClientContext) -> Result<Expanded> {
    let lookup = Lookup {
        base: PathBuf::new(),
        remote: false,
        confine: None,
        scp: request.options.scp,
    };
    let options = &request.options;
    let shared = client.shared.as_ref();
    let pipe = shared
        .and_then(SharedSource::pipe)
        .or_else(|| pipe(request).map(PipeOrigin::Own));
    if let Some(pipe) = pipe {
        return Ok(Expanded::nameless(pipe));
    }
    if options.relative.is_some() {
        let typed: Vec<&[u8]> = request
            .sources
            .iter()
            .map(|source| &source.path[..])
            .collect();
        let (found, errors) = look_up_relative(&typed, options, &lookup)?;
        errors
            .iter()
            .for_each(|error| client.news.failures.add(error));
        return Ok(found);
    }
    let mut all = Expanded::default();
    for (operand, source) in request.sources.iter().enumerate() {
        if source.what == EndKind::Nothing {
            return Ok(Expanded::default());
        }
        let (mut named, mut errors) =
            source::expand(&source.path, &lookup, options.recursive, &options.selector);
        if shared.is_some_and(|shared| shared.named_pipe().is_none()) {
            let streams = named.extract_if(.., |named| named.is_pipe());
            errors.extend(streams.map(read_once));
        }
        errors
            .iter()
            .for_each(|error| client.news.failures.add(error));
        let warnings = named.iter().filter_map(NamedSource::warning);
        warnings.for_each(|line| client.reporter.notice(&line));
        all.add(named, (operand, &source.path), !errors.is_empty())?;
    }
    all.add_parts(&options.maps, &lookup)?;
    Ok(all)
}

/// Tells a receiver that some operands could not be read: a snapshot is not complete then.
pub fn not_found() -> Message {
    let message = "not all sources could be read";
    Message::Fault(Fault::of(
        &Error::new(Kind::Read, Side::Source, message),
        0,
        0,
    ))
}

/// Looks up the files of a copy that keeps their paths. The second value are the errors of operands.
///
/// # Errors
/// Usage, if `--delete` is not possible. `Kind::Read`, if a list on this host cannot be read.
pub fn look_up_relative(
    operands: &[&[u8]],
    options: &CopyOptions,
    lookup: &Lookup,
) -> Result<(Expanded, Vec<Error>)> {
    let names = options.relative.as_ref().map(|copy| &copy.names);
    let list = match names {
        Some(NamesFrom::List(list)) => Some(list.clone()),
        Some(NamesFrom::File { path, form }) => {
            Some(Arc::new(source::read_list(path, *form, lookup)?))
        }
        Some(NamesFrom::Operands | NamesFrom::Sent) | None => None,
    };
    if let (Some(list), [typed, ..]) = (&list, operands) {
        return match source::find_list(typed, list, lookup) {
            Ok((source, bases)) => {
                let found = Expanded::listed(source, (list.clone(), bases), options)?;
                Ok((found, Vec::new()))
            }
            Err(error) => Ok((Expanded::default(), vec![error])),
        };
    }
    let mut relative = RelativeOperands::default();
    let mut errors = Vec::new();
    for typed in operands {
        let how = (options.recursive, !options.follow_links);
        errors.extend(relative.add(typed, lookup, how));
    }
    let mut found = match relative.finish(lookup) {
        Ok(Some((source, listed))) => {
            Expanded::listed(source, (listed.list, listed.bases), options)?
        }
        Ok(None) => Expanded::default(),
        Err(error) => {
            errors.push(error);
            Expanded::default()
        }
    };
    if !errors.is_empty() {
        found.lacks_some();
    }
    Ok((found, errors))
}

/// The source, if it is stdin or a command on this machine.
pub fn pipe(request: &Request) -> Option<PipeSpec> {
    let source = request.sources.first()?;
    match source.what {
        EndKind::Path | EndKind::Stderr | EndKind::Nothing => None,
        EndKind::Stdio => Some(PipeSpec::Stdin),
        EndKind::Command => Some(PipeSpec::Command(source.typed.clone())),
    }
}

/// The source, if it is the only one and is a FIFO or a character device on this machine.
pub fn named_pipe(request: &Request) -> Option<PipeSpec> {
    let [source] = &request.sources[..] else {
        return None;
    };
    let path = PathBuf::from(OsStr::from_bytes(&source.path));
    let is_pipe = source.what == EndKind::Path && source::is_pipe_at(&path);
    is_pipe.then_some(PipeSpec::Path(path))
}

/// The error for a pipe among several copies: each would get only a part of it.
fn read_once(named: NamedSource) -> Error {
    let message = "can be read only once; with --also it must be the only source";
    Error::new(Kind::Entry, Side::Source, message).at(named.path)
}

/// The sources, found and counted.
pub struct CountedSources {
    pub found: Expanded,
    pub totals: TotalsKnown,
}

/// When the totals of the sources are known.
pub enum TotalsKnown {
    Now(Totals),
    /// The count goes on while the copy begins.
    Later(Arc<SourceCount>),
}

impl TotalsKnown {
    pub fn now(&self) -> Option<Totals> {
        match self {
            TotalsKnown::Now(totals) => Some(*totals),
            TotalsKnown::Later(_) => None,
        }
    }

    /// The count, if it goes on.
    pub fn count(self) -> Option<Arc<SourceCount>> {
        match self {
            TotalsKnown::Now(_) => None,
            TotalsKnown::Later(count) => Some(count),
        }
    }
}

impl CountedSources {
    /// Shows the user the totals, if they are known.
    pub fn show(&self, progress: &Progress) {
        if let Some(totals) = self.totals.now() {
            progress.set_totals(totals);
            progress.set_phase(Phase::Copying);
        }
    }

    /// The messages to the receiver that begin the copy.
    ///
    /// # Errors
    /// As [`Expanded::roots`].
    pub fn opening(&self) -> Result<Vec<Message>> {
        let roots = self.found.roots()?;
        let spaces = self.found.spaces.get().cloned().map(Message::RootSpaces);
        let roots = match self.totals.now() {
            Some(totals) => Message::Roots(Roots { roots, totals }),
            None => Message::Uncounted(UncountedRoots { roots }),
        };
        Ok(spaces.into_iter().chain([roots]).collect())
    }
}

/// Sources that a separate thread counts.
pub struct Counting {
    found: Expanded,
    count: Arc<SourceCount>,
    thread: JoinHandle<()>,
}

impl Counting {
    pub fn start(found: Expanded, options: &CopyOptions, progress: &Arc<Progress>) -> Counting {
        let count = Arc::<SourceCount>::default();
        let counter = Counter::of(&count);
        let (counted, options, progress) = (found.clone(), options.clone(), progress.clone());
        let thread = tokio::task::spawn_blocking(move || {
            let totals = counted.count(&options, &mut |totals| {
                progress.set_scanned(totals);
                counter.goes_on()
            });
            if let Some(totals) = totals {
                counter.has_counted(totals);
            }
        });
        Counting {
            found,
            count,
            thread,
        }
    }

    /// True if no operand names anything that exists.
    pub fn is_nothing(&self) -> bool {
        self.found.is_nothing()
    }

    /// Waits for the totals; if the receiver `can_wait` for them too, only a little.
    ///
    /// # Errors
    /// If the count panicked.
    pub async fn counted(mut self, can_wait: bool) -> Result<CountedSources> {
        let counted = async {
            let ended = (&mut self.thread).await;
            ended.map_err(|_| Error::panicked())
        };
        // A pipe is not walked, and the space that each part needs comes before the roots.
        match can_wait && self.found.pipe.is_none() && self.found.parts.is_empty() {
            // Not yet over, it goes on.
            true => timeout(COUNT_PATIENCE, counted).await.unwrap_or(Ok(())),
            false => counted.await,
        }?;
        Ok(CountedSources {
            totals: match self.count.totals() {
                Some(totals) => TotalsKnown::Now(totals),
                None => TotalsKnown::Later(self.count),
            },
            found: self.found,
        })
    }
}

pub fn rules(request: &Request) -> Rules {
    Rules {
        keep: request.options.keep,
        update: request.options.update,
        changes: request.options.changes.clone(),
        not_kept: Arc::default(),
        no_clobber: request.options.no_clobber,
        makes_room: request.options.makes_room(),
        fsync: request.options.fsync,
        inplace: request.options.inplace,
        shared_inodes: SharedInodes::new(request.options.is_beside && !request.options.scp),
        force: request.options.force,
        allow_empty: request.takes_empty(),
        blind: false,
        untouched: false,
        set_id: true,
        no_own_names: false,
        links_inside: false,
        direct_io: request.options.direct_io,
        drop_cache: request.options.drop_cache,
        dry_run: request.options.dry_run,
        check: request.options.check,
        backup: request.options.backup.clone().map(Backups::new),
        earlier: request.options.reuse(),
        snapshot: request.options.snapshot.is_some(),
        closed: false,
        modes: match request.options.scp {
            true => ModeRules::ScpDownload,
            false => ModeRules::Usual,
        },
        umask: process_umask(),
    }
}

/// The sessions of a receiver on this machine: this one and the earlier ones of the same command.
pub fn sessions(
    request: &Request,
    own: [u8; 16],
    before: &[[u8; 16]],
    client: &ClientContext,
) -> Sessions {
    let reporter = client.reporter.clone();
    Sessions {
        own,
        before: before.to_vec(),
        owner: owner::of_copy(request),
        trusts: request.trust_partial,
        heard: None,
        tell: Arc::new(move |line| reporter.notice(line)),
    }
}

/// The destination on this machine.
pub fn destination(request: &Request, same_machine: bool, sessions: Sessions) -> CopyDestination {
    let to = match request.dest.what {
        EndKind::Stdio => To::Exit(SinkSpec::Stdout),
        EndKind::Stderr => To::Exit(SinkSpec::Stderr),
        EndKind::Command => To::Exit(SinkSpec::Command(request.dest.typed.clone())),
        EndKind::Nothing => To::Exit(probe_place::nowhere()),
        EndKind::Path => match SinkSpec::of_descriptor(&request.dest.path) {
            Some(exit) => To::Exit(exit),
            None => To::Path(spec(request)),
        },
    };
    CopyDestination {
        to,
        same_machine,
        typed: request
            .sources
            .iter()
            .map(|operand| Typed {
                operand: operand.typed.clone(),
                follow_name: !source::is_pattern(&operand.path),
            })
            .collect(),
        asked: match request.reads_there() {
            true => paths(request),
            false => Vec::new(),
        },
        sessions,
    }
}

fn paths(request: &Request) -> Vec<Vec<u8>> {
    let sources = request.sources.iter();
    sources.map(|source| source.path.clone()).collect()
}

fn spec(request: &Request) -> Spec {
    Spec {
        path: request.dest.path.clone(),
        base: PathBuf::new(),
        remote: false,
        no_target_directory: request.options.no_target_directory,
        inplace: request.options.inplace,
        fsync: request.options.fsync,
        mkpath: request.options.mkpath,
        dry_run: request.options.dry_run,
        check: request.options.check,
        relative: request.options.relative.is_some(),
        is_beside: request.options.is_beside,
        scp: request.options.scp.then_some(ScpPlaces::Download),
        confine: None,
    }
}

/// Checks the roots that a server announces: it may send only the requested files. It must send
/// all of them, unless it reported a failure (`told`).
pub fn check(request: &Request, roots: &[Root], told: bool) -> Result<()> {
    if request.options.relative.is_some() {
        return check_relative(request, roots, told);
    }
    let (operands, recursive) = (&request.sources, request.options.recursive);
    let refused = |name: &str| {
        let message = format!(
            "fastcp there sent {name}, which was not requested; install the same version on both hosts"
        );
        Err(Error::new(Kind::Breach, Side::Source, message))
    };
    let of_parts = roots
        .iter()
        .filter(|root| root.operand as usize >= operands.len());
    if let Some(root) = of_parts.clone().zip(0..).find_map(|(root, nth)| {
        let map = request.options.maps.get(nth);
        let fits = map.is_some_and(|map| is_part(root, nth, map));
        (!fits).then_some(root)
    }) {
        return refused(&printable(root.name.as_bytes()));
    }
    let parts = of_parts.count();
    if parts > 0 && parts + 1 != roots.len() || parts == 0 && request.maps() && !roots.is_empty() {
        return refused("a part of the source that --map does not name");
    }
    for (n, operand) in operands.iter().enumerate() {
        let answers: Vec<&Root> = roots
            .iter()
            .filter(|root| root.operand as usize == n)
            .collect();
        // Filter rules may leave out all that an operand names.
        if answers.is_empty() && !told && !request.options.selector.may_leave_out_operands() {
            let message = "fastcp there sent neither this file nor an error; install the same \
                           version on both hosts";
            let path = OsStr::from_bytes(&operand.path);
            return Err(Error::new(Kind::Breach, Side::Source, message).at(path));
        }
        let may_be = match operand.what {
            EndKind::Path => {
                source::may_answer(&operand.path, &answers, recursive, request.options.scp)
            }
            // Such a source has no name that could place it elsewhere.
            _ => answers
                .iter()
                .all(|root| root.contents && !root.is_directory),
        };
        if !may_be || (operand.what != EndKind::Path && answers.len() > 1) {
            let name = answers
                .first()
                .map_or(&b""[..], |root| root.name.as_bytes());
            return refused(&printable(name));
        }
    }
    Ok(())
}

/// True if `root` is the `nth` part of the only operand.
fn is_part(root: &Root, nth: usize, map: &Mapping) -> bool {
    let name = map.from.rsplit(|byte| *byte == b'/').next();
    root.operand as usize == nth + 1
        && name == Some(root.name.as_bytes())
        && root.contents == root.is_directory
}

/// The same for files that keep their paths: they are the contents of one directory, which has no
/// name. Nothing is announced if no operand exists, or a list on that host has no names.
fn check_relative(request: &Request, roots: &[Root], told: bool) -> Result<()> {
    let names = request.options.relative.as_ref().map(|copy| &copy.names);
    let may_lack_all = match names {
        Some(NamesFrom::List(list)) => told || list.is_empty(),
        Some(NamesFrom::File { .. }) => true,
        Some(NamesFrom::Operands | NamesFrom::Sent) | None => told,
    };
    let fits = match roots {
        [] if may_lack_all => true,
        [] => {
            let message = "fastcp there sent neither a file nor an error; install the same version \
                           on both hosts";
            return Err(Error::new(Kind::Breach, Side::Source, message));
        }
        [root] => root.operand == 0 && root.contents && root.is_directory,
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => {
            let message = "fastcp there sent files that were not requested; install the same version on both hosts";
            Err(Error::new(Kind::Breach, Side::Source, message))
        }
    }
}

pub fn delete_needs_one_base() -> Error {
    Error::usage(
        "--delete and --check need one directory that all files are below: leave out /./, or copy \
         from one directory after the other",
    )
}

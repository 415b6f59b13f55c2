//! The request of a copy and its outcome: what `cli` and `ui` exchange with a session.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use crate::algorithms::Compress;
use crate::error::{Error, Kind, Result, Side};
use crate::keep::Keep;
use crate::mapping::Mapping;
pub use crate::outcome::{Bottleneck, Shares, Verdict};
use crate::outcome::{FileTime, SLOWEST_MAX};
use crate::pipeline::failures::{FAILURES_MAX, MoreFailures};
pub use crate::pipeline::news::{Deleted, MadeSnapshot};
use crate::program::Program;
use crate::progress::Snapshot;
use crate::session::rate_file::RateFile;
use crate::session::schedule::Schedule;
pub use crate::ssh::{Host, Rsh, SshOptions};
use crate::ssh::{Startup, StartupLimit};
pub use crate::transport::routes::Route;
use crate::units::printable;
use crate::wire::hello::Hello;
use crate::wire::message::{Archive, MapTerms, Message, RelativeTerms};
pub use crate::wire::message::{CopyOptions, Ports};

/// One end of a copy, checked: `[user@]host:path`, `scp://…`, a path on this machine, a standard
/// stream or a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// As typed, for messages.
    pub typed: OsString,
    /// None for this machine.
    pub host: Option<Host>,
    pub what: EndKind,
    /// Bytes as typed after the colon; empty means the home directory of a remote host. For a
    /// command, its line.
    pub path: Vec<u8>,
}

/// The kind of thing at one end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// A path: files, directories, devices, FIFOs.
    Path,
    /// `-`: this process's stdin as a source, its stdout as a destination.
    Stdio,
    /// This process's stderr, as a destination.
    Stderr,
    /// A command on that host; its stdout is the source, or its stdin the destination.
    Command,
    /// A probe's end: arriving data is discarded. If the path is not empty, the probe measures
    /// there how fast the place is written.
    Nothing,
}

/// A copy, checked. A session takes sources on one host; the command line may have several.
#[derive(Clone, Debug)]
pub struct Request {
    /// At least one. Shared, since there may be 130,000.
    pub sources: Arc<Vec<Operand>>,
    pub dest: Operand,
    /// Further destinations of the same sources, at most `HOSTS_MAX` in total. Empty unless the
    /// sources are on this machine.
    pub also: Vec<Operand>,
    pub options: CopyOptions,
    pub ssh: SshOptions,
    pub rsh: Rsh,
    /// `--remote-path`: the far end's command, split into words and quoted before use.
    pub remote_path: Option<String>,
    /// `--sudo`: the user that the far end runs as.
    pub sudo: Option<String>,
    /// `--no-install`: the program is not placed on a host that lacks it.
    pub no_install: bool,
    /// `--no-syslog`: the far end writes no line to its system log.
    pub no_syslog: bool,
    /// None: the tuner chooses the number.
    pub streams: Option<u16>,
    pub route: RouteOptions,
    /// `--bwlimit @FILE`: the file with the rate limit, read once a second.
    pub rate_file: Option<RateFile>,
    /// `-vv`: changes are reported only if the far end can and may do that.
    pub names_files: bool,
    /// `--trust-partial`: an earlier run's data is not read again unless something speaks against
    /// it.
    pub trust_partial: bool,
    /// `--allow-empty`: a pipe that ends without data may replace a file that has content.
    pub allow_empty: bool,
    pub retry: Retry,
    pub schedule: Schedule,
    /// `--strict`: metadata that could not be kept is a failure.
    pub strict: bool,
    /// `--check`: nothing is copied, and a difference is a failure.
    pub check: bool,
    pub encrypt: bool,
    /// The files that `--digests` writes, one for each destination; empty without the flag.
    pub digest_lists: Vec<PathBuf>,
    /// `--check=LIST`: the list that the files of the only source are compared with.
    pub check_list: Option<DigestsFrom>,
}

/// Where a list of digests is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DigestsFrom {
    Stdin,
    /// On this machine.
    File(PathBuf),
}

/// How long and how often lost connections are retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// None: only `limit` counts.
    pub time: Option<Duration>,
    /// `--retries` of version 0.1. None: only `time` counts.
    pub limit: Option<u16>,
    /// The first login is retried too, if the host is down, refuses or does not answer.
    pub first: bool,
}

/// A host restarts in less time.
const RETRY_DEFAULT: Duration = Duration::from_secs(5 * 60);

impl Retry {
    /// `--retry-for` and `--retries`, if given.
    pub fn of(time: Option<Duration>, limit: Option<u16>) -> Retry {
        Retry {
            time: time.or(limit.is_none().then_some(RETRY_DEFAULT)),
            limit,
            first: time.is_some(),
        }
    }

    pub fn never() -> Retry {
        Retry::of(None, Some(0))
    }
}

/// How connections are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// `--route`: only this one.
    pub asked: Option<Route>,
    /// `-3`: data between two hosts goes through this machine.
    pub through_here: bool,
    /// `--ports`: of the end that listens.
    pub ports: Option<Ports>,
    /// `--bind`: the address of this host for data connections.
    pub bind: Option<IpAddr>,
    /// `--address`: a name or an address at which the listening end is dialled.
    pub address: Option<String>,
}

impl RouteOptions {
    /// The only route between two hosts, if the user has chosen one.
    pub fn between(&self) -> Option<Route> {
        match self.through_here {
            true => Some(Route::Ssh),
            false => self.asked,
        }
    }
}

impl Request {
    /// True if a pipe that ends without data may replace a file that has content. That is always
    /// so for a command: it succeeded with empty output, as in a shell's `CMD > FILE`.
    pub fn takes_empty(&self) -> bool {
        let is_command = |source: &Operand| source.what == EndKind::Command;
        self.allow_empty || self.sources.iter().any(is_command)
    }

    /// True if the far end should leave no line in its system log. One on this machine serves a
    /// copy for which nobody has logged in.
    pub fn omits_syslog(&self) -> bool {
        self.no_syslog || self.rsh == Rsh::Local
    }

    /// True if a command runs on another host.
    pub fn has_far_command(&self) -> bool {
        let mut operands = std::iter::once(&self.dest).chain(self.sources.iter());
        operands.any(|operand| operand.what == EndKind::Command && operand.host.is_some())
    }

    /// A copy with default settings; any host in it is this machine under another name.
    pub fn local(sources: Vec<Operand>, dest: Operand, options: CopyOptions) -> Request {
        Request {
            sources: Arc::new(sources),
            dest,
            also: Vec::new(),
            options,
            ssh: SshOptions::default(),
            rsh: Rsh::Local,
            remote_path: None,
            sudo: None,
            no_install: false,
            no_syslog: false,
            streams: None,
            route: RouteOptions::default(),
            rate_file: None,
            names_files: false,
            trust_partial: false,
            allow_empty: false,
            retry: Retry::never(),
            schedule: Schedule::default(),
            strict: false,
            check: false,
            encrypt: true,
            digest_lists: Vec::new(),
            check_list: None,
        }
    }

    /// All destinations, as they were typed.
    pub fn dests(&self) -> impl Iterator<Item = &Operand> {
        std::iter::once(&self.dest).chain(&self.also)
    }

    /// How the far end is started.
    ///
    /// # Errors
    /// `Kind::FarEnd` if this program's file cannot be read for installing it.
    pub fn startup(&self) -> Result<Startup> {
        let is_looked_for = self.remote_path.is_none() && self.rsh == Rsh::Ssh;
        let digest = match is_looked_for {
            true => Program::own()?.digest().to_owned(),
            false => String::new(),
        };
        Ok(Startup {
            path: self.remote_path.clone(),
            sudo: self.sudo.clone(),
            digest,
            patience: StartupLimit::of(Duration::from_secs(self.options.timeout_s.into())),
        })
    }

    /// The two hosts of a copy between hosts: of the sources, and of the destination.
    pub fn hosts(&self) -> Option<(&Host, &Host)> {
        let source = self.sources.first()?.host.as_ref()?;
        Some((source, self.dest.host.as_ref()?))
    }

    /// True if a remote host reads the sources and must know which entries to copy.
    pub fn selects_there(&self) -> bool {
        self.reads_there() && self.options.selector.is_choosing()
    }

    /// The message that says so.
    pub fn select(&self) -> Option<Message> {
        let selection = || self.options.selector.selection().clone();
        self.selects_there().then(|| Message::Select(selection()))
    }

    /// # Errors
    /// `Kind::FarEnd` if `host`, which reads the sources, is too old to be told which entries to
    /// copy.
    pub fn check_selects(&self, host: &Host, hello: &Hello) -> Result<()> {
        if !self.selects_there() || hello.can_select() {
            return Ok(());
        }
        let message = format!(
            "fastcp on {} is older and would copy all files: install the same version on both hosts",
            printable(host.name.as_bytes())
        );
        Err(Error::new(Kind::FarEnd, Side::Here, message))
    }

    /// True if a remote host reads the sources.
    pub fn reads_there(&self) -> bool {
        self.sources.iter().any(|source| source.host.is_some())
    }

    /// The message for a server that sends files with their paths.
    pub fn relative(&self) -> Option<Message> {
        let copy = self
            .options
            .relative
            .as_ref()
            .filter(|_| self.reads_there());
        copy.map(|copy| Message::Relative(RelativeTerms::of(copy)))
    }

    /// # Errors
    /// `Kind::FarEnd` if `host` is too old to keep the paths of files.
    pub fn check_relative(&self, host: &Host, hello: &Hello) -> Result<()> {
        if self.options.relative.is_none() || hello.can_list() {
            return Ok(());
        }
        let message = format!(
            "fastcp on {} is older and knows neither --files-from nor --relative: install the same \
             version on both hosts",
            printable(host.name.as_bytes())
        );
        Err(Error::new(Kind::FarEnd, Side::Here, message))
    }

    /// True if parts of the source go to separate places.
    pub fn maps(&self) -> bool {
        !self.options.maps.is_empty()
    }

    /// The message for a server that says so. One that `sends` is not told the places.
    pub fn map(&self, sends: bool) -> Option<Message> {
        let of_server = |map: &Mapping| match sends {
            true => map.without_place(),
            false => map.clone(),
        };
        let maps = self.options.maps.iter().map(of_server).collect();
        self.maps().then_some(Message::Map(MapTerms { maps }))
    }

    /// # Errors
    /// `Kind::FarEnd` if `host` is too old for places of parts, or one that `receives` for sources on
    /// several hosts.
    pub fn check_places(&self, host: &Host, hello: &Hello, receives: bool) -> Result<()> {
        let is_needed = self.maps() || self.options.is_beside && receives;
        if !is_needed || hello.can_place() {
            return Ok(());
        }
        let message = format!(
            "fastcp on {} is older and knows neither --map nor sources on several hosts: install the \
             same version on both hosts",
            printable(host.name.as_bytes())
        );
        Err(Error::new(Kind::FarEnd, Side::Here, message))
    }

    /// # Errors
    /// `Kind::FarEnd` if `host` is too old to copy by scp's rules.
    pub fn check_scp(&self, host: &Host, hello: &Hello) -> Result<()> {
        if !self.options.scp || hello.can_copy_as_scp() {
            return Ok(());
        }
        let message = format!(
            "fastcp on {} is older and does not know --scp: install the same version on both hosts",
            printable(host.name.as_bytes())
        );
        Err(Error::new(Kind::FarEnd, Side::Here, message))
    }

    /// True if an end must know more of metadata and existing files than `-p` says.
    pub fn archives(&self) -> bool {
        let usual = match self.options.preserve {
            true => Keep::modes_and_times(),
            false => Keep::default(),
        };
        let CopyOptions {
            keep,
            update,
            changes,
            mirror,
            backup,
            earlier,
            snapshot,
            ..
        } = &self.options;
        let deletes = mirror.deletes || mirror.removes_sources || backup.is_some();
        let deletes = deletes || earlier.is_some() || snapshot.is_some();
        *keep != usual || update.asks() || !changes.is_empty() || deletes
    }

    /// The message that says so.
    pub fn archive(&self) -> Option<Message> {
        let archive = Archive {
            keep: self.options.keep,
            update: self.options.update,
            changes: (*self.options.changes).clone(),
            mirror: self.options.mirror,
            backup: self.options.backup.clone(),
            earlier: self.options.earlier.clone(),
            snapshot: self.options.snapshot,
        };
        self.archives().then_some(Message::Archive(archive))
    }

    /// # Errors
    /// `Kind::FarEnd` if `host` is too old to keep metadata as requested.
    pub fn check_archives(&self, host: &Host, hello: &Hello) -> Result<()> {
        if !self.archives() || hello.can_archive() {
            return Ok(());
        }
        let message = format!(
            "fastcp on {} is older and knows neither -a nor --delete, --backup and the like: \
             install the same version on both hosts",
            printable(host.name.as_bytes())
        );
        Err(Error::new(Kind::FarEnd, Side::Here, message))
    }

    /// # Errors
    /// `Kind::FarEnd` if `host` is too old for a dry run, or to report each change.
    pub fn check_itemizes(&self, host: &Host, hello: &Hello) -> Result<()> {
        let what = match (self.options.dry_run, self.options.itemizes) {
            _ if hello.can_itemize() => return Ok(()),
            (false, _) if self.names_files => return Ok(()),
            (false, false) => return Ok(()),
            (true, _) => "would copy in a dry run",
            (false, true) => "does not know --itemize-changes",
        };
        let message = format!(
            "fastcp on {} is older and {what}: install the same version on both hosts",
            printable(host.name.as_bytes())
        );
        Err(Error::new(Kind::FarEnd, Side::Here, message))
    }

    /// The host at one of the ends; None if both are on this machine.
    pub fn host(&self) -> Option<&Host> {
        let operands = std::iter::once(&self.dest).chain(self.sources.iter());
        operands.filter_map(|operand| operand.host.as_ref()).next()
    }
}

/// The outcome of a copy. [`fatal`](Outcome::fatal) is a failure of the copy as a whole.
#[derive(Debug)]
pub struct Outcome {
    /// Set if the session ended before its work was done; outranks `failures`.
    pub fatal: Option<Error>,
    /// One per failed entry, at most [`FAILURES_MAX`].
    pub failures: Vec<Error>,
    /// Failures beyond these.
    pub more_failures: MoreFailures,
    /// Entries deleted at the destination.
    pub deleted: Deleted,
    /// Entries removed at the source.
    pub removed: Deleted,
    /// The complete snapshot that was made.
    pub snapshot: Option<MadeSnapshot>,
    /// Nothing was copied or deleted; the counts are the copy's expected ones.
    pub dry_run: bool,
    /// `--check`: a dry run that compares the ends.
    pub check: bool,
    /// The final values of the counters.
    pub counters: Snapshot,
    /// From the start of the program's work to its end.
    pub elapsed: Duration,
    /// The part of `elapsed` before a far end first said hello; None without a far end.
    pub login: Option<Duration>,
    /// The part of `elapsed` since the first data moved; zero if none did.
    pub data: Duration,
    /// "direct", "ssh (direct: no answer)", "local"; empty if no route was chosen.
    pub route: String,
    /// Files whose names `--digests` could not list.
    pub unlisted: u64,
    /// What limited the copy; None if it was incomplete or copied nothing.
    pub verdict: Option<Verdict>,
    /// The slowest files that this process has sent or received, the slowest first.
    pub slowest: Vec<FileTime>,
}

impl Outcome {
    /// True if a check found a difference.
    fn differs(&self) -> bool {
        let counters = &self.counters;
        counters.missing + counters.different + counters.other_metadata + self.deleted.count > 0
    }

    /// Adds the outcome of a copy from another host to the same destination.
    pub fn add(&mut self, other: Outcome) {
        self.fatal = self.fatal.take().or(other.fatal);
        self.failures.extend(other.failures);
        self.more_failures.add(other.more_failures);
        let kept = self.failures.len().min(FAILURES_MAX);
        for error in self.failures.drain(kept..) {
            self.more_failures.note(&error);
        }
        self.deleted.add(other.deleted);
        self.removed.add(other.removed);
        self.counters.add(&other.counters);
        self.login = self.login.or(other.login);
        self.data += other.data;
        if !other.route.is_empty() && !self.route.split(", ").any(|route| route == other.route) {
            let comma = if self.route.is_empty() { "" } else { ", " };
            self.route = format!("{}{comma}{}", self.route, other.route);
        }
        self.unlisted += other.unlisted;
        self.slowest.extend(other.slowest);
        self.slowest.sort_by_key(|file| Reverse(file.time));
        self.slowest.truncate(SLOWEST_MAX);
        // Each host had its own bottleneck.
        self.verdict = None;
    }

    /// The process's exit code. A session's failure outranks those of entries. If all failed
    /// entries have the same code, that is the exit code; otherwise it is 1, and the highest of them
    /// for a check. Files that only grew count if nothing failed.
    pub fn exit_code(&self) -> i32 {
        if let Some(fatal) = &self.fatal {
            return fatal.kind.exit_code();
        }
        let mut failed = self.more_failures;
        for failure in &self.failures {
            failed.note(failure);
        }
        match failed.highest_exit_code() {
            None if self.check && self.differs() => 1,
            None if self.counters.grown > 0 => Kind::Grew.exit_code(),
            // With 1, a check has compared everything.
            Some(highest) if self.check => highest,
            _ => failed.exit_code(),
        }
    }
}

//! The destinations of the roots: found, and checked for free space, before the first byte.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use rustix::rand::GetRandomFlags;

use super::destination::{CopyDestination, To};
use super::entries::Entries;
use super::requested::RequestedFiles;
use super::snapshot::SnapshotCopy;
use super::sums::OwnSums;
use crate::dest::{
    self, EarlierDirs, EntrySlot, Landing, NeededSpace, RootTarget, SnapshotRun, SnapshotStore,
    Source, Spec, Unfinished, stored_user_key, user_key,
};
use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::file_list::NamesFrom;
use crate::journal::record::Hash;
use crate::journal::{self, Journal, JournalPlace, Opening, WaitForLock};
use crate::manifest::{Root, Totals};
use crate::mapping::Mapping;
use crate::pipeline::context::Context;
use crate::pipeline::leftovers;
use crate::progress::Phase;
use crate::source::{RequestedPaths, requested_paths};
use crate::wire::message::{ABOVE_MAX, Message, RootSpace, RootsResolved};

/// The roots with their destinations, before the free space is checked.
pub(super) struct FoundPlaces {
    roots: Vec<Root>,
    targets: Vec<RootTarget>,
    /// The space that each root needs, if the sender has said so.
    spaces: Vec<RootSpace>,
}

/// Finds the destinations of the roots, and begins the copy there.
pub(super) struct DestinationResolver<'a> {
    pub entries: &'a Entries,
    pub destination: &'a CopyDestination,
    pub handles: &'a Arc<Handles>,
}

impl DestinationResolver<'_> {
    /// Resolves the destinations of the roots and opens the journal.
    pub(super) fn find(&self, roots: Vec<Root>, spaces: Vec<RootSpace>) -> Result<FoundPlaces> {
        let (destination, handles) = (self.destination, self.handles);
        let (rules, context) = (&self.entries.rules, self.context());
        let typed = |root: &Root| destination.typed.get(root.operand as usize);
        let maps = &context.options.maps[..];
        check_parts(&roots, maps)?;
        // The operand comes before its parts.
        let part = |root: &Root| maps.get((root.operand as usize).checked_sub(1)?);
        let sources: Vec<Source> = roots
            .iter()
            .map(|root| Source {
                root,
                typed: match part(root) {
                    Some(part) => &part.from,
                    None => typed(root).map_or(b"", |typed| typed.operand.as_bytes()),
                },
                // Between two hosts, `typed` has a hash after the operand. Two links may lead to
                // one place, which the sessions of other hosts would not notice.
                follow_name: part(root).is_none()
                    && (context.options.scp || !context.options.is_beside)
                    && typed(root).is_some_and(|typed| typed.follow_name),
            })
            .collect();
        let same_machine = &self.entries.mirror.same_machine;
        same_machine.store(destination.same_machine, Relaxed);
        self.entries.check_owners()?;
        // A dry run does not make the key.
        let key = || match rules.dry_run {
            true => stored_user_key(),
            false => Some(user_key().bytes),
        };
        let unfinished = |slot: &EntrySlot, root: &Root| {
            let Some(key) = key() else {
                return false;
            };
            let place = JournalPlace::new(slot.dir.clone(), [slot.name.as_bytes()].into_iter());
            let hashes = match maps.is_empty() {
                true => hashes_of(std::slice::from_ref(root), maps),
                false => hashes_of(&roots, maps),
            };
            place.is_of(&hashes, &key)
        };
        let mut targets = match &destination.to {
            // No source could be read, as the sender has reported, or the user left all out.
            _ if roots.is_empty() => Vec::new(),
            To::Exit(exit) => vec![exit.target(&roots)?],
            To::Path(spec) if rules.snapshot => self.land_snapshot(spec, &sources)?,
            To::Path(spec) => {
                if rules.closed {
                    dest::refuse_in_snapshots(spec, handles)?;
                }
                let same_machine = destination.same_machine;
                let targets = match maps {
                    [] => dest::resolve(spec, &sources, same_machine, handles, &unfinished)?,
                    _ => self.land_parts(spec, &sources, &unfinished)?,
                };
                if rules.closed {
                    dest::refuse_targets_in_snapshots(&targets)?;
                }
                targets
            }
        };
        self.find_earlier_copies(&roots, &mut targets)?;
        if let (Some(backup), To::Path(spec)) = (&rules.backup, &destination.to) {
            let is_directory = roots.first().is_some_and(|root| root.is_directory);
            backup.land(spec, &targets, is_directory, rules, handles)?;
        }
        if context.options.mirror.removes_sources {
            dest::check_lasting(&targets)?;
        }
        self.itemize_roots(&targets)?;
        if !rules.dry_run {
            self.open_journal(&roots, &targets)?;
        }
        Ok(FoundPlaces {
            roots,
            targets,
            spaces,
        })
    }

    /// True if the free space must be checked before the first byte.
    pub(super) fn needs_totals(&self, places: &FoundPlaces) -> bool {
        let rules = &self.entries.rules;
        // Files that are written in place have their space already, and users of `--inplace` often
        // have no more.
        // Nor is it known which files will stay.
        let stays = rules.inplace || rules.no_clobber || rules.update.asks();
        let stays = stays && places.targets.iter().all(|target| target.existed);
        !(rules.check || stays || rules.earlier.is_some())
    }

    /// Checks the free space, if it [must](DestinationResolver::needs_totals), and begins the copy.
    /// Returns the sums of existing directories, if the sender is asked for its sums.
    pub(super) fn land(
        &self,
        places: FoundPlaces,
        totals: Option<&Totals>,
    ) -> Result<Option<OwnSums>> {
        let (entries, context) = (self.entries, self.context());
        if let Some(totals) = totals.filter(|_| self.needs_totals(&places)) {
            let there = entries.journal().map_or(0, Journal::begun_bytes);
            let needed = |space: &RootSpace| NeededSpace {
                allocated: space.allocated,
                largest: space.largest,
            };
            let checked = match places.spaces.len() == places.targets.len() {
                true => {
                    let needed: Vec<_> = places.spaces.iter().map(needed).collect();
                    dest::check_space_of_each(&places.targets, &needed, there)
                }
                false => dest::check_free_space(&places.targets, totals, there),
            };
            if let Err(error) = checked {
                // Now: once the client knows of the error, it does not wait long for this end.
                entries.journal.put_away(true);
                return Err(error);
            }
        }
        let FoundPlaces { roots, targets, .. } = places;
        // A copy to a pipe has one root.
        let ordered = targets.iter().any(is_pipe);
        let names: Vec<Vec<u8>> = targets.iter().map(|target| target.listed.clone()).collect();
        context.shutdown.set_landed(&names);
        if let Some(list) = &context.digests {
            list.set_landed(names.clone());
        }
        if self.destination.same_machine && context.options.relative.is_some() {
            let dirs = targets.iter().filter_map(|target| target.landing.dir());
            let above = dirs.flat_map(|dir| dir.with_those_above(ABOVE_MAX));
            // Roots land once, so it was not set before.
            let _ = entries.above.set(above.collect());
        }
        if context.options.mirror.deletes {
            self.protect(&roots, &targets);
        }
        self.request()?;
        let exists = targets.iter().any(|target| target.existed);
        let exists = exists || entries.rules.earlier.is_some();
        entries.moved.set_roots(&targets);
        entries.table().roots.set(&roots, targets);
        context.progress.set_phase(Phase::Copying);
        let mut sums = None;
        if exists && self.compares_sums() {
            let mut key = [0; 32];
            // Without random bytes nothing is compared by sums.
            if rustix::rand::getrandom(&mut key, GetRandomFlags::empty()) == Ok(key.len()) {
                sums = Some(OwnSums::new(key));
                context.say(Message::SumUp(key));
            }
        }
        // With `--existing`, files without an existing directory are left out too.
        let update = &entries.rules.update;
        let asks = exists && update.asks() || update.existing_only;
        let resumes =
            asks || entries.rules.dry_run || entries.journal().is_some_and(Journal::has_finished);
        context.say(Message::Landed(RootsResolved {
            names,
            resumes,
            ordered,
            window: context.budget.window() as u32,
        }));
        Ok(sums)
    }

    /// Opens the snapshot directory, and resolves the roots in the snapshot under way.
    fn land_snapshot(&self, spec: &Spec, sources: &[Source]) -> Result<Vec<RootTarget>> {
        let (entries, handles) = (self.entries, self.handles);
        let Some(terms) = self.context().options.snapshot else {
            return Ok(Vec::new());
        };
        let sources: Vec<Source> = sources
            .iter()
            .map(|source| Source {
                follow_name: false,
                ..*source
            })
            .collect();
        if entries.rules.dry_run {
            let view = SnapshotStore::look(spec, handles)?;
            let latest = EarlierDirs::of(view.latest.into_iter().collect());
            let mut targets = dest::would_resolve_in(&view.path, &sources)?;
            targets.iter_mut().for_each(|it| it.set_earlier(&latest));
            return Ok(targets);
        }
        let sessions = &self.destination.sessions;
        let run = SnapshotRun {
            session: sessions.own,
            before: &sessions.before,
            no_resume: self.context().options.no_resume,
            needs_empty: entries.rules.closed,
            thins: terms.keep.is_some(),
            is_ending: &|| self.context().is_ending(),
        };
        let store = SnapshotStore::open(spec, &run, &entries.rules, handles)?;
        let same_machine = self.destination.same_machine;
        let partial = store.partial();
        let resolved = dest::resolve_in(spec, partial, &sources, same_machine, handles);
        let mut targets = match resolved {
            Ok(targets) => targets,
            Err(error) => {
                store.withdraw();
                return Err(error);
            }
        };
        let latest = EarlierDirs::of(store.latest().cloned().into_iter().collect());
        for target in &mut targets {
            target.set_earlier(&latest);
            if let Landing::Name(slot) = &mut target.landing {
                slot.fresh = store.is_new();
            }
        }
        let (rules, tell) = (entries.rules.clone(), sessions.tell.clone());
        let copy = SnapshotCopy::new(store, terms, &targets, &entries.report, rules, tell);
        // Roots land once, so it was not set before.
        let _ = entries.snapshot.set(copy);
        Ok(targets)
    }

    fn context(&self) -> &Context {
        self.entries.context()
    }

    /// Resolves the places of a source and of its parts (`--map`).
    fn land_parts(
        &self,
        spec: &Spec,
        sources: &[Source],
        unfinished: &Unfinished,
    ) -> Result<Vec<RootTarget>> {
        let (same_machine, handles) = (self.destination.same_machine, self.handles);
        let (whole, parts) = sources.split_at(1);
        let mut targets = dest::resolve(spec, whole, same_machine, handles, unfinished)?;
        for (part, map) in parts.iter().zip(&*self.context().options.maps) {
            let spec = Spec {
                path: map.to.clone(),
                ..spec.clone()
            };
            if self.entries.rules.closed {
                dest::refuse_in_snapshots(&spec, handles)?;
            }
            // What an interrupted copy has made of it is filled.
            let part = std::slice::from_ref(part);
            let landed = dest::resolve(&spec, part, same_machine, handles, &|_, _| false)?;
            if let Some(pipe) = landed.iter().find(|target| is_pipe(target)) {
                let message =
                    "is a pipe; a part of SOURCE goes to a file, directory or device (--map)";
                let path = pipe.landing.path();
                return Err(Error::new(Kind::Refused, Side::Dest, message).at(path));
            }
            targets.extend(landed.into_iter().map(|target| RootTarget {
                // It is not below the destination.
                listed: absolute(&target.landing.path()),
                ..target
            }));
        }
        dest::refuse_overlap(sources, &targets, same_machine)?;
        Ok(targets)
    }

    /// Finds the directories of `--link-dest` and `--copy-dest`.
    fn find_earlier_copies(&self, roots: &[Root], targets: &mut [RootTarget]) -> Result<()> {
        let destination = self.destination;
        let (Some(earlier), To::Path(spec)) = (&self.context().options.earlier, &destination.to)
        else {
            return Ok(());
        };
        if spec.inplace {
            return Err(Error::usage(
                "--inplace would change existing files, which may be hard links to earlier \
                 copies: leave out --inplace",
            ));
        }
        let is_directory = roots.first().is_some_and(|root| root.is_directory);
        let tell = &*destination.sessions.tell;
        let found = dest::earlier_copies(spec, earlier, is_directory, self.handles, tell)?;
        if self.context().options.mirror.deletes {
            let mirror = &self.entries.mirror;
            found.iter().for_each(|dir| mirror.protect_earlier(dir));
        }
        for target in targets {
            target.set_earlier(&found);
        }
        Ok(())
    }

    /// Notes what may be sent, if this end knows.
    fn request(&self) -> Result<()> {
        let (options, asked) = (&self.context().options, &self.destination.asked);
        let (list, patterns) = match options.relative.as_ref().map(|copy| &copy.names) {
            Some(NamesFrom::List(list)) => (list.clone(), RequestedPaths::default()),
            Some(NamesFrom::Operands) if !asked.is_empty() => {
                let (list, patterns) =
                    requested_paths(asked, options.recursive).map_err(Error::usage)?;
                (Arc::new(list), patterns)
            }
            _ => return Ok(()),
        };
        self.entries.table().request(RequestedFiles {
            list,
            patterns,
            recursive: options.recursive,
        });
        Ok(())
    }

    /// Notes the names of the roots, and the state of the directories before the journal is made
    /// there.
    fn itemize_roots(&self, targets: &[RootTarget]) -> Result<()> {
        let report = &self.entries.report;
        if report.names_entries() {
            let names = targets.iter().map(|target| target.listed.clone());
            report.landed_names.set(names.collect());
        }
        let itemizer = &report.itemizer;
        if !itemizer.is_on() {
            return Ok(());
        }
        for target in targets {
            if let Landing::Directory(dir) = &target.landing {
                itemizer.remember(dir.identity(), dest::status_of(dir)?);
            }
        }
        Ok(())
    }

    /// Keeps the operands, and the directories where they go, from being deleted.
    fn protect(&self, roots: &[Root], targets: &[RootTarget]) {
        let mirror = &self.entries.mirror;
        let operands = roots.iter().map(|root| (root.dev, root.ino));
        mirror.protect_source(operands);
        let names = targets.iter().map(|target| target.listed.clone());
        let ids = roots.iter().map(|root| root.id);
        mirror.set_names(ids.zip(names));
        let mut last = None;
        for dir in targets.iter().filter_map(|target| target.landing.dir()) {
            if last.replace(dir.identity()) != Some(dir.identity()) {
                mirror.protect(dir.with_those_above(ABOVE_MAX));
            }
        }
    }

    /// True if directories are compared by sums. A key that may only write must not learn what
    /// exists; a list of digests needs all content; and with `--fsync` each file is synced.
    fn compares_sums(&self) -> bool {
        let context = self.context();
        let lists = context.digests.is_some() || context.options.digests;
        let rules = &self.entries.rules;
        // What an earlier session has begun of a file is removed when the file is asked about. Sums
        // show no data that was lost, and no file that is half written in place.
        let journal = self.entries.journal();
        let has_begun =
            journal.is_some_and(|journal| journal.begun_bytes() > 0 || journal.has_doubt());
        let is_blind = rules.blind && !rules.snapshot;
        rules.update.sums_up() && !is_blind && !rules.fsync && !lists && !has_begun
    }

    /// Opens the journal, which is the lock of this destination. If no journal is possible, the
    /// copy continues without one.
    fn open_journal(&self, roots: &[Root], targets: &[RootTarget]) -> Result<()> {
        let (destination, handles) = (self.destination, self.handles);
        let (rules, context) = (&self.entries.rules, self.context());
        let Some(first) = targets.first() else {
            return Ok(());
        };
        let owner = destination.sessions.owner;
        let opening = Opening {
            user: user_key().bytes,
            is_user_lasting: user_key().is_kept,
            session: destination.sessions.own,
            owner,
            roots: hash_of(roots, &context.options.maps),
            chunk_size: context.chunk_size as u32,
            afresh: context.options.no_resume,
            // A key that may only write must not learn whether others copied the same data.
            own_only: rules.blind,
        };
        let path = first.landing.path();
        let waiting = WaitForLock {
            before: &destination.sessions.before,
            owner,
            path: &path,
            is_ending: &|| context.is_ending(),
            tell: &*destination.sessions.tell,
        };
        let places = match first.landing.device() {
            // The directory of the snapshot may get a mode that allows no removal.
            None if rules.snapshot => {
                let snapshot = self.entries.snapshot.get();
                snapshot.map(SnapshotCopy::journal).into_iter().collect()
            }
            Some(device) => device_places(device, destination, handles),
            // A later run finds it by the operand alone: the places of parts exist then.
            None if !context.options.maps.is_empty() => places(&targets[..1], first),
            None => places(targets, first),
        };
        let same = hashes_of(roots, &context.options.maps);
        self.entries
            .journal
            .open(places, &same, &opening, &waiting)?;
        self.sweep(first);
        if let Some(began) = self.entries.journal().and_then(Journal::run_began) {
            self.entries.mirror.began_at(began);
        }
        Ok(())
    }

    /// Removes what abandoned copies have left where this copy writes. Now, since later the directory
    /// may have its final times already.
    fn sweep(&self, first: &RootTarget) {
        let rules = &self.entries.rules;
        // Not with `--snapshot`, and not for a key that may change no existing file.
        let keeps = rules.untouched || rules.closed || rules.snapshot;
        if keeps || first.landing.device().is_some() {
            return;
        }
        if let Some(dir) = first.landing.dir() {
            leftovers::sweep(dir, &user_key().bytes, SystemTime::now());
        }
    }
}

/// The place for the journal of a copy to a device: not in the directory of the device.
fn device_places(
    device: &EntrySlot,
    destination: &CopyDestination,
    handles: &Arc<Handles>,
) -> Vec<JournalPlace> {
    let typed = destination
        .typed
        .iter()
        .map(|typed| typed.operand.as_bytes());
    let source = journal::hash(typed);
    match dest::device_journal(device, &source, handles) {
        Ok(EntrySlot { dir, name, .. }) => vec![JournalPlace {
            dir,
            name: name.as_os_str().to_owned(),
        }],
        Err(error) => {
            let line = format!(
                "fastcp: {}; if this copy is interrupted, it cannot be resumed",
                error.in_place()
            );
            (destination.sessions.tell)(&line);
            Vec::new()
        }
    }
}

/// The possible places of the journal, best first.
fn places(targets: &[RootTarget], first: &RootTarget) -> Vec<JournalPlace> {
    let name = |target: &RootTarget| match &target.landing {
        Landing::Name(slot) => slot.name.as_bytes().to_vec(),
        Landing::Directory(_) | Landing::Exit(_) | Landing::Missing(_) => Vec::new(),
    };
    let names: Vec<Vec<u8>> = targets.iter().map(name).collect();
    let place = |dir: &Arc<Dir>| JournalPlace::new(dir.clone(), names.iter().map(|name| &name[..]));
    // A copy to a pipe cannot be resumed and gets no journal.
    let mut places: Vec<JournalPlace> = first.landing.dir().map(place).into_iter().collect();
    // A directory that allows no new file may contain one that does.
    if let Landing::Name(EntrySlot { dir, name, .. }) = &first.landing
        && first.existed
        && let Ok(inside) = dir.child(name)
    {
        places.push(place(&inside));
        // Another run may have named the existing directory itself, and its content as the source.
        if targets.len() == 1 {
            places.push(JournalPlace::new(inside, [&b""[..]].into_iter()));
        }
    }
    places
}

/// Checks that the roots are one operand and its parts, in order, if there are parts.
fn check_parts(roots: &[Root], maps: &[Mapping]) -> Result<()> {
    let is_in_order = || (0..).zip(roots).all(|(nth, root)| root.operand == nth);
    if maps.is_empty() || roots.is_empty() || roots.len() == maps.len() + 1 && is_in_order() {
        return Ok(());
    }
    let what = "other parts of the source than those with places of their own";
    Err(Error::breach(Side::Here, "the sender", what))
}

/// The path of a part's place, for lists.
fn absolute(path: &Path) -> Vec<u8> {
    let absolute = std::path::absolute(path);
    absolute.map_or_else(
        |_| path.as_os_str().as_bytes().to_vec(),
        |path| path.as_os_str().as_bytes().to_vec(),
    )
}

/// Identifies the roots by their names and kinds at the source, and by the places of parts.
fn hash_of(roots: &[Root], maps: &[Mapping]) -> Hash {
    let of_root = |root: &Root| {
        let kind = u8::from(root.is_directory) | u8::from(root.contents) << 1;
        [root.name.as_bytes(), &[kind]].concat()
    };
    let places = maps.iter().map(|map| map.to.clone());
    let parts: Vec<Vec<u8>> = roots.iter().map(of_root).chain(places).collect();
    journal::hash(parts.iter().map(|part| &part[..]))
}

/// The hashes of copies that resume each other in one place: `DIR` and `DIR/`.
fn hashes_of(roots: &[Root], maps: &[Mapping]) -> Vec<Hash> {
    let mut hashes = vec![hash_of(roots, maps)];
    if let [first, parts @ ..] = roots
        && first.is_directory
        && parts.len() == maps.len()
    {
        let mut other = roots.to_vec();
        other[0].contents = !first.contents;
        hashes.push(hash_of(&other, maps));
    }
    hashes
}

fn is_pipe(target: &RootTarget) -> bool {
    matches!(target.landing, Landing::Exit(_))
}

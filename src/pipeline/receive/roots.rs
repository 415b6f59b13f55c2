//! The destinations of the roots, and the journal of the copy: opened before the first byte and
//! removed or kept after the last.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Timespec, Timestamps, fstat, futimens};
use rustix::rand::GetRandomFlags;

use super::destination::{CopyDestination, To};
use super::entries::Entries;
use super::open_file::OpenFile;
use super::requested::RequestedFiles;
use super::snapshot::SnapshotCopy;
use crate::dest::{
    self, EarlierDirs, EntrySlot, JournalName, Landing, NeededSpace, RootTarget, Rules,
    SnapshotRun, SnapshotStore, Source, Spec, Unfinished, stored_user_key, user_key,
};
use crate::dir::{Dir, Handles};
use crate::error::{Error, Result, Side};
use crate::file_list::NamesFrom;
use crate::journal::record::Hash;
use crate::journal::{self, Journal, JournalPlace, Opening, WaitForLock};
use crate::manifest::{Root, Totals};
use crate::mapping::Mapping;
use crate::progress::Phase;
use crate::source::{RequestedPaths, requested_paths};
use crate::wire::message::{ABOVE_MAX, Message, RootSpace, RootsResolved};

/// The roots with their destinations, before the free space is checked.
pub struct FoundPlaces {
    roots: Vec<Root>,
    targets: Vec<RootTarget>,
    /// The space that each root needs, if the sender has said so.
    spaces: Vec<RootSpace>,
}

impl Entries {
    /// Resolves the destinations of the roots and opens the journal.
    pub fn find_places(
        &self,
        destination: &CopyDestination,
        roots: Vec<Root>,
        spaces: Vec<RootSpace>,
        handles: &Arc<Handles>,
    ) -> Result<FoundPlaces> {
        let typed = |root: &Root| destination.typed.get(root.operand as usize);
        let maps = &self.context().options.maps[..];
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
                follow_name: typed(root).is_some_and(|typed| typed.follow_name),
            })
            .collect();
        let same_machine = &self.mirror.same_machine;
        same_machine.store(destination.same_machine, Relaxed);
        self.check_owners()?;
        // A dry run does not make the key.
        let key = || match self.rules.dry_run {
            true => stored_user_key(),
            false => Some(user_key().bytes),
        };
        let unfinished = |slot: &EntrySlot, root: &Root| {
            let Some(key) = key() else {
                return false;
            };
            let place = JournalPlace::new(slot.dir.clone(), [slot.name.as_bytes()].into_iter());
            let hash = match maps.is_empty() {
                true => hash_of(std::slice::from_ref(root), maps),
                false => hash_of(&roots, maps),
            };
            place.roots(&key) == Some(hash)
        };
        let targets = match &destination.to {
            // No source could be read, as the sender has reported, or the user left all out.
            _ if roots.is_empty() => Vec::new(),
            To::Exit(exit) => vec![exit.target(&roots)?],
            To::Path(spec) if self.rules.snapshot => {
                self.land_snapshot(spec, &sources, destination, handles)?
            }
            To::Path(spec) => {
                if self.rules.closed {
                    dest::refuse_in_snapshots(spec, handles)?;
                }
                let same_machine = destination.same_machine;
                match maps {
                    [] => dest::resolve(spec, &sources, same_machine, handles, &unfinished)?,
                    _ => self.land_parts(spec, &sources, same_machine, handles, &unfinished)?,
                }
            }
        };
        let mut targets = targets;
        self.find_earlier_copies(destination, &roots, &mut targets, handles)?;
        if let (Some(backup), To::Path(spec)) = (&self.rules.backup, &destination.to) {
            let is_directory = roots.first().is_some_and(|root| root.is_directory);
            backup.land(spec, &targets, is_directory, handles)?;
        }
        if self.context().options.mirror.removes_sources {
            dest::check_lasting(&targets)?;
        }
        self.itemize_roots(&targets)?;
        if !self.rules.dry_run {
            self.open_journal(destination, &roots, &targets, handles)?;
        }
        Ok(FoundPlaces {
            roots,
            targets,
            spaces,
        })
    }

    /// True if the free space must be checked before the first byte.
    pub fn needs_totals(&self, places: &FoundPlaces) -> bool {
        // Files that are written in place have their space already, and users of `--inplace` often
        // have no more.
        // Nor is it known which files will stay.
        let stays = self.rules.inplace || self.rules.no_clobber || self.rules.update.asks();
        let stays = stays && places.targets.iter().all(|target| target.existed);
        !(self.rules.check || stays || self.rules.earlier.is_some())
    }

    /// Checks the free space, if it [must](Entries::needs_totals), and begins the copy.
    pub fn land(
        &self,
        destination: &CopyDestination,
        places: FoundPlaces,
        totals: Option<&Totals>,
    ) -> Result<()> {
        if let Some(totals) = totals.filter(|_| self.needs_totals(&places)) {
            let there = self.journal().map_or(0, Journal::begun_bytes);
            let needed = |space: &RootSpace| NeededSpace {
                allocated: space.allocated,
                largest: space.largest,
            };
            match places.spaces.len() == places.targets.len() {
                true => {
                    let needed: Vec<_> = places.spaces.iter().map(needed).collect();
                    dest::check_space_of_each(&places.targets, &needed, there)?;
                }
                false => dest::check_free_space(&places.targets, totals, there)?,
            }
        }
        let FoundPlaces { roots, targets, .. } = places;
        let leaves = |target: &RootTarget| matches!(target.landing, Landing::Exit(_));
        // A copy to a pipe has one root.
        let ordered = targets.iter().any(leaves);
        let names: Vec<Vec<u8>> = targets.iter().map(|target| target.listed.clone()).collect();
        if let Some(list) = &self.context().digests {
            list.set_landed(names.clone());
        }
        if destination.same_machine && self.context().options.relative.is_some() {
            let dirs = targets.iter().filter_map(|target| target.landing.dir());
            let above = dirs.flat_map(|dir| dir.with_those_above(ABOVE_MAX));
            // Roots land once, so it was not set before.
            let _ = self.above.set(above.collect());
        }
        if self.context().options.mirror.deletes {
            self.protect(&roots, &targets);
        }
        self.request(&destination.asked)?;
        let exists = targets.iter().any(|target| target.existed);
        let exists = exists || self.rules.earlier.is_some();
        self.moved.set_roots(&targets);
        self.table().roots.set(&roots, targets);
        self.context().progress.set_phase(Phase::Copying);
        if exists && self.compares_sums() {
            let mut key = [0; 32];
            // Without random bytes nothing is compared by sums.
            if rustix::rand::getrandom(&mut key, GetRandomFlags::empty()) == Ok(key.len()) {
                // Roots land once, so it was not set before.
                let _ = self.sum_key.set(key);
                self.context().say(Message::SumUp(key));
            }
        }
        let asks = exists && self.rules.update.asks();
        let resumes =
            asks || self.rules.dry_run || self.journal().is_some_and(Journal::has_finished);
        self.context().say(Message::Landed(RootsResolved {
            names,
            resumes,
            ordered,
            window: self.context().budget.window() as u32,
        }));
        Ok(())
    }

    /// Opens the snapshot directory, and resolves the roots in the snapshot under way.
    fn land_snapshot(
        &self,
        spec: &Spec,
        sources: &[Source],
        destination: &CopyDestination,
        handles: &Arc<Handles>,
    ) -> Result<Vec<RootTarget>> {
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
        if self.rules.dry_run {
            let view = SnapshotStore::look(spec, handles)?;
            let latest = EarlierDirs::of(view.latest.into_iter().collect());
            let mut targets = dest::would_resolve_in(&view.path, &sources)?;
            targets.iter_mut().for_each(|it| it.set_earlier(&latest));
            return Ok(targets);
        }
        let sessions = &destination.sessions;
        let run = SnapshotRun {
            session: sessions.own,
            before: &sessions.before,
            no_resume: self.context().options.no_resume,
            needs_empty: self.rules.closed,
            thins: terms.keep.is_some(),
            is_ending: &|| self.context().is_ending(),
        };
        let store = SnapshotStore::open(spec, &run, &self.rules, handles)?;
        let same_machine = destination.same_machine;
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
        let (rules, tell) = (self.rules.clone(), sessions.tell.clone());
        let copy = SnapshotCopy::new(store, terms, &targets, &self.report, rules, tell);
        // Roots land once, so it was not set before.
        let _ = self.snapshot.set(copy);
        Ok(targets)
    }

    /// Resolves the places of a source and of its parts (`--map`).
    fn land_parts(
        &self,
        spec: &Spec,
        sources: &[Source],
        same_machine: bool,
        handles: &Arc<Handles>,
        unfinished: &Unfinished,
    ) -> Result<Vec<RootTarget>> {
        let (whole, parts) = sources.split_at(1);
        let mut targets = dest::resolve(spec, whole, same_machine, handles, unfinished)?;
        for (part, map) in parts.iter().zip(&*self.context().options.maps) {
            let spec = Spec {
                path: map.to.clone(),
                ..spec.clone()
            };
            if self.rules.closed {
                dest::refuse_in_snapshots(&spec, handles)?;
            }
            // What an interrupted copy has made of it is filled.
            let part = std::slice::from_ref(part);
            let landed = dest::resolve(&spec, part, same_machine, handles, &|_, _| false)?;
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
    fn find_earlier_copies(
        &self,
        destination: &CopyDestination,
        roots: &[Root],
        targets: &mut [RootTarget],
        handles: &Arc<Handles>,
    ) -> Result<()> {
        let (Some(earlier), To::Path(spec)) = (&self.context().options.earlier, &destination.to)
        else {
            return Ok(());
        };
        if spec.inplace {
            return Err(Error::usage(
                "--inplace writes into files that earlier copies share: leave it out with \
                 --link-dest and --copy-dest",
            ));
        }
        let is_directory = roots.first().is_some_and(|root| root.is_directory);
        let tell = &*destination.sessions.tell;
        let found = dest::earlier_copies(spec, earlier, is_directory, handles, tell)?;
        for target in targets {
            target.set_earlier(&found);
        }
        Ok(())
    }

    /// Notes what may be sent, if this end knows. `asked` are the operands that another host has
    /// looked up.
    fn request(&self, asked: &[Vec<u8>]) -> Result<()> {
        let options = &self.context().options;
        let (list, patterns) = match options.relative.as_ref().map(|copy| &copy.names) {
            Some(NamesFrom::List(list)) => (list.clone(), RequestedPaths::default()),
            Some(NamesFrom::Operands) if !asked.is_empty() => {
                let (list, patterns) =
                    requested_paths(asked, options.recursive).map_err(Error::usage)?;
                (Arc::new(list), patterns)
            }
            _ => return Ok(()),
        };
        self.table().request(RequestedFiles {
            list,
            patterns,
            recursive: options.recursive,
        });
        Ok(())
    }

    /// Notes the names of the roots, and the state of the directories before the journal is made
    /// there.
    fn itemize_roots(&self, targets: &[RootTarget]) -> Result<()> {
        let itemizer = &self.report.itemizer;
        if !itemizer.is_on() {
            return Ok(());
        }
        for target in targets {
            if let Landing::Directory(dir) = &target.landing {
                itemizer.remember(dir.identity(), dest::status_of(dir)?);
            }
        }
        itemizer.set_landed(targets.iter().map(|target| target.listed.clone()).collect());
        Ok(())
    }

    /// Keeps the operands, and the directories where they go, from being deleted.
    fn protect(&self, roots: &[Root], targets: &[RootTarget]) {
        let operands = roots.iter().map(|root| (root.dev, root.ino));
        self.mirror.protect_source(operands);
        let names = targets.iter().map(|target| target.listed.clone());
        let ids = roots.iter().map(|root| root.id);
        self.mirror.set_names(ids.zip(names));
        let mut last = None;
        for dir in targets.iter().filter_map(|target| target.landing.dir()) {
            if last.replace(dir.identity()) != Some(dir.identity()) {
                self.mirror.protect(dir.with_those_above(ABOVE_MAX));
            }
        }
    }

    /// True if directories are compared by sums. A key that may only write must not learn what
    /// exists; a list of digests needs all content; and with `--fsync` each file is synced.
    fn compares_sums(&self) -> bool {
        let context = self.context();
        let lists = context.digests.is_some() || context.options.digests;
        let rules = &self.rules;
        // What an earlier session has begun of a file is removed when the file is asked about.
        let has_begun = self
            .journal()
            .is_some_and(|journal| journal.begun_bytes() > 0);
        let is_blind = rules.blind && !rules.snapshot;
        rules.update.sums_up() && !is_blind && !rules.fsync && !lists && !has_begun
    }

    /// Opens the journal, which is the lock of this destination. If no journal is possible, the
    /// copy continues without one.
    fn open_journal(
        &self,
        destination: &CopyDestination,
        roots: &[Root],
        targets: &[RootTarget],
        handles: &Arc<Handles>,
    ) -> Result<()> {
        let Some(first) = targets.first() else {
            return Ok(());
        };
        let owner = destination.sessions.owner;
        let opening = Opening {
            user: user_key().bytes,
            session: destination.sessions.own,
            owner,
            roots: hash_of(roots, &self.context().options.maps),
            chunk_size: self.context().chunk_size as u32,
            afresh: self.context().options.no_resume,
            // A key that may only write must not learn whether others copied the same data.
            own_only: self.rules.blind,
        };
        let path = first.landing.path();
        let waiting = WaitForLock {
            before: &destination.sessions.before,
            owner,
            path: &path,
            is_ending: &|| self.context().is_ending(),
            tell: &*destination.sessions.tell,
        };
        let mut places = match first.landing.device() {
            // The directory of the snapshot may get a mode that allows no removal.
            None if self.rules.snapshot => {
                let snapshot = self.snapshot.get();
                snapshot.map(SnapshotCopy::journal).into_iter().collect()
            }
            Some(device) => device_places(device, destination, handles),
            // A later run finds it by the operand alone: the places of parts exist then.
            None if !self.context().options.maps.is_empty() => places(&targets[..1], first),
            None => places(targets, first),
        };
        // A journal that could not be removed is not made.
        places.retain(|place| !dest::is_append_only(&place.dir));
        // An earlier session may have had to make its journal in another place than the best one.
        places.sort_by_key(|place| place.roots(&opening.user) != Some(opening.roots));
        for place in places {
            if let Some(journal) = Journal::open(place, &opening, &waiting)? {
                let name = JournalName::reserve(journal.dir(), journal.name());
                // Roots land once, so neither cell was set before.
                let _ = self.journal_name.set(name);
                let _ = self.journal.set(journal);
                break;
            }
        }
        Ok(())
    }

    /// Removes the journal: everything is in place and nothing is left to resume.
    pub fn journal_done(&self) {
        let Some(journal) = self.journal() else {
            return;
        };
        // The directory may already have its final times, which the removal changes.
        let dir = journal
            .dir()
            .handle()
            .ok()
            .filter(|_| self.rules.keep.times);
        let before = dir.as_ref().and_then(|dir| fstat(&**dir).ok());
        self.remove_journal(journal);
        if let (Some(dir), Some(stat)) = (dir, before)
            && self.table().roots.is_landing(journal.dir())
        {
            let time = |tv_sec, tv_nsec| Timespec {
                tv_sec,
                tv_nsec: tv_nsec as _,
            };
            let times = Timestamps {
                last_access: time(stat.st_atime, stat.st_atime_nsec),
                last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
            };
            // If this fails, only a time is wrong.
            let _ = futimens(&*dir, &times);
        }
    }

    /// A journal that cannot be removed does no harm, so nothing fails; but the user has to remove
    /// it.
    fn remove_journal(&self, journal: &Journal) {
        if let Err(error) = journal.remove() {
            let line = format!(
                "fastcp: {}; the file is no longer needed, delete it by hand",
                error.in_place()
            );
            (self.sessions.tell)(&line);
        }
    }

    /// Removes the journal after an early end, or keeps it for a later run if that has a use for
    /// it. `is_kept`: the sender kept to the protocol.
    pub fn put_journal_away(&self, is_kept: bool) {
        let Some(journal) = self.journal() else {
            return;
        };
        if !journal.is_useful() || !is_kept {
            self.remove_journal(journal);
        } else if !user_key().is_kept {
            let line = "fastcp: this copy cannot be resumed: the receiving host has no writable \
                        ~/.local/state/fastcp for this user; set XDG_STATE_HOME there";
            (self.sessions.tell)(line);
        }
        journal.release();
    }

    /// Gives unfinished directories their final modes, so that none stays private that should not
    /// be. The next run makes them writable again.
    pub fn leave_directories(&self) {
        let rules = Rules {
            fsync: false,
            ..self.rules.clone()
        };
        let made = self.table().take_made_directories();
        for (directory, entry) in made {
            // The copy has failed already, and the user needs that error.
            let _ = directory.finish(&entry, &rules);
        }
    }

    /// Removes and returns the files that are being received.
    pub fn take_files(&self) -> Vec<Arc<OpenFile>> {
        self.table().take_files()
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

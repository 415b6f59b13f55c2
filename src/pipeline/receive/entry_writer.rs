//! The entry writer: a thread that handles the sender's announcements in order. First come the
//! destinations of the roots, then directories, links, big files and pipes. It is a separate
//! thread, so that the task that reads control messages never waits for a disk. The order ensures
//! that a parent exists before its children.

mod dry_run;

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::destination::CopyDestination;
use super::done_files::PlacedContent;
use super::entries::{Entries, NOT_IN_SCP};
use super::entry_table::Location;
use super::files::Files;
use super::itemizer::Itemizer;
use super::jobs::Job;
use super::open_file::IncomingFile;
use super::recorded::standing;
use super::restored::span;
use super::resume::{Asked, PipeThere};
use super::roots::{DestinationResolver, FoundPlaces};
use super::sums::OwnSums;
use crate::dest::{self, Directory, EarlierEntry, EntrySlot, Placement, SinkSpec, Standing};
use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::itemize::{ItemAction, ItemizedEntry};
use crate::journal::record::{self, Hash};
use crate::journal::{self, Journal};
use crate::manifest::{ANEW, Entry, EntryId, EntryKind, Root, Totals};
use crate::pipeline::context::Context;
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::receive::Receiver;
use crate::pipeline::send::pipe::begun_before;
use crate::progress::Phase;
use crate::report::event::FileResult;
use crate::units::printable;
use crate::wire::message::{
    AllSent, ByteRange, EntryEnd, Fault, Message, RootSpaces, Roots, SumsAnswer, UncountedRoots,
    Want, WantKind,
};

/// Places entries at `destination`, until the receiver's queue of messages is closed.
pub fn run(receiver: &Receiver, destination: &CopyDestination) {
    let writer = EntryWriter {
        receiver,
        destination,
        handles: Arc::new(Handles::default()),
        spaces: Mutex::default(),
        sums: Mutex::default(),
        uncounted: Mutex::default(),
    };
    receiver.messages.take_all(|message| {
        if !receiver.context.is_ending() {
            writer.take(message);
            receiver.entries.report.flush();
        }
    });
}

/// Most sums in one message; senders put in 64.
const DIRECTORY_SUMS_MAX: usize = 256;

struct EntryWriter<'a> {
    receiver: &'a Receiver,
    destination: &'a CopyDestination,
    /// The directories that are open.
    handles: Arc<Handles>,
    /// The space that each root needs, if the sender has said so.
    spaces: Mutex<RootSpaces>,
    /// The sums of existing directories, if the sender was asked for its own.
    sums: Mutex<Option<OwnSums>>,
    /// Set until the totals come, if they come after the roots.
    uncounted: Mutex<Option<LateTotals>>,
}

/// A copy whose totals are not known yet.
#[derive(Default)]
struct LateTotals {
    /// Set if the free space must be checked first.
    waits: Option<FoundPlaces>,
    /// Bytes on the sender's disks of the files that it has announced.
    allocated: u64,
}

impl EntryWriter<'_> {
    fn take(&self, message: Message) {
        match message {
            Message::RootSpaces(_) if self.context().options.maps.is_empty() => {
                self.breach("the space of parts that it was not asked for");
            }
            Message::RootSpaces(spaces) => *self.spaces.lock() = spaces,
            Message::Roots(_) | Message::Uncounted(_) if self.has_roots() => {
                self.breach("a second list of operands");
            }
            Message::Roots(Roots { roots, totals }) => {
                self.counted(&totals, 0);
                self.or_end(self.find(roots, Some(&totals)));
            }
            Message::Uncounted(UncountedRoots { roots }) => {
                *self.uncounted.lock() = Some(LateTotals::default());
                self.or_end(self.find(roots, None));
            }
            Message::Counted(totals) => {
                let Some(uncounted) = self.uncounted.lock().take() else {
                    return self.breach("totals that it was not asked for");
                };
                self.counted(&totals, uncounted.allocated);
                if let Some(places) = uncounted.waits {
                    self.or_end(self.land(places, Some(&totals)));
                }
            }
            Message::Entries(entries) => self.announced(entries),
            Message::Ask(entries) => self.asked(entries),
            Message::DirectorySums(sums) if sums.len() > DIRECTORY_SUMS_MAX => {
                self.breach("more sums than allowed");
            }
            Message::DirectorySums(sums) => {
                for sum in &sums {
                    if self.context().is_ending() {
                        return;
                    }
                    self.compare(|own| own.whole(self.entries(), sum));
                }
            }
            Message::EntrySums(sums) => self.compare(|own| own.some(self.entries(), &sums)),
            Message::EntryEnd(ends) => ends.into_iter().for_each(|end| self.entry_end(end)),
            Message::Fault(fault) => self.sender_failed(fault),
            Message::Vanished(fault) if self.context().options.live => self.vanished(fault),
            // The client has told its user.
            Message::Grew(_) => {}
            Message::Special(count) => self.context().progress.add_special(count),
            Message::Symlinks((all, outside)) => {
                self.context().progress.add_symlinks(all, outside);
            }
            Message::Unlinked(count) => self.context().progress.add_unlinked(count),
            Message::NotKept(some) => self.context().progress.not_kept().add(&some),
            Message::Names(names) => self.entries().take_names(names),
            Message::SourcePlaces(places) => self.entries().take_source_places(places),
            Message::Extra(answer) => self.entries().take_extra(answer),
            Message::SourcesRemoved(message) => self.entries().take_removed(&message),
            Message::AllSent(all) => self.all_sent(&all),
            _ => self.breach("an unexpected type"),
        }
    }

    fn has_roots(&self) -> bool {
        self.entries().table().roots.is_set() || self.uncounted.lock().is_some()
    }

    /// Finds the destinations of the roots. Lands there, unless the totals are needed and not known.
    fn find(&self, roots: Vec<Root>, totals: Option<&Totals>) -> Result<()> {
        let spaces = std::mem::take(&mut *self.spaces.lock()).each;
        let places = self.resolver().find(roots, spaces)?;
        if totals.is_none()
            && self.resolver().needs_totals(&places)
            && let Some(uncounted) = &mut *self.uncounted.lock()
        {
            uncounted.waits = Some(places);
            return Ok(());
        }
        self.land(places, totals)
    }

    fn land(&self, places: FoundPlaces, totals: Option<&Totals>) -> Result<()> {
        *self.sums.lock() = self.resolver().land(places, totals)?;
        Ok(())
    }

    fn resolver(&self) -> DestinationResolver<'_> {
        DestinationResolver {
            entries: self.entries(),
            destination: self.destination,
            handles: &self.handles,
        }
    }

    /// Takes the totals. `known`: the part of the allocated bytes that was taken before.
    fn counted(&self, totals: &Totals, known: u64) {
        self.context().progress.set_totals(*totals);
        let more = totals.allocated.saturating_sub(known);
        self.receiver.ranges.add_allocated(more);
    }

    /// Takes the allocated bytes of an entry, if the totals are not known.
    fn count_allocated(&self, entry: &Entry) {
        if let Some(uncounted) = &mut *self.uncounted.lock() {
            uncounted.allocated = uncounted.allocated.saturating_add(entry.allocated);
            self.receiver.ranges.add_allocated(entry.allocated);
        }
    }

    /// Ends the copy after an error.
    fn or_end(&self, landed: Result<()>) {
        if let Err(error) = landed {
            self.context().shutdown.end(error);
        }
    }

    fn context(&self) -> &Context {
        &self.receiver.context
    }

    fn entries(&self) -> &Entries {
        &self.receiver.entries
    }

    fn itemizer(&self) -> &Itemizer {
        &self.entries().report.itemizer
    }

    fn files(&self) -> &Files {
        &self.receiver.files
    }

    fn breach(&self, what: &str) {
        self.entries().report.breach(what);
    }

    fn announced(&self, entries: Vec<Entry>) {
        let mut wants = Vec::new();
        for mut entry in entries {
            self.entries().localize(&mut entry);
            if let Some(first_chunk) = second_reading(&entry) {
                if entry.kind == EntryKind::Pipe {
                    return self.breach("a pipe that is read a second time");
                }
                self.files().restart_later(entry, first_chunk);
                continue;
            }
            if self.entries().table().is_known(entry.id) || entry.id == 0 {
                return self.breach("an entry announced twice");
            }
            if !self.entries().table().roots.fits(&entry) {
                return self.breach("an entry that differs from its announcement");
            }
            if !self.entries().is_expected(&entry) {
                return self.breach(NOT_IN_SCP);
            }
            self.count_allocated(&entry);
            if entry.kind != EntryKind::Directory {
                self.entries().table().announce(&entry);
            }
            wants.extend(self.entry(entry));
        }
        if !wants.is_empty() {
            self.context().say(Message::Want(wants));
        }
        if self.entries().table().is_scattered() {
            return self.breach("more entries at once than allowed");
        }
        self.unpark();
    }

    /// Answers which entries of a directory exist unchanged.
    fn compare(&self, ask: impl FnOnce(&mut OwnSums) -> Option<SumsAnswer>) {
        let mut sums = self.sums.lock();
        let Some(sums) = &mut *sums else {
            return self.breach("sums that it was not asked for");
        };
        match ask(sums) {
            Some(answer) => self.context().say(Message::Summed(answer)),
            None => self.breach("sums of a directory that was not announced"),
        }
    }

    /// Answers which of these small files exist already.
    fn asked(&self, entries: Vec<Entry>) {
        let mut wants = Vec::with_capacity(entries.len());
        let mut there = Vec::new();
        for mut entry in entries {
            self.entries().localize(&mut entry);
            let place = self.entries().locate_new(&entry);
            let is_possible = entry.id != 0 && self.entries().table().roots.fits(&entry);
            let Some((spot, path)) = place.filter(|_| is_possible) else {
                return self.breach("an entry announced twice");
            };
            let (id, size) = (entry.id, entry.size);
            let small = match (spot, path) {
                (Location::Slot(slot, listed), Some(path)) => {
                    match self.entries().check_name(&entry, &slot) {
                        Ok(()) => self.small_file(IncomingFile {
                            entry,
                            slot,
                            listed,
                            path,
                        }),
                        Err(error) if self.is_dry() => {
                            Asked::Failed(Box::new((entry.parent, error)))
                        }
                        // The file is sent, and fails then for that reason.
                        Err(_) => Asked::Missing,
                    }
                }
                (Location::LeftOut, _) => Asked::Stays(entry.parent),
                (Location::Planned(listed), _) => self.would_send_new(&entry, listed.as_ref()),
                (Location::Lost, _) if self.is_dry() => Asked::Lost(entry.parent),
                // The file fails when its pack arrives.
                (Location::Lost, _) => Asked::Missing,
                (Location::Refused, _) => return,
                _ => return self.breach("an entry of a directory that was not announced"),
            };
            let kind = match &small {
                Asked::Missing => WantKind::Fresh,
                Asked::InPlace(..) | Asked::Failed(_) | Asked::Lost(_) => WantKind::Skip,
                Asked::Unchanged(..) | Asked::Reused(..) | Asked::WouldReuse(..) => {
                    WantKind::Unchanged
                }
                Asked::Stays(_) => WantKind::Stays,
                Asked::WouldSend(_) => WantKind::WouldSend,
                Asked::Unread(placed) => {
                    self.entries().table().set_resuming(id);
                    let digest = placed.finished.digest.unwrap_or_default();
                    WantKind::Have(vec![(span(0..size), digest)])
                }
            };
            wants.push(Want { entry: id, kind });
            there.push((id, small));
        }
        // Sent first, because the later messages refer to these answers.
        self.context().say(Message::Want(wants));
        for (id, small) in there {
            match small {
                Asked::Missing => {}
                Asked::Unchanged(file) => {
                    let (file, unchanged) = *file;
                    self.entries().found_unchanged(file, &unchanged.existing());
                }
                Asked::Reused(file) => {
                    let (file, existing) = *file;
                    self.entries().found_reused(file, &existing);
                }
                Asked::WouldReuse(parent, size) => {
                    self.context().progress.add_unchanged(size);
                    self.entries().acknowledge(id, parent);
                }
                Asked::Stays(parent) => self.entries().stays(id, parent),
                Asked::WouldSend(parent) => self.entries().acknowledge(id, parent),
                Asked::Lost(parent) => {
                    self.entries().report.failed_with_directory(id);
                    self.entries().settle(id, parent);
                }
                Asked::Failed(failed) => {
                    let (parent, error) = *failed;
                    self.entries().fail(id, parent, &error);
                }
                Asked::InPlace(placed) => self.receiver.resume.placed_stays(*placed),
                Asked::Unread(placed) => self.receiver.resume.verify_placed_later(*placed),
            }
        }
    }

    /// What happens to a small file that the sender asks about.
    fn small_file(&self, file: IncomingFile) -> Asked {
        match standing(self.entries(), (&file.slot, &file.path), &file.entry) {
            Ok(Standing::Unchanged(unchanged)) => match self.entries().correct(&file, &unchanged) {
                Ok(()) => Asked::Unchanged(Box::new((file, unchanged))),
                Err(error) => Asked::Failed(Box::new((file.entry.parent, error))),
            },
            Ok(Standing::Stays) => Asked::Stays(file.entry.parent),
            Ok(Standing::Copied) if self.is_dry() => self.would_send_small(&file),
            Err(error) if self.is_dry() => Asked::Failed(Box::new((file.entry.parent, error))),
            // The sender reads it for its list.
            Ok(Standing::Copied) if self.sender_lists() => Asked::Missing,
            Ok(Standing::Copied) => self.reuse_small(file),
            // If the place cannot be looked at, the file fails when it is written.
            Err(_) => self.receiver.resume.resume_small(file),
        }
    }

    /// True if the sender makes a list of digests, for which it reads every file that is copied.
    fn sender_lists(&self) -> bool {
        self.context().options.digests && self.context().digests.is_none()
    }

    /// Links or copies a small file from an earlier copy, if one has it.
    fn reuse_small(&self, file: IncomingFile) -> Asked {
        let entries = self.entries();
        let Some(found) = entries.find_earlier(&file.entry) else {
            return self.receiver.resume.resume_small(file);
        };
        let reused = match entries.link_earlier(&file.slot, &file.entry, &found) {
            Ok(None) => entries.copy_earlier(&file, &found),
            linked => linked,
        };
        match reused {
            Ok(Some(existing)) => Asked::Reused(Box::new((file, existing))),
            Ok(None) => self.receiver.resume.resume_small(file),
            Err(error) => Asked::Failed(Box::new((file.entry.parent, error))),
        }
    }

    /// Retries packs that wait for a directory, since one may have been announced.
    fn unpark(&self) {
        let parked = self.entries().table().chunks.take_parked();
        for chunk in parked {
            // Fails only when the copy is ending.
            self.files().jobs.add(Job::Pack(chunk));
        }
    }

    fn entry(&self, entry: Entry) -> Option<Want> {
        let (spot, path) = self.entries().locate(&entry);
        if let Location::Slot(slot, _) = &spot
            && let Err(error) = self.entries().check_name(&entry, slot)
        {
            return self.name_refused(entry, &error);
        }
        // The path is None only if the spot is `Unknown`.
        let path = path.unwrap_or_default();
        match (spot, &entry.kind) {
            // The copy has ended.
            (Location::Refused, _) => {}
            (Location::Unknown, _) => self.breach("an entry of a directory that was not announced"),
            (Location::Lost, EntryKind::Directory) => {
                self.entries().report.acks.failed(entry.id);
                self.entries().table().add_directory(entry, None, None);
            }
            (Location::Lost, EntryKind::File | EntryKind::Pipe) => {
                self.entries().lost_with_directory(&entry);
                return Some(Want {
                    entry: entry.id,
                    kind: WantKind::Skip,
                });
            }
            (Location::Lost, _) => self.entries().lost_with_directory(&entry),
            (Location::LeftOut, EntryKind::Directory) => self.leave_out(entry),
            (Location::LeftOut, kind) => {
                let is_file = matches!(kind, EntryKind::File | EntryKind::Pipe);
                return self.entry_stays(&entry, is_file);
            }
            (Location::Planned(listed), _) => return self.would_be_new(entry, listed),
            (Location::Directory(dir, listed), EntryKind::Directory) => {
                self.directory_of_root(entry, dir, listed, path);
            }
            (Location::Directory(..), _) => {
                self.breach("an entry that differs from its announcement")
            }
            (Location::Slot(slot, listed), EntryKind::Directory) => {
                let checked = self.entries().check_above(&entry, &slot);
                match checked.and_then(|()| self.entries().standing(&slot, &entry)) {
                    Ok(Standing::Stays) => self.leave_out(entry),
                    Ok(_) => self.directory_in(entry, &slot, listed, path),
                    Err(error) => self.directory(entry, Err(error), listed, path),
                }
            }
            (Location::Slot(slot, listed), EntryKind::File | EntryKind::Pipe) => {
                let file = IncomingFile {
                    entry,
                    slot,
                    listed,
                    path,
                };
                return match file.entry.kind {
                    EntryKind::Pipe => self.pipe(file),
                    _ => self.big_file(file),
                };
            }
            (Location::Exit(exit, listed), EntryKind::File | EntryKind::Pipe) if self.is_dry() => {
                return self.would_write(entry, &exit, listed);
            }
            (Location::Exit(exit, listed), EntryKind::File | EntryKind::Pipe) => {
                return Some(self.to_pipe(entry, &exit, (listed, path)));
            }
            (Location::Exit(..), _) => self.breach("an entry that differs from its announcement"),
            (Location::Slot(slot, listed), EntryKind::Symlink(_) | EntryKind::Special(_)) => {
                if !self.may_place(&slot, &entry) {
                    return None;
                }
                let earlier = self.entries().find_earlier(&entry);
                match &earlier {
                    Some(_) if self.is_dry() => {
                        self.would_link(&entry, &slot, listed.as_ref());
                        return None;
                    }
                    None if self.is_dry() => {
                        self.would_place(&entry, &slot, listed.as_ref());
                        return None;
                    }
                    Some(found) => match self.entries().link_earlier(&slot, &entry, found) {
                        Ok(None) => {}
                        linked => {
                            self.link_placed(&entry, linked.map(|_| None));
                            return None;
                        }
                    },
                    None => {}
                }
                self.link(&entry, &slot, listed.as_ref());
            }
            (Location::Slot(slot, listed), EntryKind::HardLink(first)) => {
                if !self.may_place(&slot, &entry) {
                    return None;
                }
                let first = *first;
                if first >= entry.id {
                    self.breach("a hard link to an entry that comes later");
                    return None;
                }
                if self.is_dry() {
                    self.would_place(&entry, &slot, listed.as_ref());
                    return None;
                }
                let linked = self.entries().table().linked.clone();
                let from = match linked.first(first, &entry) {
                    Ok(Some(from)) => from,
                    Ok(None) => {
                        // The first name failed here or at the sender, so this entry fails too. It is
                        // not checked whether the first name was announced: if a source changes all
                        // the time, only this entry should fail.
                        let message = "its hard link target was not copied";
                        let error = Error::new(Kind::Entry, Side::Dest, message).at(slot.path());
                        self.entries().fail(entry.id, entry.parent, &error);
                        return None;
                    }
                    Err(cause) => {
                        let what = "cannot find its hard link target again";
                        let error = Error::io(Kind::Write, Side::Dest, slot.path(), what, cause);
                        self.entries().fail(entry.id, entry.parent, &error);
                        return None;
                    }
                };
                let entries = self.entries();
                let is_at = (first, from.inode);
                let itemizer = self.itemizer();
                let item = itemizer.change_of_link(Some(&slot), &entry, is_at, listed.as_ref());
                if let (Some(list), Some(listed)) = (&self.context().digests, &listed) {
                    list.add_link(&entry, first, listed.clone());
                }
                let place = || dest::place_hard_link(&from, &slot, &entry, &entries.rules);
                let placed = item.and_then(|item| {
                    entries.make_room(&slot, &entry)?;
                    // With `--no-clobber` the existing entry may stay.
                    let is_new = place()? == Placement::Copied;
                    if is_new {
                        entries.link_durable(&entry, &slot);
                    }
                    Ok(item.filter(|_| is_new))
                });
                let done = &entries.report.done;
                if placed.is_ok() && done.is_on() {
                    // The announcement of a further name has no size.
                    let existing = dest::existing(&slot).ok().flatten();
                    let placed = PlacedContent {
                        size: existing.map_or(0, |existing| existing.size),
                        digest: None,
                        result: FileResult::Linked,
                    };
                    done.add(listed.as_ref(), &placed);
                }
                self.link_placed(&entry, placed);
            }
        }
        None
    }

    /// A directory that does not exist and is not made, nor are its children.
    fn leave_out(&self, entry: Entry) {
        self.entries().report.stays();
        self.entries().report.acks.entry(entry.id);
        self.entries().table().leave_out_directory(entry);
    }

    /// An entry that is not copied because of an existing entry at the destination.
    fn entry_stays(&self, entry: &Entry, is_file: bool) -> Option<Want> {
        let (id, parent) = (entry.id, entry.parent);
        if is_file {
            self.answer(id, WantKind::Stays);
        }
        self.entries().stays(id, parent);
        None
    }

    /// False if a link or special file is not placed: the existing entry stays, or none exists.
    fn may_place(&self, slot: &EntrySlot, entry: &Entry) -> bool {
        match self.entries().standing(slot, entry) {
            Ok(Standing::Stays) => self.entries().stays(entry.id, entry.parent),
            Ok(_) => return true,
            Err(error) => self.entries().fail(entry.id, entry.parent, &error),
        }
        false
    }

    /// A symbolic link or a special file.
    fn link(&self, entry: &Entry, slot: &EntrySlot, listed: Option<&ListedPath>) {
        let rules = &self.entries().rules;
        let item = self.itemizer().change(slot, entry, listed, false);
        let item = item.and_then(|item| self.entries().make_room(slot, entry).map(|()| item));
        let placed = item.and_then(|item| match entry.kind {
            // False if it could not be made, which is counted, or stays.
            EntryKind::Special(_) => {
                dest::place_special(slot, entry, rules).map(|is_made| (item, is_made))
            }
            _ => dest::place_symlink(slot, entry, rules)
                .map(|placed| (item, placed == Placement::Copied)),
        });
        let placed = placed.map(|(item, is_made)| {
            if is_made {
                self.entries().found_durable(entry, slot);
            }
            item.filter(|_| is_made)
        });
        self.link_placed(entry, placed);
    }

    /// Fails an entry whose name is not allowed here.
    fn name_refused(&self, entry: Entry, error: &Error) -> Option<Want> {
        let (id, parent) = (entry.id, entry.parent);
        let is_file = matches!(entry.kind, EntryKind::File | EntryKind::Pipe);
        if entry.kind == EntryKind::Directory {
            self.entries().report.directory_failed(id, parent, error);
            self.entries().table().add_directory(entry, None, None);
        } else {
            self.entries().fail(id, parent, error);
        }
        is_file.then_some(Want {
            entry: id,
            kind: WantKind::Skip,
        })
    }

    /// Opens the partial file of a big file. Requests its content, or only its digest. If an
    /// earlier session left something, a worker checks that first.
    fn big_file(&self, file: IncomingFile) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        let journal = self.entries().journal();
        let is_known = journal.is_some_and(|journal| journal.knows(&file.path));
        match standing(self.entries(), (&file.slot, &file.path), &file.entry) {
            Ok(Standing::Copied) => {}
            Ok(Standing::Stays) => {
                self.receiver.resume.drop_begun(&file);
                return self.entry_stays(&file.entry, true);
            }
            Ok(Standing::Unchanged(unchanged)) => {
                self.receiver.resume.drop_begun(&file);
                if let Err(error) = self.entries().correct(&file, &unchanged) {
                    return Some(self.or_skip(Err(error), id, parent));
                }
                self.answer(id, WantKind::Unchanged);
                self.entries().found_unchanged(file, &unchanged.existing());
                return None;
            }
            Err(error) => {
                self.receiver.resume.keep_begun(&file.path, &error);
                return Some(self.or_skip(Err(error), id, parent));
            }
        }
        let earlier = self.entries().find_earlier(&file.entry);
        match earlier {
            Some(found) if self.is_dry() => return self.would_reuse(&file, &found),
            Some(found) => return self.reuse_big(file, &found),
            None => {}
        }
        if self.is_dry() {
            return match self.files().checks(&file.entry) {
                true => self.check(file),
                false => self.would_send(&file),
            };
        }
        // It is removed when the file is complete.
        if let Err(error) = self.entries().check_room(&file.slot, &file.entry) {
            return Some(self.or_skip(Err(error), id, parent));
        }
        let stands = self.stands_already(&file.entry, &file.slot);
        if matches!(stands, Ok(false))
            && let Err(error) = self.itemize_file(&file)
        {
            return Some(self.or_skip(Err(error), id, parent));
        }
        let opened = match stands {
            Ok(true) => Ok(self.files().compare_whole(file, None)),
            // A worker also looks for the old name of a file that was moved.
            Ok(false) if is_known || self.files().may_have_moved(&file.slot, &file.entry) => {
                self.entries().table().set_resuming(id);
                // Fails only when the copy is ending.
                self.files().jobs.add(Job::Resume(Box::new(file)));
                return None;
            }
            Ok(false) => self.files().begin(file, 0),
            Err(error) => Err(error),
        };
        Some(self.or_skip(opened, id, parent))
    }

    /// Links a big file to that of an earlier copy, or has a worker copy it from there.
    fn reuse_big(&self, file: IncomingFile, found: &EarlierEntry) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        match self.entries().link_earlier(&file.slot, &file.entry, found) {
            Ok(Some(existing)) => {
                self.receiver.resume.drop_begun(&file);
                self.answer(id, WantKind::Unchanged);
                self.entries().found_reused(file, &existing);
                None
            }
            Ok(None) => {
                if let Err(error) = self.itemize_file(&file) {
                    return Some(self.or_skip(Err(error), id, parent));
                }
                self.entries().table().set_resuming(id);
                // Fails only when the copy is ending.
                self.files().jobs.add(Job::Resume(Box::new(file)));
                None
            }
            Err(error) => {
                self.receiver.resume.keep_begun(&file.path, &error);
                Some(self.or_skip(Err(error), id, parent))
            }
        }
    }

    /// Answers an announcement at once, because the acknowledgement that follows refers to the answer.
    fn answer(&self, id: EntryId, kind: WantKind) {
        let want = Want { entry: id, kind };
        self.context().say(Message::Want(vec![want]));
    }

    /// Finds out what changes when this file is in place.
    fn itemize_file(&self, file: &IncomingFile) -> Result<()> {
        let (itemizer, listed) = (self.itemizer(), file.listed.as_ref());
        let item = itemizer.change(&file.slot, &file.entry, listed, true)?;
        itemizer.report_later(item, &file.entry, listed);
        Ok(())
    }

    /// The request for a file that was opened. If that failed, the entry fails and the sender skips
    /// it.
    fn or_skip(&self, opened: Result<Want>, id: EntryId, parent: EntryId) -> Want {
        opened.unwrap_or_else(|error| {
            self.entries().fail(id, parent, &error);
            let kind = WantKind::Skip;
            Want { entry: id, kind }
        })
    }

    /// With `--no-clobber`: true if a file of the same size exists, so that the digests decide.
    fn stands_already(&self, entry: &Entry, slot: &EntrySlot) -> Result<bool> {
        let rules = &self.entries().rules;
        if !rules.no_clobber {
            return Ok(false);
        }
        match dest::existing(slot)? {
            None => Ok(false),
            Some(existing) if existing.is_file && existing.size == entry.size && !rules.blind => {
                Ok(true)
            }
            Some(_) => Err(dest::stays(slot, rules)),
        }
    }

    /// Opens the partial file of a source that is a pipe.
    fn pipe(&self, file: IncomingFile) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        if self.is_begun(&file.entry, &file.path) {
            return self.begun_pipe(file);
        }
        match self.entries().standing(&file.slot, &file.entry) {
            Ok(Standing::Stays) => return self.entry_stays(&file.entry, true),
            Ok(_) => {}
            Err(error) => return Some(self.or_skip(Err(error), id, parent)),
        }
        if self.is_dry() {
            return self.would_send(&file);
        }
        let rules = &self.entries().rules;
        if let Err(error) = self.itemize_file(&file) {
            return Some(self.or_skip(Err(error), id, parent));
        }
        let opened = match rules
            .no_clobber
            .then(|| dest::existing(&file.slot))
            .transpose()
        {
            Ok(Some(Some(_))) => Err(dest::stays(&file.slot, rules)),
            Ok(_) => self.files().begin_pipe(file),
            Err(error) => Err(error),
        };
        Some(self.or_skip(opened, id, parent))
    }

    /// Opens the pipe that an entry is written to.
    fn to_pipe(&self, entry: Entry, sink: &SinkSpec, place: (Option<ListedPath>, Hash)) -> Want {
        let (id, parent) = (entry.id, entry.parent);
        let itemizer = self.itemizer();
        let item = itemizer.change_of_new(ItemAction::Sent, &entry, place.0.as_ref());
        itemizer.report_later(item, &entry, place.0.as_ref());
        let opened = self.files().begin_output(entry, sink, place);
        self.or_skip(opened, id, parent)
    }

    /// Decides whether an earlier session has begun this pipe, which cannot be read a second time.
    /// If it is the only root, this session becomes the last: no other one can resume the copy.
    fn is_begun(&self, entry: &Entry, path: &Hash) -> bool {
        if !entry.is_once() {
            return false;
        }
        if self.entries().table().roots.count() == 1 {
            self.context().shutdown.set_once();
            return false;
        }
        !self.context().shutdown.begin_once(path) || entry.is_begun()
    }

    /// A pipe that an earlier session has begun to read is in place already, or fails alone.
    fn begun_pipe(&self, file: IncomingFile) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        let name = printable(file.entry.name.as_bytes());
        match self.receiver.resume.pipe_in_place(file) {
            Ok(PipeThere::Yes(file, size, digest)) => {
                self.answer(id, WantKind::Skip);
                self.context().progress.add_resumed(size);
                self.entries().found_in_place(*file, digest, None);
                None
            }
            // A file that cannot be checked does not count as in place.
            Ok(PipeThere::No(_)) | Err(_) => {
                self.entries()
                    .fail(id, parent, &begun_before(Side::Source).at(name));
                let kind = WantKind::Skip;
                Some(Want { entry: id, kind })
            }
        }
    }

    /// The existing directory that an operand goes into.
    fn directory_of_root(
        &self,
        entry: Entry,
        dir: Arc<Dir>,
        listed: Option<ListedPath>,
        path: Hash,
    ) {
        let (entries, itemizer) = (self.entries(), self.itemizer());
        let old = itemizer.status_before(dir.identity());
        let entered = match self.is_dry() {
            true => Ok(Directory::look(dir)),
            false if entries.snapshot.get().is_some_and(|it| it.has_made(&dir)) => {
                Directory::enter_new(dir)
            }
            false => Directory::enter(dir),
        };
        let made = entered.and_then(|directory| {
            let item =
                itemizer.change_of_directory(&directory, old.as_ref(), &entry, listed.as_ref())?;
            itemizer.report(item, &entry, None);
            Ok(directory)
        });
        self.directory(entry, made, listed, path);
    }

    /// A directory below another one.
    fn directory_in(&self, entry: Entry, slot: &EntrySlot, listed: Option<ListedPath>, path: Hash) {
        let (entries, itemizer) = (self.entries(), self.itemizer());
        let is_on = itemizer.is_on();
        let old = is_on.then(|| dest::status(slot)).transpose();
        let found = old.and_then(|old| {
            let backup = entries.rules.backup.as_ref();
            if let Some(backup) = backup {
                backup.check_path(slot)?;
            }
            // Another session may have begun snapshots in a directory that this one had entered.
            if entries.rules.closed && dest::holds_snapshots(&slot.dir) {
                return Err(dest::closed(&slot.dir));
            }
            let has_room = entries.check_room(slot, &entry)?;
            if has_room {
                entries.make_room(slot, &entry)?;
            }
            let directory = match self.is_dry() {
                true if has_room => None,
                true => match Directory::look_for(slot) {
                    // A check finds that there is no such directory.
                    Err(refused) if entries.rules.check && refused.kind == Kind::Refused => None,
                    found => found?,
                },
                false => Some(Directory::make(slot)?),
            };
            if self.context().removes_sources() {
                // Its files are on disk only if its name is.
                dest::make_durable(slot)?;
            }
            if let Some(directory) = directory.as_ref().filter(|_| entries.rules.closed)
                && !directory.made()
                && dest::holds_snapshots(directory.dir())
            {
                return Err(dest::closed(directory.dir()));
            }
            if let (Some(backup), Some(directory)) = (backup, &directory) {
                backup.check_directory(slot, directory.dir())?;
            }
            Ok((directory, old.flatten()))
        });
        let made = match found {
            Ok((Some(directory), old)) => itemizer
                .change_of_directory(&directory, old.as_ref(), &entry, listed.as_ref())
                .map(|item| {
                    itemizer.report(item, &entry, None);
                    directory
                }),
            // It takes the place of something else, so that is no new name for `--existing`.
            Ok((None, Some(_))) => {
                let item = itemizer.change_of_new(ItemAction::Made, &entry, listed.as_ref());
                itemizer.report(item, &entry, None);
                self.would_make(entry, listed);
                return;
            }
            Ok((None, None)) => {
                self.would_be_new(entry, listed);
                return;
            }
            Err(error) => Err(error),
        };
        self.directory(entry, made, listed, path);
    }

    fn directory(
        &self,
        entry: Entry,
        made: Result<Directory>,
        listed: Option<ListedPath>,
        path: Hash,
    ) {
        let id = entry.id;
        match made {
            Ok(mut directory) => {
                self.remember(&mut directory, path);
                self.entries().report.acks.entry(id);
                let earlier = self.entries().earlier_directories(&entry);
                let mut table = self.entries().table();
                let added = table.add_directory(entry, Some(directory), listed);
                added.earlier = earlier;
            }
            Err(error) => {
                let report = &self.entries().report;
                report.directory_failed(id, entry.parent, &error);
                self.entries().table().add_directory(entry, None, None);
            }
        }
    }

    /// A directory that an earlier run made counts as made by this copy.
    fn remember(&self, directory: &mut Directory, path: Hash) {
        let Some(journal) = self.entries().journal() else {
            return;
        };
        if self.entries().rules.untouched {
            return remember_made(journal, directory, path);
        }
        let before = journal
            .directory_before(&path)
            .filter(|_| !directory.made());
        match before {
            Some(before) => directory.adopt(before.made, before.restore),
            None if directory.made() || directory.restore().is_some() => {
                journal.directory(record::MadeDirectory {
                    path,
                    made: directory.made(),
                    restore: directory.restore(),
                });
            }
            None => {}
        }
    }

    fn link_placed(&self, entry: &Entry, placed: Result<Option<ItemizedEntry>>) {
        match placed {
            Ok(item) => {
                self.itemizer().report(item, entry, None);
                if let Some(list) = &self.context().digests {
                    list.links_placed(entry.id..entry.id.saturating_add(1));
                }
                self.entries().acknowledge(entry.id, entry.parent);
            }
            Err(error) => self.entries().fail(entry.id, entry.parent, &error),
        }
    }

    fn entry_end(&self, end: EntryEnd) {
        let Some(file) = self.entries().open_file(end.entry) else {
            let full = self
                .entries()
                .table()
                .directories
                .end(end.entry, end.length);
            return self.entries().finish_directories(full);
        };
        if self.context().options.live || file.is_pipe() {
            let mut claims = file.claims.lock();
            claims.end_at(end.length);
        }
        // The first end stays.
        let _ = file.end.set(end);
        self.flushing();
        if file.is_complete() {
            self.files().close_later(file);
        }
    }

    /// The sender cannot send an entry, or not all of it.
    fn sender_failed(&self, fault: Fault) {
        let (id, parent) = (fault.entry, fault.parent);
        if fault.kind != Kind::Changed {
            self.entries().report.source_failed();
        }
        self.context().news.failures.add(&fault.into_error());
        self.given_up(id, parent);
    }

    /// With `--live`, an entry may vanish before it is read.
    fn vanished(&self, fault: Fault) {
        let (id, parent) = (fault.entry, fault.parent);
        self.context().news.failures.detail(&fault.into_error());
        if let Some(snapshot) = self.entries().snapshot.get() {
            snapshot.vanished(id, parent);
        }
        self.given_up(id, parent);
    }

    /// Nothing, or nothing more, of this entry arrives.
    fn given_up(&self, id: EntryId, parent: EntryId) {
        self.entries().table().was_told_of_a_failure();
        if id == 0 {
            return;
        }
        if let Some(file) = self.entries().open_file(id) {
            if !file.begin_close() {
                return;
            }
            self.context().progress.end_name(id);
            return self.files().settle_failed(&file);
        }
        self.context().progress.end_name(id);
        self.entries().settle(id, parent);
    }

    /// Shows the flushing phase if everything was sent and only this end has work left.
    fn flushing(&self) {
        if self.entries().table().is_all_sent() {
            self.context().progress.set_phase(Phase::Flushing);
        }
    }

    fn all_sent(&self, all: &AllSent) {
        if self.entries().table().is_walked() {
            return self.breach("a second end of the walk");
        }
        let end = all.last.saturating_add(1);
        let ranges = |span: &ByteRange| -> Range<u64> { span.start..span.end.min(end) };
        let whole = self
            .entries()
            .table()
            .all_sent(all.last, all.unused.iter().map(ranges));
        if !whole {
            return self.breach("the end of the copy, although an operand is missing");
        }
        // A pack that still waits for a directory now breaks the protocol.
        self.unpark();
        self.flushing();
        self.entries().finish_directories(None);
    }
}

/// For copies that leave existing directories unchanged. A directory counts as made by this copy
/// only if an earlier run made it and nobody has changed its mode since. Its record therefore
/// includes its inode.
fn remember_made(journal: &Journal, directory: &mut Directory, path: Hash) {
    let Some(inode) = directory.lasting_inode() else {
        return;
    };
    let numbers = [inode.ino, inode.birth.s as u64, inode.birth.ns.into()];
    let numbers = numbers.map(u64::to_le_bytes).concat();
    let path = journal::hash([&path[..], &numbers].into_iter());
    let made = directory.made();
    if made {
        journal.directory(record::MadeDirectory {
            path,
            made,
            restore: None,
        });
    } else if directory.has_working_mode() && journal.directory_before(&path).is_some() {
        directory.adopt(true, None);
    }
}

/// The number of the first chunk of a repeated reading, if `entry` announces one.
fn second_reading(entry: &Entry) -> Option<u64> {
    let found = entry
        .extensions
        .iter()
        .find(|extension| extension.tag == ANEW)?;
    let bytes = found.bytes.as_slice().try_into().ok()?;
    Some(u64::from_le_bytes(bytes))
}

//! The thread that handles the sender's announcements in order: the destinations of the roots, then
//! directories, links and big files. It is a separate thread, so that the task that reads control
//! messages never waits for a disk. The order ensures that a parent exists before its children.

use std::ffi::OsString;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::big_files::anew;
use super::entry_table::Location;
use super::jobs::Job;
use super::resume::{Asked, Resuming, span};
use super::roots::Sessions;
use crate::dest::{self, Directory, SinkSpec, Spec};
use crate::dir::Handles;
use crate::error::{Error, Kind, Result, Side};
use crate::journal::record::{self, Hash};
use crate::journal::{self, Journal};
use crate::manifest::{Entry, EntryId, EntryKind};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::receive::Receiver;
use crate::progress::Phase;
use crate::wire::message::{AllSent, ByteRange, EntryEnd, Fault, Message, Want, WantKind};

/// How the user named a root, where the destination depends on that.
#[derive(Clone, Debug)]
pub struct Typed {
    pub operand: OsString,
    pub follow_name: bool,
}

/// The destination that the user named.
#[derive(Clone, Debug)]
pub enum To {
    Path(Spec),
    /// Stdout or a command.
    Exit(SinkSpec),
}

/// The destination of a copy.
pub struct CopyDestination {
    pub to: To,
    /// Device and inode numbers mean the same at both ends.
    pub same_machine: bool,
    /// One per operand.
    pub typed: Vec<Typed>,
    pub sessions: Sessions,
}

/// Runs until the queue is closed.
pub fn place(
    receiver: &Receiver,
    destination: &CopyDestination,
    queue: &async_channel::Receiver<Message>,
) {
    let handles = Arc::new(Handles::default());
    while let Ok(message) = queue.recv_blocking() {
        if receiver.ending.is_ending() {
            continue;
        }
        let weight = message.weight();
        match message {
            Message::Roots(_) if receiver.table.lock().has_roots() => {
                receiver.breach("its operands were named twice");
            }
            Message::Roots(roots) => {
                if let Err(error) = receiver.land(destination, roots, &handles) {
                    receiver.ending.end(error);
                }
            }
            Message::Entries(entries) => receiver.announced(entries),
            Message::Ask(entries) => receiver.asked(entries),
            Message::EntryEnd(ends) => ends.into_iter().for_each(|end| receiver.entry_end(end)),
            Message::Fault(fault) => receiver.sender_failed(fault),
            Message::Vanished(fault) if receiver.options.live => receiver.vanished(fault),
            Message::Special(count) => receiver.progress.add_special(count),
            Message::Unlinked(count) => receiver.progress.add_unlinked(count),
            Message::AllSent(all) => receiver.all_sent(&all),
            _ => receiver.breach("a message out of place"),
        }
        receiver.queued.fetch_sub(weight, Relaxed);
        receiver.emptied.notify_one();
    }
}

impl Receiver {
    fn announced(&self, entries: Vec<Entry>) {
        let mut wants = Vec::new();
        for entry in entries {
            if let Some(first_chunk) = anew(&entry) {
                if entry.kind == EntryKind::Stream {
                    return self.breach("a stream that is read a second time");
                }
                self.read_anew(entry, first_chunk);
                continue;
            }
            if self.table.lock().is_known(entry.id) || entry.id == 0 {
                return self.breach("an entry announced twice");
            }
            if !self.table.lock().fits_root(&entry) {
                return self.breach("an entry that differs from its announcement");
            }
            wants.extend(self.entry(entry));
        }
        if !wants.is_empty() {
            self.say(Message::Want(wants));
        }
        if self.table.lock().is_scattered() {
            return self.breach("it sends more at once than allowed");
        }
        self.unpark();
    }

    /// Answers which of these small files exist already.
    fn asked(&self, entries: Vec<Entry>) {
        let mut wants = Vec::with_capacity(entries.len());
        let mut there = Vec::new();
        for entry in entries {
            let (spot, path, is_new) = {
                let table = self.table.lock();
                let spot = table.spot(entry.id, entry.parent, &entry.name, self.digests.is_some());
                let path = table.path_of(entry.id, entry.parent, &entry.name);
                let is_new = entry.id != 0 && !table.is_known(entry.id) && table.fits_root(&entry);
                (spot, path, is_new)
            };
            let (id, size) = (entry.id, entry.size);
            let small = match (spot, path) {
                _ if !is_new => return self.breach("an entry announced twice"),
                // The file is sent, and fails then for that reason.
                (Location::Slot(slot, _), Some(_)) if self.check_name(&entry, &slot).is_err() => {
                    Asked::Missing
                }
                (Location::Slot(slot, listed), Some(path)) => self.resume_small(Resuming {
                    entry,
                    slot,
                    listed,
                    path,
                }),
                // The file fails when its pack arrives.
                (Location::Lost, _) => Asked::Missing,
                _ => return self.breach("an entry of a directory that was not announced"),
            };
            let kind = match &small {
                Asked::Missing => WantKind::Fresh,
                Asked::InPlace(..) => WantKind::Skip,
                Asked::Unread(placed) => {
                    self.table.lock().set_resuming(id);
                    let digest = placed.finished.digest.unwrap_or_default();
                    WantKind::Have(vec![(span(0..size), digest)])
                }
            };
            wants.push(Want { entry: id, kind });
            there.push(small);
        }
        // Sent first, because the later messages refer to these answers.
        self.say(Message::Want(wants));
        for small in there {
            match small {
                Asked::Missing => {}
                Asked::InPlace(placed) => self.placed_stays(*placed),
                Asked::Unread(placed) => self.verify_placed_later(*placed),
            }
        }
    }

    /// Retries packs that wait for a directory, since one may have been announced.
    fn unpark(&self) {
        let parked = std::mem::take(&mut self.table.lock().parked);
        for chunk in parked {
            // Fails only when the copy is ending.
            self.jobs.add(Job::Pack(chunk));
        }
    }

    fn entry(&self, entry: Entry) -> Option<Want> {
        let (spot, path) = {
            let table = self.table.lock();
            let spot = table.spot(entry.id, entry.parent, &entry.name, self.digests.is_some());
            (spot, table.path_of(entry.id, entry.parent, &entry.name))
        };
        if let Location::Slot(slot, _) = &spot
            && let Err(error) = self.check_name(&entry, slot)
        {
            return self.name_refused(entry, &error);
        }
        // The path is None only if the spot is `Unknown`.
        let path = path.unwrap_or_default();
        match (spot, &entry.kind) {
            (Location::Unknown, _) => self.breach("an entry of a directory that was not announced"),
            (Location::Lost, EntryKind::Directory) => {
                self.acks.failed(entry.id);
                self.table.lock().add_directory(entry, None, None);
            }
            (Location::Lost, EntryKind::File | EntryKind::Stream) => {
                self.lost_with_directory(&entry);
                return Some(Want {
                    entry: entry.id,
                    kind: WantKind::Skip,
                });
            }
            (Location::Lost, _) => self.lost_with_directory(&entry),
            (Location::Directory(dir, listed), EntryKind::Directory) => {
                self.directory(entry, Directory::enter(dir), listed, path);
            }
            (Location::Directory(..), _) => self.breach("a directory that became something else"),
            (Location::Slot(slot, listed), EntryKind::Directory) => {
                self.directory(entry, Directory::make(&slot), listed, path);
            }
            (Location::Slot(slot, listed), EntryKind::File | EntryKind::Stream) => {
                return self.big_file(entry, slot, listed, path);
            }
            (Location::Exit(exit, listed), EntryKind::File | EntryKind::Stream) => {
                return self.leaving(entry, &exit, listed, path);
            }
            (Location::Exit(..), _) => self.breach("an entry that differs from its announcement"),
            (Location::Slot(slot, _), EntryKind::Symlink(_)) => {
                let placed = dest::place_symlink(&slot, &entry, &self.rules).map(drop);
                self.link_placed(&entry, placed);
            }
            (Location::Slot(slot, listed), EntryKind::HardLink(first)) => {
                let first = *first;
                if first >= entry.id {
                    self.breach("a hard link to an entry that comes later");
                    return None;
                }
                let from = self.table.lock().linked.first(first, &entry);
                let Some(from) = from else {
                    // The first name failed here or at the sender, so this entry fails too. It is
                    // not checked whether the first name was announced: if a source changes all the
                    // time, only this entry should fail.
                    let message = "the file that it is a hard link to was not copied";
                    let error = Error::new(Kind::Entry, Side::Dest, message).at(slot.path());
                    self.fail(entry.id, entry.parent, &error);
                    return None;
                };
                if let (Some(list), Some(listed)) = (&self.digests, listed) {
                    list.add_link(&entry, first, listed);
                }
                let placed = dest::place_hard_link(&from, &slot, &entry, &self.rules).map(drop);
                self.link_placed(&entry, placed);
            }
        }
        None
    }

    /// Fails an entry whose name is not allowed here.
    fn name_refused(&self, entry: Entry, error: &Error) -> Option<Want> {
        let (id, parent) = (entry.id, entry.parent);
        let is_file = matches!(entry.kind, EntryKind::File | EntryKind::Stream);
        if entry.kind == EntryKind::Directory {
            self.tally.add(error);
            self.say(Message::Fault(Fault::of(error, id, parent)));
            self.table.lock().add_directory(entry, None, None);
        } else {
            self.fail(id, parent, error);
        }
        is_file.then_some(Want {
            entry: id,
            kind: WantKind::Skip,
        })
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
                self.acks.entry(id);
                self.table
                    .lock()
                    .add_directory(entry, Some(directory), listed);
            }
            Err(error) => {
                self.tally.add(&error);
                self.say(Message::Fault(Fault::of(&error, id, entry.parent)));
                self.table.lock().add_directory(entry, None, None);
            }
        }
    }

    /// A directory that an earlier run made counts as made by this copy.
    fn remember(&self, directory: &mut Directory, path: Hash) {
        let Some(journal) = self.journal() else {
            return;
        };
        if self.rules.untouched {
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

    fn link_placed(&self, entry: &Entry, placed: Result<()>) {
        match placed {
            Ok(()) => {
                if let Some(list) = &self.digests {
                    list.links_placed(entry.id..entry.id.saturating_add(1));
                }
                self.acks.entry(entry.id);
                self.settle(entry.id, entry.parent);
            }
            Err(error) => self.fail(entry.id, entry.parent, &error),
        }
    }

    fn entry_end(&self, end: EntryEnd) {
        let file = self.table.lock().files.get(&end.entry).cloned();
        let Some(file) = file else {
            let full = self.table.lock().end_directory(end.entry, end.length);
            return self.finish_directories(full);
        };
        if self.options.live || file.is_stream() {
            let mut claims = file.claims.lock();
            claims.end_at(end.length);
        }
        // The first end stays.
        let _ = file.end.set(end);
        self.flushing();
        if file.is_complete() {
            // Fails only when the copy is ending.
            self.jobs.add(Job::Close(file));
        }
    }

    /// The sender cannot send an entry, or not all of it.
    fn sender_failed(&self, fault: Fault) {
        let (id, parent) = (fault.entry, fault.parent);
        self.tally.add(&fault.into_error());
        self.given_up(id, parent);
    }

    /// With `--live`, an entry may vanish before it is read.
    fn vanished(&self, fault: Fault) {
        let (id, parent) = (fault.entry, fault.parent);
        self.tally.detail(&fault.into_error());
        self.given_up(id, parent);
    }

    /// Nothing, or nothing more, of this entry arrives.
    fn given_up(&self, id: EntryId, parent: EntryId) {
        self.table.lock().was_told_of_a_failure();
        if id == 0 {
            return;
        }
        let file = self.table.lock().files.get(&id).cloned();
        if let Some(file) = file {
            if file.closing.swap(true, std::sync::atomic::Ordering::AcqRel) {
                return;
            }
            self.drop_partial(&file);
        }
        self.progress.end_name(id);
        self.settle(id, parent);
    }

    /// Shows the flushing phase if everything was sent and only this end has work left.
    fn flushing(&self) {
        if self.table.lock().is_all_sent() {
            self.progress.set_phase(Phase::Flushing);
        }
    }

    fn all_sent(&self, all: &AllSent) {
        let end = all.last.saturating_add(1);
        let ranges = |span: &ByteRange| -> Range<u64> { span.start..span.end.min(end) };
        let whole = self
            .table
            .lock()
            .all_sent(all.last, all.unused.iter().map(ranges));
        if !whole {
            return self.breach("an announced entry never arrived");
        }
        // A pack that still waits for a directory now breaks the protocol.
        self.unpark();
        self.flushing();
        self.finish_directories(None);
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

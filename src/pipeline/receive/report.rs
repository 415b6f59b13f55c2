//! The receiver's reports: acknowledgements and faults to the sender, counts to the user.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;

use super::acks::Acks;
use super::done_files::{DoneFiles, PlacedContent};
use super::itemizer::Itemizer;
use super::landed_names::LandedNames;
use crate::dest::{self, Rules};
use crate::error::{Error, Kind, Side};
use crate::keep::{NotKept, NotKeptCounters};
use crate::manifest::{Entry, EntryId};
use crate::pipeline::context::Context;
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::scheduler::{NACKS_MAX, damaged_too_often};
use crate::wire::message::{DeletedEntries, Message};

/// Number of different chunks that may arrive damaged, each a few times, before the copy fails.
const DAMAGED_MAX: usize = 1024;

/// Number of patches that may not fit before the copy fails.
const PATCHES_FAILED_MAX: u64 = 4096;

pub struct Report {
    pub context: Arc<Context>,
    pub acks: Acks,
    /// How many times each chunk arrived damaged.
    damaged: Mutex<HashMap<u64, u8>>,
    patches_failed: AtomicU64,
    /// Bytes of earlier runs that were read since the sender was told.
    untold: AtomicU64,
    /// Number of entries that are not copied because of an existing entry or the lack of one.
    stayed: AtomicU64,
    has_failed: AtomicBool,
    has_source_failed: AtomicBool,
    /// Names of the roots at the destination.
    pub(super) landed_names: Arc<LandedNames>,
    pub(super) itemizer: Itemizer,
    pub(super) done: DoneFiles,
}

impl Report {
    pub fn new(context: Arc<Context>, rules: &Rules) -> Report {
        let names = Arc::<LandedNames>::default();
        Report {
            itemizer: Itemizer::new(context.clone(), rules.clone(), names.clone()),
            done: DoneFiles::new(context.clone(), names.clone()),
            landed_names: names,
            context,
            acks: Acks::default(),
            damaged: Mutex::default(),
            patches_failed: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            stayed: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            has_source_failed: AtomicBool::new(false),
        }
    }

    /// Ends the copy, because the sender broke the protocol.
    pub fn breach(&self, what: &str) {
        let error = Error::breach(Side::Dest, "the sender", what);
        self.context.shutdown.end(error);
    }

    /// Asks for a chunk again. Ends the copy if the chunk has arrived damaged more often than an
    /// honest sender sends it.
    pub fn damaged(&self, chunk: u64) {
        match self.count_damage(chunk) {
            Some(times) if times <= NACKS_MAX => self.context.say(Message::Nack(vec![chunk])),
            Some(_) => self.context.shutdown.end(damaged_too_often(Side::Dest)),
            None => {
                let message = format!(
                    "more than {DAMAGED_MAX} chunks failed verification; check the memory and the \
                     network hardware of both hosts"
                );
                let error = Error::new(Kind::Verify, Side::Dest, message);
                self.context.shutdown.end(error);
            }
        }
    }

    /// Asks for all of a chunk whose patch did not fit the existing bytes. Ends the copy if that
    /// happens too often: a sender that tries patches could find out what the bytes are.
    pub fn patch_failed(&self, chunk: u64) {
        if self.patches_failed.fetch_add(1, Relaxed) >= PATCHES_FAILED_MAX {
            let message = "another program keeps changing files at the destination while fastcp \
                           compares them; stop that program, or copy with --whole-file";
            return self
                .context
                .shutdown
                .end(Error::new(Kind::Changed, Side::Dest, message));
        }
        self.context.say(Message::Nack(vec![chunk]));
    }

    /// Counts that the chunk arrived damaged, and returns how many times it did. None if too many
    /// others did.
    fn count_damage(&self, chunk: u64) -> Option<u8> {
        let mut damaged = self.damaged.lock();
        if damaged.len() >= DAMAGED_MAX && !damaged.contains_key(&chunk) {
            return None;
        }
        let times = damaged.entry(chunk).or_default();
        *times = times.saturating_add(1);
        Some(*times)
    }

    /// True if the paths of entries are needed for the user.
    pub(super) fn names_entries(&self) -> bool {
        self.itemizer.is_on() || self.done.is_on()
    }

    /// Reports what was collected for the user.
    pub(super) fn flush(&self) {
        self.itemizer.flush();
        self.done.flush();
    }

    /// A file has its final name.
    pub fn file_placed(&self, entry: &Entry, listed: Option<&ListedPath>, placed: &PlacedContent) {
        let context = &self.context;
        context.progress.add_files(1);
        context.progress.end_name(entry.id);
        if let (Some(list), Some(listed)) = (&context.digests, listed) {
            let digest = placed.digest.unwrap_or_default();
            list.add(listed, &digest);
            list.remember(entry, &digest);
            list.wait_room(|| context.is_ending());
        }
        self.itemizer.placed(entry.id);
        self.done.add(listed, placed);
        self.acks.entry(entry.id);
    }

    /// Counts an entry that is not copied because of an existing entry or the lack of one.
    pub fn stays(&self) {
        self.stayed.fetch_add(1, Relaxed);
        self.context.progress.add_staying(1);
    }

    /// Tells the user's end how many entries stayed, and what this end could not keep.
    pub(super) fn tell_not_kept(&self, not_kept: &NotKeptCounters) {
        let stayed = self.stayed.load(Relaxed);
        if stayed > 0 {
            self.context.say(Message::Stayed(stayed));
        }
        let mut some = not_kept.get();
        if some != NotKept::default() {
            some.as_root = u64::from(rustix::process::geteuid().is_root());
            self.context.progress.not_kept().add(&some);
            self.context.say(Message::NotKept(some));
        }
    }

    /// An entry failed here.
    pub fn failed(&self, id: EntryId, parent: EntryId, error: &Error) {
        // What the user wants to stay has not failed.
        if !dest::is_kept(error) {
            self.has_failed.store(true, Relaxed);
        }
        self.context.progress.end_name(id);
        self.context.report_fault(error, id, parent);
    }

    /// A directory failed here. Its entries will follow, and fail with it.
    pub fn directory_failed(&self, id: EntryId, parent: EntryId, error: &Error) {
        self.has_failed.store(true, Relaxed);
        self.context.report_fault(error, id, parent);
    }

    /// True if some entry could not be put in its place, for whichever reason. Then the destination
    /// may have the only copy of it under another name.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// The sender could not read some entry.
    pub(super) fn source_failed(&self) {
        self.has_source_failed.store(true, Relaxed);
    }

    pub(super) fn has_source_failed(&self) -> bool {
        self.has_source_failed.load(Relaxed)
    }

    /// Entries were deleted here.
    pub(super) fn deleted(&self, deleted: DeletedEntries) {
        let context = &self.context;
        context.news.itemized.room_blocking(|| context.is_ending());
        context.news.deleted(&deleted);
        context.say(Message::Deleted(deleted));
    }

    /// An entry failed along with its directory, which a fault has reported.
    pub fn failed_with_directory(&self, id: EntryId) {
        self.has_failed.store(true, Relaxed);
        self.context.progress.add_failed(1);
        self.acks.failed(id);
    }

    /// Counts `bytes` of earlier runs as read. Reports to the other end, which may show the
    /// progress, after every `every` bytes.
    pub fn checked(&self, bytes: u64, every: u64) {
        let all = self.context.progress.add_checked(bytes);
        if self.untold.fetch_add(bytes, Relaxed) + bytes >= every {
            self.untold.store(0, Relaxed);
            self.context.say(Message::Checked(all));
        }
    }
}

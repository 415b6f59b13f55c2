//! Counters of a copy's progress. Stages add to them; others read a [`Snapshot`] of them, which has
//! nothing to do with `--snapshot`.
//!
//! After a lost connection another session continues the copy and counts from zero. It finds the
//! data of earlier sessions as data that was already there. A [`Snapshot`] combines all sessions
//! into one copy.

mod counts;
pub mod in_turn;
mod slow_files;
pub mod together;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::itemize::Difference;
use crate::keep::{NotKept, NotKeptCounters};
use crate::locks::{OrderedMutex, place};
use crate::manifest::Totals;
use crate::outcome::{CopyActivity, FileTime};
use crate::units::printable;
use slow_files::SlowFiles;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Connecting,
    /// The connection was lost.
    Reconnecting,
    Scanning,
    Copying,
    /// The sender has sent everything; the receiver writes, syncs and renames.
    Flushing,
    Done,
    /// For the time of the start, or for another copy to end.
    Waiting,
}

/// Most names that are shown at the same time.
const NAMES_MAX: usize = 4;

/// Most names that are kept, so that there are some when the oldest files are done.
const NAMES_KEPT: usize = 64;

/// Bytes of a name that are kept: more than a terminal shows.
const NAME_MAX: usize = 1 << 10;

/// A small file is shown for at least this long, so that its name can be read. So a million small
/// files need few names.
const PASSING: Duration = Duration::from_millis(200);

/// A small file is shown for this long if no other one follows.
const PASSED: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Progress {
    phase: AtomicU8,
    /// The copy is over and not complete.
    has_failed: AtomicBool,
    /// Set when the scan has ended.
    totals: OrderedMutex<Option<Totals>, { place::TOTALS }>,
    session: SessionCounters,
    frames: FrameCounters,
    streams: AtomicU32,
    logins: AtomicU32,
    names: OrderedMutex<ShownNames, { place::NAMES }>,
    waiting: OrderedMutex<Option<Waiting>, { place::WAITING }>,
    waited_ms: AtomicU64,
    /// The sending end's last word on what it does.
    activity: OrderedMutex<Option<Arc<CopyActivity>>, { place::ACTIVITY }>,
    slow_files: SlowFiles,
    /// The time of the next login, in milliseconds since 1970; 0 before the first failure.
    next_login_ms: AtomicU64,
    former: OrderedMutex<Former, { place::FORMER_PROGRESS }>,
    /// When a far end first said hello.
    logged_in: OnceLock<Instant>,
    /// When the first data moved, or was found to need no sending.
    began: OnceLock<Instant>,
}

/// Printable names of files that are being copied.
#[derive(Default)]
struct ShownNames {
    /// Until each is over, oldest first.
    open: Vec<(u64, String)>,
    /// A small file, with the time when it was copied.
    passing: Option<(Instant, String)>,
}

/// What a copy waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// `waiting until 2026-11-28 22:00 (--start-at)`
    pub what: String,
    /// The end of the wait, if it is known.
    pub until: Option<SystemTime>,
}

/// The counters that start again with each session.
#[derive(Default)]
struct SessionCounters {
    scanned_files: AtomicU64,
    scanned_bytes: AtomicU64,
    /// Bytes of content that were verified and written at the destination, without holes.
    bytes: AtomicU64,
    /// Bytes that were not sent: holes, and data that was already there.
    skipped_bytes: AtomicU64,
    /// Skipped bytes and finished files that an earlier run or session had left there.
    resumed_bytes: AtomicU64,
    resumed_files: AtomicU64,
    /// Bytes that were counted and then arrived again, because the source had changed.
    again_bytes: AtomicU64,
    /// Bytes of an earlier run that were read again, and verified or found damaged.
    checked_bytes: AtomicU64,
    /// Bytes of existing data that were found damaged and are sent again.
    damaged_bytes: AtomicU64,
    files: AtomicU64,
    failed: AtomicU64,
    /// FIFOs, sockets and devices in trees, which are skipped.
    special: AtomicU64,
    /// Names of files with several names (hard links) that were copied as separate files.
    unlinked: AtomicU64,
    /// Files that only grew, and were copied up to an earlier length.
    grown: AtomicU64,
    /// Symbolic links that are copied as links, and the part of them that leads out of their tree.
    symlinks: AtomicU64,
    symlinks_outside: AtomicU64,
    /// Existing files that are unchanged, by size and time.
    unchanged: AtomicU64,
    /// Files that were not copied because of what exists, or does not exist, at the destination.
    staying: AtomicU64,
    /// In a check: entries by what was found.
    missing: AtomicU64,
    different: AtomicU64,
    other_metadata: AtomicU64,
    /// In a dry run: files that would be sent, and their bytes.
    would_send_files: AtomicU64,
    would_send_bytes: AtomicU64,
    not_kept: NotKeptCounters,
}

/// The frames of all sessions.
#[derive(Default)]
struct FrameCounters {
    /// Bytes of frames that were sent or received, headers and tags included.
    wire_bytes: AtomicU64,
    /// Bytes of frames whose chunk had been sent before, because its connection was lost or slow,
    /// or because it arrived damaged.
    sent_again_bytes: AtomicU64,
    /// Bytes of content in the frames that `wire_bytes` counts.
    raw_bytes: AtomicU64,
    /// Indexed by codec number.
    codec_chunks: [AtomicU64; 8],
}

/// Sums and maxima over the earlier sessions of this copy.
#[derive(Default)]
struct Former {
    /// The most content and the most files that were in place in any session.
    done_bytes: u64,
    files: u64,
    /// Content that arrived, summed over all sessions.
    moved_bytes: u64,
    /// Content that was sent, summed over all sessions; at least as much as they left there.
    raw_bytes: u64,
    already_bytes: u64,
    /// Content that was read and verified, summed. No session reads what an earlier one has read.
    checked_bytes: u64,
}

/// With several copies: the ones that a snapshot is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copies {
    /// To several destinations at the same time. The other figures are those of `dests[shown]`.
    Together {
        dests: Vec<DestProgress>,
        shown: usize,
    },
    /// From several hosts. The other figures are those of the copy after `over` finished ones.
    InTurn { over: usize, all: usize },
}

/// The copy to one of several destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestProgress {
    /// Printable.
    pub name: Arc<str>,
    pub phase: Phase,
    pub has_failed: bool,
    pub totals: Option<Totals>,
    pub done_bytes: u64,
    pub moved_bytes: u64,
    pub files: u64,
    pub traffic: Traffic,
}

/// The figures of the link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Content in the frames that `wire_bytes` counts.
    pub raw_bytes: u64,
    pub wire_bytes: u64,
    /// The part of `wire_bytes` that had been sent before.
    pub sent_again_bytes: u64,
    /// None before the sending end has told it.
    pub activity: Option<Arc<CopyActivity>>,
}

/// The values of all counters at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub phase: Phase,
    /// The copy is over and not complete.
    pub has_failed: bool,
    pub totals: Option<Totals>,
    pub scanned_files: u64,
    pub scanned_bytes: u64,
    /// Content in place, sent or not. It never decreases from one snapshot to the next.
    pub done_bytes: u64,
    /// The part of `done_bytes` that was counted twice in this session because its source had
    /// changed.
    pub again_bytes: u64,
    /// Content that came over the link in all sessions.
    pub moved_bytes: u64,
    /// Content that was in place before the first session.
    pub already_bytes: u64,
    /// Content that was neither sent nor resumed in this session: zeros, and files that
    /// `--no-clobber` found equal.
    pub unsent_bytes: u64,
    /// Existing content that was read again in all sessions.
    pub checked_bytes: u64,
    /// Existing content that was found damaged in this session and came again.
    pub damaged_bytes: u64,
    /// Content in the frames that `wire_bytes` counts.
    pub raw_bytes: u64,
    pub wire_bytes: u64,
    /// The part of `wire_bytes` that had been sent before.
    pub sent_again_bytes: u64,
    pub files: u64,
    pub special: u64,
    pub unlinked: u64,
    /// Files that only grew, and were copied up to an earlier length.
    pub grown: u64,
    /// Symbolic links that are copied as links.
    pub symlinks: u64,
    /// Those that lead out of their tree, by their text.
    pub symlinks_outside: u64,
    /// The part of `files` that exists unchanged, by size and time.
    pub unchanged: u64,
    /// Files that were not copied because of what exists, or does not exist, at the destination.
    pub staying: u64,
    /// Entries that the destination lacks, with `--check`.
    pub missing: u64,
    /// Entries of another kind or content.
    pub different: u64,
    /// Entries of which only metadata differs.
    pub other_metadata: u64,
    /// In a dry run: files that would be sent, and their bytes.
    pub would_send_files: u64,
    pub would_send_bytes: u64,
    pub not_kept: NotKept,
    pub streams: u32,
    /// Logins after the first one.
    pub logins_again: u32,
    pub codec_chunks: [u64; 8],
    /// Printable names of files that are being copied, oldest first.
    pub names: Vec<String>,
    /// In the phase of waiting.
    pub waiting: Option<Waiting>,
    /// Time spent in that phase until now, but for the current wait.
    pub waited: Duration,
    /// The time of the next login, or of the last one, after a login has failed.
    pub next_login: Option<SystemTime>,
    pub copies: Option<Copies>,
    /// What the sending end does now. None before it has told that.
    pub activity: Option<Arc<CopyActivity>>,
    /// When a far end first sent its hello.
    pub logged_in: Option<Instant>,
    /// When the first data moved, or was found to be already there.
    pub began: Option<Instant>,
}

impl Snapshot {
    /// Content in place, each byte counted once.
    pub fn placed_bytes(&self) -> u64 {
        self.done_bytes.saturating_sub(self.again_bytes)
    }

    pub fn traffic(&self) -> Traffic {
        Traffic {
            raw_bytes: self.raw_bytes,
            wire_bytes: self.wire_bytes,
            sent_again_bytes: self.sent_again_bytes,
            activity: self.activity.clone(),
        }
    }

    /// Files that are over: copied, left as they are, or compared in a dry run.
    pub fn done_files(&self) -> u64 {
        let others = self.staying.saturating_add(self.would_send_files);
        self.files.saturating_add(others)
    }
}

impl SessionCounters {
    fn reset(&self) {
        for counter in [
            &self.scanned_files,
            &self.scanned_bytes,
            &self.bytes,
            &self.skipped_bytes,
            &self.resumed_bytes,
            &self.resumed_files,
            &self.again_bytes,
            &self.checked_bytes,
            &self.damaged_bytes,
            &self.files,
            &self.failed,
            &self.special,
            &self.unlinked,
            &self.grown,
            &self.symlinks,
            &self.symlinks_outside,
            &self.unchanged,
            &self.staying,
            &self.missing,
            &self.different,
            &self.other_metadata,
            &self.would_send_files,
            &self.would_send_bytes,
        ] {
            counter.store(0, Relaxed);
        }
        self.not_kept.reset();
    }
}

impl Progress {
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
    }

    /// The copy is over.
    pub fn end(&self, is_complete: bool) {
        self.has_failed.store(!is_complete, Relaxed);
        self.set_phase(Phase::Done);
    }

    /// A login has failed, or its connection was lost. The next one begins after `wait`.
    pub fn set_next_login(&self, wait: Duration) {
        let at = SystemTime::now() + wait;
        let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.next_login_ms.store(at.as_millis() as u64, Relaxed);
    }

    /// The copy waits for what this line says, until then if that is known.
    pub fn set_waiting(&self, what: String, until: Option<SystemTime>) {
        *self.waiting.lock() = Some(Waiting { what, until });
        self.set_phase(Phase::Waiting);
    }

    pub fn add_waited(&self, time: Duration) {
        self.waited_ms.fetch_add(time.as_millis() as u64, Relaxed);
    }

    /// The wait before the start is over.
    pub fn end_waiting(&self, time: Duration) {
        self.add_waited(time);
        self.set_phase(Phase::Connecting);
    }

    pub fn set_totals(&self, mut totals: Totals) {
        let mut known = self.totals.lock();
        // They may come late.
        let again = self.session.again_bytes.load(Relaxed);
        totals.bytes = totals.bytes.saturating_add(again);
        *known = Some(totals);
    }

    /// Bytes of content that are not yet at the destination. None if the totals or the length of
    /// a pipe are unknown.
    pub fn rest_bytes(&self) -> Option<u64> {
        let totals = (*self.totals.lock())?;
        let done = self.session.bytes.load(Relaxed) + self.session.skipped_bytes.load(Relaxed);
        (totals.streams == 0).then(|| totals.bytes.saturating_sub(done))
    }

    /// Increases with all work that is done.
    pub fn done(&self) -> u64 {
        let counters = [
            &self.session.bytes,
            &self.session.skipped_bytes,
            &self.session.files,
        ];
        counters.iter().map(|counter| counter.load(Relaxed)).sum()
    }

    /// The totals so far. Two walks may count.
    pub fn set_scanned(&self, totals: &Totals) {
        self.session.scanned_files.fetch_max(totals.files, Relaxed);
        self.session.scanned_bytes.fetch_max(totals.bytes, Relaxed);
    }

    fn begin(&self) {
        self.began.get_or_init(Instant::now);
    }

    pub fn add_bytes(&self, bytes: u64) {
        self.begin();
        self.session.bytes.fetch_add(bytes, Relaxed);
    }

    /// Bytes of this session.
    pub fn bytes(&self) -> u64 {
        self.session.bytes.load(Relaxed)
    }

    pub fn add_skipped(&self, bytes: u64) {
        self.begin();
        self.session.skipped_bytes.fetch_add(bytes, Relaxed);
    }

    /// Adds `bytes` of content that an earlier run or session left. They count as skipped too.
    pub fn add_resumed(&self, bytes: u64) {
        self.add_skipped(bytes);
        self.session.resumed_bytes.fetch_add(bytes, Relaxed);
    }

    /// Sets the bytes of an earlier run that were read again so far. Threads of the receiver report
    /// their sums side by side, so a smaller one may come last.
    pub fn set_checked(&self, bytes: u64) {
        self.session.checked_bytes.fetch_max(bytes, Relaxed);
    }

    /// Adds to the bytes that were read again; returns the new sum.
    pub fn add_checked(&self, bytes: u64) -> u64 {
        self.session.checked_bytes.fetch_add(bytes, Relaxed) + bytes
    }

    pub fn add_resumed_files(&self, files: u64) {
        self.session.resumed_files.fetch_add(files, Relaxed);
    }

    /// Adds bytes that were already counted and will arrive again.
    pub fn add_again(&self, bytes: u64) {
        let mut known = self.totals.lock();
        self.session.again_bytes.fetch_add(bytes, Relaxed);
        if let Some(totals) = &mut *known {
            totals.bytes = totals.bytes.saturating_add(bytes);
        }
    }

    /// Adds bytes that were counted as already there but are damaged, and so will arrive again.
    pub fn add_damaged(&self, bytes: u64) {
        self.session.damaged_bytes.fetch_add(bytes, Relaxed);
        self.add_again(bytes);
    }

    /// As [`add_damaged`](Self::add_damaged), for a copy between two remote hosts. There the
    /// sender counts the bytes that arrive again.
    pub fn add_damaged_elsewhere(&self, bytes: u64) {
        // The number comes from a peer and must not overflow the counter.
        self.session
            .damaged_bytes
            .fetch_add(bytes.min(1 << 40), Relaxed);
    }

    /// Adds a frame of `wire` bytes in `codec`, with `raw` bytes of content, that was sent or
    /// received.
    pub fn add_frame(&self, codec: u8, raw: u64, wire: u64) {
        self.begin();
        self.frames.wire_bytes.fetch_add(wire, Relaxed);
        self.frames.raw_bytes.fetch_add(raw, Relaxed);
        if let Some(count) = self.frames.codec_chunks.get(usize::from(codec)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Adds a frame that was not the first of its chunk. `add_frame` counts it too.
    pub fn add_sent_again(&self, wire: u64) {
        self.frames.sent_again_bytes.fetch_add(wire, Relaxed);
    }

    pub fn add_files(&self, count: u64) {
        self.begin();
        self.session.files.fetch_add(count, Relaxed);
    }

    pub fn add_special(&self, count: u64) {
        // The number comes from a peer and must not overflow the counter.
        self.session.special.fetch_add(count.min(1 << 40), Relaxed);
    }

    pub fn add_unlinked(&self, count: u64) {
        // As in `add_special`.
        self.session.unlinked.fetch_add(count.min(1 << 40), Relaxed);
    }

    pub fn add_symlinks(&self, all: u64, outside: u64) {
        let session = &self.session;
        // As in `add_special`.
        session.symlinks.fetch_add(all.min(1 << 40), Relaxed);
        session
            .symlinks_outside
            .fetch_add(outside.min(all).min(1 << 40), Relaxed);
    }

    pub fn add_grown(&self, files: u64) {
        self.session.grown.fetch_add(files, Relaxed);
    }

    /// Counts an existing file of `size` bytes that is unchanged, by its size and time.
    pub fn add_unchanged(&self, size: u64) {
        self.add_unchanged_files(1, size);
    }

    /// Counts unchanged files of `bytes` together.
    pub fn add_unchanged_files(&self, files: u64, bytes: u64) {
        self.add_files(files);
        self.add_skipped(bytes);
        self.session.unchanged.fetch_add(files, Relaxed);
    }

    /// Counts unchanged files whose bytes are in the counts of the sender.
    pub fn add_unchanged_elsewhere(&self, files: u64) {
        // As in `add_special`.
        self.session
            .unchanged
            .fetch_add(files.min(1 << 40), Relaxed);
    }

    /// Counts files that are not copied because of existing files at the destination.
    pub fn add_staying(&self, files: u64) {
        self.begin();
        // As in `add_special`.
        self.session.staying.fetch_add(files.min(1 << 40), Relaxed);
    }

    /// Counts files that would be sent, in a dry run.
    pub fn add_would_send(&self, files: u64, bytes: u64) {
        let session = &self.session;
        // As in `add_special`, but for bytes.
        session
            .would_send_files
            .fetch_add(files.min(1 << 40), Relaxed);
        session
            .would_send_bytes
            .fetch_add(bytes.min(1 << 60), Relaxed);
    }

    /// Counts an entry that differs between the ends, but for entries that only the destination has.
    pub fn add_difference(&self, difference: Difference) {
        let session = &self.session;
        let counter = match difference {
            Difference::Missing => &session.missing,
            Difference::Content => &session.different,
            Difference::Metadata => &session.other_metadata,
            Difference::Extra => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// The counters of metadata that could not be kept.
    pub fn not_kept(&self) -> &NotKeptCounters {
        &self.session.not_kept
    }

    pub fn add_failed(&self, entries: u64) {
        self.session.failed.fetch_add(entries, Relaxed);
    }

    pub fn set_streams(&self, count: u32) {
        self.streams.store(count, Relaxed);
    }

    /// The sending end has told what it does.
    pub fn set_activity(&self, activity: CopyActivity) -> Arc<CopyActivity> {
        let activity = Arc::new(activity);
        *self.activity.lock() = Some(activity.clone());
        activity
    }

    /// A file is in place. `path` is called if it is one of the slowest.
    pub fn add_file_time(&self, time: Duration, size: u64, path: impl FnOnce() -> Vec<u8>) {
        let path = || shown(&path());
        self.slow_files.add(time, size, path);
    }

    /// The slowest files that were sent from this end or received here, the slowest first.
    pub fn slowest_files(&self) -> Vec<FileTime> {
        self.slow_files.slowest()
    }

    /// Counts a login when the far end has sent its hello.
    pub fn add_login(&self) {
        self.logged_in.get_or_init(Instant::now);
        self.logins.fetch_add(1, Relaxed);
    }

    /// A file is being copied. `path` is called if there is room for its name.
    pub fn start_name(&self, id: u64, path: impl FnOnce() -> Vec<u8>) {
        let mut names = self.names.lock();
        if names.open.len() < NAMES_KEPT {
            names.open.push((id, shown(&path())));
        }
    }

    pub fn end_name(&self, id: u64) {
        self.names.lock().open.retain(|(other, _)| *other != id);
    }

    /// A small file is copied at once. `path` is called if there is time to read its name.
    pub fn pass_name(&self, path: impl FnOnce() -> Vec<u8>) {
        let now = Instant::now();
        let mut names = self.names.lock();
        let last = names.passing.as_ref();
        if last.is_none_or(|(at, _)| now.duration_since(*at) >= PASSING) {
            names.passing = Some((now, shown(&path())));
        }
    }

    /// Resets the counters for a session that continues the copy. True if the ended session got
    /// further than the ones before it.
    pub fn begin_again(&self) -> bool {
        let mut former = self.former.lock();
        let now = self.together(&former);
        let is_further = now.done_bytes > former.done_bytes || now.files > former.files;
        *former = Former {
            done_bytes: now.done_bytes,
            files: now.files,
            moved_bytes: now.moved_bytes,
            raw_bytes: self.frames.raw_bytes.load(Relaxed),
            already_bytes: now.already_bytes,
            checked_bytes: now.checked_bytes,
        };
        self.session.reset();
        *self.names.lock() = ShownNames::default();
        is_further
    }

    /// Combines this session with the earlier ones.
    fn together(&self, former: &Former) -> Former {
        let (bytes, skipped) = (
            self.session.bytes.load(Relaxed),
            self.session.skipped_bytes.load(Relaxed),
        );
        let damaged = self.session.damaged_bytes.load(Relaxed);
        let resumed = self
            .session
            .resumed_bytes
            .load(Relaxed)
            .saturating_sub(damaged);
        Former {
            done_bytes: former.done_bytes.max(bytes + skipped),
            files: former.files.max(self.session.files.load(Relaxed)),
            moved_bytes: former.moved_bytes + bytes,
            // Data that earlier sessions may have brought does not count as found.
            already_bytes: former
                .already_bytes
                .max(resumed.saturating_sub(former.raw_bytes)),
            raw_bytes: former.raw_bytes,
            checked_bytes: former
                .checked_bytes
                .saturating_add(self.session.checked_bytes.load(Relaxed)),
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        const PHASES: [Phase; 7] = [
            Phase::Connecting,
            Phase::Reconnecting,
            Phase::Scanning,
            Phase::Copying,
            Phase::Flushing,
            Phase::Done,
            Phase::Waiting,
        ];
        // Held, so that all counters are read in the same session.
        let former = self.former.lock();
        let together = self.together(&former);
        let (session, frames) = (&self.session, &self.frames);
        let phase = PHASES[usize::from(self.phase.load(Relaxed)).min(PHASES.len() - 1)];
        let waiting = self.waiting.lock().clone();
        let next_login = match self.next_login_ms.load(Relaxed) {
            0 => None,
            ms => Some(UNIX_EPOCH + Duration::from_millis(ms)),
        };
        Snapshot {
            phase,
            has_failed: self.has_failed.load(Relaxed),
            waiting: waiting.filter(|_| phase == Phase::Waiting),
            waited: Duration::from_millis(self.waited_ms.load(Relaxed)),
            next_login,
            totals: *self.totals.lock(),
            scanned_files: session.scanned_files.load(Relaxed),
            scanned_bytes: session.scanned_bytes.load(Relaxed),
            done_bytes: together.done_bytes,
            again_bytes: session.again_bytes.load(Relaxed),
            moved_bytes: together.moved_bytes,
            already_bytes: together.already_bytes,
            unsent_bytes: session
                .skipped_bytes
                .load(Relaxed)
                .saturating_sub(session.resumed_bytes.load(Relaxed)),
            checked_bytes: together.checked_bytes,
            damaged_bytes: session.damaged_bytes.load(Relaxed),
            raw_bytes: frames.raw_bytes.load(Relaxed),
            wire_bytes: frames.wire_bytes.load(Relaxed),
            sent_again_bytes: frames.sent_again_bytes.load(Relaxed),
            files: together.files,
            special: session.special.load(Relaxed),
            unlinked: session.unlinked.load(Relaxed),
            grown: session.grown.load(Relaxed),
            symlinks: session.symlinks.load(Relaxed),
            symlinks_outside: session.symlinks_outside.load(Relaxed),
            unchanged: session.unchanged.load(Relaxed),
            staying: session.staying.load(Relaxed),
            missing: session.missing.load(Relaxed),
            different: session.different.load(Relaxed),
            other_metadata: session.other_metadata.load(Relaxed),
            would_send_files: session.would_send_files.load(Relaxed),
            would_send_bytes: session.would_send_bytes.load(Relaxed),
            not_kept: session.not_kept.get(),
            streams: self.streams.load(Relaxed),
            logins_again: self.logins.load(Relaxed).saturating_sub(1),
            codec_chunks: std::array::from_fn(|codec| frames.codec_chunks[codec].load(Relaxed)),
            names: self.names.lock().shown(Instant::now()),
            copies: None,
            activity: self.activity.lock().clone(),
            logged_in: self.logged_in.get().copied(),
            began: self.began.get().copied(),
        }
    }
}

impl ShownNames {
    fn shown(&self, now: Instant) -> Vec<String> {
        let passing = self.passing.as_ref();
        let passing = passing.filter(|(at, _)| now.duration_since(*at) < PASSED);
        let open = self.open.iter().map(|(_, name)| name);
        let all = open.chain(passing.map(|(_, name)| name));
        all.take(NAMES_MAX).cloned().collect()
    }
}

/// The end of a path, printable.
fn shown(path: &[u8]) -> String {
    printable(&path[path.len().saturating_sub(NAME_MAX)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: u8 = 0;

    fn bring(progress: &Progress, bytes: u64) {
        progress.add_frame(RAW, bytes, bytes + 80);
        progress.add_bytes(bytes);
    }

    fn find(progress: &Progress, bytes: u64) {
        progress.add_resumed(bytes);
    }

    #[test]
    fn a_late_report_does_not_lower_the_bytes_that_were_read_again() {
        let progress = Progress::default();
        progress.set_checked(5 << 20);
        progress.set_checked(3 << 20);
        assert_eq!(progress.snapshot().checked_bytes, 5 << 20);
    }

    #[test]
    fn what_a_former_session_brought_counts_once_and_was_not_there_already() {
        let progress = Progress::default();
        find(&progress, 1000);
        bring(&progress, 300);
        // Sent when the connection was lost; may have arrived.
        progress.add_frame(RAW, 50, 130);
        assert!(progress.begin_again());
        let now = progress.snapshot();
        assert_eq!(
            (now.done_bytes, now.moved_bytes),
            (1300, 300),
            "as it stood"
        );
        find(&progress, 1340);
        bring(&progress, 60);
        let now = progress.snapshot();
        assert_eq!((now.done_bytes, now.moved_bytes), (1400, 360));
        assert_eq!(
            (now.already_bytes, now.wire_bytes),
            (1000, 300 + 50 + 60 + 240)
        );
    }

    #[test]
    fn of_many_small_files_few_are_named_and_each_for_a_moment() {
        let progress = Progress::default();
        let mut made = 0;
        for n in 0..100_000 {
            progress.pass_name(|| {
                made += 1;
                format!("tree/{n}").into_bytes()
            });
        }
        assert!(made < 100, "{made}");
        progress.start_name(7, || b"big\x1b".to_vec());
        for id in 8..20 {
            progress.start_name(id, || vec![b'x'; 1 << 18]);
        }
        let names = progress.snapshot().names;
        assert_eq!((names.len(), &*names[0]), (NAMES_MAX, "big\\x1b"));
        assert_eq!(names[1].len(), NAME_MAX);
        (7..20).for_each(|id| progress.end_name(id));
        let names = progress.names.lock();
        let now = Instant::now();
        assert!(names.shown(now + 2 * PASSED).is_empty());
        let (at, name) = names.passing.as_ref().unwrap();
        assert_eq!(names.shown(*at), [name.as_str()]);
    }

    #[test]
    fn totals_that_come_late_include_what_arrives_again() {
        let progress = Progress::default();
        progress.add_again(50);
        progress.set_totals(Totals {
            bytes: 1000,
            ..Totals::default()
        });
        progress.add_again(5);
        assert_eq!(progress.snapshot().totals.unwrap().bytes, 1055);
    }

    #[test]
    fn a_session_that_repeats_what_was_lost_moves_nothing_until_it_gets_further() {
        let progress = Progress::default();
        bring(&progress, 500);
        assert!(progress.begin_again());
        bring(&progress, 400);
        assert_eq!(progress.snapshot().done_bytes, 500);
        assert!(!progress.begin_again());
        bring(&progress, 501);
        assert_eq!(progress.snapshot().done_bytes, 501);
        assert_eq!(progress.snapshot().already_bytes, 0);
        assert!(progress.begin_again());
    }
}

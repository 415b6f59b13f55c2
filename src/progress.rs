//! What has been done so far: counters that stages add to and only `ui` reads.
//!
//! A copy whose connection was lost goes on in another session, which counts from nothing: what
//! the former ones brought is to it what was there already. A snapshot makes one copy of them.

mod counts;
pub mod together;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use crate::manifest::Totals;

pub use counts::Counts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Connecting,
    /// The connection was lost.
    Reconnecting,
    Scanning,
    Copying,
    /// Everything was sent; the receiver writes, syncs and renames.
    Flushing,
    Done,
}

/// How many names are shown at once.
const NAMES_MAX: usize = 4;

#[derive(Default)]
pub struct Progress {
    phase: AtomicU8,
    /// Set once the scan is done.
    totals_known: AtomicBool,
    totals: Mutex<Totals>,
    scanned_files: AtomicU64,
    scanned_bytes: AtomicU64,
    /// Bytes of content that are verified and written at the destination, holes not counted.
    bytes: AtomicU64,
    /// Bytes that needed no sending: holes and what was there already.
    skipped_bytes: AtomicU64,
    /// Those of the skipped bytes, and the files in place, that were found there as an earlier
    /// run or session had left them.
    resumed_bytes: AtomicU64,
    resumed_files: AtomicU64,
    /// Bytes that were counted and came once more, since their source had changed.
    again_bytes: AtomicU64,
    /// Bytes that an earlier run left and that were read and verified, or found damaged.
    checked_bytes: AtomicU64,
    /// Bytes of what was found there that turned out to be damaged, and come again.
    damaged_bytes: AtomicU64,
    /// Bytes given to sockets, headers and tags included.
    wire_bytes: AtomicU64,
    /// Those of frames whose chunk had been sent before: its stream was lost or slow, or it
    /// arrived damaged.
    sent_again_bytes: AtomicU64,
    /// Bytes of content that those stood for.
    raw_bytes: AtomicU64,
    files: AtomicU64,
    failed: AtomicU64,
    /// FIFOs, sockets and devices in trees, which are skipped.
    special: AtomicU64,
    /// Files whose further names came as files of their own.
    unlinked: AtomicU64,
    streams: AtomicU32,
    logins: AtomicU32,
    /// Indexed by codec number.
    codec_chunks: [AtomicU64; 8],
    names: Mutex<Vec<(u64, String)>>,
    former: Mutex<Former>,
    /// When a far end first said hello.
    logged_in: OnceLock<Instant>,
    /// When the first data moved, or was found to need no sending.
    began: OnceLock<Instant>,
}

/// What the former sessions of this copy came to.
#[derive(Default)]
struct Former {
    /// The most content and the most files that were in place in any of them.
    done_bytes: u64,
    files: u64,
    /// Content that arrived, in all of them.
    moved_bytes: u64,
    /// Content that was on its way, in all of them: no less than what they left there.
    raw_bytes: u64,
    already_bytes: u64,
    /// Content that was read and verified, in all of them: what one has read the next does not.
    checked_bytes: u64,
}

/// One reading of all counters.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub phase: Phase,
    pub totals: Option<Totals>,
    pub scanned_files: u64,
    pub scanned_bytes: u64,
    /// Of this session, as `skipped_bytes`.
    pub bytes: u64,
    pub skipped_bytes: u64,
    /// Content that is there, sent or not; never less than at an earlier snapshot.
    pub done_bytes: u64,
    /// Of `done_bytes`, what was counted twice in this session, since its source had changed.
    pub again_bytes: u64,
    /// Content that came over the link in all sessions.
    pub moved_bytes: u64,
    /// Content that was there before the first session.
    pub already_bytes: u64,
    /// Content that needed no sending in this session, and not since it was there: holes.
    pub unsent_bytes: u64,
    /// Content that was there and was read again in all sessions,
    pub checked_bytes: u64,
    /// and what of it was damaged and came again.
    pub damaged_bytes: u64,
    pub wire_bytes: u64,
    /// Of `wire_bytes`, what had been sent before.
    pub sent_again_bytes: u64,
    pub raw_bytes: u64,
    pub files: u64,
    pub failed: u64,
    pub special: u64,
    pub unlinked: u64,
    pub streams: u32,
    /// Logins after the first.
    pub logins_again: u32,
    pub codec_chunks: [u64; 8],
    /// Names of files that are being copied, printable, oldest first.
    pub names: Vec<String>,
    /// Of several copies of the same: those that are over, and all.
    pub copies: Option<(usize, usize)>,
    /// When a far end first said hello.
    pub logged_in: Option<Instant>,
    /// When the first data moved, or was found to need no sending.
    pub began: Option<Instant>,
}

impl Snapshot {
    /// Content that is there, each byte once.
    pub fn placed_bytes(&self) -> u64 {
        self.done_bytes.saturating_sub(self.again_bytes)
    }
}

impl Progress {
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
    }

    pub fn set_totals(&self, totals: Totals) {
        *self.totals.lock().expect("no panic while held") = totals;
        self.totals_known.store(true, Relaxed);
    }

    /// Bytes of content that are not at the destination yet; None where the totals are not known or
    /// a stream's length is not.
    pub fn rest_bytes(&self) -> Option<u64> {
        let totals = self.totals_known.load(Relaxed);
        let totals = totals.then(|| *self.totals.lock().expect("no panic while held"))?;
        let done = self.bytes.load(Relaxed) + self.skipped_bytes.load(Relaxed);
        (totals.streams == 0).then(|| totals.bytes.saturating_sub(done))
    }

    /// Goes up with everything that is done.
    pub fn done(&self) -> u64 {
        let counters = [&self.bytes, &self.skipped_bytes, &self.files];
        counters.iter().map(|counter| counter.load(Relaxed)).sum()
    }

    pub fn add_scanned(&self, files: u64, bytes: u64) {
        self.scanned_files.fetch_add(files, Relaxed);
        self.scanned_bytes.fetch_add(bytes, Relaxed);
    }

    fn begin(&self) {
        self.began.get_or_init(Instant::now);
    }

    pub fn add_bytes(&self, bytes: u64) {
        self.begin();
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Those of this session.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub fn add_skipped(&self, bytes: u64) {
        self.begin();
        self.skipped_bytes.fetch_add(bytes, Relaxed);
    }

    /// `bytes` of content were found there as an earlier run or session had left them; they count
    /// as skipped too.
    pub fn add_resumed(&self, bytes: u64) {
        self.add_skipped(bytes);
        self.resumed_bytes.fetch_add(bytes, Relaxed);
    }

    /// So many bytes of what an earlier run left were read again, in all.
    pub fn set_checked(&self, bytes: u64) {
        self.checked_bytes.store(bytes, Relaxed);
    }

    /// Some more were; gives how many those are in all.
    pub fn add_checked(&self, bytes: u64) -> u64 {
        self.checked_bytes.fetch_add(bytes, Relaxed) + bytes
    }

    pub fn add_resumed_files(&self, files: u64) {
        self.resumed_files.fetch_add(files, Relaxed);
    }

    /// So many bytes that are counted already are to come once more.
    pub fn add_again(&self, bytes: u64) {
        self.again_bytes.fetch_add(bytes, Relaxed);
        let mut totals = self.totals.lock().expect("no panic while held");
        totals.bytes = totals.bytes.saturating_add(bytes);
    }

    /// So many bytes that count as found there are damaged and come once more.
    pub fn add_damaged(&self, bytes: u64) {
        self.damaged_bytes.fetch_add(bytes, Relaxed);
        self.add_again(bytes);
    }

    /// The same of a copy between two hosts, whose sender counts what comes once more.
    pub fn add_damaged_elsewhere(&self, bytes: u64) {
        // A peer's word: it is not to overflow.
        self.damaged_bytes.fetch_add(bytes.min(1 << 40), Relaxed);
    }

    /// A frame of `wire` bytes in `codec` that stands for `raw` bytes was sent or received.
    pub fn add_frame(&self, codec: u8, raw: u64, wire: u64) {
        self.begin();
        self.wire_bytes.fetch_add(wire, Relaxed);
        self.raw_bytes.fetch_add(raw, Relaxed);
        if let Some(count) = self.codec_chunks.get(usize::from(codec)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// A frame of so many bytes was not the first of its chunk; it counts in `add_frame` too.
    pub fn add_sent_again(&self, wire: u64) {
        self.sent_again_bytes.fetch_add(wire, Relaxed);
    }

    pub fn add_files(&self, count: u64) {
        self.begin();
        self.files.fetch_add(count, Relaxed);
    }

    pub fn add_special(&self, count: u64) {
        // A peer's word: it is not to overflow.
        self.special.fetch_add(count.min(1 << 40), Relaxed);
    }

    pub fn add_unlinked(&self, count: u64) {
        // As above.
        self.unlinked.fetch_add(count.min(1 << 40), Relaxed);
    }

    pub fn add_failed(&self, entries: u64) {
        self.failed.fetch_add(entries, Relaxed);
    }

    pub fn set_streams(&self, count: u32) {
        self.streams.store(count, Relaxed);
    }

    /// A far end has said hello.
    pub fn add_login(&self) {
        self.logged_in.get_or_init(Instant::now);
        self.logins.fetch_add(1, Relaxed);
    }

    /// `name` must be printable.
    pub fn start_name(&self, id: u64, name: String) {
        let mut names = self.names.lock().expect("no panic while held");
        if names.len() < NAMES_MAX {
            names.push((id, name));
        }
    }

    pub fn end_name(&self, id: u64) {
        self.names
            .lock()
            .expect("no panic while held")
            .retain(|(other, _)| *other != id);
    }

    /// The session is over and another takes its place, which counts from nothing. True if this
    /// one got further than those before it.
    pub fn begin_again(&self) -> bool {
        let mut former = self.lock_former();
        let now = self.together(&former);
        let is_further = now.done_bytes > former.done_bytes || now.files > former.files;
        *former = Former {
            done_bytes: now.done_bytes,
            files: now.files,
            moved_bytes: now.moved_bytes,
            raw_bytes: self.raw_bytes.load(Relaxed),
            already_bytes: now.already_bytes,
            checked_bytes: now.checked_bytes,
        };
        for counter in [
            &self.bytes,
            &self.skipped_bytes,
            &self.resumed_bytes,
            &self.resumed_files,
            &self.checked_bytes,
            &self.damaged_bytes,
            &self.again_bytes,
            &self.files,
            &self.failed,
            &self.special,
            &self.unlinked,
            &self.scanned_files,
            &self.scanned_bytes,
        ] {
            counter.store(0, Relaxed);
        }
        self.names.lock().expect("no panic while held").clear();
        is_further
    }

    /// This session and the former ones as one.
    fn together(&self, former: &Former) -> Former {
        let (bytes, skipped) = (self.bytes.load(Relaxed), self.skipped_bytes.load(Relaxed));
        let damaged = self.damaged_bytes.load(Relaxed);
        let resumed = self.resumed_bytes.load(Relaxed).saturating_sub(damaged);
        Former {
            done_bytes: former.done_bytes.max(bytes + skipped),
            files: former.files.max(self.files.load(Relaxed)),
            moved_bytes: former.moved_bytes + bytes,
            // What the former sessions may have brought is not counted as found.
            already_bytes: former
                .already_bytes
                .max(resumed.saturating_sub(former.raw_bytes)),
            raw_bytes: former.raw_bytes,
            checked_bytes: former
                .checked_bytes
                .saturating_add(self.checked_bytes.load(Relaxed)),
        }
    }

    fn lock_former(&self) -> MutexGuard<'_, Former> {
        self.former.lock().expect("no panic while held")
    }

    pub fn snapshot(&self) -> Snapshot {
        const PHASES: [Phase; 6] = [
            Phase::Connecting,
            Phase::Reconnecting,
            Phase::Scanning,
            Phase::Copying,
            Phase::Flushing,
            Phase::Done,
        ];
        // Held, so that no counter is read on the other side of a change of sessions.
        let former = self.lock_former();
        let together = self.together(&former);
        Snapshot {
            phase: PHASES[usize::from(self.phase.load(Relaxed)).min(PHASES.len() - 1)],
            totals: self
                .totals_known
                .load(Relaxed)
                .then(|| *self.totals.lock().expect("no panic while held")),
            scanned_files: self.scanned_files.load(Relaxed),
            scanned_bytes: self.scanned_bytes.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            skipped_bytes: self.skipped_bytes.load(Relaxed),
            done_bytes: together.done_bytes,
            again_bytes: self.again_bytes.load(Relaxed),
            moved_bytes: together.moved_bytes,
            already_bytes: together.already_bytes,
            unsent_bytes: self
                .skipped_bytes
                .load(Relaxed)
                .saturating_sub(self.resumed_bytes.load(Relaxed)),
            checked_bytes: together.checked_bytes,
            damaged_bytes: self.damaged_bytes.load(Relaxed),
            wire_bytes: self.wire_bytes.load(Relaxed),
            sent_again_bytes: self.sent_again_bytes.load(Relaxed),
            raw_bytes: self.raw_bytes.load(Relaxed),
            files: together.files,
            failed: self.failed.load(Relaxed),
            special: self.special.load(Relaxed),
            unlinked: self.unlinked.load(Relaxed),
            streams: self.streams.load(Relaxed),
            logins_again: self.logins.load(Relaxed).saturating_sub(1),
            codec_chunks: std::array::from_fn(|codec| self.codec_chunks[codec].load(Relaxed)),
            names: self
                .names
                .lock()
                .expect("no panic while held")
                .iter()
                .map(|(_, name)| name.clone())
                .collect(),
            copies: None,
            logged_in: self.logged_in.get().copied(),
            began: self.began.get().copied(),
        }
    }
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
    fn what_a_former_session_brought_counts_once_and_was_not_there_already() {
        let progress = Progress::default();
        find(&progress, 1000);
        bring(&progress, 300);
        // On its way when the connection was lost, and perhaps there.
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

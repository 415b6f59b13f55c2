//! What has been done so far: counters that stages add to and only `ui` reads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::manifest::Totals;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Connecting,
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
    /// Bytes given to sockets, headers and tags included.
    wire_bytes: AtomicU64,
    /// Bytes of content that those stood for.
    raw_bytes: AtomicU64,
    files: AtomicU64,
    failed: AtomicU64,
    streams: AtomicU32,
    /// Indexed by codec number.
    codec_chunks: [AtomicU64; 8],
    names: Mutex<Vec<(u64, String)>>,
}

/// One reading of all counters.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub phase: Phase,
    pub totals: Option<Totals>,
    pub scanned_files: u64,
    pub scanned_bytes: u64,
    pub bytes: u64,
    pub skipped_bytes: u64,
    pub wire_bytes: u64,
    pub raw_bytes: u64,
    pub files: u64,
    pub failed: u64,
    pub streams: u32,
    pub codec_chunks: [u64; 8],
    /// Names of files that are being copied, printable, oldest first.
    pub names: Vec<String>,
}

impl Progress {
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
    }

    pub fn set_totals(&self, totals: Totals) {
        *self.totals.lock().expect("no panic while held") = totals;
        self.totals_known.store(true, Relaxed);
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

    pub fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub fn add_skipped(&self, bytes: u64) {
        self.skipped_bytes.fetch_add(bytes, Relaxed);
    }

    /// A frame of `wire` bytes in `codec` that stands for `raw` bytes was sent or received.
    pub fn add_frame(&self, codec: u8, raw: u64, wire: u64) {
        self.wire_bytes.fetch_add(wire, Relaxed);
        self.raw_bytes.fetch_add(raw, Relaxed);
        if let Some(count) = self.codec_chunks.get(usize::from(codec)) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub fn add_files(&self, count: u64) {
        self.files.fetch_add(count, Relaxed);
    }

    pub fn add_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub fn set_streams(&self, count: u32) {
        self.streams.store(count, Relaxed);
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

    pub fn snapshot(&self) -> Snapshot {
        const PHASES: [Phase; 5] = [
            Phase::Connecting,
            Phase::Scanning,
            Phase::Copying,
            Phase::Flushing,
            Phase::Done,
        ];
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
            wire_bytes: self.wire_bytes.load(Relaxed),
            raw_bytes: self.raw_bytes.load(Relaxed),
            files: self.files.load(Relaxed),
            failed: self.failed.load(Relaxed),
            streams: self.streams.load(Relaxed),
            codec_chunks: std::array::from_fn(|codec| self.codec_chunks[codec].load(Relaxed)),
            names: self
                .names
                .lock()
                .expect("no panic while held")
                .iter()
                .map(|(_, name)| name.clone())
                .collect(),
        }
    }
}

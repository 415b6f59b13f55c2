//! Copies whose receiver is killed in the middle, for a later resume.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use fastcp::journal::record::RecordBody;
use rustix::process::{Signal, kill_process};

use super::procs::{self, until};
use super::run::Running;
use super::{Case, MIB, Way, journals};

/// Bytes of the copied data.
pub(crate) const SIZE: usize = 24 * MIB;

/// Options that make a copy slow enough to interrupt it in the middle.
pub(crate) const SLOW: [&str; 8] = [
    "-l",
    "40000",
    "--memory",
    "16Mi",
    "--compress",
    "none",
    "--retries",
    "0",
];

/// Waits until a new source is so old that its times show whether it has changed.
pub(crate) fn aged() {
    std::thread::sleep(Duration::from_millis(3200));
}

/// True if this journal records a third of the copy.
pub(crate) fn has_third(journal: &Path) -> bool {
    let content = std::fs::read(journal).unwrap_or_default();
    let len = |body: &RecordBody| match body {
        RecordBody::Chunk(_, chunk) if chunk.digest.is_some() => chunk.len as usize,
        _ => 0,
    };
    let bodies = journals::bodies(journal, &content);
    bodies.iter().map(len).sum::<usize>() > SIZE / 3
}

/// Bytes on disk of all files below `dir`; names may change during the walk.
pub(crate) fn bytes_on_disk(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_on_disk(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}

/// Kills the receiver, and waits until the other end has ended too.
#[track_caller]
pub(crate) fn kill_receiver(case: &Case, run: Running) {
    let receiver = match case.way {
        Way::Push | Way::LocalPush => case.servers().pop().expect("a server runs").pid,
        _ => run.pid(),
    };
    kill_process(receiver, Signal::KILL).expect("kill the receiver");
    let done = run.wait();
    assert_ne!(done.code, Some(0), "it was killed: {done}");
    until("the other end is gone", || {
        procs::marked(case.mark()).is_empty().then_some(())
    });
}

//! A journal read back: what former sessions have done, as far as its records are whole.
//!
//! In memory are 32 bytes per finished file or directory and a little more per file that was begun;
//! chunks are counted here and read again when their file is gone on with.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use super::record::{self, Body, Hash, Key, LEN, Record, Session};

/// Records that are read at a time.
const STEP: usize = 1024;

/// A big file that was begun and not finished.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// By which its chunks know it.
    pub number: u32,
    pub file: record::File,
    /// Chunks that are recorded, and their bytes.
    pub chunks: u64,
    pub bytes: u64,
    /// Records between which the chunks are, the last included.
    pub(super) first: u64,
    pub(super) last: u64,
}

#[derive(Default)]
pub(super) struct Past {
    pub begun: HashMap<Hash, Begun>,
    paths: HashMap<u32, Hash>,
    /// Which record tells of a file.
    pub finished: HashMap<Hash, u64>,
    /// Likewise of a directory.
    pub directories: HashMap<Hash, u64>,
    /// Records before this one are on the disk,
    pub synced: u64,
    /// and those from this one on were written by this boot and to this mount.
    pub since_mount: u64,
    pub last: Option<Session>,
    /// No file has this number or a higher one.
    pub next: u32,
    /// Whole records from the start, header included.
    pub records: u64,
}

/// Which records' content is certain to be on the disk, or in this mount's cache.
#[derive(Clone, Copy)]
pub(super) struct Certainty {
    synced: u64,
    since_mount: u64,
}

impl Certainty {
    pub fn covers(self, index: u64) -> bool {
        index < self.synced || index >= self.since_mount
    }
}

impl Past {
    /// Reads until the first record that is not whole; `own` is who reads.
    pub fn read(file: &File, key: &Key, own: &Session) -> Past {
        let mut past = Past {
            records: 1,
            since_mount: u64::MAX,
            ..Past::default()
        };
        // What cannot be read is not there.
        let _ = records(file, key, 1..u64::MAX, |index, body| {
            past.records = index + 1;
            past.take(index, body, own);
            ControlFlow::Continue(())
        });
        past
    }

    fn take(&mut self, index: u64, body: Body, own: &Session) {
        match body {
            Body::Session(session) => {
                self.since_mount = match session.is_of_mount(own) {
                    true => self.since_mount.min(index),
                    false => u64::MAX,
                };
                self.last = Some(session);
            }
            Body::File(number, file) => {
                self.next = self.next.max(number.saturating_add(1));
                let begun = Begun {
                    number,
                    file,
                    chunks: 0,
                    bytes: 0,
                    first: index,
                    last: index,
                };
                self.forget(&file.path);
                self.finished.remove(&file.path);
                self.begun.insert(file.path, begun);
                self.paths.insert(number, file.path);
            }
            Body::Chunk(number, chunk) => {
                let begun = self
                    .paths
                    .get(&number)
                    .and_then(|path| self.begun.get_mut(path));
                if let Some(begun) = begun {
                    begun.chunks += 1;
                    begun.bytes = begun.bytes.saturating_add(chunk.len).min(begun.file.size);
                    begun.last = index;
                }
            }
            Body::Finished(finished) => {
                self.forget(&finished.path);
                self.finished.insert(finished.path, index);
            }
            Body::Synced(position) => self.synced = (position / LEN as u64).min(index),
            Body::Directory(directory) => {
                self.directories.insert(directory.path, index);
            }
            Body::Dropped(number) => {
                if let Some(path) = self.paths.get(&number).copied() {
                    self.forget(&path);
                }
            }
        }
    }

    /// Of records of files that are on the journal's own disk or not.
    pub fn certainty(&self, is_here: bool) -> Certainty {
        match is_here {
            true => Certainty {
                synced: self.synced,
                since_mount: self.since_mount,
            },
            // A sync may not have reached it, and it may have been mounted anew.
            false => Certainty {
                synced: 0,
                since_mount: u64::MAX,
            },
        }
    }

    fn forget(&mut self, path: &Hash) {
        if let Some(begun) = self.begun.remove(path) {
            self.paths.remove(&begun.number);
        }
    }
}

/// Reads `range` of a journal's records up to the first that is not whole, or until told to stop.
pub(super) fn records(
    file: &File,
    key: &Key,
    range: std::ops::Range<u64>,
    mut each: impl FnMut(u64, Body) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut block = vec![0; STEP * LEN];
    let mut index = range.start;
    while index < range.end {
        let wanted = (range.end - index).min(STEP as u64) as usize * LEN;
        let got = read_full(file, &mut block[..wanted], index * LEN as u64)?;
        for record in block[..got].chunks_exact(LEN) {
            let record: &Record = record.try_into().expect("a chunk of this length");
            let Some(body) = Body::decode(record, key) else {
                return Ok(());
            };
            if each(index, body).is_break() {
                return Ok(());
            }
            index += 1;
        }
        if got < wanted {
            return Ok(());
        }
    }
    Ok(())
}

fn read_full(file: &File, block: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < block.len() {
        match file.read_at(&mut block[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(len) => got += len,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(got)
}

/// The key, if the file begins as a journal of this version does.
pub(super) fn key(file: &File) -> Option<Key> {
    let mut header = [0; LEN];
    file.read_exact_at(&mut header, 0).ok()?;
    Key::read(&header)
}

/// Who wrote last, as far as the journal tells.
pub(super) fn last_session(file: &File) -> Option<Session> {
    let mut last = None;
    let key = key(file)?;
    // What cannot be read is not there.
    let _ = records(file, &key, 1..u64::MAX, |_, body| {
        if let Body::Session(session) = body {
            last = Some(session);
        }
        ControlFlow::Continue(())
    });
    last
}

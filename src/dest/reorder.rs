//! A buffer that puts the chunks of a pipe back in order. They arrive in any order, on any thread.
//! The thread that brings the next chunk writes it and all that follow without a gap; other threads
//! leave theirs and return. A chunk counts as written, and is acknowledged, when its write has
//! returned.
//!
//! The window limits how many chunks wait. An honest sender reads no chunk that is further than the
//! window ahead of the oldest unacknowledged one, so a chunk beyond it breaks the protocol.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::{PipeOutput, close};
use crate::chunk::{ChunkKind, VerifiedChunk};
use crate::error::{Error, Kind, Result, Side};

/// Source of the bytes of zero chunks.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// State of a chunk after [`Reorder::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It was taken: it is written, or will be as soon as the chunks before it are.
    Taken,
    /// It is a duplicate of a chunk that is not written yet, whose acknowledgement will follow.
    Waiting,
    /// It is a duplicate of a written chunk, to be acknowledged again.
    Written,
}

pub struct Reorder {
    /// Most chunks that may wait at once.
    window: usize,
    state: Mutex<ReorderState>,
}

struct ReorderState {
    /// By offset; none begins before `next`.
    waiting: BTreeMap<u64, VerifiedChunk>,
    /// Bytes from the start that a thread has written or is writing.
    next: u64,
    /// Of these, bytes whose write has returned.
    written: u64,
    turn: Turn,
    /// A second handle whose close reports write errors, and its path for the message.
    second: Option<(OwnedFd, PathBuf)>,
}

/// Which thread writes.
enum Turn {
    /// No thread writes. The thread that brings the next chunk becomes the writer.
    Free(PipeOutput),
    /// A thread is writing, and looks for the next chunk when it is done.
    Writing,
    Failed(Error),
    Finished,
}

impl Reorder {
    /// `window` is in chunks.
    ///
    /// # Errors
    /// As [`PipeOutput::second`].
    pub fn new(outlet: PipeOutput, window: usize) -> Result<Reorder> {
        let second = outlet.second()?;
        let second = second.map(|fd| (fd, outlet.path().to_owned()));
        Ok(Reorder {
            window,
            state: Mutex::new(ReorderState {
                second,
                waiting: BTreeMap::new(),
                next: 0,
                written: 0,
                turn: Turn::Free(outlet),
            }),
        })
    }

    /// Takes a chunk. If another thread is writing, this call returns at once. Otherwise it writes
    /// all chunks that are next in order, which may be none. It calls `on_written` with each of
    /// them, in order, on this thread and without holding a lock.
    ///
    /// # Errors
    /// The outlet's error, which every further call repeats. `Kind::Breach` for a chunk beyond the
    /// window or one that overlaps another.
    pub fn put(
        &self,
        chunk: VerifiedChunk,
        mut on_written: impl FnMut(&VerifiedChunk),
    ) -> Result<Put> {
        let mut outlet = {
            let mut state = self.state.lock();
            match state.take(chunk, self.window)? {
                Put::Taken => {}
                known => return Ok(known),
            }
            match state.become_writer() {
                Some(outlet) => outlet,
                None => return Ok(Put::Taken),
            }
        };
        while let Some((mut writer, chunk)) = self.next_or_leave(outlet) {
            if let Err(error) = write(&mut writer, &chunk) {
                self.state.lock().fail(error.clone());
                return Err(error);
            }
            self.state.lock().written += len_of(&chunk);
            on_written(&chunk);
            outlet = writer;
        }
        Ok(Put::Taken)
    }

    /// Closes the outlet, so that the consumer sees the end; on stdout it sees that only when this
    /// process exits. Call this after the last `on_written`; a second call does nothing.
    ///
    /// # Errors
    /// The outlet's earlier error; `Kind::Write` if the close reports one; `Kind::Lost` unless
    /// exactly `length` bytes were written.
    pub fn finish(&self, length: u64) -> Result<()> {
        let mut state = self.state.lock();
        match &state.turn {
            Turn::Failed(error) => Err(error.clone()),
            Turn::Finished => Ok(()),
            Turn::Free(_) | Turn::Writing => {
                if state.written != length || !state.waiting.is_empty() {
                    let message = format!("only {} of {length} bytes arrived", state.written);
                    return Err(Error::new(Kind::Lost, Side::Dest, message));
                }
                // A thread that is still in `put` drops the outlet when it returns.
                state.turn = Turn::Finished;
                let second = state.second.take();
                drop(state);
                second.map_or(Ok(()), |(fd, path)| {
                    let (kind, side) = (Kind::Write, Side::Dest);
                    let closed = close(fd);
                    closed.map_err(|cause| Error::io(kind, side, path, "cannot write", cause))
                })
            }
        }
    }

    /// The next chunk to write. If it is not here yet, the outlet becomes free under the same lock,
    /// so that no chunk is left behind between two threads.
    fn next_or_leave(&self, outlet: PipeOutput) -> Option<(PipeOutput, VerifiedChunk)> {
        let mut state = self.state.lock();
        let next = state.next;
        if let Some(chunk) = state.waiting.remove(&next) {
            state.next += len_of(&chunk);
            return Some((outlet, chunk));
        }
        if matches!(state.turn, Turn::Writing) {
            state.turn = Turn::Free(outlet);
        }
        None
    }
}

impl ReorderState {
    fn take(&mut self, chunk: VerifiedChunk, window: usize) -> Result<Put> {
        match &self.turn {
            Turn::Failed(error) => return Err(error.clone()),
            Turn::Finished => return Ok(Put::Written),
            Turn::Free(_) | Turn::Writing => {}
        }
        let (start, len) = (chunk.place().offset, len_of(&chunk));
        let Some(end) = start.checked_add(len).filter(|_| len > 0) else {
            return Err(breach("a chunk of an invalid length"));
        };
        if end <= self.written {
            return Ok(Put::Written);
        }
        if end <= self.next {
            return Ok(Put::Waiting);
        }
        if let Some(same) = self.waiting.get(&start)
            && len_of(same) == len
        {
            return Ok(Put::Waiting);
        }
        let before = self.waiting.range(..end).next_back();
        if start < self.next || before.is_some_and(|(at, chunk)| at + len_of(chunk) > start) {
            return Err(breach("overlapping chunks"));
        }
        if self.waiting.len() >= window {
            return Err(breach("more chunks than the window has room for"));
        }
        self.waiting.insert(start, chunk);
        Ok(Put::Taken)
    }

    fn become_writer(&mut self) -> Option<PipeOutput> {
        if !self.waiting.contains_key(&self.next) {
            return None;
        }
        match std::mem::replace(&mut self.turn, Turn::Writing) {
            Turn::Free(outlet) => Some(outlet),
            other => {
                self.turn = other;
                None
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.waiting.clear();
        self.turn = Turn::Failed(error);
    }
}

fn write(outlet: &mut PipeOutput, chunk: &VerifiedChunk) -> Result<()> {
    if chunk.place().kind != ChunkKind::Zeros {
        return outlet.write_all(chunk.data());
    }
    let mut rest = len_of(chunk);
    while rest > 0 {
        let step = rest.min(ZEROS.len() as u64);
        outlet.write_all(&ZEROS[..step as usize])?;
        rest -= step;
    }
    Ok(())
}

/// Length in the output; a chunk of zeros carries no data.
fn len_of(chunk: &VerifiedChunk) -> u64 {
    u64::from(chunk.place().raw_len)
}

fn breach(what: &str) -> Error {
    Error::breach(Side::Dest, "the sender", what)
}

#[cfg(test)]
mod tests;

//! Puts the chunks of a stream back in order. They come in any order, on any thread: the one that
//! brings the next chunk writes it and all that follow it without a gap, the others leave theirs
//! and go. A chunk counts as written when its write has returned, and then it is acknowledged.
//!
//! The window bounds what waits: the sender reads no chunk that is further ahead of the oldest
//! one without an acknowledgement, so whoever does breaks the protocol.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use super::{Outlet, close};
use crate::chunk::{ChunkKind, VerifiedChunk};
use crate::error::{Error, Kind, Result, Side};

/// Zeros are written from here.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It was taken: written by now, or as soon as those before it are.
    Taken,
    /// It is here already but not written: its acknowledgement is to come.
    Waiting,
    /// It was written before and is to be acknowledged again.
    Written,
}

pub struct Ordered {
    /// Chunks that may be here at once.
    window: usize,
    state: Mutex<State>,
}

struct State {
    /// By offset; all of them after `next`.
    waiting: BTreeMap<u64, VerifiedChunk>,
    /// Bytes from the start that a thread has taken to write them.
    next: u64,
    /// Of these, bytes whose write has returned.
    written: u64,
    turn: Turn,
    /// Tells of errors when it is closed, and the path for the message.
    second: Option<(OwnedFd, PathBuf)>,
}

/// Whose turn it is.
enum Turn {
    /// Whoever brings the next chunk takes it and becomes the writer.
    Free(Outlet),
    /// A thread is writing and looks for the next chunk when it is done.
    Writing,
    Failed(Error),
    Finished,
}

impl Ordered {
    /// `window` is in chunks.
    pub fn new(outlet: Outlet, window: usize) -> Ordered {
        let second = outlet.second().map(|fd| (fd, outlet.path().to_owned()));
        Ordered {
            window,
            state: Mutex::new(State {
                second,
                waiting: BTreeMap::new(),
                next: 0,
                written: 0,
                turn: Turn::Free(outlet),
            }),
        }
    }

    /// Takes a chunk. `on_written` is called on this thread, in order and without a lock, with
    /// every chunk that this call has written, which may be none or many; where another thread is
    /// writing already it returns at once.
    ///
    /// # Errors
    /// What the outlet says, and then every further call says it too. `Kind::Breach` for a chunk
    /// beyond the window or one that overlaps another.
    pub fn put(
        &self,
        chunk: VerifiedChunk,
        mut on_written: impl FnMut(&VerifiedChunk),
    ) -> Result<Put> {
        let mut outlet = {
            let mut state = self.lock();
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
                self.lock().fail(error.clone());
                return Err(error);
            }
            self.lock().written += len_of(&chunk);
            on_written(&chunk);
            outlet = writer;
        }
        Ok(Put::Taken)
    }

    /// Bytes from the start whose write has returned.
    pub fn written(&self) -> u64 {
        self.lock().written
    }

    /// Chunks that wait for one before them.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Closes the outlet, so that the consumer sees the end (stdout, when this process ends). To
    /// be called when the last chunk was given to `on_written`; a second call does nothing.
    ///
    /// # Errors
    /// What the outlet said before; `Kind::Lost` where `length` is not what was written.
    pub fn finish(&self, length: u64) -> Result<()> {
        let mut state = self.lock();
        match &state.turn {
            Turn::Failed(error) => Err(error.clone()),
            Turn::Finished => Ok(()),
            Turn::Free(_) | Turn::Writing => {
                if state.written != length || !state.waiting.is_empty() {
                    let message = format!("{} of {length} bytes have come", state.written);
                    return Err(Error::new(Kind::Lost, Side::Dest, message));
                }
                // Where a thread is still writing, it lets go of the outlet when it leaves.
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

    /// The next chunk to write; or none, and then the outlet is free for another thread in the
    /// same moment, so that no chunk is left behind by both.
    fn next_or_leave(&self, outlet: Outlet) -> Option<(Outlet, VerifiedChunk)> {
        let mut state = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

impl State {
    fn take(&mut self, chunk: VerifiedChunk, window: usize) -> Result<Put> {
        match &self.turn {
            Turn::Failed(error) => return Err(error.clone()),
            Turn::Finished => return Ok(Put::Written),
            Turn::Free(_) | Turn::Writing => {}
        }
        let (start, len) = (chunk.place().offset, len_of(&chunk));
        let Some(end) = start.checked_add(len).filter(|_| len > 0) else {
            return Err(breach("a chunk that no stream has"));
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
            return Err(breach("chunks that overlap"));
        }
        if self.waiting.len() >= window {
            return Err(breach("more chunks ahead than the window has room for"));
        }
        self.waiting.insert(start, chunk);
        Ok(Put::Taken)
    }

    fn become_writer(&mut self) -> Option<Outlet> {
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

fn write(outlet: &mut Outlet, chunk: &VerifiedChunk) -> Result<()> {
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

/// Bytes of the stream; zeros bring none with them.
fn len_of(chunk: &VerifiedChunk) -> u64 {
    u64::from(chunk.place().raw_len)
}

fn breach(what: &str) -> Error {
    let message = format!("the sender broke the protocol: {what}");
    Error::new(Kind::Breach, Side::Dest, message)
}

#[cfg(test)]
mod tests;

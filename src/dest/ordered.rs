//! Puts the chunks of a stream back in order. They come in any order, on any thread: the one that
//! brings the next chunk writes it and all that follow it without a gap, the others leave theirs
//! and go. A chunk counts as written when its write has returned, and then it is acknowledged.
//!
//! The window bounds what waits: the sender reads no chunk that is further ahead of the oldest
//! one without an acknowledgement, so whoever does breaks the protocol.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::Outlet;
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
        Ordered {
            window,
            state: Mutex::new(State {
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
    /// What the outlet says, and then every further call says it too. `Kind::Lost` for a chunk
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
                Ok(())
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
    Error::new(Kind::Lost, Side::Dest, message)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;

    use proptest::prelude::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;
    use crate::chunk::{Buffer, Chunk, Place};
    use crate::digest::{NONE, of_range};
    use crate::pipe::Stop;

    const C: usize = 1024;

    fn chunk(data: &[u8], offset: usize) -> VerifiedChunk {
        let mut buffer = Buffer::loose(C);
        buffer.room()[..data.len()].copy_from_slice(data);
        buffer.set_len(data.len());
        let place = Place {
            kind: ChunkKind::Range,
            chunk: 0,
            entry: 1,
            offset: offset as u64,
            raw_len: data.len() as u32,
        };
        let digest = of_range(data, offset as u64, false);
        let verified = Chunk { place, buffer }.verify(digest, false);
        verified.unwrap_or_else(|_| panic!("the digest is right"))
    }

    fn zeros(offset: usize, len: u32) -> VerifiedChunk {
        let place = Place {
            kind: ChunkKind::Zeros,
            chunk: 0,
            entry: 1,
            offset: offset as u64,
            raw_len: len,
        };
        let buffer = Buffer::loose(C);
        let verified = Chunk { place, buffer }.verify(NONE, false);
        verified.unwrap_or_else(|_| panic!("no bytes came"))
    }

    fn pipe(window: usize) -> (Ordered, std::fs::File) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let outlet = Outlet::own(write, "-", Stop::new()).unwrap();
        (Ordered::new(outlet, window), read.into())
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n % 251) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn chunks_from_many_threads_leave_in_order(
            len in 1usize..100 * C,
            keys in proptest::collection::vec(any::<u16>(), 100),
        ) {
            let data = bytes(len);
            let mut order: Vec<usize> = (0..len).step_by(C).collect();
            order.sort_by_key(|at| keys[at / C % 100]);
            let (ordered, mut from) = pipe(100);
            let (send, acks) = mpsc::channel();
            let mut read = Vec::new();
            std::thread::scope(|scope| {
                let reading = scope.spawn(|| from.read_to_end(&mut read));
                let putting = (0..3).map(|thread| {
                    let (order, ordered, data, send) = (&order, &ordered, &data, send.clone());
                    scope.spawn(move || for at in order.iter().skip(thread).step_by(3) {
                        let piece = chunk(&data[*at..(at + C).min(data.len())], *at);
                        ordered.put(piece, |chunk| send.send(chunk.place().offset).unwrap()).unwrap();
                    })
                });
                putting.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
                ordered.finish(data.len() as u64).unwrap();
                reading.join().unwrap().unwrap();
            });
            drop(send);
            let acks: Vec<_> = acks.into_iter().collect();
            prop_assert!(acks.is_sorted() && acks.len() == order.len());
            prop_assert!(read == data);
        }
    }

    #[test]
    fn while_one_thread_waits_for_the_consumer_others_leave_theirs_and_go() {
        const N: usize = 1500;
        let data = bytes(N * C);
        let (ordered, mut from) = pipe(N);
        std::thread::scope(|scope| {
            let put = |n: usize| ordered.put(chunk(&data[n * C..(n + 1) * C], n * C), |_| {});
            // More than the pipe holds, so that the write of the first thread blocks.
            for n in 1..N / 2 {
                assert_eq!(put(n).unwrap(), Put::Taken);
            }
            assert_eq!((ordered.written(), ordered.waiting()), (0, N / 2 - 1));
            let blocked = scope.spawn(move || put(0).unwrap());
            for n in N / 2..N {
                assert_eq!(put(n).unwrap(), Put::Taken);
            }
            assert!(!blocked.is_finished());
            assert!(ordered.written() < (N * C) as u64);
            let mut read = vec![0; N * C];
            from.read_exact(&mut read).unwrap();
            assert_eq!(blocked.join().unwrap(), Put::Taken);
            assert!(read == data);
            assert_eq!(put(5).unwrap(), Put::Written, "comes again");
        });
        ordered.finish((N * C) as u64).unwrap();
        assert_eq!(from.read(&mut [0]).unwrap(), 0, "the end");
    }

    #[test]
    fn zeros_that_travelled_as_a_number_leave_as_bytes() {
        let (ordered, mut from) = pipe(4);
        let mut read = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| from.read_to_end(&mut read).unwrap());
            ordered.put(zeros(0, 200_000), |_| {}).unwrap();
            ordered.put(chunk(b"end", 200_704), |_| {}).unwrap();
            assert_eq!(ordered.waiting(), 1);
            assert!(ordered.finish(200_000).is_err(), "one waits still");
            drop(ordered);
        });
        assert_eq!(read, vec![0; 200_000]);
    }

    #[test]
    fn what_no_honest_sender_sends_is_refused() {
        let (ordered, _from) = pipe(2);
        let data = bytes(C);
        let put = |offset| ordered.put(chunk(&data, offset), |_| {});
        assert_eq!(put(2 * C).unwrap(), Put::Taken);
        assert_eq!(put(2 * C).unwrap(), Put::Waiting);
        assert_eq!(
            ordered
                .put(chunk(&data[..9], 2 * C), |_| {})
                .unwrap_err()
                .kind,
            Kind::Lost
        );
        assert_eq!(
            ordered.put(zeros(C, 2000), |_| {}).unwrap_err().kind,
            Kind::Lost
        );
        assert_eq!(
            ordered.put(zeros(0, 0), |_| {}).unwrap_err().kind,
            Kind::Lost
        );
        put(4 * C).unwrap();
        let error = put(6 * C).unwrap_err();
        assert!(error.message.ends_with("than the window has room for"));
        assert_eq!(ordered.waiting(), 2);
    }

    #[test]
    fn after_a_failed_write_every_call_says_why() {
        let (ordered, from) = pipe(4);
        let data = bytes(C);
        ordered.put(chunk(&data, 0), |_| {}).unwrap();
        drop(from);
        let told = |error: Error| error.message;
        let message = "the consumer closed early, after 1024 bytes";
        assert_eq!(
            told(ordered.put(chunk(&data, C), |_| {}).unwrap_err()),
            message
        );
        assert_eq!(
            told(ordered.put(chunk(&data, 2 * C), |_| {}).unwrap_err()),
            message
        );
        assert_eq!(told(ordered.finish(C as u64).unwrap_err()), message);
        assert_eq!(ordered.waiting(), 0, "no buffer is kept");
    }
}

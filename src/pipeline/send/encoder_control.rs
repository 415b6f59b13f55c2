//! The tuner's decisions for the sender's workers: how to compress, and how many frames may wait
//! for a connection. The results are counted here for the tuner.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::algorithms::{Compress, Method};
use crate::chunk::{Chunk, EncodedChunk};
use crate::codec::{AUTO, Encoder};
use crate::digest::Digest;
use crate::locks::{OrderedMutex, place};
use crate::pipeline::worker_time::WorkerTime;
use crate::tuner::{Decision, MethodWork, QUEUE_MIN, RUNGS, SCOUT_EVERY, Sample, rung};

/// Frames that may wait before the first decision.
const FRAMES_AT_FIRST: usize = QUEUE_MIN as usize;

pub struct EncoderControl {
    state: OrderedMutex<EncodeState, { place::ENCODER_CONTROL }>,
    /// Signalled when the queue of frames may have room.
    room: Condvar,
    coded: Mutex<[MethodWork; RUNGS]>,
    frames: AtomicU64,
    raw_bytes: AtomicU64,
    wire_bytes: AtomicU64,
    pub worker_time: WorkerTime,
}

struct EncodeState {
    how: How,
    frames_max: usize,
    /// Frames that wait for a connection, at the last report.
    frames: usize,
    /// Workers that wait for room in the queue.
    waiting: u32,
    ended: bool,
}

/// How chunks are compressed.
#[derive(Clone, Copy, Debug)]
enum How {
    /// The user chose the method.
    Forced(Method),
    Chosen {
        method: Method,
        scout: Option<Method>,
        /// For chunks that would have to wait for a connection.
        spare: Option<Method>,
        /// Chunks since the scout was set.
        chunks: u64,
    },
}

/// How to compress one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Forced(Method),
    /// If a sample shows that it is worthwhile.
    Sampled(Method),
}

impl EncoderControl {
    /// If the user chose no method, starts with [`AUTO`] until the tuner decides.
    pub fn new(compress: Compress) -> EncoderControl {
        let how = match method(compress) {
            Some(forced) => How::Forced(forced),
            None => How::Chosen {
                method: method(AUTO).unwrap_or_default(),
                scout: None,
                spare: None,
                chunks: 0,
            },
        };
        EncoderControl {
            state: OrderedMutex::new(EncodeState {
                how,
                frames_max: FRAMES_AT_FIRST,
                frames: 0,
                waiting: 0,
                ended: false,
            }),
            room: Condvar::new(),
            coded: Mutex::default(),
            frames: AtomicU64::new(0),
            raw_bytes: AtomicU64::new(0),
            wire_bytes: AtomicU64::new(0),
            worker_time: WorkerTime::default(),
        }
    }

    /// Applies a decision. A method that the user chose stays.
    pub fn steer(&self, decision: &Decision) {
        let mut state = self.state.lock();
        state.frames_max = usize::from(decision.queue);
        if let How::Chosen {
            method,
            scout,
            spare,
            chunks,
        } = &mut state.how
        {
            (*method, *spare) = (decision.method, decision.spare);
            if *scout != decision.scout {
                (*scout, *chunks) = (decision.scout, 0);
            }
        }
        drop(state);
        self.room.notify_all();
    }

    /// The compression of the next chunk.
    pub fn next(&self) -> Compression {
        let state = &mut *self.state.lock();
        match &mut state.how {
            How::Forced(method) => Compression::Forced(*method),
            How::Chosen {
                method,
                scout,
                spare,
                chunks,
            } => {
                let is_scout = chunks.is_multiple_of(SCOUT_EVERY);
                let has_time = 2 * state.frames >= state.frames_max;
                *chunks += 1;
                let other = scout.filter(|_| is_scout).or(spare.filter(|_| has_time));
                Compression::Sampled(other.unwrap_or(*method))
            }
        }
    }

    /// Counts a chunk of `raw` bytes that became `made` bytes in `took`.
    pub fn coded(&self, compression: Compression, raw: usize, made: usize, took: Duration) {
        let (Compression::Forced(method) | Compression::Sampled(method)) = compression;
        let Some(rung) = rung(method) else {
            return;
        };
        let coded = &mut self.coded.lock()[rung];
        coded.offered_bytes += raw as u64;
        coded.made_bytes += made as u64;
        coded.busy += took;
    }

    /// Counts a frame of `wire` bytes, which stands for `raw` bytes, taken by a connection. `left`
    /// frames are waiting.
    pub fn taken(&self, raw: u64, wire: u64, left: usize) {
        self.frames.fetch_add(1, Relaxed);
        self.raw_bytes.fetch_add(raw, Relaxed);
        self.wire_bytes.fetch_add(wire, Relaxed);
        // Waiting workers wake when half of the queue is empty and fill it in one go. So they are
        // not woken for each frame.
        let mut state = self.state.lock();
        state.frames = left;
        let wakes = state.waiting > 0 && 2 * left <= state.frames_max;
        drop(state);
        if wakes {
            self.room.notify_all();
        }
    }

    /// Waits until fewer frames are `waiting` than allowed, then calls `push`. None once the copy
    /// ends.
    pub fn when_there_is_room<T>(
        &self,
        waiting: impl Fn() -> usize,
        push: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut state = self.state.lock();
        while !state.ended && waiting() >= state.frames_max {
            state.waiting += 1;
            state.wait(&self.room);
            state.waiting -= 1;
        }
        state.frames = waiting() + 1;
        (!state.ended).then(push)
    }

    /// Ends all waiting for room.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.room.notify_all();
    }

    /// Fills in the fields that are counted here.
    pub fn fill(&self, sample: &mut Sample) {
        let spent = self.worker_time.spent();
        sample.frames = self.frames.load(Relaxed);
        sample.raw_bytes = self.raw_bytes.load(Relaxed);
        sample.wire_bytes = self.wire_bytes.load(Relaxed);
        sample.codecs = *self.coded.lock();
        sample.workers_busy = spent.working;
        sample.encode_busy = spent.codec;
        sample.read_busy = spent.disk_alone;
    }
}

impl Compression {
    pub fn encode(self, encoder: &mut Encoder, chunk: Chunk, digest: Digest) -> EncodedChunk {
        match self {
            Compression::Forced(method) => encoder.encode(chunk, compress(method), digest),
            Compression::Sampled(method) => {
                encoder.encode_if_worthwhile(chunk, compress(method), digest)
            }
        }
    }
}

/// The encoder's name for a method.
pub fn compress(method: Method) -> Compress {
    match method {
        Method::None => Compress::None,
        Method::Lz4 => Compress::Lz4,
        Method::Zstd(level) => Compress::Zstd(level),
        Method::Gzip(level) => Compress::Gzip(level),
        Method::Lzma(level) => Compress::Lzma(level),
    }
}

/// The tuner's name for a method; None if the tuner is to choose.
pub fn method(compress: Compress) -> Option<Method> {
    match compress {
        Compress::Auto => None,
        Compress::None => Some(Method::None),
        Compress::Lz4 => Some(Method::Lz4),
        Compress::Zstd(level) => Some(Method::Zstd(level)),
        Compress::Gzip(level) => Some(Method::Gzip(level)),
        Compress::Lzma(level) => Some(Method::Lzma(level)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::tuner::{Congestion, Forced, Start, Tuner};

    /// A tuner's first decision on a near link, with a scout.
    fn decision() -> Decision {
        let start = Start {
            round_trip: Duration::from_millis(1),
            is_guess: false,
            processors_here: 2,
            processors_there: 2,
            slots: 200,
            strongest: Method::Zstd(9),
            may_lzma: true,
            congestion: Congestion::System,
            may_bbr: false,
            nice: false,
            polite: false,
            remembered: None,
            forced: Forced::default(),
        };
        Tuner::new(start).1
    }

    #[test]
    fn every_eighth_chunk_goes_by_the_scout_and_what_was_forced_stays() {
        let (control, decision) = (EncoderControl::new(Compress::Auto), decision());
        assert_eq!(control.next(), Compression::Sampled(Method::Zstd(1)));
        control.steer(&decision);
        let scout = decision.scout.expect("one is sent out at first");
        for chunk in 0..20 {
            let method = if chunk % 8 == 0 {
                scout
            } else {
                decision.method
            };
            assert_eq!(control.next(), Compression::Sampled(method), "{chunk}");
        }
        let forced = EncoderControl::new(Compress::Gzip(1));
        forced.steer(&decision);
        assert_eq!(forced.next(), Compression::Forced(Method::Gzip(1)));
    }

    #[test]
    fn what_would_wait_for_a_stream_anyhow_goes_by_the_spare() {
        let (control, decision) = (EncoderControl::new(Compress::Auto), decision());
        control.steer(&decision);
        let spare = decision.spare.expect("the link is not known at first");
        assert_eq!(control.next(), Compression::Sampled(spare), "the scout");
        let frames_max = usize::from(decision.queue);
        for (left, method) in [(frames_max / 2, spare), (0, decision.method)] {
            control.taken(1, 1, left);
            assert_eq!(control.next(), Compression::Sampled(method), "{left} left");
        }
    }

    #[test]
    fn workers_wait_for_room_until_half_is_taken_or_all_ends() {
        let control = Arc::new(EncoderControl::new(Compress::None));
        let waiting = Arc::new(AtomicUsize::new(FRAMES_AT_FIRST));
        let worker = |control: &Arc<EncoderControl>| {
            let (control, waiting) = (control.clone(), waiting.clone());
            std::thread::spawn(move || {
                let push = || waiting.fetch_add(1, Relaxed);
                control.when_there_is_room(|| waiting.load(Relaxed), push)
            })
        };
        let filling = worker(&control);
        for left in (0..FRAMES_AT_FIRST).rev() {
            waiting.store(left, Relaxed);
            control.taken(1, 1, left);
        }
        assert!(filling.join().expect("no panic").is_some());
        waiting.store(FRAMES_AT_FIRST, Relaxed);
        let shutdown = worker(&control);
        control.end();
        assert_eq!(shutdown.join().expect("no panic"), None);
    }
}

//! A pipe that several copies share. One thread reads it, a little ahead of the slowest copy,
//! because bytes cannot be read again. All wait for the slowest copy, unless it takes nothing for
//! too long and no data of it arrives either. That copy then fails: the bytes that it has missed
//! are gone.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::pipe::Filled;
use super::pipe_spec::{PipeLimits, PipeSpec};
use crate::chunk::Buffer;
use crate::error::{Error, Kind, Result, Side};
use crate::pipe::{STEP, Stop, stopped};
use crate::threads;

/// Chunks that are read but not yet taken by all copies.
const AHEAD_MAX: usize = 8;

/// How much longer the others wait for a copy that has not begun: it may be asking for a password.
const BEGIN_MAX: Duration = Duration::from_secs(300);

/// Ends the copy of this number.
type EndCopy = Box<dyn Fn(usize, Error) + Send + Sync>;

pub struct Broadcast {
    pipe_spec: PipeSpec,
    chunk_size: usize,
    /// The length before the first byte was read.
    length: Option<u64>,
    /// How long the others wait for a copy that takes nothing, and of which nothing arrives.
    patience: Duration,
    state: Mutex<BroadcastState>,
    changed: Condvar,
    /// Ends a copy that was left behind before it had begun.
    end_copy: EndCopy,
    /// Set when no copy wants any more of it.
    stop: Stop,
}

struct BroadcastState {
    begun: bool,
    chunks: VecDeque<(Arc<[u8]>, Filled)>,
    /// The number of the first chunk in `chunks`.
    first: u64,
    readers: Vec<BroadcastReader>,
    /// Set when the pipe is at its end or has failed.
    end: Option<Result<()>>,
}

#[derive(Clone, Copy)]
struct BroadcastReader {
    /// The number of the chunk that it takes next.
    at: u64,
    /// Since when that chunk could be taken, or when data of the copy has arrived last.
    since: Instant,
    has_begun: bool,
    going: Going,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Going {
    On,
    Gone,
    /// It took nothing, and nothing arrived, for this long, so the others no longer wait for it.
    Late(Duration),
}

/// One copy's end of a broadcast.
pub struct BroadcastTap {
    broadcast: Arc<Broadcast>,
    reader: usize,
    stop: Stop,
}

impl Broadcast {
    /// Makes a broadcast for `copies` copies. `end_copy` ends one that has not begun, and that the
    /// others no longer wait for: it may be waiting to log in again.
    pub fn new(
        pipe_spec: PipeSpec,
        chunk_size: usize,
        copies: usize,
        patience: Duration,
        end_copy: impl Fn(usize, Error) + Send + Sync + 'static,
    ) -> Broadcast {
        let reader = BroadcastReader {
            at: 0,
            since: Instant::now(),
            has_begun: false,
            going: Going::On,
        };
        Broadcast {
            length: pipe_spec.length(),
            pipe_spec,
            chunk_size,
            patience,
            state: Mutex::new(BroadcastState {
                begun: false,
                chunks: VecDeque::new(),
                first: 0,
                readers: vec![reader; copies],
                end: None,
            }),
            changed: Condvar::new(),
            end_copy: Box::new(end_copy),
            stop: Stop::new(),
        }
    }

    pub fn pipe_spec(&self) -> &PipeSpec {
        &self.pipe_spec
    }

    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// This copy takes no more chunks.
    pub fn leave(&self, reader: usize) {
        let mut state = self.state.lock();
        state.readers[reader].going = Going::Gone;
        let is_over = state
            .readers
            .iter()
            .all(|reader| reader.going == Going::Gone);
        drop(state);
        if is_over {
            self.stop.set();
        }
        self.changed.notify_all();
    }

    /// Data of this copy has arrived at its destination, if only a part of a chunk: on a slow link
    /// it may be long before the copy has room for another chunk.
    pub fn arrives(&self, reader: usize) {
        self.state.lock().readers[reader].since = Instant::now();
    }

    /// The end of one copy; setting `stop` ends its waits. The first call starts to read the
    /// pipe, and its `on_line` gets the lines that the command writes to stderr.
    pub fn tap(
        self: &Arc<Broadcast>,
        reader: usize,
        limits: PipeLimits,
        stop: &Stop,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> BroadcastTap {
        let mut state = self.state.lock();
        let was_begun = std::mem::replace(&mut state.begun, true);
        let own = &mut state.readers[reader];
        (own.has_begun, own.since) = (true, Instant::now());
        drop(state);
        if !was_begun {
            let broadcast = self.clone();
            let reading = threads::start(move || {
                let end = broadcast.read(limits, on_line);
                broadcast.state.lock().end = Some(end);
                broadcast.changed.notify_all();
            });
            if let Err(refused) = reading {
                self.state.lock().end = Some(Err(refused));
                self.changed.notify_all();
            }
        }
        BroadcastTap {
            broadcast: self.clone(),
            reader,
            stop: stop.clone(),
        }
    }

    fn read(&self, limits: PipeLimits, on_line: impl FnMut(&[u8]) + Send + 'static) -> Result<()> {
        let mut reader = self.pipe_spec.open(limits, &self.stop, on_line)?;
        let mut buffer = Buffer::loose(self.chunk_size);
        let mut into = 0;
        loop {
            self.wait_room()?;
            // A short chunk (the producer paused) is followed by the rest of that chunk only.
            let filled = reader.fill(&mut buffer, self.chunk_size - into)?;
            into = (into + filled.len) % self.chunk_size;
            let mut state = self.state.lock();
            let next = state.first + state.chunks.len() as u64;
            for reader in state.readers.iter_mut().filter(|it| it.at == next) {
                reader.since = Instant::now();
            }
            state.chunks.push_back((buffer.data().into(), filled));
            drop(state);
            self.changed.notify_all();
            if filled.end {
                return reader.finish(&self.stop);
            }
        }
    }

    /// Waits until another chunk may be read. Leaves behind a copy that blocks the others too long.
    fn wait_room(&self) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if self.stop.is_set() {
                return Err(stopped(Side::Source).at(self.pipe_spec.path()));
            }
            state.drop_taken();
            if state.chunks.len() < AHEAD_MAX {
                return Ok(());
            }
            let late = state.leave_behind(self.patience, Instant::now());
            if !late.is_empty() {
                MutexGuard::unlocked(&mut state, || {
                    for (reader, error) in late {
                        (self.end_copy)(reader, error);
                    }
                });
                continue;
            }
            self.changed.wait_for(&mut state, STEP);
        }
    }
}

impl BroadcastState {
    fn drop_taken(&mut self) {
        let going = self.readers.iter().filter(|it| it.going == Going::On);
        let Some(wanted) = going.map(|it| it.at).min() else {
            return;
        };
        while self.first < wanted && self.chunks.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Stops waiting for copies that have kept others waiting too long. Returns those that have not
    /// begun, with their errors.
    fn leave_behind(&mut self, patience: Duration, now: Instant) -> Vec<(usize, Error)> {
        let first = self.first;
        let mut never_begun = Vec::new();
        let is_ahead = |it: &BroadcastReader| it.going == Going::On && it.at > first;
        if !self.readers.iter().any(is_ahead) {
            return never_begun;
        }
        let readers = self.readers.iter_mut().enumerate();
        for (nth, reader) in readers.filter(|(_, it)| it.at == first) {
            let patience = match reader.has_begun {
                true => patience,
                false => patience + BEGIN_MAX,
            };
            let waited = now.saturating_duration_since(reader.since);
            if reader.going == Going::On && waited > patience {
                reader.going = Going::Late(patience);
                if !reader.has_begun {
                    never_begun.push((nth, left_behind(patience, false)));
                }
            }
        }
        never_begun
    }
}

fn left_behind(patience: Duration, has_begun: bool) -> Error {
    let seconds = patience.as_secs();
    let message = match has_begun {
        true => format!("this destination accepted no data for {seconds} s (--timeout)"),
        false => format!(
            "this destination did not begin within {seconds} s (5 min plus --timeout), and the \
             others could not wait longer: the source is a pipe and cannot be re-read"
        ),
    };
    Error::new(Kind::Lost, Side::Dest, message)
}

impl BroadcastTap {
    /// Like [`PipeSource::fill`](super::pipe::PipeSource::fill), up to the end of a chunk.
    pub fn fill(&mut self, buffer: &mut Buffer) -> Result<Filled> {
        let mut state = self.broadcast.state.lock();
        loop {
            let BroadcastReader { at, going, .. } = state.readers[self.reader];
            match going {
                Going::On => {}
                Going::Late(patience) => return Err(left_behind(patience, true)),
                Going::Gone => return Err(stopped(Side::Source).at(self.path())),
            }
            let chunk = state.chunks.get((at - state.first) as usize).cloned();
            if let Some((bytes, filled)) = chunk {
                let own = &mut state.readers[self.reader];
                (own.at, own.since) = (at + 1, Instant::now());
                drop(state);
                self.broadcast.changed.notify_all();
                buffer.room()[..bytes.len()].copy_from_slice(&bytes);
                buffer.set_len(bytes.len());
                return Ok(filled);
            }
            if let Some(Err(error)) = &state.end {
                return Err(error.clone());
            }
            state = self.wait(state)?;
        }
    }

    /// Like [`PipeReader::finish`](super::PipeReader::finish).
    pub fn finish(self) -> Result<()> {
        let mut state = self.broadcast.state.lock();
        loop {
            if let Some(end) = &state.end {
                return end.clone();
            }
            state = self.wait(state)?;
        }
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, BroadcastState>,
    ) -> Result<MutexGuard<'a, BroadcastState>> {
        if self.stop.is_set() {
            return Err(stopped(Side::Source).at(self.path()));
        }
        self.broadcast.changed.wait_for(&mut state, STEP);
        Ok(state)
    }

    fn path(&self) -> PathBuf {
        self.broadcast.pipe_spec.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4096;

    fn broadcast(line: &str, copies: usize, patience: Duration) -> Arc<Broadcast> {
        Arc::new(Broadcast::new(
            PipeSpec::Command(line.into()),
            SIZE,
            copies,
            patience,
            |reader, error| panic!("{reader}: {error}"),
        ))
    }

    fn tap(broadcast: &Arc<Broadcast>, reader: usize) -> BroadcastTap {
        broadcast.tap(reader, PipeLimits::default(), &Stop::new(), |_| ())
    }

    /// All bytes that come, and how the pipe ends.
    fn drain(mut tap: BroadcastTap) -> (Vec<u8>, Result<()>) {
        let mut all = Vec::new();
        let mut buffer = Buffer::loose(SIZE);
        loop {
            match tap.fill(&mut buffer) {
                Err(error) => return (all, Err(error)),
                Ok(filled) => {
                    all.extend(buffer.data());
                    if filled.end {
                        return (all, tap.finish());
                    }
                }
            }
        }
    }

    #[test]
    fn each_gets_all_of_it_and_hears_how_it_ended() {
        let line = "head -c 200000 /dev/zero; echo end; exit 3";
        let broadcast = broadcast(line, 3, Duration::from_secs(60));
        let taps: Vec<_> = (0..2).map(|reader| tap(&broadcast, reader)).collect();
        let drains = taps
            .into_iter()
            .map(|tap| std::thread::spawn(|| drain(tap)));
        let drains: Vec<_> = drains.collect();
        std::thread::sleep(Duration::from_millis(50));
        // A copy that never begins can leave too.
        broadcast.leave(2);
        for drain in drains {
            let (all, end) = drain.join().expect("no panic");
            assert_eq!(all.len(), 200_004);
            assert!(all.ends_with(b"end\n"));
            assert_eq!(end.unwrap_err().kind, Kind::Command);
        }
    }

    #[test]
    fn who_takes_nothing_is_left_behind_and_who_is_gone_holds_nobody() {
        let broadcast = broadcast("head -c 200000 /dev/zero", 2, Duration::from_millis(300));
        let mut slow = tap(&broadcast, 1);
        let (all, end) = drain(tap(&broadcast, 0));
        assert_eq!(all.len(), 200_000);
        end.unwrap();
        let late = slow.fill(&mut Buffer::loose(SIZE)).unwrap_err();
        assert!(late.message.contains("accepted no data"), "{late}");
        broadcast.leave(0);
        broadcast.leave(1);
    }

    #[test]
    fn who_is_slow_is_waited_for_while_data_arrives() {
        let patience = Duration::from_secs(60);
        let broadcast = broadcast("true", 2, patience);
        let since = {
            let mut state = broadcast.state.lock();
            state.readers.iter_mut().for_each(|it| it.has_begun = true);
            state.readers[0].at = 1;
            state.readers[1].since
        };
        std::thread::sleep(Duration::from_millis(20));
        broadcast.arrives(1);
        let is_late = |waited| {
            let mut state = broadcast.state.lock();
            state.leave_behind(patience, since + waited);
            state.readers[1].going != Going::On
        };
        assert!(!is_late(patience + Duration::from_millis(10)));
        assert!(is_late(2 * patience), "nothing has arrived since");
    }

    #[test]
    fn who_never_begins_is_waited_for_longer_and_then_told_so() {
        let patience = Duration::from_secs(60);
        let broadcast = broadcast("true", 2, patience);
        let mut state = broadcast.state.lock();
        let begun = &mut state.readers[0];
        (begun.at, begun.has_begun) = (1, true);
        let since = state.readers[1].since;
        let limit = patience + BEGIN_MAX;
        assert!(state.leave_behind(patience, since + limit).is_empty());
        let late = state.leave_behind(patience, since + limit + STEP);
        let [(1, error)] = &late[..] else {
            panic!("{late:?}");
        };
        assert!(error.message.contains("within 360 s"), "{error}");
        assert!(state.leave_behind(patience, since + 2 * limit).is_empty());
    }
}

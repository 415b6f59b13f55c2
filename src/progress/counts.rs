//! The counters of one session in a copy between two remote hosts, as the sender reports them to
//! the client.

use std::sync::atomic::Ordering::Relaxed;

use super::{NAMES_MAX, Progress, ShownNames};
use crate::outcome::Counts;

/// A bound on reported counts, 9 PB. No honest count reaches it, and the sum over all sessions
/// cannot overflow.
const COUNT_MAX: u64 = 1 << 53;

impl Progress {
    /// The counters of an end that does not know the totals.
    pub fn counts(&self) -> Counts {
        let (session, frames) = (&self.session, &self.frames);
        Counts {
            bytes: session.bytes.load(Relaxed),
            skipped_bytes: session.skipped_bytes.load(Relaxed),
            resumed_bytes: session.resumed_bytes.load(Relaxed),
            resumed_files: session.resumed_files.load(Relaxed),
            wire_bytes: frames.wire_bytes.load(Relaxed),
            raw_bytes: frames.raw_bytes.load(Relaxed),
            files: session.files.load(Relaxed),
            failed: session.failed.load(Relaxed),
            again_bytes: session.again_bytes.load(Relaxed),
            codec_chunks: std::array::from_fn(|codec| frames.codec_chunks[codec].load(Relaxed)),
            streams: self.streams.load(Relaxed),
        }
    }

    /// Adds the increase of another process's counters since the last report, `heard`. Ignores
    /// decreases, and caps counts at 9 PB.
    pub fn follow(&self, heard: &mut Counts, now: &Counts) {
        if now.wire_bytes.max(now.skipped_bytes).max(now.files) > 0 {
            self.begin();
        }
        let (session, frames) = (&self.session, &self.frames);
        let more = |heard: &mut u64, now: u64| {
            let now = now.min(COUNT_MAX).max(*heard);
            now - std::mem::replace(heard, now)
        };
        for (counter, heard, now) in [
            (&session.bytes, &mut heard.bytes, now.bytes),
            (
                &session.skipped_bytes,
                &mut heard.skipped_bytes,
                now.skipped_bytes,
            ),
            (
                &session.resumed_bytes,
                &mut heard.resumed_bytes,
                now.resumed_bytes,
            ),
            (
                &session.resumed_files,
                &mut heard.resumed_files,
                now.resumed_files,
            ),
            (&frames.wire_bytes, &mut heard.wire_bytes, now.wire_bytes),
            (&frames.raw_bytes, &mut heard.raw_bytes, now.raw_bytes),
            (&session.files, &mut heard.files, now.files),
            (&session.failed, &mut heard.failed, now.failed),
        ] {
            counter.fetch_add(more(heard, now), Relaxed);
        }
        let codecs = heard.codec_chunks.iter_mut().zip(now.codec_chunks);
        for (counter, (heard, now)) in frames.codec_chunks.iter().zip(codecs) {
            counter.fetch_add(more(heard, now), Relaxed);
        }
        self.add_again(more(&mut heard.again_bytes, now.again_bytes));
        self.set_streams(now.streams);
    }

    /// Sets the names of files that the other process is copying. Each must be printable.
    pub fn set_names(&self, names: impl Iterator<Item = String>) {
        let open = (0..).zip(names.take(NAMES_MAX)).collect();
        *self.names.lock() = ShownNames {
            open,
            passing: None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_followed_and_believed_nothing_impossible() {
        let there = Progress::default();
        there.add_bytes(70);
        there.add_frame(2, 70, 90);
        there.add_again(5);
        let (here, mut heard) = (Progress::default(), Counts::default());
        here.add_failed(1);
        here.follow(&mut heard, &there.counts());
        there.add_bytes(30);
        here.follow(&mut heard, &there.counts());
        let with_own = Counts {
            failed: 1,
            ..there.counts()
        };
        assert_eq!(here.counts(), with_own);
        let impossible = Counts {
            bytes: u64::MAX,
            ..Counts::default()
        };
        for _ in 0..1000 {
            let mut heard = Counts::default();
            for now in [&impossible, &Counts::default(), &impossible] {
                here.follow(&mut heard, now);
            }
            here.begin_again();
        }
        assert!(here.snapshot().moved_bytes > 0);
    }
}

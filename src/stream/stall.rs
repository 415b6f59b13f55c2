//! When a stream is dead although nobody has closed it. Pure: time and what is known are passed in.
//!
//! A slow receiver is not a dead stream. What tells them apart is what the other end says of the
//! stream: that its reader waits for a buffer, or that it has parsed something since. Time counts
//! only while the other end speaks: one that is stopped, or whose words are on their way, has not
//! had the time to parse anything. Where many streams share a slow link each of them waits long for
//! its turn, so what the session carries tells how long a stream may have to wait.

use std::time::Duration;

use crate::stream::kernel::KernelFacts;

/// How long a stream may make no progress: a retransmission or two of a link that lost a second's
/// worth of packets fits into it.
const STALL: Duration = Duration::from_secs(5);

/// The same in round trips, for links on which that is longer.
const STALL_ROUND_TRIPS: u32 = 20;

/// Where all streams go on, but slowly, each may take as long as its part of what they carry takes
/// for so many bytes: some forty packets, so that a few that are lost in a row are no stall.
const TURN: u64 = 64 << 10;

/// A stream that has had no turn for so long never gets one.
const TURN_MAX: Duration = Duration::from_secs(60);

/// Where no stream carried anything for so long all stand still: two heartbeats and a bit.
const QUIET: Duration = Duration::from_millis(2500);

/// An other end that said nothing for so long begins anew when it speaks again.
const SILENCE: Duration = Duration::from_secs(3);

/// Heartbeats without a stream that was in one before; one may have been under way.
const UNLISTED_BEATS: u64 = 3;

/// How long the other end may take to list a stream at all: twice what an opening may take.
const NEVER_LISTED: Duration = Duration::from_secs(10);

/// What is known of a stream at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sight {
    /// On a clock that goes only while this process runs.
    pub now: Duration,
    /// Bytes of frames that this end gave to its socket; None at the receiving end.
    pub sent: Option<u64>,
    pub kernel: Option<KernelFacts>,
    /// Heartbeats that have come from the other end.
    pub beats: u64,
    /// What the last of them said of this stream.
    pub peer: Option<PeerSight>,
    /// Bytes a second that the session's streams carried by the last heartbeat, as a mean of those
    /// that have something to carry.
    pub share: u64,
}

/// What the other end says of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSight {
    pub bytes: u64,
    pub waits: bool,
}

/// Why a stream is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dead {
    #[error("the other end got nothing of it for {} s", .0.as_secs())]
    NothingParsed(Duration),
    #[error("the other host acknowledged nothing of it for {} s", .0.as_secs())]
    NothingAcknowledged(Duration),
    #[error("the other end has it no more")]
    NotListed,
    #[error("it was dialled again")]
    Replaced,
    #[error("another route is in use")]
    NotNeeded,
}

/// Watches over one stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    last: Sight,
    was_listed: bool,
    unlisted_beats: u64,
    unlisted: Duration,
    silent: Duration,
    unparsed: Duration,
    unacknowledged: Duration,
    /// How long no stream of the session carried anything.
    quiet: Duration,
    /// Bytes that others carried, as a mean, since this one stands still.
    turn: u64,
    /// Bytes that the other end parsed between its last two heartbeats, and the most of them
    /// lately: an eighth is taken off with each.
    step: u64,
    best_step: u64,
    /// What the other end had not parsed when it last spoke was given before the last look.
    is_behind: bool,
}

impl Watch {
    pub fn new(now: Duration) -> Watch {
        let last = Sight {
            now,
            ..Sight::default()
        };
        Watch {
            last,
            ..Watch::default()
        }
    }

    /// Takes what is known now; gives why the stream is dead, if it is.
    pub fn look(&mut self, sight: &Sight) -> Option<Dead> {
        let passed = sight.now.saturating_sub(self.last.now);
        let has_news = sight.beats > self.last.beats;
        let patience = sight.kernel.map_or(STALL, |kernel| {
            STALL.max(kernel.round_trip * STALL_ROUND_TRIPS)
        });
        self.silent = if has_news {
            Duration::ZERO
        } else {
            self.silent + passed
        };
        if self.silent >= SILENCE {
            self.unparsed = Duration::ZERO;
        }
        if has_news {
            self.count_listed(sight, passed);
            self.count_parsed(sight, passed);
        }
        self.count_acknowledged(sight, passed);
        self.count_turn(sight, passed);
        if let (Some(sent), Some(peer)) = (self.last.sent, sight.peer) {
            self.is_behind = sent > peer.bytes;
        }
        let last_peer = if has_news { sight.peer } else { self.last.peer };
        self.last = Sight {
            peer: last_peer,
            ..*sight
        };
        if self.unlisted_beats >= UNLISTED_BEATS || self.unlisted >= NEVER_LISTED {
            return Some(Dead::NotListed);
        }
        if self.waits_for_its_turn() {
            return None;
        }
        if self.unparsed >= patience {
            return Some(Dead::NothingParsed(self.unparsed));
        }
        (self.unacknowledged >= patience).then_some(Dead::NothingAcknowledged(self.unacknowledged))
    }

    /// What it was given will not have arrived soon; not of what it was given just now, of which the
    /// other end has had no time to speak.
    fn is_draining_slowly(&self) -> bool {
        let (Some(sent), Some(peer)) = (self.last.sent, self.last.peer) else {
            return false;
        };
        let backlog = sent.saturating_sub(peer.bytes);
        // What it has would take it more than the two seconds until the next look but one.
        self.is_behind && !peer.waits && backlog > 2 * self.step
    }

    /// What it was given would arrive clearly sooner by a stream that carries `fastest` bytes from
    /// one heartbeat to the next: twice as fast, and two heartbeats.
    pub fn is_slower_than(&self, fastest: u64) -> bool {
        self.is_draining_slowly() && 2 * self.backlog() / fastest.max(1) + 2 < self.beats_left()
    }

    /// The most bytes that it lately carried from one heartbeat to the next.
    pub fn fastest(&self) -> u64 {
        self.best_step
    }

    /// What the other end parsed between its last two heartbeats; None of a stream with nothing to
    /// carry.
    pub fn carries(&self) -> Option<u64> {
        (self.step > 0 || self.backlog() > 0).then_some(self.step)
    }

    fn backlog(&self) -> u64 {
        let parsed = self.last.peer.map_or(0, |peer| peer.bytes);
        self.last.sent.unwrap_or(0).saturating_sub(parsed)
    }

    /// Heartbeats until it has carried what it was given.
    fn beats_left(&self) -> u64 {
        self.backlog() / self.step.max(1)
    }

    /// All that it was given has arrived.
    pub fn is_idle(&self) -> bool {
        let (sent, peer) = (self.last.sent, self.last.peer);
        sent.is_some() && sent == peer.map(|peer| peer.bytes)
    }

    fn count_listed(&mut self, sight: &Sight, passed: Duration) {
        if sight.peer.is_some() {
            self.was_listed = true;
            (self.unlisted_beats, self.unlisted) = (0, Duration::ZERO);
        } else if self.was_listed {
            self.unlisted_beats += sight.beats - self.last.beats;
        } else {
            self.unlisted += passed;
        }
    }

    fn count_parsed(&mut self, sight: &Sight, passed: Duration) {
        let parsed = sight.peer.map_or(0, |peer| peer.bytes);
        let before = self.last.peer.map_or(0, |peer| peer.bytes);
        self.step = parsed.saturating_sub(before);
        self.best_step = self.step.max(self.best_step - self.best_step / 8);
        let is_owed = sight.sent.is_some_and(|sent| sent > parsed);
        let waits = sight.peer.is_some_and(|peer| peer.waits);
        // Of what was owed already when it was last looked at: what was sent since is under way.
        let was_owed = self.last.sent.is_some_and(|sent| sent > before);
        if is_owed && was_owed && !waits && parsed == before {
            self.unparsed += passed;
        } else {
            self.unparsed = Duration::ZERO;
        }
    }

    /// Counts what others carry, as a mean, while this one stands still.
    fn count_turn(&mut self, sight: &Sight, passed: Duration) {
        if sight.share > 0 {
            self.quiet = Duration::ZERO;
        } else {
            self.quiet += passed;
        }
        self.turn = match self.unparsed.max(self.unacknowledged) {
            Duration::ZERO => 0,
            _ => self.turn + (sight.share as f64 * passed.as_secs_f64()) as u64,
        };
    }

    /// Others go on, and so slowly that this one may not have had its turn. Where all stand still
    /// it is no matter of turns.
    fn waits_for_its_turn(&self) -> bool {
        let still = self.unparsed.max(self.unacknowledged);
        self.quiet < QUIET && self.turn < TURN && still < TURN_MAX
    }

    /// An idle stream's last acknowledgement may be old when its next segment goes out, so only
    /// time in which something was out, and nothing came back, counts.
    fn count_acknowledged(&mut self, sight: &Sight, passed: Duration) {
        let is_quiet = |facts: &KernelFacts| facts.unacknowledged > 0 && facts.since_ack >= passed;
        let was_out = self
            .last
            .kernel
            .is_some_and(|facts| facts.unacknowledged > 0);
        if was_out && sight.kernel.as_ref().is_some_and(is_quiet) {
            self.unacknowledged += passed;
        } else {
            self.unacknowledged = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Looks once a second at what `at` gives for it; gives when, and why, the stream was given up.
    fn watch(seconds: u32, at: impl Fn(u32) -> Sight) -> Option<(u32, Dead)> {
        let mut watch = Watch::new(Duration::ZERO);
        (1..=seconds).find_map(|second| {
            let now = SECOND * second;
            let dead = watch.look(&Sight { now, ..at(second) })?;
            Some((second, dead))
        })
    }

    fn peer(bytes: u64, waits: bool) -> Option<PeerSight> {
        Some(PeerSight { bytes, waits })
    }

    #[test]
    fn a_stream_of_which_nothing_is_parsed_is_dead_after_five_seconds() {
        let dead = watch(60, |second| Sight {
            sent: Some(4000),
            beats: second.into(),
            peer: peer(1000, false),
            ..Sight::default()
        });
        assert!(
            matches!(dead, Some((6..=8, Dead::NothingParsed(_)))),
            "{dead:?}"
        );
    }

    #[test]
    fn a_stream_waits_for_its_turn_where_all_are_slow_and_not_where_it_stands_alone() {
        let stalled = |share| {
            let dead = watch(120, |second| Sight {
                sent: Some(4000),
                beats: second.into(),
                peer: peer(1000, false),
                share,
                ..Sight::default()
            });
            dead.map(|(second, _)| second)
        };
        // 128 streams on 1 Mbit/s, 16 on 2 Mbit/s, and one that stands still beside fast ones.
        assert!(matches!(stalled(900), Some(60..=63)));
        assert!(matches!(stalled(15_000), Some(5..=8)));
        assert!(matches!(stalled(4_000), Some(17..=20)));
        assert!(matches!(stalled(0), Some(5..=8)), "the link is dead");
    }

    #[test]
    fn a_stream_is_slower_than_another_by_what_each_carries() {
        let mut watch = Watch::new(Duration::ZERO);
        for second in 1..=4u32 {
            watch.look(&Sight {
                now: SECOND * second,
                sent: Some(1_000_000),
                beats: second.into(),
                peer: peer(u64::from(second) * 20_000, false),
                ..Sight::default()
            });
        }
        // 920 kB are left: 46 s.
        assert_eq!((watch.fastest(), watch.carries()), (20_000, Some(20_000)));
        assert!(!watch.is_slower_than(20_000) && !watch.is_slower_than(40_000));
        assert!(watch.is_slower_than(100_000));
    }

    #[test]
    fn a_stream_that_was_given_something_just_now_is_not_slow_yet() {
        let mut watch = Watch::new(Duration::ZERO);
        let mut slow_at = |second: u32, sent| {
            watch.look(&Sight {
                now: SECOND * second,
                sent: Some(sent),
                beats: second.into(),
                peer: peer(4000, false),
                ..Sight::default()
            });
            watch.is_draining_slowly()
        };
        assert!(!slow_at(1, 4000));
        assert!(!slow_at(2, 1_000_000), "it was idle");
        assert!(slow_at(3, 1_000_000));
    }

    #[test]
    fn a_receiver_that_waits_for_its_disk_is_slow_and_not_dead() {
        let dead = watch(3600, |second| Sight {
            sent: Some(4000),
            beats: second.into(),
            peer: peer(1000, true),
            ..Sight::default()
        });
        assert_eq!(dead, None);
    }

    #[test]
    fn a_byte_now_and_then_is_progress_and_a_stream_without_work_is_no_corpse() {
        let trickle = watch(3600, |second| Sight {
            sent: Some(1 << 20),
            beats: second.into(),
            peer: peer(u64::from(second) / 4, false),
            ..Sight::default()
        });
        assert_eq!(trickle, None);
        let idle = watch(3600, |second| Sight {
            sent: Some(4000),
            beats: second.into(),
            peer: peer(4000, false),
            ..Sight::default()
        });
        assert_eq!(idle, None);
    }

    #[test]
    fn time_in_which_the_other_end_is_stopped_does_not_count() {
        // It speaks for three seconds, is silent for a minute, and speaks again.
        let beats = |second: u32| u64::from(second.min(3) + second.saturating_sub(63));
        let dead = watch(66, |second| Sight {
            sent: Some(4000),
            beats: beats(second),
            peer: peer(1000, false),
            ..Sight::default()
        });
        assert_eq!(dead, None);
    }

    #[test]
    fn on_a_link_with_a_long_round_trip_patience_is_longer() {
        let kernel = |since_ack| KernelFacts {
            since_ack,
            round_trip: SECOND,
            ..KernelFacts::default()
        };
        let dead = watch(60, |second| Sight {
            sent: Some(4000),
            kernel: Some(kernel(SECOND)),
            beats: second.into(),
            peer: peer(1000, false),
            ..Sight::default()
        });
        assert!(
            matches!(dead, Some((21..=23, Dead::NothingParsed(_)))),
            "{dead:?}"
        );
    }

    #[test]
    fn a_host_that_acknowledges_nothing_is_dead_even_if_control_is_silent() {
        let kernel = |unacknowledged, since_ack| KernelFacts {
            unacknowledged,
            since_ack,
            round_trip: SECOND / 20,
            ..KernelFacts::default()
        };
        let gone = watch(60, |second| Sight {
            sent: Some(4000),
            kernel: Some(kernel(10, SECOND * second)),
            ..Sight::default()
        });
        assert!(
            matches!(gone, Some((5..=7, Dead::NothingAcknowledged(_)))),
            "{gone:?}"
        );
        // A closed window: nothing is out, however old the last acknowledgement is.
        let closed = watch(3600, |second| Sight {
            sent: Some(4000),
            kernel: Some(kernel(0, SECOND * second)),
            ..Sight::default()
        });
        assert_eq!(closed, None);
        // Something was sent just now, after an idle hour.
        let fresh = watch(3600, |second| Sight {
            sent: Some(4000),
            kernel: Some(kernel(second % 2, SECOND * 3600)),
            ..Sight::default()
        });
        assert_eq!(fresh, None);
    }

    #[test]
    fn a_stream_that_the_other_end_lists_no_more_is_dead_at_either_end() {
        let dead = watch(60, |second| Sight {
            beats: second.into(),
            peer: if second < 10 { peer(5, false) } else { None },
            ..Sight::default()
        });
        assert_eq!(dead, Some((12, Dead::NotListed)));
        let never = watch(60, |second| Sight {
            beats: second.into(),
            ..Sight::default()
        });
        assert_eq!(never, Some((10, Dead::NotListed)));
    }
}

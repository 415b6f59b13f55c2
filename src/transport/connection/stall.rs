//! Detection of dead connections that nobody has closed. Pure: time and facts are passed in.
//!
//! A slow receiver is not a dead connection. The other end's heartbeats tell them apart: they say
//! whether its reader waits for a buffer and how much it has parsed. Time counts only while
//! heartbeats arrive: an end that is stopped, or whose heartbeats are delayed, has had no time to
//! parse anything. If many connections share a slow link, each waits long for its turn, so the
//! session's throughput tells how long a connection may have to wait.

use std::time::Duration;

use super::kernel::KernelFacts;

/// How long a connection may make no progress. This allows a retransmission or two on a link that
/// lost a second's worth of packets.
const STALL: Duration = Duration::from_secs(5);

/// The same in round trips, for links on which this is longer.
const STALL_ROUND_TRIPS: u32 = 20;

/// If all connections are slow, each may take as long as its share of the throughput needs for
/// this many bytes: some forty packets, so that a few packets lost in a row are no stall.
const TURN: u64 = 64 << 10;

/// A connection that had no turn for this long never gets one.
const TURN_MAX: Duration = Duration::from_secs(60);

/// If no connection carried anything for this long, all have stalled: two heartbeats and a margin.
const QUIET: Duration = Duration::from_millis(2500);

/// If the other end was silent for this long, counting restarts when it speaks again.
const SILENCE: Duration = Duration::from_secs(3);

/// A connection is dead after this many heartbeats that no longer list it; one may have been in
/// flight.
const UNLISTED_BEATS: u64 = 3;

/// How long the other end may take to list a connection for the first time: twice the timeout of
/// an opening.
const NEVER_LISTED: Duration = Duration::from_secs(10);

/// The facts about a connection at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sight {
    /// On a clock that advances only while this process runs.
    pub now: Duration,
    /// Bytes of frames that this end wrote to its socket; None at the receiving end.
    pub sent: Option<u64>,
    pub kernel: Option<KernelFacts>,
    /// Heartbeats received from the other end.
    pub beats: u64,
    /// What the last heartbeat said of this connection.
    pub peer: Option<PeerSight>,
    /// Bytes a second that the session's connections carried up to the last heartbeat, as a mean
    /// over those with something to carry.
    pub share: u64,
}

/// What the other end says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSight {
    pub bytes: u64,
    pub waits: bool,
}

/// Why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dead {
    #[error("the receiver processed no data for {} s", .0.as_secs())]
    NothingParsed(Duration),
    #[error("no data was acknowledged for {} s", .0.as_secs())]
    NothingAcknowledged(Duration),
    #[error("the other host closed it")]
    NotListed,
    #[error("replaced by a new connection")]
    Replaced,
    #[error("another route is in use")]
    NotNeeded,
}

/// Watches one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct StallWatch {
    last: Sight,
    was_listed: bool,
    unlisted_beats: u64,
    unlisted: Duration,
    silent: Duration,
    unparsed: Duration,
    unacknowledged: Duration,
    /// How long no connection of the session carried anything.
    quiet: Duration,
    /// Bytes that the mean connection carried while this one made no progress.
    turn: u64,
    /// `step`: bytes that the other end parsed between its last two heartbeats. `best_step`: the
    /// recent maximum of `step`; it loses an eighth with each heartbeat.
    step: u64,
    best_step: u64,
    /// When the other end last spoke, it had not parsed all bytes sent up to the previous look.
    is_behind: bool,
}

impl StallWatch {
    pub fn new(now: Duration) -> StallWatch {
        let last = Sight {
            now,
            ..Sight::default()
        };
        StallWatch {
            last,
            ..StallWatch::default()
        }
    }

    /// Takes the current facts; returns why the connection is dead, or None if it is not.
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

    /// True if the sent bytes will not arrive soon. Bytes sent just now do not count: the other
    /// end has had no time to report them.
    fn is_draining_slowly(&self) -> bool {
        let (Some(sent), Some(peer)) = (self.last.sent, self.last.peer) else {
            return false;
        };
        let backlog = sent.saturating_sub(peer.bytes);
        // Its backlog would take more than the two seconds until the next look but one.
        self.is_behind && !peer.waits && backlog > 2 * self.step
    }

    /// True if the sent bytes would arrive clearly sooner on a connection that carries `fastest`
    /// bytes from one heartbeat to the next: twice as fast, and two heartbeats sooner.
    pub fn is_slower_than(&self, fastest: u64) -> bool {
        self.is_draining_slowly() && 2 * self.backlog() / fastest.max(1) + 2 < self.beats_left()
    }

    /// The recent maximum of bytes carried from one heartbeat to the next.
    pub fn fastest(&self) -> u64 {
        self.best_step
    }

    /// Bytes that the other end parsed between its last two heartbeats; None if the connection has
    /// nothing to carry.
    pub fn carries(&self) -> Option<u64> {
        (self.step > 0 || self.backlog() > 0).then_some(self.step)
    }

    fn backlog(&self) -> u64 {
        let parsed = self.last.peer.map_or(0, |peer| peer.bytes);
        self.last.sent.unwrap_or(0).saturating_sub(parsed)
    }

    /// Heartbeats until all sent bytes are parsed.
    fn beats_left(&self) -> u64 {
        self.backlog() / self.step.max(1)
    }

    /// True if all sent bytes were parsed.
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
        // Counts only bytes that were already unparsed at the last look: later ones are in flight.
        let was_owed = self.last.sent.is_some_and(|sent| sent > before);
        if is_owed && was_owed && !waits && parsed == before {
            self.unparsed += passed;
        } else {
            self.unparsed = Duration::ZERO;
        }
    }

    /// Counts what a mean connection carries while this one makes no progress.
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

    /// True if others make progress so slowly that this connection may not have had its turn. If
    /// all have stalled, it does not wait for a turn.
    fn waits_for_its_turn(&self) -> bool {
        let still = self.unparsed.max(self.unacknowledged);
        self.quiet < QUIET && self.turn < TURN && still < TURN_MAX
    }

    /// An idle connection's last acknowledgement may be old when its next segment goes out. So
    /// only time with a segment in flight and no acknowledgement counts.
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

    /// Looks once a second at what `at` gives for it; returns when, and why, the connection was
    /// given up.
    fn watch(seconds: u32, at: impl Fn(u32) -> Sight) -> Option<(u32, Dead)> {
        let mut watch = StallWatch::new(Duration::ZERO);
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
        // 128 connections on 1 Mbit/s, 16 on 2 Mbit/s, and one that stalls beside fast ones.
        assert!(matches!(stalled(900), Some(60..=63)));
        assert!(matches!(stalled(15_000), Some(5..=8)));
        assert!(matches!(stalled(4_000), Some(17..=20)));
        assert!(matches!(stalled(0), Some(5..=8)), "the link is dead");
    }

    #[test]
    fn a_stream_is_slower_than_another_by_what_each_carries() {
        let mut watch = StallWatch::new(Duration::ZERO);
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
        let mut watch = StallWatch::new(Duration::ZERO);
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
        // The other end speaks for three seconds, is silent for a minute, and speaks again.
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
        // A closed window: nothing is in flight, however old the last acknowledgement is.
        let closed = watch(3600, |second| Sight {
            sent: Some(4000),
            kernel: Some(kernel(0, SECOND * second)),
            ..Sight::default()
        });
        assert_eq!(closed, None);
        // A segment was sent just now, after an idle hour.
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

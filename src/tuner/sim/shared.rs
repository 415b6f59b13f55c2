//! A simulated bottleneck that a polite copy shares with one TCP flow of another program, packet
//! by packet in steps of a millisecond: the queue, both senders' windows, and the kernel's
//! figures. The same seed gives the same run.

use std::collections::VecDeque;
use std::time::Duration;

use super::noise;
use crate::tuner::{ConnectionSight, LOOK, POLITE_STREAMS, PoliteRate};

const STEP: f64 = 0.001;
const SEGMENT: f64 = 1448.0;
const FIRST_WINDOW: f64 = 10.0 * SEGMENT;
const LAST_WINDOW: f64 = 2.0 * SEGMENT;

/// Linux' cubic: the factor by which loss reduces a window, the growth in segments by the third
/// power of seconds, and the conditions under which delay ends slow start (HyStart).
const BACKS_OFF: f64 = 0.7;
const CUBIC: f64 = 0.4;
const HYSTART_WINDOW: f64 = 16.0 * SEGMENT;
const HYSTART_ACKS: u32 = 8;

/// The weight of a new round trip in the kernel's mean.
const WEIGHT: f64 = 0.125;

/// Steps between two records of the bytes carried.
const NOTE_STEPS: u64 = 10;
const NOTE_S: f64 = STEP * NOTE_STEPS as f64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedPath {
    /// Bytes a second.
    pub link: f64,
    /// Seconds.
    pub rtt: f64,
    /// Seconds that the queue holds.
    pub queue_s: f64,
    /// Random extra time of a round trip, at most this many seconds.
    pub jitter_s: f64,
    /// When the other flow begins and ends.
    pub other: (f64, f64),
    /// The rate of the other flow's data, in bytes a second; None: unlimited.
    pub other_wants: Option<f64>,
    pub end: f64,
}

pub(crate) struct SharedBottleneck {
    /// Bytes of the other flow that arrived, and when the last of them did.
    pub other_bytes: f64,
    pub other_gone: f64,
    /// The copy's arrived bytes, and the queue in seconds, every 10 ms.
    own: Vec<f64>,
    queue_s: Vec<f64>,
}

impl SharedBottleneck {
    /// The copy's rate in that time, in bytes a second.
    pub(crate) fn mean(&self, from: f64, to: f64) -> f64 {
        let at = |time: f64| self.own[((time / NOTE_S) as usize).min(self.own.len() - 1)];
        (at(to) - at(from)) / (to - from)
    }

    /// The 95th percentile of the queue in those times, in seconds.
    pub(crate) fn queue_p95(&self, times: &[(f64, f64)]) -> f64 {
        let notes = |(from, to): &(f64, f64)| {
            let (from, to) = ((from / NOTE_S) as usize, (to / NOTE_S) as usize);
            self.queue_s[from..to.min(self.queue_s.len())].to_vec()
        };
        let mut all: Vec<f64> = times.iter().flat_map(notes).collect();
        all.sort_by(f64::total_cmp);
        all[(all.len() - 1) * 95 / 100]
    }

    /// Seconds from the end of the other flow until the copy carries `rate` for a quarter of a
    /// second.
    pub(crate) fn due(&self, rate: f64) -> Option<f64> {
        const SPAN: f64 = 0.25;
        let last = self.own.len() as f64 * NOTE_S - SPAN;
        let times = (0..).map(|note| self.other_gone + f64::from(note) * NOTE_S);
        let mut times = times.take_while(|time| *time < last);
        let reached = times.find(|time| self.mean(*time, time + SPAN) >= rate);
        reached.map(|time| time - self.other_gone)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum PacketOwner {
    Own(usize),
    Other,
}

struct Packet {
    owner: PacketOwner,
    bytes: f64,
    sent: f64,
}

/// An acknowledgement on its way back, or the notice that the queue dropped the packet.
struct Feedback {
    due: f64,
    /// Neither this one nor a later one is due before.
    soonest: f64,
    packet: Packet,
    is_lost: bool,
}

/// A connection of the copy. The kernel paces it in pairs of packets.
struct CopyConnection {
    credit: f64,
    window: f64,
    threshold: f64,
    under_way: f64,
    cut: f64,
    smoothed: f64,
    sight: ConnectionSight,
}

/// The other flow, by cubic.
struct Other {
    window: f64,
    threshold: f64,
    /// The window at the last loss or at the end of slow start, and when that was.
    most: f64,
    at: f64,
    has_lost: bool,
    under_way: f64,
    cut: f64,
    wants: f64,
    round: (f64, u32, f64),
}

impl Other {
    fn new() -> Other {
        Other {
            window: FIRST_WINDOW,
            threshold: f64::MAX,
            most: 0.0,
            at: 0.0,
            has_lost: false,
            under_way: 0.0,
            cut: f64::MIN,
            wants: 0.0,
            round: (0.0, 0, f64::MAX),
        }
    }

    fn loses(&mut self, now: f64, round_trip: f64) {
        if now - self.cut > round_trip {
            (self.most, self.has_lost) = (self.window, true);
            self.window = (self.window * BACKS_OFF).max(LAST_WINDOW);
            self.threshold = self.window;
            (self.at, self.cut) = (now, now);
        }
    }

    fn hears(&mut self, now: f64, world: &SharedPath, packet: &Packet) {
        let (bytes, round_trip) = (packet.bytes, now - packet.sent);
        self.under_way -= bytes;
        if self.window >= self.threshold {
            // The plateau is at the window of the last loss.
            let k = match self.has_lost {
                true => (self.most / SEGMENT * (1.0 - BACKS_OFF) / CUBIC).cbrt(),
                false => 0.0,
            };
            let cubic = self.most + CUBIC * (now - self.at - k).powi(3) * SEGMENT;
            let reno = self.window + SEGMENT * bytes / self.window / 2.0;
            let grows = (cubic.max(reno) - self.window) / self.window * bytes;
            self.window += grows.clamp(0.0, bytes / 2.0);
            return;
        }
        self.window += bytes;
        if packet.sent >= self.round.0 {
            self.round = (now, 0, f64::MAX);
        }
        self.round.1 += 1;
        if self.round.1 <= HYSTART_ACKS {
            self.round.2 = self.round.2.min(round_trip);
        }
        let longer = world.rtt + (world.rtt / 8.0).clamp(0.004, 0.016);
        if self.round.1 >= HYSTART_ACKS && self.round.2 >= longer && self.window >= HYSTART_WINDOW {
            (self.threshold, self.most, self.at) = (self.window, self.window, now);
        }
    }
}

/// Runs the other flow, with a copy beside it if `is_copied`.
pub(crate) fn share(world: &SharedPath, is_copied: bool, seed: u64) -> SharedBottleneck {
    let mut run = SharedRun::new(world, seed);
    let mut polite = PoliteRate::new(Duration::from_secs_f64(world.rtt));
    let mut next_look = LOOK.as_secs_f64();
    for step in 1..=(world.end / STEP) as u64 {
        let now = step as f64 * STEP;
        if is_copied {
            run.send_own(now, polite.rate() as f64 / f64::from(POLITE_STREAMS));
        }
        if (world.other.0..world.other.1).contains(&now) {
            run.send_other(now);
        }
        run.serve(now);
        run.hear(now);
        if now >= next_look {
            // Looks come late by chance: the host has other things to do.
            next_look = now + LOOK.as_secs_f64() * (1.0 + 0.4 * run.chance());
            let sights: Vec<_> = run.streams.iter().map(|stream| stream.sight).collect();
            polite.look(Duration::from_secs_f64(now), &sights);
        }
        if step.is_multiple_of(NOTE_STEPS) {
            run.shared.own.push(run.own_bytes);
            run.shared.queue_s.push(run.queued / world.link);
        }
    }
    run.shared
}

struct SharedRun<'a> {
    world: &'a SharedPath,
    seed: u64,
    queue: VecDeque<Packet>,
    queued: f64,
    /// Bytes that the link could have sent but did not.
    idle: f64,
    answers: VecDeque<Feedback>,
    streams: Vec<CopyConnection>,
    other: Other,
    own_bytes: f64,
    shared: SharedBottleneck,
}

impl SharedRun<'_> {
    fn new(world: &SharedPath, seed: u64) -> SharedRun<'_> {
        let mut run = SharedRun {
            world,
            seed,
            queue: VecDeque::new(),
            queued: 0.0,
            idle: 0.0,
            answers: VecDeque::new(),
            streams: Vec::new(),
            other: Other::new(),
            own_bytes: 0.0,
            shared: SharedBottleneck {
                other_bytes: 0.0,
                other_gone: world.other.1,
                own: Vec::new(),
                queue_s: Vec::new(),
            },
        };
        for number in 0..POLITE_STREAMS {
            let credit = -2.0 * SEGMENT * run.chance();
            let round_trip = Duration::from_secs_f64(world.rtt);
            run.streams.push(CopyConnection {
                credit,
                window: FIRST_WINDOW,
                threshold: f64::MAX,
                under_way: 0.0,
                cut: f64::MIN,
                smoothed: world.rtt,
                sight: ConnectionSight {
                    number,
                    round_trip,
                    round_trip_min: round_trip,
                    ..ConnectionSight::default()
                },
            });
        }
        run
    }

    /// From 0 to 1.
    fn chance(&mut self) -> f64 {
        noise(&mut self.seed)
    }

    fn send_own(&mut self, now: f64, rate: f64) {
        // A pair, or the bytes that a connection sends in a millisecond.
        let burst = (2.0 * SEGMENT).max(STEP * rate);
        for nth in 0..self.streams.len() {
            let stream = &mut self.streams[nth];
            stream.credit = (stream.credit + rate * STEP).min(2.0 * burst);
            while self.streams[nth].may_send(burst) {
                self.streams[nth].credit -= burst;
                self.streams[nth].under_way += burst;
                let mut rest = burst;
                while rest > 0.0 {
                    let bytes = rest.min(SEGMENT);
                    rest -= bytes;
                    if !self.put(now, PacketOwner::Own(nth), bytes) {
                        let round_trip = self.world.rtt + self.queued / self.world.link;
                        self.streams[nth].loses(now, round_trip);
                    }
                }
            }
        }
    }

    fn send_other(&mut self, now: f64) {
        let most = 20.0 * SEGMENT;
        let wants = self.world.other_wants;
        self.other.wants = wants.map_or(most, |rate| (self.other.wants + rate * STEP).min(most));
        while self.other.under_way + SEGMENT <= self.other.window && self.other.wants > 0.0 {
            if wants.is_some() {
                self.other.wants -= SEGMENT;
            }
            self.other.under_way += SEGMENT;
            if !self.put(now, PacketOwner::Other, SEGMENT) {
                let round_trip = self.world.rtt + self.queued / self.world.link;
                self.other.loses(now, round_trip);
            }
        }
    }

    /// Returns false if the queue is full.
    fn put(&mut self, now: f64, owner: PacketOwner, bytes: f64) -> bool {
        let world = self.world;
        let packet = Packet {
            owner,
            bytes,
            sent: now,
        };
        let room = (world.queue_s * world.link).max(FIRST_WINDOW);
        if self.queued + bytes > room {
            let soonest = now + world.rtt;
            self.answers.push_back(Feedback {
                due: soonest + self.queued / world.link,
                soonest,
                packet,
                is_lost: true,
            });
            return false;
        }
        self.queued += bytes;
        self.queue.push_back(packet);
        true
    }

    fn serve(&mut self, now: f64) {
        self.idle += self.world.link * STEP;
        let is_due = |next: &Packet, idle| next.bytes <= idle;
        while self
            .queue
            .front()
            .is_some_and(|next| is_due(next, self.idle))
            && let Some(packet) = self.queue.pop_front()
        {
            self.idle -= packet.bytes;
            self.queued -= packet.bytes;
            let jitter = self.world.jitter_s * self.chance().powi(3);
            let soonest = now + self.world.rtt;
            self.answers.push_back(Feedback {
                due: soonest + jitter,
                soonest,
                packet,
                is_lost: false,
            });
        }
        if self.queue.is_empty() {
            self.idle = self.idle.min(SEGMENT);
        }
    }

    fn hear(&mut self, now: f64) {
        // Jitter lets some answers overtake others.
        let all_later = now + self.world.jitter_s + self.world.queue_s.min(0.05);
        let mut nth = 0;
        while let Some(answer) = self.answers.get(nth)
            && answer.soonest <= now
        {
            if answer.due > now {
                nth += 1;
                if answer.due > all_later {
                    break;
                }
                continue;
            }
            let Some(Feedback {
                packet, is_lost, ..
            }) = self.answers.remove(nth)
            else {
                break;
            };
            match packet.owner {
                PacketOwner::Other if is_lost => self.other.under_way -= packet.bytes,
                PacketOwner::Other => {
                    self.shared.other_bytes += packet.bytes;
                    self.shared.other_gone = self.shared.other_gone.max(now);
                    self.other.hears(now, self.world, &packet);
                }
                PacketOwner::Own(nth) if is_lost => self.streams[nth].under_way -= packet.bytes,
                PacketOwner::Own(nth) => {
                    self.own_bytes += packet.bytes;
                    self.streams[nth].hears(now, &packet);
                }
            }
        }
    }
}

impl CopyConnection {
    fn may_send(&self, burst: f64) -> bool {
        self.credit >= 0.0 && self.under_way + burst <= self.window.max(burst)
    }

    fn loses(&mut self, now: f64, round_trip: f64) {
        if now - self.cut > round_trip {
            self.window = (self.window * BACKS_OFF).max(LAST_WINDOW);
            (self.threshold, self.cut) = (self.window, now);
        }
    }

    fn hears(&mut self, now: f64, packet: &Packet) {
        let (bytes, round_trip) = (packet.bytes, now - packet.sent);
        let was_under_way = self.under_way;
        self.under_way -= bytes;
        // Only a window that is in use grows.
        if self.window < self.threshold {
            let is_used = self.window < 2.0 * (was_under_way + 2.0 * SEGMENT);
            self.window += if is_used { bytes } else { 0.0 };
        } else if was_under_way + 2.0 * SEGMENT >= self.window {
            self.window += SEGMENT * bytes / self.window;
        }
        self.smoothed += WEIGHT * (round_trip - self.smoothed);
        let sight = &mut self.sight;
        sight.acks += 1;
        sight.acked_bytes += bytes as u64;
        sight.round_trip = Duration::from_secs_f64(self.smoothed);
        let shortest = Duration::from_secs_f64(round_trip);
        sight.round_trip_min = sight.round_trip_min.min(shortest);
    }
}

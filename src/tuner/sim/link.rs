//! Simulated TCP connections through one bottleneck: growing windows, a queue and loss.

use super::World;
use crate::tuner::{Congestion, Decision};

const SEGMENT: f64 = 1460.0;
const FIRST_WINDOW: f64 = 10.0 * SEGMENT;

/// The size of the queue at the bottleneck in bandwidth-delay products, and the minimum in bytes
/// (100 packets) for links below `SLOW`. bbr leaves most of it empty.
const QUEUE: f64 = 1.0;
const QUEUE_LEAST: f64 = 150e3;
const SLOW: f64 = 12.5e6;

/// The factor by which loss reduces cubic's window. On fast links the window recovers within a
/// step.
const BACKS_OFF: f64 = 0.7;

/// The smallest window, and the least that a connection may hold under `held_max`.
const LAST_WINDOW: f64 = 2.0 * SEGMENT;
const HELD_LEAST: f64 = 4.0 * SEGMENT;
const QUEUE_BBR: f64 = 0.2;

/// The share sent again when a queue overflows.
const OVERFLOW_LOSS: f64 = 5e-4;

/// How many times the rate that Mathis and others found for reno cubic carries, as measured: 8
/// connections 116 Mbit/s at 150 ms and 0.1 % loss, where the formula gives 25.
const CUBIC: f64 = 4.8;

/// bbr reached 412 Mbit/s of 500 with 8 connections on the same link.
const BBR_LOSSY: f64 = 0.85;

/// Round trips until a connection that was not dialled in advance is up.
const DIAL_ROUND_TRIPS: f64 = 2.0;

/// Connections that were added together, all alike.
struct Group {
    count: f64,
    window: f64,
    slow_start: bool,
    /// Seconds until they are up.
    dialling_s: f64,
}

impl Group {
    fn new(count: f64) -> Group {
        Group {
            count,
            window: FIRST_WINDOW,
            slow_start: true,
            dialling_s: 0.0,
        }
    }

    /// Bytes that they have in flight.
    fn offers(&self) -> f64 {
        match self.dialling_s > 0.0 {
            true => 0.0,
            false => self.count * self.window,
        }
    }
}

#[derive(Default)]
pub(super) struct SimulatedLink {
    groups: Vec<Group>,
    /// Connections of others on a slow link. On a fast link they take their share, and nothing
    /// more is modelled.
    others: Option<Group>,
    round_trip_s: f64,
    /// The connections had no more to send than `held_max`, so their windows do not grow.
    is_held: bool,
    /// The highest number of connections so far.
    dialled: f64,
}

/// What the connections can carry at this moment.
pub(super) struct Carries {
    pub bytes_per_s: f64,
    pub loss: f64,
    pub round_trip_s: f64,
    /// Bytes on the path and in the queue.
    pub under_way: f64,
    /// Those bytes and the dropped bytes.
    pub sent: f64,
    /// Bytes that the full queue dropped in this step.
    pub dropped: f64,
}

impl SimulatedLink {
    pub(super) fn step(
        &mut self,
        dt: f64,
        world: &World,
        decision: &Decision,
        held_max: Option<u64>,
    ) -> Carries {
        let (streams, how) = (f64::from(decision.streams), decision.congestion);
        self.fit(streams, world);
        self.dialled = self.dialled.max(f64::from(decision.ready));
        let bbr = how == Congestion::Bbr;
        let most = stream_window(world, how);
        let is_slow = world.link < SLOW;
        self.meet(if is_slow { world.competing } else { 0.0 });
        // In front of a slow link the queue makes up most of a round trip.
        let round_trip = if is_slow {
            self.round_trip_s.max(world.rtt)
        } else {
            world.rtt
        };
        let own = self.groups.len();
        let groups = self.groups.iter_mut().chain(&mut self.others).enumerate();
        for (at, group) in groups {
            if group.dialling_s > 0.0 {
                group.dialling_s -= dt;
                continue;
            }
            if self.is_held && at < own {
                continue;
            }
            let round_trips = dt / round_trip;
            let grown = match group.slow_start || bbr {
                true => group.window * 2_f64.powf(round_trips).min(64.0),
                false if is_slow => group.window + SEGMENT * round_trips,
                false => group.window * 1.15_f64.powf(round_trips).min(64.0),
            };
            // When a path begins to lose packets, windows shrink by one loss in each round trip.
            let held = group.window * BACKS_OFF.powf(round_trips);
            group.window = grown.min(most.max(held));
        }
        let share = match is_slow {
            true => link(world, how),
            false => share(world, streams, how),
        };
        let (queue, floor) = match is_slow {
            true => ((share * world.rtt).max(QUEUE_LEAST), LAST_WINDOW),
            false => (QUEUE * share * world.rtt, 0.0),
        };
        let queue = queue.max(share * world.queue_s);
        let queue = if bbr {
            QUEUE_BBR * share * world.rtt
        } else {
            queue
        };
        let room = share * world.rtt + queue;
        let windows: f64 = self.groups.iter().map(Group::offers).sum();
        let held_max = held_max.map(|held| (held as f64).max(streams * HELD_LEAST));
        let own = held_max.map_or(windows, |held| windows.min(held));
        self.is_held = own < windows;
        let offered = own + self.others.as_ref().map_or(0.0, Group::offers);
        let over = offered / room;
        if over > 1.0 {
            for group in self.groups.iter_mut().chain(&mut self.others) {
                let backs_off = if is_slow { BACKS_OFF } else { 1.0 };
                group.window = (group.window * backs_off / over).max(floor);
                group.slow_start = false;
            }
        }
        // On a fast link an overflow ends within a step and loses few of its packets.
        let overflow = match over > 1.0 {
            true if is_slow => OVERFLOW_LOSS.max(1.0 - 1.0 / over),
            true => OVERFLOW_LOSS,
            false => 0.0,
        };
        let part = own / offered.max(1.0);
        let under_way = offered.min(room);
        self.round_trip_s = world.rtt.max(under_way / share);
        Carries {
            bytes_per_s: part * under_way / self.round_trip_s,
            loss: world.loss + overflow,
            round_trip_s: self.round_trip_s,
            under_way: part * under_way,
            sent: own,
            dropped: part * (offered - room).max(0.0),
        }
    }

    fn fit(&mut self, streams: f64, world: &World) {
        let mut surplus = self.groups.iter().map(|group| group.count).sum::<f64>() - streams;
        if surplus < 0.0 {
            let mut group = Group::new(-surplus);
            if !self.groups.is_empty() && streams > self.dialled {
                group.dialling_s = DIAL_ROUND_TRIPS * world.rtt;
            }
            self.groups.push(group);
        }
        while surplus > 0.0
            && let Some(last) = self.groups.last_mut()
        {
            let gone = surplus.min(last.count);
            last.count -= gone;
            surplus -= gone;
            if last.count <= 0.0 {
                self.groups.pop();
            }
        }
    }

    /// Sets the number of connections of others.
    fn meet(&mut self, count: f64) {
        let is_same = self.others.as_ref().map_or(0.0, |it| it.count) == count;
        if !is_same {
            self.others = (count > 0.0).then(|| Group::new(count));
        }
    }
}

fn stream_window(world: &World, how: Congestion) -> f64 {
    if how == Congestion::Bbr || world.loss == 0.0 {
        return world.window;
    }
    let mathis = 1.22 * SEGMENT / world.loss.sqrt();
    world.window.min(CUBIC * mathis)
}

fn share(world: &World, streams: f64, how: Congestion) -> f64 {
    link(world, how) * streams / (streams + world.competing)
}

fn link(world: &World, how: Congestion) -> f64 {
    let lossy = how == Congestion::Bbr && world.loss > 0.0;
    world.link * if lossy { BBR_LOSSY } else { 1.0 }
}

/// The rate of `streams` connections after slow start.
pub(super) fn steady(world: &World, streams: f64, how: Congestion) -> f64 {
    let windows = streams * stream_window(world, how) / world.rtt;
    windows.min(share(world, streams, how))
}

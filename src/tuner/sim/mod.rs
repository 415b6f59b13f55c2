//! A simulated copy for tests: disks, workers, a link and a queue between each two of them, in
//! steps of 50 ms. The same seed gives exactly the same run.

mod link;
pub(super) mod shared;

use std::collections::VecDeque;
use std::time::Duration;

use super::method::{DECODE_NS, Facts, TYPICAL};
use super::*;
use link::SimulatedLink;

const STEP: f64 = 0.05;
/// Goodput is recorded as the mean of this many steps.
const STEPS_PER_NOTE: u64 = 5;
/// The interval at which the receiver reports its counters.
const STEPS_PER_WORD: u64 = 2;

const CHUNK: f64 = 1048576.0;

/// Content that the receiver holds before its connections wait.
const FAR_POOL: f64 = 64.0 * CHUNK;

/// A worker's time for digest, encryption and decryption, and the share that each connection adds
/// to it, as seen on a local link.
const PLAIN_NS: f64 = 0.6;
const PER_STREAM: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SimulatedData {
    Random,
    Pages,
    Text,
}

/// The environment of the copy, rates in bytes a second. Events change it over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    pub link: f64,
    /// Seconds.
    pub rtt: f64,
    pub loss: f64,
    /// Bytes that one connection may have in flight.
    pub window: f64,
    /// Seconds that the queue at the bottleneck holds, if that is more than usual.
    pub queue_s: f64,
    /// Connections of others through the same bottleneck.
    pub competing: f64,
    pub read: f64,
    pub write: f64,
    /// Processors that the workers get.
    pub here: f64,
    pub there: f64,
    pub data: SimulatedData,
    /// Standard deviation of the link's rate from one step to the next, relative to the rate.
    pub noise: f64,
    pub rate_limit: Option<u64>,
}

pub(super) const MBIT: f64 = 125_000.0;

/// 1 Gbit/s at 20 ms between two good hosts.
pub(super) const WORLD: World = World {
    link: 1000.0 * MBIT,
    rtt: 0.02,
    loss: 0.0,
    window: 6e6,
    queue_s: 0.0,
    competing: 0.0,
    read: 3e9,
    write: 2e9,
    here: 4.0,
    there: 4.0,
    data: SimulatedData::Pages,
    noise: 0.05,
    rate_limit: None,
};

pub(super) type Event = (f64, fn(&mut World));

pub(super) struct SimulatedRun {
    /// Content written at the receiver, in bytes a second, for every 250 ms.
    pub goodput: Vec<f64>,
    pub adjustments: Vec<(f64, Adjustment)>,
    /// Seconds that the link takes to carry the bytes sent and not yet confirmed, at every step.
    pub in_flight_s: Vec<f64>,
    /// Bytes dropped by a full queue and sent again, for each byte carried.
    pub overhead: f64,
    pub tuner: Tuner,
    pub world: World,
}

impl SimulatedRun {
    pub(super) fn mean(&self, from_s: f64, to_s: f64) -> f64 {
        let per_s = 1.0 / (STEP * STEPS_PER_NOTE as f64);
        let (from, to) = ((from_s * per_s) as usize, (to_s * per_s) as usize);
        let part = &self.goodput[from..to.min(self.goodput.len())];
        part.iter().sum::<f64>() / part.len() as f64
    }

    /// Adjustments with a reason from `from_s` on.
    pub(super) fn changes_since(&self, from_s: f64) -> usize {
        let told = self
            .adjustments
            .iter()
            .filter(|(at, it)| *at >= from_s && it.reason.is_some());
        told.count()
    }

    /// The highest value of the steps in that time.
    pub(super) fn most_in_flight_s(&self, from_s: f64, to_s: f64) -> f64 {
        let (from, to) = ((from_s / STEP) as usize, (to_s / STEP) as usize);
        let part = &self.in_flight_s[from..to.min(self.in_flight_s.len())];
        part.iter().copied().fold(0.0, f64::max)
    }

    /// The rate of a copy in this world that knew all settings in advance.
    pub(super) fn best(&self) -> f64 {
        let congestions = [Congestion::System, Congestion::Bbr];
        let may = congestions
            .iter()
            .filter(|it| self.tuner.network.start.may_bbr || **it != Congestion::Bbr);
        may.flat_map(|how| (0..9).map(move |power| (how, f64::from(1 << power))))
            .flat_map(|(how, streams)| {
                let link = link::steady(&self.world, streams, *how);
                (0..RUNGS).map(move |rung| steady(&self.world, rung, streams, link))
            })
            .fold(0.0, f64::max)
    }
}

fn steady(world: &World, rung: usize, streams: f64, link: f64) -> f64 {
    let of = facts(world.data, rung);
    let plain = PLAIN_NS * (1.0 + PER_STREAM * streams);
    let here = world.here * 1e9 / (plain + of.ns_per_byte);
    let there = world.there * 1e9 / (plain + decode_ns(world.data, rung));
    here.min(there)
        .min(link * of.ratio)
        .min(world.read)
        .min(world.write)
}

pub(super) fn facts(data: SimulatedData, rung: usize) -> Facts {
    let Facts { ns_per_byte, ratio } = TYPICAL[rung];
    match data {
        _ if rung == 0 => TYPICAL[0],
        // The cost of a sample.
        SimulatedData::Random => Facts {
            ns_per_byte: 0.1,
            ratio: 1.0,
        },
        SimulatedData::Pages => TYPICAL[rung],
        SimulatedData::Text => Facts {
            ns_per_byte: ns_per_byte * 0.8,
            ratio: 1.0 + (ratio - 1.0) * 1.7,
        },
    }
}

fn decode_ns(data: SimulatedData, rung: usize) -> f64 {
    if data == SimulatedData::Random {
        0.0
    } else {
        DECODE_NS[rung]
    }
}

/// A start with the values that the hello measures.
pub(super) fn start(world: &World) -> Start {
    Start {
        round_trip: Duration::from_secs_f64(world.rtt),
        is_guess: false,
        processors_here: world.here.ceil() as u16,
        processors_there: world.there.ceil() as u16,
        slots: 400,
        strongest: Method::Zstd(9),
        may_lzma: true,
        congestion: Congestion::System,
        may_bbr: false,
        nice: false,
        polite: false,
        remembered: None,
        forced: Forced::default(),
    }
}

pub(super) fn run(
    world: World,
    start: Start,
    seed: u64,
    seconds: f64,
    events: &[Event],
) -> SimulatedRun {
    let mut worlds = Vec::new();
    let mut is = world;
    is.rate_limit = is.rate_limit.or(start.forced.rate_limit);
    for (at, event) in events {
        event(&mut is);
        worlds.push((*at, is));
    }
    run_through(world, start, seed, seconds, &worlds)
}

/// Runs through several worlds, each from its second on.
pub(super) fn run_through(
    mut world: World,
    start: Start,
    seed: u64,
    seconds: f64,
    worlds: &[(f64, World)],
) -> SimulatedRun {
    let workers = (
        f64::from(start.processors_here),
        f64::from(start.processors_there),
    );
    world.rate_limit = world.rate_limit.or(start.forced.rate_limit);
    let (tuner, decision) = Tuner::new(start);
    let mut run = SimulatedRun {
        goodput: Vec::new(),
        adjustments: Vec::new(),
        in_flight_s: Vec::new(),
        overhead: 0.0,
        tuner,
        world,
    };
    let mut copy = Copy::new(workers, seed);
    let (mut decision, mut acked, mut worlds) = (decision, 0.0, worlds.iter().peekable());
    let mut next_sample = next_sample(Duration::ZERO);
    for step in 1..=(seconds / STEP).round() as u64 {
        let now = step as f64 * STEP;
        while let Some((_, next)) = worlds.next_if(|(at, _)| *at < now) {
            run.world = *next;
        }
        copy.step(step, &run.world, &decision, run.tuner.held_max());
        run.in_flight_s.push(copy.sent / run.world.link);
        if step.is_multiple_of(STEPS_PER_NOTE) {
            run.goodput
                .push((copy.acked - acked) / (STEP * STEPS_PER_NOTE as f64));
            acked = copy.acked;
        }
        let now_exact = Duration::from_millis(50) * step as u32;
        if now_exact >= next_sample {
            next_sample = now_exact + super::next_sample(now_exact);
            if let Some(adjustment) = run.tuner.on_sample(now_exact, &copy.sample) {
                decision = adjustment.decision;
                run.adjustments.push((now, adjustment));
            }
        }
    }
    run.overhead = copy.dropped / copy.wire.max(1.0);
    run
}

/// The stages of one copy and the queues between them.
struct Copy {
    workers: (f64, f64),
    link: SimulatedLink,
    /// Content bytes and wire bytes that wait for a connection.
    queue: VecDeque<(f64, f64)>,
    queued: f64,
    far_queue: f64,
    acked: f64,
    /// Bytes that the step before took out of each queue; they make room in this step.
    taken: (f64, f64),
    /// The link was the bottleneck in the step before.
    filled: bool,
    /// Fractions of bytes that the counters cannot hold.
    raw: f64,
    wire: f64,
    retransmitted: f64,
    sent: f64,
    dropped: f64,
    far: ReceiverSample,
    sample: Sample,
    seed: u64,
}

impl Copy {
    fn new(workers: (f64, f64), seed: u64) -> Copy {
        Copy {
            workers,
            link: SimulatedLink::default(),
            queue: VecDeque::new(),
            queued: 0.0,
            far_queue: 0.0,
            acked: 0.0,
            taken: (0.0, 0.0),
            filled: false,
            raw: 0.0,
            wire: 0.0,
            retransmitted: 0.0,
            sent: 0.0,
            dropped: 0.0,
            far: ReceiverSample::default(),
            sample: Sample::default(),
            seed,
        }
    }

    fn step(&mut self, step: u64, world: &World, decision: &Decision, held_max: Option<u64>) {
        let is_full = self.queued >= self.hands(decision) * CHUNK / 2.0;
        let method = decision.spare.filter(|_| is_full);
        let method = method.unwrap_or(decision.method);
        let rung = rung(method).expect("the simulator knows the ladder alone");
        let plain = PLAIN_NS * (1.0 + PER_STREAM * f64::from(decision.streams));
        self.send(world, decision, rung, plain);
        self.carry(world, decision, held_max);
        self.receive(world, rung, plain);
        if step.is_multiple_of(STEPS_PER_WORD) {
            self.sample.far = self.far;
        }
    }

    fn send(&mut self, world: &World, decision: &Decision, own: usize, plain: f64) {
        let scout = decision.scout.and_then(rung);
        let shares = match scout {
            None => vec![(own, 1.0)],
            Some(other) => {
                let part = 1.0 / SCOUT_EVERY as f64;
                vec![(own, 1.0 - part), (other, part)]
            }
        };
        let encode: f64 = shares
            .iter()
            .map(|(rung, of)| facts(world.data, *rung).ns_per_byte * of)
            .sum();
        // A worker that gets half a processor takes twice the time.
        let stretch = self.workers.0 / world.here;
        let most = (world.here * 1e9 / (plain + encode)).min(world.read) * STEP;
        let room = (self.hands(decision) * CHUNK + self.taken.0 - self.queued).max(0.0);
        let raw = most.min(room);
        let mut wire = 0.0;
        for (rung, of) in shares {
            let facts = facts(world.data, rung);
            let coded = &mut self.sample.codecs[rung];
            coded.offered_bytes += (raw * of) as u64;
            coded.made_bytes += (raw * of / facts.ratio) as u64;
            coded.busy += ns(raw * of * facts.ns_per_byte * stretch);
            wire += raw * of / facts.ratio;
        }
        self.sample.encode_busy += ns(raw * encode * stretch);
        self.sample.workers_busy += ns(raw * (plain + encode) * stretch);
        self.sample.read_busy += ns(raw / world.read * 1e9);
        self.queue.push_back((raw, wire));
        self.queued += raw;
    }

    /// Frames between workers and the link, including one for each worker.
    fn hands(&self, decision: &Decision) -> f64 {
        f64::from(decision.streams) + f64::from(decision.queue) + self.workers.0
    }

    fn carry(&mut self, world: &World, decision: &Decision, held_max: Option<u64>) {
        let streams = f64::from(decision.streams);
        let carries = self.link.step(STEP, world, decision, held_max);
        (self.sent, self.dropped) = (carries.sent, self.dropped + carries.dropped);
        let rate = carries.bytes_per_s * (1.0 + world.noise * self.chance());
        let rate = world
            .rate_limit
            .map_or(rate, |limit| rate.min(limit as f64));
        // A link that is not full has no queue, and so no loss from it.
        let (loss, round_trip_s) = match self.filled {
            true => (carries.loss, carries.round_trip_s),
            false => (world.loss, world.rtt),
        };
        self.filled = false;
        let mut room = rate.max(0.0) * STEP;
        let far_most = FAR_POOL + self.taken.1;
        self.taken.0 = 0.0;
        while let Some((raw, wire)) = self.queue.pop_front() {
            let fits = (room / wire.max(1.0))
                .min((far_most - self.far_queue) / raw.max(1.0))
                .min(1.0);
            self.far_queue += raw * fits;
            self.queued -= raw * fits;
            self.taken.0 += raw * fits;
            self.raw += raw * fits;
            self.wire += wire * fits;
            room -= wire * fits;
            self.retransmitted += wire * fits * loss;
            if fits < 1.0 {
                self.queue
                    .push_front((raw * (1.0 - fits), wire * (1.0 - fits)));
                self.sample.link_busy += ns(STEP * 1e9);
                self.filled = self.far_queue < far_most * 0.99;
                break;
            }
        }
        let sample = &mut self.sample;
        sample.raw_bytes = self.raw as u64;
        sample.wire_bytes = self.wire as u64;
        sample.carried_bytes = self.wire as u64;
        sample.admitted_bytes = self.wire as u64;
        sample.rate_limit = world.rate_limit;
        sample.frames = (self.raw / CHUNK) as u64;
        sample.queued = (self.queued / CHUNK) as u32;
        sample.retransmitted_bytes = self.retransmitted as u64;
        sample.round_trip = Duration::from_secs_f64(round_trip_s);
        sample.confirmed_bytes = self.wire as u64;
        sample.under_way_bytes = carries.under_way as u64;
        sample.receive_window = (world.window * streams) as u64;
        sample.streams = decision.streams;
    }

    fn receive(&mut self, world: &World, rung: usize, plain: f64) {
        if self.far_queue >= FAR_POOL * 0.99 {
            self.far.waits += ns(STEP * 1e9);
        }
        let decode = decode_ns(world.data, rung);
        let most = (world.there * 1e9 / (plain + decode)).min(world.write) * STEP;
        let raw = most.min(self.far_queue);
        let stretch = self.workers.1 / world.there;
        self.far_queue -= raw;
        self.taken.1 = raw;
        self.acked += raw;
        self.sample.acked_bytes = self.acked as u64;
        self.far.elapsed += ns(STEP * 1e9);
        self.far.workers_busy += ns(raw * (plain + decode) * stretch);
        self.far.decode_busy += ns(raw * decode * stretch);
        self.far.write_busy += ns(raw / world.write * 1e9);
    }

    /// Roughly normal, from three numbers of splitmix64.
    fn chance(&mut self) -> f64 {
        let mut sum = 0.0;
        for _ in 0..3 {
            sum += noise(&mut self.seed);
        }
        (sum - 1.5) * 2.0
    }
}

/// From 0 to 1, by splitmix64.
fn noise(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

fn ns(ns: f64) -> Duration {
    Duration::from_nanos(ns as u64)
}

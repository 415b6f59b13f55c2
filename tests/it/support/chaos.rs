//! Network faults for one copy, chosen by a seed: a script of faults on data connections and on
//! control. The same seed makes the same script on every machine, and a script prints its faults.
//! [`storm`](super::storm) plays it.

use std::fmt;
use std::time::Duration;

use super::tree::noise;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    ToServer,
    ToClient,
}

/// A fault in one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Both ends see an orderly close.
    Close,
    /// Both ends get a reset.
    Reset,
    /// The reading end sees a close; the writing end notices nothing.
    HalfClose,
    /// No byte passes for this time.
    Stall(Duration),
    /// No byte passes any more, and neither end gets an error.
    BlackHole,
    /// One bit is flipped.
    Corrupt,
    /// This many bytes arrive twice.
    Duplicate(usize),
    /// This many bytes are lost from the middle.
    Swallow(usize),
    /// From here on each block arrives this much late.
    Delay(Duration),
    /// From here on this many bytes a second pass.
    Throttle(usize),
}

/// A fault on the nth data connection, after `at` bytes in this direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub connection: usize,
    pub flow: Flow,
    pub at: usize,
    pub fault: Fault,
}

/// A fault on the control of the nth session, after `at` bytes to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub session: usize,
    pub at: usize,
    pub how: Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Both ends see a close.
    Closed,
    /// No byte passes any more in either direction, and neither end gets an error.
    Mute,
    /// No byte passes to the client for this time.
    Stall(Duration),
}

/// All faults of one copy, and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub seed: u64,
    pub steps: Vec<Step>,
    pub cuts: Vec<Cut>,
    pub streams: u16,
    pub compress: &'static str,
    /// Bytes of the biggest file; a tree of small files is copied with it.
    pub big: usize,
}

impl Step {
    /// Raises the rate of a throttled copy with few streams, for which the test would only wait.
    fn bearable(mut self, streams: u16) -> Step {
        if let Fault::Throttle(bytes_per_s) = &mut self.fault
            && streams < 3
        {
            *bytes_per_s = 2_000_000;
        }
        self
    }
}

/// A copy gives up for lack of a route after this many dials of each stream, rightly and at once.
const FIRST_ROUNDS: usize = 3;

/// Removes the faults of one of the first connections, so that the copy has a route.
fn with_a_way(mut steps: Vec<Step>, streams: u16) -> Vec<Step> {
    let first = usize::from(streams) * FIRST_ROUNDS;
    if (0..first).all(|number| steps.iter().any(|step| step.connection == number)) {
        steps.retain(|step| step.connection != first - 1);
    }
    steps
}

const STEPS_MAX: u64 = 7;

/// The number of data connections with faults: the first ones and some redialled ones.
const CONNECTIONS: u64 = 9;

impl Script {
    pub(crate) fn of(seed: u64) -> Script {
        let mut dice = Dice::new(seed);
        let streams = 1 + dice.below(6) as u16;
        let compress = dice.one_of(&["none", "auto", "lz4"]);
        let big = (2 << 20) + dice.below(8 << 20) as usize;
        let steps = (0..=dice.below(STEPS_MAX)).map(|_| dice.step().bearable(streams));
        let steps = with_a_way(steps.collect(), streams);
        // Control is lost in every fourth copy, and in half of these copies twice.
        let cuts = match dice.below(8) {
            0 => vec![dice.cut(0)],
            1 => vec![dice.cut(0), dice.cut(1)],
            _ => Vec::new(),
        };
        Script {
            seed,
            steps,
            cuts,
            streams,
            compress,
            big,
        }
    }

    /// A script without faults.
    pub(crate) fn calm() -> Script {
        Script {
            seed: 0,
            steps: Vec::new(),
            cuts: Vec::new(),
            streams: 4,
            compress: "none",
            big: 0,
        }
    }

    /// True if control survives, so that the copy has no reason to fail.
    pub(crate) fn spares_control(&self) -> bool {
        self.cuts
            .iter()
            .all(|cut| matches!(cut.how, Broken::Stall(_)))
    }

    /// The faults of one direction of a connection, in byte order.
    pub(crate) fn on(&self, connection: usize, flow: Flow) -> Vec<(usize, Fault)> {
        let mut steps: Vec<_> = self
            .steps
            .iter()
            .filter(|step| step.connection == connection && step.flow == flow)
            .map(|step| (step.at, step.fault))
            .collect();
        steps.sort_by_key(|(at, _)| *at);
        steps
    }

    pub(crate) fn cut_of(&self, session: usize) -> Option<Cut> {
        self.cuts.iter().copied().find(|cut| cut.session == session)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "FASTCP_CHAOS_SEED={}: {} streams, compress {}, {} bytes",
            self.seed, self.streams, self.compress, self.big
        )?;
        for step in &self.steps {
            let Step {
                connection,
                flow,
                at,
                fault,
            } = step;
            writeln!(f, "  connection {connection} {flow:?} at {at}: {fault:?}")?;
        }
        for Cut { session, at, how } in &self.cuts {
            writeln!(f, "  control of session {session} at {at}: {how:?}")?;
        }
        Ok(())
    }
}

/// Random choices from a seed.
pub(super) struct Dice {
    bytes: std::vec::IntoIter<u8>,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        let bytes = noise(seed ^ 0xC4A0_5000_0000_0000, 4096).into_iter();
        Dice { bytes }
    }

    /// A number below `bound`; the distribution is even enough for tests.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let bytes = self.bytes.by_ref().take(8);
        let number = bytes.fold(0_u64, |number, byte| number << 8 | u64::from(byte));
        number % bound
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    fn step(&mut self) -> Step {
        Step {
            // The first connections more often than redialled ones.
            connection: self.below(CONNECTIONS).min(self.below(CONNECTIONS)) as usize,
            flow: self.one_of(&[Flow::ToServer, Flow::ToServer, Flow::ToClient]),
            at: self.place(),
            fault: self.fault(),
        }
    }

    /// Openings and headers as often as the middle of the data.
    fn place(&mut self) -> usize {
        let bound = self.one_of(&[80, 300, 70_000, 1 << 20, 3 << 20]);
        self.below(bound) as usize
    }

    fn fault(&mut self) -> Fault {
        match self.below(16) {
            0 | 1 => Fault::Close,
            2 | 3 => Fault::Reset,
            4 => Fault::HalfClose,
            5 => Fault::BlackHole,
            6 | 7 => Fault::Stall(self.millis(50, 3000)),
            8 | 9 => Fault::Corrupt,
            10 | 11 => Fault::Duplicate(1 + self.below(4096) as usize),
            12 => Fault::Swallow(1 + self.below(4096) as usize),
            13 => Fault::Delay(self.millis(1, 20)),
            _ => Fault::Throttle(self.one_of(&[500_000, 2_000_000])),
        }
    }

    fn cut(&mut self, session: usize) -> Cut {
        // The hello alone has about 250 bytes; a first login that breaks there may fail.
        let bound = self.one_of(&[500, 5000, 50_000]);
        let at = self.below(bound) as usize;
        let how = match self.below(6) {
            0 => Broken::Mute,
            1 | 2 => Broken::Stall(self.millis(50, 2500)),
            _ => Broken::Closed,
        };
        Cut { session, at, how }
    }
}

#[test]
fn a_seed_is_one_script_everywhere() {
    assert_eq!(Script::of(7), Script::of(7));
    let of_one = "FASTCP_CHAOS_SEED=1: ";
    assert!(Script::of(1).to_string().starts_with(of_one));
    let scripts: Vec<_> = (0..1000).map(Script::of).collect();
    let steps = || scripts.iter().flat_map(|script| &script.steps);
    // Every kind of fault occurs, in both directions and on every connection.
    let kinds: std::collections::BTreeSet<_> = steps()
        .map(|step| format!("{:?}", std::mem::discriminant(&step.fault)))
        .collect();
    assert_eq!(kinds.len(), 10);
    for connection in 0..CONNECTIONS as usize {
        for flow in [Flow::ToServer, Flow::ToClient] {
            assert!(steps().any(|step| (step.connection, step.flow) == (connection, flow)));
        }
    }
    let lost = scripts.iter().filter(|script| !script.spares_control());
    assert!((50..400).contains(&lost.count()));
}

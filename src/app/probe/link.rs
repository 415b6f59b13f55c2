//! A test of the link's throughput with 1, 2, 4, 8 and 16 connections: a copy of zeros to a
//! destination that discards them. The number of connections changes while it runs. Sealed zeros
//! look like any other bytes.
//!
//! The test counts the bytes that the other kernel has acknowledged. A step lasts until the rate
//! has stopped growing, or until its share of the remaining time is over: slow start on a long
//! link takes several seconds.

use std::pin::Pin;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::app::probe::findings::{Carried, Finding, Hear};
use crate::error::Result;
use crate::session::context::{LinkTest, TestEnds};
use crate::session::request::Compress;
use crate::session::{host, tuning};
use crate::transport::routes::blocked;
use crate::tuner::{Decision, Sample, Start, Tuner};
use crate::wire::message::Tried;

const STEPS: [u16; 5] = [1, 2, 4, 8, 16];

/// How long the far end may take to measure a place. It starts no new round after 1.5 s, but a
/// hanging disk may take longer.
const TRIED_PATIENCE: Duration = Duration::from_secs(5);

/// How long the test waits for data connections other than control, further logins included. After
/// that it measures in-band data, if that is all that arrives.
const STREAMS_PATIENCE: Duration = Duration::from_secs(4);

/// How long until any data arrives.
const FIRST_PATIENCE: Duration = Duration::from_secs(8);

/// Fewer bytes may be only the handshakes of connections.
const FIRST_BYTES: u64 = 64 << 10;

/// How long the whole test may take after the session was opened. With the work before the login
/// and after the last step, a probe stays under 15 s.
const TIME: Duration = Duration::from_millis(10_500);

/// The time over which a rate is measured: some round trips, and some megabytes on most links.
const ROUND_TRIPS: u32 = 4;
const WINDOW_MIN: Duration = Duration::from_millis(400);
const WINDOW_MAX: Duration = Duration::from_millis(800);

/// The first window includes earlier data; two further ones tell whether the rate still grows.
const WINDOWS_MIN: u32 = 3;

/// A rate that is higher by more than this factor still grows.
const GROWS: f64 = 1.1;

/// How long connections have to report the kernel's facts, and how often the test checks for
/// connections.
const ANSWER: Duration = Duration::from_millis(5);
const LOOK: Duration = Duration::from_millis(10);

/// The results of a link test.
#[derive(Clone, Debug, Default)]
pub struct LinkFacts {
    /// Zero if unknown.
    pub round_trip: Duration,
    pub carried: Vec<Carried>,
    pub tried: Tried,
    /// The settings that a tuner would start with.
    pub first: Option<Decision>,
    pub workers_here: u16,
    pub workers_there: u16,
    /// The processors of the machine, if both ends are on one.
    pub processors: Option<u16>,
}

/// Runs once, in the single session of a probe.
pub struct LinkProbe {
    /// The other end's name, made printable.
    host: String,
    hear: Hear,
    /// `--compress`, which does not apply to the test itself.
    compress: Compress,
    tried: watch::Sender<Option<(Instant, Tried)>>,
    facts: Mutex<LinkFacts>,
}

impl LinkTest for LinkProbe {
    fn tried(&self, tried: Tried) {
        self.tried.send_replace(Some((Instant::now(), tried)));
    }

    fn run<'a>(&'a self, ends: TestEnds<'a>) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
        Box::pin(self.measure(ends))
    }
}

impl LinkProbe {
    pub fn new(host: String, compress: Compress, hear: Hear) -> LinkProbe {
        LinkProbe {
            host,
            hear,
            compress,
            tried: watch::Sender::new(None),
            facts: Mutex::default(),
        }
    }

    pub fn facts(&self) -> LinkFacts {
        self.facts.lock().clone()
    }

    async fn measure(&self, ends: TestEnds<'_>) -> Result<()> {
        let answered = self.hear_tried(&ends).await;
        self.first_bytes(&ends).await?;
        // Measured before the link has queues.
        let round_trip = ends
            .connection_set
            .round_trip()
            .or(answered)
            .unwrap_or_default();
        (self.hear)(&Finding::RoundTrip(round_trip));
        {
            let mut facts = self.facts.lock();
            facts.round_trip = round_trip;
            facts.workers_here = ends.budget.workers as u16;
            let threads = ends.sender.context.options.threads;
            facts.workers_there = threads.unwrap_or(ends.hello.processors);
            let is_one = host::is_this_machine(&ends.hello.boot_id);
            facts.processors = is_one.then_some(ends.hello.processors);
            facts.first = Some(self.first_decision(&ends, round_trip));
        }
        let window = (ROUND_TRIPS * round_trip).clamp(WINDOW_MIN, WINDOW_MAX);
        let until = ends.opened + TIME;
        let steps = steps(&ends);
        for (nth, &streams) in steps.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let share = left / (steps.len() - nth) as u32;
            let carried = step(&ends, streams, window, share).await;
            (self.hear)(&Finding::Carried(carried));
            self.facts.lock().carried.push(carried);
            if carried.up == 0 {
                // More connections would also go inside the login.
                break;
            }
        }
        Ok(())
    }

    /// Waits for the far end's measurement of its disk. Returns the time of the answer if there
    /// was nothing to measure.
    async fn hear_tried(&self, ends: &TestEnds<'_>) -> Option<Duration> {
        let mut tried = self.tried.subscribe();
        let said = async {
            loop {
                // Data may start to flow as soon as the answer arrives.
                ends.connection_set.want(STEPS[0]);
                let heard = *tried.borrow_and_update();
                if heard.is_some() {
                    return heard;
                }
                let _ = timeout(LOOK, tried.changed()).await;
            }
        };
        let (at, tried) = timeout(TRIED_PATIENCE, said).await.ok().flatten()?;
        if tried != Tried::default() {
            (self.hear)(&Finding::Tried(tried));
            self.facts.lock().tried = tried;
        }
        // A measurement takes longer than any round trip.
        (tried == Tried::default()).then(|| at - ends.opened)
    }

    /// Waits until data arrives, on a connection other than control if possible.
    async fn first_bytes(&self, ends: &TestEnds<'_>) -> Result<()> {
        let began = Instant::now();
        loop {
            // The end that dials has its own guess.
            steer(ends, STEPS[0]);
            let sample = look(ends).await;
            let comes = sample.carried_bytes >= FIRST_BYTES;
            if comes && (sample.streams > 0 || began.elapsed() > STREAMS_PATIENCE) {
                return Ok(());
            }
            if began.elapsed() > FIRST_PATIENCE {
                let why = format!("no data arrived within {} s", FIRST_PATIENCE.as_secs());
                return Err(blocked(Some(&self.host), why));
            }
            sleep(LOOK).await;
        }
    }

    /// The settings that a copy between these two hosts would start with.
    fn first_decision(&self, ends: &TestEnds<'_>, round_trip: Duration) -> Decision {
        let mut options = ends.sender.context.options.clone();
        options.compress = self.compress;
        let (budget, remembered) = (ends.budget, ends.remembered);
        let start = tuning::start(budget, &options, ends.streams, ends.hello, remembered);
        let round_trip = match round_trip.is_zero() {
            true => start.round_trip,
            false => round_trip,
        };
        Tuner::new(Start {
            round_trip,
            ..start
        })
        .1
    }
}

/// Numbers of connections to test, within the limits of the user and of memory.
fn steps(ends: &TestEnds<'_>) -> Vec<u16> {
    let most = ends.streams.unwrap_or(u16::MAX);
    let most = most.min(ends.budget.streams_max());
    let mut steps: Vec<u16> = STEPS.into_iter().filter(|&step| step <= most).collect();
    if let Some(asked) = ends.streams.filter(|_| !steps.contains(&most)) {
        steps.push(asked.min(most));
    }
    steps
}

async fn step(ends: &TestEnds<'_>, streams: u16, window: Duration, share: Duration) -> Carried {
    let began = Instant::now();
    steer(ends, streams);
    let mut before = look(ends).await;
    // Further logins take time.
    while before.streams > 0 && before.streams < streams && began.elapsed() < share / 2 {
        sleep(LOOK).await;
        before = look(ends).await;
    }
    let mut at = Instant::now();
    let (mut last, mut windows) = (0.0, 0);
    loop {
        sleep(window).await;
        let (sample, now) = (look(ends).await, Instant::now());
        let carried = sample.carried_bytes.saturating_sub(before.carried_bytes);
        let rate = carried as f64 / (now - at).as_secs_f64().max(1e-3);
        windows += 1;
        let grows = rate > last * GROWS;
        let is_over = began.elapsed() + window > share;
        if is_over || (windows >= WINDOWS_MIN && !grows) {
            return Carried {
                streams,
                up: sample.streams,
                // A rate that has settled is the mean of two windows.
                bytes_per_s: if grows { rate } else { (rate + last) / 2.0 },
            };
        }
        (before, at, last) = (sample, now, rate);
    }
}

fn steer(ends: &TestEnds<'_>, streams: u16) {
    let decision = Decision::of_link_test(streams);
    ends.sender.chunks.encoder_control.steer(&decision);
    ends.sender
        .scheduler
        .steer(decision.in_flight, decision.streams, decision.packs);
    ends.connection_set.want(streams);
    ends.connection_set.put_to_work(streams);
}

async fn look(ends: &TestEnds<'_>) -> Sample {
    ends.connection_set.ask();
    sleep(ANSWER).await;
    let mut sample = Sample::default();
    ends.connection_set.fill(&mut sample);
    sample
}

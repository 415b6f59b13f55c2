//! What the link carries with 1, 2, 4, 8 and 16 streams: a copy of zeros to where nothing is kept,
//! of which the number of streams is changed while it runs. Sealed, they look like any other bytes.
//!
//! Counted is what the other kernel has acknowledged. A step lasts until the rate has stopped
//! growing, or the share of the time that is left for it is over: slow start on a long way takes
//! several seconds.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, Kind, Result, Side};
use crate::pipeline::Budget;
use crate::pipeline::sender::Sender;
use crate::session::host;
use crate::session::probe::{Finding, Hear};
use crate::session::request::Compress;
use crate::session::roster::Roster;
use crate::session::tuning;
use crate::tuner::{Decision, Remembered, Sample, Start, Tuner};
use crate::wire::hello::Hello;
use crate::wire::message::Tried;

const STEPS: [u16; 5] = [1, 2, 4, 8, 16];

/// How long the far end may take to try a place: it gives up new rounds after a second and a half,
/// but a disk that hangs does not.
const TRIED_PATIENCE: Duration = Duration::from_secs(5);

/// How long until data goes by streams of its own, further logins included; what goes inside the
/// first login until then is the link too, if nothing else comes.
const STREAMS_PATIENCE: Duration = Duration::from_secs(4);

/// How long until any data comes through.
const FIRST_PATIENCE: Duration = Duration::from_secs(8);

/// Less may have been the openings of streams.
const FIRST_BYTES: u64 = 64 << 10;

/// How long all of it may take, from when the session was opened: with what comes before the login
/// and after the last step it stays under 15 s.
const TIME: Duration = Duration::from_millis(10_500);

/// Over how long a rate is taken: some round trips, and some megabytes on most links.
const ROUND_TRIPS: u32 = 4;
const WINDOW_MIN: Duration = Duration::from_millis(400);
const WINDOW_MAX: Duration = Duration::from_millis(800);

/// The first shows what was begun before; two that follow each other tell whether it still grows.
const WINDOWS_MIN: u32 = 3;

/// A rate that is higher by more than this still grows.
const GROWS: f64 = 1.1;

/// How long streams take to say what the kernel knows of them, and how often it is looked whether
/// there are any.
const ANSWER: Duration = Duration::from_millis(5);
const LOOK: Duration = Duration::from_millis(10);

/// What was carried with so many streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    pub streams: u16,
    /// Those that were up; none where data went inside the login.
    pub up: u16,
    pub bytes_per_s: f64,
}

/// What a link test found.
#[derive(Clone, Debug, Default)]
pub struct LinkFacts {
    /// Zero if nobody could tell.
    pub round_trip: Duration,
    pub carried: Vec<Carried>,
    pub tried: Tried,
    /// What a tuner would begin with.
    pub first: Option<Decision>,
    pub workers_here: u16,
    pub workers_there: u16,
    /// Of the machine, where both ends are on one.
    pub processors: Option<u16>,
}

/// The sender's side of one session, as far as a test has to do with it.
pub struct Ends<'a> {
    pub sender: &'a Sender,
    pub roster: &'a Roster,
    pub hello: &'a Hello,
    pub budget: Budget,
    pub remembered: Option<Remembered>,
    /// `--streams`
    pub streams: Option<u16>,
    /// When the server was told what to do.
    pub opened: Instant,
}

/// Runs once, in the one session of a probe.
pub struct LinkTest {
    hear: Hear,
    /// `--compress`, which is not for the test itself.
    compress: Compress,
    tried: watch::Sender<Option<(Instant, Tried)>>,
    facts: Mutex<LinkFacts>,
}

impl LinkTest {
    pub fn new(compress: Compress, hear: Hear) -> LinkTest {
        LinkTest {
            hear,
            compress,
            tried: watch::Sender::new(None),
            facts: Mutex::default(),
        }
    }

    /// The far end has tried its disk.
    pub fn tried(&self, tried: Tried) {
        self.tried.send_replace(Some((Instant::now(), tried)));
    }

    pub fn facts(&self) -> LinkFacts {
        self.lock().clone()
    }

    /// Measures; the session is over then.
    ///
    /// # Errors
    /// `Kind::Connect` where nothing comes through.
    pub async fn run(&self, ends: Ends<'_>) -> Result<()> {
        let answered = self.hear_tried(&ends).await;
        self.first_bytes(&ends).await?;
        // Before the link has queues.
        let round_trip = ends.roster.round_trip().or(answered).unwrap_or_default();
        (self.hear)(&Finding::RoundTrip(round_trip));
        {
            let mut facts = self.lock();
            facts.round_trip = round_trip;
            facts.workers_here = ends.budget.workers as u16;
            let threads = ends.sender.options.threads;
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
            self.lock().carried.push(carried);
            if carried.up == 0 {
                // More would go inside the login too.
                break;
            }
        }
        Ok(())
    }

    /// Waits for what the far end says of its disk; gives the time in which it answered.
    async fn hear_tried(&self, ends: &Ends<'_>) -> Option<Duration> {
        let mut tried = self.tried.subscribe();
        let said = async {
            loop {
                // Data may begin to flow as soon as this has come.
                ends.roster.want(STEPS[0]);
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
            self.lock().tried = tried;
        }
        // What it did meanwhile took longer than any round trip.
        (tried == Tried::default()).then(|| at - ends.opened)
    }

    /// Waits until data comes through, by a stream of its own if that is to be had.
    async fn first_bytes(&self, ends: &Ends<'_>) -> Result<()> {
        let began = Instant::now();
        loop {
            // Whoever dials has a guess of its own.
            steer(ends, STEPS[0]);
            let sample = look(ends).await;
            let comes = sample.carried_bytes >= FIRST_BYTES;
            if comes && (sample.streams > 0 || began.elapsed() > STREAMS_PATIENCE) {
                return Ok(());
            }
            if began.elapsed() > FIRST_PATIENCE {
                let message = format!(
                    "logged in, but no data came through within {} s; is there a firewall between?",
                    FIRST_PATIENCE.as_secs()
                );
                return Err(Error::new(Kind::Connect, Side::Here, message));
            }
            sleep(LOOK).await;
        }
    }

    /// What a copy would begin with between these two.
    fn first_decision(&self, ends: &Ends<'_>, round_trip: Duration) -> Decision {
        let mut options = ends.sender.options.clone();
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

    fn lock(&self) -> MutexGuard<'_, LinkFacts> {
        self.facts.lock().expect("no panic while held")
    }
}

/// As many streams as the user allows, and memory.
fn steps(ends: &Ends<'_>) -> Vec<u16> {
    let most = ends.streams.unwrap_or(u16::MAX);
    let most = most.min(ends.budget.streams_max());
    let mut steps: Vec<u16> = STEPS.into_iter().filter(|&step| step <= most).collect();
    if let Some(asked) = ends.streams.filter(|_| !steps.contains(&most)) {
        steps.push(asked.min(most));
    }
    steps
}

async fn step(ends: &Ends<'_>, streams: u16, window: Duration, share: Duration) -> Carried {
    let began = Instant::now();
    steer(ends, streams);
    let mut before = look(ends).await;
    // Further logins take their time.
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
                // A rate that has settled is the mean of two looks at it.
                bytes_per_s: if grows { rate } else { (rate + last) / 2.0 },
            };
        }
        (before, at, last) = (sample, now, rate);
    }
}

fn steer(ends: &Ends<'_>, streams: u16) {
    let decision = Decision::of_link_test(streams);
    ends.sender.steering.steer(&decision);
    ends.sender
        .plans
        .steer(decision.in_flight, decision.streams, decision.packs);
    ends.roster.want(streams);
    ends.roster.put_to_work(streams);
}

async fn look(ends: &Ends<'_>) -> Sample {
    ends.roster.ask();
    sleep(ANSWER).await;
    let mut sample = Sample::default();
    ends.roster.fill(&mut sample);
    sample
}

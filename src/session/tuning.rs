//! The loop around the tuner: it gives the tuner a sample every quarter of a second and carries out
//! its decisions. It runs at the sending end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use crate::algorithms::{Codec, Method};
use crate::control::Outgoing;
use crate::error::{Error, Result};
use crate::outcome::{CopyActivity, Remembered};
use crate::pipeline::Budget;
use crate::pipeline::send::{Sender, encoder_control};
use crate::report::Reporter;
use crate::session::polite;
use crate::transport::connection::kernel;
use crate::transport::connections::ConnectionSet;
use crate::transport::rate_limit::RateLimiter;
use crate::tuner::{
    self, Adjustment, Congestion, Decision, Forced, ReceiverSample, Sample, Start, Tuner,
};
use crate::units::printable;
use crate::wire::hello::Hello;
use crate::wire::message::{Busy, Conclusion, CopyOptions, Message, Tune};

/// How long connections have to report the kernel's facts. On a very busy host a later report is
/// missed, and the previous one counts.
const ANSWER: Duration = Duration::from_millis(5);

/// How often the loop checks for a first connection, and how many times it checks for the kernel's
/// facts. A connection that is not TCP has none; then the tuner begins with a guess.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const FIRST_LOOKS: u32 = 100;

/// The round trip assumed when none is known.
const ROUND_TRIP_GUESS: Duration = Duration::from_millis(20);

/// How often the user's end is told what this one does.
const TELL: Duration = Duration::from_secs(1);

const BBR: &str = "bbr";

/// The recipient of decisions.
pub enum Audience {
    /// The user is at this end. Either end may dial.
    User(Arc<dyn Reporter>, Outgoing),
    /// The user is at the other end, which dials if this one does not.
    Peer(Outgoing),
    /// There are no connections.
    Nobody,
}

impl Audience {
    /// Reports a line to the user, for `-v`.
    fn tell(&self, line: String) {
        match self {
            Audience::User(reporter, _) => reporter.detail(&line),
            Audience::Peer(control) => {
                control.try_send(Message::Tune(Tune::reason(line)));
            }
            Audience::Nobody => {}
        }
    }
}

/// What a tuner must know of its session.
pub struct TuningTerms {
    pub sender: Arc<Sender>,
    /// None if both ends are in this process.
    pub connection_set: Option<Arc<ConnectionSet>>,
    /// Facts known before the first connection is up; the round trip is a guess.
    pub start: Start,
    pub audience: Audience,
    /// The rate limit of this end; the user may change it while the copy runs.
    pub limit: Arc<RateLimiter>,
}

/// Tunes the copy until it is dropped.
pub struct Tuning {
    shared: Arc<TuningShared>,
    _tuning: AbortOnDropHandle<()>,
    _polite: Option<AbortOnDropHandle<()>>,
}

struct TuningShared {
    terms: TuningTerms,
    state: Mutex<Option<TuningState>>,
}

struct TuningState {
    tuner: Tuner,
    began: Instant,
}

impl Tuning {
    pub fn start(terms: TuningTerms) -> Tuning {
        // A short copy may be cut into chunks before the first connection is measured.
        if let Some(streams) = terms.start.forced.streams {
            terms.sender.scheduler.share_among(streams);
        }
        let shared = Arc::new(TuningShared {
            terms,
            state: Mutex::default(),
        });
        let tuning = tokio::spawn(tune(shared.clone()));
        let is_polite = shared.terms.sender.context.options.polite;
        let connection_set = shared.terms.connection_set.clone().filter(|_| is_polite);
        let polite = connection_set.map(|connection_set| {
            let limit = shared.terms.limit.clone();
            let shared = shared.clone();
            let tell = move |line| shared.terms.audience.tell(line);
            AbortOnDropHandle::new(tokio::spawn(polite::keep(connection_set, limit, tell)))
        });
        Tuning {
            shared,
            _tuning: AbortOnDropHandle::new(tuning),
            _polite: polite,
        }
    }

    /// The copy's bottleneck, and the settings to remember.
    pub fn conclude(&self) -> Conclusion {
        let mut sample = self.shared.sample();
        // All data has arrived, whatever the kernel reported last.
        sample.carried_bytes = sample.carried_bytes.max(sample.wire_bytes);
        let mut state = self.shared.state.lock();
        let Some(TuningState { tuner, began }) = state.as_mut() else {
            return Conclusion::default();
        };
        // The copy is over, so a decision is of no use.
        let _ = tuner.on_sample(began.elapsed(), &sample);
        let conclusion = Conclusion {
            verdict: Some(tuner.verdict()),
            remembered: tuner.remembered(),
        };
        drop(state);
        let _ = self.shared.note_activity();
        conclusion
    }
}

async fn tune(shared: Arc<TuningShared>) {
    let mut start = shared.terms.start.clone();
    if let Some(connection_set) = &shared.terms.connection_set
        && let Some(round_trip) = first_round_trip(connection_set).await
    {
        (start.round_trip, start.is_guess) = (round_trip, false);
    }
    let (tuner, first) = Tuner::new(start);
    *shared.state.lock() = Some(TuningState {
        tuner,
        began: Instant::now(),
    });
    if let (Some(connection_set), Some(name)) = (
        &shared.terms.connection_set,
        &shared.terms.sender.context.options.congestion,
    ) {
        connection_set.set_congestion(name);
    }
    shared.carry_out(&first, None, None);
    let mut before = first;
    let mut told_at = None;
    loop {
        tokio::time::sleep(shared.next_sample()).await;
        if let Some(connection_set) = &shared.terms.connection_set {
            connection_set.ask();
            tokio::time::sleep(ANSWER).await;
            shared.hurry(connection_set);
        }
        let sample = shared.sample();
        shared.share_rest(&sample);
        let adjustment = shared.adjust(&sample);
        if let Some(adjustment) = adjustment {
            let decision = adjustment.decision;
            shared.carry_out(&decision, Some(&before), adjustment.reason);
            before = decision;
        }
        let activity = shared.note_activity();
        if let (Audience::Peer(control), Some(activity)) = (&shared.terms.audience, activity)
            && told_at.is_none_or(|at: Instant| at.elapsed() >= TELL)
        {
            // Dropped if the queue is full; the next one says more.
            control.try_send(Message::Activity(CopyActivity::clone(&activity)));
            told_at = Some(Instant::now());
        }
    }
}

/// Waits for the first connection; returns its round trip as the kernel measured it.
async fn first_round_trip(connection_set: &ConnectionSet) -> Option<Duration> {
    let mut looks = 0;
    while looks < FIRST_LOOKS {
        if let Some(round_trip) = connection_set.round_trip() {
            return Some(round_trip);
        }
        looks += u32::from(connection_set.has_streams());
        tokio::time::sleep(FIRST_LOOK).await;
    }
    None
}

impl TuningShared {
    fn sample(&self) -> Sample {
        let TuningTerms {
            sender,
            connection_set,
            limit,
            ..
        } = &self.terms;
        let mut sample = Sample {
            acked_bytes: sender.context.progress.bytes(),
            rest_bytes: sender.context.progress.rest_bytes(),
            queued: sender.frames.len() as u32,
            far: far(sender.control.far()),
            rate_limit: limit.rate(),
            admitted_bytes: limit.admitted_bytes(),
            ..Sample::default()
        };
        sender.chunks.encoder_control.fill(&mut sample);
        match connection_set {
            Some(connection_set) => connection_set.fill(&mut sample),
            // Frames are handed over in memory: no link can be busy.
            None => sample.carried_bytes = sample.wire_bytes,
        }
        sample
    }

    fn next_sample(&self) -> Duration {
        let state = self.state.lock();
        let state = state.as_ref().expect("made before the first sample");
        state.tuner.next_sample(state.began.elapsed())
    }

    fn adjust(&self, sample: &Sample) -> Option<Adjustment> {
        let mut state = self.state.lock();
        let TuningState { tuner, began } = state.as_mut()?;
        let adjustment = tuner.on_sample(began.elapsed(), sample);
        if let Some(connection_set) = &self.terms.connection_set {
            connection_set.limit_held(tuner.held_max());
        }
        adjustment
    }

    /// Records what this end does. None before the first sample.
    fn note_activity(&self) -> Option<Arc<CopyActivity>> {
        let terms = &self.terms;
        let (elapsed, shares, method) = {
            let state = self.state.lock();
            let TuningState { tuner, began } = state.as_ref()?;
            (began.elapsed(), tuner.shares(), tuner.decision().method)
        };
        let connections = terms.connection_set.as_ref();
        let activity = CopyActivity {
            elapsed_us: elapsed.as_micros() as u64,
            shares,
            method,
            connections: connections.map_or_else(Vec::new, |it| it.carried_by_each()),
        };
        Some(terms.sender.context.progress.set_activity(activity))
    }

    /// At the end of a copy, sends chunks again on idle connections if loss slowed their own down.
    fn hurry(&self, connection_set: &ConnectionSet) {
        let sender = &self.terms.sender;
        if sender.frames.is_empty() && sender.scheduler.is_all_taken() {
            let late = connection_set.late();
            let (all, newest) = (&late.all, &late.newest);
            sender.scheduler.repeat(all, newest, late.idle);
        }
    }

    /// At the end of a copy, gives the last frames to the connections that deliver them first.
    fn share_rest(&self, sample: &Sample) {
        let Some(connection_set) = &self.terms.connection_set else {
            return;
        };
        let left = sample.rest_bytes.map(|rest| {
            let under_way = sample.raw_bytes.saturating_sub(sample.acked_bytes);
            let raw = rest.saturating_sub(under_way);
            let ratio = sample.wire_bytes as f64 / sample.raw_bytes.max(1) as f64;
            (raw as f64 * ratio) as u64
        });
        let frame = sample.wire_bytes / sample.frames.max(1);
        connection_set.share_rest(left, frame);
    }

    fn carry_out(&self, decision: &Decision, before: Option<&Decision>, reason: Option<String>) {
        let TuningTerms {
            sender,
            connection_set,
            start,
            audience,
            ..
        } = &self.terms;
        let is_lzma = |decision: &Decision| matches!(decision.method, Method::Lzma(_));
        if is_lzma(decision) && before.is_some_and(|before| !is_lzma(before)) {
            // First, since steering wakes the workers.
            sender.compress_again();
        }
        sender.chunks.encoder_control.steer(decision);
        sender
            .scheduler
            .steer(decision.in_flight, decision.streams, decision.packs);
        if let Some(connection_set) = connection_set {
            connection_set.want(decision.ready);
            connection_set.put_to_work(decision.streams);
            sender.context.progress.set_streams(connection_set.most());
            let is_new = before.is_some_and(|before| before.congestion != decision.congestion);
            if is_new && !start.forced.congestion {
                match decision.congestion {
                    Congestion::Bbr => connection_set.set_congestion(BBR),
                    Congestion::System => {
                        if let Some(name) = kernel::congestion_default() {
                            connection_set.set_congestion(&name);
                        }
                    }
                }
            }
        }
        let has_news = before.is_none_or(|before| before.ready != decision.ready);
        match audience {
            Audience::User(reporter, control) => {
                if let Some(reason) = reason {
                    reporter.detail(&reason);
                }
                if has_news {
                    control.try_send(tell(decision, String::new()));
                }
            }
            Audience::Peer(control) if has_news || reason.is_some() => {
                control.try_send(tell(decision, reason.unwrap_or_default()));
            }
            Audience::Peer(_) | Audience::Nobody => {}
        }
    }
}

fn tell(decision: &Decision, reason: String) -> Message {
    Message::Tune(Tune {
        streams: Some(decision.ready),
        rate_limit: None,
        reason,
    })
}

/// The number of connections to dial before anything is known of the link.
pub fn first_streams(forced: Option<u16>) -> u16 {
    tuner::first_streams(ROUND_TRIP_GUESS, forced)
}

/// Facts known at the sending end before the first connection is up; `far` is the other end's
/// hello.
pub fn start(
    budget: Budget,
    options: &CopyOptions,
    streams: Option<u16>,
    far: &Hello,
    remembered: Option<Remembered>,
) -> Start {
    let processors = options.threads.unwrap_or(far.processors);
    Start {
        round_trip: ROUND_TRIP_GUESS,
        is_guess: true,
        processors_here: budget.workers as u16,
        processors_there: processors,
        slots: budget.slots,
        strongest: budget.strongest,
        may_lzma: budget.lzma_workers > 0 && far.codecs.contains(&Codec::Lzma.number()),
        congestion: congestion_first(options),
        may_bbr: options.congestion.is_none() && !options.polite && may_bbr(),
        nice: options.nice,
        polite: options.polite,
        remembered,
        forced: Forced {
            streams,
            compress: encoder_control::method(options.compress),
            // Bbr fills queues that a polite copy leaves empty.
            congestion: options.congestion.is_some() || options.polite,
            threads: options.threads,
            rate_limit: options.rate_limit,
        },
    }
}

/// Checks that this host's sockets can use a congestion control.
///
/// # Errors
/// `Kind::Usage` if they cannot.
pub fn check_congestion(name: &str) -> Result<()> {
    if kernel::may_use(name) {
        return Ok(());
    }
    let allowed = kernel::congestions_allowed();
    Err(Error::usage(format!(
        "--congestion {}: not allowed on the sending host; allowed there: {allowed} \
         (net.ipv4.tcp_allowed_congestion_control)",
        printable(name.as_bytes()),
    )))
}

/// The congestion control that data connections begin with, as far as the tuner tells them apart.
fn congestion_first(options: &CopyOptions) -> Congestion {
    let default = kernel::congestion_default();
    match options.congestion.as_deref().or(default.as_deref()) {
        Some(BBR) => Congestion::Bbr,
        _ => Congestion::System,
    }
}

/// True if data sockets on this host may use bbr and do not use it by default.
fn may_bbr() -> bool {
    kernel::congestion_default().as_deref() != Some(BBR) && kernel::may_use(BBR)
}

fn far(busy: Busy) -> ReceiverSample {
    ReceiverSample {
        elapsed: Duration::from_micros(busy.elapsed_us),
        workers_busy: Duration::from_micros(busy.workers_us),
        decode_busy: Duration::from_micros(busy.decode_us),
        write_busy: Duration::from_micros(busy.write_us),
        waits: Duration::from_micros(busy.waits_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::host;

    #[test]
    fn connections_that_begin_with_bbr_are_known_to() {
        let congestion = |name: &str| {
            congestion_first(&CopyOptions {
                congestion: Some(name.to_owned()),
                ..CopyOptions::default()
            })
        };
        assert_eq!(congestion(BBR), Congestion::Bbr);
        assert_eq!(congestion("cubic"), Congestion::System);
    }

    #[test]
    fn a_polite_copy_is_neither_tuned_to_bbr_nor_told_to_allow_it() {
        let start = |polite| {
            let options = CopyOptions {
                polite,
                ..CopyOptions::default()
            };
            let budget = Budget::new(&options, None, 1 << 20).expect("it fits");
            start(budget, &options, None, &host::hello(), None)
        };
        assert!(!start(false).forced.congestion);
        let polite = start(true);
        assert!(polite.forced.congestion && !polite.may_bbr && polite.polite);
    }
}

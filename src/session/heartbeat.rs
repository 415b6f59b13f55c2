//! Heartbeats: messages that each end sends every second. They tell a slow end from a lost one, and
//! each end learns which data connections the other has.
//!
//! # Time limits
//!
//! | wait | limit | then |
//! |---|---|---|
//! | login, server's hello | `--timeout`; after a loss ≤ 30 s (`login`) | `Connect` or `FarEnd` |
//! | ssh's configuration; addresses of a host | 5 s for each question (`names`, `pinned`) | unknown |
//! | the client's hello | 1 h, as it may be installing fastcp elsewhere (`server`) | the server ends |
//! | more of the client's first messages | 30 s (`HELLO_TIMEOUT`) | `Lost` |
//! | first connection of two hosts by a given route | 12 s (`relay`) | `Connect` |
//! | anything on control, or on a data connection, from then on | `--timeout`; 3/4 of it at the server | `Lost` |
//! | anything on control while data connections work | twice that | `Lost` |
//! | a TCP connect | 10 s for each address (`routes::direct`) | dialled again |
//! | an opening, and its answer | 5 s each (`handshake`) | dialled again |
//! | an unproven connection at the listener | 5 s; at most 32 of them | dropped |
//! | progress of a connection | 5 s or 20 round trips (`stall`) | dialled again |
//! | the other end to list a connection | 3 heartbeats; 10 s for a new one | dialled again |
//! | the pause between two dials | 250 ms to 10 s (`backoff`) | |
//! | any connection or any progress of the data | `--timeout` | `Lost`; `Connect` if none was proven |
//! | a further login | 30 s (`ssh_login`); six failures in a row | no more for its stream |
//! | first connection by a given route | 3 dials of each connection; reverse: 12 s (`route_choice`) | `Connect` |
//! | data on a proven connection | 2 s (`connections`) | other routes are tried as well |
//! | credit for data on control | none: it depends on control alone | |
//! | a command, or the other end of a pipe | none: it ends with the copy | |
//! | acknowledgements | none: control and the data connections have their own limits | |
//! | threads of an end that stops | 0.9 s; a receiver after success 5 s, then 0.9 s; at least 0.2 s for the clean-up (`endpoint`) | left behind |
//! | the server, for control to close | 5 s; 20 ms if it has received all; 1 s if the client is lost (`server`) | it exits |
//! | the client, for the server to exit | 10 s; failure 0.5 s, command 3 s (`login`) | killed |
//! | the client, for the last lines of ssh | 0.5 s, open question 1.2 s, command 3 s (`login`) | they are lost |
//! | the client, for the last counts of another host's sender | 10 s (`relay`) | the last that came are shown |
//!
//! A heart's clock counts only its own ticks, so time in which the process was stopped does not
//! count. At a late tick no limit is checked, because messages that arrived during the stop must
//! be read first.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tokio_util::task::AbortOnDropHandle;

use crate::control::Outgoing;
use crate::error::{Error, Kind, Side};
use crate::locks::{OrderedMutex, place};
use crate::pipeline::Shutdown;
use crate::pipeline::send::Sender;
use crate::progress::Progress;
use crate::report::Reporter;
use crate::transport::connections::{ConnectionSet, DeadConnections, Flow};
use crate::transport::routes::{NO_ANSWER, blocked, cut_off};
use crate::wire::message::{ConnectionFacts, Heartbeat, Message, Tune};

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);

/// A tick that comes later than this follows a stop of the process, or of the machine.
const LATE: Duration = Duration::from_secs(3);

/// Tolerance for a tick that comes early, or for its clock. Without it, nearly every timeout would
/// come one tick later.
const ROUNDING: Duration = Duration::from_millis(100);

/// How many timeouts may pass without a byte on control while the other end is heard on data
/// connections. TCP doubles the time between its retransmissions, so control may be silent for
/// twice as long as the link was down. Data connections are dialled again before that.
const CONTROL_TIMEOUTS: u32 = 2;

/// The part of the client's timeout that a server waits, so that it has ended when the client logs
/// in again.
const SERVER_PART: (u32, u32) = (3, 4);

/// The least timeout, below the smallest that the command line accepts: a server's client may send
/// any.
const TIMEOUT_MIN: Duration = Duration::from_secs(4);

/// Characters of a reason that are shown.
const REASON_MAX: usize = 200;

/// Chunks that may be retransmitted each second, for each idle connection.
const REPEATS: usize = 2;

/// The end that a heart is for.
#[derive(Clone)]
pub enum HeartPlace {
    /// `host` is the other end's name, made printable. The client decides whether connections can
    /// be made, because it dials.
    Client {
        host: String,
        reporter: Arc<dyn Reporter>,
        /// Most connections that the other end may ask for, if it is the sender.
        streams_max: u16,
    },
    Server {
        streams_max: u16,
        /// The data connections lead to another server, so they say nothing about the client.
        between: bool,
    },
}

/// What a heart needs to know.
pub struct HeartTerms {
    pub place: HeartPlace,
    /// `--timeout`
    pub timeout_s: u16,
    pub control: Outgoing,
    /// Bytes that have arrived on control.
    pub heard: Arc<AtomicU64>,
    pub connection_set: Arc<ConnectionSet>,
    pub progress: Arc<Progress>,
    pub shutdown: Arc<Shutdown>,
}

/// Sends heartbeats until it is dropped; then the session's data connections end too.
pub struct Heart {
    shared: Arc<HeartShared>,
    _beating: AbortOnDropHandle<()>,
}

struct HeartShared {
    terms: HeartTerms,
    timeout: Duration,
    peer: OrderedMutex<Peer, { place::HEART }>,
    /// This end does not read control for now, so silence means nothing.
    is_paused: AtomicBool,
    /// The other end has announced its roots, or their destinations.
    is_peer_ready: AtomicBool,
    sender: OnceLock<Arc<Sender>>,
}

/// The contents of the other end's heartbeats.
#[derive(Default)]
struct Peer {
    beats: u64,
    streams: Vec<ConnectionFacts>,
}

impl Heart {
    /// Starts the heartbeats and the check of the other end's silence.
    pub fn start(terms: HeartTerms) -> Heart {
        let timeout = Duration::from_secs(terms.timeout_s.into()).max(TIMEOUT_MIN);
        let timeout = match terms.place {
            HeartPlace::Client { .. } => timeout,
            HeartPlace::Server { .. } => timeout * SERVER_PART.0 / SERVER_PART.1,
        };
        let shared = Arc::new(HeartShared {
            terms,
            timeout,
            peer: OrderedMutex::default(),
            is_paused: AtomicBool::new(false),
            is_peer_ready: AtomicBool::new(false),
            sender: OnceLock::new(),
        });
        let beating = tokio::spawn(beat(shared.clone()));
        Heart {
            shared,
            _beating: AbortOnDropHandle::new(beating),
        }
    }

    /// Takes the other end's heartbeat.
    pub fn hear(&self, heartbeat: Heartbeat) {
        let mut peer = self.shared.peer.lock();
        peer.beats += 1;
        peer.streams = heartbeat.streams;
    }

    /// Notes that the other end is prepared, and accepts connections from now on.
    pub fn peer_is_ready(&self) {
        self.shared.is_peer_ready.store(true, Relaxed);
    }

    /// Says whether this end has stopped reading control because it has too much to work off.
    pub fn pause(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Relaxed);
    }

    /// Takes the sender's decision on the number of connections.
    pub fn tune(&self, tune: &Tune) {
        let HeartTerms {
            place,
            connection_set,
            ..
        } = &self.shared.terms;
        if connection_set.flow() != Flow::In {
            return;
        }
        let (HeartPlace::Client { streams_max, .. } | HeartPlace::Server { streams_max, .. }) =
            place;
        if let Some(streams) = tune.streams {
            connection_set.want(streams.min(*streams_max));
        }
        if let HeartPlace::Client { reporter, .. } = place
            && !tune.reason.is_empty()
        {
            let reason: String = tune.reason.chars().take(REASON_MAX).collect();
            reporter.detail(&reason);
        }
    }

    /// Lets chunks on slow connections go by another too. Called if this end sends.
    pub fn attach(&self, sender: Arc<Sender>) {
        // Called once for each session.
        let _ = self.shared.sender.set(sender);
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.shared.terms.connection_set.close();
    }
}

/// A clock that runs only while this process does.
struct Clock {
    last: Instant,
    now: Duration,
}

impl Clock {
    /// False for a tick that came late.
    fn tick(&mut self, at: Instant) -> bool {
        let passed = at.saturating_duration_since(self.last);
        self.last = at;
        self.now += passed.min(BEAT);
        passed <= LATE
    }
}

/// How long nothing has arrived.
struct Silence {
    heard: u64,
    since: Duration,
}

impl Silence {
    fn of(heard: &AtomicU64) -> Silence {
        Silence {
            heard: heard.load(Relaxed),
            since: Duration::ZERO,
        }
    }

    /// `heard`: the bytes that have arrived until `now`. `is_no_silence`: this end does not listen,
    /// or has another sign of the other end.
    fn look(&mut self, now: Duration, heard: u64, is_no_silence: bool) -> Duration {
        if heard != self.heard || is_no_silence {
            (self.heard, self.since) = (heard, now);
        }
        now - self.since
    }
}

/// How long the other end has been silent.
struct PeerSilence {
    everywhere: Silence,
    on_control: Silence,
}

/// Where the other end has been silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silent {
    Everywhere,
    /// It was heard on data connections.
    OnControl,
}

impl PeerSilence {
    fn of(heard: &AtomicU64) -> PeerSilence {
        PeerSilence {
            everywhere: Silence::of(heard),
            on_control: Silence::of(heard),
        }
    }

    /// `heard`: the bytes that have arrived on control until `now`. `by_data`: the other end was
    /// heard on a data connection since the last look.
    fn look(
        &mut self,
        now: Duration,
        (heard, by_data): (u64, bool),
        is_paused: bool,
        timeout: Duration,
    ) -> Option<Silent> {
        let everywhere = self.everywhere.look(now, heard, is_paused || by_data);
        let on_control = self.on_control.look(now, heard, is_paused);
        if everywhere + ROUNDING >= timeout {
            return Some(Silent::Everywhere);
        }
        (on_control + ROUNDING >= CONTROL_TIMEOUTS * timeout).then_some(Silent::OnControl)
    }
}

/// Sends heartbeats before there is a [`Heart`], which needs the terms of the copy. Returns once
/// nothing has arrived for `patience`.
pub async fn until_silent(control: &Outgoing, heard: &AtomicU64, patience: Duration) {
    let (mut ticks, mut clock) = ticks();
    let mut silence = Silence::of(heard);
    loop {
        ticks.tick().await;
        control.try_send(Message::Heartbeat(Heartbeat::default()));
        let in_time = clock.tick(Instant::now());
        let silent_for = silence.look(clock.now, heard.load(Relaxed), false);
        if in_time && silent_for + ROUNDING >= patience {
            return;
        }
    }
}

fn ticks() -> (Interval, Clock) {
    // The first tick may wait: the messages that open a session show that this end is alive.
    let mut ticks = interval_at(tokio::time::Instant::now() + BEAT, BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let clock = Clock {
        last: Instant::now(),
        now: Duration::ZERO,
    };
    (ticks, clock)
}

async fn beat(shared: Arc<HeartShared>) {
    let HeartTerms { control, heard, .. } = &shared.terms;
    let (mut ticks, mut clock) = ticks();
    let mut counter = 0;
    let mut silence = PeerSilence::of(heard);
    let mut barren = NoProgress::default();
    loop {
        ticks.tick().await;
        counter += 1;
        let streams = shared.terms.connection_set.facts();
        control.try_send(Message::Heartbeat(Heartbeat { counter, streams }));
        let in_time = clock.tick(Instant::now());
        let now = clock.now;
        let looked = {
            let peer = shared.peer.lock();
            shared
                .terms
                .connection_set
                .look(now, peer.beats, &peer.streams)
        };
        shared.repeat(&looked);
        let is_paused = shared.is_paused.load(Relaxed);
        let signs = (heard.load(Relaxed), shared.hears_by(&looked));
        let silent = silence.look(now, signs, is_paused, shared.timeout);
        let for_how_long = barren.look(now, &shared, &looked);
        if !in_time {
            continue;
        }
        if let Some(silent) = silent {
            return shared.terms.shutdown.end(shared.silent(silent));
        }
        if for_how_long + ROUNDING >= shared.timeout {
            return shared.terms.shutdown.end(shared.cut_off());
        }
    }
}

/// How long the copy has been without a useful connection. One that ends before any data has come
/// through does not count.
#[derive(Default)]
struct NoProgress {
    since: Option<Duration>,
    done: u64,
}

impl NoProgress {
    fn look(&mut self, now: Duration, shared: &HeartShared, looked: &DeadConnections) -> Duration {
        let terms = &shared.terms;
        let is_judge = matches!(terms.place, HeartPlace::Client { .. });
        let done = terms.progress.done();
        let needs_none = || {
            let sender = shared.sender.get();
            sender.is_some_and(|sender| sender.scheduler.has_nothing_to_carry())
        };
        let is_fruitful = looked.stands || done != self.done;
        self.done = done;
        // The other end may wait for a slow disk for any time; control shows that it is alive.
        let is_ready = shared.is_peer_ready.load(Relaxed) || terms.connection_set.was_ever_listed();
        let prepares = terms.connection_set.was_ever_proven() && !is_ready;
        if !is_judge || !terms.connection_set.has_begun() || prepares || is_fruitful || needs_none()
        {
            self.since = None;
            return Duration::ZERO;
        }
        now - *self.since.get_or_insert(now)
    }
}

impl HeartShared {
    /// If nothing else can be sent, sends the chunks of slow connections by idle ones too.
    fn repeat(&self, looked: &DeadConnections) {
        if let Some(sender) = self.sender.get()
            && sender.frames.is_empty()
            && !looked.slow.is_empty()
        {
            let most = looked.idle * REPEATS;
            sender.scheduler.repeat(&looked.slow, &[], most);
        }
    }

    /// True if the data connections show that the end on control is alive.
    fn hears_by(&self, looked: &DeadConnections) -> bool {
        let is_elsewhere = matches!(self.terms.place, HeartPlace::Server { between: true, .. });
        looked.is_heard && !is_elsewhere
    }

    /// The error if the other end was silent for too long.
    fn silent(&self, silent: Silent) -> Error {
        let (host, seconds) = (self.host(), self.timeout.as_secs());
        let is_client = matches!(self.terms.place, HeartPlace::Client { .. });
        let message = match silent {
            Silent::Everywhere if is_client => format!(
                "nothing was heard from {host} for {seconds} s (--timeout); the link or host may \
                 be down"
            ),
            Silent::Everywhere => format!("nothing was heard from {host} for {seconds} s"),
            Silent::OnControl => format!(
                "streams to {host} worked, but nothing arrived on the control connection for {} s",
                seconds * u64::from(CONTROL_TIMEOUTS)
            ),
        };
        Error::new(Kind::Lost, Side::Here, message)
    }

    /// The error if control works but no data connection does.
    fn cut_off(&self) -> Error {
        let connection_set = &self.terms.connection_set;
        let cause = connection_set
            .last_cause()
            .unwrap_or_else(|| NO_ANSWER.to_owned());
        if connection_set.was_ever_proven() {
            return cut_off(self.timeout, &cause);
        }
        let seconds = self.timeout.as_secs();
        let why = format!("no stream within {seconds} s: {cause}");
        blocked(Some(self.host()), why)
    }

    fn host(&self) -> &str {
        match &self.terms.place {
            HeartPlace::Client { host, .. } => host,
            HeartPlace::Server { .. } => "the client",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_stopped_for_an_hour_has_aged_by_a_second() {
        let start = Instant::now();
        let mut clock = Clock {
            last: start,
            now: Duration::ZERO,
        };
        assert!(clock.tick(start + BEAT));
        assert!(!clock.tick(start + Duration::from_secs(3600)));
        assert_eq!(clock.now, 2 * BEAT);
        assert!(clock.tick(start + Duration::from_secs(3601)));
    }

    #[test]
    fn silence_lasts_from_the_last_byte_and_not_from_the_beginning() {
        let second = Duration::from_secs;
        let mut silence = Silence::of(&AtomicU64::new(7));
        assert_eq!(silence.look(second(20), 7, false), second(20));
        assert_eq!(silence.look(second(29), 8, false), second(0));
        assert_eq!(silence.look(second(40), 8, false), second(11));
        assert_eq!(silence.look(second(50), 8, true), second(0));
    }

    /// Looks once a second; returns when, and where, the other end was silent for too long.
    fn listen(
        control: impl Fn(u64) -> bool,
        data: impl Fn(u64) -> bool,
        timeout: u64,
    ) -> Option<(u64, Silent)> {
        let mut silence = PeerSilence::of(&AtomicU64::new(0));
        let mut heard = 0;
        (1..=300).find_map(|second| {
            heard += u64::from(control(second));
            let (now, timeout) = (Duration::from_secs(second), Duration::from_secs(timeout));
            let silent = silence.look(now, (heard, data(second)), false, timeout)?;
            Some((second, silent))
        })
    }

    #[test]
    fn after_an_outage_data_shows_that_the_other_end_lives_until_control_is_heard_again() {
        // The link is down from second 10 to 45. Streams are dialled again, and ssh's TCP
        // retransmits in second 61.
        let is_up = |second| !(10..45).contains(&second);
        let control = |second| is_up(second) && !(45..61).contains(&second);
        assert_eq!(listen(control, is_up, 45), None);
        assert_eq!(
            listen(control, |_| false, 45),
            Some((54, Silent::Everywhere))
        );
        let once = |second| second == 46;
        assert_eq!(listen(control, once, 45), None, "one proof is enough");
    }

    #[test]
    fn data_does_not_stand_for_control_forever_and_a_stopped_end_is_noticed() {
        let until_ten = |second| second < 10;
        assert_eq!(
            listen(until_ten, |_| true, 45),
            Some((99, Silent::OnControl))
        );
        assert_eq!(
            listen(until_ten, until_ten, 45),
            Some((54, Silent::Everywhere))
        );
    }
}

//! A word every second, both ways, whatever else the two ends do: so that one that is slow is told
//! from one that is gone, and each knows what the other has of every stream.
//!
//! # What is waited for, and how long
//!
//! | wait | bound | then |
//! |---|---|---|
//! | ssh's login and the far end's hello | 300 s, 60 s where nobody can type (`login`) | `FarEnd` or `Connect` |
//! | the client's hello | 330 s: it may be logging in elsewhere (`server`) | the server ends |
//! | the client's first two messages | 30 s (`HELLO_TIMEOUT`) | the server ends |
//! | the first stream between two hosts, where one route was asked for | 12 s (`between`) | `Connect` |
//! | anything at all on control, from then on | `--timeout` at the client, three quarters of it at the server | `Lost` |
//! | a TCP connection | 10 s for each address (`route::direct`) | dialled again |
//! | a stream's opening and its answer | 5 s each (`stream::opening`) | dialled again |
//! | an unproven connection at the listener | 5 s; at most 32 of them | dropped |
//! | progress of a stream that owes some | 5 s or 20 round trips (`stream::stall`) | dialled again |
//! | a stream that the other end does not list | 3 heartbeats, 10 s for a new one | dialled again |
//! | between two dials of a stream | 250 ms to 10 s (`backoff`) | |
//! | any stream that stands, or any progress | `--timeout` | `Lost`; `Connect` if there never was one |
//! | a further login | 30 s (`route::login`); six in a row for a stream | that stream is given up |
//! | the first stream of a route that was asked for | three dials of each; 12 s for reverse (`choice`) | `Connect` |
//! | a stream that is proven and carries nothing | 2 s (`roster`) | other routes are tried beside |
//! | credit for data on control | none of its own: control lives or does not | |
//! | a command, or who is at the other end of a pipe | none: they take their time, and end with the copy | |
//! | acknowledgements | none of their own: they come while streams or control live | |
//! | threads of a half that ends | 0.9 s, 0.2 s more for what they leave (`half`) | left behind |
//! | the server, for the client to close control | 5 s (`server`) | it ends |
//! | the client, for the server to end | 10 s, 0.5 s after a failure (`login`) | killed |
//!
//! A process that was stopped and goes on has lived through none of the time between: its clock
//! here goes by its own ticks, and a tick that comes late judges nothing, so that what has come
//! meanwhile is read first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval_at};
use tokio_util::task::AbortOnDropHandle;

use crate::control::Outgoing;
use crate::error::{Error, Kind, Side};
use crate::pipeline::Ending;
use crate::pipeline::sender::Sender;
use crate::progress::Progress;
use crate::session::request::Reporter;
use crate::session::roster::{Flow, Looked, Roster};
use crate::wire::message::{Heartbeat, Message, StreamFacts, Tune};

/// Between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);

/// A tick that comes later than this follows a stop of the process, or of the machine.
const LATE: Duration = Duration::from_secs(3);

/// By how much a tick may come early or its clock be behind: without it nearly every silence would
/// be noticed one tick later.
const ROUNDING: Duration = Duration::from_millis(100);

/// Of the time that a client bears silence, a server bears this much, so that it has ended when
/// the client comes back.
const SERVER_PART: (u32, u32) = (3, 4);

/// Less than the command line takes, for a server whose client asks for none.
const TIMEOUT_MIN: Duration = Duration::from_secs(4);

/// Characters of a reason that are shown.
const REASON_MAX: usize = 200;

/// Chunks that may be sent a second time in a second, for each stream that has nothing to do.
const REPEATS: usize = 2;

/// Whose heart it is.
#[derive(Clone)]
pub enum Place {
    /// The other end is this host, as it may be shown. The client dials, so it judges whether
    /// streams can be had.
    Client {
        host: String,
        reporter: Arc<dyn Reporter>,
        /// What the other end, where it sends, may ask for.
        streams_max: u16,
    },
    Server {
        streams_max: u16,
    },
}

/// What a heart needs to know.
pub struct Terms {
    pub place: Place,
    /// `--timeout`
    pub timeout_s: u16,
    pub control: Outgoing,
    /// Bytes of control that came.
    pub heard: Arc<AtomicU64>,
    pub roster: Arc<Roster>,
    pub progress: Arc<Progress>,
    pub ending: Arc<Ending>,
}

/// Beats until it is dropped; then the session's streams end too.
pub struct Heart {
    shared: Arc<Shared>,
    _beating: AbortOnDropHandle<()>,
}

struct Shared {
    terms: Terms,
    timeout: Duration,
    peer: Mutex<Peer>,
    /// This end does not read control for now, so silence means nothing.
    is_paused: AtomicBool,
    /// The other end has said what it sends, or where that lands.
    is_peer_ready: AtomicBool,
    sender: OnceLock<Arc<Sender>>,
}

/// What the other end's heartbeats said.
#[derive(Default)]
struct Peer {
    beats: u64,
    streams: Vec<StreamFacts>,
}

impl Heart {
    /// Begins to beat, and to judge the other end's silence.
    pub fn start(terms: Terms) -> Heart {
        let timeout = Duration::from_secs(terms.timeout_s.into()).max(TIMEOUT_MIN);
        let timeout = match terms.place {
            Place::Client { .. } => timeout,
            Place::Server { .. } => timeout * SERVER_PART.0 / SERVER_PART.1,
        };
        let shared = Arc::new(Shared {
            terms,
            timeout,
            peer: Mutex::default(),
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
        let mut peer = self.shared.peer.lock().expect("no panic while held");
        peer.beats += 1;
        peer.streams = heartbeat.streams;
    }

    /// The other end has prepared its half, as its words tell: streams are taken from now on.
    pub fn peer_is_ready(&self) {
        self.shared.is_peer_ready.store(true, Relaxed);
    }

    /// Control is not read while this end has too much of it to work through.
    pub fn pause(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Relaxed);
    }

    /// Takes the sender's word on how many streams there are to be.
    pub fn tune(&self, tune: &Tune) {
        let Terms { place, roster, .. } = &self.shared.terms;
        if roster.flow() != Flow::In {
            return;
        }
        let (Place::Client { streams_max, .. } | Place::Server { streams_max }) = place;
        if let Some(streams) = tune.streams {
            roster.want(streams.min(*streams_max));
        }
        if let Place::Client { reporter, .. } = place
            && !tune.reason.is_empty()
        {
            let reason: String = tune.reason.chars().take(REASON_MAX).collect();
            reporter.detail(&reason);
        }
    }

    /// Where this end sends, chunks on slow streams may go by another.
    pub fn attach(&self, sender: Arc<Sender>) {
        // Once for each session.
        let _ = self.shared.sender.set(sender);
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.shared.terms.roster.close();
    }
}

/// A moment on the clock that goes only while this process runs.
struct Clock {
    last: Instant,
    now: Duration,
}

impl Clock {
    /// False after a tick that came late.
    fn tick(&mut self, at: Instant) -> bool {
        let passed = at.saturating_duration_since(self.last);
        self.last = at;
        self.now += passed.min(BEAT);
        passed <= LATE
    }
}

async fn beat(shared: Arc<Shared>) {
    let Terms { control, heard, .. } = &shared.terms;
    // What opens a session says that this end is there.
    let mut ticks = interval_at(tokio::time::Instant::now() + BEAT, BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut clock = Clock {
        last: Instant::now(),
        now: Duration::ZERO,
    };
    let mut counter = 0;
    let (mut last_heard, mut heard_at) = (heard.load(Relaxed), Duration::ZERO);
    let mut barren = Barren::default();
    loop {
        ticks.tick().await;
        counter += 1;
        let streams = shared.terms.roster.facts();
        control.try_send(Message::Heartbeat(Heartbeat { counter, streams }));
        let in_time = clock.tick(Instant::now());
        let now = clock.now;
        let heard = heard.load(Relaxed);
        if heard != last_heard || shared.is_paused.load(Relaxed) {
            (last_heard, heard_at) = (heard, now);
        }
        let looked = {
            let peer = shared.peer.lock().expect("no panic while held");
            shared.terms.roster.look(now, peer.beats, &peer.streams)
        };
        shared.repeat(&looked);
        let for_how_long = barren.look(now, &shared, &looked);
        if !in_time {
            continue;
        }
        if now - heard_at + ROUNDING >= shared.timeout {
            return shared.terms.ending.end(shared.silent());
        }
        if for_how_long + ROUNDING >= shared.timeout {
            return shared.terms.ending.end(shared.cut_off());
        }
    }
}

/// How long the copy has been without streams that are worth the name: streams that come up and
/// end before anything has come through them are none.
#[derive(Default)]
struct Barren {
    since: Option<Duration>,
    done: u64,
}

impl Barren {
    fn look(&mut self, now: Duration, shared: &Shared, looked: &Looked) -> Duration {
        let terms = &shared.terms;
        let is_judge = matches!(terms.place, Place::Client { .. });
        let done = terms.progress.done();
        let needs_none = || {
            let sender = shared.sender.get();
            sender.is_some_and(|sender| sender.plans.has_nothing_to_carry())
        };
        let is_fruitful = looked.stands || done != self.done;
        self.done = done;
        // The other end may look at a slow disk for as long as that takes: it is heard on control.
        let is_ready = shared.is_peer_ready.load(Relaxed) || terms.roster.was_ever_listed();
        let prepares = terms.roster.was_ever_proven() && !is_ready;
        if !is_judge || !terms.roster.has_begun() || prepares || is_fruitful || needs_none() {
            self.since = None;
            return Duration::ZERO;
        }
        now - *self.since.get_or_insert(now)
    }
}

impl Shared {
    /// When nothing else is to be sent, what lies on slow streams goes by idle ones too.
    fn repeat(&self, looked: &Looked) {
        if let Some(sender) = self.sender.get()
            && sender.frames.is_empty()
            && !looked.slow.is_empty()
        {
            sender.plans.repeat(&looked.slow, looked.idle * REPEATS);
        }
    }

    /// Nothing was heard on control.
    fn silent(&self) -> Error {
        let seconds = self.timeout.as_secs();
        let message = match &self.terms.place {
            Place::Client { host, .. } => format!(
                "nothing was heard from {host} for {seconds} s; is the link or the host down?"
            ),
            Place::Server { .. } => format!("nothing was heard from the client for {seconds} s"),
        };
        Error::new(Kind::Lost, Side::Here, message)
    }

    /// Control lives, and no stream does.
    fn cut_off(&self) -> Error {
        let roster = &self.terms.roster;
        let cause = roster.last_cause().unwrap_or_else(|| "no answer".into());
        let (seconds, host) = (self.timeout.as_secs(), self.host());
        if roster.was_ever_proven() {
            let message = format!(
                "all data connections were lost, and for {seconds} s none could be kept up: {cause}"
            );
            return Error::new(Kind::Lost, Side::Here, message);
        }
        let message = format!(
            "{host}: logged in, but no data connection within {seconds} s: {cause}; is there a firewall between?"
        );
        Error::new(Kind::Connect, Side::Here, message)
    }

    fn host(&self) -> &str {
        match &self.terms.place {
            Place::Client { host, .. } => host,
            Place::Server { .. } => "the client",
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
}

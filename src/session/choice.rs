//! Which route the streams of a session take. The client tries them side by side, the best first:
//! direct at once, reverse a little later, further logins after a second, each only while no stream
//! is sound. Where none is after a moment, frames go inside control, so that a small copy waits for
//! no more than that.
//!
//! A stream is sound when the other end has shown that it knows the secret, and up when more than a
//! packet of data has come through: some links let only small packets pass. With the first that is
//! up its route is chosen and the others end, unless all its streams are lost later.

mod notes;
mod running;
mod tries;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

pub use notes::Notes;
use running::Running;
pub use tries::look_up;

use crate::control::Outgoing;
use crate::error::{Error, Kind, Side};
use crate::route::{Connection, Route};
use crate::seal::Suite;
use crate::session::Seat;
use crate::session::request::Request;
use crate::session::roster::Roster;
use crate::session::streams::end_later;
use crate::session::tuning;
use crate::session::ways::Inband;
use crate::ssh::Host;
use crate::stream::opening::Keyring;
use crate::tuner::{self, Remembered};
use crate::units::printable;
use crate::wire::hello::Hello;
use crate::wire::message::{Listen, Message};

/// How much later than direct the others begin, at the start and after a route that was in use
/// has lost all its streams, which may come back by it.
const FIRST: Delays = Delays {
    reverse: Duration::from_millis(250),
    ssh: Duration::from_secs(1),
};
const AGAIN: Delays = Delays {
    reverse: Duration::from_secs(5),
    ssh: Duration::from_secs(10),
};

struct Delays {
    reverse: Duration,
    ssh: Duration,
}

/// Direct streams have this many round trips to come up before reverse begins, three of which they
/// need, but no more time than leaves it some before further logins.
const ROUND_TRIPS: u32 = 4;
const FAR_MAX: Duration = Duration::from_millis(750);

/// How long the streams of other routes have before frames go inside control: on an open network
/// one is there by then, after two round trips, and what goes there does not have to wait behind
/// what was begun inside control, which is slower.
pub fn head_start(round_trip: Duration) -> Duration {
    const LEAST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_millis(400);
    (round_trip * 5 / 2).clamp(LEAST, MOST)
}

/// How often it is looked how streams stand.
const LOOK: Duration = Duration::from_millis(50);

/// How long the server may take to come back to a port of the client's, where that is the only
/// way: longer than a dial.
const REVERSE_PATIENCE: Duration = Duration::from_secs(12);

/// Who chooses, at the client.
pub struct Chooser<'a> {
    pub request: &'a Request,
    pub host: Host,
    /// Of the host that the login reached.
    pub hello: Hello,
    /// When the session was opened: the server's port comes a round trip later.
    pub opened_at: Instant,
    pub remembered: Option<Remembered>,
    /// Streams that the user asked for.
    pub forced: Option<u16>,
    pub streams_max: u16,
    pub keyring: Arc<Keyring>,
    pub suite: Suite,
    pub proven: mpsc::Sender<Connection>,
    pub roster: Arc<Roster>,
    pub control: Outgoing,
    pub inband: Arc<Inband>,
    pub notes: Arc<Notes>,
    pub seat: Seat,
}

impl Chooser<'_> {
    /// Sees to it that there are streams; to be dropped with the session. `listen` is told where
    /// the server takes them.
    pub async fn run(self, listen: oneshot::Receiver<Listen>) {
        self.roster.begin();
        self.want(tuning::first_streams(self.forced, self.remembered));
        match self.request.route.asked {
            None => self.choose(listen).await,
            Some(route) => self.only(route, listen).await,
        }
    }

    /// One route alone. It ends the copy where there is no way.
    async fn only(&self, route: Route, listen: oneshot::Receiver<Listen>) {
        let mut running = Running::default();
        match route {
            Route::Direct => {
                match listen.await {
                    Ok(at) => {
                        self.heard();
                        self.direct(&mut running, at);
                    }
                    // Control has ended, as is told there.
                    Err(_) => std::future::pending().await,
                }
            }
            Route::Reverse => self.reverse(&mut running).await,
            Route::Ssh | Route::Inband => {
                self.inband.offer();
                self.ssh(&mut running);
            }
        }
        let in_vain = async {
            if route == Route::Reverse {
                sleep(REVERSE_PATIENCE).await;
                if !self.roster.was_ever_proven() && !self.roster.has_sound() {
                    return "no data connection: the far end could not connect to this host"
                        .to_owned();
                }
            }
            std::future::pending().await
        };
        let why = tokio::select! {
            (_, why) = running.next() => why,
            why = in_vain => why,
        };
        self.fail(route, &why);
        if route != Route::Ssh && !self.roster.was_ever_proven() {
            end_later(self.seat.ending.clone(), self.no_way(&why));
        }
        // What goes on does so until the session ends.
        std::future::pending().await
    }

    async fn choose(&self, listen: oneshot::Receiver<Listen>) {
        let mut running = Running::default();
        let mut listen = std::pin::pin!(listen);
        let mut at: Option<Listen> = None;
        let mut has_listened = false;
        let mut delays = FIRST;
        let (mut near, mut far) = (Duration::ZERO, Duration::ZERO);
        let mut without = Instant::now();
        let mut chosen = None;
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                heard = &mut listen, if !has_listened => {
                    has_listened = true;
                    without = Instant::now();
                    at = heard.ok();
                    self.heard();
                    let answered = self.opened_at.elapsed();
                    (near, far) = (head_start(answered), (ROUND_TRIPS * answered).min(FAR_MAX));
                    if let Some(at) = &at {
                        self.direct(&mut running, at.clone());
                    }
                    continue;
                }
                (route, why) = running.next() => {
                    self.fail(route, &why);
                    continue;
                }
                _ = ticks.tick() => {}
            }
            if let Some(route) = self.up() {
                if chosen != Some(route) {
                    chosen = Some(route);
                    self.settle(&mut running, route).await;
                }
                delays = AGAIN;
            }
            if self.roster.has_sound() {
                without = Instant::now();
                continue;
            }
            let waited = without.elapsed();
            if waited >= near && (has_listened || waited >= delays.ssh) {
                self.inband.offer();
            }
            if waited >= delays.reverse.max(far)
                && self.may_reverse()
                && !running.has(Route::Reverse)
            {
                self.reverse(&mut running).await;
            }
            if waited >= delays.ssh && !running.has(Route::Ssh) && !self.has_failed(Route::Ssh) {
                self.ssh(&mut running);
                let is_again = chosen.is_some() && !running.has(Route::Direct);
                if let Some(at) = at.as_ref().filter(|_| is_again) {
                    self.direct(&mut running, at.clone());
                }
            }
        }
    }

    /// The best route by which data has come through.
    fn up(&self) -> Option<Route> {
        let routes = [Route::Direct, Route::Reverse, Route::Ssh];
        routes
            .into_iter()
            .find(|&route| self.roster.standing(route).up > 0)
    }

    /// Ends what else was tried.
    async fn settle(&self, running: &mut Running, chosen: Route) {
        self.detail(&format!("route: {}", chosen.name()));
        for route in [Route::Direct, Route::Reverse, Route::Ssh] {
            if route == chosen {
                continue;
            }
            if route < chosen && running.has(route) && !self.has_failed(route) {
                self.notes.failed(route, "no answer");
            }
            if route == Route::Reverse && running.has(route) {
                let nowhere = Listen {
                    addresses: Vec::new(),
                    port: 0,
                };
                // A lost connection is its reader's to report.
                let _ = self.control.send(Message::Dial(nowhere)).await;
            }
            running.stop(route);
            self.roster.end(route);
        }
    }

    /// A tag alone would let whoever has recorded an opening on its way to a wrong address read
    /// what is sent for it.
    fn may_reverse(&self) -> bool {
        self.suite != Suite::Tag && !self.has_failed(Route::Reverse)
    }

    /// The server has answered at once: until a stream tells better, that is the round trip, but
    /// for what either host had to do meanwhile; so one that was shorter may be still.
    fn heard(&self) {
        let answered = self.opened_at.elapsed();
        let was = self.remembered.map(|it| it.round_trip());
        let round_trip = was.map_or(answered, |was| was.min(answered));
        self.want(tuner::first_streams(
            round_trip,
            self.remembered,
            self.forced,
        ));
    }

    fn want(&self, streams: u16) {
        self.roster.want(streams.min(self.streams_max));
    }

    fn fail(&self, route: Route, why: &str) {
        let why = why.split(" (os error").next().unwrap_or(why);
        self.notes.failed(route, why);
        self.detail(&format!("route: not {}: {why}", route.name()));
    }

    fn has_failed(&self, route: Route) -> bool {
        self.notes.has(route)
    }

    fn detail(&self, line: &str) {
        self.seat.reporter.detail(line);
    }

    fn no_way(&self, why: &str) -> Error {
        let host = printable(self.host.name.as_bytes());
        let why = why.split(" (os error").next().unwrap_or(why);
        let message = format!("{host}: logged in, but {why}; is there a firewall between?");
        Error::new(Kind::Connect, Side::Here, message)
    }
}

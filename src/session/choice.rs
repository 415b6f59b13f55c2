//! Which route the streams of a session take. The client tries them side by side, the best first:
//! direct at once, reverse a little later, further logins after a second, each only while no stream
//! is sound. Where none is after a moment, frames go inside control; a small copy does not wait for
//! that.
//!
//! A stream is sound when the other end has shown that it knows the secret, and up when more than a
//! packet of data has come through: some links let only small packets pass. With the first that is
//! up its route is chosen and the others end, unless all its streams are lost later.

mod notes;
mod patience;
mod running;
mod tries;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

pub use notes::Notes;
pub use patience::Patience;
use running::Running;
pub use tries::look_up;

use crate::control::Outgoing;
use crate::error::{Error, Kind, Side};
use crate::manifest::Totals;
use crate::route::direct::{Answer, Places};
use crate::route::{Connection, Route};
use crate::seal::Suite;
use crate::session::Seat;
use crate::session::polite;
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

/// How often it is looked how streams stand.
const LOOK: Duration = Duration::from_millis(50);

/// And while none is there, so that what is begun then comes little later than it may.
const LOOK_OUT: Duration = Duration::from_millis(10);

/// A copy of less goes inside the login at once, with the credit that is given first: it is there
/// before a stream would be up.
const SMALL_MAX: u64 = 128 << 10;

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
    /// For streams that the server dials. One for the session, however often this end listens: it
    /// remembers which openings were used.
    pub facing: Arc<Keyring>,
    pub suite: Suite,
    pub proven: mpsc::Sender<Connection>,
    pub roster: Arc<Roster>,
    pub control: Outgoing,
    pub inband: Arc<Inband>,
    pub notes: Arc<Notes>,
    pub seat: Seat,
}

/// What has been tried, and what came of it.
struct Course {
    running: Running,
    has_listened: bool,
    /// Where the server takes streams, if it does.
    at: Option<Listen>,
    dialled: Option<Arc<Places>>,
    patience: Patience,
    /// Since when there is no sound stream.
    without: Instant,
    chosen: Option<Route>,
    /// The user knows that data goes through ssh, where a polite copy is like any other.
    has_warned: bool,
}

impl Default for Course {
    fn default() -> Course {
        Course {
            running: Running::default(),
            has_listened: false,
            at: None,
            dialled: None,
            patience: Patience::default(),
            without: Instant::now(),
            chosen: None,
            has_warned: false,
        }
    }
}

impl Chooser<'_> {
    /// Sees to it that there are streams; to be dropped with the session. `listen` is told where
    /// the server takes them.
    pub async fn run(self, listen: oneshot::Receiver<Listen>) {
        self.roster.begin();
        self.want(tuning::first_streams(self.forced));
        match self.request.route.asked {
            None => self.choose(listen).await,
            Some(route) => self.only(route, listen).await,
        }
    }

    /// Once it is known how much there is to copy: little of it waits for no route.
    pub fn counted(&self) -> impl Fn(&Totals) + use<> {
        let (inband, may_choose) = (self.inband.clone(), self.request.route.asked.is_none());
        move |totals| {
            let is_small = totals.streams == 0 && totals.bytes <= SMALL_MAX;
            if is_small && may_choose {
                inband.offer();
            }
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
        let mut course = Course::default();
        let mut listen = std::pin::pin!(listen);
        let mut looks_at = Instant::now();
        loop {
            tokio::select! {
                heard = &mut listen, if !course.has_listened => {
                    course.has_listened = true;
                    course.without = Instant::now();
                    course.at = heard.ok();
                    self.heard();
                    course.patience.heard(self.opened_at.elapsed());
                    self.dial(&mut course);
                }
                (route, why) = course.running.next() => {
                    self.fail(route, &why);
                    continue;
                }
                () = sleep_until(looks_at) => {}
            }
            let has_sound = self.look(&mut course).await;
            looks_at = Instant::now() + if has_sound { LOOK } else { LOOK_OUT };
        }
    }

    /// Goes on with what has come up, or begins what has been waited for; true if a stream is
    /// sound.
    async fn look(&self, course: &mut Course) -> bool {
        if let Some(route) = self.up() {
            if course.chosen != Some(route) {
                course.chosen = Some(route);
                self.settle(&mut course.running, route).await;
                if route == Route::Ssh {
                    self.warn(course);
                }
            }
            course.patience.came_up();
        }
        if self.roster.has_sound() {
            course.without = Instant::now();
            return true;
        }
        let (waited, answer) = (course.without.elapsed(), self.answer(course));
        if waited >= course.patience.inband(answer) {
            self.inband.offer();
        }
        if waited >= course.patience.reverse(answer)
            && self.may_reverse()
            && !course.running.has(Route::Reverse)
        {
            self.reverse(&mut course.running).await;
        }
        let is_last = waited >= course.patience.last(answer);
        if is_last && self.roster.carried()[Route::Inband as usize] > 0 {
            self.warn(course);
        }
        if is_last && !course.running.has(Route::Ssh) && !self.has_failed(Route::Ssh) {
            self.ssh(&mut course.running);
            if course.chosen.is_some() && !course.running.has(Route::Direct) {
                self.dial(course);
            }
        }
        false
    }

    /// Once, where the user asked for a polite copy.
    fn warn(&self, course: &mut Course) {
        let has_warned = std::mem::replace(&mut course.has_warned, true);
        if !has_warned && self.request.options.polite {
            self.seat.reporter.notice(polite::NO_EFFECT);
        }
    }

    fn dial(&self, course: &mut Course) {
        if let Some(at) = course.at.clone() {
            course.dialled = self.direct(&mut course.running, at);
        }
    }

    /// What the direct route has come to.
    fn answer(&self, course: &Course) -> Answer {
        match &course.dialled {
            Some(places) => places.answer(),
            None if course.has_listened => Answer::Refused,
            None => Answer::Silent,
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
        self.want(tuner::first_streams(round_trip, self.forced));
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

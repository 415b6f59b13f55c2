//! The choice of the route for the data connections of a session.
//!
//! A connection is sound when the other end has proved that it knows the secret. It is up when more
//! than one packet of data has come through: some links pass only small packets.
//!
//! [`transport::routes::choice`](crate::transport::routes::choice) decides when each route is tried
//! and which one is used.

mod active;
mod attempts;
mod notes;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use self::active::Running;
pub use self::attempts::look_up;
pub use notes::Notes;

use super::connection_control::Inband;
use super::data_connections::end_later;
use crate::algorithms::Suite;
use crate::error::Error;
use crate::manifest::Totals;
use crate::outcome::Remembered;
use crate::report::event::CopyEvent;
use crate::session::context::{ClientContext, FarServer};
use crate::session::request::Request;
use crate::session::{polite, tuning};
use crate::transport::connection::handshake::Keyring;
use crate::transport::connections::ConnectionSet;
use crate::transport::dial::Attempts;
use crate::transport::routes::choice::{RouteChoice, RouteView};
use crate::transport::routes::direct::{DialAnswer, Places};
use crate::transport::routes::{Connection, NO_ANSWER, Route, blocked};
use crate::tuner;
use crate::units::printable;
use crate::wire::message::{Listen, Message};

/// Interval between checks of the connections.
const LOOK: Duration = Duration::from_millis(50);

/// The interval while no connection is sound, so that the next attempt begins on time.
const LOOK_OUT: Duration = Duration::from_millis(10);

/// A copy of at most this many bytes goes through control at once: the receiver's first credit
/// covers it, and it arrives before another connection would be up.
const SMALL_MAX: u64 = 128 << 10;

/// How long the server may take to dial the client if no other route is allowed: longer than a
/// dial. The server dials when it has counted its sources, or knows where it may write.
const REVERSE_PATIENCE: Duration = Duration::from_secs(12);

/// Most further logins, unless the user asks for more. Each costs the host a process and some lines
/// of its log, and sshd refuses some beyond 10 at once (MaxStartups).
const LOGINS_MAX: u16 = 8;

/// Chooses the route, at the client.
pub struct RouteChooser<'a> {
    pub request: &'a Request,
    pub server: FarServer<'a>,
    /// When the session was opened. The server's port arrives a round trip later.
    pub opened_at: Instant,
    pub streams: StreamNumbers,
    pub keyring: Arc<Keyring>,
    /// For connections that the server dials. The whole session has one, because it remembers which
    /// openings were used.
    pub facing: Arc<Keyring>,
    /// For connections that this client dials.
    pub attempts: Attempts,
    pub suite: Suite,
    pub proven: mpsc::Sender<Connection>,
    pub connection_set: Arc<ConnectionSet>,
    pub inband: Arc<Inband>,
    pub notes: Arc<Notes>,
    pub client: &'a ClientContext,
}

/// How many connections a session makes.
pub struct StreamNumbers {
    /// The number that the user asked for.
    pub forced: Option<u16>,
    pub max: u16,
    pub remembered: Option<Remembered>,
}

impl StreamNumbers {
    /// For connections that are made before the server has answered. More may be too many if it is
    /// near; if it is far, the others follow with the answer.
    fn before_answer(&self) -> u16 {
        let was = self.remembered.map(|it| it.round_trip());
        tuner::first_streams(was.unwrap_or_default(), self.forced).min(self.max)
    }

    /// Before the round trip is known.
    fn at_first(&self) -> u16 {
        tuning::first_streams(self.forced).min(self.max)
    }

    /// The time until the server's first answer serves as the round trip until a connection has
    /// measured it. Work on either host may have added to it, so a shorter remembered one takes
    /// precedence.
    fn after_answer(&self, answered: Duration) -> u16 {
        let was = self.remembered.map(|it| it.round_trip());
        let round_trip = was.map_or(answered, |was| was.min(answered));
        tuner::first_streams(round_trip, self.forced).min(self.max)
    }

    /// The most connections by this route.
    fn max_of(&self, route: Route) -> u16 {
        let wanted = match (route, self.forced) {
            (_, Some(forced)) => forced,
            (Route::Ssh, None) => LOGINS_MAX,
            _ => self.max,
        };
        wanted.min(self.max)
    }
}

/// The attempts so far, and their results.
#[derive(Default)]
struct AttemptState {
    running: Running,
    has_listened: bool,
    /// Where the server listens, if it does.
    at: Option<Listen>,
    dialled: Option<Arc<Places>>,
    choice: RouteChoice,
    /// The user knows that --polite has no effect on data that goes through ssh.
    has_warned: bool,
}

impl RouteChooser<'_> {
    /// Makes connections and replaces lost ones, until it is dropped. `listen` receives the
    /// server's port and addresses, `is_ready` that the server has prepared its end.
    pub async fn run(self, listen: oneshot::Receiver<Listen>, is_ready: oneshot::Receiver<()>) {
        // With reverse alone, only the server dials, once it is ready.
        if self.request.route.asked != Some(Route::Reverse) {
            self.connection_set.begin();
        }
        let early = self.early();
        self.connection_set.want(match early {
            Some(_) => self.streams.before_answer(),
            None => self.streams.at_first(),
        });
        match self.request.route.asked {
            None => self.choose(early, listen).await,
            Some(route) => self.only(route, early, listen, is_ready).await,
        }
    }

    /// Where the server already listens, as its hello says. Its answer to the request says the same
    /// later, unless it has to open another port.
    fn early(&self) -> Option<Listen> {
        let route = &self.request.route;
        let is_of_use = matches!(route.asked, None | Some(Route::Direct)) && route.ports.is_none();
        let said = self.server.hello.listen.clone();
        said.filter(|at| is_of_use && !at.addresses.is_empty())
    }

    /// Returns a function that takes the size of the copy: a small copy waits for no route.
    pub fn counted(&self) -> impl FnMut(&Totals) + use<> {
        let (inband, may_choose) = (self.inband.clone(), self.request.route.asked.is_none());
        let is_small = |totals: &Totals| totals.streams == 0 && totals.bytes <= SMALL_MAX;
        move |totals| {
            if is_small(totals) && may_choose {
                inband.offer();
            }
        }
    }

    /// Uses one route alone. Ends the copy if that route does not work.
    async fn only(
        &self,
        route: Route,
        early: Option<Listen>,
        listen: oneshot::Receiver<Listen>,
        is_ready: oneshot::Receiver<()>,
    ) {
        let mut running = Running::default();
        match route {
            Route::Direct => {
                if let Some(at) = early.clone() {
                    self.direct(&mut running, at);
                }
                match listen.await {
                    Ok(at) => {
                        self.heard();
                        if !is_same_port(early.as_ref(), Some(&at)) {
                            running.stop(route);
                            self.direct(&mut running, at);
                        }
                    }
                    // Control has ended, and its reader reports it.
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
                // Its sender goes only when the session ends.
                let _ = is_ready.await;
                self.connection_set.begin();
                sleep(REVERSE_PATIENCE).await;
                if !self.connection_set.was_ever_proven() && !self.connection_set.has_sound() {
                    return "no stream: the host could not connect to this machine".to_owned();
                }
            }
            std::future::pending().await
        };
        let why = tokio::select! {
            (_, why) = running.next() => why,
            why = in_vain => why,
        };
        self.fail(route, &why);
        if route != Route::Ssh && !self.connection_set.was_ever_proven() {
            end_later(self.client.shutdown.clone(), self.no_way(&why));
        }
        // Connections that work stay until the session ends.
        std::future::pending().await
    }

    async fn choose(&self, early: Option<Listen>, listen: oneshot::Receiver<Listen>) {
        let mut attempts = AttemptState {
            at: early,
            ..AttemptState::default()
        };
        attempts.choice.begin(self.opened_at.elapsed());
        self.dial(&mut attempts);
        let mut listen = std::pin::pin!(listen);
        let mut looks_at = Instant::now();
        loop {
            tokio::select! {
                heard = &mut listen, if !attempts.has_listened => {
                    attempts.has_listened = true;
                    self.heard();
                    attempts.choice.heard(self.opened_at.elapsed());
                    let at = heard.ok();
                    if !is_same_port(attempts.at.as_ref(), at.as_ref()) {
                        attempts.running.stop(Route::Direct);
                        attempts.at = at;
                        self.dial(&mut attempts);
                    }
                }
                (route, why) = attempts.running.next() => {
                    self.fail(route, &why);
                    continue;
                }
                () = sleep_until(looks_at) => {}
            }
            let has_sound = self.look(&mut attempts).await;
            looks_at = Instant::now() + if has_sound { LOOK } else { LOOK_OUT };
        }
    }

    /// Chooses a route that is up, or begins to try the next one. True if a connection is sound.
    async fn look(&self, attempts: &mut AttemptState) -> bool {
        if let Some(route) = attempts.choice.settle(self.up()) {
            self.settle(&mut attempts.running, route).await;
            if route == Route::Ssh {
                self.warn(attempts);
            }
        }
        let view = RouteView {
            has_sound: self.connection_set.has_sound(),
            is_dialling: true,
            answer: self.answer(attempts),
        };
        let running = &attempts.running;
        let may_ssh = !self.has_failed(Route::Ssh) && !running.has(Route::Ssh);
        let may_begin = |route: Route| match route {
            // An attacker who recorded an opening on its way to a wrong address could replay it and
            // read the data that follows, if that has only a tag.
            Route::Reverse => {
                let may_reverse = self.suite != Suite::Tag && !self.has_failed(route);
                may_reverse && !running.has(route)
            }
            Route::Ssh | Route::Inband => may_ssh,
            // Together with ssh. It is dialled even if it failed before: it may work again.
            Route::Direct => may_ssh && !running.has(route),
        };
        let steps = attempts
            .choice
            .next(self.opened_at.elapsed(), view, may_begin);
        if steps.inband {
            self.inband.offer();
        }
        if steps.is_last && self.connection_set.carried()[Route::Inband as usize] > 0 {
            self.warn(attempts);
        }
        for route in steps.begin {
            match route {
                Route::Direct => self.dial(attempts),
                Route::Reverse => self.reverse(&mut attempts.running).await,
                Route::Ssh | Route::Inband => self.ssh(&mut attempts.running),
            }
        }
        view.has_sound
    }

    /// Warns once, if the user asked for a polite copy.
    fn warn(&self, attempts: &mut AttemptState) {
        let has_warned = std::mem::replace(&mut attempts.has_warned, true);
        if !has_warned && self.request.options.polite {
            self.client.reporter.notice(polite::NO_EFFECT);
        }
    }

    fn dial(&self, attempts: &mut AttemptState) {
        if let Some(at) = attempts.at.clone() {
            attempts.dialled = self.direct(&mut attempts.running, at);
        }
    }

    fn answer(&self, attempts: &AttemptState) -> DialAnswer {
        match &attempts.dialled {
            Some(places) => places.answer(),
            None if attempts.has_listened => DialAnswer::Refused,
            None => DialAnswer::Silent,
        }
    }

    /// The best route that has carried data.
    fn up(&self) -> Option<Route> {
        let routes = [Route::Direct, Route::Reverse, Route::Ssh];
        routes
            .into_iter()
            .find(|&route| self.connection_set.route_state(route).up > 0)
    }

    /// Ends the other attempts.
    async fn settle(&self, running: &mut Running, chosen: Route) {
        self.detail(&format!("route: using {}", chosen.name()));
        let route = CopyEvent::Route(chosen.name().to_owned());
        self.client.reporter.event(route);
        for route in [Route::Direct, Route::Reverse, Route::Ssh] {
            if route == chosen {
                continue;
            }
            if route < chosen && running.has(route) && !self.has_failed(route) {
                self.notes.failed(route, NO_ANSWER);
            }
            if route == Route::Reverse && running.has(route) {
                // The reader reports a lost connection.
                let _ = self
                    .server
                    .control
                    .send(Message::Dial(Listen::nowhere()))
                    .await;
            }
            running.stop(route);
            self.connection_set.end(route);
        }
    }

    /// The server has answered for the first time.
    fn heard(&self) {
        let streams = self.streams.after_answer(self.opened_at.elapsed());
        self.connection_set.want(streams);
    }

    fn fail(&self, route: Route, why: &str) {
        let why = why.split(" (os error").next().unwrap_or(why);
        self.notes.failed(route, why);
        self.detail(&format!("route: {} failed: {why}", route.name()));
    }

    fn has_failed(&self, route: Route) -> bool {
        self.notes.has(route)
    }

    fn detail(&self, line: &str) {
        self.client.reporter.detail(line);
    }

    fn no_way(&self, why: &str) -> Error {
        let host = printable(self.server.host.name.as_bytes());
        let why = why.split(" (os error").next().unwrap_or(why);
        blocked(Some(&host), why)
    }
}

/// True if the server listens where it already said it does.
fn is_same_port(early: Option<&Listen>, at: Option<&Listen>) -> bool {
    early.is_some() && early.map(|early| early.port) == at.map(|at| at.port)
}

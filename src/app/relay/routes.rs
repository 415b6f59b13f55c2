//! The choice of the route for the data of a copy between two hosts. The client tells the sender's
//! server to dial the receiver's (direct), and a moment later the receiver's to dial the sender's
//! (reverse). While neither works, data passes through the client. The sender reports the state of
//! the connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::algorithms::Suite;
use crate::control::Outgoing;
use crate::error::Error;
use crate::report::event::CopyEvent;
use crate::session::connection_control::Inband;
use crate::session::context::ClientContext;
use crate::session::data_connections::end_later;
use crate::session::polite;
use crate::session::request::{Host, Request, Rsh};
use crate::session::route_choice::{Notes, look_up};
use crate::ssh;
use crate::transport::routes::choice::{RouteChoice, RouteView};
use crate::transport::routes::direct::DialAnswer;
use crate::transport::routes::{NO_ANSWER, Route, addresses, blocked, cut_off, no_port};
use crate::units::{harmless, printable};
use crate::wire::message::{Listen, Message};
use crate::wire::progress_report::ProgressReport;

/// Interval between checks of the connections.
const LOOK: Duration = Duration::from_millis(50);

/// After this time, a host's further addresses are looked up if none that it announced has
/// answered.
const LOOK_UP_AFTER: Duration = Duration::from_millis(200);

/// How long the first connection may take if only one route is allowed: longer than a dial.
const PATIENCE: Duration = Duration::from_secs(12);

/// Chooses the route of one session.
pub struct RelayRoutes<'a> {
    pub request: &'a Request,
    pub client: &'a ClientContext,
    pub suite: Suite,
    pub sender: Outgoing,
    pub receiver: Outgoing,
    pub account: watch::Receiver<ProgressReport>,
    /// True once the receiver has prepared its end.
    pub has_landed: watch::Receiver<bool>,
    /// The connection inside the sender's login.
    pub inband: Arc<Inband>,
    pub notes: Arc<Notes>,
    pub opened_at: Instant,
}

/// Which servers are dialling, because the client told them to.
#[derive(Default)]
struct Dialling {
    direct: bool,
    reverse: bool,
}

/// The host's name, made printable.
pub fn shown(host: &Host) -> String {
    printable(host.name.as_bytes())
}

/// The route, for the summary.
pub fn label(notes: &Notes, account: &ProgressReport) -> String {
    let label = notes.label(account.ways.map(|way| way.carried));
    match label.strip_prefix(Route::Inband.name()) {
        Some(why) => format!("through this host{why}"),
        None => label,
    }
}

impl RelayRoutes<'_> {
    /// Keeps up connections until it is dropped.
    pub async fn run(
        self,
        at_sender: oneshot::Receiver<Listen>,
        at_receiver: oneshot::Receiver<Listen>,
    ) -> Infallible {
        match self.request.route.between() {
            None => self.choose(at_sender, at_receiver).await,
            Some(route) => self.only(route, at_sender, at_receiver).await,
        }
    }

    /// Uses one route alone. Ends the session if that route does not work.
    async fn only(
        &self,
        route: Route,
        at_sender: oneshot::Receiver<Listen>,
        at_receiver: oneshot::Receiver<Listen>,
    ) -> Infallible {
        let listens = match route {
            Route::Direct => at_receiver,
            Route::Reverse => at_sender,
            Route::Ssh | Route::Inband => {
                self.inband.offer();
                return std::future::pending().await;
            }
        };
        // Control has ended, and its reader reports it.
        let Ok(at) = listens.await else {
            return std::future::pending().await;
        };
        if at.is_nowhere() {
            let (_, host) = self.parties(route);
            let error = blocked(None, no_port(&shown(host)));
            end_later(self.client.shutdown.clone(), error);
            return std::future::pending().await;
        }
        tokio::select! {
            never = self.dial(route, &at) => never,
            never = self.mind(route) => never,
        }
    }

    /// Ends the session if there has been no connection for too long. Either end may wait for a
    /// slow disk before it dials or accepts; that time does not count.
    async fn mind(&self, route: Route) -> Infallible {
        let timeout = Duration::from_secs(self.request.options.timeout_s.into());
        let (mut since, mut bytes) = (Instant::now(), 0);
        let mut was_sound = false;
        loop {
            sleep(LOOK).await;
            let (is_sound, carried) = {
                let account = self.account.borrow();
                let way = account.ways[route as usize];
                (way.sound > 0, account.counts.bytes)
            };
            was_sound |= is_sound;
            let is_at_it = self.account.has_changed().unwrap_or(false) && *self.has_landed.borrow();
            if is_sound || carried != bytes || !is_at_it {
                (since, bytes) = (Instant::now(), carried);
            }
            let error = match was_sound {
                false if since.elapsed() >= PATIENCE => self.no_way(),
                true if since.elapsed() >= timeout => cut_off(timeout, &self.cause()),
                _ => continue,
            };
            self.client.shutdown.end(error);
            return std::future::pending().await;
        }
    }

    async fn choose(
        &self,
        mut at_sender: oneshot::Receiver<Listen>,
        mut at_receiver: oneshot::Receiver<Listen>,
    ) -> Infallible {
        let mut dialling = Dialling::default();
        let (mut sender_at, mut receiver_at): (Option<Listen>, Option<Listen>) = (None, None);
        // A login's round trip serves as an estimate of that between the hosts.
        let mut choice = RouteChoice::default();
        choice.begin(self.opened_at.elapsed());
        let (mut has_looked_up, mut has_told) = (false, false);
        let mut looks_up_at = Instant::now() + LOOK_UP_AFTER;
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                heard = &mut at_receiver, if receiver_at.is_none() => {
                    let at = heard.unwrap_or_else(|_| Listen::nowhere());
                    choice.heard(self.opened_at.elapsed());
                    looks_up_at = Instant::now() + LOOK_UP_AFTER;
                    self.tell(Route::Direct, &at).await;
                    dialling.direct = true;
                    receiver_at = Some(at);
                }
                heard = &mut at_sender, if sender_at.is_none() => {
                    sender_at = Some(heard.unwrap_or_else(|_| Listen::nowhere()));
                }
                _ = ticks.tick() => {}
            }
            if let Some(route) = choice.settle(self.up()) {
                self.settle(route, &mut dialling).await;
            }
            let view = RouteView {
                has_sound: self.has_sound(),
                // Before its first report, the sender looks for its sources and dials nobody.
                is_dialling: self.account.has_changed().unwrap_or(false),
                answer: self.answer(receiver_at.as_ref()),
            };
            let may_begin = |route: Route| match route {
                Route::Direct => receiver_at.is_some() && !dialling.direct,
                Route::Reverse => sender_at.is_some() && !dialling.reverse && self.may_reverse(),
                Route::Ssh | Route::Inband => false,
            };
            let steps = choice.next(self.opened_at.elapsed(), view, may_begin);
            if steps.inband {
                self.inband.offer();
                if !std::mem::replace(&mut has_told, true) && self.request.options.polite {
                    self.client.reporter.notice(polite::NO_EFFECT);
                }
            }
            if steps.is_last {
                self.note_failed(&dialling);
            }
            for route in steps.begin {
                let (is_dialling, at) = match route {
                    Route::Reverse => (&mut dialling.reverse, &sender_at),
                    _ => (&mut dialling.direct, &receiver_at),
                };
                if let Some(at) = at {
                    *is_dialling = true;
                    self.tell(route, at).await;
                }
            }
            if view.has_sound || !view.is_dialling {
                looks_up_at = Instant::now() + LOOK_UP_AFTER;
            } else if Instant::now() >= looks_up_at
                && dialling.direct
                && let Some(at) = receiver_at.as_ref().filter(|_| !has_looked_up)
            {
                has_looked_up = true;
                self.tell_more(Route::Direct, at).await;
            }
        }
    }

    /// Sends one server the other's addresses, and later the further ones that were found.
    async fn dial(&self, route: Route, at: &Listen) -> Infallible {
        self.tell(route, at).await;
        sleep(LOOK_UP_AFTER).await;
        if !self.has_sound() {
            self.tell_more(route, at).await;
        }
        std::future::pending().await
    }

    /// The server that dials on this route, and the host that it dials.
    fn parties(&self, route: Route) -> (&Outgoing, &Host) {
        let (source, dest) = self.request.hosts().expect("both ends are remote");
        match route {
            Route::Reverse => (&self.receiver, source),
            _ => (&self.sender, dest),
        }
    }

    /// Tells one server to dial the other, at the announced addresses or at the user's.
    async fn tell(&self, route: Route, at: &Listen) {
        let (dialler, host) = self.parties(route);
        if at.is_nowhere() {
            return self.notes.failed(route, &no_port(&shown(host)));
        }
        let is_given = route == Route::Direct || self.request.route.asked == Some(route);
        let places = match self.request.route.address.as_deref().filter(|_| is_given) {
            Some(address) => look_up(address, at.port).await,
            None => addresses::announced(at),
        };
        let name = route.name();
        self.dial_at(dialler, at.port, places, &|told| {
            format!("route: {name}: connecting to {} at {told}", shown(host))
        })
        .await;
    }

    /// Sends the addresses of the name by which this client knows a host, in case the announced
    /// ones do not work.
    async fn tell_more(&self, route: Route, at: &Listen) {
        let (dialler, host) = self.parties(route);
        if self.request.rsh != Rsh::Ssh || self.request.route.address.is_some() || at.port == 0 {
            return;
        }
        let Some(host_name) = ssh::names::hostname(host, &self.request.ssh).await else {
            return;
        };
        let places = addresses::by_name(look_up(&host_name, at.port).await, at);
        let name = route.name();
        self.dial_at(dialler, at.port, places, &|told| {
            format!("route: {name}: connecting to {} at {told} too", shown(host))
        })
        .await;
    }

    async fn dial_at(
        &self,
        dialler: &Outgoing,
        port: u16,
        mut places: Vec<SocketAddr>,
        line: &dyn Fn(&str) -> String,
    ) {
        let ssh = &self.request.ssh;
        let (only_v4, only_v6) = (ssh.ipv4 && !ssh.ipv6, ssh.ipv6 && !ssh.ipv4);
        places.retain(|address| match address {
            SocketAddr::V4(_) => !only_v6,
            SocketAddr::V6(_) => !only_v4,
        });
        let addresses: Vec<String> = places.iter().map(|it| it.ip().to_string()).collect();
        if addresses.is_empty() {
            return;
        }
        let told = format!("{}, port {port}", addresses.join(", "));
        self.client.reporter.detail(&line(&told));
        let at = Listen { addresses, port };
        // The reader reports a lost connection.
        let _ = dialler.send(Message::Dial(at)).await;
    }

    /// Ends the other attempts.
    async fn settle(&self, chosen: Route, dialling: &mut Dialling) {
        let detail = format!("route: using {}", chosen.name());
        self.client.reporter.detail(&detail);
        let route = CopyEvent::Route(chosen.name().to_owned());
        self.client.reporter.event(route);
        let (other, was_told) = match chosen {
            Route::Direct => (Route::Reverse, std::mem::take(&mut dialling.reverse)),
            _ => {
                self.note(Route::Direct);
                (Route::Direct, std::mem::take(&mut dialling.direct))
            }
        };
        if was_told {
            let (dialler, _) = self.parties(other);
            let _ = dialler.send(Message::Dial(Listen::nowhere())).await;
        }
    }

    /// The best route that has carried data.
    fn up(&self) -> Option<Route> {
        let account = self.account.borrow();
        [Route::Direct, Route::Reverse]
            .into_iter()
            .find(|&route| account.ways[route as usize].up > 0)
    }

    fn has_sound(&self) -> bool {
        let account = self.account.borrow();
        [Route::Direct, Route::Reverse]
            .iter()
            .any(|&route| account.ways[route as usize].sound > 0)
    }

    /// The state of the direct route. The sender reports why it has no connection, but not whether
    /// anything has answered before.
    fn answer(&self, at: Option<&Listen>) -> DialAnswer {
        let has_none = at.is_some_and(Listen::is_nowhere);
        match has_none || !self.account.borrow().cause.is_empty() {
            true => DialAnswer::Refused,
            false => DialAnswer::Connected,
        }
    }

    /// False if frames have only a tag. An attacker who recorded an opening on its way to a wrong
    /// address could replay it and read the data that follows.
    fn may_reverse(&self) -> bool {
        self.suite != Suite::Tag
    }

    fn note_failed(&self, dialling: &Dialling) {
        for (route, was_told) in [
            (Route::Direct, dialling.direct),
            (Route::Reverse, dialling.reverse),
        ] {
            if was_told {
                self.note(route);
            }
        }
    }

    /// Keeps a more precise reason if there is one.
    fn note(&self, route: Route) {
        if !self.notes.has(route) {
            self.notes.failed(route, NO_ANSWER);
        }
    }

    fn no_way(&self) -> Error {
        let (source, dest) = self.request.hosts().expect("both ends are remote");
        let (source, dest) = (shown(source), shown(dest));
        let why = format!("no stream between {source} and {dest}: {}", self.cause());
        blocked(None, why)
    }

    /// Why the sender lost its last connection, or could not make one.
    fn cause(&self) -> String {
        let cause = harmless(&self.account.borrow().cause);
        match cause.split(" (os error").next() {
            None | Some("") => NO_ANSWER.to_owned(),
            Some(cause) => cause.to_owned(),
        }
    }
}

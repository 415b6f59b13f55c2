//! Which route the streams of a session take. The client tries them side by side, the best first:
//! direct at once, reverse a little later, further logins after a second, each only while no stream
//! is sound. Until one is, frames go inside control, so that a small copy waits for none.
//!
//! A stream is sound when the other end has shown that it knows the secret, and up when more than a
//! packet of data has come through: some links let only small packets pass. With the first that is
//! up its route is chosen and the others end, unless all its streams are lost later.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::control::Outgoing;
use crate::error::{Error, Kind, Side};
use crate::route::addresses;
use crate::route::direct::Places;
use crate::route::listener::Listener;
use crate::route::login::Logins;
use crate::route::{Connection, Route};
use crate::seal::Suite;
use crate::session::backoff::chance;
use crate::session::dial::{Attempts, Dialler, Way};
use crate::session::request::{Request, Rsh};
use crate::session::roster::Roster;
use crate::session::streams::end_later;
use crate::session::tuning;
use crate::session::ways::Inband;
use crate::session::{Seat, host as this_host};
use crate::ssh::{self, Host};
use crate::stream::opening::Keyring;
use crate::tuner::{self, Remembered};
use crate::units::printable;
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
/// one is there by then.
pub const HEAD_START: Duration = Duration::from_millis(100);

/// Further logins, unless the user asks for more: each costs the host a process and its log some
/// lines, and sshd refuses some beyond 10 at once (MaxStartups).
const LOGINS_MAX: u16 = 8;

/// How often it is looked how streams stand.
const LOOK: Duration = Duration::from_millis(50);

/// When the host's other addresses are looked up, if the one that ssh reached has not answered.
const LOOK_UP_AFTER: Duration = Duration::from_millis(200);

/// How long the server may take to come back to a port of the client's, where that is the only
/// way: longer than a dial.
const REVERSE_PATIENCE: Duration = Duration::from_secs(12);

/// What routes were tried, and how they fared. One for each session.
#[derive(Default)]
pub struct Notes {
    failed: Mutex<Vec<(Route, String)>>,
}

/// Who chooses, at the client.
pub struct Chooser<'a> {
    pub request: &'a Request,
    pub host: Host,
    /// Of the host that the login reached.
    pub boot_id: String,
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

impl Notes {
    /// The route in the summary, from the bytes that each has carried: why it is not the best is
    /// told too. Empty where nothing was carried.
    pub fn label(&self, carried: [u64; Route::ALL.len()]) -> String {
        let most = Route::ALL.into_iter().rev().max_by_key(|route| {
            // What goes inside control does so for lack of others.
            let is_real = *route != Route::Inband;
            (
                is_real && carried[*route as usize] > 0,
                carried[*route as usize],
            )
        });
        let Some(route) = most.filter(|route| carried[*route as usize] > 0) else {
            return String::new();
        };
        let failed = self.lock();
        let better: Vec<_> = failed
            .iter()
            .filter(|(failed, _)| *failed < route)
            .map(|(failed, why)| format!("{}: {why}", failed.name()))
            .collect();
        match better.is_empty() {
            true => route.name().to_owned(),
            false => format!("{} ({})", route.name(), better.join("; ")),
        }
    }

    /// The last word on a route counts.
    pub fn failed(&self, route: Route, why: &str) {
        let mut failed = self.lock();
        failed.retain(|(other, _)| *other != route);
        failed.push((route, why.to_owned()));
        failed.sort();
    }

    pub fn has(&self, route: Route) -> bool {
        self.lock().iter().any(|(failed, _)| *failed == route)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Route, String)>> {
        self.failed.lock().expect("no panic while held")
    }
}

/// Routes that are being tried or used. All end when it is dropped.
#[derive(Default)]
struct Running {
    /// Each ends with why there is no way.
    tasks: JoinSet<(Route, String)>,
    handles: Vec<(Route, AbortHandle)>,
}

impl Running {
    fn start(&mut self, route: Route, task: impl Future<Output = String> + Send + 'static) {
        let handle = self.tasks.spawn(async move { (route, task.await) });
        self.handles.push((route, handle));
    }

    fn has(&self, route: Route) -> bool {
        let mut running = self.handles.iter().map(|(running, _)| *running);
        running.any(|running| running == route)
    }

    fn stop(&mut self, route: Route) {
        self.handles.retain(|(running, handle)| {
            if *running == route {
                handle.abort();
            }
            *running != route
        });
    }

    /// The next that has found no way; never, while there is none.
    async fn next(&mut self) -> (Route, String) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((route, why))) => {
                    self.handles.retain(|(running, _)| *running != route);
                    return (route, why);
                }
                // It was stopped.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
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
        let mut far = Duration::ZERO;
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
                    far = (ROUND_TRIPS * self.opened_at.elapsed()).min(FAR_MAX);
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
            if waited >= HEAD_START && (has_listened || waited >= delays.ssh) {
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

    fn direct(&self, running: &mut Running, at: Listen) {
        if at.addresses.is_empty() {
            let why = "no data connection: the far end has no port for it";
            return running.start(Route::Direct, async { why.to_owned() });
        }
        let options = &self.request.route;
        let places = Arc::new(Places::new(Vec::new(), options.bind));
        let ssh = &self.request.ssh;
        let (only_v4, only_v6) = (ssh.ipv4 && !ssh.ipv6, ssh.ipv6 && !ssh.ipv4);
        let of_family = move |address: &SocketAddr| match address {
            SocketAddr::V4(_) => !only_v6,
            SocketAddr::V6(_) => !only_v4,
        };
        let given = options.address.clone();
        if given.is_none() {
            let announced = addresses::announced(&at);
            places.add(announced.into_iter().filter(of_family).collect());
        }
        let (rsh, host, ssh) = (self.request.rsh, self.host.clone(), ssh.clone());
        let roster = self.roster.clone();
        let dialler = self.dialler(Route::Direct, Way::Places(places.clone()));
        running.start(Route::Direct, async move {
            let more = |found: Vec<SocketAddr>| {
                places.add(found.into_iter().filter(of_family).collect());
            };
            let finding = async {
                sleep(LOOK_UP_AFTER).await;
                if given.is_none()
                    && rsh == Rsh::Ssh
                    && !roster.has_sound()
                    && let Some(name) = ssh::names::hostname(&host, &ssh).await
                {
                    more(look_up(&name, at.port).await);
                }
                std::future::pending().await
            };
            if let Some(address) = &given {
                more(look_up(address, at.port).await);
            }
            let why = tokio::select! {
                why = dialler.run() => why,
                never = finding => never,
            };
            no_connection(&places.all(), &why)
        });
    }

    /// Listens here and tells the server to dial.
    async fn reverse(&self, running: &mut Running) {
        let options = &self.request.route;
        let listener = Listener::open(options.bind, options.ports, chance().into()).await;
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                let why = format!("no data connection: no port to listen on here: {error}");
                return running.start(Route::Reverse, async { why });
            }
        };
        let given = options.address.clone().filter(|_| options.asked.is_some());
        let bind = options.bind.map(|bind| bind.to_string());
        let is_here = this_host::is_this_machine(&self.boot_id);
        let first = given.or(bind).or(is_here.then(|| "127.0.0.1".to_owned()));
        let listen = Listen {
            addresses: addresses::own(first.as_deref()),
            port: listener.port,
        };
        let told = listen.addresses.join(", ");
        self.detail(&format!(
            "route: the far end dials {told}, port {}",
            listen.port
        ));
        // A lost connection is its reader's to report.
        let _ = self.control.send(Message::Dial(listen)).await;
        let proven = self.proven.clone();
        let listening = listener.run(Arc::new(self.keyring.facing()), move |connection| {
            // More than were asked for are dropped.
            let _ = proven.try_send(connection);
            !proven.is_closed()
        });
        running.start(Route::Reverse, async move {
            listening.await;
            std::future::pending().await
        });
    }

    fn ssh(&self, running: &mut Running) {
        let startup = match self.request.startup() {
            Ok(startup) => startup,
            // The first login has read the same.
            Err(error) => return running.start(Route::Ssh, async { error.message }),
        };
        let Request { rsh, ssh, .. } = self.request;
        let logins = Logins::new(*rsh, &self.host, ssh, startup, &self.boot_id);
        let dialler = self.dialler(Route::Ssh, Way::Logins(Box::new(logins)));
        self.detail("route: further ssh logins");
        running.start(Route::Ssh, dialler.run());
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

    fn dialler(&self, route: Route, way: Way) -> Dialler {
        let streams_max = match (route, self.forced) {
            (_, Some(forced)) => forced.min(self.streams_max),
            (Route::Ssh, None) => LOGINS_MAX.min(self.streams_max),
            _ => self.streams_max,
        };
        Dialler {
            route,
            way,
            streams_max,
            keyring: self.keyring.clone(),
            suite: self.suite,
            proven: self.proven.clone(),
            roster: self.roster.clone(),
            reporter: Some(self.seat.reporter.clone()),
            attempts: Attempts::default(),
        }
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
        let message = format!("{host}: logged in, but {why}; is there a firewall between?");
        Error::new(Kind::Connect, Side::Here, message)
    }
}

fn no_connection(tried: &[SocketAddr], why: &str) -> String {
    let (first, more) = match tried {
        [] => return format!("no data connection: {why}"),
        [first, more @ ..] => (first, more.len()),
    };
    let more = match more {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    format!("no data connection to {first}{more}: {why}")
}

/// What the resolver has for a name or an address, a zone included; nothing where it has nothing.
pub async fn look_up(name: &str, port: u16) -> Vec<SocketAddr> {
    if let Some(address) = addresses::with_zone(name, port) {
        return vec![address];
    }
    match tokio::net::lookup_host((name, port)).await {
        Ok(found) => found.collect(),
        Err(_) => Vec::new(),
    }
}

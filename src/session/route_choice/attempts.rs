//! The client's attempts to connect by each route.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::RouteChooser;
use super::active::Running;
use crate::error::reason_of;
use crate::session::host as this_host;
use crate::session::request::{Request, Rsh};
use crate::ssh;
use crate::transport::backoff::chance;
use crate::transport::dial::{Dialler, Way};
use crate::transport::routes::direct::Places;
use crate::transport::routes::listener::Listener;
use crate::transport::routes::ssh_login::FurtherLogins;
use crate::transport::routes::{Route, addresses, no_port};
use crate::units::printable;
use crate::wire::message::{Listen, Message};

/// After this time, the host's further addresses are looked up if the address that ssh reached has
/// not answered.
const LOOK_UP_AFTER: Duration = Duration::from_millis(200);

impl RouteChooser<'_> {
    /// Begins to dial the server. Returns the addresses, if there are any.
    pub(super) fn direct(&self, running: &mut Running, at: Listen) -> Option<Arc<Places>> {
        if at.addresses.is_empty() {
            let why = no_port(&printable(self.server.host.name.as_bytes()));
            running.start(Route::Direct, async { why });
            return None;
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
        self.notes.tried(Route::Direct);
        let ips = places.all().into_iter().map(|place| place.ip().to_string());
        let told = given.clone().unwrap_or(ips.collect::<Vec<_>>().join(", "));
        let name = printable(self.server.host.name.as_bytes());
        self.detail(&format!(
            "route: direct: connecting to {name} at {told}, port {}",
            at.port
        ));
        let (rsh, host, ssh) = (self.request.rsh, self.server.host.clone(), ssh.clone());
        let connection_set = self.connection_set.clone();
        let dialler = self.dialler(Route::Direct, Way::Places(places.clone()));
        let dialled = places.clone();
        running.start(Route::Direct, async move {
            let more = |found: Vec<SocketAddr>| {
                places.add(found.into_iter().filter(of_family).collect());
            };
            let finding = async {
                sleep(LOOK_UP_AFTER).await;
                if given.is_none()
                    && rsh == Rsh::Ssh
                    && !connection_set.has_sound()
                    && let Some(name) = ssh::names::hostname(&host, &ssh).await
                {
                    more(addresses::by_name(look_up(&name, at.port).await, &at));
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
        Some(dialled)
    }

    /// Listens here and tells the server to dial.
    pub(super) async fn reverse(&self, running: &mut Running) {
        let options = &self.request.route;
        let listener = Listener::open(options.bind, options.ports, chance().into()).await;
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                let why = reason_of(&error);
                let why = format!("no stream: this machine cannot open a port: {why}");
                return running.start(Route::Reverse, async { why });
            }
        };
        let given = options.address.clone().filter(|_| options.asked.is_some());
        let bind = options.bind.map(|bind| bind.to_string());
        let is_here = this_host::is_this_machine(&self.server.hello.boot_id);
        let first = given.or(bind).or(is_here.then(|| "127.0.0.1".to_owned()));
        let listen = Listen {
            addresses: addresses::own(first.as_deref()),
            port: listener.port,
        };
        let told = listen.addresses.join(", ");
        let name = printable(self.server.host.name.as_bytes());
        self.detail(&format!(
            "route: reverse: {name} connects to this machine at {told}, port {}",
            listen.port
        ));
        // The reader reports a lost connection.
        let _ = self.server.control.send(Message::Dial(listen)).await;
        self.notes.tried(Route::Reverse);
        let proven = self.proven.clone();
        let listening = listener.run(self.facing.clone(), move |connection| {
            // More connections than were asked for are dropped.
            let _ = proven.try_send(connection);
            !proven.is_closed()
        });
        running.start(Route::Reverse, async move {
            listening.await;
            std::future::pending().await
        });
    }

    pub(super) fn ssh(&self, running: &mut Running) {
        let startup = match self.request.startup() {
            Ok(startup) => startup,
            // Unlikely: the first login has read the same.
            Err(error) => return running.start(Route::Ssh, async { error.message }),
        };
        let Request { rsh, ssh, .. } = self.request;
        let logins = FurtherLogins::new(*rsh, self.server.host, ssh, startup, self.server.hello);
        let dialler = self.dialler(Route::Ssh, Way::Logins(Box::new(logins)));
        self.detail("route: ssh: trying further ssh logins");
        running.start(Route::Ssh, dialler.run());
    }

    fn dialler(&self, route: Route, way: Way) -> Dialler {
        Dialler {
            route,
            way,
            streams_max: self.streams.max_of(route),
            keyring: self.keyring.clone(),
            suite: self.suite,
            proven: self.proven.clone(),
            connection_set: self.connection_set.clone(),
            reporter: Some(self.client.reporter.clone()),
            attempts: self.attempts.clone(),
        }
    }
}

fn no_connection(tried: &[SocketAddr], why: &str) -> String {
    let (first, more) = match tried {
        [] => return format!("no stream: {why}"),
        [first, more @ ..] => (first, more.len()),
    };
    let more = match more {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    format!("no stream to {first}{more}: {why}")
}

/// The addresses that the resolver knows for a name or an address, which may have a zone. Empty if
/// there are none.
pub async fn look_up(name: &str, port: u16) -> Vec<SocketAddr> {
    if let Some(address) = addresses::with_zone(name, port) {
        return vec![address];
    }
    match tokio::net::lookup_host((name, port)).await {
        Ok(found) => found.collect(),
        Err(_) => Vec::new(),
    }
}

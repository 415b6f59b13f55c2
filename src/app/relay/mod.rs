//! A session of a copy between two remote hosts. The client logs in to both, gives each server the
//! other server's hello instead of the client's, and relays their messages. Neither host logs in to
//! the other. [`routes`] connects the two for data; [`exchange`] decides what each server learns of
//! the other.

pub mod exchange;
pub mod first_messages;
pub mod routes;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use self::exchange::{Exchange, RelayEnd, RelayLine, RelaySide};
use self::first_messages::{roles, suite_for};
use self::routes::{RelayRoutes, shown};
use crate::algorithms::Suite;
use crate::chunk::CHUNK_SIZE;
use crate::control::{Outgoing, WriterEnded};
use crate::error::{Error, Kind, Result, Side};
use crate::progress::Phase;
use crate::seal::Secret;
use crate::session::client::{LostSession, Session};
use crate::session::connection_control::{ConnectionControl, Inband};
use crate::session::context::ClientContext;
use crate::session::control_reader::named;
use crate::session::file_names;
use crate::session::heartbeat::{Heart, HeartPlace, HeartTerms};
use crate::session::login::{Attempt, LoggedIn, Met, may_ask};
use crate::session::request::{Host, Request};
use crate::session::{host as this_host, owner, saved_settings};
use crate::transport::connections::{ConnectionSet, Flow};
use crate::transport::routes::{Connection, Route};
use crate::wire::hello::Hello;
use crate::wire::message::{Conclusion, Message, Open, Role, SessionSecret, Tune};

/// How long the sender may take for its last counts and its conclusion. The user reads the counts, so
/// this is as long as a server may take to exit.
const COUNTS_PATIENCE: Duration = Duration::from_secs(10);

/// Both servers of the copy.
struct Servers {
    sender: LoggedIn,
    receiver: LoggedIn,
}

/// Copies between two hosts, as far as one session gets. Returns the route that the data took.
pub async fn copy(
    request: &Request,
    client: &ClientContext,
    session: Session<'_>,
) -> Result<String, LostSession> {
    let hosts = request.hosts().expect("both ends are remote");
    let mut servers = log_in(hosts, request, client, session.attempt).await?;
    client.progress.add_login();
    let between = RelayedSession {
        request,
        client,
        session,
    };
    let copied = tokio::select! {
        copied = between.copy(&mut servers) => copied,
        () = client.shutdown.wait() => Err(RelayEnd {
            error: client.shutdown.error(),
            at: None,
        }),
    };
    let Servers { sender, receiver } = servers;
    let cut = match copied {
        Ok((route, conclusion)) => {
            tokio::join!(
                sender.end_well(None, |_| ()),
                receiver.end_well(None, |_| ())
            );
            client.conclude(request, conclusion).await;
            return Ok(route);
        }
        Err(cut) => cut,
    };
    // Recorded before the teardown, whose errors are not the cause.
    client.shutdown.end(cut.error);
    let mut error = client.shutdown.error();
    // Neither server learns the other's paths.
    let told = Error::new(error.kind, error.side, "the copy has ended");
    let (at_sender, at_receiver) = tokio::join!(
        sender.end(None, Some(&told)),
        receiver.end(None, Some(&told))
    );
    let (host, why) = match cut.at {
        Some(RelaySide::Sender) => (shown(hosts.0), at_sender),
        Some(RelaySide::Receiver) => (shown(hosts.1), at_receiver),
        None => (format!("{} and {}", shown(hosts.0), shown(hosts.1)), None),
    };
    if let Some(why) = why {
        error = why;
    }
    if cut.at.is_some() {
        error = named(error, Some(&host));
    }
    Err(LostSession {
        error,
        had_begun: true,
        host: Some(host),
    })
}

/// Logs in to both hosts: one after the other if ssh may ask for passwords, else in parallel.
async fn log_in(
    (source, dest): (&Host, &Host),
    request: &Request,
    client: &ClientContext,
    attempt: Attempt,
) -> Result<Servers> {
    let connect = |host| Met::connect(host, request, client, attempt);
    let (from, to) = match may_ask(request, attempt) {
        true => (connect(source).await?, connect(dest).await?),
        false => tokio::try_join!(connect(source), connect(dest))?,
    };
    request.check_selects(source, &from.hello)?;
    request.check_archives(source, &from.hello)?;
    request.check_archives(dest, &to.hello)?;
    request.check_relative(source, &from.hello)?;
    request.check_relative(dest, &to.hello)?;
    request.check_places(source, &from.hello, false)?;
    request.check_places(dest, &to.hello, true)?;
    request.check_scp(source, &from.hello)?;
    request.check_scp(dest, &to.hello)?;
    request.check_itemizes(source, &from.hello)?;
    request.check_itemizes(dest, &to.hello)?;
    let of_sender = Hello {
        selects: false,
        ..owner::introduce(told(&from.hello), request)
    };
    let of_receiver = Hello {
        polite: request.options.polite,
        compares: request.options.compares_remotely(),
        selects: request.selects_there(),
        archives: request.archives(),
        dry_run: request.options.dry_run,
        itemizes: request.options.itemizes,
        relative: request.options.relative.is_some(),
        maps: request.maps(),
        beside: request.options.is_beside,
        scp: request.options.scp,
        tells_growth: true,
        // Not as the receiver says: each host keeps its own log.
        no_syslog: request.omits_syslog(),
        ..told(&to.hello).relayed()
    };
    agree((source, &of_sender), (dest, &of_receiver))?;
    let (sender, receiver) = tokio::try_join!(from.greet(&of_receiver), to.greet(&of_sender))?;
    Ok(Servers { sender, receiver })
}

/// The part of a server's hello for the other server.
fn told(hello: &Hello) -> Hello {
    Hello {
        reached: String::new(),
        program: String::new(),
        host: String::new(),
        user: String::new(),
        ..hello.clone()
    }
}

/// Checks that the servers share a protocol version, as each does with this client.
fn agree(source: (&Host, &Hello), dest: (&Host, &Hello)) -> Result<()> {
    let ((from, a), (to, b)) = (source, dest);
    if a.protocol_min.max(b.protocol_min) <= a.protocol_max.min(b.protocol_max) {
        return Ok(());
    }
    let message = format!(
        "fastcp on {} speaks protocol {} to {}, and fastcp on {} speaks protocol {} to {}: install the \
         same version on both hosts",
        shown(from),
        a.protocol_min,
        a.protocol_max,
        shown(to),
        b.protocol_min,
        b.protocol_max
    );
    Err(Error::new(Kind::FarEnd, Side::Here, message))
}

struct RelayedSession<'a> {
    request: &'a Request,
    client: &'a ClientContext,
    session: Session<'a>,
}

impl RelayedSession<'_> {
    async fn copy(&self, servers: &mut Servers) -> Result<(String, Conclusion), RelayEnd> {
        let Servers { sender, receiver } = servers;
        let suite = suite_for(&sender.hello, &receiver.hello, self.request.encrypt);
        self.open(sender, receiver, suite).await?;
        if self.session.attempt == Attempt::First {
            self.client.progress.set_phase(Phase::Scanning);
        }
        let hearts = [self.heart(sender), self.heart(receiver)];
        if self.request.options.follow_ms.is_some() {
            let control = sender.control.downgrade();
            // Dropped if control is busy; the user can send the signal again.
            this_host::on_enough(move || control.try_send(Message::Enough(())));
            // The signal may have come before there was a session.
            if self.client.enough.is_set() {
                sender.control.try_send(Message::Enough(()));
            }
        }
        let may_pass = matches!(self.request.route.between(), None | Some(Route::Ssh));
        let (from_sender, data) = in_login(Flow::In, may_pass, &sender.control);
        let (to_receiver, drain) = in_login(Flow::Out, may_pass, &receiver.control);
        let (at_sender, sender_listens) = oneshot::channel();
        let (at_receiver, receiver_listens) = oneshot::channel();
        let exchange = Exchange::new(self.request, self.client, &hearts);
        let routes = RelayRoutes {
            request: self.request,
            client: self.client,
            suite,
            sender: sender.control.clone(),
            receiver: receiver.control.clone(),
            account: exchange.account(),
            has_landed: exchange.has_landed(),
            inband: from_sender.clone(),
            notes: Arc::default(),
            opened_at: Instant::now(),
        };
        let notes = routes.notes.clone();
        let sending = RelayLine {
            end: RelaySide::Sender,
            ways: ways(from_sender, at_sender),
            to: receiver.control.clone(),
            incoming: &mut sender.incoming,
        };
        let receiving = RelayLine {
            end: RelaySide::Receiver,
            ways: ways(to_receiver, at_receiver),
            to: sender.control.clone(),
            incoming: &mut receiver.incoming,
        };
        let options = &self.request.options;
        // A dry run that sends no data does not dial, so a firewall cannot end it.
        let dials = !options.dry_run || options.dry_run_reads();
        let conclusion = tokio::select! {
            over = converse(&exchange, sending, receiving) => over?,
            never = routes.run(sender_listens, receiver_listens), if dials => match never {},
            never = pass_through(data, drain) => match never {},
            never = self.follow_rate(&sender.control) => match never {},
            never = self.send_list(&sender.control) => match never {},
        };
        let route = routes::label(&notes, &exchange.account().borrow());
        Ok((route, conclusion))
    }

    /// Sends each server its role, the secret, and what to copy and to keep.
    async fn open(
        &self,
        sender: &LoggedIn,
        receiver: &LoggedIn,
        suite: Suite,
    ) -> Result<(), RelayEnd> {
        let secret = Secret::random();
        let asked = self.request.route.between();
        let (from, to) = roles(self.request);
        for (end, server, role, listens) in [
            (RelaySide::Sender, sender, from, Route::Reverse),
            (RelaySide::Receiver, receiver, to, Route::Direct),
        ] {
            let listens = asked.is_none_or(|asked| asked == listens);
            let opened = async {
                let open = self.opening(role, suite, listens).await;
                server.control.send(Message::Open(open)).await?;
                let secret = SessionSecret(*secret.expose());
                server.control.send(Message::Secret(secret)).await?;
                let select = self.request.select();
                let select = select.filter(|_| end == RelaySide::Sender);
                let relative = self.request.relative();
                let relative = relative.filter(|_| end == RelaySide::Sender);
                let archive = self.request.archive();
                let map = self.request.map(end == RelaySide::Sender);
                let more = select.into_iter().chain(archive).chain(relative);
                for message in more.chain(map) {
                    server.control.send(message).await?;
                }
                Ok::<(), WriterEnded>(())
            };
            opened.await.map_err(|_| RelayEnd::lost(end))?;
        }
        Ok(())
    }

    async fn opening(&self, role: Role, suite: Suite, listens: bool) -> Open {
        Open {
            role,
            options: self.request.options.clone(),
            session: self.session.id,
            suite: suite.number(),
            streams: self.request.streams,
            remembered: saved_settings::recall(self.request).await,
            chunk_size: CHUNK_SIZE as u32,
            before: self.session.before.to_vec(),
            listens,
            ports: self.request.route.ports,
            between: true,
        }
    }

    /// Sends a server heartbeats and judges its silence. This client has no data connections.
    fn heart(&self, server: &LoggedIn) -> Heart {
        Heart::start(HeartTerms {
            place: HeartPlace::Client {
                host: shown(&server.host),
                reporter: self.client.reporter.clone(),
                streams_max: 0,
            },
            timeout_s: self.request.options.timeout_s,
            control: server.control.clone(),
            heard: server.incoming.heard(),
            connection_set: ConnectionSet::new(Flow::In),
            progress: self.client.progress.clone(),
            shutdown: self.client.shutdown.clone(),
        })
    }

    /// Sends the list of files, if there is one, while messages are relayed.
    async fn send_list(&self, sender: &Outgoing) -> Infallible {
        // The reader reports a lost connection.
        let _ = file_names::send(self.request, sender).await;
        std::future::pending().await
    }

    async fn follow_rate(&self, sender: &Outgoing) -> Infallible {
        let Some(file) = &self.request.rate_file else {
            return std::future::pending().await;
        };
        let set = async |rate: Option<u64>| {
            // The reader reports a lost connection.
            let _ = sender.send(Message::Tune(Tune::rate(rate))).await;
        };
        let rate = self.request.options.rate_limit;
        file.follow(rate, &*self.client.reporter, set).await;
        std::future::pending().await
    }
}

/// Relays messages until the receiver has everything in place and the sender has sent its
/// conclusion. A complete copy does not fail if the conclusion is missing.
async fn converse(
    exchange: &Exchange<'_>,
    mut sending: RelayLine<'_>,
    mut receiving: RelayLine<'_>,
) -> Result<Conclusion, RelayEnd> {
    let mut sender = std::pin::pin!(exchange.sender(&mut sending));
    tokio::select! {
        done = exchange.receiver(&mut receiving) => done?,
        early = &mut sender => return Err(match early {
            Ok(_) => RelayEnd::breach(RelaySide::Sender, "its conclusion, before the copy was complete"),
            Err(cut) => cut,
        }),
    }
    match timeout(COUNTS_PATIENCE, sender).await {
        Ok(Err(cut)) if cut.error.kind != Kind::Lost => Err(cut),
        Ok(Ok(conclusion)) => Ok(conclusion),
        _ => Ok(Conclusion::default()),
    }
}

/// The data connection inside a server's login, and the channel on which it arrives.
fn in_login(
    flow: Flow,
    is_wanted: bool,
    control: &Outgoing,
) -> (Arc<Inband>, mpsc::Receiver<Connection>) {
    let (begun, connection) = mpsc::channel(1);
    (
        Inband::new(flow, is_wanted, control.clone(), begun),
        connection,
    )
}

fn ways(
    inband: Arc<Inband>,
    listen: oneshot::Sender<crate::wire::message::Listen>,
) -> ConnectionControl {
    ConnectionControl {
        inband,
        listen: Some(listen),
        reverse: None,
        limit: Arc::default(),
    }
}

/// The last resort: copies data from the sender's login to the receiver's, each within its own
/// credit. The data is sealed from end to end, and this client does not open it.
async fn pass_through(
    mut from: mpsc::Receiver<Connection>,
    mut to: mpsc::Receiver<Connection>,
) -> Infallible {
    if let (Some(mut from), Some(mut to)) = tokio::join!(from.recv(), to.recv()) {
        let (mut data, _) = from.link.split();
        let (_, mut drain) = to.link.split();
        // Fails only if a login has ended, which its reader reports.
        let _ = tokio::io::copy(&mut data, &mut drain).await;
        // Both connections stay open until the session ends.
        return std::future::pending().await;
    }
    std::future::pending().await
}

//! The client's part in one session: starts the server, tells it what to do, makes the data
//! connections, and runs its own end of the copy.

mod clean;
mod control_only;
mod endpoints;
mod first_messages;
mod list_check;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub use self::clean::clean;
pub use self::endpoints::Session;
use self::endpoints::{Client, SendController};
use self::first_messages::suite_for;
pub use self::list_check::check_list;

use super::connection_control::{ConnectionControl, Inband};
use super::control_reader::{ControlReader, named};
use super::data_connections::SendPace;
use super::file_names;
use super::route_choice::{RouteChooser, StreamNumbers};
use super::saved_settings;
use crate::algorithms::Suite;
use crate::control::Outgoing;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Totals;
use crate::pipeline::Budget;
use crate::progress::Phase;
use crate::seal::Secret;
use crate::session::context::{ClientContext, FarServer};
use crate::session::converse::{RunningEnd, converse};
use crate::session::heartbeat::{Heart, HeartPlace, HeartTerms};
use crate::session::login::{Attempt, LoggedIn};
use crate::session::operands::{self, Counting};
use crate::session::request::{Host, Request};
use crate::session::tuning;
use crate::transport::connection::handshake::{DialRole, Keyring};
use crate::transport::connections::{ConnectionSet, Flow};
use crate::transport::dial::Attempts;
use crate::transport::rate_limit::RateLimiter;
use crate::transport::routes::{Connection, Route};
use crate::units::printable;
use crate::wire::hello::STREAMS_MAX;
use crate::wire::message::{Message, Roots, Tune, UncountedRoots};

/// A session that ended early.
pub struct LostSession {
    pub error: Error,
    /// The server had said hello.
    pub had_begun: bool,
    /// The host whose connection was lost, if there are two hosts.
    pub host: Option<String>,
}

impl From<Error> for LostSession {
    fn from(error: Error) -> LostSession {
        LostSession {
            error,
            had_begun: false,
            host: None,
        }
    }
}

/// Copies between this machine and a host, as far as one session gets. Returns the route that the
/// data took.
pub async fn copy(
    request: &Request,
    client: &ClientContext,
    session: Session<'_>,
) -> Result<String, LostSession> {
    let is_push = request.dest.host.is_some();
    let host = request.host().expect("one end is remote");
    let budget = client.budget(request)?;
    if let Some(name) = request.options.congestion.as_deref().filter(|_| is_push) {
        tuning::check_congestion(name)?;
    }
    let is_first = session.attempt == Attempt::First;
    let found = match is_push && is_first {
        true => Some(find(request, client).await?),
        false => None,
    };
    if found.as_ref().is_some_and(Counting::is_nothing) {
        return Ok(String::new());
    }
    let mut server = connect(host, request, client, session.attempt).await?;
    client.progress.add_login();
    tell_cuts(request, client, budget);
    let this_end = Client {
        request,
        client,
        budget,
        remembered: saved_settings::recall(request).await,
        session,
    };
    let mut end = None;
    let copied = tokio::select! {
        copied = this_end.copy(&mut server, &mut end, found) => copied,
        () = client.shutdown.wait() => Err(client.shutdown.error()),
    };
    over(request, client, server, end, copied).await
}

/// Tells the user of a file that only grew. This does not wait for this end of the copy: once all is
/// in place, that end takes no more messages.
fn tell_growth(client: &ClientContext, message: &Message) {
    if let Message::Grew(fault) = message {
        client.news.failures.grew(&fault.clone().into_growth());
    }
}

/// Ends the session.
async fn over(
    request: &Request,
    client: &ClientContext,
    server: LoggedIn,
    end: Option<RunningEnd>,
    copied: Result<String>,
) -> Result<String, LostSession> {
    let error = match copied {
        Ok(route) if client.probe.is_some() => {
            // Data that is still on its way is of no use, and may take long.
            let over = Error::new(Kind::Lost, Side::Here, "the probe is over");
            server.end(end, Some(&over)).await;
            return Ok(route);
        }
        Ok(route) => {
            let late = |message| tell_growth(client, &message);
            if let Some(conclusion) = server.end_well(end, late).await {
                client.conclude(request, conclusion).await;
            }
            return Ok(route);
        }
        Err(error) => error,
    };
    if let Some(end) = &end {
        end.work_off(&error).await;
    }
    // Recorded before the teardown, whose errors are not the cause.
    client.shutdown.end(error);
    let mut error = client.shutdown.error();
    let host = printable(server.host.name.as_bytes());
    if let Some(why) = server.end(end, Some(&error)).await {
        error = named(why, Some(&host));
    }
    Err(LostSession {
        error,
        had_begun: true,
        host: None,
    })
}

fn tell_cuts(request: &Request, client: &ClientContext, budget: Budget) {
    let given = budget.streams;
    if let Some(asked) = request.streams.filter(|asked| given < *asked) {
        let detail = format!("--memory is enough for {given} of {asked} streams");
        client.reporter.detail(&detail);
    }
}

/// The sources of a push: in the first session found before ssh asks for a password, and counted
/// while ssh logs in.
async fn find(request: &Request, client: &ClientContext) -> Result<Counting> {
    let found = operands::expand(request, client).await?;
    Ok(Counting::start(found, &request.options, &client.progress))
}

impl Client<'_> {
    async fn copy(
        &self,
        server: &mut LoggedIn,
        end: &mut Option<RunningEnd>,
        found: Option<Counting>,
    ) -> Result<String> {
        let is_push = self.request.dest.host.is_some();
        let (role, flow) = match is_push {
            true => (DialRole::Sends, Flow::Out),
            false => (DialRole::Receives, Flow::In),
        };
        self.request.check_selects(&server.host, &server.hello)?;
        self.request.check_archives(&server.host, &server.hello)?;
        self.request.check_itemizes(&server.host, &server.hello)?;
        self.request.check_relative(&server.host, &server.hello)?;
        self.request
            .check_places(&server.host, &server.hello, is_push)?;
        self.request.check_scp(&server.host, &server.hello)?;
        let suite = suite_for(&server.hello, self.request.encrypt);
        let keyring = Arc::new(Keyring::new(Secret::random(), self.session.id, role));
        first_messages::open(self, &server.control, &keyring, suite).await?;
        if self.session.attempt == Attempt::First {
            self.client.progress.set_phase(Phase::Scanning);
        }
        let connection_set = ConnectionSet::new(flow);
        let (proven, connections) = mpsc::channel(usize::from(STREAMS_MAX));
        let heard = server.incoming.heard();
        let far = FarServer {
            host: &server.host,
            hello: &server.hello,
            control: &server.control,
            heard: &heard,
        };
        let chooser = self.chooser(far, (keyring, suite), connection_set.clone(), proven);
        let pace = self.pace();
        let heart = self.heart(far, &connection_set);
        let name = printable(server.host.name.as_bytes());
        let control_reader =
            ControlReader::new(&mut server.incoming, Some(&heart), &self.client.shutdown);
        let mut control_reader = control_reader.of_host(&name);
        let list = file_names::send(self.request, &server.control);
        control_reader.during(list).await??;
        let found = match found {
            // After the login, so that a failing login does not look for the sources each time. A
            // slow disk may hold this up for any time, so heartbeats have begun.
            None if is_push => {
                let finding = find(self.request, self.client);
                Some(control_reader.during(finding).await??)
            }
            found => found,
        };
        if found.as_ref().is_some_and(Counting::is_nothing) {
            return Ok(String::new());
        }
        let found = match found {
            Some(found) => {
                let counted = found.counted(far.hello.can_count_later(false));
                Some(control_reader.during(counted).await??)
            }
            None => None,
        };
        let totals = found.as_ref().map(|found| found.totals.now());
        let (started, helm) = self.start(&chooser, found, connections, &pace).await?;
        if let RunningEnd::Sending(sending) = &started {
            heart.attach(sending.sender.clone());
        }
        let end = end.insert(started);
        let (listen, listens) = oneshot::channel();
        let ways = ConnectionControl {
            inband: chooser.inband.clone(),
            listen: Some(listen),
            reverse: None,
            limit: pace.limit.clone(),
        };
        let (ready, is_ready) = oneshot::channel();
        let mut counted = chooser.counted();
        if let Some(totals) = totals.flatten() {
            counted(&totals);
        }
        let (notes, opened_at) = (chooser.notes.clone(), chooser.opened_at);
        let conversing = converse(
            &mut control_reader,
            end,
            self.heed(ways),
            self.check(ready, counted),
        );
        let options = &self.request.options;
        // Otherwise a dry run sends no data, so that a firewall cannot end it.
        let dials = !options.dry_run || options.dry_run_reads();
        tokio::select! {
            over = conversing => over?,
            over = self.test(&helm, &connection_set, &server.hello, opened_at) => over?,
            () = chooser.run(listens, is_ready), if dials => {}
            () = self.follow_rate(&server.control, flow, &pace.limit) => {}
            never = self.client.hold_pipe(|| connection_set.arrived()) => match never {},
        }
        if let SendController::Tuner(tuning) = helm {
            self.client.conclude(self.request, tuning.conclude()).await;
        }
        let carried = connection_set.carried();
        let elsewhere = |route: &Route| *route != Route::Inband && carried[*route as usize] > 0;
        if !Route::ALL.iter().any(elsewhere) {
            // Others came up, but the copy was over before they carried anything.
            self.client.progress.set_streams(1);
        }
        Ok(notes.label(carried))
    }

    /// Takes messages about connections, and about the codecs that a probe has tried.
    fn heed(&self, mut ways: ConnectionControl) -> impl FnMut(Message) -> Result<()> {
        move |message| match (message, &self.client.probe) {
            (Message::Tried(tried), Some(probe)) => {
                probe.tried(tried);
                Ok(())
            }
            (message, _) => ways.take(message),
        }
    }

    /// Checks the server's messages before the end takes them. Passes on that the server is `ready`,
    /// and the totals of its sources.
    fn check(
        &self,
        ready: oneshot::Sender<()>,
        mut counted: impl FnMut(&Totals),
    ) -> impl FnMut(&Message) -> Result<()> {
        let mut told = false;
        let mut ready = Some(ready);
        move |message| {
            tell_growth(self.client, message);
            if let Message::Roots(_) | Message::Uncounted(_) | Message::Landed(_) = message {
                // Fails only if no route waits for it.
                let _ = ready.take().map(|ready| ready.send(()));
            }
            match message {
                Message::Roots(Roots { roots, totals }) => {
                    operands::check(self.request, roots, told)?;
                    self.client.take_roots(self.request, roots)?;
                    counted(totals);
                    Ok(())
                }
                Message::Uncounted(UncountedRoots { roots }) => {
                    operands::check(self.request, roots, told)?;
                    self.client.take_roots(self.request, roots)
                }
                Message::Counted(totals) => {
                    counted(totals);
                    Ok(())
                }
                Message::Fault(_) => {
                    told = true;
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    }

    fn chooser<'a>(
        &'a self,
        server: FarServer<'a>,
        (keyring, suite): (Arc<Keyring>, Suite),
        connection_set: Arc<ConnectionSet>,
        proven: mpsc::Sender<Connection>,
    ) -> RouteChooser<'a> {
        let is_wanted = matches!(self.request.route.asked, None | Some(Route::Ssh));
        let control = server.control.clone();
        let inband = Inband::new(connection_set.flow(), is_wanted, control, proven.clone());
        inband.hold();
        let streams_there = server.hello.limits.streams.max(1);
        RouteChooser {
            facing: Arc::new(keyring.facing()),
            attempts: Attempts::default(),
            request: self.request,
            server,
            opened_at: Instant::now(),
            streams: StreamNumbers {
                forced: self.streams().map(|streams| streams.min(streams_there)),
                max: self.budget.streams_max().min(streams_there),
                remembered: self.remembered,
            },
            keyring,
            suite,
            proven,
            connection_set,
            inband,
            notes: Arc::default(),
            client: self.client,
        }
    }

    /// Starts the heartbeats. When they are dropped, the data connections end too.
    fn heart(&self, server: FarServer<'_>, connection_set: &Arc<ConnectionSet>) -> Heart {
        Heart::start(HeartTerms {
            place: HeartPlace::Client {
                host: printable(server.host.name.as_bytes()),
                reporter: self.client.reporter.clone(),
                streams_max: self
                    .streams()
                    .unwrap_or(self.budget.streams_max())
                    .min(server.hello.limits.streams),
            },
            timeout_s: self.request.options.timeout_s,
            control: server.control.clone(),
            heard: server.heard.clone(),
            connection_set: connection_set.clone(),
            progress: self.client.progress.clone(),
            shutdown: self.client.shutdown.clone(),
        })
    }

    fn pace(&self) -> SendPace {
        let pace = SendPace {
            limit: self.client.limit(),
        };
        pace.limit.set(self.request.options.rate_limit);
        pace
    }

    async fn follow_rate(&self, control: &Outgoing, flow: Flow, limit: &RateLimiter) {
        let Some(file) = &self.request.rate_file else {
            return std::future::pending().await;
        };
        let rate = self.request.options.rate_limit;
        let set = async |rate: Option<u64>| match flow {
            Flow::Out => limit.set(rate),
            Flow::In => {
                // The reader reports a lost connection.
                let _ = control.send(Message::Tune(Tune::rate(rate))).await;
            }
        };
        file.follow(rate, &*self.client.reporter, set).await
    }
}

/// Logs in: waits for its turn, and after the login for the other copies. Returns when the copy
/// ends, so the caller need not watch for that.
async fn connect(
    host: &Host,
    request: &Request,
    client: &ClientContext,
    attempt: Attempt,
) -> Result<LoggedIn> {
    let Some(shared) = &client.shared else {
        return LoggedIn::connect(host, request, client, attempt).await;
    };
    let turn = async {
        match attempt {
            Attempt::First => shared.logins.turn().await,
            // Later logins ask nobody.
            Attempt::Again { .. } => None,
        }
    };
    let turn = tokio::select! {
        turn = turn => turn,
        () = client.shutdown.wait() => return Err(client.shutdown.error()),
    };
    let server = LoggedIn::connect(host, request, client, attempt).await?;
    drop(turn);
    shared.share.join();
    tokio::select! {
        () = shared.logins.over(shared.host) => Ok(server),
        () = client.shutdown.wait() => Err(client.shutdown.error()),
    }
}

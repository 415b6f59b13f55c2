//! The server: started by the client, it speaks control on stdin and stdout and ends when they
//! close.

mod accept;
mod clean;
mod first_messages;
mod list_check;
mod record;
mod roles;
mod syslog;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::accept::EarlyListener;
use self::first_messages::opening;
use self::record::SessionRecord;
use self::roles::{ServerRole, destination, end, rules, tell, tell_roots};

use super::connection_control::{ConnectionControl, Inband, Reverse};
use super::control_reader::ControlReader;
use super::data_connections::{Connections, SendPace, receive_on, send_on};
use super::endpoint::{ReceivingEnd, SendingEnd};
use super::file_names;
use super::progress_relay::ProgressRelay;
use crate::algorithms::Suite;
use crate::chunk::Pool;
use crate::chunk::patch::PageHasher;
use crate::control::stdio::Stdio;
use crate::control::{ControlError, HELLO_TIMEOUT, Incoming, Outgoing, say_hello};
use crate::error::{Error, Kind, Result, Side, reason_of};
use crate::file_list::{NamesFrom, RelativeCopy};
use crate::pipeline::context::{Agreement, Context};
use crate::pipeline::digest_list::DigestList;
use crate::pipeline::news::News;
use crate::pipeline::receive::destination::{Sessions, To};
use crate::pipeline::send::SendTerms;
use crate::pipeline::{Budget, Shutdown};
use crate::progress::Progress;
use crate::seal::{Direction, Opener, Sealer, Secret, page_secret};
use crate::session::control_reader::breach;
use crate::session::converse::{RunningEnd, converse};
use crate::session::heartbeat::{self, Heart, HeartPlace};
use crate::session::host;
use crate::session::operands::CountedSources;
use crate::session::permit::Permit;
use crate::session::runtime::runtime;
use crate::session::tuning::{self, Audience, Tuning, TuningTerms};
use crate::transport::connection::handshake::{DialRole, Keyring};
use crate::transport::connections::{ConnectionSet, Flow};
use crate::transport::dial::Attempts;
use crate::transport::rate_limit::RateLimiter;
use crate::transport::routes::meeting_socket::MeetingRequest;
use crate::transport::routes::{Connection, Route, addresses, meeting_socket};
use crate::wire::hello::{Hello, STREAMS_MAX};
use crate::wire::message::{Fault, Heartbeat, Message, Open};
use crate::{dest, program};

/// How long a client may be silent at first. It may have to log in to another host, which may ask
/// the user for a password, and to install fastcp there: 4 MB take over 5 minutes at 0.1 Mbit/s. If
/// the client ends, the server usually reads that at once. This is for a client that has vanished.
const GREETING_PATIENCE: Duration = Duration::from_secs(60 * 60);

/// How long the client may take to close control after the copy is complete.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The same where this end received, so that its last message says that all is in place. If the
/// server exits by itself, the client need not wait a round trip for it. But the client should read
/// that message before the data connections end, and the message takes the longer way through sshd.
const RECEIVED_PATIENCE: Duration = Duration::from_millis(20);

/// How long the last message may take if control is stuck.
const ABORT_PATIENCE: Duration = Duration::from_secs(1);

/// Why a server did not carry out a copy.
pub enum NotServed {
    /// The client does not know the error.
    NotBegun(Error),
    /// The client was told the error, if it still listened.
    Told(Kind),
}

/// The server: speaks control on stdin and stdout until the client is done. `placed`: a client has
/// copied this program to the host, and the program has verified its own digest.
pub fn run(placed: bool, permit: Permit) -> Result<(), NotServed> {
    host::prepare(1).map_err(NotServed::NotBegun)?;
    host::ignore_status_signal();
    let mut hello = host::hello();
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    if let Some(address) = addresses::of_login(&connection, addresses::SshEnd::Server) {
        address.clone_into(&mut hello.reached);
    }
    // The owner of a limited key need not know more than it was told.
    if permit.permits_all() {
        // sshd and sudo set it. Another look-up may ask a directory server, which takes time.
        let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
        (hello.host, hello.user) = (host::name(), user.unwrap_or_else(host::user));
    }
    if placed {
        if let Err(cause) = program::placed::settle() {
            // Ignores a stderr that nobody reads any more.
            let _ = writeln!(
                std::io::stderr(),
                "fastcp: cannot keep fastcp in ~/.cache/fastcp: {}; the next login sends it again",
                reason_of(&cause)
            );
        }
        let own = program::Program::own().map_err(NotServed::NotBegun)?;
        own.digest().clone_into(&mut hello.program);
    }
    let runtime = runtime().map_err(NotServed::NotBegun)?;
    let served = runtime.block_on(serve(hello, permit));
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}

/// Serves one copy.
pub async fn serve(mut hello: Hello, permit: Permit) -> Result<(), NotServed> {
    let not_ours = |e: std::io::Error| {
        NotServed::NotBegun(Error::usage(format!(
            "--server is for fastcp's own use: {}",
            reason_of(&e)
        )))
    };
    let mut stdout = Stdio::new(std::io::stdout()).map_err(not_ours)?;
    let stdin = Stdio::new(std::io::stdin()).map_err(not_ours)?;
    let lost = |_: ControlError| NotServed::Told(Kind::Lost);
    let early = EarlyListener::open(&permit).await;
    hello.listen = early.as_ref().map(EarlyListener::place);
    let said = say_hello(&mut stdout, &hello).await;
    said.map_err(|e| lost(e.into()))?;
    let mut stdin = stdin;
    let greeted = timeout(GREETING_PATIENCE, meeting_socket::greeting(&mut stdin)).await;
    let first = match greeted.unwrap_or(Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(MeetingRequest::Session(first)) => first,
        Ok(MeetingRequest::Stream(session)) => {
            drop(early);
            return join(&session).await;
        }
        Err(error) => return Err(lost(error.into())),
    };
    let mut incoming = Incoming::after(&first, stdin);
    let client = incoming.hello(HELLO_TIMEOUT).await.map_err(lost)?;
    let (control, _writer) = Outgoing::start(stdout);
    let shutdown = Arc::new(Shutdown::default());
    host::end_on_signals(shutdown.clone());
    host::end_on_panic(shutdown.clone());
    let mut end = None;
    // Beats until the client has closed control: connections may end only after it knows why.
    let mut heart = None;
    let mut record = SessionRecord::begin(permit.records(client.no_syslog));
    let served = copy(
        &mut incoming,
        &control,
        &client,
        &permit,
        &shutdown,
        early,
        (&mut end, &mut heart, &mut record),
    )
    .await;
    // Before anything is torn down, which may take until this process is killed.
    record.end(served.as_ref().err(), end.as_ref().map(RunningEnd::failed));
    if let Err(error) = &served {
        // The cause decides which parts of an unfinished copy stay.
        shutdown.end(error.clone());
        if error.kind != Kind::Breach {
            host::exit_without_client(error.kind);
        }
        // Sent before anything is torn down, so that the client reads the cause and not its
        // effects. If control is lost, nobody reads it.
        let abort = Message::Abort(Fault::of(error, 0, 0));
        let _ = timeout(ABORT_PATIENCE, control.send_through(abort)).await;
    }
    if served.is_ok() {
        written(&mut incoming, &control, &shutdown).await;
    }
    if let Some(end) = end {
        end.stop().await;
    }
    if served.is_err() {
        host::commands_end().await;
    }
    // The client closes control after it has read the result.
    let closed = async { while incoming.next().await.is_ok() {} };
    let patience = match &served {
        Ok(patience) => *patience,
        // Nobody listens any more.
        Err(error) if error.kind == Kind::Lost => ABORT_PATIENCE,
        Err(_) => END_PATIENCE,
    };
    tokio::select! {
        _ = timeout(patience, closed) => {}
        never = record.retry() => match never {},
    }
    match served {
        Ok(_) => Ok(()),
        Err(error) => Err(NotServed::Told(error.kind)),
    }
}

/// Waits until the client has taken all messages, as far as the connection tells: a client whose user
/// reads slowly takes the last ones late. The heart notices if the client is gone.
async fn written<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    control: &Outgoing,
    shutdown: &Shutdown,
) {
    let last = control.send_through(Message::Heartbeat(Heartbeat::default()));
    // Also counts the client's heartbeats.
    let closed = async { while incoming.next().await.is_ok() {} };
    tokio::select! {
        // Fails only if the client has closed control.
        _ = last => {}
        () = closed => {}
        () = shutdown.wait() => {}
    }
}

/// Returns how long the client may take to close control.
async fn copy<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    control: &Outgoing,
    client: &Hello,
    permit: &Permit,
    shutdown: &Arc<Shutdown>,
    early: Option<EarlyListener>,
    (slot, heart, record): (
        &mut Option<RunningEnd>,
        &mut Option<Heart>,
        &mut SessionRecord,
    ),
) -> Result<Duration> {
    let (mut open, secret) = opening(incoming, control, client, HELLO_TIMEOUT).await?;
    open.options.polite = client.polite;
    open.options.compares = Some(client.compares);
    open.options.mkpath = client.mkpath;
    open.options.dry_run = client.dry_run;
    let hides = client.itemizes_if_allowed && permit.hides_changes(&open.role);
    open.options.itemizes = client.itemizes && !hides;
    open.options.reports_files = client.reports_files;
    open.options.is_beside = client.beside;
    open.options.scp = client.scp;
    // It never does more than a dry run.
    open.options.check = client.check && client.dry_run;
    record.asked(&open, permit);
    permit.check(&open)?;
    permit.bound(&mut open)?;
    if let Some(root) = permit.root_of_paths(&open.role) {
        control.name_paths_from(root);
    }
    if open.options.nice {
        host::be_nice();
    }
    let mut server = ServerCopy::new(
        open,
        secret,
        incoming.heard(),
        control,
        client,
        permit,
        shutdown,
    )?;
    record.progress = server.progress.clone();
    let heart = &*heart.insert(server.heart());
    let mut control_reader = ControlReader::new(incoming, Some(heart), shutdown);
    if server.open.between {
        control_reader = control_reader.between();
    }
    if let Some(copy) = server.open.options.relative.clone()
        && copy.names == NamesFrom::Sent
    {
        let list = file_names::receive(&mut control_reader).await?;
        server.open.options.relative = Some(Arc::new(RelativeCopy {
            names: NamesFrom::List(Arc::new(list)),
            ..*copy
        }));
    }
    let (proven, connections) = mpsc::channel(usize::from(STREAMS_MAX));
    let pace = SendPace::default();
    pace.limit.set(server.open.options.rate_limit);
    let mut ways = server.ways(&proven, pace.limit.clone());
    let ServerCopy {
        open,
        connection_set,
        keyring,
        ..
    } = &server;
    accept::take_streams(open, early, control, keyring, connection_set, proven).await?;
    ways.inband.offer();
    // Until the sending end's tuner decides.
    let streams = tuning::first_streams(open.streams);
    connection_set.want(streams.min(server.budget.streams_max()));
    let mut reports = Reports::default();
    let role = control_reader.during(end(open, permit, control)).await??;
    let end = slot.insert(match role {
        ServerRole::Verifier(place) => {
            let terms = (open, server.budget.workers, &server.progress);
            let control = control.clone();
            let reader = &mut control_reader;
            let checked = list_check::serve(place, terms, control, reader, shutdown).await;
            return checked.map(|()| END_PATIENCE);
        }
        ServerRole::Cleaner(directory) => {
            let terms = (open.options.dry_run, &server.progress);
            let reader = &mut control_reader;
            let cleaned = clean::serve(directory, terms, control, reader, shutdown).await;
            return cleaned.map(|()| END_PATIENCE);
        }
        ServerRole::Source(found, failed) => {
            record.failed = failed;
            let can_wait = client.can_count_later(open.between);
            let told = tell_roots(found, open, can_wait, &server.progress, control);
            let sources = control_reader.during(told).await??;
            let limit = pace.limit.clone();
            let end = server.send(sources, connections, pace);
            reports = server.report(&end, limit);
            heart.attach(end.sender.clone());
            RunningEnd::Sending(end)
        }
        ServerRole::Dest(to, typed) => {
            RunningEnd::Receiving(server.receive(to, typed, connections))
        }
    });
    converse(
        &mut control_reader,
        end,
        |message| ways.take(message),
        |_| Ok(()),
    )
    .await?;
    reports.end(control).await;
    Ok(match end {
        // Between two servers, the client passes the result on.
        RunningEnd::Receiving(_) if !open.between => RECEIVED_PATIENCE,
        RunningEnd::Receiving(_) | RunningEnd::Sending(_) => END_PATIENCE,
    })
}

/// The sending end's reports during the copy.
#[derive(Default)]
struct Reports {
    tuning: Option<Tuning>,
    /// For a client that is neither the sender nor the receiver.
    accounting: Option<ProgressRelay>,
}

impl Reports {
    async fn end(self, control: &Outgoing) {
        if let Some(accounting) = self.accounting {
            let _ = timeout(ABORT_PATIENCE, accounting.end()).await;
        }
        if let Some(tuning) = self.tuning {
            // A client that no longer listens does not need it.
            let last = Message::Conclusion(tuning.conclude());
            let _ = timeout(ABORT_PATIENCE, control.send_through(last)).await;
        }
    }
}

/// The parts that serve one copy.
struct ServerCopy<'a> {
    open: Open,
    budget: Budget,
    suite: Suite,
    keyring: Arc<Keyring>,
    control: &'a Outgoing,
    client: &'a Hello,
    permit: &'a Permit,
    shutdown: &'a Arc<Shutdown>,
    progress: Arc<Progress>,
    connection_set: Arc<ConnectionSet>,
    /// Counts bytes received from the client.
    heard: Arc<AtomicU64>,
}

impl<'a> ServerCopy<'a> {
    fn new(
        open: Open,
        secret: Secret,
        heard: Arc<AtomicU64>,
        control: &'a Outgoing,
        client: &'a Hello,
        permit: &'a Permit,
        shutdown: &'a Arc<Shutdown>,
    ) -> Result<ServerCopy<'a>> {
        let budget = Budget::new(&open.options, open.streams, open.chunk_size as usize)?;
        let sends = open.role.sends();
        if let Some(name) = open.options.congestion.as_deref().filter(|_| sends) {
            tuning::check_congestion(name)?;
        }
        let suite = Suite::from_number(open.suite).filter(|suite| *suite != Suite::None);
        let suite = suite.ok_or_else(|| breach("an unknown cipher suite"))?;
        let (dialler, flow) = match sends {
            true => (DialRole::Receives, Flow::Out),
            false => (DialRole::Sends, Flow::In),
        };
        Ok(ServerCopy {
            budget,
            suite,
            keyring: Arc::new(Keyring::new(secret, open.session, dialler)),
            open,
            control,
            client,
            permit,
            shutdown,
            progress: Arc::default(),
            connection_set: ConnectionSet::new(flow),
            heard,
        })
    }

    /// True for the sender of two servers: it seals and dials like a client that pushes.
    fn is_like_a_client(&self) -> bool {
        self.open.between && self.open.role.sends()
    }

    fn heart(&self) -> Heart {
        Heart::start(heartbeat::HeartTerms {
            place: HeartPlace::Server {
                streams_max: self.budget.streams_max(),
                between: self.open.between,
            },
            timeout_s: self.open.options.timeout_s,
            control: self.control.clone(),
            heard: self.heard.clone(),
            connection_set: self.connection_set.clone(),
            progress: self.progress.clone(),
            shutdown: self.shutdown.clone(),
        })
    }

    fn ways(
        &self,
        proven: &mpsc::Sender<Connection>,
        limit: Arc<RateLimiter>,
    ) -> ConnectionControl {
        let streams_max = match self.open.streams {
            Some(_) => self.budget.streams,
            None => self.budget.streams_max(),
        };
        let streams_max = streams_max.min(self.client.limits.streams).max(1);
        let control = self.control.clone();
        ConnectionControl {
            inband: Inband::new(self.connection_set.flow(), true, control, proven.clone()),
            listen: None,
            reverse: Some(Reverse {
                route: match self.is_like_a_client() {
                    true => Route::Direct,
                    false => Route::Reverse,
                },
                streams_max,
                keyring: Arc::new(self.keyring.facing()),
                suite: self.suite,
                proven: proven.clone(),
                connection_set: self.connection_set.clone(),
                is_confined: !self.permit.permits_all(),
                is_client: !self.open.between,
                attempts: Attempts::default(),
                dialling: None,
            }),
            limit,
        }
    }

    fn context(&self) -> Context {
        let chunk_size = self.open.chunk_size as usize;
        Context {
            options: self.open.options.clone(),
            budget: self.budget,
            chunk_size,
            agreed: Agreement::between(
                &host::hello(),
                self.client,
                self.open.chunk_size,
                &self.open.options,
            ),
            page_hasher: PageHasher::new(page_secret(&self.keyring.secret)),
            pool: Pool::new(self.budget.slots, chunk_size),
            control: self.control.clone(),
            tell: tell(),
            news: Arc::new(News::silent(self.progress.clone())),
            progress: self.progress.clone(),
            shutdown: self.shutdown.clone(),
            digests: None,
        }
    }

    fn send(
        &self,
        sources: CountedSources,
        connections: Connections,
        pace: SendPace,
    ) -> SendingEnd {
        let direction = match self.is_like_a_client() {
            true => Direction::ToServer,
            false => Direction::ToClient,
        };
        let sealer = Sealer::new(&self.keyring.secret, direction, self.suite);
        let CountedSources { found, totals } = sources;
        let sources = found.sources(&self.open.options);
        let terms = SendTerms {
            count: totals.count(),
            ..SendTerms::with(self.client, host::open_entries())
        };
        let end = SendingEnd::start(self.context(), terms, sealer, sources);
        let (sender, frames) = (end.sender.clone(), end.frames.clone());
        let connection_set = self.connection_set.clone();
        tokio::spawn(send_on(
            sender,
            frames,
            connections,
            connection_set,
            pace,
            None,
        ));
        end
    }

    fn report(&self, end: &SendingEnd, limit: Arc<RateLimiter>) -> Reports {
        let Open {
            options,
            streams,
            remembered,
            ..
        } = &self.open;
        let tuning = Tuning::start(TuningTerms {
            sender: end.sender.clone(),
            connection_set: Some(self.connection_set.clone()),
            start: tuning::start(self.budget, options, *streams, self.client, *remembered),
            audience: Audience::Peer(self.control.clone()),
            limit,
        });
        let accounting = || ProgressRelay::start(&end.sender, &self.connection_set, self.control);
        Reports {
            tuning: Some(tuning),
            accounting: self.open.between.then(accounting),
        }
    }

    fn receive(&self, to: To, typed: Vec<Vec<u8>>, connections: Connections) -> ReceivingEnd {
        let opener = Opener::new(&self.keyring.secret, Direction::ToServer, self.suite);
        let same_machine = host::is_this_machine(&self.client.boot_id);
        let mut destination = destination(to, typed, &self.open, same_machine);
        destination.sessions = Sessions {
            owner: self.client.owner(),
            trusts: self.client.trust_partial,
            heard: Some(self.heard.clone()),
            ..destination.sessions
        };
        let rules = dest::Rules {
            allow_empty: self.client.allow_empty,
            ..self.permit.restrict(rules(&self.open))
        };
        let (connection_set, idle_time) = (
            self.connection_set.clone(),
            self.connection_set.idle_time().clone(),
        );
        let mut context = self.context();
        // In other copies the client is an end, and lists the files itself.
        if self.open.between && self.open.options.digests {
            context.digests = Some(Arc::new(DigestList::at_client(self.control.clone())));
        }
        let end = ReceivingEnd::start(context, opener, rules, destination, idle_time);
        tokio::spawn(receive_on(
            end.receiver.clone(),
            connections,
            connection_set,
            None,
        ));
        end
    }
}

/// Makes this login a data connection of another login's session.
async fn join(session: &str) -> Result<(), NotServed> {
    let joined = meeting_socket::join(session).await;
    joined.map_err(|error| {
        let why = reason_of(&error);
        let message = format!("cannot add this login to its session: {why}");
        NotServed::NotBegun(Error::new(Kind::Connect, Side::Here, message))
    })
}

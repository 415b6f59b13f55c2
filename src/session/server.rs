//! The far end: started by the client, speaks control on stdin and stdout, and ends with them.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::control::stdio::Stdio;
use crate::control::{ControlError, HELLO_TIMEOUT, Incoming, Outgoing, say_hello};
use crate::dest::{self, Exit, Rules, Spec, process_umask};
use crate::dir::Confine;
use crate::error::{Error, Kind, Result, Side};
use crate::pipe::Stop;
use crate::pipeline::landing::{Sessions, Tell};
use crate::pipeline::placer::{Destination, To, Typed};
use crate::pipeline::tally::Tally;
use crate::pipeline::{Budget, Ending};
use crate::progress::Progress;
use crate::route::addresses;
use crate::route::listener::Listener;
use crate::route::meeting::{self, Greeting, Meeting};
use crate::route::{Connection, Route};
use crate::seal::{Direction, Opener, Sealer, Secret, Suite};
use crate::session::account::Accounting;
use crate::session::backoff::chance;
use crate::session::dial::Attempts;
use crate::session::half::{Common, ReceivingHalf, SendingHalf};
use crate::session::hearing::Hearing;
use crate::session::heartbeat::{self, Heart, Place};
use crate::session::operands::Expanded;
use crate::session::permit::Permit;
use crate::session::roster::{Flow, Roster};
use crate::session::streams::{Pace, receive_on, send_on};
use crate::session::tuning::{self, Audience, Terms, Tuning};
use crate::session::ways::{Inband, Reverse, Ways};
use crate::session::{Half, NotServed, converse, host, probe};
use crate::source::{self, Inlet, Lookup, Named};
use crate::stream::opening::{DialRole, Keyring};
use crate::wire::hello::{Hello, STREAMS_MAX};
use crate::wire::message::{Fault, Listen, Message, Open, Ports, Role, Roots, SESSIONS_MAX, Tried};

/// How long a client may be silent at first: it may have another host to log in to, where a person
/// is asked for a password (`login`).
const GREETING_PATIENCE: Duration = Duration::from_secs(330);

/// How long the client may take to close control once everything is in place.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// How long the last word may take, where control is stuck.
const ABORT_PATIENCE: Duration = Duration::from_secs(1);

/// Chunk sizes that a client may ask for, in bytes.
const CHUNK_SIZES: std::ops::RangeInclusive<u32> = 64 << 10..=16 << 20;

/// Serves one copy.
pub async fn serve(hello: Hello, permit: Permit) -> Result<(), NotServed> {
    let not_ours = |e: std::io::Error| {
        NotServed::NotBegun(Error::usage(format!(
            "--server is for fastcp's own use: {e}"
        )))
    };
    let mut stdout = Stdio::new(std::io::stdout()).map_err(not_ours)?;
    let stdin = Stdio::new(std::io::stdin()).map_err(not_ours)?;
    let lost = |_: ControlError| NotServed::Told(Kind::Lost);
    let said = say_hello(&mut stdout, &hello).await;
    said.map_err(|e| lost(e.into()))?;
    let mut stdin = stdin;
    let greeted = timeout(GREETING_PATIENCE, meeting::greeting(&mut stdin)).await;
    let first = match greeted.unwrap_or(Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(Greeting::Session(first)) => first,
        Ok(Greeting::Stream(session)) => return join(&session).await,
        Err(error) => return Err(lost(error.into())),
    };
    let mut incoming = Incoming::after(&first, stdin);
    let client = incoming.hello(HELLO_TIMEOUT).await.map_err(lost)?;
    let (control, _writer) = Outgoing::start(stdout);
    let ending = Arc::new(Ending::default());
    host::end_on_signals(ending.clone());
    let mut half = None;
    // Beats until the client has closed control: streams end only when it knows why.
    let mut heart = None;
    let served = copy(
        &mut incoming,
        &control,
        &client,
        &permit,
        &ending,
        (&mut half, &mut heart),
    )
    .await;
    if let Err(error) = &served {
        // What is kept of an unfinished copy depends on it.
        ending.end(error.clone());
        // Before anything is torn down, so that the client hears the cause and not its effects.
        // Where control is lost there is nobody to tell.
        let abort = Message::Abort(Fault::of(error, 0, 0));
        let _ = timeout(ABORT_PATIENCE, control.send_through(abort)).await;
    }
    if let Some(half) = half {
        half.stop().await;
    }
    // The client closes control when it knows.
    let closed = async { while incoming.next().await.is_ok() {} };
    let patience = match &served {
        // Nobody hears any more.
        Err(error) if error.kind == Kind::Lost => ABORT_PATIENCE,
        _ => END_PATIENCE,
    };
    let _ = timeout(patience, closed).await;
    served.map_err(|error| NotServed::Told(error.kind))
}

async fn copy<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    control: &Outgoing,
    client: &Hello,
    permit: &Permit,
    ending: &Arc<Ending>,
    (slot, heart): (&mut Option<Half>, &mut Option<Heart>),
) -> Result<()> {
    let opened = timeout(HELLO_TIMEOUT, opening(incoming)).await;
    let (open, secret) = opened.unwrap_or_else(|_| Err(breach("no opening")))?;
    permit.check(&open)?;
    if open.options.nice {
        host::be_nice();
    }
    let budget = Budget::new(&open.options, open.streams, open.chunk_size as usize)?;
    let sends = open.role.sends();
    if let Some(name) = open.options.congestion.as_deref().filter(|_| sends) {
        tuning::check_congestion(name)?;
    }
    let suite = Suite::from_number(open.suite).filter(|suite| *suite != Suite::None);
    let suite = suite.ok_or_else(|| breach("an unknown seal"))?;
    let progress = Arc::new(Progress::default());
    let (dialler, flow) = match open.role.sends() {
        true => (DialRole::Receives, Flow::Out),
        false => (DialRole::Sends, Flow::In),
    };
    // Who of two servers has the data seals as a client does that pushes, and dials as one.
    let (sealing, dials) = match (open.between, open.role.sends()) {
        (true, true) => (Direction::ToServer, Route::Direct),
        _ => (Direction::ToClient, Route::Reverse),
    };
    let roster = Roster::new(flow);
    let heard = incoming.heard();
    let heart = &*heart.insert(Heart::start(heartbeat::Terms {
        place: Place::Server {
            streams_max: budget.streams_max(),
        },
        timeout_s: open.options.timeout_s,
        control: control.clone(),
        heard: heard.clone(),
        roster: roster.clone(),
        progress: progress.clone(),
        ending: ending.clone(),
    }));
    let mut hearing = Hearing::new(incoming, Some(heart), ending);
    if open.between {
        hearing = hearing.between();
    }
    let common = Common {
        options: open.options.clone(),
        budget,
        chunk_size: open.chunk_size as usize,
        control: control.clone(),
        tally: Arc::new(Tally::silent(progress.clone())),
        progress,
        ending: ending.clone(),
        digests: None,
        tell: tell(),
        enough: Stop::new(),
        share: None,
    };
    let keyring = Arc::new(Keyring::new(secret, open.session, dialler));
    let (proven, connections) = mpsc::channel(usize::from(STREAMS_MAX));
    let inband = Inband::new(flow, true, control.clone(), proven.clone());
    let pace = Pace::default();
    pace.limit.set(open.options.rate_limit);
    let mut ways = Ways {
        inband: inband.clone(),
        listen: None,
        reverse: Some(Reverse {
            route: dials,
            streams_max: open
                .streams
                .map_or(budget.streams_max(), |_| budget.streams),
            keyring: Arc::new(keyring.facing()),
            suite,
            proven: proven.clone(),
            roster: roster.clone(),
            is_confined: *permit != Permit::default(),
            is_client: !open.between,
            attempts: Attempts::default(),
            dialling: None,
        }),
        limit: pace.limit.clone(),
    };
    take_streams(&open, control, &keyring, &roster, proven).await?;
    inband.offer();
    // Until who sends says better.
    let streams = tuning::first_streams(open.streams, open.remembered);
    roster.want(streams.min(budget.streams_max()));
    let mut tuning = None;
    let mut accounting = None;
    let half = slot.insert(match hearing.during(end(&open, permit, control)).await?? {
        End::Source(found) => {
            hearing.during(tell_roots(&found, &open, control)).await??;
            let sealer = Sealer::new(&keyring.secret, sealing, suite);
            let half = SendingHalf::start(common, sealer, found.sources(&open.options), false);
            tuning = Some(Tuning::start(Terms {
                sender: half.sender.clone(),
                roster: Some(roster.clone()),
                start: tuning::start(budget, &open.options, open.streams, client, open.remembered),
                audience: Audience::Peer(control.clone()),
            }));
            accounting = open
                .between
                .then(|| Accounting::start(&half.sender, &roster, control));
            tokio::spawn(send_on(
                half.sender.clone(),
                half.frames.clone(),
                connections,
                roster,
                pace,
                None,
            ));
            heart.attach(half.sender.clone());
            Half::Sending(half)
        }
        End::Dest(to, typed) => {
            let opener = Opener::new(&keyring.secret, Direction::ToServer, suite);
            let same_machine = host::is_this_machine(&client.boot_id);
            let mut destination = destination(to, typed, &open, same_machine);
            destination.sessions.heard = Some(heard);
            let crowd = roster.crowd().clone();
            let rules = permit.restrict(rules(&open));
            let half = ReceivingHalf::start(common, opener, rules, destination, crowd);
            tokio::spawn(receive_on(half.receiver.clone(), connections, roster, None));
            Half::Receiving(half)
        }
    });
    converse(&mut hearing, half, |message| ways.take(message), |_| Ok(())).await?;
    if let Some(accounting) = accounting {
        let _ = timeout(ABORT_PATIENCE, accounting.end()).await;
    }
    if let Some(tuning) = tuning {
        // Who does not listen any more has what it wanted.
        let last = Message::Conclusion(tuning.conclude());
        let _ = timeout(ABORT_PATIENCE, control.send_through(last)).await;
    }
    Ok(())
}

/// This login is a stream of a session that another has begun.
async fn join(session: &str) -> Result<(), NotServed> {
    let joined = meeting::join(session).await;
    joined.map_err(|error| {
        let message = format!("the session that this login is for cannot be joined: {error}");
        NotServed::NotBegun(Error::new(Kind::Connect, Side::Here, message))
    })
}

/// Opens what the client wants to come by, and hands on what does until the session is over.
async fn take_streams(
    open: &Open,
    control: &Outgoing,
    keyring: &Arc<Keyring>,
    roster: &Arc<Roster>,
    proven: mpsc::Sender<Connection>,
) -> Result<()> {
    let hand_on = move |connection| {
        // More than any client dials at once; one that comes beyond is dropped.
        let _ = proven.try_send(connection);
        !proven.is_closed()
    };
    let mut listener = None;
    if open.listens {
        listener = listen(open.ports).await;
        let listen = Listen {
            addresses: listener.as_ref().map_or(Vec::new(), |_| addresses()),
            port: listener.as_ref().map_or(0, |listener| listener.port),
        };
        say(control, Message::Listen(listen)).await?;
    }
    // Where there can be none, no login finds it, which is told by that. No login of one server
    // leads to another.
    let meeting = Meeting::open(&keyring.session).ok();
    let meeting = meeting.filter(|_| !open.between);
    let (keyring, over) = (keyring.clone(), roster.clone());
    tokio::spawn(async move {
        let listening = async {
            match listener {
                Some(listener) => listener.run(keyring.clone(), hand_on.clone()).await,
                None => std::future::pending().await,
            }
        };
        let meeting = async {
            match meeting {
                Some(meeting) => meeting.run(keyring.clone(), hand_on.clone()).await,
                None => std::future::pending().await,
            }
        };
        // Both close with the session.
        tokio::select! {
            () = listening => {}
            () = meeting => {}
            () = over.closed() => {}
        }
    });
    Ok(())
}

/// None where no port is to be had, of which the user is told.
async fn listen(ports: Option<Ports>) -> Option<Listener> {
    match Listener::open(None, ports, chance().into()).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            let which = ports.map_or(String::new(), |Ports { first, last }| {
                format!(" of {first}-{last}")
            });
            // Through ssh it comes to the user.
            eprintln!("fastcp: the far end has no port{which} for data: {error}");
            None
        }
    }
}

/// Where the client may find this host.
fn addresses() -> Vec<String> {
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let reached = addresses::of_login(&connection, addresses::End::Server);
    addresses::own(Some(reached.unwrap_or("127.0.0.1")))
}

/// The client's first two messages.
async fn opening<R: AsyncRead + Unpin>(incoming: &mut Incoming<R>) -> Result<(Open, Secret)> {
    let mut next = async || incoming.next().await.map_err(super::lost);
    let (Message::Open(open), Message::Secret(mut secret)) = (next().await?, next().await?) else {
        return Err(breach("another opening"));
    };
    if !CHUNK_SIZES.contains(&open.chunk_size) || !open.chunk_size.is_power_of_two() {
        return Err(breach("an impossible chunk size"));
    }
    let is_possible = |streams| (1..=STREAMS_MAX).contains(&streams);
    if !open.streams.is_none_or(is_possible) {
        return Err(breach("an impossible number of streams"));
    }
    if open.before.len() > SESSIONS_MAX {
        return Err(breach("more sessions than there can have been"));
    }
    Ok((open, Secret::take(&mut secret.0)))
}

/// Which end of the copy this is.
enum End {
    Source(Expanded),
    /// With the sources as they were typed.
    Dest(To, Vec<Vec<u8>>),
}

async fn end(open: &Open, permit: &Permit, control: &Outgoing) -> Result<End> {
    let confine = permit.confine()?;
    let base = permit.base(home());
    let line = |command: &Vec<u8>| OsString::from_vec(command.clone());
    Ok(match &open.role {
        Role::Sender { operands } => {
            let lookup = Lookup {
                base,
                remote: true,
                confine,
            };
            End::Source(named(operands, open, &lookup, control).await?)
        }
        Role::Producer { command } => {
            End::Source(Expanded::nameless(Inlet::Command(line(command))))
        }
        Role::Consumer { command, source } => {
            End::Dest(To::Exit(Exit::Command(line(command))), vec![source.clone()])
        }
        Role::Receiver { path, sources } => {
            let to = To::Path(spec(path, open, base, confine));
            End::Dest(to, sources.clone())
        }
        Role::Probe { path } => {
            let mut tried = Tried::default();
            if !path.is_empty() {
                tried = probe::place::write_there(spec(path, open, base, confine)).await?;
            }
            say(control, Message::Tried(tried)).await?;
            End::Dest(
                To::Exit(probe::place::nowhere()),
                vec![probe::SOURCE.into()],
            )
        }
    })
}

fn spec(path: &[u8], open: &Open, base: PathBuf, confine: Option<Arc<Confine>>) -> Spec {
    Spec {
        path: path.to_vec(),
        base,
        remote: true,
        no_target_directory: open.options.no_target_directory,
        inplace: open.options.inplace,
        confine,
    }
}

/// Counts what the client asked for, and tells it.
async fn tell_roots(found: &Expanded, open: &Open, control: &Outgoing) -> Result<()> {
    let (counted, options) = (found.clone(), open.options.clone());
    let scan = move || counted.count(&options, &mut |_, _| ());
    let totals = tokio::task::spawn_blocking(scan).await;
    let totals = totals.map_err(|_| Error::new(Kind::Read, Side::Source, "the scan failed"))?;
    let roots = found.roots();
    say(control, Message::Roots(Roots { roots, totals })).await
}

/// Finds what the client asked for.
async fn named(
    operands: &[Vec<u8>],
    open: &Open,
    lookup: &Lookup,
    control: &Outgoing,
) -> Result<Expanded> {
    let mut all = Expanded::default();
    for (operand, typed) in operands.iter().enumerate() {
        let (found, errors) = source::expand(typed, lookup, open.options.recursive);
        for error in &errors {
            say(control, Message::Fault(Fault::of(error, 0, 0))).await?;
        }
        // Through ssh it comes to the user.
        let warnings = found.iter().filter_map(Named::warning);
        warnings.for_each(|line| eprintln!("{line}"));
        all.add(found, operand);
    }
    Ok(all)
}

fn destination(to: To, sources: Vec<Vec<u8>>, open: &Open, same_machine: bool) -> Destination {
    // A client that pushes has found what is of that name; another server finds what fits.
    let typed = |operand: Vec<u8>| Typed {
        follow_name: !(open.between && source::is_pattern(&operand)),
        operand: OsString::from_vec(operand),
    };
    Destination {
        to,
        same_machine,
        typed: sources.into_iter().map(typed).collect(),
        sessions: Sessions {
            own: open.session,
            before: open.before.clone(),
            tell: tell(),
            heard: None,
        },
    }
}

/// Through ssh it comes to the user.
fn tell() -> Tell {
    Arc::new(|line| {
        // Where nobody is left to hear it, nobody is.
        let _ = writeln!(std::io::stderr(), "{line}");
    })
}

fn home() -> std::path::PathBuf {
    dest::home_directory().unwrap_or_default()
}

fn rules(open: &Open) -> Rules {
    Rules {
        preserve: open.options.preserve,
        no_clobber: open.options.no_clobber,
        fsync: open.options.fsync,
        inplace: open.options.inplace,
        force: open.options.force,
        blind: false,
        untouched: false,
        set_id: true,
        direct_io: open.options.direct_io,
        drop_cache: open.options.drop_cache,
        umask: process_umask(),
    }
}

async fn say(control: &Outgoing, message: Message) -> Result<()> {
    control
        .send(message)
        .await
        .map_err(|e| Error::new(Kind::Lost, Side::Here, e.to_string()))
}

fn breach(what: &str) -> Error {
    Error::new(
        Kind::Breach,
        Side::Here,
        format!("the client broke the protocol: {what}"),
    )
}

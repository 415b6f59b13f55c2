//! The process that the user started: starts the server, tells it what to do, dials its streams
//! and runs its own half of the copy.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::chunk::CHUNK_SIZE;
use crate::control::Outgoing;
use crate::dir::Handles;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Totals;
use crate::pipeline::Budget;
use crate::progress::Phase;
use crate::seal::{Direction, Opener, Sealer, Secret, Suite};
use crate::session::dial::Dialler;
use crate::session::half::{Common, ReceivingHalf, SendingHalf};
use crate::session::login::Server;
use crate::session::operands::{self, Expanded};
use crate::session::request::Request;
use crate::session::streams::{Connections, receive_on, send_on};
use crate::session::{Half, Seat, cause_of, converse, host};
use crate::source::Walk;
use crate::stream::opening::{DialRole, Keyring};
use crate::wire::hello::Hello;
use crate::wire::message::{Listen, Message, Open, Role, Roots, SessionSecret};

/// Copies between this machine and a host. Gives the route that data took.
pub async fn copy(request: &Request, seat: &Seat) -> Result<String> {
    let is_push = request.dest.host.is_some();
    let remote = if is_push {
        &request.dest
    } else {
        &request.sources[0]
    };
    let host = remote.host.as_ref().expect("one end is remote");
    let budget = Budget::new(&request.options, request.streams, CHUNK_SIZE)?;
    let pushed = is_push.then(|| Pushed::find(request, seat));
    if pushed
        .as_ref()
        .is_some_and(|pushed| pushed.expanded.named.is_empty())
    {
        return Ok(String::new());
    }
    let mut server = tokio::select! {
        server = Server::connect(host, request, seat) => server?,
        () = seat.ending.wait() => return Err(cause_of(&seat.ending)),
    };
    tell_cuts(request, seat, budget);
    let client = Client {
        request,
        seat,
        budget,
    };
    let mut half = None;
    let copied = tokio::select! {
        copied = client.copy(&mut server, &mut half, pushed) => copied,
        // Once there is a half, it sees to that itself.
        () = seat.ending.wait(), if half.is_none() => Err(cause_of(&seat.ending)),
    };
    server.end(half, copied.as_ref().err()).await;
    copied.map(|()| "direct".to_owned())
}

fn tell_cuts(request: &Request, seat: &Seat, budget: Budget) {
    let (asked, given) = (request.streams, budget.streams);
    if given < asked {
        let detail = format!("--memory is enough for {given} of {asked} streams");
        seat.reporter.detail(&detail);
    }
}

/// What is to be pushed: found before anyone is asked for a password, counted while ssh logs in.
struct Pushed {
    expanded: Expanded,
    scan: JoinHandle<Totals>,
}

impl Pushed {
    fn find(request: &Request, seat: &Seat) -> Pushed {
        let expanded = operands::expand(request, seat);
        let scan = operands::scan(expanded.named.clone(), request.options.follow_links, seat);
        Pushed { expanded, scan }
    }
}

struct Client<'a> {
    request: &'a Request,
    seat: &'a Seat,
    budget: Budget,
}

impl Client<'_> {
    async fn copy(
        &self,
        server: &mut Server,
        half: &mut Option<Half>,
        pushed: Option<Pushed>,
    ) -> Result<()> {
        let role = if pushed.is_some() {
            DialRole::Sends
        } else {
            DialRole::Receives
        };
        let suite = suite_for(&server.hello, self.request.encrypt);
        let keyring = Arc::new(Keyring::new(Secret::random(), Secret::session(), role));
        self.open(&server.control, &keyring, suite).await?;
        self.seat.progress.set_phase(Phase::Scanning);
        let (proven, connections) = mpsc::channel(usize::from(self.budget.streams));
        let half = half.insert(match pushed {
            Some(pushed) => {
                self.push(server, &keyring, suite, pushed, connections)
                    .await?
            }
            None => self.pull(server, &keyring, suite, connections),
        });
        let mut dialler = Some(Dialler {
            host: server.host.clone(),
            streams: self.budget.streams,
            keyring,
            suite,
            proven,
            seat: self.seat.clone(),
        });
        let listen = |at: Listen| {
            // Only the first is dialled: a server listens once.
            if let Some(dialler) = dialler.take() {
                tokio::spawn(dialler.run(at));
            }
        };
        let mut told = false;
        let check = |message: &Message| match message {
            Message::Roots(roots) => operands::check(self.request, roots, told),
            Message::Fault(_) => {
                told = true;
                Ok(())
            }
            _ => Ok(()),
        };
        converse(&mut server.incoming, half, &self.seat.ending, listen, check).await
    }

    async fn push(
        &self,
        server: &Server,
        keyring: &Keyring,
        suite: Suite,
        pushed: Pushed,
        connections: Connections,
    ) -> Result<Half> {
        let totals = pushed
            .scan
            .await
            .map_err(|_| Error::usage("the scan failed"))?;
        self.seat.progress.set_totals(totals);
        let roots = pushed.expanded.roots();
        say(&server.control, Message::Roots(Roots { roots, totals })).await?;
        self.seat.progress.set_phase(Phase::Copying);
        let sealer = Sealer::new(&keyring.secret, Direction::ToServer, suite);
        let follow_links = self.request.options.follow_links;
        let walk = Walk::new(
            pushed.expanded.named,
            follow_links,
            Arc::new(Handles::default()),
        );
        let half = SendingHalf::start(self.common(server), sealer, walk);
        let (sender, frames) = (half.sender.clone(), half.frames.clone());
        tokio::spawn(send_on(
            sender,
            frames,
            connections,
            Some(self.seat.reporter.clone()),
        ));
        Ok(Half::Sending(half))
    }

    fn pull(
        &self,
        server: &Server,
        keyring: &Keyring,
        suite: Suite,
        connections: Connections,
    ) -> Half {
        let opener = Opener::new(&keyring.secret, Direction::ToClient, suite);
        let same_machine = host::is_this_machine(&server.hello.boot_id);
        let sessions = operands::sessions(keyring.session, Vec::new(), self.seat);
        let destination = operands::destination(self.request, same_machine, sessions);
        let rules = operands::rules(self.request);
        let half = ReceivingHalf::start(self.common(server), opener, rules, destination);
        let reporter = Some(self.seat.reporter.clone());
        tokio::spawn(receive_on(half.receiver.clone(), connections, reporter));
        Half::Receiving(half)
    }

    fn common(&self, server: &Server) -> Common {
        Common {
            options: self.request.options.clone(),
            budget: self.budget,
            chunk_size: CHUNK_SIZE,
            control: server.control.clone(),
            tally: self.seat.tally.clone(),
            progress: self.seat.progress.clone(),
            ending: self.seat.ending.clone(),
            digests: self.seat.digests.clone(),
        }
    }

    /// Tells the server what it is to be, and the secret.
    async fn open(&self, control: &Outgoing, keyring: &Keyring, suite: Suite) -> Result<()> {
        let request = self.request;
        let role = match &request.dest.host {
            Some(_) => Role::Receiver {
                path: request.dest.path.clone(),
                sources: request
                    .sources
                    .iter()
                    .map(|source| source.typed.as_bytes().to_vec())
                    .collect(),
            },
            None => Role::Sender {
                operands: request
                    .sources
                    .iter()
                    .map(|operand| operand.path.clone())
                    .collect(),
            },
        };
        let open = Open {
            role,
            options: request.options.clone(),
            session: keyring.session,
            suite: suite.number(),
            streams: self.budget.streams,
            chunk_size: CHUNK_SIZE as u32,
            before: Vec::new(),
        };
        say(control, Message::Open(open)).await?;
        let secret = SessionSecret(*keyring.secret.expose());
        say(control, Message::Secret(secret)).await
    }
}

async fn say(control: &Outgoing, message: Message) -> Result<()> {
    control
        .send(message)
        .await
        .map_err(|e| Error::new(Kind::Lost, Side::Here, e.to_string()))
}

/// AES where both have instructions for it.
fn suite_for(server: &Hello, encrypt: bool) -> Suite {
    let preferred = Suite::preferred();
    match (encrypt, server.suites.first() == Some(&preferred.number())) {
        (false, _) => Suite::Tag,
        (true, true) => preferred,
        (true, false) => Suite::ChaCha20Poly1305,
    }
}

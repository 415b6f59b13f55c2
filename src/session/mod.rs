//! One conversation, from ssh up to done. [`client`] is what the user started, [`server`] what it
//! started on the other host; each runs a [`half`] of the copy. [`local`] runs both in one process,
//! [`between`] two hosts both are servers.
//! A copy whose connection is lost goes on in another session: [`retries`].

pub mod account;
pub mod also;
pub mod backoff;
pub mod between;
pub mod choice;
pub mod client;
pub mod dial;
pub mod half;
pub mod hearing;
pub mod heartbeat;
pub mod host;
pub mod local;
pub mod login;
pub mod logins;
pub mod operands;
mod owner;
pub mod permit;
pub mod placing;
pub mod polite;
pub mod probe;
pub mod rate;
pub mod reached;
pub mod remembered;
pub mod request;
pub mod retries;
pub mod roster;
pub mod server;
pub mod streams;
pub mod tuning;
pub mod visit;
pub mod ways;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::control::ControlError;
use crate::error::{Error, Kind, Result, Side};
use crate::pipe::Stop;
use crate::pipeline::Ending;
use crate::pipeline::digest_list::DigestList;
use crate::pipeline::landing::Tell;
use crate::pipeline::tally::Tally;
use crate::program;
use crate::progress::{Phase, Progress};
use crate::route::addresses;
use crate::session::half::{ReceivingHalf, SendingHalf};
use crate::session::hearing::Hearing;
use crate::session::probe::link::LinkTest;
use crate::threads;
use crate::units::{printable, size};
use crate::wire::hello::Hello;
use crate::wire::message::{Conclusion, Message};
use also::Shared;
pub use permit::{Access, Permit};
use reached::Reached;
pub use request::{
    Compress, CopyOptions, FAILURES_MAX, Host, Limit, Operand, Outcome, Ports, Reporter, Request,
    Retry, Route, RouteOptions, Rsh, Shares, SshOptions, Verdict, What,
};

/// How often it is looked whether the list of digests is written, and how long that may take once
/// the copy has ended early.
const LIST_LOOK: Duration = Duration::from_millis(10);
const LIST_PATIENCE: Duration = Duration::from_millis(300);

/// Threads that drive sockets and control; the work is done on the pipeline's own.
const RUNTIME_THREADS: usize = 4;

/// Threads that an end needs besides: one for signals, one for calls that block, and those of a
/// copy with one worker.
const OTHER_THREADS: usize = 7;

/// How long a runtime's threads may take to begin on a busy machine.
const BEGIN_MAX: Duration = Duration::from_secs(10);

/// A thread for blocking calls stays: a copy never needs a new one to go on.
const KEEP_BLOCKING: Duration = Duration::from_secs(1 << 30);

/// The end that the user sees: what a copy is told with and what it is counted in.
#[derive(Clone)]
pub struct Seat {
    pub progress: Arc<Progress>,
    pub reporter: Arc<dyn Reporter>,
    pub tally: Arc<Tally>,
    pub ending: Arc<Ending>,
    pub digests: Option<Arc<DigestList>>,
    /// By earlier logins of this copy.
    pub reached: Reached,
    /// A file that is followed has come to its end, the user says.
    pub enough: Stop,
    /// What the tuner said at the end.
    pub verdict: Arc<OnceLock<Verdict>>,
    /// What it shares with the copies of the same source to other hosts.
    pub shared: Option<Shared>,
    /// The copy is there to measure the link, and over when that is done.
    pub probe: Option<Arc<LinkTest>>,
}

impl Seat {
    fn new(progress: Arc<Progress>, reporter: Arc<dyn Reporter>) -> Seat {
        let (telling, detailing) = (reporter.clone(), reporter.clone());
        let tally = Tally::new(
            Box::new(move |error| telling.failure(error)),
            Box::new(move |error| detailing.detail(&error.to_string())),
            progress.clone(),
        );
        Seat {
            progress,
            reporter,
            tally: Arc::new(tally),
            ending: Arc::default(),
            digests: None,
            reached: Reached::default(),
            enough: Stop::new(),
            verdict: Arc::default(),
            shared: None,
            probe: None,
        }
    }

    /// What this end says of itself. Hosts that get the same share whole chunks.
    fn hello(&self) -> Hello {
        match self.shared {
            Some(_) => host::hello().without_grains(),
            None => host::hello(),
        }
    }

    /// By which commands speak to the user.
    fn tell(&self) -> Tell {
        let reporter = self.reporter.clone();
        Arc::new(move |line| reporter.notice(line))
    }

    /// For one session of the copy, which may end before the copy does.
    fn of_session(&self) -> Seat {
        Seat {
            ending: Arc::new(Ending::of_session(&self.ending)),
            ..self.clone()
        }
    }

    /// The copy is complete, and this is what the tuner learnt of it.
    async fn conclude(&self, request: &Request, conclusion: Conclusion) {
        let Conclusion {
            verdict,
            remembered,
        } = conclusion;
        if let Some(verdict) = verdict {
            // There is one for each copy.
            let _ = self.verdict.set(verdict);
        }
        if let Some(remembered) = remembered {
            remembered::remember(request, remembered).await;
        }
    }

    /// A session is over and another takes its place. True if it got further than those before.
    fn begin_again(&self) -> bool {
        self.tally.begin_again();
        if let Some(list) = &self.digests {
            list.begin_again();
        }
        self.progress.begin_again()
    }
}

/// Carries out a copy; returns when both ends are done or ended. Blocks.
pub fn run(request: Request, progress: Arc<Progress>, reporter: Arc<dyn Reporter>) -> Outcome {
    let started = Instant::now();
    let mut seat = Seat::new(progress, reporter);
    let resumes = !request.options.no_resume;
    let copied = copy(request, &mut seat);
    over(&seat, copied, resumes, started)
}

/// What came of a copy that is over, which the same command would go on with if it `resumes`.
fn over(seat: &Seat, mut copied: Result<String>, resumes: bool, started: Instant) -> Outcome {
    seat.progress.set_phase(Phase::Done);
    let there = seat.progress.snapshot().placed_bytes();
    let resumes = resumes && !seat.ending.is_once();
    if let Some(error) = copied.as_mut().err().filter(|_| resumes && there > 0) {
        tell_kept(error, there);
    }
    outcome(seat, copied, started)
}

/// What came of what `seat` was told of; `copied` is the route or why it ended early.
fn outcome(seat: &Seat, copied: Result<String>, started: Instant) -> Outcome {
    let (route, mut fatal) = match copied {
        Ok(route) => (route, None),
        Err(error) => (String::new(), Some(error)),
    };
    let unlisted = finish_digests(seat).unwrap_or_else(|error| {
        fatal.get_or_insert(error);
        0
    });
    let (failures, more_failures) = seat.tally.take();
    let (elapsed, counters) = (started.elapsed(), seat.progress.snapshot());
    Outcome {
        fatal,
        failures,
        more_failures,
        elapsed,
        login: counters
            .logged_in
            .map(|at| at.saturating_duration_since(started)),
        data: counters.began.map_or(Duration::ZERO, |at| at.elapsed()),
        counters,
        route,
        unlisted,
        verdict: seat.verdict.get().cloned(),
    }
}

fn copy(request: Request, seat: &mut Seat) -> Result<String> {
    host::prepare(1)?;
    if request.options.nice {
        host::be_nice();
    }
    if let Some(path) = request.digest_lists.first() {
        seat.digests = Some(digest_list(path)?);
    }
    let runtime = runtime()?;
    let copied = runtime.block_on(async {
        let at_once = host::end_on_signals(seat.ending.clone());
        host::end_on_panic(seat.ending.clone());
        host::tell_on_signal(seat.reporter.clone());
        if request.options.follow_ms.is_some() {
            let enough = seat.enough.clone();
            host::on_enough(move || enough.set());
        }
        let copy = async {
            let copied = match request.host() {
                None => local::copy(&request, seat).await,
                Some(_) if seat.probe.is_some() => probe::once(&request, seat).await,
                Some(_) => retries::copy(&request, seat).await,
            };
            digests_written(seat, copied).await
        };
        tokio::select! {
            copied = copy => copied,
            () = at_once.cancelled() => {
                host::kill_all();
                Err(cause_of(&seat.ending))
            }
        }
    });
    // A thread that is stuck in the kernel does not keep the user waiting.
    runtime.shutdown_timeout(Duration::from_millis(100));
    copied
}

/// What has arrived is kept where the copy was cut off, and not where it failed.
fn tell_kept(error: &mut Error, bytes: u64) {
    if matches!(error.kind, Kind::Lost | Kind::Signal(_)) {
        let there = size(bytes);
        error.message += &format!("; {there} are there and kept: the same command goes on");
    }
}

fn digest_list(path: &Path) -> Result<Arc<DigestList>> {
    let what = "cannot write the list of digests";
    let list = DigestList::create(path);
    let list = list.map_err(|cause| Error::io(Kind::Write, Side::Here, path, what, cause));
    list.map(Arc::new)
}

/// Waits until the list of digests is written, as long as the user does. A copy that was `copied` in
/// full and is ended then fails with the cause of that.
async fn digests_written(seat: &Seat, copied: Result<String>) -> Result<String> {
    let Some(list) = &seat.digests else {
        return copied;
    };
    let written = async || {
        while !list.is_written() {
            tokio::time::sleep(LIST_LOOK).await;
        }
    };
    tokio::select! {
        () = written() => return copied,
        () = seat.ending.wait() => {}
    }
    // What is left is a moment's work, or nothing takes it.
    match tokio::time::timeout(LIST_PATIENCE, written()).await {
        Ok(()) => copied,
        Err(_) => copied.and(Err(cause_of(&seat.ending))),
    }
}

fn finish_digests(seat: &Seat) -> Result<u64> {
    let Some(list) = &seat.digests else {
        return Ok(0);
    };
    let (names, more) = list.finish().map_err(|cause| {
        let (list, what) = ("the list of digests", "cannot write");
        Error::io(Kind::Write, Side::Here, list, what, cause)
    })?;
    for name in &names {
        let name = printable(name);
        seat.reporter.notice(&format!(
            "fastcp: --digests: {name}: not UTF-8, left out of the list"
        ));
    }
    Ok(names.len() as u64 + more)
}

/// Why a server did not carry out a copy.
pub enum NotServed {
    /// Nobody was told.
    NotBegun(Error),
    /// The client was told why, as far as it listened.
    Told(Kind),
}

/// The far end: speaks control on stdin and stdout until the client is done. `placed`: a client
/// has brought this program, which has checked itself.
pub fn serve(placed: bool, permit: Permit) -> Result<(), NotServed> {
    host::prepare(1).map_err(NotServed::NotBegun)?;
    host::ignore_status_signal();
    let mut hello = host::hello();
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    if let Some(address) = addresses::of_login(&connection, addresses::End::Server) {
        address.clone_into(&mut hello.reached);
    }
    if placed {
        if let Err(cause) = program::placed::settle() {
            eprintln!("fastcp: cannot keep this program for the next time: {cause}");
        }
        let own = program::Program::own().map_err(NotServed::NotBegun)?;
        own.digest().clone_into(&mut hello.program);
    }
    let runtime = runtime().map_err(NotServed::NotBegun)?;
    let served = runtime.block_on(server::serve(hello, permit));
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}

/// A runtime all of whose threads run: tokio itself panics, or waits forever, where one is refused.
fn runtime() -> Result<tokio::runtime::Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let wanted = processors.min(RUNTIME_THREADS);
    let (spare, refusal) = threads::spare(wanted + OTHER_THREADS);
    let workers = spare.saturating_sub(OTHER_THREADS);
    if let Some(refusal) = refusal.filter(|_| workers == 0) {
        return Err(refusal);
    }
    let begun = threads::Begun::default();
    let begins = begun.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_keep_alive(KEEP_BLOCKING)
        .on_thread_start(move || begins.add())
        .enable_all()
        .build()
        .map_err(threads::refused)?;
    runtime.spawn_blocking(|| ());
    if !begun.reaches(workers + 1, BEGIN_MAX) {
        runtime.shutdown_background();
        return Err(threads::refused(std::io::ErrorKind::WouldBlock.into()));
    }
    Ok(runtime)
}

/// One end's half of the copy.
pub enum Half {
    Sending(SendingHalf),
    Receiving(ReceivingHalf),
}

impl Half {
    fn take(&self, message: Message) -> Result<()> {
        match self {
            Half::Sending(half) => half.take(message),
            Half::Receiving(half) => {
                half.take(message);
                Ok(())
            }
        }
    }

    /// The half whose queue has no room for more messages.
    fn full(&self) -> Option<&ReceivingHalf> {
        match self {
            Half::Receiving(half) if half.is_full() => Some(half),
            Half::Receiving(_) | Half::Sending(_) => None,
        }
    }

    /// Before `error` is taken for the cause: what has come may tell a better one.
    async fn work_off(&self, error: &Error) {
        if let (Half::Receiving(half), Kind::Lost) = (self, error.kind) {
            half.work_off().await;
        }
    }

    async fn done(&mut self) {
        match self {
            Half::Sending(half) => half.done().await,
            Half::Receiving(half) => half.done().await,
        }
    }

    pub async fn stop(self) {
        match self {
            Half::Sending(half) => half.stop().await,
            Half::Receiving(half) => half.stop().await,
        }
    }
}

/// Hands messages to `half` until everything is in place or the copy ends. `ways` takes what is
/// about streams, `check` sees what else comes before the half does.
pub async fn converse<R: tokio::io::AsyncRead + Unpin>(
    hearing: &mut Hearing<'_, R>,
    half: &mut Half,
    mut ways: impl FnMut(Message) -> Result<()>,
    mut check: impl FnMut(&Message) -> Result<()>,
) -> Result<()> {
    let ending = hearing.ending();
    loop {
        if let Some(full) = half.full() {
            // A sender keeps to less; one that does not is read when there is room again.
            hearing.pause(true);
            tokio::select! {
                () = full.room() => {}
                () = ending.wait() => return Err(cause_of(ending)),
            }
            hearing.pause(false);
        }
        let message = tokio::select! {
            biased;
            () = half.done() => return Ok(()),
            () = ending.wait() => return Err(cause_of(ending)),
            message = hearing.next() => message?,
        };
        match message {
            Message::Listen(_)
            | Message::Dial(_)
            | Message::Data(_)
            | Message::Credit(_)
            | Message::Tune(_)
            | Message::Tried(_) => ways(message)?,
            message => {
                check(&message)?;
                half.take(message)?;
            }
        }
    }
}

/// Does what may wait for a disk on another thread, so that the other end is heard meanwhile.
///
/// # Errors
/// Where it panicked.
async fn off_task<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Error::new(Kind::Breach, Side::Here, "a look at the disk failed"))
}

fn cause_of(ending: &Ending) -> Error {
    let unknown = || Error::new(Kind::Lost, Side::Here, "ended for no known reason");
    ending.cause().unwrap_or_else(unknown)
}

/// Control ended in the middle of a copy.
fn lost(error: ControlError) -> Error {
    let kind = match &error {
        ControlError::BadMessage(_) => Kind::Breach,
        _ => Kind::Lost,
    };
    Error::new(kind, Side::Here, format!("lost the other end: {error}"))
}

//! One session of a copy, from the ssh login to done. The user starts the [`client`], which starts
//! the [`server`] on the other host. Each runs one [`crate::session::endpoint`] of the copy. [`local`] runs both halves
//! in one process. [`crate::session::relay`] has two servers. After a lost connection, [`retries`] continues the
//! copy in another session.

pub mod bootstrap;
pub mod client;
pub mod connection_control;
pub mod control_reader;
pub mod data_connections;
pub mod endpoint;
pub mod fan_out;
pub mod heartbeat;
pub mod host;
pub mod host_pin;
pub mod local;
pub mod login;
pub mod logins;
pub mod operands;
mod owner;
pub mod permit;
pub mod polite;
pub mod probe;
pub mod progress_relay;
pub mod rate_file;
pub mod relay;
pub mod remote_admin;
pub mod request;
pub mod retries;
pub mod route_choice;
pub mod saved_settings;
pub mod server;
pub mod tuning;

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use self::control_reader::ControlReader;
use self::endpoint::{ReceivingEnd, SendingEnd};
use self::fan_out::SharedSource;
use self::host_pin::HostPin;
use crate::control::ControlError;
use crate::error::{Error, Kind, Result, Side};
use crate::pipe::Stop;
use crate::pipeline::Shutdown;
use crate::pipeline::digest_list::DigestList;
use crate::pipeline::failures::Failures;
use crate::pipeline::receive::roots::TellUser;
use crate::progress::{Phase, Progress};
use crate::report::Reporter;
use crate::session::probe::link::LinkTest;
use crate::transport::routes::addresses;
use crate::units::{printable, size};
use crate::wire::hello::Hello;
use crate::wire::message::{Conclusion, Message};
use crate::{program, threads};
pub use permit::{Permit, PermittedAccess};
pub use request::{
    Bottleneck, Compress, CopyOptions, EndKind, FAILURES_MAX, Host, Operand, Outcome, Ports,
    Request, Retry, Route, RouteOptions, Rsh, Shares, SshOptions, Verdict,
};

/// Interval between checks whether the list of digests is written, and how long to wait for it
/// after the copy has ended early.
const LIST_LOOK: Duration = Duration::from_millis(10);
const LIST_PATIENCE: Duration = Duration::from_millis(300);

/// Threads that drive sockets and control. The pipeline's own threads do the work.
const RUNTIME_THREADS: usize = 4;

/// Further threads of one end: for signals, for blocking calls, and those of a copy with one
/// worker.
const OTHER_THREADS: usize = 7;

/// How long a runtime's threads may take to start on a busy machine.
const BEGIN_MAX: Duration = Duration::from_secs(10);

/// Idle blocking threads stay, so that a running copy never needs a new one.
const KEEP_BLOCKING: Duration = Duration::from_secs(1 << 30);

/// The user's end of a copy: its reporter, its counters and its end.
#[derive(Clone)]
pub struct ClientContext {
    pub progress: Arc<Progress>,
    pub reporter: Arc<dyn Reporter>,
    pub tally: Arc<Failures>,
    pub ending: Arc<Shutdown>,
    pub digests: Option<Arc<DigestList>>,
    /// The hosts that earlier logins of this copy reached.
    pub reached: HostPin,
    /// Set when the user says that a followed file has reached its end.
    pub enough: Stop,
    /// The tuner's verdict at the end.
    pub verdict: Arc<OnceLock<Verdict>>,
    /// What this copy shares with the copies of the same source to other hosts.
    pub shared: Option<SharedSource>,
    /// Set if the copy only measures the link; it is over when that is done.
    pub probe: Option<Arc<LinkTest>>,
}

impl ClientContext {
    fn new(progress: Arc<Progress>, reporter: Arc<dyn Reporter>) -> ClientContext {
        let (telling, detailing) = (reporter.clone(), reporter.clone());
        let tally = Failures::new(
            Box::new(move |error| telling.failure(error)),
            Box::new(move |error| detailing.detail(&error.to_string())),
            progress.clone(),
        );
        ClientContext {
            progress,
            reporter,
            tally: Arc::new(tally),
            ending: Arc::default(),
            digests: None,
            reached: HostPin::default(),
            enough: Stop::new(),
            verdict: Arc::default(),
            shared: None,
            probe: None,
        }
    }

    /// The hello of this end. Copies to several hosts share whole chunks, so they use no smaller
    /// pieces.
    fn hello(&self) -> Hello {
        match self.shared {
            Some(_) => host::hello().without_grains(),
            None => host::hello(),
        }
    }

    /// Shows the lines of commands to the user.
    fn tell(&self) -> TellUser {
        let reporter = self.reporter.clone();
        Arc::new(move |line| reporter.notice(line))
    }

    /// A seat for one session, which may end before the copy does.
    fn of_session(&self) -> ClientContext {
        ClientContext {
            ending: Arc::new(Shutdown::of_session(&self.ending)),
            ..self.clone()
        }
    }

    /// Takes what the tuner learnt of a complete copy.
    async fn conclude(&self, request: &Request, conclusion: Conclusion) {
        let Conclusion {
            verdict,
            remembered,
        } = conclusion;
        if let Some(verdict) = verdict {
            // Set once in each copy.
            let _ = self.verdict.set(verdict);
        }
        if let Some(remembered) = remembered {
            saved_settings::remember(request, remembered).await;
        }
    }

    /// Prepares for the next session. True if the last one got further than those before it.
    fn begin_again(&self) -> bool {
        self.tally.begin_again();
        if let Some(list) = &self.digests {
            list.begin_again();
        }
        self.progress.begin_again()
    }
}

/// Carries out a copy. Returns when both ends are done or have ended. Blocks.
pub fn run(request: Request, progress: Arc<Progress>, reporter: Arc<dyn Reporter>) -> Outcome {
    let started = Instant::now();
    let mut seat = ClientContext::new(progress, reporter);
    let resumes = !request.options.no_resume;
    let copied = copy(request, &mut seat);
    over(&seat, copied, resumes, started)
}

/// The outcome of a copy that is over, which the same command would resume if it `resumes`.
fn over(
    seat: &ClientContext,
    mut copied: Result<String>,
    resumes: bool,
    started: Instant,
) -> Outcome {
    seat.progress.set_phase(Phase::Done);
    let there = seat.progress.snapshot().placed_bytes();
    let resumes = resumes && !seat.ending.is_once();
    if let Some(error) = copied.as_mut().err().filter(|_| resumes && there > 0) {
        tell_kept(error, there);
    }
    outcome(seat, copied, started)
}

/// The outcome, from `seat` and from `copied`: the route, or why the copy ended early.
fn outcome(seat: &ClientContext, copied: Result<String>, started: Instant) -> Outcome {
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

fn copy(request: Request, seat: &mut ClientContext) -> Result<String> {
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
    // The user does not wait for a thread that is stuck in the kernel.
    runtime.shutdown_timeout(Duration::from_millis(100));
    copied
}

/// Reports the kept bytes, if the copy was cut off rather than failed.
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

/// Waits until the list of digests is written or the user ends the copy, which then fails even if
/// it was complete.
async fn digests_written(seat: &ClientContext, copied: Result<String>) -> Result<String> {
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
    // The writer needs only a moment for the rest, unless the file takes nothing any more.
    match tokio::time::timeout(LIST_PATIENCE, written()).await {
        Ok(()) => copied,
        Err(_) => copied.and(Err(cause_of(&seat.ending))),
    }
}

fn finish_digests(seat: &ClientContext) -> Result<u64> {
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
    /// The client does not know the error.
    NotBegun(Error),
    /// The client was told the error, if it still listened.
    Told(Kind),
}

/// The server: speaks control on stdin and stdout until the client is done. `placed`: a client has
/// copied this program to the host, and the program has verified its own digest.
pub fn serve(placed: bool, permit: Permit) -> Result<(), NotServed> {
    host::prepare(1).map_err(NotServed::NotBegun)?;
    host::ignore_status_signal();
    let mut hello = host::hello();
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    if let Some(address) = addresses::of_login(&connection, addresses::SshEnd::Server) {
        address.clone_into(&mut hello.reached);
    }
    if placed {
        if let Err(cause) = program::placed::settle() {
            // Ignores a stderr that nobody reads any more.
            let _ = writeln!(
                std::io::stderr(),
                "fastcp: cannot keep this program for the next time: {cause}"
            );
        }
        let own = program::Program::own().map_err(NotServed::NotBegun)?;
        own.digest().clone_into(&mut hello.program);
    }
    let runtime = runtime().map_err(NotServed::NotBegun)?;
    let served = runtime.block_on(server::serve(hello, permit));
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}

/// A runtime whose threads all run. If one is refused, tokio itself panics or waits forever.
fn runtime() -> Result<tokio::runtime::Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let wanted = processors.min(RUNTIME_THREADS);
    let (spare, refusal) = threads::spare(wanted + OTHER_THREADS);
    let workers = spare.saturating_sub(OTHER_THREADS);
    if let Some(refusal) = refusal.filter(|_| workers == 0) {
        return Err(refusal);
    }
    let begun = threads::StartedThreads::default();
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
pub enum RunningEnd {
    Sending(SendingEnd),
    Receiving(ReceivingEnd),
}

impl RunningEnd {
    fn take(&self, message: Message) -> Result<()> {
        match self {
            RunningEnd::Sending(half) => half.take(message),
            RunningEnd::Receiving(half) => {
                half.take(message);
                Ok(())
            }
        }
    }

    /// This half, if its queue has no room for more messages.
    fn full(&self) -> Option<&ReceivingEnd> {
        match self {
            RunningEnd::Receiving(half) if half.is_full() => Some(half),
            RunningEnd::Receiving(_) | RunningEnd::Sending(_) => None,
        }
    }

    /// Works off queued messages before `error` counts as the cause: they may have a better one.
    async fn work_off(&self, error: &Error) {
        if let (RunningEnd::Receiving(half), Kind::Lost) = (self, error.kind) {
            half.work_off().await;
        }
    }

    async fn done(&mut self) {
        match self {
            RunningEnd::Sending(half) => half.done().await,
            RunningEnd::Receiving(half) => half.done().await,
        }
    }

    pub async fn stop(self) {
        match self {
            RunningEnd::Sending(half) => half.stop().await,
            RunningEnd::Receiving(half) => half.stop().await,
        }
    }
}

/// Hands messages to `half` until all is in place or the copy ends. `ways` takes messages about
/// connections; `check` sees the others before the half does.
pub async fn converse<R: tokio::io::AsyncRead + Unpin>(
    hearing: &mut ControlReader<'_, R>,
    half: &mut RunningEnd,
    mut ways: impl FnMut(Message) -> Result<()>,
    mut check: impl FnMut(&Message) -> Result<()>,
) -> Result<()> {
    let ending = hearing.ending();
    loop {
        if let Some(full) = half.full() {
            // A sender of this version never fills the queue. Control is read again when there is
            // room.
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

/// Does work that may wait for a disk on another thread, so that this task can read control.
///
/// # Errors
/// If the work panicked.
async fn off_task<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Error::new(Kind::Breach, Side::Here, "a look at the disk failed"))
}

fn cause_of(ending: &Shutdown) -> Error {
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

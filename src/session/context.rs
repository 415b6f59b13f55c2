//! The client's context of a copy: what its sessions report to, count in, and share with the copies
//! of the same source to other hosts.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::chunk::CHUNK_SIZE;
use crate::control::Outgoing;
use crate::error::Result;
use crate::manifest::Root;
use crate::outcome::Remembered;
use crate::pipe::Stop;
use crate::pipeline::digest_list::DigestList;
use crate::pipeline::news::News;
use crate::pipeline::send::Sender;
use crate::pipeline::send::cache::CacheShare;
use crate::pipeline::{Budget, Shutdown};
use crate::progress::Progress;
use crate::report::{Reporter, TellUser};
use crate::session::host_pin::HostPin;
use crate::session::login_turns::LoginTurns;
use crate::session::request::{Host, Request, Verdict};
use crate::session::taken_names::TakenNames;
use crate::session::{host, saved_settings};
use crate::source::{Broadcast, PipeOrigin, PipeSpec};
use crate::transport::connections::ConnectionSet;
use crate::transport::rate_limit::RateLimiter;
use crate::wire::hello::Hello;
use crate::wire::message::{Conclusion, Leftover, LeftoverFate, Tried};

/// How often it is checked whether data arrives: as often as the other end reports that.
const ARRIVAL_LOOK: Duration = Duration::from_secs(1);

/// The client's side of a copy: its reporter, its counters and its shutdown.
#[derive(Clone)]
pub struct ClientContext {
    pub progress: Arc<Progress>,
    pub reporter: Arc<dyn Reporter>,
    pub news: Arc<News>,
    pub shutdown: Arc<Shutdown>,
    pub digests: Option<Arc<DigestList>>,
    /// The hosts that earlier logins of this copy reached.
    pub reached: HostPin,
    /// Set when the user says that a followed file has reached its end.
    pub enough: Stop,
    /// The tuner's verdict at the end.
    pub verdict: Arc<OnceLock<Verdict>>,
    /// What this copy shares with the copies of the same source to other hosts.
    pub shared: Option<SharedSource>,
    /// The names that sources on other hosts have at the destination, if there are other hosts.
    pub taken: Option<TakenNames>,
    /// Set if the session only measures the link; it is over when that is done.
    pub probe: Option<Arc<dyn LinkTest>>,
    /// Set if leftovers are removed and nothing is copied: takes what was found.
    pub clean: Option<TellLeftover>,
}

/// Shows a leftover to the user.
pub type TellLeftover = Arc<dyn Fn(&Leftover) + Send + Sync>;

impl ClientContext {
    pub fn new(progress: Arc<Progress>, reporter: Arc<dyn Reporter>) -> ClientContext {
        ClientContext {
            news: Arc::new(News::new(reporter.clone(), progress.clone())),
            progress,
            reporter,
            shutdown: Arc::default(),
            digests: None,
            reached: HostPin::default(),
            enough: Stop::new(),
            verdict: Arc::default(),
            shared: None,
            taken: None,
            probe: None,
            clean: None,
        }
    }

    /// Shows a leftover, or why one could not be removed.
    pub fn take_leftover(&self, leftover: Leftover) {
        match (leftover.fate, &self.clean) {
            (LeftoverFate::Failed(fault), _) => self.news.failures.add(&fault.into_error()),
            (fate, Some(tell)) => tell(&Leftover { fate, ..leftover }),
            (_, None) => {}
        }
    }

    /// The hello of this end. Copies to several hosts share whole chunks, so they use no smaller
    /// pieces.
    pub fn hello(&self) -> Hello {
        match self.shared {
            Some(_) => host::hello().without_grains(),
            None => host::hello(),
        }
    }

    /// Notes the operands of a session's roots, and takes the names of the roots, if sources on other
    /// hosts must not have them.
    ///
    /// # Errors
    /// `Kind::Usage` if a source on another host already has one of the names.
    pub fn take_roots(&self, request: &Request, roots: &[Root]) -> Result<()> {
        if request.options.mirror.removes_sources {
            let operand = |root: &Root| {
                let operand = request.sources.get(root.operand as usize);
                operand.map_or_else(Vec::new, |operand| operand.path.clone())
            };
            let moved = &self.news.failures.moved;
            moved.set_roots(roots.iter().map(operand));
        }
        match &self.taken {
            Some(taken) => taken.take(request, roots),
            None => Ok(()),
        }
    }

    /// Shows the lines of commands to the user.
    pub fn tell(&self) -> TellUser {
        let reporter = self.reporter.clone();
        Arc::new(move |line| reporter.notice(line))
    }

    /// The context of one session, which may end before the copy does.
    pub fn of_session(&self) -> ClientContext {
        ClientContext {
            shutdown: Arc::new(Shutdown::of_session(&self.shutdown)),
            ..self.clone()
        }
    }

    /// Stores what the tuner learnt from a complete copy.
    pub async fn conclude(&self, request: &Request, conclusion: Conclusion) {
        let Conclusion {
            verdict,
            remembered,
        } = conclusion;
        if let Some(verdict) = verdict {
            // Set once in each copy.
            let _ = self.verdict.set(verdict);
        }
        if let Some(remembered) = remembered.filter(|_| !request.options.dry_run) {
            saved_settings::remember(request, remembered).await;
        }
    }

    /// Lets the copies that share a pipe with this one wait for it while its data arrives.
    /// `arrived` counts the bytes.
    pub async fn hold_pipe(&self, arrived: impl Fn() -> u64) -> Infallible {
        let broadcast = self.shared.as_ref().and_then(|shared| {
            let broadcast = shared.broadcast.as_ref()?;
            Some((broadcast, shared.host))
        });
        let Some((broadcast, host)) = broadcast else {
            return std::future::pending().await;
        };
        let mut before = arrived();
        loop {
            sleep(ARRIVAL_LOOK).await;
            let now = arrived();
            if now != std::mem::replace(&mut before, now) {
                broadcast.arrives(host);
            }
        }
    }

    /// Prepares for the next session. True if the last one got further than those before it.
    pub fn begin_again(&self) -> bool {
        self.news.failures.begin_again();
        if let Some(list) = &self.digests {
            list.begin_again();
        }
        self.progress.begin_again()
    }

    /// The memory and workers that this copy may use here.
    ///
    /// # Errors
    /// `Kind::Usage` if the memory is too small.
    pub fn budget(&self, request: &Request) -> Result<Budget> {
        let mut options = request.options.clone();
        if let Some(shared) = &self.shared {
            options.memory = Some(shared.memory);
        }
        Budget::new(&options, request.streams, CHUNK_SIZE)
    }

    /// The rate limit of this end's sending.
    pub fn limit(&self) -> Arc<RateLimiter> {
        let shared = self.shared.as_ref();
        shared.map_or_else(Arc::default, |shared| shared.limit.clone())
    }
}

/// State that one copy shares with the copies of the same source to other hosts.
#[derive(Clone)]
pub struct SharedSource {
    /// The index of this copy's destination.
    pub host: usize,
    pub share: CacheShare,
    pub logins: Arc<LoginTurns>,
    /// Bytes that this copy alone may use.
    pub memory: u64,
    /// The rate limit for all connections of all copies.
    pub limit: Arc<RateLimiter>,
    /// The source, if it can be read only once.
    pub broadcast: Option<Arc<Broadcast>>,
}

impl SharedSource {
    /// This copy's reader of an unnamed pipe: stdin or a command.
    pub fn pipe(&self) -> Option<PipeOrigin> {
        self.tap().filter(|_| !self.has_named_pipe())
    }

    /// This copy's reader of a named pipe that is the only source.
    pub fn named_pipe(&self) -> Option<PipeOrigin> {
        self.tap().filter(|_| self.has_named_pipe())
    }

    fn tap(&self) -> Option<PipeOrigin> {
        self.broadcast
            .clone()
            .map(|broadcast| PipeOrigin::Shared(broadcast, self.host))
    }

    fn has_named_pipe(&self) -> bool {
        let broadcast = self.broadcast.as_ref();
        broadcast.is_some_and(|broadcast| matches!(broadcast.pipe_spec(), PipeSpec::Path(_)))
    }

    /// Ends this copy's part, so that no other copy waits for it.
    pub fn leave(&self) {
        self.logins.is_over(self.host);
        self.share.leave();
        if let Some(broadcast) = &self.broadcast {
            broadcast.leave(self.host);
        }
    }
}

/// The server of one session, after the hellos.
#[derive(Clone, Copy)]
pub struct FarServer<'a> {
    /// The host that the user named.
    pub host: &'a Host,
    pub hello: &'a Hello,
    pub control: &'a Outgoing,
    /// Counts the bytes that the server sends on control.
    pub heard: &'a Arc<AtomicU64>,
}

/// A test of the link in place of a copy.
pub trait LinkTest: Send + Sync {
    /// Takes the far end's measurement of its disk.
    fn tried(&self, tried: Tried);

    /// Measures the link; the session is then over.
    ///
    /// # Errors
    /// `Kind::Connect` if no data arrives.
    fn run<'a>(&'a self, ends: TestEnds<'a>) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
}

/// The parts of a sending session that a [`LinkTest`] uses.
pub struct TestEnds<'a> {
    pub sender: &'a Sender,
    pub connection_set: &'a ConnectionSet,
    pub hello: &'a Hello,
    pub budget: Budget,
    pub remembered: Option<Remembered>,
    /// `--streams`
    pub streams: Option<u16>,
    /// When the server got its instructions.
    pub opened: Instant,
}

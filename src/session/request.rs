//! What a copy is asked to do and what came of it: the whole of what `cli` and `ui` know of a
//! session.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::codec::Compress;
use crate::error::{Error, Result};
use crate::program::Program;
use crate::progress::Snapshot;
pub use crate::route::Route;
pub use crate::ssh::{Host, Rsh, SshOptions};
use crate::ssh::{Patience, Startup};
pub use crate::tuner::{Limit, Shares, Verdict};
pub use crate::wire::message::{CopyOptions, Ports};

/// One end of a copy, checked: `[user@]host:path`, `scp://…`, a path on this machine, or what a
/// stream comes from or goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// As typed, for messages.
    pub typed: OsString,
    /// None for this machine.
    pub host: Option<Host>,
    pub what: What,
    /// Bytes as typed after the colon; empty means the home directory of a remote host. A
    /// command's line.
    pub path: Vec<u8>,
}

/// What stands at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Files, directories, devices, FIFOs: whatever has a path.
    Path,
    /// `-`: our stdin as a source, our stdout as a destination.
    Stdio,
    /// Our stderr, as a destination.
    Stderr,
    /// A command there, whose stdout is the source or whose stdin the destination.
    Command,
    /// Nothing is kept of what arrives; the path is where it is tried how fast a place is written,
    /// if it is not empty.
    Nothing,
}

/// A copy, checked: all sources are of one host.
#[derive(Clone, Debug)]
pub struct Request {
    /// At least one.
    pub sources: Vec<Operand>,
    pub dest: Operand,
    /// Further destinations of the same sources, at most `HOSTS_MAX` in all; none unless the
    /// sources are on this machine.
    pub also: Vec<Operand>,
    pub options: CopyOptions,
    pub ssh: SshOptions,
    pub rsh: Rsh,
    /// `--remote-path`: the far end's command, split into words and quoted before use.
    pub remote_path: Option<String>,
    /// `--sudo`: the user as whom the far end runs.
    pub sudo: Option<String>,
    /// `--no-install`: a host that has no fastcp is not given one.
    pub no_install: bool,
    /// None: as many as prove to be best.
    pub streams: Option<u16>,
    pub route: RouteOptions,
    /// `--bwlimit @FILE`: where the rate limit is read again and again.
    pub rate_file: Option<PathBuf>,
    /// `--trust-partial`: what an earlier run left is not read again where nothing speaks against it.
    pub trust_partial: bool,
    /// `--allow-empty`: a pipe from which nothing came may replace a file that has content.
    pub allow_empty: bool,
    pub retry: Retry,
    pub encrypt: bool,
    /// Where `--digests` writes a list for each destination; none without it.
    pub digest_lists: Vec<PathBuf>,
}

/// How long and how often to log in again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// None: `limit` alone counts.
    pub time: Option<Duration>,
    /// `--retries` of version 0.1. None: `time` alone counts.
    pub limit: Option<u16>,
    /// The first login is tried again too, if the host is down, refuses or does not answer.
    pub first: bool,
}

/// A host restarts in less.
const RETRY_DEFAULT: Duration = Duration::from_secs(5 * 60);

impl Retry {
    /// `--retry-for` and `--retries`, as far as they were given.
    pub fn of(time: Option<Duration>, limit: Option<u16>) -> Retry {
        Retry {
            time: time.or(limit.is_none().then_some(RETRY_DEFAULT)),
            limit,
            first: time.is_some(),
        }
    }

    pub fn never() -> Retry {
        Retry::of(None, Some(0))
    }
}

/// How streams are to come about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// `--route`: this one alone.
    pub asked: Option<Route>,
    /// `--ports`: of whichever end listens.
    pub ports: Option<Ports>,
    /// `--bind`: the address of this host by which streams go or come.
    pub bind: Option<IpAddr>,
    /// `--address`: a name or an address at which the end that listens is dialled.
    pub address: Option<String>,
}

impl Request {
    /// True if a pipe from which nothing came may replace a file that has content. A command that
    /// succeeded has said itself that nothing is its output, as with a shell's `CMD > FILE`.
    pub fn takes_empty(&self) -> bool {
        let is_command = |source: &Operand| source.what == What::Command;
        self.allow_empty || self.sources.iter().any(is_command)
    }

    /// True if a command runs on another host.
    pub fn has_far_command(&self) -> bool {
        let mut operands = std::iter::once(&self.dest).chain(&self.sources);
        operands.any(|operand| operand.what == What::Command && operand.host.is_some())
    }

    /// A copy of which nothing more was said than this; hosts are this machine by other names.
    pub fn local(sources: Vec<Operand>, dest: Operand, options: CopyOptions) -> Request {
        Request {
            sources,
            dest,
            also: Vec::new(),
            options,
            ssh: SshOptions::default(),
            rsh: Rsh::Local,
            remote_path: None,
            sudo: None,
            no_install: false,
            streams: None,
            route: RouteOptions::default(),
            rate_file: None,
            trust_partial: false,
            allow_empty: false,
            retry: Retry::never(),
            encrypt: true,
            digest_lists: Vec::new(),
        }
    }

    /// One of the ends is read or written once and never again.
    pub fn is_stream(&self) -> bool {
        let mut operands = std::iter::once(&self.dest).chain(&self.sources);
        operands.any(|operand| operand.what != What::Path)
    }

    /// All destinations, as they were typed.
    pub fn dests(&self) -> impl Iterator<Item = &Operand> {
        std::iter::once(&self.dest).chain(&self.also)
    }

    /// How the far end is started.
    ///
    /// # Errors
    /// `Kind::FarEnd` where this program cannot be read, to be placed.
    pub fn startup(&self) -> Result<Startup> {
        let is_looked_for = self.remote_path.is_none() && self.rsh == Rsh::Ssh;
        let digest = match is_looked_for {
            true => Program::own()?.digest().to_owned(),
            false => String::new(),
        };
        Ok(Startup {
            path: self.remote_path.clone(),
            sudo: self.sudo.clone(),
            digest,
            patience: Patience::of(Duration::from_secs(self.options.timeout_s.into())),
        })
    }

    /// The hosts of a copy between two: of the sources, and of the destination.
    pub fn hosts(&self) -> Option<(&Host, &Host)> {
        let source = self.sources.first()?.host.as_ref()?;
        Some((source, self.dest.host.as_ref()?))
    }

    /// The host at one of the ends; None if both are on this machine.
    pub fn host(&self) -> Option<&Host> {
        let operands = std::iter::once(&self.dest).chain(&self.sources);
        operands.filter_map(|operand| operand.host.as_ref()).next()
    }
}

/// What came of a copy. `Err` from [`run`](super::run) is a failure of the session as a whole.
#[derive(Debug)]
pub struct Outcome {
    /// Set when the session ended before its work was done; outranks `failures`.
    pub fatal: Option<Error>,
    /// One per entry that failed, at most [`FAILURES_MAX`] of them.
    pub failures: Vec<Error>,
    /// Failures beyond those kept.
    pub more_failures: u64,
    /// The last reading of the counters.
    pub counters: Snapshot,
    /// From the start of the program's work to its end.
    pub elapsed: Duration,
    /// The part of it until a far end first said hello; None without one.
    pub login: Option<Duration>,
    /// The part of it since the first data moved; nothing where none did.
    pub data: Duration,
    /// "direct", "ssh (direct: no answer)", "local"; empty where it never came to that.
    pub route: String,
    /// Files whose names `--digests` could not list.
    pub unlisted: u64,
    /// What limited the copy; None where it was not complete, or nothing was copied.
    pub verdict: Option<Verdict>,
}

/// Failures that are kept for the summary; the others are only counted.
pub const FAILURES_MAX: usize = 10_000;

impl Outcome {
    /// A session's failure outranks those of entries; entries of one kind give its code, of
    /// several kinds 1.
    pub fn exit_code(&self) -> i32 {
        if let Some(fatal) = &self.fatal {
            return fatal.kind.exit_code();
        }
        let mut codes = self.failures.iter().map(|failure| failure.kind.exit_code());
        match codes.next() {
            None => 0,
            Some(first) if codes.all(|code| code == first) => first,
            Some(_) => 1,
        }
    }
}

/// Where a session tells what happens while it runs; `ui` implements it. None of these waits.
pub trait Reporter: Send + Sync {
    /// An entry failed.
    fn failure(&self, error: &Error);
    /// A line worth saying once, shown as it stands ("ssh: ..." from ssh's stderr).
    fn notice(&self, line: &str);
    /// A line for `-v`, shown behind "fastcp: ".
    fn detail(&self, line: &str);
    /// The user asked how far it is.
    fn status(&self);

    /// Takes the bars away and calls `shown` when all lines so far are on the terminal. Nothing is
    /// written from then on until the value is dropped. `shown` is dropped uncalled where the screen
    /// is closed or takes no more lines.
    fn hold(&self, shown: Box<dyn FnOnce() + Send>) -> Box<dyn Send> {
        shown();
        Box::new(())
    }
}

//! One run of a program under test: a known environment, captured output, a hard time limit.
//!
//! A run that exceeds its limit is killed with its whole process group. The panic then shows the
//! state of each process.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

pub(crate) use super::done::Done;
use super::inject::{Inject, Keeper};
use super::offspring::dying_with_this_thread;
use super::procs;

/// Long enough for a debug build on a busy machine with two cores; a longer run counts as a hang.
const LIMIT: Duration = Duration::from_secs(150);
/// The same for a run of the lowest priority, which may get nothing while other work is there.
const APART_LIMIT: Duration = Duration::from_secs(600);
/// How long output may stay open after the process has ended.
const OUTPUT_LIMIT: Duration = Duration::from_secs(30);

/// The binary under test.
pub(crate) fn fastcp_binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fastcp"))
}

/// The binary under test without symbols, a tenth of the size: for tests that send it to hosts.
pub(crate) fn stripped_binary() -> &'static Path {
    static STRIPPED: OnceLock<PathBuf> = OnceLock::new();
    STRIPPED.get_or_init(|| {
        let dir = tempfile::Builder::new()
            .prefix("stripped-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("make a directory");
        let made = dir.path().join("fastcp");
        let stripped = Command::new("strip")
            .arg("-o")
            .args([&made, fastcp_binary()])
            .status()
            .is_ok_and(|status| status.success());
        assert!(stripped, "strip comes with the compiler");
        // One file for all test processes, under the fixed name `fastcp`.
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fastcp");
        std::fs::rename(&made, &place).expect("rename");
        place
    })
}

/// A command line under construction.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    words: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    limit: Duration,
    inject: Option<Inject>,
    is_measured: bool,
    is_apart: bool,
}

impl Run {
    /// `program` with only PATH and a UTF-8 locale in its environment.
    pub(crate) fn new(program: impl AsRef<OsStr>, cwd: impl AsRef<Path>) -> Run {
        let path = std::env::var_os("PATH").expect("PATH is set");
        Run {
            words: vec![program.as_ref().to_owned()],
            envs: vec![("PATH".into(), path), ("LC_ALL".into(), "C.UTF-8".into())],
            cwd: cwd.as_ref().to_owned(),
            limit: LIMIT,
            inject: None,
            is_measured: false,
            is_apart: false,
        }
    }

    pub(crate) fn arg(mut self, word: impl AsRef<OsStr>) -> Run {
        self.words.push(word.as_ref().to_owned());
        self
    }

    pub(crate) fn args<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Run {
        self.words
            .extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Puts `words` before the program, as in `setpriv --x fastcp …`.
    pub(crate) fn under<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Run {
        let words: Vec<_> = words
            .into_iter()
            .map(|word| word.as_ref().to_owned())
            .collect();
        self.words.splice(0..0, words);
        self
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Run {
        self.envs.retain(|(set, _)| set != name.as_ref());
        self.envs
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Replaces the program under test.
    pub(crate) fn program(mut self, program: impl AsRef<OsStr>) -> Run {
        self.words[0] = program.as_ref().to_owned();
        self
    }

    pub(crate) fn without_env(mut self, name: impl AsRef<OsStr>) -> Run {
        self.envs.retain(|(set, _)| set != name.as_ref());
        self
    }

    pub(crate) fn cwd(mut self, dir: impl AsRef<Path>) -> Run {
        self.cwd = dir.as_ref().to_owned();
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Run {
        self.limit = limit;
        self
    }

    /// Measures its peak memory by checking all of its processes every 10 ms.
    pub(crate) fn measured(mut self) -> Run {
        self.is_measured = true;
        self
    }

    /// Runs in a new session (setsid). Linux shares the processors among sessions first
    /// (autogroup), so a run of the lowest priority makes progress beside other tests.
    pub(crate) fn apart(mut self) -> Run {
        self.is_apart = true;
        self.limit = self.limit.max(APART_LIMIT);
        self
    }

    /// Adds these faults to its system calls.
    pub(crate) fn inject(mut self, inject: &Inject) -> Run {
        self.inject = Some(inject.clone());
        self
    }

    /// Runs to the end with an empty stdin.
    #[track_caller]
    pub(crate) fn run(self) -> Done {
        self.start().wait()
    }

    /// Starts with an empty stdin.
    #[track_caller]
    pub(crate) fn start(self) -> Running {
        self.start_with(Stdio::null())
    }

    #[track_caller]
    pub(crate) fn start_with(self, stdin: Stdio) -> Running {
        let mut command = self.command();
        command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // `setsid` makes a group too, and the leader of a group cannot start a session.
        if !self.is_apart {
            command.process_group(0);
        }
        let (mut child, keeper) = self.spawn(command);
        let stdout = Output::collect(child.stdout.take().expect("piped"));
        let stderr = Output::collect(child.stderr.take().expect("piped"));
        Running::new(child, keeper, self, stdout, stderr)
    }

    /// Starts on a new terminal, of which `master` is the other side.
    #[track_caller]
    pub(crate) fn start_on(self, master: OwnedFd, slave: &Path) -> Running {
        let open = || {
            std::fs::File::options()
                .read(true)
                .write(true)
                .open(slave)
                .expect("open the terminal")
        };
        // `setsid -c` makes its stdin the controlling terminal, where ssh asks its questions.
        let run = self.under(["setsid", "-c"]);
        let mut command = run.command();
        command.stdin(open()).stdout(open()).stderr(open());
        let (child, keeper) = run.spawn(command);
        let screen = Output::collect(std::fs::File::from(master));
        Running::new(child, keeper, run, screen, Output::empty())
    }

    fn command(&self) -> Command {
        let session = self.is_apart.then(|| OsStr::new("setsid"));
        let mut words = session
            .into_iter()
            .chain(self.words.iter().map(OsString::as_os_str));
        let mut command = dying_with_this_thread(words.next().expect("there is a program"));
        command
            .args(words)
            .current_dir(&self.cwd)
            .env_clear()
            .envs(self.envs.iter().map(|(name, value)| (name, value)));
        command
    }

    #[track_caller]
    fn spawn(&self, mut command: Command) -> (Child, Option<Keeper>) {
        let spawned = match &self.inject {
            None => command.spawn().map(|child| (child, None)),
            Some(inject) => inject
                .spawn(command)
                .map(|(child, keeper)| (child, Some(keeper))),
        };
        spawned.unwrap_or_else(|cause| panic!("cannot run {}: {cause}", self.line()))
    }

    /// The command line for messages, without quoting.
    fn line(&self) -> String {
        let words: Vec<_> = self
            .words
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }
}

/// The output of a process so far.
#[derive(Clone)]
pub(crate) struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Arc<Mutex<Option<Receiver<()>>>>,
}

impl Output {
    fn empty() -> Output {
        Output {
            bytes: Arc::default(),
            ended: Arc::default(),
        }
    }

    fn collect(mut from: impl Read + Send + 'static) -> Output {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (sender, ended) = mpsc::channel();
        let into = bytes.clone();
        thread::spawn(move || {
            let mut block = [0; 16 * 1024];
            // A terminal whose other side is closed returns an error instead of an end of file.
            while let Ok(len @ 1..) = from.read(&mut block) {
                into.lock()
                    .expect("no panic while held")
                    .extend(&block[..len]);
            }
            drop(sender);
        });
        Output {
            bytes,
            ended: Arc::new(Mutex::new(Some(ended))),
        }
    }

    pub(crate) fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().expect("no panic while held").clone()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.so_far()).into_owned()
    }

    /// False if it is still open after `limit`.
    fn closed_within(&self, limit: Duration) -> bool {
        let mut ended = self.ended.lock().expect("no panic while held");
        match ended.take().map(|ended| ended.recv_timeout(limit)) {
            None | Some(Err(RecvTimeoutError::Disconnected)) => true,
            Some(_) => false,
        }
    }
}

/// A process that was started; dropping it before its end kills the process.
pub(crate) struct Running {
    pub stdout: Output,
    pub stderr: Output,
    pub stdin: Option<ChildStdin>,
    run: Run,
    pid: Pid,
    since: Instant,
    waiter: Option<JoinHandle<()>>,
    end: Receiver<End>,
    /// Keeps the process alive: a thread of the keeper starts a run with faults, and the kernel
    /// kills the process when that thread ends.
    _keeper: Option<Keeper>,
}

/// The end of a process as the kernel reports it.
#[derive(Clone, Copy, Debug)]
struct End {
    status: WaitStatus,
    /// None if it was not measured.
    peak_rss_bytes: Option<u64>,
}

impl Running {
    fn new(
        mut child: Child,
        keeper: Option<Keeper>,
        run: Run,
        stdout: Output,
        stderr: Output,
    ) -> Running {
        let stdin = child.stdin.take();
        let pid = Pid::from_child(&child);
        let (sender, end) = mpsc::channel();
        let is_measured = run.is_measured;
        let waiter = thread::spawn(move || {
            let (status, peak_rss_bytes) = match is_measured {
                true => wait_and_watch(pid),
                false => (wait_for(pid), None),
            };
            let end = End {
                status,
                peak_rss_bytes,
            };
            sender.send(end).ok();
        });
        Running {
            stdout,
            stderr,
            stdin,
            run,
            pid,
            since: Instant::now(),
            waiter: Some(waiter),
            end,
            _keeper: keeper,
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid, signal).expect("signal the process");
    }

    /// Signals every process of the group, as a terminal does on Ctrl-C.
    pub(crate) fn signal_group(&self, signal: Signal) {
        rustix::process::kill_process_group(self.pid, signal).expect("signal the group");
    }

    pub(crate) fn write_stdin(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("started with a pipe");
        stdin.write_all(bytes).expect("write to its stdin");
    }

    #[track_caller]
    pub(crate) fn wait(mut self) -> Done {
        let limit = self.run.limit;
        let Ok(end) = self.end.recv_timeout(limit) else {
            let state = procs::describe_group(self.pid);
            self.kill();
            panic!(
                "did not end within {limit:?}: {}\n{state}\n{}",
                self.run.line(),
                self.said(),
            );
        };
        let elapsed = self.since.elapsed();
        self.waiter.take();
        for output in [&self.stdout, &self.stderr] {
            if !output.closed_within(OUTPUT_LIMIT) {
                let state = procs::describe_group(self.pid);
                rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
                panic!(
                    "a process that outlived it holds its output open: {}\n{state}",
                    self.run.line()
                );
            }
        }
        Done {
            code: end.status.exit_status(),
            signal: end.status.terminating_signal(),
            stdout: self.stdout.so_far(),
            stderr: self.stderr.text(),
            peak_rss_bytes: end.peak_rss_bytes,
            elapsed,
            line: self.run.line(),
        }
    }

    fn said(&self) -> String {
        format!(
            "stdout: {}\nstderr: {}",
            self.stdout.text(),
            self.stderr.text()
        )
    }

    fn kill(&mut self) {
        rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
        // It may not have a group yet.
        rustix::process::kill_process(self.pid, Signal::KILL).ok();
        if let Some(waiter) = self.waiter.take() {
            waiter.join().expect("waiting does not panic");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.waiter.is_some() {
            self.kill();
        }
    }
}

/// Waits for `pid` to end and reaps it.
fn wait_for(pid: Pid) -> WaitStatus {
    let ended = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    let (_, status) = ended.expect("it is our child").expect("it waits");
    status
}

/// The same, and measures peak resident memory while the process runs. It counts fastcp's
/// processes alone, `pid` and its descendants. The system's figure for a process that has ended
/// includes the memory of the process that forked it.
fn wait_and_watch(pid: Pid) -> (WaitStatus, Option<u64>) {
    let mut peak_rss_bytes = 0;
    loop {
        peak_rss_bytes = peak_rss_bytes.max(procs::peak_rss_bytes(pid));
        let ended = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        if let Some((_, status)) = ended.expect("it is our child") {
            return (status, Some(peak_rss_bytes));
        }
        procs::ended_within(pid, Duration::from_millis(10));
    }
}

/// Reaps a child that is not a [`Running`].
pub(crate) fn reap(child: Child) {
    wait_for(Pid::from_child(&child));
}

/// The same; returns the peak resident memory of the fastcp processes under it.
pub(crate) fn reap_and_measure(child: Child) -> u64 {
    let (_, peak_rss_bytes) = wait_and_watch(Pid::from_child(&child));
    peak_rss_bytes.unwrap_or(0)
}

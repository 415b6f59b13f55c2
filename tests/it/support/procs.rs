//! Processes of a test, found in /proc by a mark in their environment.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};

/// The environment variable that carries a test's mark.
pub(crate) const MARK: &str = "FASTCP_TEST_MARK";

/// A process that existed a moment ago.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub pid: Pid,
    /// Its arguments as printable text.
    pub line: String,
    dir: PathBuf,
}

/// Every process with this mark except this one. Tests ask again and again while many processes
/// run, so it reads no more than it must of those without the mark.
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    let wanted = format!("{MARK}={mark}");
    // The variables of the tests' own processes take less.
    let mut environ = vec![0; 64 << 10];
    dirs()
        .filter(|(_, dir)| {
            let read = File::open(dir.join("environ")).and_then(|mut it| it.read(&mut environ));
            read.is_ok_and(|len| has_variable(&environ[..len], wanted.as_bytes()))
        })
        .filter_map(|(pid, dir)| Process::at(pid, dir))
        .collect()
}

fn has_variable(environ: &[u8], wanted: &[u8]) -> bool {
    let mut rest = environ;
    while let Ok(variable) = CStr::from_bytes_until_nul(rest) {
        if variable.to_bytes() == wanted {
            return true;
        }
        rest = &rest[variable.count_bytes() + 1..];
    }
    false
}

/// The marked processes that are servers.
pub(crate) fn servers(mark: &str) -> Vec<Process> {
    let mut found = marked(mark);
    found.retain(|process| {
        let exe = fs::read_link(process.dir.join("exe")).unwrap_or_default();
        exe.file_name().is_some_and(|name| name == "fastcp") && process.line.contains("--server")
    });
    found
}

/// The peak resident memory of one fastcp process, the largest among `pid` and its descendants
/// that run now.
pub(crate) fn peak_rss_bytes(pid: Pid) -> u64 {
    let dir = PathBuf::from(format!("/proc/{}", pid.as_raw_pid()));
    let exe = fs::read_link(dir.join("exe")).unwrap_or_default();
    let own = match exe.file_name() {
        Some(name) if name == "fastcp" => high_water(&dir),
        _ => 0,
    };
    let children = format!("task/{}/children", pid.as_raw_pid());
    let children = fs::read_to_string(dir.join(children)).unwrap_or_default();
    let pids = children
        .split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    pids.map(peak_rss_bytes).max().unwrap_or(0).max(own)
}

/// Children of `pid` that have ended and were not reaped.
pub(crate) fn zombies(pid: Pid) -> usize {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    let children = threads.into_iter().flatten().flatten().map(|thread| {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let ended = |child: &&str| {
            let stat = fs::read_to_string(format!("/proc/{child}/stat"));
            stat.is_ok_and(|stat| stat.contains(") Z "))
        };
        children.split_whitespace().filter(ended).count()
    });
    children.sum()
}

fn high_water(dir: &Path) -> u64 {
    let status = fs::read_to_string(dir.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Waits at most `limit` for a process to end; false if it is still running then.
pub(crate) fn ended_within(pid: Pid, limit: Duration) -> bool {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    let limit = Timespec::try_from(limit).expect("a short time");
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}

fn all() -> impl Iterator<Item = Process> {
    dirs().filter_map(|(pid, dir)| Process::at(pid, dir))
}

/// Every process except this one, with its directory.
fn dirs() -> impl Iterator<Item = (Pid, PathBuf)> {
    let me = rustix::process::getpid();
    fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            Some((pid, entry.path()))
        })
        .filter(move |(pid, _)| *pid != me)
}

impl Process {
    /// None if it has gone.
    fn at(pid: Pid, dir: PathBuf) -> Option<Process> {
        let line = fs::read(dir.join("cmdline")).ok()?;
        Some(Process {
            pid,
            line: String::from_utf8_lossy(&line).replace('\0', " "),
            dir,
        })
    }

    /// Waits at most `limit` for it to end; false if it is still running then.
    pub(crate) fn ends_within(&self, limit: Duration) -> bool {
        let Ok(fd) = pidfd_open(self.pid, PidfdFlags::empty()) else {
            return true;
        };
        let limit = Timespec::try_from(limit).expect("a short time");
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).expect("poll a process") > 0
    }

    /// The descriptors of fastcp that its children would inherit, and all its open files.
    /// Descriptors that this test process itself passes on do not count.
    pub(crate) fn descriptors(&self) -> (Vec<String>, Vec<String>) {
        let passed_on = inherited(Path::new("/proc/self"));
        let leaks = inherited(&self.dir).into_iter();
        let leaks = leaks.filter(|(fd, _)| *fd > 2 && !passed_on.iter().any(|(own, _)| own == fd));
        let leaks = leaks.map(|(fd, what)| format!("{fd} -> {what}")).collect();
        let all = open_files(&self.dir).into_iter().map(|(_, what)| what);
        let all = all.collect();
        // Checked last: the process may have become another program by now.
        let exe = fs::read_link(self.dir.join("exe")).unwrap_or_default();
        match exe.file_name() {
            Some(name) if name == "fastcp" => (leaks, all),
            _ => Default::default(),
        }
    }

    /// It runs only when the processor is idle (`--nice`).
    pub(crate) fn is_idle(&self) -> bool {
        let stat = fs::read_to_string(self.dir.join("stat")).unwrap_or_default();
        // Field 41 is the policy, and 5 is SCHED_IDLE. Field 2 is in brackets.
        let words = stat.rsplit(')').next().unwrap_or_default();
        words.split_whitespace().nth(38) == Some("5")
    }

    pub(crate) fn threads(&self) -> usize {
        fs::read_dir(self.dir.join("task")).map_or(0, Iterator::count)
    }

    /// It is an ssh that logs in; others only read the configuration.
    pub(crate) fn is_ssh(&self) -> bool {
        self.line.starts_with("ssh ") && !self.line.starts_with("ssh -G")
    }

    /// It has ended, whether or not its parent has reaped it.
    pub(crate) fn is_over(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    pub(crate) fn kill(&self) {
        rustix::process::kill_process(self.pid, Signal::KILL).ok();
    }

    fn group(&self) -> Option<Pid> {
        let stat = fs::read_to_string(self.dir.join("stat")).ok()?;
        // The name, in brackets, may contain any character; state, parent and group follow it.
        let fields = stat.rsplit(')').next()?;
        Pid::from_raw(fields.split_whitespace().nth(2)?.parse().ok()?)
    }

    /// Its command and what each of its threads is doing.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{} {}\n", self.pid.as_raw_pid(), self.line);
        let Ok(threads) = fs::read_dir(self.dir.join("task")) else {
            return text;
        };
        for thread in threads.filter_map(|entry| Some(entry.ok()?.path())) {
            let read = |name: &str| fs::read_to_string(thread.join(name)).unwrap_or_default();
            let state = read("status");
            let state = state
                .lines()
                .find_map(|line| line.strip_prefix("State:"))
                .unwrap_or("?");
            text.push_str(&format!(
                "    {}: {}, in {} (call {})\n",
                read("comm").trim(),
                state.trim(),
                read("wchan"),
                read("syscall").split(' ').next().unwrap_or("?").trim(),
            ));
        }
        text
    }
}

/// Descriptors of a process and the files behind them.
fn open_files(process: &Path) -> Vec<(i32, String)> {
    let fds = fs::read_dir(process.join("fd")).into_iter().flatten();
    fds.filter_map(|fd| {
        let fd = fd.ok()?;
        let what = fs::read_link(fd.path()).ok()?;
        let number = fd.file_name().to_str()?.parse().ok()?;
        Some((number, what.to_string_lossy().into_owned()))
    })
    .collect()
}

/// The descriptors that stay open in a program that the process starts.
fn inherited(process: &Path) -> Vec<(i32, String)> {
    let mut files = open_files(process);
    files.retain(|(fd, _)| {
        let info = fs::read_to_string(process.join(format!("fdinfo/{fd}")));
        let info = info.unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & libc::O_CLOEXEC == 0)
    });
    files
}

/// The state of every process of a group, for the message about a hang.
pub(crate) fn describe_group(group: Pid) -> String {
    all()
        .filter(|process| process.group() == Some(group))
        .map(|process| process.describe())
        .collect()
}

/// The TCP sockets of a process that are in `state`.
pub(crate) fn tcp_sockets(process: Pid, state: TcpState) -> Vec<Socket> {
    let table: Vec<(String, u16)> = ["tcp", "tcp6"]
        .iter()
        .filter_map(|name| fs::read_to_string(format!("/proc/net/{name}")).ok())
        .flat_map(|table| {
            table
                .lines()
                .skip(1)
                .filter_map(|line| {
                    let words: Vec<_> = line.split_whitespace().collect();
                    let port = words.get(1)?.rsplit(':').next()?;
                    let port = u16::from_str_radix(port, 16).expect("four hex digits");
                    let inode = (*words.get(9)?).to_owned();
                    (words.get(3)? == &state.code()).then_some((inode, port))
                })
                .collect::<Vec<_>>()
        })
        .collect();
    let fds = fs::read_dir(format!("/proc/{}/fd", process.as_raw_pid()));
    fds.into_iter()
        .flatten()
        .filter_map(|fd| {
            let fd = fd.ok()?;
            let target = fs::read_link(fd.path()).ok()?;
            let target = target.to_str()?;
            let inode = target.strip_prefix("socket:[")?.trim_end_matches(']');
            let (_, port) = table.iter().find(|(other, _)| other == inode)?;
            Some(Socket {
                process,
                fd: fd.file_name().to_str()?.parse().ok()?,
                port: *port,
            })
        })
        .collect()
}

/// The local ports of the TCP sockets in `state`.
pub(crate) fn tcp_ports(process: Pid, state: TcpState) -> Vec<u16> {
    tcp_sockets(process, state)
        .iter()
        .map(|socket| socket.port)
        .collect()
}

/// False where a sandbox denies access to the sockets of other processes.
pub(crate) fn may_tamper() -> bool {
    pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .and_then(|me| pidfd_getfd(&me, 0, PidfdGetfdFlags::empty()))
        .is_ok()
}

/// A socket of another process, for a test to tamper with.
#[derive(Debug)]
pub(crate) struct Socket {
    process: Pid,
    fd: i32,
    port: u16,
}

impl Socket {
    /// Ends the connection as a firewall that lost its state does: both ends get a reset. False
    /// if the connection had ended already.
    pub(crate) fn reset(&self) -> bool {
        let socket = self.duplicate();
        socket.is_some_and(|socket| rustix::net::connect_unspec(&socket).is_ok())
    }

    /// The bytes that have arrived and were not read yet, at most 1 MiB; they stay unread.
    pub(crate) fn peek(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let len = self.duplicate().map_or(0, |socket| {
            rustix::net::recv(&socket, &mut bytes[..], flags).map_or(0, |(len, _)| len)
        });
        bytes.truncate(len);
        bytes
    }

    /// Bytes acknowledged by the other end's kernel; 0 if the process has closed the socket.
    pub(crate) fn acked_bytes(&self) -> u64 {
        let facts = self
            .duplicate()
            .and_then(fastcp::transport::connection::kernel::facts);
        facts.map_or(0, |facts| facts.acked_bytes)
    }

    /// Bytes that the process has written: acknowledged, under way or waiting.
    pub(crate) fn written_bytes(&self) -> u64 {
        let facts = self
            .duplicate()
            .and_then(fastcp::transport::connection::kernel::facts);
        facts.map_or(0, |facts| facts.acked_bytes + facts.held)
    }

    /// The kernel's pacing limit in bytes a second; None without a limit, or if the process has
    /// closed the socket.
    pub(crate) fn pace(&self) -> Option<u64> {
        let socket = self.duplicate()?;
        let mut rate: libc::c_ulong = 0;
        let mut len = size_of_val(&rate) as libc::socklen_t;
        // SAFETY: the descriptor is open; the kernel writes at most `len` bytes, which is the
        // size of `rate`, and both live until the call returns.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MAX_PACING_RATE,
                (&raw mut rate).cast(),
                &mut len,
            )
        };
        (result == 0 && rate != libc::c_ulong::MAX).then_some(rate)
    }

    /// None if the process has closed the socket.
    fn duplicate(&self) -> Option<OwnedFd> {
        let process = pidfd_open(self.process, PidfdFlags::empty()).ok()?;
        pidfd_getfd(&process, self.fd, PidfdGetfdFlags::empty()).ok()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TcpState {
    Established,
    Listening,
}

impl TcpState {
    fn code(self) -> &'static str {
        match self {
            TcpState::Established => "01",
            TcpState::Listening => "0A",
        }
    }
}

/// Short enough to catch a copy in progress; a shorter pause would keep a processor busy.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// A question that takes long is asked less often, so that it takes a quarter of a processor at most.
const ASK_AGAIN_MAX: Duration = Duration::from_millis(50);

/// Asks until there is an answer; panics with `what` when there is none within a minute.
#[track_caller]
pub(crate) fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    until_within(Duration::from_secs(60), what, ask)
}

/// The same for what depends on `--nice`: a busy machine leaves it little of a processor.
#[track_caller]
pub(crate) fn until_idle_enough<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    until_within(Duration::from_secs(600), what, ask)
}

#[track_caller]
fn until_within<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        let asked = Instant::now();
        if let Some(answer) = ask() {
            return answer;
        }
        let now = Instant::now();
        assert!(now < deadline, "gave up waiting until {what}");
        std::thread::park_timeout((3 * (now - asked)).clamp(ASK_AGAIN, ASK_AGAIN_MAX));
    }
}

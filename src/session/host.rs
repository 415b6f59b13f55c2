//! This machine and this process: their part of a hello, resource limits, and signals.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::algorithms::{Codec, Suite};
use crate::dir::{open_files, open_share};
use crate::error::{Error, Kind, Result, Side};
use crate::pipeline::Shutdown;
use crate::pipeline::budget::Budget;
use crate::report::Reporter;
use crate::wire::hello::{Hello, OPEN_ENTRIES};
use crate::{command, ssh};

/// Prepares this process: no core files, the highest limit on open files, and a write error instead
/// of SIGXFSZ for a file beyond the user's size limit.
///
/// # Errors
/// `Kind::FarEnd` if the limit on open files is too low for so many copies at once.
pub fn prepare(copies: usize) -> Result<()> {
    // No core file may hold the session's secret. This also keeps other processes of the user from
    // reading the secret. Debug builds do without, because tests inspect the process.
    #[cfg(all(target_os = "linux", not(debug_assertions)))]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // A refusal of the kernel costs only this protection.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
    command::raise_open_files();
    command::ignore_signal(Signal::SIGXFSZ);
    open_files::prepare(copies)
}

/// Gives other processes of this host priority: this process uses the processor and the disks only
/// when they are idle. Refusals of the kernel are ignored.
pub fn be_nice() {
    use nix::libc;
    /// For `ioprio_set`: one thread, and the idle class in its bits of a priority.
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_IDLE: libc::c_int = 3 << 13;
    // The threads that exist now. Later ones inherit the setting.
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    for thread in numbers {
        let thread: libc::pid_t = thread;
        // SAFETY: the structure is plain numbers, for which all zeros are a value.
        let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: two system calls on numbers and on a structure that outlives them.
        unsafe {
            libc::sched_setscheduler(thread, libc::SCHED_IDLE, &parameters);
            libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, thread, CLASS_IDLE);
        }
    }
}

/// The name of this host.
pub fn name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Seconds by which local time was ahead of UTC at `time`: by `TZ`, or by the zone of the system.
pub fn zone_here(time: i64) -> i64 {
    use nix::libc;
    // SAFETY: the structure is numbers and a pointer, for which all zeros are a value.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call. No thread changes the environment.
    let is_known = unsafe { !libc::localtime_r(&time, &mut local).is_null() };
    match is_known {
        true => local.tm_gmtoff,
        false => 0,
    }
}

/// The user that this process runs as; its number if it has no name.
pub fn user() -> String {
    let uid = geteuid();
    let user = User::from_uid(uid).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// The hello of this build on this machine.
pub fn hello() -> Hello {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut suites = vec![Suite::Aes128Gcm.number(), Suite::ChaCha20Poly1305.number()];
    if Suite::preferred() != Suite::Aes128Gcm {
        suites.reverse();
    }
    suites.push(Suite::Tag.number());
    let mut hello =
        Hello::of_this_build(boot_id(), processors as u16, suites, Codec::KNOWN.to_vec());
    hello.limits.streams = Budget::open_streams();
    hello.limits.open_entries = open_entries();
    hello
}

/// Big files that this end may have open at once: three handles each, or four if both ends are here.
/// The receiver has the new file, a second handle to read it, and the old version.
pub fn open_entries() -> u32 {
    open_share(10, OPEN_ENTRIES as usize) as u32
}

/// Identifies this boot of this machine; equal at both ends if both are here. Empty if unknown.
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

/// True if the other end is on this machine. False if the boot is unknown.
pub fn is_this_machine(boot_id: &str) -> bool {
    !boot_id.is_empty() && boot_id == self::boot_id()
}

/// True if there is a terminal on which ssh may ask for a password.
pub fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// How long the last lines may take after the second signal. Their reader may be what hangs.
const LAST_LINES: Duration = Duration::from_millis(700);

/// Ends the copy on SIGINT, SIGTERM and SIGHUP, unless the signal was ignored when this process
/// started (`nohup`). A second signal cancels the returned token, so that nothing more is waited
/// for. It also ends the process within a second, even if something hangs.
///
/// A separate thread receives the signals, because a disk may block all others.
pub fn end_on_signals(shutdown: Arc<Shutdown>) -> CancellationToken {
    let at_once = CancellationToken::new();
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let counted = Arc::<AtomicUsize>::default();
    let mut control_reader = Vec::new();
    for kind in kinds
        .into_iter()
        .filter(|kind| !is_ignored(kind.as_raw_value()))
    {
        let Ok(mut signals) = signal(kind) else {
            continue;
        };
        let (shutdown, at_once, counted) = (shutdown.clone(), at_once.clone(), counted.clone());
        let name = match kind {
            kind if kind == SignalKind::terminate() => "terminated",
            kind if kind == SignalKind::hangup() => "hung up",
            _ => "interrupted",
        };
        let kind = Kind::Signal(kind.as_raw_value());
        control_reader.push(async move {
            while signals.recv().await.is_some() {
                if counted.fetch_add(1, Relaxed) > 0 {
                    at_once.cancel();
                    exit_soon(kind);
                }
                shutdown.end(Error::new(kind, Side::Here, name));
            }
        });
    }
    let own = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    // Shared, so that both survive if the thread is refused: dropping a runtime here would panic.
    let control_reader = Arc::new(Mutex::new((own.ok(), control_reader)));
    let here = control_reader.clone();
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let is_refused = control_reader.lock().0.is_none();
    let started = (!is_refused).then(|| {
        thread.spawn(move || {
            let mut here = here.lock();
            let (Some(runtime), tasks) = (here.0.take(), std::mem::take(&mut here.1)) else {
                return;
            };
            drop(here);
            runtime.block_on(async {
                let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
                for task in tasks {
                    // The task neither panics nor ends.
                    let _ = task.await;
                }
            });
        })
    });
    if !matches!(started, Some(Ok(_))) {
        // Without the thread, the runtime of the copy receives the signals.
        let (own, tasks) = std::mem::take(&mut *control_reader.lock());
        own.into_iter()
            .for_each(tokio::runtime::Runtime::shutdown_background);
        tasks.into_iter().for_each(|task| drop(tokio::spawn(task)));
    }
    at_once
}

/// Ends this process within a second. Kills ssh too, which might wait for a far end that hangs.
pub fn exit_soon(kind: Kind) {
    let exit = move || {
        // Before the last lines, so that the hosts need not wait for those.
        kill_all();
        std::thread::sleep(LAST_LINES);
        kill_all();
        std::process::exit(kind.exit_code());
    };
    let thread = std::thread::Builder::new().name("exit".to_owned());
    if thread.spawn(exit).is_err() {
        kill_all();
        std::process::exit(kind.exit_code());
    }
}

/// Kills every process that this one has started for a copy. For the second signal, because a
/// command may ignore the first for any time.
pub fn kill_all() {
    command::kill_all();
    ssh::kill_all();
}

/// How long a command may take to obey TERM if the client has gone without a message. The user may
/// have sent it a second signal, after which no part of the copy may live for more than a second.
const LOST_GRACE: Duration = Duration::from_millis(400);

/// Interval between checks whether the client has closed control, while commands end.
const GONE_LOOK: Duration = Duration::from_millis(20);

/// Ends a server process whose client has gone, if something still hangs. For a server whose copy
/// ended early for a cause of this `kind`. Received data stays for a later run, as after a power
/// cut.
///
/// A client that waits for the server has closed only its stdin; then commands have their usual
/// time to obey TERM. If the server's stdout is closed too, nobody waits, and the commands are
/// killed.
pub fn exit_without_client(kind: Kind) {
    let watch = move || {
        while !is_control_closed() {}
        let closed = Instant::now();
        loop {
            let is_gone = is_stdout_closed();
            if is_gone && (kind != Kind::Lost || closed.elapsed() >= LOST_GRACE) {
                command::kill_all();
            }
            let may_end = !is_gone && command::are_running() && closed.elapsed() < command::END_MAX;
            if closed.elapsed() >= LAST_LINES && !may_end {
                break;
            }
            std::thread::sleep(GONE_LOOK);
        }
        kill_all();
        std::process::exit(kind.exit_code());
    };
    // If the thread is refused, nothing watches for this.
    let _ = std::thread::Builder::new()
        .name("watch".to_owned())
        .spawn(watch);
}

/// Waits until the commands of a copy that ended early have ended, so that whoever waits for this
/// process also waits for them.
pub async fn commands_end() {
    let until = Instant::now() + command::END_MAX;
    while command::are_running() && Instant::now() < until {
        tokio::time::sleep(GONE_LOOK).await;
    }
}

/// Waits for up to a second for the client to close this server's stdin, or to go.
fn is_control_closed() -> bool {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let mut handles = [
        PollFd::new(&stdin, PollFlags::RDHUP),
        PollFd::new(&stdout, PollFlags::empty()),
    ];
    let pause = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    is_one_gone(&mut handles, &pause)
}

/// True if nobody reads this server's output: ssh or its client has ended.
fn is_stdout_closed() -> bool {
    let stdout = std::io::stdout();
    let mut handles = [PollFd::new(&stdout, PollFlags::empty())];
    is_one_gone(&mut handles, &Timespec::default())
}

/// False if a signal interrupted the call; the caller checks again.
fn is_one_gone(handles: &mut [PollFd<'_>], limit: &Timespec) -> bool {
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(handles, Some(limit)).is_ok() && handles.iter().any(|one| one.revents().intersects(gone))
}

/// Ends the copy with an error when any thread or task of this process panics. Without this, a
/// panic in a task would be lost, and the copy would wait for that task.
pub fn end_on_panic(shutdown: Arc<Shutdown>) {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        shutdown.end(Error::panicked());
    }));
}

/// Shows the progress on SIGUSR1, like dd, unless the signal was ignored when this process started.
/// Reports the end of a stop (Ctrl-Z).
pub fn tell_on_signal(reporter: Arc<dyn Reporter>) {
    if let Ok(mut signals) = signal(SignalKind::from_raw(Signal::SIGCONT as i32)) {
        let reporter = reporter.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                reporter.continued();
            }
        });
    }
    let kind = SignalKind::user_defined1();
    if is_ignored(kind.as_raw_value()) {
        return;
    }
    let Ok(mut signals) = signal(kind) else {
        return;
    };
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            reporter.status();
        }
    });
}

/// Calls `enough` on each SIGUSR2.
pub fn on_enough(enough: impl Fn() + Send + Sync + 'static) {
    let Ok(mut signals) = signal(SignalKind::user_defined2()) else {
        return;
    };
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            enough();
        }
    });
}

/// Ignores SIGUSR1. A server has no user to inform, and a signal to all processes called fastcp
/// must not end it.
pub fn ignore_status_signal() {
    command::ignore_signal(Signal::SIGUSR1);
}

fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_any_thread_ends_the_copy_with_its_own_exit_code() {
        let shutdown = Arc::<Shutdown>::default();
        end_on_panic(shutdown.clone());
        let panicking = std::thread::spawn(|| panic!("for a test"));
        assert!(panicking.join().is_err());
        let kind = shutdown.cause().expect("the copy ends").kind;
        assert_eq!(kind.exit_code(), 13);
    }
}

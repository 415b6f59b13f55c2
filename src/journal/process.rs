//! Which process writes a journal, and whether it is still there.

use rustix::process::{Pid, PidfdFlags, Signal, geteuid, getpid, pidfd_open, pidfd_send_signal};

use super::record::Session;

/// The kernel's name for this run of the machine; zero where it does not tell.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16).unwrap_or(0).to_be_bytes()
}

/// When a process started, in ticks since the boot; 0 where that cannot be known.
pub fn started(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything; the state follows it, and 19 fields later the time.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let field = fields.split_whitespace().nth(19);
    field.and_then(|field| field.parse().ok()).unwrap_or(0)
}

pub fn own_pid() -> u32 {
    getpid().as_raw_pid() as u32
}

/// Kills the process of `session` if it is certain to be that: of this boot, ours, with the same
/// number and time of its start, and not this one. True if it was sent the signal.
pub fn kill(session: &Session) -> bool {
    let is_that = || session.started != 0 && started(session.pid) == session.started;
    let may = session.boot_id == boot_id()
        && session.boot_id != [0; 16]
        && session.uid == geteuid().as_raw()
        && session.pid != own_pid();
    let pid = Pid::from_raw(session.pid as i32).filter(|pid| pid.as_raw_pid() > 1);
    let (true, Some(pid)) = (may, pid) else {
        return false;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    // Looked at with the process in hand: its number cannot go to another any more.
    is_that() && pidfd_send_signal(process, Signal::KILL).is_ok()
}

//! The identity of the process that writes a journal, and of the mount that the journal is on. The
//! process is killed only if its identity is certain.

use std::fs::File;
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, getpid, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};

use super::record::JournalSession;
use crate::manifest::Timestamp;

/// Time since this machine started.
pub(super) fn uptime() -> Duration {
    let Timestamp { s, ns } = Timestamp::of(clock_gettime(ClockId::Boottime));
    Duration::new(s.try_into().unwrap_or_default(), ns)
}

/// The kernel's ID of this boot; zero if unknown.
pub(super) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16).unwrap_or(0).to_be_bytes()
}

/// Asks for a mount ID that is never reused (`STATX_MNT_ID_UNIQUE`, since Linux 6.8). The ID of
/// `MNT_ID` may go to the next mount, which may lack bytes that were not written back before.
const MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The ID of the mount that the file is on; 0 if the kernel does not say.
pub(super) fn mount(file: &File) -> u64 {
    let told = statx(file, c"", AtFlags::EMPTY_PATH, MOUNT).ok();
    let told = told.filter(|told| told.stx_mask & MOUNT.bits() != 0);
    told.map_or(0, |told| told.stx_mnt_id)
}

/// When a process started, in ticks since the boot; 0 if unknown.
pub(super) fn started(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything. The start is 19 fields after the state.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let field = fields.split_whitespace().nth(19);
    field.and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// The time of day when a process had [`started`], at the end of that tick.
pub(super) fn time_of(started: u64) -> Timestamp {
    const SECOND: i128 = 1_000_000_000;
    let now = |clock| {
        let Timestamp { s, ns } = Timestamp::of(clock_gettime(clock));
        i128::from(s) * SECOND + i128::from(ns)
    };
    let boot = now(ClockId::Realtime) - now(ClockId::Boottime);
    let tick = SECOND / i128::from(clock_ticks_per_second().max(1));
    let at = boot + (i128::from(started) + 1) * tick;
    Timestamp {
        s: at.div_euclid(SECOND) as i64,
        ns: at.rem_euclid(SECOND) as u32,
    }
}

pub(super) fn own_pid() -> u32 {
    getpid().as_raw_pid() as u32
}

/// Kills the process of `session` if it is certainly that process: same boot, same user, same
/// process ID and start time, and not this process. True if the signal was sent.
pub(super) fn kill(session: &JournalSession) -> bool {
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
    // Checked while the pidfd is open, because its process ID cannot be reused then.
    is_that() && pidfd_send_signal(process, Signal::KILL).is_ok()
}

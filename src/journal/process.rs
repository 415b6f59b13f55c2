//! Which process writes a journal, to which mount, and whether it is still there.

use std::fs::File;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, getpid, pidfd_open, pidfd_send_signal};

use super::record::Session;

/// The kernel's name for this run of the machine; zero where it does not tell.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16).unwrap_or(0).to_be_bytes()
}

/// Asks for a name of the mount that no later one gets (`STATX_MNT_ID_UNIQUE`, since Linux 6.8):
/// that of `MNT_ID` goes to the next mount, which may lack what had not been written back before.
const MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The mount that the file is on; 0 where the kernel does not tell.
pub fn mount(file: &File) -> u64 {
    let told = statx(file, c"", AtFlags::EMPTY_PATH, MOUNT).ok();
    let told = told.filter(|told| told.stx_mask & MOUNT.bits() != 0);
    told.map_or(0, |told| told.stx_mnt_id)
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

//! The kernel interface: a filter that reports the named calls of a thread and its children to a
//! listener, and the listener's answers. See seccomp_unotify(2).

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::libc;
use rustix::event::{PollFd, PollFlags, poll};

use super::calls::Wanted;

pub(super) use libc::seccomp_notif as Notice;

/// The descriptor on which notices of filtered calls arrive and are answered.
pub(super) struct Listener(OwnedFd);

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Offsets in `struct seccomp_data` of a little-endian machine.
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
const ARGS_AT: u32 = 16;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_EQ: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn step(code: u32, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k,
    }
}

/// The filter program. Calls that are not `wanted` run at full speed.
fn program(wanted: &[Wanted]) -> Vec<libc::sock_filter> {
    let allow = step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
    let notify = step(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0, 0);
    let mut steps = vec![step(LOAD, ARCH_AT, 0, 0), step(JUMP_EQ, ARCH, 1, 0), allow];
    for (call, argument) in wanted {
        let number = call.number as u32;
        steps.push(step(LOAD, NUMBER_AT, 0, 0));
        match argument {
            None => steps.extend([step(JUMP_EQ, number, 0, 1), notify]),
            // The low half is enough: commands and whence values are ints.
            Some((index, value)) => steps.extend([
                step(JUMP_EQ, number, 0, 3),
                step(LOAD, ARGS_AT + 8 * *index as u32, 0, 0),
                step(JUMP_EQ, *value as u32, 0, 1),
                notify,
            ]),
        }
    }
    steps.push(allow);
    steps
}

/// Puts this thread, and all processes it starts later, under a filter until they end.
pub(super) fn install(wanted: &[Wanted]) -> Result<Listener> {
    let mut steps = program(wanted);
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    if !rustix::process::geteuid().is_root() {
        rustix::thread::set_no_new_privs(true)?;
    }
    let set = |flags: libc::c_ulong| {
        // SAFETY: the kernel reads the program, which outlives the call.
        let made = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        match made {
            -1 => Err(Error::last_os_error()),
            // SAFETY: a new descriptor that nobody else knows.
            fd => Ok(Listener(unsafe { OwnedFd::from_raw_fd(fd as i32) })),
        }
    };
    // Only a deadly signal ends a call that waits for its answer, as with a hung disk.
    let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    set(listener | killable).or_else(|_| set(listener))
}

impl Listener {
    /// The next call; None once every process under the filter has ended.
    pub(super) fn next(&self) -> Option<Notice> {
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled.expect("poll a listener"),
            };
            if !fds[0].revents().contains(PollFlags::IN) {
                return None;
            }
            // SAFETY: a struct of numbers, which the kernel wants to be zero.
            let mut notice: Notice = unsafe { std::mem::zeroed() };
            // A process that has ended leaves no notice.
            if self
                .control(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut notice)
                .is_ok()
            {
                return Some(notice);
            }
        }
    }

    /// Lets the call happen.
    pub(super) fn go_on(&self, notice: &Notice) {
        self.answer(notice, 0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32);
    }

    /// The call does nothing and returns `value`: a count, or a negative error number.
    pub(super) fn returns(&self, notice: &Notice, value: i64) {
        let error = value.min(0) as i32;
        self.answer(notice, value.max(0), error, 0);
    }

    fn answer(&self, notice: &Notice, val: i64, error: i32, flags: u32) {
        let mut answer = libc::seccomp_notif_resp {
            id: notice.id,
            val,
            error,
            flags,
        };
        // A caller that has been killed needs no answer.
        self.control(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer)
            .ok();
    }

    /// Replaces a descriptor of the caller by /dev/null, which closes the file.
    pub(super) fn replace_by_null(&self, notice: &Notice, fd: u32) {
        let null = File::open("/dev/null").expect("open /dev/null");
        let mut request = libc::seccomp_notif_addfd {
            id: notice.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: null.as_raw_fd() as u32,
            newfd: fd,
            newfd_flags: libc::O_CLOEXEC as u32,
        };
        self.control(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut request)
            .ok();
    }

    /// False once the caller has been killed.
    pub(super) fn still_waits(&self, notice: &Notice) -> bool {
        let mut id = notice.id;
        self.control(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id)
            .is_ok()
    }

    fn control<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<()> {
        // SAFETY: each request comes with the struct that the kernel reads and writes for it.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request, &raw mut *argument) };
        match done {
            -1 => Err(Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

//! A small process that terminates a command's process group if this process is killed. The kernel
//! can send a signal at the death of a parent. But that depends on the thread that started the
//! child, and reaches only the shell, not the pipeline that it runs.
//!
//! The watchdog's stdin ends when this process dies, because only this process holds the other end
//! of it open. The watchdog also holds a consumer's stdin open, as its own stdout. So if this
//! process is killed, the consumer sees no false end of data before the watchdog terminates it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::Pid;

/// It reads two lines: the group, and a notice that the data has ended. After TERM it checks twice,
/// at intervals of a second, whether the group is gone, and then kills it.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
read -r group || exit 0
read -r ended && exec >&- && read -r never
kill -s TERM -- "-$group" || exit 0
for look in 1 2; do
    sleep 1
    kill -s 0 -- "-$group" || exit 0
done
kill -s KILL -- "-$group"
"#;

pub(super) struct Watchdog {
    child: Child,
    /// The kernel closes it when this process is killed.
    pub(super) lifeline: Option<ChildStdin>,
}

impl Watchdog {
    /// The watch keeps `held` open until [`let_end`](Watchdog::let_end).
    pub(super) fn start(held: Option<OwnedFd>) -> io::Result<Watchdog> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "fastcp-watch"])
            // Otherwise an interrupt from the terminal would reach it too.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(held.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::null())
            .spawn()?;
        let lifeline = child.stdin.take();
        Ok(Watchdog { child, lifeline })
    }

    /// The process group of the watch itself.
    pub(super) fn group(&self) -> i32 {
        Pid::from_child(&self.child).as_raw_nonzero().get()
    }

    pub(super) fn guard(&mut self, group: Pid) -> io::Result<()> {
        self.say(&format!("{}\n", group.as_raw_nonzero()))
    }

    /// All data is written: the consumer may see the end of its stdin.
    pub(super) fn let_end(&mut self) {
        if self.say("ended\n").is_err() {
            // The watch is dead, so it no longer holds anything open.
            self.lifeline = None;
        }
    }

    /// To be called when the command's group is gone.
    pub(super) fn end(&mut self) {
        // The watch may have exited already, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Writes a few bytes to a nearly empty pipe, so it never blocks.
    fn say(&mut self, line: &str) -> io::Result<()> {
        match &mut self.lifeline {
            Some(lifeline) => lifeline.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end();
    }
}

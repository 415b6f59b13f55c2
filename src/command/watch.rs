//! A process beside a command that outlives us by a moment: where this one is killed it ends the
//! command's group. The kernel has a signal for the death of a parent, but that is tied to the
//! thread that started the child and reaches the shell alone, not the pipeline that it runs.
//!
//! The watch knows that we are gone when its stdin ends, which only this process can hold open. It
//! also holds a consumer's stdin (as its own stdout): a consumer that is fed by a process that was
//! killed must be ended before it sees an end of its data and takes it for the true one.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::Pid;

/// Its lines are the group, and that the data has ended. After TERM it looks every second, twice,
/// whether the group is gone, and then kills it.
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

pub struct Watch {
    child: Child,
    /// Closed by the kernel when this process is killed.
    pub(super) lifeline: Option<ChildStdin>,
}

impl Watch {
    /// `held` stays open in it until [`let_end`](Watch::let_end).
    pub fn start(held: Option<OwnedFd>) -> io::Result<Watch> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "fastcp-watch"])
            // Else the user's interrupt would reach it as well.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(held.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::null())
            .spawn()?;
        let lifeline = child.stdin.take();
        Ok(Watch { child, lifeline })
    }

    /// Of the watch itself.
    pub fn group(&self) -> i32 {
        Pid::from_child(&self.child).as_raw_nonzero().get()
    }

    pub fn guard(&mut self, group: Pid) -> io::Result<()> {
        self.say(&format!("{}\n", group.as_raw_nonzero()))
    }

    /// All data is written: the consumer may see its end.
    pub fn let_end(&mut self) {
        if self.say("ended\n").is_err() {
            // It is gone, and what it held with it.
            self.lifeline = None;
        }
    }

    /// The group is gone.
    pub fn end(&mut self) {
        // It may be gone as well; that is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// A few bytes into an empty pipe: never waits.
    fn say(&mut self, line: &str) -> io::Result<()> {
        match &mut self.lifeline {
            Some(lifeline) => lifeline.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

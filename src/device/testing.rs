//! Loop devices for the tests of both ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::NamedTempFile;

/// A loop device on a file; detached when dropped.
pub struct Loop {
    pub path: PathBuf,
    pub file: NamedTempFile,
}

impl Loop {
    /// With these bytes, a multiple of 512 of them. None, and a line that says so, where this
    /// machine has no loop devices for us.
    pub fn new(content: &[u8]) -> Option<Loop> {
        Loop::made(content, &["--find", "--show"])
    }

    /// As [`new`](Loop::new), but nobody may write to it.
    pub fn read_only(content: &[u8]) -> Option<Loop> {
        Loop::made(content, &["--find", "--show", "--read-only"])
    }

    fn made(content: &[u8], how: &[&str]) -> Option<Loop> {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        // Another test, or another build, may take the free one first.
        for _ in 0..20 {
            let made = Command::new("losetup").args(how).arg(file.path()).output();
            match made {
                Ok(made) if made.status.success() => {
                    let path = String::from_utf8(made.stdout).unwrap().trim().into();
                    return Some(Loop { path, file });
                }
                Ok(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
                Err(_) => break,
            }
        }
        skip();
        None
    }

    /// What the file holds once the device has been let go.
    pub fn content(&self) -> Vec<u8> {
        run("blockdev", &["--flushbufs".as_ref(), self.path.as_ref()]);
        std::fs::read(self.file.path()).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach".as_ref(), self.path.as_ref()]);
    }
}

pub fn run(program: &str, args: &[&Path]) -> bool {
    let done = Command::new(program).args(args).output();
    done.is_ok_and(|done| done.status.success())
}

/// Says in one line why a test does not run here; a failure where everything has to run.
pub fn skip() {
    let strict = std::env::var_os("FASTCP_TEST_STRICT").is_some_and(|value| value == "1");
    assert!(!strict, "needs loop devices");
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    // Past the harness, which would swallow the line of a test that passes.
    writeln!(std::io::stderr(), "skipped: needs loop devices: {name}").ok();
}

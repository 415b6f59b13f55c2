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
    /// Makes one with these bytes, a multiple of 512. None, with a line of explanation, if this
    /// machine has no loop devices for the tests.
    pub fn new(content: &[u8]) -> Option<Loop> {
        Loop::made(content, &["--find", "--show"])
    }

    /// Like [`new`](Loop::new), but read-only.
    pub fn read_only(content: &[u8]) -> Option<Loop> {
        Loop::made(content, &["--find", "--show", "--read-only"])
    }

    fn made(content: &[u8], how: &[&str]) -> Option<Loop> {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        // Another test or build may take the free device first.
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

    /// The content of the file after the device's cache is flushed.
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

/// Prints why a test is skipped; panics if `FASTCP_TEST_STRICT` is 1.
pub fn skip() {
    let strict = std::env::var_os("FASTCP_TEST_STRICT").is_some_and(|value| value == "1");
    assert!(!strict, "needs loop devices");
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    // Bypasses the test harness, which hides the output of tests that pass.
    writeln!(std::io::stderr(), "skipped: needs loop devices: {name}").ok();
}

//! Small limits of threads and open files: a copy does with less, or fails with one sentence.

use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::geteuid;

use crate::support::done::Done;
use crate::support::run::stripped_binary;
use crate::support::*;

ways! { here =>
    a_small_limit_of_processes_gives_a_copy_or_a_sentence,
}

/// A user with no other processes, to whom limits of processes apply.
const USER: u32 = 23_456;

/// A copy between two directories of that user, through a server on this machine.
struct Scarce {
    home: tempfile::TempDir,
    program: PathBuf,
}

impl Scarce {
    /// None where this user may not become another.
    fn new() -> Option<Scarce> {
        if !geteuid().is_root() {
            skip("a copy as another user");
            return None;
        }
        let home = tempfile::tempdir().expect("make a directory");
        let program = home.path().join("fastcp");
        std::fs::copy(stripped_binary(), &program).expect("copy the program");
        chown(home.path(), Some(USER), Some(USER)).expect("give it away");
        Some(Scarce { home, program })
    }

    fn copy(&self, ulimit: &str, words: &[&str]) -> Done {
        let user = USER.to_string();
        let line = format!("ulimit {ulimit}; exec \"$@\"");
        Run::new("setpriv", self.home.path())
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .args(["bash", "-c", &line, "bash"])
            .arg(&self.program)
            .args(["--rsh", "local", "--remote-path"])
            .arg(&self.program)
            .args(words)
            .env("HOME", self.home.path())
            .limit(Duration::from_secs(60))
            .run()
    }

    fn dir(&self) -> Dir {
        Dir(self.home.path().to_owned())
    }
}

fn a_small_limit_of_processes_gives_a_copy_or_a_sentence(_: &Case) {
    let Some(scarce) = Scarce::new() else { return };
    let dir = scarce.dir();
    dir.file("big", noise(1, 3 * MIB));
    let target = dir.path("out");
    let operand = format!("h:{}", target.display());
    let mut copied = 0;
    for limit in (1..=16).chain([18, 20, 24, 32]) {
        let done = scarce.copy(&format!("-u {limit}"), &["big", &operand]);
        done.never_says("panicked");
        if done.code == Some(0) {
            copied += 1;
            assert_eq!(dir.read("out"), dir.read("big"), "-u {limit}");
            std::fs::remove_file(&target).expect("remove the copy");
        } else {
            done.says("temporarily unavailable");
            let code = done.code;
            assert!(matches!(code, Some(3..=5)), "-u {limit}: {code:?}");
        }
    }
    assert!(copied > 0, "32 processes are enough");
}

//! Two users on one far host whose kernel does not protect symlinks in /tmp
//! (`fs.protected_symlinks=0`). One plants programs there and swaps names between two checks of
//! the other's start-up script. The test delays the script's system calls for that.

use std::fs::File;
use std::os::unix::fs::{chown, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_uid};

use crate::support::inject::{self, Inject};
use crate::support::run::stripped_binary;
use crate::support::*;

ways! { local_push => no_program_of_another_user_is_run_whatever_the_timing }

const VICTIM: u32 = 23_456;
const ATTACKER: u32 = 12_345;

/// The delay of each check of the script, in milliseconds: on a busy machine the attacker needs one
/// of the longer ones.
const LATER_MS: [u64; 3] = [250, 1000, 4000];

/// The checks of version 0.1, one after another, on a path in /tmp.
const FOOLED: &str = "for f in /tmp/fastcp-*/*-*/fastcp; do d=${f%/*/fastcp}; \
                      [ -h \"$d\" ] || { [ -O \"$d\" ] && [ -O \"$f\" ] && \"$f\"; }; done";

/// Sets `fs.protected_symlinks=0` until dropped; one test of this machine at a time.
struct Unprotected {
    setting: File,
    before: String,
}

const SETTING: &str = "/proc/sys/fs/protected_symlinks";

impl Unprotected {
    /// None without permission to set it.
    fn new() -> Option<Unprotected> {
        let setting = File::open(SETTING).ok()?;
        flock(&setting, FlockOperation::LockExclusive).ok()?;
        let before = std::fs::read_to_string(SETTING).ok()?;
        std::fs::write(SETTING, "0").ok()?;
        Some(Unprotected { setting, before })
    }
}

impl Drop for Unprotected {
    fn drop(&mut self) {
        std::fs::write(SETTING, &self.before).ok();
        flock(&self.setting, FlockOperation::Unlock).ok();
    }
}

/// The directory that the login sees as /tmp, with the files of both users.
struct Tmp {
    dir: Dir,
    name: String,
    ran: PathBuf,
}

impl Tmp {
    fn new(case: &Case) -> Tmp {
        let dir = case.scratch.dir("temporary");
        case.scratch.mode("temporary", 0o1777);
        let digest = blake3::hash(&std::fs::read(stripped_binary()).expect("read it"));
        let tmp = Tmp {
            name: format!("0.1.0-{digest}"),
            ran: dir.path("was-run"),
            dir,
        };
        for name in ["home", "out"] {
            tmp.dir.dir(name);
            give(&tmp.dir.path(name), VICTIM);
        }
        let own = tmp.dir.file("home/own", "a file of the victim's");
        give(&own, VICTIM);
        tmp
    }

    /// Makes, as the attacker, the names to swap: a directory with a program, a symlink to a
    /// directory of the victim, and a directory with a symlink to a file of the victim.
    fn plant(&self) {
        let path = |stage: &str| format!("{stage}/{}/fastcp", self.name);
        let text = "#!/bin/sh\nid -u >>/tmp/was-run\necho '=fastcp= ok'\n";
        self.dir.file(path("fastcp-theirs"), text);
        self.dir.mode(path("fastcp-theirs"), 0o755);
        self.dir.file(path("linking"), "");
        std::fs::remove_file(self.dir.path(path("linking"))).expect("remove");
        symlink("/tmp/home/own", self.dir.path(path("linking"))).expect("link");
        symlink("/tmp/home", self.dir.path("leading")).expect("link");
    }

    /// Before each check of `fastcp-theirs`, swaps in what passes that check.
    fn attack(&self, looks: &Inject, over: &AtomicBool) {
        set_thread_gid(Gid::from_raw(ATTACKER)).expect("a group");
        set_thread_uid(Uid::from_raw(ATTACKER)).expect("a user");
        let swap = |one: &str, other: &str| {
            let (one, other) = (self.dir.path(one), self.dir.path(other));
            renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok()
        };
        // By rule: a directory with a program, a symlink to a directory of the victim, a
        // directory with a symlink to a file of the victim, and the program.
        let stages = [None, Some("leading"), Some("linking"), None];
        let (mut seen, mut stage) = (vec![0; stages.len()], None);
        while !over.load(Relaxed) {
            let now = looks.struck_by_rule();
            let next = (0..stages.len()).find(|&rule| now[rule] > seen[rule]);
            if let Some(rule) = next.filter(|&rule| stages[rule] != stage) {
                for other in [stage, stages[rule]].into_iter().flatten() {
                    assert!(swap("fastcp-theirs", other), "{other}");
                }
                stage = stages[rule];
            }
            seen = now;
            // The attacker cannot swap the victim's own directories.
            for name in self.dir.names() {
                let is_new = name.starts_with("fastcp-") && name != "fastcp-theirs";
                assert!(!(is_new && swap(&name, "fastcp-theirs")), "{name}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs `body` during the attack, with this delay of each check. True if the planted program
    /// has run.
    fn under_attack(&self, later_ms: u64, body: impl FnOnce(&Inject)) -> bool {
        self.plant();
        for name in ["fastcp-theirs", "linking"] {
            give_all(&self.dir.path(name), ATTACKER);
        }
        std::os::unix::fs::lchown(self.dir.path("leading"), Some(ATTACKER), Some(ATTACKER))
            .expect("give away");
        let (directory, program) = ("*/fastcp-theirs", "*/fastcp-theirs/*/fastcp");
        let looks = [
            ("look_at_link", directory),
            ("look_through_link", directory),
            ("look_through_link", program),
            ("execve", program),
        ];
        let looks = looks.into_iter().fold(Inject::new(), |looks, (call, on)| {
            let later = Duration::from_millis(later_ms);
            looks.delay(call, later).of("dash").on(on)
        });
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let attack = scope.spawn(|| self.attack(&looks, &over));
            let done = catch_unwind(AssertUnwindSafe(|| body(&looks)));
            over.store(true, Relaxed);
            attack.join().expect("the attacker");
            if let Err(panic) = done
                && !self.ran.exists()
            {
                resume_unwind(panic);
            }
        });
        let has_run = self.ran.exists();
        std::fs::remove_file(&self.ran).ok();
        for name in ["fastcp-theirs", "linking", "leading"] {
            let path = self.dir.path(name);
            std::fs::remove_dir_all(&path)
                .or_else(|_| std::fs::remove_file(&path))
                .expect("remove");
        }
        has_run
    }
}

fn give(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).expect("give away");
}

fn give_all(path: &Path, user: u32) {
    std::os::unix::fs::lchown(path, Some(user), Some(user)).expect("give away");
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).expect("read").flatten() {
            give_all(&entry.path(), user);
        }
    }
}

fn no_program_of_another_user_is_run_whatever_the_timing(case: &Case) {
    if !rustix::process::geteuid().is_root() || !inject::permitted() {
        return skip("root and seccomp user notification");
    }
    let is_dash = std::fs::canonicalize("/bin/sh").is_ok_and(|shell| shell.ends_with("dash"));
    let Some(_unprotected) = Unprotected::new().filter(|_| is_dash) else {
        return skip("fs.protected_symlinks, and dash as /bin/sh");
    };
    let Some(under) = super::poor::login_with_mounts(case, "").map(|login| login.under) else {
        return;
    };
    let tmp = Tmp::new(case);
    // Replaces ssh: a login as the victim.
    let login = case.scratch.file(
        "login",
        format!(
            "#!/bin/sh\nfor last; do :; done\n[ \"$1\" = -G ] && exit 1\n\
             exec {under} setpriv --reuid {VICTIM} --regid {VICTIM} --clear-groups \
             env -i PATH=/usr/bin:/bin HOME= /bin/sh -c \"$last\"\n",
        ),
    );
    case.scratch.mode("login", 0o755);
    let later_ms = LATER_MS.into_iter().find(|later_ms| {
        tmp.under_attack(*later_ms, |looks| {
            Run::new(&login, "/").arg(FOOLED).inject(looks).run();
        })
    });
    let later_ms = later_ms.expect("the attacker is able to");
    case.src.file("a", "one");
    let is_fooled = tmp.under_attack(later_ms, |looks| {
        let run = case.bare().program(stripped_binary()).arg("-S").arg(&login);
        let run = run.arg(case.src.path("a")).arg("far:/tmp/out/a").arg("-v");
        run.inject(looks).run().succeeds().says("installing");
    });
    assert!(!is_fooled, "a program of another user was run");
    assert_eq!(tmp.dir.read("out/a"), b"one");
}

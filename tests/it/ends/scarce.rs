//! Small limits on threads and open files: a copy works within them, or fails with one sentence.

use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::process::geteuid;

use crate::support::done::Done;
use crate::support::run::stripped_binary;
use crate::support::*;

ways! { here =>
    a_small_limit_of_processes_gives_a_copy_or_a_sentence,
    a_small_limit_of_processes_at_the_server_gives_one_sentence,
}

ways! { push, here =>
    few_open_files_at_either_end_are_enough,
    too_few_open_files_give_one_sentence_before_anything_is_copied,
}

ways! { push => several_hosts_share_few_open_files }

/// A user without other processes, to whom limits on processes apply: another one for each test.
fn new_user() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    1_000_000 + std::process::id() * 16 + NEXT.fetch_add(1, SeqCst) % 16
}

/// Copies between two directories of that user, through a server on this machine.
struct Scarce {
    user: u32,
    home: tempfile::TempDir,
    program: PathBuf,
}

impl Scarce {
    /// None if the test may not run programs as another user.
    fn new() -> Option<Scarce> {
        if !geteuid().is_root() {
            skip("a copy as another user");
            return None;
        }
        let home = tempfile::tempdir().expect("make a directory");
        let program = home.path().join("fastcp");
        std::fs::copy(stripped_binary(), &program).expect("copy the program");
        tree::no_longer_written(&program);
        let user = new_user();
        chown(home.path(), Some(user), Some(user)).expect("give it away");
        Some(Scarce {
            user,
            home,
            program,
        })
    }

    fn copy(&self, ulimit: &str, words: &[&str]) -> Done {
        let user = self.user.to_string();
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
    let source = format!("h:{}", dir.path("big").display());
    let out = target.display().to_string();
    for words in [["big", &operand], [&source, &out]] {
        let mut copied = 0;
        for limit in (1..=16).chain([18, 20, 24, 32]) {
            let done = scarce.copy(&format!("-u {limit}"), &words);
            done.never_says("panicked");
            if done.code == Some(0) {
                copied += 1;
                assert_eq!(dir.read("out"), dir.read("big"), "-u {limit}");
                std::fs::remove_file(&target).expect("remove the copy");
            } else {
                done.says("temporarily unavailable");
                let code = done.code;
                assert!(
                    matches!(code, Some(3..=5)),
                    "{words:?} -u {limit}: {code:?}"
                );
            }
        }
        assert!(copied > 0, "32 processes are enough");
    }
}

fn a_small_limit_of_processes_at_the_server_gives_one_sentence(_: &Case) {
    let Some(scarce) = Scarce::new() else { return };
    scarce.dir().file("a", "one");
    let target = scarce.dir().path("out");
    let limited = format!(
        "bash -c 'ulimit -u 4; exec {} \"$0\" \"$@\"'",
        scarce.program.display()
    );
    let operand = format!("h:{}", target.display());
    for words in [["a", &operand], [&operand, "a"]] {
        let done = scarce.copy(
            "-u 100",
            &[&["--remote-path", &limited][..], &words].concat(),
        );
        done.exits(4)
            .says("h: fastcp cannot run there: cannot start a thread");
        let text = done.stderr.clone();
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// Many small files, and more big files than may be open at once. Returns their number.
fn tree(dir: &Dir) -> usize {
    for n in 0..300 {
        dir.file(format!("small {}/{n}", n / 10), format!("{n}"));
    }
    for n in 0..120 {
        dir.file(format!("big {n}/f"), noise(n, 300_000));
    }
    420
}

/// Limits the open files of the server.
fn limited(case: &Case, limit: usize) {
    case.host().set_login(&Login {
        before: format!("ulimit -n {limit}"),
        ..Login::default()
    });
}

fn few_open_files_at_either_end_are_enough(case: &Case) {
    tree(&case.src.dir("tree"));
    for limit in [48, 64, 128] {
        for (here, there) in [(true, false), (false, true), (true, true)] {
            if case.way != Way::Here {
                limited(case, if there { limit } else { 100_000 });
            }
            let line = match here {
                true => format!("ulimit -n {limit}; exec \"$@\""),
                false => "exec \"$@\"".to_owned(),
            };
            let run = case.copying(&["-r"], "tree", "tree");
            run.under(["bash", "-c", &line, "bash"]).run().succeeds();
            assert_same(case.src.path("tree"), case.dst.path("tree"), Also::Nothing);
            std::fs::remove_dir_all(case.dst.path("tree")).expect("remove the copy");
        }
    }
}

fn too_few_open_files_give_one_sentence_before_anything_is_copied(case: &Case) {
    case.src.file("a", "one");
    let few = |run: Run| run.under(["bash", "-c", "ulimit -n 32; exec \"$@\"", "bash"]);
    let told = "only 32 files may be open at once, and at least 48 are needed: raise the limit \
                (`ulimit -n`)";
    let lines = |done: &Done| done.stderr.lines().count();
    let done = few(case.copying(&[], "a", "a")).run();
    done.exits(4).says(told);
    assert_eq!(lines(&done), 1);
    if case.way != Way::Here {
        limited(case, 32);
        for flags in [&[][..], &["-q"]] {
            let done = case.copy(flags, "a", "a");
            done.exits(4)
                .says("far: fastcp cannot run there: ")
                .says(told);
            assert_eq!(lines(&done), 1);
        }
    }
    assert!(case.dst.names().is_empty());
}

fn several_hosts_share_few_open_files(case: &Case) {
    tree(&case.src.dir("tree"));
    let run = |limit: usize| {
        let line = format!("ulimit -n {limit}; exec \"$@\"");
        let run = case.copying(&["-r"], "tree", "one");
        let run = run.arg("--also").arg(case.dst("two"));
        run.under(["bash", "-c", &line, "bash"]).run()
    };
    run(60).exits(4).says("at least 64 are needed");
    run(64).succeeds();
    for name in ["one", "two"] {
        assert_same(case.src.path("tree"), case.dst.path(name), Also::Nothing);
    }
}

//! Tests of the injector itself, with common programs.

use std::time::Duration;

use rustix::io::Errno;

use super::{Inject, permitted};
use crate::support::case::skip;
use crate::support::done::Done;
use crate::support::procs::until;
use crate::support::run::Run;
use crate::support::tree::Dir;

fn with_dir(body: impl FnOnce(&Dir)) {
    if !permitted() {
        return skip("seccomp user notification");
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("make a directory");
    body(&Dir(dir.path().to_owned()));
}

/// Writes six bytes to a file, two at a time.
fn dd(dir: &Dir, to: &str) -> Run {
    dir.file("in", "abcdef");
    let words = [
        "if=in",
        &format!("of={to}"),
        "bs=2",
        "conv=fsync",
        "status=none",
    ];
    Run::new("dd", &dir.0).args(words)
}

fn struck(dir: &Dir, inject: &Inject) -> Done {
    dd(dir, "out").inject(inject).run()
}

#[test]
fn without_a_rule_that_fits_everything_happens() {
    with_dir(|dir| {
        let inject = Inject::new().fail("write", Errno::IO).of("dd").on("other");
        let inject = inject.fail("fsync", Errno::IO);
        struck(dir, &inject).succeeds().is_silent();
        inject.assert_struck(0);
        assert_eq!(dir.read("out"), b"abcdef");
    });
}

#[test]
fn a_call_fails_where_its_rule_fits() {
    with_dir(|dir| {
        for (call, text) in [
            ("write", "error writing 'out': Input/output error"),
            ("fsync", "fsync failed for 'out': Input/output error"),
            ("close", "Input/output error"),
            ("open", "failed to open 'out': Input/output error"),
        ] {
            let inject = Inject::new().fail(call, Errno::IO).of("dd").on("*/out");
            struck(dir, &inject).exits(1).says(text);
            assert!(inject.struck() > 0);
        }
    });
}

#[test]
fn the_nth_call_fails_and_the_others_happen() {
    with_dir(|dir| {
        let inject = Inject::new().fail("write", Errno::NOSPC).of("dd");
        let inject = inject.on("out").nth(3);
        struck(dir, &inject).exits(1).says("No space left");
        inject.assert_struck(1);
        assert_eq!(dir.read("out"), b"abcd");
    });
}

#[test]
fn a_call_returns_what_it_is_told_to() {
    with_dir(|dir| {
        let inject = Inject::new().pretend("read", 0).of("dd").on("in").nth(2);
        struck(dir, &inject).succeeds();
        assert_eq!(dir.read("out"), b"ab");
    });
}

#[test]
fn the_same_seed_strikes_the_same_calls() {
    with_dir(|dir| {
        dir.file("many", vec![7; 200]);
        let copied = |seed| {
            // A pretended write leaves its byte out.
            let inject = Inject::new().pretend("write", 1).of("dd").on("out");
            let inject = inject.chance(300, seed);
            let words = ["if=many", "of=out", "bs=1", "status=none"];
            let run = Run::new("dd", &dir.0).args(words).inject(&inject);
            run.run().succeeds();
            assert_eq!(dir.read("out").len(), 200 - inject.struck());
            inject.struck()
        };
        assert_eq!(copied(1), copied(1));
        assert!((20..120).contains(&copied(2)));
    });
}

#[test]
fn a_held_call_waits_and_the_others_go_on() {
    with_dir(|dir| {
        let inject = Inject::new().hold("fsync").of("dd").on("first");
        let inject = inject.delay("fsync", Duration::from_millis(1)).of("dd");
        dir.file("in", "abcdef");
        let script = "dd if=in of=first conv=fsync status=none & \
                      dd if=in of=second conv=fsync status=none && : > second.done; wait $!";
        let run = Run::new("sh", &dir.0).args(["-c", script]).inject(&inject);
        let running = run.start();
        inject.wait_until_struck(2);
        until("the other one is done", || {
            dir.has("second.done").then_some(())
        });
        inject.release();
        running.wait().succeeds();
        assert_eq!(inject.struck_by_rule(), [1, 1]);
    });
}

#[test]
fn a_held_process_can_be_killed() {
    with_dir(|dir| {
        let inject = Inject::new().hold("fsync").of("dd");
        let running = dd(dir, "out").inject(&inject).start();
        inject.wait_until_struck(1);
        running.signal(rustix::process::Signal::KILL);
        assert_eq!(running.wait().signal, Some(9));
    });
}

#[test]
fn a_process_is_killed_at_its_call() {
    with_dir(|dir| {
        let inject = Inject::new().kill("write").of("dd").on("out").nth(2);
        assert_eq!(struck(dir, &inject).signal, Some(9));
        assert_eq!(dir.read("out"), b"ab");
    });
}

#[test]
fn the_ends_are_told_apart() {
    with_dir(|dir| {
        let inject = Inject::new().fail("write", Errno::IO).of("bash").on("a");
        let inject = inject.at_server().fail("write", Errno::IO).of("bash");
        let inject = inject.on("b").at_client();
        let run = |words: &[&str]| {
            let words = ["-c", "echo text >a; echo text >b"].iter().chain(words);
            Run::new("bash", &dir.0).args(words).inject(&inject).run()
        };
        run(&["x", "--server"]).succeeds();
        assert_eq!(inject.struck_by_rule(), [1, 0]);
        run(&["x"]).exits(1);
        assert_eq!(inject.struck_by_rule(), [1, 1]);
    });
}

#[test]
fn paths_and_arguments_are_seen() {
    with_dir(|dir| {
        dir.file("from", "");
        let rename = Inject::new()
            .fail("rename", Errno::ROFS)
            .of("mv")
            .on("*/t[op]");
        let mv = |to: &str| Run::new("mv", &dir.0).args(["from", to]);
        mv("to").inject(&rename).run().exits(1).says("Read-only");
        mv("other").inject(&rename).run().succeeds();
        // flock(1) asks for a lock, never for a lease.
        let lease = Inject::new().fail("lease", Errno::IO).of("flock");
        let lease = lease.fail("flock", Errno::NOLCK).of("flock").nth(2);
        let flock = || {
            Run::new("flock", &dir.0)
                .args(["other", "true"])
                .inject(&lease)
        };
        flock().run().succeeds();
        flock().run().says("No locks available");
        assert_eq!(lease.struck_by_rule(), [0, 1]);
    });
}

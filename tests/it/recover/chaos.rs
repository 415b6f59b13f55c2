//! Copies with random faults, chosen by seeds. Each copy ends with the right bytes, or with an
//! error in time and no wrong file under a final name; then the same command completes it.
//!
//! `FASTCP_CHAOS_SEED=n` plays one script of network faults, `FASTCP_CHAOS_SEEDS=n` plays n of
//! them; `FASTCP_CHAOS_DISK_SEED` and `FASTCP_CHAOS_DISK_SEEDS` do so for disk faults.
//! `FASTCP_CHAOS_FIRST=n` is the first seed; `FASTCP_CHAOS_AT_ONCE=n` plays n scripts at once.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use crate::support::bad_disk::{BadDisk, What as Wrong};
use crate::support::chaos::Script;
use crate::support::done::Done;
use crate::support::peer::readable;
use crate::support::storm::Storm;
use crate::support::{inject, *};

/// Scripts that every test run plays. After a change of the tested code, play some thousands.
const SEEDS: u64 = 60;
const DISK_SEEDS: u64 = 40;

/// Copies at once. They mostly wait, so many of them fit on few processors.
const AT_ONCE: usize = 16;

/// Every copy ends within this, with silences of `--timeout 5s`, pauses between retries and a busy
/// machine.
pub(super) const VERDICT: Duration = Duration::from_secs(120);

/// How long a server may take to notice that its client has gone: three quarters of the allowed
/// silence, and some more for a busy machine.
pub(super) const SERVER_LIMIT: Duration = Duration::from_secs(40);

#[test]
fn whatever_breaks_the_bytes_are_right_or_the_copy_says_so() {
    play_all("FASTCP_CHAOS_SEED", SEEDS, |seed| {
        let script = Script::of(seed);
        (script.to_string(), Box::new(move || play(&script)))
    });
}

#[test]
fn whatever_a_disk_says_the_bytes_are_right_or_the_copy_says_so() {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    play_all("FASTCP_CHAOS_DISK_SEED", DISK_SEEDS, |seed| {
        let script = BadDisk::of(seed);
        (script.to_string(), Box::new(move || play_disk(&script)))
    });
}

/// Plays a script; returns the copy's exit code and the number of faults that occurred.
pub(super) type Play = Box<dyn Fn() -> (i32, usize)>;

/// Plays the script of each seed that `variable` asks for, or the first `usual` ones.
pub(super) fn play_all(variable: &str, usual: u64, script: impl Fn(u64) -> (String, Play) + Sync) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds: Vec<u64> = match number(variable) {
        Some(seed) => vec![seed],
        None => {
            let first = number("FASTCP_CHAOS_FIRST").unwrap_or(0);
            let count = number(&format!("{variable}S")).unwrap_or(usual);
            (first..first + count).collect()
        }
    };
    let since = Instant::now();
    let next = AtomicU64::new(0);
    let (failed, codes) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::new()));
    let struck = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let at_once = number("FASTCP_CHAOS_AT_ONCE").map_or(AT_ONCE, |number| number as usize);
        for _ in 0..at_once.clamp(1, AT_ONCE).min(seeds.len()) {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, SeqCst) as usize) {
                    let (story, play) = script(seed);
                    match catch_unwind(AssertUnwindSafe(&play)) {
                        Ok((code, faults)) => {
                            struck.fetch_add(faults, SeqCst);
                            let mut codes = codes.lock().expect("no panic while held");
                            *codes.entry(code).or_insert(0) += 1;
                        }
                        Err(_) => {
                            eprintln!("failed: {story}");
                            failed.lock().expect("no panic while held").push(seed);
                        }
                    }
                }
            });
        }
    });
    let codes = codes.into_inner().expect("no panic while held");
    let struck = struck.into_inner();
    let took = since.elapsed();
    eprintln!("chaos: exit codes {codes:?}, {struck} faults, {took:?}");
    let mut failed = failed.into_inner().expect("no panic while held");
    failed.sort();
    assert!(
        seeds.len() < 20 || struck >= seeds.len() / 2,
        "it was too calm"
    );
    assert!(
        failed.is_empty(),
        "{variable} of those that failed: {failed:?}"
    );
}

fn play(script: &Script) -> (i32, usize) {
    let way = match script.seed % 2 {
        0 => Way::LocalPush,
        _ => Way::LocalPull,
    };
    let mut came = (-1, 0);
    Case::run(way, |case| {
        let tree = sources(case, script.seed, script.big, 60);
        let storm = Storm::new(case, script);
        let streams = script.streams.to_string();
        let words = [
            "-r",
            "--timeout",
            "5s",
            "--retries",
            "3",
            "--streams",
            &streams,
        ];
        let run = storm
            .fastcp(case)
            .args(words)
            .args(["--compress", script.compress]);
        let done = run
            .arg(case.src("tree"))
            .arg(case.dst(""))
            .limit(VERDICT)
            .run();
        came = (done.code.unwrap_or(-1), storm.struck());
        let sessions = storm.sessions();
        assert!(sessions <= 4, "{sessions} sessions: {done}");
        storm.end();
        readable(&done);
        judge(case, script, &tree, &done);
    });
    came
}

fn judge(case: &Case, script: &Script, tree: &Dir, done: &Done) {
    let copied = case.dst.path("tree");
    if done.code == Some(0) {
        assert_same(&tree.0, &copied, Also::Nothing);
        return;
    }
    done.fails();
    assert!(!script.spares_control(), "it had no reason to fail: {done}");
    nothing_wrong_has_a_name(&tree.0, &copied, None);
    case.copying(&["-r"], "tree", "")
        .limit(VERDICT)
        .run()
        .succeeds();
    assert_same(&tree.0, &copied, Also::Nothing);
}

fn play_disk(script: &BadDisk) -> (i32, usize) {
    let mut came = (-1, 0);
    Case::run(script.way, |case| {
        let tree = sources(case, script.seed, script.big, 30);
        let copied = case.dst.path("tree");
        if script.replaces {
            case.dst.file("tree/big", noise(script.seed + 1, 700_000));
            case.dst.file("tree/d1/6", "something else");
        }
        let before = copied.exists().then(|| Tree::read(&copied));
        let flags = [
            &["-r", "--timeout", "20s", "--retries", "2"],
            &script.flags[..],
        ]
        .concat();
        let copy = || case.copying(&flags, "tree", "").limit(VERDICT);
        let inject = script.inject();
        let done = copy().inject(&inject).run();
        readable(&done);
        // A server whose client was killed runs on for a while.
        for server in case.servers() {
            assert!(server.ends_within(SERVER_LIMIT), "{}", server.describe());
        }
        let by_rule = inject.struck_by_rule();
        let struck = || {
            script
                .troubles
                .iter()
                .zip(&by_rule)
                .filter(|(_, struck)| **struck > 0)
        };
        came = (done.code.unwrap_or(-1), by_rule.iter().sum());
        // fastcp keeps files that it cannot remove or that may belong to another process.
        let sweep = || {
            if struck().any(|(it, _)| it.may_leave_files()) {
                case.sweep();
            }
        };
        let was_killed = struck().any(|(it, _)| it.what == Wrong::Kill);
        if done.code == Some(0) {
            let untold: Vec<_> = struck().filter(|(it, _)| it.must_be_told()).collect();
            // After a killed server the client logs in again and copies the entry again.
            assert!(untold.is_empty() || was_killed, "{untold:?}: {done}");
            sweep();
            assert_same(&tree.0, &copied, Also::Nothing);
            return;
        }
        assert!(struck().count() > 0, "it had no reason to fail: {done}");
        if !(was_killed && done.signal == Some(9)) {
            done.fails();
        }
        if !script.is_in_place() {
            nothing_wrong_has_a_name(&tree.0, &copied, before.as_ref());
        }
        copy().run().succeeds();
        sweep();
        assert_same(&tree.0, &copied, Also::Nothing);
    });
    came
}

/// Each entry at the destination is correct, unchanged from before, or under a temporary name.
fn nothing_wrong_has_a_name(want: &Path, got: &Path, before: Option<&Tree>) {
    if !got.exists() {
        return;
    }
    let mut there = Tree::read(got);
    there.0.retain(|path, node| {
        let name = path.file_name().unwrap_or_default();
        let old = before.and_then(|before| before.0.get(path));
        let is_old = old.is_some_and(|old| old.what == node.what);
        !name.as_encoded_bytes().starts_with(b".fastcp-") && !is_old
    });
    let mut wanted = Tree::read(want);
    wanted.0.retain(|path, _| there.0.contains_key(path));
    let faults = wanted.differences(&there, Also::Nothing);
    assert!(faults.is_empty(), "after a failure: {faults:?}");
}

fn sources(case: &Case, seed: u64, big: usize, small: u64) -> Dir {
    let tree = case.src.dir("tree");
    tree.file("big", noise(seed, big));
    tree.file("text", prose(seed, 1_500_000));
    let piece = noise(seed, 3000);
    tree.sparse("holes", 5 << 20, &[(70_000, &piece), (4 << 20, &piece)]);
    for number in 0..small {
        let len = (number as usize * 977 + seed as usize * 31) % 40_000;
        tree.file(format!("d{}/{number}", number % 5), noise(number, len));
    }
    tree.link("link", "big");
    tree
}

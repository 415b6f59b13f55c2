//! Copies while everything goes wrong, by seeds: each ends with the right bytes, or with an error
//! in time, nothing wrong under a final name, and the same command brings the rest.
//!
//! `FASTCP_CHAOS_SEED=n` plays one script, `FASTCP_CHAOS_SEEDS=n` so many of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::support::chaos::Script;
use crate::support::done::Done;
use crate::support::peer::readable;
use crate::support::storm::Storm;
use crate::support::*;

/// Scripts that every run of the tests plays.
const SEEDS: u64 = 200;

/// Copies at once. They wait more than they work, so many fit on few processors.
const AT_ONCE: usize = 16;

/// A verdict comes within this, whatever happens: silences of `--timeout 5s` and the waits between
/// retries, on a busy machine.
const VERDICT: Duration = Duration::from_secs(120);

#[test]
fn whatever_breaks_the_bytes_are_right_or_the_copy_says_so() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds: Vec<u64> = match number("FASTCP_CHAOS_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("FASTCP_CHAOS_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let since = Instant::now();
    let next = AtomicU64::new(0);
    let (failed, codes) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::new()));
    let struck = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(seeds.len()) {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, SeqCst) as usize) {
                    let script = Script::of(seed);
                    match catch_unwind(AssertUnwindSafe(|| play(&script))) {
                        Ok((code, faults)) => {
                            struck.fetch_add(faults, SeqCst);
                            let mut codes = codes.lock().expect("no panic while held");
                            *codes.entry(code).or_insert(0) += 1;
                        }
                        Err(_) => {
                            eprintln!("failed: {script}");
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
    let failed = failed.into_inner().expect("no panic while held");
    assert!(seeds.len() < 20 || struck >= seeds.len(), "it was too calm");
    assert!(
        failed.is_empty(),
        "FASTCP_CHAOS_SEED of those that failed: {failed:?}"
    );
}

/// Plays one script; gives the exit code of the copy and how many faults took place.
fn play(script: &Script) -> (i32, usize) {
    let way = match script.seed % 2 {
        0 => Way::LocalPush,
        _ => Way::LocalPull,
    };
    let mut came = (-1, 0);
    Case::run(way, |case| {
        let tree = sources(case, script);
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
    nothing_wrong_has_a_name(&tree.0, &copied);
    case.copying(&["-r"], "tree", "")
        .limit(VERDICT)
        .run()
        .succeeds();
    assert_same(&tree.0, &copied, Also::Nothing);
}

/// Each thing at the destination is there rightly, or under the name of an unfinished one.
fn nothing_wrong_has_a_name(want: &Path, got: &Path) {
    if !got.exists() {
        return;
    }
    let mut there = Tree::read(got);
    there.0.retain(|path, _| {
        let name = path.file_name().unwrap_or_default();
        !name.as_encoded_bytes().starts_with(b".fastcp-")
    });
    let mut wanted = Tree::read(want);
    wanted.0.retain(|path, _| there.0.contains_key(path));
    let faults = wanted.differences(&there, Also::Nothing);
    assert!(faults.is_empty(), "after a failure: {faults:?}");
}

fn sources(case: &Case, script: &Script) -> Dir {
    let tree = case.src.dir("tree");
    tree.file("big", noise(script.seed, script.big));
    tree.file("text", prose(script.seed, 1_500_000));
    let piece = noise(script.seed, 3000);
    tree.sparse("holes", 5 << 20, &[(70_000, &piece), (4 << 20, &piece)]);
    for number in 0..60 {
        let len = (number as usize * 977 + script.seed as usize * 31) % 40_000;
        tree.file(format!("d{}/{number}", number % 5), noise(number, len));
    }
    tree.link("link", "big");
    tree
}

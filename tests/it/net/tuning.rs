//! The tuner: which settings it finds during a copy, which settings it leaves alone, and what
//! fastcp reports about them.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::procs::until;
use crate::support::*;

ways! { push, pull =>
    what_does_not_shrink_goes_as_it_is_although_the_link_is_slow,
    what_shrinks_goes_by_lzma_where_the_link_is_slow,
    packs_go_as_one_where_the_link_is_slow,
    chunks_of_a_file_go_as_one_where_the_link_is_slow,
    what_was_forced_is_not_changed,
    the_verdict_names_the_limit_that_was_asked_for,
    the_verdict_names_a_processor_that_was_given_too_much,
    changes_are_told_with_their_reasons,
    what_a_pair_of_hosts_needed_is_begun_with_the_next_time,
    a_congestion_control_that_there_is_not_is_refused,
}

ways! { local_push, local_pull, local_between, here =>
    the_verdict_names_the_rate_that_the_file_has_had_since,
    a_rate_limit_that_was_lifted_is_not_blamed,
}

ways! { local_push => a_limit_that_several_hosts_share_is_blamed_for_each }

ways! { here =>
    a_copy_on_this_machine_has_a_verdict_too,
}

/// The output of `--json`.
#[track_caller]
fn told(done: &run::Done) -> Value {
    done.succeeds().end()
}

#[track_caller]
fn number(field: &Value) -> f64 {
    field.as_f64().expect("a number")
}

fn what_does_not_shrink_goes_as_it_is_although_the_link_is_slow(case: &Case) {
    case.src.file("a", noise(1, 4 * MIB));
    // On several streams a late chunk is sent again.
    let flags = ["-l", "32000", "--json", "--streams=1", "--route=direct"];
    let told = told(&case.copy(&flags, "a", "a"));
    // The number of pieces at the end of the file depends on the connections.
    assert!(number(&told["chunks"]["none"]) >= 4.0, "{told}");
    let methods = told["chunks"].as_object().expect("by method").len();
    assert_eq!(methods, 1, "{told}");
    let wire = number(&told["wire_bytes"]);
    assert!(wire < (4 * MIB) as f64 * 1.01, "{told}");
}

fn what_shrinks_goes_by_lzma_where_the_link_is_slow(case: &Case) {
    let hex = |byte: u8| [byte / 16, byte % 16].map(|it| b"0123456789abcdef"[usize::from(it)]);
    case.src
        .file("a", tree::spelled(&noise(1, MIB), hex, 2 * MIB));
    one_copy_of_few(case, &["-l", "1600", "--json"], ("a", "a"), |done| {
        told(done)["chunks"]["lzma"].as_f64() >= Some(1.0)
    });
}

/// Copies until `holds`, a few times: what the tuner does depends on how busy the processors are,
/// and other tests keep them busy.
fn one_copy_of_few(
    case: &Case,
    flags: &[&str],
    (source, dest): (&str, &str),
    holds: impl Fn(&run::Done) -> bool,
) {
    const TRIES: usize = 6;
    for number in 1..=TRIES {
        let done = case.copy(flags, source, dest);
        if holds(done.succeeds()) {
            return;
        }
        assert!(number < TRIES, "{done}");
        // The next copy would only compare.
        let there = case.dst.path(dest);
        let removed = match there.is_dir() {
            true => std::fs::remove_dir_all(there),
            false => std::fs::remove_file(there),
        };
        removed.expect("remove the copy");
    }
}

fn packs_go_as_one_where_the_link_is_slow(case: &Case) {
    let tree = case.src.dir("tree");
    // 16 MiB, an eighth of it when it is compressed: 17 packs by themselves.
    for nth in 0..4096 {
        tree.file(nth.to_string(), digits(nth, 4096));
    }
    let words = ["-r", "-l", "4000", "--compress", "zstd:3", "--json"];
    one_copy_of_few(case, &words, ("tree/", "tree"), |done| chunks(done) <= 15.0);
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}

fn chunks_of_a_file_go_as_one_where_the_link_is_slow(case: &Case) {
    // Some 80 chunks by themselves.
    case.src.file("a", digits(1, 64 * MIB));
    let words = ["-l", "16000", "--compress", "zstd:3", "--json"];
    one_copy_of_few(case, &words, ("a", "a"), |done| chunks(done) <= 70.0);
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

/// The chunks sent, by any method.
fn chunks(done: &run::Done) -> f64 {
    let told = told(done);
    let chunks = told["chunks"].as_object().expect("by method");
    chunks.values().map(number).sum()
}

fn what_was_forced_is_not_changed(case: &Case) {
    case.src.file("a", prose(1, 24 * MIB));
    let words = [
        "--compress=gzip:1",
        "--streams=3",
        "--route=direct",
        "-l16000",
        "-v",
        "--json",
    ];
    let done = case.copy(&words, "a", "a");
    let told = told(&done);
    assert_eq!(told["streams"], 3, "{told}");
    let chunks = told["chunks"].as_object().expect("an object");
    assert_eq!(chunks.keys().collect::<Vec<_>>(), ["gzip"], "{told}");
    done.never_says("zstd").never_says("streams:");
}

/// Starts a copy of `a` with its rate limit in a file. Returns once the rate has held for a while.
fn copy_by_rate_file(case: &Case, rate: &str) -> run::Running {
    let file = case.scratch.file("rate", rate);
    let limit = format!("@{}", file.display());
    let run = case.copying(&["--bwlimit", &limit, "--json"], "a", "a");
    let run = run.start();
    until("the copy is under way", || {
        (case.dst.partial_bytes() > MIB as u64).then_some(())
    });
    run
}

fn the_verdict_names_the_rate_that_the_file_has_had_since(case: &Case) {
    // Most of the copy runs at the second rate, so the verdict must name that rate.
    for (first, second, bytes) in [("1M", "4M", 18 * MIB), ("6M", "1M", 14 * MIB)] {
        case.src.file("a", noise(1, bytes));
        let rate = format!("{}.00 MB/s", second.trim_end_matches('M'));
        // A busy machine may hold a copy up for longer than the limit does.
        let is_named = (0..3).any(|_| {
            let run = copy_by_rate_file(case, first);
            case.scratch.file("rate", second);
            let told = told(&run.wait());
            std::fs::remove_file(case.dst.path("a")).expect("remove the copy");
            let verdict = &told["verdict"];
            let sentence = verdict["sentence"].as_str().expect("a sentence");
            eprintln!("{first}, {second}: {told}");
            verdict["limit"] == "rate_limit" && sentence.contains(&rate)
        });
        assert!(is_named, "{first}, {second}: three times");
    }
}

fn a_rate_limit_that_was_lifted_is_not_blamed(case: &Case) {
    let fifo = case.scratch.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).expect("make a FIFO");
    let file = case.scratch.file("rate", "2M");
    let limit = format!("@{}", file.display());
    let flags = ["--bwlimit", &limit, "--json", "-v"];
    let run = case.fastcp().args(flags).arg(case.from(&fifo));
    let run = run.arg(case.dst("a")).start();
    let began = Instant::now();
    let mut source = std::fs::File::create(&fifo).expect("open the FIFO");
    let mut sent = noise(1, 3 * MIB);
    source.write_all(&sent).expect("write to the FIFO");
    until("the copy is under way", || {
        (case.dst.partial_bytes() > MIB as u64).then_some(())
    });
    case.scratch.file("rate", "0");
    until("the limit is lifted", || {
        run.stderr.text().contains("rate limit: none").then_some(())
    });
    // Now the source is the bottleneck. It is faster than the former rate limit, and lasts longer
    // than that limit did.
    let limited = began.elapsed();
    let lifted = Instant::now();
    while lifted.elapsed() < 2 * limited {
        let part = noise(sent.len() as u64, MIB / 4);
        source.write_all(&part).expect("write to the FIFO");
        sent.extend(part);
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(source);
    case.src.file("sent", sent);
    let told = told(&run.wait());
    assert_ne!(told["verdict"]["limit"], "rate_limit", "{told}");
    let sentence = told["verdict"]["sentence"].as_str().expect("a sentence");
    assert!(!sentence.contains("--bwlimit"), "{sentence}");
}

fn a_limit_that_several_hosts_share_is_blamed_for_each(case: &Case) {
    case.src.file("a", noise(1, 3 * MIB));
    // A copy that took longer than the lower rate explains was held up by the machine as well, and
    // its verdict may say so.
    let longest = 2.0 * 3.0 * MIB as f64 / 500_000.0;
    for _ in 0..3 {
        let told = shared_limit(case);
        let limits = told.iter().map(|it| &it["verdict"]["limit"]);
        if limits.clone().all(|limit| limit == "rate_limit") {
            for it in &told {
                // Which rate the sentence names varies with the machine.
                let sentence = it["verdict"]["sentence"].as_str().expect("a sentence");
                assert!(sentence.contains("--bwlimit"), "{sentence}");
            }
            return;
        }
        let is_slow = |it: &Value| number(&it["data_seconds"]) > longest;
        assert!(told.iter().any(is_slow), "{told:?}");
        for name in ["a", "b"] {
            std::fs::remove_file(case.dst.path(name)).expect("remove a copy");
        }
    }
    panic!("the machine was too slow each time");
}

/// Copies to two hosts at a rate that is raised in the middle. Returns what each copy says.
fn shared_limit(case: &Case) -> Vec<Value> {
    let file = case.scratch.file("rate", "500k");
    let limit = format!("@{}", file.display());
    let run = case.fastcp().args(["--bwlimit", &limit, "--json", "-v"]);
    let run = run.arg(case.src("a")).arg(case.dst("a"));
    let other = format!("other:{}", case.dst.path("b").display());
    let run = run.args(["--also", &other]).start();
    // The first chunk may be complete only at the end: all share the rate.
    until("the copies are under way", || {
        (!case.dst.partials().is_empty()).then_some(())
    });
    case.scratch.file("rate", "1M");
    let done = run.wait();
    done.succeeds().says("rate limit: 1.00 MB/s");
    let ends = done.ends();
    assert_eq!(ends.len(), 2, "{done}");
    ends
}

fn the_verdict_names_the_limit_that_was_asked_for(case: &Case) {
    case.src.file("a", noise(1, 12 * MIB));
    let words = ["-l", "24000", "--json", "--summary"];
    one_copy_of_few(case, &words, ("a", "a"), |done| {
        let is_told = told(done)["verdict"]["limit"] == "rate_limit";
        if is_told {
            done.says("limited by: --bwlimit (3.07 MB/s; ");
        }
        is_told
    });
}

fn the_verdict_names_a_processor_that_was_given_too_much(case: &Case) {
    case.src.file("a", prose(1, 10 * MIB));
    let words = ["--compress", "zstd:19", "--threads", "1", "--json"];
    one_copy_of_few(case, &words, ("a", "a"), |done| {
        let told = told(done);
        let shares = &told["verdict"]["shares"];
        told["verdict"]["limit"] == "compression"
            && number(&shares["compression"]) > number(&shares["network"])
    });
}

/// Recurring words, but so far apart that only a thorough search finds them. zstd 1 leaves less
/// than half, zstd 3 and 9 about a quarter.
fn words(len: usize) -> Vec<u8> {
    let letters = |byte: u8| [b'a' + byte % 16, b'a' + byte / 16];
    let pool = tree::spelled(&noise(7, 16_000 * 12), letters, 16_000 * 24);
    let picks = noise(8, len / 6 + 4);
    let mut bytes = Vec::with_capacity(len + 24);
    for pick in picks.chunks_exact(4) {
        let word = usize::from(pick[0]) << 8 | usize::from(pick[1]);
        bytes.extend_from_slice(&pool[word % 16_000 * 24..][..24]);
    }
    bytes.truncate(len);
    bytes
}

fn changes_are_told_with_their_reasons(case: &Case) {
    case.src.file("a", words(20 * MIB));
    // First of streams, zstd or LZMA, as the processors have time.
    one_copy_of_few(case, &["-l", "8000", "-v"], ("a", "a"), |done| {
        done.stderr.lines().any(|line| {
            let Some((change, reason)) = line
                .strip_prefix("fastcp: ")
                .and_then(|line| line.split_once(": "))
            else {
                return false;
            };
            let is_change = change.ends_with(" streams")
                || change.starts_with("zstd")
                || change.starts_with("lzma");
            is_change
                && (reason.starts_with("the network is the limit")
                    || reason.starts_with("the link is slow and saturated"))
        })
    });
}

fn what_a_pair_of_hosts_needed_is_begun_with_the_next_time(case: &Case) {
    case.src.file("long", noise(1, 9 * MIB));
    case.src.file("short", noise(2, 3 * MIB));
    case.copy(&["-l", "20000"], "long", "a").succeeds();
    let routes = case.home.path(".cache/fastcp/routes.json");
    let text = std::fs::read_to_string(&routes).expect("what was learnt");
    let mut edited: Value = serde_json::from_str(&text).expect("JSON");
    edited["routes"][0][1]["method"] = "Lz4".into();
    case.src.file("words", words(3 * MIB));
    // The first round trip on a busy machine may look like that of another path.
    let begins_with_it = (0..5).any(|_| {
        std::fs::write(&routes, edited.to_string()).expect("write");
        let again = told(&case.copy(&["-l", "8000", "--json"], "words", "b"));
        again["chunks"]["lz4"].as_f64() >= Some(1.0)
    });
    assert!(begins_with_it, "with lz4");
    for garbage in ["", "\0\u{1b}[", &text[..text.len() - 3]] {
        std::fs::write(&routes, garbage).expect("write");
        case.copy(&[], "short", "c").succeeds().never_says("routes");
    }
    std::fs::remove_file(&routes).expect("remove");
    case.home.dir(".cache/fastcp/routes.json");
    case.copy(&[], "short", "c").succeeds().is_silent();
}

fn a_congestion_control_that_there_is_not_is_refused(case: &Case) {
    case.src.file("a", "content");
    let done = case.copy(&["--congestion", "nonesuch"], "a", "a");
    done.exits(2).says("--congestion nonesuch");
    case.copy(&["--congestion", "reno"], "a", "a").succeeds();
}

fn a_copy_on_this_machine_has_a_verdict_too(case: &Case) {
    case.src.file("a", noise(1, 4 * MIB));
    // The limit makes the copy last longer than a second: a shorter one has no verdict.
    let told = told(&case.copy(&["-l", "16000", "--json"], "a", "a"));
    assert_eq!(told["verdict"]["shares"]["network"], 0.0, "{told}");
}

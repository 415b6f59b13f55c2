//! `--probe`: its measurements, and that it leaves nothing behind.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::procs::{MARK, until};
use crate::support::run::fastcp_binary;
use crate::support::*;

ways! { push =>
    a_host_and_a_place_there_are_measured,
    a_slow_link_takes_no_longer,
    what_the_user_forces_is_measured_and_expected,
    by_further_logins_alone_it_works_as_well,
    a_key_that_only_adds_may_be_probed_and_one_that_only_reads_writes_nothing,
    a_probe_that_is_interrupted_leaves_nothing,
    what_cannot_be_probed_fails_as_a_copy_would,
}

ways! { here => without_a_host_this_machine_is_measured }

/// Much longer than a probe should take, with a margin for a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// One worker, no strong codec and a link of 10 MB/s, for tests that are not about codecs and speeds:
/// those take all processors.
const MODEST: [&str; 6] = ["--threads", "1", "--memory", "16Mi", "-l", "80000"];

/// The name in the first 14 columns of each row, and the rest of the row.
fn rows(done: &done::Done) -> Vec<(String, String)> {
    let text = done.stdout_text();
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let halves = text.lines().filter_map(|line| line.split_at_checked(14));
    halves
        .map(|(name, what)| (name.trim().to_owned(), what.to_owned()))
        .collect()
}

#[track_caller]
fn json(done: &done::Done) -> Value {
    done.succeeds();
    let text = done.stdout_text();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn nothing_stays(dir: &Dir) {
    assert!(dir.names().is_empty(), "{:?}", dir.names());
}

fn a_host_and_a_place_there_are_measured(case: &Case) {
    let sample = case.src.file("sample", prose(1, 3 * MIB));
    // On a busy machine another route may be up first, so there are a few tries.
    let found = (0..3).find_map(|_| {
        let logins = case.host().logins();
        let run = case.fastcp().args(["--threads", "1"]);
        let run = run.args(["--probe", "--sample"]).arg(&sample);
        let done = run.arg(case.dst("")).limit(LIMIT).run();
        done.succeeds();
        assert!(done.stderr.is_empty(), "{done}");
        let rows = rows(&done);
        let is_direct = rows.last().is_some_and(|(_, what)| what == "direct");
        (is_direct && case.host().logins() == logins + 1).then_some((done, rows))
    });
    let (done, rows) = found.expect("directly, with one login");
    for name in [
        "source",
        "codec",
        "none",
        "lz4",
        "zstd:1",
        "zstd:9",
        "destination",
        "round trip",
        "1",
        "2",
        "4",
        "8",
        "16",
        "expected",
        "at first",
        "route",
    ] {
        let row = rows.iter().find(|(found, _)| found == name);
        let what = &row.unwrap_or_else(|| panic!("no {name}: {done}")).1;
        assert!(!what.is_empty(), "{done}");
    }
    let text = done.stdout_text();
    assert!(text.contains(
        "= min(link x ratio, threads / cost here, processors / both costs, read, write)"
    ));
    nothing_stays(&case.dst);
    // fastcp stores settings for the next copy only after a copy.
    assert!(!case.home.has(".cache/fastcp/routes.json"));
}

fn a_slow_link_takes_no_longer(case: &Case) {
    let done = case
        .fastcp()
        .args(["--probe", "--json", "-l", "8000", "far:"])
        .args(["--threads", "1"])
        .limit(LIMIT)
        .run();
    let found = json(&done);
    let steps = found["streams"].as_array().expect("steps");
    assert_eq!(steps.len(), 5, "{found}");
    for step in steps {
        let rate = step["bytes_per_s"].as_f64().expect("a number");
        assert!((10_000.0..2_500_000.0).contains(&rate), "{found}");
    }
    let expected = &found["expected"];
    assert_ne!(expected["codec"], "none", "the link is the limit: {found}");
    assert_eq!(found["begins_with"]["codec"], "zstd:1", "{found}");
    assert!(found["write_bytes_per_s"].is_null(), "no place was named");
}

fn what_the_user_forces_is_measured_and_expected(case: &Case) {
    let words = [
        "--probe",
        "--json",
        "--streams",
        "3",
        "--compress",
        "gzip:1",
    ];
    let run = case.fastcp().args(words).args(["--no-encrypt", "far:"]);
    let run = run.args(MODEST);
    let found = json(&run.limit(LIMIT).run());
    let steps = found["streams"].as_array().expect("steps");
    let streams: Vec<_> = steps.iter().map(|step| step["streams"].as_u64()).collect();
    assert_eq!(streams, [Some(1), Some(2), Some(3)], "{found}");
    assert_eq!(found["expected"]["codec"], "gzip:1", "{found}");
    assert_eq!(found["begins_with"]["codec"], "gzip:1", "{found}");
    assert_eq!(found["begins_with"]["streams"], 3, "{found}");
}

fn by_further_logins_alone_it_works_as_well(case: &Case) {
    let run = case
        .fastcp()
        .args(["--probe", "--route", "ssh", "--json", "far:"])
        .args(MODEST);
    let found = json(&run.limit(LIMIT).run());
    assert_eq!(found["route"], "ssh", "{found}");
    assert!(
        found["expected"]["bytes_per_s"].as_f64() > Some(0.0),
        "{found}"
    );
    assert!(found["round_trip_s"].as_f64() > Some(0.0), "{found}");
}

fn a_key_that_only_adds_may_be_probed_and_one_that_only_reads_writes_nothing(case: &Case) {
    let (home, dir) = (case.home.0.display(), case.dst.0.display());
    let fastcp = fastcp_binary().display();
    let force = |arguments: &str| {
        let mark = case.mark();
        let before = format!("env HOME='{home}' {MARK}='{mark}' '{fastcp}' --server");
        case.host().force(&format!("{before} {arguments}"));
    };
    let probe = |operand: &str| {
        let run = case.fastcp().args(["--probe", "--json", "--streams", "1"]);
        run.args(MODEST).arg(operand).limit(LIMIT).run()
    };
    force(&format!("--confine '{dir}' --write-only --no-overwrite"));
    let found = json(&probe("far:."));
    assert!(found["write_bytes_per_s"].as_f64() > Some(0.0), "{found}");
    probe("far:/tmp").fails().says("this key reaches only");
    force(&format!("--confine '{dir}' --read-only"));
    probe("far:.").exits(2).says("may only read (--read-only)");
    assert!(json(&probe("far:"))["write_bytes_per_s"].is_null());
    nothing_stays(&case.dst);
}

fn a_probe_that_is_interrupted_leaves_nothing(case: &Case) {
    let run = case.fastcp().args(["--probe", "--json"]).arg(case.dst(""));
    let run = run.args(MODEST).limit(LIMIT).start();
    until("a server runs", || {
        (!case.servers().is_empty()).then_some(())
    });
    // The signal may come before, during or after the writes at the destination. The same must
    // hold.
    std::thread::sleep(Duration::from_millis(300));
    run.signal(Signal::INT);
    let done = run.wait();
    done.exits(130)
        .never_says("panicked")
        .never_says("the same command");
    case.host().wait_for_logins();
    nothing_stays(&case.dst);
}

fn what_cannot_be_probed_fails_as_a_copy_would(case: &Case) {
    let probe = |words: &[&str]| {
        let run = case.fastcp().arg("--probe").args(MODEST);
        run.args(words).limit(LIMIT).run()
    };
    let nowhere = case.dst("no/such/place");
    let nowhere = nowhere.to_str().expect("UTF-8");
    probe(&[nowhere]).exits(8).says("does not exist");
    probe(&["-o", "Port=1", "far:"]).exits(3);
    probe(&["--sample", "/nonexistent", "far:"]).exits(9);
    probe(&["far:", "far:"]).exits(2).says("one operand");
    probe(&["-"]).exits(2).says("--probe takes");
    probe(&["--remote-path", "/nonexistent", "far:"]).exits(4);
}

fn without_a_host_this_machine_is_measured(case: &Case) {
    let place = case.dst.0.display().to_string();
    let run = case.fastcp().args(["--probe", &place]).limit(LIMIT);
    let done = run.args(["--threads", "1", "-l", "80000"]).run();
    done.succeeds();
    assert!(done.stderr.is_empty(), "{done}");
    let rows = rows(&done);
    let names: Vec<_> = rows.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"destination") && !names.contains(&"source"));
    assert!(names.contains(&"expected"), "{done}");
    let bare = case.fastcp().args(["--probe", "--json"]).args(MODEST);
    let bare = bare.limit(LIMIT).run();
    assert!(json(&bare)["write_bytes_per_s"].is_null());
    nothing_stays(&case.dst);
}

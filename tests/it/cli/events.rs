//! The events of `--json`, compared with their page, and the log of `--log-file`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fastcp::guide;
use rustix::process::Signal;
use serde_json::Value;

use super::report::{assert_shows, page};
use crate::support::procs::until;
use crate::support::slow;
use crate::support::*;

ways! { here, local_push, local_pull, local_between =>
    every_event_of_a_copy_is_as_its_page_says,
    each_file_has_its_digest_and_result,
}

ways! { local_push =>
    every_failure_is_an_event_and_a_line_of_the_log,
    several_destinations_have_their_own_events_and_end,
    a_lost_connection_is_an_event,
    a_signal_still_gives_the_end,
    a_reader_that_stops_makes_the_copy_wait_and_loses_nothing,
}

ways! { here => the_log_is_opened_first_and_never_fails_a_copy }

/// A field's type.
struct Field {
    kind: String,
    may_be_null: bool,
    /// Left out in some lines.
    is_optional: bool,
}

/// The fields of each event, as the page lists them; those of every event as `every`.
fn schema() -> BTreeMap<String, BTreeMap<String, Field>> {
    let page = guide::page("events").expect("the page");
    let mut events = BTreeMap::new();
    for block in page.split("```fields ").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        let (event, lines) = block.split_once('\n').expect("a name and fields");
        let fields: &mut BTreeMap<_, _> = events.entry(event.to_owned()).or_default();
        for line in lines.lines().filter(|line| !line.starts_with(' ')) {
            let (name, rest) = line.split_once(' ').expect("a name and a type");
            let (kind, meaning) = rest
                .trim_start()
                .split_once(' ')
                .unwrap_or((rest.trim(), ""));
            let field = Field {
                kind: kind.trim_end_matches('?').to_owned(),
                may_be_null: kind.ends_with('?'),
                is_optional: meaning.contains("only "),
            };
            fields.insert(name.to_owned(), field);
        }
    }
    events
}

fn has_type(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "list" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("an unknown type {kind}"),
    }
}

/// Each event has exactly the fields of the page, with their types.
#[track_caller]
fn assert_as_documented(done: &done::Done) -> Vec<Value> {
    let schema = schema();
    let events = done.events();
    for event in &events {
        let name = event["event"].as_str().expect("a name");
        let of_event = schema
            .get(name)
            .unwrap_or_else(|| panic!("{name} is on no page"));
        let all = || schema["every"].iter().chain(of_event);
        assert_eq!(event["schema"], 1);
        for (field, value) in event.as_object().expect("an object") {
            let found = all().find(|(name, _)| *name == field);
            let (_, found) = found.unwrap_or_else(|| panic!("{field} is not on the page: {event}"));
            let is_fit = found.may_be_null && value.is_null() || has_type(value, &found.kind);
            assert!(is_fit, "{field} is no {}: {event}", found.kind);
        }
        for (field, found) in all() {
            let is_there = event.get(field).is_some();
            assert!(is_there || found.is_optional, "no {field}: {event}");
        }
    }
    assert_eq!(events[0]["event"], "start");
    assert_eq!(events.last().expect("an event")["event"], "end");
    events
}

fn of<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events
        .iter()
        .filter(|event| event["event"] == name)
        .collect()
}

fn every_event_of_a_copy_is_as_its_page_says(case: &Case) {
    let tree = case.src.dir("tree");
    tree::one_of_everything(&tree);
    case.dst.file("tree/extra", "goes");
    let run = case.copying(&["-a", "--delete", "--json"], "tree/", "tree");
    let events = assert_as_documented(run.run().succeeds());
    let hosts = if case.way == Way::Here { 0 } else { 1 };
    let hosts = hosts + usize::from(case.way.is_between());
    let logins = of(&events, "login");
    assert_eq!(logins.len(), hosts);
    let end = events.last().expect("an event");
    assert_eq!(end["logins"].as_array().expect("a list").len(), hosts);
    for login in logins {
        assert_eq!(login["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(login["name"], end["host"], "both are here");
        assert_eq!(login["user"], end["user"]);
    }
    assert_eq!(of(&events, "route").len(), 1);
    assert_eq!(of(&events, "deleted")[0]["path"], "extra");
    let files = end["files"].as_u64().expect("a number");
    let told = of(&events, "file").len() as u64;
    let links = of(&events, "file")
        .iter()
        .filter(|file| file["result"] == "linked")
        .count();
    assert_eq!(told - links as u64, files);

    for flags in [
        &["-an", "--delete", "--json"][..],
        &["--check", "--json"],
        &["-rI", "--itemize-changes", "--json"],
    ] {
        case.dst.file("tree/extra", "stays");
        let done = case.copy(flags, "tree/", "tree");
        let events = assert_as_documented(&done);
        assert!(of(&events, "deleted").is_empty());
        let is_check = flags[0] == "--check";
        let lines = of(&events, if is_check { "difference" } else { "change" });
        assert!(!lines.is_empty(), "{done}");
    }
}

/// Path, size, whether there is a digest, and result.
fn files(done: &done::Done) -> Vec<(String, u64, bool, String)> {
    let events = done.events();
    let file = |file: &&Value| {
        let text = |name: &str| file[name].as_str().map(str::to_owned);
        let path = text("path").expect("a path");
        let size = file["size"].as_u64().expect("a size");
        let result = text("result").expect("a result");
        (path, size, text("digest").is_some(), result)
    };
    let mut files: Vec<_> = of(&events, "file").iter().map(file).collect();
    files.sort();
    files
}

fn each_file_has_its_digest_and_result(case: &Case) {
    let tree = case.src.dir("tree");
    let big = noise(1, 3 * MIB);
    let odd = OsStr::from_bytes(b"d/\x1b[31m\n\xff\\");
    tree.file("big", &big);
    tree.file("empty", "");
    tree.file(odd, "small");
    tree.hard_link("z further", tree.path("big"));
    let file = |path: &str, size: usize, has_digest, result: &str| {
        (path.to_owned(), size as u64, has_digest, result.to_owned())
    };
    let odd = r"tree/d/\x1b[31m\n\xff\\";
    let done = case.copy(&["-a", "--json"], "tree", "");
    let found = files(done.succeeds());
    // The order of the directory decides which of the two names is sent.
    let linked = if found[0].3 == "linked" { 0 } else { 3 };
    let sizes = [
        ("tree/big", big.len()),
        (odd, 5),
        ("tree/empty", 0),
        ("tree/z further", big.len()),
    ];
    let expected = |(nth, (path, size))| match nth == linked {
        true => file(path, size, false, "linked"),
        false => file(path, size, true, "copied"),
    };
    let expected: Vec<_> = sizes.into_iter().enumerate().map(expected).collect();
    assert_eq!(found, expected);
    let events = done.events();
    let digest = |path: &str| {
        let files = of(&events, "file");
        let file = files.into_iter().find(|file| file["path"] == path);
        file.expect("it was copied")["digest"].clone()
    };
    let of_content = |content: &[u8]| blake3::hash(content).to_hex().to_string();
    assert_eq!(digest(sizes[3 - linked].0), of_content(&big));
    assert_eq!(digest(odd), of_content(b"small"));
    assert_eq!(digest("tree/empty"), of_content(b""));

    case.dst.dir("new");
    let done = case.copy(&["--json"], "tree/big", "other");
    assert_eq!(
        files(done.succeeds()),
        [file("other", big.len(), true, "copied")]
    );
    case.copy(&["-t"], "tree/big", "other").succeeds();
    let done = case.copy(&["-t", "--json"], "tree/big", "other");
    let unchanged = [file("other", big.len(), false, "unchanged")];
    assert_eq!(files(done.succeeds()), unchanged);
    let done = case.copy(&["--no-clobber", "--json"], "tree/big", "other");
    let compared = [file("other", big.len(), true, "unchanged")];
    assert_eq!(files(done.succeeds()), compared);
    let old = case.dst.path("tree");
    let flags = ["-t", "--link-dest", old.to_str().expect("text"), "--json"];
    let done = case.copy(&flags, "tree/big", "new/");
    let reused = [file("big", big.len(), false, "reused")];
    assert_eq!(files(done.succeeds()), reused);
}

fn every_failure_is_an_event_and_a_line_of_the_log(case: &Case) {
    const ALL: usize = 30;
    let tree = case.src.dir("tree");
    for number in 0..ALL {
        tree.link(format!("{number}"), "missing");
    }
    tree.file("file", "x");
    let log = case.scratch.path("log");
    let log = log.to_str().expect("text");
    let flags = ["-rLq", "--json", "--log-file", log];
    let done = case.copy(&flags, "tree", "copy");
    let events = assert_as_documented(done.exits(9));
    assert_eq!(done.stderr.lines().count(), 11, "{done}");
    let errors = of(&events, "error");
    assert_eq!(errors.len(), ALL);
    for error in errors {
        assert_eq!(
            (&error["kind"], &error["exit_code"]),
            (&"read".into(), &9.into())
        );
        assert_eq!(
            (&error["errno"], &error["fatal"]),
            (&2.into(), &false.into())
        );
        assert!(error["host"].is_null());
        let path = error["path"].as_str().expect("a path");
        assert!(path.starts_with(tree.0.to_str().expect("text")), "{path}");
    }
    let text = fs::read_to_string(log).expect("the log");
    assert_eq!(text.matches("] error: ").count(), ALL, "{text}");
    assert_eq!(
        text.matches("] file: copied file, 1 bytes, blake3 ")
            .count(),
        1,
        "{text}"
    );
    let kinds: Vec<_> = text.lines().map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(
        (kinds[0], kinds[kinds.len() - 1]),
        (Some("start:"), Some("end:"))
    );
    assert!(text.ends_with(" end: exit code 9\n"), "{text}");
    // A second run appends, here without --json.
    case.copy(&["--log-file", log], "none", "copy").exits(9);
    let both = fs::read_to_string(log).expect("the log");
    let second = both.strip_prefix(&text).expect("it is appended to");
    assert!(
        second.contains("none: no such file or directory (exit code 9)"),
        "{second}"
    );
    let done = case.copy(&["--json"], "none", "copy");
    let events = assert_as_documented(done.exits(9));
    assert_eq!(of(&events, "error").len(), 1);
}

fn several_destinations_have_their_own_events_and_end(case: &Case) {
    case.src.file("tree/a", "a");
    let other = format!("other:{}", case.dst.path("b").display());
    let report = case.scratch.path("report.html");
    let name = report.to_str().expect("text");
    let flags = ["-r", "--json", "--report", name, "--also", &other];
    let run = case.copying(&flags, "tree/", "a");
    let events = assert_as_documented(run.run().succeeds());
    assert_eq!(
        of(&events, "start")[0]["dests"]
            .as_array()
            .expect("a list")
            .len(),
        2
    );
    let dest = case.dst("a");
    for name in ["login", "file", "end"] {
        let mut dests: Vec<_> = of(&events, name)
            .iter()
            .map(|it| it["dest"].clone())
            .collect();
        dests.sort_by_key(|dest| *dest == other.as_str());
        assert_eq!(dests, [dest.to_str().expect("text"), &other], "{name}");
    }
    let page = page(&report);
    let headings = page.split("<h2>").skip(1);
    let headings: Vec<_> = headings.map(|it| it.split('<').next()).collect();
    let dest = dest.to_str().expect("text");
    let expected = ["Destinations", dest, &other, "About this page"];
    assert_eq!(headings, expected.map(Some), "as typed");
}

fn a_lost_connection_is_an_event(case: &Case) {
    let report = case.scratch.path("report.html");
    let name = report.to_str().expect("text");
    let running = slow::started(case, 20 * MIB, &["--json", "--report", name]);
    for server in case.servers() {
        server.kill();
    }
    let done = running.wait();
    let events = assert_as_documented(done.succeeds());
    let retries = of(&events, "retry");
    assert_eq!(retries[0]["host"], "far", "{done}");
    assert_eq!(of(&events, "login").len(), 2);
    let end = events.last().expect("an event");
    assert_eq!(end["logins"].as_array().expect("a list").len(), 1);
    assert_eq!(
        of(&events, "file").last().expect("a file")["result"],
        "resumed"
    );
    let page = page(&report);
    assert_shows(&page, "1 login was repeated, ");
    assert_shows(&page, "<td>resumed</td>");
}

fn a_signal_still_gives_the_end(case: &Case) {
    let running = slow::started(case, 40 * MIB, &["--json"]);
    until("it has told the progress", || {
        let text = running.stdout.text();
        text.contains("\"event\":\"progress\"").then_some(())
    });
    running.signal(Signal::INT);
    let done = running.wait();
    let events = assert_as_documented(done.exits(130));
    let error = of(&events, "error")[0];
    assert_eq!(
        (&error["kind"], &error["fatal"]),
        (&"signal".into(), &true.into())
    );
    assert_eq!(events.last().expect("an event")["exit_code"], 130);
    case.dst.sweep();
}

fn a_reader_that_stops_makes_the_copy_wait_and_loses_nothing(case: &Case) {
    const ALL: usize = 20_000;
    let tree = case.src.dir("tree");
    for number in 0..ALL {
        let name = format!(
            "{:03}/a rather long name of a small file {number}",
            number / 200
        );
        tree.file(name, "");
    }
    let run = case.copying(&["-r", "--json"], "tree/", "copy");
    let first = case.scratch.path("first");
    // The reader takes nothing for half a second.
    let line = format!(
        "\"$@\" | {{ head -c 100 >'{0}'; sleep 0.5; cat >>'{0}'; }}; exit ${{PIPESTATUS[0]}}",
        first.display()
    );
    let done = run.under(["bash", "-c", &line, "bash"]).run();
    done.succeeds();
    let text = fs::read_to_string(&first).expect("the events");
    assert_eq!(text.matches("\"event\":\"file\"").count(), ALL);
    assert!(
        text.trim_end()
            .lines()
            .last()
            .is_some_and(|last| last.contains("\"event\":\"end\""))
    );
}

fn the_log_is_opened_first_and_never_fails_a_copy(case: &Case) {
    case.src.file("a", "x");
    let missing = case.scratch.path("none/log");
    let missing = missing.to_str().expect("text");
    let done = case.copy(&["--log-file", missing], "a", "a");
    done.exits(8)
        .says("cannot open the log (--log-file): no such file");
    assert!(!case.dst.has("a"), "nothing was to be copied");
    case.copy(&["--log-file", "-"], "a", "a")
        .exits(2)
        .says("./-");
    let done = case.fastcp().args(["--probe", "--log-file", "x"]).run();
    done.exits(2).says("--log-file records a copy");
    if !Path::new("/dev/full").exists() {
        return skip("/dev/full");
    }
    let done = case.copy(&["-q", "--log-file", "/dev/full"], "a", "a");
    let told = "/dev/full: the log is incomplete (--log-file): no space left on device";
    done.succeeds().says(told);
    assert_eq!(case.dst.read("a"), b"x");
    let within = case.src.dir("tree");
    within.file("file", "x");
    let log = case.dst.file("tree/log", "");
    let log = log.to_str().expect("text");
    let done = case.copy(&["-a", "--delete", "--log-file", log], "tree/", "tree");
    done.succeeds()
        .says("the log is incomplete (--log-file): the file was deleted");
    // It may be configured.
    let config = case
        .home
        .file(".config/fastcp/config", "[default]\nlog-file = \"log\"\n");
    fs::set_permissions(config, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    case.copy(&[], "a", "a").succeeds().is_silent();
    let log = fs::read_to_string(case.home.path("log")).expect("the log");
    assert!(log.ends_with("end: exit code 0\n"), "{log}");
    fs::remove_file(case.home.path("log")).expect("remove it");
}

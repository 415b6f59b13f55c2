//! `--dry-run` changes nothing and lists what the copy then does; `--itemize-changes` names each
//! change as rsync does.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode};

use crate::support::tree::one_of_everything;
use crate::support::*;

ways! { local_pull =>
    files_that_are_copied_from_an_earlier_copy_are_listed,
}

ways! { pull, between =>
    a_dry_run_changes_nothing_and_lists_what_the_copy_then_does,
}

ways! { local_pull, here =>
    each_kind_of_change_has_the_code_of_rsync,
    a_dry_run_deletes_nothing_and_obeys_max_delete,
    existing_files_that_stay_are_not_listed,
    missing_directories_of_the_destination_are_not_made,
    events_are_lines_of_json,
}

ways! { local_push, here =>
    each_of_several_destinations_has_its_lines,
    what_a_copy_would_refuse_fails_in_a_dry_run,
    an_interrupted_copy_and_its_journal_stay,
    names_are_made_harmless,
}

ways! { local_push, local_between =>
    a_reader_that_pauses_loses_no_line_and_no_connection,
}

/// Everything that a system call shows about a tree, but for access times.
fn listing(dir: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).expect("it is there");
        let numbers = [
            meta.ino() as i64,
            meta.mode().into(),
            meta.size() as i64,
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
            meta.nlink() as i64,
        ];
        all.insert(format!("{path:?} {numbers:?}"));
        if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("list it");
            open.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
    }
    all
}

/// The lines on stdout, without their order.
fn lines(done: &run::Done) -> BTreeSet<String> {
    let text = done.stdout_text();
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let set: BTreeSet<_> = lines.iter().cloned().collect();
    assert_eq!(set.len(), lines.len(), "a line twice: {text}");
    set
}

/// Runs a dry run, which must change nothing, then the copy; both must list the same changes.
#[track_caller]
fn both(case: &Case, flags: &[&str], src: &str, dst: &str) -> BTreeSet<String> {
    let before = [listing(&case.dst.0), listing(&case.src.0)];
    let dry = case.copy(&[&["-n"], flags].concat(), src, dst);
    let planned = lines(dry.succeeds());
    let after = [listing(&case.dst.0), listing(&case.src.0)];
    assert_eq!(before, after, "the dry run changed something");
    let real = case.copy(&[&["--itemize-changes"], flags].concat(), src, dst);
    assert_eq!(planned, lines(real.succeeds()), "{flags:?}");
    planned
}

fn a_dry_run_changes_nothing_and_lists_what_the_copy_then_does(case: &Case) {
    let tree = case.src.dir("tree");
    one_of_everything(&tree);
    // Names that some file systems confuse, which a copy tests with a file.
    tree.file("CASE", "one");
    tree.file("case", "two");
    // A destination that does not exist.
    let planned = both(case, &["-a"], "tree", "new");
    let code = if case.way.dest_is_far() { "<" } else { ">" };
    for line in [
        "cd+++++++++ ./".to_owned(),
        format!("{code}f+++++++++ small"),
    ] {
        assert!(planned.contains(&line), "{line}: {planned:?}");
    }
    assert_same(&tree.0, case.dst.path("new"), Also::HardLinks);
    assert!(both(case, &["-a"], "tree/", "new").is_empty());

    // Some of it changes.
    let there = case.dst.dir("new");
    tree.append("many chunks", "more");
    tree.append("small", "more");
    tree.file("new dir/deep/file", noise(7, 70_000));
    tree.hard_link("new dir/link to file", "new dir/deep/file");
    tree.mode("text", 0o600);
    fs::remove_file(tree.path("link to dir")).expect("remove it");
    tree.link("link to dir", "elsewhere");
    tree.time("empty dir", 1_400_000_000, 5);
    there.file("only there/a", "goes");
    there.file("only there/b/c", "goes");
    let planned = both(case, &["-a", "--delete"], "tree/", "new");
    for line in [
        "*deleting   only there/b/c",
        "*deleting   only there/",
        ".d..t...... empty dir/",
        ".f...p..... text",
        "cd+++++++++ new dir/deep/",
        "cLc.t...... link to dir -> elsewhere",
    ] {
        assert!(planned.contains(line), "{line}: {planned:?}");
    }
    let sent = |path: &str| planned.contains(&format!("{code}f.st...... {path}"));
    assert!(sent("many chunks") && sent("small"), "{planned:?}");
    assert_same(&tree.0, &there.0, Also::HardLinks);
    assert!(both(case, &["-a", "--delete"], "tree/", "new").is_empty());
}

/// rsync's codes for the changes of one entry; the names are those of rsync 3.5 for the same tree.
fn each_kind_of_change_has_the_code_of_rsync(case: &Case) {
    let tree = case.src.dir("tree");
    for name in ["size", "time", "mode", "same", "sub/file"] {
        tree.file(name, "content\n");
        tree.time(name, 1_400_000_000, 0);
    }
    tree.link("link", "size");
    tree.link("turned", "size");
    rustix::fs::mkfifoat(CWD, tree.path("fifo"), Mode::RUSR).expect("make a FIFO");
    case.copy(&["-a"], "tree/", "there").succeeds();
    tree.append("size", "more");
    tree.time("time", 1_500_000_000, 0);
    tree.mode("mode", 0o640);
    fs::rename(tree.path("link"), tree.path("link 2")).expect("rename it");
    tree.link("link", "time");
    tree.file("new/file", "new\n");
    // A file takes the place of a link.
    fs::remove_file(tree.path("turned")).expect("remove it");
    tree.file("turned", "a file\n");
    for (dir, seconds) in [("sub", 1_300_000_000), (".", 1_600_000_000)] {
        tree.time(dir, seconds, 0);
    }
    let planned = both(case, &["-a"], "tree/", "there");
    let code = if case.way.dest_is_far() { "<" } else { ">" };
    let expected = [
        ".d..t...... ./".to_owned(),
        format!("{code}f.st...... size"),
        format!("{code}f..t...... time"),
        ".f...p..... mode".to_owned(),
        "cLc.t...... link -> time".to_owned(),
        "cL+++++++++ link 2 -> size".to_owned(),
        "cd+++++++++ new/".to_owned(),
        format!("{code}f+++++++++ new/file"),
        ".d..t...... sub/".to_owned(),
        format!("{code}f+++++++++ turned"),
    ];
    assert_eq!(planned, expected.into_iter().collect());

    // Without -a times are not kept, so every file is sent again.
    let planned = both(case, &["-r"], "tree/sub/", "there/sub");
    assert_eq!(planned, [format!("{code}f..T...... file")].into());
    // One file, under another name, with a time of its own.
    tree.time("new/file", 1_450_000_000, 0);
    let planned = both(case, &["-p"], "tree/new/file", "there/size");
    assert_eq!(planned, [format!("{code}f.st...... size")].into());
}

fn a_dry_run_deletes_nothing_and_obeys_max_delete(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a", "a");
    let there = case.dst.dir("tree");
    for path in ["x", "y/one", "y/two.o", "z/deep/er"] {
        there.file(path, "there");
    }
    there.mode("z/deep", 0o500);
    let before = listing(&there.0);
    let limited = |most: &str, code| {
        let most = format!("--max-delete={most}");
        let flags = ["-n", "-a", "--delete", "--exclude=*.o", &most];
        let done = case.copy(&flags, "tree/", "tree");
        let told = lines(done.exits(code));
        assert_eq!(listing(&there.0), before);
        done.says("dry run: 1 file");
        told.iter().filter(|line| line.starts_with('*')).count()
    };
    assert_eq!(limited("4", 11), 0);
    assert_eq!(limited("5", 0), 5);
    let planned = both(case, &["-a", "--delete", "--exclude=*.o"], "tree/", "tree");
    for line in ["*deleting   x", "*deleting   y/one", "*deleting   z/deep/"] {
        assert!(planned.contains(line), "{planned:?}");
    }
    assert_eq!(there.names(), ["a", "y"]);
    // Quiet: only the exit code, and the output of options that ask for it.
    there.file("x", "there");
    let quiet = case.copy(&["-nqa", "--delete"], "tree/", "tree");
    quiet.succeeds().is_silent();
    assert_eq!(quiet.stdout_text(), "");
    let flags = ["-nqa", "--delete", "--itemize-changes"];
    let told = case.copy(&flags, "tree/", "tree");
    assert!(told.succeeds().stdout_text().contains("*deleting   x\n"));
}

fn files_that_are_copied_from_an_earlier_copy_are_listed(case: &Case) {
    let tree = case.src.dir("tree");
    for (path, size) in [("same", 100), ("small", 100), ("big", MIB)] {
        tree.file(path, noise(size as u64, size));
    }
    case.copy(&["-a"], "tree/", "old").succeeds();
    let old = Dir(case.dst.path("old"));
    for path in ["small", "big"] {
        old.mode(path, 0o600);
    }
    for (flag, new) in [
        ("--link-dest=../old", "linked"),
        ("--copy-dest=../old", "copied"),
    ] {
        // First the destination is missing, then it is empty.
        for _ in 0..2 {
            let planned = both(case, &["-a", flag], "tree/", new);
            for path in ["small", "big"] {
                let line = format!("cf+++++++++ {path}");
                assert!(planned.contains(&line), "{flag}: {planned:?}");
            }
            for path in ["same", "small", "big"] {
                fs::remove_file(case.dst.path(new).join(path)).expect("remove it");
            }
        }
    }
}

fn existing_files_that_stay_are_not_listed(case: &Case) {
    let tree = case.src.dir("tree");
    for path in ["old", "newer", "other", "only here/a", "skipped.o"] {
        tree.file(path, "source");
    }
    let there = case.dst.dir("tree");
    for path in ["old", "newer", "other"] {
        there.file(path, "there: longer");
        there.time(path, 1_000_000_000, 0);
    }
    there.time("newer", 4_000_000_000, 0);
    let names = |flags: &[&str]| -> Vec<String> {
        let all = [&["-a", "--exclude=*.o", "--omit-dir-times"], flags].concat();
        let before = listing(&there.0);
        let dry = case.copy(&[&["-n"], &all[..]].concat(), "tree/", "tree");
        let told = lines(dry.succeeds());
        assert_eq!(listing(&there.0), before);
        told.iter()
            .map(|line| line.split_once(' ').expect("a path").1.to_owned())
            .collect()
    };
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let told = sorted(names(&["--update"]));
    assert_eq!(told, ["old", "only here/", "only here/a", "other"]);
    assert_eq!(sorted(names(&["--existing"])), ["newer", "old", "other"]);
    let told = sorted(names(&["--ignore-existing"]));
    assert_eq!(told, ["only here/", "only here/a"]);
    assert!(names(&["--existing", "--ignore-existing"]).is_empty());
    // As for the exit code of --no-clobber, other content is refused, and not listed.
    let flags = ["-n", "-a", "--no-clobber"];
    let done = case.copy(&flags, "tree/other", "tree/other");
    done.exits(11).says("exists, and --no-clobber keeps it");
    assert_eq!(done.stdout_text(), "");
    both(case, &["-a", "--exclude=*.o", "--update"], "tree/", "tree");
}

fn missing_directories_of_the_destination_are_not_made(case: &Case) {
    case.src.file("alone/sub/file", "new");
    let existing = ["-n", "-r", "--mkpath", "--existing"];
    let done = case.copy(&existing, "alone", "missing/place");
    assert_eq!(done.succeeds().stdout_text(), "", "{done}");
    case.src.file("tree/sub/a", "a");
    case.src.file("b", "b");
    let code = if case.way.dest_is_far() { "<" } else { ">" };
    let cases: [(&[&str], &str, &str, &[&str]); 5] = [
        (&["-r", "--mkpath"], "b", "x1/y/z", &["?f+++++++++ z"]),
        (&["-r", "--mkpath"], "b", "x2/y/", &["?f+++++++++ b"]),
        (
            &["-r", "--mkpath"],
            "tree",
            "x3/y/",
            &[
                "cd+++++++++ tree/",
                "cd+++++++++ tree/sub/",
                "?f+++++++++ tree/sub/a",
            ],
        ),
        (
            &["-r", "--mkpath"],
            "tree/",
            "x4/y",
            &["cd+++++++++ ./", "cd+++++++++ sub/", "?f+++++++++ sub/a"],
        ),
        (
            &["-r"],
            "tree",
            "x5/",
            &[
                "cd+++++++++ tree/",
                "cd+++++++++ tree/sub/",
                "?f+++++++++ tree/sub/a",
            ],
        ),
    ];
    for (flags, src, dst, expected) in cases {
        let expected = expected.iter().map(|line| line.replace('?', code));
        assert_eq!(both(case, flags, src, dst), expected.collect(), "{dst}");
    }
    let done = case.copy(&["-n"], "b", "missing/b");
    done.exits(8).says("see --mkpath");
}

fn events_are_lines_of_json(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a", "four");
    tree.link("l", "a");
    case.dst.file("tree/x", "goes");
    let flags = ["-a", "-n", "--delete", "--json"];
    let done = case.copy(&flags, "tree/", "tree");
    let text = done.succeeds().stdout_text();
    // The home directory may be the destination, and would get a key.
    assert!(!case.home.has(".local") && !case.home.has(".cache"));
    let events: Vec<_> = text.lines().collect();
    let changes: Vec<_> = events
        .iter()
        .filter_map(|event| Some(event.split_once("\"change\":")?.1))
        .collect();
    let code = if case.way.dest_is_far() { "<" } else { ">" };
    let sent = format!(r#""{code}f+++++++++","path":"a","bytes":4}}"#);
    for change in [
        sent.as_str(),
        r#""cL+++++++++","path":"l","target":"a"}"#,
        r#""*deleting","path":"x"}"#,
    ] {
        assert!(changes.contains(&change), "{text}");
    }
    let last = events.last().expect("the result");
    for field in [
        r#""dry_run":true"#,
        r#""would_send_files":1"#,
        r#""would_send_bytes":4"#,
        r#""deleted":1"#,
        r#""exit_code":0"#,
    ] {
        assert!(last.contains(field), "{last}");
    }
}

fn each_of_several_destinations_has_its_lines(case: &Case) {
    case.src.file("tree/a", "a");
    let (first, second) = (case.dst.dir("one"), case.dst.dir("two"));
    first.file("a", "other");
    let before = listing(&case.dst.0);
    let run = case.fastcp().args(["-a", "-n"]).arg(case.src("tree/"));
    let run = run.arg(case.dst("one")).arg("--also").arg(&second.0);
    let done = run.run();
    let told = done.succeeds().stdout_text();
    assert_eq!(listing(&case.dst.0), before);
    let has = |code: &str, path: &str| {
        let is_it = |line: &&str| line.contains(code) && line.ends_with(path);
        told.lines().filter(is_it).count()
    };
    assert_eq!(
        (has("f.st......", " a"), has("f+++++++++", " a")),
        (1, 1),
        "{told}"
    );
    assert!(first.has("a") && !second.has("a"));
}

fn what_a_copy_would_refuse_fails_in_a_dry_run(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("dir", "a file");
    tree.file("file/inner", "in a directory");
    tree.file("fine", "fine");
    case.dst.file("tree/dir/inner", "in a directory");
    case.dst.file("tree/file", "a file");
    let before = listing(&case.dst.0);
    let dry = case.copy(&["-n", "-a"], "tree/", "tree");
    dry.exits(11)
        .says("is a directory")
        .says("is not a directory");
    assert_eq!(listing(&case.dst.0), before);
    let real = case.copy(&["-a", "--itemize-changes"], "tree/", "tree");
    assert_eq!(lines(&dry), lines(real.exits(11)));

    for (flags, reason) in [
        (["-n", "--digests=x"], "--digests"),
        (["-n", "--from-command=true"], "cannot be a pipe or command"),
    ] {
        let words = if flags[1].starts_with("--from") { 0 } else { 1 };
        let sources = vec![case.src("tree/fine"); words];
        let run = case.fastcp().args(flags).args(sources);
        run.arg(case.dst("y")).run().exits(2).says(reason);
    }
    // These copy nothing, and write at the host.
    for action in ["--probe", "--remove"] {
        let run = case.fastcp().args(["-n", action]).arg(case.dst(""));
        run.run()
            .exits(2)
            .says(&format!("{action} copies nothing: leave out -n"));
    }
    let stdout = case.fastcp().args(["--itemize-changes"]);
    let stdout = stdout.arg(case.src.path("tree/fine")).arg("-");
    stdout.run().exits(2).says("stdout");
}

/// A dry run neither resumes nor removes what an interrupted copy has left.
fn an_interrupted_copy_and_its_journal_stay(case: &Case) {
    case.src.file("tree/big", noise(1, 30 * MIB));
    let there = case.dst.dir("there");
    let slow = ["-r", "--bwlimit=4M", "--retry-for=0s"];
    let copying = case.copying(&slow, "tree/", "there").start();
    procs::until("some of it is there", || {
        (there.partial_bytes() > MIB as u64).then_some(())
    });
    copying.signal(rustix::process::Signal::TERM);
    copying.wait();
    procs::until("the server has ended", || {
        case.servers().is_empty().then_some(())
    });
    assert!(there.has_partial());
    let before = listing(&case.dst.0);
    let done = case.copy(&["-n", "-r"], "tree/", "there");
    let told = done.succeeds().stdout_text();
    assert!(told.contains("f+++++++++ big\n"), "{told}");
    assert_eq!(listing(&case.dst.0), before);
    case.copy(&["-r"], "tree/", "there").succeeds();
    assert_same(case.src.path("tree"), case.dst.path("there"), Also::Nothing);
}

/// More lines than the client keeps in memory wait for longer than a silent peer is tolerated.
fn a_reader_that_pauses_loses_no_line_and_no_connection(case: &Case) {
    const FILES: usize = 12_000;
    let tree = case.src.dir("tree");
    let long = "x".repeat(200);
    for number in 0..FILES {
        tree.file(format!("{long}{number}"), "");
    }
    let paused = ["sh", "-c", "\"$@\" | (sleep 12; cat)", "sh"];
    let run = case.copying(&["-nr", "--timeout=5s"], "tree", "there");
    let done = run.under(paused).run();
    assert_eq!(done.succeeds().stdout_text().lines().count(), FILES + 1);
    done.says("dry run: 12,000 files");
}

fn names_are_made_harmless(case: &Case) {
    let tree = case.src.dir("tree");
    let odd = std::ffi::OsStr::from_bytes(b"a\x1b[31m\n\xff");
    tree.file(odd, "x");
    let done = case.copy(&["-n", "-r"], "tree/", "there");
    let told = done.succeeds().stdout_text();
    assert!(!told.contains('\u{1b}'), "{told:?}");
    assert_eq!(told.lines().count(), 2, "{told:?}");
}

//! Sources on several hosts in one command.

use rustix::process::Signal;

use crate::support::procs::until;
use crate::support::*;

ways! { local_pull, local_between =>
    sources_of_several_hosts_go_into_one_directory,
    a_mirror_and_a_check_keep_to_the_directories_of_their_hosts,
}

ways! { local_push, local_pull =>
    the_destination_is_a_directory,
    an_interrupt_ends_all,
}

ways! { local_pull, local_between => two_hosts_never_write_to_one_place }

ways! { pull => a_host_that_fails_does_not_stop_the_others }

ways! { local_pull =>
    names_that_meet_are_refused,
    no_backup_replaces_a_file_of_an_earlier_host,
    operands_and_options_that_do_not_fit_are_refused,
}

/// `path` below the sources, on `host`.
fn on(host: &str, case: &Case, path: &str) -> String {
    format!("{host}:{}", case.src.path(path).display())
}

fn sources_of_several_hosts_go_into_one_directory(case: &Case) {
    case.src.file("a", noise(1, 3 * MIB));
    case.src.file("d/x", "x");
    case.src.file("d/sub/y", noise(2, 1000));
    case.src.file("here", "here");
    case.src.file("b1", "b1");
    case.src.file("b2", "b2");
    let copying = |flags: &[&str]| {
        let run = case.fastcp().args(flags);
        let run = run.args([on("h1", case, "a"), on("h2", case, "d")]);
        // Those of one host need not stand together.
        let run = run.args([case
            .src
            .path("here")
            .into_os_string()
            .into_string()
            .unwrap()]);
        run.arg(on("h1", case, "b?")).arg(case.dst(""))
    };
    let done = copying(&["-a", "--json"]).run();
    done.succeeds();
    assert_same(&case.src.0, &case.dst.0, Also::Nothing);
    let read = done.end();
    assert_eq!(done.ends().len(), 1, "{done}");
    assert_eq!(read["files"], 6);
    assert_eq!(read["bytes"], 3 * MIB + 1000 + 1 + 4 + 2 + 2);

    let done = copying(&["-a", "--itemize-changes", "--summary"]).run();
    done.succeeds().says("6 files (6 unchanged)");
    assert_eq!(done.stdout_text(), "");
    case.src.file("d/x", "changed");
    let done = copying(&["-a", "-n"]).run();
    done.succeeds();
    let lines = done.stdout_text();
    assert!(
        lines.contains(" d/x\n") && lines.lines().count() <= 2,
        "{lines}"
    );
    assert_eq!(case.dst.read("d/x"), b"x");
}

fn a_mirror_and_a_check_keep_to_the_directories_of_their_hosts(case: &Case) {
    case.src.file("d/x", "x");
    case.src.file("e/y", "y");
    let run = |flags: &[&str]| {
        let run = case.fastcp().args(flags);
        run.args([on("h1", case, "d"), on("h2", case, "e")])
            .arg(case.dst(""))
            .run()
    };
    run(&["-a"]).succeeds();
    run(&["-a", "--check"]).succeeds();
    for extra in ["d/gone", "e/gone", "stays", "f/stays"] {
        case.dst.file(extra, "");
    }
    run(&["-a", "--check"]).exits(1);
    run(&["-a", "--delete"]).succeeds();
    assert_eq!(case.dst.names(), ["d", "e", "f", "stays"]);
    assert!(case.dst.has("d/x") && !case.dst.has("d/gone") && !case.dst.has("e/gone"));
}

fn the_destination_is_a_directory(case: &Case) {
    case.src.file("a", "a");
    case.src.file("d/x", "x");
    let far = match case.way.dest_is_far() {
        true => case.src.path("d").display().to_string(),
        false => on("h2", case, "d"),
    };
    let run = |flags: &[&str], dst: &str| {
        let run = case.fastcp().args(flags).arg("-r");
        run.args([on("h1", case, "a"), far.clone()])
            .arg(case.dst(dst))
            .run()
    };
    let done = run(&[], "new");
    done.exits(8).says("destination directory does not exist");
    assert_eq!(case.dst.names(), [""; 0]);
    case.dst.file("file", "stays");
    run(&[], "file").exits(2).says("several sources need one");
    assert_eq!(case.dst.read("file"), b"stays");
    run(&["--mkpath"], "new/deep").succeeds();
    assert!(case.dst.has("new/deep/a") && case.dst.has("new/deep/d/x"));
}

fn an_interrupt_ends_all(case: &Case) {
    case.src.file("a", noise(1, 12 * MIB));
    case.src.file("b", "b");
    case.src.file("c", "c");
    let copying = |flags: &[&str]| {
        let run = case.fastcp().args(flags);
        let last = case.src.path("c").display().to_string();
        run.args([on("h1", case, "a"), on("h2", case, "b"), last])
            .arg(case.dst(""))
    };
    let running = copying(&["--bwlimit", "2M"]).start();
    until("some has arrived", || {
        (case.dst.partial_bytes() > 4 * MIB as u64).then_some(())
    });
    running.signal(Signal::INT);
    running.wait().exits(130).says("run the same command again");
    assert!(!case.dst.has("b") && !case.dst.has("c"));
    copying(&["--summary"])
        .run()
        .succeeds()
        .says("of it already there and verified");
    assert_same(&case.src.0, &case.dst.0, Also::Nothing);
}

fn a_host_that_fails_does_not_stop_the_others(case: &Case) {
    case.src.file("a", "a");
    case.src.file("b", "b");
    case.src.file("c", "c");
    let local = case.src.path("c").display().to_string();
    let run = |first: &str, flags: &[&str]| {
        let run = case.fastcp().args(["-B"]).args(flags);
        let run = run.args([first, &case.src("b").into_string().unwrap(), &local]);
        run.arg(case.dst("")).run()
    };
    let nowhere = on("nowhere.invalid", case, "a");
    let done = run(&nowhere, &["--json"]);
    done.exits(3).says("nowhere.invalid");
    let read = done.end();
    assert_eq!((&read["files"], &read["failed"]), (&2.into(), &1.into()));
    assert_eq!(case.dst.names(), ["b", "c"]);
    let gone = on("far", case, "gone");
    let done = case.fastcp().args([&gone, &local]).arg(case.dst("")).run();
    done.exits(9).says("gone: no such file or directory");
    // Hosts that fail for different reasons.
    let gone = case.src.path("gone").display().to_string();
    let done = case
        .fastcp()
        .args(["-B", &nowhere, &gone, &case.src("c").into_string().unwrap()]);
    done.arg(case.dst("")).run().exits(1);
    assert_eq!(case.dst.names(), ["b", "c"]);
}

fn names_that_meet_are_refused(case: &Case) {
    for path in ["1/x", "2/x", "2/y"] {
        case.src.file(path, path);
    }
    let run = |sources: &[String]| case.fastcp().args(sources).arg(case.dst("")).run();
    let done = run(&[on("h1", case, "1/x"), on("h2", case, "2/x")]);
    done.exits(2)
        .says("would get the same name x")
        .never_says("login");
    assert_eq!(case.dst.names(), [""; 0]);
    // The names that a pattern matches are known after the login.
    let done = run(&[
        on("h1", case, "1/*"),
        on("h2", case, "2/*"),
        on("h3", case, "2/y"),
    ]);
    done.exits(2).says("would get the same name x");
    assert_eq!(case.dst.names(), ["x", "y"]);
    assert_eq!(case.dst.read("x"), b"1/x");
    let local = case.src.path("2/x").display().to_string();
    let done = run(&[on("h1", case, "1/*"), local]);
    done.exits(2).says("would get the same name x");
    assert_eq!(case.dst.read("x"), b"1/x");
}

fn no_backup_replaces_a_file_of_an_earlier_host(case: &Case) {
    case.src.file("1/x~", "x~");
    case.src.file("2/x", "new");
    case.dst.file("x", "old");
    let (tilde, plain) = (on("h1", case, "1/x~"), on("h2", case, "2/x"));
    let run = |flags: &[&str], sources: [&String; 2]| {
        let run = case.fastcp().arg("-b").args(flags).args(sources);
        run.arg(case.dst("")).run()
    };
    let done = run(&[], [&tilde, &plain]);
    done.exits(2).says("the backup of h2:").says("copy h1:");
    assert_eq!(case.dst.read("x"), b"old");
    assert_eq!(case.dst.read("x~"), b"x~");
    run(&["--backup-dir=saved"], [&tilde, &plain]).succeeds();
    assert_eq!(case.dst.read("x"), b"new");
    assert_eq!(case.dst.read("x~"), b"x~");
    assert_eq!(case.dst.read("saved/x"), b"old");

    // In the other order, the backup gets a backup.
    case.dst.file("x", "older");
    run(&[], [&plain, &tilde]).succeeds();
    assert_eq!(case.dst.read("x"), b"new");
    assert_eq!(case.dst.read("x~"), b"x~");
    assert_eq!(case.dst.read("x~~"), b"older");
}

fn two_hosts_never_write_to_one_place(case: &Case) {
    case.src.file("1/a", "a");
    case.src.file("2/b", "b");
    case.src.file("1/x/f", "f");
    case.src.file("2/y/g", "g");
    let run = |flags: &[&str], (one, two): (&str, &str)| {
        let run = case.fastcp().args(flags);
        run.args([on("h1", case, one), on("h2", case, two)])
            .arg(case.dst(""))
            .run()
    };
    // The link is replaced, not followed.
    case.dst.file("a", "old");
    case.dst.link("b", "a");
    run(&[], ("1/a", "2/b")).succeeds();
    assert_eq!(case.dst.read("a"), b"a");
    assert_eq!(case.dst.read("b"), b"b");
    std::fs::remove_file(case.dst.path("b")).unwrap();
    case.dst.file("a", "old");
    case.dst.hard_link("b", "a");
    let done = run(&["--inplace"], ("1/a", "2/b"));
    done.exits(11).says("has several hard links");
    assert_eq!(case.dst.read("a"), b"old");
    case.dst.dir("x");
    case.dst.link("y", "x");
    let done = run(&["-a", "--delete"], ("1/x", "2/y"));
    done.exits(11).says("is a symbolic link");
    assert_eq!(case.dst.read("x/f"), b"f");
    assert!(!case.dst.has("x/g"));
}

fn operands_and_options_that_do_not_fit_are_refused(case: &Case) {
    case.src.file("d/x", "x");
    case.src.file("e", "e");
    let (d, e) = (on("h1", case, "d"), on("h2", case, "e"));
    for (words, told) in [
        (&["-r", "h1:d/", &e][..], "each source needs a name in DEST"),
        (&["-r", "h1:", &e], "each source needs a name in DEST"),
        (&["-r", ".", &e], "each source needs a name in DEST"),
        (&["-a", "--snapshot", &d, &e], "leave out --snapshot"),
        (&["-a", "--relative", &d, &e], "leave out --relative"),
        (&["-a", "--digests", "sums", &d, &e], "leave out --digests"),
        (&["-a", "--map", "x=y", &d, &e], "takes one SOURCE"),
        (
            &["-r", "--no-target-directory", &d, &e],
            "leave out --no-target-directory",
        ),
        (
            &["-", &e],
            "a copy from or to a pipe or a command has one source",
        ),
    ] {
        let done = case.fastcp().args(words).arg(case.dst("")).run();
        done.exits(2).says(told);
    }
    let also = ["-r", &d, &e, "to", "--also", "h3:"];
    case.fastcp()
        .args(also)
        .run()
        .exits(2)
        .says("is on another host");
    assert_eq!(case.dst.names(), [""; 0]);
}

//! Which entries are copied: filter rules, rule files in directories, sizes, ages and file systems.

use std::os::unix::fs::{MetadataExt, lchown};
use std::time::{Duration, SystemTime};

use rustix::process::geteuid;

use crate::support::disk::Mounted;
use crate::support::*;

ways! { pull, between =>
    listed_files_keep_their_paths,
    the_rules_of_the_command_line_and_of_directories_choose_entries,
}

ways! { local_push, local_pull =>
    sizes_and_ages_choose_files,
    another_file_system_is_not_entered,
    an_operand_may_be_left_out,
    a_directory_with_a_bad_rule_file_is_not_copied,
}

ways! { local_pull, local_between => a_list_on_the_source_s_host_is_read_there }

ways! { local_push, local_pull, here =>
    sources_keep_the_paths_after_the_mark,
    a_long_list_in_any_order_is_copied_once,
}

ways! { local_pull => a_planted_link_leads_no_listed_name_out_of_the_source }

ways! { here =>
    lists_that_do_not_fit_are_refused,
    a_listed_directory_is_not_copied_into_itself,
    a_base_that_is_missing_leaves_the_others_alone,
    rules_come_from_files_too,
    a_bad_rule_is_refused_before_the_copy,
    a_pipe_has_no_names,
}

/// Every path below the destination, sorted.
fn paths(case: &Case) -> Vec<String> {
    let tree = Tree::read(&case.dst.0);
    let shown = |path: &std::path::PathBuf| path.to_string_lossy().into_owned();
    let paths = tree.0.keys().map(shown);
    paths.filter(|path| !path.is_empty()).collect()
}

/// A file with a list of names, each with a NUL.
fn list_of(dir: &Dir, names: &[&[u8]]) -> String {
    let text: Vec<u8> = names
        .iter()
        .flat_map(|name| [name, &b"\0"[..]].concat())
        .collect();
    dir.file("list", text).display().to_string()
}

fn listed_files_keep_their_paths(case: &Case) {
    for path in [
        "a/b/f2", "a/other", "a/beside", "top", "d/x", "d/e/y", "#n\no",
    ] {
        case.src.file(format!("t/{path}"), path);
    }
    case.src.file("t/a/big", noise(1, 3 * MIB));
    case.src.hard_link("t/d/hard", "t/a/b/f2");
    case.src.link("t/way", "a");
    case.src.link("t/d/link", "nowhere");
    for (path, mode) in [
        ("t/a/b", 0o705),
        ("t/a", 0o750),
        ("t/d/e", 0o711),
        ("t/d", 0o700),
    ] {
        case.src.mode(path, mode);
        case.src.time(path, 1_000_000_000, 5);
    }
    let names: [&[u8]; 8] = [
        b"/d/",
        b"a/b/f2",
        b"x/../a/./big",
        b"way/other",
        b"a/b/f2",
        b"#n\no",
        b"gone",
        b"a/b/f2/z",
    ];
    let list = list_of(&case.scratch, &names);
    let flags = ["-a", "-0", "--files-from", &list];
    let done = case.copy(&flags, "t", "");
    done.exits(9).says("t/gone: no such file or directory");
    done.says("t/a/b/f2/z: not a directory");
    let copied = [
        "#n\no", "a", "a/b", "a/b/f2", "big", "d", "d/e", "d/hard", "d/link", "d/x",
    ];
    let copied: Vec<_> = copied.into_iter().chain(["way", "way/other"]).collect();
    assert_eq!(paths(case), copied);
    for (path, mode) in [
        ("a", 0o750),
        ("a/b", 0o705),
        ("d", 0o700),
        ("d/e", 0o711),
        ("way", 0o750),
    ] {
        assert_eq!(case.dst.mode_of(path), mode, "{path}");
        assert_eq!(case.dst.meta(path).mtime(), 1_000_000_000, "{path}");
    }
    assert_eq!(case.dst.meta("a/b/f2").ino(), case.dst.meta("d/hard").ino());

    // Deletions concern only directories whose content is copied, and nothing if a name is missing.
    case.dst.file("d/extra", "goes");
    case.dst.file("a/b/extra", "stays");
    case.dst.time("a/b", 1_000_000_000, 5);
    let gone = list_of(&case.scratch, &[b"a/b/f2", b"d/", b"gone"]);
    let flags = ["-a", "-0", "--files-from", &gone, "--delete"];
    let done = case.copy(&flags, "t", "");
    done.exits(9).says("nothing was deleted");
    assert!(case.dst.has("d/extra"));
    let list = list_of(&case.scratch, &[b"a/b/f2", b"d/", b"#n\no"]);
    let flags = ["-a", "-0", "--files-from", &list, "--delete", "-n"];
    let planned = "*deleting   d/extra\n";
    assert_eq!(
        case.copy(&flags, "t/", "").succeeds().stdout_text(),
        planned
    );
    case.copy(&flags[..5], "t", "").succeeds();
    assert!(!case.dst.has("d/extra") && case.dst.has("a/b/extra") && case.dst.has("big"));
    assert_eq!(case.copy(&flags, "t/", "").succeeds().stdout_text(), "");
}

fn a_list_on_the_source_s_host_is_read_there(case: &Case) {
    for path in ["t/a/x", "t/a/y", "t/.list"] {
        case.src.file(path, "# none\na/x\n");
    }
    let list = case.src.path("t/.list").display().to_string();
    for (nth, at) in ["far:", ":"].into_iter().enumerate() {
        let dest = nth.to_string();
        let flags = ["--files-from", &format!("{at}{list}")];
        case.copy(&flags, "t", &dest).succeeds();
        assert!(case.dst.has(format!("{dest}/a/x")) && !case.dst.has(format!("{dest}/a/y")));
    }
    let gone = format!("--files-from=:{list}.gone");
    let done = case.copy(&[&gone], "t", "none");
    done.exits(9)
        .says("cannot read the list of files: no such file");
    let elsewhere = format!("--files-from=elsewhere:{list}");
    case.copy(&[&elsewhere], "t", "none")
        .exits(2)
        .says("copy it to one of them first");
    assert!(!case.dst.has("none"));
}

fn sources_keep_the_paths_after_the_mark(case: &Case) {
    for path in ["v/www/site/index", "v/log/app", "w/log/other", "w/log/app"] {
        case.src.file(path, path);
    }
    case.src.mode("v/www", 0o711);
    case.src.mode("v/log", 0o750);
    case.dst.dir("log");
    case.dst.mode("log", 0o700);
    let sources = ["v/./www/site", "v/./log/app", "w/./log/other"];
    let flags = ["-rp", "--relative"];
    case.copy_all(&[&flags[..], &["--no-implied-dirs"]].concat(), &sources, "")
        .succeeds();
    let copied = [
        "log",
        "log/app",
        "log/other",
        "www",
        "www/site",
        "www/site/index",
    ];
    assert_eq!(paths(case), copied);
    // Not the mode of the source: nobody named these directories.
    assert_eq!(
        (case.dst.mode_of("log"), case.dst.mode_of("www")),
        (0o700, 0o755)
    );
    case.copy_all(&flags, &sources, "").succeeds();
    assert_eq!(
        (case.dst.mode_of("log"), case.dst.mode_of("www")),
        (0o750, 0o711)
    );
    assert_eq!(case.dst.read("log/other"), b"w/log/other");

    let same = case.copy_all(&flags, &["v/./log/app", "w/./log/app"], "same");
    same.exits(2).says("w/log/app: would get the same name");
    assert_eq!(case.dst.read("same/log/app"), b"v/log/app");
    let up = case.copy_all(&flags, &["v/../v/log"], "up");
    up.exits(2).says("mark the start of that path with /./");
    case.copy_all(&flags, &["v/log/gone", "v/./log"], "some")
        .exits(9);
    assert!(case.dst.has("some/log/app") && !case.dst.has("up"));
}

fn a_base_that_is_missing_leaves_the_others_alone(case: &Case) {
    for path in ["t/d/x", "t/d/y", "t/top", "t/q/d/x", "t/f/d"] {
        case.src.file(path, path);
    }
    let run = |names: &str, flags: &[&str], dest: &str| {
        let list = case.scratch.file("list", names).display().to_string();
        let flags = [&["-r", "--files-from", &list], flags].concat();
        case.copy(&flags, "t", dest)
    };
    run("gone/./\n", &[], "a").exits(9).says("gone");
    assert!(case.dst.path("a").read_dir().map_or(0, Iterator::count) == 0);
    run("gone/./\nq/./\n", &[], "q").exits(9);
    assert!(case.dst.has("q/d/x") && !case.dst.has("q/top"));
    run("gone/./d\nd/x\n", &[], "b").exits(9);
    let file = run("f/./d\nd/x\n", &[], "c");
    file.exits(2).says("f/d: would get the same name");
    for dest in ["b", "c"] {
        assert_eq!(case.dst.dir(format!("{dest}/d")).names(), ["x"]);
    }
    // An entry that is found by reading has the name of a listed one.
    let read = run("q/./d\nd/x\n", &[], "e");
    read.exits(2).says("q/d/x: would get the same name");
    assert_eq!(case.dst.read("e/d/x"), b"t/d/x");
    let read = run("q/./d\nd/gone\n", &[], "g");
    read.exits(9);
    assert_eq!(case.dst.read("g/d/x"), b"t/q/d/x");
    // What is missing has no type, so no rule leaves it out.
    let missing = run("gone\nd/x\n", &["--exclude", "*/"], "k");
    missing.exits(9).says("t/gone: no such file");
    assert!(case.dst.has("k/d/x"));
    // A name that is missing fails once, and not in a directory of which all entries are copied.
    for (names, dest) in [(".\ngone\n", "h"), ("d/./\nq/./gone\n", "i")] {
        let done = run(names, &["--json"], dest);
        let told = done.exits(9).never_says("d/gone").stdout_text();
        assert!(told.contains("\"failed\":1,"), "{told}");
    }

    // A file is not written into itself.
    let into = case.src.path("t/q").display().to_string();
    let list = case.scratch.file("list", "q/./d/x\n").display().to_string();
    let flags = ["--inplace", "-I", "--files-from", &list];
    let done = case
        .fastcp()
        .args(flags)
        .arg(case.src("t"))
        .arg(&into)
        .run();
    done.exits(11).says("is the source itself");
    assert_eq!(case.src.read("t/q/d/x"), b"t/q/d/x");
    case.src.link("dangling", "nowhere");
    case.src.link("to", "t");
    let links = ["./dangling", "./to"];
    case.copy_all(&["--relative"], &links, "l").succeeds();
    assert!(
        links
            .iter()
            .all(|name| case.dst.meta(format!("l/{name}")).is_symlink())
    );
}

fn a_long_list_in_any_order_is_copied_once(case: &Case) {
    let mut list = String::new();
    for n in 0..1000 {
        let name = format!("d{}/f{n}", n % 17);
        case.src.file(format!("t/{name}"), &name[1..3]);
        list = format!("{name}\n{list}./{name}\n");
    }
    case.src.file("t/d0/beside", "");
    let list = case.scratch.file("list", list).display().to_string();
    for unchanged in [0, 1000] {
        let flags = ["-a", "--json", "--files-from", &list];
        let told = case.copy(&flags, "t/", "").succeeds().stdout_text();
        assert!(
            told.contains(&format!("\"files_unchanged\":{unchanged},")),
            "{told}"
        );
    }
    std::fs::remove_file(case.src.path("t/d0/beside")).expect("remove it");
    assert_same(case.src.path("t"), &case.dst.0, Also::Nothing);
}

fn lists_that_do_not_fit_are_refused(case: &Case) {
    case.src.file("t/a", "a");
    let list = case.scratch.file("list", "a\n").display().to_string();
    let list = format!("--files-from={list}");
    for (flags, why) in [
        (
            vec!["--files-from=/gone"],
            "--files-from /gone: no such file",
        ),
        (
            vec!["--files-from=far:/list"],
            "copy it to one of them first",
        ),
        (vec![&list[..], "--follow"], "cannot be combined"),
        (vec!["--no-implied-dirs"], "needs --relative"),
        (vec!["-aR"], "write --relative"),
    ] {
        case.copy(&flags, "t", "").exits(2).says(why);
    }
    case.copy_all(&[&list], &["t", "t"], "")
        .exits(2)
        .says("takes one SOURCE");
    case.copy(&[&list], "t/a", "")
        .exits(2)
        .says("is not a directory");
    let run = case.fastcp().arg(&list).arg("-").arg(case.dst("b"));
    run.run().exits(2).says("cannot be a pipe or command");
    let cut = case.scratch.file("cut", "t/./a\n").display().to_string();
    let cut = format!("--files-from={cut}");
    case.copy(&["--delete", &cut], "", "")
        .exits(2)
        .says("leave out /./");
    let stdin = ["--files-from=-", "--filter=merge -"];
    case.copy(&stdin, "t", "")
        .exits(2)
        .says("stdin is already the source of the filter rules");
    let nul = case.scratch.file("nul", "a\0b\n").display().to_string();
    case.copy(&["--files-from", &nul], "t", "")
        .exits(2)
        .says("line 1: has a NUL: use -0");
    // An empty list names nothing, and nothing is made.
    let empty = case.scratch.file("empty", "# none\n").display().to_string();
    case.copy(&["-a", "--files-from", &empty], "t", "new")
        .succeeds();
    assert_eq!(paths(case), [""; 0]);
}

fn a_listed_directory_is_not_copied_into_itself(case: &Case) {
    case.src.file("t/a/x", "x");
    let into = case.src.dir("t/a/into");
    let run = |flags: &[&str], names: &str| {
        let list = case.scratch.file("list", names);
        let run = case.fastcp().args(flags).arg("--files-from").arg(list);
        run.arg(case.src("t")).arg(&into.0).run()
    };
    // The way to a name may contain the destination.
    run(&["-a"], "a/x\n").succeeds();
    assert_eq!(into.read("a/x"), b"x");
    run(&["-r"], "a\n")
        .exits(11)
        .says("cannot be copied into itself");
    assert!(!into.has("a/into"));
    let list = case.scratch.file("list", "a/x\n").display().to_string();
    let same = case
        .fastcp()
        .args(["--files-from", &list])
        .args([case.src("t"), case.src("t")]);
    same.run().exits(11).says("is the same directory");
}

fn the_rules_of_the_command_line_and_of_directories_choose_entries(case: &Case) {
    for path in [
        "t/keep.o",
        "t/a.o",
        "t/b.c",
        "t/top/x",
        "t/d/top/x",
        "t/d/e/f",
        "t/d/only-here",
        "t/d/sub/only-here",
        "t/cache/x",
        "t/d/cache/x",
        "t/d/two\nlines",
    ] {
        case.src.file(path, path);
    }
    case.src.file("t/big/cache", noise(3, 3 * MIB));
    case.src.file("t/big/a.o", noise(4, 3 * MIB));
    case.src
        .file("t/d/.rules", "# a comment\n- /only-here\n- two?lines\n");
    case.src.hard_link("t/d/link.o", "t/b.c");
    let flags = [
        "-r",
        "--include",
        "keep.o",
        "--exclude=*.o",
        "--exclude",
        "/t/top",
        "--exclude=cache/",
        "--filter",
        "dir-merge,e .rules",
    ];
    case.copy(&flags, "t", "").succeeds();
    assert_eq!(
        paths(case),
        [
            "t",
            "t/b.c",
            "t/big",
            "t/big/cache",
            "t/d",
            "t/d/e",
            "t/d/e/f",
            "t/d/sub",
            "t/d/sub/only-here",
            "t/d/top",
            "t/d/top/x",
            "t/keep.o",
        ]
    );
}

fn sizes_and_ages_choose_files(case: &Case) {
    case.src.file("t/empty", "");
    case.src.file("t/small", "123");
    case.src.file("t/large", noise(1, 2 * MIB));
    case.src.file("t/old", "1234");
    let long_ago = SystemTime::now() - Duration::from_secs(10 * 24 * 3600);
    let long_ago = long_ago.duration_since(SystemTime::UNIX_EPOCH);
    case.src
        .time("t/old", long_ago.expect("after 1970").as_secs(), 0);
    let flags = ["-r", "--min-size=1", "--max-size=1Mi", "--max-age=7d"];
    case.copy(&flags, "t", "new").succeeds();
    assert_eq!(paths(case), ["new", "new/small"]);
    case.copy(&["-r", "--min-age", "7d"], "t", "aged")
        .succeeds();
    assert_eq!(paths(case), ["aged", "aged/old", "new", "new/small"]);
}

fn another_file_system_is_not_entered(case: &Case) {
    case.src.file("t/a", "a");
    let at = case.src.dir("t/mounted");
    let Some(_disk) = Mounted::small(&at.0, 1 << 20) else {
        return skip("a mount");
    };
    case.src.file("t/mounted/b", "b");
    case.src.link("t/link", "mounted");
    case.copy(&["-rx"], "t", "").succeeds();
    assert_eq!(paths(case), ["t", "t/a", "t/link", "t/mounted"]);
    case.copy(&["-rxL"], "t", "followed").succeeds();
    assert!(case.dst.has("followed/link") && !case.dst.has("followed/link/b"));
}

/// As with rsync: nothing is left to do, which is no failure.
fn an_operand_may_be_left_out(case: &Case) {
    case.src.file("a.o", "a");
    case.src.file("b.c", "b");
    case.dst.dir("d");
    case.copy(&["--exclude=*.o"], "a.o", "d").succeeds();
    // Nothing is made either, and it does not matter that nothing could be.
    let flags = ["--exclude=*.o", "--no-target-directory", "--mkpath"];
    case.copy(&flags, "a.o", "none/x").succeeds();
    case.copy(&["--exclude=*.o"], "a.o", "none/x").succeeds();
    // A directory needs no -r if it is left out.
    case.src.file("k/a", "a");
    case.copy(&["--exclude=k"], "k", "d").succeeds();
    assert_eq!(paths(case), ["d"]);
    case.copy_all(&["--exclude=*.o"], &["a.o", "b.c"], "d")
        .succeeds();
    assert_eq!(paths(case), ["d", "d/b.c"]);
}

/// What such a file leaves out is unknown, and could be a secret.
fn a_directory_with_a_bad_rule_file_is_not_copied(case: &Case) {
    case.src.file("t/a", "a");
    case.src.file("t/d/.rules", "nonsense");
    case.src.file("t/d/secret", "secret");
    case.src.link("t/e/.rules", ".rules");
    case.src.file("t/e/secret", "secret");
    case.src.dir("t/no-rules/.rules");
    let done = case.copy(&["-r", "--filter=: .rules"], "t", "");
    done.exits(9).says("t/d/.rules: bad filter rule in line 1");
    done.says("nonsense: no such rule")
        .says("t/e/.rules: cannot read the filter rules");
    assert_eq!(
        paths(case),
        ["t", "t/a", "t/d", "t/e", "t/no-rules", "t/no-rules/.rules"]
    );
}

fn a_planted_link_leads_no_listed_name_out_of_the_source(case: &Case) {
    if !geteuid().is_root() {
        return skip("root, for links of other users");
    }
    case.src.file("t/d/f", "f");
    case.src.file("secrets/f", "secret");
    for (name, to) in [("in", "d"), ("out", "../secrets"), ("own", "../secrets")] {
        case.src.link(format!("t/{name}"), to);
    }
    for name in ["in", "out"] {
        let link = case.src.path(format!("t/{name}"));
        lchown(link, Some(65534), None).expect("give it away");
    }
    let list = case.scratch.file("list", "in/f\nout\nout/f\nown/f\n");
    let list = format!("--files-from={}", list.display());
    let done = case.copy(&["-a", &list], "t", "");
    done.exits(9)
        .says("t/out/f: is behind a symbolic link that belongs to another user");
    assert_eq!(paths(case), ["in", "in/f", "out", "own", "own/f"]);
    assert!(case.dst.meta("out").is_symlink());
}

fn rules_come_from_files_too(case: &Case) {
    for path in ["t/a.o", "t/b", "t/c.log", "t/d~", "t/.git/x", "t/keep.log"] {
        case.src.file(path, path);
    }
    let inner = case.scratch.file("inner", "exclude *.log\n");
    let rules = format!("+ keep.log\n. {}\n", inner.display());
    let rules = case.scratch.file("rules", rules);
    let merge = format!("merge {}", rules.display());
    let patterns = case.scratch.file("patterns", "; none\n*.o\n");
    let patterns = format!("--exclude-from={}", patterns.display());
    let flags = ["-r", "--filter", &merge, &patterns, "--cvs-exclude"];
    case.copy(&flags, "t", "").succeeds();
    assert_eq!(paths(case), ["t", "t/b", "t/keep.log"]);
    // The rule for what CVS leaves out has the words of the user too.
    for (flag, has_b) in [("--filter=-C", false), ("--exclude=*~", true)] {
        let to = format!("with{flag}");
        let run = case.copying(&["-r", flag], "t/", &to);
        run.env("CVSIGNORE", "b other").run().succeeds();
        let copied = case.dst.dir(&to);
        assert!(copied.has("b") == has_b && copied.has("c.log"), "{flag}");
        assert!(!copied.has("d~"), "{flag}");
    }
    // A closed standard input is no empty list.
    for flag in ["--files-from=-", "--exclude-from=-", "--filter=merge -"] {
        let run = case.copying(&["-r", flag], "t", "closed");
        let run = run.under(["sh", "-c", "exec \"$@\" <&-", "sh"]).run();
        run.exits(2).says("standard input is closed");
    }
    assert!(!case.dst.has("closed"));
}

fn a_bad_rule_is_refused_before_the_copy(case: &Case) {
    case.src.file("a", "a");
    for (flag, why) in [
        ("--filter=nonsense", "--filter: nonsense: no such rule"),
        (
            "--exclude-from=/nowhere",
            "--exclude-from /nowhere: no such file",
        ),
        ("--max-age=soon", "--max-age"),
        ("--min-size=much", "expected a number of bytes"),
    ] {
        case.copy(&[flag], "a", "").exits(2).says(why);
    }
    let own = case.scratch.path("own");
    let text = format!(". {}\n", own.display());
    std::fs::write(&own, text).expect("write a file");
    let merge = format!("--filter=. {}", own.display());
    let done = case.copy(&[&merge], "a", "");
    done.exits(2).says("rule files are nested too deeply");
    assert_eq!(paths(case), [""; 0]);
}

fn a_pipe_has_no_names(case: &Case) {
    let run = case.fastcp().args(["--exclude=a", "-"]).arg(case.dst("b"));
    run.run().exits(2).says("do not apply to a pipe or command");
}

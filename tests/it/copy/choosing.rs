//! Which entries are copied: filter rules, rule files in directories, sizes, ages and file systems.

use std::time::{Duration, SystemTime};

use crate::support::disk::Mounted;
use crate::support::*;

ways! { push, pull, between, here =>
    the_rules_of_the_command_line_and_of_directories_choose_entries,
}

ways! { local_push, local_pull =>
    sizes_and_ages_choose_files,
    another_file_system_is_not_entered,
    an_operand_may_be_left_out,
    a_directory_with_a_bad_rule_file_is_not_copied,
}

ways! { here =>
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

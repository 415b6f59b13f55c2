//! `--check=LIST`: files are compared with the list of digests that a copy wrote.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use crate::support::procs::until;
use crate::support::ssh_once::SshOnce;
use crate::support::*;

ways! { pull, here, local_pull =>
    a_list_names_what_differs_is_missing_or_cannot_be_read,
    a_list_of_a_copy_verifies_what_the_copy_wrote,
    a_name_that_leads_out_is_an_error_and_the_others_are_compared,
}

ways! { pull, local_pull => a_check_continues_after_a_lost_connection }

ways! { pull => a_line_that_is_none_counts_after_a_login_that_failed }

ways! { here => a_file_that_is_no_list_is_left_early }

const BIG: usize = 3 * MIB + 7;

fn line(content: &[u8], name: &str) -> String {
    format!("{}  {name}\n", blake3::hash(content).to_hex())
}

/// `fastcp FLAGS --check=LIST DIR`
fn check(case: &Case, flags: &[&str], list: &Path, dir: &str) -> run::Done {
    let list = format!("--check={}", list.display());
    let run = case.fastcp().args(flags).arg(list);
    run.arg(case.src(dir)).run()
}

fn lines(done: &run::Done) -> BTreeSet<String> {
    done.stdout_text().lines().map(str::to_owned).collect()
}

fn a_list_names_what_differs_is_missing_or_cannot_be_read(case: &Case) {
    let tree = case.src.dir("tree");
    for name in ["same", "changed", "gone", "sub/é \\ x\ny", "kind", "loop"] {
        tree.file(name, noise(1, 3000));
    }
    for name in ["big", "big changed", "big short"] {
        tree.file(name, noise(2, BIG));
    }
    tree.file("empty", "");
    let list = case.scratch.path("sums");
    let flags = ["-r", "--digests", list.to_str().expect("ASCII")];
    case.copy(&flags, "tree/", "there").succeeds();
    let equal = check(case, &[], &list, "tree");
    assert_eq!(equal.succeeds().stdout_text(), "");
    equal.says("check: 10 files have the same content, in");

    tree.file("changed", noise(3, 3000));
    let changed = File::options().write(true).open(tree.path("big changed"));
    let changed = changed.expect("open it");
    changed.write_all_at(b"x", 2 * MIB as u64).expect("write");
    tree.file("big short", noise(2, BIG - 1));
    for name in ["gone", "kind"] {
        fs::remove_file(tree.path(name)).expect("remove it");
    }
    tree.dir("kind");
    let before = Tree::read(&tree.0);
    let found = check(case, &[], &list, "tree");
    let told = [
        "differs  changed",
        "differs  big changed",
        "differs  big short",
        "differs  kind",
        "missing  gone",
    ];
    assert_eq!(lines(found.exits(1)), told.map(str::to_owned).into());
    found.says("5 files have the same content; 4 entries differ, 1 is missing");
    let json = check(case, &["--json"], &list, "tree")
        .exits(1)
        .stdout_text();
    assert!(json.contains("\"difference\":\"missing\",\"path\":\"gone\"}\n"));
    assert!(json.contains("\"missing\":1,\"same_files\":5"), "{json}");
    check(case, &["-q"], &list, "tree").exits(1).is_silent();

    // An unreadable file is an error; the others are compared.
    fs::remove_file(tree.path("loop")).expect("remove it");
    tree.link("loop", "loop");
    let failed = check(case, &[], &list, "tree");
    assert_eq!(lines(failed.exits(9)), told.map(str::to_owned).into());
    failed.says("tree/loop: cannot read: ");
    fs::remove_file(tree.path("loop")).expect("remove it");
    tree.file("loop", noise(1, 3000));
    let written = before.differences(&Tree::read(&tree.0), Also::Nothing);
    assert!(written.is_empty(), "{written:?}");
    check(case, &[], &list, "nothing")
        .exits(9)
        .says("nothing: cannot open this directory");
}

/// Whatever the copy was: into a directory, to another name, of several operands.
fn a_list_of_a_copy_verifies_what_the_copy_wrote(case: &Case) {
    let here = case.scratch.dir("here");
    here.file("tree/sub/a", "a");
    here.file("one", "one");
    let list = case.scratch.path("sums");
    let copies: [(&[&str], &str); 4] = [
        (&["tree"], "new"),
        (&["tree/", "one"], "dir/"),
        (&["tree", "one"], "dir"),
        (&["one"], "renamed"),
    ];
    case.src.dir("dir");
    for (sources, dest) in copies {
        let run = case.fastcp().arg("-r").arg("--digests").arg(&list);
        let run = run.args(sources.iter().map(|source| here.path(source)));
        let run = match sources {
            ["tree/", ..] => run.arg(case.src("dir/")),
            _ => run.arg(case.src(dest)),
        };
        run.run().succeeds();
        check(case, &[], &list, dest)
            .succeeds()
            .says("the same content");
    }
}

fn a_name_that_leads_out_is_an_error_and_the_others_are_compared(case: &Case) {
    case.src.file("outside", "x");
    case.src.file("dir/a", "a");
    let outside = case.src.path("outside").display().to_string();
    let text = [
        line(b"x", "../outside"),
        line(b"x", &outside),
        line(b"a", "a"),
        "no line\n".to_owned(),
        line(b"b", "./a"),
    ];
    let list = case.scratch.file("sums", text.concat());
    let done = check(case, &[], &list, "dir");
    assert_eq!(done.exits(2).stdout_text(), "differs  ./a\n");
    done.says("sums: line 1: has a name with ..")
        .says("sums: line 2: has a name that begins with a slash")
        .says("sums: line 4: is not a line of b3sum");
    // Below the root an absolute name is right, as it is for b3sum.
    let list = case.scratch.file("sums", line(b"x", &outside));
    let list = format!("--check={}", list.display());
    let root = case.fastcp().arg(list).arg(case.from("/"));
    root.run().succeeds().says("1 file has the same content");
}

fn a_check_continues_after_a_lost_connection(case: &Case) {
    let mut run = case
        .fastcp()
        .args(["--check=-", "--summary"])
        .arg(case.src(""))
        .start_with(Stdio::piped());
    for n in 0..200 {
        case.src.file(format!("f{n}"), noise(n, 900));
    }
    let line = |n: u64| line(&noise(n / 2 * 2, 900), &format!("f{n}"));
    // More lines than may be unanswered, so that there are answers before the server ends.
    let first: String = (0..100).map(line).collect();
    let server = until("a server runs", || case.servers().pop());
    run.write_stdin(first.repeat(300).as_bytes());
    server.kill();
    let rest: String = (100..200).map(line).collect();
    run.write_stdin(rest.as_bytes());
    run.write_stdin(line(1000).as_bytes());
    drop(run.stdin.take());
    let done = run.wait();
    let told = done.exits(1).stdout_text();
    let all = told.lines().count();
    assert_eq!(all, 300 * 50 + 50 + 1, "{told}");
    assert_eq!(lines(&done).len(), 101);
    done.says("15,050 files have the same content; 15,050 entries differ, 1 is missing")
        .says("; logging in again in ");
}

fn a_line_that_is_none_counts_after_a_login_that_failed(case: &Case) {
    case.src.file("dir/a", "a");
    let text = [line(b"a", "a"), "no line\n".to_owned()];
    let list = case.scratch.file("sums", text.concat());
    let ssh = SshOnce::not_at_first(case, "ssh: connect to host h port 22: Connection refused");
    let flags = ["-S", &ssh.program(), "--retry-for", "1min"];
    let done = check(case, &flags, &list, "dir");
    done.exits(2)
        .says("; logging in again in ")
        .says("sums: line 2: is not a line of b3sum")
        .says("1 file has the same content");
    assert_eq!(ssh.logins().len(), 2);
}

fn a_file_that_is_no_list_is_left_early(case: &Case) {
    case.src.file("noise", noise(1, MIB));
    let done = check(case, &[], &case.src.path("noise"), "");
    done.exits(2).says("noise: fastcp read no further: ");
    let empty = case.scratch.file("empty", "");
    check(case, &[], &empty, "").exits(2).says("names no file");
    // A list that is given in the place of a source is compared as a file.
    let list = case.scratch.file("sums", line(b"a", "a"));
    let run = case.fastcp().arg("--check").arg(&list).arg(case.dst(""));
    run.run().exits(1).says("write --check=");
}

//! Options of `~/.config/fastcp/config` and `FASTCP_FLAGS`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Stdio;

use crate::support::*;

ways! { push, pull =>
    options_of_a_host_hold_for_it_and_are_told,
    what_weakens_a_copy_is_told_on_each_run,
}

ways! { here =>
    a_file_that_others_may_have_written_is_refused,
    options_without_a_meaning_for_a_copy_are_left_out,
    rules_from_a_pipe_are_not_lost_with_an_option_that_is_left_out,
    what_deletes_is_told_even_if_the_file_wants_it_quiet,
    the_options_that_apply_are_shown_with_their_places,
}

/// Writes the user's file; returns its path.
fn configured(case: &Case, text: &str) -> PathBuf {
    let path = case.home.path(".config/fastcp/config");
    fs::create_dir_all(path.parent().expect("a directory")).expect("make it");
    fs::write(&path, text).expect("write the file");
    path
}

fn options_of_a_host_hold_for_it_and_are_told(case: &Case) {
    case.src.file("a", "one");
    configured(
        case,
        "[host.far]\nno-clobber = true\n[host.\"other*\"]\nstreams = 2\n",
    );
    case.copy(&["-v"], "a", "a")
        .succeeds()
        .says("options from the configuration: --no-clobber");
    case.src.file("a", "two");
    case.copy(&[], "a", "a").exits(11);
    case.copy(&["--no-config"], "a", "a").succeeds();
    // The typed option counts, and not what cannot be combined with it.
    case.src.file("a", "six");
    case.copy(&["--inplace", "-v"], "a", "a")
        .succeeds()
        .says("options from the configuration that this copy cannot have: --no-clobber");
    case.copying(&[], "a", "a")
        .env("FASTCP_FLAGS", "--no-clobber a")
        .run()
        .exits(2)
        .says("FASTCP_FLAGS: only options may stand here");
}

fn what_weakens_a_copy_is_told_on_each_run(case: &Case) {
    case.src.file("a", "one");
    configured(case, "[default]\nno-encrypt = true\nforce = true\n");
    for flags in [&["-q"][..], &[]] {
        let done = case.copy(flags, "a", "a");
        done.succeeds()
            .says("fastcp: --no-encrypt applies, from ")
            .says("/.config/fastcp/config [default]");
        match flags {
            [] => done.says("fastcp: --force applies, from "),
            _ => done.never_says("--force"),
        };
    }
    case.copy(&["--no-config"], "a", "a")
        .succeeds()
        .never_says("applies");
}

fn a_file_that_others_may_have_written_is_refused(case: &Case) {
    case.src.file("a", "one");
    let path = configured(case, "[default]\nfsync = true\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("chmod");
    case.copy(&[], "a", "a")
        .exits(2)
        .says("others may write the configuration")
        .says("chmod go-w ");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
    case.copy(&[], "a", "a").succeeds();
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(12345), None).expect("chown");
        case.copy(&[], "a", "b")
            .exits(2)
            .says("belongs to another user");
        case.copy(&["--no-config"], "a", "b").succeeds();
    }
    fs::remove_file(&path).expect("remove it");
    fs::create_dir(&path).expect("make a directory");
    case.copy(&[], "a", "c").exits(2).says("must be a file");
}

fn the_options_that_apply_are_shown_with_their_places(case: &Case) {
    configured(
        case,
        "[default]\ntimeout = \"10s\"\nstreams = 3\n[host.\"db*\"]\nstreams = 8\n",
    );
    let shown = |words: &[&str]| {
        let run = case
            .bare()
            .env("FASTCP_FLAGS", "--exclude '* *'")
            .args(words);
        let text = run.run().succeeds().stdout_text();
        let (places, options) = text.split_once("\n\n").expect("two parts");
        assert!(places.contains("/etc/fastcp/config"), "{places}");
        assert!(
            places.contains("/.config/fastcp/config  read\n"),
            "{places}"
        );
        assert!(places.ends_with("  set"), "{places}");
        let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        options.lines().map(line).collect::<Vec<_>>()
    };
    let home = case.home.path(".config/fastcp/config");
    let home = home.display();
    assert_eq!(
        shown(&["--show-config", "db1:"]),
        [
            format!("--timeout=10s {home} [default]"),
            format!("--streams=8 {home} [host.\"db*\"]"),
            "'--exclude=* *' FASTCP_FLAGS".to_owned(),
        ]
    );
    assert_eq!(
        shown(&["--show-config", "--streams=1", "--timeout=5s"]).len(),
        1
    );
}

fn options_without_a_meaning_for_a_copy_are_left_out(case: &Case) {
    let text = "[default]\nexclude = \"*.o\"\nkeep = \"7d\"\nsudo = true\nbwlimit = \"90M\"\n\
                max-delete = 5\ndelete = true\nfsync = true\n";
    configured(case, text);
    case.src.file("a", "one");
    case.src.file("b.o", "two");
    let done = case.copy(&["-v"], "a", "a");
    done.succeeds()
        .says("options from the configuration: '--exclude=*.o' --bwlimit=90M --fsync");
    let run = case.fastcp().args(["-", "-v"]).arg(case.dst("pipe"));
    let stdin = fs::File::open(case.scratch.file("in", "three")).expect("open it");
    let run = run.start_with(Stdio::from(stdin));
    run.wait().succeeds().says("cannot have: '--exclude=*.o' ");
    assert_eq!(case.dst.read("pipe"), b"three");
    // In a tree they have one.
    case.copy(&["-r"], "", "tree").succeeds();
    assert_eq!(case.dst.names(), ["a", "pipe", "tree"]);
    assert!(!case.dst.path("tree/b.o").exists());
    let digests = case.scratch.path("sums");
    let digests = format!("--digests={}", digests.display());
    case.copy(&[&digests], "a", "b").succeeds();
    let list = format!("--check={}", &digests["--digests=".len()..]);
    case.fastcp()
        .args([list])
        .arg(case.dst(""))
        .run()
        .succeeds();
}

fn rules_from_a_pipe_are_not_lost_with_an_option_that_is_left_out(case: &Case) {
    configured(case, "[default]\nsnapshot = true\n");
    case.src.dir("d").file("b.o", "one");
    for file in ["-", "/dev/stdin"] {
        let (rules, mut writer) = std::io::pipe().expect("make a pipe");
        writer.write_all(b"*.o\n").expect("write the rules");
        drop(writer);
        let run = case
            .fastcp()
            .args(["-r", "--update", "--exclude-from", file]);
        let run = run.arg(case.src.path("d")).arg(case.dst("d"));
        let done = run.start_with(Stdio::from(rules)).wait();
        done.exits(2).says("--snapshot").says("--no-config");
    }
    assert!(case.dst.names().is_empty());
}

fn what_deletes_is_told_even_if_the_file_wants_it_quiet(case: &Case) {
    configured(case, "[default]\nquiet = true\ndelete = true\n");
    case.src.dir("d").file("a", "one");
    case.copy(&["-r"], "d/", "d")
        .succeeds()
        .says("--delete applies, from ");
    case.copy(&["-rq"], "d/", "d")
        .succeeds()
        .never_says("applies");
}

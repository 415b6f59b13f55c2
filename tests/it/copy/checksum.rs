//! `--checksum` copies files by their content; `--check` names the differences.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::io::Errno;

use crate::support::inject::{self, Inject};
use crate::support::*;

ways! { pull, here =>
    content_decides_what_is_copied_and_a_check_names_what_differs,
}

ways! { local_push, here =>
    a_file_of_the_same_content_is_not_written,
}

ways! { local_push =>
    a_check_does_not_say_that_an_unreadable_file_differs,
}

ways! { local_pull =>
    a_check_refuses_what_it_cannot_do,
    a_check_of_what_is_read_once_is_incomplete,
    a_check_names_hard_links_in_whose_place_is_a_directory,
    a_check_names_extra_entries_although_something_fails,
}

const BIG: usize = 3 * MIB;

fn lines(done: &run::Done) -> BTreeSet<String> {
    done.stdout_text().lines().map(str::to_owned).collect()
}

/// Times, inode and mode of a file, which show whether it was written.
fn status(dir: &Dir, name: &str) -> (u64, u32, i64, i64, i64) {
    let meta = dir.meta(name);
    let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime());
    (meta.ino(), meta.mode(), times.0, times.1, times.2)
}

fn content_decides_what_is_copied_and_a_check_names_what_differs(case: &Case) {
    let (tree, there) = (case.src.dir("tree"), case.dst.dir("there"));
    for name in ["same", "changed", "mode", "time", "sub/missing"] {
        tree.file(name, noise(1, 3000));
        tree.file(format!("{name}.big"), noise(1, BIG));
    }
    tree.file("empty", "");
    tree.hard_link("same link", "same.big");
    for name in tree.names() {
        tree.time(name, 1_400_000_000, 77);
    }
    case.copy(&["-a"], "tree/", "there").succeeds();
    case.copy(&["--check", "-a"], "tree/", "there").succeeds();
    let changed = File::options().write(true).open(there.path("changed.big"));
    let changed = changed.expect("open it");
    changed.write_all_at(b"x", BIG as u64 - 1).expect("write");
    drop(changed);
    there.file("changed", noise(2, 3000));
    for name in ["changed", "changed.big"] {
        there.time(name, 1_400_000_000, 77);
        there.mode(format!("mode{}", name.trim_start_matches("changed")), 0o600);
        there.time(
            format!("time{}", name.trim_start_matches("changed")),
            1_500_000_000,
            0,
        );
    }
    fs::remove_dir_all(there.path("sub")).expect("remove it");
    there.file("more/extra", "content");

    // Without `-a` only content counts, and nothing is written.
    let names = ["same", "changed", "changed.big", "mode", "time.big"];
    let before = names.map(|name| status(&there, name));
    let check = case.copy(&["--check"], "tree/", "there");
    let content = [
        "differs  changed",
        "differs  changed.big",
        "missing  sub/",
        "missing  sub/missing",
        "missing  sub/missing.big",
        "extra    more/",
        "extra    more/extra",
    ];
    let content = content.map(str::to_owned);
    assert_eq!(lines(check.exits(1)), BTreeSet::from(content.clone()));
    check.says("2 entries differ, 3 are missing, 2 are extra");
    let check = case.copy(&["--check", "-a"], "tree/", "there");
    let metadata = ["./", "mode", "mode.big", "time", "time.big"];
    let metadata = metadata.map(|name| format!("metadata {name}"));
    let all: BTreeSet<_> = content.iter().chain(&metadata).cloned().collect();
    assert_eq!(lines(check.exits(1)), all);
    assert_eq!(names.map(|name| status(&there, name)), before);

    // The copy changes what the dry run has said, and writes nothing else.
    let flags = ["-a", "--checksum", "--delete"];
    let planned = case.copy(&[&flags[..], &["-n"]].concat(), "tree/", "there");
    let done = case.copy(
        &[&flags[..], &["--itemize-changes"]].concat(),
        "tree/",
        "there",
    );
    let planned = lines(planned.succeeds());
    assert_eq!(planned, lines(done.succeeds()));
    let code = if case.way.dest_is_far() { "<" } else { ">" };
    for line in [
        format!("{code}fc........ changed"),
        format!("{code}fc........ changed.big"),
        ".f...p..... mode.big".to_owned(),
        ".f..t...... time".to_owned(),
        "*deleting   more/extra".to_owned(),
    ] {
        assert!(planned.contains(&line), "{line}: {planned:?}");
    }
    assert_same(&tree.0, &there.0, Also::HardLinks);
    let after = names.map(|name| status(&there, name).0);
    let stays = |nth: usize| before[nth].0 == after[nth];
    assert!(stays(0) && stays(3) && stays(4) && !stays(1) && !stays(2));
    let check = case.copy(&["--check", "-a", "--json"], "tree/", "there");
    check.succeeds();
    let told = check.stdout_text();
    assert!(told.contains("\"differing\":0,\"extra\":0"), "{told}");
    // Each file is counted once, however large it is.
    let read = check.end();
    assert_eq!(read["files"], read["check"]["same_files"], "{told}");
}

/// Also without `--checksum`, if the file is compared in any case.
fn a_file_of_the_same_content_is_not_written(case: &Case) {
    let flags = ["--no-whole-file"];
    let content = noise(1, BIG);
    case.src.file("a", &content);
    let set = |name: &str| {
        case.dst.file(name, &content);
        case.dst.time(name, 1_400_000_000, 0);
    };
    set("b");
    let before = status(&case.dst, "b");
    case.copy(&flags, "a", "b").succeeds();
    let after = status(&case.dst, "b");
    assert_eq!(before.0, after.0, "a new file was made");
    assert!(after.2 > before.2, "a copy has the time of its making");
    // With `--force` too, as long as no other process writes to the file.
    case.copy(&["--no-whole-file", "--force"], "a", "b")
        .succeeds();
    assert_eq!(case.dst.meta("b").ino(), before.0, "a new file was made");
    // Another name of the file keeps its time, and so does a file whose content decides.
    set("b");
    case.dst.hard_link("c", "b");
    case.copy(&flags, "a", "b").succeeds();
    assert_ne!(case.dst.meta("b").ino(), case.dst.meta("c").ino());
    assert_eq!(case.dst.meta("c").mtime(), 1_400_000_000);
    case.copy(&["--checksum"], "a", "c").succeeds();
    assert_eq!(case.dst.meta("c").mtime(), 1_400_000_000);
    // A file with more rights than a new one gets is replaced.
    set("b");
    case.dst.mode("b", 0o4755);
    case.copy(&flags, "a", "b").succeeds();
    assert_eq!(case.dst.mode_of("b"), 0o755);
    // The last byte differs, so what precedes it is copied from the old file.
    let mut other = content.clone();
    other[BIG - 1] ^= 1;
    case.dst.file("b", &other);
    let done = case.copy(&["--no-whole-file", "--summary"], "a", "b");
    done.succeeds();
    assert_eq!(case.dst.read("b"), content);
    // All zeros at one end, and holes at the other.
    case.dst.file("zeros", vec![0; BIG]);
    let inode = case.dst.meta("zeros").ino();
    let sparse = File::create(case.src.path("zeros")).expect("make it");
    sparse.set_len(BIG as u64).expect("set its length");
    case.copy(&flags, "zeros", "zeros").succeeds();
    assert_eq!(case.dst.meta("zeros").ino(), inode);
}

fn a_check_names_hard_links_in_whose_place_is_a_directory(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("first", "content");
    tree.hard_link("second", "first");
    case.dst.file("there/first/inside", "other");
    case.dst.file("there/second/inside", "other");
    let check = case.copy(&["--check"], "tree/", "there");
    let found = ["differs  first", "differs  second"].map(str::to_owned);
    assert_eq!(lines(check.exits(1)), BTreeSet::from(found));
}

fn a_check_names_extra_entries_although_something_fails(case: &Case) {
    case.src.dir("tree/empty");
    case.dst.file("there/empty/old", "");
    let check = case.copy(&["--check"], "tree/empty/", "there/empty");
    assert_eq!(check.exits(1).stdout_text(), "extra    old\n");
    let check = case.copy_all(&["--check"], &["tree/", "gone"], "there/");
    check.exits(9).never_says("deleted");
    assert_eq!(check.stdout_text(), "extra    empty/old\n");
}

fn a_check_refuses_what_it_cannot_do(case: &Case) {
    case.src.file("a", "content");
    for flag in [
        "--update",
        "--no-clobber",
        "--size-only",
        "--itemize-changes",
        "--follow",
    ] {
        case.copy(&["--check", flag], "a", "b").exits(2).says(flag);
    }
    let done = case.copy(&["--check"], "a", "b").exits(1).stdout_text();
    assert_eq!(done, "missing  b\n");
    case.copy(&["--check", "-q"], "a", "b").exits(1).is_silent();
    case.copy(&["--check"], "nothing", "b").exits(9);
    assert!(case.dst.names().is_empty());
    // What a copy would refuse to replace differs.
    for name in ["file", "big"] {
        case.src.file(
            format!("tree/{name}"),
            noise(1, if name == "big" { BIG } else { 9 }),
        );
        case.dst.dir(format!("there/{name}"));
    }
    case.src.dir("tree/dir");
    case.src.link("tree/link", "elsewhere");
    case.dst.file("there/dir", "a file");
    case.dst.file("there/link", "a file");
    let done = case.copy(&["--check"], "tree/", "there");
    let want = [
        "differs  big",
        "differs  file",
        "differs  link",
        "missing  dir/",
    ];
    assert_eq!(lines(done.exits(1)), want.map(str::to_owned).into());
}

/// Zeros are not compared by digests: the sender has a hole.
fn a_check_does_not_say_that_an_unreadable_file_differs(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.dst.file("zeros", vec![0; BIG]);
    let sparse = File::create(case.src.path("zeros")).expect("make it");
    sparse.set_len(BIG as u64).expect("set its length");
    let check = || case.copying(&["--check"], "zeros", "zeros");
    check().run().succeeds();
    let inject = Inject::new().fail("pread64", Errno::IO);
    let inject = inject.on("zeros").at_server();
    let done = check().inject(&inject).run();
    done.exits(8).says("cannot read the existing file");
    assert_eq!(done.stdout_text(), "", "{done}");
}

/// Nothing is known to differ or to be missing.
fn a_check_of_what_is_read_once_is_incomplete(case: &Case) {
    let file = case.src.file("a", "content");
    case.dst.file("b", "content");
    let fifo = case.scratch.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).expect("make a FIFO");
    let version = std::path::Path::new("/proc/version");
    let sources = [&fifo, std::path::Path::new("/dev/zero"), version];
    let dest = case.dst.path("b");
    let pairs = sources.map(|source| (source, &*dest));
    let sinks = [(&*file, &*fifo), (&file, std::path::Path::new("/dev/null"))];
    for (source, dest) in pairs.into_iter().chain(sinks) {
        let run = case.fastcp().arg("--check");
        let done = run.args([case.from(source), case.to(dest)]).run();
        done.exits(11).says("cannot be compared");
        assert_eq!(done.stdout_text(), "", "{done}");
    }
}

//! What interrupted copies leave: names that tell whose it is, `--clean`, and the end of old ones.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use crate::support::cut_short::aged;
use crate::support::disk::{self, Mounted};
use crate::support::done::Done;
use crate::support::inject::{self, Inject};
use crate::support::procs::until;
use crate::support::*;

ways! { local_push, here =>
    a_leftover_has_the_name_of_its_file,
    clean_removes_what_a_signed_journal_names_and_little_else,
}

ways! { push, local_pull => clean_names_the_host_and_the_path_as_they_are_typed }

ways! { local_push =>
    a_slash_or_the_names_of_earlier_versions_keep_the_resume,
    clean_leaves_a_running_copy_alone,
    clean_keeps_what_a_copy_of_another_host_may_use,
    clean_does_not_look_into_a_disk_that_hangs,
    clean_lists_what_is_on_a_read_only_disk,
    a_lost_login_tells_and_counts_no_leftover_twice,
    old_leftovers_go_when_another_copy_writes_there,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

const SIZE: usize = 3 * MIB;

/// Runs the copy until its first large file lacks only its name.
#[track_caller]
fn interrupted(case: &Case, flags: &[&str], from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    let kill = Inject::new().kill("rename").on("*.part");
    let flags = [&["--retries", "0"][..], flags].concat();
    let done = case.copying(&flags, from, to).inject(&kill).run();
    assert_ne!(done.code, Some(0), "{done}");
    kill.assert_struck(1);
}

/// Runs the copy to its end; it uses what is there.
#[track_caller]
fn resumed(case: &Case, flags: &[&str], from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    let flags = [&["--summary"][..], flags].concat();
    let done = case.copy(&flags, from, to);
    done.succeeds().says(" of it already there and verified");
}

fn clean(case: &Case, flags: &[&str], dir: impl AsRef<OsStr>) -> Done {
    case.fastcp()
        .args(flags)
        .arg("--clean")
        .arg(case.dst(dir))
        .run()
}

/// The first words of the lines, and the ends of their paths.
fn told(done: &Done) -> Vec<(String, String)> {
    let text = done.stdout_text();
    let lines = text.lines().filter(|line| line.contains("/.fastcp-"));
    let mut told: Vec<_> = lines
        .map(|line| {
            let fate = line.split_whitespace().next().expect("a word");
            let (_, name) = line.rsplit_once('/').expect("a path");
            (fate.to_owned(), name.to_owned())
        })
        .collect();
    told.sort();
    told
}

fn tree(case: &Case) -> Dir {
    let tree = case.src.dir("tree");
    tree.file("sub/big", noise(1, SIZE));
    // The file that a killed run has given the mode of others is not resumed.
    tree.mode("sub/big", 0o600);
    tree
}

fn a_slash_or_the_names_of_earlier_versions_keep_the_resume(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = tree(case);
    case.src.file("a", noise(2, SIZE));
    case.src.mode("a", 0o600);
    aged();
    case.dst.dir("into");
    case.dst.dir("filled/tree");
    for (first, then) in [
        (("tree", "into"), ("tree/", "into/tree")),
        (("tree/", "filled/tree"), ("tree", "filled")),
        (("tree", "new"), ("tree/", "new")),
        (("tree/", "other"), ("tree", "other")),
    ] {
        interrupted(case, &["-r"], first.0, first.1);
        resumed(case, &["-r"], then.0, then.1);
    }
    for place in ["into/tree", "filled/tree", "new", "other"] {
        assert_same(&tree.0, case.dst.path(place), Also::Nothing);
    }
    // They had no name in theirs.
    let there = case.dst.dir("there");
    let rename = || {
        for name in there.names() {
            let former = name.replace(".fastcp-a-", ".fastcp-");
            fs::rename(there.path(&name), there.path(former)).expect("rename it");
        }
    };
    interrupted(case, &[], "a", "there");
    rename();
    resumed(case, &[], "a", "there");
    assert_eq!(there.names(), ["a"]);
    fs::remove_file(there.path("a")).expect("remove it");
    interrupted(case, &[], "a", "there");
    rename();
    let done = clean(case, &[], "there");
    let text = done.succeeds().stdout_text();
    assert!(text.contains("\n2 files removed, "), "{text}");
    assert_eq!(there.names(), [""; 0]);
}

/// Also for names that no text has, and for the longest ones.
fn a_leftover_has_the_name_of_its_file(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let long = ["x".repeat(79), "é".repeat(88)].concat();
    let names: [(&[u8], &[u8]); 4] = [
        (b"orders.db", b"orders.db-"),
        (b"\xff\xfe", b"\xff\xfe-"),
        (b"a\nb\x1b[2J", b"a_b_[2J-"),
        (long.as_bytes(), &[b'x'; 79]),
    ];
    for (name, shown) in names {
        let name = OsStr::from_bytes(name);
        fs::write(case.src.path(name), noise(1, SIZE)).expect("write");
        interrupted(case, &[], name, name);
        let left: Vec<PathBuf> = fs::read_dir(&case.dst.0)
            .expect("read it")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        let begins = [b".fastcp-", shown].concat();
        assert_eq!(left.len(), 2, "{left:?}");
        for path in &left {
            let own = path.file_name().expect("a name").as_bytes();
            assert!(own.starts_with(&begins), "{path:?}");
        }
        case.copy(&[], name, name).succeeds();
        assert_same(case.src.path(name), case.dst.path(name), Also::Nothing);
        fs::remove_file(case.dst.path(name)).expect("remove it");
    }
}

fn clean_removes_what_a_signed_journal_names_and_little_else(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    tree(case);
    interrupted(case, &["-r"], "tree", "");
    let sub = Dir(case.dst.path("tree/sub"));
    let named = sub.partial_of("big");
    // A copy that was killed while a small file had its temporary name; then its journal was lost.
    let orphan = sub.partial_of("small");
    sub.file(&orphan, "half of it");
    sub.mode(&orphan, 0o600);
    // Files of a source that have such names, and entries that are no files.
    let journal = case.dst.journal_of("tree");
    let (other, forged) = (case.src.partial_of("big"), "x.journal");
    for name in [
        other.as_str(),
        ".fastcp-x.part",
        &format!(".fastcp-{forged}"),
    ] {
        sub.file(name, "of a source");
        sub.mode(name, 0o600);
    }
    let linked = sub.file(".fastcp-two.part", "of a source");
    sub.hard_link("two", linked);
    sub.link(".fastcp-link.part", "big");
    sub.file(".fastcp-dir.part/.fastcp-a.part", "not looked at");
    let before = sub.names();
    let unsigned = |name: &str| ("unsigned".to_owned(), name.to_owned());
    let expected = |fate: &str| {
        let gone = [&named, &orphan, &journal].map(|name| (fate.to_owned(), name.clone()));
        let kept = [&other, "two.part", "x.part", "x.journal"].map(|name: &str| {
            let name = name.trim_start_matches(".fastcp-");
            unsigned(&format!(".fastcp-{name}"))
        });
        let mut all: Vec<_> = gone.into_iter().chain(kept).collect();
        all.sort();
        all
    };

    let listed = clean(case, &["-n"], "");
    assert_eq!(told(listed.succeeds()), expected("remove"));
    assert_eq!(sub.names(), before);
    assert!(case.dst.has(&journal));

    let removed = clean(case, &[], "");
    assert_eq!(told(removed.succeeds()), expected("removed"));
    let end = "; 4 other files stay (see --help resume)\n";
    let text = removed.stdout_text();
    assert!(
        text.contains("\n3 files removed, ") && text.ends_with(end),
        "{text}"
    );
    assert_eq!(case.dst.names(), ["tree"]);
    let kept: Vec<_> = before
        .iter()
        .filter(|name| ![&named, &orphan].contains(name))
        .cloned()
        .collect();
    assert_eq!(sub.names(), kept);
    clean(case, &["-q"], "").succeeds().is_silent();
    fs::remove_dir_all(&sub.0).expect("remove it");
    let done = clean(case, &[], "");
    assert_eq!(done.succeeds().stdout_text(), "nothing to remove\n");
}

fn clean_names_the_host_and_the_path_as_they_are_typed(case: &Case) {
    let typed = case.to(case.dst.path("nothing"));
    let typed = typed.to_str().expect("ASCII");
    let run = || case.fastcp().arg("--clean");
    let done = run().arg(typed).run();
    done.exits(8)
        .says(&format!("fastcp: {typed}: there is no such directory"));
    case.src.file("f", "a file");
    let file = case.to(case.src.path("f"));
    let done = run().arg(&file).run();
    let file = file.to_str().expect("ASCII").to_owned();
    done.exits(2).says(&format!("{file}: is not a directory"));
    for (words, told) in [
        (&["--clean"][..], "--clean takes one directory"),
        (&["--clean", "a", "b"], "--clean takes one directory"),
        (&["--clean", "-"], "-: --clean takes a directory"),
        (&["--clean", "--json", "a"], "leave out --json"),
    ] {
        case.bare().args(words).run().exits(2).says(told);
    }
    // A leftover, with the path as it is typed.
    let orphan = case.dst.partial_of("small");
    case.dst.file(&orphan, "half of it");
    case.dst.mode(&orphan, 0o600);
    let dir = case.to(&case.dst.0);
    let dir = dir.to_str().expect("ASCII");
    let text = run().arg(dir).run().succeeds().stdout_text();
    assert!(text.contains(&format!("  {dir}/{orphan}\n")), "{text}");
    assert!(!case.dst.has(&orphan));
}

fn clean_leaves_a_running_copy_alone(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, SIZE));
    let held = Inject::new().hold("pwrite64").on("*.part").times(1);
    let copy = case.copying(&[], "a", "a").inject(&held).start();
    held.wait_until_struck(1);
    let before = case.dst.names();
    let done = clean(case, &[], "");
    // The first word of "in use".
    let in_use = |name: &String| ("in".to_owned(), name.clone());
    assert_eq!(
        told(done.succeeds()),
        before.iter().map(in_use).collect::<Vec<_>>()
    );
    assert_eq!(case.dst.names(), before);
    held.release();
    copy.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn clean_keeps_what_a_copy_of_another_host_may_use(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, SIZE));
    case.src.mode("a", 0o600);
    let told = |done: Done, fate: &str| {
        let text = done.succeeds().stdout_text();
        let lines = text.lines().filter(|line| line.contains("/.fastcp-"));
        let lines: Vec<_> = lines.collect();
        assert!(lines.iter().all(|line| line.starts_with(fate)), "{text}");
        lines.len()
    };
    interrupted(case, &[], "a", "a");
    // Its session is then one of another kernel.
    let journal = case.dst.path(case.dst.journal_of("a"));
    journals::age_by_a_boot(&journal);
    assert_eq!(told(clean(case, &[], ""), "in use? "), 2);
    assert_eq!(case.dst.names().len(), 2);
    set_age(&journal, 2 * DAY / 24);
    assert_eq!(told(clean(case, &[], ""), "removed "), 2);

    // Where there are no locks, the time of the last change is all that shows a copy.
    let orphan = case.dst.partial_of("small");
    let orphan = case.dst.file(&orphan, "half of it");
    case.dst.mode(&orphan, 0o600);
    let clean = || {
        let no_locks = Inject::new().fail("flock", Errno::NOLCK);
        let run = case.fastcp().arg("--clean").arg(case.dst(""));
        run.inject(&no_locks).run()
    };
    assert_eq!(told(clean(), "in use? "), 1);
    set_age(&orphan, 2 * DAY / 24);
    assert_eq!(told(clean(), "removed "), 1);
    assert_eq!(case.dst.names(), [""; 0]);
}

/// The directory is that of a FUSE file system whose process has stopped.
fn clean_does_not_look_into_a_disk_that_hangs(case: &Case) {
    // Not where the test itself looks at every file.
    let there = case.scratch.dir("there");
    let disk = there.dir("disk");
    let Some(mounted) = Mounted::caseless(case, &disk.0) else {
        return skip("root and exfat-fuse");
    };
    disk.file(".fastcp-x.part", "of a source");
    let hangs = mounted.hang();
    let done = case.fastcp().arg("--clean").arg(case.to(&there.0)).run();
    assert_eq!(done.succeeds().stdout_text(), "nothing to remove\n");
    drop(hangs);
}

fn clean_lists_what_is_on_a_read_only_disk(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let disk = case.dst.dir("disk");
    let Some(_mounted) = Mounted::small(&disk.0, 4 * SIZE as u64) else {
        return skip("the right to mount");
    };
    case.src.file("a", noise(1, SIZE));
    interrupted(case, &[], "a", "disk/a");
    until("nobody writes to the disk", || {
        disk::run("mount", &["-o", "remount,ro"], &[&disk.0]).then_some(())
    });
    let names = disk.names();
    let fates = |fate: &str| -> Vec<_> {
        let line = |name: &String| (fate.to_owned(), name.clone());
        names.iter().map(line).collect()
    };
    assert_eq!(
        told(clean(case, &["-n"], "disk").succeeds()),
        fates("remove")
    );
    let done = clean(case, &[], "disk");
    done.exits(8)
        .says(&names[0])
        .says("cannot remove this leftover: read-only file system");
    assert_eq!(disk.names(), names);
}

fn a_lost_login_tells_and_counts_no_leftover_twice(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, SIZE));
    interrupted(case, &[], "a", "a");
    case.dst.file(".fastcp-x.part", "of a source");
    case.dst.dir("shut");
    // The journal goes last.
    let inject = Inject::new().hold("unlink").on("*.journal").times(1);
    let inject = inject.fail("open", Errno::IO).on("shut");
    let run = case.fastcp().arg("--clean").arg(case.dst(""));
    let run = run.inject(&inject).start();
    let partial = case.dst.partial_of("a");
    until("it has told what it found", || {
        let (text, errors) = (run.stdout.text(), run.stderr.text());
        let is_told = |name: &str| text.contains(name);
        let is_all = is_told(&partial) && is_told("/.fastcp-x.part") && errors.contains("shut");
        is_all.then_some(())
    });
    for server in case.servers() {
        server.kill();
        assert!(server.ends_within(Duration::from_secs(10)));
    }
    inject.release();
    let done = run.wait();
    done.exits(8);
    let text = done.stdout_text();
    let unsigned = text.lines().filter(|line| line.starts_with("unsigned"));
    assert_eq!(unsigned.count(), 1, "{text}");
    let end = "; 1 other file stays (see --help resume)\n";
    assert!(
        text.contains("\n2 files removed, ") && text.ends_with(end),
        "{text}"
    );
    case.dst.sweep();
    let errors = &done.stderr;
    assert_eq!(
        errors.matches("cannot read this directory").count(),
        1,
        "{errors}"
    );
}

fn set_age(path: &Path, age: Duration) {
    let file = File::options().write(true).open(path).expect("open it");
    file.set_modified(SystemTime::now() - age)
        .expect("set its time");
}

fn old_leftovers_go_when_another_copy_writes_there(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    tree(case);
    case.src.file("other", "another file");
    case.src.file("young", noise(2, SIZE));
    interrupted(case, &["-r"], "tree", "");
    let journal = case.dst.path(case.dst.journal_of("tree"));
    let sub = Dir(case.dst.path("tree/sub"));
    // Not named by that journal.
    sub.file(".fastcp-x.part", "of a source");
    set_age(&journal, 29 * DAY);
    case.copy(&[], "other", "").succeeds();
    assert!(journal.exists() && sub.partials().len() == 2);

    interrupted(case, &[], "young", "");
    set_age(&journal, 31 * DAY);
    case.copy(&[], "other", "").succeeds();
    assert_eq!(sub.names(), [".fastcp-x.part"]);
    let young = [case.dst.journal_of("young"), case.dst.partial_of("young")];
    // The journal of the tree names the directories that the copy has made, so it stays.
    let tree = [case.dst.journal_of("tree"), "tree".to_owned()];
    let mut expected = [&young[..], &tree[..], &["other".to_owned()]].concat();
    expected.sort();
    assert_eq!(case.dst.names(), expected);

    set_age(&case.dst.path(&young[0]), 31 * DAY);
    case.copy(&[], "other", "").succeeds();
    expected.retain(|name| !young.contains(name));
    assert_eq!(case.dst.names(), expected);
    case.sweep();
}

//! `--live`: a source that changes while it is read is copied up to its length at the time it was
//! opened, or up to its end, if the file was cut shorter while it was read.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::support::procs::until;
use crate::support::run::Running;
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, pull =>
    a_log_that_grows_is_copied_to_the_length_that_it_had,
    a_file_that_is_cut_off_is_copied_as_far_as_it_goes,
    a_file_that_is_removed_after_it_was_opened_is_copied_whole,
    files_that_vanish_before_they_are_opened_are_no_failure,
    small_logs_that_grow_are_copied,
    in_place_no_more_stays_than_was_there_to_copy,
    a_database_in_use_is_copied,
}

const SIZE: usize = 24 * MIB;

/// With so little memory that much of the source is unread when the test acts.
const LIVE: [&str; 5] = ["-r", "--live", "--memory", "16Mi", "--no-resume"];

/// Slow enough for the source to change several times during the copy.
const SLOW: &str = "-l64000";

fn cut(path: impl AsRef<std::path::Path>, len: usize) {
    let file = File::options().write(true).open(path);
    file.and_then(|file| file.set_len(len as u64))
        .expect("cut the file");
}

/// Starts a copy of `a` that waits for the test. Returns when content arrives.
fn copy_under_way(case: &Case) -> Running {
    let run = case.copying(&LIVE, "a", "a");
    let run = run.arg(held_back(case, "1M")).start();
    until("the copy is under way", || {
        case.dst.has_partial().then_some(())
    });
    run
}

/// Sets the flag when dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Repeats `write` while `body` runs.
fn while_written<T>(mut write: impl FnMut() + Send, body: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                write();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let _over = Over(&over);
        body()
    })
}

fn a_log_that_grows_is_copied_to_the_length_that_it_had(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    let mut log = File::options()
        .append(true)
        .open(case.src.path("a"))
        .expect("open");
    let done = while_written(
        || log.write_all(b"one more line\n").expect("append"),
        || case.copying(&LIVE, "a", "a").arg(SLOW).run(),
    );
    case.remember();
    done.succeeds().never_says("changed");
    let (log, copy) = (case.src.read("a"), case.dst.read("a"));
    assert!(copy.len() >= SIZE && copy.len() < log.len());
    assert!(log.starts_with(&copy));
}

fn a_file_that_is_cut_off_is_copied_as_far_as_it_goes(case: &Case) {
    let content = noise(1, SIZE);
    for left in [3 * MIB + 77, 0] {
        case.src.file("a", &content);
        let run = copy_under_way(case);
        cut(case.src.path("a"), left);
        let_go(case);
        let done = run.wait();
        case.remember();
        done.succeeds();
        let copy = case.dst.read("a");
        assert!(copy.len() >= left && copy.len() < SIZE, "{}", copy.len());
        assert!(content.starts_with(&copy));
        std::fs::remove_file(case.dst.path("a")).expect("remove the copy");
    }
}

fn a_file_that_is_removed_after_it_was_opened_is_copied_whole(case: &Case) {
    let content = noise(1, SIZE);
    case.src.file("a", &content);
    let run = copy_under_way(case);
    std::fs::remove_file(case.src.path("a")).expect("remove");
    let_go(case);
    run.wait().succeeds();
    assert_eq!(case.dst.read("a"), content);
}

/// Small files behind a big one, so that most of them are not opened yet.
fn files_that_vanish_before_they_are_opened_are_no_failure(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a", noise(1, SIZE));
    const FILES: u64 = 300;
    for number in 0..FILES {
        tree.file(format!("small/{number}"), noise(number, 100_000));
    }
    let run = case.copying(&LIVE, "tree", "").arg("-v");
    let run = run.arg(held_back(case, "1M")).start();
    let into = case.dst.dir("tree");
    until("the copy is under way", || {
        (!into.names().is_empty()).then_some(())
    });
    for number in 0..FILES {
        std::fs::remove_file(tree.path(format!("small/{number}"))).expect("remove");
    }
    let_go(case);
    run.wait().succeeds().says("was removed");
    let come = into.dir("small").names();
    assert!(come.len() < FILES as usize, "none of them vanished in time");
    assert_eq!(into.read("a"), tree.read("a"));

    // A link that leads nowhere has not vanished.
    let links = case.src.dir("links");
    links.link("dangling", "nowhere");
    links.file("file", "");
    case.copy(&["-rL", "--live"], "links", "")
        .exits(9)
        .says("links/dangling: is a dangling link");
    assert_eq!(case.dst.dir("links").names(), ["file"]);
}

fn small_logs_that_grow_are_copied(case: &Case) {
    let tree = case.src.dir("tree");
    let open = |n: u64| {
        let path = tree.file(n.to_string(), format!("log {n}\n").repeat(2000));
        File::options().append(true).open(path).expect("open")
    };
    let mut logs: Vec<File> = (0..200).map(open).collect();
    let write = || {
        for log in &mut logs {
            log.write_all(b"one more line\n").expect("append");
        }
    };
    let done = while_written(write, || case.copy(&["-r", "--live"], "tree", ""));
    case.remember();
    done.succeeds();
    for n in 0..200 {
        let (log, copy) = (tree.read(n.to_string()), case.dst.read(format!("tree/{n}")));
        assert!(copy.len() >= 2000 * 6 && log.starts_with(&copy), "{n}");
    }
}

/// `--inplace` into a longer file, from a source that is truncated during the copy.
fn in_place_no_more_stays_than_was_there_to_copy(case: &Case) {
    let content = noise(1, SIZE);
    case.src.file("a", &content);
    let there = case.dst.file("a", noise(2, SIZE + 4000));
    let inode = case.dst.meta("a").ino();
    let run = case.copying(&LIVE, "a", "a").arg("--inplace");
    let run = run.arg(held_back(case, "1M")).start();
    until("the copy is under way", || {
        let mut begin = [0; 4096];
        let file = File::open(&there).ok()?;
        file.read_exact_at(&mut begin, 0).ok()?;
        content.starts_with(&begin).then_some(())
    });
    let left = 20 * MIB + 77;
    cut(case.src.path("a"), left);
    let_go(case);
    run.wait().succeeds();
    let copy = case.dst.read("a");
    assert!(copy.len() >= left && copy.len() < SIZE, "{}", copy.len());
    assert!(content.starts_with(&copy));
    case.remember();
    assert_eq!(case.dst.meta("a").ino(), inode);
}

/// SQLite rewrites parts of the file all the time; the copy succeeds.
fn a_database_in_use_is_copied(case: &Case) {
    let database = case.src.path("a");
    let started = Command::new("sqlite3")
        .arg(&database)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let Ok(mut sqlite) = started else {
        return skip("sqlite3");
    };
    let mut input = sqlite.stdin.take().expect("a pipe");
    let mut tell = move |sql: &str| input.write_all(sql.as_bytes()).expect("tell sqlite3");
    tell(
        "pragma journal_mode=persist; pragma synchronous=off; create table t(n integer, b blob);\n",
    );
    tell("with recursive c(n) as (select 1 union all select n+1 from c where n<400)\n");
    tell("insert into t select n, randomblob(20000) from c;\n");
    let meta = || std::fs::metadata(&database).map_or(0, |meta| meta.len());
    until("there is a database", || {
        (meta() > 7 * MIB as u64).then_some(())
    });
    let size = meta();
    let mut written = 0;
    let write = || {
        written += 1;
        tell(&format!(
            "update t set b=randomblob(20000) where n%97={};\n",
            written % 97
        ));
        std::thread::sleep(Duration::from_millis(20));
    };
    let done = while_written(write, || case.copying(&LIVE, "a", "a").arg(SLOW).run());
    // sqlite3 ends when its input ends.
    drop(tell);
    sqlite.wait().ok();
    case.remember();
    done.succeeds();
    let copy = case.dst.read("a");
    assert!(copy.len() as u64 >= size && copy.starts_with(b"SQLite format 3"));
}

//! Data that is damaged between an interrupted copy and its resume: the same command finds the
//! damage, sends the data again and succeeds.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, lchown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fastcp::journal::record::{LEN, RecordBody};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;
use rustix::process::{Signal, geteuid, kill_process};

use crate::support::cut_short::{SIZE, SLOW, aged, has_third, kill_receiver};
use crate::support::disk::Mounted;
use crate::support::done::Done;
use crate::support::ending::ENDS_WITHIN;
use crate::support::inject::{self, Inject};
use crate::support::procs::until;
use crate::support::slow::{held_back, let_go};
use crate::support::{journals, *};

ways! { local_pull, here =>
    any_damage_to_a_partial_is_found_and_sent_again,
    what_the_disk_lost_in_a_reboot_is_sent_again_although_size_and_time_are_right,
    a_finished_file_of_a_tree_that_was_damaged_is_sent_again,
}

ways! { local_push, local_pull =>
    a_hole_and_data_that_changed_places_are_found,
    trust_skips_the_reading_but_not_where_a_length_differs,
    what_cannot_be_read_again_is_sent_again,
    a_disk_that_hangs_while_it_is_read_again_ends_with_the_user,
    what_one_login_has_read_or_written_the_next_does_not_read,
}

ways! { push, between =>
    what_is_damaged_is_sent_again_over_ssh_and_between_hosts,
}

ways! { local_push =>
    a_write_that_the_disk_lost_is_found_after_a_kill,
    what_several_hosts_have_is_verified_for_each,
    what_is_missing_comes_before_small_files_are_read,
    files_of_an_earlier_run_get_what_this_run_keeps_and_no_backup,
}

const PAGE: u64 = 4096;

/// Copies `a` to `b` and kills the receiver when the journal records a third. Returns the
/// recorded ranges.
fn interrupted(case: &Case) -> Vec<Range<u64>> {
    let run = case.copying(&SLOW, "a", "b").start();
    let journal = until("a third is there", || {
        case.dst
            .journals()
            .pop()
            .filter(|journal| has_third(journal))
    });
    kill_receiver(case, run);
    journals::recorded(&journal)
}

fn partial(case: &Case) -> File {
    let path = case.dst.partials().pop().expect("a partial");
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.expect("open the partial")
}

/// Runs the copy again to its end. On several streams a late chunk is sent again.
#[track_caller]
fn again(case: &Case, flags: &[&str]) -> Done {
    let all = ["--summary", "--compress", "none"];
    let all = [&all[..], &["--streams=1", "--route=direct"], flags].concat();
    let done = case.copy(&all, "a", "b");
    done.succeeds();
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    assert_eq!(case.dst.names(), ["b"]);
    done
}

fn flip(file: &File, at: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    byte[0] ^= 1;
    file.write_all_at(&byte, at).expect("write");
}

fn clear(file: &File, at: u64, len: u64) {
    let zeros = vec![0; len as usize];
    file.write_all_at(&zeros, at).expect("write");
}

fn any_damage_to_a_partial_is_found_and_sent_again(case: &Case) {
    type Damage = fn(&File, &[Range<u64>]);
    let damages: [(&str, Damage); 8] = [
        ("a bit at the start", |file, there| {
            flip(file, there[0].start)
        }),
        ("a bit in the middle", |file, there| {
            flip(file, there[there.len() / 2].start + 70_001)
        }),
        ("a bit at the end", |file, there| {
            flip(file, there.last().expect("some").end - 1)
        }),
        ("a page at the start", |file, there| {
            clear(file, there[0].start, PAGE)
        }),
        ("a page in the middle", |file, there| {
            clear(file, there[there.len() / 2].start + PAGE, PAGE)
        }),
        ("three pieces", |file, there| {
            let third = there.len() / 3;
            for range in &there[third..third + 3] {
                clear(file, range.start, range.end - range.start);
            }
        }),
        ("cut", |file, there| {
            let most = there.iter().map(|range| range.end).max().expect("some");
            file.set_len(most / 2 + 17).expect("cut");
        }),
        ("extended", |file, _| {
            file.set_len(SIZE as u64 + 5000).expect("extend");
        }),
    ];
    case.src.file("a", noise(1, SIZE));
    aged();
    for (what, damage) in damages {
        let there = interrupted(case);
        damage(&partial(case), &there);
        let done = again(case, &[]);
        let wire = done.wire_bytes();
        println!("{what}: {wire} bytes on the wire");
        if what != "extended" && what != "cut" {
            done.says("damaged at the destination and sent again");
        }
        if what != "cut" && case.way != Way::Here {
            assert!(wire < SIZE - SIZE / 5, "{what}: {wire} bytes were sent");
        }
        std::fs::remove_file(case.dst.path("b")).expect("remove");
    }
}

fn a_hole_and_data_that_changed_places_are_found(case: &Case) {
    let piece = noise(9, 3 * MIB);
    let pieces: Vec<(u64, &[u8])> = (0..8)
        .map(|number| (number * 16 * MIB as u64, &piece[..]))
        .collect();
    case.src.sparse("a", 200 * MIB as u64 + 5, &pieces);
    aged();
    for digests in [false, true] {
        interrupted(case);
        let file = partial(case);
        let whole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, whole, PAGE, 16 * PAGE).expect("punch a hole");
        file.write_all_at(b"not a hole", 9 * MIB as u64 + 77)
            .expect("write");
        let list = case.scratch.path("list");
        let flags = ["--digests", list.to_str().expect("ASCII")];
        again(case, if digests { &flags } else { &[] });
        if digests {
            let digest = blake3::hash(&case.src.read("a"));
            let listed = String::from_utf8(case.scratch.read("list")).expect("UTF-8");
            assert_eq!(listed, format!("{digest}  b\n"));
        }
        std::fs::remove_file(case.dst.path("b")).expect("remove");
    }
}

fn trust_skips_the_reading_but_not_where_a_length_differs(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    aged();
    interrupted(case);
    again(case, &["--trust-partial"]).says("already there and not read again");
    std::fs::remove_file(case.dst.path("b")).expect("remove");
    let there = interrupted(case);
    let most = there.iter().map(|range| range.end).max().expect("some");
    partial(case).set_len(most / 2).expect("cut");
    again(case, &["--trust-partial"]);
    std::fs::remove_file(case.dst.path("b")).expect("remove");
    interrupted(case);
    let journal = case.dst.journals().pop().expect("a journal");
    journals::age_by_a_boot(&journal);
    again(case, &["--trust-partial"]).says("already there and verified");
}

fn a_finished_file_of_a_tree_that_was_damaged_is_sent_again(case: &Case) {
    let tree = case.src.dir("a");
    for number in 0..200 {
        tree.file(format!("d/{number:03}"), noise(number, 9_000));
    }
    tree.hard_link("d/linked", "d/003");
    tree.file("e", noise(7, 8 * MIB));
    tree.sparse("f", 20 * MIB as u64, &[(MIB as u64, &noise(8, 8 * MIB))]);
    case.src
        .sparse("g", 40 * MIB as u64, &[(MIB as u64, &noise(9, 8 * MIB))]);
    case.src.file("h", noise(10, 8 * MIB));
    let into = case.dst.dir("b");
    aged();
    let copy = |flags: &[&str]| {
        let run = case.fastcp().args(flags).arg("-r");
        run.args([case.src("a"), case.src("g"), case.src("h"), case.dst("b")])
    };
    // The sender chooses which files come first.
    let big = ["a/e", "a/f", "g", "h"];
    let placed = || big.into_iter().filter(|name| into.has(name));
    let run = copy(&SLOW).start();
    until("some are finished and some are not", || {
        (1..4).contains(&placed().count()).then_some(())
    });
    kill_receiver(case, run);
    // A pack of small files may have arrived.
    let small = into.dir("a/d").names();
    let small = small.iter().filter(|name| !name.starts_with('.'));
    let small: Vec<_> = small.map(|name| format!("a/d/{name}")).collect();
    let some = small.first().into_iter().chain(small.last());
    for name in some.map(String::as_str).chain(placed()) {
        damage(&into.path(name));
    }
    copy(&["--compress", "none"]).run().succeeds();
    assert_same(&tree.0, into.path("a"), Also::Nothing);
    for name in ["g", "h"] {
        assert_same(case.src.path(name), into.path(name), Also::Nothing);
    }
    assert_eq!(into.names(), ["a", "g", "h"]);
}

/// A file system may keep the size and time of a new file and lose its content.
fn what_the_disk_lost_in_a_reboot_is_sent_again_although_size_and_time_are_right(case: &Case) {
    let tree = case.src.dir("a");
    for number in 0..50 {
        tree.file(format!("d/{number:03}"), noise(number, 9_000));
    }
    for (nth, name) in (0..).zip(["e", "f", "g"]) {
        tree.file(name, noise(7, 8 * MIB));
        // With equal times one might be taken for another that has been moved.
        tree.time(name, 1_600_000_000 + nth, 0);
    }
    let into = case.dst.dir("b");
    // It was there before the copy.
    let former = into.file("a/d/000", noise(0, 9_000));
    let times = std::fs::metadata(tree.path("d/000")).expect("it is there");
    let times = std::fs::FileTimes::new().set_modified(times.modified().expect("a time"));
    let file = File::options().write(true).open(&former).expect("open");
    file.set_times(times).expect("set times");
    aged();
    let copy = |flags: &[&str]| {
        let run = case.fastcp().args(flags).arg("-a");
        run.args([case.src("a"), case.dst("b")])
    };
    let placed = |name: &&str| into.has(format!("a/{name}"));
    let run = copy(&SLOW).start();
    let big = until("some are finished and some are not", || {
        let big: Vec<_> = ["e", "f", "g"].into_iter().filter(placed).collect();
        (1..3).contains(&big.len()).then_some(big)
    });
    kill_receiver(case, run);
    journals::age_by_a_boot(&into.journals().pop().expect("a journal"));
    let names = into.dir("a/d").names();
    let small = names
        .iter()
        .filter(|name| !name.starts_with('.') && *name != "000");
    let small: Vec<_> = small.map(|name| format!("a/d/{name}")).collect();
    let big = big.into_iter().map(|name| format!("a/{name}"));
    let mut last = None;
    for name in small.into_iter().take(2).chain(big) {
        damage(&into.path(&name));
        last = Some(into.path(&name));
    }
    // A run that cannot replace one of them leaves it to the next run.
    let used = last.expect("one is damaged");
    let writer = OpenOptions::new().append(true).open(&used).expect("open");
    copy(&["--compress", "none"]).run().exits(11);
    drop(writer);
    tree::no_longer_written(&used);
    let inode = std::fs::metadata(&former).expect("it is there").ino();
    copy(&["--compress", "none"]).run().succeeds();
    assert_same(&tree.0, into.path("a"), Also::ModesAndTimes);
    assert_eq!(into.names(), ["a"]);
    // It was not replaced.
    assert_eq!(
        std::fs::metadata(&former).expect("it is there").ino(),
        inode
    );
    if inject::permitted() {
        what_the_disk_lost_does_not_stay(case, &tree);
    }
}

/// Without `-t`, a file that an interrupted run has put in place is newer than its source. The user
/// replaces another one of them.
fn what_the_disk_lost_does_not_stay(case: &Case, tree: &Dir) {
    for flag in ["-u", "--ignore-existing"] {
        let into = case.dst.dir(flag.trim_matches('-'));
        let copy = || {
            let run = case.fastcp().args(["-r", flag, "--retries", "0"]);
            run.args([case.src("a").as_os_str(), case.to(&into.0).as_os_str()])
        };
        let inject = Inject::new().hold("seek_data").on("*/src/a/g");
        let run = copy().inject(&inject).start();
        let journal = until("the others are there", || {
            let journal = into.journals().pop()?;
            let content = std::fs::read(&journal).ok()?;
            let bodies = journals::bodies(&journal, &content).into_iter();
            let finished = bodies.filter(|body| matches!(body, RecordBody::Finished(_)));
            (finished.count() == 52).then_some(journal)
        });
        kill_receiver(case, run);
        journals::age_by_a_boot(&journal);
        for name in ["a/e", "a/d/001"] {
            damage(&into.path(name));
        }
        let replaced = into.file("a/d/002", "by the user");
        tree::no_longer_written(&replaced);
        copy().run().succeeds();
        assert_eq!(into.read("a/d/002"), b"by the user", "{flag}");
        into.file("a/d/002", tree.read("d/002"));
        assert_same(&tree.0, into.path("a"), Also::Nothing);
        assert_eq!(into.names(), ["a"]);
    }
}

/// A backup keeps the version from before the first run, and the metadata is what the last run keeps.
fn files_of_an_earlier_run_get_what_this_run_keeps_and_no_backup(case: &Case) {
    if !geteuid().is_root() {
        return skip("root, for files of other users");
    }
    let tree = case.src.dir("a");
    let small: Vec<_> = (0..50).map(|number| format!("d/{number:03}")).collect();
    let big = ["e", "f", "g"].map(str::to_owned);
    for (nth, name) in (0..).zip(small.iter().chain(&big)) {
        let len = if small.contains(name) { 9_000 } else { 8 * MIB };
        tree.file(name, noise(nth, len));
        tree.mode(name, 0o640);
        lchown(tree.path(name), Some(12345), Some(12345)).expect("give it away");
    }
    let before = case.scratch.path("before");
    let copied = Command::new("cp")
        .arg("-a")
        .args([&tree.0, &before])
        .status();
    assert!(copied.expect("start cp").success());
    aged();
    for (first, second, also) in [
        (&[][..], &["-p", "--owner"][..], Also::ModesAndTimes),
        (
            &["--owner"],
            &["--owner", "--strict", "--remove-source-files"],
            Also::Nothing,
        ),
    ] {
        let into = case.dst.dir("b").dir("a");
        for name in small.iter().chain(&big) {
            into.file(name, format!("the old {name}"));
        }
        let copy = |flags: &[&str]| {
            let run = case.fastcp().args(["-r", "--backup-dir=../old"]);
            run.args(flags).args([case.src("a"), case.dst("b")])
        };
        let has_new = |name: &&String| into.meta(name).len() >= 9_000;
        let run = copy(first).args(SLOW).start();
        until("some are finished and some are not", || {
            let big = big.iter().filter(has_new).count();
            // Most senders begin with the small files.
            let is_soon = big == 1 && small.iter().all(|name| has_new(&name));
            (is_soon || big == 2).then_some(())
        });
        kill_receiver(case, run);
        let journal = case.dst.dir("b").journals().pop().expect("a journal");
        let content = std::fs::read(&journal).expect("read the journal");
        let bodies = journals::bodies(&journal, &content);
        let finished = bodies.iter();
        let finished = finished.filter(|body| matches!(body, RecordBody::Finished(_)));
        let placed: Vec<_> = small.iter().chain(&big).filter(has_new).collect();
        // A file that was placed just before the kill may have no record.
        let are_recorded = finished.count() == placed.len();
        // The first is small and the last is big.
        for name in placed.first().into_iter().chain(placed.last()) {
            damage(&into.path(name));
        }
        copy(second).args(["--compress", "none"]).run().succeeds();
        assert_same(&before, &into.0, also);
        for name in small.iter().chain(&big) {
            let kept = case.dst.read(format!("old/a/{name}"));
            let is_old = kept == format!("the old {name}").as_bytes();
            assert!(is_old || !are_recorded, "{name}");
            assert_eq!(into.meta(name).uid(), 12345, "{name}");
            let is_moved = second.contains(&"--remove-source-files");
            assert_eq!(tree.has(name), !is_moved, "{name}");
        }
        assert_eq!(case.dst.dir("b").names(), ["a"]);
        std::fs::remove_dir_all(case.dst.path("b")).expect("remove the copy");
        std::fs::remove_dir_all(case.dst.path("old")).expect("remove the backups");
    }
}

/// Damages a file as a faulty disk does: the times stay. Returns the file's size in bytes.
pub(super) fn damage(path: &Path) -> u64 {
    let meta = std::fs::metadata(path).expect("it is there");
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.expect("open");
    flip(&file, (meta.len() - 1).min(MIB as u64 + 77));
    let times = std::fs::FileTimes::new().set_modified(meta.modified().expect("a time"));
    file.set_times(times).expect("set times");
    meta.len()
}

fn what_is_damaged_is_sent_again_over_ssh_and_between_hosts(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    aged();
    let there = interrupted(case);
    flip(&partial(case), there[there.len() / 2].start);
    let done = again(case, &[]);
    done.says("damaged at the destination and sent again");
    done.never_says("because the source changed");
}

fn what_cannot_be_read_again_is_sent_again(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, SIZE));
    aged();
    interrupted(case);
    let inject = Inject::new().fail("pread64", Errno::IO);
    let inject = inject.on("*.part").after(1).times(2);
    let run = case.copying(&["--summary", "--compress", "none"], "a", "b");
    // On several streams a late chunk is sent again.
    let run = run.args(["--streams=1", "--route=direct"]);
    let done = run.inject(&inject).run();
    done.succeeds()
        .says("damaged at the destination and sent again");
    inject.assert_struck(2);
    assert!(done.wire_bytes() < SIZE, "{} bytes", done.wire_bytes());
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
}

/// The first read of the partial file hangs. This does not count as silence of the other end, and
/// Ctrl-C ends the copy.
fn a_disk_that_hangs_while_it_is_read_again_ends_with_the_user(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, SIZE));
    aged();
    interrupted(case);
    let inject = Inject::new().hold("pread64").on("*.part").times(1);
    let run = case.copying(&["--timeout", "5s", "--retries", "0"], "a", "b");
    let running = run.inject(&inject).start();
    inject.wait_until_struck(1);
    std::thread::sleep(Duration::from_secs(7));
    let began = Instant::now();
    running.signal(Signal::INT);
    running.wait().exits(130);
    assert!(began.elapsed() < ENDS_WITHIN, "{:?}", began.elapsed());
    inject.release();
    until("the other end is gone", || {
        procs::marked(case.mark()).is_empty().then_some(())
    });
    again(case, &[]);
}

fn what_one_login_has_read_or_written_the_next_does_not_read(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    aged();
    let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum();
    let there: u64 = bytes(&interrupted(case));
    let flags = ["--memory", "16Mi", "--compress", "none", "--json"];
    let running = case.copying(&flags, "a", "b");
    let running = running.arg(held_back(case, "1M")).start();
    // The first copy may have been killed late, so that little is left.
    let more = (SIZE as u64).saturating_sub(there) / 3;
    until("more is there", || {
        let recorded: u64 = bytes(&journals::recorded(&case.dst.journals().pop()?));
        (recorded > there + more).then_some(())
    });
    let server = case.servers().pop().expect("a server runs").pid;
    kill_process(server, Signal::KILL).expect("kill the server");
    let_go(case);
    let done = running.wait();
    done.succeeds();
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    let told = done.end();
    assert_eq!(told["logins_again"], 1);
    let verified = told["verified_bytes"].as_u64().expect("a number");
    // The server may die after it read a chunk and before it recorded the chunk.
    assert!(verified >= there, "{verified} of {there}");
    assert!(verified < there + 3 * MIB as u64, "{verified} of {there}");
}

/// A thin volume that is full for a moment: the kernel reports the lost write to the next sync,
/// and to no later one. The page cache then differs from the disk.
fn a_write_that_the_disk_lost_is_found_after_a_kill(case: &Case) {
    let at = case.dst.dir("disk");
    let Some(disk) = Mounted::thin(case, &at.0, 256 << 20) else {
        return skip("root and ext4");
    };
    case.src.file("a", noise(1, 2 * SIZE));
    aged();
    let run = case.copying(&SLOW, "a", "disk/b").start();
    let there = |bytes: u64| (at.partial_bytes() > bytes).then_some(());
    until("some of it is there", || there(8 << 20));
    let partial = File::open(at.partials().pop().expect("a partial")).expect("open it");
    partial.sync_all().expect("there is room");
    let lost = disk.lose(&partial, || {
        let before = at.partial_bytes();
        until("more of it is written", || there(before + (6 << 20)));
    });
    drop(partial);
    assert!(lost, "the disk took it all");
    kill_receiver(case, run);
    let done = case.copy(&["--summary"], "a", "disk/b");
    done.succeeds()
        .says("damaged at the destination and sent again");
    // Compares with the content on disk.
    let copied = File::open(at.path("b")).expect("open it");
    copied.sync_all().expect("there is room");
    fadvise(&copied, 0, None, Advice::DontNeed).expect("drop the cache");
    assert_same(case.src.path("a"), at.path("b"), Also::Nothing);
    std::fs::remove_file(at.path("b")).expect("remove it");
}

fn what_several_hosts_have_is_verified_for_each(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    let hosts = ["one", "two"].map(|name| case.dst.dir(name));
    aged();
    let copy = |flags: &[&str]| {
        let at = |nth: usize| format!("h{nth}:{}", hosts[nth].path("b").display());
        let run = case.fastcp().args(flags).arg(case.src("a"));
        run.arg(at(0)).arg("--also").arg(at(1))
    };
    let run = copy(&["-l", "40000", "--compress", "none", "--retries", "0"]).start();
    until("some of it is recorded at both", || {
        let journals = hosts.iter().filter_map(|dir| dir.journals().pop());
        let recorded = journals.filter(|journal| !journals::recorded(journal).is_empty());
        (recorded.count() == 2).then_some(())
    });
    run.signal(Signal::INT);
    assert_ne!(run.wait().code, Some(0));
    for (dir, part) in hosts.iter().zip([3, 5]) {
        let journal = dir.journals().pop().expect("a journal");
        let there = journals::recorded(&journal);
        let path = dir.partials().pop().expect("a partial");
        let file = OpenOptions::new().read(true).write(true).open(path);
        flip(&file.expect("open"), there[there.len() / part].start);
    }
    copy(&["--compress", "none"]).run().succeeds();
    for dir in &hosts {
        assert_same(case.src.path("a"), dir.path("b"), Also::Nothing);
        assert_eq!(dir.names(), ["b"]);
    }
}

const SMALL: usize = 5000;

/// Makes a directory that a walk reaches after most of the small files beside it. The file system
/// decides the order of names.
fn late_directory(beside: &Dir) -> String {
    let names = |from: usize| (from..from + 32).map(|number| format!("dir-{number}"));
    names(0).for_each(|name| drop(beside.dir(name)));
    for number in 0..SMALL {
        beside.file(small(number), format!("{number} is small"));
    }
    names(32).for_each(|name| drop(beside.dir(name)));
    let read = std::fs::read_dir(&beside.0).expect("read the directory");
    let read = read.map(|entry| entry.expect("a name").file_name().into_string());
    let read: Vec<_> = read.map(|name| name.expect("UTF-8")).collect();
    let late = read.iter().rposition(|name| name.starts_with("dir-"));
    let late = late.expect("it was made");
    assert!(late > SMALL - SMALL / 10, "only {late} names come before");
    for name in names(0).chain(names(32)).filter(|name| *name != read[late]) {
        std::fs::remove_dir(beside.path(name)).expect("remove the directory");
    }
    read[late].clone()
}

fn small(number: usize) -> String {
    format!("small-{number}")
}

/// A tree of small files that have arrived, and one missing file. The missing file is sent at
/// once, however many small files are still to be verified. No small file counts as complete
/// before it is verified.
fn what_is_missing_comes_before_small_files_are_read(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    // On a tmpfs where that is permitted: many disks take long to create so many files.
    let [_src, _dst] = [&case.src, &case.dst].map(|dir| Mounted::small(&dir.0, 64 << 20));
    let tree = case.src.dir("tree");
    let late = late_directory(&tree.dir("d"));
    let late = format!("d/{late}");
    let big = format!("{late}/big");
    tree.file(&big, noise(1, 5 * MIB));
    let small = |number| format!("d/{}", small(number));
    tree.hard_link("linked", small(3));
    aged();
    let there = case.dst.dir("tree");
    let copy = || case.copying(&["-rp", "--json", "--retries", "0"], "tree", "");
    // No data of the big file is sent.
    let inject = Inject::new().hold("seek_data").on("*/src/tree/*/big");
    let run = copy().inject(&inject).start();
    // A hard link is made after all other entries.
    until("the small files are there", || {
        let names = std::fs::read_dir(there.path("d")).ok()?.flatten();
        let placed = names.filter(|name| !name.file_name().as_encoded_bytes().starts_with(b"."));
        let recorded = std::fs::metadata(case.dst.journals().pop()?).ok()?.len() as usize / LEN;
        (recorded > SMALL && placed.count() >= SMALL).then_some(())
    });
    kill_receiver(case, run);
    for partial in there.dir(&late).partials() {
        std::fs::remove_file(partial).expect("remove the partial");
    }
    let damaged = [0, 7, SMALL / 2, SMALL - 1].map(|number| damage(&there.path(small(number))));
    let inject = Inject::new().hold("sync_file_range").on("small-*");
    let run = copy().inject(&inject).start();
    until("the big file is there", || there.has(&big).then_some(()));
    inject.wait_until_struck(1);
    let has_both = there.has("linked") && there.has(small(3));
    assert!(!has_both, "a further name of a file that was not read");
    inject.release();
    let done = run.wait();
    done.succeeds();
    assert_same(&tree.0, &there.0, Also::ModesAndTimes);
    assert_same(&tree.0, &there.0, Also::HardLinks);
    assert_eq!(case.dst.names(), ["tree"]);
    let told = done.end();
    let damaged: u64 = damaged.iter().sum();
    assert_eq!(told["damaged_bytes"], damaged, "{told}");
    let verified = told["verified_bytes"].as_u64().expect("a number");
    assert_eq!(told["already_bytes"], verified - damaged, "{told}");
}

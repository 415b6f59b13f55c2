//! Sources that change, vanish or cannot be read during a copy. A file is copied as it was at one
//! moment, or it fails with the reason; the other files continue. If a file does nothing but grow,
//! that moment is the end of a reading.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use rustix::process::geteuid;

use crate::support::inject::{self, Inject};
use crate::support::offspring::dying_with_this_thread;
use crate::support::procs::{self, TcpState, until};
use crate::support::run::Running;
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, pull =>
    a_file_that_changes_once_is_copied_as_it_is_then,
    a_file_that_goes_on_changing_is_never_called_whole,
    a_log_that_goes_on_growing_is_copied_as_far_as_it_was_read_and_told,
    a_file_that_is_removed_or_replaced_is_never_called_whole,
    files_that_vanish_from_a_tree_are_told,
    a_disk_that_fails_in_the_middle_of_a_file_fails_that_file_alone,
}

ways! { here, local_push, local_pull, local_between =>
    files_that_grow_in_both_readings_are_copied_with_their_warning,
}

ways! { push =>
    scp_copies_a_file_that_grows_up_to_the_length_that_it_had,
}

ways! { local_pull, local_between =>
    a_file_that_grew_stays_at_the_source_and_is_no_failure,
}

ways! { local_push, local_pull =>
    a_live_file_that_grows_before_its_pack_is_sent_again_keeps_its_length,
    a_file_that_grows_before_its_pack_is_sent_again_keeps_its_length_and_is_told,
    a_file_without_a_size_that_changes_before_its_pack_is_sent_again_fails_alone,
}

const SIZE: usize = 24 * MIB;

/// So little memory that much of the source is unread when the test acts.
const LITTLE: [&str; 3] = ["-r", "--memory", "16Mi"];

/// Starts a copy of `a` over `there` that waits for the test. Returns when content arrives.
fn copy_under_way(case: &Case) -> Running {
    copy_at(case, &held_back(case, "1M"))
}

/// The same at the rate of this option.
fn copy_at(case: &Case, limit: &str) -> Running {
    case.dst.file("there", "old");
    case.src.file("a", noise(1, SIZE));
    let run = case.copying(&LITTLE, "a", "there").arg(limit).start();
    until("the copy is under way", || {
        case.dst.has_partial().then_some(())
    });
    run
}

fn assert_as_before(case: &Case) {
    assert_eq!(case.dst.read("there"), b"old");
    assert_eq!(case.dst.names(), ["there"]);
}

fn a_file_that_changes_once_is_copied_as_it_is_then(case: &Case) {
    type Change = fn(&Dir);
    let changes: [(&str, Change); 3] = [
        ("grows", |src| src.append("a", "more")),
        ("shrinks", |src| {
            let file = File::options().write(true).open(src.path("a"));
            file.and_then(|file| file.set_len(5 * MIB as u64 + 5))
                .expect("shrink the file");
        }),
        ("is written, and its time set back", |src| {
            let meta = src.meta("a");
            let file = File::options()
                .write(true)
                .open(src.path("a"))
                .expect("open");
            file.write_all_at(b"other", 100).expect("write");
            file.set_modified(meta.modified().expect("a time"))
                .expect("set a time");
        }),
    ];
    for (what, change) in changes {
        let run = copy_under_way(case);
        change(&case.src);
        let_go(case);
        let done = run.wait();
        assert_eq!(done.code, Some(0), "{what}: {done}");
        assert_same(case.src.path("a"), case.dst.path("there"), Also::Nothing);
    }
}

fn a_file_that_goes_on_changing_is_never_called_whole(case: &Case) {
    // Slow to the end: each reading must take longer than the pauses of the writer.
    let run = copy_at(case, "-l64000");
    let (pid, src) = (run.pid(), &case.src);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let file = File::options().write(true).open(src.path("a"));
            let file = file.expect("open");
            let mut round = 0u64;
            while !procs::ended_within(pid, Duration::from_millis(2)) {
                round += 1;
                file.write_all_at(&round.to_le_bytes(), 0).expect("write");
            }
        });
        let done = run.wait();
        writer.join().expect("the writer");
        done.exits(7).says("during the copy");
    });
    assert_as_before(case);
}

fn a_log_that_goes_on_growing_is_copied_as_far_as_it_was_read_and_told(case: &Case) {
    let run = copy_under_way(case);
    case.src.append("a", "more");
    let (pid, src) = (run.pid(), &case.src);
    let_go(case);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !procs::ended_within(pid, Duration::from_millis(2)) {
                src.append("a", "more");
            }
        });
        let done = run.wait();
        writer.join().expect("the writer");
        case.remember();
        done.exits(14)
            .says("src/a: grew during the copy: only its first 25.2 MB were copied");
    });
    let copy = case.dst.read("there");
    assert!(copy.starts_with(&noise(1, SIZE)) && case.src.read("a").starts_with(&copy));
}

/// A big file: more than fits into a pack.
const BIG: usize = 257 << 10;

/// Where the reading of a file is held: at the first piece of the first reading, at the first piece of
/// the second, and where the file is read to compare.
fn held_reading(case: &Case, len: usize) -> Inject {
    // Pieces of 128 KiB, but for a copy on this host.
    let pieces = match case.way {
        Way::Here => 1,
        _ => len.div_ceil(128 << 10),
    };
    let rest = pieces - 1;
    [0, rest, 2 * rest]
        .into_iter()
        .fold(Inject::new(), |inject, spared| {
            inject.hold("pread64").on("*/src/a").after(spared).times(1)
        })
}

/// Does this at each reading of `a` that is held.
fn at_each_reading(inject: &Inject, what: &[&dyn Fn()]) {
    for (nth, change) in (1..).zip(what) {
        inject.wait_until_struck(nth);
        change();
        inject.release_first(nth);
    }
    inject.release();
}

fn files_that_grow_in_both_readings_are_copied_with_their_warning(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let grow = || case.src.append("a", "more");
    let rewrite = || {
        let file = File::options().write(true).open(case.src.path("a"));
        file.and_then(|file| file.write_all_at(b"other", 0))
            .expect("write");
    };
    // A big file is compared with what the second reading has sent, a small one with what the first
    // has read.
    for (len, copied) in [(BIG, BIG + 4), (1000, 1000)] {
        case.src.file("a", noise(1, len));
        // The time shows which reading the copy is of.
        case.src.time("a", 1_000_000_000, 0);
        let inject = held_reading(case, len);
        let run = case.copying(&["-p", "--json"], "a", "a");
        let run = run.inject(&inject).start();
        let mut changes: Vec<&dyn Fn()> = vec![&grow, &grow];
        if len == BIG {
            changes.push(&|| ());
        }
        at_each_reading(&inject, &changes);
        let done = run.wait();
        case.remember();
        done.exits(14)
            .says("src/a: grew during the copy: only its first ")
            .says("--live copies files that are in use");
        let json = done.stdout_text();
        assert!(json.contains("\"exit_code\":14") && json.contains("\"files_grown\":1"));
        let copy = case.dst.read("a");
        assert_eq!(copy.len(), copied);
        assert!(case.src.read("a").starts_with(&copy));
        let first = case.dst.meta("a").mtime() == 1_000_000_000;
        assert_eq!(first, len != BIG, "times of the reading that was copied");
        // It is no complete copy.
        case.copy(&["-p", "-u"], "a", "a").succeeds();
        assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);

        let before = case.dst.read("a");
        case.src.append("a", "and later");
        let inject = held_reading(case, before.len() + 9);
        let run = case.copying(&["--whole-file"], "a", "a");
        let run = run.inject(&inject).start();
        let change = || {
            rewrite();
            grow();
        };
        match len {
            BIG => at_each_reading(&inject, &[&grow, &grow, &rewrite]),
            _ => at_each_reading(&inject, &[&grow, &change]),
        }
        run.wait().exits(7).says("src/a: ").says("during the copy");
        assert_eq!(case.dst.read("a"), before);
        for dir in [&case.src, &case.dst] {
            std::fs::remove_file(dir.path("a")).expect("remove");
        }
    }
}

fn scp_copies_a_file_that_grows_up_to_the_length_that_it_had(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    for len in [1000, BIG] {
        let content = noise(1, len);
        case.src.file("a", &content);
        let inject = Inject::new().hold("pread64").on("*/src/a").times(1);
        let run = case
            .bare()
            .args(["--scp", "-F"])
            .arg(case.host().ssh_config());
        let run = run
            .args([case.src("a"), case.dst("a")])
            .inject(&inject)
            .start();
        inject.wait_until_struck(1);
        case.src.append("a", "more");
        inject.release();
        let done = run.wait();
        case.remember();
        done.succeeds().is_silent();
        assert_eq!(case.dst.read("a"), content);
    }
}

fn a_file_that_grew_stays_at_the_source_and_is_no_failure(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", "a few bytes");
    case.src.file("b", "others");
    let grow = || case.src.append("a", "more");
    let inject = held_reading(case, 1);
    let run = case.fastcp().arg("--remove-source-files");
    let run = run.args([case.src("a"), case.src("b"), case.dst("")]);
    let run = run.inject(&inject).start();
    at_each_reading(&inject, &[&grow, &grow]);
    let done = run.wait();
    case.remember();
    done.exits(14)
        .says("only its first 11 B were copied, and it was not removed");
    assert_eq!(case.src.names(), ["a"]);
    assert_eq!(case.dst.read("a"), b"a few bytes");
    assert_eq!(case.dst.names(), ["a", "b"]);
    // A failure outranks it.
    case.src.link("dangling", "nowhere");
    let inject = held_reading(case, 1);
    let run = case.fastcp();
    let run = run.args([case.src("a"), case.src("dangling"), case.dst("")]);
    let run = run.inject(&inject).start();
    at_each_reading(&inject, &[&grow, &grow]);
    let done = run.wait();
    case.remember();
    done.exits(9).says("src/a: grew during the copy: only");
}

fn a_file_that_is_removed_or_replaced_is_never_called_whole(case: &Case) {
    type Change = fn(&Dir);
    let changes: [Change; 2] = [
        |src| std::fs::remove_file(src.path("a")).expect("remove"),
        |src| {
            src.file("b", "another");
            std::fs::rename(src.path("b"), src.path("a")).expect("rename");
        },
    ];
    for change in changes {
        let run = copy_under_way(case);
        change(&case.src);
        let_go(case);
        run.wait().exits(7).says("during the copy");
        assert_as_before(case);
    }
}

/// The first file is big, so that the others are still unsent.
fn files_that_vanish_from_a_tree_are_told(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a", noise(1, SIZE));
    for number in 0..300 {
        tree.file(format!("small/{number}"), noise(number, 100_000));
    }
    let run = case.copying(&LITTLE, "tree", "");
    let run = run.arg(held_back(case, "1M")).start();
    let into = case.dst.dir("tree");
    until("the copy is under way", || {
        (!into.names().is_empty()).then_some(())
    });
    for number in 0..300 {
        std::fs::remove_file(tree.path(format!("small/{number}"))).expect("remove");
    }
    let_go(case);
    // Exit 9, or 1 where one or two files vanished while they were read.
    run.wait().fails().says("removed");
    assert_eq!(into.read("a"), tree.read("a"));
    assert!(into.partials().is_empty());
}

/// A file system on a disk with an unreadable part; unmounted when dropped.
struct BadDisk {
    mounted: PathBuf,
    image: PathBuf,
}

impl BadDisk {
    /// Writes `content`; afterwards the disk is unreadable beyond its first `good` bytes. None
    /// where this machine does not allow it.
    fn make(case: &Case, content: &[(&str, Vec<u8>)], good: u64) -> Option<BadDisk> {
        if !geteuid().is_root() {
            return None;
        }
        let image = case.scratch.path("image");
        let file = File::create(&image).expect("make an image");
        file.set_len(64 * MIB as u64).expect("make an image");
        let mounted = case.scratch.dir("mounted").0;
        let disk = BadDisk { mounted, image };
        if !ran("mkfs.ext4", &["-q", "-F"], &[&disk.image])
            || !loops::mount("loop", &disk.image, &disk.mounted)
        {
            return None;
        }
        for (name, bytes) in content {
            let mut file = File::create(disk.mounted.join(name)).expect("fill the disk");
            file.write_all(bytes).expect("fill the disk");
            file.sync_all().expect("fill the disk");
        }
        // Remounted instead of mounted again: another test's mount namespace may keep an
        // unmounted file system alive. A process that another test is about to start may inherit
        // an open file.
        until("nobody writes to the disk", || {
            ran("mount", &["-o", "remount,ro"], &[&disk.mounted]).then_some(())
        });
        // No content may stay in memory.
        for (name, _) in content {
            let file = File::open(disk.mounted.join(name)).expect("it is there");
            fadvise(&file, 0, None, Advice::DontNeed).expect("forget it");
        }
        file.set_len(good).expect("cut the disk");
        Some(disk)
    }
}

impl Drop for BadDisk {
    /// The loop device goes with the mount, and the mount with its last user.
    fn drop(&mut self) {
        ran("umount", &["--lazy"], &[&self.mounted]);
    }
}

fn ran(program: &str, words: &[&str], paths: &[&Path]) -> bool {
    let mut command = Command::new(program);
    command.args(words).args(paths).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn a_disk_that_fails_in_the_middle_of_a_file_fails_that_file_alone(case: &Case) {
    let content = [
        ("a", noise(1, 2 * MIB)),
        ("bad", noise(2, 40 * MIB)),
        ("z", noise(3, 1000)),
    ];
    let Some(disk) = BadDisk::make(case, &content, 30 * MIB as u64) else {
        return skip("root, mkfs.ext4 and a loop device");
    };
    let done = case
        .fastcp()
        .args(["-r", "--no-target-directory"])
        .arg(case.from(&disk.mounted))
        .arg(case.dst("there"))
        .run();
    // The file system decides which blocks lie behind the limit, and those cannot be read either.
    case.remember();
    done.exits(9)
        .says("bad")
        .says("cannot read")
        .says("input/output error");
    let there = case.dst.dir("there");
    assert_eq!(there.read("a"), content[0].1);
    assert!(!there.has("bad") && there.partials().is_empty());
}

/// Copies `path` and `last` in one pack: `path` gets its final name, and `last` hangs before it
/// does. Then the stream is lost, and the sender reads the pack again after `grow`. `opened`
/// counts how often the sender has opened `path` before. The copy keeps its first content. The run
/// ends with this code, and before that tells this of `path`, if anything.
fn sends_the_pack_again(
    case: &Case,
    flags: &[&str],
    (path, opened): (&Path, usize),
    (code, told): (i32, &str),
    grow: impl FnOnce(),
) {
    if !inject::permitted() || !procs::may_tamper() {
        return skip("seccomp user notification and the right to call pidfd_getfd");
    }
    let name = path.file_name().expect("a name");
    let before = std::fs::read(path).expect("read");
    case.src.file("before", &before);
    let last = case.src.file("last", "last");
    let at = path.to_str().expect("UTF-8");
    let inject = Inject::new().hold("open").on(at).after(opened);
    let inject = inject.hold("link").on("*/dst/last");
    let run = case
        .fastcp()
        .args(["--streams=1", "--route=direct"])
        .args(flags)
        .args([case.from(path), case.from(last), case.dst("")])
        .inject(&inject)
        .start();
    inject.wait_until_struck(1);
    grow();
    let sockets = procs::tcp_sockets(run.pid(), TcpState::Established);
    let reset = sockets.iter().filter(|socket| socket.reset()).count();
    assert!(reset > 0, "there was no stream");
    inject.wait_until_struck(2);
    inject.release_first(1);
    if !told.is_empty() {
        let told = format!("{at}: {told}");
        until("it says so", || {
            run.stderr.text().contains(&told).then_some(())
        });
    }
    inject.release();
    run.wait().exits(code);
    assert_eq!(case.dst.read("last"), b"last");
    assert_eq!(case.dst.read(name), before);
}

fn a_file_that_grows_before_its_pack_is_sent_again_keeps_its_length_and_is_told(case: &Case) {
    let path = case.src.file("grows", "a few bytes");
    let grow = || case.src.append("grows", noise(1, 300_000));
    let told = (14, "grew during the copy: only its first 11 B were copied");
    sends_the_pack_again(case, &[], (&path, 2), told, grow);
}

fn a_live_file_that_grows_before_its_pack_is_sent_again_keeps_its_length(case: &Case) {
    let path = case.src.file("grows", "a few bytes");
    let grow = || case.src.append("grows", noise(1, 300_000));
    sends_the_pack_again(case, &["--live"], (&path, 2), (0, ""), grow);
}

/// The arguments of a process, as /proc shows them, become longer than a pack.
fn a_file_without_a_size_that_changes_before_its_pack_is_sent_again_fails_alone(case: &Case) {
    let more = "read line; exec sh -c 'read line' $(seq 60000)";
    let mut shell = dying_with_this_thread("sh");
    shell.args(["-c", more]).stdin(Stdio::piped());
    let mut shell = shell.spawn().expect("run a shell");
    let mut stdin = shell.stdin.take().expect("piped");
    let path = format!("/proc/{}/cmdline", shell.id());
    let words = || std::fs::read(&path).expect("read");
    until("it is the shell", || {
        words().starts_with(b"sh\0").then_some(())
    });
    // Kept open, so that it stays the same file when the kernel drops others from its cache.
    let _open = File::open(&path).expect("open");
    // The sender finds out before it reads the pack whether the file has a size.
    let told = (7, "grew during the copy; --live copies");
    sends_the_pack_again(case, &[], (path.as_ref(), 2), told, || {
        stdin.write_all(b"more\n").expect("write to the shell");
        until("it has more words", || {
            (words().len() > 300_000).then_some(())
        });
    });
    drop(stdin);
    shell.wait().expect("it ends");
}

//! Files beside a destination that differ from what an earlier run of the same copy left: a disk
//! lost its cache, or another copy left them. They may cost time, but never produce a wrong file.

use std::fs::{File, FileTimes};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::support::cut_short::{SIZE, SLOW, aged, bytes_on_disk, has_third, kill_receiver};
use crate::support::inject::{self, Inject};
use crate::support::loops::Loop;
use crate::support::procs::until;
use crate::support::*;

ways! { local_push, local_pull =>
    what_a_disk_lost_before_it_was_mounted_again_is_sent_again,
    what_another_source_left_under_this_name_is_found_out,
    leftovers_from_another_place_are_not_resumed,
    a_journal_that_could_not_lie_in_the_best_place_is_found,
    a_journal_is_opened_when_files_are_closed,
}

ways! { local_push, local_pull, here => a_journal_that_cannot_be_removed_is_told }

/// Copies `from` and kills the receiver when half of the file has arrived.
fn interrupted(case: &Case, from: &str, into: &Dir, to: &str) {
    let run = case.copying(&SLOW, from, to).start();
    until("half is there", || {
        let recorded = has_third(&into.journals().pop()?);
        (recorded && into.partial_bytes() as usize > SIZE / 2).then_some(())
    });
    kill_receiver(case, run);
}

/// Runs the copy to its end; returns the bytes sent over the wire.
#[track_caller]
fn finished(case: &Case, from: &str, to: &str) -> usize {
    let done = case.copy(&["--summary", "--compress", "none"], from, to);
    done.succeeds();
    assert_same(case.src.path(from), case.dst.path(to), Also::Nothing);
    done.wire_bytes()
}

fn the_one(found: Vec<PathBuf>) -> PathBuf {
    let [only] = <[PathBuf; 1]>::try_from(found).expect("there is one");
    only
}

/// As in an append-only directory (`chattr +a`).
fn a_journal_that_cannot_be_removed_is_told(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/a", noise(1, 3 * MIB));
    let inject = Inject::new().fail("unlink", Errno::PERM).on("*.journal");
    let done = case.copying(&["-r"], "tree", "").inject(&inject).run();
    inject.assert_struck(1);
    let journal = the_one(case.dst.journals());
    let told = format!(
        "fastcp: {}: cannot remove the journal of this copy: operation not permitted; the file is \
         no longer needed, delete it by hand\n",
        case.to(&journal).display()
    );
    done.succeeds().says(&told);
    assert_eq!(done.stderr.matches("journal of").count(), 1, "{done}");
    std::fs::remove_file(journal).expect("remove it");
    assert_same(case.src.path("tree"), case.dst.path("tree"), Also::Nothing);
}

/// The machine keeps running, so only the new mount shows that written data may be lost.
fn what_a_disk_lost_before_it_was_mounted_again_is_sent_again(case: &Case) {
    let at = case.dst.dir("disk");
    case.src.file("a", noise(1, SIZE));
    aged();
    type Loss = fn(&File, &File) -> std::io::Result<()>;
    let losses: [(&str, Loss); 5] = [
        ("data", |journal, _| journal.sync_all()),
        ("journal", |_, data| data.sync_all()),
        ("both", |_, _| Ok(())),
        ("neither", |journal, data| {
            journal.sync_all()?;
            data.sync_all()
        }),
        // A sample is likely to miss this one.
        ("a chunk", |journal, data| {
            data.write_all_at(&vec![0; MIB], 2 * MIB as u64)?;
            journal.sync_all()?;
            data.sync_all()
        }),
    ];
    for (what, lose) in losses {
        let Some(disk) = Loop::new(&case.scratch, what, vec![0; 96 * MIB]) else {
            return skip("root and loop devices");
        };
        let Some(mount) = disk.mounted(&at.0) else {
            return skip("the right to mount");
        };
        interrupted(case, "a", &at, "disk/b");
        let [journal, data] = [at.journals(), at.partials()].map(|found| {
            let mut options = File::options();
            options.write(true).open(the_one(found)).expect("open it")
        });
        lose(&journal, &data).expect("write and sync");
        drop((journal, data));
        // Reads the image file, past the device's own cache.
        let reached = case.scratch.read(what);
        let other;
        let disk = match mount.end() {
            true => {
                disk.write(&reached, 0);
                &disk
            }
            false => {
                other = Loop::new(&case.scratch, "another", reached).expect("another device");
                &other
            }
        };
        let mount = disk.mounted_again(&at.0).expect("mount it again");
        let wire = finished(case, "a", "disk/b");
        println!("lost: {what}: {wire} bytes sent");
        assert_eq!(at.names(), ["b", "lost+found"]);
        drop(mount);
    }
}

/// Two hosts send files with the same name, size and time, but other bytes, to one destination.
fn what_another_source_left_under_this_name_is_found_out(case: &Case) {
    case.src.dir("one").file("a", noise(1, SIZE));
    let other = case.src.dir("other").file("a", noise(2, SIZE));
    let time = case.src.meta("one/a").modified().expect("a time");
    let times = FileTimes::new().set_modified(time);
    let other = File::options().write(true).open(other).expect("open it");
    other.set_times(times).expect("set its time");
    aged();
    interrupted(case, "one/a", &case.dst, "b");
    let wire = finished(case, "other/a", "b");
    assert!(wire >= SIZE, "{wire} bytes were sent");
    assert_eq!(case.dst.names(), ["b"]);
    // A directory whose small files are complete before the other source's files arrive.
    for (dir, seed) in [("one", 10), ("other", 500)] {
        for number in 0..200 {
            let content = noise(seed + number, 9_000);
            case.src.file(format!("{dir}/{number}"), content);
        }
    }
    aged();
    let into = case.dst.dir("d");
    let flags = [&SLOW[..], &["-r"]].concat();
    let run = case.copying(&flags, "one/", "d").start();
    until("a third is there", || {
        (bytes_on_disk(&into.0) as usize > SIZE / 3).then_some(())
    });
    kill_receiver(case, run);
    let done = case.copy(&["-r", "--summary"], "other/", "d");
    done.succeeds();
    assert_same(case.src.path("other"), &into.0, Also::Nothing);
}

/// Leftovers of another directory or host that were copied here together with the data.
fn leftovers_from_another_place_are_not_resumed(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    case.src.file("c", noise(2, SIZE));
    aged();
    let there = case.dst.dir("there");
    interrupted(case, "a", &there, "there/b");
    let [journal, data] = [there.journals(), there.partials()].map(the_one);
    for source in ["a", "c"] {
        let here = case.dst.dir(source);
        // Renamed to the names that this copy looks for, which differ in every directory.
        for (path, name) in [
            (&journal, here.journal_of("b")),
            (&data, here.partial_of("b")),
        ] {
            std::fs::copy(path, here.path(name)).expect("bring it here");
        }
        let wire = finished(case, source, &format!("{source}/b"));
        assert!(wire >= SIZE, "{wire} bytes were sent");
        assert_eq!(here.names(), ["b"]);
    }
    // The originals are still valid for a resume.
    let wire = finished(case, "a", "there/b");
    assert!(wire < SIZE - SIZE / 4, "{wire} bytes were sent");
}

/// At first no journal could be created beside the tree, so the receiver created it inside.
fn a_journal_is_opened_when_files_are_closed(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/a", noise(1, SIZE));
    aged();
    let flags = [&SLOW[..], &["-r"]].concat();
    let run = case.copying(&flags, "tree", "").start();
    until("a third is there", || {
        has_third(&case.dst.journals().pop()?).then_some(())
    });
    kill_receiver(case, run);
    let full = Inject::new()
        .fail("open", Errno::NFILE)
        .on(".fastcp-*.journal")
        .times(3);
    let flags = ["-r", "--summary", "--compress", "none"];
    let done = case.copying(&flags, "tree", "").inject(&full).run();
    full.assert_struck(3);
    assert!(done.succeeds().wire_bytes() < SIZE - SIZE / 4, "{done}");
    assert_same(case.src.path("tree"), case.dst.path("tree"), Also::Nothing);
    assert_eq!(case.dst.names(), ["tree"]);
}

fn a_journal_that_could_not_lie_in_the_best_place_is_found(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/a", noise(1, SIZE));
    aged();
    let into = case.dst.dir("tree");
    let full = Inject::new()
        .fail("open", Errno::NOSPC)
        .on(".fastcp-*.journal")
        .times(1);
    let flags = [&SLOW[..], &["-r"]].concat();
    let run = case.copying(&flags, "tree", "").inject(&full).start();
    until("half is there", || {
        let recorded = has_third(&into.journals().pop()?);
        (recorded && into.partial_bytes() as usize > SIZE / 2).then_some(())
    });
    kill_receiver(case, run);
    full.assert_struck(1);
    let flags = ["-r", "--summary", "--compress", "none"];
    let done = case.copy(&flags, "tree", "");
    assert!(done.succeeds().wire_bytes() < SIZE - SIZE / 4, "{done}");
    assert_same(case.src.path("tree"), &into.0, Also::Nothing);
    assert_eq!(case.dst.names(), ["tree"]);
}

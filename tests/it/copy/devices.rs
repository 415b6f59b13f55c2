//! Block devices at either end: the tests compare the content of loop devices with the copies.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::support::cut_short::{SIZE, SLOW, aged, has_third, kill_receiver};
use crate::support::done::Done;
use crate::support::limits::Disk;
use crate::support::loops::Loop;
use crate::support::procs::until;
use crate::support::{journals, *};

ways! { pull, here =>
    a_device_becomes_a_sparse_file,
    a_file_is_written_into_a_device_and_what_is_behind_it_stays,
    a_device_is_copied_to_a_device_and_its_zeros_take_no_room,
    a_device_that_is_too_small_or_in_use_is_refused,
    a_device_is_an_operand_and_nothing_else,
}

ways! { local_push =>
    a_copy_to_a_device_whose_far_end_is_killed_goes_on_by_itself,
}

ways! { push, pull =>
    a_device_that_has_no_room_as_a_file_is_refused_before_the_first_byte,
    a_stream_is_written_into_a_device_and_a_device_read_as_one,
}

ways! { local_push, local_pull =>
    a_killed_copy_to_a_device_goes_on_where_it_was,
    a_killed_copy_of_a_device_is_compared_and_not_sent_again,
    what_is_not_on_the_device_any_more_is_sent_again,
}

const NEEDS: &str = "root and loop devices";

/// Noise, zeros, noise that ends within a chunk, zeros.
fn content() -> Vec<u8> {
    let mut content = vec![0; 12 * MIB];
    content[..3 * MIB].copy_from_slice(&noise(1, 3 * MIB));
    content[7 * MIB..9 * MIB + 4096].copy_from_slice(&noise(2, 2 * MIB + 4096));
    content
}

fn copy(case: &Case, flags: &[&str], from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Run {
    let (from, to) = (case.from(from.into()), case.to(to.into()));
    case.fastcp().args(flags).arg(from).arg(to)
}

/// The files that a copy to a device keeps until it is complete.
fn states(case: &Case) -> Vec<PathBuf> {
    let dir = std::fs::read_dir(case.home.path(".local/state/fastcp"));
    let entries = dir.into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some()).collect()
}

fn a_device_becomes_a_sparse_file(case: &Case) {
    let content = content();
    let Some(disk) = Loop::new(&case.src, "disk", &content) else {
        return skip(NEEDS);
    };
    for flags in [&[][..], &["--direct-io"]] {
        let image = case.dst.path("image");
        copy(case, flags, &disk.path, &image)
            .run()
            .succeeds()
            .is_silent();
        assert!(case.dst.read("image") == content, "{flags:?}");
        let taken = case.dst.meta("image").blocks() as usize * 512;
        assert!(taken < 6 * MIB, "{taken} bytes are taken");
        std::fs::remove_file(image).expect("remove");
    }
    // In a directory, the copy is a file with the device's name.
    let list = case.scratch.path("list");
    let flags = ["--digests", list.to_str().expect("UTF-8")];
    copy(case, &flags, &disk.path, &case.dst.0).run().succeeds();
    let name = disk.path.file_name().expect("a name").to_owned();
    assert!(case.dst.read(&name) == content);
    let expected = format!("{}  {}\n", blake3::hash(&content), name.display());
    assert_eq!(
        String::from_utf8(case.scratch.read("list")).unwrap(),
        expected
    );
}

fn a_device_that_has_no_room_as_a_file_is_refused_before_the_first_byte(case: &Case) {
    let mut content = vec![0; 64 * MIB];
    content[..2 * MIB].copy_from_slice(&noise(1, 2 * MIB));
    let Some(disk) = Loop::new(&case.src, "disk", &content) else {
        return skip(NEEDS);
    };
    let Some(small) = Disk::small(case, 16 << 20) else {
        return skip("a small file system");
    };
    let image = small.dir.path("image");
    // Its zeros take no space.
    copy(case, &[], &disk.path, &image).run().succeeds();
    assert!(small.dir.read("image") == content);
    std::fs::remove_file(&image).expect("remove");
    disk.write(&noise(2, 40 * MIB), 0);
    let done = copy(case, &["--summary"], &disk.path, &image).run();
    done.exits(8).says("no space left: needs ");
    assert_eq!(done.wire_bytes(), 0, "{done}");
    assert_eq!(small.dir.names(), [""; 0]);
}

fn a_file_is_written_into_a_device_and_what_is_behind_it_stays(case: &Case) {
    let old = noise(3, 16 * MIB);
    let Some(disk) = Loop::new(&case.scratch, "disk", &old) else {
        return skip(NEEDS);
    };
    let hole = 2 * MIB..5 * MIB;
    let (first, last) = (noise(4, 2 * MIB), noise(5, MIB + 1000));
    let pieces = [(0, &first[..]), (hole.end as u64, &last[..])];
    case.src.sparse("sparse", (6 * MIB + 1000) as u64, &pieces);
    case.src.file("dense", content());
    case.src.file("small", noise(6, 1000));
    let mut expected = old;
    for (name, flags) in [
        ("sparse", &[][..]),
        ("dense", &["--direct-io"]),
        ("small", &["-p"]),
    ] {
        let source = case.src.read(name);
        copy(case, flags, case.src.path(name), &disk.path)
            .run()
            .succeeds()
            .is_silent();
        expected[..source.len()].copy_from_slice(&source);
        assert!(disk.content() == expected, "{name}");
        assert_eq!(states(case), [""; 0].map(PathBuf::from));
    }
}

fn a_device_is_copied_to_a_device_and_its_zeros_take_no_room(case: &Case) {
    let content = content();
    let disks = Loop::new(&case.src, "from", &content).zip(Loop::new(
        &case.scratch,
        "to",
        noise(3, 16 * MIB),
    ));
    let Some((from, to)) = disks else {
        return skip(NEEDS);
    };
    let before = to.taken();
    copy(case, &[], &from.path, &to.path)
        .run()
        .succeeds()
        .is_silent();
    assert!(to.content()[..content.len()] == content);
    assert!(to.content()[content.len()..] == noise(3, 16 * MIB)[content.len()..]);
    let given_back = before - to.taken();
    assert!(given_back >= 5 * MIB as u64, "{given_back} bytes are free");
    let itself = copy(case, &[], &from.path, &from.path).run();
    itself.exits(11).says("is the same file");
}

fn a_device_that_is_too_small_or_in_use_is_refused(case: &Case) {
    let old = noise(3, 16 * MIB);
    let Some(disk) = Loop::new(&case.scratch, "disk", &old) else {
        return skip(NEEDS);
    };
    case.src.file("long", noise(4, 17 * MIB));
    case.src.file("fits", noise(5, 2 * MIB));
    case.src.file("small", b"small");
    let to_disk =
        |flags: &[&str], name: &str| copy(case, flags, case.src.path(name), &disk.path).run();
    to_disk(&["--force"], "long")
        .exits(11)
        .says("is too small: needs");
    to_disk(&["--no-clobber"], "fits")
        .exits(11)
        .says("--no-clobber");
    let held = disk.hold();
    for name in ["fits", "small"] {
        to_disk(&[], name)
            .exits(11)
            .says("is in use by another program")
            .says("--force");
    }
    assert!(disk.content() == old, "not a byte was written");
    to_disk(&["--force"], "fits").succeeds();
    assert!(disk.content()[..2 * MIB] == noise(5, 2 * MIB));
    drop(held);

    let at = case.scratch.dir("mounted");
    let Some(_mount) = disk.mounted(&at.0) else {
        return skip("mkfs.ext4");
    };
    let place = format!("{}: is mounted on {}", disk.path.display(), at.0.display());
    to_disk(&[], "fits").exits(11).says(&place);
    // As a source, a mounted device can be copied.
    let image = case.dst.path("image");
    copy(case, &[], &disk.path, &image)
        .run()
        .succeeds()
        .says("copy a snapshot instead");
    std::fs::remove_file(image).expect("remove");
    assert_eq!(states(case), [""; 0].map(PathBuf::from));
}

fn a_stream_is_written_into_a_device_and_a_device_read_as_one(case: &Case) {
    let old = noise(3, 8 * MIB);
    let Some(disk) = Loop::new(&case.scratch, "disk", &old) else {
        return skip(NEEDS);
    };
    let new = noise(4, 3 * MIB + 1000);
    let image = case.src.file("image", &new);
    // The command runs at one end and the device is at the other.
    let written = |command: String| {
        let run = case.fastcp().args(["--from-command", &command]);
        let run = match case.way {
            Way::Pull => run.arg(case.from("")),
            _ => run,
        };
        run.arg(case.to(&disk.path)).run()
    };
    written(format!("cat {}", image.display())).succeeds();
    let expected = [&new[..], &old[new.len()..]].concat();
    assert!(disk.content() == expected);
    let done = written(format!("cat {0} {0} {0}", image.display()));
    done.exits(8).says("the device ends after");

    if case.way == Way::Pull {
        let content = disk.content();
        let done = case.fastcp().arg(case.from(&disk.path)).arg("-").run();
        assert!(done.succeeds().stdout == content);
    }
}

fn a_copy_to_a_device_whose_far_end_is_killed_goes_on_by_itself(case: &Case) {
    let source = source(case);
    let Some(disk) = Loop::new(&case.scratch, "disk", vec![9; SIZE]) else {
        return skip(NEEDS);
    };
    let flags = [&SLOW[..6], &["--summary"]].concat();
    let run = copy(case, &flags, &source, &disk.path).start();
    a_third_is_there(case);
    let server = case.servers().pop().expect("a server runs").pid;
    rustix::process::kill_process(server, Signal::KILL).expect("kill the server");
    let done = run.wait();
    done.succeeds().says("logged in again once");
    let wire = done.wire_bytes();
    assert!(wire < SIZE + SIZE / 3, "{wire} bytes were sent");
    assert!(disk.content() == noise(1, SIZE));
}

fn a_device_is_an_operand_and_nothing_else(case: &Case) {
    let old = noise(3, MIB);
    let Some(disk) = Loop::new(&case.scratch, "disk", &old) else {
        return skip(NEEDS);
    };
    let device = std::fs::metadata(&disk.path).expect("it is there").rdev();
    let node = |at: PathBuf| {
        let (kind, mode) = (FileType::BlockDevice, Mode::RUSR | Mode::WUSR);
        mknodat(CWD, &at, kind, mode, device).expect("a node");
        at
    };
    let tree = case.src.dir("tree");
    tree.file("file", b"file");
    let in_tree = node(tree.path("disk"));
    case.copy(&["-r", "--summary"], "tree", "")
        .succeeds()
        .says("1 special file skipped");
    assert_eq!(case.dst.dir("tree").names(), ["file"]);
    std::fs::remove_file(in_tree).expect("remove");
    let mistyped = "/dev/fastcp-test-no-such-device";
    let done = copy(case, &[], tree.path("file"), mistyped).run();
    done.exits(2).says("check the name of the device");
    // A device cannot take a tree or several files, and a file of its name does not replace it.
    let at = node(case.dst.path("file"));
    case.copy(&["-r"], "tree", "file")
        .exits(2)
        .says("is not a directory");
    case.copy_all(&[], &["tree/file", "tree/file"], "file")
        .exits(2);
    case.copy(&[], "tree/file", "")
        .exits(11)
        .says("name it as the destination");
    case.copy(&["-r"], "tree/", "")
        .exits(11)
        .says("name it as the destination");
    assert!(disk.content() == old, "not a byte was written");
    case.copy(&[], "tree/file", "file").succeeds();
    assert!(disk.content()[..4] == *b"file");
    std::fs::remove_file(at).expect("remove");
}

fn a_third_is_there(case: &Case) {
    until("a third is there", || {
        let journal = states(case).into_iter().chain(case.dst.journals()).next()?;
        has_third(&journal).then_some(())
    });
}

/// Starts a copy and kills the receiver when a third has been written.
fn interrupted(case: &Case, from: impl Into<PathBuf>, to: impl Into<PathBuf>) {
    let run = copy(case, &SLOW, from, to).start();
    a_third_is_there(case);
    kill_receiver(case, run);
}

/// Runs the copy again to its end; returns the bytes sent over the wire. On several streams a late
/// chunk is sent again.
#[track_caller]
fn again(case: &Case, from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> usize {
    let flags = ["--summary", "--compress", "none"];
    let flags = [&flags[..], &["--streams=1", "--route=direct"]].concat();
    let done: Done = copy(case, &flags, from, to).run();
    done.succeeds();
    assert_eq!(states(case), [""; 0].map(PathBuf::from));
    done.wire_bytes()
}

/// A file old enough for its times to show whether it has changed.
fn source(case: &Case) -> PathBuf {
    let path = case.src.file("a", noise(1, SIZE));
    aged();
    path
}

fn a_killed_copy_to_a_device_goes_on_where_it_was(case: &Case) {
    let source = source(case);
    let Some(disk) = Loop::new(&case.scratch, "disk", vec![9; SIZE + MIB]) else {
        return skip(NEEDS);
    };
    interrupted(case, &source, &disk.path);
    let wire = again(case, &source, &disk.path);
    assert!(wire < SIZE - SIZE / 4, "{wire} bytes were sent");
    assert!(disk.content() == [noise(1, SIZE), vec![9; MIB]].concat());
    // A complete copy compares everything again.
    let wire = again(case, &source, &disk.path);
    assert!(wire < MIB, "{wire} bytes were sent");
}

fn a_killed_copy_of_a_device_is_compared_and_not_sent_again(case: &Case) {
    let disks = Loop::new(&case.src, "from", noise(1, SIZE)).zip(Loop::new(
        &case.scratch,
        "to",
        vec![9; SIZE],
    ));
    let Some((from, to)) = disks else {
        return skip(NEEDS);
    };
    for target in [to.path.clone(), case.dst.path("image")] {
        from.write(&noise(1, SIZE), 0);
        interrupted(case, &from.path, &target);
        // Only the bytes show that the device was written in between.
        from.write(&noise(2, MIB), MIB as u64);
        let wire = again(case, &from.path, &target);
        assert!(wire < SIZE - SIZE / 5, "{wire} bytes were sent");
        let copied = std::fs::read(&target).expect("read the copy");
        assert!(copied == from.content(), "{target:?}");
    }
}

fn what_is_not_on_the_device_any_more_is_sent_again(case: &Case) {
    let source = source(case);
    let Some(disk) = Loop::new(&case.scratch, "disk", vec![9; SIZE]) else {
        return skip(NEEDS);
    };
    interrupted(case, &source, &disk.path);
    let path = states(case).pop().expect("a journal");
    journals::age_by_a_boot(&path);
    // The journal reached the disk, but the data did not.
    disk.write(&vec![9; 3 * MIB], 2 << 20);
    let wire = again(case, &source, &disk.path);
    assert!(wire < SIZE - MIB, "{wire} bytes were sent");
    assert!(disk.content() == noise(1, SIZE));
}

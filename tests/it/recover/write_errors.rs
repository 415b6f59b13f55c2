//! Errors that the kernel reports at write-back, fsync or close. Each of them reaches the exit
//! code, with any other options.

use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::io::Errno;

use crate::support::disk::Mounted;
use crate::support::inject::{self, Inject, UNFINISHED};
use crate::support::*;

ways! { local_push, here =>
    an_error_of_write_back_fails_the_file,
    an_error_of_close_fails_the_file,
    an_error_of_fsync_fails_the_file,
    a_file_that_failed_in_place_is_copied_by_the_next_run,
}

ways! { local_push, here =>
    fsync_makes_the_names_above_durable_too,
    fsync_makes_deletions_durable_too,
    a_pipe_that_fills_the_disk_is_told_so,
}

ways! { here =>
    an_output_without_a_second_handle_fails,
    an_output_that_takes_nothing_fails,
}

const BOTH: [&str; 2] = ["big", "small"];

fn sources(case: &Case) {
    case.src.file("tree/big", noise(1, 5 * MIB));
    case.src.file("tree/small", "a few bytes");
}

/// Copies both files with each of `options`, without and with an existing file. Each copy exits
/// with 8 and names the file for which `call` failed.
#[track_caller]
fn each_fails(case: &Case, options: &[&[&str]], call: &str, errno: Errno, words: &str) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    sources(case);
    for flags in options {
        for existing in [false, true] {
            for name in BOTH {
                let in_place = flags.contains(&"--inplace") && existing;
                if existing {
                    case.dst.file(format!("tree/{name}"), "old");
                }
                let pattern = if in_place { name } else { UNFINISHED };
                let inject = Inject::new().fail(call, errno).on(pattern);
                let from = format!("tree/{name}");
                case.dst.dir("tree");
                let done = case.copying(flags, &from, &from).inject(&inject).run();
                assert!(inject.struck() > 0, "{call} never came: {flags:?} {from}");
                done.exits(8).says(&from).says(words);
                let stands = case.dst.has(&from);
                assert_eq!(stands, existing, "{flags:?} {from}");
                if existing && !in_place {
                    assert_eq!(case.dst.read(&from), b"old");
                }
                std::fs::remove_dir_all(case.dst.path("tree")).expect("remove the copy");
            }
        }
    }
}

fn an_error_of_write_back_fails_the_file(case: &Case) {
    let options: [&[&str]; 4] = [
        &["--drop-cache"],
        &["--drop-cache", "--fsync"],
        &["--drop-cache", "--inplace"],
        &["--drop-cache", "--inplace", "--fsync"],
    ];
    each_fails(case, &options, "sync_file_range", Errno::IO, "input/output");
}

fn an_error_of_close_fails_the_file(case: &Case) {
    let options: [&[&str]; 5] = [
        &[],
        &["--inplace"],
        &["--fsync"],
        &["--inplace", "--fsync"],
        &["--inplace", "--drop-cache"],
    ];
    each_fails(case, &options, "close", Errno::DQUOT, "quota");
}

fn an_error_of_fsync_fails_the_file(case: &Case) {
    let options: [&[&str]; 3] = [
        &["--fsync"],
        &["--fsync", "--inplace"],
        &["--fsync", "--inplace", "--drop-cache"],
    ];
    each_fails(case, &options, "fsync", Errno::IO, "cannot sync it to disk");
}

/// Its size is that of the source. Its time is not, and a newer time does not keep it from being
/// copied either.
fn a_file_that_failed_in_place_is_copied_by_the_next_run(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    const TIME: u64 = 1_000_000_000;
    sources(case);
    let files = BOTH.map(|name| format!("tree/{name}"));
    for (name, file) in BOTH.iter().zip(&files) {
        case.src.time(file, TIME, 0);
        case.dst.file(file, "old");
        let inject = Inject::new().fail("fsync", Errno::IO).on(name);
        let flags = ["-a", "--inplace", "--fsync"];
        let run = case.copying(&flags, file, file).inject(&inject);
        run.run().exits(8).says("cannot sync it to disk");
        assert_ne!(case.dst.meta(file).mtime(), TIME as i64, "{file}");
    }
    let [big, small] = &files;
    // As if the disk had lost it.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(case.dst.path(big));
    let file = file.expect("open");
    file.write_all_at(b"lost", MIB as u64).expect("write");
    drop(file);
    tree::no_longer_written(&case.dst.path(big));
    case.copy(&["-a", "-u"], big, big).succeeds();
    case.copy(&["-a", "--inplace"], small, small).succeeds();
    for file in &files {
        assert_same(
            case.src.path(file),
            case.dst.path(file),
            Also::ModesAndTimes,
        );
    }
    assert_eq!(case.dst.dir("tree").names(), BOTH);
}

/// The names of the tree, and of a directory that is made for the sources.
fn fsync_makes_the_names_above_durable_too(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/sub/a", "a few bytes");
    case.dst.dir("above");
    for (to, synced) in [
        ("above", &["above", "tree", "sub"][..]),
        ("above/made/", &["above", "made", "tree", "sub"]),
    ] {
        for name in synced {
            let inject = Inject::new().fail("fsync", Errno::IO).on(name);
            let run = case.copying(&["-r", "--fsync"], "tree", to);
            let done = run.inject(&inject).run();
            assert!(inject.struck() > 0, "{to}: {name} was not synced");
            done.exits(8).says("to disk");
            std::fs::remove_dir_all(case.dst.path("above")).expect("remove the copy");
            case.dst.dir("above");
        }
    }
}

/// The last sync of a directory follows the last deletion in it.
fn fsync_makes_deletions_durable_too(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/sub/a", "a few bytes");
    let there = case.dst.dir("tree/sub");
    let copy = |inject: &Inject| {
        there.file("extra", "only here");
        let flags = ["-a", "--delete", "--fsync"];
        let run = case.copying(&flags, "tree/", "tree");
        let done = run.inject(inject).run();
        assert_eq!(there.names(), ["a"], "{done}");
        done
    };
    // The directory may be synced before, when its mode and times are set.
    copy(&Inject::new().pretend("fsync", 0).on("sub")).succeeds();
    let all = Inject::new().pretend("fsync", 0).on("sub");
    copy(&all).succeeds();
    let last = Inject::new().fail("fsync", Errno::IO).on("sub");
    let done = copy(&last.after(all.struck() - 1));
    done.exits(8)
        .says("tree/sub: cannot sync the directory to disk");
}

/// The close of a second handle reports errors of write-back.
fn an_output_without_a_second_handle_fails(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let from = case.src.file("a", "a few bytes");
    let inject = Inject::new().fail("dup", Errno::MFILE).on("/dev/zero");
    let run = case.fastcp().arg(from).arg("/dev/zero");
    let done = run.inject(&inject).run();
    inject.assert_struck(1);
    done.exits(8)
        .says("/dev/zero: cannot open it a second time: too many open files");
}

/// The driver of a device may answer a write with 0 forever.
fn an_output_that_takes_nothing_fails(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let from = case.src.file("a", "a few bytes");
    let once = |on: &str| Inject::new().pretend("write", 0).on(on).nth(1);
    let inject = once("/dev/zero");
    let run = case.fastcp().arg(&from).arg("/dev/zero");
    let done = run.inject(&inject).run();
    inject.assert_struck(1);
    done.exits(8)
        .says("/dev/zero: cannot write: the device or pipe accepts no data");
    // Standard output.
    let inject = once("pipe:*");
    let run = case.copying(&["--json"], "a", "a");
    let done = run.inject(&inject).run();
    inject.assert_struck(1);
    done.exits(8).says("standard output: cannot write");
}

fn a_pipe_that_fills_the_disk_is_told_so(case: &Case) {
    let small = case.dst.dir("small");
    let Some(_disk) = Mounted::small(&small.0, 4 << 20) else {
        return skip("root and mount");
    };
    let input = case.scratch.file("input", noise(1, 9 * MIB));
    let input = std::fs::File::open(input).expect("open the input");
    let run = case.fastcp().arg("-").arg(case.dst("small/x"));
    let done = run.start_with(input.into()).wait();
    done.exits(8).says("no space left").never_says("although");
    assert_eq!(small.names(), [""; 0]);
}

//! Changed files: only the pages that differ travel, and the result is the new version.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::io::Errno;

use crate::support::cut_short::{self, SLOW, kill_receiver};
use crate::support::disk::Mounted;
use crate::support::inject::{self, Inject};
use crate::support::loops::Loop;
use crate::support::procs::until;
use crate::support::slow::{held_back, let_go};
use crate::support::*;

const SIZE: usize = 12 * MIB;

/// More bytes than the digests of all pieces take on the wire, and the headers of patches.
const DIGESTS: usize = 7000;

ways! { push, pull, between =>
    only_the_pages_that_differ_travel,
}

ways! { push, here =>
    content_that_moved_is_found,
}

ways! { local_push =>
    moved_content_with_changes_in_it_is_found,
}

ways! { local_push =>
    every_kind_of_change_arrives,
}

ways! { local_push, here =>
    in_place_only_the_pages_that_differ_are_written,
}

ways! { local_pull =>
    a_device_gets_what_differs,
    on_a_file_system_that_clones_the_rest_is_shared,
    holes_are_holes_where_a_clone_could_not_be_read,
    an_interrupted_copy_compares_the_rest,
    a_file_that_is_new_throughout_is_soon_sent_without_comparing,
}

ways! { local_push =>
    an_old_version_that_changes_during_the_copy_makes_no_wrong_file,
    a_source_that_becomes_empty_replaces_the_old_version,
}

ways! { push, local_pull =>
    a_file_that_was_moved_is_not_sent_again,
}

ways! { local_push =>
    no_key_or_option_that_forbids_it_compares,
}

/// Summary and codec, so that bytes on the wire can be told; and a comparison in local copies too. One
/// stream by one route: on a busy machine chunks of a late one are sent on others too, and of a chunk
/// whose digest is sent twice all bytes may follow.
const FLAGS: [&str; 8] = [
    "--summary",
    "--compress",
    "none",
    "--no-whole-file",
    "--streams",
    "1",
    "--route",
    "direct",
];

/// A file at both ends, of which some pages differ.
fn changed_pages(case: &Case, pages: &[usize]) {
    let mut content = noise(1, SIZE);
    case.dst.file("b", &content);
    for page in pages {
        content[page * 4096 + 7] ^= 1;
    }
    case.src.file("a", &content);
}

#[track_caller]
fn copied(case: &Case, flags: &[&str]) -> usize {
    copied_from(case, "a", flags)
}

#[track_caller]
fn copied_from(case: &Case, source: &str, flags: &[&str]) -> usize {
    let done = case.copy(&[&FLAGS[..], flags].concat(), source, "b");
    done.succeeds();
    assert_same(case.src.path(source), case.dst.path("b"), Also::Nothing);
    assert_eq!(case.dst.names(), ["b"]);
    done.wire_bytes()
}

fn only_the_pages_that_differ_travel(case: &Case) {
    changed_pages(case, &[0, 1, 700, 2000, SIZE / 4096 - 1]);
    let done = case.copy(&[&FLAGS[..], &["--json"]].concat(), "a", "b");
    let told = done.succeeds().stdout_text();
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    let number = |name: &str| -> usize {
        let (_, rest) = told.rsplit_once(&format!("\"{name}\":")).expect(name);
        let digits = rest.split(|byte: char| !byte.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).expect(name)
    };
    let there = SIZE - 5 * 4096;
    assert_eq!(number("already_bytes"), there, "{told}");
    assert_eq!(number("verified_bytes"), there, "{told}");
    assert!(number("wire_bytes") < 5 * 4096 + DIGESTS, "{told}");
    // A second run finds everything.
    let wire = copied(case, &[]);
    assert!(wire < DIGESTS, "{wire} bytes on the wire");
}

fn content_that_moved_is_found(case: &Case) {
    let old = noise(1, 24 * MIB);
    case.dst.file("b", &old);
    let inserted = [noise(2, MIB), noise(3, 300_000), noise(4, 50_001)];
    let new = [
        &inserted[0],
        &old[..5 * MIB + 13],
        &inserted[1],
        // A deletion follows.
        &old[5 * MIB + 13..9 * MIB],
        &old[10 * MIB - 7777..15 * MIB + 1],
        &inserted[2],
        &old[15 * MIB + 1..],
    ]
    .concat();
    case.src.file("a", &new);
    let inserted: usize = inserted.iter().map(Vec::len).sum();
    let wire = copied(case, &[]);
    let most = inserted + inserted / 10;
    assert!(wire < most, "{wire} bytes on the wire of {inserted}");
    let wire = copied(case, &[]);
    assert!(wire < 2 * DIGESTS, "{wire} bytes on the wire");
}

fn moved_content_with_changes_in_it_is_found(case: &Case) {
    let old = noise(1, 24 * MIB);
    let mut changed = old.clone();
    for at in (MIB..24 * MIB).step_by(2 * MIB) {
        changed[at] ^= 1;
    }
    let news: [(&str, Vec<u8>, usize); 5] = [
        (
            "a longer file",
            [b"log\n", &changed[..]].concat(),
            22 * 8192,
        ),
        (
            "of the same size",
            [b"log\n", &changed[4..]].concat(),
            22 * 8192,
        ),
        ("without its start", old[11 * MIB + 1..].to_vec(), 20_000),
        ("twice as long", [&old[..], &old[..]].concat(), 60_000),
        (
            "two parts exchanged",
            [&old[9 * MIB - 5..], &old[..9 * MIB - 5]].concat(),
            150_000,
        ),
    ];
    for (what, new, most) in &news {
        case.dst.file("b", &old);
        case.src.file("a", new);
        let wire = copied(case, &[]);
        assert!(wire < *most, "{what}: {wire} bytes on the wire");
    }
    // In place, the old bytes may be overwritten before they are needed.
    let (what, new, _) = &news[0];
    case.dst.file("b", &old);
    case.src.file("a", new);
    let wire = copied(case, &["--inplace"]);
    assert!(wire > 24 * MIB, "{what}: {wire} bytes on the wire");
}

fn every_kind_of_change_arrives(case: &Case) {
    let old = noise(1, SIZE);
    let half = SIZE / 2;
    let changed = |start: usize, with: &[u8]| {
        let mut new = old.clone();
        new[start..start + with.len()].copy_from_slice(with);
        new
    };
    let news: [(&str, Vec<u8>, usize); 9] = [
        ("nothing", old.clone(), DIGESTS),
        ("one byte", changed(half, b"x"), 4096 + DIGESTS),
        (
            "appended",
            [&old[..], &noise(2, 5000)].concat(),
            5000 + DIGESTS,
        ),
        ("one byte more", [&old[..], b"x"].concat(), DIGESTS),
        ("one byte less", old[..SIZE - 1].to_vec(), 4096 + DIGESTS),
        ("half of it", old[..half].to_vec(), DIGESTS),
        (
            "zeros in it",
            changed(half - 100, &vec![0; 3 * MIB]),
            MIB + 12_000,
        ),
        ("all zeros", vec![0; SIZE], DIGESTS),
        (
            "much of a chunk",
            changed(MIB, &noise(3, MIB - 4096)),
            MIB + 14_000,
        ),
    ];
    for flags in [&["--compress", "zstd:3"][..], &["--inplace"], &["--live"]] {
        for (what, new, most) in &news {
            case.dst.file("b", &old);
            case.src.file("a", new);
            let wire = copied(case, flags);
            assert!(wire < *most, "{what} {flags:?}: {wire} bytes on the wire");
        }
    }
    // An old version that is empty or short, and a new one with holes.
    for short in [0, 1, 4095, 5000, 300_000] {
        case.dst.file("b", &old[..short]);
        case.src.file("a", &old);
        copied(case, &[]);
    }
    let sparse = File::create(case.src.path("a")).expect("make it");
    sparse.set_len(SIZE as u64).expect("set its length");
    sparse
        .write_all_at(&old[..MIB], half as u64)
        .expect("write");
    for flags in [&[][..], &["--inplace"]] {
        case.dst.file("b", &old);
        let wire = copied(case, flags);
        assert!(wire < MIB + DIGESTS, "{wire} bytes on the wire");
        let used = case.dst.meta("b").blocks() * 512;
        assert!(used < 4 * MIB as u64, "{flags:?}: {used} bytes are used");
    }
}

fn in_place_only_the_pages_that_differ_are_written(case: &Case) {
    changed_pages(case, &[3, 4, 900]);
    let before = case.dst.meta("b").ino();
    let wire = copied(case, &["--inplace"]);
    assert!(wire < 3 * 4096 + DIGESTS, "{wire} bytes on the wire");
    assert_eq!(case.dst.meta("b").ino(), before);
}

fn a_device_gets_what_differs(case: &Case) {
    let mut content = noise(1, SIZE);
    let Some(device) = Loop::new(&case.scratch, "disk.img", &content) else {
        return;
    };
    content[5 * MIB] ^= 1;
    content[9 * MIB..9 * MIB + 8192].fill(0);
    case.src.file("a", &content);
    let to = case.to(device.path.as_os_str());
    let done = case.fastcp().args(FLAGS).arg(case.src("a")).arg(to).run();
    done.succeeds();
    assert!(device.content() == content);
    assert!(done.wire_bytes() < 3 * 4096 + DIGESTS, "{done}");
    // A shorter source does not change the rest of the device.
    case.src.file("a", noise(2, MIB + 100));
    let to = case.to(device.path.as_os_str());
    let done = case.fastcp().args(FLAGS).arg(case.src("a")).arg(to).run();
    done.succeeds();
    content[..MIB + 100].copy_from_slice(&noise(2, MIB + 100));
    assert!(device.content() == content);
}

fn on_a_file_system_that_clones_the_rest_is_shared(case: &Case) {
    let Some(_mounted) = Mounted::cloning(case, &case.dst.0) else {
        return skip("a file system that clones files");
    };
    changed_pages(case, &[3, 900]);
    let used = || {
        let found = rustix::fs::statvfs(&case.dst.0).expect("its size");
        (found.f_blocks - found.f_bfree) * found.f_frsize
    };
    // Another name for the old version keeps its blocks.
    case.dst.hard_link("old", "b");
    rustix::fs::sync();
    let before = used();
    let done = case.copy(&FLAGS, "a", "b");
    done.succeeds();
    rustix::fs::sync();
    let more = used().saturating_sub(before);
    assert!(more < 4 * MIB as u64, "{more} bytes more are used");
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    assert!(fs::read(case.dst.path("old")).expect("read") == noise(1, SIZE));
    // Longer, shorter, and with holes that the old version has not.
    for new in [
        [&noise(1, SIZE)[..], &noise(2, 5000)].concat(),
        noise(1, 5 * MIB),
        [&noise(1, MIB)[..], &vec![0; 3 * MIB], &noise(4, MIB)].concat(),
    ] {
        case.src.file("a", &new);
        case.copy(&FLAGS, "a", "b").succeeds();
        assert!(fs::read(case.dst.path("b")).expect("read") == new);
    }
    // Moved, with a change.
    let mut new = [b"log\n", &noise(1, SIZE)[..]].concat();
    new[5 * MIB] ^= 1;
    fs::write(case.dst.path("b"), noise(1, SIZE)).expect("write");
    case.src.file("a", &new);
    let done = case.copy(&FLAGS, "a", "b");
    assert!(fs::read(case.dst.path("b")).expect("read") == new);
    assert!(done.wire_bytes() < 5 * DIGESTS + 32_000, "{done}");
    fs::remove_file(case.dst.path("old")).expect("remove it");
}

/// A clone of the old version has data where the new one has a hole.
fn holes_are_holes_where_a_clone_could_not_be_read(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let Some(_mounted) = Mounted::cloning(case, &case.dst.0) else {
        return skip("a file system that clones files");
    };
    let old = noise(1, 2 * MIB);
    case.dst.file("b", &old);
    let end = 2 * MIB as u64;
    let pieces = [(0, &old[..MIB]), (end, &b"longer"[..])];
    case.src.sparse("a", end + 6, &pieces);
    let inject = Inject::new().fail("open", Errno::MFILE);
    let inject = inject.on("/proc/self/fd/*");
    let run = case.copying(&FLAGS, "a", "b").inject(&inject).run();
    run.succeeds();
    assert!(inject.struck() > 0, "{inject}");
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
}

fn an_interrupted_copy_compares_the_rest(case: &Case) {
    // The first half is new, the second half has one page in four that differs, or has moved.
    let old = noise(1, 2 * SIZE);
    let mut content = [noise(2, SIZE), old[SIZE..].to_vec()].concat();
    for page in (SIZE / 4096..2 * SIZE / 4096).step_by(4) {
        content[page * 4096] ^= 1;
    }
    case.src.file("changed", &content);
    let moved = [&noise(2, SIZE)[..], &old[3 * MIB + 5..]].concat();
    case.src.file("moved", moved);
    let tree = case.src.dir("tree");
    tree.file("new", &content);
    cut_short::aged();
    for (source, flags) in [
        ("changed", &[][..]),
        ("changed", &["--inplace"]),
        ("moved", &[]),
    ] {
        case.dst.file("b", &old);
        let flags = [flags, &["--no-whole-file"]].concat();
        let run = case
            .copying(&[&SLOW[..], &flags].concat(), source, "b")
            .start();
        until("a third is there", || {
            let journal = case.dst.journals().pop()?;
            cut_short::has_third(&journal).then_some(())
        });
        kill_receiver(case, run);
        let wire = copied_from(case, source, &flags);
        // A quarter of the second half, and the missing part of the first.
        assert!(wire < SIZE, "{source} {flags:?}: {wire} bytes on the wire");
    }
    // The destination has the file under another name, and there was time for a part of it.
    let there = case.dst.dir("there");
    let flags = [&SLOW[..], &["-a", "--no-whole-file"]].concat();
    let run = case.copying(&flags, "tree/", "there").start();
    until("a third is there", || {
        let journal = there.journals().pop()?;
        cut_short::has_third(&journal).then_some(())
    });
    kill_receiver(case, run);
    there.file("old", &content);
    let meta = tree.meta("new");
    there.time("old", meta.mtime() as u64, meta.mtime_nsec() as u32);
    let done = case.copy(&[&FLAGS[..], &["-a"]].concat(), "tree/", "there");
    let wire = done.succeeds().wire_bytes();
    assert!(there.read("new") == content);
    assert!(wire < 2 * DIGESTS, "moved: {wire} bytes on the wire");
}

fn an_old_version_that_changes_during_the_copy_makes_no_wrong_file(case: &Case) {
    let pages: Vec<usize> = (0..SIZE / 4096).step_by(97).collect();
    changed_pages(case, &pages);
    let old = case.dst.path("b");
    let run = case.copying(&[&SLOW[..], &["--no-whole-file"]].concat(), "a", "b");
    let run = run.start();
    let file = File::options().write(true).open(&old).expect("open it");
    let inode = case.dst.meta("b").ino();
    let mut n = 0;
    while case.dst.has("b") && case.dst.meta("b").ino() == inode && n < 4000 {
        let at = (n * 7919) % (SIZE - 4096);
        file.write_all_at(&noise(n as u64, 4096), at as u64)
            .expect("write");
        n += 1;
    }
    drop(file);
    let done = run.wait();
    match done.code {
        Some(0) => assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing),
        // It was open for writing when the copy looked.
        _ => {
            done.says("is open for writing");
            case.remember();
        }
    }
}

fn a_file_that_was_moved_is_not_sent_again(case: &Case) {
    let tree = case.src.dir("tree");
    for nth in 0..3 {
        tree.file(format!("sub/{nth}"), noise(nth, 2 * MIB));
    }
    // On several streams a late digest is sent again.
    let flags = [
        "-a",
        "--delete",
        "--summary",
        "--compress",
        "none",
        "--streams=1",
        "--route=direct",
    ];
    let rename = |from: &str, to: &str| {
        fs::rename(tree.path(from), tree.path(to)).expect("rename it");
    };
    // A file waits a quarter of a second for the search of moved files. On a busy machine that may take
    // longer.
    const TRIES: usize = 8;
    let mut wires = Vec::new();
    while wires.last().is_none_or(|wire| *wire >= 3 * DIGESTS) {
        assert!(wires.len() < TRIES, "{wires:?} bytes on the wire");
        if !wires.is_empty() {
            rename("0", "renamed/0");
            rename("renamed", "sub");
        }
        case.copy(&flags, "tree/", "there").succeeds();
        rename("sub", "renamed");
        rename("renamed/0", "0");
        let done = case.copy(&flags, "tree/", "there");
        wires.push(done.succeeds().wire_bytes());
        assert_same(&tree.0, case.dst.path("there"), Also::HardLinks);
    }
    // Another file of the same size and time.
    tree.file("other", noise(7, 2 * MIB));
    let time = tree.meta("0").mtime();
    tree.time("0", time as u64, 0);
    tree.time("other", time as u64, 0);
    case.copy(&flags, "tree/0", "there/0").succeeds();
    case.copy(&flags[..1], "tree/", "there").succeeds();
    assert_same(&tree.0, case.dst.path("there"), Also::HardLinks);
    // A source that is asked for listed names learns nothing of other files.
    if case.way == Way::LocalPull {
        fs::rename(tree.path("renamed"), tree.path("listed")).expect("rename it");
        let list = case.src.file("list", b"listed/1\n");
        let list = ["--files-from", list.to_str().expect("it is text")];
        let done = case.copy(&[&["-a"], &flags[2..], &list].concat(), "tree/", "there");
        let wire = done.succeeds().wire_bytes();
        assert!(wire > 2 * MIB, "{wire} bytes on the wire");
    }
}

/// As a log that is rotated: it is read a second time.
fn a_source_that_becomes_empty_replaces_the_old_version(case: &Case) {
    case.dst.file("b", noise(1, SIZE));
    case.src.file("a", noise(2, SIZE));
    case.src.file("others/c", noise(3, MIB));
    let all = ["--memory", "16Mi", "--compress", "none", "--no-whole-file"];
    let run = case.copying(&all, "a", "b").arg("-r");
    let run = run.arg(held_back(case, "1M")).start();
    until("some of it is there", || {
        (case.dst.partial_bytes() > MIB as u64).then_some(())
    });
    let file = File::options().write(true).open(case.src.path("a"));
    file.and_then(|file| file.set_len(0)).expect("truncate it");
    let_go(case);
    run.wait().succeeds();
    assert_eq!(case.dst.read("b"), b"");
}

fn a_file_that_is_new_throughout_is_soon_sent_without_comparing(case: &Case) {
    case.dst.file("b", noise(1, 40 * MIB));
    case.src.file("a", noise(2, 40 * MIB));
    let wire = copied(case, &["--memory", "16Mi"]);
    let over = wire.saturating_sub(40 * MIB);
    // The summary tells three digits.
    assert!(over < 150_000, "{over} bytes more than the file");
}

fn no_key_or_option_that_forbids_it_compares(case: &Case) {
    changed_pages(case, &[700]);
    let wire = copied(case, &["--whole-file"]);
    assert!(wire > SIZE, "{wire} bytes on the wire");
    changed_pages(case, &[700]);
    let wire = copied(case, &["--no-whole-file", "-W"]);
    assert!(wire > SIZE, "{wire} bytes on the wire");
}

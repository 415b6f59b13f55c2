//! Copies that were cut short and run again: they resume, send the missing data, and trust no
//! journal or partial file that is wrong.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;

use crate::support::cut_short::{SIZE, SLOW, aged, bytes_on_disk, has_third, kill_receiver};
use crate::support::done::Done;
use crate::support::inject::{self, Inject};
use crate::support::limits::without_powers;
use crate::support::procs::{self, until};
use crate::support::run::Run;
use crate::support::slow::{held_back, let_go};
use crate::support::{journals, *};

ways! { local_push, local_pull =>
    a_killed_copy_goes_on_where_it_was,
    what_changed_at_the_source_meanwhile_arrives,
    a_damaged_journal_costs_time_and_never_a_wrong_file,
    chunks_of_another_size_start_again,
    a_partial_with_other_data_is_found_out,
    after_a_reboot_what_was_lost_is_sent_again,
    an_unfinished_tree_is_resumed_and_not_nested_into,
    a_tree_whose_journal_a_power_cut_emptied_is_not_nested_into,
    no_resume_starts_again,
    pieces_of_two_chunks_are_verified_like_others,
    of_two_copies_to_one_place_the_second_fails_at_once,
    in_place_goes_on_in_the_same_file,
    a_sparse_file_goes_on_with_its_holes_and_its_digest,
    a_source_that_grew_meanwhile_is_sent_on_from_where_it_ended,
    a_file_that_is_in_use_is_refused_without_force,
    a_file_that_was_refused_is_resumed_by_a_later_run,
    a_file_whose_sync_was_killed_is_not_sent_again,
    a_killed_copy_of_a_read_only_file_leaves_nothing,
}

/// Copies `a` and kills the receiver when a third of it is there.
fn interrupted(case: &Case, flags: &[&str]) {
    let run = case.copying(&[&SLOW[..], flags].concat(), "a", "b").start();
    until("a third is there", || {
        let recorded = has_third(&case.dst.journals().pop()?);
        // The journal also records holes, which take no time to write, so the written bytes count
        // too. With `--inplace` there is no partial file.
        let in_place = case.dst.partials().is_empty();
        let written = in_place || case.dst.partial_bytes() as usize > SIZE / 3;
        (recorded && written).then_some(())
    });
    kill_receiver(case, run);
}

/// Runs the copy again to its end and returns the bytes on the wire.
#[track_caller]
fn again(case: &Case, flags: &[&str]) -> usize {
    let done = finish(case, flags, "a", "b");
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    assert_eq!(case.dst.names(), ["b"]);
    done.wire_bytes()
}

#[track_caller]
fn finish(case: &Case, flags: &[&str], from: &str, to: &str) -> Done {
    let all = [&["--summary", "--compress", "none"], flags].concat();
    let done = case.copy(&all, from, to);
    done.succeeds();
    done
}

fn source(case: &Case) {
    case.src.file("a", noise(1, SIZE));
    aged();
}

fn a_killed_copy_goes_on_where_it_was(case: &Case) {
    source(case);
    interrupted(case, &[]);
    let wire = again(case, &[]);
    assert!(wire < SIZE - SIZE / 4, "{wire} bytes were sent");
}

fn what_changed_at_the_source_meanwhile_arrives(case: &Case) {
    source(case);
    interrupted(case, &[]);
    let file = OpenOptions::new()
        .write(true)
        .open(case.src.path("a"))
        .expect("open");
    file.write_all_at(&noise(2, MIB), MIB as u64)
        .expect("write");
    let wire = again(case, &[]);
    assert!(wire < SIZE - SIZE / 5, "{wire} bytes were sent");
}

fn journal(case: &Case) -> PathBuf {
    case.dst.journals().pop().expect("a journal")
}

fn a_damaged_journal_costs_time_and_never_a_wrong_file(case: &Case) {
    type Damage = fn(&File, u64);
    let damages: [(&str, Damage); 4] = [
        ("cut in the middle of a record", |file, len| {
            file.set_len(len / 2 + 17).expect("truncate")
        }),
        ("bent in the middle", |file, len| {
            file.write_all_at(&[0xff; 7], len / 2).expect("write")
        }),
        ("replaced by noise", |file, len| {
            file.write_all_at(&noise(3, len as usize), 0)
                .expect("write")
        }),
        ("of another version", |file, _| {
            file.write_all_at(b"fastcp journal 2", 0).expect("write")
        }),
    ];
    source(case);
    for (what, damage) in damages {
        interrupted(case, &[]);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(journal(case));
        let file = file.expect("open the journal");
        damage(&file, file.metadata().expect("its length").len());
        drop(file);
        println!("{what}: {} bytes on the wire", again(case, &[]));
        std::fs::remove_file(case.dst.path("b")).expect("remove");
    }
}

/// Another version may have used another chunk size.
fn chunks_of_another_size_start_again(case: &Case) {
    source(case);
    interrupted(case, &[]);
    journals::cut_otherwise(&journal(case));
    let wire = again(case, &[]);
    assert!(wire >= SIZE, "{wire} bytes were sent");
}

fn partial(case: &Case) -> File {
    let path = case.dst.partials().pop().expect("a partial");
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("open the partial")
}

fn a_partial_with_other_data_is_found_out(case: &Case) {
    source(case);
    interrupted(case, &[]);
    partial(case)
        .write_all_at(&noise(4, SIZE), 0)
        .expect("write");
    again(case, &[]);
}

fn after_a_reboot_what_was_lost_is_sent_again(case: &Case) {
    source(case);
    interrupted(case, &[]);
    journals::age_by_a_boot(&journal(case));
    // The journal reached the disk, but the data did not.
    partial(case)
        .write_all_at(&vec![0; 3 * MIB], 2 * MIB as u64)
        .expect("write");
    let wire = again(case, &[]);
    assert!(wire < SIZE - MIB, "{wire} bytes were sent");
}

fn an_unfinished_tree_is_resumed_and_not_nested_into(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..600 {
        tree.file(format!("d{}/{number}", number % 9), noise(number, 9_000));
    }
    for number in 0..3 {
        tree.file(format!("big{number}"), noise(number, 5 * MIB));
    }
    aged();
    let total = 600 * 9_000 + 15 * MIB;
    let run = case
        .copying(&[&SLOW[..], &["-r"]].concat(), "tree", "d")
        .start();
    until("half of it is there", || {
        (bytes_on_disk(&case.dst.0) as usize > total / 2).then_some(())
    });
    kill_receiver(case, run);
    let done = finish(case, &["-r"], "tree", "d");
    assert_same(&tree.0, case.dst.path("d"), Also::Nothing);
    assert_eq!(case.dst.names(), ["d"]);
    let wire = done.wire_bytes();
    assert!(
        wire < total - total / 4,
        "{wire} of {total} bytes were sent"
    );
    // The tree is complete now, so it counts as an existing directory.
    finish(case, &["-r"], "tree", "d");
    assert_same(&tree.0, case.dst.path("d/tree"), Also::Nothing);
}

/// A power cut may come when the directory is on the disk and the journal's records are not.
fn a_tree_whose_journal_a_power_cut_emptied_is_not_nested_into(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("sub/small", "small");
    tree.file("big", noise(1, 5 * MIB));
    let run = case
        .copying(&[&SLOW[..], &["-r"]].concat(), "tree", "d")
        .start();
    let made = Dir(case.dst.path("d"));
    until("it has begun", || {
        (case.dst.has("d") && !made.partials().is_empty()).then_some(())
    });
    kill_receiver(case, run);
    for journal in case.dst.journals() {
        let file = OpenOptions::new().write(true).open(journal);
        file.and_then(|file| file.set_len(0))
            .expect("empty the journal");
    }
    finish(case, &["-r"], "tree", "d");
    assert_same(&tree.0, case.dst.path("d"), Also::Nothing);
    assert_eq!(case.dst.names(), ["d"]);
}

/// On a slow link two chunks are sent as one piece.
fn pieces_of_two_chunks_are_verified_like_others(case: &Case) {
    case.src.file("a", digits(1, 64 * MIB));
    aged();
    let slow = held_back(case, "700K");
    let flags = [&slow, "--compress", "zstd:3", "--retries", "0"];
    let run = case.copying(&flags, "a", "b").start();
    until("three quarters are there", || {
        let recorded = has_third(&case.dst.journals().pop()?);
        (recorded && case.dst.partial_bytes() as usize > 48 * MIB).then_some(())
    });
    kill_receiver(case, run);
    let partial = case.dst.partials().pop().expect("a partial");
    let partial = OpenOptions::new().write(true).open(partial).expect("open");
    partial.write_all_at(b"x", 25 * MIB as u64).expect("write");
    let done = case.copy(&["--summary", "--compress", "zstd:3"], "a", "b");
    done.succeeds().says("were damaged at the destination");
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    let wire = done.wire_bytes();
    assert!(wire < 4 * MIB, "{wire} bytes were sent");
}

fn no_resume_starts_again(case: &Case) {
    case.src.file("a/f", noise(1, SIZE));
    case.src.mode("a", 0o755);
    aged();
    interrupted(case, &["-r"]);
    assert_eq!(case.dst.mode_of("b"), 0o700, "the test's premise");
    let wire = again(case, &["-r", "--no-resume"]);
    assert!(wire >= SIZE, "{wire} bytes were sent");
    // The killed run has made it.
    assert_eq!(case.dst.mode_of("b"), 0o755);
}

fn of_two_copies_to_one_place_the_second_fails_at_once(case: &Case) {
    source(case);
    case.src.file("c", noise(5, MIB));
    let first = case.copying(&["--memory", "16Mi", "--compress", "none"], "a", "b");
    let first = first.arg(held_back(case, "500K")).start();
    until("the first has begun", || {
        (!case.dst.partials().is_empty()).then_some(())
    });
    let second = case.copy(&["--retries", "0"], "a", "b");
    second.exits(12).says("another fastcp is writing there");
    case.copy(&[], "c", "").succeeds();
    let_go(case);
    first.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
    assert_eq!(case.dst.names(), ["b", "c"]);
}

fn in_place_goes_on_in_the_same_file(case: &Case) {
    source(case);
    let there = case.dst.file("b", noise(6, SIZE + 5000));
    let inode = || std::fs::metadata(&there).expect("it is there").ino();
    let before = inode();
    interrupted(case, &["--inplace"]);
    assert!(case.dst.partials().is_empty());
    let wire = again(case, &["--inplace"]);
    assert!(wire < SIZE - SIZE / 4, "{wire} bytes were sent");
    assert_eq!(inode(), before);
    // A run that compares only sizes does not keep the half-written file.
    case.dst.file("b", noise(8, SIZE));
    interrupted(case, &["--inplace"]);
    again(case, &["--size-only"]);
    // Nor if the copy ends before a byte of it is written.
    case.dst.file("b", noise(8, SIZE / 2));
    let slow = held_back(case, "100K");
    let flags = ["--inplace", "--retries", "0", &slow];
    let run = case.copying(&flags, "a", "b").start();
    until("it is extended", || {
        (case.dst.meta("b").len() == SIZE as u64).then_some(())
    });
    run.signal(Signal::INT);
    run.wait().exits(130);
    until("the other end is gone", || {
        procs::marked(case.mark()).is_empty().then_some(())
    });
    again(case, &["--size-only"]);
    // The same for a small file.
    case.src.file("small", b"new");
    case.dst.file("small", b"older");
    let before = case.dst.meta("small").ino();
    case.copy(&["--inplace"], "small", "small").succeeds();
    assert_eq!(case.dst.read("small"), b"new");
    assert_eq!(case.dst.meta("small").ino(), before);
    // But it never writes through a symbolic link at the destination.
    case.dst.link("link", "small");
    let tree = case.src.dir("tree");
    tree.file("link", b"hostile");
    case.dst.dir("tree").link("link", "../small");
    case.copy(&["-r", "--inplace"], "tree", "").exits(11);
    assert_eq!(case.dst.read("small"), b"new");
}

/// Pieces with holes between, as in the disk image of a virtual machine. The digest list also needs
/// the digests of the part that is not sent again.
fn a_sparse_file_goes_on_with_its_holes_and_its_digest(case: &Case) {
    let piece = noise(9, 3 * MIB);
    let pieces: Vec<(u64, &[u8])> = (0..8)
        .map(|number| (number * 16 * MIB as u64 + 4096, &piece[..]))
        .collect();
    case.src.sparse("a", 200 * MIB as u64 + 5, &pieces);
    aged();
    interrupted(case, &[]);
    let list = case.scratch.path("list");
    let wire = again(case, &["--digests", list.to_str().expect("ASCII")]);
    // A chunk that is partly a hole is sent whole, and each piece touches four chunks.
    assert!(wire < 8 * 4 * MIB - SIZE / 4, "{wire} bytes were sent");
    let on_disk = case.dst.meta("b").blocks() as usize * 512;
    assert!(on_disk < SIZE + SIZE / 4, "{on_disk} bytes are on the disk");
    let digest = blake3::hash(&case.src.read("a"));
    assert_eq!(
        String::from_utf8(case.scratch.read("list")).expect("UTF-8"),
        format!("{digest}  b\n")
    );
}

/// A log or a backup that still grows is a different file at each run. Its unchanged part is not
/// sent again.
fn a_source_that_grew_meanwhile_is_sent_on_from_where_it_ended(case: &Case) {
    source(case);
    interrupted(case, &[]);
    case.src.append("a", noise(10, 2 * MIB));
    aged();
    let wire = again(case, &[]);
    assert!(wire < SIZE + 2 * MIB - SIZE / 4, "{wire} bytes were sent");
}

fn a_file_that_is_in_use_is_refused_without_force(case: &Case) {
    for (name, len) in [("small", 100), ("big", 2 * MIB)] {
        case.src.file(name, noise(7, len));
        let there = case.dst.file(name, b"in use");
        let writer = OpenOptions::new().append(true).open(&there).expect("open");
        let refused = case.copy(&[], name, name);
        refused.exits(11).says("--force");
        assert_eq!(case.dst.read(name), b"in use");
        case.copy(&["--force"], name, name).succeeds();
        drop(writer);
        assert_same(case.src.path(name), case.dst.path(name), Also::Nothing);
    }
    links_and_earlier_copies_replace_no_file_in_use(case);
}

fn links_and_earlier_copies_replace_no_file_in_use(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "new");
    tree.hard_link("hard", "file");
    tree.link("soft", "file");
    mkfifoat(CWD, tree.path("fifo"), Mode::RUSR).expect("make a FIFO");
    tree.file("same", noise(8, 2 * MIB));
    case.copy(&["-a"], "tree/", "old").succeeds();
    for (option, to) in [
        ("-t", "plain"),
        ("--link-dest=../old", "linked"),
        ("--copy-dest=../old", "copied"),
    ] {
        let names = ["hard", "soft", "fifo", "same"];
        let there = case.dst.dir(to);
        let writers = names.map(|name| {
            let path = there.file(name, "in use");
            OpenOptions::new().append(true).open(path).expect("open")
        });
        let refused = case.copy(&["-a", option], "tree/", to);
        refused.exits(11);
        for name in names {
            refused.says(&format!("{to}/{name}: is open for writing"));
            assert_eq!(there.read(name), b"in use", "{option} {name}");
        }
        case.copy(&["-a", option, "--force"], "tree/", to)
            .succeeds();
        drop(writers);
        assert_same(&tree.0, &there.0, Also::ModesAndTimes);
    }
}

/// The first refusal is that of a directory, the second that of a file in use.
fn a_file_that_was_refused_is_resumed_by_a_later_run(case: &Case) {
    case.src.file("tree/f", noise(1, SIZE));
    aged();
    let there = case.dst.dir("there");
    let run = case.copying(&[&SLOW[..], &["-r"]].concat(), "tree/", "there");
    let run = run.start();
    until("a third is there", || {
        has_third(&there.journals().pop()?).then_some(())
    });
    kill_receiver(case, run);
    there.dir("f");
    let refused = case.copy(&["-r"], "tree/", "there");
    refused.exits(11).says("there/f: is a directory");
    std::fs::remove_dir(there.path("f")).expect("remove it");
    let used = there.file("f", "in use");
    let writer = OpenOptions::new()
        .append(true)
        .open(&used)
        .expect("open it");
    let refused = case.copy(&["-r"], "tree/", "there");
    refused.exits(11).says("there/f: is open for writing");
    drop(writer);
    tree::no_longer_written(&used);
    let wire = finish(case, &["-r"], "tree/", "there").wire_bytes();
    assert!(wire < SIZE - SIZE / 4, "{wire} bytes were sent");
    assert_same(case.src.path("tree"), case.dst.path("there"), Also::Nothing);
    assert_eq!(there.names(), ["f"]);
}

/// Runs a copy in which the receiver is killed.
fn killed(case: &Case, run: Run, inject: &Inject) {
    let done = run.inject(inject).run();
    assert_ne!(done.code, Some(0), "it was killed: {done}");
    inject.assert_struck(1);
    until("the other end is gone", || {
        procs::marked(case.mark()).is_empty().then_some(())
    });
}

/// The file is complete, and only the sync of its data is not.
fn a_file_whose_sync_was_killed_is_not_sent_again(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    source(case);
    let inject = Inject::new().kill("fsync").on("*.part");
    let run = case.copying(&["--fsync", "--retries", "0"], "a", "b");
    killed(case, run, &inject);
    let wire = again(case, &["--fsync"]);
    assert!(wire < SIZE / 4, "{wire} bytes were sent");
}

/// As the mode of the source says, its user may not write to the partial file of the killed run.
fn a_killed_copy_of_a_read_only_file_leaves_nothing(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("a", noise(1, 2 * MIB));
    case.src.mode("a", 0o444);
    let powerless = without_powers();
    let inject = Inject::new().kill("fsync").on("*.part").nth(2);
    let run = case.copying(&["-p", "--fsync", "--retries", "0"], "a", "b");
    killed(case, run.under(&powerless), &inject);
    assert_eq!(case.dst.partials().len(), 1);
    let run = case.copying(&["-p"], "a", "b");
    run.under(&powerless).run().succeeds();
    assert_same(case.src.path("a"), case.dst.path("b"), Also::ModesAndTimes);
    assert_eq!(case.dst.names(), ["b"]);
}

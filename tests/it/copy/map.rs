//! `--map FROM=TO`: parts of a directory that go to separate places.

use std::os::unix::fs::MetadataExt;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::support::disk::Mounted;
use crate::support::loops::Loop;
use crate::support::procs::until;
use crate::support::*;

ways! { pull, between => parts_go_to_their_places_and_a_second_run_keeps_them }

ways! { local_push, here =>
    a_mirror_leaves_the_place_of_a_part_alone,
    rules_see_a_part_below_its_source,
    a_dry_run_and_a_check_look_at_each_place,
}

ways! { local_push, local_pull => an_interrupted_part_resumes }

ways! { local_push, local_between => a_link_in_the_place_of_a_part_is_replaced }

ways! { here =>
    each_file_system_needs_room_for_its_own_parts,
    mappings_that_cannot_work_are_refused,
    further_destinations_have_the_same_places,
}

/// A cluster with a tablespace elsewhere, as a server keeps it.
fn cluster(case: &Case) {
    let pg = case.src.dir("pg");
    pg.file("PG_VERSION", "15");
    pg.file("base/1/a", noise(1, 3000));
    pg.file("base/16384/t", noise(2, 2 * MIB));
    pg.file("base/16384/sub/u", "u");
    pg.file("pg_wal/1", noise(3, 20_000));
    pg.file("conf", "conf");
    case.src.file("ts/PG_15/1/x", "tablespace");
    pg.dir("pg_tblspc");
    pg.link("pg_tblspc/7", case.src.path("ts"));
    pg.hard_link("base/16384/h", "base/1/a");
    pg.hard_link("base/16384/t2", "base/16384/t");
    for (path, mode) in [("pg_wal", 0o700), ("base/16384", 0o750), ("base", 0o711)] {
        pg.mode(path, mode);
        pg.time(path, 1_000_000_000, 7);
    }
    pg.time("", 1_000_000_001, 7);
}

/// `--map FROM=TO` with TO below the destination.
fn map(case: &Case, from: &str, to: &str) -> [String; 2] {
    let to = case.dst.0.display().to_string() + "/" + to;
    ["--map".to_owned(), format!("{from}={to}")]
}

fn copying(case: &Case, flags: &[&str], maps: &[(&str, &str)], dst: &str) -> Run {
    let maps = maps.iter().flat_map(|(from, to)| map(case, from, to));
    case.fastcp()
        .args(flags)
        .args(maps)
        .arg(case.src("pg/"))
        .arg(case.dst(dst))
}

/// Every path below the destination, sorted.
fn paths(case: &Case) -> Vec<String> {
    let tree = Tree::read(&case.dst.0);
    let shown = |path: &std::path::PathBuf| path.to_string_lossy().into_owned();
    let paths = tree.0.keys().map(shown);
    paths.filter(|path| !path.is_empty()).collect()
}

fn parts_go_to_their_places_and_a_second_run_keeps_them(case: &Case) {
    cluster(case);
    case.dst.dir("etc");
    let maps = [
        ("base/16384/", "ts1"),
        ("./pg_wal", "wal"),
        ("conf", "etc/"),
        ("pg_tblspc/7", "ts2"),
    ];
    let done = copying(case, &["-a", "--json"], &maps, "main").run();
    done.succeeds();
    let expected = [
        "etc",
        "etc/conf",
        "main",
        "main/PG_VERSION",
        "main/base",
        "main/base/1",
        "main/base/1/a",
        "main/pg_tblspc",
        "ts1",
        "ts1/h",
        "ts1/sub",
        "ts1/sub/u",
        "ts1/t",
        "ts1/t2",
        "ts2",
        "ts2/PG_15",
        "ts2/PG_15/1",
        "ts2/PG_15/1/x",
        "wal",
        "wal/1",
    ];
    assert_eq!(paths(case), expected);
    assert_same(
        case.src.path("pg/base/16384"),
        case.dst.path("ts1"),
        Also::Nothing,
    );
    assert_eq!(case.dst.read("ts1/h"), case.src.read("pg/base/1/a"));
    assert_ne!(
        case.dst.meta("ts1/h").ino(),
        case.dst.meta("main/base/1/a").ino()
    );
    assert_eq!(case.dst.meta("ts1/t").ino(), case.dst.meta("ts1/t2").ino());
    for (path, mode) in [("wal", 0o700), ("ts1", 0o750), ("main/base", 0o711)] {
        assert_eq!(case.dst.mode_of(path), mode, "{path}");
        assert_eq!(case.dst.meta(path).mtime(), 1_000_000_000, "{path}");
    }

    // Only the changes are sent again.
    let before = case.dst.meta("wal/1").ino();
    case.src.file("pg/base/16384/sub/u", "changed");
    let done = copying(case, &["-a", "--itemize-changes"], &maps, "main").run();
    done.succeeds();
    let changed = case.dst.path("ts1/sub/u").display().to_string();
    let lines = done.stdout_text();
    assert!(lines.contains(&changed), "{lines}");
    assert!(
        !lines.contains("wal/1") && !lines.contains("PG_VERSION"),
        "{lines}"
    );
    assert_eq!(case.dst.read("ts1/sub/u"), b"changed");
    assert_eq!(case.dst.meta("wal/1").ino(), before);
}

fn a_link_in_the_place_of_a_part_is_replaced(case: &Case) {
    case.src.file("pg/conf", "conf");
    case.dst.file("other", "of another");
    // Between two hosts, the link was followed if a hash of SOURCE had no character of a pattern.
    for (nth, source) in ["pg/", "pg//", "pg///"].into_iter().enumerate() {
        let (main, etc) = (format!("main{nth}"), format!("etc{nth}"));
        let link = format!("{etc}/conf");
        case.dst.link(&link, case.dst.path("other"));
        let run = case.fastcp().arg("-r").args(map(case, "conf", &etc));
        let run = run.arg(case.src(source)).arg(case.dst(&main));
        run.run().succeeds();
        assert!(case.dst.meta(&link).is_file(), "{source}");
        assert_eq!(case.dst.read(&link), b"conf");
        assert_eq!(case.dst.read("other"), b"of another");
    }
}

fn a_mirror_leaves_the_place_of_a_part_alone(case: &Case) {
    cluster(case);
    let maps = [("base/16384", "ts1"), ("pg_wal", "wal")];
    copying(case, &["-a"], &maps, "main").run().succeeds();
    // As the administrator lets the server find them.
    case.dst.link("main/pg_wal", case.dst.path("wal"));
    case.dst.file("main/base/16384/own", "of another");
    for extra in [
        "main/gone",
        "main/base/gone/deep",
        "ts1/gone",
        "ts1/sub/gone",
        "wal/gone/x",
    ] {
        case.dst.file(extra, "extra");
    }
    std::fs::remove_file(case.src.path("pg/base/16384/t2")).expect("remove it");
    let done = copying(case, &["-a", "--delete", "-v"], &maps, "main").run();
    done.succeeds();
    let expected = [
        "main",
        "main/PG_VERSION",
        "main/base",
        "main/base/1",
        "main/base/1/a",
        "main/base/16384",
        "main/base/16384/own",
        "main/conf",
        "main/pg_tblspc",
        "main/pg_tblspc/7",
        "main/pg_wal",
        "ts1",
        "ts1/h",
        "ts1/sub",
        "ts1/sub/u",
        "ts1/t",
        "wal",
        "wal/1",
    ];
    assert_eq!(paths(case), expected);
    assert!(case.dst.meta("main/pg_wal").is_symlink());
    done.says(&format!("{}/ts1/sub/gone", case.dst.0.display()));

    // Rules never leave out FROM itself.
    for rules in [
        &["--delete", "--filter=H /pg_wal"][..],
        &["--delete-excluded", "--exclude=/pg_wal"],
        &["--delete", "--filter=H /base"],
    ] {
        case.dst.file("main/gone", "extra");
        let flags = [&["-a"], rules].concat();
        copying(case, &flags, &maps, "main").run().succeeds();
        let has = |path: &str| case.dst.has(path);
        assert!(
            has("main/pg_wal") && has("main/base/16384/own"),
            "{rules:?}"
        );
        assert!(!has("main/gone"), "{rules:?}");
    }

    // A source that has nothing but the part is not empty.
    let only = case.src.dir("only");
    only.file("part/x", "x");
    case.dst.file("only/part/mine", "stays");
    let to = map(case, "part", "place");
    let flags: Vec<&str> = ["-a", "--delete"]
        .into_iter()
        .chain(to.iter().map(|word| &word[..]))
        .collect();
    case.copy(&flags, "only/", "only").succeeds();
    assert!(case.dst.has("only/part/mine") && case.dst.has("place/x"));
}

fn rules_see_a_part_below_its_source(case: &Case) {
    cluster(case);
    case.src.file("pg/.rules", "- /base/16384/sub/\n- *.tmp\n");
    case.src.file("pg/base/.rules", "- t2\n");
    case.src.file("pg/base/16384/x.tmp", "");
    case.src.file("pg/pg_wal/archive/1", "");
    let maps = [("base/16384", "ts1"), ("pg_wal", "wal")];
    let rules = [
        "-a",
        "--filter=dir-merge .rules",
        "--exclude=/pg_wal/*",
        "--exclude=.rules",
    ];
    for flags in [&rules[..], &[&rules[..], &["--delete"]].concat()] {
        copying(case, flags, &maps, "main").run().succeeds();
        let names = paths(case);
        let names: Vec<_> = names
            .iter()
            .filter(|name| !name.starts_with("main"))
            .collect();
        assert_eq!(names, ["ts1", "ts1/h", "ts1/t", "wal"], "{flags:?}");
        case.dst.file("ts1/extra", "");
        case.dst.file("ts1/t2", "protected by the rule");
        if flags.len() == rules.len() {
            std::fs::remove_file(case.dst.path("ts1/extra")).expect("remove it");
            std::fs::remove_file(case.dst.path("ts1/t2")).expect("remove it");
        }
    }
    case.dst.file("ts1/sub/kept", "");
    let flags = [&rules[..], &["--delete"]].concat();
    copying(case, &flags, &maps, "main").run().succeeds();
    assert!(case.dst.has("ts1/t2") && case.dst.has("ts1/sub/kept"));
    assert!(!case.dst.has("ts1/extra"));
}

fn a_dry_run_and_a_check_look_at_each_place(case: &Case) {
    cluster(case);
    let maps = [("base/16384", "new/ts1"), ("pg_wal", "wal")];
    let done = copying(case, &["-an", "--mkpath"], &maps, "main").run();
    done.succeeds();
    let lines = done.stdout_text();
    for path in ["new/ts1/t", "wal/1"] {
        let path = case.dst.path(path).display().to_string();
        assert!(lines.contains(&path), "{path} in {lines}");
    }
    assert_eq!(paths(case), [""; 0]);
    let done = copying(
        case,
        &["-an", "--mkpath"],
        &[("pg_wal", "main/wal")],
        "main",
    )
    .run();
    done.exits(2).says("needs separate places");

    copying(case, &["-a", "--mkpath"], &maps, "main")
        .run()
        .succeeds();
    let check = |code| {
        let done = copying(case, &["-a", "--check"], &maps, "main").run();
        done.exits(code);
        done.stdout_text()
    };
    check(0);
    case.dst.file("new/ts1/sub/u", "U");
    case.dst.file("wal/more", "");
    let lines = check(1);
    for path in ["new/ts1/sub/u", "wal/more"] {
        let path = case.dst.path(path).display().to_string();
        assert!(lines.contains(&path), "{path} in {lines}");
    }
    std::fs::remove_file(case.dst.path("wal/more")).expect("remove it");
    case.src.file("pg/base/16384/sub/u", "U");
}

fn an_interrupted_part_resumes(case: &Case) {
    cluster(case);
    case.src.file("pg/base/16384/big", noise(9, 12 * MIB));
    let maps = [("base/16384", "ts1"), ("pg_wal", "wal")];
    let running = copying(case, &["-a", "--bwlimit", "2M"], &maps, "main").start();
    until("some of the part has arrived", || {
        let place = Dir(case.dst.path("ts1"));
        (place.0.exists() && place.partial_bytes() > 4 * MIB as u64).then_some(())
    });
    running.signal(Signal::INT);
    running.wait().exits(130);
    let done = copying(case, &["-a", "--summary"], &maps, "main").run();
    done.succeeds().says("of it already there and verified");
    assert_same(
        case.src.path("pg/base/16384"),
        case.dst.path("ts1"),
        Also::Nothing,
    );
    assert_same(
        case.src.path("pg/pg_wal"),
        case.dst.path("wal"),
        Also::Nothing,
    );
}

fn each_file_system_needs_room_for_its_own_parts(case: &Case) {
    let (small, tiny) = (case.dst.dir("small"), case.dst.dir("tiny"));
    let (Some(_small), Some(_tiny)) = (
        Mounted::small(&small.0, 4 * MIB as u64),
        Mounted::small(&tiny.0, MIB as u64 / 2),
    ) else {
        return skip("mounts");
    };
    case.src.file("pg/a", noise(1, 3 * MIB));
    case.src.file("pg/part/b", noise(2, 3 * MIB));
    case.src.file("pg/little/c", noise(3, 10_000));
    let maps = [("little", "tiny/c"), ("part", "elsewhere")];
    copying(case, &["-a"], &maps, "small/main").run().succeeds();
    let maps = [("part", "tiny/part")];
    copying(case, &["-a"], &maps, "main2")
        .run()
        .exits(8)
        .says("no space left: needs 3.15 MB");
    assert!(!case.dst.has("main2"));
    let maps = [("little", "tiny/c2"), ("part", "small/part")];
    copying(case, &["-a"], &maps, "main3")
        .run()
        .exits(8)
        .says("small");
    a_device_has_room_of_its_own(case, &tiny);
}

fn a_device_has_room_of_its_own(case: &Case, tiny: &Dir) {
    let Some(disk) = Loop::new(&case.scratch, "disk", vec![0; 4 * MIB]) else {
        return skip("loop devices");
    };
    let number = std::fs::metadata(&disk.path).expect("a device").rdev();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, tiny.path("disk"), FileType::BlockDevice, mode, number).expect("make a node");
    copying(case, &["-a"], &[("a", "tiny/disk")], "main4")
        .run()
        .succeeds();
    assert!(disk.content().starts_with(&noise(1, 3 * MIB)));
}

fn mappings_that_cannot_work_are_refused(case: &Case) {
    cluster(case);
    let fifo = case.src.path("pg/fifo");
    for pipe in [fifo, case.dst.path("pipe")] {
        mknodat(CWD, pipe, FileType::Fifo, Mode::RUSR, 0).expect("make a FIFO");
    }
    case.dst.dir("there/below");
    for (code, maps, told) in [
        (
            9,
            &[("gone", "x")][..],
            "pg/gone: --map names a part of SOURCE that does not exist",
        ),
        (
            2,
            &[("fifo", "x")],
            "is a FIFO, and --map takes files and directories",
        ),
        (2, &[("base", "x"), ("base/1", "y")], "contains the other"),
        (2, &[("base", "x"), ("./base/", "y")], "given twice"),
        (
            2,
            &[("base", "x"), ("pg_wal", "x")],
            "needs separate places",
        ),
        (
            2,
            &[("base", "there"), ("pg_wal", "there/below")],
            "needs separate places",
        ),
        (2, &[("base", "main")], "needs separate places"),
        (
            11,
            &[("base/1/a", "pipe")],
            "pipe: is a pipe; a part of SOURCE goes to a file, directory or device",
        ),
        (2, &[("../pg", "x")], "not a possible path below SOURCE"),
        (
            8,
            &[("base", "no/such/place")],
            "no/such: destination directory does not exist",
        ),
    ] {
        let done = copying(case, &["-a"], maps, "main").run();
        done.exits(code).says(told);
        assert!(!case.dst.has("main/PG_VERSION"), "{told}");
    }
    let inside = case.src.path("pg/pg_wal/new").display().to_string();
    let refused = |words: &[&str], told: &str| {
        let done = case.fastcp().args(words).run();
        done.fails().says(told);
    };
    let (src, dst) = (case.src.path("pg/"), case.dst.path("main"));
    let (src, dst) = (src.to_str().unwrap(), dst.to_str().unwrap());
    let part = format!("base={inside}");
    refused(
        &["-a", "--map", &part, src, dst],
        "cannot be copied into itself",
    );
    for (words, told) in [
        (&["-a", "--map", "base", src, dst][..], "write FROM=TO"),
        (
            &["-a", "--map", "/etc=/x", src, dst],
            "FROM must be a path below",
        ),
        (
            &["-a", "--map", "base=db2:/x", src, dst],
            "TO is always on the host of DEST",
        ),
        (&["-a", "--map", "base=", src, dst], "TO is empty"),
        (
            &["-a", "--map", "base=~/x", src, dst],
            "your shell has not replaced the ~",
        ),
        (&["--map", "base=/x", src, dst], "add -r or -a"),
        (
            &["-a", "--map", "base=/x", src, src, dst],
            "takes one SOURCE",
        ),
        (
            &["-a", "--map", "base=/x", "-", dst],
            "cannot be a pipe or command",
        ),
        (
            &["-aL", "--map", "base=/x", src, dst],
            "--map and -L cannot be combined",
        ),
        (
            &["-a", "--digests", "list", "--map", "base=/x", src, dst],
            "--map and --digests cannot be combined",
        ),
        (
            &["-a", "--snapshot", "--map", "base=/x", src, dst],
            "--snapshot",
        ),
        (
            &["-a", "--map", "x=/x", "/etc/passwd", dst],
            "is not a directory, and --map divides one",
        ),
    ] {
        refused(words, told);
    }
}

fn further_destinations_have_the_same_places(case: &Case) {
    cluster(case);
    let copying = |also: &str| {
        let run = case.fastcp().cwd(&case.dst.0);
        let run = run.args(["-a", "--rsh", "local", "--map", "pg_wal=wal"]);
        run.arg(case.src("pg/")).args(["main", "--also", also])
    };
    copying("main2")
        .run()
        .exits(2)
        .says("main2: use one run for each DEST");
    copying("h:main").run().succeeds();
    for place in [&case.dst, &case.home] {
        assert!(place.has("main/PG_VERSION") && !place.has("main/pg_wal"));
        assert_same(case.src.path("pg/pg_wal"), place.path("wal"), Also::Nothing);
    }
}

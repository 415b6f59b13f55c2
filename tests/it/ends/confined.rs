//! Restricted keys: a line of `authorized_keys` allows only a server that adds files to one
//! directory, or only reads from it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use fastcp::journal;
use fastcp::journal::record::{
    ChecksumKey, JournalSession, JournalUserKey, MadeDirectory, RecordBody,
};

use crate::support::cut_short::{SIZE, SLOW, aged, has_third, kill_receiver};
use crate::support::procs::{MARK, until};
use crate::support::run::fastcp_binary;
use crate::support::*;

ways! { push =>
    a_key_that_only_adds_takes_a_backup_and_keeps_what_is_there,
    a_key_that_only_writes_is_good_for_nothing_else,
    a_dry_run_needs_the_permissions_of_the_copy,
    missing_directories_are_made_inside_alone,
    backups_of_a_confined_key_stay_inside,
    a_key_that_only_adds_makes_snapshots_and_changes_none,
    a_confined_key_reaches_nothing_else,
    further_logins_of_such_a_key_carry_streams,
    a_confined_key_neither_gives_nor_takes_names_of_unfinished_files,
    links_that_a_confined_key_places_stay_inside,
    what_looks_like_a_journal_changes_no_directory,
    a_key_that_only_writes_resumes_for_its_own_client_alone,
    directories_of_a_killed_run_get_their_modes_with_such_a_key,
}

ways! { local_push => no_journal_gives_a_directory_set_id_bits }

ways! { pull =>
    a_key_that_only_reads_gives_what_is_in_its_directory,
    a_key_that_only_reads_removes_what_its_line_allows,
}

/// Restricts the host's key to a server with these arguments.
fn force(case: &Case, arguments: &str) {
    case.host().force(&format!(
        "env HOME='{}' {MARK}='{}' '{}' --server {arguments}",
        case.home.0.display(),
        case.mark(),
        fastcp_binary().display()
    ));
}

fn copy(case: &Case, flags: &[&str], source: &str, dest: &str) -> done::Done {
    case.fastcp().args(flags).args([source, dest]).run()
}

fn a_key_that_only_adds_takes_a_backup_and_keeps_what_is_there(case: &Case) {
    let dir = case.dst.0.display().to_string();
    force(
        case,
        &format!("--confine '{dir}' --write-only --no-overwrite"),
    );
    let tree = case.src.dir("tree");
    tree::one_of_everything(&tree);
    let from = tree.0.display().to_string();
    // The session starts in the confined directory, and every spelling of that directory works.
    for dest in [
        "far:monday",
        "far:~/tuesday",
        &format!("far:{dir}/wednesday"),
    ] {
        copy(case, &["-r", "-p"], &from, dest).succeeds();
    }
    for day in ["monday", "tuesday", "wednesday"] {
        assert_same(&from, case.dst.path(day), Also::ModesAndTimes);
    }
    // A second copy with changes: existing files stay, and so do the modes and times of their
    // directories.
    let before = Tree::read(&case.dst.0);
    tree.append("small", "more");
    tree.file("new", "new");
    tree.mode("sub", 0o711);
    let again = copy(case, &["-r", "-p"], &format!("{from}/"), "far:monday");
    again.exits(11).says("exists").never_says("panicked");
    assert_eq!(case.dst.read("monday/new"), b"new");
    case.dst.time("monday", 1_000_000_000, 0);
    std::fs::remove_file(case.dst.path("monday/new")).expect("remove");
    let changed = before.differences(&Tree::read(&case.dst.0), Also::Nothing);
    assert!(changed.is_empty(), "{changed:?}");
    let mode = |path: &str| case.dst.mode_of(path);
    assert_eq!(mode("monday/sub"), mode("tuesday/sub"));
}

fn a_key_that_only_adds_makes_snapshots_and_changes_none(case: &Case) {
    let dir = case.dst.0.display().to_string();
    let adds = format!("--confine '{dir}' --write-only --no-overwrite");
    let tree = case.src.dir("tree");
    tree.file("sub/same", "same");
    tree.file("changed", "old");
    tree.file("big", noise(3, MIB));
    let from = format!("{}/", tree.0.display());
    let snapshot = |more: &[&str]| {
        let flags = [&["-a", "--snapshot"], more].concat();
        copy(case, &flags, &from, "far:web1")
    };
    force(case, &adds);
    snapshot(&[]).exits(2).says("--allow-snapshot");
    force(case, &format!("{adds} --allow-snapshot"));
    snapshot(&[]).succeeds();
    let latest = || std::fs::read_link(case.dst.path("web1/latest")).expect("a link");
    let first = Dir(case.dst.path("web1").join(latest()));
    let before = Tree::read(&first.0);
    // Unchanged files are links; a file with another mode is sent, and the old one keeps its own.
    tree.file("changed", "newer");
    tree.mode("sub/same", 0o666);
    snapshot(&[]).succeeds();
    let second = Dir(case.dst.path("web1").join(latest()));
    assert_same(&tree.0, &second.0, Also::ModesAndTimes);
    assert_eq!(first.meta("big").ino(), second.meta("big").ino());
    assert_ne!(first.meta("sub/same").ino(), second.meta("sub/same").ino());
    snapshot(&["--keep", "1d"])
        .exits(2)
        .says("--allow-thinning");
    snapshot(&["--inplace"]).exits(2);
    // No other copy of this key goes into a snapshot, or beside one.
    let name = first
        .0
        .file_name()
        .expect("a date")
        .to_str()
        .expect("a date");
    tree.file("web1/more", "more");
    let whole = tree.0.join("web1").display().to_string();
    let file = tree.path("changed").display().to_string();
    for (source, dest) in [
        (&file, format!("far:web1/{name}/more")),
        (&file, format!("far:web1/{name}/sub")),
        (&file, "far:web1/2001-01-01T000000Z".to_owned()),
        (&file, format!("far:web1/{name}/new/directory/")),
        (&whole, "far:".to_owned()),
        (&whole, format!("far:web1/{name}")),
        (
            &file,
            "far:web1/.fastcp-snapshots/2001-01-01T000000Z".to_owned(),
        ),
    ] {
        let done = copy(case, &["-a", "--mkpath"], source, &dest);
        done.fails().never_says("panicked");
    }
    // Only an empty directory becomes one of snapshots.
    case.dst.file("other/file", "of the administrator");
    let done = copy(case, &["-a", "--snapshot"], &from, "far:other");
    done.exits(11).says("only in an empty directory");
    let kept = before.differences(&Tree::read(&first.0), Also::ModesAndTimes);
    assert!(kept.is_empty(), "{kept:?}");
    let web1 = Dir(case.dst.path("web1"));
    assert_eq!(web1.names().len(), 4, "{:?}", web1.names());
    assert_eq!(case.dst.names(), ["other", "web1"]);
    // What only the destination has goes, but no snapshot.
    let deletes = "--no-overwrite --allow-delete --allow-snapshot";
    force(case, &format!("--confine '{dir}' {deletes}"));
    let new = case.scratch.file("new/file", "new");
    let new = format!("{}/", new.parent().expect("it has one").display());
    let done = copy(case, &["-a", "--delete"], &new, "far:");
    done.exits(11).says("holds snapshots");
    assert_eq!(case.dst.names(), ["file", "web1"]);
    // Nor do backups go there, or the source of a key without --confine by a link with its name.
    case.dst.file("other/extra", "extra");
    let flag = format!("--backup-dir={dir}/web1/{name}");
    let done = copy(case, &["-a", "--delete", &flag], &new, "far:other");
    done.exits(11).says("holds snapshots");
    force(case, "--no-overwrite");
    case.dst.link("links/new", format!("../web1/{name}"));
    case.dst.link("links/to", "../web1/2001-01-01T000000Z");
    let whole = new.trim_end_matches('/');
    for place in ["links", "links/to/"] {
        let done = copy(case, &["-r"], whole, &format!("far:{dir}/{place}"));
        done.exits(11).says("holds snapshots");
    }
    let kept = before.differences(&Tree::read(&first.0), Also::ModesAndTimes);
    assert!(kept.is_empty() && web1.names().len() == 4, "{kept:?}");

    force(case, &format!("{adds} --allow-snapshot --allow-thinning"));
    snapshot(&["--keep", "1d"]).succeeds();
    assert_eq!(web1.names().len(), 3, "{:?}", web1.names());
    std::fs::remove_dir_all(web1.path(".fastcp-snapshots")).expect("remove it");
}

fn missing_directories_are_made_inside_alone(case: &Case) {
    let dir = case.dst.0.display().to_string();
    force(
        case,
        &format!("--confine '{dir}' --write-only --no-overwrite"),
    );
    let outside = case.scratch.dir("outside");
    case.dst.link("out", &outside.0);
    case.dst.file("file", "file");
    let from = case.src.file("a", "content").display().to_string();
    copy(case, &["--mkpath"], &from, "far:x/y/a").succeeds();
    assert_eq!(case.dst.read("x/y/a"), b"content");
    for dest in ["far:out/x/a", "far:file/x/a", "far:../x/a"] {
        copy(case, &["--mkpath"], &from, dest).fails();
    }
    assert_eq!(case.dst.names(), ["file", "out", "x"]);
    assert!(outside.names().is_empty());
}

fn backups_of_a_confined_key_stay_inside(case: &Case) {
    let dir = case.dst.0.display().to_string();
    let from = case.src.file("tree/a", "new");
    case.src.link("tree/up", "a");
    let from = format!("{}/", from.parent().expect("the tree").display());
    let outside = case.scratch.dir("outside");
    let day = case.dst.dir("day/web");
    let fill = || {
        day.file("a", "old");
        std::fs::remove_file(day.path("up")).ok();
        day.link("up", "../../a");
    };
    fill();
    case.dst.link("out", &outside.0);
    let run = |arguments: &str, flags: &[&str]| {
        force(case, &format!("--confine '{dir}' {arguments}"));
        copy(case, &[&["-r", "-I"], flags].concat(), &from, "far:day/web")
    };
    let absolute = format!("--backup-dir={}", outside.0.display());
    for path in [
        &absolute[..],
        "--backup-dir=../../../b",
        "--backup-dir=.fastcp-b",
    ] {
        run("", &[path]).exits(2).never_says("panicked");
    }
    let linked = format!("--backup-dir={dir}/out");
    run("", &[&linked]).fails();
    assert_eq!(day.read("a"), b"old");
    assert!(outside.names().is_empty());
    // The link led to a place inside, and would lead out from there.
    let inside = format!("--backup-dir={dir}/b");
    run("", &[&inside]).exits(11).says("could lead out");
    assert_eq!(case.dst.read("b/a"), b"old");
    fill();
    run("", &["--backup-dir=b/c"]).succeeds();
    assert_eq!(day.read("b/c/a"), b"old");
    fill();
    run("", &["--exclude=up", "--backup-dir=../b"]).succeeds();
    assert_eq!(case.dst.read("day/b/a"), b"old");
    // Nothing is replaced, also no backup.
    fill();
    day.file("extra", "extra");
    day.file("extra~", "an older backup");
    let done = run(
        "--no-overwrite --allow-delete",
        &["-b", "--delete", "--exclude=a"],
    );
    done.exits(11);
    assert_eq!(day.read("extra"), b"extra");
    assert_eq!(day.read("extra~"), b"an older backup");
}

fn a_key_that_only_reads_removes_what_its_line_allows(case: &Case) {
    let dir = case.src.0.display().to_string();
    case.src.file("tree/a", "a");
    case.src.file("tree/b", "b");
    let to = case.dst.0.display().to_string();
    let run = |arguments: &str| {
        force(case, &format!("--confine '{dir}' {arguments}"));
        copy(case, &["-r", "--remove-source-files"], "far:tree", &to)
    };
    for arguments in ["", "--read-only", "--read-only --allow-delete"] {
        run(arguments).exits(2).says("--allow-remove-source-files");
    }
    assert!(case.src.has("tree/a") && case.dst.names().is_empty());
    run("--read-only --allow-remove-source-files").succeeds();
    assert!(case.src.dir("tree").names().is_empty());
    assert_eq!(case.dst.dir("tree").names(), ["a", "b"]);
}

fn a_dry_run_needs_the_permissions_of_the_copy(case: &Case) {
    let dir = case.dst.0.display().to_string();
    let from = case.src.file("tree/a", "content");
    let from = format!("{}/", from.parent().expect("the tree").display());
    case.dst.file("day/web/old", "old");
    let before = Tree::read(&case.dst.0);
    let flags = ["-n", "-r", "--delete"];
    let run = |arguments: &str| {
        force(case, &format!("--confine '{dir}' {arguments}"));
        copy(case, &flags, &from, "far:day/web")
    };
    run("").exits(2).says("--allow-delete");
    run("--read-only").exits(2).says("may only read");
    let done = run("--allow-delete");
    let told = done.succeeds().stdout_text();
    assert_eq!(told, "<f+++++++++ a\n*deleting   old\n");
    let changed = before.differences(&Tree::read(&case.dst.0), Also::ModesAndTimes);
    assert!(changed.is_empty(), "{changed:?}");
    case.dst.file("day/web/a", "changed");
    let before_check = Tree::read(&case.dst.0);
    force(case, &format!("--confine '{dir}' --no-overwrite"));
    let check = copy(case, &["--check"], &from, "far:day/web");
    let told = check.exits(1).stdout_text();
    assert_eq!(told, "differs  a\nextra    old\n");
    let changed = before_check.differences(&Tree::read(&case.dst.0), Also::ModesAndTimes);
    assert!(changed.is_empty(), "{changed:?}");
    std::fs::remove_file(case.dst.path("day/web/a")).expect("remove it");
    case.dst.time("day/web", 1_400_000_000, 0);
    let before = Tree::read(&case.dst.0);
    force(case, &format!("--confine '{dir}' --allow-delete"));
    let missing = copy(case, &["-n", "--mkpath"], &format!("{from}a"), "far:x/y/b");
    assert_eq!(missing.succeeds().stdout_text(), "<f+++++++++ b\n");
    let changed = before.differences(&Tree::read(&case.dst.0), Also::ModesAndTimes);
    assert!(changed.is_empty(), "{changed:?}");
}

fn a_key_that_only_writes_is_good_for_nothing_else(case: &Case) {
    let secret = "only for those who may read\n";
    case.dst.file("secret", secret);
    let dir = case.dst.0.display().to_string();
    force(
        case,
        &format!("--confine '{dir}' --write-only --no-overwrite"),
    );
    let here = case.scratch.dir("here");
    let to = here.0.display().to_string();
    copy(case, &[], "far:secret", &to)
        .exits(2)
        .says("may only write (--write-only)");
    assert!(here.names().is_empty());
    let guess = case.src.file("secret", secret).display().to_string();
    // The replies to a right and a wrong guess are equal.
    let right = copy(case, &[], &guess, "far:secret");
    case.src.file("secret", "something else\n");
    let wrong = copy(case, &[], &guess, "far:secret");
    right.exits(11).says("this key may not replace it");
    assert_eq!(right.stderr, wrong.stderr);
    copy(case, &["--no-clobber"], &guess, "far:secret").exits(11);
    copy(case, &["--inplace"], &guess, "far:secret")
        .exits(2)
        .says("--inplace");
    for flag in ["-n", "--itemize-changes"] {
        let shown = copy(case, &[flag], &guess, "far:secret");
        shown.exits(2).says("they show how existing files differ");
        assert_eq!(shown.stdout_text(), "");
    }
    assert_eq!(case.dst.read("secret"), secret.as_bytes());
    // `-vv` would name what changes, but is for any copy.
    let names = copy(case, &["-vv"], &guess, "far:new");
    names.succeeds().never_says("copied");
    // A missing backup would show that the guess is right.
    case.src.file("guess/file", secret);
    case.src.hard_link("guess/link", "guess/file");
    for name in ["file", "link"] {
        case.dst.file(format!("guess/{name}"), secret);
    }
    force(case, &format!("--confine '{dir}' --write-only"));
    let guess = case.src("guess").display().to_string();
    copy(case, &["-r", "--backup"], &guess, "far:").succeeds();
    assert_eq!(case.dst.read("guess/file~"), secret.as_bytes());
    assert_eq!(case.dst.read("guess/link~"), secret.as_bytes());
    // The key runs no other command either.
    let ssh = Run::new("ssh", "/")
        .arg("-F")
        .arg(case.host().ssh_config())
        .args(["far", "cat", &case.dst.path("secret").display().to_string()])
        .run();
    assert!(!ssh.stdout_text().contains("only for"), "{ssh}");
}

fn a_confined_key_reaches_nothing_else(case: &Case) {
    force(case, &format!("--confine '{}'", case.dst.0.display()));
    for errand in ["--version", "--remove"] {
        let done = case.fastcp().args([errand, "far:"]).run();
        done.exits(4)
            .says("this key's forced command only starts copies")
            .never_says("sftp");
    }
    let outside = case.scratch.dir("outside");
    outside.file("precious", "precious\n");
    let dir = case.dst.dir("web1");
    dir.link("way out", &outside.0);
    dir.link("file out", outside.path("precious"));
    force(case, &format!("--confine '{}'", dir.0.display()));
    let file = case.src.file("a", "one").display().to_string();
    let out = outside.0.display();
    for dest in [
        format!("far:{out}/a"),
        "far:../a".to_owned(),
        "far:way out/a".to_owned(),
        "far:way out".to_owned(),
        "far:file out".to_owned(),
        "far:~root/a".to_owned(),
        format!("far:{}/../a", dir.0.display()),
        format!("far:{}2/a", dir.0.display()),
    ] {
        copy(case, &[], &file, &dest).fails();
    }
    let here = case.scratch.dir("here");
    let to = here.0.display().to_string();
    for source in [
        format!("far:{out}/precious"),
        "far:../../scratch/outside/precious".to_owned(),
        "far:way out/precious".to_owned(),
        "far:way out/*".to_owned(),
        "far:*/precious".to_owned(),
        "far:file out".to_owned(),
        "far:\\.\\./\\.\\./scratch/outside/*".to_owned(),
    ] {
        let done = copy(case, &["-r"], &source, &to);
        done.fails();
        let told = done.stderr.replace(&source, "");
        assert!(
            !told.contains("precious") || source.contains("precious"),
            "{done}"
        );
    }
    // Nor by parts with separate places.
    let tree = case.src.dir("tree");
    tree.file("part/b", "two");
    let tree = tree.0.display().to_string();
    for place in [&format!("{out}/b"), "../b", "way out/b", "way out"] {
        let map = format!("part={place}");
        copy(case, &["-r", "--map", &map], &tree, "far:in").fails();
    }
    assert!(!dir.has("in"));
    for part in ["way out", "way out/precious", "file out"] {
        let map = format!("{part}={to}/part");
        let done = copy(case, &["-r", "--map", &map], "far:.", &to);
        done.fails();
        assert_eq!(here.names(), [""; 0], "{part}");
    }
    copy(case, &["-r", "-L"], "far:.", &to).exits(2);
    // The symlinks of a tree are sent as symlinks.
    copy(case, &["-r"], "far:.", &to).succeeds();
    assert!(here.meta("way out").is_symlink());
    assert_eq!(outside.names(), ["precious"]);
    assert_eq!(outside.read("precious"), b"precious\n");
    // Messages name paths as the user did.
    dir.dir("named/file");
    case.src.file("tree/file", "three");
    let from = format!("{tree}/");
    for dest in [
        "far:named".to_owned(),
        format!("far:{}/named", dir.0.display()),
    ] {
        let done = copy(case, &["-r"], &from, &dest);
        done.exits(11)
            .says(&format!("fastcp: {dest}/file: is a directory"));
    }
}

fn a_confined_key_neither_gives_nor_takes_names_of_unfinished_files(case: &Case) {
    let dir = case.dst.dir("web1");
    force(case, &format!("--confine '{}'", dir.0.display()));
    let tree = case.src.dir("tree");
    tree.file("a", "one");
    // The names of a journal, of partial files in a pack and alone, and of a directory.
    tree.file(".fastcp-71e0a99173564931.journal", "forged");
    tree.file(".fastcp-0123456789abcdef.part", "forged");
    tree.file(".fastcp-big.part", noise(1, 3 * MIB));
    tree.file(".fastcp-dir/b", "two");
    tree.link(".fastcp-link", "a");
    let from = tree.0.display().to_string();
    let done = copy(case, &["-r", "-p"], &from, "far:tree");
    done.exits(11).says("begin with .fastcp-");
    assert_eq!(dir.dir("tree").names(), ["a"]);
    let one = tree.path(".fastcp-71e0a99173564931.journal");
    let one = one.display().to_string();
    copy(case, &[], &one, "far:").exits(11);
    let other = tree.path("a").display().to_string();
    copy(case, &[], &other, "far:.fastcp-x").fails();
    copy(case, &[], &other, "far:tree/.fastcp-x/a").fails();
    assert_eq!(dir.names(), ["tree"]);
    dir.file("tree/.fastcp-x.part", "unfinished");
    let here = case.scratch.dir("here");
    let to = here.0.display().to_string();
    // A rule for directories does not make a file of such a name an exception.
    for flags in [&["-r"][..], &["-r", "--exclude=.fastcp-*/"]] {
        copy(case, flags, "far:tree", &to).exits(11);
        assert_eq!(here.dir("tree").names(), ["a"]);
    }
    copy(case, &["-r", "--exclude=.fastcp-*"], "far:tree", &to).succeeds();
    assert_eq!(here.dir("tree").names(), ["a"]);
    for source in ["far:tree/.fastcp-x.part", "far:tree/.fast*"] {
        copy(case, &[], source, &to).fails();
    }
    assert_eq!(here.names(), ["tree"]);
    // So that the final check finds no temporary file.
    std::fs::remove_file(dir.path("tree/.fastcp-x.part")).expect("remove");
}

fn links_that_a_confined_key_places_stay_inside(case: &Case) {
    let dir = case.dst.dir("web1");
    let confine = format!("--confine '{}'", dir.0.display());
    force(case, &confine);
    let tree = case.src.dir("tree");
    tree.file("a", "one");
    let inside = [
        ("near", "a"),
        ("sub/up", "../a"),
        ("sub/deep/to the top", "../../../tree/a"),
        ("nowhere", "not/there"),
    ];
    let outside = [
        ("absolute", "/etc/passwd"),
        ("above", "../../web2"),
        ("sub/above", "./.././../..//web2"),
        // Targets through names that are symlinks to a higher directory, or may become such.
        ("sub/deep/top", "../../.."),
        ("sub/round", "deep/top/../../.."),
        ("sub/later", "not yet/../../../.."),
    ];
    for (name, text) in inside.into_iter().chain(outside) {
        tree.link(name, text);
    }
    let from = tree.0.display().to_string();
    let done = copy(case, &["-r"], &from, "far:tree");
    done.exits(11).says("may lead out of the directory");
    let there = |name: &str| dir.path("tree").join(name).is_symlink();
    for (name, text) in inside {
        assert!(there(name), "{name} -> {text}");
    }
    assert_eq!(dir.read("tree/a"), b"one");
    for (name, text) in outside {
        // This one leads to the directory itself, and not out of it.
        let stays = name == "sub/deep/top";
        assert_eq!(there(name), stays, "{name} -> {text}");
    }
    // Nor does a second name of a link, which was placed deeper.
    let deep = case.src.dir("deep");
    deep.link("one/two/up", "../../a");
    let from_deep = deep.0.display().to_string();
    copy(case, &["-a"], &from_deep, "far:deep").succeeds();
    let flags = ["-a", "--link-dest=../deep/one/two"];
    let from_two = format!("{from_deep}/one/two/");
    let done = copy(case, &flags, &from_two, "far:flat");
    done.exits(11).says("may lead out of the directory");
    assert!(dir.path("deep/one/two/up").is_symlink());
    assert!(!dir.path("flat/up").is_symlink());

    force(case, &format!("{confine} --allow-outside-links"));
    copy(case, &["-r"], &from, "far:again").succeeds();
    for (name, text) in outside {
        let placed = dir.path("again").join(name);
        assert!(placed.is_symlink(), "{name} -> {text}");
    }
}

fn further_logins_of_such_a_key_carry_streams(case: &Case) {
    let dir = case.dst.0.display().to_string();
    force(
        case,
        &format!("--confine '{dir}' --write-only --no-overwrite"),
    );
    let file = case.src.file("a", noise(1, 4 * MIB)).display().to_string();
    // Long enough for the other logins to connect in time.
    let slowly = ["--route", "ssh", "--streams", "3", "-l", "4000"];
    copy(case, &slowly, &file, "far:a").succeeds();
    assert_same(&file, case.dst.path("a"), Also::Nothing);
    assert!(case.host().logins() > 1, "{}", case.host().logins());
}

fn a_key_that_only_reads_gives_what_is_in_its_directory(case: &Case) {
    let dir = case.src.dir("data");
    tree::one_of_everything(&dir);
    force(
        case,
        &format!("--confine '{}' --read-only", case.src.0.display()),
    );
    let to = case.dst.path("data").display().to_string();
    copy(case, &["-r", "-p"], "far:data", &to).succeeds();
    assert_same(&dir.0, &to, Also::ModesAndTimes);
    let matching = case.dst.dir("matching");
    let to = matching.0.display().to_string();
    copy(case, &[], "far:data/sm*", &to).succeeds();
    assert_eq!(matching.names(), ["small"]);
    // A list leads no further.
    let outside = case.scratch.file("outside/secret", "secret");
    case.src.link("out", case.scratch.path("outside"));
    let text = "out/secret\n../outside/secret\ndata/small\ndata/../out/secret\n";
    let list = case.src.file("names", text).display().to_string();
    let listed = case.dst.dir("listed");
    let to = listed.0.display().to_string();
    for (from, at) in [("far:", &list[..]), ("far:.", ":names")] {
        let done = copy(case, &["-a", "--files-from", at], from, &to);
        done.exits(9).says("out/secret: not a directory");
        assert_eq!(
            (listed.names(), listed.dir("data").names()),
            (vec!["data".into()], vec!["small".into()])
        );
    }
    let at = format!("--files-from=:{}", outside.display());
    copy(case, &[&at], "far:", &to)
        .exits(2)
        .says("reaches only");
    copy(case, &["--files-from=:out/secret"], "far:", &to).fails();
    copy(
        case,
        &["--relative"],
        &format!("far:{}", dir.path("small").display()),
        &to,
    )
    .exits(2)
    .says("keeps with /./");
    copy(case, &["--relative"], "far:data/small", &to).succeeds();
    let file = case.scratch.file("a", "one").display().to_string();
    copy(case, &[], &file, "far:data/a")
        .exits(2)
        .says("may only read (--read-only)");
    assert!(!dir.has("a"));
}

/// A journal, made with this key, of a copy of a directory's content to `dst`. It records that
/// the copy created `keep`, or that it changed the mode of `keep`.
fn plant_journal(case: &Case, user: &JournalUserKey, made: bool, restore: Option<u32>) {
    let (header, key) = ChecksumKey::header([3; 16], user);
    let session = JournalSession {
        boot_id: [1; 16],
        id: [2; 16],
        dev: 3,
        mount: 4,
        pid: 5,
        uid: 6,
        started: 7,
        roots: [8; 16],
        chunk_size: 1 << 20,
        starts_again: false,
    };
    let top = journal::hash([&0u64.to_le_bytes()[..]].into_iter());
    let path = journal::hash([&top[..], b"keep"].into_iter());
    let directory = MadeDirectory {
        path,
        made,
        restore,
    };
    let bodies = [
        RecordBody::Session(session),
        RecordBody::Directory(directory),
    ];
    let mut bytes = header.to_vec();
    bytes.extend(bodies.iter().flat_map(|body| body.encode(&key)));
    let at = case.dst.file(case.dst.journal_of_content(), bytes);
    journals::rest(&at);
    std::fs::set_permissions(at, PermissionsExt::from_mode(0o600)).expect("set a mode");
}

/// The key of the case's user, after a first copy.
fn user_key(case: &Case) -> JournalUserKey {
    let key = case.home.read(".local/state/fastcp/key");
    key.try_into().expect("32 bytes")
}

/// A tree with a `keep` that all may write, and a destination with a `keep` that they may not.
fn keep(case: &Case) -> String {
    let tree = case.src.dir("tree");
    tree.file("keep/new", "new");
    tree.mode("keep", 0o777);
    tree.time("keep", 1_000_000_000, 0);
    case.dst.dir("keep");
    case.dst.mode("keep", 0o750);
    format!("{}/", tree.0.display())
}

fn what_looks_like_a_journal_changes_no_directory(case: &Case) {
    let from = keep(case);
    let dir = case.dst.0.display().to_string();
    force(
        case,
        &format!("--confine '{dir}' --write-only --no-overwrite"),
    );
    copy(case, &["-rp"], &from, "far:").succeeds();
    // A journal made with another key, and one that this user made at another time.
    for user in [[0; 32], user_key(case)] {
        for (made, restore) in [(true, None), (false, Some(0o4777))] {
            std::fs::remove_file(case.dst.path("keep/new")).expect("remove");
            plant_journal(case, &user, made, restore);
            copy(case, &["-rp"], &from, "far:").succeeds();
            assert_eq!(case.dst.mode_of("keep"), 0o750);
            assert_ne!(case.dst.meta("keep").mtime(), 1_000_000_000);
        }
    }
}

/// The server is killed while it fills directories. The next run sets the modes of directories that
/// the copy created, but not of directories that others created or restricted since.
fn directories_of_a_killed_run_get_their_modes_with_such_a_key(case: &Case) {
    let tree = case.src.dir("tree");
    for name in ["made", "replaced", "changed"] {
        tree.file(format!("{name}/big"), noise(1, SIZE));
        tree.mode(name, 0o755);
    }
    let from = tree.0.display().to_string();
    aged();
    let dir = case.dst.0.display().to_string();
    force(
        case,
        &format!("--confine '{dir}' --write-only --no-overwrite"),
    );
    let slow = case.fastcp().args(SLOW).args(["-r", &from, "far:b"]);
    let slow = slow.start();
    until("a third is there", || {
        case.dst
            .journals()
            .pop()
            .filter(|journal| has_third(journal))
    });
    kill_receiver(case, slow);
    let names = ["made", "replaced", "changed"].map(|name| format!("b/{name}"));
    for name in &names {
        assert_eq!(case.dst.mode_of(name), 0o700, "{name}: the test's premise");
    }
    let other = case.dst.path("other");
    std::fs::create_dir(&other).expect("make a directory");
    std::fs::remove_dir_all(case.dst.path("b/replaced")).expect("remove");
    std::fs::rename(&other, case.dst.path("b/replaced")).expect("rename");
    case.dst.mode("b/replaced", 0o700);
    case.dst.mode("b/changed", 0o710);
    copy(case, &["-r"], &from, "far:b").succeeds();
    let modes = names.map(|name| case.dst.mode_of(name));
    assert_eq!(modes, [0o755, 0o700, 0o710], "made, replaced, changed");
    assert_same(&from, case.dst.path("b"), Also::Nothing);
}

fn no_journal_gives_a_directory_set_id_bits(case: &Case) {
    keep(case);
    let copy = || {
        let tree = format!("{}/", case.src("tree").display());
        let run = case.fastcp().args(["-r", "--rsh", "local"]).arg(tree);
        run.arg(case.dst("")).run().succeeds();
    };
    copy();
    plant_journal(case, &[0; 32], false, Some(0o6777));
    copy();
    assert_eq!(case.dst.mode_of("keep"), 0o750, "another's key");
    plant_journal(case, &user_key(case), false, Some(0o6777));
    copy();
    assert_eq!(case.dst.mode_of("keep") & 0o7000, 0, "its own key");
}

fn a_key_that_only_writes_resumes_for_its_own_client_alone(case: &Case) {
    let from = case.src.file("a", noise(1, SIZE)).display().to_string();
    aged();
    let dir = case.dst.0.display().to_string();
    force(
        case,
        &format!("--confine '{dir}' --write-only --no-overwrite"),
    );
    let elsewhere = case.scratch.dir("elsewhere");
    for (home, resumes) in [(&case.home, true), (&elsewhere, false)] {
        let slow = case.fastcp().args(SLOW).args([&from, "far:b"]).start();
        until("a third is there", || {
            case.dst
                .journals()
                .pop()
                .filter(|journal| has_third(journal))
        });
        kill_receiver(case, slow);
        let again = case.fastcp().args(["--summary", "--compress", "none"]);
        // On several streams a late chunk is sent again.
        let again = again.args(["--streams=1", "--route=direct"]);
        let done = again.args([&from, "far:b"]).env("HOME", &home.0).run();
        let wire = done.succeeds().wire_bytes();
        match resumes {
            true => assert!(wire < SIZE - SIZE / 4, "{wire} bytes were sent"),
            false => assert!(wire >= SIZE, "{wire} bytes were sent"),
        }
        assert_same(&from, case.dst.path("b"), Also::Nothing);
        std::fs::remove_file(case.dst.path("b")).expect("remove");
    }
}

//! The names of copies at the destination: scp's rules, the forms that do not depend on existing
//! files, and refusals.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, lchown};

use rustix::process::geteuid;

use crate::support::limits::without_powers;
use crate::support::tree::one_of_everything;
use crate::support::*;

ways! { push, pull, here, local_between =>
    a_file_takes_the_name_it_is_given,
    a_file_goes_into_a_directory_that_exists,
    a_slash_at_the_end_means_a_directory,
    several_sources_need_a_directory,
    missing_directories_of_the_destination_are_made_on_request,
    a_directory_needs_r_and_the_others_are_copied,
    a_tree_takes_a_new_name_or_goes_into_a_directory,
    a_tree_to_a_name_with_a_slash_always_goes_below_it,
    a_source_with_a_slash_always_gives_its_content,
    no_target_directory_always_means_the_name_itself,
    a_destination_that_is_a_link_is_followed,
    a_copy_replaces_a_file_but_not_a_directory,
    every_name_survives,
    a_file_onto_itself_is_refused_and_left_whole,
    a_directory_into_itself_is_refused,
    two_operands_for_one_name_are_refused_before_the_first_byte,
    no_clobber_leaves_other_content_alone,
    a_second_run_changes_nothing,
}

ways! { local_push =>
    a_missing_directory_is_named_as_it_was_typed,
    two_sources_may_share_a_directory_but_no_file,
    a_directory_gets_its_mode_and_times_after_the_files_beside_its_content,
    a_directory_of_two_sources_takes_the_files_of_both_before_its_mode,
    root_follows_no_destination_that_is_a_link_of_another_user,
    a_directory_may_be_filled_by_a_user_who_may_not_read_it,
}

fn a_file_takes_the_name_it_is_given(case: &Case) {
    case.src.file("a.bin", noise(1, 3 * MIB + 5));
    case.copy(&[], "a.bin", "b.bin").succeeds().is_silent();
    assert_same(
        case.src.path("a.bin"),
        case.dst.path("b.bin"),
        Also::Nothing,
    );
    assert_eq!(case.dst.names(), ["b.bin"]);
}

fn a_file_goes_into_a_directory_that_exists(case: &Case) {
    case.src.file("a", "one");
    case.dst.dir("plain");
    case.dst.dir("slash");
    case.copy(&[], "a", "plain").succeeds();
    case.copy(&[], "a", "slash/").succeeds();
    case.copy(&[], "a", "").succeeds();
    for copy in ["plain/a", "slash/a", "a"] {
        assert_eq!(case.dst.read(copy), b"one");
    }
}

fn a_slash_at_the_end_means_a_directory(case: &Case) {
    case.src.file("a", "one");
    case.copy(&[], "a", "nowhere/").fails().says("nowhere");
    assert!(!case.dst.has("nowhere"));
    case.dst.file("file", "what is there");
    case.copy(&[], "a", "file/").fails().says("file");
    assert_eq!(case.dst.read("file"), b"what is there");
}

fn missing_directories_of_the_destination_are_made_on_request(case: &Case) {
    let path = case.src.file("a", "content");
    case.src.file("t/b", "b");
    case.copy(&[], "a", "x/y/new")
        .exits(8)
        .says("destination directory does not exist");
    assert!(!case.dst.has("x"));
    case.copy(&["--mkpath"], "a", "x/y/new").succeeds();
    assert_same(&path, case.dst.path("x/y/new"), Also::Nothing);
    case.copy(&["--mkpath", "--fsync"], "a", "z/y/").succeeds();
    assert_same(&path, case.dst.path("z/y/a"), Also::Nothing);
    // A second time nothing is missing.
    case.copy(&["-r", "--mkpath"], "t", "u/v").succeeds();
    case.copy(&["-r", "--mkpath"], "t/", "u/v").succeeds();
    assert_eq!(case.dst.dir("u/v").names(), ["b"]);
    case.copy(&["--mkpath"], "a", "x/y/new/a").exits(8);
}

fn a_missing_directory_is_named_as_it_was_typed(case: &Case) {
    let path = case.src.file("a", "content");
    for (typed, told) in [
        ("none/a", "far:none: dest"),
        ("~/none/a", "far:~/none: dest"),
        ("../none/deep/", "far:../none: dest"),
        ("/none/a", "far:/none: dest"),
    ] {
        let run = case.fastcp().arg(&path).arg(format!("far:{typed}"));
        run.run().exits(8).says(told);
    }
}

fn two_sources_may_share_a_directory_but_no_file(case: &Case) {
    for path in ["D/f", "D/sub/f", "D/big"] {
        let len = if path == "D/big" { MIB } else { 99 };
        case.src.file(path, noise(1, len));
        case.src.time(path, 1_400_000_000, 0);
        case.src.file(format!("tree/{path}"), noise(2, len));
    }
    case.src.file("D/sub/one", "one");
    case.src.file("tree/D/sub/other", "other");
    for sources in [["D", "tree/"], ["tree/", "D"]] {
        let there = case.dst.dir(sources[0].trim_end_matches('/'));
        let name = there.0.file_name().expect("a name").to_owned();
        // Also where each finds the files of the other.
        for _ in 0..2 {
            let done = case.copy_all(&["-a"], &sources, &name);
            done.exits(11);
            for path in ["D/f", "D/big", "D/sub/f"] {
                let told = format!("{path}: would get the same name as another source");
                done.says(&told);
            }
        }
        assert_eq!(there.dir("D/sub").names(), ["f", "one", "other"]);
    }
}

/// The content of `tree` is in place long before `big`.
fn a_directory_gets_its_mode_and_times_after_the_files_beside_its_content(case: &Case) {
    let tree = case.src.dir("tree");
    tree.link("link", "nowhere");
    case.src.file("big", noise(1, 8 * MIB));
    case.src.mode("tree", 0o555);
    case.src.time("tree", 1_400_000_000, 5);
    let into = case.dst.dir("into");
    let run = case
        .fastcp()
        .arg("-a")
        .args(["tree/", "big"].map(|it| case.src(it)));
    let run = run.arg(case.dst("into")).under(without_powers());
    run.run().succeeds();
    assert_eq!(into.names(), ["big", "link"]);
    let meta = case.dst.meta("into");
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_400_000_000, 5));
    assert_eq!(case.dst.mode_of("into"), 0o555);
    case.src.mode("tree", 0o755);
    case.dst.mode("into", 0o755);
}

/// What both bring is in place at different times.
fn a_directory_of_two_sources_takes_the_files_of_both_before_its_mode(case: &Case) {
    case.src.file("D/small", "one");
    case.src.file("tree/D/big", noise(1, 8 * MIB));
    case.src.mode("D", 0o555);
    let into = case.dst.dir("into");
    // Where it is made, and where it exists.
    for _ in 0..2 {
        let run = case
            .fastcp()
            .arg("-a")
            .args(["D", "tree/"].map(|it| case.src(it)));
        let run = run.arg(case.dst("into")).under(without_powers());
        run.run().succeeds();
        assert_eq!(into.dir("D").names(), ["big", "small"]);
        into.mode("D", 0o755);
        std::fs::remove_file(into.path("D/big")).expect("remove it");
    }
    case.src.mode("D", 0o755);
}

fn root_follows_no_destination_that_is_a_link_of_another_user(case: &Case) {
    if !geteuid().is_root() {
        return skip("root");
    }
    let (path, outside) = (case.src.file("a", "content"), case.dst.dir("outside"));
    case.dst.link("own", "outside");
    case.dst.link("theirs", "outside");
    lchown(case.dst.path("theirs"), Some(65534), None).expect("give it away");
    for typed in ["theirs", "theirs/", "theirs/b"] {
        let done = case.copy(&[], "a", typed);
        if typed == "theirs/b" {
            // As the system does, and rsync.
            done.succeeds();
            assert_eq!(outside.names(), ["b"]);
            continue;
        }
        done.exits(11).says("is a symbolic link of another user");
        assert!(outside.names().is_empty());
    }
    case.copy(&[], "a", "own").succeeds();
    // The user who called sudo.
    let run = case.fastcp().env("SUDO_UID", "65534").arg(path);
    run.arg(case.dst.path("theirs/")).run().succeeds();
    assert_eq!(outside.names(), ["a", "b"]);
}

/// A drop box.
fn a_directory_may_be_filled_by_a_user_who_may_not_read_it(case: &Case) {
    case.src.file("small", "one");
    // Large enough for a journal.
    case.src.file("large", noise(1, 8 * MIB));
    case.src.file("tree/sub/a", "in a tree");
    let mut boxes = vec![("own", 0o300)];
    if geteuid().is_root() {
        boxes.push(("theirs", 0o1733));
    }
    for (name, mode) in boxes {
        let path = case.dst.dir(name).0;
        if mode & 0o7 != 0 {
            lchown(&path, Some(65534), Some(65534)).expect("give away");
        }
        case.dst.mode(name, mode);
        let copy = |flags: &[&str], source: &str, to: &str| {
            let run = case.fastcp().args(flags).arg(case.src(source));
            let run = run.arg(case.dst(format!("{name}/{to}")));
            run.under(without_powers()).run()
        };
        copy(&[], "small", "").succeeds();
        copy(&[], "large", "renamed").succeeds();
        copy(&["-r"], "tree", "").succeeds();
        copy(&["-r"], "tree/", "").succeeds();
        // Again, over what is there.
        copy(&["-p"], "small", "").succeeds();
        copy(&["--fsync"], "small", "synced")
            .exits(8)
            .says("cannot sync the directory to disk: permission denied");
        let names = ["renamed", "small", "sub", "synced", "tree"];
        assert_eq!(case.dst.dir(name).names(), names, "{name}");
        assert_eq!(
            case.dst.read(format!("{name}/renamed")),
            case.src.read("large")
        );
        assert_eq!(case.dst.read(format!("{name}/tree/sub/a")), b"in a tree");
        assert_eq!(case.dst.mode_of(name), mode);
    }
}

fn several_sources_need_a_directory(case: &Case) {
    case.src.file("a", "one");
    case.src.file("b", "two");
    case.copy_all(&[], &["a", "b"], "nowhere")
        .fails()
        .says("directory");
    case.dst.file("file", "what is there");
    case.copy_all(&[], &["a", "b"], "file")
        .fails()
        .says("directory");
    assert_eq!(case.dst.names(), ["file"]);
    case.dst.dir("d");
    case.copy_all(&[], &["a", "b"], "d").succeeds();
    assert_eq!(case.dst.read("d/a"), b"one");
    assert_eq!(case.dst.read("d/b"), b"two");
}

fn a_directory_needs_r_and_the_others_are_copied(case: &Case) {
    case.src.file("tree/a", "one");
    case.src.file("b", "two");
    case.copy(&[], "tree", "new")
        .fails()
        .says("-r")
        .says("tree");
    assert!(!case.dst.has("new"));
    case.copy_all(&[], &["tree", "b"], "").fails().says("-r");
    assert_eq!(case.dst.names(), ["b"]);
}

fn a_tree_takes_a_new_name_or_goes_into_a_directory(case: &Case) {
    one_of_everything(&case.src.dir("tree"));
    case.copy(&["-r"], "tree", "new").succeeds();
    assert_same(case.src.path("tree"), case.dst.path("new"), Also::HardLinks);
    case.dst.dir("there");
    case.copy(&["-r"], "tree", "there").succeeds();
    assert_same(
        case.src.path("tree"),
        case.dst.path("there/tree"),
        Also::HardLinks,
    );
    assert_eq!(case.dst.dir("there").names(), ["tree"]);
}

fn a_tree_to_a_name_with_a_slash_always_goes_below_it(case: &Case) {
    case.src.file("tree/sub/a", "one");
    for _ in 0..2 {
        case.copy(&["-r"], "tree", "x/").succeeds();
        assert_same(
            case.src.path("tree"),
            case.dst.path("x/tree"),
            Also::Nothing,
        );
        assert_eq!(case.dst.dir("x").names(), ["tree"]);
    }
}

fn a_source_with_a_slash_always_gives_its_content(case: &Case) {
    case.src.file("tree/sub/a", "one");
    for _ in 0..2 {
        case.copy(&["-r"], "tree/", "x").succeeds();
        assert_same(case.src.path("tree"), case.dst.path("x"), Also::Nothing);
    }
}

fn no_target_directory_always_means_the_name_itself(case: &Case) {
    case.src.file("tree/sub/a", "one");
    for _ in 0..2 {
        case.copy(&["-r", "--no-target-directory"], "tree", "x")
            .succeeds();
        assert_same(case.src.path("tree"), case.dst.path("x"), Also::Nothing);
    }
    case.src.file("file", "two");
    case.copy(&["--no-target-directory"], "file", "x").fails();
    assert_same(case.src.path("tree"), case.dst.path("x"), Also::Nothing);
}

fn a_destination_that_is_a_link_is_followed(case: &Case) {
    case.src.file("a", "new content");
    case.dst.file("real", "old");
    case.dst.dir("dir");
    case.dst.link("to file", "real");
    case.dst.link("to dir", "dir");
    case.dst.link("to nothing", "made");
    case.copy(&[], "a", "to file").succeeds();
    case.copy(&[], "a", "to dir").succeeds();
    case.copy(&[], "a", "to nothing").succeeds();
    for copy in ["real", "dir/a", "made"] {
        assert_eq!(case.dst.read(copy), b"new content");
    }
    for link in ["to file", "to dir", "to nothing"] {
        assert!(case.dst.meta(link).is_symlink(), "{link} is a link no more");
    }
}

fn a_copy_replaces_a_file_but_not_a_directory(case: &Case) {
    case.src.file("a", "short");
    case.dst.file("a", noise(9, 2 * MIB));
    case.copy(&[], "a", "a").succeeds();
    assert_eq!(case.dst.read("a"), b"short");

    case.src.file("tree/x", "a file");
    case.dst.file("tree/x/inside", "stays");
    case.copy(&["-r"], "tree", "").fails().says("tree/x");
    assert_eq!(case.dst.read("tree/x/inside"), b"stays");
    case.src.file("other/d/file", "in a directory");
    case.dst.file("other/d", "a file stands here");
    case.copy(&["-r"], "other", "").fails().says("other/d");
    assert_eq!(case.dst.read("other/d"), b"a file stands here");
}

fn every_name_survives(case: &Case) {
    let names: [&[u8]; 10] = [
        b"with spaces  two",
        b"quote'\"`$HOME`",
        b"$(touch pwned)",
        b"; touch pwned",
        b"&& touch pwned #",
        b"new\nline",
        b"not-utf8-\xff\x80",
        "größe 日本語".as_bytes(),
        b"back\\slash",
        b"tab\tand\x1b[31mred",
    ];
    let mut run = case.fastcp();
    for name in names {
        let name = OsStr::from_bytes(name);
        case.src.file(name, name.as_bytes());
        run = run.arg(case.src(name));
    }
    run.arg(case.dst("")).run().succeeds();
    assert_same(&case.src.0, &case.dst.0, Also::Nothing);
    // An odd operand that names the copy, where a shell could interpret it.
    let odd = OsStr::from_bytes(names[2]);
    case.copy(&[], odd, "; touch pwned '\"").succeeds();
    assert_eq!(case.dst.read("; touch pwned '\""), odd.as_bytes());
    let long = "n".repeat(255);
    case.src.file(&long, "long");
    case.copy(&[], &long, "").succeeds();
    assert_eq!(case.dst.read(&long), b"long");
    assert!(!case.home.has("pwned"));
}

fn a_file_onto_itself_is_refused_and_left_whole(case: &Case) {
    let content = noise(4, 2 * MIB);
    let file = case.src.file("a", &content);
    case.src.hard_link("hard", "a");
    case.src.link("soft", "a");
    for alias in ["a", "hard", "soft", "", "./a"] {
        case.fastcp()
            .arg(case.from(&file))
            .arg(case.to(case.src.path(alias)))
            .run()
            .fails()
            .says("same file");
        assert_eq!(case.src.read("a"), content);
    }
    assert!(case.src.meta("soft").is_symlink());
}

fn a_directory_into_itself_is_refused(case: &Case) {
    case.src.file("tree/sub/a", "one");
    case.src.link("alias", "tree/sub");
    let before = Tree::read(&case.src.0);
    for inside in ["tree", "tree/", "tree/sub", "tree/sub/new", "alias"] {
        case.fastcp()
            .arg("-r")
            .arg(case.src("tree"))
            .arg(case.to(case.src.path(inside)))
            .run()
            .fails()
            .says("itself");
        let after = Tree::read(&case.src.0);
        assert_eq!(before.differences(&after, Also::Nothing), [""; 0]);
    }
}

fn two_operands_for_one_name_are_refused_before_the_first_byte(case: &Case) {
    // Both are in the message, however long they are.
    let [one, two] = ["one", "two"].map(|name| format!("{}/{name}/x", "long".repeat(40)));
    case.src.file(&one, "first");
    case.src.file(&two, "second");
    case.src.file("y", "third");
    let done = case.copy_all(&[], &["y", &one, &two], "");
    // A host does not learn the paths of the other.
    match case.way.is_between() {
        true => done.exits(2).says("x (source 2)").says("x (source 3)"),
        false => done.exits(2).says(&one).says(&two),
    };
    assert!(case.dst.names().is_empty());
}

fn no_clobber_leaves_other_content_alone(case: &Case) {
    let content = noise(5, MIB + 1);
    case.src.file("tree/same", &content);
    case.src.file("tree/other", "new");
    case.src.file("tree/missing", "missing");
    case.dst.file("tree/same", &content);
    case.dst.file("tree/other", "old");
    case.copy(&["-r", "--no-clobber"], "tree", "")
        .exits(11)
        .says("other");
    assert_eq!(case.dst.read("tree/other"), b"old");
    assert_eq!(case.dst.read("tree/missing"), b"missing");

    case.copy(&["--no-clobber"], "tree/same", "tree/same")
        .succeeds();
    case.copy(&["--no-clobber"], "tree/other", "tree/other")
        .exits(11);
    assert_eq!(case.dst.read("tree/other"), b"old");
    case.copy(&["--no-clobber"], "tree/other", "new").succeeds();
    assert_eq!(case.dst.read("new"), b"new");
}

fn a_second_run_changes_nothing(case: &Case) {
    one_of_everything(&case.src.dir("tree"));
    for _ in 0..2 {
        case.copy(&["-r", "-p"], "tree/", "x").succeeds();
        assert_same(case.src.path("tree"), case.dst.path("x"), Also::HardLinks);
    }
}

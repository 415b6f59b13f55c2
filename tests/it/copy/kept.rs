//! Properties that a copy keeps: types, links, holes, modes and times, for any size of tree.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::support::*;

ways! { push, here, local_between =>
    p_keeps_modes_and_times,
    without_p_the_umask_counts_and_set_id_bits_go,
    links_in_a_tree_stay_links_and_l_follows_them,
    a_link_that_is_an_operand_is_followed,
    hard_links_inside_one_copy_stay,
    holes_stay_holes_and_are_not_sent,
    sixty_levels_are_not_too_deep,
    a_directory_that_may_not_be_written_is_filled,
    sizes_around_a_chunk_are_whole,
    a_name_like_our_own_temporaries_is_a_name,
}

ways! { push, pull =>
    more_than_four_gibibytes_arrive,
}

ways! { pull =>
    ten_thousand_small_files_arrive,
}

fn p_keeps_modes_and_times(case: &Case) {
    let tree = case.src.dir("tree");
    for (name, mode) in [
        ("private", 0o600),
        ("run", 0o755),
        ("odd", 0o4751),
        ("none", 0o444),
    ] {
        tree.file(name, name);
        tree.mode(name, mode);
        tree.time(name, 1_000_000_000 + u64::from(mode), 123_456_789);
    }
    tree.file("sub/inside", "x");
    tree.time("sub/inside", 1, 1);
    tree.file("big", noise(1, 4 * MIB));
    tree.time("big", 4_000_000_000, 0);
    tree.mode("sub", 0o2755);
    tree.time("sub", 1_111_111_111, 5);
    tree.dir("empty");
    tree.time("empty", 1_222_222_222, 0);
    tree.time(".", 1_333_333_333, 999_999_999);
    case.copy(&["-r", "-p"], "tree", "x").succeeds();
    assert_same(
        case.src.path("tree"),
        case.dst.path("x"),
        Also::ModesAndTimes,
    );

    case.copy(&["-p"], "tree/odd", "odd").succeeds();
    assert_same(tree.path("odd"), case.dst.path("odd"), Also::ModesAndTimes);
}

fn without_p_the_umask_counts_and_set_id_bits_go(case: &Case) {
    // Not by umask(2), which other tests in this process would notice.
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let umask = u32::from_str_radix(umask.expect("a umask").trim(), 8).expect("octal");
    for mode in [0o666, 0o777, 0o600, 0o755, 0o4755, 0o2755] {
        let name = format!("{mode:o}");
        case.src.file(&name, &name);
        case.src.mode(&name, mode);
        case.src.time(&name, 1_000_000_000, 0);
        case.copy(&[], &name, &name).succeeds();
        assert_eq!(case.dst.mode_of(&name), mode & 0o777 & !umask, "{name}");
        assert_ne!(case.dst.meta(&name).mtime(), 1_000_000_000, "{name}");
    }
}

fn links_in_a_tree_stay_links_and_l_follows_them(case: &Case) {
    case.src.file("outside/file", "outside");
    let tree = case.src.dir("tree");
    tree.file("real", "real");
    tree.link("to file", "real");
    tree.link("to outside", "../outside");
    tree.link("absolute", case.src.path("outside/file"));
    tree.link("to nothing", "nowhere");
    case.copy(&["-r"], "tree", "links").succeeds();
    assert_same(&tree.0, case.dst.path("links"), Also::Nothing);

    std::fs::remove_file(tree.path("to nothing")).expect("remove");
    case.copy(&["-r", "-L"], "tree", "followed").succeeds();
    let followed = case.dst.dir("followed");
    assert_eq!(followed.read("to file"), b"real");
    assert_eq!(followed.read("to outside/file"), b"outside");
    assert_eq!(followed.read("absolute"), b"outside");
    for name in ["to file", "to outside", "absolute"] {
        assert!(!followed.meta(name).is_symlink(), "{name}");
    }

    // The walk ends a symlink loop and reports it; the other files are copied.
    tree.link("loop", ".");
    case.copy(&["-r", "-L"], "tree", "looped")
        .fails()
        .says("loop");
    assert_eq!(case.dst.read("looped/to file"), b"real");
}

fn a_link_that_is_an_operand_is_followed(case: &Case) {
    case.src.file("real", "real");
    case.src.file("dir/file", "in a directory");
    case.src.link("file link", "real");
    case.src.link("dir link", "dir");
    case.copy(&[], "file link", "").succeeds();
    assert_eq!(case.dst.read("file link"), b"real");
    assert!(!case.dst.meta("file link").is_symlink());
    case.copy(&["-r"], "dir link", "").succeeds();
    assert_same(
        case.src.path("dir"),
        case.dst.path("dir link"),
        Also::Nothing,
    );
}

fn hard_links_inside_one_copy_stay(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a/first", noise(1, 3 * MIB));
    tree.hard_link("b/second", "a/first");
    tree.hard_link("third", "a/first");
    tree.file("small", "small");
    tree.hard_link("zsmall", "small");
    // One name of this file is outside the tree and is not copied.
    case.src.file("outside", "outside");
    std::fs::hard_link(case.src.path("outside"), tree.path("alone")).expect("link");
    case.copy(&["-r"], "tree", "x").succeeds();
    assert_same(&tree.0, case.dst.path("x"), Also::HardLinks);
    assert_eq!(case.dst.meta("x/alone").nlink(), 1);
    // A second copy onto the existing files.
    case.copy(&["-r"], "tree/", "x").succeeds();
    assert_same(&tree.0, case.dst.path("x"), Also::HardLinks);
}

fn holes_stay_holes_and_are_not_sent(case: &Case) {
    let len = 300 * MIB as u64;
    let piece = noise(1, 100_000);
    let at = |mib: u64| mib * MIB as u64 + 4096;
    case.src.sparse(
        "image",
        len,
        &[(0, &piece), (at(17), &piece), (at(200), b"x")],
    );
    case.src.sparse("all hole", 50 * MIB as u64 + 3, &[]);
    case.src.file("written zeros", vec![0; 2 * MIB]);
    case.src.file("dense", noise(2, 2 * MIB));
    for name in ["image", "all hole", "written zeros", "dense"] {
        let done = case.copy(&["--summary"], name, name);
        done.succeeds();
        assert_same(case.src.path(name), case.dst.path(name), Also::Nothing);
        let (want, got) = (
            case.src.meta(name).blocks() * 512,
            case.dst.meta(name).blocks() * 512,
        );
        assert!(
            got <= want + MIB as u64,
            "{name}: {want} bytes on disk became {got}"
        );
        if name != "image" && name != "all hole" {
            assert!(
                got + MIB as u64 / 2 >= want,
                "{name}: {want} bytes on disk became {got}"
            );
        }
    }
    // A hole must also become a hole over a file full of data.
    case.dst.file("full", noise(3, 20 * MIB));
    case.src.sparse("full", 20 * MIB as u64, &[(at(5), &piece)]);
    case.copy(&[], "full", "full").succeeds();
    assert_same(case.src.path("full"), case.dst.path("full"), Also::Nothing);
}

fn more_than_four_gibibytes_arrive(case: &Case) {
    let piece = noise(1, 300_000);
    let four = 4 << 30;
    let pieces: [(u64, &[u8]); 3] = [
        (5, &piece),
        (four - 150_000, &piece),
        (four + 77_777_777, &piece),
    ];
    case.src.sparse("big", four + 100 * MIB as u64 + 1, &pieces);
    case.copy(&[], "big", "big").succeeds();
    assert_same(case.src.path("big"), case.dst.path("big"), Also::Nothing);
}

fn sixty_levels_are_not_too_deep(case: &Case) {
    let mut dir = case.src.dir("deep");
    for level in 0..60 {
        dir.file("file", level.to_string());
        dir = dir.dir(format!("level {level} with a longer name"));
    }
    case.copy(&["-r"], "deep", "").succeeds();
    assert_same(case.src.path("deep"), case.dst.path("deep"), Also::Nothing);
}

fn a_directory_that_may_not_be_written_is_filled(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("closed/inner/file", "inside");
    tree.file("closed/big", noise(1, 2 * MIB));
    tree.mode("closed/inner", 0o500);
    tree.mode("closed", 0o555);
    case.copy(&["-r", "-p"], "tree", "x").succeeds();
    assert_same(&tree.0, case.dst.path("x"), Also::ModesAndTimes);
}

fn sizes_around_a_chunk_are_whole(case: &Case) {
    let tree = case.src.dir("tree");
    for power in [10, 12, 16, 18, 19, 20, 21] {
        for size in [(1 << power) - 1, 1 << power, (1 << power) + 1] {
            tree.file(size.to_string(), noise(size as u64, size));
        }
    }
    for size in [0, 1, 2, 3 * MIB + 7, 8 * MIB] {
        tree.file(size.to_string(), prose(size as u64, size));
    }
    case.copy(&["-r"], "tree", "").succeeds();
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}

fn a_name_like_our_own_temporaries_is_a_name(case: &Case) {
    let name = ".fastcp-0123456789abcdef.part";
    case.src.file(format!("tree/{name}"), "a user's file");
    case.copy(&["-r"], "tree", "").succeeds();
    assert_same(case.src.path("tree"), case.dst.path("tree"), Also::Nothing);
}

/// The full 100,000 files take longer than all other tests together and show nothing more. This
/// number exceeds every limit of tables, packs and open files.
fn ten_thousand_small_files_arrive(case: &Case) {
    let tree = case.src.dir("tree");
    for dir in 0..100 {
        for file in 0..100 {
            let size = (dir * 100 + file) * 7919 % 4000;
            tree.file(format!("{dir}/{file}"), &noise(file as u64, 4000)[..size]);
        }
    }
    case.copying(&["-r", "-p"], "tree", "")
        .limit(Duration::from_secs(120))
        .run()
        .succeeds()
        .is_silent();
    assert_same(&tree.0, case.dst.path("tree"), Also::ModesAndTimes);
}

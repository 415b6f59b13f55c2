//! A second run: all metadata is kept, and existing files that are unchanged, newer or not wanted
//! stay.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::disk::Mounted;
use crate::support::tree::one_of_everything;
use crate::support::*;

ways! { push, pull, between, here =>
    all_metadata_is_kept_and_a_second_run_sends_and_writes_nothing,
    update_existing_and_ignore_existing_leave_files_alone,
}

ways! { push, here =>
    only_what_differs_in_a_directory_is_announced,
}

ways! { local_push, local_pull, here =>
    metadata_of_unchanged_files_is_corrected_without_their_content,
    size_and_time_decide_to_the_nanosecond,
    what_may_not_be_kept_is_counted,
    each_kind_of_metadata_can_be_left_out,
    an_unchanged_file_needs_no_space,
    further_names_of_a_file_that_stays_are_copied,
    attributes_that_are_too_many_are_counted,
    a_pipe_replaces_no_file_that_is_to_stay,
    copies_get_other_modes_and_owners,
    a_change_of_modes_applies_to_a_list,
    files_that_are_linked_only_there_do_not_share_a_correction,
    directories_that_are_right_are_not_touched,
}

ways! { local_push =>
    a_file_system_with_coarse_times_has_no_changed_files,
    a_list_of_digests_reads_all_files,
    files_that_are_left_out_are_neither_counted_nor_listed,
    a_name_that_another_hides_is_no_unchanged_file,
    operands_with_large_attributes_take_turns,
    a_hard_link_to_another_file_system_becomes_a_copy_with_holes,
}

/// All metadata of an entry that `-a` keeps.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    mode: u32,
    owner: (u32, u32),
    time: (i64, i64),
    device: u64,
    links: u64,
    attributes: BTreeMap<OsString, Vec<u8>>,
}

fn kept(root: &Path) -> BTreeMap<PathBuf, Kept> {
    let paths = Tree::read(root).0.into_keys();
    let all = paths.map(|path| {
        let at = root.join(&path);
        let meta = at.symlink_metadata().expect("look at it");
        let names = xattr::list(&at).expect("list its attributes");
        let value = |name: &OsStr| xattr::get(&at, name).expect("read an attribute");
        let attributes = names.map(|name| {
            let value = value(&name).unwrap_or_default();
            (name, value)
        });
        let is_link = meta.is_symlink();
        let kept = Kept {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            time: (meta.mtime(), meta.mtime_nsec()),
            device: meta.rdev(),
            links: if meta.is_dir() { 0 } else { meta.nlink() },
            attributes: if is_link {
                BTreeMap::new()
            } else {
                attributes.collect()
            },
        };
        (path, kept)
    });
    all.collect()
}

#[track_caller]
fn assert_kept(from: &Path, to: &Path) {
    let (from, mut to) = (kept(from), kept(to));
    to.retain(|path, _| !path.ends_with("only there"));
    let differ = from
        .iter()
        .filter(|(path, kept)| to.get(*path) != Some(kept));
    let differ: Vec<_> = differ
        .map(|(path, kept)| (path, kept, to.get(path)))
        .collect();
    assert!(differ.is_empty() && from.len() == to.len(), "{differ:?}");
}

fn inodes(root: &Path) -> BTreeMap<PathBuf, u64> {
    let paths = Tree::read(root).0.into_keys();
    let inode = |path: PathBuf| {
        let meta = root.join(&path).symlink_metadata();
        (path, meta.expect("look at it").ino())
    };
    paths.map(inode).collect()
}

/// An access control list with rights for the user 55.
pub(super) fn list(group: u16, mask: u16) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in [
        (1u16, 6u16, u32::MAX),
        (2, 4, 55),
        (4, group, u32::MAX),
        (16, mask, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

pub(super) const LIST: &str = "system.posix_acl_access";

/// A capability to bind low ports.
pub(super) const CAPABILITY: [u8; 20] =
    [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// False if this machine does not allow all of it.
fn with_all_metadata(tree: &Dir) -> bool {
    one_of_everything(tree);
    let made = [
        mknodat(
            CWD,
            tree.path("null"),
            FileType::CharacterDevice,
            Mode::RUSR,
            0x103,
        ),
        mknodat(CWD, tree.path("sub/fifo"), FileType::Fifo, Mode::RUSR, 0),
    ];
    drop(UnixListener::bind(tree.path("s")).expect("make a socket"));
    let attributes = [
        ("small", "user.note", &b"a note"[..]),
        ("many chunks", "user.long", &[7; 3000]),
        ("many chunks", "user.empty", b""),
        ("many chunks", LIST, &list(4, 6)),
        ("sub", "user.of a directory", b"1"),
        ("sub", LIST, &list(7, 5)),
        ("sub/deeper", "system.posix_acl_default", &list(5, 7)),
        ("text", "security.capability", &CAPABILITY),
        ("text", "trusted.note", b"2"),
    ];
    let set = attributes.map(|(path, name, value)| xattr::set(tree.path(path), name, value));
    let owned = [
        chown(tree.path("text"), Some(1234), Some(4321)),
        chown(tree.path("sub/deeper"), Some(7), Some(8)),
        chown(tree.path("sub/deeper/file"), Some(7), None),
        chown(tree.path("null"), Some(9), Some(9)),
        lchown(tree.path("sub/link to small"), Some(5), Some(6)),
    ];
    // Names of attributes are bytes.
    let odd = OsStr::from_bytes(b"user.\xff no text");
    let odd = xattr::set(tree.path("small"), odd, b"odd");
    // A change of owner takes it away.
    let again = xattr::set(tree.path("text"), "security.capability", &CAPABILITY);
    tree.mode("many chunks", 0o4750);
    for (nanos, path) in ["small", "many chunks", "text", "sub/deeper", "sub", "."]
        .into_iter()
        .enumerate()
    {
        tree.time(path, 1_500_000_000, 123_456_780 + nanos as u32);
    }
    made.iter().all(|made| made.is_ok())
        && owned.iter().all(|set| set.is_ok())
        && set.iter().all(|set| set.is_ok())
        && again.is_ok()
        && odd.is_ok()
}

fn number(told: &str, key: &str) -> u64 {
    let (_, rest) = told.rsplit_once(&format!("\"{key}\":")).expect(key);
    let end = rest.find([',', '}']).expect("an end");
    rest[..end].parse().expect("a number")
}

fn all_metadata_is_kept_and_a_second_run_sends_and_writes_nothing(case: &Case) {
    let tree = case.src.dir("tree");
    if !with_all_metadata(&tree) {
        return skip("root, and a file system with all attributes");
    }
    case.copy(&["-a"], "tree/", "new").succeeds();
    assert_same(&tree.0, case.dst.path("new"), Also::HardLinks);
    assert_kept(&tree.0, &case.dst.path("new"));

    let before = inodes(&case.dst.0);
    let done = case.copy(&["-a", "--json"], "tree/", "new");
    let told = done.succeeds().stdout_text();
    assert_eq!(number(&told, "wire_bytes"), 0, "{told}");
    assert_eq!(number(&told, "files_unchanged"), number(&told, "files"));
    assert_eq!(before, inodes(&case.dst.0));
    assert_kept(&tree.0, &case.dst.path("new"));

    tree.append("text", "more");
    tree.file("sub/new", "new");
    let done = case.copy(&["-a", "--json"], "tree/", "new");
    let told = done.succeeds().stdout_text();
    assert_eq!(number(&told, "files_unchanged") + 2, number(&told, "files"));
    assert_same(&tree.0, case.dst.path("new"), Also::HardLinks);
    assert_kept(&tree.0, &case.dst.path("new"));
}

fn metadata_of_unchanged_files_is_corrected_without_their_content(case: &Case) {
    let tree = case.src.dir("tree");
    if !with_all_metadata(&tree) {
        return skip("root, and a file system with all attributes");
    }
    case.copy(&["-a"], "tree", "").succeeds();
    let before = inodes(&case.dst.0);
    for (path, mode) in [
        ("small", 0o2751),
        ("text", 0o600),
        ("sub/deeper/file", 0o444),
    ] {
        tree.mode(path, mode);
    }
    for (path, owner) in [("many chunks", 77), ("sub/fifo", 78), ("empty dir", 79)] {
        chown(tree.path(path), Some(owner), Some(owner)).expect("change the owner");
    }
    lchown(tree.path("link to dir"), Some(80), Some(80)).expect("change the owner");
    xattr::remove(tree.path("small"), "user.note").expect("remove an attribute");
    xattr::remove(tree.path("sub"), LIST).expect("remove a list");
    xattr::set(tree.path("empty"), LIST, &list(7, 7)).expect("set a list");
    xattr::set(tree.path("many chunks"), "user.long", b"short").expect("set an attribute");
    let done = case.copy(&["-a", "--json"], "tree", "");
    let told = done.succeeds().stdout_text();
    assert_eq!(number(&told, "wire_bytes"), 0, "{told}");
    assert_eq!(before, inodes(&case.dst.0));
    assert_kept(&tree.0, &case.dst.path("tree"));
}

/// Directories of all sizes: with one sum, in parts, and without any entry.
fn only_what_differs_in_a_directory_is_announced(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..9000 {
        tree.file(format!("many/{number}"), number.to_string());
    }
    for number in 0..200 {
        tree.file(format!("d{number}/sub/file"), number.to_string());
        tree.link(format!("d{number}/link"), format!("to {number}"));
    }
    tree.hard_link("d1/hard", "many/5");
    tree.file("d2/big", noise(2, 2 * MIB));
    case.copy(&["-a"], "tree", "").succeeds();
    let there = case.dst.dir("tree");

    tree.file("many/4095", "changed");
    tree.file("many/9001", "new");
    tree.append("d1/sub/file", "more");
    tree.append("d2/big", noise(3, 10));
    fs::remove_file(tree.path("d3/link")).expect("remove a link");
    tree.link("d3/link", "elsewhere");
    tree.file("new/sub/file", "new");
    tree.dir("d4/empty");
    there.file("d5/sub/only there", "stays");
    there.file("many/only there", "stays");
    let before = inodes(&there.0);
    let done = case.copy(&["-a", "--json"], "tree", "");
    let told = done.succeeds().stdout_text();
    // The two names of one file are announced in any case.
    let sent = [
        "many/4095",
        "many/9001",
        "d1/sub/file",
        "d2/big",
        "new/sub/file",
    ];
    let all = 9001 + 200 + 2;
    assert_eq!(number(&told, "files"), all, "{told}");
    assert_eq!(
        number(&told, "files_unchanged"),
        all - sent.len() as u64,
        "{told}"
    );
    assert_kept(&tree.0, &there.0);
    for name in ["d5/sub/only there", "many/only there"] {
        assert_eq!(there.read(name), b"stays");
        fs::remove_file(there.path(name)).expect("remove it");
    }
    assert_same(&tree.0, &there.0, Also::HardLinks);
    let after = inodes(&there.0);
    for (path, inode) in before {
        let is_replaced = after.get(&path).is_some_and(|now| *now != inode);
        let is_sent = sent.iter().any(|sent| path == Path::new(sent));
        assert_eq!(
            is_replaced,
            is_sent || path == Path::new("d3/link"),
            "{path:?}"
        );
    }
}

fn size_and_time_decide_to_the_nanosecond(case: &Case) {
    let (tree, there) = (case.src.dir("tree"), case.dst.dir("tree"));
    for (name, len) in [("small", 3), ("big", 3 * MIB)] {
        tree.file(name, noise(1, len));
        there.file(name, noise(2, len));
        for dir in [&tree, &there] {
            dir.time(name, 1_500_000_000, 123_456_789);
        }
    }
    let are_new = || {
        let is_new = |name: &str| there.read(name) == tree.read(name);
        (is_new("small"), is_new("big"))
    };
    for flags in [&["-a"][..], &["-rt"], &["-rp", "--size-only"]] {
        case.copy(flags, "tree", "").succeeds();
        assert_eq!(are_new(), (false, false), "{flags:?}");
    }
    let set_back = || {
        for (name, len) in [("small", 3), ("big", 3 * MIB)] {
            there.file(name, noise(2, len));
            there.time(name, 1_500_000_000, 123_456_789);
        }
    };
    for flags in [&["-rp"][..], &["-aI"], &["-a", "--no-times"], &["-r"]] {
        case.copy(flags, "tree", "").succeeds();
        assert_eq!(are_new(), (true, true), "{flags:?}");
        set_back();
    }
    for name in ["small", "big"] {
        tree.time(name, 1_500_000_000, 123_456_788);
    }
    case.copy(&["-a"], "tree", "").succeeds();
    assert_eq!(are_new(), (true, true));
}

fn update_existing_and_ignore_existing_leave_files_alone(case: &Case) {
    let tree = case.src.dir("tree");
    let there = case.dst.dir("tree");
    for (name, here_at, there_at) in [("newer", 5, 6), ("older", 5, 4), ("same", 5, 5)] {
        for (path, len) in [(name.to_owned(), 9), (format!("big {name}"), 2 * MIB)] {
            tree.file(&path, noise(1, len));
            tree.time(&path, here_at, 0);
            there.file(&path, noise(2, len - 1));
            there.time(&path, there_at, 0);
        }
    }
    tree.file("new", "new");
    tree.file("newdir/inside/file", "new");
    tree.file("newdir/big", noise(3, 2 * MIB));
    tree.link("link", "new");
    there.dir("also here");
    let names_that_are_new = || {
        let names = there.names().into_iter();
        let is_new = |name: &String| {
            let (here, there) = (tree.path(name), there.path(name));
            here.is_file() && fs::read(here).ok() == fs::read(there).ok()
        };
        names.filter(is_new).collect::<Vec<_>>()
    };
    let done = case.copy(
        &["-r", "--existing", "--ignore-existing", "--json"],
        "tree",
        "",
    );
    let told = done.succeeds().stdout_text();
    assert_eq!(names_that_are_new(), [""; 0]);
    assert_eq!((number(&told, "files"), number(&told, "bytes")), (0, 0));
    assert!(!there.has("newdir") && !there.has("link"));

    case.copy(&["-ru", "--existing"], "tree", "").succeeds();
    let updated = ["big older", "big same", "older", "same"];
    assert_eq!(names_that_are_new(), updated);
    assert!(!there.has("newdir") && !there.has("link"));

    let done = case.copy(&["-r", "--ignore-existing", "--summary"], "tree", "");
    done.succeeds().says("6 entries not copied");
    assert_eq!(
        names_that_are_new(),
        ["big older", "big same", "link", "new", "older", "same"]
    );
    assert_same(tree.path("newdir"), there.path("newdir"), Also::Nothing);
    let left = noise(2, 8);
    assert_eq!(there.read("newer"), left);
}

fn what_may_not_be_kept_is_counted(case: &Case) {
    let tree = case.src.dir("tree");
    if !with_all_metadata(&tree) {
        return skip("root, and a file system with all attributes");
    }
    let powers = "-chown,-mknod,-setfcap,-sys_admin";
    let run = case.copying(&["-a", "--json"], "tree", "");
    let done = run.under([
        "setpriv".to_owned(),
        format!("--bounding-set={powers}"),
        format!("--inh-caps={powers}"),
    ]);
    let done = done.run();
    let told = done.succeeds().stdout_text();
    for (key, count) in [
        ("owners", 4),
        ("groups", 3),
        ("acls", 0),
        ("xattrs", 1),
        ("devices", 1),
        ("set_ids", 0),
        ("links", 0),
    ] {
        assert_eq!(number(&told, key), count, "{key}: {told}");
    }
    let mode = fs::metadata(tree.path("text"))
        .expect("a file")
        .permissions();
    tree.mode("text", 0o4755);
    let strict = case.copying(&["-a", "--strict", "--json"], "tree", "strict");
    let strict = strict.under([
        "setpriv".to_owned(),
        format!("--bounding-set={powers}"),
        format!("--inh-caps={powers}"),
    ]);
    let strict = strict.run();
    let told = strict
        .exits(1)
        .says("see the lines about it (--strict)")
        .stdout_text();
    assert_eq!(number(&told, "set_ids"), 1, "{told}");
    fs::set_permissions(tree.path("text"), mode).expect("change the mode");
    fs::remove_dir_all(case.dst.path("strict")).expect("remove the copy");
    done.says("owners of 4 files were not kept")
        .says("1 device was not made");
    assert_same_but_for_the_device(&tree, &case.dst.dir("tree"));
}

fn assert_same_but_for_the_device(tree: &Dir, there: &Dir) {
    fs::remove_file(tree.path("null")).expect("remove the device");
    assert_same(&tree.0, &there.0, Also::HardLinks);
}

fn each_kind_of_metadata_can_be_left_out(case: &Case) {
    let tree = case.src.dir("tree");
    if !with_all_metadata(&tree) {
        return skip("root, and a file system with all attributes");
    }
    let flags = [
        "-a",
        "--no-owner",
        "--no-group",
        "--no-acls",
        "--no-xattrs",
        "--no-devices",
        "--no-specials",
        "--omit-dir-times",
    ];
    case.copy(&flags, "tree", "bare").succeeds();
    let all = kept(&tree.0);
    let bare = kept(&case.dst.path("bare"));
    for special in ["null", "s", "sub/fifo"] {
        assert!(!bare.contains_key(Path::new(special)), "{special}");
    }
    for (path, bare) in &bare {
        assert!(
            bare.attributes.is_empty() && bare.owner == (0, 0),
            "{path:?}"
        );
        let is_directory = bare.links == 0;
        assert_ne!(bare.time == all[path].time, is_directory, "{path:?}");
    }
    // One alone.
    case.copy(&["-r", "--owner"], "tree", "owner").succeeds();
    let owner = kept(&case.dst.path("owner"));
    let text = &owner[Path::new("text")];
    assert_eq!((text.owner, text.attributes.len()), ((1234, 0), 0));
    case.copy(&["-r", "--xattrs"], "tree", "xattrs").succeeds();
    let xattrs = kept(&case.dst.path("xattrs"));
    assert_eq!(xattrs[Path::new("text")].owner, (0, 0));
    assert_eq!(
        xattrs[Path::new("text")].attributes,
        all[Path::new("text")].attributes
    );
    assert_eq!(xattrs[Path::new("many chunks")].attributes.len(), 2);
}

fn an_unchanged_file_needs_no_space(case: &Case) {
    case.src.file("tree/big", noise(1, 6 * MIB));
    let at = case.dst.dir("full");
    let Some(_disk) = Mounted::small(&at.0, 10 << 20) else {
        return skip("a mount");
    };
    case.copy(&["-a"], "tree", "full").succeeds();
    case.src.file("tree/small", "small");
    case.copy(&["-a"], "tree", "full").succeeds();
    assert_same(case.src.path("tree"), at.path("tree"), Also::Nothing);
    case.copy(&["-aI"], "tree", "full")
        .exits(8)
        .says("no space left");
}

fn a_hard_link_to_another_file_system_becomes_a_copy_with_holes(case: &Case) {
    let tree = case.src.dir("tree");
    tree.sparse(
        "a",
        64 * MIB as u64,
        &[(0, b"head"), (40 * MIB as u64, b"data")],
    );
    tree.dir("sub");
    tree.hard_link("sub/b", "a");
    let at = case.dst.dir("tree/sub");
    let Some(_disk) = Mounted::small(&at.0, 4 << 20) else {
        return skip("a mount");
    };
    case.copy(&["-a", "--json"], "tree/", "tree").succeeds();
    let there = Dir(case.dst.path("tree"));
    for path in ["a", "sub/b"] {
        assert!(there.read(path) == tree.read("a"));
        assert!(there.meta(path).blocks() < 4096, "{path}");
    }
}

/// exFAT keeps times in steps of 10 ms, or of 2 s.
fn a_file_system_with_coarse_times_has_no_changed_files(case: &Case) {
    let tree = case.src.dir("tree");
    for seconds in [1_500_000_000, 1_500_000_001] {
        let name = format!("at {seconds}");
        tree.file(&name, &name);
        tree.time(&name, seconds, 999_999_999);
    }
    let at = case.dst.dir("exfat");
    let Some(_disk) = Mounted::caseless(case, &at.0) else {
        return skip("an exFAT file system");
    };
    let flags = ["-rt", "--json"];
    case.copy(&flags, "tree", "exfat").succeeds();
    let told = case.copy(&flags, "tree", "exfat").succeeds().stdout_text();
    assert_eq!(number(&told, "files_unchanged"), 2, "{told}");
    tree.time("at 1500000000", 1_500_000_002, 0);
    let told = case.copy(&flags, "tree", "exfat").succeeds().stdout_text();
    assert_eq!(number(&told, "files_unchanged"), 1, "{told}");
}

fn a_list_of_digests_reads_all_files(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("small", "small");
    tree.file("big", noise(1, 3 * MIB));
    case.copy(&["-a"], "tree", "").succeeds();
    let list = case.scratch.path("list");
    let flags = ["-a", "--json", "--digests", list.to_str().expect("text")];
    let told = case.copy(&flags, "tree", "").succeeds().stdout_text();
    assert_eq!(number(&told, "files_unchanged"), 0, "{told}");
    let list = fs::read_to_string(list).expect("read the list");
    assert_eq!(list.lines().count(), 2, "{list}");
}

fn files_that_are_left_out_are_neither_counted_nor_listed(case: &Case) {
    let tree = case.src.dir("tree");
    for name in ["a", "b"] {
        tree.file(name, "new");
        tree.file(format!("big {name}"), noise(1, MIB));
    }
    let told = case.copy(&["-r", "--existing", "--json"], "tree", "");
    let told = told.succeeds().stdout_text();
    assert!(!case.dst.has("tree"));
    let counts = ["files", "bytes", "entries_left"].map(|key| number(&told, key));
    assert_eq!(counts, [0, 0, 5], "{told}");

    let there = case.dst.dir("tree");
    there.file("a", "other");
    there.file("big a", "other");
    let list = case.scratch.path("list");
    let path = list.to_str().expect("text");
    let flags = ["-r", "--ignore-existing", "--json", "--digests", path];
    let told = case.copy(&flags, "tree", "").succeeds().stdout_text();
    assert_eq!(number(&told, "files"), 2, "{told}");
    let list = fs::read_to_string(list).expect("read the list");
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.lines().all(|line| line.ends_with('b')), "{list}");
}

fn further_names_of_a_file_that_stays_are_copied(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a", "content");
    tree.hard_link("b", "a");
    tree.hard_link("c", "a");
    let there = case.dst.dir("tree");
    for name in ["a", "b", "c"] {
        fs::write(there.path(name), "other").expect("write a file");
        case.copy(&["-r", "--ignore-existing"], "tree", "")
            .succeeds();
        assert_eq!(there.read(name), b"other");
        let copied: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .filter(|one| *one != name)
            .collect();
        let inode = there.meta(copied[0]).ino();
        for one in &copied {
            assert_eq!(there.read(one), b"content");
            assert_eq!(there.meta(one).ino(), inode, "one file");
        }
        for one in ["a", "b", "c"] {
            fs::remove_file(there.path(one)).expect("remove it");
        }
    }
}

fn attributes_that_are_too_many_are_counted(case: &Case) {
    let at = case.src.dir("disk");
    let Some(_disk) = Mounted::small(&at.0, 10 << 20) else {
        return skip("a mount");
    };
    at.file("tree/file", "content");
    let long = [7; 40_000];
    for name in ["user.one", "user.two"] {
        if xattr::set(at.path("tree/file"), name, &long).is_err() {
            return skip("a tmpfs with attributes");
        }
    }
    let done = case.copy(&["-a", "--json"], "disk/tree", "");
    let told = done.succeeds().stdout_text();
    assert_eq!(number(&told, "unread"), 1, "{told}");
    done.says("extended attributes of 1 file could not be read");
    assert_eq!(case.dst.read("tree/file"), b"content");
}

/// The receiver has no room for all of them at once.
fn operands_with_large_attributes_take_turns(case: &Case) {
    let note = [7; 3900];
    let names: Vec<String> = (0..5500).map(|nth| format!("d{nth}")).collect();
    for (nth, name) in names.iter().enumerate() {
        let dir = case.src.dir(name).0;
        if xattr::set(&dir, "user.note", &note).is_err() {
            return skip("a file system with attributes");
        }
        if nth % 50 == 0 {
            case.src.file(format!("{name}/file"), name);
        }
    }
    fs::hard_link(case.src.path("d0/file"), case.src.path("d5499/link")).expect("link it");
    let operands: Vec<&str> = names.iter().map(String::as_str).collect();
    case.copy_all(&["-a"], &operands, "").succeeds();
    for (nth, name) in names.iter().enumerate() {
        let dir = case.dst.path(name);
        let copied = xattr::get(&dir, "user.note").expect("read an attribute");
        assert_eq!(copied.as_deref(), Some(&note[..]), "{name}");
        assert_eq!(dir.join("file").exists(), nth % 50 == 0, "{name}");
    }
    let inode = |path: &str| case.dst.meta(path).ino();
    assert_eq!(inode("d0/file"), inode("d5499/link"));
}

fn a_pipe_replaces_no_file_that_is_to_stay(case: &Case) {
    if case.way == Way::LocalPull {
        return;
    }
    let there = case.dst.file("there", "stays");
    let dest = case.dst("there");
    let copy = |flags: &[&str]| {
        let run = case
            .fastcp()
            .args(flags)
            .args(["--from-command", "echo new"]);
        run.arg(&dest).run()
    };
    copy(&["--ignore-existing"]).succeeds();
    assert_eq!(fs::read(&there).expect("read it"), b"stays");
    fs::remove_file(&there).expect("remove it");
    copy(&["--existing"]).succeeds();
    assert!(!there.exists());
    copy(&["--update"]).exits(2).says("a pipe");
    copy(&[]).succeeds();
    assert_eq!(fs::read(&there).expect("read it"), b"new\n");
    fs::remove_file(&there).expect("remove it");
}

/// The second name is refused in every run, and never takes the place of the first.
fn a_name_that_another_hides_is_no_unchanged_file(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("Makefile", "upper");
    tree.file("makefile", "lower case");
    let at = case.dst.dir("disk");
    let Some(_disk) = Mounted::caseless(case, &at.0) else {
        return skip("a file system that ignores case");
    };
    case.copy(&["-rt"], "tree", "disk").exits(11);
    let names = at.dir("tree").names();
    assert_eq!(names.len(), 1);
    let first = at.read("tree/makefile");
    for flags in [&["-rt"][..], &["-rt", "--ignore-existing"], &["-rtu"]] {
        case.copy(flags, "tree", "disk").exits(11);
        assert_eq!(at.read("tree/makefile"), first, "{flags:?}");
    }
}

fn copies_get_other_modes_and_owners(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "content");
    tree.file("sub/program", "content");
    tree.file("sub/big", noise(1, 2 * MIB));
    tree.link("sub/link", "big");
    tree.mode("sub/program", 0o755);
    if chown(tree.path("file"), Some(5), Some(6)).is_err() {
        return skip("root");
    }
    let flags = [
        "-a",
        "--chmod=Dg+s,F640",
        "--chmod",
        "u+X",
        "--chown=7:root",
        "--json",
    ];
    case.copy(&flags, "tree/", "new").succeeds();
    let there = kept(&case.dst.path("new"));
    for (path, kept) in &there {
        assert_eq!(kept.owner, (7, 0), "{path:?}");
    }
    let mode = |path: &str| there[Path::new(path)].mode & 0o7777;
    let modes = ["", "file", "sub", "sub/program", "sub/big"].map(mode);
    // As in rsync, X asks for the permissions of the source.
    assert_eq!(modes, [0o2755, 0o640, 0o2755, 0o740, 0o640]);
    let told = case.copy(&flags, "tree/", "new").succeeds().stdout_text();
    assert_eq!(number(&told, "files_unchanged"), 3, "{told}");
    assert_eq!(there, kept(&case.dst.path("new")));

    // The data of a command has no owner to keep.
    if case.way != Way::LocalPull {
        let command = format!("cat '{}'", tree.path("file").display());
        let run = case.fastcp().args(["--from-command", &command]);
        let run = run
            .args(["--archive", "--chown=7:8"])
            .arg(case.dst("piped"));
        run.run().succeeds();
        let meta = case.dst.meta("piped");
        assert_eq!((meta.uid(), meta.gid()), (7, 8));
    }

    let flags = ["-r", "--chown", "no-such-user", "--chmod=a="];
    case.copy(&flags, "tree", "not")
        .exits(11)
        .says("no-such-user");
    assert!(!case.dst.has("not"));
    case.copy(&["-r", "--chmod=q"], "tree", "not")
        .exits(2)
        .says("q is not a change of modes");
}

fn a_change_of_modes_applies_to_a_list(case: &Case) {
    let tree = case.src.dir("tree");
    for path in ["file", "dir/file"] {
        tree.file(path, "content");
        tree.mode(path, 0o666);
        if xattr::set(tree.path(path), LIST, &list(6, 7)).is_err() {
            return skip("a file system with lists");
        }
    }
    case.copy(&["-a", "--chmod=go-w,o="], "tree/", "new")
        .succeeds();
    // As rsync 3.5 and chmod do it.
    for path in ["file", "dir/file"] {
        let at = case.dst.path("new").join(path);
        assert_eq!(xattr::get(&at, LIST).expect("read it"), Some(list(6, 5)));
        assert_eq!(case.dst.mode_of(&at), 0o650);
    }
    let told = case.copy(&["-a", "--chmod=go-w,o=", "--json"], "tree/", "new");
    let told = told.succeeds().stdout_text();
    assert_eq!(number(&told, "files_unchanged"), 2, "{told}");
}

/// Two files of the source that were one, or an older snapshot.
fn files_that_are_linked_only_there_do_not_share_a_correction(case: &Case) {
    let tree = case.src.dir("tree");
    for path in ["a", "big a"] {
        tree.file(path, noise(1, if path == "a" { 10 } else { 2 * MIB }));
        tree.mode(path, 0o644);
    }
    tree.hard_link("b", "a");
    tree.hard_link("big b", "big a");
    case.copy(&["-a"], "tree", "").succeeds();
    for (path, other) in [("b", "a"), ("big b", "big a")] {
        fs::remove_file(tree.path(path)).expect("remove a name");
        tree.file(path, tree.read(other));
        let time = tree.meta(other);
        tree.time(path, time.mtime() as u64, time.mtime_nsec() as u32);
        tree.mode(path, 0o600);
    }
    case.copy(&["-a"], "tree", "").succeeds();
    let there = case.dst.dir("tree");
    assert_kept(&tree.0, &there.0);
    let told = case
        .copy(&["-a", "--json"], "tree", "")
        .succeeds()
        .stdout_text();
    assert_eq!(number(&told, "files_unchanged"), 4, "{told}");
}

fn directories_that_are_right_are_not_touched(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("sub/file", "content");
    tree.mode("sub", 0o2750);
    case.copy(&["-a"], "tree/", "new").succeeds();
    let changed = |path: &str| {
        let meta = case.dst.meta(Path::new("new").join(path));
        (meta.ctime(), meta.ctime_nsec())
    };
    let before = changed("sub");
    case.copy(&["-a"], "tree/", "new").succeeds();
    assert_eq!(changed("sub"), before);
}

//! Permissions of copied files, which depend on the directory and the owner at the destination.

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::support::*;

ways! { local_push, here =>
    a_default_acl_counts_as_for_all_that_is_made_there,
    set_id_bits_stay_only_where_owner_and_group_do,
    the_mask_of_an_acl_does_not_become_the_groups_rights,
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A user whom the ACLs name.
const NOBODY: u32 = 65534;

/// Permissions of the owner, the named user, the owning group, the mask and others.
type List = (u16, Option<u16>, u16, Option<u16>, u16);

/// False if the file system has no ACLs.
fn give(path: &Path, name: &str, (user, named, group, mask, other): List) -> bool {
    let lines = [
        (1, Some(user), u32::MAX),
        (2, named, NOBODY),
        (4, Some(group), u32::MAX),
        (0x10, mask, u32::MAX),
        (0x20, Some(other), u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in lines {
        let Some(rights) = rights else { continue };
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    setxattr(path, name, &bytes, XattrFlags::empty()).is_ok()
}

fn list(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    let len = getxattr(path, name, &mut bytes[..]).ok()?;
    bytes.truncate(len);
    Some(bytes)
}

/// Creates the entries of `from` with their modes. The kernel decides on all other permissions.
fn make_alike(from: &Path, to: &Path) {
    let mode = fs::metadata(from).expect("look at it").permissions().mode() & 0o777;
    if !from.is_dir() {
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).mode(mode).open(to);
        return drop(made.expect("make a file"));
    }
    DirBuilder::new()
        .mode(mode)
        .create(to)
        .expect("make a directory");
    for entry in fs::read_dir(from).expect("read the directory") {
        let entry = entry.expect("read an entry");
        make_alike(&entry.path(), &to.join(entry.file_name()));
    }
}

fn a_default_acl_counts_as_for_all_that_is_made_there(case: &Case) {
    let tree = case.src.dir("tree");
    for mode in [0o644, 0o755, 0o600, 0o664, 0o666, 0o777, 0o4755] {
        tree.file(format!("small {mode:o}"), "a few bytes");
        tree.mode(format!("small {mode:o}"), mode);
    }
    tree.file("big", noise(1, 3 * MIB));
    tree.mode("big", 0o664);
    tree.file("sub/deeper/file", "a few bytes");
    tree.mode("sub", 0o775);
    tree.mode("sub/deeper", 0o700);
    let lists: [List; 6] = [
        (7, None, 5, None, 0),
        (7, None, 0, None, 0),
        (7, None, 7, None, 7),
        (7, Some(7), 5, Some(7), 0),
        (7, Some(7), 5, Some(5), 5),
        (6, Some(6), 7, Some(4), 4),
    ];
    for (number, lent) in lists.into_iter().enumerate() {
        for mode in [0o755, 0o2775] {
            let into = [
                format!("ours {number} {mode:o}"),
                format!("theirs {number} {mode:o}"),
            ];
            for into in &into {
                case.dst.dir(into);
                case.dst.mode(into, mode);
                if !give(&case.dst.path(into), DEFAULT, lent) {
                    return skip("a file system with ACLs");
                }
            }
            let [ours, theirs] = into.map(|into| case.dst.dir(into));
            let name = ours.0.file_name().expect("it has a name");
            case.copy(&["-r"], "tree", name).succeeds();
            make_alike(&tree.0, &theirs.path("tree"));
            for path in Tree::read(&theirs.0).0.into_keys() {
                let show = |dir: &Dir| {
                    let path = dir.path(&path);
                    let lists = [ACCESS, DEFAULT].map(|name| list(&path, name));
                    (format!("{:o}", dir.mode_of(&path)), lists)
                };
                assert_eq!(show(&ours), show(&theirs), "{lent:?} {mode:o} {path:?}");
            }
        }
    }
}

/// Needs root: a copy of a user's set-user-ID program that root owns would run as root.
fn set_id_bits_stay_only_where_owner_and_group_do(case: &Case) {
    if !rustix::process::geteuid().is_root() {
        return skip("root");
    }
    for (owner, group, kept) in [
        (0, 0, 0o6755),
        (1234, 0, 0o2755),
        (0, 1234, 0o4755),
        (1234, 1234, 0o755),
    ] {
        let path = case.src.file("program", "a program");
        std::os::unix::fs::chown(&path, Some(owner), Some(group)).expect("change its owner");
        case.src.mode("program", 0o6755);
        case.copy(&["-p"], "program", "new").succeeds();
        assert_eq!(case.dst.mode_of("new"), kept, "{owner} {group}");
        for flags in [&["-p"][..], &["-p", "--inplace"]] {
            // The existing file has the owner and group of the source, so it gets their bits.
            let there = case.dst.file("old", "what is there");
            std::os::unix::fs::chown(&there, Some(owner), Some(group)).expect("change its owner");
            case.copy(flags, "program", "old").succeeds();
            assert_eq!(case.dst.mode_of("old"), 0o6755, "{owner} {group} {flags:?}");
            fs::remove_file(there).expect("remove it");
        }
        fs::remove_file(case.dst.path("new")).expect("remove it");
    }
}

fn the_mask_of_an_acl_does_not_become_the_groups_rights(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("small", "a secret");
    tree.file("big", noise(1, 3 * MIB));
    tree.dir("sub");
    let private: List = (6, Some(6), 0, Some(6), 0);
    for name in ["small", "big"] {
        if !give(&tree.path(name), ACCESS, private) {
            return skip("a file system with ACLs");
        }
        assert_eq!(tree.mode_of(name), 0o660, "what the mode says");
    }
    assert!(give(&tree.path("sub"), ACCESS, (7, Some(7), 1, Some(7), 0)));
    assert!(give(&tree.0, ACCESS, (7, Some(7), 4, Some(7), 0)));
    for flags in [&["-r"][..], &["-rp"]] {
        case.copy(flags, "tree", "").succeeds();
        let copy = case.dst.dir("tree");
        let modes = ["small", "big", "sub", ""].map(|name| copy.mode_of(name));
        assert_eq!(modes, [0o600, 0o600, 0o710, 0o740], "{flags:?}");
        fs::remove_dir_all(&copy.0).expect("remove the copy");
    }
}

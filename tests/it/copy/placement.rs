//! A replaced file keeps its owner and permissions, and an unfinished file never has the final
//! name.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use rustix::process::geteuid;

use crate::support::limits::{Disk, without_powers};
use crate::support::procs::until;
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, pull, here =>
    an_existing_file_keeps_its_mode,
    set_id_bits_come_only_with_p,
    an_existing_file_keeps_its_owner_acl_and_label,
    too_little_space_is_told_before_the_first_byte,
    fsync_changes_nothing_that_one_sees,
    a_file_with_two_names_loses_neither,
}

ways! { push =>
    fsync_needs_no_permission_to_read_the_copy,
}

ways! { push, pull =>
    unfinished_content_is_private_and_has_another_name,
    an_owner_that_cannot_be_kept_fails_the_entry,
    a_disk_that_fills_while_we_copy,
}

fn an_existing_file_keeps_its_mode(case: &Case) {
    case.src.file("a", "new");
    case.src.mode("a", 0o755);
    for mode in [0o600, 0o640, 0o777, 0o444] {
        let name = format!("{mode:o}");
        case.dst.file(&name, "old");
        case.dst.mode(&name, mode);
        case.copy(&[], "a", &name).succeeds();
        assert_eq!(case.dst.read(&name), b"new");
        assert_eq!(case.dst.mode_of(&name), mode, "{name}");
    }
    case.dst.file("p", "old");
    case.dst.mode("p", 0o600);
    case.copy(&["-p"], "a", "p").succeeds();
    assert_eq!(case.dst.mode_of("p"), 0o755);
}

fn set_id_bits_come_only_with_p(case: &Case) {
    case.src.file("a", "new");
    case.src.mode("a", 0o4755);
    case.dst.file("there", "old");
    case.dst.mode("there", 0o6755);
    case.copy(&[], "a", "there").succeeds();
    assert_eq!(case.dst.mode_of("there"), 0o755);
    case.copy(&["-p"], "a", "there").succeeds();
    assert_eq!(case.dst.mode_of("there"), 0o4755);
}

/// A POSIX ACL that lets user 1234 read, in the format of the kernel's extended attribute.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, u32::MAX), // owner: read, write
        (0x02, 4, 1234),     // user 1234: read
        (0x04, 4, u32::MAX), // group: read
        (0x10, 4, u32::MAX), // mask: read
        (0x20, 0, u32::MAX), // others: nothing
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn an_existing_file_keeps_its_owner_acl_and_label(case: &Case) {
    const ACL: &str = "system.posix_acl_access";
    const LABEL: &str = "security.selinux";
    case.src.file("a", "new");
    let there = case.dst.file("there", "old");
    let root = geteuid().is_root();
    if root {
        chown(&there, Some(12345), Some(23456)).expect("give the file away");
    }
    let has_acl = xattr::set(&there, ACL, &acl()).is_ok();
    let has_label = xattr::set(&there, LABEL, b"system_u:object_r:etc_t:s0\0").is_ok();
    let label = xattr::get(&there, LABEL).expect("read a label");
    case.copy(&[], "a", "there").succeeds();
    assert_eq!(case.dst.read("there"), b"new");
    if root {
        let meta = case.dst.meta("there");
        assert_eq!((meta.uid(), meta.gid()), (12345, 23456));
    }
    if has_acl {
        assert_eq!(xattr::get(&there, ACL).expect("read an ACL"), Some(acl()));
    }
    if has_label {
        assert_eq!(xattr::get(&there, LABEL).expect("read a label"), label);
    }
    if !root && !has_acl {
        skip("root, or ACLs");
    }
}

fn an_owner_that_cannot_be_kept_fails_the_entry(case: &Case) {
    if !geteuid().is_root() {
        return skip("root");
    }
    case.src.file("tree/a", "new");
    case.src.file("tree/b", "new too");
    let there = case.dst.file("tree/a", "old");
    fs::set_permissions(
        case.dst.path("tree"),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .expect("set a mode");
    chown(&there, Some(12345), Some(23456)).expect("give the file away");
    // The user owns this file, but its group is another.
    case.src.file("tree/c", "new");
    let there = case.dst.file("tree/c", "old");
    chown(&there, None, Some(23456)).expect("give the file to another group");
    let powerless = without_powers();
    case.host().set_login(&Login {
        under: powerless.join(" "),
        ..Login::default()
    });
    // It need not be able to give a file the group that it is made with here.
    case.src.file("shared/big", noise(2, 2 * MIB));
    let there = case.dst.file("shared/big", "old");
    let group = fs::metadata(there).expect("look at it").gid();
    chown(case.dst.path("shared"), None, Some(23456)).expect("give the directory away");
    case.dst.mode("shared", 0o2777);
    case.copying(&["-r"], "shared", "")
        .under(&powerless)
        .run()
        .succeeds();
    assert_eq!(case.dst.meta("shared/big").gid(), group);
    case.copying(&["-r"], "tree", "")
        .under(&powerless)
        .run()
        .exits(8)
        .says("tree/a: cannot keep the owner")
        .says("group 23456): operation not permitted; remove it first")
        .says("tree/c: cannot keep the group of the existing file (user")
        .says("group 23456): operation not permitted; use --inplace to write into c itself");
    assert_eq!(case.dst.read("tree/a"), b"old");
    assert_eq!(case.dst.read("tree/c"), b"old");
    assert_eq!(case.dst.meta("tree/a").uid(), 12345);
    assert_eq!(case.dst.read("tree/b"), b"new too");
}

fn too_little_space_is_told_before_the_first_byte(case: &Case) {
    let Some(disk) = Disk::small(case, 4 << 20) else {
        return skip("a small file system");
    };
    disk.dir.file("there", "old");
    case.src.file("big", noise(1, 9 * MIB));
    for name in ["there", "new"] {
        case.fastcp()
            .arg(case.src("big"))
            .arg(case.to(disk.dir.path(name)))
            .run()
            .exits(8)
            .says("space")
            .says("9.44 MB")
            .says("free");
    }
    assert_eq!(disk.dir.read("there"), b"old");
    assert_eq!(disk.dir.names(), ["there"]);
    // Holes need no space.
    case.src
        .sparse("sparse", 50 * MIB as u64, &[(MIB as u64, b"x")]);
    case.fastcp()
        .arg(case.src("sparse"))
        .arg(case.to(disk.dir.path("sparse")))
        .run()
        .succeeds();
    assert_same(
        case.src.path("sparse"),
        disk.dir.path("sparse"),
        Also::Nothing,
    );
}

fn a_disk_that_fills_while_we_copy(case: &Case) {
    let Some(disk) = Disk::small(case, 12 << 20) else {
        return skip("a small file system");
    };
    disk.dir.file("there", "old");
    case.src.file("big", noise(1, 9 * MIB));
    let run = case
        .fastcp()
        .arg(held_back(case, "400K"))
        .arg(case.src("big"))
        .arg(case.to(disk.dir.path("there")))
        .start();
    until("the copy is under way", || {
        disk.dir.has_partial().then_some(())
    });
    disk.fill();
    let_go(case);
    run.wait().exits(8).says("there").says("space");
    assert_eq!(disk.dir.read("there"), b"old");
    assert_eq!(disk.dir.names(), ["filler", "there"]);
}

fn fsync_changes_nothing_that_one_sees(case: &Case) {
    let tree = case.src.dir("tree");
    tree::one_of_everything(&tree);
    case.copy(&["-r", "-p", "--fsync"], "tree", "")
        .succeeds()
        .is_silent();
    assert_same(&tree.0, case.dst.path("tree"), Also::ModesAndTimes);
    assert_same(&tree.0, case.dst.path("tree"), Also::HardLinks);
}

fn fsync_needs_no_permission_to_read_the_copy(case: &Case) {
    if !geteuid().is_root() {
        return skip("root");
    }
    case.src.file("tree/a", "for nobody");
    case.src.mode("tree/a", 0);
    case.host().set_login(&Login {
        under: without_powers().join(" "),
        ..Login::default()
    });
    for _ in 0..2 {
        case.copy(&["-a", "--fsync"], "tree", "").succeeds();
    }
    assert_same(
        case.src.path("tree"),
        case.dst.path("tree"),
        Also::ModesAndTimes,
    );
}

fn a_file_with_two_names_loses_neither(case: &Case) {
    case.src.file("a", "new");
    case.dst.file("one", "old");
    case.dst.hard_link("two", "one");
    case.copy(&[], "a", "one").succeeds();
    assert_eq!(case.dst.read("one"), b"new");
    assert_eq!(case.dst.read("two"), b"old");
}

fn unfinished_content_is_private_and_has_another_name(case: &Case) {
    case.src.file("a", noise(1, 6 * MIB));
    case.src.mode("a", 0o666);
    case.dst.file("there", "old");
    case.dst.mode("there", 0o666);
    for name in ["new", "there"] {
        let run = case.copying(&[], "a", name);
        let run = run.arg(held_back(case, "300K")).start();
        let partial = until("the copy is under way", || {
            let partial = case.dst.partials().pop();
            partial.filter(|_| case.dst.has_partial())
        });
        let mode = partial.metadata().expect("stat the temporary").mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(!case.dst.has("new") || name == "there");
        assert_eq!(case.dst.read("there"), b"old");
        let_go(case);
        run.wait().succeeds();
        assert_same(case.src.path("a"), case.dst.path(name), Also::Nothing);
        assert!(!Path::new(&partial).exists());
    }
}

//! New small files: they get their final names when they are complete, with few system calls.

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;

use crate::support::inject::{self, Inject, NAMELESS};
use crate::support::*;

ways! { local_pull, here =>
    a_killed_copy_leaves_nothing_of_a_small_file,
    a_small_file_takes_few_system_calls,
    a_file_that_appears_before_the_name_is_given_is_treated_as_one_that_was_there,
    where_files_without_names_are_refused_they_get_temporary_ones,
    a_name_that_cannot_be_given_fails_its_file_alone,
    a_small_file_gets_the_mode_group_and_times_that_cp_gives,
}

/// System calls that create, write and name files.
const CALLS: [&str; 14] = [
    "open",
    "stat",
    "flock",
    "fcntl",
    "pwrite64",
    "write",
    "ftruncate",
    "chmod",
    "utimensat",
    "fgetxattr",
    "rename",
    "link",
    "unlink",
    "close",
];

fn a_killed_copy_leaves_nothing_of_a_small_file(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    for number in 0..5 {
        case.src.file(format!("tree/{number}"), "a few bytes");
    }
    for call in ["pwrite64", "stat", "link", "close"] {
        for number in [1, 3] {
            let kill = Inject::new().kill(call).on(NAMELESS).nth(number);
            case.copying(&["-r"], "tree", "").inject(&kill).run();
            kill.assert_struck(1);
            let tree = case.dst.dir("tree");
            assert!(tree.partials().is_empty(), "{call}");
            for name in tree.names() {
                assert_eq!(tree.read(&name), b"a few bytes", "{call}: {name}");
            }
            case.copy(&["-r"], "tree", "").succeeds();
            let (tree, copy) = (case.src.path("tree"), case.dst.path("tree"));
            assert_same(tree, &copy, Also::Nothing);
            std::fs::remove_dir_all(copy).expect("remove the copy");
        }
    }
}

fn a_small_file_takes_few_system_calls(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    const FILES: usize = 50;
    for number in 0..FILES {
        case.src.file(format!("tree/{number}"), "a few bytes");
    }
    // The call that creates a file without a name is given the directory.
    let on = format!("{{{NAMELESS},*/dst/tree,*/dst/tree/*}}");
    for (flags, most) in [(&["-r"][..], 5), (&["-rp"], 6)] {
        let count = |inject: Inject, call: &&str| inject.delay(call, Duration::ZERO).on(&on);
        let count = CALLS.iter().fold(Inject::new(), count);
        let done = case.copying(flags, "tree", "").inject(&count).run();
        done.succeeds();
        let calls = count.struck() as f64 / FILES as f64;
        // The directory itself takes a few calls.
        assert!(calls < f64::from(most) + 0.5, "{calls} a file:{count}");
        std::fs::remove_dir_all(case.dst.path("tree")).expect("remove the copy");
    }
}

fn a_file_that_appears_before_the_name_is_given_is_treated_as_one_that_was_there(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    case.src.file("tree/a", "new");
    for (flags, code, stands) in [
        (&["-r"][..], 0, "new"),
        (&["-r", "--no-clobber"], 11, "came meanwhile"),
    ] {
        let held = Inject::new().hold("link").on(NAMELESS);
        let run = case.copying(flags, "tree", "").inject(&held).start();
        held.wait_until_struck(1);
        assert_eq!(case.dst.dir("tree").names(), [""; 0]);
        let path = case.dst.file("tree/a", "came meanwhile");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o604);
        std::fs::set_permissions(path, mode).expect("set the mode");
        held.release();
        run.wait().exits(code);
        assert_eq!(case.dst.read("tree/a"), stands.as_bytes());
        assert_eq!(case.dst.mode_of("tree/a"), 0o604);
        assert_eq!(case.dst.dir("tree").names(), ["a"]);
        std::fs::remove_dir_all(case.dst.path("tree")).expect("remove the copy");
    }
}

/// Some file systems refuse nameless files, as do kernels that need a capability or /proc, and
/// policies.
fn where_files_without_names_are_refused_they_get_temporary_ones(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    for number in 0..5 {
        case.src.file(format!("tree/{number}"), "a few bytes");
    }
    let refusals = [
        Inject::new()
            .fail("openat", Errno::OPNOTSUPP)
            .on("*/dst/tree/."),
        Inject::new().fail("link", Errno::PERM).on("*/dst/tree/?"),
        // Kernels that need a capability answer like this, and fastcp then links through /proc.
        Inject::new().fail("link", Errno::NOENT).on(NAMELESS).nth(1),
    ];
    for refused in refusals {
        // With more workers, several may try before the first gets its error.
        let run = case.copying(&["-r", "--threads", "1"], "tree", "");
        run.inject(&refused).run().succeeds();
        refused.assert_struck(1);
        let (tree, copy) = (case.src.path("tree"), case.dst.path("tree"));
        assert_same(tree, &copy, Also::Nothing);
        std::fs::remove_dir_all(copy).expect("remove the copy");
    }
}

fn a_name_that_cannot_be_given_fails_its_file_alone(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    for name in ["a", "b", "c"] {
        case.src.file(format!("tree/{name}"), "a few bytes");
    }
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::IO] {
        let failed = Inject::new().fail("link", errno).on("*/dst/tree/b");
        let done = case.copying(&["-r"], "tree", "").inject(&failed).run();
        failed.assert_struck(1);
        done.exits(8)
            .says("tree/b")
            .says("give the finished file its name");
        assert_eq!(case.dst.dir("tree").names(), ["a", "c"]);
        std::fs::remove_dir_all(case.dst.path("tree")).expect("remove the copy");
        for journal in case.dst.journals() {
            std::fs::remove_file(journal).expect("remove the journal");
        }
    }
}

fn a_small_file_gets_the_mode_group_and_times_that_cp_gives(case: &Case) {
    let tree = case.src.dir("tree");
    for mode in [0o400, 0o640, 0o666, 0o777, 0o1666, 0o6755] {
        tree.file(format!("{mode:o}"), "a few bytes");
        tree.mode(format!("{mode:o}"), mode);
    }
    let is_root = rustix::process::geteuid().is_root();
    for (flags, into, group) in [("-r", 0o755, 0), ("-r", 0o2755, 1234), ("-rp", 0o755, 0)] {
        let [ours, theirs] = ["ours", "theirs"].map(|name| case.dst.dir(name));
        for dir in [&ours, &theirs] {
            if is_root {
                std::os::unix::fs::chown(&dir.0, None, Some(group)).expect("set the group");
            }
            dir.mode("", into);
        }
        case.copy(&[flags], "tree", "ours").succeeds();
        let mut cp = Command::new("cp");
        let copied = cp.arg(flags).arg(&tree.0).arg(&theirs.0).status();
        assert!(copied.expect("run cp").success());
        for name in tree.names() {
            let show = |dir: &Dir| {
                let found = std::fs::metadata(dir.path("tree").join(&name)).expect("look at it");
                let time = (flags == "-rp").then(|| (found.mtime(), found.mtime_nsec()));
                (format!("{:o}", found.mode()), found.gid(), time)
            };
            assert_eq!(show(&ours), show(&theirs), "{flags} {into:o} {name}");
        }
        for dir in [ours, theirs] {
            std::fs::remove_dir_all(dir.0).expect("remove the copy");
        }
    }
}

//! Hosts with little room for a program: home directories that are full, read-only or mounted
//! `noexec`, hosts that forbid an installation, and other users.

use super::{BARE, bare_login, copy, fastcp, placed, remove};
use std::path::Path;

use crate::support::host::{find_program, user};
use crate::support::run::stripped_binary;
use crate::support::*;

ways! { push =>
    a_poor_home_makes_it_go_elsewhere,
    a_program_in_a_directory_for_all_is_never_looked_at,
    a_program_that_others_may_have_written_is_not_run,
    only_stored_programs_are_removed_and_through_no_link,
    a_host_where_nothing_may_run_is_told_so,
    nothing_is_placed_where_that_is_forbidden,
    sudo_runs_the_far_end_and_its_refusal_is_explained,
}

/// The entries that such a login has made in /tmp.
fn in_temporary(case: &Case) -> Vec<String> {
    let mut names = case.scratch.dir("temporary").names();
    names.retain(|name| name.starts_with("fastcp-"));
    names
}

/// A login with its own mounts: `mounts` are shell lines, in which `$T` is the directory behind
/// /tmp, /var/tmp and /dev/shm, and `$C` the cache in the home directory.
pub(super) fn login_with_mounts(case: &Case, mounts: &str) -> Option<Login> {
    if !rustix::process::geteuid().is_root() {
        skip("root, for mounts");
        return None;
    }
    let (scratch, cache) = (&case.scratch, case.home.dir(".cache"));
    let temporary = scratch.dir("temporary");
    let script = format!(
        "#!/bin/sh\nset -e\nT='{}'; C='{}'; R='{}'\n\
         mount --bind \"$R\" /mnt\n\
         for d in /dev/shm /var/tmp /tmp; do mount --bind \"$T\" $d; done\n\
         [ -e \"$R/Cargo.toml\" ] || {{ mkdir -p \"$R\"; mount --bind /mnt \"$R\"; }}\n\
         {mounts}\nexec \"$@\"\n",
        temporary.0.display(),
        cache.0.display(),
        // This directory may itself be below /tmp.
        env!("CARGO_MANIFEST_DIR"),
    );
    scratch.file("enter", script);
    scratch.mode("enter", 0o755);
    scratch.mode("temporary", 0o1777);
    let works = std::process::Command::new("unshare")
        .args(["-m", "--propagation", "private"])
        .arg(scratch.path("enter"))
        .arg("true")
        .status()
        .is_ok_and(|status| status.success());
    if !works {
        skip("mounts");
        return None;
    }
    Some(Login {
        under: format!(
            "unshare -m --propagation private '{}'",
            scratch.path("enter").display()
        ),
        ..bare_login()
    })
}

const NOEXEC: &str = "mount --bind \"$C\" \"$C\"; mount -o remount,bind,noexec \"$C\"";
const READ_ONLY: &str = "mount --bind \"$C\" \"$C\"; mount -o remount,bind,ro \"$C\"";
const FULL: &str = "mount -t tmpfs -o size=64k tmpfs \"$C\"";

fn a_poor_home_makes_it_go_elsewhere(case: &Case) {
    case.src.file("a", "one");
    for mounts in [NOEXEC, READ_ONLY, FULL] {
        let Some(login) = login_with_mounts(case, mounts) else {
            return;
        };
        case.host().set_login(&login);
        // The copy removes it afterwards, so the next copy installs it again.
        for _ in 0..2 {
            copy(case, &["-v"])
                .succeeds()
                .says("there, in /tmp/fastcp-");
            assert!(in_temporary(case).is_empty(), "{mounts}");
        }
        assert!(remove(case).contains("nothing was removed"), "{mounts}");
    }
    // Without a home directory it does the same, and writes nothing to /.cache.
    let Some(mut login) = login_with_mounts(case, "") else {
        return;
    };
    for home in ["", "relative"] {
        login.before = format!("HOME={home}; cd /");
        case.host().set_login(&login);
        copy(case, &["-v"])
            .succeeds()
            .says("there, in /tmp/fastcp-");
        assert!(in_temporary(case).is_empty());
    }
    assert!(!Path::new("/.cache/fastcp").exists());
}

/// fastcp neither runs nor examines programs in /tmp: another user could swap them between two
/// checks. The test plants a program of another user, a symlink to one, and a program of this
/// user in a directory that others may write.
fn a_program_in_a_directory_for_all_is_never_looked_at(case: &Case) {
    case.src.file("a", "one");
    let Some(mut login) = login_with_mounts(case, NOEXEC) else {
        return;
    };
    let Some(strace) = find_program("strace") else {
        return skip("strace");
    };
    let log = case.scratch.path("calls");
    login.under = format!(
        "'{}' -f -qq -e trace=file -o '{}' {}",
        strace.display(),
        log.display(),
        login.under
    );
    case.host().set_login(&login);
    let digest = blake3::hash(&std::fs::read(stripped_binary()).expect("read it"));
    let name = format!("0.1.0-{digest}");
    let temporary = case.scratch.dir("temporary");
    let planted = |directory: &str| {
        let path = format!("{directory}/{name}/fastcp");
        let touch = "touch /tmp/was-run; echo '=fastcp= ok'";
        temporary.file(&path, format!("#!/bin/sh\n{touch}\n"));
        temporary.mode(&path, 0o755);
    };
    planted("fastcp-theirs");
    let theirs = temporary.path("fastcp-theirs");
    std::os::unix::fs::chown(&theirs, Some(65534), None).expect("give away");
    std::os::unix::fs::symlink(&theirs, temporary.path("fastcp-linked")).expect("link");
    planted("fastcp-opened");
    temporary.mode("fastcp-opened", 0o777);
    copy(case, &["-v"]).succeeds().says("installing");
    assert!(!temporary.has("was-run"));
    let calls = std::fs::read_to_string(&log).expect("strace writes it");
    assert!(calls.contains("/tmp/fastcp-"), "its own directory");
    for name in ["fastcp-theirs", "fastcp-linked", "fastcp-opened"] {
        let looks: Vec<_> = calls.lines().filter(|call| call.contains(name)).collect();
        assert!(looks.is_empty(), "{looks:#?}");
        assert!(temporary.has(name));
    }
}

/// Version 0.1 stored programs in directories such as /tmp/fastcp-old.
fn only_stored_programs_are_removed_and_through_no_link(case: &Case) {
    let Some(login) = login_with_mounts(case, "") else {
        return;
    };
    case.host().set_login(&login);
    let temporary = case.scratch.dir("temporary");
    let stored = format!("0.1.0-{}", "0f".repeat(32));
    let [old, elsewhere, short, mine] = [
        format!("fastcp-old/{stored}/fastcp"),
        format!("elsewhere/{stored}/fastcp"),
        format!("fastcp-mine/{}/fastcp", &stored[..60]),
        "fastcp-mine/my-build/fastcp".to_owned(),
    ];
    for path in [&old, &elsewhere, &short, &mine] {
        temporary.file(path, "a program");
    }
    std::os::unix::fs::symlink("elsewhere", temporary.path("fastcp-linked")).expect("link");
    let said = remove(case);
    assert!(said.contains("/tmp/fastcp-old/"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!temporary.has("fastcp-old"));
    for path in [&elsewhere, &short, &mine] {
        assert!(temporary.has(path), "{path}");
    }
}

/// A program in the home directory runs only where no other user could have written it.
fn a_program_that_others_may_have_written_is_not_run(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&bare_login());
    copy(case, &["-v"]).succeeds().says("installing");
    let program = placed(&case.home).pop().expect("placed");
    let ran = case.scratch.path("was-run");
    let plant = || {
        // The former server may still run the program.
        case.host().wait_for_logins();
        let text = format!("#!/bin/sh\ntouch '{}'; echo '=fastcp= ok'\n", ran.display());
        std::fs::write(program.join("fastcp"), text).expect("plant");
    };
    let mode = |path: &str, mode| case.home.mode(path, mode);
    // The directory was writable by all when the program was planted.
    plant();
    mode(".cache/fastcp", 0o777);
    copy(case, &["-v"]).succeeds().says("installing");
    assert_eq!(case.home.mode_of(".cache/fastcp"), 0o700, "closed again");
    assert!(!ran.exists());
    copy(case, &["-v"]).succeeds().never_says("installing");
    // A program of another user, and a symlink to a file of this user.
    if rustix::process::geteuid().is_root() {
        plant();
        let chown = |id| std::os::unix::fs::chown(program.join("fastcp"), Some(id), None);
        chown(65534).expect("give away");
        copy(case, &["-v"]).succeeds().says("installing");
        assert!(!ran.exists());
    }
    plant();
    std::fs::rename(program.join("fastcp"), case.scratch.path("own")).expect("rename");
    std::os::unix::fs::symlink(case.scratch.path("own"), program.join("fastcp")).expect("link");
    copy(case, &["-v"]).succeeds().says("installing");
    assert!(!ran.exists());
    remove(case);
}

fn a_host_where_nothing_may_run_is_told_so(case: &Case) {
    case.src.file("a", "one");
    let nowhere = format!(
        "{NOEXEC}; for d in /tmp /var/tmp /dev/shm; do mount -o remount,bind,noexec $d; done"
    );
    let Some(login) = login_with_mounts(case, &nowhere) else {
        return;
    };
    case.host().set_login(&login);
    case.home.file(".gz", "mine");
    copy(case, &[])
        .exits(4)
        .says("no directory to install it in")
        .says("--remote-path");
    assert!(case.home.has(".gz"));
    assert!(in_temporary(case).is_empty());
    assert!(!case.dst.has("a"));
}

fn nothing_is_placed_where_that_is_forbidden(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&bare_login());
    copy(case, &["--no-install"])
        .exits(4)
        .says("--no-install")
        .says("--remote-path");
    assert!(placed(&case.home).is_empty());
    // A copy of /etc with one more file.
    let etc = case.scratch.path("etc");
    let mounts = format!(
        "[ -e '{0}' ] || cp -a /etc '{0}'; mkdir -p '{0}/fastcp'; touch '{0}/fastcp/no-install'; \
         mount --bind '{0}' /etc",
        etc.display()
    );
    let Some(login) = login_with_mounts(case, &mounts) else {
        return;
    };
    case.host().set_login(&login);
    copy(case, &[]).exits(4).says("/etc/fastcp/no-install");
    assert!(placed(&case.home).is_empty());
}

fn sudo_runs_the_far_end_and_its_refusal_is_explained(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&bare_login());
    // Prints the message of a sudo without a rule for this user.
    let bin = case.scratch.dir("refusing");
    bin.file(
        "sudo",
        "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n",
    );
    bin.mode("sudo", 0o755);
    case.host().set_login(&Login {
        path: format!("{}:{BARE}", bin.0.display()),
        ..Login::default()
    });
    let refused = copy(case, &["--sudo=www-data"]);
    refused
        .exits(3)
        .says("a password is required")
        .says(&format!("{} ALL=(www-data) NOPASSWD: /bin/sh", user()));
    // The lines of such a login are hidden, but not the advice.
    let refused = copy(case, &["--sudo=www-data", "--retry-for", "1min"]);
    refused
        .exits(3)
        .says("sudo failed (sudo: a password is required); if it asked for a password, run visudo")
        .never_says("again");
    let fails = [
        ("sudo: unknown user nosuch", 1, "no user nosuch"),
        (
            "sh: 1: exec: sudo: not found",
            127,
            "sudo is not installed there",
        ),
    ];
    for (words, code, why) in fails {
        // An unrelated message may come last.
        let script = format!("#!/bin/sh\necho '{words}' >&2\necho audit >&2\nexit {code}\n");
        bin.file("sudo", script);
        bin.mode("sudo", 0o755);
        copy(case, &["--sudo=nosuch"])
            .exits(4)
            .says(why)
            .never_says("visudo");
    }
    if find_program("sudo").is_none() || !rustix::process::geteuid().is_root() {
        return skip("sudo and root");
    }
    // The real sudo, whose own PATH may have a fastcp. It copies to a file of another user, in a
    // directory that only that user may enter.
    let hide = "mkdir -p \"$T/none\"; for d in /usr/local/bin /usr/local/sbin; do \
                mount --bind \"$T/none\" $d; done";
    let Some(login) = login_with_mounts(case, hide) else {
        return;
    };
    case.host().set_login(&login);
    // Below the login's /tmp: other users may have no permission to reach the case's directory.
    let theirs = case.scratch.dir("temporary/theirs");
    case.scratch.mode("temporary/theirs", 0o700);
    std::os::unix::fs::chown(&theirs.0, Some(65534), Some(65534)).expect("give away");
    let done = fastcp(case)
        .args(["-v", "--sudo=nobody"])
        .arg(case.src("a"))
        .arg(case.to("/tmp/theirs/a"))
        .run();
    done.succeeds().says("installing fastcp");
    use std::os::unix::fs::MetadataExt;
    assert_eq!(theirs.meta("a").uid(), 65534);
    let removed = fastcp(case)
        .args(["--sudo=nobody", "--remove", "far:"])
        .run();
    removed.succeeds();
    // That user has no home directory, so the copy installed the program in /tmp for itself only.
    assert!(
        removed.stdout_text().contains("nothing was removed"),
        "{removed}"
    );
    assert!(in_temporary(case).is_empty());
}

//! Hosts without fastcp: the client installs it over the existing login, or says why it cannot.

mod planted;
mod poor;

use std::path::{Path, PathBuf};

use crate::support::host::find_program;
use crate::support::pty::Terminal;
use crate::support::run::{fastcp_binary, stripped_binary};
use crate::support::*;

ways! { push, pull => a_host_without_fastcp_is_given_it_once }

ways! { push =>
    an_installation_is_told_at_a_terminal_alone,
    every_login_shell_is_understood,
    a_host_with_little_more_than_a_shell_will_do,
    a_host_that_has_gzip_is_sent_less,
    another_version_on_the_path_gives_way,
    a_program_that_hangs_when_asked_gives_way,
    a_placing_that_is_cut_short_leaves_nothing,
    a_first_login_that_is_lost_while_it_installs_is_tried_again_if_asked,
    programs_with_equal_process_ids_are_placed_apart,
    a_program_that_does_not_run_there_is_told_with_its_message,
    a_damaged_program_is_replaced_and_never_run,
    another_machine_gets_its_own_program,
    a_far_side_that_lies_before_its_hello_is_held_out,
    the_last_three_are_kept_and_all_are_removed,
}

/// A PATH without fastcp.
const BARE: &str = "/usr/bin:/bin";

fn bare_login() -> Login {
    Login {
        path: BARE.into(),
        ..Login::default()
    }
}

/// fastcp without its symbols, as users install it.
fn fastcp(case: &Case) -> Run {
    case.fastcp().program(stripped_binary())
}

fn copy(case: &Case, flags: &[&str]) -> done::Done {
    fastcp(case)
        .args(flags)
        .arg(case.src("a"))
        .arg(case.dst("a"))
        .run()
}

/// Removes the installed program; returns the output.
fn remove(case: &Case) -> String {
    let done = fastcp(case).args(["--remove", "far:"]).run();
    done.succeeds();
    done.stdout_text()
}

fn placed(home: &Dir) -> Vec<PathBuf> {
    let cache = home.path(".cache/fastcp");
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn a_host_without_fastcp_is_given_it_once(case: &Case) {
    case.src.file("a", noise(1, 2 * MIB));
    case.host().set_login(&bare_login());
    copy(case, &["--route=direct"]).succeeds().is_silent();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    assert_eq!(case.host().logins(), 1);
    let program = placed(&case.home);
    assert_eq!(program.len(), 1, "{program:?}");
    let digest = blake3::hash(&std::fs::read(stripped_binary()).expect("read it"));
    let name = format!("{}-{digest}", env!("CARGO_PKG_VERSION"));
    assert!(program[0].ends_with(&name), "{program:?}");
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| {
        std::fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
    };
    assert_eq!(mode(&program[0]) & 0o777, 0o700);
    assert_eq!(mode(&program[0].join("fastcp")) & 0o777, 0o700);

    // The user's umask still applies.
    let mode = case.dst.mode_of("a");
    std::fs::remove_file(case.dst.path("a")).expect("remove");
    copy(case, &["-v"]).succeeds().never_says("installing");
    assert_eq!(case.dst.mode_of("a"), mode);
    let told = fastcp(case).args(["--version", "far:"]).run();
    let (told, shown) = (
        told.succeeds().stdout_text(),
        program[0].display().to_string(),
    );
    assert!(
        told.contains(&format!("far: {shown}/fastcp: fastcp ")),
        "{told}"
    );
    assert!(remove(case).contains(&format!("far: removed {shown}/fastcp")));
    assert!(!case.home.has(".cache/fastcp"));
    assert_eq!(remove(case), "far: nothing was removed\n");
}

/// Somebody who waits at a terminal reads why it takes a while, and no mail of cron does.
fn an_installation_is_told_at_a_terminal_alone(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&bare_login());
    let terminal = Terminal::open(200, 24);
    let told = |flags: &[&str]| {
        let run = fastcp(case).args(flags).env("TERM", "xterm");
        let run = run.arg(case.src("a")).arg(case.dst("a"));
        let done = run.start_on(terminal.output(), terminal.slave()).wait();
        done.succeeds();
        remove(case);
        done.stdout_text()
    };
    let line = "fastcp: far: installing fastcp there, in ";
    assert!(told(&[]).contains(line));
    assert_eq!(told(&["-q"]), "");
    copy(case, &[]).succeeds().is_silent();
    remove(case);
    copy(case, &["--verbose"]).succeeds().says(line);
}

fn every_login_shell_is_understood(case: &Case) {
    case.src.file("a", "one");
    for shell in ["dash", "bash", "bsd-csh", "tcsh", "fish", "busybox"] {
        let Some(path) = find_program(shell) else {
            skip(shell);
            continue;
        };
        let shell = match shell {
            "busybox" => format!("{} sh", path.display()),
            _ => path.display().to_string(),
        };
        case.host().set_login(&Login {
            shell,
            ..bare_login()
        });
        copy(case, &["-v"]).succeeds().says("installing fastcp");
        copy(case, &["-v"]).succeeds().never_says("installing");
        let told = fastcp(case).args(["--version", "far:"]).run();
        assert!(told.stdout_text().contains("/.cache/fastcp/"), "{told}");
        assert!(remove(case).contains("removed"));
    }
}

/// A directory with only these programs.
fn bin_of(case: &Case, programs: &[&str], target: impl Fn(&str) -> PathBuf) -> String {
    let bin = case.scratch.dir("bin");
    for program in programs {
        std::os::unix::fs::symlink(target(program), bin.path(program)).expect("link");
    }
    bin.0.display().to_string()
}

/// The programs that the start-up script needs.
const NEEDED: [&str; 10] = [
    "sh", "uname", "mkdir", "chmod", "ls", "rm", "rmdir", "dd", "wc", "mktemp",
];

fn a_host_with_little_more_than_a_shell_will_do(case: &Case) {
    case.src.file("a", "one");
    let busybox = find_program("busybox");
    let found = |program: &str| find_program(program).expect("on every system");
    let path = bin_of(case, &NEEDED, found);
    let mut paths = vec![(path, "/bin/sh".to_owned())];
    match busybox {
        Some(busybox) => {
            std::fs::rename(case.scratch.path("bin"), case.scratch.path("plain")).expect("rename");
            paths[0].0 = case.scratch.path("plain").display().to_string();
            let path = bin_of(case, &NEEDED, |_| busybox.clone());
            let shell = format!("{path}/sh");
            paths.push((path, shell));
        }
        None => skip("busybox"),
    }
    for (path, shell) in paths {
        case.host().set_login(&Login {
            path,
            shell,
            ..Login::default()
        });
        copy(case, &["-v"]).succeeds().says("installing fastcp");
        remove(case);
    }
}

fn a_host_that_has_gzip_is_sent_less(case: &Case) {
    case.src.file("a", "one");
    let found = |program: &str| find_program(program).expect("on every system");
    let without = bin_of(case, &NEEDED, found);
    let program = std::fs::metadata(stripped_binary()).expect("it is there");
    for (path, is_less) in [(BARE.to_owned(), true), (without, false)] {
        case.host().set_login(&Login {
            path,
            ..Login::default()
        });
        // ssh tells it at its end, which a busy machine may delay for longer than fastcp waits.
        let sent = (0..5).find_map(|_| {
            let done = copy(case, &["-vvv"]);
            done.succeeds().says("installing fastcp");
            let names = case.home.dir(".cache/fastcp").names();
            assert_eq!(names.len(), 1, "{names:?}");
            remove(case);
            let rest = done.stderr.split("Transferred: sent ").nth(1)?;
            rest.split(',').next()?.parse::<u64>().ok()
        });
        let sent = sent.expect("ssh tells how much it sent");
        assert_eq!(sent < program.len() * 6 / 10, is_less, "{sent}");
    }
}

fn another_version_on_the_path_gives_way(case: &Case) {
    case.src.file("a", "one");
    let bin = case.scratch.dir("older");
    // It knows neither the question nor the protocol.
    bin.file(
        "fastcp",
        "#!/bin/sh\necho 'unexpected argument' >&2\nexit 2\n",
    );
    bin.mode("fastcp", 0o755);
    case.host().set_login(&Login {
        path: format!("{}:{BARE}", bin.0.display()),
        ..Login::default()
    });
    let done = copy(case, &["-v"]);
    done.succeeds()
        .says("installing fastcp")
        .never_says("unexpected");
    remove(case);
}

/// A program on PATH that hangs when asked costs a third of `--timeout`, and is replaced.
fn a_program_that_hangs_when_asked_gives_way(case: &Case) {
    case.src.file("a", "one");
    let bin = case.scratch.dir("hanging");
    bin.file("fastcp", "#!/bin/sh\nexec sleep 1000\n");
    bin.mode("fastcp", 0o755);
    case.host().set_login(&Login {
        path: format!("{}:{BARE}", bin.0.display()),
        ..Login::default()
    });
    copy(case, &["-v", "--timeout", "12s"])
        .succeeds()
        .says("installing fastcp");
    remove(case);
}

/// A login to which a program takes seconds.
fn slow_login(case: &Case) -> Login {
    let bin = case.scratch.dir("slow");
    let real = find_program("dd").expect("on every system");
    let slow = format!(
        "#!/bin/sh\ncase $1 in if=*) exec {0} \"$@\";; esac\n\
         sleep 0.1; exec {0} \"$1\" count=1\n",
        real.display()
    );
    bin.file("dd", slow);
    bin.mode("dd", 0o755);
    Login {
        path: format!("{}:{BARE}", bin.0.display()),
        ..Login::default()
    }
}

fn wait_until_it_arrives(case: &Case) {
    procs::until("it arrives", || {
        let arriving = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|at| at.len() > 200_000);
        placed(&case.home).iter().any(arriving).then_some(())
    });
}

/// As in two containers that share a home directory.
fn programs_with_equal_process_ids_are_placed_apart(case: &Case) {
    if !rustix::process::geteuid().is_root() {
        return skip("root, for namespaces of process ids");
    }
    case.src.file("a", "one");
    case.host().set_login(&Login {
        under: "unshare --pid --fork --mount-proc".to_owned(),
        ..slow_login(case)
    });
    let copy = |to: &str| {
        let run = fastcp(case).arg("-v").arg(case.src("a"));
        run.arg(case.dst(to)).start()
    };
    let first = copy("a");
    wait_until_it_arrives(case);
    let second = copy("b");
    for done in [first.wait(), second.wait()] {
        done.succeeds()
            .says("installing fastcp there, in ")
            .says(".cache/fastcp");
    }
    remove(case);
}

fn a_placing_that_is_cut_short_leaves_nothing(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&slow_login(case));
    let run = fastcp(case).arg(case.src("a")).arg(case.dst("a")).start();
    wait_until_it_arrives(case);
    run.signal(rustix::process::Signal::INT);
    run.wait().exits(128 + 2);
    procs::until("it is removed", || {
        placed(&case.home).is_empty().then_some(())
    });
    assert!(!case.dst.has("a"));
}

fn a_first_login_that_is_lost_while_it_installs_is_tried_again_if_asked(case: &Case) {
    case.src.file("a", "one");
    let marker = case.scratch.path("lost").display().to_string();
    let lose = |times: usize| {
        std::fs::write(&marker, "x".repeat(times)).expect("write a file");
        case.host().set_login(&Login {
            before: format!(
                "if [ -s '{marker}' ]; then printf %s \"$(cut -c2- '{marker}')\" >'{marker}'; \
                 echo \"=fastcp= want Linux $(uname -m)\"; read a; \
                 echo '=fastcp= send /tmp'; head -c 1000 >/dev/null; exit 0; fi"
            ),
            ..bare_login()
        });
    };
    lose(2);
    let done = copy(case, &["--retry-for", "1min"]);
    done.succeeds()
        .says("ended while fastcp was being installed there; logging in again in 1 s (");
    assert_eq!(case.dst.read("a"), b"one");
    remove(case);
    lose(1);
    copy(case, &[])
        .exits(5)
        .says("being installed there; try again")
        .never_says("logging in");
}

/// The user reads its message once: above the error, or in it.
fn a_program_that_does_not_run_there_is_told_with_its_message(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&Login {
        before: "echo \"=fastcp= want Linux $(uname -m)\"; read a; echo 'exec format error' >&2; \
                 echo '=fastcp= failed start'; exit 4"
            .into(),
        ..bare_login()
    });
    let told = "does not run there";
    let seen = format!("exec format error\nfastcp: far: the program that was sent {told} (its");
    copy(case, &[]).exits(4).says(&seen);
    for flags in [&["-q"][..], &["--retry-for", "1min"]] {
        let done = copy(case, flags);
        done.exits(4).says(&format!("{told} (exec format error)"));
        assert_eq!(done.stderr.lines().count(), 1, "{done}");
    }
}

fn a_damaged_program_is_replaced_and_never_run(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&bare_login());
    copy(case, &["-v"]).succeeds().says("installing");
    let program = placed(&case.home).pop().expect("placed").join("fastcp");
    for damage in [
        &|| std::fs::write(&program, "").expect("write"),
        &|| std::fs::write(&program, "#!/bin/sh\necho '=fastcp= nonsense'\n").expect("write"),
        // A program that runs as well as the right one, but is a different file.
        &|| assert!(std::fs::copy(fastcp_binary(), &program).is_ok(), "copy"),
    ] as [&dyn Fn(); 3]
    {
        // The former server may still run the program.
        case.host().wait_for_logins();
        damage();
        copy(case, &["-v"]).succeeds().says("installing");
        copy(case, &["-v"]).succeeds().never_says("installing");
    }
    remove(case);
}

fn another_machine_gets_its_own_program(case: &Case) {
    case.src.file("a", "one");
    let bin = case.scratch.dir("other");
    bin.file(
        "uname",
        "#!/bin/sh\ncase $1 in -m) echo aarch64;; *) echo Linux;; esac\n",
    );
    bin.mode("uname", 0o755);
    case.host().set_login(&Login {
        path: format!("{}:{BARE}", bin.0.display()),
        ..Login::default()
    });
    let kept = ".local/share/fastcp/aarch64-unknown-linux-musl";
    let refused = copy(case, &[]);
    refused
        .exits(4)
        .says("aarch64")
        .says(&format!("~/{kept}/fastcp on this machine"));
    // In fact the host is this machine, so this machine's program runs there.
    case.home.dir(kept);
    std::fs::copy(stripped_binary(), case.home.path(format!("{kept}/fastcp"))).expect("copy");
    let other = || case.copy(&["-v"], "a", "a");
    other().succeeds().says("installing fastcp");
    other().succeeds().never_says("installing");
    // The additional logins that carry streams use it too.
    case.src.file("b", noise(1, 6 * MIB));
    let run = case.fastcp().args(["--route", "ssh", "--streams", "2"]);
    let run = run.args(["-l", "5000", "-v"]).arg(case.src("b"));
    let done = run.arg(case.dst("b")).run();
    done.succeeds().never_says("installing").says(", ssh)");
    remove(case);
    bin.file(
        "uname",
        "#!/bin/sh\ncase $1 in -m) echo arm64;; *) echo Darwin;; esac\n",
    );
    copy(case, &[]).exits(4).says("Darwin on arm64");
}

fn a_far_side_that_lies_before_its_hello_is_held_out(case: &Case) {
    case.src.file("a", "one");
    for lie in [
        "want Linux \\033[2J",
        "want Linux ../../etc",
        "want",
        "send /etc",
        "failed \\033",
        "want Linux x86_64\\n=fastcp= want Linux x86_64",
        "want Linux x86_64\\n=fastcp= forbidden",
    ] {
        case.host().set_login(&Login {
            before: format!("printf '=fastcp= {lie}\\n'; cat >/dev/null; exit 0"),
            ..bare_login()
        });
        let done = copy(case, &[]);
        done.exits(4).never_says("panicked");
        let odd = |c: char| c.is_control() && c != '\n';
        assert!(!done.stderr.contains(odd), "{done}");
    }
    // A host that takes the program and then exits, or runs another program.
    for end in ["exit 0", "exec fastcp --server"] {
        case.host().set_login(&Login {
            before: format!(
                "echo '=fastcp= want Linux x86_64'; read a; echo '=fastcp= send /tmp'; \
                 head -c {} >/dev/null; {end}",
                std::fs::metadata(stripped_binary())
                    .expect("it is there")
                    .len()
            ),
            ..Login::default()
        });
        copy(case, &[]).fails();
    }
    assert!(!case.dst.has("a"));
}

fn the_last_three_are_kept_and_all_are_removed(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&bare_login());
    for n in 0..4 {
        let name = format!("0.0.{n}-{:064}", n);
        case.home
            .file(format!(".cache/fastcp/{name}/fastcp"), "#!/bin/sh\n");
        let dir = case.home.path(format!(".cache/fastcp/{name}"));
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(9000 - n * 60);
        let dir = std::fs::File::open(dir).expect("open");
        dir.set_modified(time).expect("set its time");
    }
    case.home.file(".cache/fastcp/mine", "not placed by anyone");
    case.home.file(".cache/fastcp/my-build/fastcp", "nor this");
    copy(case, &["-v"]).succeeds().says("installing");
    let mut names: Vec<String> = placed(&case.home)
        .iter()
        .map(|path| {
            path.file_name()
                .expect("a name")
                .to_string_lossy()
                .chars()
                .take(5)
                .collect()
        })
        .collect();
    names.sort();
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(names, ["0.0.2", "0.0.3", own, "mine", "my-bu"]);
    assert_eq!(remove(case).lines().count(), 3);
    let cache = case.home.dir(".cache/fastcp");
    assert_eq!(cache.names(), ["mine", "my-build"]);
    assert!(cache.has("my-build/fastcp"));
}

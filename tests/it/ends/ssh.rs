//! ssh as scp uses it: every option, one login, hostile configurations, questions on a terminal.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv6Addr};
use std::process::Stdio;

use crate::support::host::Host;
use crate::support::procs::until;
use crate::support::pty::Terminal;
use crate::support::run::fastcp_binary;
use crate::support::{keys, *};

ways! { push, pull =>
    one_login_serves_many_operands,
    letters_go_together_as_with_scp,
    a_configuration_meant_for_people_does_no_harm,
    a_shared_connection_that_stays_does_not_hang_us,
    a_jump_host_is_passed,
    remote_path_may_be_words_and_have_spaces,
    stdin_is_left_alone,
    noise_at_login_is_skipped,
    a_question_is_asked_on_the_terminal,
    what_ansible_types_works,
}

ways! { push =>
    each_letter_reaches_ssh_with_its_meaning,
    letters_without_a_meaning_here_never_break_a_script,
    six_means_ipv6,
    sessions_that_share_our_connection_outlive_us,
}

ways! { local_push, local_pull => rsh_local_needs_no_ssh }

/// Stands in for ssh: logs the arguments of a login, one per line, and runs the real ssh. Calls
/// with `-G` are not logged: fastcp asks for ssh's configuration if a connection takes long to come
/// up.
fn noting_ssh(case: &Case) -> OsString {
    let log = case.scratch.path("argv");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -G ] || printf '%s\\n' \"$@\" >> '{}'\nexec ssh \"$@\"\n",
        log.display()
    );
    case.scratch.file("ssh", script);
    case.scratch.mode("ssh", 0o755);
    case.scratch.path("ssh").into_os_string()
}

/// The arguments that ssh gets in a copy with these flags.
fn argv(case: &Case, flags: &[&str]) -> Vec<String> {
    let program = noting_ssh(case);
    case.scratch.file("argv", "");
    case.fastcp()
        .arg("-S")
        .arg(program)
        .args(flags)
        .arg(case.src("a"))
        .arg(case.dst("a"))
        .run()
        .succeeds();
    let text = String::from_utf8(case.scratch.read("argv")).expect("text");
    text.lines().map(str::to_owned).collect()
}

fn each_letter_reaches_ssh_with_its_meaning(case: &Case) {
    case.src.file("a", "one");
    let (port, key) = (case.host().port().to_string(), case.host().key());
    let key = key.to_str().expect("an ASCII path");
    let plain = argv(case, &[]);
    // (what the user types, what ssh must get, in any of these spellings)
    let letters: [(&[&str], &[&str]); 10] = [
        (&["-P", &port], &["-p {port}", "-oport={port}"]),
        (&["-i", key], &["-i {key}", "-oidentityfile={key}"]),
        (
            &["-o", "Compression=no"],
            &["-o compression=no", "-ocompression=no"],
        ),
        (&["-4"], &["-4", "-oaddressfamily=inet"]),
        (&["-B"], &["-o batchmode=yes", "-obatchmode=yes"]),
        (&["-A"], &["-a", "-oforwardagent=yes"]),
        (
            &["-c", "aes128-ctr"],
            &["-c aes128-ctr", "-ociphers=aes128-ctr"],
        ),
        // With its own -q, ssh would not print the messages that errors quote.
        (&["-q"], &["-ologlevel=error"]),
        // The first two are about fastcp itself.
        (&["-vvv"], &["-v", "-ologlevel=verbose"]),
        (
            &["-F", &case.host().ssh_config().display().to_string()],
            &["-f {config}"],
        ),
    ];
    let config = case.host().ssh_config().display().to_string();
    for (typed, wanted) in letters {
        let given = argv(case, typed).join(" ").to_lowercase();
        let as_wanted = wanted.iter().any(|spelling| {
            let spelling = spelling
                .replace("{port}", &port)
                .replace("{key}", key)
                .replace("{config}", &config)
                .to_lowercase();
            format!(" {given} ").contains(&format!(" {spelling} "))
        });
        assert!(as_wanted, "{typed:?} gave ssh {given}");
    }
    // ssh must not get these: they mean something else to it, or nothing.
    let others = ["-l", "100000", "-r", "-p", "-C", "-vv"];
    assert_eq!(argv(case, &others), plain);
}

fn letters_without_a_meaning_here_never_break_a_script(case: &Case) {
    case.src.file("a", "one");
    let letters: [&[&str]; 9] = [
        &["-C"],
        &["-3"],
        &["-O"],
        &["-R"],
        &["-s"],
        &["-T"],
        &["-D", "/usr/lib/sftp-server"],
        &["-X", "nrequests=64"],
        &["-CTOs3R"],
    ];
    for letter in letters {
        case.copy(letter, "a", "a").succeeds().is_silent();
    }
    let told = case.copy(&["-v", "-O"], "a", "a");
    told.succeeds().says("-O");
}

fn six_means_ipv6(case: &Case) {
    let ip = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let Ok(host) = Host::start_at(
        (ip, 0).into(),
        case.scratch.dir("six"),
        &case.home.0,
        case.mark(),
    ) else {
        return skip("IPv6 on the loopback");
    };
    let file = case.src.file("a", "six");
    let run = |letter: &str| {
        case.bare()
            .arg("-F")
            .arg(host.ssh_config())
            .arg(letter)
            .arg(&file)
            .arg(case.dst("a"))
            .run()
    };
    run("-6").succeeds();
    assert_eq!(case.dst.read("a"), b"six");
    run("-4").exits(3);
}

fn one_login_serves_many_operands(case: &Case) {
    for name in ["a", "b", "c"] {
        case.src.file(name, noise(1, MIB));
    }
    case.copy_all(&["--streams", "8", "--route=direct"], &["a", "b", "c"], "")
        .succeeds();
    assert_eq!(case.dst.names(), ["a", "b", "c"]);
    assert_eq!(case.host().logins(), 1);
}

fn letters_go_together_as_with_scp(case: &Case) {
    case.src.file("tree/a", "one");
    case.src.time("tree/a", 1_000_000_000, 0);
    let port = format!("-P{}", case.host().port());
    case.copy(&["-qrp", &port, "-oBatchMode=yes", "-C4"], "tree", "")
        .succeeds()
        .is_silent();
    assert_same(
        case.src.path("tree"),
        case.dst.path("tree"),
        Also::ModesAndTimes,
    );
    // Flags may also follow operands.
    case.fastcp()
        .arg(case.src("tree"))
        .arg(case.dst("again"))
        .arg("-r")
        .run()
        .succeeds();
}

fn a_configuration_meant_for_people_does_no_harm(case: &Case) {
    case.src.file("a", noise(1, 2 * MIB));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let own = std::fs::read_to_string(case.host().ssh_config()).expect("read the configuration");
    let nasty = format!(
        "Host far\n\
         \tRemoteCommand echo hello\n\
         \tRequestTTY force\n\
         \tLocalForward 127.0.0.1:{port} 127.0.0.1:1\n\
         \tExitOnForwardFailure yes\n\
         \tPermitLocalCommand yes\n\
         \tLocalCommand echo noise\n\
         \tForwardX11 yes\n\
         \tIgnoreUnknown StdinNull,ForkAfterAuthentication,SessionType\n\
         \tStdinNull yes\n\
         \tForkAfterAuthentication yes\n\
         \tSessionType none\n\
         \tEscapeChar none\n\
         {own}"
    );
    std::fs::write(case.host().ssh_config(), nasty).expect("write the configuration");
    case.copy(&[], "a", "a").succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn a_shared_connection_that_stays_does_not_hang_us(case: &Case) {
    case.src.file("a", noise(1, 2 * MIB));
    // A short path: that of a socket has at most 108 bytes.
    let dir = tempfile::Builder::new()
        .prefix("fcp")
        .tempdir()
        .expect("a directory");
    let path = format!("ControlPath={}/s", dir.path().display());
    let sharing = [
        "-o",
        "ControlMaster=auto",
        "-o",
        "ControlPersist=yes",
        "-o",
        &path,
        // On a busy machine it might try further logins.
        "--route=direct",
    ];
    for name in ["first", "second"] {
        case.copy(&sharing, "a", name).succeeds();
        assert_same(case.src.path("a"), case.dst.path(name), Also::Nothing);
    }
    assert_eq!(case.host().logins(), 1);
    Run::new("ssh", "/")
        .arg("-F")
        .arg(case.host().ssh_config())
        .args(["-o", &path, "-O", "exit", "far"])
        .run()
        .succeeds();
}

fn sessions_that_share_our_connection_outlive_us(case: &Case) {
    let content = noise(1, MIB);
    case.src.file("a", &content);
    // A short path: that of a socket has at most 108 bytes.
    let dir = tempfile::Builder::new()
        .prefix("fcp")
        .tempdir()
        .expect("a directory");
    let path = format!("ControlPath={}/s", dir.path().display());
    let flags = ["-o", "ControlMaster=auto", "-o", &path, "--route=direct"];
    let copy = case.fastcp().args(flags).arg("-").arg(case.dst("a"));
    let mut copy = copy.start_with(Stdio::piped());
    until("the copy has logged in", || case.servers().pop());
    let mut other = Run::new("ssh", "/")
        .arg("-F")
        .arg(case.host().ssh_config())
        .args(["-o", &path, "far", "echo ready; read line; echo $line"])
        .start_with(Stdio::piped());
    until("another session is open", || {
        other.stdout.text().contains("ready").then_some(())
    });
    copy.write_stdin(&content);
    drop(copy.stdin.take());
    copy.wait().succeeds();
    assert_eq!(case.dst.read("a"), content);
    other.write_stdin(b"alive\n");
    let other = other.wait();
    assert_eq!(other.succeeds().stdout_text(), "ready\nalive\n");
    assert_eq!(case.host().logins(), 1);
}

fn a_jump_host_is_passed(case: &Case) {
    case.src.file("a", noise(1, 2 * MIB));
    case.copy(&["-J", "far", "--route=direct"], "a", "a")
        .succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    assert_eq!(case.host().logins(), 2);
}

fn remote_path_may_be_words_and_have_spaces(case: &Case) {
    case.src.file("a", "one");
    case.host().set_login(&Login {
        path: "/usr/bin:/bin".into(),
        ..Login::default()
    });
    let spaced = case.scratch.path("with space");
    std::os::unix::fs::symlink(fastcp_binary(), &spaced).expect("link");
    let plain = fastcp_binary().display().to_string();
    for command in [
        plain.clone(),
        format!("env TEST_WORDS=1 {plain}"),
        format!("'{}'", spaced.display()),
    ] {
        case.copy(&["--remote-path", &command], "a", "a").succeeds();
        assert_eq!(case.dst.read("a"), b"one");
    }
    let done = case.copy(&["--remote-path", "$(touch pwned)"], "a", "b");
    done.exits(4);
    assert!(!case.home.has("pwned"));
}

fn stdin_is_left_alone(case: &Case) {
    case.src.file("a", "one");
    // As in the loop of a script: the next command must still find its input.
    let mut run = case
        .copying(&[], "a", "a")
        .under(["sh", "-c", "\"$@\" && cat", "sh"])
        .start_with(Stdio::piped());
    run.write_stdin(b"first\nsecond\n");
    run.stdin.take();
    let done = run.wait();
    done.succeeds();
    assert_eq!(done.stdout_text(), "first\nsecond\n");
}

fn noise_at_login_is_skipped(case: &Case) {
    case.src.file("a", noise(1, 2 * MIB));
    for noise in [
        "echo 'Welcome to far!'; printf 'no newline at the end'",
        "printf '\\000\\377\\033[2J\\r\\n{\"fastcp\":1}\\nfastcp'; seq 1000",
    ] {
        case.host().set_login(&Login {
            before: noise.into(),
            ..Login::default()
        });
        case.copy(&[], "a", "a").succeeds();
        assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    }
    case.host().set_login(&Login {
        before: "yes".into(),
        ..Login::default()
    });
    case.copy(&[], "a", "b").fails();
    assert!(!case.dst.has("b"));
}

fn a_question_is_asked_on_the_terminal(case: &Case) {
    case.src.file("a", "one");
    let key = keys::lock(case, "open sesame");

    let terminal = Terminal::open(80, 24);
    let run = case
        .copying(&["-i", key.to_str().expect("an ASCII path")], "a", "a")
        .env("TERM", "xterm")
        .start_on(terminal.output(), terminal.slave());
    until("ssh asks", || {
        run.stdout.text().contains("passphrase").then_some(())
    });
    terminal.type_in("open sesame\n");
    run.wait().succeeds();
    assert_eq!(case.dst.read("a"), b"one");
}

fn what_ansible_types_works(case: &Case) {
    case.src.file("a", "one");
    let bracketed = |operand: OsString| {
        let text = operand.into_string().expect("an ASCII path");
        text.replacen("far:", "[far]:", 1)
    };
    case.fastcp()
        .args(["-C", "-o", "KbdInteractiveAuthentication=no"])
        .args(["-o", "PasswordAuthentication=no", "-o", "ConnectTimeout=10"])
        .args(["-T", "-r"])
        .arg(bracketed(case.src("a")))
        .arg(bracketed(case.dst("a")))
        .run()
        .succeeds();
    assert_eq!(case.dst.read("a"), b"one");
}

fn rsh_local_needs_no_ssh(case: &Case) {
    let tree = case.src.dir("tree");
    tree::one_of_everything(&tree);
    case.copy(&["-r", "-p", "-S", "/nonexistent"], "tree", "")
        .succeeds();
    assert_same(&tree.0, case.dst.path("tree"), Also::ModesAndTimes);
}

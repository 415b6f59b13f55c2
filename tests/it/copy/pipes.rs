//! Pipes and commands at the ends of a copy: the data arrives whole and in order, and the error
//! names the command that failed at either end.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::support::*;

/// Lengths around one chunk, and a length that takes several connections.
const LENGTHS: [usize; 6] = [0, 1, MIB - 1, MIB, MIB + 1, 9 * MIB + 77];

ways! { push, here, local_between =>
    what_is_piped_arrives_whole,
    a_tree_goes_through_tar_at_both_ends,
    a_producer_that_fails_leaves_nothing_under_the_name,
    a_consumer_that_fails_is_named,
    a_consumer_that_has_enough_is_told_of,
    a_command_that_writes_nothing_makes_an_empty_file,
    an_empty_pipe_leaves_a_file_with_content_alone,
    what_a_slow_producer_has_written_arrives_while_it_waits,
}

ways! { local_push, local_pull =>
    zeros_come_out_of_a_pipe_as_zeros,
    a_stream_does_not_land_in_a_directory,
    a_directory_does_not_go_into_a_pipe,
    a_pipe_that_is_closed_is_told,
    a_flood_of_words_does_not_hide_why_a_command_failed,
    a_producer_may_pause_for_longer_than_the_timeout,
    a_command_has_the_signals_and_the_limit_of_the_user,
}

ways! { local_push =>
    no_child_inherits_a_descriptor,
}

fn source_is_far(case: &Case) -> bool {
    matches!(case.way, Way::Pull | Way::LocalPull)
}

/// Feeds the content of `from` into the standard input of `run`.
pub(super) fn fed(run: Run, from: &std::path::Path) -> Run {
    let script = r#"from=$1; shift; cat -- "$from" | "$@""#;
    run.under([
        "sh".as_ref(),
        "-c".as_ref(),
        script.as_ref(),
        "sh".as_ref(),
        from.as_os_str(),
    ])
}

fn what_is_piped_arrives_whole(case: &Case) {
    for len in LENGTHS {
        let name = format!("{len}");
        let content = noise(len as u64, len);
        let path = case.src.file(&name, &content);
        if source_is_far(case) {
            let done = case.fastcp().arg(case.src(&name)).arg("-").run();
            done.succeeds();
            assert!(
                done.stdout == content,
                "{len} bytes: {done}",
                done = done.stderr
            );
        } else {
            let run = case.fastcp().arg("-").arg(case.dst(&name));
            fed(run, &path).run().succeeds();
            assert_same(&path, case.dst.path(&name), Also::Nothing);
        }
    }
}

/// `--from-command` and `--to-command`, each at its end of the copy.
fn between(case: &Case, from: &str, to: &str) -> Run {
    let run = case
        .fastcp()
        .args(["--from-command", from, "--to-command", to]);
    match case.way {
        Way::Here => run,
        _ if source_is_far(case) => run.arg(case.from("")).arg("-"),
        _ => run.arg("-").arg(case.to("")),
    }
}

fn a_tree_goes_through_tar_at_both_ends(case: &Case) {
    let tree = case.src.dir("tree");
    for number in 0..200 {
        let len = (number as usize * 977) % 60_000;
        tree.file(format!("{}/{number}", number % 7), noise(number, len));
    }
    tree.file("big", prose(1, 6 * MIB));
    let from = format!("tar -C '{}' -c .", tree.0.display());
    let to = format!("tar -C '{}' -x", case.dst.0.display());
    between(case, &from, &to).run().succeeds();
    assert_same(&tree.0, &case.dst.0, Also::Nothing);
}

/// The command writes each line after the previous one has arrived.
fn what_a_slow_producer_has_written_arrives_while_it_waits(case: &Case) {
    let out = case.dst.path("log");
    let shown = out.display();
    let from = format!(
        "for n in 1 2 3; do echo \"line $n\"; \
         until grep -q \"line $n\" '{shown}' 2>/dev/null; do sleep 0.05; done; done; \
         head -c 3000000 /dev/zero; echo; echo end"
    );
    case.src.file(
        "log",
        [b"line 1\nline 2\nline 3\n", &[0; 3_000_000][..], b"\nend\n"].concat(),
    );
    between(case, &from, &format!("cat > '{shown}'"))
        .run()
        .succeeds();
    assert_same(case.src.path("log"), out, Also::Nothing);
}

fn a_producer_may_pause_for_longer_than_the_timeout(case: &Case) {
    let path = case.src.file("a", noise(1, 3 * MIB + 5));
    let from = format!(
        "head -c 1500000 '{0}'; sleep 8; tail -c +1500001 '{0}'",
        path.display()
    );
    let run = case.fastcp().args(["--timeout", "5s", "--retries", "0"]);
    let run = run.args(["--from-command", &from]);
    let run = match source_is_far(case) {
        true => run.arg(case.from("")),
        false => run,
    };
    let done = run.arg("--summary").arg(case.dst("a")).run();
    done.succeeds().says("limited by: the source, ");
    assert_same(&path, case.dst.path("a"), Also::Nothing);
}

/// The shell's `>&-` and `<&-` close these descriptors.
fn a_pipe_that_is_closed_is_told(case: &Case) {
    case.src.file("a", noise(1, MIB));
    let shell = |run: Run, end: &str| run.under(["sh", "-c", &format!("exec \"$@\" {end}"), "sh"]);
    if source_is_far(case) {
        let run = case.fastcp().arg(case.src("a")).arg("-");
        shell(run, ">&-")
            .run()
            .exits(8)
            .says("standard output is closed");
        // A copy that does not use standard output or input may find them closed.
        let run = case.copying(&[], "a", "a");
        shell(run, "<&- >&-").run().succeeds();
    } else {
        let run = case.fastcp().arg("-").arg(case.dst("a"));
        shell(run, "<&-")
            .run()
            .exits(9)
            .says("standard input is closed");
        assert!(!case.dst.has("a"));
    }
}

/// A command as the source of a file at the destination.
fn made_by(case: &Case, command: &str) -> Run {
    let run = case.fastcp().args(["--from-command", command]);
    let run = match source_is_far(case) {
        true => run.arg(case.from("")),
        false => run,
    };
    run.arg(case.dst("made"))
}

fn a_producer_that_fails_leaves_nothing_under_the_name(case: &Case) {
    case.dst.file("made", "what stood there");
    let command = "head -c 3000000 /dev/urandom; echo no luck today >&2; exit 3";
    let done = made_by(case, command).run();
    done.exits(10)
        .says("no luck today")
        .says("failed with status 3");
    assert_eq!(case.dst.names(), ["made"]);
    assert_eq!(case.dst.read("made"), b"what stood there");
    // A command that does not exist, and one that is killed.
    made_by(case, "/no/such/program")
        .run()
        .exits(10)
        .says("status 127");
    made_by(case, "echo x; kill -9 $$")
        .run()
        .exits(10)
        .says("SIGKILL");
}

/// A file as the input of a command at the destination.
fn into(case: &Case, command: &str) -> Run {
    let run = case.fastcp().arg(case.src("a"));
    let run = match source_is_far(case) || case.way == Way::Here {
        true => run,
        false => run.arg(case.to("")),
    };
    run.args(["--to-command", command])
}

fn a_consumer_that_fails_is_named(case: &Case) {
    case.src.file("a", noise(1, 4 * MIB));
    let done = into(
        case,
        "head -c 100000 > /dev/null; echo disk full >&2; exit 4",
    )
    .run();
    done.exits(10)
        .says("disk full")
        .says("failed with status 4");
    if case.way == Way::Here {
        let told = done
            .stderr
            .lines()
            .filter(|line| line.ends_with("disk full"));
        assert_eq!(told.count(), 1, "{done}");
    }
    // This command reads all of its input and then fails.
    let done = into(case, "cat > /dev/null; echo a bad end >&2; exit 5").run();
    done.exits(10)
        .says("a bad end")
        .says("failed with status 5");
}

fn a_consumer_that_has_enough_is_told_of(case: &Case) {
    case.src.file("a", noise(1, 4 * MIB));
    let done = into(case, "head -c 100000 > /dev/null").run();
    done.exits(10).says("closed the pipe");
    if source_is_far(case) {
        let run = case.fastcp().arg(case.src("a")).arg("-");
        let script = r#""$@" | head -c 1000 > /dev/null"#;
        let done = run
            .under(["bash", "-o", "pipefail", "-c", script, "bash"])
            .run();
        done.exits(8).says("the reader closed the pipe");
    }
}

/// Nobody reads the lines for a while, and there are more of them than may be queued.
fn a_flood_of_words_does_not_hide_why_a_command_failed(case: &Case) {
    let command = "yes chatter | head -n 200000 >&2; echo the cause >&2; exit 7";
    let script = r#""$@" 2>&1 | (sleep 3; cat)"#;
    let run = made_by(case, command);
    let done = run
        .under(["bash", "-o", "pipefail", "-c", script, "bash"])
        .run();
    done.exits(10);
    let said = done.stdout_text();
    let why = said
        .lines()
        .find(|line| line.contains("failed with status 7"));
    let why = why.expect("it is told why");
    assert!(why.contains("the cause"), "{why}");
}

fn a_command_that_writes_nothing_makes_an_empty_file(case: &Case) {
    case.src.file("empty", "");
    made_by(case, "true").run().succeeds();
    assert_eq!(case.dst.read("made"), b"");
}

/// fastcp ignores these signals for itself, and opens as many files as it may.
fn a_command_has_the_signals_and_the_limit_of_the_user(case: &Case) {
    let signals = "for signal in USR1 XFSZ; do trap \"echo $signal\" $signal; \
                   kill -s $signal $$; done";
    // A server on this machine has the limit that the client has raised.
    let (command, expected) = match source_is_far(case) {
        true => (signals.to_owned(), "USR1\nXFSZ\n"),
        false => (format!("{signals}; ulimit -Sn"), "USR1\nXFSZ\n256\n"),
    };
    case.src.file("expected", expected);
    let limited = "ulimit -Sn 256 && exec \"$@\"";
    made_by(case, &command)
        .under(["sh", "-c", limited, "sh"])
        .run()
        .succeeds();
    assert_eq!(case.dst.read("made"), expected.as_bytes());
}

fn zeros_come_out_of_a_pipe_as_zeros(case: &Case) {
    let mut content = noise(1, 6 * MIB);
    content[MIB..3 * MIB + 5].fill(0);
    content[5 * MIB..].fill(0);
    let path = case.src.file("a", &content);
    let from = format!("cat '{}'", path.display());
    made_by(case, &from).run().succeeds();
    assert_same(&path, case.dst.path("made"), Also::Nothing);
    let to = format!("cat > '{}'", case.dst.path("through").display());
    between(case, &from, &to).run().succeeds();
    assert_same(&path, case.dst.path("through"), Also::Nothing);
    // A file with stored zeros, and a file with holes.
    let pieces = [
        (0, &content[..MIB]),
        (3 * MIB as u64, &content[MIB..5 * MIB]),
    ];
    case.src.sparse("sparse", 9 * MIB as u64, &pieces);
    for name in ["a", "sparse"] {
        let run = case.fastcp().arg(case.src(name));
        let run = match source_is_far(case) {
            true => run,
            false => run.arg(case.to("")),
        };
        let to = format!("cat > '{}'", case.dst.path("left").display());
        run.args(["--to-command", &to]).run().succeeds();
        assert_same(case.src.path(name), case.dst.path("left"), Also::Nothing);
    }
}

fn a_stream_does_not_land_in_a_directory(case: &Case) {
    let run = case.fastcp().args(["--from-command", "echo x"]);
    let run = match source_is_far(case) {
        true => run.arg(case.from("")),
        false => run,
    };
    run.arg(case.dst("")).run().exits(2).says("is a directory");
    assert_eq!(case.dst.names(), [""; 0]);
}

fn a_directory_does_not_go_into_a_pipe(case: &Case) {
    case.src.file("tree/a", "a");
    let run = case
        .fastcp()
        .args(["-r", "--to-command", "cat > /dev/null"]);
    let run = run.arg(case.src("tree"));
    let run = match source_is_far(case) {
        true => run,
        false => run.arg(case.to("")),
    };
    run.run().exits(2).says("takes one file or pipe");
}

/// If a child inherits a pipe of fastcp, fastcp cannot see that the pipe's other end was closed.
fn no_child_inherits_a_descriptor(case: &Case) {
    case.src.file("a", noise(1, 4 * MIB));
    let from = format!("cat '{}'", case.src.path("a").display());
    let copies = [
        between(case, &from, "cat > /dev/null"),
        case.copying(&["--fsync", "--drop-cache"], "a", "a"),
        case.fastcp()
            .arg("--also")
            .arg(case.dst("b"))
            .arg(case.src("a"))
            .arg(case.dst("c")),
    ];
    let mut seen = BTreeSet::new();
    for copy in copies {
        let run = copy.args(["-l", "12000"]).start();
        while !procs::ended_within(run.pid(), Duration::from_millis(5)) {
            for process in procs::marked(case.mark()) {
                let (leaks, all) = process.descriptors();
                assert!(leaks.is_empty(), "{leaks:?} of {}", process.line);
                seen.extend(all);
            }
        }
        run.wait().succeeds();
    }
    let has = |what: &str| seen.iter().any(|seen| seen.contains(what));
    assert!(has("pipe") && has("socket") && has(".part"), "{seen:?}");
}

fn an_empty_pipe_leaves_a_file_with_content_alone(case: &Case) {
    case.src.file("empty", "");
    case.src.file("full", "good");
    // A remote source cannot be standard input, so it is a FIFO.
    let fifo = case.src.path("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("make a FIFO");
    let piped = |from: &str, flags: &[&str]| {
        if case.way == Way::Push || case.way == Way::Here {
            let run = case.fastcp().args(flags).arg("-").arg(case.dst("a"));
            return fed(run, &case.src.path(from)).run();
        }
        let script = "cat -- \"$0\" > \"$1\" & shift; \"$@\"; code=$?; wait; exit $code";
        let run = case.fastcp().args(flags);
        let run = run.arg(case.src("fifo")).arg(case.dst("a"));
        let from = case.src.path(from);
        run.under([
            "sh".as_ref(),
            "-c".as_ref(),
            script.as_ref(),
            from.as_os_str(),
            fifo.as_os_str(),
        ])
        .run()
    };
    // First the destination does not exist, then it is empty.
    for _ in 0..2 {
        piped("empty", &[]).succeeds();
        assert_eq!(case.dst.read("a"), b"");
    }
    piped("full", &[]).succeeds();
    for flags in [&[][..], &["--inplace"]] {
        piped("empty", flags)
            .exits(11)
            .says("the pipe was empty")
            .says("not replaced (--allow-empty");
        assert_eq!(case.dst.read("a"), b"good");
        assert_eq!(case.dst.names(), ["a"]);
    }
    piped("empty", &["--allow-empty"]).succeeds();
    assert_eq!(case.dst.read("a"), b"");
    // Here the command's exit status shows that the empty output is intended.
    piped("full", &[]).succeeds();
    case.dst.file("made", "old");
    made_by(case, "true").run().succeeds();
    assert_eq!(case.dst.read("made"), b"");
}

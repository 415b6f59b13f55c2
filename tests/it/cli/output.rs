//! Standard output and standard error as destinations of results and of copies.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;

use crate::support::procs::until;
use crate::support::run::fastcp_binary;
use crate::support::*;

ways! { here =>
    a_result_that_cannot_be_written_fails,
    a_closed_standard_output_is_told_before_the_copy,
    other_names_of_closed_streams_are_no_empty_files,
}

ways! { local_push =>
    a_record_of_several_copies_that_cannot_be_written_fails,
}

ways! { here, local_pull =>
    other_names_of_standard_streams_mean_the_streams,
    a_shells_name_of_a_pipe_means_the_pipe,
    a_missing_source_is_the_only_error_where_nothing_can_come,
}

ways! { local_push => a_standard_stream_of_the_far_end_is_no_destination }

/// `run` with this shell redirection.
fn redirected(run: Run, how: &str) -> Run {
    run.under(["bash", "-c", &format!("exec \"$@\" {how}"), "bash"])
}

fn a_result_that_cannot_be_written_fails(case: &Case) {
    if !Path::new("/dev/full").exists() {
        return skip("/dev/full");
    }
    case.src.file("a", "x");
    let told = "standard output: cannot write: no space left on device";
    let runs = [
        case.copying(&["--json"], "a", "a"),
        case.bare().arg("--version"),
        case.bare().arg("--help"),
    ];
    for run in runs {
        redirected(run, ">/dev/full").run().exits(8).says(told);
    }
    // The copy itself is complete.
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    let list = case.copy(&["--digests", "/dev/full"], "a", "a");
    list.exits(8).says("no space left");
    case.copy(&["--digests", "-"], "a", "a")
        .exits(2)
        .says("./-");
    // The exit code of a failed copy takes precedence over that of a lost record.
    let run = case.copying(&["--json"], "none", "a");
    redirected(run, ">/dev/full").run().exits(9).says(told);
}

fn a_closed_standard_output_is_told_before_the_copy(case: &Case) {
    case.src.file("a", "x");
    let runs = [
        case.copying(&["--json"], "a", "a"),
        case.fastcp().arg(case.src("a")).arg("/dev/stdout"),
        case.bare().arg("--version"),
        case.bare().args(["--probe", "--json"]),
    ];
    for run in runs {
        let done = redirected(run, ">&-").run();
        done.exits(8).says("standard output is closed");
    }
    assert!(!case.dst.has("a"), "nothing was to be copied");
}

fn a_record_of_several_copies_that_cannot_be_written_fails(case: &Case) {
    case.src.file("a", "x");
    let other = format!("other:{}", case.dst.path("b").display());
    let run = case.copying(&["--json", "--also", &other], "a", "a");
    let done = redirected(run.clone(), ">/dev/full").run();
    done.exits(8).says("standard output: cannot write");
    let done = run.run();
    assert_eq!(done.succeeds().ends().len(), 2, "{done}");
}

fn other_names_of_standard_streams_mean_the_streams(case: &Case) {
    let content = noise(1, MIB);
    case.src.file("a", &content);
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let run = || case.fastcp().arg(case.src("a")).arg(name);
        let done = run().run();
        done.succeeds();
        assert!(done.stdout == content, "{name}");
        let file = case.dst.path("out");
        redirected(run(), &format!(">'{}'", file.display()))
            .run()
            .succeeds();
        assert_same(case.src.path("a"), &file, Also::Nothing);
    }
    for name in ["/dev/stderr", "/dev/fd/2"] {
        let run = case.fastcp().arg(case.src("a")).arg(name);
        // Any message that fastcp wrote there would be among the data.
        let done = redirected(run, "2>&1 >/dev/null").run();
        done.succeeds();
        assert!(done.stdout == content, "{name}");
    }
}

fn a_shells_name_of_a_pipe_means_the_pipe(case: &Case) {
    case.src.file("a", noise(1, MIB));
    let file = case.dst.path("out");
    let run = case.fastcp().arg(case.src("a"));
    let line = format!(
        "\"$@\" >(cat >'{0}') && wait $! && cat '{0}' >/dev/null",
        file.display()
    );
    run.under(["bash", "-c", &line, "bash"]).run().succeeds();
    assert_same(case.src.path("a"), &file, Also::Nothing);
}

fn a_missing_source_is_the_only_error_where_nothing_can_come(case: &Case) {
    let done = case.fastcp().arg(case.src("none")).arg("-").run();
    done.exits(9).says("no such file or directory");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    assert!(done.stdout.is_empty());
}

/// At the server, these streams carry the protocol.
fn a_standard_stream_of_the_far_end_is_no_destination(case: &Case) {
    case.src.file("a", noise(1, MIB));
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let done = case.fastcp().arg(case.src("a")).arg(case.to(name)).run();
        done.fails().exits(8);
    }
}

fn other_names_of_closed_streams_are_no_empty_files(case: &Case) {
    case.src.file("tree/a", "x");
    for name in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        let run = case.fastcp().arg(name).arg(case.dst("new"));
        let done = redirected(run, "<&-").run();
        done.exits(9).says("standard input is closed");
        let lists = [
            "--exclude-from",
            "--files-from",
            "--also-from",
            "--check=LIST",
        ];
        for option in lists {
            let run = match option {
                "--check=LIST" => case.fastcp().arg(format!("--check={name}")),
                _ => case.fastcp().args(["-r", option, name, "tree"]),
            };
            let done = redirected(run.arg(case.dst("new")), "<&-").run();
            done.exits(2).says("standard input is closed");
        }
    }
    assert!(case.dst.names().is_empty());
    for name in ["/dev/stderr", "/dev/fd/2"] {
        let run = case.fastcp().arg(case.src("tree/a")).arg(name);
        redirected(run, "2>&-").run().exits(8);
    }
}

/// Another program may have made the terminal or the pipe so.
#[test]
fn messages_arrive_whole_at_a_stderr_that_does_not_block() {
    let long = "x".repeat(5000);
    for words in [
        vec!["a".to_owned(), format!("rsync://{long}")],
        vec![format!("--{long}")],
    ] {
        let (mut reader, writer) = std::io::pipe().expect("make a pipe");
        // So that a short message fills it: clap compares each word with every option's name.
        let size = fcntl_setpipe_size(&reader, 4096).expect("set its size");
        fcntl_setfl(&writer, OFlags::NONBLOCK).expect("make it non-blocking");
        let child = Command::new(fastcp_binary())
            .args(words)
            .stdin(Stdio::null())
            .stderr(writer)
            .spawn();
        let mut child = child.expect("run fastcp");
        until("the pipe is full", || {
            let waits = ioctl_fionread(&reader).expect("its content") >= size as u64;
            let has_ended = child.try_wait().expect("look at it").is_some();
            (waits || has_ended).then_some(())
        });
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("read the message");
        assert_eq!(child.wait().expect("wait").code(), Some(2));
        assert!(text.contains(&long), "{} bytes", text.len());
        assert!(text.ends_with('\n'));
    }
}

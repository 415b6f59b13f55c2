//! Tests of the test support: a comparison that sees no difference would pass every test.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::support::pty::Screen;
use crate::support::tree::one_of_everything;
use crate::support::*;

#[test]
fn the_comparer_sees_each_kind_of_difference() {
    let dir = tempfile::tempdir().expect("a directory");
    let want = Dir(dir.path().join("want"));
    type Change = fn(&Dir);
    let changes: [(&str, Change); 7] = [
        ("a byte", |d| d.append("small", "x")),
        ("a file more", |d| drop(d.file("more", ""))),
        ("a file less", |d| {
            std::fs::remove_file(d.path("empty")).expect("remove");
        }),
        ("another target", |d| {
            std::fs::remove_file(d.path("link to dir")).expect("remove");
            d.link("link to dir", "elsewhere");
        }),
        ("a broken hard link", |d| {
            std::fs::remove_file(d.path("sub/second name")).expect("remove");
            d.file("sub/second name", "a few bytes\n");
        }),
        ("another type", |d| {
            std::fs::remove_file(d.path("empty")).expect("remove");
            d.dir("empty");
        }),
        ("an empty directory less", |d| {
            std::fs::remove_dir(d.path("empty dir")).expect("remove");
        }),
    ];
    one_of_everything(&want);
    for (index, (what, change)) in changes.into_iter().enumerate() {
        let got = Dir(dir.path().join(index.to_string()));
        one_of_everything(&got);
        assert_same(&want.0, &got.0, Also::HardLinks);
        change(&got);
        let faults = Tree::read(&want.0).differences(&Tree::read(&got.0), Also::HardLinks);
        assert!(!faults.is_empty(), "{what} was not seen");
    }
}

#[test]
fn holes_and_zeros_are_one_content_but_not_one_allocation() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = Dir(dir.path().to_owned());
    let written = dir.file("written", vec![0; 4 * MIB]);
    let sparse = dir.sparse("sparse", 4 * MIB as u64, &[]);
    assert_same(&written, &sparse, Also::Nothing);
    assert!(dir.meta("sparse").blocks() < dir.meta("written").blocks());
    dir.sparse("other", 4 * MIB as u64, &[(3 * MIB as u64, b"x")]);
    let faults = Tree::read(&sparse).differences(&Tree::read(dir.path("other")), Also::Nothing);
    assert_eq!(faults.len(), 1);
}

#[test]
fn a_hang_is_killed_and_told() {
    let hang = std::panic::catch_unwind(|| {
        Run::new("sleep", "/")
            .arg("1000")
            .limit(Duration::from_millis(50))
            .run()
    });
    let message = *hang
        .expect_err("it hangs")
        .downcast::<String>()
        .expect("panics with a message");
    assert!(message.contains("sleep 1000"), "{message}");
}

#[test]
fn a_screen_shows_what_a_terminal_would() {
    let mut screen = Screen::new(10);
    screen.draw(b"one\r\n12345678\rab\r\n\x1b[1A\x1b[2Knew\x1b[K");
    assert_eq!(screen.text(), ["one", "new"]);
    assert!(!screen.wrapped);
    screen.draw(b"\r12345678901");
    assert!(screen.wrapped);
}

/// A login runs the given command, with the case's PATH and home.
fn the_host_lets_us_in(case: &Case) {
    let host = case.host();
    let ssh = |command: &str| {
        Run::new("ssh", "/")
            .arg("-F")
            .arg(host.ssh_config())
            .args(["far", command])
            .run()
    };
    let done = ssh("command -v fastcp; pwd; printf %s \"it's\"");
    done.succeeds();
    let want = format!(
        "{}\n{}\nit's",
        env!("CARGO_BIN_EXE_fastcp"),
        case.home.0.display()
    );
    assert_eq!(done.stdout_text(), want);
    host.set_login(&Login {
        path: "/usr/bin:/bin".into(),
        before: "echo noise".into(),
        ..Login::default()
    });
    let done = ssh("command -v fastcp");
    assert_eq!(done.stdout_text(), "noise\n");
    assert_eq!(host.logins(), 2);
    host.wait_for_logins();
}

ways! { push => the_host_lets_us_in }

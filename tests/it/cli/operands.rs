//! Parsing of operands: homes, URIs, addresses, colons, globs, and remote operands that look local.

use std::net::{IpAddr, Ipv6Addr};

use crate::support::host::{Host, Lacks, user};
use crate::support::*;

ways! { push, pull =>
    a_relative_path_is_relative_to_the_remote_home,
    an_scp_uri_names_user_host_and_port,
    an_ipv6_address_goes_in_brackets,
    a_local_name_with_a_colon_starts_with_a_dot,
}

ways! { push, here =>
    a_destination_that_was_meant_to_be_remote_is_refused,
    the_current_directory_is_an_operand,
}

ways! { pull, local_pull =>
    globs_are_expanded_on_the_far_side,
    a_glob_that_matches_nothing_is_a_name,
}

fn a_relative_path_is_relative_to_the_remote_home(case: &Case) {
    let push = case.way == Way::Push;
    let remote = &case.home;
    let (near, far) = if push {
        (&case.src, remote)
    } else {
        (&case.dst, remote)
    };
    near.dir(".");
    far.dir("sub");
    for path in ["file", "sub/file", "~/tilde", "~/sub/../dots", "./dot"] {
        let operand = format!("far:{path}");
        let name = path.trim_start_matches("~/");
        let content = format!("content of {path}");
        let run = if push {
            near.file("a", &content);
            case.fastcp().arg(near.path("a")).arg(&operand)
        } else {
            far.file(name, &content);
            case.fastcp().arg(&operand).arg(near.path("a"))
        };
        run.run().succeeds();
        let copy = if push { far.read(name) } else { near.read("a") };
        assert_eq!(copy, content.as_bytes(), "{path}");
    }
    if push {
        near.file("into home", "home");
        for operand in ["far:", "far:~", "far:."] {
            case.fastcp()
                .arg(near.path("into home"))
                .arg(operand)
                .run()
                .succeeds();
            assert_eq!(far.read("into home"), b"home", "{operand}");
            std::fs::remove_file(far.path("into home")).expect("remove");
        }
    }
}

fn an_scp_uri_names_user_host_and_port(case: &Case) {
    let authority = format!("{}@127.0.0.1:{}", user(), case.host().port());
    case.src.file("a", "one");
    case.home.file("at home", "two");
    case.home.file("per%cent", "three");
    let absolute =
        |dir: &Dir, name: &str| format!("scp://{authority}/{}", dir.path(name).display());
    let (from, to) = match case.way {
        Way::Push => (case.src("a"), absolute(&case.dst, "b").into()),
        _ => (absolute(&case.src, "a").into(), case.dst("b")),
    };
    case.fastcp().arg(from).arg(to).run().succeeds();
    assert_eq!(case.dst.read("b"), b"one");

    let relative = format!("scp://{authority}/at%20home");
    let run = match case.way {
        Way::Push => case.fastcp().arg(case.src.path("a")).arg(relative),
        _ => case.fastcp().arg(relative).arg(case.dst.path("c")),
    };
    run.run().succeeds();
    match case.way {
        Way::Push => assert_eq!(case.home.read("at home"), b"one"),
        _ => assert_eq!(case.dst.read("c"), b"two"),
    }
}

fn an_ipv6_address_goes_in_brackets(case: &Case) {
    let ip = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let host = match Host::start_at(
        (ip, 0).into(),
        case.scratch.dir("six"),
        &case.home.0,
        case.mark(),
    ) {
        Ok(host) => host,
        Err(Lacks(_)) => return skip("IPv6 on the loopback"),
    };
    let far = |path: std::path::PathBuf| format!("{}@[::1]:{}", user(), path.display());
    let file = case.src.file("a", "six");
    let (from, to) = match case.way {
        Way::Push => (file.display().to_string(), far(case.dst.path("b"))),
        _ => (far(file), case.dst.path("b").display().to_string()),
    };
    case.bare()
        .arg("-F")
        .arg(host.ssh_config())
        .arg("-P")
        .arg(host.port().to_string())
        .args([from, to])
        .run()
        .succeeds();
    assert_eq!(case.dst.read("b"), b"six");
}

fn a_local_name_with_a_colon_starts_with_a_dot(case: &Case) {
    case.src.file("a:b", "colon");
    case.src.file("far:x", "colon too");
    let run = |name: &str| match case.way {
        Way::Push => case
            .fastcp()
            .cwd(&case.src.0)
            .arg(format!("./{name}"))
            .arg(case.dst("")),
        _ => case
            .fastcp()
            .cwd(&case.dst.0)
            .arg(case.src(name))
            .arg(format!("./{name}")),
    };
    for name in ["a:b", "far:x"] {
        run(name).run().succeeds();
        assert_eq!(case.dst.read(name), case.src.read(name));
    }
    // A slash before the colon also makes the name local.
    let file = case.src.path("a:b");
    case.fastcp()
        .arg(&file)
        .arg(case.dst.path("abs:olute"))
        .run()
        .succeeds();
    assert_eq!(case.dst.read("abs:olute"), b"colon");
}

fn a_destination_that_was_meant_to_be_remote_is_refused(case: &Case) {
    let file = case.src.file("a", "one");
    let run = |dest: &str| case.fastcp().cwd(&case.dst.0).arg(&file).arg(dest).run();
    run("someone@somewhere")
        .exits(2)
        .says("someone@somewhere:")
        .says("./someone@somewhere");
    if case.way == Way::Push {
        run("far").exits(2).says("far:").says("./far");
    }
    assert!(case.dst.names().is_empty());
    run("./far").succeeds();
    case.dst.dir("someone@somewhere");
    run("someone@somewhere").succeeds();
    assert_eq!(case.dst.read("someone@somewhere/a"), b"one");
}

fn the_current_directory_is_an_operand(case: &Case) {
    case.src.file("tree/sub/a", "one");
    let here = case.src.path("tree");
    case.fastcp()
        .cwd(&here)
        .args(["-r", "."])
        .arg(case.dst("new"))
        .run()
        .succeeds();
    assert_same(&here, case.dst.path("new"), Also::Nothing);
    case.dst.dir("there");
    case.fastcp()
        .cwd(&here)
        .args(["-r", "."])
        .arg(case.dst("there"))
        .run()
        .succeeds();
    assert_same(&here, case.dst.path("there"), Also::Nothing);
}

fn globs_are_expanded_on_the_far_side(case: &Case) {
    for name in [
        "a.txt",
        "b.txt",
        "c.log",
        ".hidden.txt",
        "with space.txt",
        "sub/d.txt",
    ] {
        case.src.file(name, name);
    }
    let pulls: [(&str, &[&str]); 5] = [
        ("*.txt", &["a.txt", "b.txt", "with space.txt"]),
        ("[ab].*", &["a.txt", "b.txt"]),
        ("?.log", &["c.log"]),
        ("s*/d.???", &["d.txt"]),
        (".h*", &[".hidden.txt"]),
    ];
    for (index, (pattern, names)) in pulls.into_iter().enumerate() {
        let into = case.dst.dir(index.to_string());
        case.copy(&[], pattern, index.to_string()).succeeds();
        assert_eq!(into.names(), names, "{pattern}");
    }
}

fn a_glob_that_matches_nothing_is_a_name(case: &Case) {
    case.src.file("[x]", "literally");
    case.copy(&[], "[x]", "").succeeds();
    assert_eq!(case.dst.read("[x]"), b"literally");
    case.copy(&[], "*.none", "").exits(9).says("*.none");
    assert_eq!(case.dst.names(), ["[x]"]);
}

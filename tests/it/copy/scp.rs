//! `--scp`: the trees and the exit codes of scp, for command lines as they stand in scripts.
//!
//! Each line runs twice in equal trees, by the machine's scp and by fastcp. The tables also list the
//! lines for which the results cannot be equal, each with the reason.

use crate::support::scp::{Program, ScpTrees};
use crate::support::*;

ways! { push =>
    uploads,
    downloads,
    copies_between_hosts,
    copies_on_this_machine_and_lines_that_scp_refuses,
    copies_of_a_user_who_may_not_do_everything,
    under_the_name_scp,
}

/// A line, and why its results differ from scp's.
type Row = (&'static str, Option<&'static str>);

/// Lines with equal results.
macro_rules! same {
    ($($line:literal),* $(,)?) => { &[$(($line, None)),*] };
}

#[track_caller]
fn compare(case: &Case, rows: &[Row]) {
    compare_under(case, rows, Vec::new());
}

#[track_caller]
fn compare_under(case: &Case, rows: &[Row], under: Vec<String>) {
    let Some(trees) = ScpTrees::new(case, under) else {
        return;
    };
    let wrong = rows.iter().filter_map(|(line, reason)| {
        match (trees.difference(line, Program::Flag), reason) {
            (None, None) | (Some(_), Some(_)) => None,
            (Some(difference), None) => Some(difference),
            (None, Some(reason)) => Some(format!("{line}\n    is equal now, but for: {reason}")),
        }
    });
    let wrong: Vec<_> = wrong.collect();
    let (lines, all) = (wrong.join("\n"), rows.len());
    assert!(
        wrong.is_empty(),
        "{} of {all} differ:\n{lines}",
        wrong.len()
    );
}

const UPLOADS: &[Row] = same![
    "scp a far:",
    "scp a far:.",
    "scp a far:new",
    "scp a far:dst",
    "scp a far:dst/",
    "scp a far:dst/new",
    "scp a far:new/",
    "scp a far:no/such/new",
    "scp a far:{far}/dst/new",
    "scp a 'far:~'",
    "scp a 'far:~/dst'",
    "scp a {user}@far:dst",
    "scp a scp://{user}@127.0.0.1:{port}/dst/new",
    "scp a scp://far/{far}/dst",
    "scp -P {port} a far:new",
    "scp -o Port={port} -o User={user} a far:new",
    "scp -qCB4 -l 80000 -X nrequests=4 -c aes128-ctr a far:new",
    "scp -Tsr a far:new",
    "scp -X buffer=32k a far:new",
    "scp -- a far:new",
    "scp 'a b' far:",
    "scp a 'far:new name'",
    "scp ./co:lon far:",
    "cp a ./-; scp - far:",
    "scp empty far:new",
    "scp empty far:old",
    "scp big far:new",
    "scp big far:old",
    // Modes.
    "scp b far:new",
    "scp ro far:new",
    "scp wide far:new",
    "scp run far:new",
    "scp suid far:new",
    "scp -p a far:new",
    "scp -p ro far:new",
    "scp -p wide far:new",
    "scp -p suid far:new",
    "umask 077; scp wide far:new",
    // Existing files are written in place.
    "scp a far:old",
    "scp -p run far:old",
    "scp a far:oldlink",
    "scp a far:newlink",
    "scp a far:oldhard",
    "exec 9>> ../far/old; scp a far:old",
    "cp /bin/sleep ../far/old; ../far/old 9 & scp a far:old; code=$?; kill %1; exit $code",
    "scp -l 4000 big far:old & scp -l 4000 big far:old && wait $!",
    // Several sources.
    "scp a b far:dst",
    "scp a b far:dst/",
    "scp a b far:old",
    "scp a b far:no/such",
    "scp logs/*.log far:dst",
    "scp logs/*.none far:dst",
    "cp b dir/a; scp a dir/a far:dst",
    "scp gone far:",
    "scp '' far:",
    "scp a gone b far:dst",
    "scp gone a far:dst",
    "scp a dir b far:dst",
    // Directories.
    "scp dir far:",
    "scp -r dir far:",
    "scp -r dir far:new",
    "scp -r dir far:new/",
    "scp -r dir far:dst",
    "scp -r dir far:a",
    "scp -r dir far:no/such",
    "scp -r dir/ far:dst",
    "scp -r dir/ far:new",
    "scp -r dir/. far:dst",
    "cd dir && scp -r . far:new",
    "cd dir && scp -r . far:dst",
    "cd dir/sub && scp -r .. far:new",
    "scp -r dir a far:dst",
    "scp -rp dir far:new",
    "scp -r priv far:new",
    "scp -r share far:new",
    "scp -rp share far:new",
    "chmod 700 ../far/share; scp -r share far:",
    "chmod 500 dir/sub; scp -r dir far:new",
    "scp -r hard far:new",
    "mkdir ../far/dst/links; scp -r dir share far:dst",
    // Links and special files.
    "scp filelink far:",
    "scp -r filelink far:new",
    "scp dirlink far:",
    "scp -r dirlink far:new",
    "scp gonelink far:",
    "scp -r links far:new",
    "scp -rp links/ far:dst",
    "scp -r special far:new",
    "scp /dev/null far:new",
    "scp /dev/stdin far:new < a",
    "echo x | scp /dev/stdin far:new",
    "scp <(echo x) far:new",
    "scp -r dir far:newlink",
    "scp a b far:newlink",
    "ln -s nowhere ../far/dst/share; scp -r share far:dst",
    // Hosts that do not let us in.
    "scp -o BatchMode=yes a nowhere.invalid:",
    "scp a u@:",
    "scp -- a -h:",
    "scp -- -h:a a far:",
    "scp -B -i /no/key -o IdentitiesOnly=yes -o IdentityFile=/no/key -F none a far:",
];

fn uploads(case: &Case) {
    let unequal: &[Row] = &[
        (
            "scp a b far:missing",
            Some("scp gives the new directory the mode of the first file and u+rwx: 0744"),
        ),
        (
            "scp ../far/old far:old",
            Some("fastcp copies no file onto itself, which another process may be writing"),
        ),
        (
            "cd dir && scp -r .. far:dst",
            Some("scp writes to dst/.., which is not below the destination"),
        ),
        (
            "ln -s stays ../far/dst/dir/two; cp a dir/two; scp -r dir far:dst",
            Some("fastcp writes through no link that the user did not name"),
        ),
        (
            "scp -r hard/. far:; ln -f ../far/one ../far/two; scp -r hard/. far:",
            Some("fastcp does not write one file twice under two names"),
        ),
    ];
    compare(case, &[UPLOADS, unequal].concat());
}

const DOWNLOADS: &[Row] = same![
    "scp far:a .",
    "scp far:a new",
    "scp far:a dst",
    "scp far:a dst/",
    "scp far:a dst/new",
    "scp far:a new/",
    "scp far:a no/such/new",
    "scp far:a ''",
    "scp far:{far}/a .",
    "scp 'far:~/a' new",
    "scp {user}@far:a new",
    "scp scp://{user}@127.0.0.1:{port}/a new",
    "scp scp://far/{far}/a new",
    "scp 'far:a b' .",
    "scp 'far:a\\ b' .",
    "scp far:co:lon .",
    "scp far:empty old",
    "scp far:big new",
    "scp far:a /dev/stdout > new",
    "scp far:a /dev/null",
    "scp far:a -",
    // Modes.
    "scp far:b new",
    "scp far:ro new",
    "scp far:wide new",
    "scp far:suid new",
    "scp -p far:ro new",
    "scp -p far:suid new",
    "scp -p far:wide new",
    "umask 077; scp far:wide new",
    "scp far:/proc/version new",
    "scp -p far:/proc/version new",
    // Existing files.
    "scp far:a old",
    "scp -p far:run old",
    "scp far:a oldlink",
    "scp far:a newlink",
    "scp far:a oldhard",
    "scp -l 4000 far:big new & scp -l 4000 far:big new && wait $!",
    // Several sources.
    "scp far:a far:b dst",
    "scp far:a far:b missing",
    "scp far:a far:b old",
    "scp far:a far:gone far:b dst",
    "scp far:gone .",
    "scp far:a far:dir/one other:b dst",
    "scp other:a far:a dst",
    "scp far:a b dst",
    "scp far:a u@:b far:b dst",
    "scp -- -h:a far:b dst",
    "scp a far:b gone dst",
    "scp -o BatchMode=yes far:a nowhere.invalid:b far:b dst",
    // Patterns.
    "scp 'far:logs/*.log' dst",
    "scp 'far:logs/*.log' missing",
    "scp 'far:logs/*.log' old",
    "scp 'far:logs/?.txt' new",
    "scp 'far:logs/[xy].log' dst",
    "scp 'far:logs/*.none' dst",
    "scp 'far:logs/*.log' far:a dst",
    "scp 'far:*' dst",
    "scp -r 'far:dir*' dst",
    "scp -r 'far:di*/' dst",
    // Directories.
    "scp far:dir .",
    "scp -r far:dir .",
    "scp -r far:dir new",
    "scp -r far:dir new/",
    "scp -r far:dir dst",
    "scp -r far:dir a",
    "scp -r far:dir no/such",
    "scp -r far:dir/ dst",
    "scp -r far:dir/ new",
    "scp -r far:dir/. dst",
    "scp far:a/ new",
    "rm -r ../far/[!db]* ../far/d[!i]* ../far/*link; scp -r far: dst",
    "rm -r ../far/[!db]* ../far/d[!i]* ../far/*link; scp -r 'far:~' new",
    "scp -rp far:dir new",
    "scp -r far:priv new",
    "scp -r far:share new",
    "scp -rp far:share new",
    "chmod 1777 ../far/share; scp -r far:share new",
    "chmod 1777 ../far/share; scp -rp far:share new",
    "chmod 1777 ../far/share; scp -r far:share .",
    "chmod 1777 share; scp -r share far:new",
    "chmod 700 share; scp -rp far:share .",
    "chmod 500 ../far/dir/sub; scp -r far:dir new",
    "scp -r far:hard new",
    // Links and special files.
    "scp far:filelink .",
    "scp far:dirlink .",
    "scp -r far:dirlink new",
    "scp far:gonelink new",
    "scp -r far:links new",
    "scp -r far:special new",
    "scp -r far:dir newlink",
    "ln -s nowhere dst/share; scp -r far:share dst",
    "ln -s nowhere dst/share; scp -r far:share far:b dst",
    "scp far:fifo new",
    "scp far:/dev/null new",
    // Options after the operands are operands.
    "scp -o BatchMode=yes far:a -q .",
    "scp -o BatchMode=yes -o ConnectTimeout=5 far:a -P 2222 .",
    "scp -o BatchMode=yes nowhere.invalid:a .",
];

fn downloads(case: &Case) {
    let unequal: &[Row] = &[
        (
            "scp 'far:logs/{x,y}.log' dst",
            Some("scp expands no braces, which fastcp does"),
        ),
        (
            "scp far:a /dev/stdout | cat > new",
            Some("scp seeks in what it writes, and so writes nothing into a pipe"),
        ),
    ];
    compare(case, &[DOWNLOADS, unequal].concat());
}

const BETWEEN: &[Row] = same![
    "scp far:a other:dst",
    "scp -3 far:a other:dst/new",
    "scp -3p far:suid other:new",
    "scp far:ro other:new",
    "scp far:a other:old",
    "scp far:a far:b other:dst",
    "scp far:a far:b other:missing",
    "scp far:gone other:dst",
    "scp far:gone far:a other:dst",
    "scp far:a other:no/such/new",
    "scp a far:b other:dst",
    "scp far:b gone other:dst",
    "scp 'far:logs/*.log' other:dst",
    "scp -r far:dir other:new",
    "scp -r far:dir/ other:dst",
    "scp -r far:share other:new",
    "scp -r far:links other:new",
    "scp -o BatchMode=yes far:a nowhere.invalid:",
    "scp -o BatchMode=yes nowhere.invalid:a far:",
    "scp -r far:dir other:newlink",
];

fn copies_between_hosts(case: &Case) {
    let unequal: &[Row] = &[(
        "scp 'far:logs/*.log' other:missing",
        Some("scp writes all matches into one file"),
    )];
    compare(case, &[BETWEEN, unequal].concat());
}

const LOCAL: &[Row] = same![
    "scp a new",
    "scp a old",
    "scp -p suid new",
    "scp a b dst",
    "scp a b missing",
    "scp a gone b dst",
    "scp gone new",
    "scp dir new",
    "scp -r dir new",
    "scp -rp dir dst",
    "scp -r links new",
    "scp a a",
    "scp /dev/null new",
    "scp <(echo x) new",
    "scp a new -q",
    "scp",
    "scp a",
    "scp -z a new",
    "scp -P",
    "scp -P 0 a new",
    "scp -P x a new",
    "scp -l 0 a new",
    "scp -X other=1 a new",
    "scp -X buffer=x a new",
    "scp -X buffer=0 a new",
    "scp -X buffer=1k a new",
    "scp -X buffer=256K a new",
    "scp -X buffer=257K a new",
    "scp -X buffer=1M a new",
    "scp -X nrequests=0 a new",
    "scp -X nrequests=x a new",
    "scp -X nrequests=262144 a new",
    "scp -X nrequests=262145 a new",
    "scp -1 a new",
    "scp -2 a new",
    "scp -n a new",
    "scp --json a new",
];

fn copies_on_this_machine_and_lines_that_scp_refuses(case: &Case) {
    compare(case, LOCAL);
}

fn copies_of_a_user_who_may_not_do_everything(case: &Case) {
    let rows: &[Row] = same![
        "scp a far:oldro",
        "scp far:a oldro",
        "scp a far:theirs",
        "scp far:a theirs",
        "chmod 555 ../far/dst; scp a far:dst",
        "chmod 555 ../far/dst; scp b far:dst",
        "chmod 555 dst; scp far:a dst",
        "chmod 000 b; scp a b wide far:dst",
        "chmod 000 ../far/b; scp far:a far:b far:wide dst",
        "chmod 000 ../far/dir/one; scp -r far:dir new",
    ];
    compare_under(case, rows, limits::without_powers());
}

fn under_the_name_scp(case: &Case) {
    let Some(trees) = ScpTrees::new(case, Vec::new()) else {
        return;
    };
    for line in [
        "scp -r dir/ links far:dst",
        "scp -rp far:dir/ far:gone dst",
        "scp -z",
        "scp --json a new",
        "scp --recursive dir new",
    ] {
        assert_eq!(trees.difference(line, Program::Link), None);
    }
    let link = case.scratch.path("bin/scp");
    let ask = |words: &[&str]| Run::new(&link, "/").args(words).run();
    assert!(
        ask(&["--version"])
            .succeeds()
            .stdout_text()
            .starts_with("fastcp ")
    );
    // scp of another host starts this one, and reads its error.
    let done = ask(&["-r", "-t", "."]);
    done.exits(1).says("the old protocol of scp -O");
    assert!(done.stdout.starts_with(b"\x02scp: "), "{done}");
    case.bare()
        .args(["-r", "--scp", "a", "h:"])
        .run()
        .exits(2)
        .says("--scp must be the first argument");
}

//! One source to several destinations: it is read once and compressed once, and each destination
//! fails independently.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::process::Signal;

use crate::support::procs::{self, until};
use crate::support::pty::{Screen, Terminal};
use crate::support::slow::{held_back, let_go};
use crate::support::*;

ways! { push, local_push =>
    a_tree_lands_on_each_of_several_hosts_and_in_a_directory_here,
    each_host_fails_on_its_own_and_has_its_line,
    a_host_that_has_it_already_gets_nothing,
    each_destination_has_a_list_of_digests,
    an_interrupt_ends_all,
}

ways! { push =>
    a_host_that_cannot_be_reached_holds_nobody,
}

ways! { local_push =>
    a_terminal_shows_each_destination_and_its_end,
    several_hosts_cost_one_reading_and_one_compression,
    small_files_are_read_and_compressed_once_too,
    a_host_that_stands_still_holds_nobody,
    memory_stays_within_its_bound_for_all_together,
    the_list_of_hosts_may_be_a_file,
    a_pipe_goes_to_several_hosts_as_with_tee,
    a_fifo_goes_to_several_hosts_under_its_name,
    a_command_runs_on_each_host,
    a_host_whose_connection_is_lost_comes_back_and_the_others_go_on,
    a_source_that_changes_is_read_again_for_each,
    what_differs_at_each_reading_is_not_shared,
}

const HOSTS: [&str; 3] = ["one", "two", "three"];

/// fastcp with a configuration in which every host name, also `far`, means the case's host.
fn fastcp(case: &Case) -> Run {
    let run = case.fastcp();
    if case.way != Way::Push {
        return run;
    }
    let config = std::fs::read_to_string(case.host().ssh_config()).expect("read a configuration");
    let config = config.replacen("Host far", "Host far one two three", 1);
    let closed = "Host closed\n\tHostName 127.0.0.1\n\tPort 1\n";
    let path = case.scratch.file("ssh_config", format!("{closed}{config}"));
    run.arg("-F").arg(path)
}

/// `rel` below the destination, on `host`.
fn on(case: &Case, host: &str, rel: &str) -> String {
    format!("{host}:{}", case.dst.path(rel).display())
}

/// A copy of `src` to each host, under the host's name.
fn to_all(case: &Case, flags: &[&str], src: &str) -> Run {
    to_each(case, fastcp(case).args(flags).arg(case.src(src)))
}

/// The same for any source.
fn to_each(case: &Case, run: Run) -> Run {
    let [first, others @ ..] = HOSTS;
    let run = run.arg(on(case, first, first));
    others
        .iter()
        .fold(run, |run, host| run.arg("--also").arg(on(case, host, host)))
}

#[track_caller]
fn assert_all(case: &Case, src: &str) {
    for host in HOSTS {
        assert_same(case.src.path(src), case.dst.path(host), Also::Nothing);
    }
}

fn a_tree_lands_on_each_of_several_hosts_and_in_a_directory_here(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("big", prose(1, 5 * MIB + 7));
    tree.file("zeros", vec![0; 3 * MIB]);
    let small = tree.dir("small");
    for n in 0..300 {
        small.file(format!("file {n}"), prose(n, 1000 + 7 * n as usize));
    }
    tree.link("link", "big");
    tree.hard_link("other name", tree.path("big"));
    let here = case.dst.path("here");
    let run = to_all(case, &["-r", "--summary"], "tree/");
    let done = run.arg("--also").arg(&here).run();
    done.succeeds();
    for host in HOSTS {
        done.says(&format!("{host}: 302 files, "));
    }
    done.says(&format!("{}: 302 files, ", here.display()));
    assert_all(case, "tree");
    assert_same(&tree.0, &here, Also::Nothing);
}

fn each_host_fails_on_its_own_and_has_its_line(case: &Case) {
    case.src.file("a", noise(1, 3 * MIB));
    let run = fastcp(case).arg("--json").arg(case.src("a"));
    let run = run.arg(on(case, "one", "one"));
    let run = run.args(["--also", &on(case, "two", "no/such/directory/")]);
    let run = run.args(["--also", &on(case, "three", "three")]);
    let done = run.run();
    let told = done.ends();
    let codes: Vec<_> = told.iter().map(|one| one["exit_code"].as_i64()).collect();
    let code = codes[1].expect("a number");
    assert!(code > 0, "{done}");
    assert_eq!(codes, [Some(0), Some(code), Some(0)]);
    done.exits(code as i32).says("two: ");
    done.says(&format!("(exit {code})"))
        .never_says("one: ")
        .never_says("three: ");
    assert_eq!(told[2]["dest"], on(case, "three", "three").as_str());
    for host in ["one", "three"] {
        assert_same(case.src.path("a"), case.dst.path(host), Also::Nothing);
    }
}

fn a_host_that_cannot_be_reached_holds_nobody(case: &Case) {
    case.src.file("a", noise(1, 3 * MIB));
    let run = to_all(case, &["--summary"], "a").args(["--also", "closed:a"]);
    run.run().exits(3).says("closed: ").says("(exit 3)");
    assert_all(case, "a");
}

fn a_terminal_shows_each_destination_and_its_end(case: &Case) {
    case.src.file("a", noise(1, 4 * MIB));
    let terminal = Terminal::open(80, 24);
    let run = to_all(case, &[&held_back(case, "300K")], "a");
    let run = run.args(["--also", &on(case, "none", "no/such/directory/")]);
    let run = run.env("TERM", "xterm");
    let run = run.start_on(terminal.output(), terminal.slave());
    let is_shown = |text: &[String]| {
        let has = |part: &str| text.iter().any(|line| line.contains(part));
        let copies = |host: &str| {
            let line = text
                .iter()
                .find(|line| line.starts_with(&format!("  {host} ")));
            line.is_some_and(|line| line.contains("%  ") && line.contains("/s  "))
        };
        let failed = |line: &String| line.starts_with("  none ") && line.ends_with("failed");
        has(", the slowest of 4 destinations; 1 failed")
            && HOSTS.iter().all(|host| copies(host))
            && text.iter().any(failed)
    };
    until("each has a line", || {
        let mut screen = Screen::new(80);
        screen.draw(&run.stdout.so_far());
        (is_shown(&screen.text()) && !screen.wrapped).then_some(())
    });
    let_go(case);
    let done = run.wait();
    done.fails();
    assert!(done.stdout_text().contains("none: fastcp: "), "{done}");
    assert_all(case, "a");
}

fn a_host_that_has_it_already_gets_nothing(case: &Case) {
    case.src.file("a", noise(1, 16 * MIB));
    case.src.file("b", prose(1, 4 * MIB));
    let dst = |host: &str| on(case, host, host) + "/";
    for host in HOSTS {
        case.dst.dir(host);
    }
    let run = |hosts: &[&str], flags: &[&str]| {
        let run = fastcp(case)
            .args(flags)
            .arg(case.src("a"))
            .arg(case.src("b"));
        let run = run.arg(dst(hosts[0]));
        hosts[1..]
            .iter()
            .fold(run, |run, host| run.arg("--also").arg(dst(host)))
    };
    // An interrupted copy leaves a partial `a`.
    let cut = run(&HOSTS[1..2], &["--retries", "0", &held_back(case, "1M")]).start();
    let two = Dir(case.dst.path("two"));
    until("something is there", || {
        (two.partial_bytes() > 2 * MIB as u64).then_some(())
    });
    cut.signal_group(Signal::INT);
    cut.wait().exits(130);
    let done = run(&HOSTS, &["--json"]).run();
    done.succeeds();
    let already: Vec<_> = done
        .ends()
        .iter()
        .map(|one| one["already_bytes"].as_u64().expect("a number") > 0)
        .collect();
    assert_eq!(already, [false, true, false], "{done}");
    for host in HOSTS {
        for name in ["a", "b"] {
            let got = case.dst.path(host).join(name);
            assert_same(case.src.path(name), got, Also::Nothing);
        }
    }
}

fn each_destination_has_a_list_of_digests(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("big", prose(1, 5 * MIB + 7));
    tree.file("small", "small");
    // Where the directory exists, the tree goes into it.
    case.dst.file("two/other", "other");
    let here = case.dst.path("here");
    let sums = case.scratch.path("sums");
    let flags = ["-r", "--digests", sums.to_str().expect("ASCII")];
    let run = to_all(case, &flags, "tree").arg("--also").arg(&here);
    run.run().succeeds();
    let here_list = format!("sums.{}", here.display().to_string()[1..].replace('/', "_"));
    let lists = ["sums.one", "sums.two", "sums.three", &here_list];
    for (dir, list) in ["one", "two", "three", "here"].into_iter().zip(lists) {
        let list = case.scratch.path(list);
        let text = std::fs::read_to_string(&list).expect("its list");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert_eq!(text.contains("tree/big"), dir == "two", "{text}");
        if let Some(b3sum) = host::find_program("b3sum") {
            let run = Run::new(b3sum, case.dst.path(dir))
                .arg("--check")
                .arg(&list);
            run.run().succeeds();
        }
    }
}

fn an_interrupt_ends_all(case: &Case) {
    case.src.file("a", noise(1, 24 * MIB));
    let run = to_all(case, &["-l", "64000", "--memory", "64Mi"], "a").start();
    until("something is there", || {
        (case.dst.partial_bytes() > MIB as u64).then_some(())
    });
    run.signal_group(Signal::INT);
    run.wait().exits(130).never_says("panicked");
    until("all servers have ended", || {
        case.servers().is_empty().then_some(())
    });
    case.sweep();
}

/// Resources that a process used, as the kernel counted them before its end.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Bytes read from files and pipes.
    read: u64,
    /// Ticks of processor time.
    ticks: u64,
}

fn spent(run: run::Running) -> (run::Done, Spent) {
    let dir = format!("/proc/{}", run.pid().as_raw_pid());
    let mut spent = Spent::default();
    loop {
        let io = std::fs::read_to_string(format!("{dir}/io")).unwrap_or_default();
        let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        let stat = std::fs::read_to_string(format!("{dir}/stat")).unwrap_or_default();
        let words: Vec<_> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
        // The 14th word of the line, where two words are before the bracket.
        let ticks = words.get(12).and_then(|word| word.parse().ok());
        let Some(read) = read.and_then(|read| read.parse().ok()) else {
            return (run.wait(), spent);
        };
        spent.read = read;
        spent.ticks = spent.ticks.max(ticks.unwrap_or(0));
        if procs::ended_within(run.pid(), std::time::Duration::from_millis(2)) {
            return (run.wait(), spent);
        }
    }
}

fn several_hosts_cost_one_reading_and_one_compression(case: &Case) {
    const SIZE: u64 = 24 * MIB as u64;
    case.src.file("a", prose(1, SIZE as usize));
    costs_as_one(case, &["--compress", "zstd:15"], ("a", "a"), SIZE);
}

/// Copies `source`, of the directory or file `named`, to one host and to three. On a busy machine the
/// last figures before the end may be missed, and the same work may take more ticks, so there are a
/// few tries.
fn costs_as_one(case: &Case, flags: &[&str], (source, named): (&str, &str), size: u64) {
    let is_as_one = (0..4).any(|_| {
        let one = fastcp(case).args(flags).arg(case.src(source));
        let (done, one) = spent(one.arg(on(case, "one", "alone")).start());
        done.succeeds();
        let (done, three) = spent(to_all(case, flags, source).start());
        done.succeeds();
        assert_all(case, named);
        // The next copies would only compare.
        for name in case.dst.names() {
            let there = case.dst.path(name);
            let removed = match there.is_dir() {
                true => std::fs::remove_dir_all(there),
                false => std::fs::remove_file(there),
            };
            removed.expect("remove a copy");
        }
        eprintln!("{one:?}, {three:?}");
        // A second compression would double the ticks.
        one.read >= size && three.read < one.read + size / 4 && three.ticks < one.ticks * 17 / 10
    });
    assert!(is_as_one, "each time the three cost more");
}

fn small_files_are_read_and_compressed_once_too(case: &Case) {
    const SIZE: u64 = 400 * 50_000;
    let tree = case.src.dir("tree");
    for n in 0..400 {
        tree.file(format!("{}/{n}", n % 7), prose(n, 50_000));
    }
    let flags = ["-r", "--compress", "zstd:15"];
    costs_as_one(case, &flags, ("tree/", "tree"), SIZE);
}

fn a_host_that_stands_still_holds_nobody(case: &Case) {
    case.src.file("a", noise(1, 24 * MIB));
    // A small cache, so that the other destinations soon reach the chunks that the stopped one
    // still needs.
    let flags = ["-l", "80000", "--memory", "48Mi", "--timeout", "8s"];
    let flags = [&flags[..], &["--retries", "0", "--json"]].concat();
    let run = to_all(case, &flags, "a").start();
    until("something is there", || {
        (case.dst.partial_bytes() > 3 * MIB as u64).then_some(())
    });
    let stopped = case.servers().pop().expect("three of them run");
    rustix::process::kill_process(stopped.pid, Signal::STOP).expect("stop it");
    let done = run.wait();
    stopped.kill();
    done.exits(5);
    let codes: Vec<_> = done
        .ends()
        .iter()
        .map(|one| one["exit_code"].as_i64().expect("a number"))
        .collect();
    let complete = HOSTS.iter().zip(&codes).filter(|(_, code)| **code == 0);
    let complete: Vec<_> = complete.map(|(host, _)| *host).collect();
    assert_eq!(complete.len(), 2, "{done}");
    for host in complete {
        assert_same(case.src.path("a"), case.dst.path(host), Also::Nothing);
    }
    case.sweep();
}

fn memory_stays_within_its_bound_for_all_together(case: &Case) {
    const POOL: usize = 48 * MIB;
    case.src.file("a", noise(1, 64 * MIB));
    let done = to_all(case, &["--memory", &POOL.to_string()], "a");
    let done = done.measured().run();
    done.succeeds();
    assert_all(case, "a");
    let most = POOL + 64 * MIB;
    let peak = done.peak_rss_bytes() as usize;
    assert!(peak < most, "{peak} bytes, more than {most}");
    to_all(case, &["--memory", "16Mi"], "a")
        .run()
        .exits(2)
        .says("too little for 3 destinations");
}

fn the_list_of_hosts_may_be_a_file(case: &Case) {
    case.src.file("a", noise(1, MIB));
    let list = format!(
        "# further ones\n\n{}\n  {}\n",
        on(case, "two", "two"),
        on(case, "three", "three")
    );
    let list = case.scratch.file("hosts", list);
    let run = fastcp(case).arg("--also-from").arg(list);
    let run = run.arg(case.src("a")).arg(on(case, "one", "one"));
    run.run().succeeds();
    assert_all(case, "a");
}

fn a_pipe_goes_to_several_hosts_as_with_tee(case: &Case) {
    const SIZE: usize = 12 * MIB + 5;
    let path = case.src.file("a", prose(1, SIZE));
    let here = case.dst.path("here");
    let run = fastcp(case).args(["--compress", "zstd:12", "-"]);
    let run = to_each(case, run).arg("--also").arg(&here);
    let stdin = File::open(&path).expect("open the source");
    let (done, three) = spent(run.start_with(stdin.into()));
    done.succeeds();
    assert_all(case, "a");
    assert_same(&path, &here, Also::Nothing);
    assert!(three.read < SIZE as u64 * 5 / 4, "{three:?}");
    // A failed producer fails the copies to all destinations.
    let run = fastcp(case).args(["--from-command", "echo begun; exit 3"]);
    let done = to_each(case, run).run();
    done.exits(10).says("one: ").says("three: ");
}

fn a_command_runs_on_each_host(case: &Case) {
    case.src.file("a", prose(1, 3 * MIB));
    let command = format!("cat > '{}'/$$", case.dst.0.display());
    let run = fastcp(case).arg(case.src("a")).arg("one:");
    let run = run.args([
        "--to-command",
        &command,
        "--also",
        "two:",
        "--also",
        "three:",
    ]);
    run.run().succeeds();
    let names = case.dst.names();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names {
        assert_same(case.src.path("a"), case.dst.path(name), Also::Nothing);
    }
}

fn a_host_whose_connection_is_lost_comes_back_and_the_others_go_on(case: &Case) {
    case.src.file("a", noise(1, 24 * MIB));
    let run = to_all(case, &["-l", "80000", "--json"], "a").start();
    until("something is there", || {
        (case.dst.partial_bytes() > 3 * MIB as u64).then_some(())
    });
    case.servers().pop().expect("three of them run").kill();
    let done = run.wait();
    done.succeeds().says("logging in again");
    let logins = done
        .ends()
        .iter()
        .map(|one| one["logins_again"].as_u64().expect("a number"))
        .sum::<u64>();
    assert_eq!(logins, 1, "{done}");
    assert_all(case, "a");
}

fn a_source_that_changes_is_read_again_for_each(case: &Case) {
    // More than memory holds: no destination has read all of it when it changes.
    case.src.file("a", noise(1, 32 * MIB));
    let flags = ["--memory", "64Mi", &held_back(case, "1M")];
    let run = to_all(case, &flags, "a").start();
    until("something is there", || {
        (case.dst.partial_bytes() > 3 * MIB as u64).then_some(())
    });
    // Two writes, so that a pause of the writer does not count as its end.
    let source = case.src.path("a");
    let source = File::options().write(true).open(source).expect("open it");
    for offset in [0, 20 * MIB as u64] {
        source.write_all_at(&noise(2, 4096), offset).expect("write");
    }
    let_go(case);
    run.wait().succeeds();
    assert_all(case, "a");
}

fn what_differs_at_each_reading_is_not_shared(case: &Case) {
    // A small file that claims to be empty and differs at each reading.
    let path = "/proc/self/io";
    let run = fastcp(case).arg(path).arg(on(case, "one", "one"));
    let run = run.arg("--also").arg(on(case, "two", "two"));
    run.run().succeeds();
    for host in ["one", "two"] {
        let text = String::from_utf8(case.dst.read(host)).expect("text");
        assert!(text.contains("rchar: "), "{text}");
        case.scratch.file(host, &text);
        std::fs::remove_file(case.dst.path(host)).expect("it is no source's content");
    }
}

fn a_fifo_goes_to_several_hosts_under_its_name(case: &Case) {
    let content = prose(1, 3 * MIB + 5);
    case.src.file("content", &content);
    let fifo = case.scratch.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).expect("make a FIFO");
    let writer = std::thread::spawn({
        let fifo = fifo.clone();
        move || std::fs::write(fifo, content)
    });
    HOSTS.iter().for_each(|host| drop(case.dst.dir(host)));
    let here = case.dst.dir("here");
    let run = to_each(case, fastcp(case).arg(&fifo));
    run.arg("--also").arg(&here.0).run().succeeds();
    writer.join().expect("no panic").expect("all was read");
    for dir in HOSTS.iter().chain(&["here"]) {
        let got = case.dst.path(dir).join("fifo");
        assert_same(case.src.path("content"), got, Also::Nothing);
    }
    // With other sources the FIFO is refused, and the other sources arrive.
    let run = fastcp(case).arg(&fifo).arg(case.src("content"));
    to_each(case, run).run().exits(1).says("only source");
    for host in HOSTS {
        let got = case.dst.path(host).join("content");
        assert_same(case.src.path("content"), got, Also::Nothing);
    }
}

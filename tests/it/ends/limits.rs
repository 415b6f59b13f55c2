//! Limits on the resources that a copy takes, as the kernel counts them: bytes on connections,
//! pages in the cache, scheduling classes of threads. A busy machine makes a copy slow, never
//! fast. So only the upper bounds are strict.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::process::{Pid, Signal};

use crate::support::procs::{self, Socket, TcpState, until, until_idle_enough};
use crate::support::run::{Run, Running};
use crate::support::slow::{held_back, let_go, wait_for_content};
use crate::support::*;

ways! { local_push, local_pull =>
    a_rate_is_kept_by_all_streams_together_and_changed_by_its_file,
    a_polite_copy_keeps_its_rate_limit_and_tells_what_held_it,
    a_polite_copy_from_command_to_command_paces_both_streams,
    a_copy_that_drops_its_pages_leaves_nothing_in_the_caches_of_either_end,
}

ways! { local_push, local_between =>
    a_polite_copy_paces_each_of_its_two_streams_at_the_sending_end,
}

ways! { local_push => a_polite_copy_to_several_hosts_paces_the_streams_to_each }

ways! { here => on_one_machine_too_a_rate_is_kept_until_its_file_lets_go }

ways! { push, pull =>
    a_nice_copy_is_idle_in_both_classes_and_in_all_threads,
}

/// Long enough that a burst of a twentieth of a second is half a percent.
const MEASURED: Duration = Duration::from_secs(10);

/// Bytes on all connections of a process.
fn bytes(sender: Pid, of: fn(&Socket) -> u64) -> u64 {
    let sockets = procs::tcp_sockets(sender, TcpState::Established);
    sockets.iter().map(of).sum()
}

/// Bytes a second over [`MEASURED`].
fn rate(sender: Pid) -> f64 {
    // The clock is read before the first count and after the last: a delay of the test itself
    // lowers the measured rate and never raises it.
    let began = Instant::now();
    // What waits in the kernel now had its time before.
    let before = bytes(sender, Socket::written_bytes);
    std::thread::sleep(MEASURED);
    let carried = bytes(sender, Socket::acked_bytes).saturating_sub(before);
    carried as f64 / began.elapsed().as_secs_f64()
}

/// The rate never exceeds the limit. It comes near the limit when the machine has time.
#[track_caller]
fn assert_rate(sender: Pid, limit: f64) {
    let comes_near = (0..5).any(|_| {
        let rate = rate(sender);
        eprintln!("{rate:.0} bytes a second, the limit is {limit}");
        assert!(rate < 1.03 * limit, "{rate} of {limit}");
        rate > 0.5 * limit
    });
    assert!(comes_near, "not even half of {limit}, five times");
}

fn a_rate_is_kept_by_all_streams_together_and_changed_by_its_file(case: &Case) {
    if !procs::may_tamper() {
        return skip("sockets of other processes");
    }
    let file = case.scratch.file("rate", "6M");
    let limit = format!("@{}", file.display());
    let flags = ["--streams", "4", "--size", "10G", "--bwlimit", &limit];
    let run = case.fastcp().args(flags);
    let run = run.arg(case.from("/dev/zero")).arg(case.to("/dev/null"));
    let run = run.start();
    let sender = until("all streams are up", || {
        let sender = sender(case, &run)?;
        let sockets = procs::tcp_sockets(sender, TcpState::Established);
        let busy = sockets
            .iter()
            .filter(|socket| socket.acked_bytes() > 100_000);
        (busy.count() == 4).then_some(sender)
    });
    assert_rate(sender, 6e6);
    case.scratch.file("rate", "15M");
    // fastcp reads the file once a second. Where it is later, the first measurement is too low.
    std::thread::sleep(Duration::from_secs(3));
    assert_rate(sender, 15e6);
    run.signal_group(Signal::INT);
    run.wait().exits(130);
}

/// The pacing limit of each stream that carries data, from either end.
fn paces(case: &Case, run: &Running) -> Vec<Option<u64>> {
    let servers = case.servers().into_iter().map(|server| server.pid);
    let sockets = servers
        .chain([run.pid()])
        .flat_map(|pid| procs::tcp_sockets(pid, TcpState::Established));
    let busy = sockets.filter(|it| it.acked_bytes() > 100_000);
    busy.map(|it| it.pace()).collect()
}

/// Runs a `--polite` copy until `streams` streams are paced, each pair at the same rate.
fn paces_streams(case: &Case, run: Run, streams: usize) {
    if !procs::may_tamper() {
        return skip("sockets of other processes");
    }
    let run = run.limit(Duration::from_secs(120)).start();
    until("all streams are paced", || {
        let mut paces = paces(case, &run);
        paces.sort();
        let is_same = || paces.chunks_exact(2).all(|pair| pair[0] == pair[1]);
        (paces.len() == streams && paces[0].is_some() && is_same()).then_some(())
    });
    run.signal_group(Signal::INT);
    run.wait().exits(130);
}

fn a_polite_copy_paces_each_of_its_two_streams_at_the_sending_end(case: &Case) {
    let run = case.fastcp().args(["--polite", "--size", "10G"]);
    let run = run.arg(case.from("/dev/zero")).arg(case.to("/dev/null"));
    paces_streams(case, run, 2);
}

fn a_polite_copy_from_command_to_command_paces_both_streams(case: &Case) {
    let commands = [
        "--from-command",
        "cat /dev/zero",
        "--to-command",
        "cat >/dev/null",
    ];
    let run = case.fastcp().arg("--polite").args(commands);
    let run = match case.way {
        Way::LocalPush => run.arg("-").arg(case.to("")),
        _ => run.arg(case.from("")).arg("-"),
    };
    paces_streams(case, run, 2);
}

fn a_polite_copy_to_several_hosts_paces_the_streams_to_each(case: &Case) {
    let run = case.fastcp().args(["--polite", "--size", "10G"]);
    let run = run.arg(case.from("/dev/zero")).arg(case.to("/dev/null"));
    paces_streams(case, run.args(["--also", "other:/dev/null"]), 4);
}

fn a_polite_copy_keeps_its_rate_limit_and_tells_what_held_it(case: &Case) {
    case.src.file("a", noise(1, 12 * MIB));
    // A busy machine delays packets as other traffic does, and the copy makes way for it. If it
    // does so now and then, neither held the copy for most of the time.
    let is_told = (0..3).any(|_| {
        let began = Instant::now();
        let done = case.copy(&["--polite", "-l", "24000", "--json"], "a", "a");
        let took = began.elapsed().as_secs_f64();
        done.succeeds();
        let rate = (12 * MIB) as f64 / took;
        assert!(rate < 1.03 * 3_072_000.0, "{rate} bytes a second");
        let told = done.end();
        assert_eq!(told["streams"], 2, "{told}");
        std::fs::remove_file(case.dst.path("a")).expect("it was copied");
        let limit = told["verdict"]["limit"].as_str();
        matches!(limit, Some("rate_limit" | "network"))
    });
    assert!(
        is_told,
        "neither a limit of 24,000 kbit/s nor the network held any of three copies"
    );
}

fn on_one_machine_too_a_rate_is_kept_until_its_file_lets_go(case: &Case) {
    case.src.file("a", noise(1, 60 * MIB));
    let run = case.copying(&[&held_back(case, "1M")], "a", "a").start();
    wait_for_content(case);
    let there = case.dst.partial_bytes();
    assert!(there < 30 * MIB as u64, "no limit: {there} bytes");
    let began = Instant::now();
    let_go(case);
    run.wait().succeeds();
    let took = began.elapsed();
    // The first rate would have taken almost a minute.
    assert!(took < Duration::from_secs(35), "still the limit: {took:?}");
}

/// The sending process, once it runs.
fn sender(case: &Case, run: &Running) -> Option<Pid> {
    match case.way {
        Way::LocalPush => Some(run.pid()),
        _ => case.servers().pop().map(|server| server.pid),
    }
}

/// Bytes of a file that are in the page cache.
fn cached(path: &Path) -> u64 {
    let Ok(file) = std::fs::File::open(path) else {
        return 0;
    };
    let len = file.metadata().map_or(0, |meta| meta.len()) as usize;
    if len == 0 {
        return 0;
    }
    let page = rustix::param::page_size();
    let mut pages = vec![0u8; len.div_ceil(page)];
    // SAFETY: a new mapping that is not read, of non-zero length; `mincore` writes a byte for
    // each of its pages, and `pages` has room for them; `munmap` gets the same address and
    // length.
    unsafe {
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let at = libc::mmap(std::ptr::null_mut(), len, read, shared, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED, "map {path:?}");
        libc::mincore(at, len, pages.as_mut_ptr());
        libc::munmap(at, len);
    }
    pages.iter().filter(|page| **page & 1 == 1).count() as u64 * page as u64
}

/// Writes a file to the disk and drops it from the page cache, except for its first `kept` bytes.
fn uncache(path: &Path, kept: u64) {
    let file = std::fs::File::open(path).expect("open a file");
    file.sync_all().expect("write it to the disk");
    let advice = rustix::fs::Advice::DontNeed;
    rustix::fs::fadvise(&file, kept, None, advice).expect("drop its pages");
}

fn a_copy_that_drops_its_pages_leaves_nothing_in_the_caches_of_either_end(case: &Case) {
    const KEPT: u64 = 8 * MIB as u64;
    const DIRTY_MAX: u64 = 256 * MIB as u64;
    let tree = case.src.dir("tree");
    // More than [`DIRTY_MAX`], and every megabyte is different.
    let big = tree.file("big", b"");
    {
        use std::io::Write;
        let mut file = std::fs::File::create(&big).expect("make a file");
        let mut block = noise(1, MIB);
        for n in 0..400u64 {
            block[..8].copy_from_slice(&n.to_le_bytes());
            file.write_all(&block).expect("write a file");
        }
    }
    let small = tree.dir("small");
    for n in 0..20 {
        small.file(format!("{n}"), noise(n, 20_000));
    }
    let cold = tree.file("cold", noise(2, 30 * MIB));
    // The copy does not touch it. If its pages go too, the kernel needed the memory.
    let bystander = case.scratch.file("bystander", noise(3, KEPT as usize));
    // Built before the cache is emptied, since that reads every file of the source.
    let run = case.copying(&["-r", "--drop-cache"], "tree/", "tree");
    for n in 0..20 {
        uncache(&small.path(format!("{n}")), 0);
    }
    uncache(&cold, 0);
    uncache(&big, KEPT);
    uncache(&bystander, KEPT);
    // The kernel may have dropped the oldest pages. Those of both files are new now.
    for path in [&big, &bystander] {
        let mut first = vec![0; KEPT as usize];
        let file = std::fs::File::open(path).expect("open a file");
        // Without reading ahead.
        let advice = rustix::fs::Advice::Random;
        rustix::fs::fadvise(&file, 0, None, advice).expect("advise");
        std::io::Read::read_exact(&mut &file, &mut first).expect("read them");
    }
    if cached(&big) > 2 * KEPT {
        return skip("a file system whose page cache can be emptied");
    }
    let before = cached(&big);
    let run = run.limit(Duration::from_secs(180)).start();
    let there = Dir(case.dst.path("tree"));
    let mut most = 0;
    // Dirty pages are in the cache, so a small cache means few dirty pages.
    while !procs::ended_within(run.pid(), Duration::from_millis(20)) {
        let partials = there.0.exists().then(|| there.partials());
        let partials = partials.unwrap_or_default();
        most = most.max(partials.iter().map(|path| cached(path)).sum());
    }
    run.wait().succeeds();
    eprintln!("at most {most} bytes cached at the destination while it was written");
    assert!(most < DIRTY_MAX, "{most} bytes of the copy were cached");
    let (after, beside) = (cached(&big), cached(&bystander));
    eprintln!("{beside} of {KEPT} bytes of a file beside the copy are still cached");
    assert!(
        after >= before.min(KEPT) / 2 || beside < KEPT,
        "others' pages went: {after} of {before}"
    );
    // The kernel keeps pages that it is just moving to another place in memory, with those of the same
    // folio. A folio has up to 2 MiB, and a busy machine moves several. All pages are 400 MB.
    const STAYS_MAX: u64 = 16 * MIB as u64;
    // Before the copy read these pages, the kernel may have dropped some of them.
    assert!(
        after <= before + STAYS_MAX,
        "{after} bytes of the source, {before} before"
    );
    for (end, names) in [(&there, &["big", "cold"][..]), (&tree, &["cold"])] {
        let small = (0..20).map(|n| cached(&end.path(format!("small/{n}"))));
        let small: u64 = small.sum();
        assert!(small < 20 * 20_000 / 2, "{small} in {end:?}");
        for name in names {
            let stays = cached(&end.path(name));
            assert!(stays < STAYS_MAX, "{stays} of {name} in {end:?}");
        }
    }
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}

/// True if every thread of a process has the idle class of the processor and of I/O.
fn is_idle(process: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_pid()));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The 41st word is the policy, and policy 5 is idle; the 2nd word is in brackets.
        let words = stat.rsplit(')').next().unwrap_or_default();
        let policy = words.split_whitespace().nth(38);
        let number = thread.file_name();
        let number: i32 = number
            .to_str()
            .and_then(|it| it.parse().ok())
            .expect("a number");
        // SAFETY: a system call on numbers; 1 says that the second is a thread's.
        let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, number) };
        // A thread may have ended by now. The class is above the low 13 bits; class 3 is idle.
        stat.is_empty() || priority < 0 || (policy == Some("5") && priority >> 13 == 3)
    })
}

fn a_nice_copy_is_idle_in_both_classes_and_in_all_threads(case: &Case) {
    case.src.file("a", noise(1, 24 * MIB));
    let run = case.copying(&["--nice", "-l", "64000"], "a", "a");
    let run = run.apart().start();
    until_idle_enough("data flows", || {
        (case.dst.partial_bytes() > 2 * MIB as u64).then_some(())
    });
    let servers = case.servers();
    assert!(!servers.is_empty());
    for pid in servers.iter().map(|server| server.pid).chain([run.pid()]) {
        until("all threads give way", || is_idle(pid).then_some(()));
    }
    run.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

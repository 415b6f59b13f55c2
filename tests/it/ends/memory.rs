//! Memory stays within the bound that `--help destination` gives: the buffer pool and at most 64 MiB
//! more, for any source and however slow the destination is.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::support::inject::{self, Inject};
use crate::support::*;

ways!(local_push =>
    long_symbolic_links_wait_at_the_sender,
    further_names_wait_in_bounded_memory,
);

/// Waits until `number` has not changed for a second.
fn wait_until_steady(number: impl Fn() -> u64) {
    let (mut last, mut since) = (number(), Instant::now());
    let began = since;
    while since.elapsed() < Duration::from_secs(1) && began.elapsed() < Duration::from_secs(20) {
        std::thread::park_timeout(Duration::from_millis(50));
        let now = number();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// The disk hangs at the first of 10,000 links, whose targets have 40 MB. Without a bound the
/// receiver would hold all of them, with the program 58 MB instead of 34.
fn long_symbolic_links_wait_at_the_sender(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let text = ["x".repeat(200).as_str(); 20].join("/");
    for n in 0..10_000 {
        case.src.link(format!("links/{}/{n}", n / 1000), &text);
    }
    let inject = Inject::new().hold("symlinkat").times(1);
    let run = case.copying(&["-r"], "links", "links").inject(&inject);
    let running = run.measured().start();
    inject.wait_until_struck(1);
    wait_until_steady(|| procs::peak_rss_bytes(running.pid()));
    inject.release();
    let done = running.wait();
    done.succeeds();
    let peak = done.peak_rss_bytes() as usize / MIB;
    assert!(peak < 42, "{peak} MiB");
}

/// 40,000 hard links with names of 240 bytes. If the sender kept them until the end of the walk, it
/// would take 52 MiB instead of 29.
fn further_names_wait_in_bounded_memory(case: &Case) {
    let files = 1000;
    let first = |n: usize| format!("tree/{}/{n}", n % 50);
    let long = "n".repeat(234);
    let further = |n: usize| format!("tree/d{}/{long}{n:06}", n % 97);
    let made = |n: usize| case.src.file(first(n), n.to_string());
    let made: Vec<_> = (0..files).map(made).collect();
    (0..97).for_each(|n| drop(case.src.dir(format!("tree/d{n}"))));
    for n in 0..40 * files {
        std::fs::hard_link(&made[n % files], case.src.path(further(n))).unwrap();
    }
    let done = case.copying(&["-r"], "tree", "tree").measured().run();
    done.succeeds();
    let inode = |n: usize| case.dst.meta(first(n)).ino();
    let inodes: Vec<_> = (0..files).map(inode).collect();
    for n in 0..40 * files {
        let other = case.dst.meta(further(n));
        assert_eq!((inodes[n % files], 41), (other.ino(), other.nlink()), "{n}");
    }
    let peak = done.peak_rss_bytes() as usize / MIB;
    assert!(peak < 40, "{peak} MiB");
}

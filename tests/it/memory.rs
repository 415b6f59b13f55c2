//! Memory is what `--help` says: the pool of buffers and at most 64 MiB besides, whatever is
//! copied and however slow the destination is.

use std::time::{Duration, Instant};

use super::support::inject::{self, Inject};
use super::support::*;

ways!(local_push => long_symbolic_links_wait_at_the_sender);

/// Waits until `number` has stood still for a while.
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

/// The disk hangs at the first link of 5,000, which are 20 MB of text. Without a bound the
/// receiver holds all of it, which makes 35 MB with the program; 200,000 links would be 140 MB.
fn long_symbolic_links_wait_at_the_sender(case: &Case) {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let text = ["x".repeat(200).as_str(); 20].join("/");
    for n in 0..5_000 {
        case.src.link(format!("links/{}/{n}", n / 1000), &text);
    }
    let inject = Inject::new().hold("symlinkat").times(1);
    let run = case.copying(&["-r"], "links", "links").inject(&inject);
    let running = run.start();
    inject.wait_until_struck(1);
    wait_until_steady(|| procs::peak_rss_bytes(running.pid()));
    inject.release();
    let done = running.wait();
    done.succeeds();
    let peak = done.peak_rss_bytes as usize / MIB;
    assert!(peak < 30, "{peak} MiB");
}

//! Processor time and memory of a run whose ends are both on this machine.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{fs, thread};

use crate::tools::FASTCP;

/// How often the bench reads the peak memory of fastcp's processes, which is lost when they end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Resources used during a tool's run, by the tool and by everything else.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// Seconds for which processors were busy.
    pub cpu_s: f64,
    /// The most memory that one process of fastcp held; 0 for other tools.
    pub peak_bytes: u64,
}

/// Runs `what`, and returns its result with the resources used.
pub(crate) fn while_doing<T>(what: impl FnOnce() -> T) -> (T, Spent) {
    let is_over = AtomicBool::new(false);
    let before = busy();
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut peak = 0;
            while !is_over.load(Relaxed) {
                peak = peak.max(largest());
                thread::sleep(LOOK_EVERY);
            }
            peak
        });
        let done = what();
        let cpu_s = (busy() - before).as_secs_f64();
        is_over.store(true, Relaxed);
        let peak_bytes = watching.join().unwrap_or(0);
        (done, Spent { cpu_s, peak_bytes })
    })
}

/// Time since boot in which processors were neither idle nor stolen, summed over all of them.
fn busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks = line
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse::<u64>().unwrap_or(0));
    // user nice system [idle iowait] irq softirq [steal guest guest_nice]
    let busy: u64 = ticks
        .enumerate()
        .filter(|(nth, _)| matches!(nth, 0..=2 | 5 | 6))
        .map(|(_, ticks)| ticks)
        .sum();
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_secs_f64(busy as f64 / per_second as f64)
}

fn largest() -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let peaks = processes.filter_map(|process| {
        let status = fs::read_to_string(process.path().join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim())
        };
        if field("Name")? != FASTCP {
            return None;
        }
        field("VmHWM")?.split(' ').next()?.parse::<u64>().ok()
    });
    peaks.max().unwrap_or(0) * 1024
}

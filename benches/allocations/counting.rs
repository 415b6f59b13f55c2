//! An allocator that counts how often it is asked and, if it is told to, remembers by whom.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Functions of a site, from the innermost out.
const DEPTH: usize = 3;

/// Those that stand between a site and the allocator, or say nothing.
const BETWEEN: [&str; 7] = [
    "std::",
    "core::",
    "alloc::",
    "<alloc::",
    "<core::",
    "__",
    "allocations::",
];

static COUNT: AtomicU64 = AtomicU64::new(0);
static REMEMBERS: AtomicBool = AtomicBool::new(false);
static ASKED: Mutex<Vec<Backtrace>> = Mutex::new(Vec::new());

thread_local! {
    /// What remembering takes is not remembered.
    static IS_REMEMBERING: Cell<bool> = const { Cell::new(false) };
}

pub struct Counting;

pub fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// From now on it is known who asks, which takes its time.
pub fn remember() {
    REMEMBERS.store(true, Relaxed);
}

/// How often each site has asked since this was last called.
pub fn sites() -> BTreeMap<String, u64> {
    let asked = std::mem::take(&mut *ASKED.lock().expect("no panic while held"));
    let mut sites = BTreeMap::new();
    for trace in asked {
        *sites.entry(site(&trace.to_string())).or_default() += 1;
    }
    sites
}

/// `a::b < c::d < e::f` out of a backtrace as it is printed.
fn site(trace: &str) -> String {
    let functions = trace.lines().filter_map(|line| {
        let (number, function) = line.trim_start().split_once(": ")?;
        number.parse::<u32>().ok().map(|_| function)
    });
    let telling = functions.filter(|name| !BETWEEN.iter().any(|it| name.starts_with(it)));
    let telling = telling.map(|name| name.replace("::{{closure}}", ""));
    telling.take(DEPTH).collect::<Vec<_>>().join(" < ")
}

fn note() {
    COUNT.fetch_add(1, Relaxed);
    if REMEMBERS.load(Relaxed) && !IS_REMEMBERING.replace(true) {
        let trace = Backtrace::force_capture();
        ASKED.lock().expect("no panic while held").push(trace);
        IS_REMEMBERING.set(false);
    }
}

// SAFETY: everything is handed to the system's allocator as it came; counting touches no memory that
// it gives out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are those that are asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

//! Memory allocations of either end for one more chunk. The bench makes two copies between
//! processes of this program, over sockets, and one of them has many more chunks. Allocations at
//! the start and during warm-up are in both copies, so the difference excludes them.
//!
//! `cargo bench --bench allocations`. The far end is this program too: the client starts itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fastcp::app;
use fastcp::chunk::CHUNK_SIZE;
use fastcp::error::Error;
use fastcp::itemize::ItemizedEntry;
use fastcp::progress::Progress;
use fastcp::report::Reporter;
use fastcp::report::event::CopyEvent;
use fastcp::session::{Compress, CopyOptions, EndKind, Host, Operand, Permit, Request, server};

/// Chunks of the two copies: the first is long past warm-up.
const FEW: usize = 400;
const MANY: usize = 1400;

/// Most allocations for a chunk at either end. The remaining ones are tree nodes and control
/// messages, one for several chunks. One for each chunk would make at least 1.
const MOST: f64 = 0.5;

/// Environment variable with the file into which the far end writes its count.
const COUNT: &str = "FASTCP_ALLOCATIONS_FILE";

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory that it
// returns.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller makes the promises that this call requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

struct Silent;

impl Reporter for Silent {
    fn failure(&self, error: &Error) {
        panic!("{error}");
    }
    fn left_out(&self, _: &Error) {}
    fn installing(&self, _: &str) {}
    fn notice(&self, line: &str) {
        eprintln!("{line}");
    }
    fn waiting(&self, _: &Error) {}
    fn detail(&self, _: &str) {}
    fn itemized(&self, _: &ItemizedEntry) {}
    fn deleted(&self, _: &[u8]) {}
    fn event(&self, _: CopyEvent) {}
    fn changes_waiting(&self) -> usize {
        0
    }
    fn status(&self) {}
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--server") {
        let _ = server::run(false, Permit::default());
        let count = ALLOCATIONS.load(Relaxed).to_string();
        if let Some(file) = std::env::var_os(COUNT) {
            std::fs::write(file, count).expect("the count is written");
        }
        return;
    }
    if words.iter().any(|word| word == "--test") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    println!("allocations for a chunk of {CHUNK_SIZE} bytes, after warm-up");
    for (name, compress, streams) in [
        ("none, 1 stream", Compress::None, 1),
        ("none, 8 streams", Compress::None, 8),
        ("lz4, 4 streams", Compress::Lz4, 4),
        ("zstd 1, 4 streams", Compress::Zstd(1), 4),
    ] {
        let few = copy(dir.path(), FEW, compress, streams);
        let many = copy(dir.path(), MANY, compress, streams);
        let chunks = (MANY - FEW) as f64;
        let each = |few: u64, many: u64| many.saturating_sub(few) as f64 / chunks;
        let (sender, receiver) = (each(few.0, many.0), each(few.1, many.1));
        println!("{name:18} sender {sender:6.2}  receiver {receiver:6.2}");
        assert!(sender.max(receiver) <= MOST, "more than {MOST} for a chunk");
    }
}

/// Allocations of the sender and of the receiver.
fn copy(dir: &Path, chunks: usize, compress: Compress, streams: u16) -> (u64, u64) {
    let (source, count) = (dir.join("source"), dir.join("count"));
    let line = b"rows of a table that shrink; ";
    let chunk: Vec<u8> = line.iter().copied().cycle().take(CHUNK_SIZE).collect();
    let mut file = std::fs::File::create(&source).expect("the source is made");
    (0..chunks).for_each(|_| file.write_all(&chunk).expect("the source is written"));
    // SAFETY: no other thread runs: the copy's threads have not started, or have ended.
    unsafe { std::env::set_var(COUNT, &count) };
    let options = CopyOptions {
        compress,
        timeout_s: 60,
        ..CopyOptions::default()
    };
    let (from, to) = (
        operand(&source, None),
        operand(&dir.join("copy"), Some("here")),
    );
    let request = Request {
        streams: Some(streams),
        ..Request::local(vec![from], to, options)
    };
    let before = ALLOCATIONS.load(Relaxed);
    let outcome = app::copy::run(request, Arc::new(Progress::default()), Arc::new(Silent));
    assert_eq!(outcome.exit_code(), 0, "{:?}", outcome.fatal);
    let sender = ALLOCATIONS.load(Relaxed) - before;
    let receiver = std::fs::read_to_string(&count).expect("the far end has left its count");
    (sender, receiver.parse().expect("a number"))
}

fn operand(path: &Path, host: Option<&str>) -> Operand {
    use std::os::unix::ffi::OsStrExt;
    Operand {
        typed: path.into(),
        host: host.map(|name| Host {
            user: None,
            name: name.to_owned(),
            port: None,
        }),
        what: EndKind::Path,
        path: path.as_os_str().as_bytes().to_vec(),
    }
}

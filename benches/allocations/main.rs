//! How often either end asks for memory for one more chunk: two copies between processes of this
//! program, over sockets, of which one has many chunks more. What both did at their start, and until
//! everything was warm, is in both and so in neither's difference.
//!
//! `cargo bench --bench allocations`. The far end is this program too: the client starts itself.

mod counting;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use counting::Counting;
use fastcp::chunk::CHUNK_SIZE;
use fastcp::error::Error;
use fastcp::progress::Progress;
use fastcp::session::{
    self, Compress, CopyOptions, Host, Operand, Permit, Reporter, Request, What,
};

/// Chunks of the two copies: the first is long past warm-up.
const FEW: usize = 400;
const MANY: usize = 1400;

/// Where the far end leaves its count.
const COUNT: &str = "FASTCP_ALLOCATIONS_FILE";

/// Set: the places that ask are told too. Their names are to be had with
/// `CARGO_PROFILE_BENCH_STRIP=none CARGO_PROFILE_BENCH_DEBUG=line-tables-only`.
const SITES: &str = "FASTCP_ALLOCATIONS_SITES";

/// A site that asks for one chunk in so many is not told.
const SELDOM: f64 = 100.0;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one end asked for.
struct Asked {
    count: u64,
    sites: BTreeMap<String, u64>,
}

struct Silent;

impl Reporter for Silent {
    fn failure(&self, error: &Error) {
        panic!("{error}");
    }
    fn notice(&self, line: &str) {
        eprintln!("{line}");
    }
    fn detail(&self, _: &str) {}
    fn status(&self) {}
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os(SITES).is_some() {
        counting::remember();
    }
    if words.iter().any(|word| word == "--server") {
        let _ = session::serve(false, Permit::default());
        if let Some(file) = std::env::var_os(COUNT) {
            std::fs::write(file, Asked::here(0).text()).expect("the count is written");
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
        let (sender, receiver) = (
            each(few.0.count, many.0.count),
            each(few.1.count, many.1.count),
        );
        println!("{name:18} sender {sender:6.2}  receiver {receiver:6.2}");
        for (end, few, many) in [("sender", few.0, many.0), ("receiver", few.1, many.1)] {
            tell_sites(end, &few.sites, &many.sites);
        }
    }
}

/// Of one chunk.
fn each(few: u64, many: u64) -> f64 {
    many.saturating_sub(few) as f64 / (MANY - FEW) as f64
}

fn tell_sites(end: &str, few: &BTreeMap<String, u64>, many: &BTreeMap<String, u64>) {
    for (site, &many) in many {
        let each = each(few.get(site).copied().unwrap_or(0), many);
        if each * SELDOM >= 1.0 {
            println!("    {each:6.2} {end}: {site}");
        }
    }
}

impl Asked {
    /// By this process since the count was `before`.
    fn here(before: u64) -> Asked {
        Asked {
            count: counting::count() - before,
            sites: counting::sites(),
        }
    }

    fn text(&self) -> String {
        let line = |(site, count): (&String, &u64)| format!("\n{count} {site}");
        let sites = self.sites.iter().map(line);
        std::iter::once(self.count.to_string())
            .chain(sites)
            .collect()
    }

    /// From what [`text`](Self::text) gave.
    fn parse(text: &str) -> Asked {
        let mut lines = text.lines();
        let count = lines.next().expect("a line");
        let site = |line: &str| {
            let (count, site) = line.split_once(' ').expect("a count and a site");
            (site.to_owned(), count.parse().expect("a number"))
        };
        Asked {
            count: count.parse().expect("a number"),
            sites: lines.map(site).collect(),
        }
    }
}

/// What the sender and the receiver asked for.
fn copy(dir: &Path, chunks: usize, compress: Compress, streams: u16) -> (Asked, Asked) {
    let (source, count) = (dir.join("source"), dir.join("count"));
    let line = b"rows of a table that shrink; ";
    let chunk: Vec<u8> = line.iter().copied().cycle().take(CHUNK_SIZE).collect();
    let mut file = std::fs::File::create(&source).expect("the source is made");
    (0..chunks).for_each(|_| file.write_all(&chunk).expect("the source is written"));
    // SAFETY: no other thread is there yet or any more.
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
    let _ = counting::sites();
    let before = counting::count();
    let outcome = session::run(request, Arc::new(Progress::default()), Arc::new(Silent));
    assert_eq!(outcome.exit_code(), 0, "{:?}", outcome.fatal);
    let sender = Asked::here(before);
    let receiver = std::fs::read_to_string(&count).expect("the far end has left its count");
    (sender, Asked::parse(&receiver))
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
        what: What::Path,
        path: path.as_os_str().as_bytes().to_vec(),
    }
}

//! The whole pipeline in memory: walk, read, encode, decode, verify, write and rename. Both ends
//! run in one process, on a file system in memory if there is one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fastcp::app;
use fastcp::error::Error;
use fastcp::itemize::ItemizedEntry;
use fastcp::progress::Progress;
use fastcp::report::Reporter;
use fastcp::report::event::CopyEvent;
use fastcp::session::{Compress, CopyOptions, EndKind, Operand, Request};

struct Silent;

impl Reporter for Silent {
    fn failure(&self, error: &Error) {
        panic!("{error}");
    }
    fn left_out(&self, _: &Error) {}
    fn notice(&self, _: &str) {}
    fn waiting(&self, _: &Error) {}
    fn installing(&self, _: &str) {}
    fn detail(&self, _: &str) {}
    fn itemized(&self, _: &ItemizedEntry) {}
    fn deleted(&self, _: &[u8]) {}
    fn event(&self, _: CopyEvent) {}
    fn changes_waiting(&self) -> usize {
        0
    }
    fn status(&self) {}
}

fn operand(path: &Path) -> Operand {
    use std::os::unix::ffi::OsStrExt;
    Operand {
        typed: path.into(),
        host: None,
        what: EndKind::Path,
        path: path.as_os_str().as_bytes().to_vec(),
    }
}

fn copy(source: &Path, dest: &Path) {
    let options = CopyOptions {
        recursive: true,
        no_target_directory: true,
        compress: Compress::None,
        timeout_s: 60,
        ..CopyOptions::default()
    };
    let request = Request {
        streams: Some(1),
        ..Request::local(vec![operand(source)], operand(dest), options)
    };
    let outcome = app::copy::run(request, Arc::new(Progress::default()), Arc::new(Silent));
    assert_eq!(outcome.exit_code(), 0, "{:?}", outcome.fatal);
}

fn scratch() -> tempfile::TempDir {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

fn pipeline(c: &mut Criterion) {
    let scratch = scratch();
    let mut group = c.benchmark_group("pipeline");
    group.sample_size(10);

    let big = scratch.path().join("big");
    let bytes: Vec<u8> = (0u32..16 << 20)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    std::fs::write(&big, &bytes).unwrap();
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("one file of 64 MiB", |b| {
        b.iter(|| copy(&big, &scratch.path().join("big.copy")));
    });

    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for n in 0..1000 {
        std::fs::write(tree.join(n.to_string()), &bytes[n * 4000..][..4000]).unwrap();
    }
    group.throughput(Throughput::Elements(1000));
    group.bench_function("1000 files of 4 kB", |b| {
        b.iter(|| copy(&tree, &scratch.path().join("tree.copy")));
    });
}

criterion_group!(benches, pipeline);
criterion_main!(benches);

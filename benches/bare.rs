//! Processor time per byte of a whole copy, both ends together, and that of a bare loop. The loop
//! does only the necessary work: pread, BLAKE3, AES-GCM, TCP and back, with four threads a side and
//! a connection for each.
//!
//! `cargo bench --bench bare -- [MB]` copies that many megabytes (2000) of random bytes, in turns,
//! on a file system in memory if there is one. It measures processor time, because the two ends
//! share this machine. Kernel work done in other contexts (interrupts) may be missing from both
//! figures.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use fastcp::algorithms::{Suite, TAG_LEN};
use fastcp::chunk::CHUNK_SIZE;
use fastcp::digest;
use fastcp::seal::{Direction, Opener, Sealer, Secret};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

const THREADS: usize = 4;
const ROUNDS: usize = 5;

/// One epoch is enough: it has 64 GiB, and the bench seals fewer bytes.
const EPOCH: u32 = 0;

/// Bytes before each chunk: its offset, the number it was sealed with, its digest and its tag.
const HEAD: usize = 8 + 8 + 32 + TAG_LEN;

fn main() {
    let megabytes = std::env::args().find_map(|word| word.parse::<u64>().ok());
    let size = megabytes.unwrap_or(2000) * 1_000_000 / CHUNK_SIZE as u64 * CHUNK_SIZE as u64;
    let memory = PathBuf::from("/dev/shm");
    let base = Some(memory).filter(|it| it.is_dir());
    let base = base.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let dir = base.join(format!("fastcp-bare-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory for the copies");
    let (from, to) = (dir.join("from"), dir.join("to"));
    fill(&from, size);
    let (mut bare, mut copy) = (Vec::new(), Vec::new());
    // The first round is not counted, because it has to allocate pages.
    for round in 0..=ROUNDS {
        let times = (bare_loop(&from, &to, size), fastcp(&from, &to));
        if round > 0 {
            bare.push(times.0.as_secs_f64() / size as f64 * 1e9);
            copy.push(times.1.as_secs_f64() / size as f64 * 1e9);
        }
    }
    std::fs::remove_dir_all(&dir).expect("remove the copies");
    let (bare, copy) = (median(bare), median(copy));
    println!("bare loop  {bare:.2} ns a byte");
    println!("fastcp     {copy:.2} ns a byte, {:.2} times", copy / bare);
}

fn fill(path: &Path, size: u64) {
    let mut file = File::create(path).expect("a source");
    let mut noise = blake3::Hasher::new().finalize_xof();
    let mut chunk = vec![0; CHUNK_SIZE];
    for _ in 0..size / CHUNK_SIZE as u64 {
        noise.fill(&mut chunk);
        file.write_all(&chunk).expect("room for the source");
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn spent(who: UsageWho) -> Duration {
    let usage = getrusage(who).expect("who is known");
    let of = |time: TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
    of(usage.user_time()) + of(usage.system_time())
}

/// Processor time of a copy by fastcp, client and server together.
fn fastcp(from: &Path, to: &Path) -> Duration {
    let _ = std::fs::remove_file(to);
    let before = spent(UsageWho::RUSAGE_CHILDREN);
    let copied = Command::new(env!("CARGO_BIN_EXE_fastcp"))
        .args(["-q", "--rsh", "local", "--compress", "none"])
        .arg(from)
        .arg(format!("localhost:{}", to.display()))
        .status();
    assert!(copied.expect("fastcp runs").success());
    spent(UsageWho::RUSAGE_CHILDREN) - before
}

fn bare_loop(from: &Path, to: &Path, size: u64) -> Duration {
    let _ = std::fs::remove_file(to);
    let before = spent(UsageWho::RUSAGE_SELF);
    let (from, to) = (File::open(from).unwrap(), File::create(to).unwrap());
    to.set_len(size).expect("a file as long");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let secret = Secret::random();
    let sealer = Sealer::new(&secret, Direction::ToServer, Suite::Aes128Gcm);
    let opener = Opener::new(&secret, Direction::ToServer, Suite::Aes128Gcm);
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let dialled = TcpStream::connect(address).expect("it listens");
            let (accepted, _) = listener.accept().expect("it was dialled");
            let (from, sealer, next) = (&from, &sealer, &next);
            scope.spawn(move || send(from, size, next, sealer, dialled));
            let (to, opener) = (&to, &opener);
            scope.spawn(move || receive(to, opener, accepted));
        }
    });
    spent(UsageWho::RUSAGE_SELF) - before
}

fn send(from: &File, size: u64, next: &AtomicU64, sealer: &Sealer, mut to: TcpStream) {
    let mut bytes = vec![0; HEAD + CHUNK_SIZE];
    loop {
        let offset = next.fetch_add(CHUNK_SIZE as u64, Relaxed);
        if offset >= size {
            return;
        }
        let (head, chunk) = bytes.split_at_mut(HEAD);
        from.read_exact_at(chunk, offset).expect("read");
        let digest = digest::of_range(chunk, offset, false);
        let ticket = sealer.reserve(chunk.len());
        head[..8].copy_from_slice(&offset.to_le_bytes());
        head[8..16].copy_from_slice(&ticket.counter.to_le_bytes());
        head[16..48].copy_from_slice(&digest);
        let tag = sealer.seal(ticket, &[], chunk);
        head[48..].copy_from_slice(&tag);
        to.write_all(&bytes).expect("send");
    }
}

fn receive(to: &File, opener: &Opener, mut from: TcpStream) {
    let mut bytes = vec![0; HEAD + CHUNK_SIZE];
    // The connection ends between two chunks.
    while from.read_exact(&mut bytes).is_ok() {
        let (head, chunk) = bytes.split_at_mut(HEAD);
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let tag = head[48..].try_into().expect("a tag's bytes");
        opener
            .open(EPOCH, number(8), &[], chunk, tag)
            .expect("it was sealed");
        assert_eq!(digest::of_range(chunk, number(0), false), head[16..48]);
        to.write_all_at(chunk, number(0)).expect("write");
    }
}

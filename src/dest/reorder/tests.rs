//! Tests with racing threads, a consumer that does not read, and a sender that breaks the protocol.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use proptest::prelude::*;
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::chunk::{Buffer, Chunk, ChunkPlace};
use crate::digest::{NONE, of_range};
use crate::pipe::{Stop, close_reader};

const C: usize = 1024;

fn chunk(data: &[u8], offset: usize) -> VerifiedChunk {
    let mut buffer = Buffer::loose(C);
    buffer.room()[..data.len()].copy_from_slice(data);
    buffer.set_len(data.len());
    let place = ChunkPlace {
        kind: ChunkKind::Range,
        chunk: 0,
        entry: 1,
        offset: offset as u64,
        raw_len: data.len() as u32,
    };
    let digest = of_range(data, offset as u64, false);
    let verified = Chunk { place, buffer }.verify(digest, false);
    verified.unwrap_or_else(|_| panic!("the digest is right"))
}

/// Bytes from the start whose write has returned.
fn written(ordered: &Reorder) -> u64 {
    ordered.state.lock().written
}

/// Chunks that wait for one before them.
fn waiting(ordered: &Reorder) -> usize {
    ordered.state.lock().waiting.len()
}

fn zeros(offset: usize, len: u32) -> VerifiedChunk {
    let place = ChunkPlace {
        kind: ChunkKind::Zeros,
        chunk: 0,
        entry: 1,
        offset: offset as u64,
        raw_len: len,
    };
    let buffer = Buffer::loose(C);
    let verified = Chunk { place, buffer }.verify(NONE, false);
    verified.unwrap_or_else(|_| panic!("no bytes came"))
}

fn pipe(window: usize) -> (Reorder, std::fs::File) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (ordered(write, window), read.into())
}

fn ordered(write: OwnedFd, window: usize) -> Reorder {
    let outlet = PipeOutput::own(write, "-", Stop::new()).unwrap();
    Reorder::new(outlet, window).unwrap()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn chunks_from_many_threads_leave_in_order(
        len in 1usize..100 * C,
        keys in proptest::collection::vec(any::<u16>(), 100),
    ) {
        let data = bytes(len);
        let mut order: Vec<usize> = (0..len).step_by(C).collect();
        order.sort_by_key(|at| keys[at / C % 100]);
        let (ordered, mut from) = pipe(100);
        let (send, acks) = mpsc::channel();
        let mut read = Vec::new();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| from.read_to_end(&mut read));
            let putting = (0..3).map(|thread| {
                let (order, ordered, data, send) = (&order, &ordered, &data, send.clone());
                scope.spawn(move || for at in order.iter().skip(thread).step_by(3) {
                    let piece = chunk(&data[*at..(at + C).min(data.len())], *at);
                    ordered.put(piece, |chunk| send.send(chunk.place().offset).unwrap()).unwrap();
                })
            });
            putting.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
            ordered.finish(data.len() as u64).unwrap();
            reading.join().unwrap().unwrap();
        });
        drop(send);
        let acks: Vec<_> = acks.into_iter().collect();
        prop_assert!(acks.is_sorted() && acks.len() == order.len());
        prop_assert!(read == data);
    }
}

#[test]
fn while_one_thread_waits_for_the_consumer_others_leave_theirs_and_go() {
    // Half of the chunks are more than a pipe holds, so the first thread blocks in its write.
    const N: usize = 48;
    const C: usize = 64 << 10;
    let data = bytes(N * C);
    let (ordered, mut from) = pipe(N);
    std::thread::scope(|scope| {
        let put = |n: usize| ordered.put(chunk(&data[n * C..(n + 1) * C], n * C), |_| {});
        for n in 1..N / 2 {
            assert_eq!(put(n).unwrap(), Put::Taken);
        }
        assert_eq!((written(&ordered), waiting(&ordered)), (0, N / 2 - 1));
        let blocked = scope.spawn(move || put(0).unwrap());
        for n in N / 2..N {
            assert_eq!(put(n).unwrap(), Put::Taken);
        }
        assert!(!blocked.is_finished());
        assert!(written(&ordered) < (N * C) as u64);
        let mut read = vec![0; N * C];
        from.read_exact(&mut read).unwrap();
        assert_eq!(blocked.join().unwrap(), Put::Taken);
        assert!(read == data);
        assert_eq!(put(5).unwrap(), Put::Written, "comes again");
    });
    ordered.finish((N * C) as u64).unwrap();
    assert_eq!(from.read(&mut [0]).unwrap(), 0, "the end");
}

#[test]
fn zeros_that_travelled_as_a_number_leave_as_bytes() {
    let (ordered, mut from) = pipe(4);
    let mut read = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| from.read_to_end(&mut read).unwrap());
        ordered.put(zeros(0, 200_000), |_| {}).unwrap();
        ordered.put(chunk(b"end", 200_704), |_| {}).unwrap();
        assert_eq!(waiting(&ordered), 1);
        assert!(ordered.finish(200_000).is_err(), "one waits still");
        drop(ordered);
    });
    assert_eq!(read, vec![0; 200_000]);
}

#[test]
fn what_no_honest_sender_sends_is_refused() {
    let (ordered, _from) = pipe(2);
    let data = bytes(C);
    let put = |offset| ordered.put(chunk(&data, offset), |_| {});
    assert_eq!(put(2 * C).unwrap(), Put::Taken);
    assert_eq!(put(2 * C).unwrap(), Put::Waiting);
    assert_eq!(
        ordered
            .put(chunk(&data[..9], 2 * C), |_| {})
            .unwrap_err()
            .kind,
        Kind::Breach
    );
    assert_eq!(
        ordered.put(zeros(C, 2000), |_| {}).unwrap_err().kind,
        Kind::Breach
    );
    assert_eq!(
        ordered.put(zeros(0, 0), |_| {}).unwrap_err().kind,
        Kind::Breach
    );
    put(4 * C).unwrap();
    let error = put(6 * C).unwrap_err();
    assert_eq!(
        error.message,
        "the sender sent an invalid message: more chunks than the window has room for; please \
         report this bug"
    );
    assert_eq!(waiting(&ordered), 2);
}

#[test]
fn after_a_failed_write_every_call_says_why() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let ordered = ordered(write.try_clone().unwrap(), 4);
    let data = bytes(C);
    ordered.put(chunk(&data, 0), |_| {}).unwrap();
    close_reader(read, write);
    let told = |error: Error| error.message;
    let message = "the reader closed the pipe after 1024 bytes";
    assert_eq!(
        told(ordered.put(chunk(&data, C), |_| {}).unwrap_err()),
        message
    );
    assert_eq!(
        told(ordered.put(chunk(&data, 2 * C), |_| {}).unwrap_err()),
        message
    );
    assert_eq!(told(ordered.finish(C as u64).unwrap_err()), message);
    assert_eq!(waiting(&ordered), 0, "no buffer is kept");
}

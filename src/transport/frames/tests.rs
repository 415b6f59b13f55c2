//! Frames under each suite, whole and changed on their way, and the queue's order.

use super::*;
use crate::algorithms::Suite;
use crate::chunk::ChunkPlace;
use crate::seal::{Direction, Secret};
use crate::wire::frame::FrameLimits;

const SIZE: usize = 4096;
const SUITES: [Suite; 4] = [
    Suite::None,
    Suite::Aes128Gcm,
    Suite::ChaCha20Poly1305,
    Suite::Tag,
];

fn encoded(text: &[u8]) -> EncodedChunk {
    let mut buffer = Buffer::loose(SIZE);
    buffer.room()[..text.len()].copy_from_slice(text);
    buffer.set_len(text.len());
    let place = ChunkPlace {
        kind: ChunkKind::Range,
        chunk: 7,
        entry: 2,
        offset: 3 * SIZE as u64,
        raw_len: text.len() as u32,
    };
    EncodedChunk {
        place,
        digest: [6; 32],
        codec: 0,
        buffer,
    }
}

/// The frame that a peer receives after `bytes` were sent.
fn receive(bytes: &[u8]) -> SealedChunk {
    let (header_bytes, rest) = bytes.split_first_chunk().unwrap();
    let limits = FrameLimits::new(SIZE as u32);
    let header = FrameHeader::parse(header_bytes, &limits).unwrap();
    let mut frame = SealedChunk::receive(header, header_bytes, Buffer::loose(SIZE));
    frame.payload_mut().copy_from_slice(rest);
    frame
}

#[test]
fn a_chunk_crosses_the_wire_under_each_suite() {
    for suite in SUITES {
        let secret = Secret::random();
        let sealer = Sealer::new(&secret, Direction::ToServer, suite);
        let opener = Opener::new(&secret, Direction::ToServer, suite);
        for text in [&b"some bytes"[..], &[8; SIZE]] {
            let place = encoded(text).place;
            let sent = SealedChunk::seal(encoded(text), &sealer);
            assert_eq!(sent.bytes().len(), 64 + 32 + text.len() + suite.tag_len());
            let chunk = receive(sent.bytes()).open(&opener).unwrap();
            assert_eq!(
                (chunk.place, chunk.digest, chunk.codec),
                (place, [6; 32], 0)
            );
            assert_eq!(chunk.buffer.data(), text);
        }
    }
}

#[test]
fn the_digest_does_not_travel_in_clear() {
    let sealer = Sealer::new(&Secret::random(), Direction::ToServer, Suite::preferred());
    let sent = SealedChunk::seal(encoded(b"some bytes"), &sealer);
    assert!(!sent.bytes().windows(8).any(|bytes| bytes == [6; 8]));
}

#[test]
fn a_frame_that_was_changed_on_the_way_is_refused_reserved_bytes_too() {
    for suite in SUITES.into_iter().filter(|suite| *suite != Suite::None) {
        let secret = Secret::random();
        let sealer = Sealer::new(&secret, Direction::ToServer, suite);
        let opener = Opener::new(&secret, Direction::ToServer, suite);
        let sent = SealedChunk::seal(encoded(b"some bytes"), &sealer);
        // Flags, epoch, chunk, entry, reserved twice, digest, data, tag.
        for at in [4, 8, 24, 33, 57, 63, 64, 96, sent.bytes().len() - 1] {
            let mut bytes = sent.bytes().to_vec();
            bytes[at] ^= 1;
            let opened = receive(&bytes).open(&opener).err();
            assert_eq!(opened, Some(Unsealed), "byte {at}");
        }
    }
}

#[test]
fn a_frame_that_calls_itself_unsealed_is_not_believed() {
    let secret = Secret::random();
    let plain = Sealer::new(&secret, Direction::ToServer, Suite::None);
    let opener = Opener::new(&secret, Direction::ToServer, Suite::Aes128Gcm);
    let sent = SealedChunk::seal(encoded(b"some bytes"), &plain);
    let opened = receive(sent.bytes()).open(&opener).err();
    assert_eq!(opened, Some(Unsealed));
}

fn frame(chunk: u64, kind: ChunkKind) -> SealedChunk {
    let place = ChunkPlace {
        kind,
        chunk,
        entry: 1,
        offset: chunk << 20,
        raw_len: 5,
    };
    let mut buffer = Buffer::loose(1024);
    buffer.set_len(5);
    let encoded = EncodedChunk {
        place,
        digest: [0; 32],
        codec: 0,
        buffer,
    };
    SealedChunk::seal(
        encoded,
        &Sealer::new(&Secret::random(), Direction::ToServer, Suite::Tag),
    )
}

#[tokio::test]
async fn frames_are_taken_back_from_behind_up_to_one_that_cannot_be_made_again() {
    let frames = Frames::new(8);
    for chunk in 0..3 {
        frames.put(Frame::Own(frame(chunk, ChunkKind::Range)));
    }
    frames.put(Frame::Kept(Arc::new(frame(3, ChunkKind::Range))));
    for chunk in 4..6 {
        frames.put(Frame::Own(frame(chunk, ChunkKind::Range)));
    }
    let numbers = |taken: Vec<SealedChunk>| -> Vec<u64> {
        taken.iter().map(|frame| frame.header().chunk).collect()
    };
    assert_eq!(numbers(frames.take_back(1)), [5, 4]);
    assert!(frames.take_back(1).is_empty());
    for chunk in 0..4 {
        let next = frames.take().await.expect("open");
        assert_eq!(next.header().chunk, chunk);
    }
    assert!(frames.try_take().is_none(), "no permit is left");
    frames.put(Frame::Own(frame(6, ChunkKind::Range)));
    assert!(frames.take_back(1).is_empty(), "the next one stays");
    assert_eq!(numbers(frames.take_back(0)), [6]);
    assert!(frames.try_take().is_none());
}

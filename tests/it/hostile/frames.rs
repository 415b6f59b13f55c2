//! Frames that are damaged, forged, repeated or unrequested.

use std::cell::Cell;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fastcp::chunk::{ChunkKind, ChunkPlace, GRAINS};
use fastcp::manifest::Entry;
use fastcp::seal::Direction;
use fastcp::wire::message::Message;

use super::{known, pull_case};
use crate::support::fake_server::{FakeServer, pull, pull_with};
use crate::support::inject::{self, Inject, NAMELESS};
use crate::support::peer::*;
use crate::support::*;

const SIZE: usize = 3 * MIB;
const GRAIN: usize = MIB / GRAINS;

/// A pull of one file of [`SIZE`] bytes that was announced and requested.
fn damaged(case: &Case, script: impl FnOnce(&mut FakeServer, &[u8]) + Send) -> run::Done {
    damaged_with(case, &[], script)
}

fn damaged_with(
    case: &Case,
    flags: &[&str],
    script: impl FnOnce(&mut FakeServer, &[u8]) + Send,
) -> run::Done {
    let content = noise(1, SIZE);
    known(case, &content);
    let flags = [&["--streams", "3"], flags].concat();
    pull(case, &flags, "/x/f", |mut server| {
        server.begin(root(1, "f", false));
        server.entries(vec![file(1, 0, "f", SIZE as u64)]);
        server.wanted();
        script(&mut server, &content);
        server.finish();
    })
}

/// Sends the chunks `which` of the file.
fn pieces(server: &mut FakeServer, content: &[u8], which: &[usize], stream: usize) {
    for &n in which {
        let data = &content[n * MIB..(n + 1) * MIB];
        let frame = server.keys.piece(1, (n * MIB) as u64, SIZE as u64, data);
        server.send(stream, &frame);
    }
}

/// Sends the grains with these numbers, the last one first.
fn grains(server: &mut FakeServer, content: &[u8], which: Range<usize>) {
    for n in which.rev() {
        let data = &content[n * GRAIN..(n + 1) * GRAIN];
        let frame = server.keys.piece(1, (n * GRAIN) as u64, SIZE as u64, data);
        server.send(n % 3, &frame);
    }
}

/// Sends the messages of an honest end after the last chunk.
fn close(server: &mut FakeServer, content: &[u8]) {
    server.end(1, SIZE as u64, Some(blake3::hash(content).into()));
    server.all_sent(1);
}

#[test]
fn a_wrong_digest_is_refused_and_three_times_is_the_end() {
    pull_case(|case| {
        let done = damaged(case, |server, content| {
            pieces(server, content, &[0, 1], 0);
            let place = server.keys.place(1, 2 * MIB as u64, MIB);
            let frame = server.keys.frame(place, [7; 32], &content[2 * MIB..]);
            for _ in 0..3 {
                server.send(0, &frame);
                let nack = |message: &Message| *message == Message::Nack(vec![place.chunk]);
                assert!(server.control.hear_until(nack).is_some(), "asked again");
            }
            // An honest sender would stop here.
            server.send(0, &frame);
            close(server, content);
        });
        held_out(&done).exits(6).says("failed verification 3 times");
        case.sweep();
        assert!(case.dst.names().is_empty());
    });
}

#[test]
fn a_wrong_digest_that_is_put_right_costs_nothing() {
    pull_case(|case| {
        let done = damaged(case, |server, content| {
            let place = server.keys.place(1, 0, MIB);
            let frame = server.keys.frame(place, [7; 32], &content[..MIB]);
            for _ in 0..2 {
                server.send(0, &frame);
                let nack = |message: &Message| *message == Message::Nack(vec![place.chunk]);
                assert!(server.control.hear_until(nack).is_some(), "asked again");
            }
            pieces(server, content, &[0, 1, 2], 1);
            close(server, content);
        });
        done.succeeds();
        assert_eq!(case.dst.read("f"), noise(1, SIZE));
    });
}

/// The digests of all chunks are right, but the digest of the whole file is wrong.
#[test]
fn a_wrong_root_leaves_no_file() {
    pull_case(|case| {
        let done = damaged(case, |server, content| {
            pieces(server, content, &[0, 1, 2], 0);
            server.end(1, SIZE as u64, Some([7; 32]));
            server.all_sent(1);
        });
        held_out(&done).exits(7);
        assert!(case.dst.names().is_empty());
    });
    // The length differs from the announced one.
    for length in [0, 1, SIZE as u64 - 1, SIZE as u64 + 1, u64::MAX] {
        pull_case(|case| {
            let done = damaged(case, |server, content| {
                pieces(server, content, &[0, 1, 2], 0);
                server.end(1, length, Some(blake3::hash(content).into()));
                server.all_sent(1);
            });
            held_out(&done).exits(7);
            assert!(case.dst.names().is_empty());
        });
    }
}

/// A frame that was not sealed with the session's key ends its stream, but no other stream.
#[test]
fn a_wrong_tag_ends_the_stream_and_not_the_copy() {
    type Spoil = fn(&mut FakeServer, Vec<u8>) -> Vec<u8>;
    let spoils: [Spoil; 7] = [
        // The tag, the data, the digest; entry, offset, chunk and reserved bytes of the header.
        |_, mut frame| {
            *frame.last_mut().expect("a tag") ^= 1;
            frame
        },
        |_, mut frame| {
            frame[5000] ^= 1;
            frame
        },
        |_, mut frame| {
            frame[70] ^= 1;
            frame
        },
        |_, mut frame| {
            frame[45] ^= 0x20;
            frame
        },
        |_, mut frame| {
            frame[24] ^= 1;
            frame
        },
        |_, mut frame| {
            frame[60] ^= 1;
            frame
        },
        // Another session's key.
        |server, _| {
            let stranger = Keys::new(&server.open, [9; 32], Direction::ToClient);
            let place = ChunkPlace {
                kind: ChunkKind::Range,
                chunk: 0,
                entry: 1,
                offset: 0,
                raw_len: MIB as u32,
            };
            let data = vec![6; MIB];
            let digest = fastcp::digest::of_range(&data, 0, false);
            stranger.frame(place, digest, &data)
        },
    ];
    for spoil in spoils {
        pull_case(|case| {
            let done = damaged(case, |server, content| {
                let frame = server.keys.piece(1, 0, SIZE as u64, &content[..MIB]);
                let frame = spoil(server, frame);
                server.send(0, &frame);
                pieces(server, content, &[1, 2, 0], 1);
                close(server, content);
            });
            done.succeeds();
            assert_eq!(case.dst.read("f"), noise(1, SIZE));
        });
    }
}

/// A frame sealed for the other direction is not the sender's.
#[test]
fn a_frame_that_is_reflected_is_not_taken() {
    pull_case(|case| {
        let done = damaged(case, |server, content| {
            let secret = server.keys.keyring.secret.expose();
            let reflected = Keys::new(&server.open, *secret, Direction::ToServer);
            let place = server.keys.place(1, 0, MIB);
            let evil = vec![6; MIB];
            let digest = fastcp::digest::of_range(&evil, 0, false);
            let frame = reflected.frame(place, digest, &evil);
            server.send(0, &frame);
            pieces(server, content, &[0, 1, 2], 2);
            close(server, content);
        });
        done.succeeds();
        assert_eq!(case.dst.read("f"), noise(1, SIZE));
    });
}

#[test]
fn headers_of_nonsense_end_the_stream_and_not_the_copy() {
    pull_case(|case| {
        let done = damaged(case, |server, content| {
            server.send(0, &noise(3, 100_000));
            // Lengths that would take 4 GiB.
            let mut frame = server.keys.piece(1, 0, SIZE as u64, &content[..MIB]);
            frame[48..56].fill(0xff);
            server.send(1, &frame);
            pieces(server, content, &[0, 1, 2], 2);
            close(server, content);
        });
        done.succeeds();
        assert_eq!(case.dst.read("f"), noise(1, SIZE));
    });
}

#[test]
fn when_every_stream_brings_nonsense_the_copy_ends() {
    pull_case(|case| {
        let flags = ["--timeout", "5s", "--retries", "0"];
        let done = damaged_with(case, &flags, |server, _| {
            for stream in 0..3 {
                server.send(stream, &noise(3, 100_000));
            }
            server.beat_for(Duration::from_secs(25));
        });
        held_out(&done).exits(5).says("streams were lost");
        assert!(case.dst.names().is_empty());
    });
}

#[test]
fn a_replayed_frame_changes_nothing() {
    pull_case(|case| {
        let done = damaged(case, |server, content| {
            let frame = server.keys.piece(1, 0, SIZE as u64, &content[..MIB]);
            for n in 0..50 {
                server.send(n % 3, &frame);
            }
            // Other bytes for the same range, correctly sealed: the first frame counts.
            let done = |message: &Message| matches!(message, Message::Ack(_));
            server.control.hear_until(done);
            let other = server.keys.piece(1, 0, SIZE as u64, &noise(9, MIB));
            server.send(0, &other);
            pieces(server, content, &[1, 2], 1);
            server.send(2, &frame);
            close(server, content);
        });
        done.succeeds();
        assert_eq!(case.dst.read("f"), noise(1, SIZE));
    });
}

/// Frames that arrive after a file has its final name change nothing.
#[test]
fn a_frame_of_a_file_in_place_changes_nothing() {
    pull_case(|case| {
        let content = noise(1, SIZE);
        known(case, &content);
        let done = pull(case, &["-r", "--streams", "2"], "/x/tree", |mut server| {
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree")]);
            server.whole_file(file(2, 1, "f", 0), &content);
            let placed = |message: &Message| matches!(message, Message::Ack(ack) if ack.entries.iter().any(|span| (span.start..span.end).contains(&2)));
            server.control.hear_until(placed);
            let evil = server.keys.piece(2, 0, SIZE as u64, &noise(9, MIB));
            server.send(0, &evil);
            let unknown = server.keys.piece(77, 0, SIZE as u64, &noise(9, MIB));
            server.send(0, &unknown);
            server.end(2, 1, None);
            server.end(77, 1, None);
            server.end(1, 1, None);
            server.all_sent(2);
            server.finish();
        });
        readable(&done);
        assert_eq!(case.dst.read("tree/f"), content);
    });
}

#[test]
fn a_range_that_the_file_does_not_have_ends_the_copy() {
    type Odd = (ChunkKind, u64, u32);
    let mib = MIB as u64;
    let zeros = ChunkKind::Zeros;
    let ranges: [Odd; 13] = [
        (ChunkKind::Range, 3 * mib, 1),
        // Not a subtree of the file's digest, or smaller than a grain.
        (ChunkKind::Range, GRAIN as u64, 2 * GRAIN as u32),
        (ChunkKind::Range, 0, 3 * GRAIN as u32),
        (ChunkKind::Range, GRAIN as u64 / 2, GRAIN as u32 / 2),
        (ChunkKind::Range, 2 * mib, MIB as u32 - 1),
        (ChunkKind::Range, 1 << 40, MIB as u32),
        (ChunkKind::Range, (1 << 63) - mib, MIB as u32),
        (ChunkKind::Range, 1 << 63, MIB as u32),
        (zeros, 0, 1 << 31),
        (zeros, 3 * mib, MIB as u32),
        (zeros, mib, 3 * MIB as u32),
        (zeros, mib, 5),
        (zeros, (1 << 63) - mib, 1 << 31),
    ];
    for (kind, offset, raw_len) in ranges {
        pull_case(|case| {
            let done = damaged(case, |server, _| {
                let data = match kind {
                    ChunkKind::Zeros => vec![],
                    _ => vec![6; raw_len as usize],
                };
                let digest = match kind {
                    ChunkKind::Zeros => [0; 32],
                    _ => fastcp::digest::of_range(&data, offset, false),
                };
                let place = ChunkPlace {
                    kind,
                    raw_len,
                    ..server.keys.place(1, offset, 1)
                };
                let frame = server.keys.frame(place, digest, &data);
                server.send(0, &frame);
            });
            held_out(&done).exits(13).says("an invalid message");
            assert!(case.dst.names().is_empty());
        });
    }
}

/// Frames that overlap ranges already written.
#[test]
fn ranges_that_overlap_end_the_copy() {
    type Overlap = fn(&mut FakeServer, &[u8]);
    let overlaps: [Overlap; 2] = [
        |server, _| {
            let place = ChunkPlace {
                kind: ChunkKind::Zeros,
                raw_len: SIZE as u32,
                ..server.keys.place(1, 0, 1)
            };
            let frame = server.keys.frame(place, [0; 32], &[]);
            server.send(0, &frame);
        },
        |server, content| pieces(server, content, &[0], 0),
    ];
    for overlap in overlaps {
        pull_case(|case| {
            let done = damaged(case, |server, content| {
                grains(server, content, 7..9);
                // Both have arrived; they may be acknowledged one by one.
                let acked = Cell::new(0);
                let both_acked = |message: &Message| {
                    if let Message::Ack(ack) = message {
                        let chunks = ack.chunks.iter().map(|span| span.end - span.start);
                        acked.set(acked.get() + chunks.sum::<u64>());
                    }
                    acked.get() == 2
                };
                server.control.hear_until(both_acked);
                overlap(server, content);
            });
            held_out(&done).exits(13).says("an invalid message");
            assert!(case.dst.names().is_empty());
        });
    }
}

/// As at the end of a copy: in parts of chunks, large and small, in any order.
#[test]
fn a_file_in_parts_of_chunks_is_the_file() {
    pull_case(|case| {
        let done = damaged(case, |server, content| {
            grains(server, content, 20..24);
            let four = 16 * GRAIN..20 * GRAIN;
            let (offset, data) = (four.start as u64, &content[four]);
            let frame = server.keys.piece(1, offset, SIZE as u64, data);
            server.send(1, &frame);
            grains(server, content, 8..16);
            pieces(server, content, &[0], 2);
            close(server, content);
        });
        done.succeeds();
        assert_eq!(case.dst.read("f"), noise(1, SIZE));
    });
}

#[test]
fn a_size_that_no_file_can_have_is_said() {
    for size in [1 << 63, u64::MAX, (1 << 63) - 1, 1 << 62] {
        for sparse in [false, true] {
            pull_case(|case| {
                let done = pull(case, &[], "/x/f", |mut server| {
                    server.begin(root(1, "f", false));
                    let allocated = if sparse { 0 } else { size };
                    server.entries(vec![Entry {
                        allocated,
                        ..file(1, 0, "f", size)
                    }]);
                    server.wanted();
                    server.end(1, size, None);
                    server.all_sent(1);
                    // The file system may allow such a size, but the rest never arrives.
                    server.leave();
                    server.finish();
                });
                held_out(&done);
                assert!([5, 8].contains(&done.code.expect("an exit code")), "{done}");
                assert!(case.dst.names().is_empty());
            });
        }
    }
}

/// A chunk that would decode to more bytes than it announces.
#[test]
fn what_does_not_decode_is_asked_for_again() {
    pull_case(|case| {
        let done = damaged(case, |server, content| {
            // The sender itself seals a wrong codec number. A number changed after sealing would
            // be a wrong tag.
            let place = server.keys.place(1, 0, MIB);
            let bomb = zstd_bomb(&server.keys, place);
            server.send(0, &bomb);
            let nack = |message: &Message| *message == Message::Nack(vec![place.chunk]);
            assert!(server.control.hear_until(nack).is_some(), "asked again");
            pieces(server, content, &[0, 1, 2], 1);
            close(server, content);
        });
        done.succeeds();
        let peak = done.peak_rss_bytes() / MIB as u64;
        assert!(peak < 100, "took {peak} MiB");
    });
}

/// 64 MiB of zeros in some kilobytes, announced as 1 MiB.
fn zstd_bomb(keys: &Keys, place: ChunkPlace) -> Vec<u8> {
    use fastcp::chunk::{Buffer, EncodedChunk};
    let bytes = zstd::bulk::compress(&vec![0; 64 * MIB], 1).expect("compress");
    let mut buffer = Buffer::loose(keys.chunk_size);
    buffer.room()[..bytes.len()].copy_from_slice(&bytes);
    buffer.set_len(bytes.len());
    let encoded = EncodedChunk {
        place,
        digest: [7; 32],
        codec: fastcp::algorithms::Codec::Zstd.number(),
        buffer,
    };
    fastcp::transport::frames::SealedChunk::seal(encoded, &keys.sealer)
        .bytes()
        .to_vec()
}

/// A sender takes a large pack apart while a second copy of it arrives after all: two workers then have
/// the same file.
#[test]
fn a_file_that_comes_in_two_packs_is_placed_once() {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    pull_case(|case| {
        known(case, b"small");
        let held = Inject::new().hold("link").on(NAMELESS).nth(1);
        let flags = ["-r", "--threads", "2", "--summary"];
        let done = pull_with(case, &held, &flags, |mut server| {
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree")]);
            let members = [(file(2, 1, "f", 5), &b"small"[..])];
            let whole = server.keys.pack(&members);
            server.send(0, &whole);
            held.wait_until_struck(1);
            let part = server.keys.pack(&members);
            server.send(1, &part);
            let is_done = |message: &Message| match message {
                Message::Ack(ack) => ack.chunks.iter().any(|it| (it.start..it.end).contains(&1)),
                _ => false,
            };
            server.control.hear_until(is_done).expect("it is done");
            held.release();
            server.end(1, 1, None);
            server.all_sent(2);
            server.finish();
        });
        done.succeeds().says("1 file, 5 B");
        assert_eq!(case.dst.read("tree/f"), b"small");
    });
}

/// Its partial file is removed before its directory gets its times.
#[test]
fn a_file_with_another_digest_is_removed_before_its_directory_is_complete() {
    pull_case(|case| {
        let content = noise(1, SIZE);
        let done = pull(case, &["-r", "-p"], "/x/tree", |mut server| {
            server.begin(root(1, "tree", true));
            let size = SIZE as u64;
            server.entries(vec![directory(1, 0, "tree"), file(2, 1, "f", size)]);
            server.wanted();
            server.end(1, 1, None);
            for (n, data) in content.chunks(MIB).enumerate() {
                let frame = server.keys.piece(2, (n * MIB) as u64, size, data);
                server.send(0, &frame);
            }
            server.end(2, size, Some([0; 32]));
            server.all_sent(2);
            server.finish();
        });
        held_out(&done).says("digests of the whole file differ");
        let meta = case.dst.meta("tree");
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 0));
        assert_eq!(case.dst.dir("tree").names(), [""; 0]);
    });
}

//! Lists that take a byte on the wire and fifty in memory.

use std::os::unix::fs::MetadataExt;

use fastcp::chunk::{ChunkKind, Place};
use fastcp::wire::message::{HEADER_LEN, Message};

use super::{known, pull_case};
use crate::support::fake_server::{pull, push};
use crate::support::peer::*;
use crate::support::*;

/// What the client may take without buffers of its pool.
const MOST: u64 = 64 * MIB as u64;

/// A body of `bytes` that begins like a list of as many elements, each of them zeros.
fn many(number: u16, bytes: usize) -> Vec<u8> {
    let mut body = postcard::to_allocvec(&(bytes as u64 / 2)).expect("a number");
    body.resize(bytes, 0);
    raw(number, bytes as u32, &body)
}

/// Every type of message, with the longest list that a body has room for.
fn lists() -> Vec<Vec<u8>> {
    let sizes = [8 << 20, 4 << 20, 1 << 20, 64 << 10];
    let types = (1..=30).flat_map(|number| sizes.map(|bytes| many(number, bytes)));
    types.collect()
}

#[test]
fn the_longest_lists_take_little_memory_at_a_receiver() {
    // All in one go: the first that is refused ends the copy, so each type comes first once.
    let lists = lists();
    for said in lists.chunks(4) {
        pull_case(|case| {
            let done = pull(case, &["-r"], "/x/tree", |mut server| {
                server.begin(root(1, "tree", true));
                server.entries(vec![directory(1, 0, "tree")]);
                for _ in 0..4 {
                    said.iter().for_each(|one| server.control.bytes(one));
                }
                server.finish();
            });
            held_out(&done).exits(13).says("broke the protocol");
            let peak = done.peak_rss_bytes;
            let number = u16::from_le_bytes([said[0][0], said[0][1]]);
            assert!(peak < MOST, "{number}: {} MiB", peak / MIB as u64);
        });
    }
}

/// Also while the client still looks for what it has to send.
#[test]
fn the_longest_lists_take_little_memory_at_a_sender() {
    for number in [6, 8, 9, 10, 11, 17] {
        pull_case(|case| {
            let source = case.src.dir("tree");
            for n in 0..3000 {
                source.file(format!("{n}"), "x");
            }
            let done = push(case, &["-r"], &source.0, |mut server| {
                for _ in 0..5 {
                    for bytes in [8 << 20, 4 << 20, 64 << 10] {
                        server.control.bytes(&many(number, bytes));
                    }
                }
                server.finish();
            });
            held_out(&done).exits(13).says("broke the protocol");
            let peak = done.peak_rss_bytes;
            assert!(peak < MOST, "{number}: {} MiB", peak / MIB as u64);
        });
    }
}

/// No message is longer in memory than its type allows, whatever its body says.
#[test]
fn a_message_weighs_no_more_than_some_bodies() {
    for said in lists() {
        let number = u16::from_le_bytes([said[0], said[1]]);
        if let Ok(Some(message)) = Message::decode(number, &said[HEADER_LEN..]) {
            assert!(
                message.weight() < 32 * MIB,
                "{number}: {}",
                message.weight()
            );
        }
    }
}

/// 96 bytes that stand for 64 megabytes take no more of the disk than was announced.
#[test]
fn zeros_take_no_room_that_was_not_announced() {
    const SIZE: usize = 64 * MIB;
    pull_case(|case| {
        let content = vec![0; SIZE];
        known(case, &content);
        let done = pull(case, &["-r"], "/x/tree", |mut server| {
            // With no room announced at all.
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree"), file(2, 1, "f", SIZE as u64)]);
            server.wanted();
            let place = server.keys.place(2, 0, SIZE);
            let zeros = Place {
                kind: ChunkKind::Zeros,
                ..place
            };
            let frame = server.keys.frame(zeros, fastcp::digest::NONE, &[]);
            server.send(0, &frame);
            let whole = blake3::hash(&content);
            server.end(2, SIZE as u64, Some(whole.into()));
            server.end(1, 1, None);
            server.all_sent(2);
            server.finish();
        });
        done.succeeds();
        let meta = case.dst.meta("tree/f");
        assert_eq!(meta.len(), SIZE as u64);
        assert!(meta.blocks() * 512 < MIB as u64, "{}", meta.blocks());
    });
}

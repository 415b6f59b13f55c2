//! How a sender answers requests. The fake receiver keeps to the protocol and checks what arrives:
//! ranges that are already there, digests ahead of chunks, questions about small files, and files
//! that change during the read.

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use fastcp::chunk::{ChunkKind, GRAINS};
use fastcp::digest::{Tree, of_range};
use fastcp::manifest::{ANEW, Entry, Extension, YOUNG};
use fastcp::session::host;
use fastcp::wire::frame::FrameHeader;
use fastcp::wire::hello::Hello;
use fastcp::wire::message::{
    Ack, ByteRange, EntryEnd, Message, NumberRanges, RootsResolved, Want, WantKind,
};

use crate::support::fake_server::{FakeServer, push_as};
use crate::support::peer::*;
use crate::support::*;

const M: u64 = MIB as u64;

/// Longest wait for a frame after a request, with a margin for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Peer<'a> {
    server: &'a mut FakeServer,
    frames: Receiver<FrameHeader>,
    /// `AllSent` was read.
    has_all: bool,
}

/// Pushes `what` in whole chunks to the fake receiver until the copy ends.
fn pushed(
    case: &Case,
    flags: &[&str],
    what: &str,
    resumes: bool,
    script: impl FnOnce(&mut Peer) + Send,
) -> run::Done {
    let hello = host::hello().without_grains();
    pushed_as(case, &hello, flags, what, resumes, script)
}

fn pushed_as(
    case: &Case,
    hello: &Hello,
    flags: &[&str],
    what: &str,
    resumes: bool,
    script: impl FnOnce(&mut Peer) + Send,
) -> run::Done {
    let flags = [&["-r", "--streams", "2", "--compress", "none"], flags].concat();
    push_as(case, hello, &flags, &case.src.path(what), |mut server| {
        server.listen();
        let frames = server.frames();
        server.hear_roots();
        let names = vec![b"there".to_vec()];
        server.say(Message::Landed(RootsResolved {
            names,
            resumes,
            ordered: false,
            window: 64,
        }));
        let mut peer = Peer {
            server: &mut server,
            frames,
            has_all: false,
        };
        script(&mut peer);
        server.finish();
    })
}

impl Peer<'_> {
    fn entries(&mut self) -> Vec<Entry> {
        let entries = |message: &Message| matches!(message, Message::Entries(_));
        match self.hear_until(entries) {
            Some(Message::Entries(entries)) => entries,
            _ => panic!("the sender has gone"),
        }
    }

    fn want(&mut self, kind: WantKind) {
        self.server
            .say(Message::Want(vec![Want { entry: 1, kind }]));
    }

    fn end(&mut self) -> EntryEnd {
        let end = |message: &Message| matches!(message, Message::EntryEnd(_));
        match self.hear_until(end) {
            Some(Message::EntryEnd(mut ends)) => ends.remove(0),
            _ => panic!("the sender has gone"),
        }
    }

    fn frame(&mut self) -> FrameHeader {
        self.frames.recv_timeout(PATIENCE).expect("another frame")
    }

    /// The next `count` frames of a file, ordered by offset.
    fn pieces(&mut self, count: usize) -> Vec<FrameHeader> {
        let mut pieces: Vec<_> = (0..count).map(|_| self.frame()).collect();
        pieces.sort_by_key(|piece| piece.offset);
        pieces
    }

    fn ack_chunks(&mut self, pieces: &[FrameHeader]) {
        let one = |piece: &FrameHeader| span(piece.chunk, piece.chunk + 1);
        let chunks = pieces.iter().map(one).collect();
        self.ack(chunks, vec![]);
    }

    fn ack(&mut self, chunks: Vec<ByteRange>, entries: Vec<ByteRange>) {
        self.server.say(Message::Ack(Ack {
            chunks: chunks.into_iter().collect(),
            entries: entries.into_iter().collect(),
            failed: NumberRanges::default(),
        }));
    }

    /// Reads messages up to one like this; None if the sender has gone.
    fn hear_until(&mut self, wanted: impl Fn(&Message) -> bool) -> Option<Message> {
        loop {
            let message = self.server.control.hear()?;
            self.has_all |= matches!(message, Message::AllSent(_));
            if wanted(&message) {
                return Some(message);
            }
        }
    }

    /// Waits until the sender has planned everything.
    fn all_sent(&mut self) {
        if !self.has_all {
            self.hear_until(|message| matches!(message, Message::AllSent(_)));
        }
    }

    /// Tells the sender that everything is in place. No receiver says so before `AllSent`.
    fn done(&mut self, pieces: &[FrameHeader], last: u64) {
        self.all_sent();
        self.ack_chunks(pieces);
        self.ack(vec![], vec![span(1, last + 1)]);
        self.server.say(Message::Done(()));
    }
}

fn big_case(size: usize, body: impl FnOnce(&Case, Vec<u8>)) {
    Case::run(Way::LocalPush, |case| {
        let content = noise(1, size);
        case.src.file("big", &content);
        body(case, content);
    });
}

/// The digests of these chunks, merged as far as possible.
fn have(content: &[u8], chunks: &[u64]) -> WantKind {
    let mut tree = Tree::new(content.len() as u64, M);
    for chunk in chunks {
        let offset = chunk * M;
        let data = &content[offset as usize..content.len().min((offset + M) as usize)];
        tree.add(offset, of_range(data, offset, false));
    }
    let values = tree.frontier();
    WantKind::Have(
        values
            .map(|(range, value)| (span(range.start, range.end), value))
            .collect(),
    )
}

#[test]
fn what_the_receiver_has_is_not_sent_and_the_digest_is_of_all() {
    big_case(9 * MIB + 5000, |case, content| {
        let done = pushed(case, &[], "big", false, |peer| {
            peer.entries();
            peer.want(have(&content, &[0, 1, 2, 3, 6, 9]));
            assert_eq!(peer.end().root, Some(*blake3::hash(&content).as_bytes()));
            let pieces = peer.pieces(4);
            let offsets: Vec<u64> = pieces.iter().map(|piece| piece.offset / M).collect();
            assert_eq!(offsets, [4, 5, 7, 8]);
            peer.done(&pieces, 1);
        });
        done.succeeds();
    });
}

/// Small pieces at the start limit the data sent before the link is known. Small pieces at the end
/// keep one connection from sending a whole chunk after the others have finished.
#[test]
fn a_copy_begins_and_ends_in_small_parts_of_chunks() {
    big_case(12 * MIB + 5000, |case, content| {
        let done = pushed_as(case, &host::hello(), &[], "big", false, |peer| {
            peer.entries();
            // By then the sender knows that no more entries follow.
            peer.all_sent();
            peer.want(have(&content, &[0, 6]));
            let mut covered = 2 * M;
            let mut pieces = Vec::new();
            while covered < content.len() as u64 {
                pieces.extend(peer.pieces(1));
                covered += u64::from(pieces.last().expect("one").raw_len);
            }
            pieces.sort_by_key(|piece| piece.offset);
            let lens: Vec<usize> = pieces.iter().map(|it| it.raw_len as usize).collect();
            let whole = lens.iter().rposition(|len| *len == MIB);
            let (begin, end) = lens.split_at(whole.expect("a whole chunk") + 1);
            assert!(begin.is_sorted(), "{lens:?}");
            assert!(end.is_sorted_by_key(std::cmp::Reverse), "{lens:?}");
            for part in [begin, end] {
                let finest = part.iter().filter(|len| **len == MIB / GRAINS);
                assert!(finest.count() >= 4, "{lens:?}");
            }
            assert_eq!(peer.end().root, Some(*blake3::hash(&content).as_bytes()));
            peer.done(&pieces, 1);
        });
        done.succeeds();
    });
}

#[test]
fn a_file_that_the_receiver_has_all_of_ends_without_a_chunk() {
    big_case(3 * MIB + 1, |case, content| {
        let done = pushed(case, &[], "big", false, |peer| {
            peer.entries();
            // A receiver reads such a file while others are sent, and would request its damaged
            // chunks.
            peer.want(have(&content, &[0, 1, 2, 3]));
            peer.all_sent();
            peer.done(&[], 1);
            assert!(peer.frames.try_recv().is_err(), "a frame was sent");
        });
        done.succeeds();
    });
}

/// A refused digest does not count as damage: the chunk may still be damaged as often as any other.
#[test]
fn digests_go_ahead_and_what_is_refused_goes_whole() {
    big_case(6 * MIB, |case, content| {
        let done = pushed(case, &[], "big", false, |peer| {
            peer.entries();
            peer.want(WantKind::Compare(vec![span(0, 2 * M), span(3 * M, 4 * M)]));
            let pieces = peer.pieces(6);
            let kinds: Vec<_> = pieces.iter().map(|piece| piece.kind).collect();
            use ChunkKind::{Anchors, Digest, Range};
            assert_eq!(kinds, [Digest, Digest, Range, Digest, Range, Range]);
            assert!(pieces.iter().all(|piece| piece.raw_len as u64 == M));
            // Content that has moved is offered once more.
            for kind in [Anchors, Range, Range, Range] {
                peer.server.say(Message::Nack(vec![pieces[1].chunk]));
                let again = peer.frame();
                assert_eq!((again.kind, again.chunk), (kind, pieces[1].chunk));
            }
            assert_eq!(peer.end().root, Some(*blake3::hash(&content).as_bytes()));
            peer.done(&pieces, 1);
        });
        done.succeeds();
    });
}

/// The sender asks all questions before the first answer, so no question waits for another.
#[test]
fn small_files_are_asked_about_and_only_those_wanted_are_sent() {
    Case::run(Way::LocalPush, |case| {
        const FILES: u64 = 700;
        for n in 0..FILES {
            case.src.file(format!("tree/{}/{n}", n % 3), noise(n, 1000));
        }
        let done = pushed(case, &[], "tree", true, |peer| {
            let (mut asked, mut directories) = (BTreeSet::new(), BTreeSet::new());
            let mut batches = 0;
            while (asked.len() as u64) < FILES {
                match peer.server.control.hear().expect("the sender is there") {
                    Message::Ask(entries) => {
                        assert!(entries.len() <= 256);
                        batches += 1;
                        for entry in entries {
                            assert!(directories.contains(&entry.parent), "announced before");
                            asked.insert(entry.id);
                        }
                    }
                    Message::Entries(entries) => directories.extend(entries.iter().map(|e| e.id)),
                    _ => {}
                }
            }
            assert!(batches >= 3);
            let fresh: BTreeSet<u64> = asked.iter().copied().filter(|id| id % 200 == 7).collect();
            let wants = asked.iter().map(|id| Want {
                entry: *id,
                kind: if fresh.contains(id) {
                    WantKind::Fresh
                } else {
                    WantKind::Skip
                },
            });
            peer.server.say(Message::Want(wants.collect()));
            let pack = peer.frame();
            assert_eq!(pack.kind, ChunkKind::Pack);
            let content = fresh.len() as u32 * 1000;
            assert!((content..2 * content).contains(&pack.raw_len), "only those");
            peer.done(&[pack], FILES + 4);
        });
        done.succeeds();
    });
}

/// The receiver discards the file's chunks with lower numbers than this.
fn first_of_second_reading(entry: &Entry) -> u64 {
    let extension = entry.extensions.iter().find(|one| one.tag == ANEW);
    let bytes = &extension.expect("it is read again").bytes;
    u64::from_le_bytes(bytes[..].try_into().expect("eight bytes"))
}

#[test]
fn a_file_that_changed_while_it_was_read_is_read_once_more() {
    for changes in [1, 2] {
        big_case(3 * MIB, |case, _| {
            let src = &case.src;
            let done = pushed(case, &[], "big", false, |peer| {
                let first_time = |one: &Extension| one.tag == YOUNG;
                assert!(peer.entries()[0].extensions.iter().all(first_time));
                src.append("big", "more");
                peer.want(WantKind::Fresh);
                let old = peer.pieces(3);
                let entry = peer.entries().remove(0);
                let first = first_of_second_reading(&entry);
                assert!(old.iter().all(|piece| piece.chunk < first));
                assert_eq!((entry.id, entry.size), (1, 3 * M + 4));
                // The sender ignores answers about the former read.
                peer.ack_chunks(&old);
                peer.server.say(Message::Nack(vec![old[0].chunk]));
                let second = src.read("big");
                // If it only grows again, it is not read a third time.
                if changes == 2 {
                    src.append("big", "and more");
                }
                peer.want(WantKind::Fresh);
                let pieces = peer.pieces(4);
                assert!(pieces.iter().all(|piece| piece.chunk >= first));
                let end = peer.end();
                assert_eq!(end.root, Some(*blake3::hash(&second).as_bytes()));
                peer.done(&pieces, 1);
            });
            match changes {
                1 => done.succeeds(),
                _ => done.exits(14).says("only its first 3.15 MB were copied"),
            };
        });
    }
}

#[test]
fn a_live_file_is_sent_up_to_the_end_that_is_left() {
    for (left, frames) in [(3 * MIB / 2, 2), (2 * MIB, 2), (0, 0)] {
        big_case(4 * MIB, |case, content| {
            let src = &case.src;
            let done = pushed(case, &["--live"], "big", false, |peer| {
                assert_eq!(peer.entries()[0].size, 4 * M);
                std::fs::File::options()
                    .write(true)
                    .open(src.path("big"))
                    .and_then(|file| file.set_len(left as u64))
                    .expect("cut the file");
                peer.want(WantKind::Fresh);
                let pieces = peer.pieces(frames);
                let end = peer.end();
                assert_eq!((end.length, end.root), (left as u64, None));
                assert_eq!(src.read("big"), content[..left]);
                peer.done(&pieces, 1);
            });
            done.succeeds();
        });
    }
}

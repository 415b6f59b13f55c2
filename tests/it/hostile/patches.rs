//! Patches and the digests of pages: from a sender that lies, and from a receiver that does.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use fastcp::chunk::ChunkKind;
use fastcp::chunk::anchors::{self, ANCHOR_LEN};
use fastcp::chunk::patch::{PAGE, PAGE_SECRET_LEN, PageHasher, make};
use fastcp::digest::of_range;
use fastcp::manifest::{Entry, EntryKind};
use fastcp::wire::frame::FrameHeader;
use fastcp::wire::message::{Ack, DifferingChunk, Message, NumberRanges, Want, WantKind};

use super::{known, pull_case};
use crate::support::fake_server::{FakeServer, pull, push};
use crate::support::peer::*;
use crate::support::*;

const SIZE: usize = 2 * MIB;

fn old() -> Vec<u8> {
    noise(1, SIZE)
}

/// The old version with one changed page in each chunk.
fn new() -> Vec<u8> {
    let mut new = old();
    new[5 * PAGE] ^= 1;
    new[MIB + 7 * PAGE] ^= 1;
    new
}

/// A pull of a file whose old version is there, up to the request.
fn pulled(
    case: &Case,
    flags: &[&str],
    script: impl FnOnce(&mut FakeServer, Vec<Want>) + Send,
) -> run::Done {
    case.dst.file("f", old());
    known(case, &old());
    known(case, &new());
    let flags = [&["--streams", "2"], flags].concat();
    pull(case, &flags, "/x/f", |mut server| {
        server.begin(root(1, "f", false));
        server.entries(vec![file(1, 0, "f", SIZE as u64)]);
        let Some(Message::Want(wants)) = server
            .control
            .hear_until(|message| matches!(message, Message::Want(_)))
        else {
            panic!("nothing was wanted");
        };
        script(&mut server, wants);
        server.finish();
    })
}

/// The digest of a chunk, then a patch of it.
fn digest_and_patch(server: &mut FakeServer, chunk: usize, patch: &[u8]) {
    let data = &new()[chunk * MIB..][..MIB];
    let digest = of_range(data, (chunk * MIB) as u64, false);
    let mut place = server.keys.place(1, (chunk * MIB) as u64, MIB);
    place.kind = ChunkKind::Digest;
    let frame = server.keys.frame(place, digest, &[]);
    server.send(0, &frame);
    let differs = |message: &Message| matches!(message, Message::Differs(_));
    let Some(Message::Differs(differing)) = server.control.hear_until(differs) else {
        panic!("it differs");
    };
    assert_eq!(differing.chunk, place.chunk);
    let existing = server
        .keys
        .page_hasher
        .digests(&old()[chunk * MIB..][..MIB]);
    assert_eq!(differing.pages, existing);
    place.kind = ChunkKind::Patch;
    let frame = server.keys.frame(place, digest, patch);
    server.send(1, &frame);
    if patch != right(chunk) {
        // No sign of damage, but all of the chunk is needed now.
        let nack = |message: &Message| *message == Message::Nack(vec![place.chunk]);
        assert!(server.control.hear_until(nack).is_some(), "asked again");
        place.kind = ChunkKind::Range;
        let frame = server.keys.frame(place, digest, data);
        server.send(1, &frame);
    }
}

fn right(chunk: usize) -> Vec<u8> {
    let (patch, fresh) = patch_of(&old()[chunk * MIB..][..MIB], &new()[chunk * MIB..][..MIB]);
    assert_eq!(fresh, PAGE);
    patch
}

/// The patch of a chunk for a receiver that says that it has the pages of `told`, and how many of its
/// bytes are new. It is the same whatever the secret of the digests is.
fn patch_of(told: &[u8], new: &[u8]) -> (Vec<u8>, usize) {
    let hasher = PageHasher::new([7; PAGE_SECRET_LEN]);
    let mut patch = vec![0; MIB];
    let made = make(new, &hasher.digests(told), &hasher, &mut patch);
    let (len, fresh) = made.expect("it is short");
    patch.truncate(len);
    (patch, fresh)
}

#[test]
fn whatever_a_patch_says_the_file_is_right() {
    let right = right(1);
    let bent = |at: usize| {
        let mut bent = right.clone();
        bent[at] ^= 0x55;
        bent
    };
    // As if the changed page had the digest of the existing one.
    let (seems_same, fresh) = patch_of(&new()[MIB..], &new()[MIB..]);
    assert_eq!(fresh, 0);
    let patches = [
        right.clone(),
        seems_same,
        vec![0],
        vec![0xff; 5000],
        right[..right.len() - 1].to_vec(),
        [&right[..], &[0]].concat(),
        bent(0),
        bent(4),
        bent(right.len() - 1),
    ];
    for flags in [&[][..], &["--inplace"]] {
        for patch in &patches {
            pull_case(|case| {
                let done = pulled(case, flags, |server, wants| {
                    assert_eq!(wants[0].kind, WantKind::Compare(vec![span(0, SIZE as u64)]));
                    digest_and_patch(server, 0, &self::right(0));
                    digest_and_patch(server, 1, patch);
                    server.end(1, SIZE as u64, Some(blake3::hash(&new()).into()));
                    server.all_sent(1);
                });
                done.succeeds();
                assert!(case.dst.read("f") == new());
            });
        }
    }
}

/// The digest of the second chunk with these anchors, then a patch of what the receiver says it has.
fn anchors_and_patch(server: &mut FakeServer, anchors: &[u8]) {
    let data = &new()[MIB..];
    let digest = of_range(data, MIB as u64, false);
    let mut place = server.keys.place(1, MIB as u64, MIB);
    place.kind = ChunkKind::Anchors;
    let frame = server.keys.frame(place, digest, anchors);
    server.send(0, &frame);
    let differs = |message: &Message| matches!(message, Message::Differs(_));
    let Some(Message::Differs(differing)) = server.control.hear_until(differs) else {
        panic!("it differs");
    };
    let mut patch = vec![0; MIB];
    let frame = match make(data, &differing.pages, &server.keys.page_hasher, &mut patch) {
        Some((len, _)) => {
            place.kind = ChunkKind::Patch;
            server.keys.frame(place, digest, &patch[..len])
        }
        None => {
            place.kind = ChunkKind::Range;
            server.keys.frame(place, digest, data)
        }
    };
    server.send(1, &frame);
}

/// Anchors of other content than the chunk's, which the existing file has or has not.
#[test]
fn whatever_anchors_say_the_file_is_right() {
    let moved = [&old()[5000..][..500_000], &noise(9, MIB - 500_000)].concat();
    for content in [&old()[..MIB], &noise(8, MIB), &moved] {
        let anchors = anchors::write(content).expect("it is long");
        pull_case(|case| {
            let done = pulled(case, &[], |server, _| {
                digest_and_patch(server, 0, &right(0));
                anchors_and_patch(server, &anchors);
                server.end(1, SIZE as u64, Some(blake3::hash(&new()).into()));
                server.all_sent(1);
            });
            done.succeeds();
            assert!(case.dst.read("f") == new());
        });
    }
}

#[test]
fn anchors_that_do_not_fill_their_range_end_the_copy() {
    let right = anchors::write(&new()[..MIB]).expect("it is long");
    for anchors in [&right[..ANCHOR_LEN], &right[1..], &vec![0xff; right.len()]] {
        pull_case(|case| {
            let done = pulled(case, &[], |server, _| {
                let mut place = server.keys.place(1, 0, MIB);
                place.kind = ChunkKind::Anchors;
                let frame = server.keys.frame(place, [7; 32], anchors);
                server.send(0, &frame);
            });
            held_out(&done).exits(13);
            assert!(case.dst.read("f") == old());
        });
    }
}

/// A patch or a digest is for a file that is compared.
#[test]
fn a_patch_that_was_not_requested_ends_the_copy() {
    for kind in [ChunkKind::Patch, ChunkKind::Digest, ChunkKind::Anchors] {
        pull_case(|case| {
            let done = pulled(case, &["-W"], |server, wants| {
                assert_eq!(wants[0].kind, WantKind::Fresh);
                let mut place = server.keys.place(1, 0, MIB);
                place.kind = kind;
                let body = match kind {
                    ChunkKind::Patch => right(0),
                    ChunkKind::Anchors => anchors::write(&new()[..MIB]).expect("it is long"),
                    _ => Vec::new(),
                };
                let frame = server.keys.frame(place, [7; 32], &body);
                server.send(0, &frame);
            });
            held_out(&done).exits(13);
            assert!(case.dst.read("f") == old());
        });
    }
}

/// The next frame, with a margin for a busy machine.
fn next(frames: &Receiver<FrameHeader>) -> FrameHeader {
    let frame = frames.recv_timeout(Duration::from_secs(20));
    frame.expect("another frame")
}

/// Pushes a file of two chunks, which the fake receiver has in another version.
fn pushed(
    case: &Case,
    kind: &WantKind,
    script: impl FnOnce(&mut FakeServer, Receiver<FrameHeader>) + Send,
) -> run::Done {
    let flags = ["--streams", "2", "--compress", "none"];
    push(case, &flags, &case.src.path("big"), |mut server| {
        server.listen();
        server.hear_roots();
        let frames = server.frames();
        server.landed_as(vec![b"there".to_vec()]);
        let entries = |message: &Message| matches!(message, Message::Entries(_));
        server.control.hear_until(entries);
        let kind = kind.clone();
        server.say(Message::Want(vec![Want { entry: 1, kind }]));
        script(&mut server, frames);
        server.finish();
    })
}

/// Tells the sender that the file is in place, and that the copy is complete.
fn everything_arrived(server: &mut FakeServer) {
    server.say(Message::Ack(all_placed()));
    let sent = |message: &Message| matches!(message, Message::AllSent(_));
    server.control.hear_until(sent);
    server.say(Message::Done(()));
}

/// Both chunks, and so the file, are in place.
fn all_placed() -> Ack {
    Ack {
        chunks: std::iter::once(span(0, 2)).collect(),
        entries: std::iter::once(span(1, 2)).collect(),
        failed: NumberRanges::default(),
    }
}

#[test]
fn pages_of_a_chunk_that_was_not_offered_end_the_copy() {
    let whole = vec![span(0, SIZE as u64)];
    let compare = WantKind::Compare(whole);
    let differs = |chunk, bytes| {
        Message::Differs(DifferingChunk {
            chunk,
            pages: vec![0; bytes],
        })
    };
    // A chunk has 256 pages.
    for (kind, said) in [
        (&WantKind::Fresh, differs(0, 4)),
        (&compare, differs(0, 256 * 4 + 4)),
        (&compare, differs(0, 5)),
    ] {
        Case::run(Way::LocalPush, |case| {
            case.src.file("big", new());
            let done = pushed(case, kind, |server, frames| {
                next(&frames);
                server.say(said.clone());
            });
            held_out(&done).exits(13).says("an invalid message");
        });
    }
}

/// The answer may come twice, and a refusal afterwards.
#[test]
fn a_patch_is_sent_once_and_then_all_bytes() {
    Case::run(Way::LocalPush, |case| {
        case.src.file("big", new());
        let compare = WantKind::Compare(vec![span(0, SIZE as u64)]);
        let done = pushed(case, &compare, |server, frames| {
            let next = || next(&frames);
            let mut pieces: Vec<_> = (0..2).map(|_| next()).collect();
            pieces.sort_by_key(|piece| piece.offset);
            assert!(
                pieces
                    .iter()
                    .all(|it| it.kind == ChunkKind::Digest && it.raw_len as usize == MIB)
            );
            let first = pieces[0].chunk;
            let pages = server.keys.page_hasher.digests(&old()[..MIB]);
            let differs = Message::Differs(DifferingChunk {
                chunk: first,
                pages: pages.clone(),
            });
            server.say(differs.clone());
            let patch = next();
            assert_eq!((patch.kind, patch.chunk), (ChunkKind::Patch, first));
            assert!((patch.wire_len as usize) < PAGE + 200, "{patch:?}");
            server.say(differs);
            // The second answer brings all bytes, since the patch may have been dropped.
            let whole = next();
            assert_eq!((whole.kind, whole.chunk), (ChunkKind::Range, first));
            server.say(Message::Nack(vec![first]));
            assert_eq!(next().kind, ChunkKind::Range);
            // Pages of a chunk that nothing is known of any more are ignored.
            server.say(Message::Differs(DifferingChunk { chunk: 999, pages }));
            everything_arrived(server);
        });
        done.succeeds();
    });
}

/// The receiver says that it has every page, as if the changed one had the digest of its own. The
/// chunk that it then makes is wrong, so that it refuses it.
#[test]
fn a_chunk_with_a_page_that_seems_unchanged_is_sent_whole_in_the_end() {
    Case::run(Way::LocalPush, |case| {
        case.src.file("big", new());
        let compare = WantKind::Compare(vec![span(0, SIZE as u64)]);
        let done = pushed(case, &compare, |server, frames| {
            let mut pieces = [next(&frames), next(&frames)];
            pieces.sort_by_key(|piece| piece.offset);
            let first = pieces[0].chunk;
            let pages = server.keys.page_hasher.digests(&new()[..MIB]);
            server.say(Message::Differs(DifferingChunk {
                chunk: first,
                pages,
            }));
            let patch = next(&frames);
            assert_eq!((patch.kind, patch.chunk), (ChunkKind::Patch, first));
            assert!((patch.wire_len as usize) < 200, "no page: {patch:?}");
            server.say(Message::Nack(vec![first]));
            let whole = next(&frames);
            assert_eq!((whole.kind, whole.chunk), (ChunkKind::Range, first));
            assert_eq!(whole.raw_len as usize, MIB);
            everything_arrived(server);
        });
        done.succeeds();
    });
}

/// The anchors of a refused chunk are sent once, and then its bytes.
#[test]
fn a_refused_chunk_is_offered_with_its_anchors_once() {
    Case::run(Way::LocalPush, |case| {
        case.src.file("big", new());
        let compare = WantKind::Compare(vec![span(0, SIZE as u64)]);
        let done = pushed(case, &compare, |server, frames| {
            let first = next(&frames);
            next(&frames);
            assert_eq!(first.kind, ChunkKind::Digest);
            for kind in [ChunkKind::Anchors, ChunkKind::Range] {
                server.say(Message::Nack(vec![first.chunk]));
                let again = next(&frames);
                assert_eq!((again.kind, again.chunk), (kind, first.chunk));
            }
            everything_arrived(server);
        });
        done.succeeds();
    });
}

/// The receiver does not answer to the anchors of one file.
#[test]
fn unanswered_anchors_of_a_file_stop_no_other_file() {
    Case::run(Way::LocalPush, |case| {
        let tree = case.src.dir("tree");
        tree.file("a", noise(1, 40 * MIB));
        tree.file("b", noise(2, 8 * MIB));
        let flags = ["-r", "--streams", "2", "--compress", "none"];
        let done = push(case, &flags, &tree.0, |mut server| {
            server.listen();
            server.hear_roots();
            let frames = server.frames();
            server.landed_as(vec![b"there".to_vec()]);
            // The files in the order in which they are asked for.
            let mut files: Vec<Entry> = Vec::new();
            while files.len() < 2 {
                match server.control.hear() {
                    Some(Message::Entries(entries)) => {
                        files.extend(entries.into_iter().filter(|it| it.kind == EntryKind::File));
                    }
                    Some(_) => {}
                    None => panic!("files are announced"),
                }
            }
            files.sort_by_key(|it| std::cmp::Reverse(it.size));
            let want = |it: &Entry| Want {
                entry: it.id,
                kind: WantKind::Compare(vec![span(0, it.size)]),
            };
            // All that may be sent without an answer are of the first file.
            server.say(Message::Want(vec![want(&files[0])]));
            let offered: Vec<_> = (0..32).map(|_| next(&frames)).collect();
            assert!(offered.iter().all(|it| it.entry == files[0].id));
            server.say(Message::Want(vec![want(&files[1])]));
            server.say(Message::Nack(
                offered[..8].iter().map(|it| it.chunk).collect(),
            ));
            let (mut anchored, mut others) = (0, 0);
            while anchored < 8 || others == 0 {
                let frame = next(&frames);
                match frame.kind {
                    ChunkKind::Anchors => anchored += 1,
                    // Some of the first file may begin before its anchors.
                    _ => others += usize::from(frame.entry == files[1].id),
                }
            }
            let pages = vec![0; 3];
            let chunk = offered[0].chunk;
            server.say(Message::Differs(DifferingChunk { chunk, pages }));
            server.finish();
        });
        held_out(&done).exits(13);
    });
}

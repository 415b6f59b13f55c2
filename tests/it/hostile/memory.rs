//! Lists whose elements take one byte on the wire and fifty in memory.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fastcp::chunk::{ChunkKind, ChunkPlace};
use fastcp::error::{Error, Kind, Side};
use fastcp::manifest::{Entry, Extension};
use fastcp::wire::message::{DeletedEntries, Fault, Message};

use super::{known, pull_case};
use crate::support::fake_server::{FakeServer, pull, pull_with, push, push_with};
use crate::support::inject::{self, Inject};
use crate::support::peer::*;
use crate::support::*;

/// The most memory that the client may take without buffers of its pool.
const MOST: u64 = 64 * MIB as u64;

/// A message body of `bytes` that starts like a list of `bytes / 2` elements, all zeros.
fn many(number: u16, bytes: usize) -> Vec<u8> {
    let mut body = vec![0; bytes];
    let elements = bytes as u64 / 2;
    postcard::to_slice(&elements, &mut body).expect("a number");
    raw(number, bytes as u32, &body)
}

#[test]
fn the_longest_lists_take_little_memory_at_a_receiver() {
    // The first refused message ends the copy, so each type comes first in one copy. One of the
    // sizes is the longest that a body may have.
    for number in 1..=30 {
        let said = [8 << 20, 4 << 20, 1 << 20, 64 << 10].map(|bytes| many(number, bytes));
        pull_case(|case| {
            let done = pull(case, &["-r"], "/x/tree", |mut server| {
                server.begin(root(1, "tree", true));
                server.entries(vec![directory(1, 0, "tree")]);
                for _ in 0..4 {
                    said.iter().for_each(|one| server.control.bytes(one));
                }
                server.finish();
            });
            held_out(&done).exits(13).says("an invalid message");
            let peak = done.peak_rss_bytes();
            assert!(peak < MOST, "{number}: {} MiB", peak / MIB as u64);
        });
    }
}

/// The same while the client still lists the files to send.
#[test]
fn the_longest_lists_take_little_memory_at_a_sender() {
    for number in [6, 8, 9, 10, 11, 17] {
        pull_case(|case| {
            let source = case.src.dir("tree");
            for n in 0..3000 {
                source.file(format!("{n}"), "x");
            }
            let done = push(case, &["-r"], &source.0, |mut server| {
                let said = [8 << 20, 4 << 20, 64 << 10].map(|bytes| many(number, bytes));
                for _ in 0..5 {
                    said.iter().for_each(|one| server.control.bytes(one));
                }
                server.finish();
            });
            held_out(&done).exits(13).says("an invalid message");
            let peak = done.peak_rss_bytes();
            assert!(peak < MOST, "{number}: {} MiB", peak / MIB as u64);
        });
    }
}

/// The largest legal message of entries: 250 symlinks of 4,019 bytes each, numbered from `first`.
fn long_links(first: u64) -> Vec<u8> {
    let text = ["x".repeat(200).as_str(); 20].join("/");
    let link = |id| symlink(id, 1, &format!("l{id}"), &text);
    encode(&Message::Entries((first..first + 250).map(link).collect()))
}

/// Sends up to `messages` of them until the client stops reading, then lets the held call happen and
/// sends a few more: the client takes them one by one.
fn say_until_full(server: &mut FakeServer, inject: &Inject, messages: u64) {
    let mut to = server.control.take_writer();
    let (said, most) = (AtomicU64::new(0), AtomicU64::new(messages));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 0..messages {
                // Fails if the client has ended, which its exit code shows.
                to.write_all(&long_links(2 + nth * 250)).ok();
                if said.fetch_add(1, Relaxed) >= most.load(Relaxed) {
                    break;
                }
            }
        });
        let (mut last, mut since) = (0, Instant::now());
        while last < messages && since.elapsed() < Duration::from_secs(3) {
            std::thread::park_timeout(Duration::from_millis(50));
            if std::mem::replace(&mut last, said.load(Relaxed)) != last {
                since = Instant::now();
            }
        }
        most.store(last + 20, Relaxed);
        inject.release();
    });
}

/// The disk hangs at the first of 25,000 symlinks with 100 MB of text.
#[test]
fn links_wait_outside_of_a_receiver_whose_disk_hangs() {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    pull_case(|case| {
        let inject = Inject::new().hold("symlinkat").times(1);
        let done = pull_with(case, &inject, &["-r"], |mut server| {
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree")]);
            say_until_full(&mut server, &inject, 100);
        });
        held_out(&done).exits(5);
        let peak = done.peak_rss_bytes();
        assert!(peak < MOST, "{} MiB", peak / MIB as u64);
    });
}

/// The client still lists the files to send, and the peer sends messages that only a sender sends.
#[test]
fn words_wait_outside_of_a_sender_whose_disk_hangs() {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    pull_case(|case| {
        let source = case.src.dir("tree");
        source.file("sub/file", "x");
        let inject = Inject::new().hold("getdents64").on("*/src/tree/sub");
        let done = push_with(case, &inject, &source.0, |mut server| {
            inject.wait_until_struck(1);
            say_until_full(&mut server, &inject, 100);
        });
        held_out(&done).exits(13).says("an invalid message");
        let peak = done.peak_rss_bytes();
        assert!(peak < MOST, "{} MiB", peak / MIB as u64);
    });
}

/// Checks that a client's `done` run refused its peer and took little memory.
#[track_caller]
fn took_little(done: &done::Done) {
    held_out(done).exits(13);
    let peak = done.peak_rss_bytes();
    assert!(peak < MOST, "{} MiB", peak / MIB as u64);
}

fn with_extension(entry: Entry, bytes: usize) -> Entry {
    let extensions = vec![Extension {
        tag: 99,
        bytes: vec![0; bytes],
    }];
    Entry {
        extensions,
        ..entry
    }
}

/// Each level has the longest name. Paths of all open directories would take the square of the depth.
#[test]
fn nested_directories_take_little_memory() {
    pull_case(|case| {
        let done = pull(case, &["-r", "-n"], "/x/tree", |mut server| {
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree")]);
            let long = "d".repeat(255);
            for first in (2..2000).step_by(250) {
                let level = |id| directory(id, id - 1, &long);
                server.entries((first..first + 250).map(level).collect());
            }
            server.finish();
        });
        took_little(&done);
    });
}

#[test]
fn the_longest_attributes_of_open_entries_take_little_memory() {
    for is_directory in [true, false] {
        pull_case(|case| {
            let done = pull(case, &["-r"], "/x/tree", |mut server| {
                server.begin(root(1, "tree", true));
                server.entries(vec![directory(1, 0, "tree")]);
                for id in 2..200 {
                    let entry = match is_directory {
                        true => directory(id, 1, &format!("{id}")),
                        false => file(id, 1, &format!("{id}"), 1 << 20),
                    };
                    server.entries(vec![with_extension(entry, 1_000_000)]);
                }
                server.finish();
            });
            took_little(&done);
        });
    }
}

/// Above each file are 230 KB of path.
#[test]
fn files_below_long_paths_take_little_memory() {
    const LEVELS: u64 = 900;
    const FILES: u64 = 600;
    pull_case(|case| {
        let list = case.scratch.path("list");
        let flags = ["-r", "--digests", list.to_str().expect("it is text")];
        let done = pull(case, &flags, "/x/tree", |mut server| {
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree")]);
            let long = "d".repeat(255);
            let level = |id| directory(id, id - 1, &long);
            for first in (2..LEVELS).step_by(225) {
                server.entries((first..first + 225).map(level).collect());
            }
            let file = |id| file(id, LEVELS, &format!("{id}"), 1 << 20);
            for first in (1000..1000 + FILES).step_by(200) {
                server.entries((first..first + 200).map(file).collect());
            }
            let mut wanted = 0;
            server.control.hear_until(|message| {
                wanted += match message {
                    Message::Want(wants) => wants.len() as u64,
                    _ => 0,
                };
                wanted >= FILES
            });
            server.control.bytes(&many(9, 4 << 20));
            server.finish();
        });
        took_little(&done);
        // Such paths are too long for the checks at the end.
        let there = case.dst.path("tree");
        std::fs::remove_dir_all(there).expect("remove it");
    });
}

/// Each of these sizes is legal, and each path would be kept for the summary.
#[test]
fn the_longest_reports_take_little_memory() {
    let paths = vec![vec![1; 300_000]; 3];
    let deleted = Message::Deleted(DeletedEntries { count: 3, paths });
    let mut fault = Fault::of(&Error::new(Kind::Write, Side::Dest, "x".repeat(256)), 0, 0);
    fault.path = vec![b'x'; 4000];
    let faults = (0..9000u16).map(|nth| {
        let path = [&fault.path[..], &nth.to_le_bytes()].concat();
        Message::Fault(Fault {
            path,
            ..fault.clone()
        })
    });
    let faults: Vec<Message> = faults.collect();
    for messages in [vec![deleted; 60], faults] {
        pull_case(|case| {
            let source = case.src.dir("tree");
            source.file("a", "x");
            let done = push(case, &["-r", "--quiet"], &source.0, |mut server| {
                server.listen();
                server.hear_roots();
                messages.iter().for_each(|it| server.say(it.clone()));
                server.control.bytes(&many(9, 4 << 20));
                server.finish();
            });
            assert!(done.peak_rss_bytes() < MOST, "{done}");
        });
    }
}

/// A pack's table in columns: 15 of them and two references are empty, and one that takes 24 bytes in
/// memory for each byte is long.
#[test]
fn the_longest_pack_tables_take_little_memory() {
    pull_case(|case| {
        let flags = ["-r", "--threads", "8", "--streams", "8"];
        let done = pull(case, &flags, "/x/tree", |mut server| {
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree")]);
            let lists = MIB - 64;
            let mut table = vec![0; 16];
            table.extend(postcard::to_allocvec(&lists).expect("a number"));
            table.resize(table.len() + lists + 1, 0);
            let length = table.len() as u32 | 1 << 31;
            table.extend(length.to_le_bytes());
            // No more at once than all workers take, for what waits is in the pool.
            for _ in 0..4 {
                for nth in 0..16 {
                    let place = ChunkPlace {
                        kind: ChunkKind::Pack,
                        ..server.keys.place(0, 0, table.len())
                    };
                    let frame = server.keys.frame(place, [7; 32], &table);
                    server.send(nth % 8, &frame);
                }
                // Every frame was read: each is asked for again.
                let mut again = 0;
                server.control.hear_until(|message| {
                    again += match message {
                        Message::Nack(chunks) => chunks.len(),
                        _ => 0,
                    };
                    again >= 16
                });
            }
            server.control.bytes(&many(9, 4 << 20));
            server.finish();
        });
        took_little(&done);
    });
}

/// A frame of 96 bytes that stands for 64 MB takes no more disk space than was announced.
#[test]
fn zeros_take_no_room_that_was_not_announced() {
    const SIZE: usize = 64 * MIB;
    pull_case(|case| {
        let content = vec![0; SIZE];
        known(case, &content);
        let done = pull(case, &["-r"], "/x/tree", |mut server| {
            // No space was announced at all.
            server.begin(root(1, "tree", true));
            server.entries(vec![directory(1, 0, "tree"), file(2, 1, "f", SIZE as u64)]);
            server.wanted();
            let place = server.keys.place(2, 0, SIZE);
            let zeros = ChunkPlace {
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

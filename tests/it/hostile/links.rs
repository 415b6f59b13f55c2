//! Planted symlinks, duplicate names, and hard links to files that do not exist.

use std::sync::Arc;

use fastcp::manifest::{EntryKind, SpecialFile};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{known, pull_case};
use crate::support::fake_server::{FakeServer, pull, pull_as_scp};
use crate::support::peer::*;
use crate::support::procs::until;
use crate::support::*;

/// A pull of a tree whose content `script` sends: entry 1 is the tree.
fn pull_tree(case: &Case, script: impl FnOnce(&mut FakeServer) + Send) -> run::Done {
    pull(case, &["-r", "--streams", "2"], "/x/tree", |mut server| {
        server.begin(root(1, "tree", true));
        server.entries(vec![directory(1, 0, "tree")]);
        script(&mut server);
        server.finish();
    })
}

#[test]
fn a_link_is_not_written_through_as_a_directory() {
    for way in 0..2 {
        pull_case(|case| {
            known(case, b"evil");
            let outside = case.scratch.path("outside");
            let done = pull_tree(case, |server| {
                server.entries(vec![symlink(2, 1, "d", &outside)]);
                match way {
                    // A directory of the same name, and a file in it.
                    0 => {
                        server.entries(vec![directory(3, 1, "d")]);
                        server.whole_file(file(4, 3, "precious", 0), b"evil");
                        server.end(3, 1, None);
                    }
                    // A child of the symlink itself.
                    _ => server.whole_file(file(4, 2, "precious", 0), b"evil"),
                }
                server.end(1, 2, None);
                server.all_sent(4);
            });
            held_out(&done);
            if case.dst.has("tree/d") {
                assert!(case.dst.meta("tree/d").is_symlink());
            }
        });
    }
}

/// An earlier copy made the symlink.
#[test]
fn a_link_of_an_earlier_copy_is_not_written_through() {
    pull_case(|case| {
        known(case, b"evil");
        let outside = case.scratch.path("outside");
        pull_tree(case, |server| {
            server.entries(vec![
                symlink(2, 1, "d", &outside),
                symlink(3, 1, "f", outside.join("precious")),
            ]);
            server.end(1, 2, None);
            server.all_sent(3);
        })
        .succeeds();
        let done = pull_tree(case, |server| {
            server.entries(vec![directory(2, 1, "d")]);
            server.whole_file(file(3, 2, "precious", 0), b"evil");
            server.end(2, 1, None);
            server.whole_file(file(4, 1, "f", 0), b"evil");
            server.end(1, 2, None);
            server.all_sent(4);
        });
        held_out(&done).exits(11).says("symbolic link");
        assert!(case.dst.meta("tree/d").is_symlink());
        // A file replaces the symlink.
        assert_eq!(case.dst.read("tree/f"), b"evil");
    });
}

#[test]
fn a_file_takes_the_place_of_a_link_and_leaves_what_it_leads_to() {
    pull_case(|case| {
        known(case, b"evil");
        let precious = case.scratch.path("outside/precious");
        pull_tree(case, |server| {
            server.entries(vec![symlink(2, 1, "f", &precious)]);
            server.whole_file(file(3, 1, "f", 0), b"evil");
            server.end(1, 2, None);
            server.all_sent(3);
        });
        if !case.dst.meta("tree/f").is_symlink() {
            assert_eq!(case.dst.read("tree/f"), b"evil");
        }
    });
}

/// A local process keeps swapping a directory of the destination for a symlink during the copy.
#[test]
fn a_directory_that_is_swapped_for_a_link_leads_nowhere() {
    pull_case(|case| {
        known(case, b"evil");
        let outside = case.scratch.path("outside");
        let inside = case.dst.path("tree/d");
        let link = case.dst.path("tree/link");
        let swapping = Arc::new(());
        std::thread::scope(|scope| {
            // Until it is dropped, also by a panic.
            let watch = Arc::downgrade(&swapping);
            let (inside, link, _swapping) = (&inside, &link, swapping);
            scope.spawn(move || {
                while watch.strong_count() > 0 {
                    // Fails until the directory exists.
                    renameat_with(CWD, inside, CWD, link, RenameFlags::EXCHANGE).ok();
                }
            });
            let done = pull_tree(case, |server| {
                until("the tree is there", || {
                    link.parent()?.exists().then_some(())
                });
                std::os::unix::fs::symlink(&outside, link).expect("plant a link");
                server.entries(vec![directory(2, 1, "d")]);
                for id in 3..300 {
                    server.whole_file(file(id, 2, &format!("f{id}"), 0), b"evil");
                    if id % 3 == 0 {
                        server.entries(vec![
                            directory(1000 + id, 2, &format!("d{id}")),
                            symlink(2000 + id, 2, &format!("l{id}"), "x"),
                        ]);
                        server.end(1000 + id, 0, None);
                    }
                }
                server.leave();
            });
            readable(&done);
        });
    });
}

/// Otherwise the next copy as scp would write in place into what the link leads to.
#[test]
fn a_copy_as_scp_takes_no_link_and_no_special_file() {
    let kinds = [
        EntryKind::Symlink(b"x".to_vec()),
        EntryKind::HardLink(2),
        EntryKind::Special(SpecialFile::Fifo),
    ];
    for kind in kinds {
        pull_case(|case| {
            known(case, b"first");
            let done = pull_as_scp(case, "/x/tree", |mut server| {
                server.begin(root(1, "tree", true));
                server.entries(vec![directory(1, 0, "tree")]);
                server.whole_file(file(2, 1, "first", 0), b"first");
                server.entries(vec![entry(3, 1, "planted", kind.clone(), 0)]);
                server.end(1, 2, None);
                server.all_sent(3);
                server.finish();
            });
            held_out(&done).exits(1).says("which --scp does not copy");
            assert!(!case.dst.has("tree/planted"));
        });
    }
}

/// The sender plants a symlink under the name of the receiver's partial file. The receiver treats
/// that name like any other.
#[test]
fn a_planted_temporary_is_not_written_through() {
    pull_case(|case| {
        known(case, b"evil");
        let precious = case.scratch.path("outside/precious");
        let mut temporary = String::new();
        let tree = case.dst.path("tree");
        let done = pull_tree(case, |server| {
            until("the tree is there", || tree.exists().then_some(()));
            temporary = Dir(tree.clone()).partial_of("f");
            server.entries(vec![symlink(2, 1, &temporary, &precious)]);
            server.whole_file(file(3, 1, "f", 0), b"evil");
            server.end(1, 2, None);
            server.all_sent(3);
        });
        done.succeeds();
        assert_eq!(case.dst.read("tree/f"), b"evil");
        // The planted symlink arrived as part of the tree; the final check would count it as a
        // temporary file.
        std::fs::remove_file(case.dst.path("tree").join(temporary)).expect("remove the link");
    });
}

#[test]
fn an_entry_that_comes_twice_ends_the_copy() {
    let kinds = [EntryKind::Directory, EntryKind::Symlink(b"x".to_vec())];
    for kind in kinds {
        pull_case(|case| {
            let done = pull_tree(case, |server| {
                server.entries(vec![
                    entry(2, 1, "a", kind.clone(), 0),
                    entry(2, 1, "b", kind.clone(), 0),
                ]);
            });
            held_out(&done).exits(13).says("an invalid message");
            assert!(!case.dst.has("tree/b"));
        });
    }
    pull_case(|case| {
        let done = pull_tree(case, |server| {
            server.entries(vec![file(2, 1, "a", 9), file(2, 1, "b", 9)]);
        });
        held_out(&done).exits(13).says("an invalid message");
    });
    pull_case(|case| {
        let done = pull_tree(case, |server| server.entries(vec![directory(1, 1, "a")]));
        held_out(&done).exits(13).says("an invalid message");
    });
}

/// Two entries of one name: the second replaces the first or is refused. No other file is harmed.
#[test]
fn a_name_that_comes_twice_harms_nothing_else() {
    let precious = "outside/precious";
    type Both = fn(&mut FakeServer, &std::path::Path);
    let pairs: [Both; 4] = [
        |server, _| {
            server.whole_file(file(2, 1, "n", 0), b"first");
            server.whole_file(file(3, 1, "n", 0), b"second");
        },
        |server, _| {
            server.whole_file(file(2, 1, "n", 0), b"first");
            server.entries(vec![directory(3, 1, "n")]);
            server.end(3, 0, None);
        },
        |server, precious| {
            server.entries(vec![directory(2, 1, "n"), symlink(3, 1, "n", precious)]);
            server.end(2, 0, None);
        },
        // Both are written at the same time.
        |server, _| {
            server.entries(vec![file(2, 1, "n", 5), file(3, 1, "n", 5)]);
            server.wanted();
            for id in [2, 3] {
                let frame = server.keys.piece(id, 0, 5, b"first");
                server.send(0, &frame);
                server.end(id, 5, Some(blake3::hash(b"first").into()));
            }
        },
    ];
    for both in pairs {
        pull_case(|case| {
            known(case, b"first");
            known(case, b"second");
            let precious = case.scratch.path(precious);
            let done = pull_tree(case, |server| {
                both(server, &precious);
                server.end(1, 2, None);
                server.all_sent(3);
            });
            readable(&done);
            assert_eq!(case.dst.dir("tree").names(), ["n"]);
        });
    }
}

#[test]
fn a_further_name_is_only_of_what_this_copy_has_placed() {
    // The entry itself has number 3.
    for first in [0, 1, 2, 3, 99, u64::MAX] {
        pull_case(|case| {
            // This copy did not place the existing file.
            case.dst.file("tree/old", "old");
            let precious = case.scratch.path("outside/precious");
            let done = pull_tree(case, |server| {
                server.entries(vec![symlink(2, 1, "old2", &precious)]);
                let link = entry(3, 1, "further", EntryKind::HardLink(first), 0);
                server.entries(vec![link]);
                server.end(1, 2, None);
                server.all_sent(3);
            });
            match first {
                // Not a file that this copy has placed.
                0..=2 => held_out(&done).exits(1).says("was not copied"),
                _ => held_out(&done).exits(13).says("comes later"),
            };
            assert!(!case.dst.has("tree/further"));
        });
    }
}

/// The file is placed, another entry replaces it, and then a hard link to it is requested.
#[test]
fn a_further_name_is_not_of_what_took_the_place_of_the_first() {
    pull_case(|case| {
        known(case, b"first");
        let precious = case.scratch.path("outside/precious");
        let done = pull_tree(case, |server| {
            let first = fastcp::manifest::Entry {
                links: 2,
                ..file(2, 1, "first", 0)
            };
            server.whole_file(first, b"first");
            let placed = |message: &fastcp::wire::message::Message| matches!(message, fastcp::wire::message::Message::Ack(ack) if !ack.entries.is_empty() && ack.entries.iter().any(|span| span.start <= 2 && 2 < span.end));
            server.control.hear_until(placed);
            server.entries(vec![symlink(3, 1, "first", &precious)]);
            server.entries(vec![entry(4, 1, "further", EntryKind::HardLink(2), 0)]);
            server.end(1, 3, None);
            server.all_sent(4);
        });
        held_out(&done).exits(1).says("was replaced");
        assert!(!case.dst.has("tree/further"));
    });
}

#[test]
fn what_belongs_to_no_directory_ends_the_copy() {
    for parent in [0, 7, u64::MAX] {
        for kind in [
            EntryKind::File,
            EntryKind::Directory,
            EntryKind::Symlink(b"x".to_vec()),
            EntryKind::HardLink(1),
        ] {
            pull_case(|case| {
                let done = pull_tree(case, |server| {
                    server.entries(vec![entry(2, parent, "stray", kind.clone(), 0)]);
                });
                held_out(&done).exits(13).says("an invalid message");
                assert_eq!(case.dst.names(), ["tree"]);
            });
        }
    }
}

/// The connection closes while entries are placed, and the last message breaks the protocol.
#[test]
fn a_breach_wins_over_the_loss_of_the_connection() {
    pull_case(|case| {
        let done = pull_tree(case, |server| {
            let links = |id| symlink(id, 1, &format!("l{id}"), "x");
            server.entries((2..300).map(links).collect());
            server.entries(vec![directory(2, 1, "again")]);
            server.leave();
        });
        held_out(&done).exits(13).says("announced twice");
    });
}

/// A tree deeper than any path can name: neither the copy nor its cleanup may run out of stack.
#[test]
fn a_bottomless_tree_ends_the_copy_in_good_order() {
    // The second tree has more open directories than a sender may announce.
    for (depth, code) in [(17_000, 5), (30_000, 13)] {
        pull_case(|case| {
            let done = pull_tree(case, |server| {
                for id in 2..depth {
                    server.entries(vec![directory(id, id - 1, "d")]);
                }
                server.leave();
            });
            readable(&done).exits(code).says("nested too deeply");
            // Too deep for the removal of the case's directory by path.
            let removed = std::process::Command::new("rm")
                .arg("-rf")
                .arg(case.dst.path("tree"))
                .status();
            assert!(removed.expect("run rm").success());
        });
    }
}

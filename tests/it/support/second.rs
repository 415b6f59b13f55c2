//! A second copy with faults. A seed chooses the changes since the first copy, the options and the
//! faults. The same seed makes the same script on every machine.

use std::fmt;
use std::fs;
use std::time::Duration;

use rustix::io::Errno;

use super::bad_disk::{self, CALLS, Files, On, Trouble, What};
use super::case::Way;
use super::chaos::{Dice, Script};
use super::tree::{Dir, noise, prose};

/// What the second copy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `-a --delete` over a tree in which everything may have changed.
    Mirror,
    /// `-a` over large files of which pages have changed or content has moved.
    Delta,
    /// `-a --snapshot` after one snapshot.
    Series,
}

#[derive(Clone, Debug)]
pub(crate) enum Faults {
    Network(Script),
    /// Failed, delayed and deadly system calls.
    Calls(Vec<Trouble>),
    /// SIGKILL of one end, this long after the first server runs.
    Kill {
        client: bool,
        after: Duration,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Second {
    pub seed: u64,
    pub kind: Kind,
    pub way: Way,
    pub flags: Vec<&'static str>,
    pub faults: Faults,
    /// Entries become entries of another kind. Otherwise a rule protects entries of a mirror.
    pub changes_kinds: bool,
}

const WAYS: &[Way] = &[Way::LocalPush, Way::LocalPull, Way::Here, Way::LocalBetween];

/// Calls of second copies that first ones make rarely or never.
const MORE_CALLS: Files = &[
    (
        "unlink",
        &[On::Dest],
        &[Errno::IO, Errno::PERM, Errno::BUSY],
    ),
    (
        "unlink",
        &[On::Dest],
        &[Errno::IO, Errno::PERM, Errno::BUSY],
    ),
    ("getdents64", &[On::Dest, On::Source], &[Errno::IO]),
    ("rename", &[On::Dest], &[Errno::IO, Errno::NOSPC]),
    (
        "link",
        &[On::Dest],
        &[Errno::IO, Errno::MLINK, Errno::NOSPC],
    ),
    ("symlinkat", &[On::Dest], &[Errno::IO, Errno::NOSPC]),
    ("mkdir", &[On::Dest], &[Errno::IO, Errno::NOSPC]),
    ("pread64", &[On::Dest], &[Errno::IO]),
    ("stat", &[On::Source, On::Dest], &[Errno::IO]),
    ("readlink", &[On::Dest, On::Source], &[Errno::IO]),
];

/// Calls before which a process is killed. Together they happen at every stage of a copy.
const DEADLY: &[(&str, On)] = &[
    ("unlink", On::Dest),
    ("unlink", On::Dest),
    ("rename", On::Dest),
    ("rename", On::Partial),
    ("link", On::Dest),
    ("symlinkat", On::Dest),
    ("mkdir", On::Dest),
    ("open", On::Dest),
    ("stat", On::Dest),
    ("close", On::Dest),
    ("chmod", On::Dest),
    ("utimensat", On::Dest),
    ("getdents64", On::Dest),
    ("getdents64", On::Source),
    ("fsync", On::Dest),
    ("syncfs", On::Dest),
    ("pread64", On::Source),
    ("pread64", On::Dest),
    ("pwrite64", On::Partial),
    ("pwrite64", On::Dest),
    ("stat", On::Source),
];

impl Second {
    pub(crate) fn of(seed: u64) -> Second {
        let mut dice = Dice::new(seed ^ 0x5EC0_0000_0000);
        let kind = [Kind::Mirror, Kind::Delta, Kind::Series][(seed % 3) as usize];
        let mut way = WAYS[(seed / 3 % 4) as usize];
        let faults = match dice.below(8) {
            0..=2 => {
                way = dice.one_of(&[Way::LocalPush, Way::LocalPull]);
                Faults::Network(Script::of(seed))
            }
            3 => Faults::Kill {
                client: way == Way::Here || dice.below(2) == 0,
                after: Duration::from_millis(dice.below(700)),
            },
            _ => Faults::Calls(troubles(&mut dice)),
        };
        let mut flags = vec!["-a", "--no-whole-file"];
        let changes_kinds = dice.below(2) == 0;
        match kind {
            Kind::Mirror => {
                flags.push("--delete");
                match changes_kinds {
                    true => flags.push("--itemize-changes"),
                    false => flags.extend(["--exclude", "keep"]),
                }
                if dice.below(4) == 0 {
                    flags.push("--backup-dir=../old");
                }
            }
            Kind::Delta => {
                for flag in ["--inplace", "--checksum"] {
                    if dice.below(3) == 0 {
                        flags.push(flag);
                    }
                }
            }
            Kind::Series => {
                flags.push("--snapshot");
                if dice.below(3) == 0 {
                    flags.extend(["--keep", "1y"]);
                }
            }
        }
        if kind != Kind::Series && dice.below(4) == 0 {
            flags.push("--fsync");
        }
        Second {
            seed,
            kind,
            way,
            flags,
            faults,
            changes_kinds,
        }
    }

    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// The tree of the first copy.
    pub(crate) fn first_source(&self, tree: &Dir) {
        let big = match self.kind {
            Kind::Delta => 2_500_000,
            _ => 600_000,
        };
        tree.file("big", noise(self.seed, big));
        tree.file("text", prose(self.seed, big / 2));
        tree.file("old name", noise(self.seed + 1, 300_000));
        for number in 0..30 {
            let path = format!("d{}/{number}", number % 5);
            tree.file(&path, noise(number, number as usize * 977 % 20_000));
            tree.mode(&path, [0o644, 0o600, 0o755][number as usize % 3]);
        }
        tree.dir("empty");
        tree.link("link", "big");
        tree.hard_link("d1/second name", "d0/0");
        age(tree);
    }

    /// Changes the source after the first copy.
    pub(crate) fn change(&self, tree: &Dir) {
        let mut dice = Dice::new(self.seed ^ 0xC4A6_0000_0000);
        change_big_file(&mut dice, tree, "big");
        change_big_file(&mut dice, tree, "text");
        fs::rename(tree.path("old name"), tree.path("new name")).expect("rename");
        for number in 0..30 {
            let path = format!("d{}/{number}", number % 5);
            let len = number as usize * 977 % 20_000;
            match dice.below(9) {
                0 => fs::remove_file(tree.path(&path)).expect("remove it"),
                1 => drop(tree.file(&path, noise(self.seed + 100 + number, len))),
                2 => drop(tree.file(&path, noise(self.seed + 100 + number, len + 10_000))),
                3 => tree.mode(&path, 0o640),
                4 => tree.time(&path, 1_700_000_000 + number, 5),
                5 => {
                    let to = tree.path(format!("d{}/moved {number}", dice.below(5)));
                    fs::rename(tree.path(&path), to).expect("rename");
                }
                _ => {}
            }
        }
        for number in 0..dice.below(8) {
            tree.file(format!("new/{}/{number}", number % 2), noise(number, 5000));
        }
        if dice.below(2) == 0 {
            fs::rename(tree.path("d4"), tree.path("e4")).expect("rename");
        }
        if self.changes_kinds && self.kind != Kind::Delta {
            fs::remove_dir_all(tree.path("d3")).expect("remove it");
            tree.file("d3", "a file now");
            fs::remove_file(tree.path("link")).expect("remove it");
            tree.file("link/was a link", "x");
            fs::remove_dir(tree.path("empty")).expect("remove it");
            tree.link("empty", "d0");
        }
    }
}

/// Sets the times of all files to a time well before the test.
fn age(tree: &Dir) {
    for (number, path) in super::tree::Tree::read(&tree.0).0.into_keys().enumerate() {
        let meta = tree.meta(&path);
        if !meta.is_symlink() {
            tree.time(&path, 1_600_000_000 + number as u64, number as u32);
        }
    }
}

fn change_big_file(dice: &mut Dice, tree: &Dir, name: &str) {
    let mut bytes = tree.read(name);
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len() as u64) as usize;
        match dice.below(5) {
            0 | 1 => bytes[at] ^= 0xFF,
            2 => drop(bytes.splice(at..at, noise(at as u64, 1 + at % 30_000))),
            3 => drop(bytes.drain(at..(at + 20_000).min(bytes.len()))),
            _ => bytes.extend(noise(at as u64, 40_000)),
        }
    }
    tree.file(name, bytes);
}

fn troubles(dice: &mut Dice) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    if dice.below(3) == 0 {
        let (call, on) = dice.one_of(DEADLY);
        troubles.push(Trouble {
            call,
            on,
            what: What::Kill,
            after: dice.below(dice_bound(call)) as usize,
            times: 1,
        });
        if dice.below(2) == 0 {
            return troubles;
        }
    }
    for _ in 0..=dice.below(2) {
        let calls = dice.one_of(&[CALLS, MORE_CALLS]);
        troubles.push(bad_disk::trouble(dice, calls));
    }
    troubles
}

/// The largest number of calls that happen before the deadly one, so that most scripts reach it.
fn dice_bound(call: &str) -> u64 {
    match call {
        "open" | "stat" | "close" => 150,
        "pread64" | "pwrite64" | "utimensat" | "chmod" => 30,
        "fsync" | "syncfs" | "symlinkat" => 3,
        _ => 12,
    }
}

impl fmt::Display for Second {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Second {
            seed,
            kind,
            way,
            flags,
            changes_kinds,
            ..
        } = self;
        let flags = flags.join(" ");
        writeln!(
            f,
            "FASTCP_CHAOS_SECOND_SEED={seed}: {kind:?} {way:?} {flags}, kinds {changes_kinds}"
        )?;
        match &self.faults {
            Faults::Network(script) => write!(f, "{script}"),
            Faults::Calls(troubles) => {
                for trouble in troubles {
                    writeln!(f, "  {trouble}")?;
                }
                Ok(())
            }
            Faults::Kill { client, after } => {
                writeln!(f, "  killed after {after:?}, the client: {client}")
            }
        }
    }
}

#[test]
fn every_second_copy_has_its_turn() {
    let scripts: Vec<_> = (0..1000).map(Second::of).collect();
    assert_eq!(scripts[7].to_string(), Second::of(7).to_string());
    for kind in [Kind::Mirror, Kind::Delta, Kind::Series] {
        let of_kind = || scripts.iter().filter(|script| script.kind == kind);
        for way in WAYS {
            assert!(of_kind().any(|it| it.way == *way && matches!(it.faults, Faults::Calls(_))));
        }
        for client in [false, true] {
            let is_kill =
                |it: &&Second| matches!(&it.faults, Faults::Kill { client: c, .. } if *c == client);
            assert!(of_kind().any(|it| is_kill(&it)));
        }
        assert!(of_kind().any(|it| matches!(it.faults, Faults::Network(_))));
    }
    for (call, on) in DEADLY {
        let is_it = |it: &Trouble| it.what == What::Kill && (it.call, it.on) == (*call, *on);
        let calls = scripts.iter().filter_map(|script| match &script.faults {
            Faults::Calls(troubles) => Some(troubles),
            _ => None,
        });
        assert!(calls.flatten().any(is_it), "{call} {on:?}");
    }
    // Every name is in the injector's table.
    for script in &scripts {
        if let Faults::Calls(troubles) = &script.faults {
            bad_disk::inject(troubles);
        }
    }
}

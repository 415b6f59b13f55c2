//! A source tree that another program changes during the whole copy: it links, removes, renames
//! and rewrites names, and replaces entries by other kinds. Entries may fail, but not the copy.
//!
//! `FASTCP_CHURN_SEED=n` plays one script, and `FASTCP_CHURN_SEEDS=n` plays n of them, spread
//! over the ways of copying.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::support::inject::{self, Inject};
use crate::support::procs::until;
use crate::support::tree::What;
use crate::support::*;

ways! { local_push, here =>
    a_tree_that_changes_all_the_time_fails_by_the_entry,
    a_tree_that_is_renamed_under_way_fails_by_the_entry,
}

ways! { local_pull, local_between =>
    a_hard_link_that_goes_leaves_the_other_name_alone,
    each_name_of_a_file_that_cannot_be_read_fails_for_that_reason,
    directories_of_a_copy_that_is_interrupted_have_their_final_modes,
}

/// The number of scripts without `FASTCP_CHURN_SEEDS`, over all ways of copying.
const SEEDS: u64 = 12;
const WAYS: [Way; 4] = [Way::LocalPush, Way::LocalPull, Way::LocalBetween, Way::Here];

/// The pause between two changes.
const PAUSE: Duration = Duration::from_millis(2);

/// Slow enough that hundreds of changes happen during one copy.
const SLOW: [&str; 5] = ["-r", "-l", "64000", "--memory", "16Mi"];

/// Success, a failed entry, a source that changed, a source that could not be read, and files that
/// only grew.
const CODES: [i32; 5] = [0, 1, 7, 9, GREW];

const GREW: i32 = 14;

/// The lengths of files that change: around those of packs and chunks.
const LENGTHS: [usize; 8] = [0, 1, 4096, 30_000, 250_000, 262_145, 1_048_576, 1_500_001];

const DIRECTORIES: u64 = 6;
const NAMES: u64 = 24;

/// No directory has the mode that fastcp gives to an unfinished directory.
const MODES: [u32; 4] = [0o755, 0o750, 0o555, 0o711];

/// The seeds for one way of copying.
fn seeds(way: Way) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("FASTCP_CHURN_SEED") {
        return vec![seed];
    }
    let nth = WAYS.iter().position(|one| *one == way).expect("a way") as u64;
    let count = number("FASTCP_CHURN_SEEDS").unwrap_or(SEEDS);
    (0..count)
        .filter(|seed| seed % WAYS.len() as u64 == nth)
        .collect()
}

/// A random number generator: the same seed gives the same numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The program that changes the tree.
struct Mutator {
    busy: PathBuf,
    /// A path beside the tree, where a new version is written before it is renamed into place.
    aside: PathBuf,
    dice: Dice,
}

impl Mutator {
    fn name(&mut self) -> PathBuf {
        let (dir, name) = (self.dice.below(DIRECTORIES), self.dice.below(NAMES));
        let kind = ["f", "l"][self.dice.below(2) as usize];
        self.busy.join(format!("d{dir}/{kind}{name}"))
    }

    /// Makes one change. Most changes can fail, since earlier ones may have removed the files
    /// they need.
    fn change(&mut self) {
        let (one, other) = (self.name(), self.name());
        let content = &contents()[self.dice.below(LENGTHS.len() as u64) as usize];
        let _ = match self.dice.below(12) {
            0..=2 => fs::hard_link(&one, &other),
            3 | 4 => fs::remove_file(&one),
            5 => fs::rename(&one, &other),
            6 => rewrite(&one, content),
            7 => fs::write(&self.aside, content).and_then(|()| fs::rename(&self.aside, &one)),
            8 => {
                let _ = fs::remove_file(&one);
                fs::create_dir(&one).and_then(|()| fs::write(one.join("inside"), content))
            }
            9 => {
                let _ = fs::remove_dir_all(&one);
                rewrite(&one, content)
            }
            10 => {
                let _ = fs::remove_file(&one);
                match self.dice.below(2) {
                    0 => std::os::unix::fs::symlink(&other, &one),
                    _ => mkfifoat(CWD, &one, Mode::from_raw_mode(0o600)).map_err(Into::into),
                }
            }
            _ => self.replace_directory(),
        };
    }

    /// Renames a whole directory away for a moment; a file may take its place for that time.
    fn replace_directory(&mut self) -> std::io::Result<()> {
        let dir = self.busy.join(format!("d{}", self.dice.below(DIRECTORIES)));
        let away = self.aside.with_extension("dir");
        fs::rename(&dir, &away)?;
        if self.dice.below(2) == 0 {
            fs::write(&dir, "a file where a directory was")?;
            std::thread::sleep(PAUSE);
            fs::remove_file(&dir)?;
        }
        std::thread::sleep(PAUSE);
        fs::rename(&away, &dir)
    }
}

/// Does not wait for a reader where a FIFO has taken the name.
fn rewrite(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    options
        .custom_flags(nonblock)
        .open(path)?
        .write_all(content)
}

fn contents() -> &'static [Vec<u8>] {
    static CONTENTS: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    CONTENTS.get_or_init(|| {
        let lengths = LENGTHS.iter().enumerate();
        lengths.map(|(n, len)| noise(n as u64, *len)).collect()
    })
}

/// A tree, half of which stays unchanged.
fn tree(case: &Case) -> Dir {
    let tree = case.src.dir("tree");
    for number in 0..120_u64 {
        let dir = number % 4;
        tree.file(
            format!("still/s{dir}/{number}"),
            noise(number, 300 * number as usize),
        );
    }
    for number in 0..3 {
        tree.file(format!("still/big{number}"), noise(number, 3 * MIB + 7));
    }
    tree.hard_link("still/s0/again", "still/s1/1");
    tree.hard_link("still/s2/big again", "still/big0");
    tree.link("still/link", "s0");
    for dir in 0..DIRECTORIES {
        for name in 0..NAMES {
            let content = &contents()[((dir * NAMES + name) % LENGTHS.len() as u64) as usize];
            tree.file(format!("busy/d{dir}/f{name}"), content);
            if name % 2 == 1 {
                let (one, other) = (
                    format!("busy/d{dir}/l{name}"),
                    format!("busy/d{dir}/f{name}"),
                );
                tree.hard_link(one, other);
            }
        }
    }
    for (nth, dir) in ["still/s0", "still/s1", "still/s2", "still/s3", "busy"]
        .iter()
        .enumerate()
    {
        tree.mode(dir, MODES[nth % MODES.len()]);
    }
    tree.mode("", 0o750);
    // The contents that a file of the destination may have.
    for (nth, content) in contents().iter().enumerate() {
        case.src.file(format!("contents/{nth}"), content);
    }
    case.src
        .file("contents/short", "a file where a directory was");
    tree
}

/// Changes the tree until `body` ends.
fn while_changed<T>(mut mutator: Mutator, body: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                mutator.change();
                std::thread::sleep(PAUSE);
            }
        });
        let _over = Over(&over);
        body()
    })
}

fn assert_modes_are_final(dir: &Path) {
    for (path, node) in Tree::read(dir).0 {
        let is_final = MODES.contains(&node.mode);
        let is_dir = node.what == What::Dir;
        assert!(!is_dir || is_final, "{path:?} has the mode {:o}", node.mode);
    }
}

fn a_tree_that_changes_all_the_time_fails_by_the_entry(case: &Case) {
    for seed in seeds(case.way) {
        let tree = tree(case);
        let is_live = seed / WAYS.len() as u64 % 2 == 1;
        let flags = [&SLOW[..], if is_live { &["--live"] } else { &[] }].concat();
        let run = case.copying(&flags, "tree", "");
        let mutator = Mutator {
            busy: tree.path("busy"),
            aside: case.scratch.path("aside"),
            dice: Dice(seed),
        };
        let done = while_changed(mutator, || run.run());
        let code = done.code.unwrap_or(-1);
        if std::env::var_os("FASTCP_CHURN_SEEDS").is_some() {
            println!("{:?} seed {seed} live {is_live}: exit {code}", case.way);
        }
        assert!(CODES.contains(&code), "seed {seed}: {done}");
        done.never_says("an invalid message");
        if is_live || done.stderr.contains("grew during the copy: only") {
            // A file that is written while it is read may contain parts of both versions, and one that
            // grows is copied in part.
            case.remember();
        }
        let copy = case.dst.dir("tree");
        assert_same(tree.path("still"), copy.path("still"), Also::HardLinks);
        assert_modes_are_final(&copy.0);
        fs::remove_dir_all(&tree.0).expect("remove the source");
        fs::remove_dir_all(&copy.0).expect("remove the copy");
    }
}

fn a_tree_that_is_renamed_under_way_fails_by_the_entry(case: &Case) {
    tree(case);
    let run = case.copying(&SLOW, "tree", "").start();
    until("the copy is under way", || {
        let there = case.dst.path("tree/still").read_dir();
        there.ok()?.next().map(drop)
    });
    fs::rename(case.src.path("tree"), case.src.path("away")).expect("rename the tree");
    let done = run.wait();
    let code = done.code.unwrap_or(-1);
    assert!(CODES.contains(&code), "{done}");
    done.never_says("an invalid message");
    assert_modes_are_final(&case.dst.0.join("tree"));
}

/// One of the two names is removed before the file is read, so the file then has one name.
fn a_hard_link_that_goes_leaves_the_other_name_alone(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("a", noise(1, 8 * MIB));
    let mut names = Vec::new();
    for number in 0..200 {
        tree.file(format!("d/{number}"), noise(number, 100_000));
        tree.hard_link(format!("d/{number} too"), format!("d/{number}"));
        names.push(tree.path(format!("d/{number} too")));
    }
    let run = case.copying(&SLOW, "tree", "").start();
    until("the copy is under way", || {
        case.dst.dir("tree").has_partial().then_some(())
    });
    for name in &names {
        fs::remove_file(name).expect("remove a name");
    }
    let done = run.wait();
    let code = done.code.unwrap_or(-1);
    assert!(CODES.contains(&code), "{done}");
    done.never_says("an invalid message");
    for number in 0..200 {
        let (want, got) = (noise(number, 100_000), case.dst.path("tree/d"));
        // The file system decides which of the two names comes first.
        let is = |name: String| fs::read(got.join(name)).is_ok_and(|bytes| bytes == want);
        assert!(is(number.to_string()) || is(format!("{number} too")));
    }
}

/// No second name is sent as a hard link to a file that was left out of its pack.
fn each_name_of_a_file_that_cannot_be_read_fails_for_that_reason(case: &Case) {
    const FILES: usize = 300;
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    let tree = case.src.dir("tree");
    for number in 0..FILES {
        tree.file(format!("name {number}"), "a few bytes");
        tree.hard_link(format!("name {number} too"), format!("name {number}"));
    }
    let inject = Inject::new().fail("open", Errno::IO).on("name *");
    let done = case.copying(&["-rv"], "tree", "").inject(&inject).run();
    done.exits(9).never_says("hard link");
    assert_eq!(
        done.stderr.matches("input/output error").count(),
        2 * FILES,
        "{done}"
    );
}

fn directories_of_a_copy_that_is_interrupted_have_their_final_modes(case: &Case) {
    let tree = tree(case);
    // Slow enough that it is still running when the signal comes.
    let slow = ["-r", "-l", "16000", "--memory", "16Mi"];
    let run = case.copying(&slow, "tree", "").start();
    until("the copy is under way", || {
        let there = case.dst.path("tree/still").read_dir();
        there.ok()?.next().map(drop)
    });
    run.signal(Signal::INT);
    run.wait().exits(130);
    assert_modes_are_final(&case.dst.path("tree"));
    case.copy(&["-r"], "tree", "").succeeds();
    assert_same(&tree.0, case.dst.path("tree"), Also::HardLinks);
    assert_modes_are_final(&case.dst.path("tree"));
}

//! Second copies with random faults, chosen by seeds: mirrors, changed files, snapshots. After
//! each run, complete or not, nothing outside the plan is touched, no file is half written under
//! its name, nothing is deleted before its successors are in place, and `latest` leads to a
//! complete snapshot. Then the same command completes the copy.
//!
//! `FASTCP_CHAOS_SECOND_SEED=n` plays one script, `FASTCP_CHAOS_SECOND_SEEDS=n` plays n of them,
//! from `FASTCP_CHAOS_FIRST=n` on.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, kill_process};

use super::chaos::{SERVER_LIMIT, VERDICT, play_all};
use crate::support::bad_disk::{self, What as Wrong};
use crate::support::done::Done;
use crate::support::peer::readable;
use crate::support::run::Running;
use crate::support::second::{Faults, Kind, Second};
use crate::support::storm::Storm;
use crate::support::tree::{Node, What};
use crate::support::{inject, *};

/// Scripts that every test run plays. After a change of the tested code, play some hundreds.
const SEEDS: u64 = 15;

/// The names in the destination that no copy may touch: a rule protects them, or they are beside
/// the snapshots.
const KEPT: &str = "keep";

const STATE: &str = ".fastcp-snapshots";

#[test]
fn a_second_copy_harms_nothing_whatever_breaks() {
    if !inject::permitted() {
        return skip("seccomp user notification");
    }
    play_all("FASTCP_CHAOS_SECOND_SEED", SEEDS, |seed| {
        let script = Second::of(seed);
        (script.to_string(), Box::new(move || play(&script)))
    });
}

fn play(script: &Second) -> (i32, usize) {
    let mut came = (-1, 0);
    Case::run(script.way, |case| {
        let ground = Ground::new(case, script);
        let (done, struck) = ground.break_it();
        readable(&done);
        for server in case.servers() {
            assert!(server.ends_within(SERVER_LIMIT), "{}", server.describe());
        }
        came = (done.code.unwrap_or(-1), struck.number);
        ground.judge(&done, &struck);
        let done = ground.copying(case.fastcp()).run();
        done.succeeds();
        ground.assert_complete(&done);
        ground.sweep(&struck);
        ground.end();
    });
    came
}

/// What the faults of a run have done.
#[derive(Debug, Default)]
struct Struck {
    number: usize,
    /// The copy may fail.
    is_reason: bool,
    /// A process was killed.
    has_killed: bool,
    /// Unfinished files may stay after a complete copy.
    leaves_files: bool,
    /// Exit code 0 would hide a loss.
    must_be_told: bool,
}

/// A source, and a destination that has an older copy of it.
struct Ground<'a> {
    case: &'a Case,
    script: &'a Second,
    /// The directory of the older copy, or of the snapshots.
    copied: Dir,
    source: Tree,
    /// `copied` before the second copy.
    before: Tree,
    /// Directories that have nothing to do with the copy.
    others: Vec<(Dir, Tree)>,
}

impl<'a> Ground<'a> {
    fn new(case: &'a Case, script: &'a Second) -> Ground<'a> {
        let tree = case.src.dir("tree");
        script.first_source(&tree);
        let copied = case.dst.dir("copy");
        let others = [case.dst.dir("beside"), case.scratch.dir("outside")];
        for other in &others {
            other.file("big", "another one");
            other.file("d0/1", "not of the copy");
            other.link("link", "big");
        }
        match script.kind {
            Kind::Series => {
                let flags = ["-a", "--snapshot"];
                let first = case.bare().args(flags).arg(tree.path("")).arg(&copied.0);
                first.run().succeeds();
                copied.file(format!("{KEPT}/a"), "not a snapshot");
            }
            Kind::Mirror | Kind::Delta => {
                let mut copy = Command::new("cp");
                copy.arg("-a").arg(tree.path(".")).arg(&copied.0);
                assert!(copy.status().expect("cp runs").success());
                copied.file("extra/1", "not at the source");
                copied.file("d0/extra", "not at the source either");
                copied.link("away", &others[1].0);
                copied.link("d1/away", "../../beside");
            }
        }
        if script.kind == Kind::Mirror {
            match script.changes_kinds {
                true => {
                    fs::remove_file(copied.path("text")).expect("remove it");
                    copied.link("text", "../beside/big");
                    copied.file("new/0/0/was a directory", "x");
                }
                false => {
                    copied.file(format!("{KEPT}/a"), "protected");
                    copied.file(format!("d0/{KEPT}/big"), "protected");
                    copied.file(format!("extra/{KEPT}"), "protected");
                }
            }
        }
        script.change(&tree);
        let with_tree = |dir: Dir| {
            let tree = Tree::read(&dir.0);
            (dir, tree)
        };
        Ground {
            case,
            script,
            source: Tree::read(&tree.0),
            before: Tree::read(&copied.0),
            others: others.into_iter().map(with_tree).collect(),
            copied,
        }
    }

    /// The second copy.
    fn copying(&self, fastcp: Run) -> Run {
        let run = fastcp.args(&self.script.flags);
        let run = run.arg(self.case.src("tree/")).arg(self.case.dst("copy"));
        run.limit(VERDICT)
    }

    fn break_it(&self) -> (Done, Struck) {
        let patient = ["--timeout", "20s", "--retries", "2"];
        match &self.script.faults {
            Faults::Network(script) => {
                let storm = Storm::new(self.case, script);
                let streams = script.streams.to_string();
                let run = storm.fastcp(self.case).args(["--timeout", "5s"]);
                let run = run.args(["--retries", "3", "--streams", &streams]);
                let done = self
                    .copying(run.args(["--compress", script.compress]))
                    .run();
                let struck = Struck {
                    number: storm.struck(),
                    is_reason: !script.spares_control(),
                    ..Struck::default()
                };
                storm.end();
                (done, struck)
            }
            Faults::Calls(troubles) => {
                let inject = bad_disk::inject(troubles);
                let run = self.copying(self.case.fastcp().args(patient));
                let done = run.inject(&inject).run();
                let by_rule = inject.struck_by_rule();
                let all = troubles.iter().zip(&by_rule);
                let struck: Vec<_> = all.filter(|(_, number)| **number > 0).collect();
                let any = |what: fn(&bad_disk::Trouble) -> bool| {
                    struck.iter().any(|(trouble, _)| what(trouble))
                };
                let told = Struck {
                    number: by_rule.iter().sum(),
                    is_reason: !struck.is_empty(),
                    has_killed: any(|trouble| trouble.what == Wrong::Kill),
                    leaves_files: any(bad_disk::Trouble::may_leave_files),
                    must_be_told: any(bad_disk::Trouble::must_be_told),
                };
                (done, told)
            }
            Faults::Kill { client, after } => {
                let run = self.copying(self.case.fastcp().args(patient)).start();
                std::thread::sleep(*after);
                let is_killed = self.kill(&run, *client);
                let struck = Struck {
                    number: usize::from(is_killed),
                    is_reason: is_killed,
                    has_killed: is_killed,
                    ..Struck::default()
                };
                (run.wait(), struck)
            }
        }
    }

    /// Kills the client or one server; false if it has ended already.
    fn kill(&self, run: &Running, client: bool) -> bool {
        let pid = match client {
            true => Some(run.pid()),
            false => self.case.servers().first().map(|server| server.pid),
        };
        pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
    }

    fn judge(&self, done: &Done, struck: &Struck) {
        if done.code == Some(0) {
            // After a killed server the client logs in again and copies the entry again.
            assert!(!struck.must_be_told || struck.has_killed, "{done}");
            self.assert_complete(done);
            return self.sweep(struck);
        }
        assert!(struck.is_reason, "it had no reason to fail: {done}");
        if !(struck.has_killed && done.signal == Some(9)) {
            done.fails();
            // The command line was right, and no end has broken the protocol.
            assert!(![2, 10, 13].contains(&done.code.unwrap_or(13)), "{done}");
        }
        self.assert_others_untouched();
        let faults = match self.script.kind {
            Kind::Series => self.wrong_snapshots(),
            Kind::Mirror | Kind::Delta => self.wrong_entries(),
        };
        assert!(faults.is_empty(), "after a failure: {faults:#?}\n{done}");
    }

    fn assert_others_untouched(&self) {
        for (dir, before) in &self.others {
            let faults = before.differences(&Tree::read(&dir.0), Also::ModesAndTimes);
            assert!(faults.is_empty(), "{:?}: {faults:?}", dir.0);
        }
    }

    /// Every fault of an incomplete copy.
    fn wrong_entries(&self) -> Vec<String> {
        let mut after = Tree::read(&self.copied.0);
        after.0.retain(|path, _| !is_own(path));
        let mut faults = Vec::new();
        for (path, node) in &after.0 {
            let old = self.before.0.get(path);
            let new = self.source.0.get(path);
            let is = |other: Option<&Node>| other.is_some_and(|other| other.what == node.what);
            let is_in_place = self.script.has("--inplace") && is_file(old) && is_file(new);
            if !(is(old) || is(new) || is_in_place && is_file(Some(node))) {
                faults.push(format!("half or invented: {path:?} {node:?}"));
            }
        }
        let is_deleted = |path: &&PathBuf| !after.0.contains_key(*path);
        let deleted: Vec<_> = self.before.0.keys().filter(is_deleted).collect();
        for path in &deleted {
            let old = self.before.0.get(*path);
            if self.is_kept(path) || is_same_kind(old, self.source.0.get(*path)) {
                faults.push(format!("deleted outside the plan: {path:?}"));
            }
        }
        let left = deleted.iter().filter(|path| !self.gives_way(path));
        let left: Vec<_> = left.collect();
        if !left.is_empty() {
            let is_there = |(path, node): &(&PathBuf, &Node)| {
                after
                    .0
                    .get(*path)
                    .is_some_and(|there| there.what == node.what)
            };
            let missing = self.source.0.iter().filter(|entry| !is_there(entry));
            faults
                .extend(missing.map(|(path, _)| {
                    format!("{left:?} are deleted, and {path:?} is not in place")
                }));
        }
        faults.extend(self.wrong_backups(&after));
        faults
    }

    /// True for an entry that must stay as it was.
    fn is_kept(&self, path: &Path) -> bool {
        let is_mirror = self.script.has("--delete");
        let has_rule = self.script.has("--exclude");
        let is_under_rule = has_rule && path.components().any(|part| part.as_os_str() == KEPT);
        // The directory of a protected entry stays too.
        let has_kept = has_rule && path == Path::new("extra");
        !self.source.0.contains_key(path) && (!is_mirror || is_under_rule || has_kept)
    }

    /// True if an entry of another kind replaces this one or a directory above it.
    fn gives_way(&self, path: &Path) -> bool {
        path.ancestors().any(|above| {
            let (old, new) = (self.before.0.get(above), self.source.0.get(above));
            new.is_some() && !is_same_kind(old, new)
        })
    }

    /// Each old content is still there, under its name or in the backup directory.
    fn wrong_backups(&self, after: &Tree) -> Vec<String> {
        if !self.script.has("--backup-dir=../old") {
            return Vec::new();
        }
        let mut there: HashSet<_> = after.0.values().filter_map(content).collect();
        let old = self.case.dst.dir("old");
        let old = Tree::read(&old.0);
        there.extend(old.0.values().filter_map(content));
        let lost = self
            .before
            .0
            .iter()
            .filter(|(_, node)| content(node).is_some_and(|content| !there.contains(&content)));
        lost.map(|(path, _)| format!("no backup of {path:?}"))
            .collect()
    }

    fn wrong_snapshots(&self) -> Vec<String> {
        let names = snapshots(&self.copied);
        let first = self.first();
        let mut faults = Vec::new();
        for name in &names {
            let now = Tree::read(self.copied.path(name));
            let mut differences = self.source.differences(&now, Also::ModesAndTimes);
            // One that `--keep` has removed leaves its name to another of the same second.
            let is_again = self.script.has("--keep") && differences.is_empty();
            if *name == first && !is_again {
                differences = self.first_tree().differences(&now, Also::ModesAndTimes);
            }
            faults.extend(differences.into_iter().map(|it| format!("{name}: {it}")));
        }
        match latest(&self.copied) {
            Some(latest) if names.contains(&latest) => {}
            other => faults.push(format!("latest is {other:?} of {names:?}")),
        }
        let is_thinned = self.script.has("--keep") && names.iter().any(|name| *name > first);
        if !names.contains(&first) && !is_thinned {
            faults.push(format!("{first} is gone: {names:?}"));
        }
        let kept = below(&self.before, Path::new(KEPT));
        let now = Tree::read(self.copied.path(KEPT));
        faults.extend(kept.differences(&now, Also::ModesAndTimes));
        faults
    }

    /// The snapshot that existed before.
    fn first(&self) -> String {
        let mut names = self.before.0.keys().filter_map(|path| path.to_str());
        let name = names.find(|name| name.ends_with('Z') && !name.contains('/'));
        name.expect("there is one").to_owned()
    }

    fn first_tree(&self) -> Tree {
        below(&self.before, Path::new(&self.first()))
    }

    /// The destination is what the whole copy makes of it.
    fn assert_complete(&self, done: &Done) {
        self.assert_others_untouched();
        if self.script.kind == Kind::Series {
            let faults = self.wrong_snapshots();
            assert!(faults.is_empty(), "{faults:#?}\n{done}");
            let latest = latest(&self.copied).expect("it was checked");
            let names = snapshots(&self.copied);
            match self.script.has("--keep") {
                // A snapshot with a later date, from the same second, stops the removal.
                true => assert!(names.iter().all(|name| *name >= latest), "{names:?}"),
                false => assert!(latest > self.first(), "{latest} is not new: {done}"),
            }
            return;
        }
        let mut want = self.source.clone();
        let kept = self.before.0.iter().filter(|(path, _)| self.is_kept(path));
        want.0
            .extend(kept.map(|(path, node)| (path.clone(), node.clone())));
        let mut after = Tree::read(&self.copied.0);
        // The end of the case finds the files that must not stay.
        after.0.retain(|path, _| !is_own(path));
        // A directory that only the destination has loses an entry, which changes its time.
        let extra = Path::new("extra");
        if let (Some(want), Some(now)) = (want.0.get_mut(extra), after.0.get(extra)) {
            want.mtime = now.mtime;
        }
        let faults = want.differences(&after, Also::ModesAndTimes);
        assert!(faults.is_empty(), "{faults:#?}\n{done}");
        assert_eq!(self.wrong_backups(&after), Vec::<String>::new());
        after.0.retain(|path, _| self.source.0.contains_key(path));
        let faults = self.source.differences(&after, Also::HardLinks);
        assert!(faults.is_empty(), "{faults:#?}\n{done}");
    }

    /// Removes unfinished files that fastcp had to keep.
    fn sweep(&self, struck: &Struck) {
        if struck.leaves_files {
            match self.script.kind {
                Kind::Series => {}
                Kind::Mirror | Kind::Delta => self.case.sweep(),
            }
        }
    }

    /// Removes the marks of snapshots, which are no leftovers.
    fn end(&self) {
        if self.script.kind == Kind::Series {
            fs::remove_dir_all(self.copied.path(STATE)).expect("remove it");
        }
    }
}

/// The complete snapshots in a directory, oldest first.
fn snapshots(there: &Dir) -> Vec<String> {
    let mut names = there.names();
    // One that `--keep` removes has another name.
    names.retain(|name| name.ends_with('Z') && !name.starts_with('.'));
    names
}

fn latest(there: &Dir) -> Option<String> {
    let target = fs::read_link(there.path("latest")).ok()?;
    Some(target.to_str()?.to_owned())
}

/// The part of a tree below `top`.
fn below(tree: &Tree, top: &Path) -> Tree {
    let entries = tree.0.iter().filter_map(|(path, node)| {
        let rest = path.strip_prefix(top).ok()?;
        Some((rest.to_owned(), node.clone()))
    });
    Tree(entries.collect())
}

/// True for an unfinished file of fastcp.
fn is_own(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".fastcp-")
}

fn is_file(node: Option<&Node>) -> bool {
    node.is_some_and(|node| matches!(node.what, What::File { .. }))
}

fn is_same_kind(one: Option<&Node>, other: Option<&Node>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            std::mem::discriminant(&one.what) == std::mem::discriminant(&other.what)
        }
        _ => false,
    }
}

fn content(node: &Node) -> Option<blake3::Hash> {
    match node.what {
        What::File { content, .. } => Some(content),
        _ => None,
    }
}

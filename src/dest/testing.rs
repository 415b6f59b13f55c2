//! Helpers that the tests of this folder share.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use super::resolve::{Spec, resolve};
use super::{EntrySlot, ModeRules, Rules};
use crate::dest::root::{RootTarget, Source};
use crate::dir::{Dir, Handles};
use crate::error::Result;
use crate::keep::{Keep, Update};
use crate::manifest::{Entry, EntryKind, Name, Root, Timestamp};

pub(super) fn name(text: &str) -> Name {
    Name::try_from(text.as_bytes().to_vec()).unwrap()
}

pub(super) fn slot(dir: &Path, text: &str) -> EntrySlot {
    let dir = Dir::root(dir, &Arc::new(Handles::default())).unwrap();
    EntrySlot::new(dir, name(text))
}

pub(super) fn rules() -> Rules {
    Rules {
        keep: Keep::default(),
        update: Update::default(),
        changes: Arc::default(),
        not_kept: Arc::default(),
        no_clobber: false,
        makes_room: false,
        fsync: false,
        inplace: false,
        shared_inodes: Arc::default(),
        force: false,
        allow_empty: false,
        blind: false,
        untouched: false,
        set_id: true,
        no_own_names: false,
        links_inside: false,
        direct_io: false,
        drop_cache: false,
        dry_run: false,
        check: false,
        backup: None,
        earlier: None,
        snapshot: false,
        closed: false,
        modes: ModeRules::Usual,
        umask: 0o022,
    }
}

pub(super) fn file(size: u64, mode: u32) -> Entry {
    let stat = rustix::fs::stat("/").unwrap();
    let mut entry = Entry::from_stat(1, 0, name("source"), EntryKind::File, &stat);
    let time = Timestamp {
        s: 1_000_000_000,
        ns: 5,
    };
    (entry.size, entry.allocated, entry.mode) = (size, size, mode);
    (entry.mtime, entry.atime) = (time, time);
    entry.uid = rustix::process::geteuid().as_raw();
    entry.gid = rustix::process::getegid().as_raw();
    entry
}

/// The names in a directory, sorted.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A directory with the entries that the cases need: d/, d/sub/, f, to_d -> d, dangling -> new, d/s
/// -> ../f, d/gone -> ../made, loop -> loop.
pub(super) fn ground() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let at = |path: &str| temp.path().join(path);
    std::fs::create_dir_all(at("d/sub")).unwrap();
    std::fs::write(at("f"), b"").unwrap();
    symlink("d", at("to_d")).unwrap();
    symlink("new", at("dangling")).unwrap();
    symlink("../f", at("d/s")).unwrap();
    symlink("../made", at("d/gone")).unwrap();
    symlink("loop", at("loop")).unwrap();
    temp
}

/// A root: `S` and lower-case names are files, `D` is a directory, `D/` is its contents.
pub(super) fn root(text: &str) -> Root {
    let plain = text.trim_end_matches('/');
    Root {
        id: 1,
        operand: 0,
        name: name(plain),
        is_directory: plain.starts_with(|first: char| first.is_uppercase()) && plain != "S",
        contents: text.ends_with('/'),
        dev: 0,
        ino: 0,
    }
}

pub(super) fn try_resolve(spec: &Spec, roots: &[Root], follow: bool) -> Result<Vec<RootTarget>> {
    let sources: Vec<_> = roots
        .iter()
        .map(|root| Source {
            root,
            typed: b"",
            follow_name: follow,
        })
        .collect();
    let handles = Arc::new(Handles::default());
    resolve(spec, &sources, true, &handles, &|_, _| false)
}

pub(super) fn spec(ground: &Path, path: &str) -> Spec {
    Spec {
        path: path
            .trim_start_matches("-T ")
            .trim_start_matches("--mkpath ")
            .into(),
        mkpath: path.starts_with("--mkpath "),
        relative: false,
        is_beside: false,
        scp: None,
        base: ground.to_owned(),
        remote: false,
        no_target_directory: path.starts_with("-T "),
        inplace: false,
        fsync: false,
        dry_run: false,
        check: false,
        confine: None,
    }
}

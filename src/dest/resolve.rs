//! The places where sources land, by scp's rules, from the typed destination and the existing
//! files.
//!
//! An existing directory takes sources under their own names. `x/` means a directory. Several
//! sources need a directory. In every other case the source becomes the destination. The contents
//! of a directory (`DIR/`, or with `--no-target-directory`) land directly in the destination. All
//! of this is decided before the first byte. Only an entry of another kind under a source's own
//! name in DEST is refused later, when that source arrives. A directory made by an
//! unfinished copy of the same source is treated as if it did not exist yet, so that the copy
//! resumes in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, mkdirat};

use super::conflict::{refuse_among_devices, refuse_itself, refuse_twice, refuse_unwritable};
use super::directory::CANNOT_CREATE;
use super::earlier::EarlierPlace;
use super::mkpath;
use super::placement::{ExistingPlace, Resolved, ScpPlaces};
use super::root::{Landing, RootTarget, Source};
use super::user_path::{FoundPath, Reach, expand_confined, expand_tilde, means_directory, missing};
use super::{EntrySlot, sync_directory};
use crate::dir::{Confine, Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Root;

/// The destination as typed.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The part after the colon, or the whole operand; may be empty.
    pub path: Vec<u8>,
    /// Start of a relative path; empty for this process's working directory.
    pub base: PathBuf,
    /// Expand a leading `~`. On the user's machine the shell has already done that.
    pub remote: bool,
    /// `--no-target-directory`
    pub no_target_directory: bool,
    /// `--inplace`: an existing file is written, so its directory need not take a new name.
    pub inplace: bool,
    /// `--fsync`: a directory that is made for the sources is durable.
    pub fsync: bool,
    /// `--mkpath`: missing directories of the path are made.
    pub mkpath: bool,
    /// `--dry-run`: no directory is made.
    pub dry_run: bool,
    /// Nothing is written after this run either.
    pub check: bool,
    /// Only some files below the source are copied, which may have the destination below it.
    pub relative: bool,
    /// Sources on other hosts go to the same destination, which is a directory then.
    pub is_beside: bool,
    /// `--scp`: a slash at the end of the destination means nothing to a directory.
    pub scp: Option<ScpPlaces>,
    /// The directory that a confined key may reach. None if only the user's permissions count.
    pub confine: Option<Arc<Confine>>,
}

/// True if an interrupted copy of this source landed under this name.
pub type Unfinished<'a> = dyn Fn(&EntrySlot, &Root) -> bool + 'a;

/// Resolves a target for each of `sources`, in the same order. Without `--mkpath` it makes at most
/// one directory: `x` of `x/` if directories land in it. `same_machine`: device and inode of a root
/// are valid here.
///
/// # Errors
/// `Kind::Usage` if the typed destination does not fit the existing files. `Kind::Write` if a
/// destination directory is missing or not writable. `Kind::Refused` for a source onto or into
/// itself. The path in an error is as the user would type it.
pub fn resolve(
    spec: &Spec,
    sources: &[Source],
    same_machine: bool,
    handles: &Arc<Handles>,
    unfinished: &Unfinished,
) -> Result<Vec<RootTarget>> {
    let resolved = resolve_each(spec, sources, same_machine, handles, unfinished);
    resolved.map_err(|error| spec.as_typed(error))
}

fn resolve_each(
    spec: &Spec,
    sources: &[Source],
    same_machine: bool,
    handles: &Arc<Handles>,
    unfinished: &Unfinished,
) -> Result<Vec<RootTarget>> {
    let reach = spec.reach(handles);
    let place = ExistingPlace {
        path: spec.expanded()?,
        means_directory: means_directory(&spec.path),
        alone: sources.len() == 1 && !spec.is_beside,
        scp: spec.scp,
        reach,
    };
    if spec.mkpath {
        // A source that becomes the destination makes it as its own directory.
        let is_content = place.alone && sources.iter().all(|source| source.root.contents);
        let becomes = spec.no_target_directory || is_content;
        let whole = !becomes && (!place.alone || place.means_directory);
        if spec.dry_run && mkpath::is_missing(reach, &place.path, whole) {
            let missing = sources.iter();
            let missing = missing.map(|source| place.would_be_made(source, whole));
            let resolved: Vec<Resolved> = missing.collect();
            refuse_twice(sources, &resolved)?;
            return finish(spec, sources, resolved);
        }
        if !spec.dry_run {
            mkpath::make(reach, &place.path, whole, spec.fsync)?;
        }
    }
    let found = reach.find(&place.path)?;
    if spec.no_target_directory && !place.alone {
        let message = "--no-target-directory takes one source";
        return Err(Error::new(Kind::Usage, Side::Dest, message).at(&place.path));
    }
    let is_missing = matches!(found, FoundPath::Nothing(_));
    if is_missing && place.alone && place.means_directory && spec.scp == Some(ScpPlaces::Upload) {
        return Err(missing(&place.path));
    }
    let is_made = match place.alone {
        true => sources[0].root.is_directory && place.makes_no_targets(),
        false => spec.scp.is_some(),
    };
    if is_missing && is_made && place.is_dangling() {
        let message = "is a symbolic link to a missing directory: create that directory, or remove \
                       the link first";
        return Err(Error::new(Kind::Write, Side::Dest, message).at(&place.path));
    }
    let mut resolved = Vec::with_capacity(sources.len());
    for source in sources {
        let becomes = source.root.contents || spec.no_target_directory;
        let begun = match &found {
            FoundPath::Directory(dir) if place.alone && source.root.is_directory => {
                let begun = reach.name_of_directory(&place.path);
                let begun = begun.filter(|slot| unfinished(slot, source.root));
                begun.map(|slot| Resolved::begun(slot, dir))
            }
            _ => None,
        };
        resolved.push(if let Some(begun) = begun {
            begun
        } else if becomes {
            place.become_it(source, &found)?
        } else {
            place.land(source, &found)?
        });
    }
    refuse_twice(sources, &resolved)?;
    for (source, target) in sources.iter().zip(&resolved) {
        if same_machine {
            refuse_itself(source, target, spec.relative)?;
        }
        let is_written = spec.inplace || target.landing.device().is_some();
        if !(spec.check || is_written && target.existing.is_some()) {
            refuse_unwritable(source, target)?;
        }
        refuse_among_devices(source, target)?;
    }
    finish(spec, sources, resolved)
}

/// The same for an existing directory that the user did not name.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_in(
    spec: &Spec,
    dir: &Arc<Dir>,
    sources: &[Source],
    same_machine: bool,
    handles: &Arc<Handles>,
) -> Result<Vec<RootTarget>> {
    let place = ExistingPlace {
        path: dir.path(),
        means_directory: true,
        alone: sources.len() == 1,
        scp: spec.scp,
        reach: spec.reach(handles),
    };
    let found = FoundPath::Directory(dir.clone());
    let resolved = sources.iter().map(|source| match source.root.contents {
        true => place.become_it(source, &found),
        false => place.land(source, &found),
    });
    let resolved = resolved.collect::<Result<Vec<Resolved>>>()?;
    refuse_twice(sources, &resolved)?;
    for (source, target) in sources.iter().zip(&resolved) {
        if same_machine {
            refuse_itself(source, target, spec.relative)?;
        }
    }
    finish(spec, sources, resolved)
}

/// The same in a dry run, for a directory that would be made.
///
/// # Errors
/// `Kind::Usage` if two sources would get the same name.
pub fn would_resolve_in(path: &Path, sources: &[Source]) -> Result<Vec<RootTarget>> {
    let missing = sources.iter().map(|source| {
        let root = source.root;
        match root.contents {
            true => Resolved::missing(path.to_owned(), Vec::new()),
            false => {
                let name = root.name.as_bytes().to_vec();
                Resolved::missing(path.join(&root.name), name)
            }
        }
    });
    let resolved: Vec<Resolved> = missing.collect();
    refuse_twice(sources, &resolved)?;
    let targets = resolved.into_iter().map(|resolved| RootTarget {
        landing: resolved.landing,
        listed: resolved.listed,
        existed: false,
        earlier: EarlierPlace::default(),
    });
    Ok(targets.collect())
}

impl Spec {
    pub(super) fn expanded(&self) -> Result<PathBuf> {
        let typed = self.path.as_slice();
        Ok(match &self.confine {
            Some(confine) => expand_confined(confine, typed)?,
            None if self.remote => self.base.join(expand_tilde(typed)?),
            None => self.base.join(expand_nothing(typed)),
        })
    }

    /// The error, with its path as the user would type it on this host: relative or with the `~` of the
    /// destination, if that was typed so.
    pub(super) fn as_typed(&self, error: Error) -> Error {
        let path = error
            .path
            .as_deref()
            .and_then(|path| self.path_as_typed(path));
        match path {
            Some(typed) => error.at(typed),
            None => error,
        }
    }

    /// None if the path needs no change.
    fn path_as_typed(&self, path: &Path) -> Option<PathBuf> {
        // The user does not know where a key is confined to.
        if !self.remote || self.confine.is_some() {
            return None;
        }
        let tilde: &[u8] = match self.path.first() {
            Some(b'/') => return None,
            Some(b'~') => self.path.split(|&byte| byte == b'/').next()?,
            _ => b"",
        };
        let start = self.base.join(expand_tilde(tilde).ok()?);
        let rest = path.strip_prefix(start).ok()?;
        let typed = expand_nothing(tilde).join(rest);
        (!rest.as_os_str().is_empty()).then_some(typed)
    }

    pub(super) fn reach<'a>(&'a self, handles: &'a Arc<Handles>) -> Reach<'a> {
        Reach {
            confine: self.confine.as_deref(),
            handles,
        }
    }
}

/// A path that a local shell has already expanded: every byte is literal.
fn expand_nothing(typed: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(typed))
}

/// Makes the one directory that may be missing, and returns the targets.
fn finish(spec: &Spec, sources: &[Source], resolved: Vec<Resolved>) -> Result<Vec<RootTarget>> {
    let mut made: Option<Arc<Dir>> = None;
    let mut targets = Vec::with_capacity(resolved.len());
    for (source, resolved) in sources.iter().zip(resolved) {
        let landing = match resolved.landing {
            Landing::Name(slot) if resolved.within && spec.dry_run => {
                Landing::Missing(slot.path().join(&source.root.name))
            }
            Landing::Name(slot) if resolved.within => {
                let dir = match &made {
                    Some(dir) => dir.clone(),
                    None => make_directory(&slot, spec.fsync)?,
                };
                made = Some(dir.clone());
                let name = source.root.name.clone();
                let fresh = true;
                Landing::Name(EntrySlot {
                    fresh,
                    ..EntrySlot::new(dir, name)
                })
            }
            other => other,
        };
        targets.push(RootTarget {
            landing,
            listed: resolved.listed,
            existed: resolved.existing.is_some(),
            earlier: EarlierPlace::default(),
        });
    }
    Ok(targets)
}

pub(super) fn make_directory(slot: &EntrySlot, fsync: bool) -> Result<Arc<Dir>> {
    let made = slot.dir.handle().and_then(|above| {
        // The umask removes the permissions that the user does not want to give.
        mkdirat(&*above, slot.name.as_os_str(), Mode::from_raw_mode(0o777))?;
        slot.dir.child(&slot.name)
    });
    let made = made.map_err(|cause| slot.error(CANNOT_CREATE, cause))?;
    if fsync {
        sync_directory(&slot.dir)?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, lchown};

    use rustix::process::Uid;
    use rustix::thread::set_thread_uid;

    use super::super::testing::*;
    use super::*;

    /// Where each root lands below the test directory, as `directory|name` or `directory=`, or the
    /// kind and message of the error.
    fn outcome(roots: &str, path: &str) -> String {
        let ground = ground();
        let real = std::fs::canonicalize(ground.path()).unwrap();
        let roots: Vec<_> = roots.split(' ').map(root).collect();
        match try_resolve(&spec(ground.path(), path), &roots, true) {
            Err(error) => format!("{:?}: {}", error.kind, error.message),
            Ok(targets) => {
                let shown = targets.iter().map(|target| {
                    let dir = std::fs::canonicalize(target.landing.dir().unwrap().path()).unwrap();
                    let dir = dir.strip_prefix(&real).unwrap().to_str().unwrap();
                    match &target.landing {
                        Landing::Name(slot) => {
                            let name = String::from_utf8_lossy(slot.name.as_bytes());
                            format!("{dir}|{name}")
                        }
                        _ => format!("{dir}="),
                    }
                });
                shown.collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn everything_lands_where_scp_puts_it() {
        let cases = [
            // A file.
            ("a", "d", "d|a"),
            ("a", "d/", "d|a"),
            ("a", "d/.", "d|a"),
            ("a", "", "|a"),
            ("a", ".", "|a"),
            ("a", "d/..", "|a"),
            ("a", "new", "|new"),
            ("a", "f", "|f"),
            ("a", "d/sub/new", "d/sub|new"),
            ("a", "to_d", "d|a"),
            ("a", "to_d/new", "d|new"),
            ("a", "dangling", "|new"),
            ("s", "d", "|f"),
            ("gone", "d", "|made"),
            ("a", "-T new", "|new"),
            // A directory.
            ("D", "d", "d|D"),
            ("D", "d/", "d|D"),
            ("D", "new", "|new"),
            ("D", "new/", "new|D"),
            ("D E", "new/", "new|D new|E"),
            ("D", "dangling", "|new"),
            ("D", "-T new/", "|new"),
            ("D", "-T d", "d="),
            ("D", "-T .", "="),
            // The contents of a directory.
            ("D/", "d", "d="),
            ("D/", "to_d", "d="),
            ("D/", "new", "|new"),
            ("D/", "new/", "|new"),
            ("D/ a", "d", "d= d|a"),
            // Missing directories.
            ("a", "--mkpath new/x/", "new/x|a"),
            ("a", "--mkpath new/x", "new|x"),
            ("a b", "--mkpath new/x", "new/x|a new/x|b"),
            ("D", "--mkpath new/x", "new|x"),
            ("D", "--mkpath new/x/", "new/x|D"),
            ("D/", "--mkpath new/x", "new|x"),
            ("D/", "--mkpath new/x/", "new|x"),
            ("a", "--mkpath to_d/new/x", "d/new|x"),
            ("a", "--mkpath d/../new/x", "new|x"),
            ("a", "--mkpath new", "|new"),
            // Several sources.
            ("a b D", "d", "d|a d|b d|D"),
        ];
        for (roots, path, expected) in cases {
            assert_eq!(outcome(roots, path), expected, "{roots} to {path:?}");
        }
    }

    /// The text of such a link names the file that it was, with "(deleted)" behind it.
    #[test]
    fn a_link_of_proc_to_a_file_without_a_name_leads_nowhere() {
        let ground = ground();
        let file = std::fs::File::create(ground.path().join("x")).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let lands = || try_resolve(&spec(ground.path(), &path), &[root("a")], true);
        let targets = lands().unwrap();
        assert!(targets[0].existed);
        std::fs::remove_file(ground.path().join("x")).unwrap();
        let before = names(ground.path());
        let is_refused = || {
            let error = lands().err().expect("it has no name");
            assert_eq!(error.kind, Kind::Write);
            assert!(error.message.contains("no name"), "{error}");
        };
        is_refused();
        assert_eq!(names(ground.path()), before);
        // Another file has the name that the link seems to mean.
        std::fs::write(ground.path().join("x (deleted)"), "other").unwrap();
        is_refused();
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_reason() {
        let cases = [
            ("a", "new/", "Write: destination directory does not exist"),
            ("a", "new/x", "Write: destination directory does not exist"),
            ("D", "new/x/", "Write: destination directory does not exist"),
            ("a b", "new", "Write: destination directory does not exist"),
            ("D a", "new/", "Write: destination directory does not exist"),
            (
                "a",
                "--mkpath f/x",
                "Write: cannot open the destination directory: not a dir",
            ),
            ("a", "f/", "Usage: is not a directory; leave out the slash"),
            (
                "a",
                "f/x",
                "Write: cannot open the destination directory: not a dir",
            ),
            (
                "a b",
                "f",
                "Usage: is not a directory; several sources need one",
            ),
            (
                "D",
                "f",
                "Usage: is not a directory, so the directory D cannot",
            ),
            (
                "D/",
                "f",
                "Usage: is not a directory, so the directory D cannot",
            ),
            (
                "a",
                "-T d",
                "Usage: is a directory; add the name of the file",
            ),
            (
                "a b",
                "-T d",
                "Usage: --no-target-directory takes one source",
            ),
            (
                "a",
                "loop",
                "Write: cannot follow the link: too many levels",
            ),
        ];
        for (roots, path, expected) in cases {
            let found = outcome(roots, path);
            assert!(found.starts_with(expected), "{roots} to {path:?}: {found}");
        }
        assert!(outcome("a", &"x".repeat(256)).starts_with("Write: name too long"));
        for (roots, both) in [("a a", ": a and a"), ("D/ E/", ": D and E")] {
            let found = outcome(roots, "d");
            let begin = "Usage: two sources would get the same name; copy them";
            assert!(found.starts_with(begin) && found.ends_with(both), "{found}");
        }
    }

    #[test]
    fn a_link_that_only_a_pattern_named_is_not_followed() {
        let ground = ground();
        let spec = spec(ground.path(), "d");
        let targets = try_resolve(&spec, &[root("s")], false).unwrap();
        let Landing::Name(slot) = &targets[0].landing else {
            panic!("a name");
        };
        assert_eq!(slot.path(), ground.path().join("d/s"));
        assert!(targets[0].existed);
    }

    /// In a directory that others may write to, another user leaves a link with the name of a source.
    #[test]
    fn a_link_of_another_user_in_the_destination_leads_no_copy_elsewhere() {
        const USER: u32 = 12345;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let ground = ground();
        let at = |path: &str| ground.path().join(path);
        for own in ["", "d", "d/s", "f"] {
            lchown(at(own), Some(USER), None).unwrap();
        }
        lchown(at("d/gone"), Some(USER + 1), None).unwrap();
        // As in /srv/shared.
        set_permissions(at("d"), Permissions::from_mode(0o777)).unwrap();
        let resolved = |name: &str, path: &str| {
            let (spec, roots) = (spec(ground.path(), path), [root(name)]);
            let resolve = || {
                // The other threads stay root.
                set_thread_uid(Uid::from_raw(USER)).unwrap();
                try_resolve(&spec, &roots, true)
            };
            std::thread::scope(|scope| scope.spawn(resolve).join().unwrap())
        };
        let targets = resolved("s", "d").unwrap();
        assert_eq!(targets[0].landing.path().file_name(), Some("f".as_ref()));
        // This one is typed.
        assert!(resolved("a", "d/gone").is_ok());
        let refused = resolved("gone", "d").err().unwrap();
        assert!(
            refused.message.contains("of another user (uid 12346)"),
            "{refused}"
        );
        assert_eq!(refused.path, Some(at("d/gone")));
    }

    #[test]
    fn a_list_of_digests_calls_things_by_their_place_in_the_destination() {
        let listed = |roots: &str, path: &str| {
            let ground = ground();
            let roots: Vec<_> = roots.split(' ').map(root).collect();
            let spec = spec(ground.path(), path);
            let targets = try_resolve(&spec, &roots, true).unwrap();
            let listed = targets.into_iter().map(|target| target.listed);
            listed
                .map(|name| std::ffi::OsStr::from_bytes(&name).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(listed("a D", "d"), ["a", "D"]);
        assert_eq!(listed("a", "new"), ["new"]);
        assert_eq!(listed("D", "new"), [""]);
        assert_eq!(listed("D", "new/"), ["D"]);
        assert_eq!(listed("s", "d"), ["s"]);
        assert_eq!(listed("D/", "new"), [""]);
        assert_eq!(listed("D", "-T d"), [""]);
    }
}

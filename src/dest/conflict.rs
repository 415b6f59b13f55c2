//! Conflicts that are refused before the first byte: two sources in one place, a source onto or
//! into itself, a directory that takes no new names, a file in /dev.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, Stat, accessat, fstat, openat};
use rustix::io::Errno;

use super::hints::{inplace_instead, is_append_only};
use super::placement::Resolved;
use crate::dest::root::{Landing, RootTarget, Source};
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;
use crate::units::printable;

/// Parent directories that are visited at most, to see whether one directory is in another.
const DEPTH_MAX: usize = 4096;

/// Refuses two sources that would land in one place.
pub(super) fn refuse_twice(sources: &[Source], resolved: &[Resolved]) -> Result<()> {
    // There may be 130,000, so a table with their keys would take much memory.
    let key = |nth: u32| resolved[nth as usize].key(&sources[nth as usize]);
    let mut order: Vec<u32> = (0..resolved.len() as u32).collect();
    order.sort_by(|a, b| key(*a).cmp(&key(*b)));
    let same = order.windows(2).map(|pair| (pair[1], pair[0]));
    let same = same.filter(|(second, first)| key(*second) == key(*first));
    let Some((second, first)) = same.min() else {
        return Ok(());
    };
    let [first, source] = [first, second].map(|nth| &sources[nth as usize]);
    // The paths may be long, and the other end cuts a long text at its end.
    let message = format!(
        "two sources would get the same name; copy them to different names or into different \
         directories (without a slash at its end, a directory keeps its name): {} and {}",
        first.shown(),
        source.shown()
    );
    let path = resolved[second as usize].path(source);
    Err(Error::new(Kind::Usage, Side::Dest, message).at(path))
}

/// Refuses a file onto itself, and a directory onto or into itself.
pub(super) fn refuse_itself(source: &Source, target: &Resolved, may_lie_in_it: bool) -> Result<()> {
    let root = source.root;
    let shown = source.shown();
    let refused = |message: String| {
        Err(Error::new(Kind::Refused, Side::Dest, message).at(target.path(source)))
    };
    if let Some((existing, _)) = target.existing
        && existing == (root.dev, root.ino)
    {
        return refused(if root.is_directory {
            format!("{shown} is the same directory")
        } else {
            format!("{shown} is the same file")
        });
    }
    let lies_in = |dir: &Arc<Dir>| lies_in(dir, (root.dev, root.ino));
    if root.is_directory && !may_lie_in_it && target.landing.dir().is_some_and(lies_in) {
        return refused(format!(
            "is inside {shown}; a directory cannot be copied into itself"
        ));
    }
    Ok(())
}

/// Refuses places of which one is, contains or is part of another (`--map`): `--delete` could
/// remove there what belongs to the other, and two files could get one name. With `same_machine`
/// also refuses a place in another source than its own.
///
/// # Errors
/// `Kind::Usage` or `Kind::Refused`.
pub fn refuse_overlap(
    sources: &[Source],
    targets: &[RootTarget],
    same_machine: bool,
) -> Result<()> {
    let places = targets
        .iter()
        .map(|target| MappedPlace::of(&target.landing));
    let places = places.collect::<Result<Vec<_>>>()?;
    for (nth, inner) in places.iter().enumerate() {
        for (other, outer) in places.iter().enumerate().filter(|(other, _)| *other != nth) {
            let path = targets[nth].landing.path();
            if inner.is_in(outer) {
                let (one, two) = (sources[nth].shown(), sources[other].shown());
                let message = format!(
                    "{one} would go to the place of {two}, or below it; --map needs separate places"
                );
                return Err(Error::new(Kind::Usage, Side::Dest, message).at(path));
            }
            let source = sources[other].root;
            let is_in_source = || {
                let dir = inner.landing.dir();
                dir.is_some_and(|dir| lies_in(dir, (source.dev, source.ino)))
            };
            if same_machine && source.is_directory && is_in_source() {
                let source = sources[other].shown();
                let message =
                    format!("is inside {source}; a directory cannot be copied into itself");
                return Err(Error::new(Kind::Refused, Side::Dest, message).at(path));
            }
        }
    }
    Ok(())
}

/// The place of a root, to be compared with others.
struct MappedPlace<'a> {
    landing: &'a Landing,
    /// The directory, if it exists.
    directory: Option<(u64, u64)>,
}

impl MappedPlace<'_> {
    fn of(landing: &Landing) -> Result<MappedPlace<'_>> {
        let directory = match landing {
            Landing::Directory(dir) => Some(dir.identity()),
            Landing::Name(slot) => {
                let stat = slot.stat()?;
                let is_directory = |stat: &Stat| file_type(stat) == FileType::Directory;
                stat.filter(is_directory)
                    .map(|stat| (stat.st_dev, stat.st_ino))
            }
            Landing::Exit(_) | Landing::Missing(_) => None,
        };
        Ok(MappedPlace { landing, directory })
    }

    /// True if it is the same place as `outer`, or below it.
    fn is_in(&self, outer: &MappedPlace) -> bool {
        let is_missing = |landing: &Landing| matches!(landing, Landing::Missing(_));
        if is_missing(self.landing) || is_missing(outer.landing) {
            // A dry run makes nothing that could be looked at.
            return self.landing.path().starts_with(outer.landing.path());
        }
        if let Some(directory) = outer.directory {
            let dir = self.landing.dir();
            return self.directory == Some(directory)
                || dir.is_some_and(|dir| lies_in(dir, directory));
        }
        match (self.landing, outer.landing) {
            (Landing::Name(one), Landing::Name(two)) => {
                one.dir.identity() == two.dir.identity() && one.name == two.name
            }
            _ => false,
        }
    }
}

/// True if `dir` is the directory `above` or anywhere below it. False if its parents cannot be
/// visited: a copy that then does not end runs out of space or of path length.
fn lies_in(dir: &Arc<Dir>, above: (u64, u64)) -> bool {
    let mut at = dir.identity();
    let up = |from: &OwnedFd| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(from, "..", flags, Mode::empty())?;
        let stat = fstat(&fd)?;
        Ok::<_, Errno>((fd, (stat.st_dev, stat.st_ino)))
    };
    let Ok(start) = dir.handle() else {
        return false;
    };
    let mut next = up(&start);
    for _ in 0..DEPTH_MAX {
        if at == above {
            return true;
        }
        match next {
            // The root directory is its own parent.
            Ok((fd, identity)) if identity != at => {
                at = identity;
                next = up(&fd);
            }
            _ => return false,
        }
    }
    false
}

/// Refuses a directory that takes no new names. An existing directory that is only entered needs no
/// new name, and may get more permissions later.
pub(super) fn refuse_unwritable(source: &Source, target: &Resolved) -> Result<()> {
    let Landing::Name(slot) = &target.landing else {
        return Ok(());
    };
    if source.root.is_directory && target.existing.is_some() {
        return Ok(());
    }
    let access = slot.dir.handle().and_then(|dir| {
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        Ok(accessat(&*dir, Path::new("."), wanted, AtFlags::EACCESS)?)
    });
    match access {
        Err(cause)
            if matches!(
                Errno::from_io_error(&cause),
                Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)
            ) =>
        {
            let path = slot.dir.path();
            let what = format!("user {} cannot create files in this directory", own_name());
            let mut error = Error::io(Kind::Write, Side::Dest, path, &what, cause);
            if let Some(instead) = inplace_instead(slot) {
                error.message += &format!("; {instead}");
            }
            Err(error)
        }
        Ok(()) if !source.root.is_directory && is_append_only(&slot.dir) => {
            let message = "the directory is append-only, so a partial file could not be renamed or \
                           removed; clear this with chattr -a";
            Err(Error::new(Kind::Write, Side::Dest, message).at(slot.dir.path()))
        }
        // An old kernel cannot answer this; then the first file shows it.
        _ => Ok(()),
    }
}

/// The name of the user that runs this process, or the number if it has no name.
fn own_name() -> String {
    let uid = nix::unistd::geteuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| printable(user.name.as_bytes()))
}

/// Refuses a new file in /dev: it would take memory, and only a mistyped device name leads there.
pub(super) fn refuse_among_devices(source: &Source, target: &Resolved) -> Result<()> {
    let Landing::Name(slot) = &target.landing else {
        return Ok(());
    };
    if source.root.is_directory || target.existing.is_some() {
        return Ok(());
    }
    let path = slot.dir.handle().and_then(|dir| {
        let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
        std::fs::read_link(link)
    });
    // If the path is unknown, the copy continues.
    let path = path.unwrap_or_default();
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        let message = "does not exist; a new file in /dev would be stored in memory: check the \
                       name of the device";
        return Err(Error::new(Kind::Usage, Side::Dest, message).at(target.path(source)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::testing::*;
    use super::*;
    use crate::manifest::Root;

    #[test]
    fn a_refused_copy_makes_no_directory() {
        let ground = ground();
        let spec = spec(ground.path(), "new/");
        let twice = [root("D"), root("D")];
        try_resolve(&spec, &twice, true).err().expect("refused");
        assert!(!ground.path().join("new").exists());
    }

    #[test]
    fn nothing_is_copied_onto_or_into_itself() {
        let ground = ground();
        let at = |path: &str| ground.path().join(path);
        std::fs::create_dir_all(at("d/sub/deep")).unwrap();
        std::fs::write(at("d/x"), b"whole").unwrap();
        let with = |text: &str, path: &Path| {
            let meta = std::fs::metadata(path).unwrap();
            Root {
                dev: meta.dev(),
                ino: meta.ino(),
                ..root(text)
            }
        };
        let cases = [
            (with("x", &at("d/x")), "d", "is the same file"),
            (with("x", &at("d/x")), "d/x", "is the same file"),
            (with("x", &at("f")), "d/s", "is the same file"),
            (with("D", &at("d")), "d", "cannot be copied into itself"),
            (
                with("D", &at("d")),
                "d/sub/deep",
                "cannot be copied into itself",
            ),
            (
                with("D", &at("d")),
                "d/sub/new",
                "cannot be copied into itself",
            ),
            (
                with("D", &at("d")),
                "d/new/",
                "cannot be copied into itself",
            ),
            (with("D/", &at("d")), "d", "is the same directory"),
            (
                with("D/", &at("d")),
                "d/sub",
                "cannot be copied into itself",
            ),
        ];
        for (root, path, words) in cases {
            let spec = spec(ground.path(), path);
            let error = try_resolve(&spec, &[root], true).err();
            let error = error.unwrap_or_else(|| panic!("{path} was not refused"));
            assert_eq!(error.kind, Kind::Refused, "{path}: {error}");
            assert!(error.message.contains(words), "{path}: {error}");
        }
        // A directory may be copied into the one above it.
        let spec = spec(ground.path(), "d");
        try_resolve(&spec, &[with("Deep", &at("d/sub"))], true).unwrap();
    }
}

//! Startup of a program that a client has placed on this host. It checks its own digest, moves
//! itself to its final place, and removes the least recently used programs.
//!
//! ```text
//! ~/.cache/fastcp/.part.XXXXXXXX                 during the upload
//! ~/.cache/fastcp/VERSION-DIGEST/fastcp          from its first start on
//! /tmp/fastcp-XXXXXXXX/fastcp                    if the home directory is unusable (or in /var/tmp
//!                                                or /dev/shm); removed at its first start
//! ```

use std::ffi::OsStr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use super::{ITSELF, Program, is_digest};
use crate::error::{Error, Kind, Result, Side};

/// Number of placed programs that are kept, because clients may have different versions.
const KEPT_MAX: usize = 3;

/// Prefix of the name of a file during the upload.
const ARRIVING: &str = ".part.";

/// An upload that has taken this long will never finish.
const ARRIVING_MAX: Duration = Duration::from_secs(3600);

/// Checks that this program has the given digest.
///
/// # Errors
/// `Kind::FarEnd` if it has not.
pub fn check(digest: &str) -> Result<()> {
    if Program::own()?.digest() == digest {
        return Ok(());
    }
    let message = "the installed program was changed; run fastcp --remove HOST: and try again";
    Err(Error::new(Kind::FarEnd, Side::Here, message))
}

/// Moves this program to its place and removes the least recently used ones. If it is in a
/// temporary directory, as in /tmp, removes it instead. To be called once, after [`check`].
///
/// # Errors
/// The program can run anyway, but no later login finds it, or its file is left behind.
pub fn settle() -> io::Result<()> {
    let path = fs::read_link(ITSELF)?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    if is_private(directory) {
        return remove(directory, name);
    }
    if !name.as_encoded_bytes().starts_with(ARRIVING.as_bytes()) {
        // Marks it as used now.
        return fs::File::open(directory)?.set_modified(SystemTime::now());
    }
    let own = Program::own().map_err(|error| io::Error::other(error.message))?;
    let place = directory.join(format!("{}-{}", env!("CARGO_PKG_VERSION"), own.digest()));
    match fs::DirBuilder::new().mode(0o700).create(&place) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        _ => {}
    }
    fs::rename(&path, place.join("fastcp"))?;
    // This program is kept in any case. The next one removes what is left.
    let _ = prune(directory);
    Ok(())
}

/// True for `fastcp-XXXXXXXX`, a directory that `mktemp -d` has made for one program.
fn is_private(directory: &Path) -> bool {
    let name = directory.file_name().and_then(OsStr::to_str);
    let random = name.and_then(|name| name.strip_prefix("fastcp-"));
    random.is_some_and(|it| it.len() == 8 && it.chars().all(|c| c.is_ascii_alphanumeric()))
}

/// Removes this program and its directory. Others may be able to write the parent directory. So the
/// file is looked up through the open directory, and removed only if it is this program.
fn remove(directory: &Path, name: &OsStr) -> io::Result<()> {
    use rustix::fs::{AtFlags, Mode, OFlags, fstat, open, statat, unlinkat};
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(directory, flags, Mode::empty())?;
    let (own, there) = (
        rustix::fs::stat(ITSELF)?,
        statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW)?,
    );
    let is_ours = fstat(&opened)?.st_uid == rustix::process::geteuid().as_raw();
    if is_ours && (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino) {
        unlinkat(&opened, name, AtFlags::empty())?;
        // Can only remove an empty directory.
        fs::remove_dir(directory)?;
    }
    Ok(())
}

/// Removes all but the last [`KEPT_MAX`] programs in `directory`.
fn prune(directory: &Path) -> io::Result<()> {
    let mut programs: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (name, metadata) = (entry.file_name(), entry.metadata());
        let modified = match metadata.and_then(|metadata| metadata.modified()) {
            // Another login's upload has just ended.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            modified => modified?,
        };
        if is_program(&name) {
            programs.push((modified, entry.path()));
        } else if name.as_encoded_bytes().starts_with(ARRIVING.as_bytes())
            && modified.elapsed().is_ok_and(|age| age > ARRIVING_MAX)
        {
            fs::remove_file(entry.path())?;
        }
    }
    programs.sort_unstable();
    let surplus = programs.len().saturating_sub(KEPT_MAX);
    for (_, path) in programs.into_iter().take(surplus) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

/// True for `VERSION-DIGEST`.
fn is_program(name: &OsStr) -> bool {
    let digest = name.to_str().and_then(|name| name.rsplit_once('-'));
    digest.is_some_and(|(_, digest)| is_digest(digest))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::program::DIGEST_LEN;

    #[test]
    fn the_three_that_were_used_last_are_kept_and_nothing_else_is_touched() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        let ago = |hours: u64| SystemTime::now() - Duration::from_secs(hours * 3600);
        let program = |n: u64| format!("0.{n}.0-{}", "0".repeat(DIGEST_LEN));
        for n in 0..5 {
            fs::create_dir(at(&program(n))).unwrap();
            fs::write(at(&program(n)).join("fastcp"), b"").unwrap();
            let dir = fs::File::open(at(&program(n))).unwrap();
            dir.set_modified(ago(n)).unwrap();
        }
        for (name, hours) in [(".part.1", 0), (".part.2", 2), ("mine", 9)] {
            let file = fs::File::create(at(name)).unwrap();
            file.set_modified(ago(hours)).unwrap();
        }
        prune(temp.path()).unwrap();
        let mut names: Vec<_> = fs::read_dir(temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let kept = [
            ".part.1".into(),
            program(0),
            program(1),
            program(2),
            "mine".into(),
        ];
        assert_eq!(names, kept);
    }

    #[test]
    fn an_upload_that_ends_meanwhile_disturbs_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let is_over = AtomicBool::new(false);
        let upload = |n: u64| temp.path().join(format!("{ARRIVING}{n}"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    (0..50).for_each(|n| fs::write(upload(n), b"").unwrap());
                    (0..50).for_each(|n| fs::remove_file(upload(n)).unwrap());
                }
            });
            let pruned = (0..1000).try_for_each(|_| prune(temp.path()));
            is_over.store(true, Relaxed);
            pruned.unwrap();
        });
    }

    #[test]
    fn only_a_directory_of_mktemp_is_taken_for_one_to_be_removed() {
        for (path, is_one) in [
            ("/tmp/fastcp-a1B2c3D4", true),
            ("/home/u/.cache/fastcp", false),
            ("/home/u/src/fastcp-main", false),
            ("/opt/fastcp-0.1.0", false),
        ] {
            assert_eq!(is_private(Path::new(path)), is_one, "{path}");
        }
    }

    #[test]
    fn only_the_program_of_the_digest_is_the_one_that_was_placed() {
        let own = Program::own().unwrap().digest().to_owned();
        check(&own).unwrap();
        let refused = check(&own.replace(|_: char| true, "0")).unwrap_err();
        assert_eq!(refused.kind, Kind::FarEnd);
    }
}

//! A program that a client has placed: what it does about itself before anything else. It is run
//! only if it is what its directory says; the first time it takes its place among the last few.
//!
//! ```text
//! ~/.cache/fastcp/.part.PID                      while it arrives
//! ~/.cache/fastcp/VERSION-DIGEST/fastcp          from its first start on
//! ```

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{ITSELF, Program, is_digest};
use crate::error::{Error, Kind, Result, Side};

/// Placed programs that are kept: some clients may be of another version than the rest.
const KEPT_MAX: usize = 3;

/// What arrives has this before its number.
const ARRIVING: &str = ".part.";

/// What has not arrived for so long never will.
const ARRIVING_MAX: Duration = Duration::from_secs(3600);

/// Sees that this program is the one of `digest`.
///
/// # Errors
/// `Kind::FarEnd`, where it is not.
pub fn check(digest: &str) -> Result<()> {
    if Program::own()?.digest() == digest {
        return Ok(());
    }
    let message = "this program is not the one that was placed here; remove it";
    Err(Error::new(Kind::FarEnd, Side::Here, message))
}

/// Takes its place, and removes the ones that were not used for longest. To be called after
/// [`check`]. Says what failed: it runs all the same, but is not found again.
pub fn settle() -> io::Result<()> {
    let path = fs::read_link(ITSELF)?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    if !name.as_encoded_bytes().starts_with(ARRIVING.as_bytes()) {
        // It was used now.
        return fs::File::open(directory)?.set_modified(SystemTime::now());
    }
    let own = Program::own().map_err(|error| io::Error::other(error.message))?;
    let place = directory.join(format!("{}-{}", env!("CARGO_PKG_VERSION"), own.digest()));
    match fs::DirBuilder::new().mode(0o700).create(&place) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        _ => {}
    }
    fs::rename(&path, place.join("fastcp"))?;
    prune(directory)
}

/// Leaves the last [`KEPT_MAX`] programs in `directory`.
fn prune(directory: &Path) -> io::Result<()> {
    let mut programs: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (name, modified) = (entry.file_name(), entry.metadata()?.modified()?);
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

/// `VERSION-DIGEST`.
fn is_program(name: &OsStr) -> bool {
    let digest = name.to_str().and_then(|name| name.rsplit_once('-'));
    digest.is_some_and(|(_, digest)| is_digest(digest))
}

#[cfg(test)]
mod tests {
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
    fn only_the_program_of_the_digest_is_the_one_that_was_placed() {
        let own = Program::own().unwrap().digest().to_owned();
        check(&own).unwrap();
        let refused = check(&own.replace(|_: char| true, "0")).unwrap_err();
        assert_eq!(refused.kind, Kind::FarEnd);
    }
}

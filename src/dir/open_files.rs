//! The limit of open files of this process (`ulimit -n`), and how copies share it.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Kind, Result, Side};

/// Open files of one end that are not shared out: pipes to ssh or a command, handles of the
/// runtime, a listener, the roots, a journal. Not directories, announced files, streams or files of
/// workers. At most 26 were seen; the rest is for files that a user's shell leaves open.
const FIXED: usize = 32;

/// The same for each further host of `--also`: ssh's pipes, a listening socket, the root.
const FURTHER_HOST: usize = 10;

/// Files that must be left to be shared out, for the first copy and for each further one.
const SHARED_MIN: usize = 16;
const SHARED_FURTHER: usize = 6;

/// Number of copies that this process runs at once.
static COPIES: AtomicUsize = AtomicUsize::new(1);

/// Sets the number of copies, among which [`open_share`] divides the open files.
///
/// # Errors
/// `Kind::FarEnd` if the limit is too small for them.
pub fn prepare(copies: usize) -> Result<()> {
    COPIES.store(copies.max(1), Relaxed);
    check(limit(), copies.max(1))
}

fn check(limit: usize, copies: usize) -> Result<()> {
    let least = fixed(copies) + SHARED_MIN + SHARED_FURTHER * (copies - 1);
    if limit >= least {
        return Ok(());
    }
    let message = format!(
        "only {limit} files may be open at once, and at least {least} are needed: raise the limit \
         (`ulimit -n`)"
    );
    Err(Error::new(Kind::FarEnd, Side::Here, message))
}

/// The share `1/parts` of the files that one copy of this process may have open, at most `most`.
pub fn open_share(parts: usize, most: usize) -> usize {
    let copies = COPIES.load(Relaxed);
    let left = limit().saturating_sub(fixed(copies));
    (left / copies / parts).clamp(1, most)
}

fn fixed(copies: usize) -> usize {
    FIXED + FURTHER_HOST * (copies - 1)
}

fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_small_is_told_with_what_is_needed() {
        let error = check(47, 1).unwrap_err();
        assert_eq!(error.kind.exit_code(), 4);
        assert!(error.message.starts_with("only 47 files"), "{error}");
        assert!(error.message.contains("at least 48"), "{error}");
        assert!(check(48, 1).is_ok());
        assert!(check(79, 3).is_err());
        assert!(check(80, 3).is_ok());
    }
}

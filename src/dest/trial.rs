//! How fast a place is written: tried with a file that has no name, so that it is gone with its
//! handle, whatever becomes of this process.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fdatasync, unlinkat};

use super::Slot;
use super::own_name::random_name;
use super::resolve::Spec;
use super::space::free_bytes;
use super::typed::Found;
use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Name, file_type};

/// One write.
const STEP: usize = 1 << 20;

/// Bytes of the longest round: what a solid-state disk needs to show more than its latency. All
/// rounds together write less than twice as much.
const ROUND_MAX: u64 = 128 << 20;

/// A round that would end later is not begun. A disk that writes less than a megabyte in this time
/// takes longer for the first.
const TIME_MAX: Duration = Duration::from_millis(1500);

/// The longest round takes at most this part of what is free.
const FREE_PART: u64 = 16;

/// What came of it, of the last round alone; all zero where nothing was written: there is too
/// little room, or what stands there is no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    pub bytes: u64,
    /// Until the system had taken the bytes, and until they were on the disk.
    pub written: Duration,
    pub synced: Duration,
}

/// Writes where a copy to `spec` would, in rounds that double, each synced.
///
/// # Errors
/// `Kind::Write` and `Kind::Usage`, as where a copy is to land there.
pub fn try_writing(spec: &Spec) -> Result<Trial> {
    let handles = Arc::new(Handles::default());
    let path = spec.expanded()?;
    let dir = match spec.reach(&handles).find(&path)? {
        Found::Directory(dir) => dir,
        Found::Nothing(slot) => slot.dir,
        Found::Other(slot, stat) if file_type(&stat) == FileType::RegularFile => slot.dir,
        Found::Other(..) => return Ok(Trial::default()),
    };
    let room = free_bytes(&dir).map_or(ROUND_MAX, |free| free / FREE_PART);
    let failed = |what, cause| Error::io(Kind::Write, Side::Dest, &path, what, cause);
    let mut file = nameless(&dir).map_err(|cause| failed("cannot create a file", cause))?;
    let mut bytes = vec![0; STEP];
    // Else a file system that compresses would write next to nothing. Where there is no chance, so
    // be it.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let began = Instant::now();
    let mut last = Trial::default();
    let mut round = STEP as u64;
    while round <= ROUND_MAX.min(room) && began.elapsed() + 2 * last.synced <= TIME_MAX {
        last = write_round(&mut file, &bytes, round).map_err(|e| failed("cannot write", e))?;
        round *= 2;
    }
    Ok(last)
}

fn write_round(file: &mut File, bytes: &[u8], round: u64) -> std::io::Result<Trial> {
    let began = Instant::now();
    for _ in 0..round / STEP as u64 {
        file.write_all(bytes)?;
    }
    let written = began.elapsed();
    fdatasync(&*file)?;
    Ok(Trial {
        bytes: round,
        written,
        synced: began.elapsed(),
    })
}

/// Where the file system has no files without a name, one whose name is taken away at once.
fn nameless(dir: &Arc<Dir>) -> std::io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let dot = Path::new(".").as_os_str();
    if let Ok(fd) = dir.open(dot, OFlags::WRONLY | OFlags::TMPFILE, mode) {
        return Ok(fd.into());
    }
    let probe = Name::try_from(b"probe".to_vec()).expect("a name without a slash");
    let name = random_name(&Slot::new(dir.clone(), probe));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = dir.open(&name, flags, mode)?;
    unlinkat(&*dir.handle()?, &name, AtFlags::empty())?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path: &Path) -> Spec {
        use std::os::unix::ffi::OsStrExt;
        Spec {
            path: path.as_os_str().as_bytes().to_vec(),
            base: Default::default(),
            remote: true,
            no_target_directory: false,
            inplace: false,
            fsync: false,
            confine: None,
        }
    }

    #[test]
    fn a_place_is_written_and_left_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("there"), "content").unwrap();
        for name in ["", "there", "new"] {
            let trial = try_writing(&spec(&temp.path().join(name))).unwrap();
            assert!(trial.bytes >= STEP as u64 && trial.synced >= trial.written);
        }
        let names: Vec<_> = std::fs::read_dir(temp.path()).unwrap().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(
            std::fs::read(temp.path().join("there")).unwrap(),
            b"content"
        );
        let nothing = try_writing(&spec(Path::new("/dev/null"))).unwrap();
        assert_eq!(nothing, Trial::default());
        let error = try_writing(&spec(&temp.path().join("no/where"))).unwrap_err();
        assert_eq!(error.kind, Kind::Write);
    }
}

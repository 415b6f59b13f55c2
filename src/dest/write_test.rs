//! A test of how fast a place can be written. It writes a file without a name, which vanishes with
//! its handle, even if this process is killed.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fdatasync, unlinkat};

use super::EntrySlot;
use super::own_names::random_name;
use super::resolve::Spec;
use super::space::free_bytes;
use super::user_path::FoundPath;
use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Name, file_type};

/// Bytes in one write.
const STEP: usize = 1 << 20;

/// Bytes of the longest round: what a solid-state disk needs to show more than its latency. All
/// rounds together write less than twice as much.
const ROUND_MAX: u64 = 128 << 20;

/// A round that would end later is not begun. A disk that writes less than a megabyte in this time
/// takes longer for the first round.
const TIME_MAX: Duration = Duration::from_millis(1500);

/// The longest round takes at most the free space divided by this.
const FREE_PART: u64 = 16;

/// The result of the last round. All zero if nothing was written: there is too little space, or the
/// existing entry is not a regular file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteTest {
    pub bytes: u64,
    /// Time until the kernel had taken the bytes.
    pub written: Duration,
    /// Time until they were on the disk.
    pub synced: Duration,
}

/// Writes where a copy to `spec` would, in rounds that double, each synced.
///
/// # Errors
/// `Kind::Write` and `Kind::Usage`, as for a copy to that place.
pub fn try_writing(spec: &Spec) -> Result<WriteTest> {
    let handles = Arc::new(Handles::default());
    let path = spec.expanded()?;
    let dir = match spec.reach(&handles).find(&path)? {
        FoundPath::Directory(dir) => dir,
        FoundPath::Nothing(slot) => slot.dir,
        FoundPath::Other(slot, stat) if file_type(&stat) == FileType::RegularFile => slot.dir,
        FoundPath::Other(..) => return Ok(WriteTest::default()),
    };
    let room = free_bytes(&dir).map_or(ROUND_MAX, |free| free / FREE_PART);
    let failed = |what, cause| Error::io(Kind::Write, Side::Dest, &path, what, cause);
    let mut file = nameless(&dir).map_err(|cause| failed("cannot create a file", cause))?;
    let mut bytes = vec![0; STEP];
    // Some file systems compress zeros away, but these must do where there are no random bytes.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let began = Instant::now();
    let mut last = WriteTest::default();
    let mut round = STEP as u64;
    while round <= ROUND_MAX.min(room) && began.elapsed() + 2 * last.synced <= TIME_MAX {
        last = write_round(&mut file, &bytes, round).map_err(|e| failed("cannot write", e))?;
        round *= 2;
    }
    Ok(last)
}

fn write_round(file: &mut File, bytes: &[u8], round: u64) -> std::io::Result<WriteTest> {
    let began = Instant::now();
    for _ in 0..round / STEP as u64 {
        file.write_all(bytes)?;
    }
    let written = began.elapsed();
    fdatasync(&*file)?;
    Ok(WriteTest {
        bytes: round,
        written,
        synced: began.elapsed(),
    })
}

/// A file without a name. If the file system has no such files, one whose name is removed at once.
fn nameless(dir: &Arc<Dir>) -> std::io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let dot = Path::new(".").as_os_str();
    if let Ok(fd) = dir.open(dot, OFlags::WRONLY | OFlags::TMPFILE, mode) {
        return Ok(fd.into());
    }
    let probe = Name::try_from(b"probe".to_vec()).expect("a name without a slash");
    let name = random_name(&EntrySlot::new(dir.clone(), probe));
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
            mkpath: false,
            relative: false,
            is_beside: false,
            scp: None,
            dry_run: false,
            check: false,
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
        assert_eq!(nothing, WriteTest::default());
        let error = try_writing(&spec(&temp.path().join("no/where"))).unwrap_err();
        assert_eq!(error.kind, Kind::Write);
    }
}

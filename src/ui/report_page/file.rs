//! The file of `--report`: written beside its final name and then renamed, so that a reader finds a
//! complete report, an older one or none.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, renameat, unlinkat};
use rustix::stdio::{stderr, stdin, stdout};

use crate::dest::process_umask;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;
use crate::ui::trusted_path::{self, TrustedName};

/// How a page begins.
const PAGE_START: &[u8; 15] = b"<!DOCTYPE html>";

/// Bytes that are written at once.
const BUFFER: usize = 64 << 10;

/// The place of a report.
pub struct ReportFile {
    /// As typed.
    path: PathBuf,
    place: TrustedName,
}

impl ReportFile {
    /// Checks that the report can be written there, and leaves nothing behind.
    ///
    /// # Errors
    /// `Kind::Write` if it cannot, or if another user may have placed a link in its path.
    pub fn check(path: &Path) -> Result<ReportFile> {
        let checked = trusted_path::find(path).and_then(|place| {
            check(&place)?;
            TemporaryReport::create(&place.dir)?;
            Ok(place)
        });
        match checked {
            Ok(place) => Ok(ReportFile {
                path: path.to_owned(),
                place,
            }),
            Err(cause) => {
                let what = "cannot write the report (--report)";
                Err(Error::io(Kind::Write, Side::Here, path, what, cause))
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the page that `page` makes.
    pub(super) fn write(
        &self,
        page: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let TrustedName { dir, name, stat } = &self.place;
        let temporary = TemporaryReport::create(dir)?;
        let mut out = BufWriter::with_capacity(BUFFER, &temporary.file);
        page(&mut out)?;
        out.flush()?;
        // Until here nobody else could read it.
        let mode = stat.map_or(0o666 & !process_umask(), |old| old.st_mode & 0o777);
        temporary
            .file
            .set_permissions(Permissions::from_mode(mode))?;
        Ok(renameat(dir, &temporary.name, dir, name)?)
    }
}

/// # Errors
/// If the name has an entry that a report may not replace: it is no regular file, its content is no
/// page (perhaps the user has left out FILE, and it is the first source), or it is this process's
/// stdin, stdout or stderr, to which others write as well.
fn check(place: &TrustedName) -> io::Result<()> {
    let refused = |message| Err(io::Error::other(message));
    let Some(old) = &place.stat else {
        return Ok(());
    };
    if file_type(old) != FileType::RegularFile {
        return refused("it is not a regular file");
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(openat(&place.dir, &place.name, flags, Mode::empty())?);
    let standard = [fstat(stdin()), fstat(stdout()), fstat(stderr())];
    let mut standard = standard.into_iter().flatten();
    if standard.any(|stat| (stat.st_dev, stat.st_ino) == (old.st_dev, old.st_ino)) {
        return refused("it is stdin, stdout or stderr of this command");
    }
    let mut start = [0; PAGE_START.len()];
    let is_page = file.read_exact(&mut start).is_ok() && start == *PAGE_START;
    match old.st_size > 0 && !is_page {
        true => refused("it has other content than a page; remove it first, or name another file"),
        false => Ok(()),
    }
}

/// A report under a temporary name, which is removed unless the report was renamed.
struct TemporaryReport<'a> {
    dir: &'a OwnedFd,
    file: File,
    name: OsString,
}

impl TemporaryReport<'_> {
    fn create(dir: &OwnedFd) -> io::Result<TemporaryReport<'_>> {
        let name = OsString::from(format!(".fastcp-report-{:016x}", fastrand::u64(..)));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(dir, &name, flags, Mode::RUSR | Mode::WUSR)?.into();
        Ok(TemporaryReport { dir, file, name })
    }
}

impl Drop for TemporaryReport<'_> {
    fn drop(&mut self) {
        // It is gone if it was renamed.
        let _ = unlinkat(self.dir, &self.name, AtFlags::empty());
    }
}

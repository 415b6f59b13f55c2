//! The file of `--report`: written beside its final name and then renamed, so that a reader finds a
//! complete report, an older one or none.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::dest::process_umask;
use crate::dir::is_trusted;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;

/// Bytes that are written at once.
const BUFFER: usize = 64 << 10;

/// The place of a report.
pub struct ReportFile {
    path: PathBuf,
    directory: PathBuf,
    /// The permissions of the complete report.
    mode: u32,
}

impl ReportFile {
    /// Checks that the report can be written there, and leaves nothing behind.
    ///
    /// # Errors
    /// `Kind::Write` if it cannot.
    pub fn check(path: &Path) -> Result<ReportFile> {
        let refused = |cause: io::Error| {
            let what = "cannot write the report (--report)";
            Error::io(Kind::Write, Side::Here, path, what, cause)
        };
        if let Ok(link) = rustix::fs::lstat(path)
            && file_type(&link) == FileType::Symlink
            && !is_trusted(&link)
        {
            let message = format!(
                "it is a symbolic link of another user (uid {}); name another file",
                link.st_uid
            );
            return Err(refused(io::Error::other(message)));
        }
        // A link stays, and its file is replaced.
        let target = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
        let target = target.map_err(refused)?;
        if fs::metadata(&target).is_ok_and(|meta| !meta.is_file()) {
            // The renaming would replace a device or FIFO.
            return Err(refused(io::Error::other("it is not a regular file")));
        }
        let directory = target.parent().unwrap_or(Path::new("/")).to_owned();
        TemporaryReport::create(&directory).map_err(refused)?;
        Ok(ReportFile {
            path: target,
            directory,
            mode: 0o666 & !process_umask(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the page that `page` makes.
    pub(super) fn write(
        &self,
        page: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let temporary = TemporaryReport::create(&self.directory)?;
        let mut out = BufWriter::with_capacity(BUFFER, &temporary.file);
        page(&mut out)?;
        out.flush()?;
        // Until here nobody else could read it.
        let permissions = Permissions::from_mode(self.mode);
        temporary.file.set_permissions(permissions)?;
        fs::rename(&temporary.path, &self.path)
    }
}

/// A report under a temporary name, which is removed unless the report was renamed.
struct TemporaryReport {
    file: File,
    path: PathBuf,
}

impl TemporaryReport {
    fn create(directory: &Path) -> io::Result<TemporaryReport> {
        let name = format!(".fastcp-report-{:016x}", fastrand::u64(..));
        let path = directory.join(name);
        let mut options = File::options();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(TemporaryReport { file, path })
    }
}

impl Drop for TemporaryReport {
    fn drop(&mut self) {
        // It is gone if it was renamed.
        let _ = fs::remove_file(&self.path);
    }
}

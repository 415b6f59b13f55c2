//! The file of `--report`: written beside its final name and then renamed, so that a reader finds a
//! complete report, an older one or none.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat, fstat};
use rustix::stdio::{stderr, stdin, stdout};

use crate::dest::process_umask;
use crate::dir::is_trusted;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::file_type;

/// How a page begins.
const PAGE_START: &[u8; 15] = b"<!DOCTYPE html>";

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
        if is_other_content(&target).map_err(refused)? {
            let message = "it has other content than a page; remove it first, or name another file";
            return Err(refused(io::Error::other(message)));
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

/// True if the file is no page: perhaps the user has left out FILE, and it is the first source. Also
/// true if it is this process's stdin, stdout or stderr, to which others write as well.
fn is_other_content(target: &Path) -> io::Result<bool> {
    let mut file = match File::open(target) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(cause) => return Err(cause),
    };
    let meta = file.metadata()?;
    let is_same = |stat: Stat| (stat.st_dev, stat.st_ino) == (meta.dev(), meta.ino());
    let standard = [fstat(stdin()), fstat(stdout()), fstat(stderr())];
    if standard.into_iter().flatten().any(is_same) {
        return Ok(true);
    }
    let mut start = [0; PAGE_START.len()];
    let is_page = file.read_exact(&mut start).is_ok() && start == *PAGE_START;
    Ok(meta.len() > 0 && !is_page)
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

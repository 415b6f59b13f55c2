//! `--bwlimit @FILE`: a rate limit that the user may change while the copy runs.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::error::{Error, Result, reason_of};
use crate::report::Reporter;
use crate::units;

/// How often the file is read.
const LOOK: Duration = Duration::from_secs(1);

/// Longer than any rate; the rest of the file is ignored.
const TEXT_MAX: u64 = 64;

/// The rate in the file, in bytes a second; None for no limit, which is an empty file or 0.
///
/// # Errors
/// `Kind::Usage` if the file cannot be read or does not contain a rate.
pub fn read(path: &Path) -> Result<Option<u64>> {
    use std::io::Read;
    let shown = units::printable(path.as_os_str().as_encoded_bytes());
    let mut text = String::new();
    // The open of a FIFO would wait for its writer.
    let mut options = std::fs::OpenOptions::new();
    options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32);
    let read = options.open(path).and_then(|file| {
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("not a regular file"));
        }
        file.take(TEXT_MAX).read_to_string(&mut text)
    });
    read.map_err(|cause| Error::usage(format!("--bwlimit @{shown}: {}", reason_of(&cause))))?;
    let text = text.trim();
    if text.is_empty() || text == "0" {
        return Ok(None);
    }
    units::parse_rate(text)
        .map(|rate| (rate > 0).then_some(rate))
        .map_err(|error| Error::usage(format!("--bwlimit @{shown}: {error}")))
}

/// The rate in the file, read on another thread. None if it cannot be read, or not within `LOOK`.
pub async fn now(path: &Path) -> Option<Option<u64>> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || read(&path));
    tokio::time::timeout(LOOK, read).await.ok()?.ok()?.ok()
}

/// Calls `set` for each change until the future is dropped. A file that cannot be read changes
/// nothing.
pub async fn follow(
    path: PathBuf,
    mut rate: Option<u64>,
    reporter: &dyn Reporter,
    mut set: impl AsyncFnMut(Option<u64>),
) {
    let mut complained = false;
    loop {
        tokio::time::sleep(LOOK).await;
        let path = path.clone();
        let now = tokio::task::spawn_blocking(move || read(&path)).await;
        match now {
            Ok(Ok(now)) if now != rate => {
                rate = now;
                reporter.detail(&match rate {
                    Some(rate) => format!("rate limit: {}", units::rate(rate as f64)),
                    None => "rate limit: none".to_owned(),
                });
                set(rate).await;
            }
            Ok(Err(error)) if !complained => {
                complained = true;
                reporter.notice(&format!(
                    "fastcp: {}; the rate limit is unchanged",
                    error.message
                ));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_holds_no_rate_and_nobody_waits_for_its_writer() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(read(&path).unwrap_err().message.contains("regular file"));
    }

    #[test]
    fn a_file_holds_a_rate_or_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("rate");
        for (text, rate) in [("40M\n", Some(40_000_000)), ("", None), ("0", None)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap(), rate);
        }
        for text in ["fast", "40"] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&path).unwrap_err().message.contains("--bwlimit"));
        }
        assert!(read(&temp.path().join("none")).is_err());
    }
}

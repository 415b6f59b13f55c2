//! `--bwlimit @FILE`: a rate limit that the user may change while the copy runs.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::error::{Error, Result, reason_of};
use crate::report::Reporter;
use crate::session::runtime::off_task;
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

/// The file, and the last rate that it contained. Clones share the rate: it outlives a session, and
/// holds for all copies of one command.
#[derive(Clone, Debug)]
pub struct RateFile {
    path: PathBuf,
    /// 0 for no limit.
    last: Arc<AtomicU64>,
}

impl RateFile {
    /// `rate`: what [`read`] has found in it.
    pub fn new(path: PathBuf, rate: Option<u64>) -> RateFile {
        let last = Arc::new(AtomicU64::new(rate.unwrap_or(0)));
        RateFile { path, last }
    }

    /// The rate in the file, read on another thread; its last rate if it cannot be read, or not
    /// within `LOOK`.
    pub async fn now(&self) -> Option<u64> {
        if let Ok(Ok(rate)) = tokio::time::timeout(LOOK, self.read()).await {
            self.note(rate);
        }
        let last = self.last.load(Relaxed);
        (last > 0).then_some(last)
    }

    /// Calls `set` for each change until the future is dropped. A file that cannot be read changes
    /// nothing. `rate`: the rate that is in force.
    pub async fn follow(
        &self,
        mut rate: Option<u64>,
        reporter: &dyn Reporter,
        mut set: impl AsyncFnMut(Option<u64>),
    ) {
        let mut complained = false;
        loop {
            tokio::time::sleep(LOOK).await;
            match self.read().await {
                Ok(now) if now != rate => {
                    rate = now;
                    self.note(rate);
                    reporter.detail(&match rate {
                        Some(rate) => format!("rate limit: {}", units::rate(rate as f64)),
                        None => "rate limit: none".to_owned(),
                    });
                    set(rate).await;
                }
                Err(error) if !complained => {
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

    async fn read(&self) -> Result<Option<u64>> {
        let path = self.path.clone();
        off_task(move || read(&path)).await?
    }

    fn note(&self, rate: Option<u64>) {
        self.last.store(rate.unwrap_or(0), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::SilentReporter;

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

    #[tokio::test]
    async fn the_next_session_gets_the_last_rate_of_a_file_that_is_gone() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("rate");
        std::fs::write(&path, "20M").unwrap();
        let file = RateFile::new(path.clone(), Some(40_000_000));
        // That of another copy, or of the next session.
        let other = file.clone();
        let (told, set) = tokio::sync::oneshot::channel();
        let mut told = Some(told);
        let tell = async |rate| told.take().expect("one change").send(rate).unwrap();
        tokio::select! {
            () = file.follow(Some(40_000_000), &SilentReporter, tell) => {}
            rate = set => assert_eq!(rate, Ok(Some(20_000_000))),
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(other.now().await, Some(20_000_000));
        std::fs::write(&path, "0").unwrap();
        assert_eq!(other.now().await, None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.now().await, None);
    }
}

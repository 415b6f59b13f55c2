//! The log of `--log-file`: one line for each event, with its time, for people. The copy never waits
//! for the file: lines that cannot be written are counted. Only its end waits, for 3 s.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::events::{Body, LineOf, date_and_ms};
use super::line_writer::{LineWriter, WriterQueue};
use super::trusted_path;
use crate::error::{Error, Kind, Result, Side, reason_of};
use crate::pipe::write_all;
use crate::report::event::Login;
use crate::units::{count, harmless, plural, printable};

/// The most bytes of lines that wait for the file.
const WAITING_MAX: usize = 16 << 20;

/// How long the last lines may take at the end of the copy. The file may be on a disk that hangs.
const PATIENCE: Duration = Duration::from_secs(3);

/// The seconds that local time is ahead of UTC at a time in seconds since 1970.
pub(super) type LocalZone = fn(i64) -> i64;

/// The open file, to which lines are appended.
pub struct LogFile {
    file: File,
    path: PathBuf,
    zone: LocalZone,
}

impl LogFile {
    /// # Errors
    /// `Kind::Write` if the file cannot be opened or made, or if another user may have placed it.
    pub fn open(path: &Path, zone: LocalZone) -> Result<LogFile> {
        let file = trusted_path::open(path).map_err(|cause| {
            let what = "cannot open the log (--log-file)";
            Error::io(Kind::Write, Side::Here, path, what, cause)
        })?;
        Ok(LogFile {
            file,
            path: path.to_owned(),
            zone,
        })
    }
}

/// Takes lines for the log.
#[derive(Clone)]
pub(super) struct LogLines {
    queue: WriterQueue,
    zone: LocalZone,
    pid: u32,
}

/// The thread that writes the log.
pub(super) struct LogWriter {
    pub lines: LogLines,
    writer: LineWriter,
    path: PathBuf,
}

impl LogWriter {
    pub(super) fn start(log: LogFile) -> LogWriter {
        let LogFile { file, path, zone } = log;
        let mut end = LogEnd {
            file,
            missing: 0,
            is_torn: false,
        };
        let writer = LineWriter::start(WAITING_MAX, move |lines| {
            end.append(lines).map_err(|cause| {
                let why = reason_of(&cause);
                Error::new(Kind::Write, Side::Here, why)
            })
        });
        LogWriter {
            lines: LogLines {
                queue: writer.queue.clone(),
                zone,
                pid: std::process::id(),
            },
            writer,
            path,
        }
    }

    /// Waits until all lines are written, but at most `limit`, or 3 s if there is none. Returns a
    /// message if some were not written.
    pub(super) fn finish(self, limit: Option<Duration>) -> Option<String> {
        let lost = self.lines.queue.take_lost();
        let why = match self.writer.finish(limit.or(Some(PATIENCE))) {
            Some(Err(error)) => error.message,
            None => "the last lines were not written in time".to_owned(),
            Some(Ok(())) if lost > 0 => format!(
                "{} not written fast enough",
                plural(lost, "line was", "lines were")
            ),
            Some(Ok(())) => return None,
        };
        let path = printable(self.path.as_os_str().as_encoded_bytes());
        Some(format!(
            "fastcp: {path}: the log is incomplete (--log-file): {why}"
        ))
    }
}

/// The end of the file.
struct LogEnd {
    file: File,
    /// Lines that could not be written.
    missing: usize,
    /// The last line may have been written in part.
    is_torn: bool,
}

impl LogEnd {
    /// Appends lines. After an error it tries again with the next ones: a disk may get room.
    fn append(&mut self, lines: &str) -> io::Result<()> {
        let written = match self.missing {
            // In one piece, since other copies may append to the same file.
            0 => write_all(&self.file, lines.as_bytes()),
            missing => {
                let newline = if self.is_torn { "\n" } else { "" };
                let missing = count(missing as u64);
                let told = format!("{newline}({missing} lines are missing here)\n{lines}");
                write_all(&self.file, told.as_bytes())
            }
        };
        match written {
            Ok(()) => (self.missing, self.is_torn) = (0, false),
            Err(_) => {
                self.missing += lines.lines().count();
                self.is_torn = true;
            }
        }
        written.map_err(io::Error::from)?;
        // A mirror may have deleted it from its destination.
        match self.file.metadata()? {
            meta if meta.is_file() && meta.nlink() == 0 => {
                Err(io::Error::other("the file was deleted"))
            }
            _ => Ok(()),
        }
    }
}

impl LogLines {
    /// Adds an event. Those that the lines of `-v` tell too are left out.
    pub(super) fn add(&self, of: &LineOf, body: &Body<'_>) {
        if let Some(text) = text(body) {
            self.line(of, body.name(), &text);
        }
    }

    /// Adds a line of this kind: `2026-11-28T22:00:01+01:00 [4711] notice: web1: ...`
    pub(super) fn line(&self, of: &LineOf, kind: &str, text: &str) {
        let now = SystemTime::now();
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        let ahead = (self.zone)(since.map_or(0, |since| since.as_secs() as i64));
        let (date, _) = date_and_ms(now, ahead);
        let (sign, minutes) = (if ahead < 0 { '-' } else { '+' }, ahead.abs() / 60);
        let (pid, name, text) = (self.pid, &of.name, harmless(text));
        let (hours, minutes) = (minutes / 60, minutes % 60);
        self.queue.add(format!(
            "{date}{sign}{hours:02}:{minutes:02} [{pid}] {kind}: {name}{text}\n"
        ));
    }
}

fn text(body: &Body<'_>) -> Option<String> {
    Some(match body {
        Body::Start(start) => start.text(),
        Body::Login(login) => login_text(login),
        Body::Route { route } => (*route).to_owned(),
        Body::Progress(figures) => figures.text(),
        Body::File(file) => file.text(),
        Body::Deleted { path } => path.clone(),
        Body::Error(failure) => failure.text(),
        Body::Waiting { message } => message.clone(),
        Body::Notice { message } => (*message).to_owned(),
        Body::Verdict(verdict) => verdict.sentence.clone(),
        // A notice or a line of `-v` says the same, and is in the log.
        Body::Retry(_) => return None,
        Body::End(end) => format!("exit code {}", end.exit_code()),
    })
}

/// `db1 (db1.example.org, user backup), fastcp 0.1.0`
fn login_text(login: &Login) -> String {
    let Login {
        host,
        name,
        user,
        version,
        ..
    } = login;
    match user.is_empty() {
        true => format!("{host}, fastcp {version}"),
        false => format!("{host} ({name}, user {user}), fastcp {version}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::event::{FileDone, FileResult};
    use crate::ui::events::File as DoneFile;

    #[test]
    fn a_line_has_its_time_with_the_zone_the_process_and_one_event() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let log = LogWriter::start(LogFile::open(&path, |_| -5400).unwrap());
        let file = FileDone {
            path: b"d/\n".to_vec(),
            size: 3,
            digest: None,
            result: FileResult::Linked,
        };
        let of = LineOf {
            name: "web1: ".to_owned(),
            dest: None,
        };
        log.lines.add(&of, &Body::File(DoneFile::of(&file)));
        assert_eq!(log.finish(None), None);
        let text = std::fs::read_to_string(&path).unwrap();
        let pid = std::process::id();
        let told = text.strip_prefix("before\n").expect("it is appended to");
        let end = format!("-01:30 [{pid}] file: web1: linked d/\\n, 3 bytes\n");
        assert!(told.ends_with(&end), "{told}");
        assert_eq!(told.find("-01:30"), Some("2026-11-28T22:00:01".len()));
    }

    #[test]
    fn a_disk_without_room_is_told_and_lines_after_it_are_written() {
        let log = LogFile::open(Path::new("/dev/full"), |_| 0).unwrap();
        let log = LogWriter::start(log);
        log.lines.line(&LineOf::default(), "notice", "a");
        let told = log.finish(None).expect("a message");
        assert_eq!(
            told,
            "fastcp: /dev/full: the log is incomplete (--log-file): no space left on device"
        );
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("log");
        let mut end = LogEnd {
            file: File::options()
                .append(true)
                .create(true)
                .open(&path)
                .unwrap(),
            missing: 2,
            is_torn: true,
        };
        end.append("a\n").unwrap();
        end.append("b\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "\n(2 lines are missing here)\na\nb\n");
    }
}

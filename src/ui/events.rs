//! The events of a copy (`--json`, `--log-file`), and their form as lines of JSON. The page
//! `--help events` is their schema, and a test compares the two.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::errors::{EndHosts, host};
use crate::calendar::civil;
use crate::digest::Digest;
use crate::error::Error;
use crate::progress::{Copies, Phase, Snapshot};
use crate::report::event::{FileDone, Login, LoginRetry};
use crate::session::Verdict;
use crate::units::{harmless, plural, printable, rate, size};

/// The version of the schema. A new field or event does not change it; a field that is removed or
/// gets another meaning does.
const SCHEMA: u32 = 1;

/// The destination that a line is about, if there are several.
#[derive(Clone, Debug, Default)]
pub(super) struct LineOf {
    /// Precedes the line.
    pub name: String,
    pub dest: Option<String>,
}

/// Every line has these fields first.
#[derive(Serialize)]
struct Line<'a, T> {
    event: &'a str,
    schema: u32,
    time: String,
    /// The destination as typed, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    dest: Option<&'a str>,
    #[serde(flatten)]
    body: &'a T,
}

/// An event as a line of JSON with its newline.
pub(super) fn line<T: Serialize>(event: &str, of: &LineOf, body: &T) -> String {
    let line = Line {
        event,
        schema: SCHEMA,
        time: utc(SystemTime::now()),
        dest: of.dest.as_deref(),
        body,
    };
    let mut text = serde_json::to_string(&line).expect("no key is refused, and memory grows");
    text.push('\n');
    text
}

/// `2026-11-28T22:00:01.250Z`
pub(super) fn utc(time: SystemTime) -> String {
    let (date, ms) = date_and_ms(time, 0);
    format!("{date}.{ms:03}Z")
}

/// `2026-11-28T22:00:01`, and milliseconds, by a clock that is this many seconds ahead of UTC.
pub(super) fn date_and_ms(time: SystemTime, ahead_s: i64) -> (String, u32) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() as i64 + ahead_s;
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second / 3600, second % 3600 / 60, second % 60);
    let date = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    (date, since.subsec_millis())
}

/// The body of an event.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Body<'a> {
    Start(&'a CommandStart),
    Login(&'a Login),
    Route { route: &'a str },
    Progress(ProgressFigures),
    File(File<'a>),
    Deleted { path: String },
    Error(ErrorEvent<'a>),
    Retry(Again<'a>),
    Waiting { message: String },
    Notice { message: &'a str },
    Verdict(&'a Verdict),
    End(End<'a>),
}

impl Body<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Body::Start(_) => "start",
            Body::Login(_) => "login",
            Body::Route { .. } => "route",
            Body::Progress(_) => "progress",
            Body::File(_) => "file",
            Body::Deleted { .. } => "deleted",
            Body::Error(_) => "error",
            Body::Retry(_) => "retry",
            Body::Waiting { .. } => "waiting",
            Body::Notice { .. } => "notice",
            Body::Verdict(_) => "verdict",
            Body::End(_) => "end",
        }
    }
}

/// The command and where it runs. All texts are printable.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CommandStart {
    pub version: String,
    pub host: String,
    pub user: String,
    pub pid: u32,
    /// As typed.
    pub sources: Vec<String>,
    pub dests: Vec<String>,
    pub dry_run: bool,
    pub check: bool,
}

impl CommandStart {
    /// `fastcp 0.1.0 on here as me: a, b to db1:/srv`
    pub(super) fn text(&self) -> String {
        let what = match (self.check, self.dry_run) {
            (true, _) => "check ",
            (false, true) => "dry run ",
            (false, false) => "",
        };
        let names = |names: &[String]| names.join(", ");
        let to = match self.dests.is_empty() {
            true => String::new(),
            false => format!(" to {}", names(&self.dests)),
        };
        let CommandStart {
            version,
            host,
            user,
            sources,
            ..
        } = self;
        format!(
            "fastcp {version} on {host} as {user}: {what}{}{to}",
            names(sources)
        )
    }
}

/// The figures of the progress.
#[derive(Serialize)]
pub(super) struct ProgressFigures {
    phase: &'static str,
    files: u64,
    bytes: u64,
    total_files: Option<u64>,
    total_bytes: Option<u64>,
    wire_bytes: u64,
    bytes_per_s: Option<f64>,
    streams: u32,
    /// Destinations whose copies are over, also those that failed; None with one destination.
    dests_done: Option<usize>,
}

impl ProgressFigures {
    /// `rate` is in bytes a second.
    pub(super) fn of(snapshot: &Snapshot, rate: Option<f64>) -> ProgressFigures {
        let totals = snapshot.totals;
        ProgressFigures {
            phase: match snapshot.phase {
                Phase::Connecting => "connecting",
                Phase::Reconnecting => "reconnecting",
                Phase::Scanning => "scanning",
                Phase::Copying => "copying",
                Phase::Flushing => "flushing",
                Phase::Done => "done",
                Phase::Waiting => "waiting",
            },
            files: snapshot.files,
            bytes: snapshot.placed_bytes(),
            total_files: totals.map(|totals| totals.files),
            // The length of a pipe is unknown.
            total_bytes: totals
                .filter(|totals| totals.streams == 0)
                .map(|totals| totals.bytes.saturating_sub(snapshot.again_bytes)),
            wire_bytes: snapshot.wire_bytes,
            bytes_per_s: rate.map(f64::round),
            streams: snapshot.streams,
            dests_done: dests_done(snapshot),
        }
    }
}

impl ProgressFigures {
    /// `copying, 12 files, 1.55 GB of 3.10 GB, 229 MB/s`
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}, ", self.phase);
        text += &plural(self.files, "file", "files");
        text += &format!(", {}", size(self.bytes));
        if let Some(total) = self.total_bytes {
            text += &format!(" of {}", size(total));
        }
        if let Some(per_s) = self.bytes_per_s {
            text += &format!(", {}", rate(per_s));
        }
        text
    }
}

#[derive(Serialize)]
pub(super) struct File<'a> {
    path: String,
    size: u64,
    #[serde(serialize_with = "hex")]
    digest: Option<&'a Digest>,
    result: &'static str,
}

impl File<'_> {
    pub(super) fn of(file: &FileDone) -> File<'_> {
        File {
            // A destination that is the file itself.
            path: match &file.path[..] {
                b"" => ".".to_owned(),
                path => printable(path),
            },
            size: file.size,
            digest: file.digest.as_ref(),
            result: file.result.name(),
        }
    }

    /// `copied tree/a, 1048576 bytes, blake3 0a1b…`
    pub(super) fn text(&self) -> String {
        let digest = self
            .digest
            .map(|digest| format!(", blake3 {}", hex_of(digest)));
        let File {
            path, size, result, ..
        } = self;
        format!(
            "{result} {path}, {size} bytes{}",
            digest.unwrap_or_default()
        )
    }
}

fn hex_of(digest: &Digest) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

fn hex<S: Serializer>(digest: &Option<&Digest>, serializer: S) -> Result<S::Ok, S::Error> {
    match digest {
        Some(digest) => {
            serializer.serialize_str(blake3::Hash::from_bytes(**digest).to_hex().as_str())
        }
        None => serializer.serialize_none(),
    }
}

#[derive(Serialize)]
pub(super) struct ErrorEvent<'a> {
    /// As typed; None for this machine.
    host: Option<&'a str>,
    path: Option<String>,
    kind: &'static str,
    message: String,
    /// The operating system's error number; 0 if there is none.
    errno: i32,
    exit_code: i32,
    /// It has ended the copy.
    fatal: bool,
}

impl ErrorEvent<'_> {
    pub(super) fn of<'a>(error: &Error, hosts: &'a EndHosts, fatal: bool) -> ErrorEvent<'a> {
        let path = error.path.as_ref();
        ErrorEvent {
            host: host(error, hosts),
            path: path.map(|path| printable(path.as_os_str().as_encoded_bytes())),
            kind: error.kind.name(),
            message: harmless(&error.message),
            errno: error.errno,
            exit_code: error.kind.exit_code(),
            fatal,
        }
    }
}

impl ErrorEvent<'_> {
    /// `db1:/srv/x: no space left (exit code 8)`
    pub(super) fn text(&self) -> String {
        let place = match (self.host, &self.path) {
            (Some(host), Some(path)) => format!("{host}:{path}: "),
            (Some(place), None) => format!("{place}: "),
            (None, Some(path)) => format!("{path}: "),
            (None, None) => String::new(),
        };
        format!("{place}{} (exit code {})", self.message, self.exit_code)
    }
}

/// The destinations whose copies are over, also those that failed; None with one destination.
fn dests_done(snapshot: &Snapshot) -> Option<usize> {
    let Some(Copies::Together { dests, .. }) = &snapshot.copies else {
        return None;
    };
    let done = dests.iter().filter(|dest| dest.phase == Phase::Done);
    Some(done.count())
}

#[derive(Serialize)]
pub(super) struct Again<'a> {
    host: &'a str,
    cause: String,
    wait_seconds: f64,
}

impl Again<'_> {
    pub(super) fn of(retry: &LoginRetry) -> Again<'_> {
        Again {
            host: &retry.host,
            cause: harmless(&retry.cause),
            wait_seconds: (retry.wait.as_secs_f64() * 1e3).round() / 1e3,
        }
    }
}

/// The hosts and the times of a copy, and its result.
#[derive(Serialize)]
pub(super) struct End<'a> {
    version: &'a str,
    host: &'a str,
    user: &'a str,
    logins: &'a [Login],
    started: String,
    ended: String,
    #[serde(flatten)]
    result: Value,
}

impl End<'_> {
    pub(super) fn of<'a>(
        start: &'a CommandStart,
        logins: &'a [Login],
        began: SystemTime,
        result: Value,
    ) -> End<'a> {
        End {
            version: &start.version,
            host: &start.host,
            user: &start.user,
            logins,
            started: utc(began),
            ended: utc(SystemTime::now()),
            result,
        }
    }

    pub(super) fn exit_code(&self) -> i64 {
        self.result["exit_code"].as_i64().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::error::{Kind, Side};
    use crate::report::event::FileResult;

    #[test]
    fn a_line_begins_with_its_event_and_has_no_control_bytes() {
        let file = FileDone {
            path: b"d/\x1b[31m\n\xff\\".to_vec(),
            size: 3,
            digest: Some([0xab; 32]),
            result: FileResult::Resumed,
        };
        let of = LineOf {
            name: "web1: ".to_owned(),
            dest: Some("web1:/srv".to_owned()),
        };
        let body = Body::File(File::of(&file));
        let text = line(body.name(), &of, &body);
        let begins = r#"{"event":"file","schema":1,"time":"2"#;
        assert!(text.starts_with(begins), "{text}");
        let text = text.strip_suffix('\n').expect("a line");
        assert!(!text.contains(|c: char| c.is_control()), "{text}");
        let read: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(read["path"], r"d/\x1b[31m\n\xff\\");
        assert_eq!(read["digest"], "ab".repeat(32));
        assert_eq!(read["dest"], "web1:/srv");
    }

    #[test]
    fn an_error_is_its_parts() {
        let error = Error::new(Kind::Write, Side::Dest, "no space left").at("/srv/x");
        let hosts = EndHosts {
            source: None,
            dest: Some("db1".to_owned()),
        };
        let body = Body::Error(ErrorEvent::of(&error, &hosts, true));
        let read: Value = serde_json::from_str(&line("error", &LineOf::default(), &body)).unwrap();
        assert_eq!(read["host"], "db1");
        assert_eq!(read["path"], "/srv/x");
        assert_eq!(
            (&read["kind"], &read["exit_code"]),
            (&"write".into(), &8.into())
        );
    }

    #[test]
    fn times_are_those_of_the_zone() {
        let time = UNIX_EPOCH + Duration::from_millis(1_795_903_201_250);
        assert_eq!(utc(time), "2026-11-28T22:00:01.250Z");
        assert_eq!(date_and_ms(time, 7200).0, "2026-11-29T00:00:01");
    }
}

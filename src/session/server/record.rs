//! The line that a session leaves in the system log of its host, for the administrator: who copied
//! what, from where, how much, and with which result.
//!
//! The record must not disturb the copy: a log that is missing or full costs the line alone. Texts
//! from the client are escaped, in quotation marks and short, and they come last.

use std::convert::Infallible;
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, geteuid, getppid};

use super::syslog::{self, Severity};
use crate::error::{Error, Kind};
use crate::pipeline::failures::MoreFailures;
use crate::progress::Progress;
use crate::session::permit::Permit;
use crate::transport::routes::addresses::{self, SshEnd};
use crate::units::{harmless, printable};
use crate::wire::message::{Open, Role};

/// Bytes that are shown of a path or an error: two paths, an error and the rest fit in a message.
const TEXT_MAX: usize = 160;

/// Bytes of a user's name or an address: an IPv6 address with its zone.
const WORD_MAX: usize = 64;

/// How often a message is tried again that has found the log full.
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// Processes above this one among which sudo is looked for.
const PARENTS_MAX: usize = 4;

/// A session and its line.
pub(super) struct SessionRecord {
    /// False: it leaves no line.
    is_wanted: bool,
    began: Instant,
    request: Option<RecordedRequest>,
    /// The counters of the session.
    pub(super) progress: Arc<Progress>,
    /// Failed entries, also operands that were not found.
    pub(super) failed: MoreFailures,
    is_over: bool,
    /// The message, if the log was full.
    unsent: Option<Vec<u8>>,
}

/// What the client has requested.
struct RecordedRequest {
    role: &'static str,
    /// It copies nothing, for this reason.
    mode: Option<&'static str>,
    /// The first path as typed; empty for a command.
    path: Vec<u8>,
    /// 0 for a command.
    paths: usize,
    confine: Option<PathBuf>,
    is_probe: bool,
}

impl SessionRecord {
    pub(super) fn begin(is_wanted: bool) -> SessionRecord {
        SessionRecord {
            is_wanted,
            began: Instant::now(),
            request: None,
            progress: Arc::default(),
            failed: MoreFailures::default(),
            is_over: false,
            unsent: None,
        }
    }

    /// The client has requested this, whether or not its key permits that.
    pub(super) fn asked(&mut self, open: &Open, permit: &Permit) {
        let (role, path, paths) = match &open.role {
            Role::Sender { operands } => ("send", operands.first(), operands.len()),
            Role::Receiver { path, .. } => ("receive", Some(path), 1),
            Role::Producer { .. } => ("from-command", None, 0),
            Role::Consumer { .. } => ("to-command", None, 0),
            Role::Probe { path } => ("probe", Some(path), 1),
            Role::Verifier { path } => ("check-list", Some(path), 1),
            Role::Cleaner { path } => ("clean", Some(path), 1),
        };
        let path = path.map_or(&b""[..], Vec::as_slice);
        self.request = Some(RecordedRequest {
            role,
            mode: match (&open.role, open.options.check, open.options.dry_run) {
                (Role::Verifier { .. }, ..) | (_, false, false) => None,
                (_, true, _) => Some("check"),
                (_, false, true) => Some("dry-run"),
            },
            path: path[..path.len().min(TEXT_MAX)].to_vec(),
            paths,
            confine: permit.confine.clone(),
            is_probe: matches!(open.role, Role::Probe { .. }),
        });
    }

    /// The session is over, with this error if any. Writes the line.
    pub(super) fn end(&mut self, error: Option<&Error>, failed: Option<MoreFailures>) {
        self.failed.add(failed.unwrap_or_default());
        self.is_over = true;
        // A client may leave before it requests anything, for example if another host fails.
        let Some(request) = self.request.as_ref().filter(|_| self.is_wanted) else {
            return;
        };
        let origin = LoginOrigin::of_this_process();
        let (severity, line) = self.line(request, &origin, error);
        let message = syslog::message(severity, &line);
        self.send(Path::new(syslog::SOCKET), message);
    }

    /// Sends the message to a log that was full. Never returns: other work decides how long it may
    /// take.
    pub(super) async fn retry(&mut self) -> Infallible {
        while let Some(message) = self.unsent.take() {
            tokio::time::sleep(TRY_AGAIN).await;
            self.send(Path::new(syslog::SOCKET), message);
        }
        std::future::pending().await
    }

    fn send(&mut self, socket: &Path, message: Vec<u8>) {
        // Nobody is told of another error: the user can do nothing about it.
        if let Err(error) = syslog::try_send(socket, &message)
            && error.kind() == ErrorKind::WouldBlock
        {
            self.unsent = Some(message);
        }
    }

    fn line(
        &self,
        request: &RecordedRequest,
        origin: &LoginOrigin,
        error: Option<&Error>,
    ) -> (Severity, String) {
        let mut line = String::new();
        let mut add = |key: &str, value: &dyn std::fmt::Display| {
            let space = if line.is_empty() { "" } else { " " };
            // A string takes everything.
            let _ = write!(line, "{space}{key}={value}");
        };
        add("role", &request.role);
        if let Some(mode) = request.mode {
            add("mode", &mode);
        }
        add("user", &word(&origin.user));
        if let Some(user) = &origin.sudo_user {
            add("sudo_user", &word(user));
        }
        add("from", &word(&origin.address));
        if let Some(port) = &origin.port {
            add("port", &word(port));
        }
        let counted = self.progress.snapshot();
        add("files", &counted.files);
        add("bytes", &counted.moved_bytes);
        for (key, count) in [
            ("unchanged", counted.unchanged),
            ("failed", self.failed.number),
        ] {
            if count > 0 {
                add(key, &count);
            }
        }
        add("seconds", &self.began.elapsed().as_secs());
        // A probe ends when the client has measured enough.
        let error = error.filter(|error| !(request.is_probe && error.kind == Kind::Lost));
        let (code, result) = match error {
            Some(error) => (error.kind.exit_code(), error.kind.name()),
            None if self.failed.number > 0 => (self.failed.exit_code(), "incomplete"),
            None => (0, "complete"),
        };
        add("exit", &code);
        add("result", &result);
        if request.paths > 1 {
            add("paths", &request.paths);
        }
        if request.paths > 0 {
            add("path", &quoted(&printable(&request.path)));
        }
        if let Some(confine) = &request.confine {
            add(
                "confine",
                &quoted(&printable(confine.as_os_str().as_bytes())),
            );
        }
        // An error of a command names it, and its words may be secret.
        let is_of_command = |error: &Error| error.kind == Kind::Command || request.paths == 0;
        if let Some(error) = error.filter(|error| !is_of_command(error)) {
            add("error", &quoted(&harmless(&error.in_place())));
        }
        let severity = match code {
            0 => Severity::Info,
            _ => Severity::Warning,
        };
        (severity, line)
    }
}

/// A panic ends a session without a result.
impl Drop for SessionRecord {
    fn drop(&mut self) {
        if !self.is_over && self.request.is_some() {
            self.end(Some(&Error::panicked()), None);
        }
    }
}

/// The login that has started this process.
struct LoginOrigin {
    user: String,
    /// The user who has logged in, if sudo has started this process.
    sudo_user: Option<String>,
    address: String,
    port: Option<String>,
}

impl LoginOrigin {
    /// As sshd and sudo have set it in the environment.
    fn of_this_process() -> LoginOrigin {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let sudo_user = variable("SUDO_USER");
        let connection = variable("SSH_CONNECTION");
        let above = || sudo_user.as_ref().and_then(|_| connection_above_sudo());
        let connection = connection.or_else(above).unwrap_or_default();
        let address = addresses::of_login(&connection, SshEnd::Client);
        LoginOrigin {
            // The name may have to come from a directory server, which may hang.
            user: variable("USER").unwrap_or_else(|| geteuid().as_raw().to_string()),
            sudo_user,
            address: address.unwrap_or("unknown").to_owned(),
            port: connection.split(' ').nth(1).map(str::to_owned),
        }
    }
}

/// `SSH_CONNECTION` as sudo, which removes it, has got it. Only root may look there.
fn connection_above_sudo() -> Option<String> {
    let mut pid = getppid()?;
    for _ in 0..PARENTS_MAX {
        let dir = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        // The number, the name in brackets, the state, the parent.
        let (name, rest) = stat.rsplit_once(')')?;
        if name.ends_with("(sudo") {
            let environment = fs::read(dir.join("environ")).ok()?;
            let mut variables = environment.split(|byte| *byte == 0);
            let found = variables.find_map(|one| one.strip_prefix(b"SSH_CONNECTION="))?;
            return Some(String::from_utf8_lossy(found).into_owned());
        }
        pid = Pid::from_raw(rest.split_whitespace().nth(1)?.parse().ok()?)?;
    }
    None
}

/// A name as it is if it has only usual characters.
fn word(name: &str) -> String {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "._-@%:+$".contains(c);
    match !name.is_empty() && name.len() <= WORD_MAX && name.chars().all(is_usual) {
        true => name.to_owned(),
        false => quoted_up_to(&printable(name.as_bytes()), WORD_MAX),
    }
}

fn quoted(text: &str) -> String {
    quoted_up_to(text, TEXT_MAX)
}

/// A printable text in quotation marks, with `...` for what is more than `max` bytes.
fn quoted_up_to(text: &str, max: usize) -> String {
    let mut out = "\"".to_owned();
    for c in text.chars() {
        if out.len() + c.len_utf8() > max {
            out.push_str("...");
            break;
        }
        if c == '"' {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Side;
    use crate::wire::message::CopyOptions;
    use std::os::unix::net::UnixDatagram;

    fn origin() -> LoginOrigin {
        LoginOrigin {
            user: "ann".to_owned(),
            sudo_user: None,
            address: "2001:db8::7".to_owned(),
            port: Some("51234".to_owned()),
        }
    }

    fn asked(role: Role, permit: &Permit) -> SessionRecord {
        let open = Open::plain(role, CopyOptions::default());
        // Its own drop would write to the log of this machine.
        let mut record = SessionRecord::begin(false);
        record.asked(&open, permit);
        record
    }

    fn written(
        record: &SessionRecord,
        origin: &LoginOrigin,
        error: Option<&Error>,
    ) -> (Severity, String) {
        record.line(record.request.as_ref().unwrap(), origin, error)
    }

    #[test]
    fn a_line_says_who_what_how_much_and_with_which_result() {
        let operands = vec![b"a\n\"b\"".to_vec(), b"c".to_vec()];
        let mut record = asked(Role::Sender { operands }, &Permit::default());
        record.progress.add_files(3);
        record.progress.add_bytes(500);
        record.progress.add_unchanged(70);
        let start = "role=send user=ann from=2001:db8::7 port=51234 files=4 bytes=500 unchanged=1";
        let path = r#"paths=2 path="a\n\"b\"""#;
        let complete = format!("{start} seconds=0 exit=0 result=complete {path}");
        assert_eq!(
            written(&record, &origin(), None),
            (Severity::Info, complete)
        );
        let lost = Error::new(Kind::Lost, Side::Here, "the \"client\"\nhas gone").at("/x");
        let (severity, line) = written(&record, &origin(), Some(&lost));
        let expected = r#"error="/x: the \"client\"\nhas gone""#;
        let expected = format!("{start} seconds=0 exit=5 result=lost {path} {expected}");
        assert_eq!((severity, line), (Severity::Warning, expected));
        record
            .failed
            .note(&Error::new(Kind::Read, Side::Source, "gone"));
        let (_, line) = written(&record, &origin(), None);
        assert!(
            line.contains("failed=1 seconds=0 exit=9 result=incomplete"),
            "{line}"
        );
    }

    #[test]
    fn a_probe_that_its_client_ends_is_complete() {
        let record = asked(Role::Probe { path: Vec::new() }, &Permit::default());
        let lost = Error::new(Kind::Lost, Side::Here, "the probe is over");
        let (_, line) = written(&record, &origin(), Some(&lost));
        assert!(line.ends_with("exit=0 result=complete path=\"\""), "{line}");
    }

    #[test]
    fn the_words_of_a_command_are_left_out() {
        let command = b"restore --password=secret".to_vec();
        let role = Role::Producer { command };
        let record = asked(role, &Permit::default());
        let message = "the command `restore --password=secret` failed with status 1";
        let error = Error::new(Kind::Command, Side::Source, message);
        let (_, line) = written(&record, &origin(), Some(&error));
        assert!(line.starts_with("role=from-command user=ann"), "{line}");
        assert!(line.ends_with(" exit=10 result=command"), "{line}");
    }

    #[test]
    fn the_longest_line_fits_a_message() {
        let permit = Permit {
            confine: Some(PathBuf::from("/\x01".repeat(3000))),
            ..Permit::default()
        };
        let path = vec![0xff; 5000];
        let sources = Vec::new();
        let mut record = asked(Role::Receiver { path, sources }, &permit);
        record.progress.add_files(u64::MAX / 2);
        record.progress.add_unchanged_files(1 << 60, 0);
        record.failed.number = u64::MAX;
        let origin = LoginOrigin {
            user: "\u{e4}\"".repeat(100),
            sudo_user: Some("\x1b".repeat(100)),
            ..origin()
        };
        let error = Error::new(Kind::Refused, Side::Dest, "\"".repeat(3000)).at("x");
        let (severity, line) = written(&record, &origin, Some(&error));
        let message = String::from_utf8(syslog::message(severity, &line)).unwrap();
        assert!(message.ends_with("...\""), "{message}");
        assert!(message.bytes().all(|byte| byte >= b' '), "{message}");
    }

    #[tokio::test]
    async fn a_log_that_was_full_gets_the_line_when_it_has_room() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("log");
        let log = UnixDatagram::bind(&place).unwrap();
        log.set_nonblocking(true).unwrap();
        while syslog::try_send(&place, b"others").is_ok() {}
        let mut record = asked(Role::Probe { path: Vec::new() }, &Permit::default());
        record.send(&place, b"line".to_vec());
        assert_eq!(record.unsent.as_deref(), Some(&b"line"[..]));
        let mut buffer = [0; 100];
        while log.recv(&mut buffer).is_ok() {}
        let message = record.unsent.take().unwrap();
        record.send(&place, message);
        let len = log.recv(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..len], record.unsent.is_none()),
            (&b"line"[..], true)
        );
        // A log that is not there costs the line alone.
        drop(log);
        record.send(&place, b"line".to_vec());
        assert!(record.unsent.is_none());
    }
}

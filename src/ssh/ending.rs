//! The reason why the server's process ended, found from its exit status and output.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::libc;

use super::{Host, Rsh, Startup};
use crate::error::{Error, Kind, Side};
use crate::units::printable;
use crate::wire::hello::MAGIC;

/// Output of a process before it ended.
pub struct LastOutput<'a> {
    /// The last bytes of its stdout.
    pub stdout: &'a [u8],
    /// The last lines of its stderr.
    pub stderr: String,
    /// The user has seen these lines. Otherwise an error quotes them.
    pub is_shown: bool,
}

impl LastOutput<'_> {
    /// Text that follows the statement that it failed.
    fn why(&self) -> String {
        match (self.is_shown, last_lines(self.stderr.as_bytes())) {
            (_, last) if last.is_empty() => String::new(),
            (true, _) => " (its message is above)".to_owned(),
            (false, last) => format!(" ({last})"),
        }
    }
}

/// Why a far end ended before its hello. `login` is the user's name there.
pub fn why_no_hello(
    host: &Host,
    login: &str,
    status: Option<ExitStatus>,
    rsh: Rsh,
    startup: &Startup,
    said: &LastOutput,
) -> Error {
    let name = printable(host.name.as_bytes());
    let error = |kind, message| Error::new(kind, Side::Here, format!("{name}: {message}"));
    let says = |words: &str| said.stderr.contains(words);
    if let Some(words) = refused_itself(status, &said.stderr) {
        return error(Kind::FarEnd, format!("fastcp cannot run there: {words}"));
    }
    if said.stdout.windows(MAGIC.len()).any(|part| part == MAGIC) {
        let message = "the connection ended while fastcp started there; try again";
        return error(Kind::Lost, message.to_owned());
    }
    let no_sudo = || "sudo is not installed there".to_owned();
    let no_path = "the command of --remote-path does not exist there, or cannot be run";
    match (status.and_then(|status| status.code()), &startup.sudo) {
        (Some(127), Some(_)) => error(Kind::FarEnd, no_sudo()),
        // csh prints this, and exits with 1.
        (Some(1), Some(_)) if says("sudo: Command not found") => error(Kind::FarEnd, no_sudo()),
        (Some(126 | 127), _) if startup.path.is_some() => error(Kind::FarEnd, no_path.to_owned()),
        (Some(1), Some(_))
            if startup.path.is_some()
                && (says("command not found") || says("unable to execute")) =>
        {
            error(Kind::FarEnd, no_path.to_owned())
        }
        (Some(1), Some(user)) if says("unknown user") => error(
            Kind::FarEnd,
            format!("there is no user {user} (--sudo={user})"),
        ),
        (Some(1), Some(user)) => {
            let command = match &startup.path {
                Some(_) => "/the/path/to/fastcp",
                None => "/bin/sh",
            };
            let login = printable(login.as_bytes());
            error(
                Kind::Connect,
                format!(
                    "sudo failed{}; if it asked for a password, run visudo there and add: {login} \
                     ALL=({user}) NOPASSWD: {command}",
                    said.why()
                ),
            )
        }
        (Some(255), _) if rsh == Rsh::Ssh => error(
            Kind::Connect,
            format!("ssh could not connect or log in{}", said.why()),
        ),
        (code, _) => error(Kind::FarEnd, ended(code, startup, said)),
    }
}

/// The prefix of a server's lines for the user.
pub const OWN: &str = "fastcp: ";

/// The message of a server that started and then refused to run (too few threads, or open files).
/// The exit code is unknown if ssh took too long to end.
fn refused_itself(status: Option<ExitStatus>, stderr: &str) -> Option<&str> {
    let code = status.and_then(|status| status.code());
    let refuses = code.is_none_or(|code| code == Kind::FarEnd.exit_code());
    let mut lines = stderr.lines().filter(|_| refuses);
    lines.rfind(|line| line.starts_with(OWN))?.strip_prefix(OWN)
}

/// The error for a program that was sent to the host and does not run there.
pub fn does_not_run(host: &Host, said: &LastOutput) -> Error {
    let advice = match cfg!(target_env = "musl") {
        true => "; install one that does, or give its path with --remote-path",
        false => {
            "; it may need this machine's system libraries: use a static build (a target that ends in \
             -musl)"
        }
    };
    let (name, why) = (printable(host.name.as_bytes()), said.why());
    let message = format!("{name}: the program that was sent does not run there{why}{advice}");
    Error::new(Kind::FarEnd, Side::Here, message)
}

/// The error for a login without an answer within `limit`.
pub fn no_answer(host: &Host, limit: Duration, rsh: Rsh) -> Error {
    let (kind, hangs) = match rsh {
        Rsh::Ssh => (
            Kind::Connect,
            "the host, its sshd or its login shell may hang",
        ),
        Rsh::Local => (Kind::FarEnd, "fastcp there may hang"),
    };
    let (name, seconds) = (printable(host.name.as_bytes()), limit.as_secs());
    let message = format!("{name}: no answer within {seconds} s (see --timeout); {hangs}");
    Error {
        errno: libc::ETIMEDOUT,
        ..Error::new(kind, Side::Here, message)
    }
}

/// The error where the cause is unknown; quotes the far end's output.
fn ended(code: Option<i32>, startup: &Startup, said: &LastOutput) -> String {
    let what = match &startup.path {
        Some(_) => "the command of --remote-path ended before it answered",
        None => "the login ended before fastcp answered",
    };
    let exit = code.map_or(String::new(), |code| format!(" (exit {code})"));
    let printed = last_lines(said.stdout);
    let more = if !printed.is_empty() {
        format!(", and printed: {printed}")
    } else if !said.stderr.is_empty() {
        said.why()
    } else if startup.path.is_some() {
        "; that command is not fastcp".to_owned()
    } else {
        "; the account's shell, or the forced command of its key, did not start it".to_owned()
    };
    let hint = match printed.contains("sftp") || said.stderr.contains("sftp") {
        true => "; an account that allows only sftp cannot run fastcp",
        false => "",
    };
    format!("{what}{exit}{more}{hint}")
}

/// Most lines of a far end's output that an error quotes.
const LINES_QUOTED: usize = 3;

/// Most characters of each quoted line.
const QUOTED_MAX: usize = 200;

/// The last non-empty lines of `said`, printable.
fn last_lines(said: &[u8]) -> String {
    let lines = said.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES_QUOTED)..];
    let quoted = last
        .iter()
        .map(|line| printable(line).chars().take(QUOTED_MAX).collect::<String>());
    quoted.collect::<Vec<_>>().join(" / ")
}

/// ssh's messages after which another login would fail too.
const REFUSALS: [&str; 4] = [
    "Permission denied",
    "Too many authentication failures",
    "Host key verification failed",
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
];

/// ssh's messages about a host that is down or restarting.
const OUTAGES: [&str; 11] = [
    "Connection refused",
    // "Connection timed out", and "Connection to 10.0.0.1 port 22 timed out" if sshd is silent.
    " timed out",
    "Connection reset",
    "Connection closed",
    // "Connection to h closed by remote host."
    "closed by remote host",
    "No route to host",
    "Network is unreachable",
    "Host is down",
    "Broken pipe",
    "Temporary failure in name resolution",
    "not responding",
];

/// True if ssh reports that the user, a key or the host is refused.
pub fn is_refusal(words: &str) -> bool {
    REFUSALS.iter().any(|refusal| words.contains(refusal))
}

/// Marks a failed login by ssh's message `words`, for [`may_pass`] and [`is_refused`].
pub fn classify(error: &mut Error, words: &str) {
    if error.kind == Kind::Connect && is_refusal(words) {
        error.errno = libc::EACCES;
    } else if error.kind == Kind::Connect && OUTAGES.iter().any(|outage| words.contains(outage)) {
        error.errno = libc::ECONNREFUSED;
    }
}

/// True if a login failed because the host is down, refuses connections or does not answer.
pub fn may_pass(error: &Error) -> bool {
    error.kind == Kind::Connect && [libc::ECONNREFUSED, libc::ETIMEDOUT].contains(&error.errno)
}

/// True if the host refused a login, or ssh refused because of the host's key.
pub fn is_refused(error: &Error) -> bool {
    error.kind == Kind::Connect && error.errno == libc::EACCES
}

/// Exit codes 128+N, by which a shell reports that signal N ended a command.
const SIGNALLED: std::ops::Range<i32> = 129..193;

/// The exit code of a panic in Rust's runtime, which fastcp 0.1 ended with.
const RUST_PANIC: i32 = 101;

const FAR_PROGRAM: &str = "fastcp there";

/// A signal ended the server. Another session may succeed.
pub fn server_killed(signal: i32) -> Error {
    Error::new(Kind::Lost, Side::Here, killed(FAR_PROGRAM, signal))
}

fn killed(program: &str, signal: i32) -> String {
    format!("{program} was killed by signal {signal}")
}

/// The cause of a lost control connection, if the exit status of the far end's process shows it.
/// `said` is its output since the hello. The error's kind decides whether the client logs in again.
pub fn why_lost(status: ExitStatus, said: &LastOutput, rsh: Rsh) -> Option<Error> {
    let words = said.stderr.lines().last().unwrap_or_default();
    let lost = |message: String| Some(Error::new(Kind::Lost, Side::Here, message));
    let program = match rsh {
        Rsh::Ssh => "ssh",
        Rsh::Local => FAR_PROGRAM,
    };
    match (status.signal(), status.code()) {
        (Some(signal), _) => lost(killed(program, signal)),
        // A line of the server itself is not ssh's message, and the user has already seen it.
        (_, Some(255)) if rsh == Rsh::Ssh && !words.is_empty() && !words.starts_with(OWN) => {
            let words = words.trim_end_matches(['.', ' ']);
            lost(format!("ssh: {}", words.trim_start_matches("ssh: ")))
        }
        // ssh prints nothing if a signal ends it here, or ends its command there.
        (_, Some(255)) if rsh == Rsh::Ssh => lost(
            "ssh ended without a message: a signal killed it here, or killed fastcp there"
                .to_owned(),
        ),
        (_, Some(code)) if code == Kind::Breach.exit_code() || code == RUST_PANIC => {
            let message = format!(
                "fastcp there stopped with an internal error{}; please report this bug",
                said.why()
            );
            Some(Error::new(Kind::Breach, Side::Here, message))
        }
        (_, Some(code)) if SIGNALLED.contains(&code) => {
            let signal = code - (SIGNALLED.start - 1);
            lost(killed(FAR_PROGRAM, signal))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_far_end_printed_tells_why_there_was_no_hello() {
        let host = Host {
            user: None,
            name: "h".into(),
            port: None,
        };
        let why = |code: i32, path: Option<&str>, sudo: Option<&str>, stdout: &[u8], stderr| {
            let startup = Startup {
                path: path.map(str::to_owned),
                sudo: sudo.map(str::to_owned),
                ..Startup::default()
            };
            let status = Some(ExitStatus::from_raw(code << 8));
            let error = why_no_hello(
                &host,
                "me",
                status,
                Rsh::Ssh,
                &startup,
                &LastOutput {
                    stdout,
                    stderr: str::to_owned(stderr),
                    is_shown: true,
                },
            );
            (error.kind, error.message)
        };
        let nologin = b"Welcome\n\x1b[2JThis account is currently not available.\r\n\n";
        let (kind, told) = why(1, None, None, nologin, "");
        assert_eq!(kind, Kind::FarEnd);
        let printed = "printed: Welcome / \\x1b[2JThis account is currently not available.";
        assert!(told.ends_with(printed), "{told}");
        let few = "noise\nfastcp: only 32 files may be open at once\n";
        let (kind, told) = why(4, Some("/x"), None, b"", few);
        assert_eq!(
            (kind, told.as_str()),
            (
                Kind::FarEnd,
                "h: fastcp cannot run there: only 32 files may be open at once"
            )
        );
        let sftp = b"This service allows sftp connections only.\n";
        assert!(why(1, None, None, sftp, "").1.contains("allows only sftp"));
        let (_, told) = why(1, Some("/bin/false"), None, b"", "");
        assert!(
            told.contains("--remote-path") && !told.contains("sftp"),
            "{told}"
        );
        let audit = "sudo: unknown user nosuch\nsudo: error initializing audit plugin\n";
        let (kind, told) = why(1, None, Some("nosuch"), b"", audit);
        assert_eq!(
            (kind, told.as_str()),
            (Kind::FarEnd, "h: there is no user nosuch (--sudo=nosuch)")
        );
        let (kind, told) = why(127, None, Some("root"), b"", "sh: 1: sudo: not found\n");
        assert_eq!(
            (kind, told.as_str()),
            (Kind::FarEnd, "h: sudo is not installed there")
        );
        let (_, told) = why(
            1,
            Some("/x"),
            Some("root"),
            b"",
            "sudo: /x: command not found\n",
        );
        assert!(
            told.contains("--remote-path does not exist there"),
            "{told}"
        );
        let (kind, told) = why(1, None, Some("root"), b"", "sudo: a password is required\n");
        assert_eq!(kind, Kind::Connect);
        assert!(told.ends_with("me ALL=(root) NOPASSWD: /bin/sh"), "{told}");
    }

    fn said(stderr: &str, is_shown: bool) -> LastOutput<'static> {
        LastOutput {
            stdout: b"",
            stderr: stderr.to_owned(),
            is_shown,
        }
    }

    #[test]
    fn the_last_line_of_ssh_tells_whether_the_host_is_down() {
        let classified = |words| {
            let mut error = Error::new(Kind::Connect, Side::Here, "ssh could not log in");
            classify(&mut error, words);
            (may_pass(&error), is_refused(&error))
        };
        for outage in [
            "ssh: connect to host h port 22: Connection timed out",
            "ssh: connect to host h port 22: Operation timed out",
            "Connection to 127.0.0.1 port 46011 timed out",
            "Connection to h closed by remote host.",
            "Connection closed by 127.0.0.1 port 22",
        ] {
            assert_eq!(classified(outage), (true, false), "{outage}");
        }
        let refusal = "me@h: Permission denied (publickey).";
        assert_eq!(classified(refusal), (false, true));
        let unknown = "ssh: Could not resolve hostname h: Name or service not known";
        assert_eq!(classified(unknown), (false, false));
    }

    #[test]
    fn how_its_process_ended_tells_why_control_was_lost() {
        let why =
            |status, words| why_lost(ExitStatus::from_raw(status), &said(words, true), Rsh::Ssh);
        let told = |status, words| why(status, words).map(|error| error.message);
        let code = |code: i32| code << 8;
        assert_eq!(told(9, "x").unwrap(), "ssh was killed by signal 9");
        assert_eq!(
            told(code(255), "Connection to h closed by remote host.").unwrap(),
            "ssh: Connection to h closed by remote host"
        );
        let own = "fastcp: the disk is still writing the copied data";
        assert_eq!(told(code(255), own), told(code(255), ""));
        let killed = told(code(128 + 9), "").unwrap();
        assert_eq!(killed, "fastcp there was killed by signal 9");
        assert!(told(code(255), "").unwrap().contains("without a message"));
        assert_eq!(told(code(5), "its own sentence came by control"), None);
        let kind = |number| why(code(number), "").unwrap().kind;
        assert_eq!(kind(255), Kind::Lost);
        for panic in [13, 101] {
            assert_eq!(kind(panic), Kind::Breach, "another login panics too");
        }
    }

    #[test]
    fn an_error_quotes_the_lines_that_the_user_has_not_seen() {
        let host = Host {
            user: None,
            name: "h".into(),
            port: None,
        };
        let panic = "thread 'main' panicked at a.rs:1:2:\noops\nnote: run with RUST_BACKTRACE\n";
        for (is_shown, told, lost) in [
            (
                true,
                "h: the program that was sent does not run there (its message is above)",
                "stopped with an internal error (its message is above); please report this bug",
            ),
            (
                false,
                "h: the program that was sent does not run there (sh: 1: not found)",
                "(thread 'main' panicked at a.rs:1:2: / oops / note: run with RUST_BACKTRACE); \
                 please report this bug",
            ),
        ] {
            let error = does_not_run(&host, &said("sh: 1: not found\n", is_shown));
            assert_eq!(error.kind, Kind::FarEnd);
            assert!(error.message.starts_with(told), "{}", error.message);
            let panicked = ExitStatus::from_raw(13 << 8);
            let error = why_lost(panicked, &said(panic, is_shown), Rsh::Ssh).unwrap();
            assert!(error.message.ends_with(lost), "{}", error.message);
        }
    }
}

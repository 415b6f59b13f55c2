//! What the end of a far end's process tells.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::libc;

use super::{Host, Rsh, Startup};
use crate::error::{Error, Kind, Side};
use crate::units::printable;

/// Why a far end ended before it said hello. `login` is the name of the user there.
pub fn why_no_hello(
    host: &Host,
    login: &str,
    status: Option<ExitStatus>,
    rsh: Rsh,
    startup: &Startup,
) -> Error {
    let name = printable(host.name.as_bytes());
    let error = |kind, message| Error::new(kind, Side::Here, format!("{name}: {message}"));
    match (status.and_then(|status| status.code()), &startup.sudo) {
        (Some(126 | 127), _) if startup.path.is_some() => error(
            Kind::FarEnd,
            "the command of --remote-path is not there, or cannot be run".to_owned(),
        ),
        (Some(127), Some(_)) => error(Kind::Connect, "it has no sudo".to_owned()),
        (Some(1), Some(user)) => {
            let command = match &startup.path {
                Some(_) => "/the/path/to/fastcp",
                None => "/bin/sh",
            };
            let login = printable(login.as_bytes());
            error(
                Kind::Connect,
                format!(
                    "sudo refuses without a password (its message is above); let it, by visudo \
                     there: {login} ALL=({user}) NOPASSWD: {command}"
                ),
            )
        }
        (Some(255), _) if rsh == Rsh::Ssh => error(
            Kind::Connect,
            "ssh could not connect or log in (its message is above)".to_owned(),
        ),
        (code, _) => error(
            Kind::FarEnd,
            format!(
                "the far end ended before it answered{}; an account that allows only sftp cannot \
                 run fastcp",
                code.map_or(String::new(), |code| format!(" (exit {code})")),
            ),
        ),
    }
}

/// Messages of ssh after which another login would fail too.
const REFUSALS: [&str; 4] = [
    "Permission denied",
    "Too many authentication failures",
    "Host key verification failed",
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
];

/// Messages of ssh for a host that is down or restarts.
const OUTAGES: [&str; 11] = [
    "Connection refused",
    "Connection timed out",
    "Operation timed out",
    "Connection reset",
    "Connection closed",
    "No route to host",
    "Network is unreachable",
    "Host is down",
    "Broken pipe",
    "Temporary failure in name resolution",
    "not responding",
];

/// True where ssh says that the user, a key or the host is refused.
pub fn is_refusal(words: &str) -> bool {
    REFUSALS.iter().any(|refusal| words.contains(refusal))
}

/// Marks a failed login by ssh's `words`, for [`may_pass`] and [`is_refused`].
pub fn classify(error: &mut Error, words: &str) {
    if error.kind == Kind::Connect && is_refusal(words) {
        error.errno = libc::EACCES;
    } else if error.kind == Kind::Connect && OUTAGES.iter().any(|outage| words.contains(outage)) {
        error.errno = libc::ECONNREFUSED;
    }
}

/// True for a login that failed because the host is down, refuses connections or does not answer.
pub fn may_pass(error: &Error) -> bool {
    error.kind == Kind::Connect && [libc::ECONNREFUSED, libc::ETIMEDOUT].contains(&error.errno)
}

/// True for a login that the host, or ssh because of the host's key, has refused.
pub fn is_refused(error: &Error) -> bool {
    error.kind == Kind::Connect && error.errno == libc::EACCES
}

/// A shell reports a command that died of signal N with exit code 128+N.
const SIGNALLED: std::ops::Range<i32> = 129..193;

/// The exit code of a panic in Rust's runtime, which fastcp 0.1 ended with.
const RUST_PANIC: i32 = 101;

/// The cause of a lost control connection, where the exit status of the far end's process tells it.
/// `words` is the last line of its stderr since the hello, or empty. The error's kind decides
/// whether the client logs in again.
pub fn why_lost(status: ExitStatus, words: &str, rsh: Rsh) -> Option<Error> {
    let lost = |message: String| Some(Error::new(Kind::Lost, Side::Here, message));
    let program = match rsh {
        Rsh::Ssh => "ssh",
        Rsh::Local => "the far end",
    };
    match (status.signal(), status.code()) {
        (Some(signal), _) => lost(format!("{program} was ended by signal {signal}")),
        (_, Some(255)) if rsh == Rsh::Ssh && !words.is_empty() => {
            let words = words.trim_end_matches(['.', ' ']);
            lost(format!("ssh: {}", words.trim_start_matches("ssh: ")))
        }
        // ssh says nothing when it is terminated here, nor when a signal ends its command there.
        (_, Some(255)) if rsh == Rsh::Ssh => lost(
            "ssh ended without a message: a signal ended it here, or ended fastcp there".to_owned(),
        ),
        (_, Some(code)) if code == Kind::Breach.exit_code() || code == RUST_PANIC => {
            let message = "fastcp stopped there with an internal error (its message is above)";
            Some(Error::new(Kind::Breach, Side::Here, message))
        }
        (_, Some(code)) if SIGNALLED.contains(&code) => {
            let signal = code - (SIGNALLED.start - 1);
            lost(format!("the far end was ended there by signal {signal}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_its_process_ended_tells_why_control_was_lost() {
        let why = |status, words| why_lost(ExitStatus::from_raw(status), words, Rsh::Ssh);
        let told = |status, words| why(status, words).map(|error| error.message);
        let code = |code: i32| code << 8;
        assert_eq!(told(9, "x").unwrap(), "ssh was ended by signal 9");
        assert_eq!(
            told(code(255), "Connection to h closed by remote host.").unwrap(),
            "ssh: Connection to h closed by remote host"
        );
        let killed = told(code(128 + 9), "").unwrap();
        assert_eq!(killed, "the far end was ended there by signal 9");
        assert!(told(code(255), "").unwrap().contains("without a message"));
        assert_eq!(told(code(5), "its own sentence came by control"), None);
        let kind = |number| why(code(number), "").unwrap().kind;
        assert_eq!(kind(255), Kind::Lost);
        for panic in [13, 101] {
            assert_eq!(kind(panic), Kind::Breach, "another login panics too");
        }
    }
}

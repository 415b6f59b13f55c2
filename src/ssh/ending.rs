//! What the end of a far end's process tells.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

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

/// A shell tells with 128 and its number that a signal ended a command; ssh has codes up to this.
const SIGNALLED: std::ops::Range<i32> = 129..193;

/// Why control was lost, where the far end's process tells, which ended by itself. `words` is the
/// last line on its stderr since the hello, empty if there was none.
pub fn why_lost(status: ExitStatus, words: &str, rsh: Rsh) -> Option<String> {
    let program = match rsh {
        Rsh::Ssh => "ssh",
        Rsh::Local => "the far end",
    };
    match (status.signal(), status.code()) {
        (Some(signal), _) => Some(format!("{program} was ended by signal {signal}")),
        (_, Some(255)) if rsh == Rsh::Ssh && !words.is_empty() => {
            let words = words.trim_end_matches(['.', ' ']);
            Some(format!("ssh: {}", words.trim_start_matches("ssh: ")))
        }
        (_, Some(255)) if rsh == Rsh::Ssh => {
            Some("the far end was ended there without a word".to_owned())
        }
        (_, Some(code)) if SIGNALLED.contains(&code) => {
            let signal = code - (SIGNALLED.start - 1);
            Some(format!("the far end was ended there by signal {signal}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_its_process_ended_tells_why_control_was_lost() {
        let told = |status, words| why_lost(ExitStatus::from_raw(status), words, Rsh::Ssh);
        let code = |code: i32| code << 8;
        assert_eq!(told(9, "x").unwrap(), "ssh was ended by signal 9");
        assert_eq!(
            told(code(255), "Connection to h closed by remote host.").unwrap(),
            "ssh: Connection to h closed by remote host"
        );
        let killed = told(code(128 + 9), "").unwrap();
        assert_eq!(killed, "the far end was ended there by signal 9");
        assert!(told(code(255), "").unwrap().contains("without a word"));
        assert_eq!(told(code(5), "its own sentence came by control"), None);
    }
}

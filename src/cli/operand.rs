//! Operands: `[user@]host:path`, `scp://[user@]host[:port]/path` or a local path, distinguished
//! by scp's rules. `-` means stdin or stdout; scp takes it for a file, which is `./-` here.
//!
//! Paths are bytes. A host and a user become arguments of ssh, so they must be UTF-8, and must
//! not look like an option or contain characters with a meaning for shells and terminals.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::error::{Error, Kind, Result};
use crate::session::{EndKind, Host, Operand};
use crate::units::printable;

const SCHEME: &[u8] = b"scp://";

/// Schemes that fastcp does not support. A host with such a name is written `scp://http//path`.
const FOREIGN: [&str; 14] = [
    "rsync", "http", "https", "ftp", "ftps", "sftp", "ssh", "s3", "gs", "smb", "nfs", "dav",
    "davs", "file",
];

/// # Errors
/// Usage, with a sentence that quotes the operand.
pub fn parse(typed: OsString) -> Result<Operand> {
    let bytes = typed.as_bytes();
    if bytes == b"-" {
        return Ok(Operand {
            typed,
            host: None,
            what: EndKind::Stdio,
            path: Vec::new(),
        });
    }
    let (host, path) = if let Some(rest) = bytes.strip_prefix(SCHEME) {
        let (host, path) = uri(rest).map_err(|why| refused(bytes, why))?;
        (Some(host), path)
    } else if let Some(scheme) = foreign(bytes) {
        return Err(refused(bytes, &foreign_scheme(scheme)));
    } else if let Some(colon) = colon(bytes) {
        if bytes[colon..].starts_with(b"::") {
            let why = "fastcp does not connect to rsync daemons: write HOST:PATH, \
                       or HOST:./:NAME for a name that begins with a colon";
            return Err(refused(bytes, why));
        }
        let host = login(&bytes[..colon]).map_err(|why| refused(bytes, why))?;
        (Some(host), bytes[colon + 1..].to_vec())
    } else {
        here(bytes)?;
        (None, bytes.to_vec())
    };
    Ok(Operand {
        typed,
        host,
        what: EndKind::Path,
        path,
    })
}

/// The operand as scp reads it: `-` is a file, and what precedes a colon is a host.
///
/// # Errors
/// As [`parse`]; `Kind::Connect` for the name of a host that ssh refuses, since scp asks ssh.
pub fn parse_as_scp(typed: OsString) -> Result<Operand> {
    let bytes = typed.as_bytes();
    let (host, path) = match (bytes.strip_prefix(SCHEME), colon(bytes)) {
        (Some(rest), _) => {
            let (host, path) = uri(rest).map_err(|why| refused(bytes, why))?;
            (Some(host), path)
        }
        (None, Some(colon)) => {
            let (user, name) = user_and_host(&bytes[..colon]);
            let is_of_host =
                user.is_none_or(|user| user_name(user).is_ok()) && host_name(name).is_err();
            let host = login(&bytes[..colon]).map_err(|why| Error {
                kind: if is_of_host {
                    Kind::Connect
                } else {
                    Kind::Usage
                },
                ..refused(bytes, why)
            })?;
            (Some(host), bytes[colon + 1..].to_vec())
        }
        (None, None) => (None, bytes.to_vec()),
    };
    // scp copies the contents of a home directory: to scp, a home directory has no name.
    let is_home = host.is_some() && path.starts_with(b"~");
    let is_home = is_home && path[1..].iter().all(|byte| *byte == b'/');
    let operand = Operand {
        typed,
        host,
        what: EndKind::Path,
        path: if is_home { Vec::new() } else { path },
    };
    Ok(operand)
}

fn refused(operand: &[u8], why: &str) -> Error {
    Error::usage(format!("{}: {why}", printable(operand)))
}

/// The scheme of a URL that fastcp does not support.
fn foreign(bytes: &[u8]) -> Option<&'static str> {
    let is_scheme = |scheme: &&str| {
        let rest = bytes.get(scheme.len()..).unwrap_or_default();
        rest.starts_with(b"://") && bytes[..scheme.len()].eq_ignore_ascii_case(scheme.as_bytes())
    };
    FOREIGN.into_iter().find(is_scheme)
}

fn foreign_scheme(scheme: &str) -> String {
    match scheme {
        "sftp" | "ssh" => "write HOST:PATH or scp://[USER@]HOST[:PORT]/PATH".to_owned(),
        "file" => "write the path alone".to_owned(),
        _ => format!("fastcp does not speak {scheme}: write HOST:PATH for a host with ssh"),
    }
}

/// Recognizes other names of the standard streams in a local destination, as if it were `-`.
pub fn as_destination(operand: Operand) -> Operand {
    let what = match operand.what {
        EndKind::Path if operand.host.is_none() => match &operand.path[..] {
            b"/dev/stdout" | b"/dev/fd/1" | b"/proc/self/fd/1" => EndKind::Stdio,
            b"/dev/stderr" | b"/dev/fd/2" | b"/proc/self/fd/2" => EndKind::Stderr,
            _ => EndKind::Path,
        },
        what => what,
    };
    Operand { what, ..operand }
}

fn here(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        let message = "an operand is empty (a variable that is not set?)";
        return Err(Error::usage(message));
    }
    Ok(())
}

/// Position of the colon that ends a host. By scp's rule it is not the first byte, not after a
/// slash and not inside brackets.
fn colon(bytes: &[u8]) -> Option<usize> {
    let mut bracketed = false;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'[' if at == 0 || bytes[at - 1] == b'@' => bracketed = true,
            b']' if bracketed && bytes.get(at + 1) == Some(&b':') => return Some(at + 1),
            b':' if at == 0 => return None,
            b':' if !bracketed => return Some(at),
            b'/' => return None,
            _ => {}
        }
    }
    None
}

/// Parses `[user@]host`. A user may contain `@`, a host may not.
fn login(bytes: &[u8]) -> Result<Host, &'static str> {
    let (user, name) = user_and_host(bytes);
    Ok(Host {
        user: user.map(user_name).transpose()?,
        name: host_name(name)?,
        port: None,
    })
}

fn user_and_host(bytes: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match bytes.iter().rposition(|&byte| byte == b'@') {
        Some(at) => (Some(&bytes[..at]), &bytes[at + 1..]),
        None => (None, bytes),
    }
}

/// Parses the rest of `scp://`. As in scp, user and path may be percent-encoded, and `+` is a
/// space. The path after the slash is relative to the home directory, so an absolute one begins
/// with `//`.
fn uri(rest: &[u8]) -> Result<(Host, Vec<u8>), &'static str> {
    let (place, path) = match rest.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&rest[..slash], &rest[slash + 1..]),
        None => (rest, &b""[..]),
    };
    let (user, place) = match place.iter().position(|&byte| byte == b'@') {
        Some(at) => (Some(&place[..at]), &place[at + 1..]),
        None => (None, place),
    };
    // Connection parameters may follow the user; scp ignores them too.
    let user = user.map(|user| user.split(|&byte| byte == b';').next().unwrap_or(user));
    let after_brackets = if place.starts_with(b"[") {
        place
            .iter()
            .position(|&byte| byte == b']')
            .ok_or("no closing bracket")?
    } else {
        0
    };
    let port = place[after_brackets..]
        .iter()
        .position(|&byte| byte == b':')
        .map(|colon| after_brackets + colon);
    let name = &place[..port.unwrap_or(place.len())];
    let host = Host {
        user: user.map(|user| user_name(&decoded(user)?)).transpose()?,
        name: host_name(name)?,
        port: port
            .map(|colon| port_number(&place[colon + 1..]))
            .transpose()?,
    };
    Ok((host, decoded(path)?))
}

fn decoded(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    const FAULT: &str = "a % must be followed by two hexadecimal digits, and not by 00";
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(&byte) = rest.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<&u8>| byte.and_then(|&b| char::from(b).to_digit(16));
                match (digit(rest.next()), digit(rest.next())) {
                    (Some(high), Some(low)) if high + low > 0 => (high * 16 + low) as u8,
                    _ => return Err(FAULT),
                }
            }
            byte => byte,
        });
    }
    Ok(out)
}

fn port_number(digits: &[u8]) -> Result<u16, &'static str> {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .filter(|&port| port > 0)
        .ok_or("a port is a number from 1 to 65535")
}

/// Characters that ssh refuses in a user's name, because it passes names to shells (ProxyCommand,
/// Match exec).
const UNSAFE_IN_USER: &str = "'`\";&<>|(){}";
/// Characters that ssh refuses in a host's name.
const UNSAFE_IN_HOST: &str = "'`\"$\\;&<>|(){}[]";

fn user_name(bytes: &[u8]) -> Result<String, &'static str> {
    let is_unsafe = |c: char| c.is_control() || UNSAFE_IN_USER.contains(c);
    match std::str::from_utf8(bytes) {
        Ok("") => Err("the user's name is empty"),
        // ssh would parse it as an option.
        Ok(name) if name.starts_with('-') => Err("a user's name cannot begin with -"),
        Ok(name) if name.contains(is_unsafe) => {
            Err("the user's name has a character that ssh does not allow")
        }
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err("the user's name is not UTF-8"),
    }
}

fn host_name(bytes: &[u8]) -> Result<String, &'static str> {
    let bare = bytes
        .strip_prefix(b"[")
        .and_then(|rest| rest.strip_suffix(b"]"))
        .unwrap_or(bytes);
    let is_unsafe = |c: char| c.is_control() || c.is_whitespace() || UNSAFE_IN_HOST.contains(c);
    match std::str::from_utf8(bare) {
        Ok("") => Err("the host's name is empty"),
        Ok(name) if name.starts_with('-') => Err("a host's name cannot begin with -"),
        Ok(name) if name.contains(is_unsafe) => Err(
            "the host's name has a character that ssh does not allow (write ./ before a local \
                 name with a colon)",
        ),
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err("the host's name is not UTF-8 (write ./ before a local name with a colon)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn parsed(typed: &[u8]) -> Result<Operand> {
        parse(OsString::from_vec(typed.to_vec()))
    }

    /// `user|host|port|path`, or `|path` for a local path.
    fn shown(typed: &str) -> String {
        let operand = parsed(typed.as_bytes()).unwrap();
        let path = String::from_utf8(operand.path).unwrap();
        if operand.what == EndKind::Stdio {
            return "stdio".to_owned();
        }
        match operand.host {
            None => format!("|{path}"),
            Some(Host { user, name, port }) => format!(
                "{}|{name}|{}|{path}",
                user.unwrap_or_default(),
                port.map(|port| port.to_string()).unwrap_or_default()
            ),
        }
    }

    #[test]
    fn operands_mean_what_they_mean_to_scp() {
        for (typed, meant) in [
            ("a", "|a"),
            ("./a:b", "|./a:b"),
            ("/x:y", "|/x:y"),
            ("d/a:b", "|d/a:b"),
            (":b", "|:b"),
            ("-", "stdio"),
            ("./-", "|./-"),
            ("h:-", "|h||-"),
            ("u@h", "|u@h"),
            ("h:", "|h||"),
            ("h:p", "|h||p"),
            ("h:/a b:c", "|h||/a b:c"),
            ("h:~/p", "|h||~/p"),
            ("u@h:p", "u|h||p"),
            ("u@corp@h:p", "u@corp|h||p"),
            ("[::1]:p", "|::1||p"),
            ("u@[fe80::1%eth0]:/p", "u|fe80::1%eth0||/p"),
            ("[h]:p", "|h||p"),
            ("[::1]", "|[::1]"),
            ("AD\\u@h:p", "AD\\u|h||p"),
            ("scp://h", "|h||"),
            ("scp://h/", "|h||"),
            ("scp://h/p", "|h||p"),
            ("scp://h//p", "|h||/p"),
            ("scp://u@h:22/p", "u|h|22|p"),
            ("scp://u;x=y@h/p", "u|h||p"),
            ("scp://[::1]:22/p", "|::1|22|p"),
            ("scp://u%40c@h/a%20b+c%2fd", "u@c|h||a b c/d"),
            ("scp://h/a@b:c", "|h||a@b:c"),
        ] {
            assert_eq!(shown(typed), meant, "{typed}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_kept_in_paths_and_refused_in_hosts() {
        assert_eq!(parsed(b"h:\xff\n").unwrap().path, b"\xff\n");
        assert_eq!(parsed(b"\xff").unwrap().path, b"\xff");
        assert!(parsed(b"\xff:p").is_err());
        assert_eq!(parsed(b"scp://h/%ff").unwrap().path, b"\xff");
    }

    #[test]
    fn what_fastcp_does_not_speak_is_refused_by_name() {
        for (typed, told) in [
            ("rsync://h1/x", "does not speak rsync"),
            ("HTTP://h1/x", "does not speak http"),
            ("sftp://h1/x", "write HOST:PATH or scp://"),
            ("file:///x", "write the path alone"),
            ("h1::module/", "rsync daemons"),
        ] {
            let error = parsed(typed.as_bytes()).expect_err(typed);
            assert!(error.message.starts_with(typed), "{}", error.message);
            assert!(error.message.contains(told), "{}", error.message);
        }
        assert_eq!(shown("scp://http//x"), "|http||/x");
        assert_eq!(shown("h:./::x"), "|h||./::x");
        assert_eq!(shown("./rsync://x"), "|./rsync://x");
    }

    #[test]
    fn standard_streams_have_other_names_too() {
        for (typed, what) in [
            ("/dev/stdout", EndKind::Stdio),
            ("/proc/self/fd/1", EndKind::Stdio),
            ("/dev/stderr", EndKind::Stderr),
            ("/dev/fd/3", EndKind::Path),
            ("h:/dev/stdout", EndKind::Path),
            ("-", EndKind::Stdio),
        ] {
            assert_eq!(as_destination(parsed(typed.as_bytes()).unwrap()).what, what);
        }
    }

    #[test]
    fn scp_knows_no_streams_and_no_other_schemes() {
        for (typed, host, path) in [
            ("-", None, "-"),
            ("", None, ""),
            ("rsync://h/x", Some("rsync"), "//h/x"),
            ("h::x", Some("h"), ":x"),
            ("scp://h//x", Some("h"), "/x"),
            ("h:~", Some("h"), ""),
            ("h:~//", Some("h"), ""),
            ("h:~/x", Some("h"), "~/x"),
            ("~", None, "~"),
        ] {
            let operand = parse_as_scp(typed.into()).expect(typed);
            assert_eq!(operand.what, EndKind::Path, "{typed}");
            assert_eq!(operand.path, path.as_bytes(), "{typed}");
            assert_eq!(operand.host.map(|host| host.name).as_deref(), host);
        }
    }

    #[test]
    fn operands_that_cannot_be_meant_are_refused() {
        for typed in [
            "",
            "-oProxyCommand=x:p",
            "u@-oProxyCommand=x:p",
            "-u@h:p",
            "@h:p",
            "u@:p",
            "[]:p",
            "a b:p",
            "a;b:p",
            "$(x):p",
            "x[1]:p",
            "scp://",
            "scp:///p",
            "scp://@h/p",
            "scp://h:0/p",
            "scp://h:65536/p",
            "scp://h:/p",
            "scp://h:x/p",
            "scp://[::1/p",
            "scp://-h/p",
            "scp://h/%",
            "scp://h/%4",
            "scp://h/%00",
            "scp://h/%+1",
        ] {
            let error = parsed(typed.as_bytes()).expect_err(typed);
            assert_eq!(error.kind.exit_code(), 2);
        }
    }
}

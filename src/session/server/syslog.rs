//! The system log of this host: datagrams to `/dev/log` in the form of RFC 3164, which journald and
//! the syslog daemons read. Any user may send them.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::calendar::civil;
use crate::session::host;

/// The socket of the daemon.
pub(super) const SOCKET: &str = "/dev/log";

/// The limit of RFC 3164 in bytes. Daemons may cut off the rest.
const MESSAGE_MAX: usize = 1024;

/// The facility `auth`, as of sshd and sftp-server: the line about a copy stands in the file that
/// has the line about its login. `daemon` would be for a program that waits for clients.
const AUTH: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Warning = 4,
    Info = 6,
}

/// The message with this text, one printable line, written now.
pub(super) fn message(severity: Severity, text: &str) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs() as i64);
    message_at(now + host::zone_here(now), severity, text)
}

/// `local` is the time in seconds, in the zone of this host.
fn message_at(local: i64, severity: Severity, text: &str) -> Vec<u8> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (days, second) = (local.div_euclid(24 * 3600), local.rem_euclid(24 * 3600));
    let (_, month, day) = civil(days);
    let mut message = format!(
        "<{}>{} {day:2} {:02}:{:02}:{:02} fastcp[{}]: {text}",
        AUTH << 3 | severity as u8,
        MONTHS[month as usize - 1],
        second / 3600,
        second / 60 % 60,
        second % 60,
        std::process::id(),
    );
    let mut end = message.len().min(MESSAGE_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message.into_bytes()
}

/// Sends a message to `socket`. Never waits.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if the daemon has too many unread messages; others if none reads
/// there.
pub(super) fn try_send(socket: &Path, message: &[u8]) -> io::Result<()> {
    let sending = UnixDatagram::unbound()?;
    sending.set_nonblocking(true)?;
    sending.connect(socket)?;
    sending.send(message).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_form_of_rfc_3164_and_a_limit() {
        // 2026-01-02 03:04:05
        let time = 1_767_323_045;
        let message = message_at(time, Severity::Info, "role=send");
        let pid = std::process::id();
        let expected = format!("<38>Jan  2 03:04:05 fastcp[{pid}]: role=send");
        assert_eq!(String::from_utf8(message).unwrap(), expected);
        let long = message_at(time, Severity::Warning, &"\u{e4}".repeat(2000));
        assert!(long.starts_with(b"<36>Jan  2 ") && long.len() <= MESSAGE_MAX);
        assert!(String::from_utf8(long).is_ok());
    }
}

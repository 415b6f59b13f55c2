//! Home directories: that of this user and those of `~user`.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::{Uid, User};

/// A user is unknown if a user database on the network does not answer within this time.
const GETENT_MAX: Duration = Duration::from_secs(5);

/// The longest line that is read from a user database, in bytes.
const LINE_MAX: u64 = 64 << 10;

/// This user's home: `HOME`, or the entry in the user database.
pub fn own() -> Option<PathBuf> {
    match std::env::var_os("HOME") {
        Some(home) if !home.is_empty() => Some(home.into()),
        _ => {
            let uid = Uid::current();
            let known = User::from_uid(uid).ok().flatten().map(|user| user.dir);
            known.or_else(|| getent(&uid.to_string()))
        }
    }
}

/// The home directory of `user`.
pub fn of(user: &[u8]) -> Option<PathBuf> {
    let user = std::str::from_utf8(user).ok()?;
    // The name becomes an argument of `getent`.
    if user.is_empty() || user.starts_with('-') || user.contains('\0') {
        return None;
    }
    let known = User::from_name(user).ok().flatten().map(|user| user.dir);
    known.or_else(|| getent(user))
}

/// A statically linked program sees only /etc/passwd; `getent` also asks directories on a network.
fn getent(key: &str) -> Option<PathBuf> {
    let mut child = Command::new("getent")
        .args(["passwd", key])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let started = Instant::now();
    // A line fits into the pipe, so getent can exit before anything is read.
    let success = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if started.elapsed() < GETENT_MAX => {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => {
                // If it cannot be killed, nothing more can be done.
                let _ = child.kill();
                let _ = child.wait();
                break false;
            }
        }
    };
    let mut line = Vec::new();
    let stdout = child.stdout.take()?;
    stdout.take(LINE_MAX).read_to_end(&mut line).ok()?;
    success.then(|| home_in(&line)).flatten()
}

/// The sixth field of `name:password:uid:gid:comment:home:shell`.
fn home_in(line: &[u8]) -> Option<PathBuf> {
    let home = line.split(|&byte| byte == b':').nth(5)?;
    home.starts_with(b"/")
        .then(|| OsStr::from_bytes(home).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_home_by_both_ways() {
        assert_eq!(of(b"root"), Some("/root".into()));
        assert_eq!(
            home_in(b"root:x:0:0:root:/root:/bin/bash\n"),
            Some("/root".into())
        );
        assert_eq!(of(b"no-such-user-here"), None);
        assert_eq!(of(b"--help"), None);
    }
}

//! A login that copies nothing: it lists the fastcp programs on a host (`--version HOST:`), or removes
//! those that a client has installed there (`--remove`).

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::error::{Error, Kind, Result, Side};
use crate::session::host;
use crate::session::runtime::runtime;
use crate::ssh::{self, Errand, Host, LastOutput, Rsh, SshOptions, Startup};
use crate::units::printable;
use crate::wire::greeting::MARK;
use crate::wire::hello::{MAGIC, NOISE_MAX};

/// How long ssh may take to exit after the answer.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The same, if there was no answer.
const ABORT_PATIENCE: Duration = Duration::from_millis(500);

/// The host, and how to reach it.
#[derive(Clone, Debug)]
pub struct RemoteAdmin {
    pub host: Host,
    pub ssh: SshOptions,
    /// `--sudo`
    pub sudo: Option<String>,
    /// `--timeout`: the limit, not counting the time in which ssh prompts.
    pub timeout: Duration,
}

impl RemoteAdmin {
    /// The programs on the host, one line each.
    ///
    /// # Errors
    /// `Kind::Connect` if the login fails, `Kind::FarEnd` if nothing can be run there.
    pub fn tell(&self) -> Result<Vec<String>> {
        runtime()?.block_on(self.run(Errand::Tell))
    }

    /// Removes the programs placed for this user; returns their paths.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn remove(&self) -> Result<Vec<String>> {
        runtime()?.block_on(self.run(Errand::Remove))
    }

    async fn run(&self, errand: Errand<'_>) -> Result<Vec<String>> {
        let startup = Startup {
            sudo: self.sudo.clone(),
            ..Startup::default()
        };
        let far_end = ssh::start(Rsh::Ssh, &self.host, &self.ssh, &startup, errand)?;
        let (mut process, stdin, stdout, stderr) = far_end.split();
        drop(stdin);
        let stderr_lines = Arc::new(Mutex::new(String::new()));
        let keep = stderr_lines.clone();
        let show = move |line: &str| {
            // Ignores a stderr that nobody reads any more.
            let _ = writeln!(std::io::stderr(), "{line}");
            let mut lines = keep.lock();
            if lines.len() + line.len() >= NOISE_MAX {
                lines.clear();
            }
            lines.push_str(line);
            lines.push('\n');
        };
        let relay = tokio::spawn(ssh::relay_stderr(stderr, show, ssh::no_hold));
        let mut said = Vec::new();
        let mut stdout = stdout.take(NOISE_MAX as u64);
        let may_ask = !self.ssh.batch && host::has_terminal();
        let prompts = process.id().filter(|_| may_ask);
        let asks = || prompts.is_some_and(ssh::asks_on_terminal);
        let read = ssh::within(self.timeout, asks, stdout.read_to_end(&mut said)).await;
        let patience = if read.is_some() {
            END_PATIENCE
        } else {
            ABORT_PATIENCE
        };
        let status = process.end(patience).await;
        let _ = timeout(patience, relay).await;
        let mut lines = marked(&said);
        let is_whole = matches!(read, Some(Ok(_))) && lines.pop().as_deref() == Some("end");
        if is_whole {
            return Ok(lines);
        }
        let name = printable(self.host.name.as_bytes());
        // A forced command of the key (as with --confine) runs instead of the requested one.
        if said.windows(MAGIC.len()).any(|window| window == MAGIC) {
            let message = format!(
                "{name}: this key's forced command only starts copies, so programs cannot be \
                 listed or removed with it"
            );
            return Err(Error::new(Kind::FarEnd, Side::Here, message));
        }
        if read.is_none() {
            return Err(ssh::no_answer(&self.host, self.timeout, Rsh::Ssh));
        }
        let login = ssh::login_name(&self.host, &self.ssh, &startup).await;
        Err(ssh::why_no_hello(
            &self.host,
            &login,
            status,
            Rsh::Ssh,
            &startup,
            &LastOutput {
                stdout: &said,
                stderr: stderr_lines.lock().clone(),
                is_shown: true,
            },
        ))
    }
}

/// The printable text after the mark, of each line that has the mark.
fn marked(said: &[u8]) -> Vec<String> {
    let mark = [MARK.as_bytes(), b" "].concat();
    said.split(|&byte| byte == b'\n')
        .filter_map(|line| {
            let at = line.windows(mark.len()).position(|window| window == mark)?;
            Some(printable(&line[at + mark.len()..]))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_of_a_login_is_no_answer() {
        let said = b"Welcome!=fastcp= /usr/bin/fastcp: fastcp 1\x1b[2J\nnoise\n=fastcp= end\n";
        assert_eq!(marked(said), ["/usr/bin/fastcp: fastcp 1\\x1b[2J", "end"]);
    }
}

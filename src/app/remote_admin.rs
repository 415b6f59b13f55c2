//! A login that copies nothing: it lists the fastcp programs on a host (`--version HOST:`), removes
//! those that a client has installed there (`--remove`), or lists a directory, to complete its names.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

/// Most bytes of the names in a directory.
const NAMES_MAX: usize = 4 << 20;

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
        runtime()?.block_on(self.answer(Errand::Tell))
    }

    /// Removes the programs placed for this user; returns their paths.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn remove(&self) -> Result<Vec<String>> {
        runtime()?.block_on(self.answer(Errand::Remove))
    }

    /// The names in a directory, with a slash after those of directories; none if it cannot be
    /// listed. `dir` is relative to the home directory and holds no newline.
    ///
    /// # Errors
    /// As [`tell`](Self::tell); `Kind::FarEnd` for more than 4 MiB of names.
    pub fn list(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let line = [dir, b"\n"].concat();
        let said = runtime()?.block_on(self.run(Errand::List, &line, NAMES_MAX))?;
        Ok(between_marks(&said))
    }

    async fn answer(&self, errand: Errand<'_>) -> Result<Vec<String>> {
        let mut lines = marked(&self.run(errand, b"", NOISE_MAX).await?);
        lines.pop();
        Ok(lines)
    }

    /// All that the other end has said, at most `said_max` bytes, the last of which is the mark of
    /// the end. It gets `input`, a line, on stdin.
    async fn run(&self, errand: Errand<'_>, input: &[u8], said_max: usize) -> Result<Vec<u8>> {
        let startup = Startup {
            sudo: self.sudo.clone(),
            ..Startup::default()
        };
        let far_end = ssh::start(Rsh::Ssh, &self.host, &self.ssh, &startup, errand)?;
        let (mut process, mut stdin, stdout, stderr) = far_end.split();
        // The input fits a pipe's buffer. The answer shows whether the other end has read it.
        let _ = stdin.write_all(input).await;
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
        let mut stdout = stdout.take(said_max as u64);
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
        let is_whole = matches!(read, Some(Ok(_)));
        if is_whole && marked(&said).last().is_some_and(|line| line == "end") {
            return Ok(said);
        }
        let name = printable(self.host.name.as_bytes());
        // A forced command of the key (as with --confine) runs instead of the requested one.
        if said.windows(MAGIC.len()).any(|window| window == MAGIC) {
            let message = format!(
                "{name}: this key's forced command only starts copies, so it cannot list or remove \
                 programs: log in with another key (-i FILE)"
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

/// The lines between `begin` and `end`. What a login prints by itself comes before them.
fn between_marks(said: &[u8]) -> Vec<Vec<u8>> {
    let is = |line: &[u8], word: &str| line.ends_with(format!("{MARK} {word}").as_bytes());
    let lines = said.split(|&byte| byte == b'\n');
    let lines = lines.skip_while(|line| !is(line, "begin")).skip(1);
    let lines = lines.take_while(|line| !is(line, "end"));
    lines.map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_of_a_login_is_no_answer() {
        let said = b"Welcome!=fastcp= /usr/bin/fastcp: fastcp 1\x1b[2J\nnoise\n=fastcp= end\n";
        assert_eq!(marked(said), ["/usr/bin/fastcp: fastcp 1\\x1b[2J", "end"]);
        let said = b"Welcome!=fastcp= begin\na b\nsub/\n=fastcp= end\nnoise\n";
        assert_eq!(between_marks(said), [&b"a b"[..], b"sub/"]);
    }
}

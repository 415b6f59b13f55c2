//! Data connections through further ssh logins, for networks where only ssh's port is open. Each
//! login has its own TCP connection and window, so that several logins are faster than one.
//!
//! A further login never prompts. The first one runs alone. If the host refuses it (it would need a
//! password, or a confirmation of a key), by address and by name, the client tries no others. If a
//! login is refused before it could authenticate (sshd's `MaxStartups`), the dialler retries it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Connection;
use super::meeting_socket::joining;
use crate::control::{ControlError, FirstMessage, Incoming};
use crate::program;
use crate::ssh::{self, Errand, Host, Rsh, SshOptions, Startup, is_refusal};
use crate::transport::connection::duplex::{Duplex, Piped};
use crate::transport::connection::handshake::{ConnectionId, Keyring};
use crate::wire::hello::Hello;

/// Logins in progress at once. sshd allows ten (`MaxStartups`); the rest are for others.
const LOGINS_AT_ONCE: usize = 6;

/// How long a login may take: ssh's own limit and the start of the far end.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long ssh may take to exit after it has closed its stdout.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// The same command as for the first login; the first bytes tell the far end that this is a data
/// connection.
const SERVER: Errand = Errand::Become("--server");

/// Why a login made no connection.
#[derive(Debug)]
pub enum Failed {
    /// A retry may succeed.
    Once(String),
    /// A retry cannot succeed.
    ForGood(String),
}

/// Further logins on the host of a session.
pub struct FurtherLogins {
    rsh: Rsh,
    host: Host,
    /// As the user gave them.
    options: SshOptions,
    startup: Startup,
    /// The boot id of the session's host, from its hello.
    boot_id: String,
    /// The address at which the session's login reached the host.
    reached: String,
    turns: Semaphore,
    /// Options that worked for the first further login; all later ones use them. None until one
    /// has succeeded.
    proven: Mutex<Option<SshOptions>>,
    refused: OnceLock<String>,
}

impl FurtherLogins {
    pub fn new(
        rsh: Rsh,
        host: &Host,
        options: &SshOptions,
        mut startup: Startup,
        hello: &Hello,
    ) -> FurtherLogins {
        // The program placed there may be one for another kind of machine.
        if program::is_digest(&hello.program) {
            hello.program.clone_into(&mut startup.digest);
        }
        let options = SshOptions {
            forward_agent: false,
            verbose: 0,
            ..options.clone()
        };
        FurtherLogins {
            rsh,
            host: host.clone(),
            options,
            startup,
            boot_id: hello.boot_id.clone(),
            reached: hello.reached.clone(),
            turns: Semaphore::new(LOGINS_AT_ONCE),
            proven: Mutex::new(None),
            refused: OnceLock::new(),
        }
    }

    /// Logs in for one connection.
    pub async fn dial(
        &self,
        keyring: &Arc<Keyring>,
        id: ConnectionId,
    ) -> Result<Connection, Failed> {
        let mut proven = self.proven.lock().await;
        if let Some(options) = proven.clone() {
            drop(proven);
            let _turn = self.turns.acquire().await;
            return self.log_in(&options, keyring, id).await;
        }
        if let Some(why) = self.refused.get() {
            return Err(Failed::ForGood(why.clone()));
        }
        // The other streams wait for the result of this login.
        let (first, options) = self.first(keyring, id).await;
        match &first {
            Ok(_) => *proven = Some(options),
            Err(Failed::ForGood(why)) => {
                // No other dial is here.
                let _ = self.refused.set(why.clone());
            }
            Err(Failed::Once(_)) => {}
        }
        first
    }

    /// If the name stands for several hosts, ssh gets the address of the right one. If that login
    /// is refused (as it may be with Kerberos), a login by name follows, which may reach the same
    /// host.
    async fn first(
        &self,
        keyring: &Arc<Keyring>,
        id: ConnectionId,
    ) -> (Result<Connection, Failed>, SshOptions) {
        let mut options = self.options.clone();
        if self.rsh == Rsh::Ssh {
            options = ssh::unattended(&self.host, &options, true).await;
            if let Some(pinned) = ssh::pinned(&self.host, &options, &self.reached).await {
                let first = self.log_in(&pinned, keyring, id).await;
                if !matches!(first, Err(Failed::ForGood(_))) {
                    return (first, pinned);
                }
            }
        }
        (self.log_in(&options, keyring, id).await, options)
    }

    async fn log_in(
        &self,
        options: &SshOptions,
        keyring: &Arc<Keyring>,
        id: ConnectionId,
    ) -> Result<Connection, Failed> {
        let far_end = ssh::start(self.rsh, &self.host, options, &self.startup, SERVER)
            .map_err(|error| Failed::ForGood(error.message))?;
        let (mut process, mut stdin, stdout, stderr) = far_end.split();
        let mut words = LoginStderr::hear(stderr);
        let mut incoming = Incoming::new(stdout);
        let hello = match incoming.first(LOGIN_TIMEOUT).await {
            Ok(FirstMessage::Hello(hello)) => hello,
            // The first login found a program there, or placed one.
            Ok(FirstMessage::Greeting(_)) => {
                let why = "a further login found no fastcp there";
                return Err(Failed::ForGood(why.to_owned()));
            }
            Err(ControlError::Closed | ControlError::Io(_)) => {
                process.end(END_PATIENCE).await;
                return Err(classified(words.last().await));
            }
            // A busy host may be faster the next time.
            Err(other @ ControlError::Silent(_)) => return Err(Failed::Once(other.to_string())),
            Err(other) => return Err(Failed::ForGood(other.to_string())),
        };
        if hello.boot_id != self.boot_id {
            // The next login may reach the right host, if the name stands for several.
            return Err(Failed::Once(
                "a further login reached another host of that name".to_owned(),
            ));
        }
        let Some(stdout) = incoming.into_reader() else {
            return Err(Failed::ForGood(
                "fastcp there sent an invalid message: data after its hello".to_owned(),
            ));
        };
        let opened = async {
            stdin.write_all(&joining(&keyring.session)).await?;
            let mut link = Duplex::Piped(Piped::new(stdout, stdin, process));
            let expected = keyring.open(&mut link, id).await?;
            expected.answer(&mut link).await?;
            Ok::<_, std::io::Error>(link)
        };
        match opened.await {
            Ok(link) => Ok(Connection {
                id,
                link,
                expected: None,
                fate: None,
            }),
            Err(error) => {
                let last = words.last().await;
                let why = if last.is_empty() {
                    error.to_string()
                } else {
                    last
                };
                Err(Failed::Once(why))
            }
        }
    }
}

/// Classifies a failure by ssh's last words.
fn classified(words: String) -> Failed {
    if is_refusal(&words) {
        Failed::ForGood(words)
    } else if words.is_empty() {
        Failed::Once("a further login ended without a message".to_owned())
    } else {
        Failed::Once(words)
    }
}

/// The last line on a login's stderr.
struct LoginStderr {
    last: Arc<parking_lot::Mutex<String>>,
    relay: JoinHandle<()>,
}

impl LoginStderr {
    fn hear(stderr: ssh::Stderr) -> LoginStderr {
        let last = Arc::new(parking_lot::Mutex::new(String::new()));
        let keep = last.clone();
        let show = move |line: &str| {
            let mut last = keep.lock();
            // ssh's reason for a refusal is not always its last line.
            if !is_refusal(&last) {
                line.clone_into(&mut last);
            }
        };
        let relay = tokio::spawn(ssh::relay_stderr(stderr, show, ssh::no_hold));
        LoginStderr { last, relay }
    }

    /// Waits until the process's remaining output is read; another process may hold its stderr
    /// open.
    async fn last(&mut self) -> String {
        let _ = timeout(END_PATIENCE, &mut self.relay).await;
        self.last.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_key_is_for_good_and_a_busy_sshd_is_not() {
        for words in [
            "me@host: Permission denied (publickey,password).",
            "Host key verification failed.",
        ] {
            assert!(matches!(classified(words.to_owned()), Failed::ForGood(_)));
        }
        for words in [
            "kex_exchange_identification: Connection closed by remote host",
            "ssh: connect to host h port 22: Connection timed out",
            "",
        ] {
            assert!(matches!(classified(words.to_owned()), Failed::Once(_)));
        }
    }
}

//! The far end as the client has it: started, logged in to, and ended.

use std::time::Duration;

use tokio::process::ChildStdout;
use tokio::time::timeout;

use crate::control::{ControlError, HELLO_TIMEOUT, Incoming, Outgoing, say_hello};
use crate::error::{Error, Kind, Result, Side};
use crate::session::request::Request;
use crate::session::{Half, Seat, host as this_host};
use crate::ssh::{self, Host, Process, Rsh};
use crate::units::printable;
use crate::wire::hello::Hello;
use crate::wire::message::{Fault, Message};

/// How long the far end may take to end by itself after a copy, and after a failed one.
const END_PATIENCE: Duration = Duration::from_secs(10);
const ABORT_PATIENCE: Duration = Duration::from_millis(500);

/// How long a login may take where a person may be typing a password: sshd's own limit is 120 s
/// (`LoginGraceTime`), and a jump host may ask too. And where there is no terminal to ask on.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(300);
const UNATTENDED_LOGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How much later than ssh we may hear of a signal that was for both.
const SAME_SIGNAL: Duration = Duration::from_millis(100);

/// A far end that has said hello.
pub struct Server {
    pub host: Host,
    pub hello: Hello,
    process: Process,
    pub incoming: Incoming<ChildStdout>,
    pub control: Outgoing,
}

impl Server {
    /// Starts the far end and waits for its hello, however long the user takes to log in.
    pub async fn connect(host: &Host, request: &Request, seat: &Seat) -> Result<Server> {
        let far_end = ssh::start(
            request.rsh,
            host,
            &request.ssh,
            request.remote_path.as_deref(),
        )?;
        let (mut process, mut stdin, stdout, stderr) = far_end.split();
        let reporter = seat.reporter.clone();
        let words = tokio::spawn(ssh::relay_stderr(stderr, move |line| reporter.notice(line)));
        let mut incoming = Incoming::new(stdout);
        let patience = match request.rsh {
            Rsh::Ssh if request.ssh.batch || !this_host::has_terminal() => UNATTENDED_LOGIN_TIMEOUT,
            Rsh::Ssh => LOGIN_TIMEOUT,
            Rsh::Local => HELLO_TIMEOUT,
        };
        let hello = match incoming.hello(patience).await {
            Ok(hello) => hello,
            Err(ControlError::Closed | ControlError::Io(_)) => {
                let status = process.end(ABORT_PATIENCE).await;
                // A signal that ended ssh (Ctrl-C at its prompt) is on its way to us too.
                let _ = timeout(SAME_SIGNAL, seat.ending.wait()).await;
                // What ssh says of it comes first.
                let _ = timeout(ABORT_PATIENCE, words).await;
                return Err(ssh::why_no_hello(host, status, request.rsh));
            }
            Err(other) => {
                let message = format!("{}: {other}", printable(host.name.as_bytes()));
                return Err(Error::new(Kind::FarEnd, Side::Here, message));
            }
        };
        let said = say_hello(&mut stdin, &this_host::hello()).await;
        said.map_err(|e| Error::new(Kind::Lost, Side::Here, format!("lost the far end: {e}")))?;
        let (control, _writer) = Outgoing::start(stdin);
        let host = host.clone();
        Ok(Server {
            host,
            hello,
            process,
            incoming,
            control,
        })
    }

    /// Ends both ends. After a failure the server is told why, and not waited for long.
    pub async fn end(mut self, half: Option<Half>, error: Option<&Error>) {
        if let Some(error) = error {
            // Where control is lost the server ends by itself.
            let _ = timeout(
                ABORT_PATIENCE,
                self.control.send(Message::Abort(Fault::of(error, 0, 0))),
            )
            .await;
        }
        if let Some(half) = half {
            half.stop().await;
        }
        // The last handle closes the server's stdin, at which it ends.
        drop(self.control);
        let patience = if error.is_some() {
            ABORT_PATIENCE
        } else {
            END_PATIENCE
        };
        self.process.end(patience).await;
    }
}

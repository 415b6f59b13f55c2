//! Logins to several hosts: one after the other if ssh may ask the user, otherwise in parallel. A
//! copy that has logged in waits a while for the others, so that the source is read once for all.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::error::Result;
use crate::session::login::{Attempt, LoggedIn};
use crate::session::request::{Host, Request, Rsh};
use crate::session::{ClientContext, cause_of, host as this_host};

/// Logins at the same time. Each ssh computes here, and all may use the same jump host, where
/// `MaxStartups` begins to refuse at 10.
const AT_ONCE: usize = 8;

/// How long the first copy waits for the last to log in. Its server waits 30 s for the first
/// messages.
const TOGETHER_MAX: Duration = Duration::from_secs(20);

pub struct HostLogins {
    turns: Semaphore,
    /// The copies that are done with their first login, one bit each.
    over: watch::Sender<u64>,
    all: u64,
}

impl HostLogins {
    pub fn new(hosts: usize, request: &Request) -> HostLogins {
        let may_ask = request.rsh == Rsh::Ssh && !request.ssh.batch && this_host::has_terminal();
        HostLogins {
            turns: Semaphore::new(if may_ask { 1 } else { AT_ONCE }),
            over: watch::Sender::new(0),
            all: u64::MAX >> (u64::BITS as usize - hosts.clamp(1, 64)),
        }
    }

    /// Waits for a turn to log in, which ends when the result is dropped. Later logins ask nobody
    /// and need none.
    pub async fn turn(&self, attempt: Attempt) -> Option<SemaphorePermit<'_>> {
        match attempt {
            // The semaphore is never closed.
            Attempt::First => self.turns.acquire().await.ok(),
            Attempt::Again { .. } => None,
        }
    }

    /// Notes that a copy has logged in, has failed, or needs no login.
    pub fn is_over(&self, host: usize) {
        self.over.send_modify(|over| *over |= 1 << host);
    }

    /// Notes that a copy has logged in, and waits for the others.
    pub async fn over(&self, host: usize) {
        self.is_over(host);
        let mut over = self.over.subscribe();
        let together = over.wait_for(|over| *over == self.all);
        // A copy that is late reads again what it has missed.
        let _ = tokio::time::timeout(TOGETHER_MAX, together).await;
    }
}

/// Logs in: waits for its turn, and after the login for the other copies. Returns when the copy
/// ends, so the caller need not watch for that.
pub async fn connect(
    host: &Host,
    request: &Request,
    seat: &ClientContext,
    attempt: Attempt,
) -> Result<LoggedIn> {
    let Some(shared) = &seat.shared else {
        return LoggedIn::connect(host, request, seat, attempt).await;
    };
    let turn = tokio::select! {
        turn = shared.logins.turn(attempt) => turn,
        () = seat.ending.wait() => return Err(cause_of(&seat.ending)),
    };
    let server = LoggedIn::connect(host, request, seat, attempt).await?;
    drop(turn);
    shared.share.join();
    tokio::select! {
        () = shared.logins.over(shared.host) => Ok(server),
        () = seat.ending.wait() => Err(cause_of(&seat.ending)),
    }
}

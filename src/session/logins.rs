//! Logins to several hosts: one after the other where a person may be asked, else side by side; and
//! who has logged in waits a while for the others, so that what is read once is read for all.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::error::Result;
use crate::session::login::{Attempt, Server};
use crate::session::request::{Host, Request, Rsh};
use crate::session::{Seat, cause_of, host as this_host};

/// Logins at once: each is an ssh that computes, here and perhaps behind the same jump host, where
/// `MaxStartups` begins to refuse at 10.
const AT_ONCE: usize = 8;

/// How long the first who has logged in waits for the last: the far end waits half a minute to be
/// told what it is to do.
const TOGETHER_MAX: Duration = Duration::from_secs(20);

pub struct Logins {
    turns: Semaphore,
    /// Those that are over, as bits.
    over: watch::Sender<u64>,
    all: u64,
}

impl Logins {
    pub fn new(hosts: usize, request: &Request) -> Logins {
        let may_ask = request.rsh == Rsh::Ssh && !request.ssh.batch && this_host::has_terminal();
        Logins {
            turns: Semaphore::new(if may_ask { 1 } else { AT_ONCE }),
            over: watch::Sender::new(0),
            all: u64::MAX >> (u64::BITS as usize - hosts.clamp(1, 64)),
        }
    }

    /// Waits until this one may log in, while it holds what it gets. Later logins ask nobody.
    pub async fn turn(&self, attempt: Attempt) -> Option<SemaphorePermit<'_>> {
        match attempt {
            // It is never closed.
            Attempt::First => self.turns.acquire().await.ok(),
            Attempt::Again { .. } => None,
        }
    }

    /// A host is logged in to, has failed, or needs no login.
    pub fn is_over(&self, host: usize) {
        self.over.send_modify(|over| *over |= 1 << host);
    }

    /// A host is logged in to; waits for the others.
    pub async fn over(&self, host: usize) {
        self.is_over(host);
        let mut over = self.over.subscribe();
        let together = over.wait_for(|over| *over == self.all);
        // Who is late reads for itself what it has missed.
        let _ = tokio::time::timeout(TOGETHER_MAX, together).await;
    }
}

/// Logs in. Where others do the same, it is each one's turn first, and all begin together. Whoever
/// calls this need not watch for the end of the copy.
pub async fn connect(
    host: &Host,
    request: &Request,
    seat: &Seat,
    attempt: Attempt,
) -> Result<Server> {
    let Some(shared) = &seat.shared else {
        return Server::connect(host, request, seat, attempt).await;
    };
    let turn = tokio::select! {
        turn = shared.logins.turn(attempt) => turn,
        () = seat.ending.wait() => return Err(cause_of(&seat.ending)),
    };
    let server = Server::connect(host, request, seat, attempt).await?;
    drop(turn);
    shared.share.join();
    tokio::select! {
        () = shared.logins.over(shared.host) => Ok(server),
        () = seat.ending.wait() => Err(cause_of(&seat.ending)),
    }
}

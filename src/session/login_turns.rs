//! Logins to several hosts: one after the other if ssh may ask the user, otherwise in parallel. A
//! copy that has logged in waits a while for the others, so that the source is read once for all.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::session::host as this_host;
use crate::session::request::{Request, Rsh};

/// Logins at the same time. Each ssh computes here, and all may use the same jump host, where
/// `MaxStartups` begins to refuse at 10.
const AT_ONCE: usize = 8;

/// How long the first copy waits for the last to log in. Its server waits 30 s for the first
/// messages.
const TOGETHER_MAX: Duration = Duration::from_secs(20);

pub struct LoginTurns {
    turns: Semaphore,
    /// The copies that are done with their first login, one bit each.
    over: watch::Sender<u64>,
    all: u64,
}

/// True if ssh may ask the user for a password or the like.
pub fn may_ask(request: &Request) -> bool {
    request.rsh == Rsh::Ssh && !request.ssh.batch && this_host::has_terminal()
}

impl LoginTurns {
    pub fn new(hosts: usize, request: &Request) -> LoginTurns {
        LoginTurns {
            turns: Semaphore::new(if may_ask(request) { 1 } else { AT_ONCE }),
            over: watch::Sender::new(0),
            all: u64::MAX >> (u64::BITS as usize - hosts.clamp(1, 64)),
        }
    }

    /// Waits for a turn to log in, which ends when the result is dropped.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.turns.acquire().await.ok()
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
        // A late copy reads the missed chunks again.
        let _ = tokio::time::timeout(TOGETHER_MAX, together).await;
    }
}

//! Accepted connections that have not proved themselves yet: few, and for a short time. When there
//! are too many, the oldest is dropped, so that idle strangers cannot keep the peer out.

use std::collections::VecDeque;
use std::io;

use tokio::task::{AbortHandle, JoinSet};

use super::Connection;

/// The most unproven connections at once; each lasts at most as long as an opening may take.
const UNPROVEN_MAX: usize = 32;

/// The proofs in progress; all end when this is dropped.
#[derive(Default)]
pub(super) struct Unproven {
    tasks: JoinSet<io::Result<Connection>>,
    oldest: VecDeque<AbortHandle>,
}

impl Unproven {
    /// Adds a proof, which must end in bounded time.
    pub(super) fn add(
        &mut self,
        proving: impl Future<Output = io::Result<Connection>> + Send + 'static,
    ) {
        self.oldest.retain(|task| !task.is_finished());
        if self.oldest.len() >= UNPROVEN_MAX
            && let Some(task) = self.oldest.pop_front()
        {
            task.abort();
        }
        self.oldest.push_back(self.tasks.spawn(proving));
    }

    /// The next connection that proved itself. Cancel safe: dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Connection {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Ok(connection))) => return connection,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}

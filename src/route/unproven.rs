//! Connections that came and have not proven themselves yet: few, and not for long. Many strangers
//! cannot keep the peer out, since the oldest of them goes when they are many.

use std::collections::VecDeque;
use std::io;

use tokio::task::{AbortHandle, JoinSet};

use super::Connection;

/// Connections that may be unproven at once; each for as long as an opening may take.
const UNPROVEN_MAX: usize = 32;

/// All end when this is dropped.
#[derive(Default)]
pub struct Unproven {
    tasks: JoinSet<io::Result<Connection>>,
    oldest: VecDeque<AbortHandle>,
}

impl Unproven {
    /// Takes in one more, which ends by itself in bounded time.
    pub fn add(&mut self, proving: impl Future<Output = io::Result<Connection>> + Send + 'static) {
        self.oldest.retain(|task| !task.is_finished());
        if self.oldest.len() >= UNPROVEN_MAX
            && let Some(task) = self.oldest.pop_front()
        {
            task.abort();
        }
        self.oldest.push_back(self.tasks.spawn(proving));
    }

    /// The next that has proven itself. May be dropped while it waits, and nothing is lost.
    pub async fn next(&mut self) -> Connection {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Ok(connection))) => return connection,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }
}

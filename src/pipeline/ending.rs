//! How a copy ends before its time: the first cause is kept, everyone is told once.

use std::sync::Mutex;

use tokio_util::sync::CancellationToken;

use crate::error::Error;

#[derive(Default)]
pub struct Ending {
    cause: Mutex<Option<Error>>,
    token: CancellationToken,
}

impl Ending {
    /// Ends the copy for `cause`, unless it is ending already: what comes later is teardown.
    pub fn end(&self, cause: Error) {
        let mut kept = self.cause.lock().expect("no panic while held");
        if kept.is_none() {
            *kept = Some(cause);
        }
        drop(kept);
        self.token.cancel();
    }

    pub fn cause(&self) -> Option<Error> {
        self.cause.lock().expect("no panic while held").clone()
    }

    pub fn is_ending(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until someone ends the copy.
    pub async fn wait(&self) {
        self.token.cancelled().await
    }
}

//! The threads that compare files with a list of digests: on a server, or in a client whose files
//! are on its own machine.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::endpoint::{JOIN_PATIENCE, Threads, join};
use crate::pipeline::Shutdown;
use crate::pipeline::list_check::ListCheck;

pub struct CheckingEnd {
    pub check: Arc<ListCheck>,
    threads: Vec<JoinHandle<()>>,
}

impl CheckingEnd {
    pub fn start(check: ListCheck, workers: usize, shutdown: &Arc<Shutdown>) -> CheckingEnd {
        let check = Arc::new(check);
        let mut threads = Threads::of(shutdown);
        threads.start_workers(workers, || {
            let check = check.clone();
            move || check.run()
        });
        CheckingEnd {
            check,
            threads: threads.started,
        }
    }

    /// Ends the threads, in bounded time.
    pub async fn stop(mut self) {
        self.check.end();
        join(&mut self.threads, Instant::now() + JOIN_PATIENCE).await;
    }
}

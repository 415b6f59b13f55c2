//! The routes that are being tried or used.

use tokio::task::{AbortHandle, JoinSet};

use crate::transport::routes::Route;

/// All tasks end when this is dropped.
#[derive(Default)]
pub(super) struct Running {
    /// Each task ends with the reason why its route does not work.
    tasks: JoinSet<(Route, String)>,
    handles: Vec<(Route, AbortHandle)>,
}

impl Running {
    pub(super) fn start(
        &mut self,
        route: Route,
        task: impl Future<Output = String> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(async move { (route, task.await) });
        self.handles.push((route, handle));
    }

    pub(super) fn has(&self, route: Route) -> bool {
        let mut running = self.handles.iter().map(|(running, _)| *running);
        running.any(|running| running == route)
    }

    pub(super) fn stop(&mut self, route: Route) {
        self.handles.retain(|(running, handle)| {
            if *running == route {
                handle.abort();
            }
            *running != route
        });
    }

    /// Waits for the next route that fails. Never returns if none does.
    pub(super) async fn next(&mut self) -> (Route, String) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((route, why))) => {
                    self.handles.retain(|(running, _)| *running != route);
                    return (route, why);
                }
                // The task was stopped.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

//! The time limit of a login, which does not count the time that a user takes at a prompt.

use std::fs;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

/// Time between two checks of a login; the limit is exact to this.
const TICK: Duration = Duration::from_millis(200);

/// Most processes of one login that are checked: ssh, its jump hosts and proxies.
const PROCESSES_MAX: usize = 64;

/// Runs `login` to its end; None if it takes longer than `limit`. The clock stops while `asks` is
/// true.
pub async fn within<T>(
    limit: Duration,
    asks: impl Fn() -> bool,
    login: impl Future<Output = T>,
) -> Option<T> {
    let mut login = pin!(login);
    let mut left = limit;
    while left > Duration::ZERO {
        let tick = left.min(TICK);
        if let Ok(done) = timeout(tick, &mut login).await {
            return Some(done);
        }
        if !asks() {
            left -= tick;
        }
    }
    None
}

/// True while ssh (process `id`) or a process that it has started (a jump host's ssh) asks for a
/// password or a confirmation. Such a process has a file with the name /dev/tty open. False if
/// /proc does not show it.
pub fn asks_on_terminal(id: u32) -> bool {
    let mut processes = vec![id];
    let mut seen = 0;
    while let Some(id) = processes.pop() {
        seen += 1;
        if seen > PROCESSES_MAX {
            return false;
        }
        let process = Path::new("/proc").join(id.to_string());
        let handles = fs::read_dir(process.join("fd")).into_iter().flatten();
        let mut targets = handles.filter_map(|handle| fs::read_link(handle.ok()?.path()).ok());
        if targets.any(|target| target == Path::new("/dev/tty")) {
            return true;
        }
        let children = process.join("task").join(id.to_string()).join("children");
        let children = fs::read_to_string(children).unwrap_or_default();
        processes.extend(
            children
                .split_whitespace()
                .filter_map(|id| id.parse::<u32>().ok()),
        );
    }
    false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn time_at_a_prompt_does_not_count() {
        let limit = TICK * 2;
        let forever = std::future::pending::<()>;
        assert!(within(limit, || false, forever()).await.is_none());
        // The user takes longer than the limit.
        let looks = Cell::new(0);
        let asks = || looks.replace(looks.get() + 1) < 5;
        assert!(within(limit, asks, forever()).await.is_none());
        assert_eq!(looks.get(), 5 + 2);
        let (told, soon) = tokio::sync::oneshot::channel();
        told.send(7).expect("it is waited for");
        assert_eq!(within(limit, || false, soon).await, Some(Ok(7)));
    }

    #[test]
    fn a_process_that_has_the_terminal_open_by_its_name_asks() {
        assert!(!asks_on_terminal(std::process::id()), "it has none open");
    }
}

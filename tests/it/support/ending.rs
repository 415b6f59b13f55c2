//! Copies that must end at once although a system call does not return.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Case;
use super::run::Running;

/// How long a copy may take to end after the event that ends it: 2 s on an idle machine, and many
/// times as long on a busy one. A call that hangs does so for as long as the test runs.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Checks that a signal ends the client with this code, and the server with it.
#[track_caller]
pub(crate) fn ends_on(case: &Case, copy: Running, signal: Signal, code: i32) {
    let since = Instant::now();
    copy.signal(signal);
    copy.wait().exits(code);
    for server in case.servers() {
        assert!(server.ends_within(ENDS_WITHIN), "{}", server.describe());
    }
    let took = since.elapsed();
    assert!(took < ENDS_WITHIN, "it took {took:?}");
}

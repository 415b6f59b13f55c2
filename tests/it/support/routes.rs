//! The route of a copy, by its summary.

use super::Case;
use super::done::Done;

/// The summary names this route.
#[track_caller]
pub(crate) fn goes(done: &Done, route: &str) {
    assert!(is_by(done, route), "{route}: {done}");
}

#[track_caller]
fn is_by(done: &Done, route: &str) -> bool {
    let summary = done
        .stderr
        .lines()
        .find(|line| line.contains("(wire "))
        .unwrap_or_else(|| panic!("a summary: {done}"));
    summary.contains(&format!(", {route})")) || summary.contains(&format!(", {route} ("))
}

/// Copies to `a` by this route, with one login to each host whose logins are counted. On a busy
/// machine another route may be up first, so there are a few tries.
#[track_caller]
pub(crate) fn arrives_by<const HOSTS: usize>(
    case: &Case,
    route: &str,
    logins: impl Fn() -> [usize; HOSTS],
    copy: impl Fn() -> Done,
) {
    let is_found = (0..5).any(|_| {
        // As before the first copy.
        std::fs::remove_file(case.dst.path("a")).ok();
        std::fs::remove_dir_all(case.home.path(".cache/fastcp")).ok();
        let before = logins();
        let done = copy();
        is_by(&done, route) && logins() == before.map(|logins| logins + 1)
    });
    assert!(is_found, "never by {route}");
}

//! One copy from start to outcome: on this machine, or over sessions with hosts.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::app::retries::NOT_AGAIN;
use crate::app::{clean, list_check, local, retries};
use crate::error::{Error, Kind, Result, Side};
use crate::keep::NotKept;
use crate::pipeline::digest_list::DigestList;
use crate::progress::Progress;
use crate::report::Reporter;
use crate::seal::Secret;
use crate::session::client::{self, Session};
use crate::session::context::{ClientContext, TellLeftover};
use crate::session::host;
use crate::session::login::Attempt;
use crate::session::request::{Outcome, Request};
use crate::session::runtime::runtime;
use crate::units::{printable, size};

/// Interval between checks whether the list of digests is written, and how long to wait for it
/// after the copy has ended early.
const LIST_LOOK: Duration = Duration::from_millis(10);
const LIST_PATIENCE: Duration = Duration::from_millis(300);

/// Carries out a copy. Returns when both ends are done or have ended. Blocks.
pub fn run(request: Request, progress: Arc<Progress>, reporter: Arc<dyn Reporter>) -> Outcome {
    let mut started = Instant::now();
    let mut client = ClientContext::new(progress, reporter);
    let copied = copy(&request, &mut client, &mut started);
    over(&request, &client, copied, started)
}

/// Removes what copies have left in the destination, and calls `tell` for each leftover. Blocks.
pub fn clean(request: &Request, reporter: Arc<dyn Reporter>, tell: TellLeftover) -> Outcome {
    let mut started = Instant::now();
    let mut client = ClientContext::new(Arc::default(), reporter);
    client.clean = Some(tell);
    let cleaned = copy(request, &mut client, &mut started);
    outcome(request, &client, cleaned, started)
}

/// The outcome of a copy that is over. If it can be resumed, an error says so.
pub fn over(
    request: &Request,
    client: &ClientContext,
    mut copied: Result<String>,
    started: Instant,
) -> Outcome {
    if let Some(error) = copied.as_mut().err() {
        error.message += &kept(error.kind, request, client);
    }
    let outcome = outcome(request, client, copied, started);
    client.progress.end(outcome.exit_code() == 0);
    outcome
}

/// The outcome, from `client` and from `copied`: the route, or why the copy ended early.
pub fn outcome(
    request: &Request,
    client: &ClientContext,
    copied: Result<String>,
    started: Instant,
) -> Outcome {
    let (route, mut fatal) = match copied {
        Ok(route) => (route, None),
        Err(error) => (String::new(), Some(error)),
    };
    let unlisted = finish_digests(client).unwrap_or_else(|error| {
        fatal.get_or_insert(error);
        0
    });
    let (elapsed, counters) = (started.elapsed(), client.progress.snapshot());
    if request.strict && fatal.is_none() && counters.not_kept != NotKept::default() {
        let message = match request.ssh.quiet {
            true => "some metadata was not kept; leave out -q to read which (--strict)",
            false => "some metadata was not kept, see the lines about it (--strict)",
        };
        let error = Error::new(Kind::Entry, Side::Here, message);
        client.news.failures.add(&error);
    }
    let (failures, more_failures) = client.news.failures.take();
    let (deleted, removed) = client.news.take_deleted();
    Outcome {
        fatal,
        failures,
        more_failures,
        deleted,
        removed,
        snapshot: client.news.take_snapshot(),
        dry_run: request.options.dry_run,
        check: request.check,
        elapsed,
        login: counters
            .logged_in
            .map(|at| at.saturating_duration_since(started)),
        data: counters.began.map_or(Duration::ZERO, |at| at.elapsed()),
        counters,
        route,
        unlisted,
        verdict: client.verdict.get().cloned(),
        slowest: client.progress.slowest_files(),
    }
}

/// Sets `started` if the user has set a time for the start.
pub fn copy(
    request: &Request,
    client: &mut ClientContext,
    started: &mut Instant,
) -> Result<String> {
    host::prepare(1)?;
    if request.options.nice {
        host::be_nice();
    }
    if let Some(path) = request.digest_lists.first() {
        client.digests = Some(digest_list(path)?);
    }
    let runtime = runtime()?;
    let copied = runtime.block_on(async {
        let at_once = host::end_on_signals(client.shutdown.clone());
        host::end_on_panic(client.shutdown.clone());
        host::tell_on_signal(client.reporter.clone());
        if request.options.follow_ms.is_some() {
            let enough = client.enough.clone();
            host::on_enough(move || enough.set());
        }
        let copies = [&*client.progress];
        let schedule = &request.schedule;
        let began = schedule.begin(&copies, &client.shutdown, &at_once, started);
        began.await?;
        let copy = async {
            let copied = match (&request.check_list, request.host()) {
                (Some(from), _) => list_check::run(request, from, client).await,
                _ if client.clean.is_some() => clean::run(request, client).await,
                (None, None) => local::copy(request, client).await,
                (None, Some(_)) if client.probe.is_some() => one_session(request, client).await,
                (None, Some(_)) => retries::copy(request, client).await,
            };
            let copied = digests_written(client, copied).await;
            changes_written(client, copied).await
        };
        tokio::select! {
            copied = copy => copied,
            () = at_once.cancelled() => {
                host::kill_all();
                Err(client.shutdown.error())
            }
        }
    });
    // The user does not wait for a thread that is stuck in the kernel.
    runtime.shutdown_timeout(Duration::from_millis(100));
    copied
}

/// The end of the message about a copy that was cut off rather than failed: what is kept of it.
fn kept(kind: Kind, request: &Request, client: &ClientContext) -> String {
    let options = &request.options;
    let is_cut_off = kind == Kind::Lost || kind.is_wanted();
    if !is_cut_off || options.dry_run || options.no_resume {
        return String::new();
    }
    let counters = client.progress.snapshot();
    match (client.shutdown.is_once(), counters.placed_bytes()) {
        (true, _) if kind == Kind::Stopped => format!("; {NOT_AGAIN}"),
        (false, 0) if kind == Kind::Stopped && counters.files == 0 => {
            "; nothing had been copied yet".to_owned()
        }
        (true, _) | (false, 0) => String::new(),
        (false, there) => {
            let there = size(there);
            format!("; {there} were kept: run the same command again to resume")
        }
    }
}

const NO_LIST: &str = "cannot write the list of digests";

pub fn digest_list(path: &Path) -> Result<Arc<DigestList>> {
    let list = DigestList::create(path);
    let list = list.map_err(|cause| Error::io(Kind::Write, Side::Here, path, NO_LIST, cause));
    list.map(Arc::new)
}

/// Waits until the list of digests is written or the user ends the copy, which then fails even if
/// it was complete.
pub async fn digests_written(client: &ClientContext, copied: Result<String>) -> Result<String> {
    let Some(list) = &client.digests else {
        return copied;
    };
    let is_complete = copied.is_ok() && !client.news.failures.has_some();
    let written = async || {
        while !list.is_written(is_complete) {
            tokio::time::sleep(LIST_LOOK).await;
        }
    };
    tokio::select! {
        () = written() => return copied,
        () = client.shutdown.wait() => {}
    }
    // The writer needs only a moment for the rest, unless the file takes nothing any more.
    match tokio::time::timeout(LIST_PATIENCE, written()).await {
        Ok(()) => copied,
        Err(_) => copied.and(Err(client.shutdown.error())),
    }
}

/// Waits until the lines about changes are written or the user ends the copy, which then fails even
/// if it was complete.
pub async fn changes_written(client: &ClientContext, copied: Result<String>) -> Result<String> {
    let route = copied?;
    tokio::select! {
        () = client.news.itemized.written() => Ok(route),
        () = client.shutdown.wait() => Err(client.shutdown.error()),
    }
}

fn finish_digests(client: &ClientContext) -> Result<u64> {
    let Some(list) = &client.digests else {
        return Ok(0);
    };
    let finished = list.finish();
    let (names, more) = finished.map_err(|cause| list.error(NO_LIST, &cause))?;
    for name in &names {
        let name = printable(name);
        client.reporter.notice(&format!(
            "fastcp: --digests: left out of the list: {name} (not UTF-8, or with the character \
             U+FFFD)"
        ));
    }
    Ok(names.len() as u64 + more)
}

/// The single session of a probe.
async fn one_session(request: &Request, client: &ClientContext) -> Result<String> {
    let session = Session {
        id: Secret::session(),
        before: &[],
        attempt: Attempt::First,
    };
    let ran = client::copy(request, client, session).await;
    ran.map_err(|lost| lost.error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::failures::FAILURES_MAX;
    use crate::report::SilentReporter;
    use crate::session::{CopyOptions, EndKind, Operand};

    fn request(dry_run: bool, check: bool) -> Request {
        let dest = Operand {
            typed: "b".into(),
            host: None,
            what: EndKind::Path,
            path: b"b".to_vec(),
        };
        let options = CopyOptions {
            dry_run,
            ..CopyOptions::default()
        };
        Request {
            check,
            ..Request::local(Vec::new(), dest, options)
        }
    }

    fn client() -> ClientContext {
        ClientContext::new(Arc::default(), Arc::new(SilentReporter))
    }

    #[test]
    fn only_a_copy_that_was_cut_off_tells_what_is_kept() {
        for (dry_run, is_told) in [(false, true), (true, false)] {
            let client = client();
            client.progress.add_bytes(1000);
            let cut = Error::new(Kind::Signal(2), Side::Here, "interrupted");
            let outcome = over(
                &request(dry_run, dry_run),
                &client,
                Err(cut),
                Instant::now(),
            );
            let message = outcome.fatal.unwrap().message;
            assert_eq!(message.contains("kept"), is_told, "{message}");
        }
    }

    #[test]
    fn a_stop_tells_what_is_kept_in_any_case() {
        let told = |bytes, is_once| {
            let client = client();
            client.progress.add_bytes(bytes);
            if is_once {
                client.shutdown.set_once();
            }
            let cut = Error::new(Kind::Stopped, Side::Here, "stopped");
            let outcome = over(&request(false, false), &client, Err(cut), Instant::now());
            assert_eq!(outcome.exit_code(), 15);
            outcome.fatal.unwrap().message
        };
        let kept = "stopped; 1.00 KB were kept: run the same command again to resume";
        assert_eq!(told(1000, false), kept);
        assert_eq!(told(0, false), "stopped; nothing had been copied yet");
        assert_eq!(told(1000, true), format!("stopped; {NOT_AGAIN}"));
    }

    #[test]
    fn the_exit_code_is_of_all_failures_and_not_only_of_those_that_are_kept() {
        let outcome = |check, last| {
            let client = client();
            let fail = |kind| {
                client
                    .news
                    .failures
                    .add(&Error::new(kind, Side::Source, "x"))
            };
            (0..FAILURES_MAX).for_each(|_| fail(Kind::Read));
            fail(last);
            let copied = Ok("local".to_owned());
            over(&request(check, check), &client, copied, Instant::now())
        };
        assert_eq!(outcome(false, Kind::Read).exit_code(), 9);
        assert_eq!(outcome(false, Kind::Refused).exit_code(), 1);
        assert_eq!(outcome(true, Kind::Refused).exit_code(), 11);
        // The same for the joint outcome of two hosts.
        for (mut first, second) in [
            (outcome(false, Kind::Read), outcome(false, Kind::Refused)),
            (outcome(false, Kind::Refused), outcome(false, Kind::Read)),
        ] {
            first.add(second);
            assert_eq!(first.exit_code(), 1);
            assert_eq!(first.failures.len(), FAILURES_MAX);
            assert_eq!(first.more_failures.number, FAILURES_MAX as u64 + 2);
        }
    }
}

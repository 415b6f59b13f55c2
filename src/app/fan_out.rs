//! A copy of one source to several destinations. Each destination has a session with its own
//! secret, failures, retries and end, all in this process. They share the read and compressed
//! chunks, the memory for those, the rate limit and the turns at the user's prompt. A destination
//! on this machine gets a separate local copy at the same time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, LocalSet};

use super::{local, retries};
use crate::app::copy::{changes_written, digest_list, digests_written, over};
use crate::chunk::CHUNK_SIZE;
use crate::error::{Error, Kind, Result};
use crate::pipeline::send::cache::{CacheShare, ChunkCache};
use crate::pipeline::{Budget, Shutdown};
use crate::progress::Progress;
use crate::report::Reporter;
use crate::session::context::{ClientContext, SharedSource};
use crate::session::login_turns::LoginTurns;
use crate::session::request::{Outcome, Request};
use crate::session::runtime::runtime;
use crate::session::{host, operands};
use crate::source::Broadcast;
use crate::transport::rate_limit::RateLimiter;

pub use crate::pipeline::send::cache::HOSTS_MAX;

/// The shared chunks get the memory divided by this; the copies divide the rest.
const CACHE_PART: u64 = 4;

/// Copies to `request.dest` and to each of `request.also`. `ends` has one element for each, in this
/// order. Returns when all copies are done or have ended. Blocks.
pub fn run(request: &Request, ends: Vec<(Arc<Progress>, Arc<dyn Reporter>)>) -> Vec<Outcome> {
    let mut started = Instant::now();
    let all = Arc::<Shutdown>::default();
    let destinations = ends.into_iter().map(|(progress, reporter)| ClientContext {
        shutdown: Arc::new(Shutdown::of_session(&all)),
        ..ClientContext::new(progress, reporter)
    });
    let mut destinations: Vec<ClientContext> = destinations.collect();
    let mut outcomes: Vec<Option<Outcome>> = destinations.iter().map(|_| None).collect();
    let begun = host::prepare(destinations.len()).and_then(|()| {
        share(request, &mut destinations);
        list_digests(request, &mut destinations)
    });
    let failed = match begun.and_then(|()| runtime()) {
        Err(error) => Some(error),
        Ok(runtime) => {
            // All sessions run on this thread; other threads do the work.
            let tasks = LocalSet::new();
            let copies = carry_out(request, &destinations, &all, &mut started, &mut outcomes);
            runtime.block_on(tasks.run_until(copies));
            // The user does not wait for a thread that is stuck in the kernel.
            runtime.shutdown_timeout(Duration::from_millis(100));
            None
        }
    };
    let rest = |client: &ClientContext| {
        let error = failed.clone().unwrap_or_else(|| client.shutdown.error());
        over(request, client, Err(error), started)
    };
    let outcomes = destinations.iter().zip(outcomes);
    outcomes
        .map(|(client, outcome)| outcome.unwrap_or_else(|| rest(client)))
        .collect()
}

/// Opens a list of digests for each host, because names and failures differ from host to host.
fn list_digests(request: &Request, destinations: &mut [ClientContext]) -> Result<()> {
    for (client, path) in destinations.iter_mut().zip(&request.digest_lists) {
        client.digests = Some(digest_list(path)?);
    }
    Ok(())
}

/// Step, in bytes, by which [`check`] searches for a sufficient amount of memory.
const MEMORY_STEP: u64 = 16 << 20;

/// # Errors
/// `Kind::Usage` if the memory is too small for so many destinations.
pub fn check(request: &Request) -> Result<()> {
    let dests = request.dests().count();
    let memory = Budget::memory(&request.options);
    let is_enough = |memory: &u64| {
        let mut options = request.options.clone();
        options.memory = Some(divide(*memory, dests).1);
        Budget::new(&options, request.streams, CHUNK_SIZE).is_ok()
    };
    if is_enough(&memory) {
        return Ok(());
    }
    let more = (1..).map(|step| memory + step * MEMORY_STEP).take(1000);
    let enough = more.into_iter().find(is_enough);
    let advice = enough.map_or_else(String::new, |enough| {
        format!("give at least {}Mi, or ", enough.div_ceil(1 << 20))
    });
    Err(Error::usage(format!(
        "--memory: {}Mi is too little for {dests} destinations; {advice}copy in several runs",
        memory >> 20
    )))
}

/// The bytes that all copies share, and the bytes for each.
fn divide(memory: u64, dests: usize) -> (u64, u64) {
    let room = memory / CACHE_PART;
    (room, (memory - room) / dests.max(1) as u64)
}

fn share(request: &Request, destinations: &mut [ClientContext]) {
    let (room, own) = divide(Budget::memory(&request.options), destinations.len());
    let cache = Arc::new(ChunkCache::new(destinations.len(), room as usize));
    let logins = Arc::new(LoginTurns::new(destinations.len(), request));
    let limit = Arc::<RateLimiter>::default();
    let patience = Duration::from_secs(request.options.timeout_s.into());
    let ends: Vec<_> = destinations.iter().map(|it| it.shutdown.clone()).collect();
    let end_copy = move |host: usize, error| ends[host].end(error);
    let broadcast = operands::pipe(request)
        .or_else(|| operands::named_pipe(request))
        .map(|pipe_spec| {
            Arc::new(Broadcast::new(
                pipe_spec,
                CHUNK_SIZE,
                destinations.len(),
                patience,
                end_copy,
            ))
        });
    for (host, client) in destinations.iter_mut().enumerate() {
        client.shared = Some(SharedSource {
            host,
            share: CacheShare::new(cache.clone(), host),
            logins: logins.clone(),
            memory: own,
            limit: limit.clone(),
            broadcast: broadcast.clone(),
        });
    }
}

async fn carry_out(
    request: &Request,
    destinations: &[ClientContext],
    all: &Arc<Shutdown>,
    started: &mut Instant,
    outcomes: &mut [Option<Outcome>],
) {
    if request.options.nice {
        host::be_nice();
    }
    let at_once = host::end_on_signals(all.clone());
    host::end_on_panic(all.clone());
    if let Some(first) = destinations.first() {
        host::tell_on_signal(first.reporter.clone());
    }
    if request.options.follow_ms.is_some() {
        let enough: Vec<_> = destinations
            .iter()
            .map(|client| client.enough.clone())
            .collect();
        host::on_enough(move || enough.iter().for_each(|enough| enough.set()));
    }
    let copies: Vec<_> = destinations.iter().map(|it| &*it.progress).collect();
    if let Err(error) = request
        .schedule
        .begin(&copies, all, &at_once, started)
        .await
    {
        return all.end(error);
    }
    let started = *started;
    let mut copies = JoinSet::new();
    for (number, dest) in request.dests().enumerate() {
        let request = Request {
            dest: dest.clone(),
            also: Vec::new(),
            ..request.clone()
        };
        let client = destinations[number].clone();
        copies.spawn_local(async move { (number, one(request, &client, started).await) });
    }
    loop {
        tokio::select! {
            over = copies.join_next() => match over {
                Some(Ok((number, outcome))) => outcomes[number] = Some(outcome),
                Some(Err(_)) => {
                    all.end(Error::panicked());
                }
                None => return,
            },
            () = at_once.cancelled() => return host::kill_all(),
        }
    }
}

pub(super) async fn one(mut request: Request, client: &ClientContext, started: Instant) -> Outcome {
    let copied = match request.host() {
        Some(_) => retries::copy(&request, client).await,
        None => {
            if let Some(shared) = &client.shared {
                shared.logins.is_over(shared.host);
                request.options.memory = Some(shared.memory);
            }
            local::copy(&request, client).await
        }
    };
    let copied = digests_written(client, copied).await;
    let copied = changes_written(client, copied).await;
    if let Some(shared) = &client.shared {
        shared.leave();
    }
    over(&request, client, copied, started)
}

/// The exit code of a signal, or of the first destination, in the order typed, whose copy is not
/// complete. Files that only grew count if nothing failed at any destination.
pub fn exit_code(outcomes: &[Outcome]) -> i32 {
    let is_signal = |outcome: &&Outcome| {
        let fatal = outcome.fatal.as_ref();
        fatal.is_some_and(|fatal| matches!(fatal.kind, Kind::Signal(_)))
    };
    let signalled = outcomes.iter().find(is_signal);
    let codes = signalled
        .into_iter()
        .chain(outcomes)
        .map(Outcome::exit_code);
    let (mut grew, other): (Vec<_>, Vec<_>) = codes
        .filter(|code| *code != 0)
        .partition(|code| *code == Kind::Grew.exit_code());
    other.first().copied().or(grew.pop()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Side};
    use crate::report::SilentReporter;
    use crate::session::{CopyOptions, EndKind, Operand};

    #[test]
    fn a_file_that_only_grew_outranks_no_failure_of_any_destination() {
        let dest = Operand {
            typed: "b".into(),
            host: None,
            what: EndKind::Path,
            path: b"b".to_vec(),
        };
        let request = Request::local(Vec::new(), dest, CopyOptions::default());
        let outcome = |kinds: &[Kind]| {
            let client = ClientContext::new(Arc::default(), Arc::new(SilentReporter));
            for kind in kinds {
                let error = Error::new(*kind, Side::Source, "x");
                match kind {
                    Kind::Grew => client.news.failures.grew(&error),
                    _ => client.news.failures.add(&error),
                }
            }
            over(&request, &client, Ok("direct".to_owned()), Instant::now())
        };
        let code = |copies: &[&[Kind]]| {
            let outcomes: Vec<_> = copies.iter().map(|kinds| outcome(kinds)).collect();
            exit_code(&outcomes)
        };
        assert_eq!(code(&[&[], &[Kind::Grew, Kind::Grew]]), 14);
        assert_eq!(code(&[&[Kind::Grew], &[], &[Kind::Write]]), 8);
        assert_eq!(code(&[&[Kind::Grew, Kind::Read], &[Kind::Write]]), 9);
        assert_eq!(code(&[&[]]), 0);
    }
}

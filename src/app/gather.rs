//! A copy of sources on several hosts to one destination. Each host has its own session with its
//! own retries, one after the other: no two write into the destination at once, and ssh asks for
//! one password at a time. A host that fails does not stop the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;

use super::fan_out::one;
use crate::app::copy::over;
use crate::pipeline::Shutdown;
use crate::progress::Progress;
use crate::report::Reporter;
use crate::session::context::ClientContext;
use crate::session::host;
use crate::session::request::{Outcome, Request};
use crate::session::runtime::runtime;
use crate::session::taken_names::TakenNames;

/// Carries out `groups`, each the sources of one host. `ends` has one element for each, in this
/// order. Returns the outcome of all. Blocks.
pub fn run(groups: Vec<Request>, ends: Vec<(Arc<Progress>, Arc<dyn Reporter>)>) -> Outcome {
    let mut started = Instant::now();
    let all = Arc::<Shutdown>::default();
    let taken = TakenNames::of(groups.len());
    let copies = groups.into_iter().zip(ends).zip(taken);
    let copies = copies.map(|((request, (progress, reporter)), taken)| {
        let client = ClientContext {
            shutdown: Arc::new(Shutdown::of_session(&all)),
            taken: Some(taken),
            ..ClientContext::new(progress, reporter)
        };
        (request, client)
    });
    let copies: Vec<(Request, ClientContext)> = copies.collect();
    let mut outcomes = Vec::new();
    let failed = match host::prepare(1).and_then(|()| runtime()) {
        Err(error) => Some(error),
        Ok(runtime) => {
            let tasks = LocalSet::new();
            runtime.block_on(tasks.run_until(carry_out(
                &copies,
                &all,
                &mut started,
                &mut outcomes,
            )));
            // The user does not wait for a thread that is stuck in the kernel.
            runtime.shutdown_timeout(Duration::from_millis(100));
            None
        }
    };
    // The outcomes of the copy that was stopped, and of the copies that did not begin.
    for (request, client) in &copies[outcomes.len()..] {
        let error = failed.clone().unwrap_or_else(|| client.shutdown.error());
        outcomes.push(over(request, client, Err(error), Instant::now()));
    }
    together(outcomes, started)
}

async fn carry_out(
    copies: &[(Request, ClientContext)],
    all: &Arc<Shutdown>,
    started: &mut Instant,
    outcomes: &mut Vec<Outcome>,
) {
    if copies.iter().any(|(request, _)| request.options.nice) {
        host::be_nice();
    }
    let at_once = host::end_on_signals(all.clone());
    host::end_on_panic(all.clone());
    if let Some((request, first)) = copies.first() {
        host::tell_on_signal(first.reporter.clone());
        // The others do not wait for the time: they wait for the first.
        let waiting = [&*first.progress];
        let began = request.schedule.begin(&waiting, all, &at_once, started);
        if let Err(error) = began.await {
            return all.end(error);
        }
    }
    for (request, client) in copies {
        tokio::select! {
            outcome = one(request.clone(), client, Instant::now()) => {
                if let Some(fatal) = outcome.fatal.as_ref().filter(|fatal| !fatal.kind.is_wanted()) {
                    client.reporter.failure(fatal);
                }
                outcomes.push(outcome);
            }
            () = at_once.cancelled() => return host::kill_all(),
        }
        if all.is_ending() {
            return;
        }
    }
}

/// The outcome of all copies. The failure of a host counts like that of an entry, since the others
/// were copied; it has been reported.
fn together(outcomes: Vec<Outcome>, started: Instant) -> Outcome {
    let mut outcomes = outcomes.into_iter().map(|mut outcome| {
        if let Some(fatal) = outcome.fatal.take_if(|fatal| !fatal.kind.is_wanted()) {
            outcome.failures.push(fatal);
        }
        outcome
    });
    let mut all = outcomes.next().expect("there are several hosts");
    outcomes.for_each(|outcome| all.add(outcome));
    all.elapsed = started.elapsed();
    all
}

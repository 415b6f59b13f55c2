//! A copy over several sessions. When the connection is lost, the client logs in again and repeats
//! its request, and the receiver resumes. This module decides how long, how often and after which
//! waits to retry, and what the user reads about it.
//!
//! The time of `--retry-for` starts when a connection is lost, and starts again at a later loss if
//! the copy has made progress. If the user gives the flag, it also applies to the first login,
//! from its first failure until a login succeeds.

use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::relay;
use super::turn::WaitForTurn;
use crate::error::{Error, Kind, Result, Side};
use crate::progress::Phase;
use crate::report::event::{self, CopyEvent};
use crate::seal::Secret;
use crate::session::client::{self, LostSession, Session};
use crate::session::context::ClientContext;
use crate::session::login::{Attempt, SAME_SIGNAL, SAME_SIGNAL_BRIEF};
use crate::session::request::{Request, Retry};
use crate::ssh;
use crate::units::{self, printable};
use crate::wire::message::SESSIONS_MAX;

/// The wait doubles from the first to the last. So a short interruption costs a second, and a host
/// that restarts gets few logins.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_LAST: Duration = Duration::from_secs(30);

/// The client stops after this many refused logins in a row: the login may need a password that
/// nobody types. A host that is starting up may refuse once or twice.
const REFUSALS_MAX: u8 = 3;

/// The reason for a login other than the first, if no connection was lost.
const WAITED: &str = "fastcp had logged out to wait for another copy";

/// The advice at the end of an error, which is out of place if fastcp itself follows it.
const TRY_AGAIN: &str = "; try again";

/// Why a copy of a pipe cannot be resumed, and what to do.
pub const NOT_AGAIN: &str = "this copy reads from or writes to a pipe, so it cannot be resumed: \
                             start the copy again";

/// The random part of a wait, in either direction. Without it, many copies that were cut off
/// together would return together.
const JITTER: f64 = 0.25;

/// Copies between this machine and a host, or between two hosts. Returns the route that data took.
///
/// # Errors
/// An error that another login cannot repair; the signal, if one arrived; `Kind::Lost` after the
/// last login.
pub async fn copy(request: &Request, client: &ClientContext) -> Result<String> {
    let run = async |request: &Request, client: &ClientContext, session: Session<'_>| match request
        .hosts()
    {
        Some(_) => relay::copy(request, client, session).await,
        None => client::copy(request, client, session).await,
    };
    repeat(request, client, run, || client.begin_again()).await
}

/// The same for sessions that `run` carries out. `begin_again` prepares for the next session, and
/// is true if the last one got further than those before it.
///
/// # Errors
/// As for [`copy`].
pub async fn repeat(
    request: &Request,
    client: &ClientContext,
    run: impl AsyncFn(&Request, &ClientContext, Session<'_>) -> Result<String, LostSession>,
    begin_again: impl Fn() -> bool,
) -> Result<String> {
    let mut request = request.clone();
    let mut retries = Retries::new(request.retry, &Secret::session());
    let mut refusals = 0;
    let mut outage = Outage::new(&request);
    let mut before = Vec::new();
    let mut attempt = Attempt::First;
    let mut turn = WaitForTurn::new(&request);
    loop {
        let id = Secret::session();
        let session = Session {
            id,
            before: &before,
            attempt,
        };
        if let Some(file) = &request.rate_file {
            request.options.rate_limit = file.now().await;
        }
        let seat_of_session = client.of_session();
        let lost = match run(&request, &seat_of_session, session).await {
            Ok(route) => return Ok(route),
            Err(lost) => lost,
        };
        let error = unless_signalled(lost.error, client).await?;
        if client.shutdown.is_once() {
            let host = lost.host.as_ref().unwrap_or(&outage.host);
            return Err(unrepeatable(error, host, &request));
        }
        if error.kind == Kind::Busy {
            turn.next(error, client).await?;
            begin_again();
            // A login works, so a failure of the next one is another outage.
            retries.refill();
            outage.note(WAITED.to_owned(), true);
            attempt = Attempt::Again { afresh: false };
            continue;
        }
        if lost.had_begun {
            if before.is_empty() {
                // The outage before the first login is over.
                retries.refill();
            }
            before.push(id);
        }
        if before.is_empty() && !turn.has_waited() {
            first_again(error, &request, client, &mut retries).await?;
            // A copy looks up its sources again.
            begin_again();
            continue;
        }
        if !is_worth_a_retry(error.kind, attempt) {
            return Err(error);
        }
        refusals = if ssh::is_refused(&error) {
            refusals + 1
        } else {
            0
        };
        if begin_again() {
            retries.refill();
            // The partial files are now this command's own: a session that made progress had first
            // discarded those of an earlier run.
            request.options.no_resume = false;
        }
        // If only the report of the end was lost, the journal is gone. DEST, which this copy has
        // made, would then count as an existing directory, and the next session would copy into
        // DEST/NAME.
        let options = &mut request.options;
        let becomes_destination = client.shutdown.is_destination();
        options.no_target_directory |=
            becomes_destination && options.snapshot.is_none() && !options.is_beside;
        if let Some(host) = lost.host {
            outage.host = host;
        }
        outage.note(error.message, lost.had_begun);
        let is_over = refusals == REFUSALS_MAX || before.len() >= SESSIONS_MAX;
        let wait = match is_over {
            true => None,
            false => retries.next(Instant::now()),
        };
        let Some(wait) = wait else {
            return Err(outage.given_up(&retries));
        };
        if lost.had_begun {
            client.reporter.notice(&outage.notice(wait, &retries));
        } else {
            client.reporter.detail(&outage.detail(wait, &retries));
        }
        client.reporter.event(outage.event(wait));
        client.progress.set_phase(Phase::Reconnecting);
        client.progress.set_next_login(wait);
        pause(wait, client).await?;
        // A shared ssh connection is fast if it works, but may be as dead as the lost one. So it
        // is used only for the first login after a loss.
        let afresh = !lost.had_begun;
        attempt = Attempt::Again { afresh };
    }
}

/// Waits before the first login is retried.
///
/// # Errors
/// `error`, if the user did not ask for this, if another login would fail too, or if the time is
/// over.
async fn first_again(
    mut error: Error,
    request: &Request,
    client: &ClientContext,
    retries: &mut Retries,
) -> Result<()> {
    // A login that ends while it installs fastcp is a lost connection.
    let may_pass = ssh::may_pass(&error) || error.kind.is_worth_a_retry();
    if !request.retry.first || !may_pass {
        return Err(error);
    }
    if let Some(cause) = error.message.strip_suffix(TRY_AGAIN) {
        error.message.truncate(cause.len());
    }
    let is_first = retries.spent == 0;
    let Some(wait) = retries.next(Instant::now()) else {
        if retries.spent > 0 {
            error.message += &format!("; gave up after {} logins", retries.spent + 1);
        }
        return Err(error);
    };
    let line = format!("{}; {}", error.message, next(wait, retries));
    match is_first {
        true => client.reporter.notice(&format!("fastcp: {line}")),
        false => client.reporter.detail(&line),
    }
    // If the connection was lost after its login, the phase is no longer "connecting".
    client.progress.set_phase(Phase::Connecting);
    client.progress.set_next_login(wait);
    let name = request.host().map_or("", |host| &host.name);
    client.reporter.event(CopyEvent::Retry(event::LoginRetry {
        host: printable(name.as_bytes()),
        cause: error.message,
        wait,
    }));
    pause(wait, client).await
}

/// Waits, unless the copy is ended.
///
/// # Errors
/// The cause of the copy's end, such as a signal.
async fn pause(wait: Duration, client: &ClientContext) -> Result<()> {
    tokio::select! {
        () = tokio::time::sleep(wait) => Ok(()),
        () = client.shutdown.wait() => Err(client.shutdown.error()),
    }
}

/// The error of a copy that cannot resume, because its pipe cannot be read again. The connection to
/// `host` was lost.
fn unrepeatable(mut error: Error, host: &str, request: &Request) -> Error {
    if error.kind == Kind::Lost {
        error.message = format!("connection to {host} lost: {}; {NOT_AGAIN}", error.message);
        if request.options.spool && request.dest.host.is_some() {
            error.message +=
                " (with --spool, any received part is in .fastcp-*.part beside the destination)";
        }
    }
    error
}

/// True if another session may succeed. A login that fails after an earlier one succeeded may
/// succeed later.
fn is_worth_a_retry(kind: Kind, attempt: Attempt) -> bool {
    let is_login = matches!(kind, Kind::Connect | Kind::FarEnd);
    kind.is_worth_a_retry() || (is_login && attempt != Attempt::First)
}

/// Returns the signal as the error if one arrived here: a terminal sends Ctrl-C to ssh too, and
/// ssh may end first. A signal that ended only the far end is a lost connection.
async fn unless_signalled(error: Error, client: &ClientContext) -> Result<Error> {
    let patience = match error.kind {
        Kind::Lost | Kind::Signal(_) => Some(SAME_SIGNAL),
        // The login has already waited for the signal.
        Kind::Connect | Kind::FarEnd => Some(SAME_SIGNAL_BRIEF),
        _ => None,
    };
    if let Some(patience) = patience {
        let _ = timeout(patience, client.shutdown.wait()).await;
        if let Some(signal) = client.shutdown.cause() {
            return Err(signal);
        }
    }
    Ok(match error.kind {
        Kind::Signal(number) => ssh::server_killed(number),
        _ => error,
    })
}

/// The remaining logins, the remaining time, and the next wait.
#[derive(Debug)]
struct Retries {
    retry: Retry,
    spent: u16,
    /// The first failure since the last progress, and the time left now.
    since: Option<Instant>,
    left: Option<Duration>,
    wait: Duration,
    random: fastrand::Rng,
}

impl Retries {
    fn new(retry: Retry, seed: &[u8; 16]) -> Retries {
        let (seed, _) = seed.split_first_chunk().expect("16 bytes are 8 and more");
        Retries {
            retry,
            spent: 0,
            since: None,
            left: None,
            wait: WAIT_FIRST,
            random: fastrand::Rng::with_seed(u64::from_le_bytes(*seed)),
        }
    }

    /// The wait before the next login; None if the logins or the time are used up.
    fn next(&mut self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(*self.since.get_or_insert(now));
        self.left = self.retry.time.map(|time| time.saturating_sub(passed));
        let is_over = self.left.is_some_and(|left| left.is_zero());
        if is_over || self.retry.limit.is_some_and(|limit| self.spent >= limit) {
            return None;
        }
        self.spent = self.spent.saturating_add(1);
        let wait = self.wait;
        self.wait = (wait * 2).min(WAIT_LAST);
        let share = self.random.f64();
        let wait = wait.mul_f64(1.0 + JITTER * (2.0 * share - 1.0));
        // The last login is at the end of the time.
        Some(self.left.map_or(wait, |left| wait.min(left)))
    }

    /// The copy made progress: the next failure starts another outage.
    fn refill(&mut self) {
        (self.spent, self.since) = (0, None);
        self.wait = WAIT_FIRST;
    }
}

/// The reasons for a lost connection, for messages to the user.
struct Outage {
    host: String,
    cause: String,
    /// Why the last login after the loss failed.
    login: Option<String>,
}

impl Outage {
    fn new(request: &Request) -> Outage {
        let name = request.host().map_or("", |host| &host.name);
        Outage {
            host: printable(name.as_bytes()),
            cause: String::new(),
            login: None,
        }
    }

    fn note(&mut self, message: String, had_begun: bool) {
        if had_begun {
            (self.cause, self.login) = (message, None);
        } else {
            self.login = Some(message);
        }
    }

    fn notice(&self, wait: Duration, retries: &Retries) -> String {
        let Outage { host, cause, .. } = self;
        format!(
            "fastcp: connection to {host} lost: {cause}; {}",
            next(wait, retries)
        )
    }

    fn detail(&self, wait: Duration, retries: &Retries) -> String {
        let why = self.login.as_deref().unwrap_or("unknown reason");
        format!("login failed ({why}); {}", next(wait, retries))
    }

    fn event(&self, wait: Duration) -> CopyEvent {
        CopyEvent::Retry(event::LoginRetry {
            host: self.host.clone(),
            cause: self.login.as_ref().unwrap_or(&self.cause).clone(),
            wait,
        })
    }

    fn given_up(&self, retries: &Retries) -> Error {
        let Outage { host, cause, login } = self;
        let mut message = format!("connection to {host} lost: {cause}");
        match retries.spent {
            0 => {}
            1 => message += "; gave up after 1 more login",
            spent => message += &format!("; gave up after {spent} more logins"),
        }
        if let Some(login) = login {
            message += &format!(" (the last: {login})");
        }
        Error::new(Kind::Lost, Side::Here, message)
    }
}

fn next(wait: Duration, retries: &Retries) -> String {
    let seconds = wait.as_secs_f64().round().max(1.0);
    let end = match (retries.retry.limit, retries.left) {
        (Some(limit), _) => format!("{} of {limit}", retries.spent),
        (None, left) => {
            let left = left.unwrap_or_default().as_secs();
            format!(
                "giving up in {}",
                units::duration(Duration::from_secs(left))
            )
        }
    };
    format!("logging in again in {seconds} s ({end})")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::report::SilentReporter;
    use crate::session::request::{CopyOptions, EndKind, Operand};

    #[tokio::test]
    async fn an_outage_before_the_first_login_is_over_when_a_login_succeeds() {
        let dest = Operand {
            typed: "h:".into(),
            host: None,
            what: EndKind::Path,
            path: Vec::new(),
        };
        let request = Request {
            retry: Retry::of(Some(Duration::from_millis(50)), None),
            ..Request::local(Vec::new(), dest, CopyOptions::default())
        };
        let client = ClientContext::new(Arc::default(), Arc::new(SilentReporter));
        let logins = Cell::new(0);
        let run = async |_: &Request, _: &ClientContext, _: Session<'_>| {
            logins.set(logins.get() + 1);
            match logins.get() {
                1 => {
                    let mut error = Error::new(Kind::Connect, Side::Here, "it is down");
                    ssh::classify(&mut error, "Connection refused");
                    Err(error.into())
                }
                2 => Err(LostSession {
                    error: Error::new(Kind::Lost, Side::Here, "the first loss"),
                    had_begun: true,
                    host: None,
                }),
                _ => Ok("direct".to_owned()),
            }
        };
        // By the second login, the time of the first outage has passed.
        let copied = repeat(&request, &client, run, || false).await;
        assert_eq!(copied.expect("a third login"), "direct");
    }

    #[test]
    fn waits_double_up_to_half_a_minute_and_start_again_with_progress() {
        let start = Instant::now();
        let counted = |limit| Retries::new(Retry::of(None, Some(limit)), &[7; 16]);
        let mut retries = counted(8);
        let waits: Vec<f64> = std::iter::from_fn(|| retries.next(start))
            .map(|wait| wait.as_secs_f64())
            .collect();
        assert_eq!(waits.len(), 8);
        for (wait, base) in waits.iter().zip([1, 2, 4, 8, 16, 30, 30, 30]) {
            let share = wait / f64::from(base);
            assert!((0.75..=1.25).contains(&share), "{waits:?}");
        }
        assert_ne!(waits[6], waits[7], "jitter");
        retries.refill();
        assert!(retries.next(start).unwrap() < WAIT_FIRST * 2);
        assert!(counted(0).next(start).is_none());
    }

    #[test]
    fn an_outage_may_last_for_so_long_and_the_last_login_comes_at_its_end() {
        let start = Instant::now();
        let mut retries = Retries::new(Retry::of(None, None), &[7; 16]);
        let mut now = start + Duration::from_secs(1000);
        let lost = now;
        while let Some(wait) = retries.next(now) {
            now += wait;
        }
        assert_eq!((now - lost).as_secs(), 300, "a host restarts in less");
        assert!((12..20).contains(&retries.spent), "{}", retries.spent);
        retries.refill();
        assert!(retries.next(now).is_some(), "that is another outage");
        let never = Retry::of(Some(Duration::ZERO), None);
        assert!(Retries::new(never, &[7; 16]).next(now).is_none());
    }

    #[test]
    fn an_outage_is_told_by_its_cause_and_by_the_last_login() {
        let mut outage = Outage {
            host: "h".to_owned(),
            cause: String::new(),
            login: None,
        };
        let mut retries = Retries::new(Retry::of(None, Some(2)), &[7; 16]);
        let now = Instant::now();
        outage.note("ssh was killed by signal 9".to_owned(), true);
        assert_eq!(
            outage.given_up(&retries).message,
            "connection to h lost: ssh was killed by signal 9"
        );
        let wait = retries.next(now).unwrap();
        assert_eq!(
            outage.notice(wait, &retries),
            "fastcp: connection to h lost: ssh was killed by signal 9; \
             logging in again in 1 s (1 of 2)"
        );
        outage.note("no route to host".to_owned(), false);
        retries.next(now).unwrap();
        assert_eq!(
            outage.given_up(&retries).message,
            "connection to h lost: ssh was killed by signal 9; gave up after 2 more logins \
             (the last: no route to host)"
        );
        assert!(!is_worth_a_retry(Kind::Connect, Attempt::First));
        assert!(is_worth_a_retry(
            Kind::Connect,
            Attempt::Again { afresh: true }
        ));
        assert!(!is_worth_a_retry(
            Kind::Busy,
            Attempt::Again { afresh: true }
        ));
    }
}

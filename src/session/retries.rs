//! A copy in as many sessions as it takes: when the connection is lost, the client logs in again
//! and asks for the same, and the receiver goes on where it was. How often and after which waits
//! is decided here, and what the user hears of it.

use std::time::Duration;

use tokio::time::timeout;

use crate::error::{Error, Kind, Result, Side};
use crate::progress::Phase;
use crate::seal::Secret;
use crate::session::between;
use crate::session::client::{self, Session};
use crate::session::login::{Attempt, SAME_SIGNAL};
use crate::session::rate;
use crate::session::request::Request;
use crate::session::{Seat, cause_of};
use crate::units::printable;
use crate::wire::message::SESSIONS_MAX;

/// A wait doubles from the first to the last: a link that hiccups is back in a second, and a host
/// that restarts is not hammered.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_LAST: Duration = Duration::from_secs(30);

/// Waits differ by as much as this share either way, so that many copies that were cut at once do
/// not come back at once.
const JITTER: f64 = 0.25;

/// Copies between this machine and a host, or between two. Gives the route that data took.
///
/// # Errors
/// What another login would not mend; after a signal, that; after the last login `Kind::Lost`.
pub async fn copy(request: &Request, seat: &Seat) -> Result<String> {
    let mut request = request.clone();
    let mut retries = Retries::new(request.retries, &Secret::session());
    let mut outage = Outage::new(&request);
    let mut before = Vec::new();
    let mut attempt = Attempt::First;
    loop {
        let id = Secret::session();
        let session = Session {
            id,
            before: &before,
            attempt,
        };
        if let Some(Ok(rate)) = request.rate_file.as_deref().map(rate::read) {
            request.options.rate_limit = rate;
        }
        let seat_of_session = seat.of_session();
        let copied = match request.hosts() {
            Some(_) => between::copy(&request, &seat_of_session, session).await,
            None => client::copy(&request, &seat_of_session, session).await,
        };
        let lost = match copied {
            Ok(route) => return Ok(route),
            Err(lost) => lost,
        };
        let error = unless_signalled(lost.error, seat).await?;
        if seat.ending.is_once() {
            return Err(unrepeatable(error, &request));
        }
        if lost.had_begun {
            before.push(id);
        }
        if before.is_empty() || !is_worth_a_retry(error.kind, attempt) {
            return Err(error);
        }
        if seat.begin_again() {
            retries.refill();
            // What is there is this command's own: a session that has brought something had
            // thrown away before what an earlier run left.
            request.options.no_resume = false;
        }
        if let Some(host) = lost.host {
            outage.host = host;
        }
        outage.note(error.message, lost.had_begun);
        let wait = retries.next().filter(|_| before.len() < SESSIONS_MAX);
        let Some(wait) = wait else {
            return Err(outage.given_up(&retries));
        };
        if lost.had_begun {
            seat.reporter.notice(&outage.notice(wait, &retries));
        } else {
            seat.reporter.detail(&outage.detail(wait, &retries));
        }
        seat.progress.set_phase(Phase::Reconnecting);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = seat.ending.wait() => return Err(cause_of(&seat.ending)),
        }
        // A master connection is fast where it lives, and may be as dead as the one that was lost.
        let afresh = !lost.had_begun;
        attempt = Attempt::Again { afresh };
    }
}

/// Another session would need what is gone.
fn unrepeatable(mut error: Error, request: &Request) -> Error {
    if error.kind == Kind::Lost {
        error.message +=
            "; a stream does not come a second time, so this copy cannot be gone on with";
        if request.options.spool && request.dest.host.is_some() {
            error.message += " (what has come of it is kept there, beside its name)";
        }
    }
    error
}

/// A login that failed once the first has succeeded may succeed later.
fn is_worth_a_retry(kind: Kind, attempt: Attempt) -> bool {
    let is_login = matches!(kind, Kind::Connect | Kind::FarEnd);
    kind.is_worth_a_retry() || (is_login && attempt != Attempt::First)
}

/// After a signal a lost connection is the end: a terminal sends Ctrl-C to ssh too, which may be
/// the faster to go. One that ended the far end alone is a connection lost.
async fn unless_signalled(error: Error, seat: &Seat) -> Result<Error> {
    let may_be_its_effect = matches!(
        error.kind,
        Kind::Lost | Kind::Connect | Kind::FarEnd | Kind::Signal(_)
    );
    if may_be_its_effect {
        let _ = timeout(SAME_SIGNAL, seat.ending.wait()).await;
        if let Some(signal) = seat.ending.cause() {
            return Err(signal);
        }
    }
    Ok(match error.kind {
        Kind::Signal(number) => {
            let message = format!("the far end was ended there by signal {number}");
            Error::new(Kind::Lost, Side::Here, message)
        }
        _ => error,
    })
}

/// How many logins are left and how long to wait before the next.
#[derive(Debug)]
struct Retries {
    limit: u16,
    spent: u16,
    wait: Duration,
    random: u64,
}

impl Retries {
    fn new(limit: u16, seed: &[u8; 16]) -> Retries {
        let (seed, _) = seed.split_first_chunk().expect("16 bytes are 8 and more");
        Retries {
            limit,
            spent: 0,
            wait: WAIT_FIRST,
            random: u64::from_le_bytes(*seed),
        }
    }

    /// None when all are spent.
    fn next(&mut self) -> Option<Duration> {
        if self.spent >= self.limit {
            return None;
        }
        self.spent += 1;
        let wait = self.wait;
        self.wait = (wait * 2).min(WAIT_LAST);
        // One step of Knuth's generator (MMIX); its upper bits are the good ones.
        let (factor, term) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.random = self.random.wrapping_mul(factor).wrapping_add(term);
        let share = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        Some(wait.mul_f64(1.0 + JITTER * (2.0 * share - 1.0)))
    }

    /// The copy got further: what comes now is another outage.
    fn refill(&mut self) {
        self.spent = 0;
        self.wait = WAIT_FIRST;
    }
}

/// Why there is no connection, in the user's words.
struct Outage {
    host: String,
    cause: String,
    /// Why the last login failed, of those since.
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
            "fastcp: connection to {host} lost ({cause}); {}",
            next(wait, retries)
        )
    }

    fn detail(&self, wait: Duration, retries: &Retries) -> String {
        let why = self.login.as_deref().unwrap_or("for no known reason");
        format!("login failed ({why}); {}", next(wait, retries))
    }

    fn given_up(&self, retries: &Retries) -> Error {
        let Outage { host, cause, login } = self;
        let mut message = format!("connection to {host} lost: {cause}");
        match retries.spent {
            0 => {}
            1 => message += "; gave up after another login",
            spent => message += &format!("; gave up after {spent} more logins"),
        }
        if let Some(login) = login {
            message += &format!(" (the last: {login})");
        }
        Error::new(Kind::Lost, Side::Here, message)
    }
}

fn next(wait: Duration, retries: &Retries) -> String {
    let Retries { spent, limit, .. } = retries;
    let seconds = wait.as_secs_f64().round().max(1.0);
    format!("logging in again in {seconds} s ({spent} of {limit})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_minute_and_start_again_with_progress() {
        let mut retries = Retries::new(8, &[7; 16]);
        let waits: Vec<f64> = std::iter::from_fn(|| retries.next())
            .map(|wait| wait.as_secs_f64())
            .collect();
        assert_eq!(waits.len(), 8);
        for (wait, base) in waits.iter().zip([1, 2, 4, 8, 16, 30, 30, 30]) {
            let share = wait / f64::from(base);
            assert!((0.75..=1.25).contains(&share), "{waits:?}");
        }
        assert_ne!(waits[6], waits[7], "jitter");
        retries.refill();
        assert!(retries.next().unwrap() < WAIT_FIRST * 2);
        assert!(Retries::new(0, &[7; 16]).next().is_none());
    }

    #[test]
    fn an_outage_is_told_by_its_cause_and_by_the_last_login() {
        let mut outage = Outage {
            host: "h".to_owned(),
            cause: String::new(),
            login: None,
        };
        let mut retries = Retries::new(2, &[7; 16]);
        outage.note("ssh was ended by signal 9".to_owned(), true);
        assert_eq!(
            outage.given_up(&retries).message,
            "connection to h lost: ssh was ended by signal 9"
        );
        let wait = retries.next().unwrap();
        assert_eq!(
            outage.notice(wait, &retries),
            "fastcp: connection to h lost (ssh was ended by signal 9); \
             logging in again in 1 s (1 of 2)"
        );
        outage.note("no route to host".to_owned(), false);
        retries.next().unwrap();
        assert_eq!(
            outage.given_up(&retries).message,
            "connection to h lost: ssh was ended by signal 9; gave up after 2 more logins \
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

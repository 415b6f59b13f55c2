//! The wait of a copy whose destination another copy is writing (`--wait`). The copy then tries
//! again from its beginning: the source may have changed since then.

use std::time::{Duration, Instant, SystemTime};

use crate::error::{BUSY_ADVICE, Error, Kind, Result};
use crate::session::context::ClientContext;
use crate::session::request::Request;
use crate::session::schedule::Wait;
use crate::units::duration;

/// The pause between two attempts doubles from the first to the last. A short copy delays the next
/// one little, and a long one costs few logins.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(30);

/// The advice of earlier versions.
const EARLIER_ADVICE: &str = "; wait for it to end, or stop it";

pub struct WaitForTurn {
    wait: Wait,
    /// The option of a wait with a limit, for messages; scp's command line has none.
    option: &'static str,
    /// The first refusal.
    since: Option<Instant>,
    pause: Duration,
}

impl WaitForTurn {
    pub fn new(request: &Request) -> WaitForTurn {
        WaitForTurn {
            wait: request.schedule.wait,
            option: if request.options.scp { "" } else { " (--wait)" },
            since: None,
            pause: PAUSE_FIRST,
        }
    }

    pub fn has_waited(&self) -> bool {
        self.since.is_some()
    }

    /// Pauses before the next attempt, if `error` says that another copy writes there.
    ///
    /// # Errors
    /// `error`, if the user does not want to wait, if the wait is over, or if a pipe has been read;
    /// the cause of the copy's end, if it is ended.
    pub async fn next(&mut self, mut error: Error, client: &ClientContext) -> Result<()> {
        if error.kind != Kind::Busy || self.wait == Wait::Never || client.shutdown.is_once() {
            return Err(error);
        }
        let now = Instant::now();
        let passed = now.duration_since(*self.since.get_or_insert(now));
        for advice in [BUSY_ADVICE, EARLIER_ADVICE] {
            if let Some(rest) = error.message.strip_suffix(advice) {
                error.message.truncate(rest.len());
            }
        }
        let mut pause = self.pause;
        let mut limit = String::new();
        if let Wait::For(most) = self.wait {
            let left = most.saturating_sub(passed);
            if left.is_zero() {
                error.message += &format!("; gave up after {}{}", duration(most), self.option);
                return Err(error);
            }
            // The last attempt is at the end of the time.
            pause = pause.min(left);
            limit = format!(" for up to {}", duration(most));
        }
        if passed.is_zero() {
            error.message += &format!("; waiting{limit} for it to end");
            client.reporter.waiting(&error);
        }
        let until = match self.wait {
            Wait::For(most) => SystemTime::now().checked_add(most - passed),
            _ => None,
        };
        let what = "waiting for another copy to the same place to end".to_owned();
        client.progress.set_waiting(what, until);
        let paused = tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            () = client.shutdown.wait() => Err(client.shutdown.error()),
        };
        client.progress.add_waited(now.elapsed());
        self.pause = (self.pause * 2).min(PAUSE_LAST);
        paused
    }
}

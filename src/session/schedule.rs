//! When a copy starts and when it stops, and whether it waits for another copy to the same place.
//!
//! A stop ends a copy as a signal does: the far end keeps its partial files, and the next run resumes.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

use super::host;
use crate::error::{Error, Kind, Result, Side};
use crate::pipeline::Shutdown;
use crate::progress::Progress;
use crate::threads;
use crate::units::duration;

/// Interval between readings of the clock. Someone may set the clock, and a machine may sleep past
/// a planned time: it acts within this interval afterwards.
const LOOK: Duration = Duration::from_secs(1);

/// How long a stopped copy may take to end, before it ends as after a second signal. A disk or the
/// far end may hang, and nobody may be there to press Ctrl-C.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// The times that the user has set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// `--start-at`
    pub start: Option<PlannedTime>,
    /// `--stop-at`
    pub stop: Option<PlannedTime>,
    /// `--stop-after`, from the start.
    pub stop_after: Option<Duration>,
    /// `--wait`
    pub wait: Wait,
}

/// A time by the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTime {
    pub at: SystemTime,
    /// In the user's time zone, for messages: `2026-11-28 06:00`.
    pub shown: String,
}

/// What a copy does if another one writes to the same place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It fails.
    #[default]
    Never,
    /// It waits until the other one has ended.
    Always,
    /// The same, for at most this time.
    For(Duration),
}

impl Schedule {
    /// Waits until `start`. Then a thread begins to watch for the time of the stop. The `copies`
    /// start together, and `shutdown` ends them all; `at_once` is that of
    /// [`host::end_on_signals`]. Sets `started` after a wait.
    ///
    /// # Errors
    /// The cause of the end, if the copy is ended before it starts; `Kind::FarEnd` if the system
    /// allows no further thread.
    pub async fn begin(
        &self,
        copies: &[&Progress],
        shutdown: &Arc<Shutdown>,
        at_once: &CancellationToken,
        started: &mut Instant,
    ) -> Result<()> {
        if let Some(start) = &self.start {
            wait_until(start, copies, shutdown).await?;
            *started = Instant::now();
        }
        self.stop_in_time(shutdown.clone(), at_once.clone())
    }

    /// A separate thread watches the time, because a disk may block all others.
    fn stop_in_time(&self, shutdown: Arc<Shutdown>, at_once: CancellationToken) -> Result<()> {
        let (stop, after) = (self.stop.clone(), self.stop_after);
        if stop.is_none() && after.is_none() {
            return Ok(());
        }
        let began = time_awake_or_asleep();
        let watch = move || {
            let reason = loop {
                let at_stop = stop.as_ref().map(|stop| (left_until(stop.at), stop));
                let left = after.map(|after| {
                    let passed = time_awake_or_asleep().saturating_sub(began);
                    (after.saturating_sub(passed), after)
                });
                match (at_stop, left) {
                    (Some((Duration::ZERO, stop)), _) => {
                        break format!("stopped at {} (--stop-at)", stop.shown);
                    }
                    (_, Some((Duration::ZERO, after))) => {
                        break format!("stopped after {} (--stop-after)", duration(after));
                    }
                    (at_stop, left) => {
                        let left = left.map(|(left, _)| left);
                        let left = at_stop.map(|(left, _)| left).into_iter().chain(left);
                        std::thread::sleep(left.chain([LOOK]).min().unwrap_or(LOOK));
                    }
                }
            };
            shutdown.end(Error::new(Kind::Stopped, Side::Here, reason));
            std::thread::sleep(END_PATIENCE);
            at_once.cancel();
            host::exit_soon(Kind::Stopped);
        };
        threads::start(watch).map(drop)
    }
}

async fn wait_until(
    start: &PlannedTime,
    copies: &[&Progress],
    shutdown: &Arc<Shutdown>,
) -> Result<()> {
    let began = Instant::now();
    for copy in copies {
        let what = format!("waiting until {} (--start-at)", start.shown);
        copy.set_waiting(what, Some(start.at));
    }
    loop {
        let left = left_until(start.at);
        if left.is_zero() {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(left.min(LOOK)) => {}
            () = shutdown.wait() => return Err(shutdown.error()),
        }
    }
    copies
        .iter()
        .for_each(|copy| copy.end_waiting(began.elapsed()));
    Ok(())
}

/// Zero if the time has passed.
fn left_until(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::now()).unwrap_or_default()
}

/// Time since the boot, which setting the clock does not change and which includes the sleep of a
/// laptop.
fn time_awake_or_asleep() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        now.tv_sec.try_into().unwrap_or_default(),
        now.tv_nsec.try_into().unwrap_or_default(),
    )
}

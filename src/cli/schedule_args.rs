//! The options for the time of a copy. rsync's `--stop-at` and `--stop-after` are among them.

use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::session::schedule::{PlannedTime, Schedule, Wait};

use super::clock_time::{self, TypedTime, Zone, shown};
use super::values::{stop_after, wait};

const TIMES: &str = "Start and stop";

/// A copy at a later time is assumed to be a mistake.
const LATEST_S: i64 = 366 * 24 * 3600;

#[derive(Debug, clap::Args)]
pub(super) struct ScheduleArgs {
    /// Start at TIME: 22:00, 2026-11-28T22:00 or now+2h
    #[arg(long, value_name = "TIME", help_heading = TIMES, value_parser = clock_time::parse)]
    start_at: Option<TypedTime>,
    /// Stop at TIME (exit 15); the same command resumes
    #[arg(long, value_name = "TIME", help_heading = TIMES, value_parser = clock_time::parse)]
    stop_at: Option<TypedTime>,
    /// Stop after TIME, such as 4h; see --stop-at
    #[arg(long, value_name = "TIME", help_heading = TIMES, value_parser = stop_after)]
    stop_after: Option<Duration>,
    /// Wait while another fastcp writes to DEST
    #[arg(long, value_name = "TIME", help_heading = TIMES, num_args = 0..=1,
          require_equals = true, value_parser = wait)]
    wait: Option<Option<Duration>>,
}

impl ScheduleArgs {
    /// The times, and a line for the user about the start.
    ///
    /// # Errors
    /// Usage, if a time has passed, is too far away, or precedes the start.
    pub(super) fn schedule(
        &self,
        now: SystemTime,
        zone: Zone<'_>,
    ) -> Result<(Schedule, Option<String>)> {
        let wait = match self.wait {
            None => Wait::Never,
            Some(None) => Wait::Always,
            Some(Some(time)) => Wait::For(time),
        };
        let now_s = match now.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => since.as_secs() as i64,
            Err(_) => 0,
        };
        let planned = |flag: &str, typed: TypedTime, after: i64| {
            let time = typed.first_after(after, now_s, zone);
            if time.saturating_sub(now_s) > LATEST_S {
                return Err(Error::usage(format!(
                    "{flag}: that time is more than a year away"
                )));
            }
            Ok(time)
        };
        let (mut start, mut notice) = (None, None);
        if let Some(typed) = self.start_at {
            let time = planned("--start-at", typed, now_s)?;
            let at = shown(time, zone);
            if time > now_s {
                start = Some(time);
                notice = Some(format!("fastcp: waiting until {at} (--start-at)"));
            } else if time < now_s {
                notice = Some(format!(
                    "fastcp: {at} has passed: the copy starts now (--start-at)"
                ));
            }
        }
        let begins = start.unwrap_or(now_s);
        let stop = match self.stop_at {
            None => None,
            Some(typed) => Some(planned("--stop-at", typed, begins)?),
        };
        if let Some(stop) = stop.filter(|stop| *stop <= begins) {
            let stop = shown(stop, zone);
            return Err(Error::usage(match start {
                Some(start) => format!(
                    "--stop-at: {stop} is not after the start at {}",
                    shown(start, zone)
                ),
                None => format!("--stop-at: {stop} has passed: give a later time"),
            }));
        }
        let planned = |time: i64| PlannedTime {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(time.unsigned_abs()),
            shown: shown(time, zone),
        };
        let schedule = Schedule {
            start: start.map(planned),
            stop: stop.map(planned),
            stop_after: self.stop_after,
            wait,
        };
        Ok((schedule, notice))
    }

    /// # Errors
    /// Usage, if one of the options is given: `option` acts at once.
    pub(super) fn refuse(&self, option: &str) -> Result<()> {
        let given = [
            ("--start-at", self.start_at.is_some()),
            ("--stop-at", self.stop_at.is_some()),
            ("--stop-after", self.stop_after.is_some()),
            ("--wait", self.wait.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((given, _)) => Err(Error::usage(format!(
                "{option} copies nothing and acts at once: leave out {given}"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Args;
    use clap::Parser;

    /// 2026-11-27 20:00 in UTC.
    const NOW: u64 = 1_795_809_600;

    fn scheduled(line: &str) -> Result<(Schedule, Option<String>)> {
        let words = ["fastcp", "a", "b"].into_iter();
        let args = Args::try_parse_from(words.chain(line.split_whitespace()));
        let args = args.unwrap_or_else(|error| panic!("{line}: {error}"));
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(NOW * 1000 + 400);
        args.schedule.schedule(now, &|_| 0)
    }

    fn times(line: &str) -> [Option<String>; 2] {
        let (schedule, _) = scheduled(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        [schedule.start, schedule.stop].map(|time| Some(time?.shown))
    }

    fn refused(line: &str) -> String {
        let error = scheduled(line).expect_err(line);
        assert_eq!(error.kind.exit_code(), 2, "{line}");
        error.message
    }

    #[test]
    fn a_stop_is_the_first_such_time_after_the_start() {
        let (evening, morning) = ("2026-11-27 22:00", "2026-11-28 06:00");
        let both = |start: &str, stop: &str| [Some(start.to_owned()), Some(stop.to_owned())];
        assert_eq!(times(""), [None, None]);
        assert_eq!(times("--stop-at 06:00"), [None, Some(morning.to_owned())]);
        let night = "--start-at 22:00 --stop-at 06:00";
        assert_eq!(times(night), both(evening, morning));
        // Not at 21:00 of the same day, which precedes the start.
        let almost_a_day = times("--start-at 22:00 --stop-at 21:00");
        assert_eq!(almost_a_day, both(evening, "2026-11-28 21:00"));
        let same = times("--start-at 22:00 --stop-at 22:00");
        assert_eq!(same, both(evening, "2026-11-28 22:00"));
        let later = times("--start-at now+2h --stop-at now+3h");
        assert_eq!(later, both(evening, "2026-11-27 23:00"));
        let (schedule, notice) = scheduled("--start-at 22:00 --stop-after 4h").unwrap();
        assert_eq!(schedule.stop_after, Some(Duration::from_secs(4 * 3600)));
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW + 2 * 3600);
        assert_eq!(schedule.start.unwrap().at, at);
        let told = "fastcp: waiting until 2026-11-27 22:00 (--start-at)";
        assert_eq!(notice.as_deref(), Some(told));
    }

    #[test]
    fn a_start_that_has_passed_is_now_and_such_a_stop_is_refused() {
        let (schedule, notice) = scheduled("--start-at 2026-11-27T19:00").unwrap();
        assert_eq!(schedule.start, None);
        let told = "fastcp: 2026-11-27 19:00 has passed: the copy starts now (--start-at)";
        assert_eq!(notice.as_deref(), Some(told));
        assert_eq!(scheduled("--start-at now").unwrap().1, None);
        for (line, told) in [
            (
                "--stop-at 2026-11-27T19:00",
                "2026-11-27 19:00 has passed: give a later time",
            ),
            ("--stop-at now", "has passed"),
            (
                "--start-at 22:00 --stop-at now+1h",
                "2026-11-27 21:00 is not after the start at 2026-11-27 22:00",
            ),
            (
                "--stop-at 2029-01-01",
                "--stop-at: that time is more than a year away",
            ),
            (
                "--start-at now+9000h",
                "--start-at: that time is more than a year away",
            ),
        ] {
            let refused = refused(line);
            assert!(refused.contains(told), "{line}: {refused}");
        }
    }

    #[test]
    fn a_wait_may_have_a_limit() {
        let waits = |line: &str| scheduled(line).unwrap().0.wait;
        assert_eq!(waits(""), Wait::Never);
        assert_eq!(waits("--wait"), Wait::Always);
        assert_eq!(waits("--wait=90min"), Wait::For(Duration::from_secs(5400)));
    }
}

//! Times as typed: `06:00`, `2026-11-28T06:00`, `now+2h`. Without a zone they mean the user's local
//! time. Most of rsync's forms of `--stop-at` are among them.
//!
//! Twice a year the clock of many zones shows an hour twice, or leaves one out. A time that comes
//! twice means the next of its two moments. A time that is left out means the moment at which the
//! clock is set forward.

use std::time::Duration;

use crate::calendar::{civil, days_of};

use super::values::time;

const DAY_S: i64 = 24 * 3600;

/// The seconds that local time is ahead of UTC at a time in seconds since 1970.
pub(super) type Zone<'a> = &'a dyn Fn(i64) -> i64;

/// A time that may depend on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypedTime {
    /// `06:00`: seconds since midnight.
    OfAnyDay(i64),
    /// `11-28T06:00`
    OfAnyYear { month: i64, day: i64, second: i64 },
    /// `2026-11-28T06:00`: seconds since 1970 by a clock that shows local time.
    Local(i64),
    /// `2026-11-28T06:00Z`: seconds since 1970.
    Zoned(i64),
    /// `now+2h`
    FromNow(Duration),
}

/// The valid forms, for messages.
const EXPECTED: &str = "expected a time, such as 06:00, 06:00:30, 2026-11-28T06:00, \
                        2026-11-28T06:00Z or now+2h";

/// # Errors
/// A sentence with examples.
pub(super) fn parse(text: &str) -> Result<TypedTime, String> {
    let text = text.trim();
    if let Some(later) = text.strip_prefix("now") {
        let later = later.trim();
        let amount = match later.strip_prefix('+') {
            Some(amount) => time(amount.trim(), "now+90min or now+2h")?,
            None if later.is_empty() => Duration::ZERO,
            None => return Err(EXPECTED.to_owned()),
        };
        return Ok(TypedTime::FromNow(amount));
    }
    let (date, clock) = match text.split_once(['T', 't', ' ']) {
        Some((date, clock)) => (Some(date), Some(clock.trim())),
        None if text.contains(':') => (None, Some(text)),
        None => (Some(text), None),
    };
    let expected = || EXPECTED.to_owned();
    let (second, zone) = match clock {
        // As in rsync, a date alone means its beginning.
        None => (0, None),
        Some(clock) => {
            let (clock, zone) = without_zone(clock).ok_or_else(expected)?;
            (second_of_day(clock).ok_or_else(expected)?, zone)
        }
    };
    let Some(date) = date else {
        return match zone {
            None => Ok(TypedTime::OfAnyDay(second)),
            Some(_) => Err("a time with a zone needs a date: 2026-11-28T06:00Z".to_owned()),
        };
    };
    let fields: Vec<&str> = date.split(['-', '/']).collect();
    let fields: Option<Vec<i64>> = fields.into_iter().map(number).collect();
    let (year, month, day) = match fields.as_deref() {
        Some(&[year @ 1970..=9999, month, day]) => (Some(year), month, day),
        Some(&[month, day]) => (None, month, day),
        _ => return Err(expected()),
    };
    // Every day of a year without a number exists in 2000.
    let days = days_of(year.unwrap_or(2000), month, day);
    if !(1..=12).contains(&month) || civil(days) != (year.unwrap_or(2000), month, day) {
        return Err(format!("there is no day {date}"));
    }
    Ok(match (year, zone) {
        (Some(_), Some(ahead)) => TypedTime::Zoned(days * DAY_S + second - ahead),
        (Some(_), None) => TypedTime::Local(days * DAY_S + second),
        (None, None) => TypedTime::OfAnyYear { month, day, second },
        (None, Some(_)) => return Err("a time with a zone needs a year".to_owned()),
    })
}

/// Splits `06:00+01:00` into the time and the seconds that its zone is ahead of UTC.
fn without_zone(clock: &str) -> Option<(&str, Option<i64>)> {
    if let Some(clock) = clock.strip_suffix(['Z', 'z']) {
        return Some((clock, Some(0)));
    }
    let Some(at) = clock.rfind(['+', '-']) else {
        return Some((clock, None));
    };
    let (clock, zone) = clock.split_at(at);
    let (hours, minutes) = match zone[1..].split_once(':') {
        Some(parts) => parts,
        None => zone[1..].split_at_checked(2)?,
    };
    let minutes = if minutes.is_empty() { "00" } else { minutes };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let is_possible = hours <= 14 && minutes < 60;
    let ahead = (hours * 60 + minutes) * 60;
    let ahead = if zone.starts_with('-') { -ahead } else { ahead };
    is_possible.then_some((clock, Some(ahead)))
}

/// `06:00` or `06:00:30`
fn second_of_day(clock: &str) -> Option<i64> {
    let fields: Vec<&str> = clock.split(':').collect();
    let fields: Vec<i64> = fields.into_iter().map(number).collect::<Option<_>>()?;
    let (hour, minute, second) = match fields[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let exists = hour < 24 && minute < 60 && second < 60;
    exists.then_some((hour * 60 + minute) * 60 + second)
}

/// One to four digits.
fn number(text: &str) -> Option<i64> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

impl TypedTime {
    /// The first such time after `after`, in seconds since 1970. A complete date or `now+` may
    /// be earlier.
    pub(super) fn first_after(self, after: i64, now: i64, zone: Zone<'_>) -> i64 {
        let first = |local: &mut dyn Iterator<Item = i64>| {
            let mut times = local.flat_map(|local| at_local(local, zone));
            times.find(|time| *time > after)
        };
        let today = (after + zone(after)).div_euclid(DAY_S);
        match self {
            TypedTime::OfAnyDay(second) => {
                // A zone may leave out a day.
                let mut days = (today - 1..=today + 3).map(|day| day * DAY_S + second);
                first(&mut days).unwrap_or(after + DAY_S)
            }
            TypedTime::OfAnyYear { month, day, second } => {
                let (year, ..) = civil(today);
                // 29 February may be eight years away.
                let days = (year..=year + 9).map(|year| (year, days_of(year, month, day)));
                let days = days.filter(|(year, days)| civil(*days) == (*year, month, day));
                first(&mut days.map(|(_, days)| days * DAY_S + second)).unwrap_or(i64::MAX)
            }
            TypedTime::Local(local) => {
                let times = at_local(local, zone);
                let later = times.iter().find(|time| **time > after);
                later.or(times.last()).copied().unwrap_or(local)
            }
            TypedTime::Zoned(time) => time,
            TypedTime::FromNow(time) => now.saturating_add(time.as_secs().min(1 << 40) as i64),
        }
    }
}

/// The moments at which a clock of the zone shows `local`, in seconds since 1970 by that clock:
/// one, or two when it is set back. If it is set forward over `local`, that moment.
fn at_local(local: i64, zone: Zone<'_>) -> Vec<i64> {
    // No zone is a day ahead or behind.
    let (mut before, mut after) = (local - DAY_S, local + DAY_S);
    let mut times: Vec<i64> = [zone(before), zone(after)]
        .into_iter()
        .map(|ahead| local - ahead)
        .filter(|time| time + zone(*time) == local)
        .collect();
    times.sort_unstable();
    times.dedup();
    if times.is_empty() {
        let ahead = zone(before);
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            match zone(middle) == ahead {
                true => before = middle,
                false => after = middle,
            }
        }
        times.push(after);
    }
    times
}

/// `2026-11-28 06:00`, or with seconds if they are not 0.
pub(super) fn shown(time: i64, zone: Zone<'_>) -> String {
    let local = time + zone(time);
    let (year, month, day) = civil(local.div_euclid(DAY_S));
    let second = local.rem_euclid(DAY_S);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let seconds = match second {
        0 => String::new(),
        second => format!(":{second:02}"),
    };
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}{seconds}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::host;

    /// Central Europe in 2026: UTC+1, and UTC+2 from 29 March to 25 October, each at 01:00 UTC.
    fn berlin(time: i64) -> i64 {
        let summer = utc("2026-03-29T01:00")..utc("2026-10-25T01:00");
        if summer.contains(&time) { 7200 } else { 3600 }
    }

    fn utc(text: &str) -> i64 {
        match parse(&format!("{text}Z")) {
            Ok(TypedTime::Zoned(time)) => time,
            other => panic!("{text}: {other:?}"),
        }
    }

    /// In UTC, for the same time typed in Berlin.
    fn from(now: &str, typed: &str) -> String {
        let now = utc(now);
        let typed = parse(typed).unwrap_or_else(|error| panic!("{typed}: {error}"));
        shown(typed.first_after(now, now, &berlin), &|_| 0)
    }

    #[test]
    fn a_time_of_the_day_is_the_next_one() {
        for (now, typed, next) in [
            ("2026-11-27T20:00", "22:00", "2026-11-27 21:00"),
            ("2026-11-27T21:00", "22:00", "2026-11-28 21:00"),
            ("2026-11-27T20:59:59", "22:00", "2026-11-27 21:00"),
            ("2026-11-27T22:30", "06:00:30", "2026-11-28 05:00:30"),
            // In Berlin the next day has begun.
            ("2026-11-27T23:30", "00:15", "2026-11-28 23:15"),
            ("2026-12-31T20:00", "6:00", "2027-01-01 05:00"),
            ("2026-11-27T20:00", "11-27", "2027-11-26 23:00"),
            ("2026-11-27T20:00", "11/28T6:30", "2026-11-28 05:30"),
            ("2026-11-27T20:00", "2-29T00:00", "2028-02-28 23:00"),
            ("2026-11-27T20:00", "2026-11-28T06:00", "2026-11-28 05:00"),
            ("2026-11-27T20:00", "2026/11/28 06:00", "2026-11-28 05:00"),
            ("2026-11-27T20:00", "2026-11-28", "2026-11-27 23:00"),
            (
                "2026-11-27T20:00",
                "2026-11-28T06:00+02:00",
                "2026-11-28 04:00",
            ),
            (
                "2026-11-27T20:00",
                "2026-11-28T06:00:07-0330",
                "2026-11-28 09:30:07",
            ),
            ("2026-11-27T20:00", "2025-11-28T06:00", "2025-11-28 05:00"),
            ("2026-11-27T20:00", "now + 90min", "2026-11-27 21:30"),
            ("2026-11-27T20:00", "now+1h 30s", "2026-11-27 21:00:30"),
            ("2026-11-27T20:00", "now", "2026-11-27 20:00"),
        ] {
            assert_eq!(from(now, typed), next, "{typed} at {now}");
        }
    }

    #[test]
    fn the_hour_that_the_clock_leaves_out_or_shows_twice_is_no_trap() {
        for (now, typed, next) in [
            // 02:00 to 03:00 is left out.
            ("2026-03-28T20:00", "02:30", "2026-03-29 01:00"),
            ("2026-03-28T20:00", "03:00", "2026-03-29 01:00"),
            ("2026-03-28T20:00", "01:59", "2026-03-29 00:59"),
            ("2026-03-28T20:00", "2026-03-29T02:30", "2026-03-29 01:00"),
            ("2026-03-29T01:00", "02:30", "2026-03-30 00:30"),
            // 02:00 to 03:00 comes twice.
            ("2026-10-24T20:00", "02:30", "2026-10-25 00:30"),
            ("2026-10-25T00:30", "02:30", "2026-10-25 01:30"),
            ("2026-10-25T01:30", "02:30", "2026-10-26 01:30"),
            ("2026-10-25T00:45", "2026-10-25T02:30", "2026-10-25 01:30"),
            ("2026-10-24T20:00", "06:00", "2026-10-25 05:00"),
        ] {
            assert_eq!(from(now, typed), next, "{typed} at {now}");
        }
    }

    #[test]
    fn what_is_no_time_is_answered_with_examples() {
        for text in [
            "",
            "6",
            "24:00",
            "6:60",
            "06:00:60",
            "6:0x",
            "+6:00",
            "tomorrow",
            "now-2h",
            "now2h",
            "06.00",
            "2026-11-28T",
            "T06:00",
            "2026-11-28T06:00+15:00",
            "26-11-28T06:00",
            "2026-11-28T06:00+1",
            "now+2",
            "06:00:00:00",
            "2026-11-28T06:00+\u{e9}\u{e9}",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains("now+"), "{text}: {error}");
        }
        for text in ["2026-02-30", "13-01", "2026-00-10T06:00", "2026-11-00"] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with("there is no day "), "{text}: {error}");
        }
        assert!(parse("06:00Z").unwrap_err().contains("needs a date"));
        assert!(parse("11-28T06:00Z").unwrap_err().contains("needs a year"));
    }

    #[test]
    fn this_machine_has_a_zone() {
        let now = utc("2026-11-27T20:00");
        let typed = parse("2026-11-27T20:00").unwrap();
        let there = typed.first_after(now, now, &host::zone_here);
        assert_eq!(shown(there, &host::zone_here), "2026-11-27 20:00");
    }
}

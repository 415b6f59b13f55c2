//! Snapshots (`--snapshot`): their names, and which old ones `--keep` removes.

use serde::{Deserialize, Serialize};

use crate::calendar::{civil, days_of};

/// The name of the link to the newest complete snapshot.
pub const LATEST: &str = "latest";

/// Most snapshots of each period that can be kept.
const KEPT_MAX: u32 = 10_000;

const SECONDS_OF_DAY: i64 = 24 * 60 * 60;

/// The last second that has a year of four digits.
const LAST_SECOND: i64 = 253_402_300_799;

/// The user's wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTerms {
    /// `--strict`: a snapshot without some metadata is not complete.
    pub strict: bool,
    /// `--keep`: which older snapshots stay. None: all.
    pub keep: Option<Retention>,
}

/// How many snapshots `--keep` leaves: the newest of each of so many hours, days, weeks, months and
/// years that have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    pub hours: u32,
    pub days: u32,
    pub weeks: u32,
    pub months: u32,
    pub years: u32,
}

impl Retention {
    /// Parses `7d,4w,12m`.
    ///
    /// # Errors
    /// If it is something else, or keeps nothing.
    pub fn parse(text: &str) -> Result<Retention, String> {
        let expected = || {
            format!(
                "expected numbers from 1 to {KEPT_MAX} with h, d, w, m or y, each letter once, such as \
                 7d,4w,12m"
            )
        };
        let mut kept = Retention::default();
        for part in text.split(',') {
            let Some((last, unit)) = part.char_indices().next_back() else {
                return Err(expected());
            };
            let number = &part[..last];
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            let count = number
                .parse()
                .ok()
                .filter(|count| (1..=KEPT_MAX).contains(count));
            let place = match unit {
                'h' => &mut kept.hours,
                'd' => &mut kept.days,
                'w' => &mut kept.weeks,
                'm' => &mut kept.months,
                'y' => &mut kept.years,
                _ => return Err(expected()),
            };
            match count {
                Some(count) if is_number && *place == 0 => *place = count,
                _ => return Err(expected()),
            }
        }
        Ok(kept)
    }

    /// False for what no command line says.
    pub fn is_possible(&self) -> bool {
        let counts = [self.hours, self.days, self.weeks, self.months, self.years];
        counts.iter().any(|&count| count > 0) && counts.iter().all(|&count| count <= KEPT_MAX)
    }

    /// Which of these snapshots go. The newest stays, and so does `made`.
    pub fn thinned(&self, all: &[SnapshotName], made: SnapshotName) -> Vec<SnapshotName> {
        let mut newest_first = all.to_vec();
        newest_first.sort_unstable_by(|one, other| other.cmp(one));
        newest_first.dedup();
        type Period = fn(SnapshotName) -> i64;
        let periods: [(u32, Period); 5] = [
            (self.hours, |name| name.seconds.div_euclid(60 * 60)),
            (self.days, |name| name.days()),
            // Weeks begin on Monday; 1970 began on a Thursday.
            (self.weeks, |name| (name.days() + 3).div_euclid(7)),
            (self.months, |name| {
                let (year, month, _) = civil(name.days());
                year * 12 + month
            }),
            (self.years, |name| civil(name.days()).0),
        ];
        let mut kept: Vec<SnapshotName> = newest_first.first().copied().into_iter().collect();
        kept.push(made);
        for (count, period) in periods {
            let mut last = None;
            let mut left = count;
            for &name in &newest_first {
                if left == 0 {
                    break;
                }
                if last.replace(period(name)) != Some(period(name)) {
                    kept.push(name);
                    left -= 1;
                }
            }
        }
        newest_first.retain(|name| !kept.contains(name));
        newest_first
    }
}

/// The name of a snapshot: when its copy began, in UTC, as `2026-11-22T020000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotName {
    /// Seconds since 1970.
    seconds: i64,
}

impl SnapshotName {
    /// The name for a time in seconds since 1970. A clock that is far off gives the nearest year of
    /// four digits.
    pub fn of(seconds: i64) -> SnapshotName {
        SnapshotName {
            seconds: seconds.clamp(0, LAST_SECOND),
        }
    }

    /// The next possible name; None after the last.
    pub fn next(self) -> Option<SnapshotName> {
        (self.seconds < LAST_SECOND).then_some(SnapshotName {
            seconds: self.seconds + 1,
        })
    }

    /// None for any other name.
    pub fn parse(name: &[u8]) -> Option<SnapshotName> {
        let text = std::str::from_utf8(name).ok()?;
        let number = |range: std::ops::Range<usize>| -> Option<i64> {
            let digits = text.get(range)?;
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse().ok())?
        };
        let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
        let (hour, minute, second) = (number(11..13)?, number(13..15)?, number(15..17)?);
        let days = days_of(year, month, day);
        let seconds = days * SECONDS_OF_DAY + (hour * 60 + minute) * 60 + second;
        let parsed = SnapshotName { seconds };
        // No second name has the same time.
        (parsed.to_string().as_bytes() == name).then_some(parsed)
    }

    fn days(self) -> i64 {
        self.seconds.div_euclid(SECONDS_OF_DAY)
    }
}

impl std::fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (year, month, day) = civil(self.days());
        let second = self.seconds.rem_euclid(SECONDS_OF_DAY);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}{minute:02}{:02}Z",
            second % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> SnapshotName {
        SnapshotName::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn a_name_is_one_second_in_utc() {
        assert_eq!(SnapshotName::of(0).to_string(), "1970-01-01T000000Z");
        let made = SnapshotName::of(1_795_312_800);
        assert_eq!(made.to_string(), "2026-11-22T020000Z");
        for text in [
            "2026-11-22T020000Z",
            "2024-02-29T235959Z",
            "9999-12-31T235959Z",
        ] {
            assert_eq!(name(text).to_string(), text);
        }
        for text in [
            "",
            "latest",
            "2026-11-22T020000",
            "2026-11-22T020000Z.partial",
            "2026-02-29T000000Z",
            "2026-13-01T000000Z",
            "2026-11-22T240000Z",
            "2026-11-22T026000Z",
            "2026-11-22 020000Z",
            "+026-11-22T020000Z",
        ] {
            assert_eq!(SnapshotName::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(name("9999-12-31T235959Z").next(), None);
        assert_eq!(SnapshotName::of(i64::MAX), name("9999-12-31T235959Z"));
    }

    #[test]
    fn the_newest_of_each_period_stays() {
        let kept = |policy: &str, names: &[&str], made: &str| {
            let all: Vec<_> = names.iter().map(|text| name(text)).collect();
            let gone = Retention::parse(policy).unwrap().thinned(&all, name(made));
            let stays = all.into_iter().filter(|name| !gone.contains(name));
            stays.map(|name| name.to_string()).collect::<Vec<_>>()
        };
        let names = [
            "2025-12-30T020000Z",
            "2025-12-31T020000Z",
            "2026-11-15T020000Z", // Sunday
            "2026-11-16T020000Z", // Monday
            "2026-11-21T020000Z",
            "2026-11-22T010000Z",
            "2026-11-22T020000Z",
        ];
        let last = "2026-11-22T020000Z";
        assert_eq!(kept("1h", &names, last), [last]);
        assert_eq!(kept("2h", &names, last), ["2026-11-22T010000Z", last]);
        assert_eq!(kept("2d", &names, last), ["2026-11-21T020000Z", last]);
        assert_eq!(kept("2w", &names, last), ["2026-11-15T020000Z", last]);
        assert_eq!(kept("2m", &names, last), ["2025-12-31T020000Z", last]);
        assert_eq!(kept("9y", &names, last), ["2025-12-31T020000Z", last]);
        let both = ["2025-12-31T020000Z", "2026-11-21T020000Z", last];
        assert_eq!(kept("2d,2m", &names, last), both);
        // The one that was just made stays, even if others seem newer.
        let made = "2026-11-15T020000Z";
        assert_eq!(kept("1y", &names, made), [made, last]);
    }

    #[test]
    fn only_counts_of_periods_are_kept() {
        let parsed = Retention::parse("7d,4w,12m").unwrap();
        assert_eq!((parsed.days, parsed.weeks, parsed.months), (7, 4, 12));
        assert!(parsed.is_possible() && !Retention::default().is_possible());
        for text in [
            "", "7", "d", "0d", "7d,", "7d,7d", "+7d", "7x", "10001d", "7d 4w", "7\u{e9}",
        ] {
            assert!(Retention::parse(text).is_err(), "{text}");
        }
    }
}

//! Results of the rounds: medians, ratios, and whether fastcp reached its goals.

use std::time::Duration;

use crate::cells::{BEST, Goal};
use crate::spent::Spent;
use crate::tools::FASTCP;

/// One tool in one cell.
pub(crate) struct Row {
    pub tool: &'static str,
    pub times: Vec<Duration>,
    /// Empty if the other end is on another machine.
    pub spent: Vec<Spent>,
    /// Why there are no times, or too few.
    pub fault: Option<String>,
}

/// One input on one link.
pub(crate) struct Measured {
    pub link: String,
    pub input: String,
    pub bytes: u64,
    pub logins: Vec<Duration>,
    pub rows: Vec<Row>,
    pub goals: Vec<Goal>,
}

/// A goal, and the ratio of fastcp's time to the tool's.
pub(crate) struct Reached {
    pub goal: Goal,
    /// None if one of the two has no time.
    pub ratio: Option<f64>,
}

impl Row {
    pub(crate) fn seconds(&self) -> Option<f64> {
        median(&self.times)
    }

    /// Processor time of both ends together.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        let times = self
            .spent
            .iter()
            .map(|it| Duration::from_secs_f64(it.cpu_s));
        median(&times.collect::<Vec<_>>())
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        let peaks = self.spent.iter().map(|it| it.peak_bytes);
        peaks.max().unwrap_or(0)
    }
}

impl Measured {
    /// MB/s of content.
    pub(crate) fn rate(&self, seconds: f64) -> f64 {
        self.bytes as f64 / 1e6 / seconds
    }

    pub(crate) fn seconds_of(&self, tool: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.tool == tool)?.seconds()
    }

    pub(crate) fn login(&self) -> f64 {
        median(&self.logins).unwrap_or(0.0)
    }

    pub(crate) fn reached(&self) -> Vec<Reached> {
        let ratio = |goal: &Goal| {
            let own = self.seconds_of(FASTCP)?;
            let other = match goal.tool {
                BEST => {
                    let others = self.rows.iter().filter(|row| row.tool != FASTCP);
                    others.filter_map(Row::seconds).reduce(f64::min)?
                }
                tool => self.seconds_of(tool)?,
            };
            let own = match goal.without_login {
                true => (own - self.login()).max(0.0),
                false => own,
            };
            Some(own / other)
        };
        let goals = self.goals.iter();
        goals
            .map(|goal| Reached {
                goal: *goal,
                ratio: ratio(goal),
            })
            .collect()
    }
}

impl Reached {
    pub(crate) fn is_reached(&self) -> Option<bool> {
        Some(self.ratio? <= self.goal.most)
    }
}

/// The middle time, or the mean of the two middle ones.
pub(crate) fn median(times: &[Duration]) -> Option<f64> {
    let mut times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    times.sort_by(f64::total_cmp);
    let (low, high) = (times.len().checked_sub(1)? / 2, times.len() / 2);
    Some((times[low] + times[high]) / 2.0)
}

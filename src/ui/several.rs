//! Results of a copy to several destinations: one line for each, or more if needed.

use std::sync::Arc;

use crate::error::Result;
use crate::report::Reporter;
use crate::session::Outcome;

use super::errors::{EndHosts, sentence};
use super::events::LineOf;
use super::tell::Verbosity;
use super::{Screen, is_wanted, summary, width, write_lines};

/// The copy to one of several destinations.
pub struct Copied<'a> {
    /// Distinguishes it from the others.
    pub name: &'a str,
    /// The destination as typed, printable.
    pub dest: &'a str,
    pub hosts: EndHosts,
    pub outcome: &'a Outcome,
}

impl Screen {
    /// The reporter for the destination with this name; `dest` is the destination as typed, printable.
    pub fn reporter_of(&self, name: &str, dest: &str, hosts: EndHosts) -> Arc<dyn Reporter> {
        let mut teller = self.teller.clone();
        teller.hosts = hosts;
        teller.of = line_of(name, dest);
        teller.shown = Arc::default();
        teller.records = teller.records.of_another(&teller.of);
        let records = teller.records.clone();
        self.several.lock().push((name.to_owned(), records));
        Arc::new(teller)
    }

    /// The reporter for the copy between these hosts, one of several with one result.
    pub fn reporter_from(&self, hosts: EndHosts) -> Arc<dyn Reporter> {
        Arc::new(super::Teller {
            hosts,
            ..self.teller.clone()
        })
    }

    /// Removes the bar and shows all results.
    ///
    /// # Errors
    /// `Kind::Write` if lines on stdout (events, or lines about changes) could not be written.
    pub fn finish_all(self, copies: &[Copied]) -> Result<()> {
        let (output, terminal) = (self.teller.output, self.terminal);
        let tell = Verbosity::of(output, terminal.is_some());
        let fatal = copies
            .iter()
            .filter_map(|copied| copied.outcome.fatal.as_ref());
        let is_ended = fatal.into_iter().any(is_wanted);
        let several = std::mem::take(&mut *self.several.lock());
        let (mut lines, written) = self.end(!is_ended, |_| {
            for copied in copies {
                let of = line_of(copied.name, copied.dest);
                let records = several.iter().find(|(name, _)| name == copied.name);
                if let Some((_, records)) = records {
                    records.end(&of, copied.outcome, &copied.hosts);
                }
            }
        });
        for copied in copies {
            lines.extend(told(copied, tell, width(terminal)));
        }
        write_lines(lines);
        written
    }
}

fn line_of(name: &str, dest: &str) -> LineOf {
    LineOf {
        name: format!("{name}: "),
        dest: Some(dest.to_owned()),
    }
}

/// `web1: 1 file, 1.07 GB in 4.7 s`, `web2: fastcp: no route to host (exit 3)`.
fn told(copied: &Copied, tell: Verbosity, width: usize) -> Vec<String> {
    let Copied { name, outcome, .. } = copied;
    let exit_code = outcome.exit_code();
    let is_partial = exit_code != 0 && outcome.fatal.is_none();
    let width = width.saturating_sub(name.len() + 2);
    let mut told = match tell {
        Verbosity::All => summary::lines(outcome, width, tell),
        Verbosity::Each => summary::figures(outcome, width, tell),
        Verbosity::Incomplete if is_partial => summary::figures(outcome, width, tell),
        Verbosity::Incomplete | Verbosity::Failures => Vec::new(),
    };
    if tell > Verbosity::Failures && outcome.counters.unlinked > 0 {
        told.push(summary::unlinked(outcome.counters.unlinked));
    }
    if tell > Verbosity::Failures {
        let not_kept = &outcome.counters.not_kept;
        told.extend(summary::not_kept(not_kept, &copied.hosts));
    }
    let fatal = outcome.fatal.as_ref();
    told.extend(fatal.map(|error| sentence(error, &copied.hosts)));
    if let Some(last) = told.last_mut()
        && exit_code != 0
    {
        *last += &format!(" (exit {exit_code})");
    }
    let line = |line| format!("{name}: {line}");
    told.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Kind, Side};
    use crate::ui::summary::tests::outcome;

    fn shown(outcome: &Outcome, tell: Verbosity) -> Vec<String> {
        let copied = Copied {
            name: "web1",
            dest: "web1:/srv",
            hosts: EndHosts::default(),
            outcome,
        };
        told(&copied, tell, 80)
    }

    #[test]
    fn each_has_its_lines_and_one_that_failed_its_exit_code() {
        let mut outcome = outcome();
        assert_eq!(
            shown(&outcome, Verbosity::Each),
            [
                "web1: 3 files, 1.07 GB in 4.7 s, 228 MB/s",
                "web1: (wire 430 MB, 2.5:1, zstd, 8 streams, direct)"
            ]
        );
        assert!(shown(&outcome, Verbosity::All).len() > 2, "what limited it");
        assert!(shown(&outcome, Verbosity::Incomplete).is_empty());
        outcome.failures = vec![Error::new(Kind::Write, Side::Dest, "x")];
        let failed = shown(&outcome, Verbosity::Incomplete);
        assert_eq!(
            failed[2..],
            ["web1: 1 failed: 1 could not be written (exit 8)"]
        );
        assert!(
            shown(&outcome, Verbosity::Failures).is_empty(),
            "it was told"
        );
        outcome.failures.clear();
        outcome.fatal = Some(Error::new(Kind::Connect, Side::Here, "no route to host"));
        let fatal = ["web1: fastcp: no route to host (exit 3)"];
        assert_eq!(shown(&outcome, Verbosity::Failures), fatal);
    }
}

//! The progress in one line: for SIGUSR1 and `--progress`.

use crate::progress::{Copies, Phase, Snapshot};
use crate::units::size;

use super::errors::EndHosts;
use super::rate::CopyRates;
use super::view::{
    average, eta, files, fraction, is_check, is_endless, is_verifying, login, same, scanning,
    several, speed, verifying, waiting,
};

/// `fastcp: 1.55 GB of 3.10 GB (50%), 3 of 12 files, 229 MB/s, average 187 MB/s, 0:07 left`.
pub(super) fn line(snapshot: &Snapshot, rates: &CopyRates, hosts: &EndHosts) -> String {
    let Snapshot {
        phase, done_bytes, ..
    } = *snapshot;
    let mut parts = Vec::new();
    let rate = || {
        [Some(speed(rates.recent)), average(rates)]
            .into_iter()
            .flatten()
    };
    match snapshot.totals {
        Some(totals) if is_endless(snapshot, &totals) => {
            parts.push(format!("{} copied", size(done_bytes)));
            parts.extend(files(snapshot));
            parts.extend(rate());
            parts.extend((phase == Phase::Flushing).then(|| "flushing".to_owned()));
        }
        Some(totals) => {
            let percent = (fraction(done_bytes, totals.bytes.max(1)) * 100.0).floor();
            let (done, of) = (size(done_bytes), size(totals.bytes));
            parts.push(format!("{done} of {of} ({percent}%)"));
            parts.extend(files(snapshot));
            parts.extend(rate());
            let left = totals.bytes.saturating_sub(done_bytes);
            match phase {
                Phase::Flushing if left == 0 => parts.push("flushing".to_owned()),
                Phase::Flushing => parts.push(format!("flushing {}", size(left))),
                Phase::Copying => parts.push(format!("{} left", eta(left, rates.recent))),
                _ => {}
            }
        }
        None if matches!(phase, Phase::Copying | Phase::Flushing) && is_check(snapshot) => {
            parts.push(same(snapshot));
            parts.extend(rate());
        }
        None if matches!(phase, Phase::Copying | Phase::Flushing) => {
            parts.push(format!("{} copied", size(done_bytes)));
            parts.extend(files(snapshot));
            parts.extend(rate());
            parts.extend((snapshot.scanned_files > 0).then(|| scanning(snapshot)));
        }
        None => {}
    }
    match phase {
        Phase::Waiting => parts.push(waiting(snapshot)),
        Phase::Connecting => parts.push(connecting(snapshot, hosts)),
        Phase::Reconnecting => parts.push(login(snapshot, "logging in again")),
        Phase::Scanning => parts.push(scanning(snapshot)),
        Phase::Done => parts.push("ending".to_owned()),
        Phase::Copying | Phase::Flushing => {}
    }
    parts.extend(is_verifying(snapshot).then(|| verifying(snapshot)));
    parts.extend(several(snapshot, usize::MAX).map(|several| format!("figures of {several}")));
    format!("fastcp: {}", parts.join(", "))
}

/// `logging in to db1`
fn connecting(snapshot: &Snapshot, hosts: &EndHosts) -> String {
    let mut names: Vec<&str> = hosts
        .source
        .iter()
        .chain(&hosts.dest)
        .map(|it| &**it)
        .collect();
    if let Some(Copies::Together { dests, .. }) = &snapshot.copies {
        let waiting = dests.iter().filter(|dest| dest.phase == Phase::Connecting);
        names.extend(waiting.map(|dest| &*dest.name));
    }
    if names.is_empty() {
        return "starting".to_owned();
    }
    let names = match &names[..] {
        [first, second, more @ ..] if !more.is_empty() => {
            format!("{first}, {second} and {} more", more.len())
        }
        few => few.join(" and "),
    };
    login(snapshot, &format!("logging in to {names}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::manifest::Totals;
    use crate::progress::Progress;
    use crate::progress::together::Together;

    fn of(snapshot: &Snapshot, recent: Option<f64>) -> String {
        let rates = CopyRates {
            recent,
            ..CopyRates::default()
        };
        line(snapshot, &rates, &EndHosts::default())
    }

    #[test]
    fn with_several_destinations_it_says_whose_figures_they_are() {
        let all: Vec<_> = (1..=5)
            .map(|n| (format!("web{n}"), Arc::<Progress>::default()))
            .collect();
        let said = || of(&Together::new(all.iter().cloned(), false).snapshot(), None);
        assert_eq!(
            said(),
            "fastcp: logging in to web1, web2 and 3 more, \
             figures of web1, the slowest of 5 destinations"
        );
        all[0].1.end(true);
        all[1].1.end(false);
        all[2].1.set_phase(Phase::Copying);
        all[2].1.add_bytes(5000);
        assert_eq!(
            said(),
            "fastcp: 5.00 KB copied, -- MB/s, \
             figures of web3, the slowest of 5 destinations; 1 done, 1 failed"
        );
        let mut snapshot = all[2].1.snapshot();
        snapshot.copies = Some(Copies::InTurn { over: 1, all: 3 });
        let turn = "fastcp: 5.00 KB copied, -- MB/s, figures of host 2 of 3";
        assert_eq!(of(&snapshot, None), turn);
    }

    #[test]
    fn a_login_names_its_hosts_and_the_time_until_it_begins() {
        let progress = Progress::default();
        let hosts = EndHosts {
            source: Some("db1".to_owned()),
            dest: Some("db2".to_owned()),
        };
        let said = || line(&progress.snapshot(), &CopyRates::default(), &hosts);
        assert_eq!(said(), "fastcp: logging in to db1 and db2");
        progress.set_next_login(Duration::from_millis(29_500));
        assert_eq!(said(), "fastcp: logging in to db1 and db2 in 0:30");
        progress.set_phase(Phase::Reconnecting);
        assert_eq!(said(), "fastcp: logging in again in 0:30");
        progress.set_next_login(Duration::ZERO);
        assert_eq!(said(), "fastcp: logging in again");
    }

    #[test]
    fn each_phase_has_its_line() {
        let progress = Progress::default();
        let said = |phase, rate| {
            progress.set_phase(phase);
            of(&progress.snapshot(), rate)
        };
        assert_eq!(said(Phase::Waiting, None), "fastcp: waiting");
        assert_eq!(said(Phase::Connecting, None), "fastcp: starting");
        assert_eq!(said(Phase::Done, None), "fastcp: ending");
        progress.set_scanned(&Totals {
            files: 12,
            bytes: 5_000_000,
            ..Totals::default()
        });
        let scanning = "fastcp: scanning 12 files, 5.00 MB";
        assert_eq!(said(Phase::Scanning, None), scanning);
        progress.add_files(3);
        assert_eq!(
            said(Phase::Copying, None),
            "fastcp: 0 B copied, 3 files, -- MB/s, scanning 12 files, 5.00 MB"
        );
        progress.set_totals(Totals {
            files: 12,
            bytes: 3_100_000_000,
            ..Totals::default()
        });
        progress.add_resumed(550_000_000);
        progress.set_checked(40_000_000);
        assert_eq!(
            said(Phase::Copying, None),
            "fastcp: 550 MB of 3.10 GB (17%), 3 of 12 files, -- MB/s, --:-- left, \
             verified 40.0 MB of 550 MB already there"
        );
        progress.set_checked(550_000_000);
        progress.add_bytes(1_000_000_000);
        assert_eq!(
            said(Phase::Copying, Some(229e6)),
            "fastcp: 1.55 GB of 3.10 GB (50%), 3 of 12 files, 229 MB/s, 0:07 left"
        );
        let rates = CopyRates {
            recent: Some(229e6),
            average: Some(187e6),
            each: Vec::new(),
        };
        assert_eq!(
            line(&progress.snapshot(), &rates, &EndHosts::default()),
            "fastcp: 1.55 GB of 3.10 GB (50%), 3 of 12 files, 229 MB/s, average 187 MB/s, 0:07 left"
        );
        assert_eq!(
            said(Phase::Reconnecting, Some(0.0)),
            "fastcp: 1.55 GB of 3.10 GB (50%), 3 of 12 files, 0 B/s, logging in again"
        );
        progress.add_bytes(1_450_000_000);
        assert_eq!(
            said(Phase::Flushing, None),
            "fastcp: 3.00 GB of 3.10 GB (96%), 3 of 12 files, -- MB/s, flushing 100 MB"
        );
    }
}

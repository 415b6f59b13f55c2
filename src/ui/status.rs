//! The progress in one line, shown on SIGUSR1.

use crate::progress::{Phase, Snapshot};
use crate::units::size;

use super::view::{
    eta, fraction, is_endless, is_verifying, scanning, several, speed, verifying, waiting,
};

/// `fastcp: 1.55 GB of 3.10 GB (50%), 229 MB/s, 0:07 left`. `rate` is in bytes a second.
pub(super) fn line(snapshot: &Snapshot, rate: Option<f64>) -> String {
    let Snapshot {
        phase, done_bytes, ..
    } = *snapshot;
    let mut parts = Vec::new();
    match snapshot.totals {
        Some(totals) if is_endless(snapshot, &totals) => {
            parts.push(format!("{} copied", size(done_bytes)));
            parts.push(speed(rate));
        }
        Some(totals) => {
            let percent = (fraction(done_bytes, totals.bytes.max(1)) * 100.0).floor();
            let (done, of) = (size(done_bytes), size(totals.bytes));
            parts.push(format!("{done} of {of} ({percent}%)"));
            parts.push(speed(rate));
            let left = totals.bytes.saturating_sub(done_bytes);
            match phase {
                Phase::Flushing => parts.push(format!("flushing {}", size(left))),
                Phase::Copying => parts.push(format!("{} left", eta(left, rate))),
                _ => {}
            }
        }
        None if phase == Phase::Copying => {
            parts.push(format!("{} copied", size(done_bytes)));
            parts.push(speed(rate));
            parts.extend((snapshot.scanned_files > 0).then(|| scanning(snapshot)));
        }
        None => {}
    }
    match phase {
        Phase::Waiting => parts.push(waiting(snapshot)),
        Phase::Connecting => parts.push("connecting".to_owned()),
        Phase::Reconnecting => parts.push("logging in again".to_owned()),
        Phase::Scanning => parts.push(scanning(snapshot)),
        _ => {}
    }
    parts.extend(is_verifying(snapshot).then(|| verifying(snapshot)));
    let copies = snapshot.copies;
    parts.extend(copies.map(|copies| format!("figures of the {}", several(copies))));
    format!("fastcp: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Totals;
    use crate::progress::Progress;

    #[test]
    fn with_several_destinations_it_says_whose_figures_they_are() {
        let progress = Progress::default();
        progress.set_phase(Phase::Connecting);
        let mut snapshot = progress.snapshot();
        snapshot.copies = Some((2, 5));
        assert_eq!(
            line(&snapshot, None),
            "fastcp: connecting, figures of the slowest destination; 2 of 5 destinations done"
        );
    }

    #[test]
    fn each_phase_has_its_line() {
        let progress = Progress::default();
        let said = |phase, rate| {
            progress.set_phase(phase);
            line(&progress.snapshot(), rate)
        };
        assert_eq!(said(Phase::Waiting, None), "fastcp: waiting");
        assert_eq!(said(Phase::Connecting, None), "fastcp: connecting");
        progress.set_scanned(&Totals {
            files: 12,
            bytes: 5_000_000,
            ..Totals::default()
        });
        let scanning = "fastcp: scanning 12 files, 5.00 MB";
        assert_eq!(said(Phase::Scanning, None), scanning);
        progress.set_totals(Totals {
            files: 12,
            bytes: 3_100_000_000,
            ..Totals::default()
        });
        progress.add_resumed(550_000_000);
        progress.set_checked(40_000_000);
        assert_eq!(
            said(Phase::Copying, None),
            "fastcp: 550 MB of 3.10 GB (17%), -- MB/s, --:-- left, \
             verified 40.0 MB of 550 MB already there"
        );
        progress.set_checked(550_000_000);
        progress.add_bytes(1_000_000_000);
        assert_eq!(
            said(Phase::Copying, Some(229e6)),
            "fastcp: 1.55 GB of 3.10 GB (50%), 229 MB/s, 0:07 left"
        );
        assert_eq!(
            said(Phase::Reconnecting, Some(0.0)),
            "fastcp: 1.55 GB of 3.10 GB (50%), 0 B/s, logging in again"
        );
        progress.add_bytes(1_450_000_000);
        assert_eq!(
            said(Phase::Flushing, None),
            "fastcp: 3.00 GB of 3.10 GB (96%), -- MB/s, flushing 100 MB"
        );
    }
}

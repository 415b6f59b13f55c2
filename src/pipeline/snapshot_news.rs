//! What the user's end knows of the snapshot that a copy has made.

use parking_lot::Mutex;

use crate::units::printable;
use crate::wire::message::SnapshotReport;

type TellRemoved = dyn Fn(&str) + Send + Sync;

/// The end that the user sees keeps the report; that of the other end is silent.
#[derive(Default)]
pub struct SnapshotNews {
    tell: Option<Box<TellRemoved>>,
    made: Mutex<Option<MadeSnapshot>>,
}

/// A complete snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MadeSnapshot {
    /// Printable.
    pub name: String,
    pub linked: u64,
    pub copied: u64,
    /// Printable names of removed snapshots.
    pub removed: Vec<String>,
    pub is_clock_behind: bool,
}

impl SnapshotNews {
    /// `tell` gets a line for each removed snapshot.
    pub fn new(tell: Box<TellRemoved>) -> SnapshotNews {
        SnapshotNews {
            tell: Some(tell),
            made: Mutex::default(),
        }
    }

    /// Keeps what either end has reported.
    pub fn add(&self, report: &SnapshotReport) {
        let Some(tell) = &self.tell else {
            return;
        };
        let removed = report.removed.iter().map(|name| printable(name));
        let made = MadeSnapshot {
            name: printable(&report.name),
            linked: report.linked,
            copied: report.copied,
            removed: removed.collect(),
            is_clock_behind: report.is_clock_behind,
        };
        for name in &made.removed {
            tell(&format!("removed snapshot {name}"));
        }
        *self.made.lock() = Some(made);
    }

    pub fn take(&self) -> Option<MadeSnapshot> {
        self.made.lock().take()
    }
}

//! The lines on stdout about changes and differences at the destination (`--itemize-changes`,
//! `--dry-run`, `--check`). No call here waits for a slow reader, but the pipeline adds no line while
//! too many wait.

use serde::Serialize;

use super::events::{self, LineOf};
use super::line_writer::WriterQueue;
use crate::itemize::{DELETED, Difference, ItemizedEntry};
use crate::units::printable;

/// Takes lines for the writer of stdout.
#[derive(Clone)]
pub(super) struct ChangeLines {
    pub lines: WriterQueue,
    pub form: ChangeForm,
}

/// The format of the lines.
#[derive(Clone, Copy)]
pub(super) struct ChangeForm {
    /// Each line is an event.
    pub json: bool,
    /// As differences between the ends (`--check`).
    pub check: bool,
}

/// An event about a change.
#[derive(Serialize)]
struct ChangeEvent {
    change: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    bytes: u64,
}

/// An event about a difference.
#[derive(Serialize)]
struct Differing {
    difference: &'static str,
    path: String,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl ChangeLines {
    /// `of` is what distinguishes several destinations; `goes_out`: the destination is another host.
    pub(super) fn changed(&self, entry: &ItemizedEntry, of: &LineOf, goes_out: bool) {
        if self.form.check {
            return self.differs(entry.difference(), &entry.shown_path(), of);
        }
        let (code, path) = (entry.code(goes_out), printable(&entry.shown_path()));
        let target = entry.arrow().map(|arrow| (arrow, printable(&entry.target)));
        if !self.form.json {
            let target =
                target.map_or_else(String::new, |(arrow, target)| arrow.to_owned() + &target);
            return self
                .lines
                .add(format!("{}{code} {path}{target}\n", of.name));
        }
        let change = ChangeEvent {
            change: code,
            path,
            target: target.map(|(_, target)| target),
            bytes: entry.size,
        };
        self.lines.add(events::line("change", of, &change));
    }

    pub(super) fn deleted(&self, path: &[u8], of: &LineOf) {
        if self.form.check {
            return self.differs(Difference::Extra, path, of);
        }
        let path = printable(path);
        if !self.form.json {
            return self.lines.add(format!("{}{DELETED:<11} {path}\n", of.name));
        }
        let change = ChangeEvent {
            change: DELETED.to_owned(),
            path,
            target: None,
            bytes: 0,
        };
        self.lines.add(events::line("change", of, &change));
    }

    fn differs(&self, difference: Difference, path: &[u8], of: &LineOf) {
        let (difference, path) = (difference.word(), printable(path));
        self.lines.add(match self.form.json {
            true => events::line("difference", of, &Differing { difference, path }),
            false => format!("{}{difference:<8} {path}\n", of.name),
        });
    }
}

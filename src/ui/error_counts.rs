//! The limit on printed errors. Of each kind, the first ten are printed, and later ones only if
//! their message is new. The rest is counted.

use std::collections::{BTreeMap, HashSet};

use super::summary::words;
use crate::error::{Error, Kind};
use crate::units::count;

/// Errors of one kind that are printed in any case. More would push the first ones, which often
/// tell the cause, off the screen.
const PRINTED_MAX: usize = 10;

/// Different messages of one kind that are printed. The last error may be the most serious one
/// ("the disk reported an error during the copy").
const MESSAGES_MAX: usize = 20;

/// The errors of a copy, by the beginning of their lines (which names the host) and exit code.
#[derive(Debug, Default)]
pub(super) struct ErrorCounts(BTreeMap<(String, i32), OfKind>);

#[derive(Debug)]
struct OfKind {
    kind: Kind,
    printed: usize,
    messages: HashSet<String>,
    /// Not printed.
    more: u64,
}

impl ErrorCounts {
    /// Counts an error, whose line has this beginning. False if it is not to be printed.
    pub(super) fn add(&mut self, beginning: &str, error: &Error) -> bool {
        // It is about more than one entry.
        if error.path.is_none() {
            return true;
        }
        let place = (beginning.to_owned(), error.kind.exit_code());
        let of_kind = self.0.entry(place).or_insert_with(|| OfKind {
            kind: error.kind,
            printed: 0,
            messages: HashSet::new(),
            more: 0,
        });
        let messages = &mut of_kind.messages;
        let is_new = messages.len() < MESSAGES_MAX && !messages.contains(&error.message);
        if is_new {
            messages.insert(error.message.clone());
        }
        let is_printed = is_new || of_kind.printed < PRINTED_MAX;
        match is_printed {
            true => of_kind.printed += 1,
            false => of_kind.more += 1,
        }
        is_printed
    }

    /// `fastcp: db1: missing or unreadable: 290 more (-v prints all)`, one line for each kind of
    /// which some were not printed.
    pub(super) fn rest(&self) -> Vec<String> {
        let some = self.0.iter().filter(|(_, of_kind)| of_kind.more > 0);
        let line = |((beginning, _), of_kind): (&(String, i32), &OfKind)| {
            let (what, more) = (words(of_kind.kind), count(of_kind.more));
            format!("{beginning}{what}: {more} more (-v prints all)")
        };
        some.map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Side;

    #[test]
    fn ten_errors_of_a_kind_and_host_are_printed_and_the_others_counted() {
        let mut counts = ErrorCounts::default();
        let mut printed = |times: usize, beginning: &str, kind: Kind| {
            let error = Error::new(kind, Side::Source, "vanished").at("a");
            let each = (0..times).filter(|_| counts.add(beginning, &error));
            each.count()
        };
        assert_eq!(printed(10, "fastcp: ", Kind::Write), 10);
        assert_eq!(printed(1_300, "fastcp: db1: ", Kind::Read), 10);
        assert_eq!(printed(1, "fastcp: db1: ", Kind::Changed), 1);
        assert_eq!(printed(11, "fastcp: db2: ", Kind::Read), 10);
        assert_eq!(
            counts.rest(),
            [
                "fastcp: db1: missing or unreadable: 1,290 more (-v prints all)",
                "fastcp: db2: missing or unreadable: 1 more (-v prints all)",
            ]
        );
    }

    #[test]
    fn an_error_that_says_something_new_is_printed_however_late_it_comes() {
        let mut counts = ErrorCounts::default();
        let mut printed = |message: String, path: Option<&str>| {
            let error = Error::new(Kind::Write, Side::Dest, message);
            let error = path.into_iter().fold(error, |error, path| error.at(path));
            counts.add("fastcp: ", &error)
        };
        let full = (0..50).filter(|_| printed("no space left".to_owned(), Some("a")));
        assert_eq!(full.count(), PRINTED_MAX);
        assert!(printed("the disk reported an error".to_owned(), Some("")));
        // Messages with numbers or names do not evade the limit.
        let each = (0..50).filter(|n| printed(format!("not written: {n} bytes"), Some("a")));
        assert_eq!(each.count(), MESSAGES_MAX - 2);
        assert!(printed(
            "not all extra entries are deleted".to_owned(),
            None
        ));
    }
}

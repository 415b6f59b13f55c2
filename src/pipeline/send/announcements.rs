//! Announcements of directories, links and special files, gathered into messages.

use std::mem::take;

use super::Sender;
use super::scheduler::Ended;
use crate::manifest::Entry;
use crate::mirror::NAME_SUMS_MAX;
use crate::wire::message::{DirectoryNames, EntryEnd, Message, entry_weight};

/// Directories, links and special files in one message, and about how many bytes they may take.
const BATCH_MAX: usize = 64;
const BATCH_BYTES_MAX: usize = 256 << 10;

/// Nothing may wait for the receiver while there are entries in it.
#[derive(Default)]
pub(super) struct Announcements {
    entries: Vec<Entry>,
    bytes: usize,
    /// Names in directories (`--delete`).
    names: Vec<DirectoryNames>,
    ends: Vec<EntryEnd>,
}

impl Announcements {
    pub(super) fn add(&mut self, sender: &Sender, entry: Entry) -> Result<(), Ended> {
        self.bytes += entry_weight(&entry);
        self.entries.push(entry);
        self.say_full(sender)
    }

    /// Adds the end of a directory, and the names in it.
    pub(super) fn end(
        &mut self,
        sender: &Sender,
        end: Option<EntryEnd>,
        names: Option<DirectoryNames>,
    ) -> Result<(), Ended> {
        self.names.extend(names);
        self.ends.extend(end);
        self.say_full(sender)
    }

    fn say_full(&mut self, sender: &Sender) -> Result<(), Ended> {
        let is_full = self.entries.len() + self.ends.len() >= BATCH_MAX;
        let sums = self.names.iter().map(|names| names.sums.len());
        let has_many_names = sums.sum::<usize>() >= NAME_SUMS_MAX;
        match is_full || has_many_names || self.bytes >= BATCH_BYTES_MAX {
            true => self.say(sender),
            false => Ok(()),
        }
    }

    /// Sends everything. Ends are sent after entries, so that all children of an ended directory are
    /// announced before its end.
    pub(super) fn say(&mut self, sender: &Sender) -> Result<(), Ended> {
        let Announcements {
            entries,
            names,
            ends,
            ..
        } = take(self);
        if !entries.is_empty() {
            sender.scheduler.announcing(&entries);
            sender.report.say_or_end(Message::Entries(entries))?;
        }
        if !names.is_empty() {
            sender.report.say_or_end(Message::Names(names))?;
        }
        if !ends.is_empty() {
            sender.scheduler.ending(&ends);
            sender.report.say_or_end(Message::EntryEnd(ends))?;
        }
        Ok(())
    }
}

//! The questions about names that only the destination has, and what follows from the answers.
//!
//! With `--max-delete` entries are first only counted. If the limit allows it, all questions are
//! asked again, and the entries are deleted.

use std::collections::VecDeque;

use super::super::report::Report;
use super::deletion::{DeletionPass, EarlierPart};
use super::own_names::{AskedEntry, OwnNamesReader};
use super::place::ExtraDirectories;
use crate::dest::{self, BackupPart, EntrySlot};
use crate::error::{Error, Kind, Side};
use crate::wire::message::{ExtraEntries, Message, OWN_NAMES_WAITING, OwnEntryIs};

/// Questions and answers under way.
pub(super) struct MirrorWork {
    names: OwnNamesReader,
    pass: DeletionPass,
    extra: ExtraDirectories,
    /// Entries that were asked about.
    asked: VecDeque<Vec<AskedEntry>>,
    /// Number of directories for which there was no room.
    pub left_out: u64,
    /// Number of entries of which the sender is not sure.
    pub unsure: u64,
    /// The sender could not read all of the source.
    is_incomplete: bool,
}

/// What follows from an answer.
pub(super) enum Answered {
    /// More answers will follow, or the copy ends.
    Waiting,
    /// Everything is deleted.
    Over,
    /// Nothing is, because the sender could not read all of the source.
    Incomplete,
}

impl MirrorWork {
    pub(super) fn new(names: OwnNamesReader, pass: DeletionPass, left_out: u64) -> MirrorWork {
        MirrorWork {
            names,
            pass,
            extra: ExtraDirectories::default(),
            asked: VecDeque::new(),
            left_out,
            unsure: 0,
            is_incomplete: false,
        }
    }

    pub(super) fn awaits_answers(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Handles an answer.
    pub(super) fn answered(&mut self, report: &Report, answer: ExtraEntries) -> Answered {
        let Some(asked) = self.asked.pop_front() else {
            report.breach("an answer about names that it was not asked for");
            return Answered::Waiting;
        };
        match answer {
            ExtraEntries::Unknown => self.is_incomplete = true,
            ExtraEntries::Some(found) if found.len() == asked.len() => {
                for (asked, is) in asked.into_iter().zip(found) {
                    self.handle(report, &asked, is);
                }
            }
            ExtraEntries::Some(_) => {
                report.breach("an answer about other names than those asked for");
            }
        }
        self.ask(report);
        if report.context.is_ending() {
            // The next run deletes the rest.
            self.pass.tell(report);
            return Answered::Waiting;
        }
        if self.awaits_answers() {
            return Answered::Waiting;
        }
        if self.is_incomplete {
            return Answered::Incomplete;
        }
        self.extra.settle(report, &mut self.pass);
        if self.pass.only_counts {
            if self.counted(report) {
                self.ask(report);
            }
            if self.awaits_answers() {
                return Answered::Waiting;
            }
        } else if self.pass.count.was_limited {
            // The source has lost entries since they were counted.
            let message = "not all extra entries are deleted: further entries disappeared from the \
                           source during the copy, and to delete them would exceed --max-delete; \
                           copy again";
            let error = Error::new(Kind::Refused, Side::Dest, message);
            report.context.report_fault(&error, 0, 0);
        }
        self.pass.tell(report);
        Answered::Over
    }

    /// Everything was counted. True if it may be deleted; then the questions start again.
    fn counted(&mut self, report: &Report) -> bool {
        let Some(most) = report.context.options.mirror.most else {
            return true;
        };
        if let Err(message) = self.pass.allow(most) {
            let error = Error::new(Kind::Refused, Side::Dest, message);
            let error = match self.names.some_root() {
                Some(root) => error.at(root.path()),
                None => error,
            };
            report.context.report_fault(&error, 0, 0);
            return false;
        }
        self.names.start_again();
        self.unsure = 0;
        true
    }

    /// Sends questions, as many as may wait for an answer.
    pub(super) fn ask(&mut self, report: &Report) {
        let is_over = |work: &MirrorWork| work.is_incomplete || report.context.is_ending();
        while self.asked.len() < OWN_NAMES_WAITING && !is_over(self) {
            let (questions, asked) = self.names.gather(report, &self.pass, &mut self.extra);
            if asked.is_empty() {
                return;
            }
            self.asked.push_back(asked);
            report.context.say(Message::OwnNames(questions));
        }
    }

    /// Deletes an entry, or counts it.
    fn handle(&mut self, report: &Report, asked: &AskedEntry, is: OwnEntryIs) {
        let AskedEntry {
            place,
            name,
            is_directory,
        } = asked;
        let slot = EntrySlot::new(place.dir().clone(), name.clone());
        let is = self.with_earlier_copies(&slot, *is_directory, is);
        let is = self.with_backups(report, &slot, *is_directory, is);
        if is == OwnEntryIs::Kept {
            return self.extra.holds(place);
        }
        if is == OwnEntryIs::Unsure || dest::is_born_since(&slot, self.pass.began) {
            self.unsure += 1;
            return self.extra.holds(place);
        }
        if self.pass.count.stops() {
            return self.extra.holds(place);
        }
        let path = [&place.way[..], name.as_bytes()].concat();
        if is == OwnEntryIs::AllExtra || !is_directory {
            let is_nested = place.extra.is_some();
            let (is_all, has_any) = self.pass.remove_tree(report, &slot, path, is_nested);
            if has_any {
                place.has_lost();
            }
            let backup = self.pass.rules.backup.as_ref();
            if !is_all || backup.is_some_and(|backup| backup.are_beside()) {
                self.extra.holds(place);
            }
            return;
        }
        if !self.extra.has_room(&path) {
            // In the second pass it is counted again.
            self.left_out += u64::from(!self.pass.only_counts);
            return self.extra.holds(place);
        }
        match self.pass.open_directory(report, &slot) {
            Ok(opened) => self.names.add(self.extra.add(place, slot, path, opened)),
            Err(error) => {
                self.extra.holds(place);
                self.pass.failed(report, &error);
            }
        }
    }

    /// The treatment of an entry that the source does not have, in a copy that uses earlier copies.
    fn with_earlier_copies(
        &self,
        slot: &EntrySlot,
        is_directory: bool,
        is: OwnEntryIs,
    ) -> OwnEntryIs {
        let part = is_directory.then(|| self.pass.part_of_earlier(slot));
        match (part.flatten(), is) {
            (Some(EarlierPart::Whole), _) => OwnEntryIs::Kept,
            // Its entries are looked at one by one.
            (Some(EarlierPart::Above), OwnEntryIs::AllExtra) => OwnEntryIs::Extra,
            (_, is) => is,
        }
    }

    /// The treatment of an entry that the source does not have, in a copy that keeps backups.
    fn with_backups(
        &self,
        report: &Report,
        slot: &EntrySlot,
        is_directory: bool,
        is: OwnEntryIs,
    ) -> OwnEntryIs {
        let Some(backup) = self.pass.rules.backup.as_ref().filter(|_| is_directory) else {
            return is;
        };
        // If it is extra, its entries are looked at one by one.
        let asks = match is {
            OwnEntryIs::AllExtra => OwnEntryIs::Extra,
            is => is,
        };
        if backup.are_beside() {
            // Its entries may be backups, which stay.
            return match report.context.options.mirror.deletes_excluded {
                true => is,
                false => asks,
            };
        }
        let there = dest::existing(slot).ok().flatten();
        match there.map(|there| backup.part((there.dev, there.ino))) {
            Some(BackupPart::Root) => OwnEntryIs::Kept,
            // It was made for the backups.
            Some(BackupPart::Above) if dest::is_born_since(slot, self.pass.began) => {
                OwnEntryIs::Kept
            }
            Some(BackupPart::Above) => asks,
            Some(BackupPart::None) | None => is,
        }
    }
}

//! The entry writer in a dry run: it looks at what exists and reports what a copy would change. It
//! opens nothing for writing.

use super::EntryWriter;
use crate::dest::{self, EarlierEntry, EntrySlot, SinkSpec};
use crate::error::{Error, Kind, Result, Side};
use crate::itemize::{ItemAction, ItemizedEntry};
use crate::keep::NotKept;
use crate::manifest::{Entry, EntryKind, SpecialFile};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::receive::open_file::IncomingFile;
use crate::pipeline::receive::resume::Asked;
use crate::wire::message::{Want, WantKind};

impl EntryWriter<'_> {
    pub(super) fn is_dry(&self) -> bool {
        self.entries().rules.dry_run
    }

    /// The change that a copy would make to the entry in `slot`. None if the entry would stay.
    ///
    /// # Errors
    /// If the copy would fail.
    fn plan(
        &self,
        slot: &EntrySlot,
        entry: &Entry,
        listed: Option<&ListedPath>,
    ) -> Result<Option<ItemizedEntry>> {
        let rules = &self.entries().rules;
        let old = dest::status(slot)?;
        if rules.check && (slot.device.is_some() || has_no_lasting_content(entry)) {
            return Err(incomparable().at(slot.path()));
        }
        // A check finds that the kinds differ.
        let has_room = self.entries().check_room(slot, entry)?;
        if has_room {
            self.entries().make_room(slot, entry)?;
        } else if let Some(old) = old.filter(|_| slot.device.is_none() && !rules.check) {
            dest::check_place(slot, entry, &old, rules)?;
            if rules.no_clobber {
                return Ok(None);
            }
        }
        self.itemizer().change(slot, entry, listed, true)
    }

    /// A big file or a pipe that a copy would ask for.
    pub(super) fn would_send(&self, file: &IncomingFile) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        match self.plan(&file.slot, &file.entry, file.listed.as_ref()) {
            Ok(Some(item)) => self.say_would_send(&file.entry, item),
            Ok(None) => self.entry_stays(&file.entry, true),
            Err(error) => Some(self.or_skip(Err(error), id, parent)),
        }
    }

    /// A big file whose content is compared with the existing file (`--checksum`).
    pub(super) fn check(&self, file: IncomingFile) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        let planned = self.plan(&file.slot, &file.entry, file.listed.as_ref());
        let item = match planned {
            Ok(Some(item)) => item,
            Ok(None) => return self.entry_stays(&file.entry, true),
            Err(error) => return Some(self.or_skip(Err(error), id, parent)),
        };
        let (entry, listed) = (file.entry.clone(), file.listed.clone());
        match self.files().begin_check(file, 0) {
            Ok(Some(want)) => {
                let itemizer = self.itemizer();
                itemizer.report_later(Some(item), &entry, listed.as_ref());
                Some(want)
            }
            Ok(None) => self.say_would_send(&entry, item),
            Err(error) => Some(self.or_skip(Err(error), id, parent)),
        }
    }

    /// The answer for a small file that a copy would ask for.
    pub(super) fn would_send_small(&self, file: &IncomingFile) -> Asked {
        let (entry, parent) = (&file.entry, file.entry.parent);
        match self.plan(&file.slot, entry, file.listed.as_ref()) {
            Ok(Some(item)) => match self.entries().find_earlier(entry) {
                Some(found) => self.would_reuse_asked(entry, file.listed.as_ref(), &found),
                None => self.would_send_asked(entry, item),
            },
            Ok(None) => Asked::Stays(parent),
            Err(error) => Asked::Failed(Box::new((parent, error))),
        }
    }

    /// The same in a directory that does not exist.
    pub(super) fn would_send_new(&self, entry: &Entry, listed: Option<&ListedPath>) -> Asked {
        if self.entries().rules.update.existing_only {
            return Asked::Stays(entry.parent);
        }
        if let Some(found) = self.entries().find_earlier(entry) {
            return self.would_reuse_asked(entry, listed, &found);
        }
        let item = self
            .itemizer()
            .change_of_new(ItemAction::Sent, entry, listed);
        match item {
            Some(item) => self.would_send_asked(entry, item),
            None => Asked::WouldSend(entry.parent),
        }
    }

    fn would_send_asked(&self, entry: &Entry, item: ItemizedEntry) -> Asked {
        self.itemizer().would_send(entry.size);
        self.itemizer().report(Some(item), entry, None);
        Asked::WouldSend(entry.parent)
    }

    fn would_reuse_asked(
        &self,
        entry: &Entry,
        listed: Option<&ListedPath>,
        found: &EarlierEntry,
    ) -> Asked {
        self.itemize_reused(entry, listed, found);
        Asked::WouldReuse(entry.parent, entry.size)
    }

    /// Reports a file that would be copied from an earlier copy. A link to one has no line.
    fn itemize_reused(&self, entry: &Entry, listed: Option<&ListedPath>, found: &EarlierEntry) {
        let itemizer = self.itemizer();
        if self.entries().reused.is_linked(found) {
            return itemizer.note_first(entry, listed, None);
        }
        let item = itemizer.change_of_new(ItemAction::Made, entry, listed);
        itemizer.report(item, entry, None);
    }

    /// A big file that would be linked to an earlier copy, or copied from there.
    pub(super) fn would_reuse(&self, file: &IncomingFile, found: &EarlierEntry) -> Option<Want> {
        let (id, parent) = (file.entry.id, file.entry.parent);
        match self.plan(&file.slot, &file.entry, file.listed.as_ref()) {
            Ok(Some(_)) => self.say_would_reuse(&file.entry, file.listed.as_ref(), found),
            Ok(None) => self.entry_stays(&file.entry, true),
            Err(error) => Some(self.or_skip(Err(error), id, parent)),
        }
    }

    fn say_would_reuse(
        &self,
        entry: &Entry,
        listed: Option<&ListedPath>,
        found: &EarlierEntry,
    ) -> Option<Want> {
        let (id, parent) = (entry.id, entry.parent);
        self.itemize_reused(entry, listed, found);
        self.answer(id, WantKind::Unchanged);
        self.context().progress.add_unchanged(entry.size);
        self.entries().acknowledge(id, parent);
        None
    }

    fn say_would_send(&self, entry: &Entry, item: ItemizedEntry) -> Option<Want> {
        let (id, parent) = (entry.id, entry.parent);
        self.itemizer().would_send(entry.size);
        self.itemizer().report(Some(item), entry, None);
        self.answer(id, WantKind::WouldSend);
        self.entries().acknowledge(id, parent);
        None
    }

    /// A file that is written to a pipe.
    pub(super) fn would_write(
        &self,
        entry: Entry,
        exit: &SinkSpec,
        listed: Option<ListedPath>,
    ) -> Option<Want> {
        if self.entries().rules.check {
            let error = incomparable().at(exit.path());
            return Some(self.or_skip(Err(error), entry.id, entry.parent));
        }
        self.would_be_new(entry, listed)
    }

    /// An entry in a directory that does not exist, or one that is written to a pipe.
    pub(super) fn would_be_new(&self, entry: Entry, listed: Option<ListedPath>) -> Option<Want> {
        let (entries, itemizer) = (self.entries(), self.itemizer());
        if entries.rules.update.existing_only {
            if entry.kind == EntryKind::Directory {
                self.leave_out(entry);
                return None;
            }
            let is_file = matches!(entry.kind, EntryKind::File | EntryKind::Pipe);
            return self.entry_stays(&entry, is_file);
        }
        let made = |action| itemizer.change_of_new(action, &entry, listed.as_ref());
        let earlier = entries.find_earlier(&entry);
        match (&entry.kind, &earlier) {
            (EntryKind::File, Some(found)) => {
                return self.say_would_reuse(&entry, listed.as_ref(), found);
            }
            (_, Some(_)) => {}
            (EntryKind::File | EntryKind::Pipe, None) => {
                return made(ItemAction::Sent).and_then(|item| self.say_would_send(&entry, item));
            }
            (EntryKind::Directory, None) => {
                itemizer.report(made(ItemAction::Made), &entry, None);
                self.would_make(entry, listed);
                return None;
            }
            (EntryKind::HardLink(first), None) => {
                let item = itemizer.change_of_link(None, &entry, (*first, None), listed.as_ref());
                // Nothing is there, so nothing can fail.
                itemizer.report(item.unwrap_or_default(), &entry, None);
            }
            (EntryKind::Special(special), None) if !self.may_make(*special) => {}
            (EntryKind::Symlink(_) | EntryKind::Special(_), None) => {
                itemizer.report(made(ItemAction::Made), &entry, None);
            }
        }
        entries.acknowledge(entry.id, entry.parent);
        None
    }

    /// A directory that would be made.
    pub(super) fn would_make(&self, entry: Entry, listed: Option<ListedPath>) {
        self.entries().report.acks.entry(entry.id);
        let earlier = self.entries().earlier_directories(&entry);
        let mut table = self.entries().table();
        table.plan_directory(entry, listed).earlier = earlier;
    }

    /// A link or special file in an existing directory.
    pub(super) fn would_place(&self, entry: &Entry, slot: &EntrySlot, listed: Option<&ListedPath>) {
        let (id, parent) = (entry.id, entry.parent);
        match self.planned(entry, slot, listed) {
            Ok(item) => {
                self.itemizer().report(item, entry, None);
                self.entries().acknowledge(id, parent);
            }
            Err(error) => self.entries().fail(id, parent, &error),
        }
    }

    /// The same, but it would become a link to an earlier copy, which has no line.
    pub(super) fn would_link(&self, entry: &Entry, slot: &EntrySlot, listed: Option<&ListedPath>) {
        let (id, parent) = (entry.id, entry.parent);
        match self.planned(entry, slot, listed) {
            Ok(_) => self.entries().acknowledge(id, parent),
            Err(error) => self.entries().fail(id, parent, &error),
        }
    }

    fn planned(
        &self,
        entry: &Entry,
        slot: &EntrySlot,
        listed: Option<&ListedPath>,
    ) -> Result<Option<ItemizedEntry>> {
        match entry.kind {
            EntryKind::Special(special) if !self.may_make(special) => Ok(None),
            EntryKind::HardLink(first) => {
                let rules = &self.entries().rules;
                if self.entries().check_room(slot, entry)? {
                    self.entries().make_room(slot, entry)?;
                } else if let Some(old) = dest::status(slot)?.filter(|_| !rules.check) {
                    // A check finds that the kinds differ.
                    dest::check_place(slot, entry, &old, rules)?;
                    if rules.no_clobber {
                        return Ok(None);
                    }
                }
                let first = (first, None);
                self.itemizer()
                    .change_of_link(Some(slot), entry, first, listed)
            }
            EntryKind::Symlink(_) => {
                dest::check_symlink(slot, entry, &self.entries().rules)?;
                self.plan(slot, entry, listed)
            }
            _ => self.plan(slot, entry, listed),
        }
    }

    /// False for a device that this user cannot make. It is counted, as in a copy.
    fn may_make(&self, special: SpecialFile) -> bool {
        let rules = &self.entries().rules;
        let may = !special.is_device() || rules.set_id && rustix::process::geteuid().is_root();
        if !may {
            rules.not_kept.add(&NotKept {
                devices: 1,
                ..NotKept::default()
            });
        }
        may
    }
}

/// True for a source that a check cannot compare, because its content is known only when it is read.
fn has_no_lasting_content(entry: &Entry) -> bool {
    entry.kind == EntryKind::Pipe || entry.is_device() || entry.is_made_up()
}

/// The error of a check at an entry whose content it cannot compare.
fn incomparable() -> Error {
    let what = "cannot be compared: the source or the destination is a pipe, a device, or a file \
                that the kernel generates";
    Error::new(Kind::Refused, Side::Dest, what)
}

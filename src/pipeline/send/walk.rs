//! The walk over the roots: it announces directories, links and big files to the receiver, and
//! gathers small files into packs. It runs on its own thread and waits while enough is planned.

use std::collections::HashMap;
use std::mem::take;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::announcements::Announcements;
use super::counting::WalkCount;
use super::mirror::MirrorRoots;
use super::plan::{PackMember, SendPipe};
use super::scheduler::{Ended, SmallFileMode};
use super::sums::{Compared, HELD_BYTES_MAX, HeldEntries, SumTerms};
use crate::chunk::SMALL_FILE_MAX;
use crate::chunk::ranges::RangeSet;
use crate::chunk::split::Gathering;
use crate::dir::Dir;
use crate::error::{Error, Kind, Side};
use crate::keep::{NotKept, UnchangedBy};
use crate::manifest::{Entry, EntryId, EntryKind, Extension, MADE_UP, NO_PARENT};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::Sender;
use crate::source::pipe::{Sizes, has_unsaid_content, sizes};
use crate::source::pipe_spec::once;
use crate::source::{
    Changes, CopiedFile, EntryNumbers, FoundFile, PipeOrigin, PipeSpec, Sources, Step,
    SymlinkCounts, mark_young, root_id,
};
use crate::threads;
use crate::wire::message::{
    AllSent, ByteRange, DirectoryNames, EntryEnd, Message, SumsAnswer, entry_weight,
};

/// The most entries in one question, and about how many bytes they may take.
const ASK_MAX: usize = 256;
const ASK_BYTES_MAX: usize = 96 << 10;

/// Packs that may be gathered before the receiver says whether to ask. Then the walk waits.
const EARLY_MAX: usize = 64;

/// The assumed size in bytes of a file of unknown size. Most files of /proc are shorter.
const PAGE: u64 = 4096;

/// Bytes in a row of a pack's table from which on the entry counts as announced. The pack's size limits
/// the others.
const LONG_ROW: usize = 1024;

/// The state of the walk.
struct SourceWalk<'a> {
    sender: &'a Sender,
    announcements: Announcements,
    /// Of the operands, if the receiver may ask about its entries.
    mirror: MirrorRoots,
    small: SmallFiles,
    /// Entry numbers that the walk has used. The receiver hears of the unused ones at the end.
    met: RangeSet,
    /// Root numbers of the operands' directories, by address.
    roots: HashMap<*const Dir, usize>,
    links: WalkLinks,
    /// Skipped FIFOs, sockets and devices.
    special: u64,
    unsized_files: UnsizedFiles,
    /// The numbers of entries, which the walk takes too.
    numbers: Option<EntryNumbers>,
    /// Entries that the receiver may have. None until the receiver has said whether it compares.
    held: Option<HeldEntries>,
    count: WalkCount,
}

/// Small files on their way into packs. If an earlier run may have finished some of them, the
/// receiver is asked first. Batches of questions are sent without waiting for answers, and the
/// files that the receiver wants are packed as answers arrive.
#[derive(Default)]
struct SmallFiles {
    gathering: Gathering<PackMember>,
    /// Full packs, gathered before the receiver said where everything lands.
    early: Vec<Vec<PackMember>>,
    landed: Option<SmallFileMode>,
    /// Files to ask about in the next message.
    asking: Vec<PackMember>,
    asking_bytes: usize,
}

impl SmallFiles {
    /// Adds a file to ask about. True if there are enough for a message.
    fn ask(&mut self, member: PackMember) -> bool {
        self.asking_bytes += entry_weight(&member.found.entry);
        self.asking.push(member);
        self.asking.len() >= ASK_MAX || self.asking_bytes >= ASK_BYTES_MAX
    }

    fn take_asking(&mut self) -> Vec<PackMember> {
        self.asking_bytes = 0;
        take(&mut self.asking)
    }
}

/// Further names of files (hard links), which the walk meets one after the other.
#[derive(Default)]
struct WalkLinks {
    /// The last entry was one.
    has_begun: bool,
    /// Files sent again under another name, because the first name could not be placed.
    sent_again: HashMap<EntryId, EntryId>,
    /// Files sent again for which there was no room there: each further name is sent again too.
    forgotten: u64,
}

/// Most files in [`WalkLinks::sent_again`]: 4 MiB.
const SENT_AGAIN_MAX: usize = 1 << 17;

impl WalkLinks {
    /// The entry under which the file `first` was sent last. It is forgotten with the last name.
    fn sent_as(&mut self, first: EntryId, is_last: bool) -> EntryId {
        let again = match is_last {
            true => self.sent_again.remove(&first),
            false => self.sent_again.get(&first).copied(),
        };
        again.unwrap_or(first)
    }

    fn send_again(&mut self, first: EntryId, under: EntryId) {
        if self.sent_again.len() < SENT_AGAIN_MAX || self.sent_again.contains_key(&first) {
            self.sent_again.insert(first, under);
        } else {
            self.forgotten += 1;
        }
    }
}

/// Files whose length is unknown until they are read to the end. Files that the kernel makes up
/// are packed like other small files, if the pack has room left. Otherwise such a file is sent as
/// a pipe, on the walk's thread like all pipes.
#[derive(Default)]
struct UnsizedFiles {
    /// By device number, whether sizes can be trusted there.
    sizes: HashMap<u64, Sizes>,
    /// Some are in packs, which may have no room for them.
    are_packed: bool,
    /// The copy has one operand only.
    are_alone: bool,
}

/// Plans everything to be sent, then tells the receiver that this is all. Streams are read here.
pub fn plan(sender: &Sender, sources: Sources) -> Result<(), Ended> {
    let deletes = sender.context.options.mirror.deletes;
    let mut planner = SourceWalk {
        sender,
        announcements: Announcements::default(),
        mirror: match &sources {
            Sources::Files(walk) if deletes => {
                MirrorRoots::new(walk.roots(), walk.may_lack_names(), walk.ways())
            }
            Sources::Files(_) | Sources::Pipe(_) => MirrorRoots::default(),
        },
        small: SmallFiles::default(),
        met: RangeSet::new(),
        roots: HashMap::new(),
        links: WalkLinks::default(),
        special: 0,
        unsized_files: UnsizedFiles {
            are_alone: match &sources {
                Sources::Files(walk) => walk.named() == 1,
                Sources::Pipe(_) => true,
            },
            ..UnsizedFiles::default()
        },
        numbers: match &sources {
            Sources::Files(walk) => Some(walk.numbers()),
            Sources::Pipe(_) => None,
        },
        held: None,
        count: WalkCount::begin(sender)?,
    };
    match sources {
        Sources::Files(mut walk) => {
            sender.scheduler.begin_walk(root_id(walk.named()));
            if walk.lacks_operands() {
                sender.report.has_failed_before();
            }
            if sender.context.agreed.peer_remembers_links {
                walk.remember_all_names();
            }
            walk.by_ref().try_for_each(|step| planner.step(step))?;
            planner.count.end(sender)?;
            planner.compare(true)?;
            planner.tell_symlinks(walk.symlinks())?;
            planner.tell_unlinked(walk.unlinked() + planner.links.forgotten)?;
            planner.tell_unread(walk.unread_attributes())?;
        }
        Sources::Pipe(origin) => planner.nameless(&origin)?,
    }
    planner.flush()?;
    planner.finish_unsized()?;
    let last = planner.met.iter().last().map_or(0, |range| range.end - 1);
    let unused = planner.met.missing(last + 1).filter(|range| range.end > 1);
    let unused: Vec<ByteRange> = unused
        .map(|range| ByteRange {
            start: range.start.max(1),
            end: range.end,
        })
        .collect();
    let ranges = unused.iter().map(|span| span.start..span.end);
    let report = &sender.report;
    if planner.special > 0 {
        report.say_or_end(Message::Special(planner.special))?;
    }
    // Before the message, since the receiver may be done as soon as it arrives.
    sender.scheduler.end_planning(ranges);
    report.say_or_end(Message::AllSent(AllSent { last, unused }))?;
    match deletes {
        true => planner.mirror.answer(sender),
        false => Ok(()),
    }
}

impl SourceWalk<'_> {
    fn step(&mut self, step: Step) -> Result<(), Ended> {
        match step {
            Step::Entry(found) => {
                self.count.met(self.sender, &found)?;
                if found.entry.parent == NO_PARENT && self.sender.context.options.mirror.deletes {
                    self.mirror.found(self.sender, &found)?;
                }
                self.entry(found)
            }
            Step::Unnumbered(found) => {
                self.count.met(self.sender, &found)?;
                self.unnumbered(found)
            }
            Step::EndDirectory {
                id,
                children,
                names,
                is_named,
            } => {
                let names = names.map(|names| DirectoryNames {
                    directory: id,
                    is_named,
                    sums: names.sums(),
                });
                let end = match &mut self.held {
                    Some(held) => held.leave(id, children),
                    None => Some(EntryEnd {
                        entry: id,
                        length: children,
                        root: None,
                    }),
                };
                self.announcements.end(self.sender, end, names)?;
                self.compare(false)
            }
            Step::LeftOut if self.sender.context.is_ending() => Err(Ended),
            Step::LeftOut => Ok(()),
            Step::Failed(error) => {
                self.sender.report.fail_unannounced(&error);
                Ok(())
            }
            Step::Missing(error) => {
                self.sender.report.fail_missing(&error);
                Ok(())
            }
            Step::Special(error) => {
                self.sender.context.news.failures.detail(&error);
                self.sender.context.progress.add_special(1);
                self.special += 1;
                Ok(())
            }
        }
    }

    /// Handles an entry that the receiver may have unchanged.
    fn unnumbered(&mut self, found: FoundFile) -> Result<(), Ended> {
        if self.held.is_none() {
            self.wait_landed()?;
            let options = &self.sender.context.options;
            let contents = self.contents();
            let terms = |key| SumTerms {
                contents,
                key,
                keep: options.keep,
                changes: options.changes.clone(),
                has_time: options.update.sums_have_times(&options.keep),
            };
            let scheduler = &self.sender.scheduler;
            let terms = scheduler.sum_key().map(terms);
            self.held = Some(HeldEntries::new(terms, scheduler.share_of(HELD_BYTES_MAX)));
        }
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        if held.terms.is_none() {
            held.announced(found.entry.parent);
            return self.numbered(found);
        }
        held.hold(found);
        self.compare(false)
    }

    /// Set if the contents of small files are compared (`--checksum`).
    fn contents(&self) -> Option<Changes> {
        let by = self.sender.context.options.update.unchanged_by;
        (by == UnchangedBy::Content).then(|| self.sender.reader.changes())
    }

    /// Announces an entry that the walk has not numbered.
    fn numbered(&mut self, mut found: FoundFile) -> Result<(), Ended> {
        let number = self.numbers.as_ref().map(EntryNumbers::take);
        found.entry.id = number.unwrap_or_default();
        found.take_list_from_mode();
        self.entry(found)
    }

    /// Sends questions about held entries, and announces those that differ. If `all`, does so until
    /// nothing is held.
    fn compare(&mut self, all: bool) -> Result<(), Ended> {
        loop {
            let Some(held) = &mut self.held else {
                return Ok(());
            };
            let waits = held.is_full() || all && held.is_waiting();
            if waits || held.has_many_questions() {
                let (sums, entry_sums) = held.take_questions();
                // A directory is announced before it is compared.
                self.announcements.say(self.sender)?;
                let scheduler = &self.sender.scheduler;
                scheduler.asking_sums(sums.len() + entry_sums.len());
                let sums = (!sums.is_empty()).then_some(Message::DirectorySums(sums));
                let entry_sums = entry_sums.into_iter().map(Message::EntrySums);
                for message in sums.into_iter().chain(entry_sums) {
                    self.sender.report.say_or_end(message)?;
                }
            }
            let answers = self.sender.scheduler.take_sums_answers(waits)?;
            for answer in answers {
                self.compared(&answer)?;
            }
            if !waits {
                return Ok(());
            }
        }
    }

    fn compared(&mut self, answer: &SumsAnswer) -> Result<(), Ended> {
        let Some(Ok(compared)) = self.held.as_mut().map(|held| held.answered(answer)) else {
            let what = "an answer that it was not asked for";
            let breach = Error::breach(Side::Source, "the receiver", what);
            self.sender.context.shutdown.end(breach);
            return Err(Ended);
        };
        let Compared {
            differ,
            files,
            bytes,
            end,
        } = compared;
        let progress = &self.sender.context.progress;
        progress.add_unchanged_files(files, bytes);
        let mut differ = differ.into_iter();
        differ.try_for_each(|found| self.numbered(found))?;
        self.announcements.end(self.sender, end, None)
    }

    fn entry(&mut self, found: FoundFile) -> Result<(), Ended> {
        let id = found.entry.id;
        self.met.insert(id..id + 1);
        let plans = &self.sender.scheduler;
        while !plans.wait_entry_room(id, || self.flush())? {
            self.send_outgrown()?;
        }
        let listed = self.place_in_list(&found);
        self.links.has_begun &= matches!(found.entry.kind, EntryKind::HardLink(_));
        let removes = self.sender.context.removes_sources();
        match &found.entry.kind {
            EntryKind::Pipe if removes => self.refuse_removal(&found),
            EntryKind::Pipe => self.pipe(found, listed),
            EntryKind::File if removes && (found.entry.is_device() || self.is_unsized(&found)) => {
                self.refuse_removal(&found)
            }
            EntryKind::File if self.is_unsized(&found) => self.unsized_file(found, listed),
            EntryKind::File if found.entry.size <= SMALL_FILE_MAX && !found.entry.is_device() => {
                self.small_file(found, listed)
            }
            EntryKind::File => self.big_file(found, listed),
            EntryKind::HardLink(_) => self.link(found, listed),
            EntryKind::Directory => self.announcements.add(self.sender, found.entry),
            EntryKind::Symlink(_) | EntryKind::Special(_) => {
                self.will_remove(&found, true);
                self.announcements.add(self.sender, found.entry)
            }
        }
    }

    /// Opens a big file now, so that the announcement matches it. It is sent when the receiver
    /// wants it.
    fn big_file(&mut self, found: FoundFile, listed: Option<ListedPath>) -> Result<(), Ended> {
        self.announcements.say(self.sender)?;
        let source = match self.sender.reader.open(&found) {
            Ok(source) => source,
            Err(error) => {
                self.sender.report.fail(&found, error);
                return Ok(());
            }
        };
        self.will_remove(source.found(), false);
        let entry = source.found().entry.clone();
        let scheduler = &self.sender.scheduler;
        scheduler.announce(entry.id, source, listed, || self.flush())?;
        scheduler.announcing(std::slice::from_ref(&entry));
        self.sender.report.say_or_end(Message::Entries(vec![entry]))
    }

    /// Notes a file that is removed when its copy is durable. A file that was changed just now is read
    /// when a later change shows in its times. `is_sent`: the announcement is all that is sent.
    fn will_remove(&self, found: &FoundFile, is_sent: bool) {
        let mirror = &self.sender.context.options.mirror;
        let stays = mirror.removes_kept_only && found.lacks_attributes;
        if self.sender.context.removes_sources() && !stays {
            let file = CopiedFile::of(found);
            match file.too_young_ns() {
                0 => {}
                wait => std::thread::sleep(Duration::from_nanos(wait)),
            }
            let scheduler = &self.sender.scheduler;
            scheduler.will_remove(found.entry.id, file, is_sent);
        }
    }

    /// Fails a source that is not removed, since nothing shows whether it changed.
    fn refuse_removal(&mut self, found: &FoundFile) -> Result<(), Ended> {
        // The receiver has to know its directory.
        self.announcements.say(self.sender)?;
        let message = "is a device, a pipe or a file that the kernel generates, so fastcp cannot \
                       tell whether it changes; leave out --remove-source-files";
        let error = Error::new(Kind::Refused, Side::Source, message).at(found.path());
        self.sender.report.fail(found, error);
        Ok(())
    }

    fn pipe(&mut self, found: FoundFile, listed: Option<ListedPath>) -> Result<(), Ended> {
        let mut entry = Entry {
            kind: EntryKind::Pipe,
            size: 0,
            links: 1,
            ..found.entry.clone()
        };
        let origin = match found.entry.kind {
            EntryKind::Pipe => {
                let shared = self.sender.pipe.clone();
                shared.unwrap_or_else(|| PipeOrigin::Own(PipeSpec::Path(found.path())))
            }
            _ => PipeOrigin::Own(PipeSpec::File(Box::new(found.clone()))),
        };
        if origin.spec().is_once() {
            let shutdown = &self.sender.context.shutdown;
            // If an earlier session began it, it may be in place; the receiver knows.
            let begun = shutdown.has_begun(found.path().as_os_str().as_bytes());
            entry
                .extensions
                .push(once(begun && !self.unsized_files.are_alone));
        }
        self.send_pipe(entry, &origin, listed)
    }

    /// Sends stdin or the output of a command.
    fn nameless(&mut self, origin: &PipeOrigin) -> Result<(), Ended> {
        let entry = origin.spec().entry(root_id(0));
        self.met.insert(entry.id..entry.id + 1);
        self.sender.scheduler.wait_entry_room(entry.id, || Ok(()))?;
        let lists = self.sender.context.digests.is_some();
        let listed = lists.then(|| ListedPath::of_root(0));
        self.send_pipe(entry, origin, listed)
    }

    fn send_pipe(
        &mut self,
        entry: Entry,
        origin: &PipeOrigin,
        listed: Option<ListedPath>,
    ) -> Result<(), Ended> {
        self.flush()?;
        let is_alone = self.unsized_files.are_alone;
        let pipe = Arc::new(SendPipe::new(entry.clone(), origin, listed, is_alone));
        self.sender.scheduler.announce_pipe(pipe.clone());
        let announced = Message::Entries(vec![entry]);
        self.sender.report.say_or_end(announced)?;
        match self.sender.context.options.dry_run {
            // The receiver only reports the change.
            true => Ok(()),
            false => self.sender.pipe(&pipe, origin),
        }
    }

    /// Plans a hard link. It is announced when the first name is in place. If the first name
    /// failed, the file is sent under this name.
    fn link(&mut self, mut found: FoundFile, listed: Option<ListedPath>) -> Result<(), Ended> {
        let plans = &self.sender.scheduler;
        if !self.links.has_begun {
            self.compare(true)?;
            self.flush()?;
            plans.wait_idle()?;
            self.links.has_begun = true;
        }
        let EntryKind::HardLink(first) = found.entry.kind else {
            return Ok(());
        };
        let is_last = found.entry.links <= 1;
        let sent_as = self.links.sent_as(first, is_last);
        if plans.has_failed(sent_as) {
            if !is_last {
                self.links.send_again(first, found.entry.id);
            }
            found.entry.kind = EntryKind::File;
            found.entry.size = found.identity.size;
            let sent = if found.entry.size <= SMALL_FILE_MAX {
                self.small_file(found, listed)
            } else {
                self.big_file(found, listed)
            };
            sent.and_then(|()| self.flush())?;
            return plans.wait_idle();
        }
        found.entry.kind = EntryKind::HardLink(sent_as);
        self.will_remove(&found, true);
        if let (Some(list), Some(listed)) = (&self.sender.context.digests, listed) {
            list.add_link(&found.entry, sent_as, listed);
        }
        self.announcements.add(self.sender, found.entry)
    }

    fn tell_symlinks(&self, links: SymlinkCounts) -> Result<(), Ended> {
        let SymlinkCounts { all, outside } = links;
        if all == 0 {
            return Ok(());
        }
        self.sender.context.progress.add_symlinks(all, outside);
        self.sender
            .report
            .say_or_end(Message::Symlinks((all, outside)))
    }

    fn tell_unlinked(&self, unlinked: u64) -> Result<(), Ended> {
        if unlinked == 0 {
            return Ok(());
        }
        self.sender.context.progress.add_unlinked(unlinked);
        self.sender.report.say_or_end(Message::Unlinked(unlinked))
    }

    /// Reports entries whose extended attributes could not be read.
    fn tell_unread(&self, entries: u64) -> Result<(), Ended> {
        if entries == 0 {
            return Ok(());
        }
        let some = NotKept {
            unread: entries,
            ..NotKept::default()
        };
        self.sender.context.progress.not_kept().add(&some);
        self.sender.report.say_or_end(Message::NotKept(some))
    }

    /// The entry's place below the destination, if there is a list of digests.
    fn place_in_list(&mut self, found: &FoundFile) -> Option<ListedPath> {
        // The walk waits while nobody reads the list. So the waiting lines are limited by the
        // files in flight.
        let list = self.sender.context.digests.as_ref()?;
        list.wait_room(|| self.sender.context.is_ending());
        let entry = &found.entry;
        if entry.parent == NO_PARENT {
            // Roots are numbered from 1, in order.
            let root = entry.id as usize - 1;
            self.roots.insert(Arc::as_ptr(&found.dir), root);
            return Some(ListedPath::of_root(root));
        }
        let root = match self.sender.context.options.relative {
            // The files of one root may begin in several directories.
            Some(_) => 0,
            None => *self.roots.get(&Arc::as_ptr(found.dir.top()))?,
        };
        let dir = found.dir.clone();
        Some(ListedPath::in_source(root, dir, entry.name.as_bytes()))
    }

    fn flush(&mut self) -> Result<(), Ended> {
        self.announcements.say(self.sender)?;
        self.flush_small()
    }

    fn small_file(&mut self, found: FoundFile, listed: Option<ListedPath>) -> Result<(), Ended> {
        self.will_remove(&found, false);
        let member = PackMember::new(found, listed);
        self.see_landed()?;
        match self.small.landed {
            Some(SmallFileMode::Resumes) => return self.ask(member),
            Some(SmallFileMode::Ordered) => return self.big_file(member.found, member.listed),
            Some(SmallFileMode::Fresh) | None => {}
        }
        let (size, name_len) = (member.found.entry.size, member.row_len());
        if name_len > LONG_ROW {
            let entry = std::slice::from_ref(&member.found.entry);
            self.sender.scheduler.announcing(entry);
        }
        let Some(pack) = self.small.gathering.add(member, size, name_len) else {
            return Ok(());
        };
        if self.small.landed.is_some() {
            return self.pack(pack);
        }
        self.small.early.push(pack);
        if self.small.early.len() >= EARLY_MAX {
            self.wait_landed()?;
        }
        Ok(())
    }

    /// Plans or asks about all gathered files, so that none is held back.
    fn flush_small(&mut self) -> Result<(), Ended> {
        if let Some(pack) = self.small.gathering.take() {
            if self.small.landed.is_none() {
                self.small.early.push(pack);
                return self.wait_landed();
            }
            self.pack(pack)?;
        }
        if !self.small.early.is_empty() {
            self.wait_landed()?;
        }
        self.send_asking()
    }

    fn wait_landed(&mut self) -> Result<(), Ended> {
        // The receiver says where the copy lands without waiting for entries.
        self.announcements.say(self.sender)?;
        self.sender.scheduler.wait_landed()?;
        self.see_landed()?;
        self.send_asking()
    }

    /// Looks whether the receiver has said how small files are sent. Then plans the files gathered
    /// so far.
    fn see_landed(&mut self) -> Result<(), Ended> {
        if self.small.landed.is_some() {
            return Ok(());
        }
        self.small.landed = self.sender.scheduler.landed();
        if let (Some(SmallFileMode::Resumes | SmallFileMode::Ordered), Some(share)) =
            (self.small.landed, &self.sender.share)
        {
            share.packs_differ();
        }
        let early = match self.small.landed {
            None => return Ok(()),
            Some(SmallFileMode::Fresh) => take(&mut self.small.early),
            Some(landed) => {
                let gathered = self.small.gathering.take();
                let early = take(&mut self.small.early);
                for member in early.into_iter().chain(gathered).flatten() {
                    match landed {
                        SmallFileMode::Ordered => self.big_file(member.found, member.listed)?,
                        SmallFileMode::Fresh | SmallFileMode::Resumes => self.ask(member)?,
                    }
                }
                return Ok(());
            }
        };
        early.into_iter().try_for_each(|pack| self.pack(pack))
    }

    /// Plans a pack, after announcing the directories of its files.
    fn pack(&mut self, pack: Vec<PackMember>) -> Result<(), Ended> {
        self.announcements.say(self.sender)?;
        self.sender.scheduler.add_pack(pack)
    }

    fn ask(&mut self, member: PackMember) -> Result<(), Ended> {
        // Nothing else in a dry run shows that a small file cannot be read.
        if self.sender.context.options.dry_run
            && let Err(error) = self.sender.reader.open(&member.found)
        {
            self.sender.report.fail(&member.found, error);
            return Ok(());
        }
        match self.small.ask(member) {
            true => self.send_asking(),
            false => Ok(()),
        }
    }

    fn send_asking(&mut self) -> Result<(), Ended> {
        let mut members = self.small.take_asking();
        if members.is_empty() {
            return Ok(());
        }
        if let Some(changes) = self.contents() {
            let failed = Mutex::new(Vec::new());
            threads::share(&mut members, |member| {
                if let Err(error) = member.found.read_content(changes) {
                    failed.lock().push((member.found.entry.id, error));
                }
            });
            // In a copy it fails when it is sent, if it cannot be read then.
            let failed = failed.into_inner();
            for (id, error) in failed
                .into_iter()
                .filter(|_| self.sender.context.options.dry_run)
            {
                if let Some(at) = members.iter().position(|one| one.found.entry.id == id) {
                    self.sender.report.fail(&members.remove(at).found, error);
                }
            }
            if members.is_empty() {
                return Ok(());
            }
        }
        self.announcements.say(self.sender)?;
        let entries: Vec<Entry> = members
            .iter()
            .map(|member| {
                let mut entry = member.found.entry.clone();
                mark_young(&mut entry);
                entry
            })
            .collect();
        self.sender.scheduler.announcing(&entries);
        self.sender.scheduler.ask(members);
        self.sender.report.say_or_end(Message::Ask(entries))
    }

    /// True for a file that is followed while it grows, and for a file whose size means nothing.
    /// That is a file that claims to be empty and is not, and every file made up by the kernel
    /// (/proc, /sys).
    fn is_unsized(&mut self, found: &FoundFile) -> bool {
        let sender = self.sender;
        if sender.context.options.follow_ms.is_some() && found.entry.parent == NO_PARENT {
            return true;
        }
        match self.unsized_files.sizes.get(&found.identity.dev) {
            Some(Sizes::MadeUp | Sizes::Spent) => return true,
            Some(Sizes::True) if found.entry.size > 0 => return false,
            _ if found.entry.is_device() => return false,
            _ => {}
        }
        // A file that cannot be opened fails with the reason when it is sent.
        let Ok((file, stat)) = found.open(sender.reader.changes()) else {
            return false;
        };
        let sizes = sizes(&file);
        self.unsized_files.sizes.insert(found.identity.dev, sizes);
        sizes != Sizes::True || has_unsaid_content(&file, &stat)
    }

    /// Plans a file that is read to its end, wherever that is. A pipe costs a round trip. Files
    /// made up by the kernel are short and come by the hundred, so they go into packs. A list of
    /// digests rules out packs, since it must know the result of a pack that was read twice.
    fn unsized_file(
        &mut self,
        mut found: FoundFile,
        listed: Option<ListedPath>,
    ) -> Result<(), Ended> {
        let is_alone = found.entry.parent == NO_PARENT
            && (self.unsized_files.are_alone || self.sender.context.options.follow_ms.is_some());
        let is_made_up = self.unsized_files.sizes.get(&found.identity.dev) == Some(&Sizes::MadeUp);
        if !is_made_up || is_alone || self.sender.context.digests.is_some() {
            return self.pipe(found, listed);
        }
        found.entry.size = PAGE;
        found.entry.links = 1;
        found.entry.extensions.push(Extension {
            tag: MADE_UP,
            bytes: Vec::new(),
        });
        self.unsized_files.are_packed = true;
        self.small_file(found, listed)
    }

    /// Waits for packs that may have no room for some file, then sends those files.
    fn finish_unsized(&mut self) -> Result<(), Ended> {
        if self.unsized_files.are_packed {
            self.sender.scheduler.wait_idle()?;
        }
        self.send_outgrown()
    }

    fn send_outgrown(&mut self) -> Result<(), Ended> {
        let outgrown = self.sender.scheduler.take_outgrown();
        let mut streams = outgrown.into_iter();
        streams.try_for_each(|(found, listed)| self.pipe(found, listed))
    }
}

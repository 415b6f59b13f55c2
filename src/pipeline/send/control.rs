//! The sender's reactions to the receiver's messages. The task that reads the control connection
//! calls these functions, so nothing here waits for a disk, a buffer or the network.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::cache::{CacheKey, CacheShare};
use super::comparison::{COMPARED_PIECE, ComparedRanges, CopyComparisons};
use super::name_questions::NameQuestions;
use super::plan::{FileReading, PackMember, Plan, PlannedContent, RootDigest, SendFile, SendPipe};
use super::report::SendReport;
use super::scheduler::{
    Discarded, EntryAtClose, LeftFile, Scheduler, Settled, SmallFileMode, Sum, Unanswered,
};
use crate::chunk::ChunkKind;
use crate::chunk::ranges::RangeSet;
use crate::chunk::split::{Cut, whole_chunks};
use crate::digest::{Added, Digest, NONE, Tree};
use crate::manifest::{EntryId, Name};
use crate::pipe::Stop;
use crate::pipeline::context::Context;
use crate::wire::message::{
    ALL_RANGES_MAX, Ack, Busy, ByteRange, Fault, Message, Missing, RANGES_MAX, Want, WantKind,
};

/// The receiver broke the protocol.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnexpectedMessage(pub &'static str);

/// Handles what the receiver says.
pub struct SendControl {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
    /// Set if other hosts get the same data.
    share: Option<CacheShare>,
    comparisons: CopyComparisons,
    /// Set when a user at either end says that a followed file is complete.
    enough: Stop,
    /// The receiver reported that everything is in place.
    pub done: Notify,
    /// Asked when everything else is in place (`--delete`).
    pub(super) questions: NameQuestions,
    /// The receiver's last report on how it spends its time.
    heard: Mutex<Busy>,
}

impl SendControl {
    pub fn new(report: &SendReport, share: Option<CacheShare>, enough: Stop) -> SendControl {
        SendControl {
            context: report.context().clone(),
            scheduler: report.scheduler().clone(),
            comparisons: report.scheduler().comparisons(),
            share,
            enough,
            done: Notify::new(),
            questions: NameQuestions::default(),
            heard: Mutex::default(),
        }
    }

    /// Answers no more questions of the receiver.
    pub fn close(&self) {
        self.questions.close();
    }

    /// How the receiver spends its time.
    pub fn far(&self) -> Busy {
        *self.heard.lock()
    }

    /// Handles one message from the receiver.
    pub fn answer(&self, message: Message) -> Result<(), UnexpectedMessage> {
        match message {
            Message::Landed(landed) => {
                self.context.shutdown.set_landed(&landed.names);
                if let Some(list) = &self.context.digests {
                    list.set_landed(landed.names.into_iter().map(name_or_none).collect());
                }
                // A list of digests needs the digests of files in place too, so they are read. But
                // it has no files that are left out.
                let options = &self.context.options;
                let may_ask = self.context.digests.is_none() || options.update.leaves_out();
                // A dry run sends nothing, whatever the receiver says.
                let asks = landed.resumes && may_ask || options.dry_run;
                let small = match (landed.ordered, asks) {
                    (true, _) => SmallFileMode::Ordered,
                    (false, true) => SmallFileMode::Resumes,
                    (false, false) => SmallFileMode::Fresh,
                };
                if landed.ordered {
                    // Bytes that left an ordered destination cannot be taken back for a retry.
                    self.context.shutdown.set_once();
                }
                if landed.window == 0 {
                    return Err(UnexpectedMessage("a window that holds no chunk"));
                }
                self.scheduler.start(
                    small,
                    self.context.budget.window().min(landed.window as usize),
                );
            }
            Message::Want(wants) => {
                let is_there = |kind: &WantKind| {
                    matches!(
                        kind,
                        WantKind::Skip
                            | WantKind::Have(_)
                            | WantKind::Unchanged
                            | WantKind::Stays
                            | WantKind::WouldSend
                    )
                };
                let options = &self.context.options;
                let may_compare = options.dry_run_reads();
                let is_answer = |want: &Want| is_answer_of_dry_run(&want.kind, may_compare);
                if options.dry_run && !wants.iter().all(is_answer) {
                    return Err(UnexpectedMessage("a request for data in a dry run"));
                }
                let content = wants.iter().filter(|want| !is_there(&want.kind));
                self.scheduler.want_small(content.map(|want| want.entry));
                for want in wants {
                    self.wanted(want)?;
                }
            }
            Message::Missing(missing) => self.missing(&missing)?,
            Message::Ack(ack) => self.acknowledged(&ack)?,
            Message::Durable(entries) if self.context.removes_sources() => {
                for span in entries.iter() {
                    let possible = 0 < span.start && span.start < span.end;
                    if !possible || !self.scheduler.is_met(span.end - 1) {
                        return Err(UnexpectedMessage("a copy of an unknown entry"));
                    }
                    self.scheduler.durable(span.start..span.end);
                    let moved = &self.context.news.failures.moved;
                    moved.are_durable(span.start..span.end);
                }
            }
            Message::Nack(chunks) => chunks
                .into_iter()
                .for_each(|chunk| self.scheduler.nacked(chunk)),
            Message::Differs(differing) if self.context.agreed.patches => {
                let known = self.scheduler.differs(differing);
                known.map_err(|_| UnexpectedMessage("pages of a chunk that it was not offered"))?;
            }
            Message::Fault(fault) => self.receiver_failed(fault)?,
            Message::Enough(()) => self.enough.set(),
            Message::SumUp(key) if self.scheduler.landed().is_none() => self.scheduler.sum_up(key),
            Message::Stayed(count) => self.context.progress.add_staying(count),
            Message::Summed(answer) => {
                if !self.scheduler.add_sums_answer(answer) {
                    return Err(UnexpectedMessage("answers that it was not asked for"));
                }
            }
            Message::OwnNames(question) => {
                let is_mirror = self.context.options.mirror.deletes;
                if !is_mirror || !self.questions.add(question) {
                    return Err(UnexpectedMessage(
                        "questions about names that are not allowed",
                    ));
                }
            }
            Message::Snapshot(report) => self.context.news.made_snapshot(&report),
            Message::Deleted(deleted) => self.context.news.deleted(&deleted),
            Message::Itemized(changes) => {
                let options = &self.context.options;
                if !options.itemizes && !options.dry_run {
                    return Err(UnexpectedMessage("changes that it was not asked for"));
                }
                self.context.news.itemized.add(&changes);
            }
            Message::FilesDone(done) => {
                if !self.context.options.reports_files {
                    return Err(UnexpectedMessage("files that it was not asked for"));
                }
                self.context.news.files_done(done.files);
            }
            Message::NotKept(some) => self.context.progress.not_kept().add(&some),
            Message::Busy(busy) => *self.heard.lock() = busy,
            Message::Checked(bytes) => self.context.progress.set_checked(bytes),
            Message::Done(()) if self.scheduler.is_done() => {
                self.scheduler.settle_rest(|plan| self.count(plan));
                self.scheduler.end();
                self.done.notify_one();
            }
            _ => return Err(UnexpectedMessage("an unexpected type")),
        }
        Ok(())
    }

    /// The receiver found damage in ranges that it said it has.
    fn missing(&self, missing: &Missing) -> Result<(), UnexpectedMessage> {
        let breach = || UnexpectedMessage("ranges that it has not reported as existing");
        let spans = missing.spans.iter().map(|span| span.start..span.end);
        // Otherwise there could be as many ranges as the file has bytes.
        let grain = self.context.agreed.grain;
        let is_possible =
            |span: &ByteRange| span.start < span.end && span.start.is_multiple_of(grain);
        let are_possible = missing.spans.iter().all(is_possible);
        if !self.context.agreed.peer_repairs || !are_possible || missing.spans.len() > RANGES_MAX {
            return Err(breach());
        }
        let ranges: RangeSet = spans.collect();
        let count = ranges.count();
        let had = self.scheduler.missing(missing.entry, ranges);
        if let Some(had) = had.map_err(|_| breach())? {
            self.context.progress.add_resumed(had);
            self.context.progress.add_damaged(count);
        }
        Ok(())
    }

    /// Takes the receiver's answer about one entry. An entry that is not open failed here in the
    /// meantime.
    fn wanted(&self, want: Want) -> Result<(), UnexpectedMessage> {
        let kind = match want.kind {
            WantKind::Skip => {
                let skipped = self.scheduler.skip(want.entry);
                if let (Some(share), Some(source)) = (&self.share, &skipped) {
                    share.skip(CacheKey::of(&source.found().entry));
                }
                if let Some(source) = skipped {
                    self.scheduler.discard(Discarded::Source(source));
                }
                return Ok(());
            }
            kind @ (WantKind::Unchanged | WantKind::Stays) => {
                let options = &self.context.options;
                // `--no-clobber` keeps files in a dry run without their digests.
                if !options.update.asks() && !options.dry_run {
                    return Err(UnexpectedMessage("a file that it was not to compare"));
                }
                self.left(
                    want.entry,
                    match kind {
                        WantKind::Unchanged => LeftAs::Unchanged,
                        _ => LeftAs::Staying,
                    },
                );
                return Ok(());
            }
            WantKind::WouldSend if !self.context.options.dry_run => {
                return Err(UnexpectedMessage("an answer that only a dry run has"));
            }
            WantKind::WouldSend => {
                // Further names of the file would become hard links, as in a copy.
                self.left(want.entry, LeftAs::Planned);
                return Ok(());
            }
            kind => kind,
        };
        if let (WantKind::Have(ranges), true) = (&kind, self.context.agreed.peer_repairs)
            && let [(ByteRange { start: 0, end }, digest)] = ranges[..]
        {
            let digest = (digest != NONE).then_some(digest);
            if let Some(held) = self.scheduler.hold(want.entry, end, digest) {
                self.sent(want.entry);
                if let Some(share) = &self.share {
                    share.skip(CacheKey::of(&held));
                }
                return Ok(());
            }
        }
        if self.scheduler.want_pipe(want.entry) {
            return match kind {
                WantKind::Fresh => Ok(()),
                _ => Err(UnexpectedMessage("a request for a part of a pipe")),
            };
        }
        let made = self
            .scheduler
            .want(want.entry, |announced| self.part(announced, kind))?;
        if let Some(file) = made {
            if file.ranges > 0 && self.scheduler.ranges() > ALL_RANGES_MAX {
                return Err(UnexpectedMessage("more ranges than allowed"));
            }
            self.context.progress.add_resumed(file.coverage.had());
            self.context
                .progress
                .start_name(want.entry, || file.found.path_in_copy());
        }
        Ok(())
    }

    /// The receiver keeps an existing file unchanged, makes no new one, or only plans to.
    fn left(&self, entry: EntryId, left: LeftAs) {
        let is_placed = left != LeftAs::Staying;
        let Some(LeftFile { found, source }) = self.scheduler.leave(entry, is_placed) else {
            // A pipe.
            if let Some(closed) = self.scheduler.close(entry) {
                self.context.progress.end_name(entry);
                self.discard(closed);
            }
            return;
        };
        if left == LeftAs::Unchanged {
            self.sent(entry);
            self.context.progress.add_unchanged(found.size);
        }
        if let Some(share) = &self.share {
            share.skip(CacheKey::of(&found));
        }
        if let Some(source) = source {
            self.scheduler.discard(Discarded::Source(source));
        }
    }

    /// Makes the [`SendFile`] to send, with the parts that the receiver wants.
    fn part(&self, announced: Unanswered, kind: WantKind) -> Result<SendFile, UnexpectedMessage> {
        let Unanswered {
            source,
            listed,
            is_read_again,
        } = announced;
        let found = source.found().clone();
        let size = found.entry.size;
        let (chunk_size, grain) = (self.context.chunk_size as u64, self.context.agreed.grain);
        let digest_only = kind == WantKind::Digest;
        let is_told = digest_only || self.context.options.digests;
        // Chunks of a file that may change are read at different times, so their root means
        // nothing. A file that changed may grow for as long as it is read; only the root can show
        // that it did nothing else.
        let may_lack_root = found.entry.is_sparse() && !is_read_again || self.context.options.live;
        let needs_tree = is_told || !may_lack_root;
        let mut tree = needs_tree.then(|| Tree::new(size, grain));
        let whole = |spans: &mut dyn Iterator<Item = &ByteRange>, unit: u64| {
            let spans = spans.take(RANGES_MAX + 1).map(|span| span.start..span.end);
            whole_chunks(size, unit, spans).ok_or(UnexpectedMessage("invalid ranges of a file"))
        };
        let (have, compare) = kind.ranges();
        if have.len().max(compare.len()) > RANGES_MAX {
            return Err(UnexpectedMessage("more ranges than allowed"));
        }
        let had = whole(&mut have.iter().map(|(span, _)| span), grain)?;
        for (span, value) in have {
            let len = span.end - span.start;
            let added = tree
                .as_mut()
                .map(|tree| tree.add_subtree(span.start, len, *value));
            if added.is_some_and(|added| added != Added::New) {
                return Err(UnexpectedMessage(
                    "ranges that do not fit into the file's digest",
                ));
            }
        }
        let ranges = have.len() + compare.len();
        let compare = whole(&mut compare.iter(), chunk_size)?;
        let piece = match self.context.agreed.patches {
            true => COMPARED_PIECE.clamp(grain, chunk_size),
            false => chunk_size,
        };
        if self.context.options.dry_run && compare.count() != size {
            return Err(UnexpectedMessage("a request for data in a dry run"));
        }
        // What differs from this receiver's version is for this receiver alone.
        let is_compared = !compare.is_empty();
        if let (Some(share), true) = (&self.share, is_compared) {
            share.skip(CacheKey::of(&found.entry));
        }
        let share = self.share.as_ref().filter(|_| !is_compared);
        let start = had.iter().next().filter(|first| first.start == 0);
        let start = start.map_or(0, |first| first.end);
        let comparison = ComparedRanges::of(compare, piece, start, &self.comparisons);
        let comparison = match self.context.agreed.shifts {
            true => comparison.with_anchors(),
            false => comparison,
        };
        let cut = Cut::skipping(size, chunk_size, grain, &had);
        let reading = FileReading::new(is_read_again, self.context.options.live.then_some(size));
        Ok(SendFile {
            interest: share.map(|share| share.interest(CacheKey::of(&found.entry), &had)),
            comparison,
            alone: AtomicBool::new(is_compared),
            ranges,
            digest: tree.map_or(RootDigest::Unneeded, |tree| {
                RootDigest::Tree(Mutex::new(tree))
            }),
            digest_only,
            listed,
            ..SendFile::new(found, *source, had, cut, reading)
        })
    }

    fn acknowledged(&self, ack: &Ack) -> Result<(), UnexpectedMessage> {
        // Before the chunks: a member of a pack counts as copied unless it failed.
        for span in ack.failed.iter() {
            if span.start < span.end && self.scheduler.is_met(span.end - 1) {
                self.scheduler.entries_lost(span.start..span.end);
            }
        }
        for span in ack.chunks.iter() {
            if span.start > span.end {
                return Err(UnexpectedMessage("an invalid range of chunks"));
            }
            let count = |plan: &Plan| self.count(plan);
            self.scheduler.settle_chunks(span.start..span.end, count);
        }
        for (spans, placed) in [(&ack.entries, true), (&ack.failed, false)] {
            for span in spans.iter() {
                let possible = 0 < span.start && span.start < span.end;
                if !possible || !self.scheduler.is_met(span.end - 1) {
                    return Err(UnexpectedMessage("an acknowledgement of unknown entries"));
                }
                let Settled { open, kept } = self.scheduler.settle_entries(span.start..span.end);
                for entry in open {
                    self.close_file(entry, placed);
                }
                self.count_kept(kept, placed);
                if let (Some(list), true) = (&self.context.digests, placed) {
                    list.links_placed(span.start..span.end);
                }
            }
        }
        Ok(())
    }

    /// Counts a chunk that is in place.
    fn count(&self, plan: &Plan) {
        match &plan.what {
            PlannedContent::Piece { file, piece } => {
                let len = u64::from(piece.len);
                file.coverage.add_placed(len);
                if piece.kind == ChunkKind::Zeros || plan.zeros.load(Relaxed) {
                    self.context.progress.add_skipped(len);
                    return;
                }
                let had = plan.offer().placed(len);
                if had > 0 {
                    self.context.progress.add_resumed(had);
                }
                if had < len {
                    self.context.progress.add_bytes(len - had);
                }
            }
            PlannedContent::Pack(_) | PlannedContent::Large(_) => {
                plan.what.members().for_each(|it| self.count_member(it));
            }
            PlannedContent::Part(part) if plan.digest.get() == Some(&NONE) => {
                self.context.progress.add_skipped(part.len.into());
            }
            PlannedContent::Part(part) => self.context.progress.add_bytes(part.len.into()),
        }
    }

    fn count_member(&self, member: &PackMember) {
        let entry = &member.found.entry;
        self.context.progress.end_name(entry.id);
        if member.failed.load(Relaxed) || self.scheduler.has_failed(entry.id) {
            return;
        }
        self.context.progress.add_bytes(member.size.load(Relaxed));
        self.context.progress.add_files(1);
        if let (Some(list), Some(listed), Some(digest)) =
            (&self.context.digests, &member.listed, member.digest.get())
        {
            list.add(listed, digest);
            list.remember(entry, digest);
        }
    }

    /// Counts small files that the receiver already had: in place, or failed along with their
    /// directory.
    fn count_kept(&self, kept: Sum, placed: bool) {
        if !placed {
            return self.context.progress.add_failed(kept.files);
        }
        self.context.progress.add_resumed(kept.bytes);
        self.context.progress.add_resumed_files(kept.files);
        self.context.progress.add_files(kept.files);
    }

    /// Closes a file that is in place, or that failed along with its directory.
    fn close_file(&self, entry: EntryId, placed: bool) {
        let Some(closed) = self.scheduler.close(entry) else {
            return;
        };
        self.context.progress.end_name(entry);
        if !placed {
            self.context.progress.add_failed(1);
            return self.discard(closed);
        }
        // In a dry run nothing is placed. The receiver tells how many files were found unchanged.
        if !self.context.options.dry_run {
            self.context.progress.add_files(1);
        }
        let file = match closed {
            EntryAtClose::Sending(file) => file,
            EntryAtClose::Announced(_) => return self.discard(closed),
            EntryAtClose::Pipe(pipe) => {
                let digest = self.pipe_placed(&pipe);
                if let (Some(list), Some(listed), Some(digest)) =
                    (&self.context.digests, &pipe.listed, digest)
                {
                    list.add(listed, &digest);
                }
                return;
            }
            EntryAtClose::Held(held) => {
                self.context.progress.add_resumed(held.found.entry.size);
                self.context.progress.add_resumed_files(1);
                if let (Some(list), Some(listed), Some(digest)) =
                    (&self.context.digests, &held.listed, &held.digest)
                {
                    list.add(listed, digest);
                    list.remember(&held.found.entry, digest);
                }
                return;
            }
            EntryAtClose::Skipped { size } => {
                self.context.progress.add_resumed(size);
                self.context.progress.add_resumed_files(1);
                return;
            }
        };
        let size = file.found.entry.size;
        if let Some(began) = file.began.get() {
            let path = || file.found.path_in_copy();
            let progress = &self.context.progress;
            progress.add_file_time(began.elapsed(), size, path);
        }
        if file.coverage.had() == size {
            self.context.progress.add_resumed_files(1);
        }
        if file.digest_only {
            self.context.progress.add_skipped(size);
        }
        if let (Some(list), Some(listed), Some(root)) =
            (&self.context.digests, &file.listed, file.root())
        {
            list.add(listed, &root);
            list.remember(&file.found.entry, &root);
        }
        self.scheduler.discard(Discarded::File(file));
    }

    /// The receiver has the entry.
    fn sent(&self, entry: EntryId) {
        if self.context.removes_sources() {
            self.scheduler.sent(entry);
        }
    }

    /// Drops an entry. Another thread closes its file.
    fn discard(&self, closed: EntryAtClose) {
        match closed {
            EntryAtClose::Sending(file) => self.scheduler.discard(Discarded::File(file)),
            EntryAtClose::Announced(source) => self.scheduler.discard(Discarded::Source(source)),
            EntryAtClose::Pipe(_) | EntryAtClose::Held(_) | EntryAtClose::Skipped { .. } => {}
        }
    }

    /// The digest of a pipe in place. A pipe that an earlier session read counts as resumed.
    fn pipe_placed(&self, pipe: &SendPipe) -> Option<Digest> {
        if pipe.entry.is_begun() {
            let whole = self
                .context
                .shutdown
                .once(pipe.path.as_os_str().as_bytes())?;
            self.context.progress.add_resumed(whole.length);
            return whole.digest;
        }
        let tree = pipe.tree.lock();
        tree.root(tree.end())
    }

    /// The receiver cannot place an entry.
    fn receiver_failed(&self, fault: Fault) -> Result<(), UnexpectedMessage> {
        let entry = fault.entry;
        if !self.scheduler.is_met(entry) {
            return Err(UnexpectedMessage("a failure of an unknown entry"));
        }
        self.context.news.failures.add(&fault.into_error());
        if entry != 0 {
            self.scheduler.entry_failed(entry);
            if let Some(closed) = self.scheduler.close(entry) {
                match &closed {
                    EntryAtClose::Sending(file) => {
                        file.reading.fail();
                    }
                    EntryAtClose::Pipe(pipe) => pipe.failed.store(true, Relaxed),
                    EntryAtClose::Announced(_)
                    | EntryAtClose::Held(_)
                    | EntryAtClose::Skipped { .. } => {}
                }
                self.discard(closed);
            }
            self.context.progress.end_name(entry);
        }
        Ok(())
    }
}

/// How the receiver leaves a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftAs {
    Unchanged,
    Staying,
    /// It would be sent (`--dry-run`).
    Planned,
}

/// True for an answer that asks for nothing, or at most for digests.
fn is_answer_of_dry_run(kind: &WantKind, may_compare: bool) -> bool {
    match kind {
        WantKind::Compare(_) => may_compare,
        WantKind::Skip | WantKind::Unchanged | WantKind::Stays | WantKind::WouldSend => true,
        WantKind::Fresh | WantKind::Have(_) | WantKind::Digest | WantKind::HaveAndCompare(..) => {
            false
        }
    }
}

/// A name from the receiver; empty if it is invalid.
fn name_or_none(bytes: Vec<u8>) -> Vec<u8> {
    Name::try_from(bytes).map_or_else(|_| Vec::new(), Vec::from)
}

//! The sender's reports to the receiver and the user: which entry cannot be sent, and why.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::plan::{PackMember, Plan, PlannedContent, SendFile, SendPipe};
use super::scheduler::{Ended, Scheduler, damaged_too_often};
use crate::error::{Error, Kind, Side};
use crate::manifest::{Entry, EntryId};
use crate::pipeline::context::Context;
use crate::source::{self, FoundFile};
use crate::units;
use crate::wire::message::{Fault, Message};

/// Where the parts of the sender report.
pub struct SendReport {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
    /// Some of the source could not be read.
    has_failed: AtomicBool,
}

impl SendReport {
    pub fn new(context: Arc<Context>, scheduler: Arc<Scheduler>) -> SendReport {
        SendReport {
            context,
            scheduler,
            has_failed: AtomicBool::new(false),
        }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }

    /// Sends a message. The reader of the control connection reports a lost connection.
    pub(super) fn say(&self, message: Message) {
        self.context.say(message);
    }

    pub(super) fn say_or_end(&self, message: Message) -> Result<(), Ended> {
        self.context
            .control
            .send_blocking(message)
            .map_err(|_| Ended)
    }

    /// Records that this end failed a big file, and tells the receiver.
    pub(super) fn fail_file(&self, file: &SendFile, error: Error) {
        if file.reading.fail() {
            self.fail(&file.found, error);
        }
    }

    pub(super) fn fail_member(&self, member: &PackMember, error: Error) {
        if !member.failed.swap(true, Relaxed) {
            self.fail(&member.found, error);
        }
    }

    /// Records that this end cannot send a pipe, or the rest of it, and tells the receiver.
    pub(super) fn fail_pipe(&self, pipe: &SendPipe, error: Error) {
        if !pipe.failed.swap(true, Relaxed) {
            self.fail_entry(&pipe.entry, error);
        }
    }

    /// Records that this end cannot send an entry, and tells the receiver.
    pub(super) fn fail(&self, found: &FoundFile, error: Error) {
        self.fail_entry(&found.entry, error);
    }

    fn fail_entry(&self, entry: &Entry, error: Error) {
        // In this order: a thread that waits until the entry is closed then finds that it failed.
        self.scheduler.entry_failed(entry.id);
        self.scheduler.close(entry.id);
        self.context.progress.end_name(entry.id);
        self.report(&error, entry.id, entry.parent);
    }

    /// Reports a failed entry that was not announced. The receiver only shows it to the user.
    pub(super) fn fail_unannounced(&self, error: &Error) {
        self.report(error, 0, 0);
    }

    /// Reports a name that the user listed and that is missing, even if sources may change.
    pub fn fail_missing(&self, error: &Error) {
        self.has_failed_before();
        self.context.report_fault(error, 0, 0);
    }

    /// Some operand was not found, which has been reported.
    pub(super) fn has_failed_before(&self) {
        self.has_failed.store(true, Relaxed);
    }

    /// True if some of the source could not be read, although it was there.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// If sources may change, a file that has vanished is no failure, but a link that leads nowhere is
    /// one. Nothing is a failure once the session ends: a thread may come back from a disk that hung
    /// only when the next session has begun, which reads the source itself.
    fn report(&self, error: &Error, entry: EntryId, parent: EntryId) {
        if self.context.is_ending() {
            return;
        }
        if error.kind != Kind::Changed && !source::has_vanished(error) {
            self.has_failed.store(true, Relaxed);
        }
        let is_gone = source::has_vanished(error) && !source::is_dangling(error);
        if self.context.options.live && is_gone {
            self.context.news.failures.detail(error);
            self.say(Message::Vanished(Fault::of(error, entry, parent)));
        } else {
            self.context.report_fault(error, entry, parent);
        }
    }

    /// Tells the user that a file grew, and is copied up to `size` bytes. It stays at the source.
    pub(super) fn grew(&self, found: &FoundFile, size: u64) {
        if self.context.is_ending() {
            return;
        }
        self.scheduler.will_stay(found.entry.id);
        let stays = match self.context.removes_sources() {
            true => ", and it was not removed",
            false => "",
        };
        let message = format!(
            "grew during the copy: only its first {} were copied{stays}; --live copies files that \
             are in use",
            units::size(size)
        );
        let warning = Error::new(Kind::Grew, Side::Source, message).at(found.path());
        self.context.news.failures.grew(&warning);
        let (id, parent) = (found.entry.id, found.entry.parent);
        self.say(Message::Grew(Fault::of(&warning, id, parent)));
    }

    /// Gives up a chunk that arrives damaged however often it is sent.
    pub(super) fn give_up(&self, plan: &Plan) {
        let error = damaged_too_often(Side::Source);
        match &plan.what {
            PlannedContent::Part(part) => {
                let error = error.at(&part.pipe.path);
                self.fail_pipe(&part.pipe, error);
            }
            PlannedContent::Piece { file, .. } => self.fail_file(file, error.at(file.found.path())),
            PlannedContent::Pack(_) | PlannedContent::Large(_) => {
                let members = plan.what.members();
                // The same order as in `read_pack`.
                let left = members.filter(|it| !it.failed.load(Relaxed));
                left.for_each(|it| self.scheduler.entry_failed(it.found.entry.id));
                self.scheduler
                    .settle_chunks(plan.chunk..plan.chunk + 1, |_| {});
                for member in plan.what.members() {
                    self.fail_member(member, error.clone().at(member.found.path()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::patch::{PAGE_SECRET_LEN, PageHasher};
    use crate::chunk::{CHUNK_SIZE, Pool};
    use crate::control::Outgoing;
    use crate::pipeline::context::Agreement;
    use crate::pipeline::news::News;
    use crate::pipeline::{Budget, Shutdown};
    use crate::progress::Progress;
    use crate::report::SilentReporter;
    use crate::wire::message::CopyOptions;

    /// One session of a copy.
    fn session(news: &Arc<News>, control: Outgoing) -> Context {
        let options = CopyOptions::default();
        Context {
            budget: Budget::new(&options, Some(1), CHUNK_SIZE).expect("it fits"),
            chunk_size: CHUNK_SIZE,
            agreed: Agreement::local(&options),
            page_hasher: PageHasher::new([0; PAGE_SECRET_LEN]),
            pool: Pool::new(1, CHUNK_SIZE),
            options,
            control,
            tell: Arc::new(|_| ()),
            news: news.clone(),
            progress: Arc::default(),
            shutdown: Arc::new(Shutdown::of_session(&Arc::default())),
            digests: None,
        }
    }

    #[tokio::test]
    async fn a_thread_that_a_session_left_behind_adds_no_failure_to_the_next_one() {
        let progress = Arc::<Progress>::default();
        let news = Arc::new(News::new(Arc::new(SilentReporter), progress));
        let (control, _writer) = Outgoing::start(tokio::io::sink());
        let context = Arc::new(session(&news, control));
        let report = Arc::new(SendReport::new(context.clone(), Arc::default()));
        let failures_after = |error: Error| {
            let report = report.clone();
            let thread = std::thread::spawn(move || report.fail_unannounced(&error));
            thread.join().expect("no panic");
            news.failures.take().0.len()
        };
        let error = Error::new(Kind::Read, Side::Source, "cannot read");
        assert_eq!(failures_after(error.clone()), 1);
        let lost = Error::new(Kind::Lost, Side::Here, "cut");
        context.shutdown.end(lost);
        assert_eq!(failures_after(error), 0);
    }
}

//! The sending end: from the walk to frames on the shared queue. The crate's documentation lists
//! the steps.
//!
//! One thread walks and plans. Workers read, encode, frame and seal. Connections take frames. Only
//! the queue of frames and the pool make a worker wait for the network.

pub mod cache;
mod care;
mod chunk_for;
pub mod control;
pub mod encoder_control;
mod large_chunk;
pub mod pipe;
pub mod plan;
mod read;
pub mod scheduler;
pub mod walk;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::sync::Notify;

use self::cache::CacheShare;
use self::encoder_control::EncoderControl;
use self::plan::{PackMember, Plan, PlannedContent, SendFile, SendPipe};
use self::scheduler::{Ended, NACKS_MAX, NextTask, Scheduler};
use self::worker::SendWorker;
use super::budget::lzma_slots;
use super::context::Context;
use super::worker_time::Activity;
use crate::chunk::pack::TableForm;
use crate::codec::Encoder;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, EntryId};
use crate::pipe::Stop;
use crate::pipeline::lzma_room::LzmaRoom;
use crate::progress::Phase;
use crate::seal::Sealer;
use crate::source::{self, Changes, FoundFile, PipeSpec, SourceFile};
use crate::transport::frames::{Frame, Frames};
use crate::tuner::STREAMS_MAX;
use crate::wire::SealedChunk;
use crate::wire::hello::Hello;
use crate::wire::message::{Busy, Fault, Message};

/// Most frames that may wait for a connection; [`EncoderControl`] decides how many do.
const FRAMES_MAX: usize = 2 * STREAMS_MAX as usize;

/// The sending end: what its threads and tasks share.
pub struct Sender {
    pub context: Arc<Context>,
    pub scheduler: Scheduler,
    pub encoder_control: EncoderControl,
    pub lzma_room: LzmaRoom,
    /// Frames that no connection has taken.
    pub frames: Frames,
    sealer: Sealer,
    /// The form of packs that the receiver accepts.
    table_form: TableForm,
    /// Frames may be lost on this route, so frames that cannot be read again are kept.
    keeps: bool,
    /// Set when a user at either end says that a followed file is complete.
    pub enough: Stop,
    /// Set if other hosts get the same data.
    pub share: Option<CacheShare>,
    /// Read instead of the named pipe, if that is the only operand and goes to several hosts.
    pipe: Option<PipeSpec>,
    /// The receiver reported that everything is in place.
    pub done: Notify,
    /// The receiver's last report on how it spends its time.
    heard: Mutex<Busy>,
}

/// What a sending end is made from besides its context.
pub struct SendTerms {
    /// Big files that both ends can have open at once.
    pub open_entries: u32,
    /// The form of packs that the receiver accepts.
    pub table_form: TableForm,
    pub peer_takes_large_packs: bool,
    pub peer_takes_large_pieces: bool,
    /// Frames are handed over in this process and cannot be lost.
    pub in_memory: bool,
    /// Set when the user says that a followed file has reached its end.
    pub enough: Stop,
    /// Set if chunks are shared with other destinations.
    pub share: Option<CacheShare>,
    /// Replaces a FIFO that other copies read too.
    pub pipe: Option<PipeSpec>,
}

impl SendTerms {
    /// For a receiver with this hello, which has all of the source for itself. `open_entries` is
    /// how many big files this end can have open.
    pub fn with(peer: &Hello, open_entries: u32) -> SendTerms {
        SendTerms {
            open_entries: open_entries.min(peer.limits.open_entries),
            table_form: peer.table_form(),
            peer_takes_large_packs: peer.takes_large_packs(),
            peer_takes_large_pieces: peer.takes_large_pieces(),
            in_memory: false,
            enough: Stop::new(),
            share: None,
            pipe: None,
        }
    }
}

impl Sender {
    pub fn new(context: Context, terms: SendTerms, sealer: Sealer) -> Sender {
        let (budget, chunk_size) = (context.budget, context.chunk_size);
        // Shared chunks must be the same for each destination.
        let may_be_large = terms.peer_takes_large_packs && terms.share.is_none();
        let large_max = budget.large_packs * usize::from(may_be_large);
        Sender {
            scheduler: Scheduler::of(terms.open_entries, large_max, terms.peer_takes_large_pieces),
            encoder_control: EncoderControl::new(context.options.compress),
            lzma_room: LzmaRoom::new(budget.lzma_workers, lzma_slots(chunk_size)),
            frames: Frames::new(FRAMES_MAX),
            sealer,
            table_form: terms.table_form,
            keeps: !terms.in_memory,
            enough: terms.enough,
            share: terms.share,
            pipe: terms.pipe,
            done: Notify::new(),
            heard: Mutex::default(),
            context: Arc::new(context),
        }
    }

    /// Runs a worker, which turns plans into frames until the copy ends.
    pub fn work(&self) {
        let mut worker = SendWorker {
            encoder: Encoder::new(self.context.chunk_size),
            clock: self.encoder_control.worker_time.begin(),
        };
        while let Ok(task) = self.scheduler.next() {
            let plan = match task {
                NextTask::Chunk(plan) => plan,
                NextTask::End(file) => {
                    self.end_file(&file);
                    continue;
                }
                NextTask::Reopen(held, missing) => {
                    self.reopen(*held, &missing);
                    continue;
                }
            };
            if let Some(frame) = self.frame_for(&plan, &mut worker) {
                worker.clock.turn_to(Activity::Held);
                if !self.push(frame) {
                    return;
                }
            }
            worker.clock.turn_to(Activity::Nothing);
            if self.scheduler.is_all_taken() && !self.context.is_ending() {
                self.context.progress.set_phase(Phase::Flushing);
            }
        }
    }

    /// Schedules the chunks of queued frames again, because a stronger method was chosen. On a slow
    /// link these frames would leave seconds later. The next frame stays, so that the link does not
    /// run idle.
    pub fn compress_again(&self) {
        for frame in self.frames.take_back(1) {
            self.scheduler.put_back(frame.header().chunk);
        }
    }

    /// Queues a frame when there is room. False once the copy ends.
    fn push(&self, frame: Frame) -> bool {
        let pushed = self
            .encoder_control
            .when_there_is_room(|| self.frames.len(), || self.frames.put(frame));
        pushed == Some(true)
    }

    /// Reads, encodes, frames and seals a chunk. None if nothing is to be sent now, or if the copy
    /// ends.
    fn frame_for(&self, plan: &Plan, worker: &mut SendWorker<'_>) -> Option<Frame> {
        if plan.nacks.load(Relaxed) >= NACKS_MAX {
            self.give_up(plan);
            return None;
        }
        if let PlannedContent::Part(part) = &plan.what {
            return self.frame_for_part(plan, part, worker);
        }
        worker.clock.turn_to(Activity::Held);
        let buffer = self.context.pool.take_blocking().ok()?;
        let encoded = self.chunk_for(plan, buffer, worker)?;
        worker.clock.turn_to(Activity::Rest);
        Some(Frame::Own(SealedChunk::seal(encoded, &self.sealer)))
    }

    /// Gives up a chunk that arrives damaged however often it is sent.
    pub(super) fn give_up(&self, plan: &Plan) {
        let error = Error::new(
            Kind::Verify,
            Side::Dest,
            format!(
                "a chunk failed verification {NACKS_MAX} times; check the memory and the network \
                 hardware"
            ),
        );
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

impl Sender {
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
        if !file.failed.swap(true, Relaxed) {
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

    /// If sources may change, a file that has vanished is no failure.
    fn report(&self, error: &Error, entry: EntryId, parent: EntryId) {
        let fault = Fault::of(error, entry, parent);
        if self.context.options.live && source::has_vanished(error) {
            self.context.failures.detail(error);
            self.say(Message::Vanished(fault));
        } else {
            self.context.failures.add(error);
            self.say(Message::Fault(fault));
        }
    }

    /// How the receiver spends its time.
    pub fn far(&self) -> Busy {
        *self.heard.lock()
    }

    pub(super) fn open(&self, found: &FoundFile) -> Result<SourceFile> {
        if found.entry.is_device() {
            return SourceFile::open_device(found, self.context.options.direct_io);
        }
        let source = SourceFile::open(found, self.changes())?;
        Ok(match self.context.options.drop_cache {
            true => source.dropping_pages(),
            false => source,
        })
    }

    pub(super) fn changes(&self) -> Changes {
        if self.context.options.live {
            Changes::Taken
        } else {
            Changes::Told
        }
    }
}

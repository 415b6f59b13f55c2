//! The sending end: from the walk to frames on the shared queue. The crate's documentation lists
//! the steps.
//!
//! One thread walks and plans. Workers read, encode, frame and seal. Connections take frames. Only
//! the queue of frames and the pool make a worker wait for the network.

mod announcements;
pub mod cache;
mod care;
pub mod chunk_maker;
pub mod comparison;
pub mod control;
mod counting;
pub mod encoder_control;
mod large_chunk;
mod mirror;
mod name_questions;
pub mod offer;
pub mod pipe;
pub mod plan;
pub mod read;
mod removal;
pub mod report;
pub mod scheduler;
pub(super) mod sums;
pub mod walk;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use self::cache::CacheShare;
use self::care::Care;
use self::chunk_maker::{ChunkMaker, SendWorker};
use self::control::SendControl;
use self::plan::{Plan, PlannedContent};
use self::read::SendReader;
use self::report::SendReport;
use self::scheduler::{NACKS_MAX, NextTask, Scheduler};
use super::context::Context;
use super::worker_time::Activity;
use crate::chunk::pack::TableForm;
use crate::codec::Encoder;
use crate::pipe::Stop;
use crate::progress::Phase;
use crate::seal::Sealer;
use crate::source::{PipeOrigin, SourceCount};
use crate::transport::frames::{Frame, Frames, SealedChunk};
use crate::tuner::STREAMS_MAX;
use crate::wire::hello::Hello;

/// Most frames that may wait for a connection; [`EncoderControl`](encoder_control::EncoderControl)
/// decides how many do.
const FRAMES_MAX: usize = 2 * STREAMS_MAX as usize;

/// The sending end.
pub struct Sender {
    pub context: Arc<Context>,
    pub scheduler: Arc<Scheduler>,
    report: Arc<SendReport>,
    reader: Arc<SendReader>,
    pub chunks: ChunkMaker,
    pub control: SendControl,
    /// Frames that no connection has taken.
    pub frames: Frames,
    sealer: Sealer,
    /// Frames may be lost on this route, so frames that cannot be read again are kept.
    keeps: bool,
    /// Set when a user at either end says that a followed file is complete.
    enough: Stop,
    /// Set if other hosts get the same data.
    pub share: Option<CacheShare>,
    /// Read instead of the named pipe, if that is the only operand and goes to several hosts.
    pipe: Option<PipeOrigin>,
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
    pub pipe: Option<PipeOrigin>,
    /// Set if the receiver was told the roots without the totals.
    pub count: Option<Arc<SourceCount>>,
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
            count: None,
        }
    }
}

impl Sender {
    pub fn new(context: Context, terms: SendTerms, sealer: Sealer) -> Sender {
        // Shared chunks must be the same for each destination.
        let may_be_large = terms.peer_takes_large_packs && terms.share.is_none();
        let large_max = context.budget.large_packs * usize::from(may_be_large);
        let pieces = terms.peer_takes_large_pieces;
        let hosts = terms.share.as_ref().map_or(1, CacheShare::hosts);
        let scheduler = Scheduler::of(terms.open_entries, large_max, pieces, hosts);
        let scheduler = Arc::new(scheduler.beside(terms.count));
        let context = Arc::new(context);
        let report = Arc::new(SendReport::new(context.clone(), scheduler.clone()));
        let reader = Arc::new(SendReader::new(&report, terms.table_form));
        Sender {
            chunks: ChunkMaker::new(&reader, terms.share.clone()),
            control: SendControl::new(&report, terms.share.clone(), terms.enough.clone()),
            frames: Frames::new(FRAMES_MAX),
            sealer,
            keeps: !terms.in_memory,
            enough: terms.enough,
            share: terms.share,
            pipe: terms.pipe,
            context,
            scheduler,
            report,
            reader,
        }
    }

    /// Closes files and waits for changed files, until the copy ends.
    pub fn care(&self) {
        Care::new(&self.reader).run();
    }

    /// Removes files of the source whose copies are on disk, until the copy ends.
    pub fn remove_sources(&self) {
        // Fails only when the copy ends, which has its own cause.
        let _ = removal::run(&self.report);
    }

    /// Runs a worker, which turns plans into frames until the copy ends.
    pub fn work(&self) {
        let mut worker = SendWorker {
            encoder: Encoder::new(self.context.chunk_size),
            patch: Vec::new(),
            clock: self.chunks.encoder_control.worker_time.begin(),
        };
        while let Ok(task) = self.scheduler.next() {
            let plan = match task {
                NextTask::Chunk(plan) => plan,
                NextTask::End(file) => {
                    self.reader.end_file(&file);
                    continue;
                }
                NextTask::Reopen(held, missing) => {
                    self.reader.reopen(*held, &missing);
                    continue;
                }
                NextTask::Compare(file) => {
                    worker.clock.turn_to(Activity::Disk);
                    self.reader.compare_grown(&file);
                    worker.clock.turn_to(Activity::Nothing);
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
            .chunks
            .encoder_control
            .when_there_is_room(|| self.frames.len(), || self.frames.put(frame));
        pushed == Some(true)
    }

    /// Reads, encodes, frames and seals a chunk. None if there is nothing to send now, or if the
    /// copy ends.
    fn frame_for(&self, plan: &Plan, worker: &mut SendWorker<'_>) -> Option<Frame> {
        if plan.nacks.load(Relaxed) >= NACKS_MAX {
            self.report.give_up(plan);
            return None;
        }
        if let PlannedContent::Part(part) = &plan.what {
            return self.frame_for_part(plan, part, worker);
        }
        worker.clock.turn_to(Activity::Held);
        let buffer = self.context.pool.take_blocking().ok()?;
        let encoded = self.chunks.chunk_for(plan, buffer, worker)?;
        worker.clock.turn_to(Activity::Rest);
        Some(Frame::Own(SealedChunk::seal(encoded, &self.sealer)))
    }
}

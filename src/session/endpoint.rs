//! One end of a copy at work: its threads, its tasks, and how it handles messages. Client and
//! server run one half each; a copy on this machine runs both.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

use super::data_connections::end_later;
use crate::chunk::pack::TableForm;
use crate::chunk::{LARGE_PIECE, Pool};
use crate::control::Outgoing;
use crate::dest::Rules;
use crate::error::{Error, Kind, Result, Side};
use crate::pipe::Stop;
use crate::pipeline::budget::lzma_slots;
use crate::pipeline::digest_list::DigestList;
use crate::pipeline::failures::Failures;
use crate::pipeline::lzma_room::LzmaRoom;
use crate::pipeline::receive::acks::Acks;
use crate::pipeline::receive::entry_writer::CopyDestination;
use crate::pipeline::receive::jobs::Jobs;
use crate::pipeline::receive::roots::TellUser;
use crate::pipeline::receive::verify::Checks;
use crate::pipeline::receive::{Receiver, entry_writer, journal_sync, verify};
use crate::pipeline::send::cache::CacheShare;
use crate::pipeline::send::encoder_control::EncoderControl;
use crate::pipeline::send::scheduler::Scheduler;
use crate::pipeline::send::{Sender, walk};
use crate::pipeline::worker_time::WorkerTime;
use crate::pipeline::{Budget, Shutdown};
use crate::progress::Progress;
use crate::seal::{Opener, Sealer};
use crate::source::{PipeSpec, Sources};
use crate::threads;
use crate::transport::frames::Frames;
use crate::transport::idle_time::IdleTime;
use crate::tuner::STREAMS_MAX;
use crate::wire::message::{Busy, CopyOptions, Message};

/// Bytes of messages that may wait for the placer; beyond that, control is not read. A sender
/// announces half of it (`ANNOUNCED_BYTES_MAX`) before entries are in place; one of version 0.1 may
/// announce 140 MB of long symbolic links.
const PLACER_BYTES_MAX: usize = 16 << 20;

/// Most frames that may wait for a connection.
const FRAMES_MAX: usize = 2 * STREAMS_MAX as usize;

/// How long threads may take to end. One that is stuck in the kernel is left behind. With the
/// clean-up and the end of the far end's process (`login`), the user waits less than 2 s after
/// Ctrl-C, unless a command runs there or control is stuck.
const JOIN_PATIENCE: Duration = Duration::from_millis(900);

/// The least time for the clean-up, if threads took all of their time.
const CLEARING_PATIENCE: Duration = Duration::from_millis(200);

/// How long the placer may take for messages from before the loss of the connection: a disk may
/// hang.
const WORK_OFF_PATIENCE: Duration = Duration::from_secs(5);

/// What either half is made from.
pub struct Common {
    pub options: CopyOptions,
    pub budget: Budget,
    pub chunk_size: usize,
    /// Pieces of files end at multiples of this many bytes. Less than a chunk if both ends support
    /// it.
    pub grain: u64,
    /// Big files that both ends can have open at once.
    pub open_entries: u32,
    /// As a receiver, the peer can ask again for ranges that it finds damaged; as a sender, it
    /// reports which files were just written.
    pub peer_tells: bool,
    /// What the peer supports as a receiver.
    pub table_form: TableForm,
    pub peer_takes_large_packs: bool,
    pub peer_takes_large_pieces: bool,
    pub control: Outgoing,
    pub tally: Arc<Failures>,
    pub progress: Arc<Progress>,
    pub ending: Arc<Shutdown>,
    pub digests: Option<Arc<DigestList>>,
    /// Shows the lines that commands write to stderr.
    pub tell: TellUser,
    /// Set when the user says that a followed file has reached its end.
    pub enough: Stop,
    /// Set if a sender's chunks are shared with other destinations.
    pub share: Option<CacheShare>,
    /// Replaces a FIFO that other copies read too.
    pub stream: Option<PipeSpec>,
}

/// The half that has the data.
pub struct SendingEnd {
    pub sender: Arc<Sender>,
    /// The queue from which connections take frames.
    pub frames: Frames,
    threads: Vec<JoinHandle<()>>,
}

impl SendingEnd {
    /// Starts the threads. Chunks wait until the receiver knows where every entry lands.
    /// `in_memory`: frames are handed over in this process and cannot be lost.
    pub fn start(common: Common, sealer: Sealer, sources: Sources, in_memory: bool) -> SendingEnd {
        // As many as may ever wait; the steering decides how many do.
        let frames = Frames::new(FRAMES_MAX);
        // Shared chunks must be the same for each destination.
        let may_be_large = common.peer_takes_large_packs && common.share.is_none();
        let large_max = common.budget.large_packs * usize::from(may_be_large);
        let sender = Arc::new(Sender {
            plans: Scheduler::of(
                common.open_entries,
                large_max,
                common.peer_takes_large_pieces,
            ),
            steering: EncoderControl::new(common.options.compress),
            lzma_room: LzmaRoom::new(common.budget.lzma_workers, lzma_slots(common.chunk_size)),
            without_room: common.budget.strongest,
            options: common.options,
            chunk_size: common.chunk_size,
            grain: common.grain,
            may_be_asked: common.peer_tells,
            table_form: common.table_form,
            pool: Pool::new(common.budget.slots, common.chunk_size),
            window: common.budget.window(),
            keeps: !in_memory,
            enough: common.enough,
            tell: common.tell,
            sealer,
            frames: frames.clone(),
            control: common.control,
            tally: common.tally,
            progress: common.progress,
            ending: common.ending,
            digests: common.digests,
            share: common.share,
            stream: common.stream,
            done: Notify::new(),
            heard: Default::default(),
        });
        let mut threads = Threads::of(&sender.ending);
        let caring = sender.clone();
        threads.start(move || caring.care());
        let planning = sender.clone();
        threads.start(move || {
            // Fails only when the copy ends, which has its own cause.
            let _ = walk::plan(&planning, sources);
        });
        threads.start_workers(common.budget.workers, || {
            let sender = sender.clone();
            move || sender.work()
        });
        SendingEnd {
            sender,
            frames,
            threads: threads.started,
        }
    }

    /// Takes one of the receiver's messages; never waits.
    pub fn take(&self, message: Message) -> Result<()> {
        self.sender
            .answer(message)
            .map_err(|breach| Error::new(Kind::Breach, Side::Here, breach.to_string()))
    }

    /// Waits until the receiver says that everything is in place.
    pub async fn done(&self) {
        self.sender.done.notified().await
    }

    /// Ends threads and connections, in bounded time.
    pub async fn stop(self) {
        self.sender.plans.end();
        if let Some(share) = &self.sender.share {
            share.leave();
        }
        self.sender.steering.end();
        self.sender.pool.close();
        self.sender.frames.close();
        join(self.threads, Instant::now() + JOIN_PATIENCE).await;
    }
}

/// The half that gets the data.
pub struct ReceivingEnd {
    pub receiver: Arc<Receiver>,
    queue: async_channel::Sender<Message>,
    threads: Vec<JoinHandle<()>>,
    acks: Option<tokio::task::JoinHandle<()>>,
}

/// Bytes for large pieces beyond the pool: enough for four workers.
const LARGE_BYTES: usize = 8 << 20;

fn large_pool(chunk_size: usize) -> Pool {
    let piece = LARGE_PIECE * chunk_size;
    Pool::new((LARGE_BYTES / piece).max(1), piece)
}

impl ReceivingEnd {
    /// Starts the threads of a receiver. `crowd` is that of its connections.
    pub fn start(
        common: Common,
        opener: Opener,
        rules: Rules,
        destination: CopyDestination,
        crowd: Arc<IdleTime>,
    ) -> ReceivingEnd {
        let shifts = Arc::<WorkerTime>::default();
        let (queue, messages) = async_channel::unbounded();
        let receiver = Arc::new(Receiver {
            options: common.options,
            rules,
            chunk_size: common.chunk_size as u64,
            grain: common.grain,
            pool: Pool::new(common.budget.slots, common.chunk_size),
            large: large_pool(common.chunk_size),
            window: common.budget.window(),
            stop: Stop::new(),
            tell: common.tell,
            opener,
            sessions: destination.sessions.clone(),
            jobs: Jobs::default(),
            checks: Checks::default(),
            sender_tells: common.peer_tells,
            control: common.control.clone(),
            acks: Acks::default(),
            shifts: shifts.clone(),
            tally: common.tally,
            progress: common.progress,
            ending: common.ending,
            digests: common.digests,
            table: Default::default(),
            journal: Default::default(),
            journal_name: Default::default(),
            keeper: Default::default(),
            fillable: Default::default(),
            queued: Default::default(),
            emptied: Notify::new(),
            streams: Default::default(),
        });
        let mut threads = Threads::of(&receiver.ending);
        let (keeping, heard) = (receiver.clone(), destination.sessions.heard.clone());
        threads.start(move || journal_sync::keep(&keeping, heard.as_deref()));
        threads.start_workers(verify::THREADS, || {
            let receiver = receiver.clone();
            move || verify::verify(&receiver)
        });
        let placing = receiver.clone();
        threads.start(move || entry_writer::place(&placing, &destination, &messages));
        threads.start_workers(common.budget.workers, || {
            let receiver = receiver.clone();
            move || receiver.work()
        });
        let acking = receiver.clone();
        let busy = move || busy(&shifts, &crowd);
        let acks = async move { acking.acks.run(common.control, busy).await };
        ReceivingEnd {
            receiver,
            queue,
            threads: threads.started,
            acks: Some(tokio::spawn(acks)),
        }
    }

    /// Takes one of the sender's messages; never waits.
    pub fn take(&self, message: Message) {
        self.receiver.queued.fetch_add(message.weight(), Relaxed);
        // The queue is closed only when the copy ends.
        let _ = self.queue.try_send(message);
    }

    /// The placer has enough to do. The caller then waits for [`room`](Self::room).
    pub fn is_full(&self) -> bool {
        self.receiver.queued.load(Relaxed) > PLACER_BYTES_MAX
    }

    /// Waits until there is room. This ends when the disk allows: the placer needs nothing from
    /// control.
    pub async fn room(&self) {
        while self.is_full() {
            self.receiver.emptied.notified().await;
        }
    }

    /// Works off the messages from before the loss of the connection, in bounded time. If one
    /// breaks the protocol, that is the cause to report.
    pub async fn work_off(&self) {
        let worked_off = async {
            while self.receiver.queued.load(Relaxed) > 0 {
                self.receiver.emptied.notified().await;
            }
        };
        tokio::select! {
            _ = timeout(WORK_OFF_PATIENCE, worked_off) => {}
            () = self.receiver.ending.wait() => {}
        }
    }

    /// Waits until everything is in place and the sender, if it still listens, has been told.
    /// Returns at most once.
    pub async fn done(&mut self) {
        if let Some(acks) = &mut self.acks {
            // Fails only if the task panicked, which is no success either.
            let _ = acks.await;
            self.acks = None;
            if self.receiver.acks.is_finished() {
                return;
            }
            // Control is lost. A reason that its reader gets within a second counts instead.
            let message = "lost the other end: it no longer listens";
            let lost = Error::new(Kind::Lost, Side::Here, message);
            end_later(self.receiver.ending.clone(), lost);
        }
        std::future::pending().await
    }

    /// Ends threads, in bounded time. Unfinished files stay if a later run can resume them.
    pub async fn stop(self) {
        self.receiver.stop.set();
        self.receiver.keeper.end();
        self.receiver.pool.close();
        self.receiver.large.close();
        self.queue.close();
        self.receiver.jobs.close();
        self.receiver.checks.close();
        if let Some(acks) = self.acks {
            acks.abort();
        }
        let until = Instant::now() + JOIN_PATIENCE;
        join(self.threads, until).await;
        // The clean-up removes and renames files. The task that reads control does not wait for
        // that disk.
        let (receiver, ending) = (self.receiver.clone(), self.receiver.ending.clone());
        let clearing = spawn(&ending, move || {
            receiver.put_away();
            // Dropping the table removes partial files. The lock is not held during that.
            let left = receiver.table.lock().take();
            drop(left);
        });
        let until = until.max(Instant::now() + CLEARING_PATIENCE);
        // If the thread is refused, the files stay for a later run, as after a power cut.
        join(clearing.into_iter().collect(), until).await;
    }
}

/// For the sender, which tells the user what limits the copy.
fn busy(shifts: &WorkerTime, crowd: &IdleTime) -> Busy {
    let spent = shifts.spent();
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Busy {
        elapsed_us: us(spent.elapsed),
        workers_us: us(spent.working),
        decode_us: us(spent.codec),
        write_us: us(spent.disk_alone),
        waits_us: us(crowd.waits()),
    }
}

struct Threads {
    ending: Arc<Shutdown>,
    started: Vec<JoinHandle<()>>,
}

impl Threads {
    fn of(ending: &Arc<Shutdown>) -> Self {
        let (ending, started) = (ending.clone(), Vec::new());
        Threads { ending, started }
    }

    /// Starts a thread. If it is refused, the copy ends.
    fn start(&mut self, body: impl FnOnce() + Send + 'static) {
        match spawn(&self.ending, body) {
            Ok(thread) => self.started.push(thread),
            Err(refused) => self.ending.end(refused),
        }
    }

    /// Starts up to `wanted` workers. One is enough: a refusal of more is no error.
    fn start_workers<W: FnOnce() + Send + 'static>(&mut self, wanted: usize, work: impl Fn() -> W) {
        self.start(work());
        for _ in 1..wanted {
            match spawn(&self.ending, work()) {
                Ok(thread) => self.started.push(thread),
                Err(_) => return,
            }
        }
    }
}

/// Starts a thread. If it panics, the copy ends, because others wait for its work.
fn spawn(ending: &Arc<Shutdown>, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let ending = ending.clone();
    threads::start(move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            let message = "a bug in fastcp: a thread panicked (its message is above)";
            ending.end(Error::new(Kind::Breach, Side::Here, message));
        }
    })
}

/// Waits for threads until `until`. Leaves threads that are stuck in a system call.
async fn join(threads: Vec<JoinHandle<()>>, until: Instant) {
    for thread in threads {
        while !thread.is_finished() {
            if Instant::now() > until {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // The panic has been reported; the copy is ending or done.
        let _ = thread.join();
    }
}

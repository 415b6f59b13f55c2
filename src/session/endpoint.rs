//! One end of a copy at work: its threads, its tasks, and how it handles messages. Client and
//! server run one end each; a copy on this machine runs both.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::data_connections::end_later;
use crate::control::ControlError;
use crate::dest::Rules;
use crate::error::{Error, Kind, Result, Side};
use crate::pipeline::Shutdown;
use crate::pipeline::context::Context;
use crate::pipeline::receive::destination::CopyDestination;
use crate::pipeline::receive::{Receiver, entry_writer, verify};
use crate::pipeline::send::{SendTerms, Sender, walk};
use crate::pipeline::worker_time::WorkerTime;
use crate::seal::{Opener, Sealer};
use crate::source::Sources;
use crate::threads;
use crate::transport::frames::Frames;
use crate::transport::idle_time::IdleTime;
use crate::wire::message::{Busy, Message};

/// How long threads may take to end. One that is stuck in the kernel is left behind. With the
/// clean-up and the end of the far end's process (`login`), the user waits less than 2 s after
/// Ctrl-C, unless a command runs there, control is stuck, or another process holds ssh's stderr.
pub(super) const JOIN_PATIENCE: Duration = Duration::from_millis(900);

/// The same where all is in place and nothing has ended the copy early. A thread that has given up a
/// file may still have to remove it, which a busy machine delays. Less than the client waits for the
/// far end's process (`login`).
const COMPLETE_PATIENCE: Duration = Duration::from_secs(5);

/// The least time for the clean-up, if threads took all of their time.
const CLEARING_PATIENCE: Duration = Duration::from_millis(200);

/// How long the entry writer may take for messages from before the loss of the connection: a disk
/// may hang.
const WORK_OFF_PATIENCE: Duration = Duration::from_secs(5);

/// The end that has the data.
pub struct SendingEnd {
    pub sender: Arc<Sender>,
    /// The queue from which connections take frames.
    pub frames: Frames,
    threads: Vec<JoinHandle<()>>,
}

impl SendingEnd {
    /// Starts the threads. Chunks wait until the receiver knows where every entry lands.
    pub fn start(
        context: Context,
        terms: SendTerms,
        sealer: Sealer,
        sources: Sources,
    ) -> SendingEnd {
        let sender = Arc::new(Sender::new(context, terms, sealer));
        let mut threads = Threads::of(&sender.context.shutdown);
        let caring = sender.clone();
        threads.start(move || caring.care());
        if sender.context.removes_sources() {
            let removing = sender.clone();
            threads.start(move || removing.remove_sources());
        }
        let planning = sender.clone();
        threads.start(move || {
            // Fails only when the copy ends, which has its own cause.
            let _ = walk::plan(&planning, sources);
        });
        threads.start_workers(sender.context.budget.workers, || {
            let sender = sender.clone();
            move || sender.work()
        });
        SendingEnd {
            frames: sender.frames.clone(),
            sender,
            threads: threads.started,
        }
    }

    /// Takes one of the receiver's messages; never waits.
    pub fn take(&self, message: Message) -> Result<()> {
        self.sender
            .control
            .answer(message)
            .map_err(|breach| Error::breach(Side::Here, "the receiver", breach))
    }

    /// Waits until the receiver says that everything is in place.
    pub async fn done(&self) {
        self.sender.control.done.notified().await
    }

    /// Ends threads and connections, in bounded time.
    pub async fn stop(mut self) {
        self.sender.scheduler.end();
        self.sender.control.close();
        if let Some(share) = &self.sender.share {
            share.leave();
        }
        self.sender.chunks.encoder_control.end();
        self.sender.context.pool.close();
        self.sender.frames.close();
        join(&mut self.threads, Instant::now() + JOIN_PATIENCE).await;
    }
}

/// The end that gets the data.
pub struct ReceivingEnd {
    pub receiver: Arc<Receiver>,
    threads: Vec<JoinHandle<()>>,
    acks: Option<tokio::task::JoinHandle<()>>,
}

impl ReceivingEnd {
    /// Starts the threads of a receiver. `idle_time` is that of its connections.
    pub fn start(
        context: Context,
        opener: Opener,
        rules: Rules,
        destination: CopyDestination,
        idle_time: Arc<IdleTime>,
    ) -> ReceivingEnd {
        let sessions = destination.sessions.clone();
        let receiver = Arc::new(Receiver::new(context, opener, rules, sessions));
        let mut threads = Threads::of(&receiver.context.shutdown);
        let keeping = receiver.clone();
        threads.start(move || keeping.keep_journal());
        threads.start_workers(verify::THREADS, || {
            let receiver = receiver.clone();
            move || receiver.verify()
        });
        let writing = receiver.clone();
        threads.start(move || entry_writer::run(&writing, &destination));
        threads.start_workers(receiver.context.budget.workers, || {
            let receiver = receiver.clone();
            move || receiver.work()
        });
        let acking = receiver.clone();
        let acks = async move {
            let busy = || busy(&acking.worker_time, &idle_time);
            let control = acking.context.control.clone();
            acking.acks().run(control, busy).await
        };
        ReceivingEnd {
            acks: Some(tokio::spawn(acks)),
            receiver,
            threads: threads.started,
        }
    }

    /// Takes one of the sender's messages; never waits.
    pub fn take(&self, message: Message) {
        self.receiver.messages.add(message);
    }

    /// The entry writer has enough to do. The caller then waits for [`room`](Self::room).
    pub fn is_full(&self) -> bool {
        self.receiver.messages.is_full()
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        self.receiver.messages.room().await
    }

    /// Works off the messages from before the loss of the connection, in bounded time. If one
    /// breaks the protocol, that is the cause to report.
    pub async fn work_off(&self) {
        tokio::select! {
            _ = timeout(WORK_OFF_PATIENCE, self.receiver.messages.all_handled()) => {}
            () = self.receiver.context.shutdown.wait() => {}
        }
    }

    /// Waits until everything is in place and the sender, if it still listens, has been told.
    /// Returns at most once.
    pub async fn done(&mut self) {
        if let Some(acks) = &mut self.acks {
            // Fails only if the task panicked, which is no success either.
            let _ = acks.await;
            self.acks = None;
            if self.receiver.acks().is_finished() {
                return;
            }
            // Control is lost. A reason that its reader gets within a second counts instead.
            let message = ControlError::Closed.to_string();
            let lost = Error::new(Kind::Lost, Side::Here, message);
            end_later(self.receiver.context.shutdown.clone(), lost);
        }
        std::future::pending().await
    }

    /// Ends threads, in bounded time. Unfinished files stay if a later run can resume them.
    pub async fn stop(mut self) {
        self.receiver.close();
        self.threads.extend(self.receiver.end_search());
        if let Some(acks) = self.acks {
            acks.abort();
        }
        let ended = self.receiver.context.shutdown.clone();
        tokio::select! {
            () = join(&mut self.threads, Instant::now() + COMPLETE_PATIENCE) => {}
            () = ended.wait() => {}
        }
        let until = Instant::now() + JOIN_PATIENCE;
        join(&mut self.threads, until).await;
        // The clean-up removes and renames files. The task that reads control does not wait for
        // that disk.
        let (receiver, shutdown) = (
            self.receiver.clone(),
            self.receiver.context.shutdown.clone(),
        );
        let clearing = spawn(&shutdown, move || receiver.put_away());
        let until = until.max(Instant::now() + CLEARING_PATIENCE);
        // If the thread is refused, the files stay for a later run, as after a power cut.
        join(&mut clearing.into_iter().collect(), until).await;
    }
}

/// For the sender, which tells the user what limits the copy.
fn busy(worker_time: &WorkerTime, idle_time: &IdleTime) -> Busy {
    let spent = worker_time.spent();
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Busy {
        elapsed_us: us(spent.elapsed),
        workers_us: us(spent.working),
        decode_us: us(spent.codec),
        write_us: us(spent.disk_alone),
        waits_us: us(idle_time.waits()),
    }
}

pub(super) struct Threads {
    shutdown: Arc<Shutdown>,
    pub(super) started: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn of(shutdown: &Arc<Shutdown>) -> Self {
        let (shutdown, started) = (shutdown.clone(), Vec::new());
        Threads { shutdown, started }
    }

    /// Starts a thread. If it is refused, the copy ends.
    fn start(&mut self, body: impl FnOnce() + Send + 'static) {
        match spawn(&self.shutdown, body) {
            Ok(thread) => self.started.push(thread),
            Err(refused) => self.shutdown.end(refused),
        }
    }

    /// Starts up to `wanted` workers. One is enough: a refusal of more is no error.
    pub(super) fn start_workers<W: FnOnce() + Send + 'static>(
        &mut self,
        wanted: usize,
        work: impl Fn() -> W,
    ) {
        self.start(work());
        for _ in 1..wanted {
            match spawn(&self.shutdown, work()) {
                Ok(thread) => self.started.push(thread),
                Err(_) => return,
            }
        }
    }
}

/// Starts a thread. If it panics, the copy ends, because others wait for its work.
fn spawn(shutdown: &Arc<Shutdown>, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let shutdown = shutdown.clone();
    threads::start(move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            shutdown.end(Error::panicked());
        }
    })
}

/// Waits for threads until `until`. Leaves threads that are stuck in a system call.
pub(super) async fn join(threads: &mut Vec<JoinHandle<()>>, until: Instant) {
    loop {
        for thread in threads.extract_if(.., |thread| thread.is_finished()) {
            // The panic has been reported; the copy is ending or done.
            let _ = thread.join();
        }
        if threads.is_empty() || Instant::now() > until {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

//! The messages that two servers exchange through the client. The client checks each message, puts
//! it into an envelope, and removes what the other server does not need, above all paths. It also
//! learns the progress that it shows.

use std::cell::{Cell, RefCell};

use tokio::process::ChildStdout;
use tokio::sync::watch;

use crate::control::{ControlError, Incoming, Outgoing};
use crate::error::{Error, Result, Side};
use crate::manifest::{Entry, Root};
use crate::outcome::{Counts, Verdict};
use crate::progress::Phase;
use crate::session::connection_control::ConnectionControl;
use crate::session::context::ClientContext;
use crate::session::control_reader::lost;
use crate::session::heartbeat::Heart;
use crate::session::operands;
use crate::session::request::Request;
use crate::units::harmless;
use crate::wire::message::{
    Conclusion, Fault, FileDigest, Message, Relay, RootsResolved, Tune, Want, WantKind,
};
use crate::wire::progress_report::ProgressReport;

/// Characters of a reason, or of a name, that are shown.
const TEXT_MAX: usize = 200;

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelaySide {
    Sender,
    Receiver,
}

/// Why a session between two hosts ended, and at which server, if at one.
pub struct RelayEnd {
    pub error: Error,
    pub at: Option<RelaySide>,
}

impl RelayEnd {
    /// The server has closed control.
    pub fn lost(end: RelaySide) -> RelayEnd {
        RelayEnd {
            error: lost(ControlError::Closed),
            at: Some(end),
        }
    }

    /// The server sent a message that no server sends.
    pub fn breach(end: RelaySide, what: &str) -> RelayEnd {
        let (who, side) = match end {
            RelaySide::Sender => ("the sender", Side::Source),
            RelaySide::Receiver => ("the receiver", Side::Dest),
        };
        RelayEnd {
            error: Error::breach(side, who, what),
            at: Some(end),
        }
    }
}

/// One server's messages, and where they go.
pub struct RelayLine<'a> {
    pub end: RelaySide,
    pub incoming: &'a mut Incoming<ChildStdout>,
    /// Takes messages about connections between that server and this client.
    pub ways: ConnectionControl,
    /// Control of the other server.
    pub to: Outgoing,
}

/// What to do with a message.
enum RelayStep {
    /// For the other server.
    Pass(Message),
    /// For this client, which has taken it.
    Taken,
    /// For [`ConnectionControl`], which knows this server's connections.
    Ways(Message),
    /// The receiver's last message, for the other server.
    Done,
    /// The sender's last message.
    Over(Conclusion),
    OutOfPlace,
}

/// The client's part in the exchange.
pub struct Exchange<'a> {
    request: &'a Request,
    client: &'a ClientContext,
    /// The sender has announced its roots, which take the most memory of all messages.
    has_roots: Cell<bool>,
    /// The sender has reported a failure.
    told: Cell<bool>,
    heard: RefCell<Counts>,
    account: watch::Sender<ProgressReport>,
    has_landed: watch::Sender<bool>,
    hearts: &'a [Heart],
}

impl<'a> Exchange<'a> {
    /// `hearts` are those of both servers.
    pub fn new(
        request: &'a Request,
        client: &'a ClientContext,
        hearts: &'a [Heart],
    ) -> Exchange<'a> {
        Exchange {
            hearts,
            request,
            client,
            has_roots: Cell::new(false),
            told: Cell::new(false),
            heard: RefCell::default(),
            account: watch::Sender::default(),
            has_landed: watch::Sender::default(),
        }
    }

    /// The sender's latest report.
    pub fn account(&self) -> watch::Receiver<ProgressReport> {
        self.account.subscribe()
    }

    /// True once the receiver has said where the entries land. From then on it accepts connections.
    pub fn has_landed(&self) -> watch::Receiver<bool> {
        self.has_landed.subscribe()
    }

    /// Relays the sender's messages, until its conclusion.
    pub async fn sender(&self, line: &mut RelayLine<'_>) -> Result<Conclusion, RelayEnd> {
        loop {
            let said = line.next().await?;
            let said = self.of_sender(said).map_err(|error| line.cut(error))?;
            if let Some(conclusion) = line.pass(said).await? {
                return Ok(conclusion);
            }
        }
    }

    /// Relays the receiver's messages, until everything is in place.
    pub async fn receiver(&self, line: &mut RelayLine<'_>) -> Result<(), RelayEnd> {
        loop {
            let said = line.next().await?;
            let said = self.of_receiver(said).map_err(|error| line.cut(error))?;
            let is_done = matches!(said, RelayStep::Done);
            line.pass(said).await?;
            if self.client.news.itemized.is_full() {
                // The receiver is not heard while the user reads, so its silence means nothing.
                self.pause(true);
                self.client.news.itemized.room().await;
                self.pause(false);
            }
            if is_done {
                return Ok(());
            }
        }
    }

    fn pause(&self, is_paused: bool) {
        self.hearts.iter().for_each(|heart| heart.pause(is_paused));
    }

    fn of_sender(&self, message: Message) -> Result<RelayStep> {
        Ok(match message {
            Message::Roots(_) | Message::Uncounted(_) if self.has_roots.replace(true) => {
                RelayStep::OutOfPlace
            }
            Message::Roots(roots) => {
                self.take_roots(&roots.roots)?;
                self.client.progress.set_totals(roots.totals);
                RelayStep::Pass(Message::Roots(roots))
            }
            Message::Uncounted(uncounted) => {
                self.take_roots(&uncounted.roots)?;
                RelayStep::Pass(Message::Uncounted(uncounted))
            }
            Message::Counted(totals) => {
                self.client.progress.set_totals(totals);
                RelayStep::Pass(Message::Counted(totals))
            }
            Message::Entries(entries) => {
                self.look_at(&entries);
                RelayStep::Pass(Message::Entries(entries))
            }
            message @ (Message::RootSpaces(_)
            | Message::Ask(_)
            | Message::DirectorySums(_)
            | Message::EntrySums(_)
            | Message::Names(_)
            | Message::Extra(_)
            | Message::SourcePlaces(_)
            | Message::EntryEnd(_)
            | Message::AllSent(_)
            | Message::Heartbeat(_)) => RelayStep::Pass(message),
            Message::SourcesRemoved(mut message) => {
                if !self.request.options.mirror.removes_sources {
                    return Ok(RelayStep::OutOfPlace);
                }
                self.client.news.removed(&message.removed);
                message.removed.paths.clear();
                RelayStep::Pass(Message::SourcesRemoved(message))
            }
            Message::Fault(fault) => {
                self.told.set(true);
                RelayStep::Pass(Message::Fault(self.failed(fault)))
            }
            Message::Vanished(fault) => {
                let nameless = nameless(&fault);
                self.client.news.failures.detail(&fault.into_error());
                RelayStep::Pass(Message::Vanished(nameless))
            }
            Message::Grew(fault) => {
                self.client.news.failures.grew(&fault.into_growth());
                RelayStep::Taken
            }
            Message::Special(count) => {
                self.client.progress.add_special(count);
                RelayStep::Taken
            }
            Message::Symlinks((all, outside)) => {
                self.client.progress.add_symlinks(all, outside);
                RelayStep::Taken
            }
            Message::Unlinked(count) => {
                self.client.progress.add_unlinked(count);
                RelayStep::Taken
            }
            Message::NotKept(some) => {
                self.client.progress.not_kept().add(&some);
                match self.request.options.snapshot {
                    // With --strict it does not complete the snapshot.
                    Some(_) => RelayStep::Pass(Message::NotKept(some)),
                    None => RelayStep::Taken,
                }
            }
            Message::Tune(tune) => {
                if !tune.reason.is_empty() {
                    let reason: String = tune.reason.chars().take(TEXT_MAX).collect();
                    self.client.reporter.detail(&reason);
                }
                // Only the client sets the rate.
                RelayStep::Pass(Message::Tune(Tune {
                    streams: tune.streams,
                    rate_limit: None,
                    reason: String::new(),
                }))
            }
            Message::Account(account) => {
                self.take(account);
                RelayStep::Taken
            }
            Message::Activity(activity) => {
                self.client.progress.set_activity(activity.harmless());
                RelayStep::Taken
            }
            Message::Conclusion(conclusion) => RelayStep::Over(Conclusion {
                verdict: conclusion.verdict.map(Verdict::harmless),
                remembered: conclusion.remembered,
            }),
            message @ (Message::Listen(_) | Message::Data(_)) => RelayStep::Ways(message),
            Message::Abort(fault) => return Err(fault.into_error()),
            _ => RelayStep::OutOfPlace,
        })
    }

    fn of_receiver(&self, message: Message) -> Result<RelayStep> {
        Ok(match message {
            Message::Landed(landed) => {
                self.client.shutdown.set_landed(&landed.names);
                if landed.ordered {
                    // Bytes that have left cannot be taken back for another try.
                    self.client.shutdown.set_once();
                }
                self.client.progress.set_phase(Phase::Copying);
                self.has_landed.send_replace(true);
                // With `--map`, the names are whole paths.
                RelayStep::Pass(Message::Landed(RootsResolved {
                    names: Vec::new(),
                    ..landed
                }))
            }
            Message::Missing(missing) => {
                let lens = missing.spans.iter();
                let lens = lens.map(|span| span.end.saturating_sub(span.start));
                let count = lens.fold(0, u64::saturating_add);
                self.client.progress.add_damaged_elsewhere(count);
                RelayStep::Pass(Message::Missing(missing))
            }
            Message::Want(wants) => {
                let is_unchanged = |want: &&Want| want.kind == WantKind::Unchanged;
                let unchanged = wants.iter().filter(is_unchanged).count() as u64;
                self.client.progress.add_unchanged_elsewhere(unchanged);
                RelayStep::Pass(Message::Want(wants))
            }
            Message::Stayed(count) => {
                self.client.progress.add_staying(count);
                RelayStep::Taken
            }
            Message::NotKept(some) => {
                self.client.progress.not_kept().add(&some);
                RelayStep::Taken
            }
            Message::Summed(answer) => {
                self.client.progress.add_unchanged_elsewhere(answer.files);
                RelayStep::Pass(Message::Summed(answer))
            }
            Message::Deleted(deleted) => {
                self.client.news.deleted(&deleted);
                RelayStep::Taken
            }
            Message::Snapshot(report) => {
                self.client.news.made_snapshot(&report);
                RelayStep::Taken
            }
            Message::Itemized(changes) => {
                let options = &self.request.options;
                if !options.itemizes && !options.dry_run {
                    return Ok(RelayStep::OutOfPlace);
                }
                self.client.news.itemized.add(&changes);
                RelayStep::Taken
            }
            Message::FilesDone(done) => {
                if !self.request.options.reports_files {
                    return Ok(RelayStep::OutOfPlace);
                }
                self.client.news.files_done(done.files);
                RelayStep::Taken
            }
            message @ (Message::SumUp(_)
            | Message::OwnNames(_)
            | Message::Ack(_)
            | Message::Nack(_)
            | Message::Differs(_)
            | Message::Busy(_)
            | Message::Heartbeat(_)) => RelayStep::Pass(message),
            Message::Durable(entries) => {
                let moved = &self.client.news.failures.moved;
                for span in entries.iter() {
                    moved.are_durable(span.start..span.end);
                }
                RelayStep::Pass(Message::Durable(entries))
            }
            Message::Fault(fault) => RelayStep::Pass(Message::Fault(self.failed(fault))),
            Message::Checked(bytes) => {
                self.client.progress.set_checked(bytes);
                RelayStep::Taken
            }
            Message::FileDigests(files) => match &self.client.digests {
                Some(list) => {
                    for FileDigest { path, digest } in files {
                        list.add_path(path, &digest);
                    }
                    RelayStep::Taken
                }
                None => RelayStep::OutOfPlace,
            },
            Message::Done(()) => RelayStep::Done,
            message @ (Message::Listen(_) | Message::Credit(_)) => RelayStep::Ways(message),
            Message::Abort(fault) => return Err(fault.into_error()),
            _ => RelayStep::OutOfPlace,
        })
    }

    fn take_roots(&self, roots: &[Root]) -> Result<()> {
        operands::check(self.request, roots, self.told.get())?;
        self.client.take_roots(self.request, roots)
    }

    /// Rules out a retry if an entry can be read only once: neither server knows that an earlier
    /// session has begun to read it.
    fn look_at(&self, entries: &[Entry]) {
        if entries.iter().any(Entry::is_once) {
            self.client.shutdown.set_once();
        }
    }

    /// Reports a failed entry to the user. Returns what the other server has to know.
    fn failed(&self, fault: Fault) -> Fault {
        let nameless = nameless(&fault);
        self.client.news.failures.add(&fault.into_error());
        nameless
    }

    fn take(&self, mut account: ProgressReport) {
        let progress = &self.client.progress;
        progress.follow(&mut self.heard.borrow_mut(), &account.counts);
        let names = account.names.drain(..);
        progress.set_names(names.map(|name| end_of(&harmless(&name))));
        account.cause = account.cause.chars().take(TEXT_MAX).collect();
        if account.is_flushing {
            progress.set_phase(Phase::Flushing);
        }
        self.account.send_replace(account);
    }
}

/// The end of a path, with the name of the file.
fn end_of(path: &str) -> String {
    let all = path.chars().count();
    path.chars().skip(all.saturating_sub(TEXT_MAX)).collect()
}

/// The fault without its text and path.
fn nameless(fault: &Fault) -> Fault {
    Fault {
        path: Vec::new(),
        text: String::new(),
        ..*fault
    }
}

impl RelayLine<'_> {
    async fn next(&mut self) -> Result<Message, RelayEnd> {
        let message = self.incoming.next().await;
        message.map_err(|error| self.cut(lost(error)))
    }

    fn cut(&self, error: Error) -> RelayEnd {
        let at = Some(self.end);
        RelayEnd { error, at }
    }

    /// Does what `said` asks for. Returns the conclusion if this was the last message.
    async fn pass(&mut self, said: RelayStep) -> Result<Option<Conclusion>, RelayEnd> {
        let message = match said {
            RelayStep::Pass(message) => message,
            RelayStep::Done => Message::Done(()),
            RelayStep::Taken => return Ok(None),
            RelayStep::Over(conclusion) => return Ok(Some(conclusion)),
            RelayStep::Ways(message) => {
                let taken = self.ways.take(message);
                return taken.map(|()| None).map_err(|error| self.cut(error));
            }
            RelayStep::OutOfPlace => {
                return Err(RelayEnd::breach(self.end, "an unexpected type"));
            }
        };
        let Some(relay) = Relay::of(&message) else {
            let error = Error::usage(
                "too many files are named for a copy between two hosts: copy the directory that holds \
                 them, or copy in several runs",
            );
            return Err(self.cut(error));
        };
        let passed = self.to.send(Message::Relay(relay)).await;
        passed.map(|()| None).map_err(|_| {
            RelayEnd::lost(match self.end {
                RelaySide::Sender => RelaySide::Receiver,
                RelaySide::Receiver => RelaySide::Sender,
            })
        })
    }
}

#[cfg(test)]
mod tests;

//! The client's end of the copy, which sends or receives.

use std::sync::Arc;

use tokio::time::Instant;

use crate::algorithms::Suite;
use crate::chunk::patch::PageHasher;
use crate::chunk::{CHUNK_SIZE, Pool};
use crate::error::Result;
use crate::outcome::Remembered;
use crate::pipeline::Budget;
use crate::pipeline::context::{Agreement, Context};
use crate::pipeline::receive::destination::Sessions;
use crate::pipeline::send::{SendTerms, Sender};
use crate::seal::{Direction, Opener, Sealer, page_secret};
use crate::session::context::{ClientContext, FarServer, SharedSource, TestEnds};
use crate::session::converse::{RunningEnd, say};
use crate::session::data_connections::{Connections, SendPace, receive_on, send_on};
use crate::session::endpoint::{ReceivingEnd, SendingEnd};
use crate::session::host;
use crate::session::login::Attempt;
use crate::session::operands::{self, CountedSources};
use crate::session::request::Request;
use crate::session::route_choice::RouteChooser;
use crate::session::tuning::{self, Audience, Tuning};
use crate::transport::connection::handshake::Keyring;
use crate::transport::connections::ConnectionSet;
use crate::wire::hello::Hello;
use crate::wire::message::Message;

/// One session of a copy.
pub struct Session<'a> {
    /// 128 random bits.
    pub id: [u8; 16],
    /// The earlier sessions of the copy that had begun.
    pub before: &'a [[u8; 16]],
    pub attempt: Attempt,
}

/// The client in one session.
pub(super) struct Client<'a> {
    pub request: &'a Request,
    pub client: &'a ClientContext,
    pub budget: Budget,
    pub remembered: Option<Remembered>,
    pub session: Session<'a>,
}

/// Who controls how an end sends.
pub(super) enum SendController {
    Tuner(Tuning),
    Probe(Arc<Sender>),
    /// The server's tuner, because the server sends.
    Far,
}

impl Client<'_> {
    /// As many connections as the user asked for and the memory allows.
    pub(super) fn streams(&self) -> Option<u16> {
        self.request.streams.map(|_| self.budget.streams)
    }

    /// Starts the end that sends the `found` sources, or the end that receives.
    pub(super) async fn start(
        &self,
        chooser: &RouteChooser<'_>,
        found: Option<CountedSources>,
        connections: Connections,
        pace: &SendPace,
    ) -> Result<(RunningEnd, SendController)> {
        let (far, keyring, suite) = (chooser.server, &chooser.keyring, chooser.suite);
        let streams = (connections, chooser.connection_set.clone());
        let Some(found) = found else {
            return Ok((self.pull(far, keyring, suite, streams), SendController::Far));
        };
        let sending = self.push(far, keyring, suite, found, streams, pace.clone());
        let sending = sending.await?;
        let helm = match self.client.probe {
            Some(_) => SendController::Probe(sending.sender.clone()),
            None => SendController::Tuner(self.tune(&sending, &chooser.connection_set, far, pace)),
        };
        Ok((RunningEnd::Sending(sending), helm))
    }

    async fn push(
        &self,
        far: FarServer<'_>,
        keyring: &Keyring,
        suite: Suite,
        sources: CountedSources,
        (connections, connection_set): (Connections, Arc<ConnectionSet>),
        pace: SendPace,
    ) -> Result<SendingEnd> {
        sources.show(&self.client.progress);
        for message in sources.opening()? {
            say(far.control, message).await?;
        }
        if self.client.news.failures.has_some() {
            say(far.control, operands::not_found()).await?;
        }
        let CountedSources { found, totals } = sources;
        let terms = SendTerms {
            count: totals.count(),
            ..self.terms(far)
        };
        let sources = found.sources(&self.request.options);
        let sealer = Sealer::new(&keyring.secret, Direction::ToServer, suite);
        let end = SendingEnd::start(self.context(far, keyring), terms, sealer, sources);
        let (sender, frames) = (end.sender.clone(), end.frames.clone());
        tokio::spawn(send_on(
            sender,
            frames,
            connections,
            connection_set,
            pace,
            Some(self.client.reporter.clone()),
        ));
        Ok(end)
    }

    fn pull(
        &self,
        far: FarServer<'_>,
        keyring: &Keyring,
        suite: Suite,
        (connections, connection_set): (Connections, Arc<ConnectionSet>),
    ) -> RunningEnd {
        let opener = Opener::new(&keyring.secret, Direction::ToClient, suite);
        let same_machine = host::is_this_machine(&far.hello.boot_id);
        let sessions = Sessions {
            heard: Some(far.heard.clone()),
            ..operands::sessions(
                self.request,
                self.session.id,
                self.session.before,
                self.client,
            )
        };
        let destination = operands::destination(self.request, same_machine, sessions);
        let rules = operands::rules(self.request);
        let idle_time = connection_set.idle_time().clone();
        let context = self.context(far, keyring);
        let end = ReceivingEnd::start(context, opener, rules, destination, idle_time);
        if self.request.options.follow_ms.is_some() {
            let control = far.control.downgrade();
            // Dropped if control is busy; the user can send the signal again.
            host::on_enough(move || control.try_send(Message::Enough(())));
            // The signal may have come before there was a session.
            if self.client.enough.is_set() {
                far.control.try_send(Message::Enough(()));
            }
        }
        let reporter = Some(self.client.reporter.clone());
        tokio::spawn(receive_on(
            end.receiver.clone(),
            connections,
            connection_set,
            reporter,
        ));
        RunningEnd::Receiving(end)
    }

    fn tune(
        &self,
        end: &SendingEnd,
        connection_set: &Arc<ConnectionSet>,
        far: FarServer<'_>,
        pace: &SendPace,
    ) -> Tuning {
        let FarServer { hello, control, .. } = far;
        let options = &self.request.options;
        Tuning::start(tuning::TuningTerms {
            sender: end.sender.clone(),
            connection_set: Some(connection_set.clone()),
            start: tuning::start(self.budget, options, self.streams(), hello, self.remembered),
            audience: Audience::User(self.client.reporter.clone(), control.clone()),
            limit: pace.limit.clone(),
        })
    }

    /// Runs a probe's tests. Never returns in other copies.
    pub(super) async fn test(
        &self,
        helm: &SendController,
        connection_set: &ConnectionSet,
        hello: &Hello,
        opened: Instant,
    ) -> Result<()> {
        let (Some(test), SendController::Probe(sender)) = (&self.client.probe, helm) else {
            return std::future::pending().await;
        };
        let ends = TestEnds {
            sender,
            connection_set,
            hello,
            budget: self.budget,
            remembered: self.remembered,
            streams: self.streams(),
            opened,
        };
        test.run(ends).await
    }

    fn context(&self, far: FarServer<'_>, keyring: &Keyring) -> Context {
        let (own, options) = (self.client.hello(), &self.request.options);
        Context {
            options: options.clone(),
            budget: self.budget,
            chunk_size: CHUNK_SIZE,
            agreed: Agreement {
                tells_growth: true,
                ..Agreement::between(&own, far.hello, CHUNK_SIZE as u32, options)
            },
            page_hasher: PageHasher::new(page_secret(&keyring.secret)),
            pool: Pool::new(self.budget.slots, CHUNK_SIZE),
            control: far.control.clone(),
            tell: self.client.tell(),
            news: self.client.news.clone(),
            progress: self.client.progress.clone(),
            shutdown: self.client.shutdown.clone(),
            digests: self.client.digests.clone(),
        }
    }

    fn terms(&self, far: FarServer<'_>) -> SendTerms {
        let shared = self.client.shared.as_ref();
        SendTerms {
            enough: self.client.enough.clone(),
            share: shared.map(|shared| shared.share.clone()),
            pipe: shared.and_then(SharedSource::named_pipe),
            ..SendTerms::with(far.hello, host::open_entries())
        }
    }
}

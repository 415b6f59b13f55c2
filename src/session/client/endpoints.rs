//! The client's half of the copy, which sends or receives.

use std::sync::Arc;

use tokio::time::Instant;

use crate::chunk::CHUNK_SIZE;
use crate::chunk::Pool;
use crate::error::Result;
use crate::manifest::Totals;
use crate::pipeline::context::Context;
use crate::pipeline::receive::destination::Sessions;
use crate::pipeline::send::SendTerms;
use crate::pipeline::send::Sender;
use crate::progress::Phase;
use crate::seal::{Direction, Opener, Sealer, Suite};
use crate::session::context::{SharedSource, TestEnds};
use crate::session::converse::RunningEnd;
use crate::session::data_connections::{Connections, SendPace, receive_on, send_on};
use crate::session::endpoint::{ReceivingEnd, SendingEnd};
use crate::session::host;
use crate::session::operands::{self, Expanded};
use crate::session::route_choice::RouteChooser;
use crate::session::tuning::{self, Audience, Tuning};
use crate::transport::connection::handshake::Keyring;
use crate::transport::connections::ConnectionSet;
use crate::wire::hello::Hello;
use crate::wire::message::{Message, Roots};

use super::{Client, FarOptions};
use crate::session::converse::say;

/// Who controls how a half sends.
pub(super) enum SendController {
    Tuner(Tuning),
    Probe(Arc<Sender>),
    /// The server's tuner, because the server sends.
    Far,
}

impl Client<'_> {
    /// Starts a half: one that sends what was `found`, or one that receives.
    pub(super) async fn start(
        &self,
        far: FarOptions<'_>,
        chooser: &RouteChooser<'_>,
        found: Option<(Expanded, Totals)>,
        connections: Connections,
        pace: &SendPace,
    ) -> Result<(RunningEnd, SendController)> {
        let (keyring, suite) = (&chooser.keyring, chooser.suite);
        let streams = (connections, chooser.roster.clone());
        let Some(found) = found else {
            return Ok((self.pull(far, keyring, suite, streams), SendController::Far));
        };
        let sealer = Sealer::new(&keyring.secret, Direction::ToServer, suite);
        let sending = self.push(far, sealer, found, streams, pace.clone()).await?;
        let helm = match self.seat.probe {
            Some(_) => SendController::Probe(sending.sender.clone()),
            None => SendController::Tuner(self.tune(&sending, &chooser.roster, far, pace)),
        };
        Ok((RunningEnd::Sending(sending), helm))
    }

    async fn push(
        &self,
        far: FarOptions<'_>,
        sealer: Sealer,
        (expanded, totals): (Expanded, Totals),
        (connections, roster): (Connections, Arc<ConnectionSet>),
        pace: SendPace,
    ) -> Result<SendingEnd> {
        self.seat.progress.set_totals(totals);
        let roots = expanded.roots()?;
        say(far.control, Message::Roots(Roots { roots, totals })).await?;
        self.seat.progress.set_phase(Phase::Copying);
        let sources = expanded.sources(&self.request.options);
        let half = SendingEnd::start(self.context(far), self.terms(far), sealer, sources);
        let (sender, frames) = (half.sender.clone(), half.frames.clone());
        tokio::spawn(send_on(
            sender,
            frames,
            connections,
            roster,
            pace,
            Some(self.seat.reporter.clone()),
        ));
        Ok(half)
    }

    fn pull(
        &self,
        far: FarOptions<'_>,
        keyring: &Keyring,
        suite: Suite,
        (connections, roster): (Connections, Arc<ConnectionSet>),
    ) -> RunningEnd {
        let opener = Opener::new(&keyring.secret, Direction::ToClient, suite);
        let same_machine = host::is_this_machine(&far.hello.boot_id);
        let sessions = Sessions {
            heard: Some(far.heard.clone()),
            ..operands::sessions(
                self.request,
                self.session.id,
                self.session.before,
                self.seat,
            )
        };
        let destination = operands::destination(self.request, same_machine, sessions);
        let rules = operands::rules(self.request);
        let crowd = roster.crowd().clone();
        let half = ReceivingEnd::start(self.context(far), opener, rules, destination, crowd);
        if self.request.options.follow_ms.is_some() {
            let control = far.control.downgrade();
            // Dropped if control is busy; the user can send the signal again.
            host::on_enough(move || control.try_send(Message::Enough(())));
        }
        let reporter = Some(self.seat.reporter.clone());
        tokio::spawn(receive_on(
            half.receiver.clone(),
            connections,
            roster,
            reporter,
        ));
        RunningEnd::Receiving(half)
    }

    fn tune(
        &self,
        half: &SendingEnd,
        roster: &Arc<ConnectionSet>,
        far: FarOptions<'_>,
        pace: &SendPace,
    ) -> Tuning {
        let FarOptions { hello, control, .. } = far;
        let options = &self.request.options;
        Tuning::start(tuning::TuningTerms {
            sender: half.sender.clone(),
            roster: Some(roster.clone()),
            start: tuning::start(self.budget, options, self.streams(), hello, self.remembered),
            audience: Audience::User(self.seat.reporter.clone(), control.clone()),
            limit: pace.limit.clone(),
        })
    }

    /// Runs a probe's tests. Never returns in other copies.
    pub(super) async fn test(
        &self,
        helm: &SendController,
        roster: &ConnectionSet,
        hello: &Hello,
        opened: Instant,
    ) -> Result<()> {
        let (Some(test), SendController::Probe(sender)) = (&self.seat.probe, helm) else {
            return std::future::pending().await;
        };
        let ends = TestEnds {
            sender,
            roster,
            hello,
            budget: self.budget,
            remembered: self.remembered,
            streams: self.streams(),
            opened,
        };
        test.run(ends).await
    }

    fn context(&self, far: FarOptions<'_>) -> Context {
        Context {
            options: self.request.options.clone(),
            budget: self.budget,
            chunk_size: CHUNK_SIZE,
            grain: self.seat.hello().grain(far.hello, CHUNK_SIZE as u32),
            peer_repairs: far.hello.tells(),
            pool: Pool::new(self.budget.slots, CHUNK_SIZE),
            control: far.control.clone(),
            tell: self.seat.tell(),
            failures: self.seat.tally.clone(),
            progress: self.seat.progress.clone(),
            shutdown: self.seat.ending.clone(),
            digests: self.seat.digests.clone(),
        }
    }

    fn terms(&self, far: FarOptions<'_>) -> SendTerms {
        let shared = self.seat.shared.as_ref();
        SendTerms {
            enough: self.seat.enough.clone(),
            share: shared.map(|shared| shared.share.clone()),
            stream: shared.and_then(SharedSource::named_stream),
            ..SendTerms::with(far.hello, host::open_entries())
        }
    }
}

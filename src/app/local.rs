//! A copy on this machine: both halves in one process, control in memory, and frames handed over
//! directly. The stages are those of a copy between hosts, without sealing and sockets.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::io::{DuplexStream, ReadHalf};

use super::turn::WaitForTurn;
use crate::algorithms::Suite;
use crate::chunk::pack::TableForm;
use crate::chunk::patch::PageHasher;
use crate::chunk::{CHUNK_SIZE, Pool};
use crate::control::{Incoming, Outgoing};
use crate::error::{Error, Kind, Result};
use crate::pipeline::Budget;
use crate::pipeline::context::{Agreement, Context};
use crate::pipeline::news::News;
use crate::pipeline::send::SendTerms;
use crate::progress::{Phase, Progress};
use crate::report::event::CopyEvent;
use crate::seal::{Direction, Opener, Sealer, Secret, page_secret};
use crate::session::context::{ClientContext, SharedSource};
use crate::session::control_reader::ControlReader;
use crate::session::converse::{RunningEnd, converse};
use crate::session::data_connections::pass_on;
use crate::session::endpoint::{ReceivingEnd, SendingEnd};
use crate::session::host;
use crate::session::operands::{self, CountedSources, Counting};
use crate::session::request::{CopyOptions, Request};
use crate::session::tuning::{self, Audience, Tuning, TuningTerms};
use crate::transport::rate_limit::RateLimiter;

/// The route of such a copy.
const ROUTE: &str = "local";

/// Bytes of control messages that may be between the halves.
const CONTROL_BUFFER: usize = 64 << 10;

/// Copies, when no other copy writes to the same place.
pub async fn copy(request: &Request, client: &ClientContext) -> Result<String> {
    let mut turn = WaitForTurn::new(request);
    loop {
        let attempt = client.of_session();
        let error = match copy_once(request, &attempt).await {
            Err(error) if error.kind == Kind::Busy => error,
            copied => return copied,
        };
        turn.next(error, client).await?;
        client.begin_again();
    }
}

async fn copy_once(request: &Request, client: &ClientContext) -> Result<String> {
    let mut options = request.options.clone();
    // Nothing is transferred, so compression would cost time and gain nothing.
    options.compress = crate::algorithms::Compress::None;
    let budget = Budget::new(&options, Some(1), CHUNK_SIZE)?;
    let found = operands::expand(request, client).await?;
    if found.is_nothing() {
        return Ok(String::new());
    }
    client.progress.set_phase(Phase::Scanning);
    let counting = Counting::start(found, &options, &client.progress);
    let sources = tokio::select! {
        sources = counting.counted(true) => sources?,
        () = client.shutdown.wait() => return Err(client.shutdown.error()),
    };
    sources.show(&client.progress);
    client.reporter.event(CopyEvent::Route(ROUTE.to_owned()));
    let started = Both::start(request, client, &options, budget, sources).await?;
    let Both {
        sending,
        receiving,
        mut from_receiver,
        mut from_sender,
    } = started;
    // Separate from the limit that the hosts of `--also` share: this copy must not use up their
    // rate.
    let limit = Arc::<RateLimiter>::default();
    limit.set(options.rate_limit);
    let tuning = Tuning::start(TuningTerms {
        sender: sending.sender.clone(),
        connection_set: None,
        start: tuning::start(budget, &options, Some(1), &host::hello(), None),
        audience: Audience::Nobody,
        limit: limit.clone(),
    });
    tokio::spawn(pass_on(
        sending.sender.clone(),
        sending.frames.clone(),
        receiving.receiver.clone(),
        limit.clone(),
    ));
    let (mut sending, mut receiving) = (
        RunningEnd::Sending(sending),
        RunningEnd::Receiving(receiving),
    );
    let copied = {
        let mut at_sender = ControlReader::new(&mut from_receiver, None, &client.shutdown);
        let mut at_receiver = ControlReader::new(&mut from_sender, None, &client.shutdown);
        let sent = converse(&mut at_sender, &mut sending, |_| Ok(()), |_| Ok(()));
        let received = converse(&mut at_receiver, &mut receiving, |_| Ok(()), |_| Ok(()));
        tokio::select! {
            copied = async { tokio::try_join!(sent, received) } => copied,
            never = follow_rate(request, client, &limit) => match never {},
            // A limit may let through less than a chunk in the time that the others wait.
            never = client.hold_pipe(|| limit.admitted_bytes()) => match never {},
        }
    };
    if copied.is_ok() {
        client.conclude(request, tuning.conclude()).await;
    }
    if let Err(error) = &copied {
        // Recorded before the teardown, whose errors are not the cause.
        client.shutdown.end(error.clone());
    }
    tokio::join!(sending.stop(), receiving.stop());
    match copied {
        Ok(_) => Ok(ROUTE.to_owned()),
        Err(_) => Err(client.shutdown.error()),
    }
}

async fn follow_rate(request: &Request, client: &ClientContext, limit: &RateLimiter) -> Infallible {
    if let Some(file) = &request.rate_file {
        let set = async |rate| limit.set(rate);
        file.follow(request.options.rate_limit, &*client.reporter, set)
            .await;
    }
    std::future::pending().await
}

/// Both running halves, and the messages that each receives from the other.
struct Both {
    sending: SendingEnd,
    receiving: ReceivingEnd,
    from_receiver: Incoming<ReadHalf<DuplexStream>>,
    from_sender: Incoming<ReadHalf<DuplexStream>>,
}

impl Both {
    async fn start(
        request: &Request,
        client: &ClientContext,
        options: &CopyOptions,
        budget: Budget,
        sources: CountedSources,
    ) -> Result<Both> {
        let (here, there) = tokio::io::duplex(CONTROL_BUFFER);
        let (from_receiver, to_receiver) = ends(here);
        let (from_sender, to_sender) = ends(there);
        // Suite "none" derives no key from it.
        let secret = Secret::random();
        let context = |control: &Outgoing, news, progress, digests| Context {
            options: options.clone(),
            budget,
            chunk_size: CHUNK_SIZE,
            agreed: Agreement::local(options),
            page_hasher: PageHasher::new(page_secret(&secret)),
            pool: Pool::new(budget.slots, CHUNK_SIZE),
            control: control.clone(),
            tell: client.tell(),
            news,
            progress,
            shutdown: client.shutdown.clone(),
            digests,
        };
        let opening = sources.opening()?;
        let CountedSources { found, totals } = sources;
        let terms = SendTerms {
            open_entries: host::open_entries(),
            // Nothing is compressed on the way.
            table_form: TableForm::Records,
            peer_takes_large_packs: false,
            peer_takes_large_pieces: false,
            in_memory: true,
            enough: client.enough.clone(),
            share: None,
            pipe: client.shared.as_ref().and_then(SharedSource::named_pipe),
            count: totals.count(),
        };
        let sending = context(
            &to_receiver,
            client.news.clone(),
            client.progress.clone(),
            client.digests.clone(),
        );
        // The sender reports the failures of both halves.
        let unseen = Arc::new(Progress::default());
        let silent = Arc::new(News::silent(unseen.clone()));
        let receiving = context(&to_sender, silent, unseen, None);
        let opener = Opener::new(&secret, Direction::ToServer, Suite::None);
        let sessions = operands::sessions(request, Secret::session(), &[], client);
        let destination = operands::destination(request, true, sessions);
        let rules = operands::rules(request);
        let receiving = ReceivingEnd::start(receiving, opener, rules, destination, Arc::default());
        for message in opening {
            let opened = to_receiver.send(message);
            opened.await.map_err(|e| Error::usage(e.to_string()))?;
        }
        if client.news.failures.has_some() {
            let told = to_receiver.send(operands::not_found());
            told.await.map_err(|e| Error::usage(e.to_string()))?;
        }
        let sources = found.sources(options);
        let sealer = Sealer::new(&secret, Direction::ToServer, Suite::None);
        Ok(Both {
            sending: SendingEnd::start(sending, terms, sealer, sources),
            receiving,
            from_receiver,
            from_sender,
        })
    }
}

/// Both directions of one end of control.
fn ends(pipe: DuplexStream) -> (Incoming<ReadHalf<DuplexStream>>, Outgoing) {
    let (reader, writer) = tokio::io::split(pipe);
    let (outgoing, _writer) = Outgoing::start(writer);
    (Incoming::new(reader), outgoing)
}

//! A session without data connections and without a copy (`--check=LIST`, `--clean`): everything
//! travels on control.

use tokio::process::ChildStdout;

use super::endpoints::Session;
use super::first_messages::suite_for;
use super::{LostSession, connect, over};
use crate::chunk::CHUNK_SIZE;
use crate::control::Outgoing;
use crate::error::{Error, Kind, Result, Side};
use crate::progress::Phase;
use crate::seal::Secret;
use crate::session::context::ClientContext;
use crate::session::control_reader::ControlReader;
use crate::session::converse::say;
use crate::session::heartbeat::{Heart, HeartPlace, HeartTerms};
use crate::session::login::LoggedIn;
use crate::session::request::Request;
use crate::transport::connections::{ConnectionSet, Flow};
use crate::units::printable;
use crate::wire::hello::Hello;
use crate::wire::message::{Message, Open, Role, SessionSecret};

/// What the server is to do.
pub(super) struct ControlTask {
    pub role: Role,
    /// The option that asks for it.
    pub option: &'static str,
    /// True if the server knows it.
    pub is_known: fn(&Hello) -> bool,
}

/// Logs in, and lets `converse` talk to the server until the task is done.
pub(super) async fn run(
    request: &Request,
    client: &ClientContext,
    session: Session<'_>,
    task: ControlTask,
    converse: impl AsyncFnOnce(&mut ControlReader<'_, ChildStdout>, &Outgoing) -> Result<()>,
) -> Result<String, LostSession> {
    let host = request.host().expect("the other end is on a host");
    let mut server = connect(host, request, client, session.attempt).await?;
    client.progress.add_login();
    client.progress.set_phase(Phase::Copying);
    let done = tokio::select! {
        done = give(request, client, &session, &mut server, task, converse) => done,
        () = client.shutdown.wait() => Err(client.shutdown.error()),
    };
    let done = done.map(|()| "ssh".to_owned());
    over(request, client, server, None, done).await
}

async fn give(
    request: &Request,
    client: &ClientContext,
    session: &Session<'_>,
    server: &mut LoggedIn,
    task: ControlTask,
    converse: impl AsyncFnOnce(&mut ControlReader<'_, ChildStdout>, &Outgoing) -> Result<()>,
) -> Result<()> {
    let name = printable(server.host.name.as_bytes());
    if !(task.is_known)(&server.hello) {
        let message = format!(
            "fastcp on {name} is older and does not know {}: install the same version on both hosts",
            task.option
        );
        return Err(Error::new(Kind::FarEnd, Side::Here, message));
    }
    let open = Open {
        role: task.role,
        options: request.options.clone(),
        session: session.id,
        suite: suite_for(&server.hello, request.encrypt).number(),
        streams: None,
        remembered: None,
        chunk_size: CHUNK_SIZE as u32,
        before: session.before.to_vec(),
        listens: false,
        ports: None,
        between: false,
    };
    say(&server.control, Message::Open(open)).await?;
    let secret = SessionSecret(*Secret::random().expose());
    say(&server.control, Message::Secret(secret)).await?;
    let heart = Heart::start(HeartTerms {
        place: HeartPlace::Client {
            host: name.clone(),
            reporter: client.reporter.clone(),
            streams_max: 1,
        },
        timeout_s: request.options.timeout_s,
        control: server.control.clone(),
        heard: server.incoming.heard(),
        connection_set: ConnectionSet::new(Flow::In),
        progress: client.progress.clone(),
        shutdown: client.shutdown.clone(),
    });
    let reader = ControlReader::new(&mut server.incoming, Some(&heart), &client.shutdown);
    converse(&mut reader.of_host(&name), &server.control).await
}

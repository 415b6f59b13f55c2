//! One session of `--check=LIST`: the client sends the lines of a list of digests, and the server
//! compares its files with them. Everything travels on control.

use tokio::io::AsyncRead;

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
use crate::session::listed_lines::ListedLines;
use crate::session::login::LoggedIn;
use crate::session::request::Request;
use crate::transport::connections::{ConnectionSet, Flow};
use crate::units::printable;
use crate::wire::hello::Hello;
use crate::wire::message::{ListedDigest, ListedDigests, Message, Open, Role, SessionSecret};

/// Compares the files of the only source with the list, as far as one session gets.
pub async fn check_list(
    request: &Request,
    client: &ClientContext,
    session: Session<'_>,
    lines: &ListedLines,
) -> Result<String, LostSession> {
    let host = request.host().expect("the files are on a host");
    let mut server = connect(host, request, client, session.attempt).await?;
    client.progress.add_login();
    client.progress.set_phase(Phase::Copying);
    let checked = tokio::select! {
        checked = converse(request, client, &session, &mut server, lines) => checked,
        () = client.shutdown.wait() => Err(client.shutdown.error()),
    };
    over(request, client, server, None, checked).await
}

async fn converse(
    request: &Request,
    client: &ClientContext,
    session: &Session<'_>,
    server: &mut LoggedIn,
    lines: &ListedLines,
) -> Result<String> {
    let name = printable(server.host.name.as_bytes());
    if !server.hello.can_verify() {
        let message = format!(
            "fastcp on {name} is older and does not know --check=LIST: install the same version on \
             both hosts"
        );
        return Err(Error::new(Kind::FarEnd, Side::Here, message));
    }
    say(&server.control, open(request, session, &server.hello)).await?;
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
    let mut reader = reader.of_host(&name);
    let send = async {
        send(lines, &server.control).await?;
        lines.done().await;
        Ok(())
    };
    tokio::select! {
        sent = send => sent,
        never = hear(&mut reader, client, lines) => never,
    }?;
    Ok("ssh".to_owned())
}

fn open(request: &Request, session: &Session<'_>, hello: &Hello) -> Message {
    Message::Open(Open {
        role: Role::Verifier {
            path: request.sources[0].path.clone(),
        },
        options: request.options.clone(),
        session: session.id,
        suite: suite_for(hello, request.encrypt).number(),
        streams: None,
        remembered: None,
        chunk_size: CHUNK_SIZE as u32,
        before: session.before.to_vec(),
        listens: false,
        ports: None,
        between: false,
    })
}

/// Sends all lines without an answer, as fast as there are answers.
async fn send(lines: &ListedLines, control: &Outgoing) -> Result<()> {
    let listed = |files: Vec<ListedDigest>, is_last| {
        Message::ListedDigests(ListedDigests { files, is_last })
    };
    for group in lines.again() {
        say(control, listed(group, false)).await?;
    }
    while let Some(group) = lines.next().await {
        say(control, listed(group, false)).await?;
    }
    say(control, listed(Vec::new(), true)).await
}

/// Takes answers until the session ends.
async fn hear<R: AsyncRead + Unpin>(
    reader: &mut ControlReader<'_, R>,
    client: &ClientContext,
    lines: &ListedLines,
) -> Result<()> {
    let breach = |what| Error::breach(Side::Here, "fastcp there", what);
    loop {
        if client.news.itemized.is_full() {
            reader.pause(true);
            client.news.itemized.room().await;
            reader.pause(false);
        }
        match reader.next().await? {
            Message::VerifiedFiles(found) => lines.answer(found.files, client).map_err(breach)?,
            // Every server offers to carry data on control.
            Message::Credit(_) => {}
            _ => return Err(breach("an unexpected answer to a list of digests")),
        }
    }
}

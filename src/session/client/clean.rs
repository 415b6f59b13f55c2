//! One session of `--clean`: the server removes what copies have left, and tells what that was.

use tokio::io::AsyncRead;

use super::endpoints::Session;
use super::first_messages::suite_for;
use super::{LostSession, connect, over};
use crate::chunk::CHUNK_SIZE;
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
use crate::wire::message::{Message, Open, Role, SessionSecret};

/// Cleans the destination, which is on a host.
pub async fn clean(
    request: &Request,
    client: &ClientContext,
    session: Session<'_>,
) -> Result<String, LostSession> {
    let host = request.host().expect("the directory is on a host");
    let mut server = connect(host, request, client, session.attempt).await?;
    client.progress.add_login();
    client.progress.set_phase(Phase::Copying);
    let cleaned = tokio::select! {
        cleaned = converse(request, client, &session, &mut server) => cleaned,
        () = client.shutdown.wait() => Err(client.shutdown.error()),
    };
    over(request, client, server, None, cleaned).await
}

async fn converse(
    request: &Request,
    client: &ClientContext,
    session: &Session<'_>,
    server: &mut LoggedIn,
) -> Result<String> {
    let name = printable(server.host.name.as_bytes());
    if !server.hello.can_clean() {
        let message = format!(
            "fastcp on {name} is older and does not know --clean: install the same version on both \
             hosts"
        );
        return Err(Error::new(Kind::FarEnd, Side::Here, message));
    }
    let open = Open {
        role: Role::Cleaner {
            path: request.dest.path.clone(),
        },
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
    hear(&mut reader.of_host(&name), client).await?;
    Ok("ssh".to_owned())
}

/// Takes leftovers until the last one.
async fn hear<R: AsyncRead + Unpin>(
    reader: &mut ControlReader<'_, R>,
    client: &ClientContext,
) -> Result<()> {
    let what = "an unexpected answer to --clean";
    loop {
        match reader.next().await? {
            Message::Leftovers(found) => {
                for leftover in found.files {
                    client.take_leftover(leftover);
                }
                if found.is_last {
                    return Ok(());
                }
            }
            // Every server offers to carry data on control.
            Message::Credit(_) => {}
            _ => return Err(Error::breach(Side::Here, "fastcp there", what)),
        }
    }
}

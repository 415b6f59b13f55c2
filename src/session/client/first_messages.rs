//! The first messages from the client to the server.

use std::os::unix::ffi::OsStrExt;

use crate::algorithms::Suite;
use crate::chunk::CHUNK_SIZE;
use crate::control::Outgoing;
use crate::error::Result;
use crate::session::request::{EndKind, Operand, Request};
use crate::transport::connection::handshake::Keyring;
use crate::transport::routes::Route;
use crate::wire::hello::Hello;
use crate::wire::message::{Message, Open, Role, SessionSecret};

use super::endpoints::Client;
use crate::session::converse::say;

/// Sends the server its role, the secret, which entries to copy and what to keep of them.
pub(super) async fn open(
    client: &Client<'_>,
    control: &Outgoing,
    keyring: &Keyring,
    suite: Suite,
) -> Result<()> {
    let request = client.request;
    let open = Open {
        role: role(request),
        options: request.options.clone(),
        session: keyring.session,
        suite: suite.number(),
        streams: client.streams(),
        remembered: client.remembered,
        chunk_size: CHUNK_SIZE as u32,
        before: client.session.before.to_vec(),
        listens: matches!(request.route.asked, None | Some(Route::Direct)),
        ports: request.route.ports,
        between: false,
    };
    let open_sends = open.role.sends();
    say(control, Message::Open(open)).await?;
    let secret = SessionSecret(*keyring.secret.expose());
    say(control, Message::Secret(secret)).await?;
    let more = request.select().into_iter().chain(request.archive());
    let more = more.chain(request.relative());
    for message in more.chain(request.map(open_sends)) {
        say(control, message).await?;
    }
    Ok(())
}

fn role(request: &Request) -> Role {
    let (sources, dest) = (&request.sources, &request.dest);
    let typed = |operand: &Operand| operand.typed.as_bytes().to_vec();
    match (&dest.host, dest.what) {
        (Some(_), EndKind::Nothing) => Role::Probe {
            path: dest.path.clone(),
        },
        (Some(_), EndKind::Command) => Role::Consumer {
            command: dest.path.clone(),
            source: sources.first().map_or(Vec::new(), typed),
        },
        (Some(_), _) => Role::Receiver {
            path: dest.path.clone(),
            sources: sources.iter().map(typed).collect(),
        },
        (None, _) => match &sources[..] {
            [source] if source.what == EndKind::Command => Role::Producer {
                command: source.path.clone(),
            },
            sources => Role::Sender {
                operands: sources.iter().map(|source| source.path.clone()).collect(),
            },
        },
    }
}

/// AES-128-GCM if both hosts prefer it, because they have instructions for it.
pub(super) fn suite_for(server: &Hello, encrypt: bool) -> Suite {
    let preferred = Suite::preferred();
    match (encrypt, server.suites.first() == Some(&preferred.number())) {
        (false, _) => Suite::Tag,
        (true, true) => preferred,
        (true, false) => Suite::ChaCha20Poly1305,
    }
}

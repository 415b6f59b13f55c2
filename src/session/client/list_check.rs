//! One session of `--check=LIST`: the client sends the lines of a list of digests, and the server
//! compares its files with them. Everything travels on control.

use tokio::io::AsyncRead;

use super::LostSession;
use super::control_only::{self, ControlTask};
use super::endpoints::Session;
use crate::control::Outgoing;
use crate::error::{Error, Result, Side};
use crate::session::context::ClientContext;
use crate::session::control_reader::ControlReader;
use crate::session::converse::say;
use crate::session::listed_lines::ListedLines;
use crate::session::request::Request;
use crate::wire::hello::Hello;
use crate::wire::message::{ListedDigest, ListedDigests, Message, Role};

/// Compares the files of the only source with the list, as far as one session gets.
pub async fn check_list(
    request: &Request,
    client: &ClientContext,
    session: Session<'_>,
    lines: &ListedLines,
) -> Result<String, LostSession> {
    let task = ControlTask {
        role: Role::Verifier {
            path: request.sources[0].path.clone(),
        },
        option: "--check=LIST",
        is_known: Hello::can_verify,
    };
    control_only::run(request, client, session, task, async |reader, control| {
        let send = async {
            send(lines, control).await?;
            lines.done().await;
            Ok(())
        };
        tokio::select! {
            sent = send => sent,
            never = hear(reader, client, lines) => never,
        }
    })
    .await
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

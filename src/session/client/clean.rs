//! One session of `--clean`: the server removes what copies have left, and tells what that was.

use tokio::io::AsyncRead;

use super::LostSession;
use super::control_only::{self, ControlTask};
use super::endpoints::Session;
use crate::error::{Error, Result, Side};
use crate::session::context::ClientContext;
use crate::session::control_reader::ControlReader;
use crate::session::request::Request;
use crate::wire::hello::Hello;
use crate::wire::message::{Message, Role};

/// Cleans the destination, which is on a host.
pub async fn clean(
    request: &Request,
    client: &ClientContext,
    session: Session<'_>,
) -> Result<String, LostSession> {
    let task = ControlTask {
        role: Role::Cleaner {
            path: request.dest.path.clone(),
        },
        option: "--clean",
        is_known: Hello::can_clean,
    };
    control_only::run(request, client, session, task, async |reader, _| {
        hear(reader, client).await
    })
    .await
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

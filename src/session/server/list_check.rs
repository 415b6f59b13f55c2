//! The server's part in `--check=LIST`: it compares its files with the lines that the client sends.

use std::sync::Arc;

use tokio::io::AsyncRead;

use crate::control::Outgoing;
use crate::error::Result;
use crate::pipeline::Shutdown;
use crate::pipeline::list_check::ListCheck;
use crate::progress::Progress;
use crate::session::checking_end::CheckingEnd;
use crate::session::control_reader::{ControlReader, breach};
use crate::source::ListedPlace;
use crate::wire::message::{Message, Open, VerifiedFile, VerifiedFiles};

/// Answers lines until the client has sent the last one, and counts them.
///
/// # Errors
/// The end of the session, or a message that is no line.
pub(super) async fn serve<R: AsyncRead + Unpin>(
    place: ListedPlace,
    (open, workers, progress): (&Open, usize, &Arc<Progress>),
    control: Outgoing,
    control_reader: &mut ControlReader<'_, R>,
    shutdown: &Arc<Shutdown>,
) -> Result<()> {
    let checked = progress.clone();
    let tell = move |files: Vec<VerifiedFile>| {
        checked.add_files(files.len() as u64);
        // If the connection is lost, its reader reports that.
        let _ = control.send_blocking(Message::VerifiedFiles(VerifiedFiles { files }));
    };
    let check = ListCheck::new(place, open.options.drop_cache, Box::new(tell));
    let end = CheckingEnd::start(check, workers, shutdown);
    let served = answer(&end.check, control_reader).await;
    end.stop().await;
    served
}

async fn answer<R: AsyncRead + Unpin>(
    check: &ListCheck,
    control_reader: &mut ControlReader<'_, R>,
) -> Result<()> {
    let shutdown = control_reader.shutdown();
    loop {
        if check.is_full() {
            control_reader.pause(true);
            tokio::select! {
                () = check.room() => {}
                () = shutdown.wait() => return Err(shutdown.error()),
            }
            control_reader.pause(false);
        }
        tokio::select! {
            biased;
            () = check.done() => return Ok(()),
            () = shutdown.wait() => return Err(shutdown.error()),
            message = control_reader.next() => match message? {
                Message::ListedDigests(listed) => check.add(listed.files, listed.is_last),
                _ => return Err(breach("an unexpected message during the check of a list")),
            }
        }
    }
}

//! The server's part in `--clean`: it removes what copies have left, and tells the client.

use std::sync::Arc;

use tokio::io::AsyncRead;

use crate::control::Outgoing;
use crate::dest::{CleanedDirectory, stored_user_key};
use crate::error::Result;
use crate::pipeline::Shutdown;
use crate::pipeline::leftovers::{Cleaning, FOUND_MAX};
use crate::progress::Progress;
use crate::session::control_reader::ControlReader;
use crate::session::converse::say;
use crate::session::runtime::off_task;
use crate::wire::message::{Leftover, LeftoverFate, Leftovers, Message};

/// Counts removed files.
///
/// # Errors
/// The end of the session.
pub(super) async fn serve<R: AsyncRead + Unpin>(
    directory: CleanedDirectory,
    (dry_run, progress): (bool, &Arc<Progress>),
    control: &Outgoing,
    control_reader: &mut ControlReader<'_, R>,
    shutdown: &Arc<Shutdown>,
) -> Result<()> {
    let (told, ending, removed) = (control.clone(), shutdown.clone(), progress.clone());
    let clean = off_task(move || {
        let tell = |leftover: Leftover| {
            if leftover.fate == LeftoverFate::Removed && !dry_run {
                removed.add_files(1);
                removed.add_bytes(leftover.bytes);
            }
            let files = vec![leftover];
            let is_last = false;
            // If the connection is lost, its reader reports that.
            let _ = told.send_blocking(Message::Leftovers(Leftovers { files, is_last }));
        };
        let cleaning = Cleaning {
            directory: &directory,
            user: stored_user_key(),
            dry_run,
            found_max: FOUND_MAX,
            is_ending: &|| ending.cause().is_some(),
            tell: &tell,
        };
        cleaning.run();
    });
    control_reader.during(clean).await??;
    let last = Leftovers {
        files: Vec::new(),
        is_last: true,
    };
    say(control, Message::Leftovers(last)).await
}

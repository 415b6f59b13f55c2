//! The client's list of files on its way to the server that reads them.

use tokio::io::AsyncRead;

use super::control_reader::{ControlReader, breach};
use super::converse::say;
use super::request::Request;
use super::runtime::off_task;
use crate::control::Outgoing;
use crate::error::{Error, Result};
use crate::file_list::{FileList, ListBuilder, NamesFrom};
use crate::wire::message::{FileNames, Message};

/// About how many bytes of names one message has. The limit of its body is twice as much.
const PART_BYTES: usize = 32 << 10;

/// Sends the list, if a server needs it.
///
/// # Errors
/// `Kind::Lost` if control has ended.
pub async fn send(request: &Request, control: &Outgoing) -> Result<()> {
    let relative = request.options.relative.as_ref();
    let Some(NamesFrom::List(list)) = relative.map(|copy| &copy.names) else {
        return Ok(());
    };
    if !request.reads_there() {
        return Ok(());
    }
    let mut parts = list.parts(PART_BYTES).peekable();
    while let Some(names) = parts.next() {
        let is_last = parts.peek().is_none();
        say(control, Message::FileNames(FileNames { names, is_last })).await?;
    }
    Ok(())
}

/// Receives the list from a client. Other messages are kept for the session.
///
/// # Errors
/// Usage, if the list is too long; the client's reason to end, or that it was lost.
pub async fn receive<R: AsyncRead + Unpin>(
    control_reader: &mut ControlReader<'_, R>,
) -> Result<FileList> {
    let mut builder = ListBuilder::default();
    loop {
        let FileNames { names, is_last } = control_reader.next_names().await?;
        for name in names.split_inclusive(|byte| *byte == 0) {
            let Some(name) = name.strip_suffix(b"\0") else {
                return Err(breach("a part of a name in a list of files"));
            };
            let added = builder.add(name);
            added.map_err(|why| Error::usage(format!("--files-from: {why}")))?;
        }
        if is_last {
            // Sorting a long list takes seconds.
            let list = off_task(move || builder.finish());
            return control_reader.during(list).await?;
        }
    }
}

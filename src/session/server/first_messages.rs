//! The client's first messages, checked.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncRead;

use crate::backup::BackupPlace;
use crate::control::{Incoming, Outgoing};
use crate::earlier::EarlierCopies;
use crate::error::{Error, Kind, Result, Side};
use crate::keep::Keep;
use crate::mapping;
use crate::seal::Secret;
use crate::selection::Selector;
use crate::session::control_reader::lost;
use crate::session::heartbeat::until_silent;
use crate::wire::hello::{Hello, STREAMS_MAX};
use crate::wire::message::{Archive, Message, Open, SESSIONS_MAX};

use crate::session::control_reader::breach;

/// Chunk sizes that a client may request, in bytes.
const CHUNK_SIZES: std::ops::RangeInclusive<u32> = 64 << 10..=16 << 20;

/// Reads the client's first messages. A slow link may need minutes for them: they name every operand.
/// Heartbeats tell the client that this end is alive.
///
/// # Errors
/// `Kind::Lost` if nothing arrives for `patience`.
pub(super) async fn opening<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    control: &Outgoing,
    client: &Hello,
    patience: Duration,
) -> Result<(Open, Secret)> {
    let heard = incoming.heard();
    tokio::select! {
        biased;
        opened = read(incoming, client) => opened,
        () = until_silent(control, &heard, patience) => {
            let seconds = patience.as_secs();
            let message = format!(
                "nothing was heard from the client for {seconds} s, before it had requested a copy"
            );
            Err(Error::new(Kind::Lost, Side::Here, message))
        }
    }
}

/// The client's hello says which messages come: which entries a sender copies, which metadata is
/// kept, where a sender finds the names of files, and which parts of a source have separate places.
async fn read<R: AsyncRead + Unpin>(
    incoming: &mut Incoming<R>,
    client: &Hello,
) -> Result<(Open, Secret)> {
    let mut next = async || incoming.next().await.map_err(lost);
    let (Message::Open(mut open), Message::Secret(mut secret)) = (next().await?, next().await?)
    else {
        return Err(breach("an unexpected first message"));
    };
    if !CHUNK_SIZES.contains(&open.chunk_size) || !open.chunk_size.is_power_of_two() {
        return Err(breach("an invalid chunk size"));
    }
    let is_possible = |streams| (1..=STREAMS_MAX).contains(&streams);
    if !open.streams.is_none_or(is_possible) {
        return Err(breach("an invalid number of streams"));
    }
    if open.before.len() > SESSIONS_MAX {
        return Err(breach("more earlier sessions than allowed"));
    }
    let secret = Secret::take(&mut secret.0);
    if client.selects {
        let Message::Select(selection) = next().await? else {
            return Err(breach("no selection of files"));
        };
        if !open.role.sends() {
            return Err(breach("a selection of files for a receiver"));
        }
        let selector = Selector::new(selection).map_err(|why| Error::usage(why.to_string()))?;
        open.options.selector = Arc::new(selector);
    }
    if open.options.preserve {
        open.options.keep = Keep::modes_and_times();
    }
    if client.archives {
        let Message::Archive(archive) = next().await? else {
            return Err(breach("no message about metadata"));
        };
        let Archive {
            keep,
            update,
            changes,
            mirror,
            backup,
            earlier,
            snapshot,
        } = archive;
        if !changes.is_within_limits() {
            return Err(breach("more changes of modes than allowed"));
        }
        (open.options.keep, open.options.update) = (keep, update);
        if let Some(Err(why)) = backup.as_ref().map(BackupPlace::check) {
            return Err(Error::usage(why.to_string()));
        }
        if let Some(Err(why)) = earlier.as_ref().map(EarlierCopies::check) {
            return Err(Error::usage(why.to_string()));
        }
        (open.options.mirror, open.options.backup) = (mirror, backup);
        (open.options.earlier, open.options.snapshot) = (earlier, snapshot);
        open.options.changes = Arc::new(changes);
    }
    if client.relative && open.role.sends() {
        let Message::Relative(terms) = next().await? else {
            return Err(breach("no message about paths"));
        };
        open.options.relative = Some(Arc::new(terms.into_copy()));
    } else if client.relative {
        open.options.relative = Some(Arc::default());
    }
    if client.maps {
        let Message::Map(terms) = next().await? else {
            return Err(breach("no message about parts"));
        };
        mapping::check(&terms.maps, !open.role.sends()).map_err(Error::usage)?;
        open.options.maps = Arc::new(terms.maps);
    }
    Ok((open, secret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::host;

    #[tokio::test]
    async fn a_client_that_is_slow_hears_that_the_server_lives_and_may_come_again() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let (from, to) = tokio::io::split(server);
        let (control, _writer) = Outgoing::start(to);
        let hello = host::hello();
        let patience = Duration::from_secs(1);
        let silent = opening(&mut Incoming::new(from), &control, &hello, patience).await;
        assert_eq!(silent.err().map(|error| error.kind), Some(Kind::Lost));
        let said = Incoming::new(&mut client).next().await;
        assert!(matches!(said, Ok(Message::Heartbeat(_))));
    }
}

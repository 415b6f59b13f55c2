//! The server's part: where what comes is kept nowhere, and how fast a place there is written.

use crate::dest::{self, Exit, Spec, Trial};
use crate::error::{Error, Kind, Result, Side};
use crate::wire::message::Tried;

/// Where the data of a link test ends.
pub fn nowhere() -> Exit {
    Exit::Null("/dev/null".into())
}

/// Writes where a copy to `spec` would, for a second or two; nothing of it stays.
///
/// # Errors
/// As where a copy is to land there.
pub async fn write_there(spec: Spec) -> Result<Tried> {
    let trying = tokio::task::spawn_blocking(move || dest::try_writing(&spec));
    let failed = |_| Error::new(Kind::Write, Side::Dest, "the trial failed");
    let Trial {
        bytes,
        written,
        synced,
    } = trying.await.map_err(failed)??;
    Ok(Tried {
        bytes,
        written_us: written.as_micros() as u64,
        synced_us: synced.as_micros() as u64,
    })
}

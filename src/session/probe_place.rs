//! The server's part of a probe: the null destination of a link test, and a write test of a place.

use crate::dest::{self, SinkSpec, Spec, WriteTest};
use crate::error::{Error, Kind, Result, Side};
use crate::wire::message::Tried;

/// The data of a link test: zeros.
pub const SOURCE: &str = "/dev/zero";

/// The destination of a link test's data.
pub fn nowhere() -> SinkSpec {
    SinkSpec::Null("/dev/null".into())
}

/// Writes for a second or two where a copy to `spec` would, and leaves nothing behind.
///
/// # Errors
/// The same as for a copy to that place.
pub async fn write_there(spec: Spec) -> Result<Tried> {
    let trying = tokio::task::spawn_blocking(move || dest::try_writing(&spec));
    let failed = |_| Error {
        kind: Kind::Write,
        side: Side::Dest,
        ..Error::panicked()
    };
    let WriteTest {
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

//! Bounds of the tuner's decisions, and the round trip from which on a link counts as far.

use std::time::Duration;

/// More connections than any measured link needed.
pub const STREAMS_MAX: u16 = 256;

/// Bounds on the chunks in flight: read but not acknowledged. A chunk is 1 MiB, so at worst that
/// many megabytes are retransmitted when every connection dies at once. The maximum fills 10
/// Gbit/s at a round trip of 1.5 s. The minimum suffices for the workers of both ends and for
/// acknowledgements every 2 ms at 2 GB/s. With many more, the buffers in use exceed the
/// processor's cache (1 GB on loopback with 2 processors: 67,000 page faults with 1024, 21,000
/// with 64).
pub(super) const IN_FLIGHT_MIN: u16 = 32;
pub(super) const IN_FLIGHT_MAX: u16 = 2048;

/// Seconds of the link's throughput that may queue as frames, and the most frames that may queue
/// for each connection: one being written and one behind it.
pub(super) const QUEUE_S: f64 = 0.25;
pub(super) const QUEUE_PER_STREAM: u16 = 2;

/// Queued frames while the link is unknown: their method may turn out to be the wrong one.
pub const QUEUE_MIN: u16 = 4;

/// While the tuner measures a method, the first chunk and then one in this many uses it. An eighth
/// of the chunks gives a result within 250 ms on most links, and costs little if the method is
/// slow.
pub const SCOUT_EVERY: u64 = 8;

/// From this round trip on a link counts as far rather than local. On a far link, slow start is
/// the first bottleneck however fast the link is, and a high rate needs the windows of several
/// connections.
pub(super) const FAR_AWAY: Duration = Duration::from_millis(5);

/// Longer round trips are caused by queues; no decision waits for ten longer ones.
pub(super) const ROUND_TRIP_MAX: Duration = Duration::from_millis(600);

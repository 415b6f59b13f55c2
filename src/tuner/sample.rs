//! What the tuner is told: counters that only grow, and a few gauges.
//!
//! Every counter and every time counts from the start of the copy, so that a sample that is lost
//! costs nothing and whoever fills one in keeps no former values.

use std::time::Duration;

use super::method::RUNGS;

/// Taken at the sending end about every 250 ms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Bytes of content that the receiver acknowledged as written.
    pub acked_bytes: u64,
    /// Bytes of content that are still to be written; None where nobody knows.
    pub rest_bytes: Option<u64>,
    /// Bytes of content that stand in the frames which streams have taken.
    pub raw_bytes: u64,
    /// Bytes of those frames.
    pub wire_bytes: u64,
    /// Those frames.
    pub frames: u64,
    /// Bytes that the peer's kernel acknowledged (TCP_INFO's `bytes_acked`), all streams, those
    /// that are gone included; where the kernel does not tell, bytes handed to sockets.
    pub carried_bytes: u64,
    /// Bytes sent again by TCP (`bytes_retrans`), all streams.
    pub retransmitted_bytes: u64,
    /// Time in which every stream had unsent bytes.
    pub link_busy: Duration,
    /// Time in which a worker compressed, digested or sealed, summed over workers.
    pub workers_busy: Duration,
    /// The part of it that went into compression, sampling included.
    pub encode_busy: Duration,
    /// Time in which a read was under way and workers had nothing else to do.
    pub read_busy: Duration,
    pub codecs: [Coded; RUNGS],
    /// Frames that wait for a stream now.
    pub queued: u32,
    /// Mean of the streams' smoothed round trips, zero if unknown.
    pub round_trip: Duration,
    /// Bytes that are sent and not acknowledged, all streams at work together; 0 if unknown.
    pub under_way_bytes: u64,
    /// Bytes that are known to have come through, of streams that are at work: `carried_bytes`
    /// counts what was handed to sockets until the kernel is asked.
    pub confirmed_bytes: u64,
    /// Bytes that the receiver's windows let be under way, all streams together; 0 if unknown.
    pub receive_window: u64,
    /// Bytes that this end's socket buffers hold, all streams together; 0 if unknown.
    pub send_window: u64,
    /// The rate limit in force now, in bytes a second.
    pub rate_limit: Option<u64>,
    /// Bytes that the rate limit let through, of all copies that share it.
    pub admitted_bytes: u64,
    /// Streams that are up.
    pub streams: u16,
    pub far: Far,
}

/// What one method of the ladder was given, sampled chunks that did not shrink included.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coded {
    /// Bytes of content.
    pub offered_bytes: u64,
    /// What became of them, as they were or compressed.
    pub made_bytes: u64,
    pub busy: Duration,
}

/// The receiver's counters from its last heartbeat, by its own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Far {
    /// Since its start, when it counted.
    pub elapsed: Duration,
    /// Time in which a worker opened, decompressed or digested, summed over workers.
    pub workers_busy: Duration,
    /// The part of it that went into decompression.
    pub decode_busy: Duration,
    /// Time in which a write was under way and the workers had nothing else to do.
    pub write_busy: Duration,
    /// Time in which streams' readers waited for a buffer, as a mean of all streams.
    pub waits: Duration,
}

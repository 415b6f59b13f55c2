//! The tuner's input: counters that only grow, and a few gauges.
//!
//! Every counter and every time counts from the start of the copy. A lost sample therefore costs
//! nothing, and the caller that fills one in keeps no earlier values.

use std::time::Duration;

use super::method::RUNGS;

/// Taken at the sender about every 250 ms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Content bytes that the receiver acknowledged as written.
    pub acked_bytes: u64,
    /// Content bytes still to be written; None if unknown.
    pub rest_bytes: Option<u64>,
    /// Content bytes in the frames that connections have taken.
    pub raw_bytes: u64,
    /// Wire bytes of those frames.
    pub wire_bytes: u64,
    /// The number of those frames.
    pub frames: u64,
    /// Bytes that the peer's kernel acknowledged (TCP_INFO's `bytes_acked`) on all connections,
    /// closed ones included; bytes handed to sockets where the kernel does not report it.
    pub carried_bytes: u64,
    /// Bytes that TCP retransmitted (`bytes_retrans`) on all connections.
    pub retransmitted_bytes: u64,
    /// Time in which every connection had unsent bytes.
    pub link_busy: Duration,
    /// Time in which a worker compressed, digested or sealed, summed over workers.
    pub workers_busy: Duration,
    /// The part of `workers_busy` spent on compression, sampling included.
    pub encode_busy: Duration,
    /// Time in which a read was in progress and workers had nothing else to do.
    pub read_busy: Duration,
    pub codecs: [MethodWork; RUNGS],
    /// Frames that wait for a connection now.
    pub queued: u32,
    /// Mean of the connections' smoothed round trips, zero if unknown.
    pub round_trip: Duration,
    /// Bytes sent and not acknowledged on all connections in use; 0 if unknown.
    pub under_way_bytes: u64,
    /// Bytes known to have arrived, on connections in use. Unlike this, `carried_bytes` counts
    /// bytes handed to sockets until the kernel has been asked.
    pub confirmed_bytes: u64,
    /// Bytes in flight that the receiver's windows allow, all connections together; 0 if unknown.
    pub receive_window: u64,
    /// Size of the sender's socket buffers in bytes, all connections together; 0 if unknown.
    pub send_window: u64,
    /// The rate limit in force now, in bytes a second.
    pub rate_limit: Option<u64>,
    /// Bytes that the rate limit admitted, for all copies that share it.
    pub admitted_bytes: u64,
    /// Connections that are open.
    pub streams: u16,
    pub far: ReceiverSample,
}

/// Work given to one method of the ladder, including sampled chunks that did not shrink.
impl Sample {
    /// The rate that the windows allow, in bytes a second; None if they are unknown.
    pub(super) fn window_rate(&self) -> Option<f64> {
        let windows = [self.receive_window, self.send_window];
        let window = windows.into_iter().filter(|bytes| *bytes > 0).min()?;
        let round_trip = self.round_trip;
        (!round_trip.is_zero()).then(|| window as f64 / round_trip.as_secs_f64())
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct MethodWork {
    /// Bytes of content.
    pub offered_bytes: u64,
    /// Bytes of the resulting frames, whether stored or compressed.
    pub made_bytes: u64,
    pub busy: Duration,
}

/// The receiver's counters from its last heartbeat, by the receiver's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiverSample {
    /// Time since the receiver started, when it took these counters.
    pub elapsed: Duration,
    /// Time in which a worker decrypted, decompressed or digested, summed over workers.
    pub workers_busy: Duration,
    /// The part of `workers_busy` spent on decompression.
    pub decode_busy: Duration,
    /// Time in which a write was in progress and workers had nothing else to do.
    pub write_busy: Duration,
    /// Time in which readers of connections waited for a buffer, as a mean over all connections.
    pub waits: Duration,
}

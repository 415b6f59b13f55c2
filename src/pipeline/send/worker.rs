//! A sender's worker: its encoder and its clock.

use crate::codec::Encoder;
use crate::pipeline::worker_time::WorkerClock;

pub(super) struct SendWorker<'a> {
    pub encoder: Encoder,
    /// A patch that is being made.
    pub patch: Vec<u8>,
    pub clock: WorkerClock<'a>,
}

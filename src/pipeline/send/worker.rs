//! What a worker of the sender keeps for itself.

use crate::codec::Encoder;
use crate::pipeline::worker_time::WorkerClock;

pub(super) struct SendWorker<'a> {
    pub encoder: Encoder,
    pub clock: WorkerClock<'a>,
}

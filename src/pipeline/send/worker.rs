//! A sender's worker: its encoder and its clock.

use crate::codec::Encoder;
use crate::pipeline::worker_time::WorkerClock;

pub(super) struct SendWorker<'a> {
    pub encoder: Encoder,
    pub clock: WorkerClock<'a>,
}

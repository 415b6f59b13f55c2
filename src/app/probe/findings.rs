//! The results of a probe, each reported as soon as it is known.

use std::sync::Arc;

use super::sample::Read;
use crate::algorithms::Method;
use crate::tuner::Facts;
use crate::wire::message::Tried;

/// One result, reported as soon as it is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// Codecs are measured on this many bytes, of a file or generated.
    Sample {
        bytes: u64,
        of_file: bool,
    },
    Codec(MeasuredCodec),
    Read(Read),
    Tried(Tried),
    RoundTrip(std::time::Duration),
    Carried(Carried),
}

/// Receives the findings; does not wait.
pub type Hear = Arc<dyn Fn(&Finding) + Send + Sync>;

/// One codec, measured with all workers of this host busy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredCodec {
    pub method: Method,
    pub ratio: f64,
    /// Bytes of content; the time includes digest and seal.
    pub bytes_per_s: f64,
    pub(super) facts: Facts,
}

/// The throughput with a number of connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    pub streams: u16,
    /// The connections that were up; 0 if data went inside the login.
    pub up: u16,
    pub bytes_per_s: f64,
}

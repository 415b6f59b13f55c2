//! `--probe`: measures the link, the codecs and the disks, and estimates a copy's speed. It
//! measures the link by a copy, so it reaches every host that a copy reaches.

mod codecs;
pub mod findings;
pub mod link;
pub mod sample;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::algorithms::{Method, Suite};
use crate::app::copy;
use crate::chunk::CHUNK_SIZE;
use crate::error::Result;
use crate::pipeline::Budget;
use crate::pipeline::send::encoder_control;
use crate::progress::Progress;
use crate::report::Reporter;
use crate::session::context::ClientContext;
use crate::session::probe_place::SOURCE;
use crate::session::request::{Compress, EndKind, Operand, Outcome, Request, Retry};
use crate::tuner::{self, Facts, Forecast, LADDER, Measured, rung};
use crate::units::printable;
use crate::wire::message::Tried;
pub use findings::{Carried, Finding, Hear, MeasuredCodec};
use link::{LinkFacts, LinkProbe};
use sample::CodecSample;
pub use sample::Read;

/// More than any link carries during a probe.
const SOURCE_BYTES: u64 = 1 << 60;

/// More connections that bring less than this factor are not worth their processor time.
const WORTH: f64 = 1.05;

/// The request of a probe, checked.
pub struct Probe {
    /// As for a copy, with the host as its destination.
    pub request: Request,
    /// `--sample`
    pub sample: Option<PathBuf>,
}

/// All results, and the estimate.
pub struct Probed {
    pub outcome: Outcome,
    pub codecs: Vec<MeasuredCodec>,
    pub read: Option<Read>,
    pub link: LinkFacts,
    /// None if the link could not be measured.
    pub forecast: Option<ExpectedCopy>,
}

/// The estimated speed of a copy, and the settings for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedCopy {
    pub method: Method,
    pub streams: u16,
    pub link: f64,
    pub workers_here: u16,
    pub workers_there: u16,
    /// The processors of the machine, if both ends are on one.
    pub processors: Option<u16>,
    /// Bytes a second; None if it was not measured.
    pub read: Option<f64>,
    pub write: Option<f64>,
    pub forecast: Forecast,
}

impl Probe {
    /// Turns the request of a copy into one that tests the link. `dest` names the host, and a
    /// place there to write to if its path is not empty. `--compress` stays unchanged.
    pub fn of(mut request: Request, dest: Operand, sample: Option<PathBuf>) -> Probe {
        let (typed, path) = (SOURCE.into(), SOURCE.into());
        let source = Operand {
            typed,
            host: None,
            what: EndKind::Path,
            path,
        };
        request.sources = vec![source].into();
        request.dest = Operand {
            what: EndKind::Nothing,
            ..dest
        };
        request.options.size = Some(SOURCE_BYTES);
        // A probe has nothing to resume, to list or to follow.
        request.retry = Retry::never();
        request.digest_lists.clear();
        (request.options.digests, request.options.follow_ms) = (false, None);
        Probe { request, sample }
    }

    /// Runs the probe; returns within 15 s, not counting the login. Blocks.
    pub fn run(self, reporter: Arc<dyn Reporter>, hear: Hear) -> Probed {
        let mut began = Instant::now();
        let Probe {
            mut request,
            sample,
        } = self;
        let compress = std::mem::replace(&mut request.options.compress, Compress::None);
        let host = request.host().map_or("", |host| &host.name);
        let host = printable(host.as_bytes());
        let test = Arc::new(LinkProbe::new(host, compress, hear.clone()));
        let mut client = ClientContext::new(Arc::new(Progress::default()), reporter);
        client.probe = Some(test.clone());
        let mut codecs = Codecs::default();
        let tried = try_codecs(&request, compress, sample, &hear);
        let ran = tried.and_then(|tried| {
            codecs = tried;
            copy::copy(&request, &mut client, &mut began)
        });
        let outcome = copy::outcome(&request, &client, ran, began);
        let link = test.facts();
        let forecast = match &outcome.fatal {
            None => expect(&codecs, &link, compress),
            Some(_) => None,
        };
        Probed {
            outcome,
            codecs: codecs.coded,
            read: codecs.read,
            link,
            forecast,
        }
    }
}

#[derive(Default)]
struct Codecs {
    coded: Vec<MeasuredCodec>,
    plain_ns: f64,
    read: Option<Read>,
}

/// Measures the codecs before there is a link to keep busy, so that they have all processors.
fn try_codecs(
    request: &Request,
    compress: Compress,
    sample: Option<PathBuf>,
    hear: &Hear,
) -> Result<Codecs> {
    let mut options = request.options.clone();
    options.compress = compress;
    let budget = Budget::new(&options, request.streams, CHUNK_SIZE)?;
    let suite = match request.encrypt {
        true => Suite::preferred(),
        false => Suite::Tag,
    };
    let of_file = sample.is_some();
    let sample = match sample {
        Some(path) => CodecSample::of_file(&path)?,
        None => CodecSample::of_pages(),
    };
    if let Some(read) = sample.read {
        hear(&Finding::Read(read));
    }
    hear(&Finding::Sample {
        bytes: sample.bytes(),
        of_file,
    });
    let mut codecs = Codecs {
        read: sample.read,
        ..Codecs::default()
    };
    for method in methods(&budget, compress) {
        let (facts, plain_ns) = codecs::measure(&sample, method, budget.workers, suite);
        let per_byte = plain_ns + facts.ns_per_byte;
        let coded = MeasuredCodec {
            method,
            ratio: facts.ratio,
            bytes_per_s: budget.workers as f64 * 1e9 / per_byte.max(1e-3),
            facts,
        };
        hear(&Finding::Codec(coded));
        if method == Method::None {
            codecs.plain_ns = plain_ns;
        }
        codecs.coded.push(coded);
    }
    Ok(codecs)
}

/// The codecs that the tuner chooses between, and the user's codec if it is not one of them.
fn methods(budget: &Budget, compress: Compress) -> Vec<Method> {
    let is_open = |method: &Method| match (method, budget.strongest) {
        (Method::Zstd(level), Method::Zstd(most)) => *level <= most,
        (Method::Lzma(_), _) => budget.lzma_workers >= budget.workers,
        _ => true,
    };
    let forced = encoder_control::method(compress);
    let own = forced.filter(|method| rung(*method).is_none());
    LADDER.into_iter().filter(is_open).chain(own).collect()
}

/// The estimate of the tuner's own model. None if the link carried nothing.
fn expect(codecs: &Codecs, link: &LinkFacts, compress: Compress) -> Option<ExpectedCopy> {
    let most = link.carried.iter().map(|it| it.bytes_per_s);
    let most = most.fold(0.0, f64::max);
    let enough = |it: &&Carried| it.bytes_per_s * WORTH >= most;
    let carried = link.carried.iter().find(enough)?;
    let read = codecs.read.map(|read| read.bytes_per_s);
    let write = synced_rate(&link.tried);
    let infinite = |rate: Option<f64>| rate.unwrap_or(f64::INFINITY);
    let measured = Measured {
        link: carried.bytes_per_s,
        plain_ns: codecs.plain_ns,
        workers_here: link.workers_here,
        workers_there: link.workers_there,
        processors: link.processors,
        disks: infinite(read).min(infinite(write)),
    };
    let forced = encoder_control::method(compress);
    let tried: Vec<(Method, Facts)> = codecs
        .coded
        .iter()
        .filter(|coded| forced.is_none_or(|forced| coded.method == forced))
        .map(|coded| (coded.method, coded.facts))
        .collect();
    let (method, forecast) = tuner::best(&measured, &tried)?;
    Some(ExpectedCopy {
        method,
        streams: carried.streams,
        link: carried.bytes_per_s,
        workers_here: link.workers_here,
        workers_there: link.workers_there,
        processors: link.processors,
        read,
        write,
        forecast,
    })
}

/// Bytes a second to the disk (synced), which is the speed of a long copy.
pub fn synced_rate(tried: &Tried) -> Option<f64> {
    (tried.bytes > 0).then(|| tried.bytes as f64 * 1e6 / tried.synced_us.max(1) as f64)
}

/// Bytes a second until the system accepted them.
pub fn written_rate(tried: &Tried) -> Option<f64> {
    (tried.bytes > 0).then(|| tried.bytes as f64 * 1e6 / tried.written_us.max(1) as f64)
}

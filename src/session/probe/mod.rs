//! `--probe`: measures the link, the codecs and the disks, and says what a copy would make of them.
//! The link is measured by a copy, so that whatever reaches a host for one reaches it for this.

mod codecs;
pub mod link;
pub mod place;
pub mod sample;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::chunk::CHUNK_SIZE;
use crate::error::Result;
use crate::pipeline::{Budget, steering};
use crate::progress::Progress;
use crate::seal::{Secret, Suite};
use crate::session::Seat;
use crate::session::client::{self, Session};
use crate::session::login::Attempt;
use crate::session::request::{Compress, Operand, Outcome, Reporter, Request, Retry, What};
use crate::tuner::{self, Facts, Forecast, LADDER, Measured, Method, rung};
use crate::wire::message::Tried;
pub use link::Carried;
use link::{LinkFacts, LinkTest};
pub use sample::Read;
use sample::Sample;

/// What is sent, and as much of it as no link carries while a probe lasts.
pub const SOURCE: &str = "/dev/zero";
const SOURCE_BYTES: u64 = 1 << 60;

/// Streams beyond these bring less than this part more, and are not worth their processors.
const WORTH: f64 = 1.05;

/// What is to be probed, checked.
pub struct Probe {
    /// As for a copy, with the host as its destination.
    pub request: Request,
    /// `--sample`
    pub sample: Option<PathBuf>,
}

/// What was found so far; each is heard as soon as it is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// Codecs are tried on so many bytes, of a file or generated.
    Sample {
        bytes: u64,
        of_file: bool,
    },
    Codec(Coded),
    Read(Read),
    Tried(Tried),
    RoundTrip(std::time::Duration),
    Carried(Carried),
}

/// What hears of it; does not wait.
pub type Hear = Arc<dyn Fn(&Finding) + Send + Sync>;

/// One codec, with all workers of this host at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coded {
    pub method: Method,
    pub ratio: f64,
    /// Of content, digest and seal included.
    pub bytes_per_s: f64,
    facts: Facts,
}

/// All that was found, and what follows from it.
pub struct Probed {
    pub outcome: Outcome,
    pub codecs: Vec<Coded>,
    pub read: Option<Read>,
    pub link: LinkFacts,
    /// None where the link could not be measured.
    pub forecast: Option<Expected>,
}

/// What a copy should make, and by what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    pub method: Method,
    pub streams: u16,
    pub link: f64,
    pub workers_here: u16,
    pub workers_there: u16,
    /// Of the machine, where both ends are on one.
    pub processors: Option<u16>,
    /// Bytes a second; None where it was not measured.
    pub read: Option<f64>,
    pub write: Option<f64>,
    pub forecast: Forecast,
}

impl Probe {
    /// The request of a copy that shows what the link to this host carries; `dest` names it, and
    /// the place there that is to be written if it is not empty. `--compress` stays as it is.
    pub fn of(mut request: Request, dest: Operand, sample: Option<PathBuf>) -> Probe {
        let (typed, path) = (SOURCE.into(), SOURCE.into());
        request.sources = vec![Operand {
            typed,
            host: None,
            what: What::Path,
            path,
        }];
        request.dest = Operand {
            what: What::Nothing,
            ..dest
        };
        request.options.size = Some(SOURCE_BYTES);
        // There is nothing to go on with, nothing to list and nothing that grows.
        request.retry = Retry::never();
        request.digest_lists.clear();
        (request.options.digests, request.options.follow_ms) = (false, None);
        Probe { request, sample }
    }

    /// Measures; returns in about 15 s, login not counted. Blocks.
    pub fn run(self, reporter: Arc<dyn Reporter>, hear: Hear) -> Probed {
        let began = Instant::now();
        let Probe {
            mut request,
            sample,
        } = self;
        let compress = std::mem::replace(&mut request.options.compress, Compress::None);
        let test = Arc::new(LinkTest::new(compress, hear.clone()));
        let mut seat = Seat::new(Arc::new(Progress::default()), reporter);
        seat.probe = Some(test.clone());
        let mut codecs = Codecs::default();
        let tried = try_codecs(&request, compress, sample, &hear);
        let ran = tried.and_then(|tried| {
            codecs = tried;
            super::copy(request, &mut seat)
        });
        let outcome = super::outcome(&seat, ran, began);
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

/// The one session of a probe.
pub(super) async fn once(request: &Request, seat: &Seat) -> Result<String> {
    let session = Session {
        id: Secret::session(),
        before: &[],
        attempt: Attempt::First,
    };
    let ran = client::copy(request, seat, session).await;
    ran.map_err(|lost| lost.error)
}

#[derive(Default)]
struct Codecs {
    coded: Vec<Coded>,
    plain_ns: f64,
    read: Option<Read>,
}

/// With the processors to itself, so before there is a link to be kept busy.
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
        Some(path) => Sample::of_file(&path)?,
        None => Sample::of_pages(),
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
        let coded = Coded {
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

/// Those between which the tuner would choose, and the user's if it is none of them.
fn methods(budget: &Budget, compress: Compress) -> Vec<Method> {
    let is_open = |method: &Method| match (method, budget.strongest) {
        (Method::Zstd(level), Method::Zstd(most)) => *level <= most,
        (Method::Lzma(_), _) => budget.lzma_workers >= budget.workers,
        _ => true,
    };
    let forced = steering::method(compress);
    let own = forced.filter(|method| rung(*method).is_none());
    LADDER.into_iter().filter(is_open).chain(own).collect()
}

/// By the tuner's own model. None where nothing was carried.
fn expect(codecs: &Codecs, link: &LinkFacts, compress: Compress) -> Option<Expected> {
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
    let forced = steering::method(compress);
    let tried: Vec<(Method, Facts)> = codecs
        .coded
        .iter()
        .filter(|coded| forced.is_none_or(|forced| coded.method == forced))
        .map(|coded| (coded.method, coded.facts))
        .collect();
    let (method, forecast) = tuner::best(&measured, &tried)?;
    Some(Expected {
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

/// Bytes a second until they were on the disk, which is what a long copy comes to.
pub fn synced_rate(tried: &Tried) -> Option<f64> {
    (tried.bytes > 0).then(|| tried.bytes as f64 * 1e6 / tried.synced_us.max(1) as f64)
}

/// Bytes a second until the system had taken them.
pub fn written_rate(tried: &Tried) -> Option<f64> {
    (tried.bytes > 0).then(|| tried.bytes as f64 * 1e6 / tried.written_us.max(1) as f64)
}

//! Compression methods: the few that are worth choosing between, and what each costs.

use crate::algorithms::Method;

/// How many methods the tuner chooses between.
pub const RUNGS: usize = 9;

/// The methods from the cheapest to the strongest. Zstandard's negative levels lie beside lz4 and
/// below level 1 on all data tried. Above level 9, zstd takes longer for a chunk of 1 MiB than
/// LZMA, which makes it smaller. Measured on 60 MB of PostgreSQL pages (two tables of mixed rows):
/// zstd 9 made 19.7 MB in 0.5 s, zstd 16 19.1 MB in 3.1 s, zstd 19 19.0 MB in 12.2 s; LZMA 1 made
/// 18.5 MB in 3.2 s, LZMA 4 16.1 MB in 5.5 s, LZMA 6 15.8 MB in 10.2 s.
pub const LADDER: [Method; RUNGS] = [
    Method::None,
    Method::Lz4,
    Method::Zstd(1),
    Method::Zstd(3),
    Method::Zstd(6),
    Method::Zstd(9),
    Method::Lzma(1),
    Method::Lzma(4),
    Method::Lzma(6),
];

/// The rung of zstd 1.
pub(super) const MIDDLE: usize = 2;

/// The lowest rung of LZMA.
pub(super) const LZMA: usize = 6;

/// A method's cost and ratio. Where part of the data is stored, the mean over all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// A worker's time for a byte of content.
    pub ns_per_byte: f64,
    /// Bytes of content for each byte sent, 1 or more.
    pub ratio: f64,
}

/// Database pages on one core of a Cascade Lake at 2.5 GHz. These figures relate the methods to
/// each other until they are measured on the data at hand.
pub(super) const TYPICAL: [Facts; RUNGS] = [
    facts(0.0, 1.0),
    facts(2.6, 1.735),
    facts(3.8, 2.49),
    facts(6.7, 2.68),
    facts(19.6, 2.77),
    facts(35.7, 2.81),
    facts(200.0, 2.97),
    facts(350.0, 3.42),
    facts(640.0, 3.48),
];

/// The receiving worker's nanoseconds for a byte of content, measured there too.
pub(super) const DECODE_NS: [f64; RUNGS] = [0.0, 0.6, 1.33, 1.28, 1.45, 1.34, 13.0, 11.0, 11.0];

const fn facts(ns_per_byte: f64, ratio: f64) -> Facts {
    Facts { ns_per_byte, ratio }
}

/// The rung of `method`, None if it has none.
pub fn rung(method: Method) -> Option<usize> {
    LADDER.iter().position(|other| *other == method)
}

/// Predicts the facts of `rung` on data for which `known` was measured as `measured`.
pub(super) fn extrapolate(rung: usize, known: usize, measured: Facts) -> Facts {
    if known == 0 {
        return TYPICAL[rung];
    }
    let shrinks = (measured.ratio - 1.0).max(0.0) / (TYPICAL[known].ratio - 1.0);
    let slower = measured.ns_per_byte / TYPICAL[known].ns_per_byte;
    Facts {
        ns_per_byte: TYPICAL[rung].ns_per_byte * slower,
        ratio: 1.0 + shrinks * (TYPICAL[rung].ratio - 1.0),
    }
}

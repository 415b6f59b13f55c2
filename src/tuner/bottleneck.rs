//! The busiest stage of a copy.

use serde::{Deserialize, Serialize};

use super::window::Rates;

/// If no stage was busy for this share of the time, there is no single bottleneck: small files
/// whose names cost more than their bytes, or a copy too short to tell.
pub(super) const LIMIT_MIN: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    Network,
    /// `--bwlimit`.
    RateLimit,
    SourceDisk,
    Compression,
    /// The sender's processors, but not compression.
    Sender,
    Decompression,
    /// The receiver's processors, but not decompression.
    Receiver,
    DestinationDisk,
}

/// Shares of the copy's time, 0 to 1. Network: every connection had unsent bytes and the receiver
/// took them. Processors: the mean over all workers. Disks: a read or write was in progress and
/// the workers had nothing else to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    pub network: f64,
    pub source_disk: f64,
    /// Of the sending workers' time; part of `sender`.
    pub compression: f64,
    pub sender: f64,
    /// Of the receiving workers' time; part of `receiver`.
    pub decompression: f64,
    pub receiver: f64,
    pub destination_disk: f64,
}

impl Shares {
    pub(super) fn of(rates: &Rates) -> Shares {
        Shares {
            network: rates.link,
            source_disk: rates.read,
            compression: rates.encode,
            sender: rates.workers.max(rates.encode),
            decompression: rates.decode,
            receiver: rates.far_workers.max(rates.decode),
            destination_disk: rates.write,
        }
    }
}

pub(super) fn busiest(shares: &Shares) -> Option<Bottleneck> {
    let part = |part: f64, of: f64, most: Bottleneck, rest: Bottleneck| {
        (of, if part > of / 2.0 { most } else { rest })
    };
    // Of two stages that are equally busy, the later one holds the earlier one up.
    let stages = [
        (shares.source_disk, Bottleneck::SourceDisk),
        part(
            shares.compression,
            shares.sender,
            Bottleneck::Compression,
            Bottleneck::Sender,
        ),
        (shares.network, Bottleneck::Network),
        part(
            shares.decompression,
            shares.receiver,
            Bottleneck::Decompression,
            Bottleneck::Receiver,
        ),
        (shares.destination_disk, Bottleneck::DestinationDisk),
    ];
    let most = stages.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b));
    most.filter(|(busy, _)| *busy >= LIMIT_MIN)
        .map(|(_, limit)| limit)
}

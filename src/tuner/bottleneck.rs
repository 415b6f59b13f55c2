//! The busiest stage of a copy.

use super::window::Rates;
use crate::outcome::{Bottleneck, Shares};

/// If no stage was busy for this share of the time, there is no single bottleneck: small files
/// whose names cost more than their bytes, or a copy too short to tell.
pub(super) const LIMIT_MIN: f64 = 0.5;

pub(super) fn shares(rates: &Rates) -> Shares {
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

//! The verdict on a copy: its bottleneck, and hints that could help.

#[cfg(test)]
mod tests;

use super::bottleneck::{LIMIT_MIN, busiest, shares};
use super::bounds::FAR_AWAY;
use super::model::LOSSY;
use super::rate_limit::HeldBack;
use super::sample::Sample;
use super::terms::{Congestion, Decision, Start};
use super::window::Rates;
use crate::algorithms::Method;
use crate::outcome::{Bottleneck, Shares, Verdict};
use crate::units;

/// The share of the windows' rate from which on connections count as limited by their windows.
const CAPPED: f64 = 0.75;

/// `rates` and `held` are those of the whole copy.
pub(super) fn verdict(
    rates: &Rates,
    newest: &Sample,
    start: &Start,
    decision: Decision,
    held: Option<HeldBack>,
) -> Verdict {
    let shares = shares(rates);
    let most = |held: &HeldBack| held.time.as_secs_f64() >= LIMIT_MIN * rates.seconds;
    let rate_limit = held.filter(most);
    let limit = match rate_limit {
        Some(_) => Some(Bottleneck::RateLimit),
        None => busiest(&shares),
    };
    let hints = match limit {
        Some(Bottleneck::Network) => network_hints(rates, newest, start, decision),
        Some(Bottleneck::Compression | Bottleneck::Sender) => processor_hints(start),
        _ => Vec::new(),
    };
    Verdict {
        limit,
        shares,
        sentence: sentence(limit, &shares, rate_limit),
        hints,
    }
}

/// Pure: the same figures give the same words.
fn sentence(limit: Option<Bottleneck>, shares: &Shares, rate_limit: Option<HeldBack>) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let busy = |name: &str, share: f64| format!("{name}, {} busy", percent(share));
    let rest: Vec<String> = [
        ("network", shares.network, Bottleneck::Network),
        ("source", shares.source_disk, Bottleneck::SourceDisk),
        ("compression", shares.compression, Bottleneck::Compression),
        (
            "decompression",
            shares.decompression,
            Bottleneck::Decompression,
        ),
        (
            "destination",
            shares.destination_disk,
            Bottleneck::DestinationDisk,
        ),
    ]
    .into_iter()
    .filter(|(_, _, stage)| limit != Some(*stage))
    .map(|(name, share, _)| format!("{name} {}", percent(share)))
    .collect();
    let rest = rest.join(", ");
    let first = match limit {
        None => return format!("no single bottleneck ({rest})"),
        Some(Bottleneck::RateLimit) => {
            let rate = rate_limit.map_or_else(String::new, |held| held.to_string());
            return format!("limited by: --bwlimit ({rate}; {rest})");
        }
        Some(Bottleneck::Network) => busy("the network", shares.network),
        Some(Bottleneck::SourceDisk) => busy("the source", shares.source_disk),
        Some(Bottleneck::Compression) => busy("compression", shares.compression),
        Some(Bottleneck::Sender) => busy("the sending processors", shares.sender),
        Some(Bottleneck::Decompression) => busy("decompression", shares.decompression),
        Some(Bottleneck::Receiver) => busy("the receiving processors", shares.receiver),
        Some(Bottleneck::DestinationDisk) => busy("the destination", shares.destination_disk),
    };
    format!("limited by: {first} ({rest})")
}

fn network_hints(rates: &Rates, newest: &Sample, start: &Start, decision: Decision) -> Vec<String> {
    let mut hints = Vec::new();
    let streams = newest.streams.max(1);
    let (receive, send) = (newest.receive_window, newest.send_window);
    let capped = newest
        .window_rate()
        .filter(|most| rates.wire >= CAPPED * most);
    if let Some(most) = capped {
        let sends = send > 0 && (receive == 0 || send < receive);
        let (name, host) = match sends {
            true => ("tcp_wmem", "sending"),
            false => ("tcp_rmem", "receiving"),
        };
        let each = units::rate(most / f64::from(streams));
        hints.push(format!(
            "net.ipv4.{name} of the {host} host limits {} to {each} each; raise its maximum",
            super::terms::streams(streams)
        ));
    }
    let bbr = decision.congestion == Congestion::Bbr;
    let asked = start.forced.congestion || start.nice;
    // On a local link, busy processors cause retransmissions.
    let is_far = start.round_trip >= FAR_AWAY;
    if rates.loss >= LOSSY && is_far && !start.may_bbr && !bbr && !asked {
        hints.push(format!(
            "{:.2} % packet loss: adding bbr to net.ipv4.tcp_allowed_congestion_control of the \
             sending host may help",
            rates.loss * 100.0
        ));
    }
    if start.forced.compress == Some(Method::None) && rates.workers < LIMIT_MIN {
        hints.push("the processors had time to compress: leave out --compress none".to_owned());
    }
    hints
}

fn processor_hints(start: &Start) -> Vec<String> {
    let mut hints = Vec::new();
    if let Some(threads) = start
        .forced
        .threads
        .filter(|it| *it < start.processors_here)
    {
        hints.push(format!(
            "the sending host has {} processors: leave out --threads {threads}",
            start.processors_here
        ));
    }
    if let Some(method) = start
        .forced
        .compress
        .filter(|method| *method != Method::None)
    {
        hints.push(format!(
            "{method} was set: leave out --compress to let fastcp choose"
        ));
    }
    hints
}

//! What limited the copy, as figures and in plain words.

use serde::{Deserialize, Serialize};

use super::model::LOSSY;
use super::steps::window_rate;
use super::window::Rates;
use super::{Congestion, Decision, Method, Sample, Start};
use crate::units;

/// Where no stage was busy for this share of the time none is called the limit: small files whose
/// names cost more than their bytes, or a copy too short to say.
const LIMIT_MIN: f64 = 0.5;

/// Streams that carry this much of what a window allows are held back by it.
const CAPPED: f64 = 0.75;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Network,
    /// `--bwlimit`.
    RateLimit,
    SourceDisk,
    Compression,
    /// The sending end's processors, but not by compression.
    Sender,
    Decompression,
    /// The receiving end's processors, but not by decompression.
    Receiver,
    DestinationDisk,
}

/// Shares of the copy's time, 0 to 1. Network: every stream had unsent bytes and the other end
/// took them. Processors: of all workers. Disks: a read or write was under way and the workers
/// had nothing else to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    pub network: f64,
    pub source_disk: f64,
    /// Of the sending workers' time, part of `sender`.
    pub compression: f64,
    pub sender: f64,
    /// Of the receiving workers' time, part of `receiver`.
    pub decompression: f64,
    pub receiver: f64,
    pub destination_disk: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// None where nothing was busy most of the time.
    pub limit: Option<Limit>,
    pub shares: Shares,
    /// `limited by: the network, 97 % busy (source disk 12 %, …)`
    pub sentence: String,
    /// What would help, one sentence each, at most three.
    pub hints: Vec<String>,
}

/// More hints, and longer texts, than any verdict has.
const HINTS_MAX: usize = 3;
const TEXT_MAX: usize = 300;

impl Verdict {
    /// As it may be shown where a peer says it: shares are shares, texts printable and short.
    pub fn harmless(self) -> Verdict {
        let share = |share: f64| if share > 0.0 { share.min(1.0) } else { 0.0 };
        let text = |text: String| -> String {
            let short: String = text.chars().take(TEXT_MAX).collect();
            units::harmless(&short)
        };
        let Shares {
            network,
            source_disk,
            compression,
            sender,
            decompression,
            receiver,
            destination_disk,
        } = self.shares;
        Verdict {
            limit: self.limit,
            shares: Shares {
                network: share(network),
                source_disk: share(source_disk),
                compression: share(compression),
                sender: share(sender),
                decompression: share(decompression),
                receiver: share(receiver),
                destination_disk: share(destination_disk),
            },
            sentence: text(self.sentence),
            hints: self.hints.into_iter().take(HINTS_MAX).map(text).collect(),
        }
    }

    pub(super) fn new(
        rates: &Rates,
        newest: &Sample,
        start: &Start,
        decision: Decision,
    ) -> Verdict {
        let shares = Shares {
            network: rates.link,
            source_disk: rates.read,
            compression: rates.encode,
            sender: rates.workers.max(rates.encode),
            decompression: rates.decode,
            receiver: rates.far_workers.max(rates.decode),
            destination_disk: rates.write,
        };
        let rate_limit = start
            .forced
            .rate_limit
            .filter(|most| rates.wire >= 0.9 * *most as f64);
        let limit = match rate_limit {
            Some(_) => Some(Limit::RateLimit),
            None => limit(&shares),
        };
        let hints = match limit {
            Some(Limit::Network) => network_hints(rates, newest, start, decision),
            Some(Limit::Compression | Limit::Sender) => processor_hints(start),
            _ => Vec::new(),
        };
        Verdict {
            limit,
            shares,
            sentence: sentence(limit, &shares, rate_limit),
            hints,
        }
    }
}

fn limit(shares: &Shares) -> Option<Limit> {
    let part = |part: f64, of: f64, most: Limit, rest: Limit| {
        (of, if part > of / 2.0 { most } else { rest })
    };
    // Of two that are equally busy the later one holds the earlier one up.
    let stages = [
        (shares.source_disk, Limit::SourceDisk),
        part(
            shares.compression,
            shares.sender,
            Limit::Compression,
            Limit::Sender,
        ),
        (shares.network, Limit::Network),
        part(
            shares.decompression,
            shares.receiver,
            Limit::Decompression,
            Limit::Receiver,
        ),
        (shares.destination_disk, Limit::DestinationDisk),
    ];
    let busiest = stages.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b));
    busiest
        .filter(|(busy, _)| *busy >= LIMIT_MIN)
        .map(|(_, limit)| limit)
}

/// Pure: the same figures make the same words.
fn sentence(limit: Option<Limit>, shares: &Shares, rate_limit: Option<u64>) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let busy = |name: &str, share: f64| format!("{name}, {} busy", percent(share));
    let first = match limit {
        None => "no single thing".to_owned(),
        Some(Limit::Network) => busy("the network", shares.network),
        Some(Limit::RateLimit) => {
            let rate = units::rate(rate_limit.unwrap_or(0) as f64);
            format!("the limit of {rate} that was asked for")
        }
        Some(Limit::SourceDisk) => busy("the source disk", shares.source_disk),
        Some(Limit::Compression) => busy("compression", shares.compression),
        Some(Limit::Sender) => busy("the sending processors", shares.sender),
        Some(Limit::Decompression) => busy("decompression", shares.decompression),
        Some(Limit::Receiver) => busy("the receiving processors", shares.receiver),
        Some(Limit::DestinationDisk) => busy("the destination disk", shares.destination_disk),
    };
    let rest: Vec<String> = [
        ("network", shares.network, Limit::Network),
        ("source disk", shares.source_disk, Limit::SourceDisk),
        ("compression", shares.compression, Limit::Compression),
        ("decompression", shares.decompression, Limit::Decompression),
        (
            "destination disk",
            shares.destination_disk,
            Limit::DestinationDisk,
        ),
    ]
    .into_iter()
    .filter(|(_, _, stage)| limit != Some(*stage))
    .map(|(name, share, _)| format!("{name} {}", percent(share)))
    .collect();
    format!("limited by: {first} ({})", rest.join(", "))
}

fn network_hints(rates: &Rates, newest: &Sample, start: &Start, decision: Decision) -> Vec<String> {
    let mut hints = Vec::new();
    let streams = newest.streams.max(1);
    let (receive, send) = (newest.receive_window, newest.send_window);
    let capped = window_rate(newest).filter(|most| rates.wire >= CAPPED * most);
    if let Some(most) = capped {
        let sends = send > 0 && (receive == 0 || send < receive);
        hints.push(format!(
            "net.ipv4.{} caps each stream at {}; {} in use",
            if sends { "tcp_wmem" } else { "tcp_rmem" },
            units::rate(most / f64::from(streams)),
            if streams == 1 {
                "1 stream".to_owned()
            } else {
                format!("{streams} streams")
            },
        ));
    }
    let bbr = decision.congestion == Congestion::Bbr;
    let asked = start.forced.congestion || start.nice;
    if rates.loss >= LOSSY && !start.may_bbr && !bbr && !asked {
        hints.push(format!(
            "{:.2} % was lost on the way: bbr in net.ipv4.tcp_allowed_congestion_control of the \
             sending host may help",
            rates.loss * 100.0
        ));
    }
    if start.forced.compress == Some(Method::None) && rates.workers < LIMIT_MIN {
        hints.push("--compress none was asked for; processors had time to compress".to_owned());
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
            "--threads {threads} was asked for; the sending host has {} processors",
            start.processors_here
        ));
    }
    if let Some(method) = start
        .forced
        .compress
        .filter(|method| *method != Method::None)
    {
        hints.push(format!(
            "{method} was asked for; without --compress it is chosen as it pays"
        ));
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::tuner::{Forced, Tuner};

    fn start() -> Start {
        Start {
            round_trip: Duration::from_millis(100),
            processors_here: 8,
            processors_there: 8,
            slots: 256,
            strongest: Method::Zstd(9),
            may_bbr: false,
            nice: false,
            remembered: None,
            forced: Forced::default(),
        }
    }

    fn verdict(rates: Rates, newest: Sample, start: Start) -> Verdict {
        let (_, decision) = Tuner::new(start.clone());
        Verdict::new(&rates, &newest, &start, decision)
    }

    fn copy() -> Rates {
        Rates {
            link: 0.97,
            read: 0.12,
            workers: 0.70,
            encode: 0.61,
            decode: 0.20,
            far_workers: 0.3,
            write: 0.34,
            wire: 300e6,
            ..Rates::default()
        }
    }

    #[test]
    fn the_busiest_stage_is_named_and_the_others_behind_it() {
        let sentence = |rates| verdict(rates, Sample::default(), start()).sentence;
        assert_eq!(
            sentence(copy()),
            "limited by: the network, 97 % busy (source disk 12 %, compression 61 %, \
             decompression 20 %, destination disk 34 %)"
        );
        assert_eq!(
            sentence(Rates {
                write: 0.99,
                ..copy()
            }),
            "limited by: the destination disk, 99 % busy (network 97 %, source disk 12 %, \
             compression 61 %, decompression 20 %)"
        );
        assert_eq!(
            sentence(Rates {
                link: 0.2,
                workers: 0.95,
                encode: 0.1,
                ..copy()
            }),
            "limited by: the sending processors, 95 % busy (network 20 %, source disk 12 %, \
             compression 10 %, decompression 20 %, destination disk 34 %)"
        );
        assert!(sentence(Rates::default()).starts_with("limited by: no single thing (network 0 %"));
    }

    #[test]
    fn windows_that_hold_streams_back_are_named_with_what_sets_them() {
        let newest = Sample {
            streams: 16,
            round_trip: Duration::from_millis(100),
            receive_window: 32_000_000,
            send_window: 64_000_000,
            ..Sample::default()
        };
        let hints = |newest| verdict(copy(), newest, start()).hints;
        assert_eq!(
            hints(newest),
            ["net.ipv4.tcp_rmem caps each stream at 20.0 MB/s; 16 streams in use"]
        );
        let small = Sample {
            send_window: 31_000_000,
            ..newest
        };
        assert!(hints(small)[0].starts_with("net.ipv4.tcp_wmem caps each stream at 19.4 MB/s"));
        assert!(
            hints(Sample {
                receive_window: 90_000_000,
                ..newest
            })
            .is_empty()
        );
    }

    #[test]
    fn what_the_user_forced_is_told_where_it_is_the_limit() {
        let forced = Forced {
            threads: Some(2),
            compress: Some(Method::Zstd(9)),
            ..Forced::default()
        };
        let busy = Rates {
            link: 0.3,
            workers: 1.0,
            encode: 0.95,
            ..copy()
        };
        let verdict = verdict(busy, Sample::default(), Start { forced, ..start() });
        assert_eq!(verdict.limit, Some(Limit::Compression));
        assert_eq!(
            verdict.hints,
            [
                "--threads 2 was asked for; the sending host has 8 processors",
                "zstd 9 was asked for; without --compress it is chosen as it pays",
            ]
        );
    }

    #[test]
    fn a_rate_limit_is_nobodys_fault() {
        let forced = Forced {
            rate_limit: Some(310_000_000),
            ..Forced::default()
        };
        let verdict = verdict(copy(), Sample::default(), Start { forced, ..start() });
        assert_eq!(verdict.limit, Some(Limit::RateLimit));
        assert!(verdict.sentence.starts_with(
            "limited by: the limit of 310 MB/s that was asked for (network 97 %, source disk"
        ));
    }

    #[test]
    fn loss_without_bbr_is_worth_a_hint() {
        let lossy = Rates {
            loss: 0.001,
            ..copy()
        };
        let hints = |start| verdict(lossy, Sample::default(), start).hints;
        assert!(hints(start())[0].starts_with("0.10 % was lost on the way: bbr"));
        assert!(
            hints(Start {
                may_bbr: true,
                ..start()
            })
            .is_empty()
        );
    }
}

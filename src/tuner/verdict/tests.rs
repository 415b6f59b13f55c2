//! Verdicts for known figures.

use super::*;
use std::time::Duration;

use crate::tuner::{Forced, Tuner};

fn start() -> Start {
    Start {
        round_trip: Duration::from_millis(100),
        is_guess: false,
        processors_here: 8,
        processors_there: 8,
        slots: 256,
        strongest: Method::Zstd(9),
        may_lzma: true,
        congestion: Congestion::System,
        may_bbr: false,
        nice: false,
        polite: false,
        remembered: None,
        forced: Forced::default(),
    }
}

fn verdict(rates: Rates, newest: Sample, start: Start) -> Verdict {
    let (_, decision) = Tuner::new(start.clone());
    super::verdict(&rates, &newest, &start, decision, None)
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
        "limited by: the network, 97 % busy (source 12 %, compression 61 %, \
         decompression 20 %, destination 34 %)"
    );
    assert_eq!(
        sentence(Rates {
            write: 0.99,
            ..copy()
        }),
        "limited by: the destination, 99 % busy (network 97 %, source 12 %, \
         compression 61 %, decompression 20 %)"
    );
    assert_eq!(
        sentence(Rates {
            link: 0.2,
            workers: 0.95,
            encode: 0.1,
            ..copy()
        }),
        "limited by: the sending processors, 95 % busy (network 20 %, source 12 %, \
         compression 10 %, decompression 20 %, destination 34 %)"
    );
    assert!(sentence(Rates::default()).starts_with("no single bottleneck (network 0 %"));
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
        [
            "net.ipv4.tcp_rmem of the receiving host limits 16 streams to 20.0 MB/s each; raise its \
             maximum"
        ]
    );
    let small = Sample {
        send_window: 31_000_000,
        ..newest
    };
    let hint = hints(small).remove(0);
    assert!(
        hint.starts_with("net.ipv4.tcp_wmem of the sending host limits "),
        "{hint}"
    );
    assert!(hint.contains("to 19.4 MB/s"), "{hint}");
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
    assert_eq!(verdict.limit, Some(Bottleneck::Compression));
    assert_eq!(
        verdict.hints,
        [
            "the sending host has 8 processors: leave out --threads 2",
            "zstd 9 was set: leave out --compress to let fastcp choose",
        ]
    );
}

#[test]
fn a_rate_limit_is_named_where_it_held_back_half_of_the_copy() {
    let (_, decision) = Tuner::new(start());
    let rates = Rates {
        seconds: 10.0,
        ..copy()
    };
    let held_for = |time, highest| {
        let held = Some(HeldBack {
            time: Duration::from_secs(time),
            lowest: 3_070_000,
            highest,
        });
        super::verdict(&rates, &Sample::default(), &start(), decision, held)
    };
    let verdict = held_for(5, 3_070_000);
    assert_eq!(verdict.limit, Some(Bottleneck::RateLimit));
    let told = "limited by: --bwlimit (3.07 MB/s; network 97 %, source 12 %, ";
    assert!(verdict.sentence.starts_with(told), "{}", verdict.sentence);
    let changed = held_for(9, 20_000_000).sentence;
    assert!(
        changed.contains("(3.07 MB/s to 20.0 MB/s; network"),
        "{changed}"
    );
    assert_eq!(held_for(4, 3_070_000).limit, Some(Bottleneck::Network));
}

#[test]
fn loss_without_bbr_is_worth_a_hint() {
    let lossy = Rates {
        loss: 0.001,
        ..copy()
    };
    let hints = |start| verdict(lossy, Sample::default(), start).hints;
    assert!(hints(start())[0].starts_with("0.10 % packet loss: adding bbr"));
    assert!(
        hints(Start {
            may_bbr: true,
            ..start()
        })
        .is_empty()
    );
    assert!(
        hints(Start {
            congestion: Congestion::Bbr,
            ..start()
        })
        .is_empty()
    );
}

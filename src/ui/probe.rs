//! Output of a probe on stdout: a table, row by row, then the expected throughput of a copy; or
//! all results as one line of JSON.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::errors::{EndHosts, cause};
use super::{Screen, stdout};
use crate::algorithms::Method;
use crate::app::probe::findings::{Finding, Hear, MeasuredCodec};
use crate::app::probe::{Carried, ExpectedCopy, Probe, Probed, Read, synced_rate, written_rate};
use crate::error::Result;
use crate::session::Outcome;
use crate::tuner::{Decision, Forecast};
use crate::units::{count, rate, size};
use crate::wire::message::Tried;

/// Runs the probe and shows its findings. Other messages go to the screen. Returns the outcome of
/// the probe, and that of the output.
pub fn show(probe: Probe, screen: &Screen, is_json: bool) -> (Outcome, Result<()>) {
    let shown = Arc::new(Mutex::new(Ok(())));
    let hear: Hear = match is_json {
        true => Arc::new(|_: &Finding| {}),
        false => {
            let shown = shown.clone();
            Arc::new(move |finding: &Finding| {
                let mut shown = shown.lock();
                if shown.is_ok() {
                    *shown = say(&rows(finding));
                }
            })
        }
    };
    let probed = probe.run(screen.reporter(), hear);
    let shown = std::mem::replace(&mut *shown.lock(), Ok(()));
    let shown = shown.and_then(|()| match is_json {
        true => stdout::record(&format!("{}\n", json_of(&probed))),
        false => say(&ending(&probed)),
    });
    (probed.outcome, shown)
}

fn say(lines: &[String]) -> Result<()> {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    stdout::show(&lines)
}

/// Rows of at most 80 columns.
fn rows(finding: &Finding) -> Vec<String> {
    match finding {
        Finding::Read(read) => vec![row("source", &source(read))],
        Finding::Sample { bytes, of_file } => {
            let what = match of_file {
                true => "of the sample",
                false => "of generated database pages",
            };
            let on = format!("{:<8}speed, on {} {what}", "ratio", size(*bytes));
            vec![row("codec", &on)]
        }
        Finding::Codec(coded) => {
            let made = format!("{:<8.2}{}", coded.ratio, rate(coded.bytes_per_s));
            vec![row(&format!("  {}", word(coded.method)), &made)]
        }
        Finding::Tried(tried) => vec![row("destination", &destination(tried))],
        Finding::RoundTrip(round_trip) => {
            let shown = match round_trip.is_zero() {
                true => "unknown".to_owned(),
                false => milliseconds(*round_trip),
            };
            vec![row("round trip", &shown), row("streams", "goodput")]
        }
        Finding::Carried(carried) => vec![row(&format!("  {}", carried.streams), &link(carried))],
    }
}

/// The last lines; none if the probe has no result.
fn ending(probed: &Probed) -> Vec<String> {
    let Some(expected) = &probed.forecast else {
        return Vec::new();
    };
    let by = flags(expected.method, expected.streams);
    let makes = rate(expected.forecast.bytes_per_s);
    let (names, numbers) = formula(expected);
    let mut lines = vec![
        String::new(),
        row("expected", &format!("{makes} with {by}")),
        format!("  = min({names})"),
        format!("  = min({numbers})"),
    ];
    if let Some(first) = &probed.link.first {
        let from = flags(first.method, first.streams);
        lines.push(row("at first", &format!("{from}, unless set by options")));
    }
    if !probed.outcome.route.is_empty() {
        lines.push(row("route", &probed.outcome.route));
    }
    lines
}

fn row(name: &str, what: &str) -> String {
    format!("{name:<13} {what}")
}

fn source(read: &Read) -> String {
    let from = match read.cached {
        cached if cached >= 1.0 => "all of it from the page cache".to_owned(),
        cached if cached <= 0.0 => "none of it from the page cache".to_owned(),
        cached => format!("{:.0} % of it from the page cache", cached * 100.0),
    };
    format!("{} read, {from}", rate(read.bytes_per_s))
}

fn destination(tried: &Tried) -> String {
    match (written_rate(tried), synced_rate(tried)) {
        (Some(written), Some(synced)) => {
            let (written, synced) = (rate(written), rate(synced));
            format!("{synced} written to the disk, {written} to the page cache")
        }
        _ => "not tried".to_owned(),
    }
}

fn link(carried: &Carried) -> String {
    let note = match carried.up {
        0 => "  inside the ssh login".to_owned(),
        up if up < carried.streams => format!("  only {up} connected"),
        _ => String::new(),
    };
    format!("{}{note}", rate(carried.bytes_per_s))
}

fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    let decimals = match ms {
        ..0.1 => 3,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{ms:.decimals$} ms")
}

/// The flags that force this choice.
fn flags(method: Method, streams: u16) -> String {
    format!("--compress {} --streams {streams}", word(method))
}

/// The value for `--compress`.
fn word(method: Method) -> String {
    match method {
        Method::None => "none".to_owned(),
        Method::Lz4 => "lz4".to_owned(),
        Method::Zstd(level) => format!("zstd:{level}"),
        Method::Gzip(level) => format!("gzip:{level}"),
        Method::Lzma(level) => format!("lzma:{level}"),
    }
}

/// The formula for the throughput: its terms by name, and their measured values.
fn formula(expected: &ExpectedCopy) -> (String, String) {
    let ExpectedCopy {
        link,
        workers_here,
        workers_there,
        processors,
        read,
        write,
        forecast,
        ..
    } = expected;
    let Forecast {
        ratio,
        here_ns,
        there_ns,
        ..
    } = forecast;
    let per_ns = |workers: u16, ns: f64| format!("{} / {ns:.2} ns/B", count(u64::from(workers)));
    let mut terms = vec![
        ("link x ratio", format!("{} x {ratio:.2}", rate(*link))),
        ("threads / cost here", per_ns(*workers_here, *here_ns)),
        match *processors {
            Some(processors) => (
                "processors / both costs",
                per_ns(processors, here_ns + there_ns),
            ),
            None => ("threads / cost there", per_ns(*workers_there, *there_ns)),
        },
    ];
    terms.extend(read.map(|read| ("read", rate(read))));
    terms.extend(write.map(|write| ("write", rate(write))));
    let (names, numbers): (Vec<_>, Vec<_>) = terms.into_iter().unzip();
    (names.join(", "), numbers.join(", "))
}

/// Rates are in bytes a second, times in seconds, shares from 0 to 1. Null means not measured.
fn json_of(probed: &Probed) -> Value {
    let Probed {
        outcome,
        codecs,
        read,
        link,
        forecast,
    } = probed;
    let codec = |coded: &MeasuredCodec| {
        json!({
            "codec": word(coded.method),
            "ratio": coded.ratio,
            "bytes_per_s": coded.bytes_per_s,
        })
    };
    let carried = |carried: &Carried| {
        json!({
            "streams": carried.streams,
            "up": carried.up,
            "bytes_per_s": carried.bytes_per_s,
        })
    };
    let first = |first: &Decision| json!({ "codec": word(first.method), "streams": first.streams });
    let expected = |expected: &ExpectedCopy| {
        json!({
            "bytes_per_s": expected.forecast.bytes_per_s,
            "codec": word(expected.method),
            "streams": expected.streams,
            "link_bytes_per_s": expected.link,
            "ratio": expected.forecast.ratio,
            "workers_here": expected.workers_here,
            "ns_per_byte_here": expected.forecast.here_ns,
            "workers_there": expected.workers_there,
            "processors_of_both": expected.processors,
            "ns_per_byte_there": expected.forecast.there_ns,
        })
    };
    let round_trip = (!link.round_trip.is_zero()).then_some(link.round_trip.as_secs_f64());
    json!({
        "exit_code": outcome.exit_code(),
        "error": outcome.fatal.as_ref().map(|error| cause(error, &EndHosts::default())),
        "seconds": outcome.elapsed.as_secs_f64(),
        "route": outcome.route,
        "round_trip_s": round_trip,
        "streams": link.carried.iter().map(carried).collect::<Vec<_>>(),
        "codecs": codecs.iter().map(codec).collect::<Vec<_>>(),
        "read_bytes_per_s": read.map(|read| read.bytes_per_s),
        "read_cached": read.map(|read| read.cached),
        "write_bytes_per_s": synced_rate(&link.tried),
        "write_cache_bytes_per_s": written_rate(&link.tried),
        "expected": forecast.as_ref().map(expected),
        "begins_with": link.first.as_ref().map(first),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_has_a_number_for_each_name_and_fits() {
        let mut expected = ExpectedCopy {
            method: Method::Zstd(1),
            streams: 8,
            link: 118e6,
            workers_here: 128,
            workers_there: 2,
            processors: None,
            read: Some(1.9e9),
            write: Some(410e6),
            forecast: Forecast {
                bytes_per_s: 294e6,
                ratio: 2.49,
                here_ns: 14.1,
                there_ns: 1.63,
            },
        };
        let (names, numbers) = formula(&expected);
        assert_eq!(
            names,
            "link x ratio, threads / cost here, threads / cost there, read, write"
        );
        assert_eq!(
            numbers,
            "118 MB/s x 2.49, 128 / 14.10 ns/B, 2 / 1.63 ns/B, 1.90 GB/s, 410 MB/s"
        );
        assert!(numbers.len() + "  = min()".len() <= 80);
        expected.read = None;
        assert_eq!(formula(&expected).0.matches(',').count(), 3);
        expected.processors = Some(128);
        let (names, numbers) = formula(&expected);
        let both = "link x ratio, threads / cost here, processors / both costs, write";
        assert_eq!(names, both);
        let both = "118 MB/s x 2.49, 128 / 14.10 ns/B, 128 / 15.73 ns/B, 410 MB/s";
        assert_eq!(numbers, both);
    }

    #[test]
    fn rows_have_two_columns_and_say_what_is_unusual() {
        let carried = |streams, up| {
            let bytes_per_s = 81.4e6;
            rows(&Finding::Carried(Carried {
                streams,
                up,
                bytes_per_s,
            }))
        };
        assert_eq!(carried(8, 8), ["  8           81.4 MB/s"]);
        assert_eq!(
            carried(16, 8),
            ["  16          81.4 MB/s  only 8 connected"]
        );
        assert_eq!(
            carried(1, 0),
            ["  1           81.4 MB/s  inside the ssh login"]
        );
        let round_trip = rows(&Finding::RoundTrip(Duration::from_micros(50_430)));
        assert_eq!(
            round_trip,
            ["round trip    50.4 ms", "streams       goodput"]
        );
        let tried = Tried {
            bytes: 128_000_000,
            written_us: 100_000,
            synced_us: 400_000,
        };
        assert_eq!(
            rows(&Finding::Tried(tried)),
            ["destination   320 MB/s written to the disk, 1.28 GB/s to the page cache"]
        );
    }
}

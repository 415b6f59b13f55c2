//! Parsing of flag values, each by itself. An error says briefly which values are valid.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::session::{Compress, Ports, Route, Rsh};
use crate::units;

/// scp's own limit for `-l`.
const KBIT_MAX: u64 = 100 << 20;

pub(super) fn kbit(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(kbit @ 1..=KBIT_MAX) => Ok(kbit),
        _ => Err(format!(
            "expected Kbit/s, a plain number from 1 to {KBIT_MAX} (8192 is 1.05 MB/s)"
        )),
    }
}

pub(super) fn rsh() -> impl TypedValueParser<Value = Rsh> {
    PossibleValuesParser::new(["ssh", "local"]).map(|how| match how.as_str() {
        "local" => Rsh::Local,
        _ => Rsh::Ssh,
    })
}

/// `--bwlimit`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RateArgument {
    /// Bytes a second.
    Fixed(u64),
    /// Read at the start and again during the copy.
    File(PathBuf),
}

pub(super) fn rate(text: &str) -> Result<RateArgument, String> {
    if let Some(file) = text.strip_prefix('@') {
        return Ok(RateArgument::File(file.into()));
    }
    match units::parse_rate(text)? {
        0 => Err(
            "expected more than 0 bytes a second; without this option there is no limit".to_owned(),
        ),
        rate => Ok(RateArgument::Fixed(rate)),
    }
}

pub(super) fn route() -> impl TypedValueParser<Value = Route> {
    PossibleValuesParser::new(["direct", "reverse", "ssh"]).map(|how| match how.as_str() {
        "direct" => Route::Direct,
        "reverse" => Route::Reverse,
        _ => Route::Ssh,
    })
}

pub(super) fn ports(text: &str) -> Result<Ports, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first @ 1..), Ok(last)) if first <= last => Ok(Ports { first, last }),
        _ => Err("expected a port or a range of ports, such as 9001-9016".to_owned()),
    }
}

/// Accepts the characters of names and addresses, including a zone.
pub(super) fn address(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_alphanumeric() || "-_.:%".contains(c);
    match !text.is_empty() && text.chars().all(is_name) {
        true => Ok(text.to_owned()),
        false => Err("expected a host name or an IP address, without brackets or port".to_owned()),
    }
}

/// Accepts only names without characters that a shell interprets.
pub(super) fn user(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match text.chars().all(is_name) && !text.is_empty() && !text.starts_with('-') {
        true => Ok(text.to_owned()),
        false => Err("expected a user name of letters, digits and the characters . _ -".to_owned()),
    }
}

/// Levels of `--compress zstd`, `gzip` and `lzma` without a level, as in the tools of these
/// names.
const ZSTD_LEVEL: i32 = 3;
const GZIP_LEVEL: u32 = 6;
const LZMA_LEVEL: u32 = 6;

pub(super) fn compress(text: &str) -> Result<Compress, String> {
    let (codec, level) = match text.split_once(':') {
        Some((codec, level)) => (codec, Some(level)),
        None => (text, None),
    };
    match (codec, level) {
        ("auto", None) => Ok(Compress::Auto),
        ("none", None) => Ok(Compress::None),
        ("lz4", None) => Ok(Compress::Lz4),
        ("zstd", None) => Ok(Compress::Zstd(ZSTD_LEVEL)),
        ("gzip", None) => Ok(Compress::Gzip(GZIP_LEVEL)),
        ("lzma", None) => Ok(Compress::Lzma(LZMA_LEVEL)),
        ("zstd", Some(level)) => match level.parse() {
            Ok(level @ -7..=19) => Ok(Compress::Zstd(level)),
            _ => Err("expected a zstd level from -7 to 19".to_owned()),
        },
        ("gzip", Some(level)) => match level.parse() {
            Ok(level @ 1..=9) => Ok(Compress::Gzip(level)),
            _ => Err("expected a gzip level from 1 to 9".to_owned()),
        },
        ("lzma", Some(level)) => match level.parse() {
            Ok(level @ 1..=9) => Ok(Compress::Lzma(level)),
            _ => Err("expected an lzma level from 1 to 9".to_owned()),
        },
        ("auto" | "none" | "lz4", Some(_)) => Err(format!("{codec} has no levels")),
        _ => {
            let known = "auto, none, lz4, zstd[:LEVEL], gzip[:LEVEL] or lzma[:LEVEL]";
            Err(format!("expected {known}"))
        }
    }
}

/// The kernel's limit (`TCP_CA_NAME_MAX`) without the terminating zero.
const CONGESTION_MAX: usize = 15;

pub(super) fn congestion(text: &str) -> Result<String, String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if text.is_empty() || text.len() > CONGESTION_MAX || !text.bytes().all(is_word) {
        return Err("expected a name from net.ipv4.tcp_available_congestion_control".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn time(text: &str, examples: &str) -> Result<Duration, String> {
    let expected = |_| format!("expected a time with a unit, such as {examples}");
    humantime::parse_duration(text).map_err(expected)
}

/// A shorter timeout would end good copies when a host is busy or a link stalls briefly.
const TIMEOUT_S_MIN: u64 = 5;
const TIMEOUT_S_MAX: u64 = 3600;

pub(super) fn timeout(text: &str) -> Result<u16, String> {
    let time = time(text, "90s or 2min")?;
    match time.as_secs() {
        seconds @ TIMEOUT_S_MIN..=TIMEOUT_S_MAX => Ok(seconds as u16),
        _ => Err("expected a time from 5s to 1h".to_owned()),
    }
}

/// A copy that has waited for a month is assumed to be forgotten.
const RETRY_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) fn retry_for(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let time = time(text, "90s or 2h")?;
    match time > RETRY_MAX {
        true => Err("expected a time from 0 to 30days".to_owned()),
        false => Ok(time),
    }
}

/// A copy that takes longer than a year has other problems.
const STOP_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// A plain number means minutes, as in rsync.
pub(super) fn stop_after(text: &str) -> Result<Duration, String> {
    let examples = "4h, 90min or 1h30min (a plain number: minutes, as in rsync)";
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let time = match is_number {
        true => time(&format!("{text}min"), examples)?,
        false => time(text, examples)?,
    };
    match time.is_zero() || time > STOP_MAX {
        true => Err("expected a time from 1ms to 1year".to_owned()),
        false => Ok(time),
    }
}

pub(super) fn wait(text: &str) -> Result<Duration, String> {
    let time = time(text, "--wait=90min or --wait=2h; --wait alone has no limit")?;
    match time.is_zero() || time > RETRY_MAX {
        true => Err("expected a time from 1ms to 30days".to_owned()),
        false => Ok(time),
    }
}

pub(super) fn age(text: &str) -> Result<Duration, String> {
    time(text, "12h, 7d or 6months")
}

/// A file that has not grown for a day is assumed to be complete.
const IDLE_MAX: Duration = Duration::from_secs(24 * 3600);

pub(super) fn idle(text: &str) -> Result<u64, String> {
    let time = time(text, "90s or 2min")?;
    if time.is_zero() || time > IDLE_MAX {
        return Err("expected a time from 1ms to 1day".to_owned());
    }
    Ok(time.as_millis() as u64)
}

/// More lines would hide the others.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let time = time(text, "--progress=10s or --progress=1min")?;
    match (INTERVAL_MIN..=INTERVAL_MAX).contains(&time) {
        true => Ok(time),
        false => Err("expected a time from 1s to 1day".to_owned()),
    }
}

/// Less memory would not hold a chunk for every connection and worker of even the smallest copy.
const MEMORY_MIN: u64 = 16 << 20;

pub(super) fn memory(text: &str) -> Result<u64, String> {
    let bytes = units::parse_size(text)?;
    if bytes < MEMORY_MIN {
        return Err("expected at least 16Mi (16.8 MB)".to_owned());
    }
    Ok(bytes)
}

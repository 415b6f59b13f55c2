//! Text forms of sizes, rates, durations and names, for output and input.
//!
//! K M G T are powers of 1000 and Ki Mi Gi Ti powers of 1024, in both directions.

use std::time::Duration;

/// Escapes control and invisible characters, backslashes and bytes that are not UTF-8 as `\n`,
/// `\t`, `\\` or `\xNN`, so that a terminal does not act on them.
///
/// ```
/// use fastcp::units::printable;
///
/// assert_eq!(printable(b"a\tb\xff"), "a\\tb\\xff");
/// ```
pub fn printable(bytes: &[u8]) -> String {
    if bytes.iter().all(|byte| is_plain(*byte) && *byte != b'\\') {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut out = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        for char in part.valid().chars() {
            match char {
                '\\' => out.push_str("\\\\"),
                c => push_harmless(&mut out, c),
            }
        }
        for byte in part.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// As [`printable`], but leaves backslashes alone: for sentences that contain names which are
/// escaped already.
pub fn harmless(text: &str) -> String {
    if text.bytes().all(is_plain) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        push_harmless(&mut out, c);
    }
    out
}

/// Most names and sentences consist of such characters alone, and are then taken in one piece.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

fn push_harmless(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\t' => out.push_str("\\t"),
        c if c.is_control() || is_invisible(c) => {
            let mut utf8 = [0; 4];
            for byte in c.encode_utf8(&mut utf8).bytes() {
                out.push_str(&format!("\\x{byte:02x}"));
            }
        }
        c => out.push(c),
    }
}

/// Characters that reorder or hide the text around them.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Three digits and a unit, `1.07 GB`, or `512 B`; at most 7 columns.
///
/// ```
/// use fastcp::units::size;
///
/// assert_eq!(size(1_073_741_824), "1.07 GB");
/// assert_eq!(size(512), "512 B");
/// ```
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    // 999.5 and more would be printed as 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// `229 MB/s`; at most 9 columns.
pub fn rate(bytes_per_s: f64) -> String {
    format!("{}/s", size(bytes_per_s.round() as u64))
}

/// `340 ms`, `4.7 s`, `3 min 20 s`, `1 h 02 min`.
pub fn duration(time: Duration) -> String {
    let ms = (time.as_secs_f64() * 1000.0).round() as u64;
    let s = (ms + 500) / 1000;
    match ms {
        ..950 => format!("{ms} ms"),
        950..59_950 => format!("{:.1} s", ms as f64 / 1000.0),
        59_950..3_599_500 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", (s + 30) / 3600, (s + 30) % 3600 / 60),
    }
}

/// `0:09`, `12:34`, `1:02:03`; days beyond 99 hours.
pub fn clock(seconds: u64) -> String {
    let (h, min, s) = (seconds / 3600, seconds % 3600 / 60, seconds % 60);
    match h {
        0 => format!("{min}:{s:02}"),
        1..=99 => format!("{h}:{min:02}:{s:02}"),
        _ => format!("{} days", h / 24),
    }
}

/// `12,345`
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The number with its noun.
///
/// ```
/// use fastcp::units::plural;
///
/// assert_eq!(plural(1, "file", "files"), "1 file");
/// assert_eq!(plural(12_345, "file", "files"), "12,345 files");
/// ```
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Parses `4096`, `512M`, `1.5G`, `256Mi`, `64 KiB`. A plain number means bytes.
///
/// # Errors
/// A sentence with examples.
pub fn parse_size(text: &str) -> Result<u64, String> {
    text.parse::<bytesize::ByteSize>()
        .map(|size| size.as_u64())
        .map_err(|_| "expected a number of bytes, such as 4096, 512M, 1.5G or 256Mi".to_owned())
}

/// Parses `40M`, `256Ki`, `40 MB/s` as bytes a second, and `0`. Any other number without a unit
/// is refused, because it could also mean Kbit/s, as in scp's `-l`, or megabytes.
///
/// ```
/// use fastcp::units::parse_rate;
///
/// assert_eq!(parse_rate("40M"), Ok(40_000_000));
/// assert_eq!(parse_rate("1.5Gi/s"), Ok(3 << 29));
/// assert!(parse_rate("40").is_err());
/// ```
///
/// # Errors
/// A sentence with examples.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let amount = text.strip_suffix("/s").unwrap_or(text);
    let has_unit = amount.ends_with(|c: char| c.is_ascii_alphabetic());
    match parse_size(amount) {
        Ok(rate) if has_unit || rate == 0 => Ok(rate),
        _ => Err("expected bytes a second with a unit, such as 500K, 40M or 1.5Gi".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_three_digits_of_powers_of_1000() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 KB"),
            (1024, "1.02 KB"),
            (9_994, "9.99 KB"),
            (9_995, "10.0 KB"),
            (99_949, "99.9 KB"),
            (99_950, "100 KB"),
            (999_499, "999 KB"),
            (999_500, "1.00 MB"),
            (1_073_741_824, "1.07 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(rate(229_123_456.7), "229 MB/s");
    }

    #[test]
    fn sizes_are_read_in_both_kinds_of_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1k", 1000),
            ("1K", 1000),
            ("1Ki", 1024),
            ("1.5G", 1_500_000_000),
            ("256Mi", 256 << 20),
            ("256MiB", 256 << 20),
            ("64 KB", 64_000),
            ("2T", 2_000_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", ".", "-1", "1X", "1e3", "0x10", "1.2.3", "1Kbit"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_has_a_unit() {
        for (text, bytes_per_s) in [
            ("0", 0),
            ("40M", 40_000_000),
            ("256Ki", 256 << 10),
            ("14.4 MB/s", 14_400_000),
            ("800B", 800),
        ] {
            assert_eq!(parse_rate(text), Ok(bytes_per_s), "{text}");
        }
        for text in ["40", "40000000", "40/s", "4.5", "", "M", "fast", "8Mbit"] {
            assert!(parse_rate(text).unwrap_err().contains("40M"), "{text}");
        }
    }

    #[test]
    fn times_and_counts_are_written_for_people() {
        for (ms, text) in [
            (0, "0 ms"),
            (949, "949 ms"),
            (950, "0.9 s"),
            (4_700, "4.7 s"),
            (59_949, "59.9 s"),
            (59_950, "1 min 00 s"),
            (200_000, "3 min 20 s"),
            (3_599_499, "59 min 59 s"),
            (3_599_500, "1 h 00 min"),
            (3_720_000, "1 h 02 min"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
        assert_eq!(clock(9), "0:09");
        assert_eq!(clock(3723), "1:02:03");
        assert_eq!(clock(100 * 3600), "4 days");
        assert_eq!(
            [0, 999, 1000, 1234567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
    }

    #[test]
    fn nothing_that_a_terminal_acts_on_gets_through() {
        assert_eq!(
            printable(b"a\x1b[2J\n\\\xff\xc2\x9b"),
            "a\\x1b[2J\\n\\\\\\xff\\xc2\\x9b"
        );
        assert_eq!(
            harmless("dest: a\\\\b\r\u{202e}"),
            "dest: a\\\\b\\x0d\\xe2\\x80\\xae"
        );
        // The marks of Arabic and Mongolian, a soft hyphen, a tag.
        for hidden in ['\u{61c}', '\u{180e}', '\u{ad}', '\u{e0041}'] {
            let shown = printable(format!("a{hidden}b").as_bytes());
            assert!(shown.is_ascii(), "{hidden:?} in {shown}");
        }
        assert_eq!(printable("größe, حجم, 日本".as_bytes()), "größe, حجم, 日本");
    }
}

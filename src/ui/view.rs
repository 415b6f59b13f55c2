//! Conversion of a snapshot to lines for the terminal: the total with the bar, and the names of
//! files that are being copied. It has no side effects. No line is as wide as the terminal, so
//! none wraps.

use std::time::SystemTime;

use console::measure_text_width;

use crate::manifest::Totals;
use crate::progress::{Phase, Snapshot, Waiting};
use crate::units::{clock, plural, rate, size};

use super::terminal::Glyphs;

/// A shorter bar shows less than the number beside it.
const BAR_MIN: usize = 10;
/// A longer bar only increases the distance between name and number.
const BAR_MAX: usize = 60;

/// Longer remaining times, in seconds, are shown as `--:--`.
const ETA_MAX_S: f64 = 1e7;

/// Text, with an optional bar in brackets before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BarLine {
    pub bar: Option<Bar>,
    pub text: String,
}

/// `columns` are between the brackets, of which the share `done` / `of` is filled. `of` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub columns: usize,
    pub done: u64,
    pub of: u64,
}

/// Columns of the brackets and the space.
const BAR_FRAME: usize = 3;

impl BarLine {
    fn columns(&self) -> usize {
        columns(&self.text) + self.bar.map_or(0, |bar| bar.columns + BAR_FRAME)
    }
}

impl From<String> for BarLine {
    fn from(text: String) -> BarLine {
        BarLine { bar: None, text }
    }
}

/// The lines to show. None while ssh may ask for a password, and when the copy is finished.
/// `rate` is in bytes a second, `width` is the terminal's.
pub(super) fn lines(
    snapshot: &Snapshot,
    rate: Option<f64>,
    glyphs: Glyphs,
    width: usize,
) -> Vec<BarLine> {
    // The last column stays empty, because terminals differ on whether it causes a wrap.
    let width = width.saturating_sub(1);
    let first = match snapshot.phase {
        Phase::Connecting | Phase::Done => return Vec::new(),
        Phase::Waiting => cut(&waiting(snapshot), width).into(),
        Phase::Scanning => cut(&scanning(snapshot), width).into(),
        Phase::Reconnecting | Phase::Copying | Phase::Flushing => match &snapshot.totals {
            None if snapshot.phase == Phase::Reconnecting => cut("logging in again", width).into(),
            // A check of a list knows no totals, and a copy may begin before it knows them.
            None if snapshot.scanned_files == 0 && snapshot.moved_bytes == 0 => {
                let files = plural(snapshot.files, "file", "files");
                let bytes = size(snapshot.done_bytes);
                let same = match snapshot.files {
                    0 => "",
                    1 => " is the same",
                    _ => " are the same",
                };
                let first = format!("{files}, {bytes}{same}  {}", speed(rate));
                cut(&first, width).into()
            }
            None => {
                let mut fields = vec![format!("{} copied", size(snapshot.done_bytes)), speed(rate)];
                // The other end may scan.
                fields.extend((snapshot.scanned_files > 0).then(|| scanning(snapshot)));
                cut(&fields.join("  "), width).into()
            }
            Some(totals) if is_endless(snapshot, totals) => {
                let mut fields = vec![format!("{} copied", size(snapshot.done_bytes)), speed(rate)];
                if snapshot.phase == Phase::Flushing {
                    fields.push("flushing".to_owned());
                }
                cut(&fields.join("  "), width).into()
            }
            Some(totals) => whole(snapshot, totals, rate, width),
        },
    };
    let mut lines = vec![first];
    if is_verifying(snapshot) {
        lines.push(cut(&format!("  {}", verifying(snapshot)), width).into());
    }
    let copies = snapshot
        .copies
        .map(|copies| format!("  above: the {}", several(copies)));
    lines.extend(copies.map(|line| cut(&line, width).into()));
    for name in &snapshot.names {
        lines.push(format!("  {}", tail(name, glyphs, width.saturating_sub(2))).into());
    }
    lines.retain(|line| line.columns() <= width);
    lines
}

/// The number of finished destinations. All else is that of the slowest one.
pub(super) fn several((over, all): (usize, usize)) -> String {
    format!("slowest destination; {over} of {all} destinations done")
}

/// `waiting until 2026-11-28 22:00 (--start-at), 1:23:45 left`
pub(super) fn waiting(snapshot: &Snapshot) -> String {
    let Some(Waiting { what, until }) = &snapshot.waiting else {
        return "waiting".to_owned();
    };
    let left = until.map(|until| until.duration_since(SystemTime::now()).unwrap_or_default());
    let left = left.map(|left| format!(", {} left", clock(left.as_secs_f64().ceil() as u64)));
    format!("{what}{}", left.unwrap_or_default())
}

pub(super) fn scanning(snapshot: &Snapshot) -> String {
    format!(
        "scanning {}, {}",
        plural(snapshot.scanned_files, "file", "files"),
        size(snapshot.scanned_bytes)
    )
}

/// True while data of earlier runs is read and verified.
pub(super) fn is_verifying(snapshot: &Snapshot) -> bool {
    let is_under_way = matches!(snapshot.phase, Phase::Copying | Phase::Flushing);
    let verified = snapshot.checked_bytes;
    is_under_way && verified > 0 && verified < snapshot.already_bytes
}

pub(super) fn verifying(snapshot: &Snapshot) -> String {
    let (verified, all) = (snapshot.checked_bytes, snapshot.already_bytes);
    format!("verified {} of {} already there", size(verified), size(all))
}

/// True if the remaining amount is unknown: a pipe has no given length, or is already longer.
pub(super) fn is_endless(snapshot: &Snapshot, totals: &Totals) -> bool {
    let is_more = totals.bytes == 0 || snapshot.done_bytes > totals.bytes;
    totals.streams > 0 && is_more && snapshot.files < totals.files
}

/// Bar, percentage, bytes, rate and remaining time. A narrow terminal gets fewer of them.
fn whole(snapshot: &Snapshot, totals: &Totals, rate: Option<f64>, width: usize) -> BarLine {
    let bytes = snapshot.done_bytes;
    let left = totals.bytes.saturating_sub(bytes);
    let (done, of) = match totals.bytes {
        0 => (snapshot.files, totals.files.max(1)),
        all => (bytes, all),
    };
    // Rounded down: 100 % appears only when the copy is complete.
    let percent = format!("{:>3}%", (fraction(done, of) * 100.0).floor());
    let amount = format!("{:>7} of {:>7}", size(bytes), size(totals.bytes));
    let speed = format!("{:>9}", speed(rate));
    let end = match snapshot.phase {
        Phase::Flushing if left > 0 => format!("flushing {}", size(left)),
        Phase::Flushing => "flushing".to_owned(),
        Phase::Reconnecting => "logging in again".to_owned(),
        _ => format!("{:>7} left", eta(left, rate)),
    };
    for fields in [
        &[&percent, &amount, &speed, &end][..],
        &[&percent, &speed, &end],
        &[&percent, &speed],
        &[&percent],
    ] {
        let text = fields
            .iter()
            .map(|field| field.as_str())
            .collect::<Vec<_>>()
            .join("  ");
        // The bar is dropped first, then the least important fields.
        let room = width.saturating_sub(columns(&text) + BAR_FRAME);
        if room >= BAR_MIN {
            let columns = room.min(BAR_MAX);
            let bar = Some(Bar { columns, done, of });
            return BarLine { bar, text };
        }
        if columns(&text) <= width {
            return text.into();
        }
    }
    percent.into()
}

pub(super) fn fraction(done: u64, of: u64) -> f64 {
    (done as f64 / of as f64).min(1.0)
}

pub(super) fn speed(per_s: Option<f64>) -> String {
    per_s.map_or_else(|| "-- MB/s".to_owned(), rate)
}

pub(super) fn eta(left: u64, per_s: Option<f64>) -> String {
    let seconds = left as f64 / per_s.unwrap_or(0.0).max(f64::MIN_POSITIVE);
    match seconds {
        s if s < ETA_MAX_S => clock(s.ceil() as u64),
        _ => "--:--".to_owned(),
    }
}

/// The width of `text` in columns. It is rather too large than too small, since terminals differ
/// about characters that follow an emoji.
pub(super) fn columns(text: &str) -> usize {
    measure_text_width(text).max(text.chars().map(cells).sum())
}

fn cells(c: char) -> usize {
    match c {
        // Requests the wide form of the preceding character.
        '\u{fe0f}' => 1,
        c => measure_text_width(c.encode_utf8(&mut [0; 4])),
    }
}

/// The beginning of `text` that fits into `width` columns.
fn cut(text: &str, width: usize) -> String {
    let mut used = 0;
    text.chars()
        .take_while(|&c| {
            used += cells(c);
            used <= width
        })
        .collect()
}

/// The end of `name` that fits into `width` columns. It distinguishes files better than the
/// beginning.
fn tail(name: &str, glyphs: Glyphs, width: usize) -> String {
    let (name, ellipsis) = match glyphs {
        Glyphs::Utf8 => (name.to_owned(), "…"),
        Glyphs::Ascii => (name.replace(|c: char| !c.is_ascii(), "?"), "..."),
    };
    if columns(&name) <= width {
        return name;
    }
    let room = width.saturating_sub(columns(ellipsis));
    let mut used = 0;
    let start = name
        .char_indices()
        .rev()
        .take_while(|&(_, c)| {
            used += cells(c);
            used <= room
        })
        .last()
        .map_or(name.len(), |(start, _)| start);
    // Combining characters of a removed character would attach to the ellipsis.
    let end = name[start..].trim_start_matches(|c| cells(c) == 0 || c == '\u{fe0f}');
    format!("{ellipsis}{end}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::progress::Progress;
    use crate::ui::bars::Bars;
    use crate::ui::terminal::Size;

    const MB: u64 = 1_000_000;

    fn halfway() -> Snapshot {
        let progress = Progress::default();
        progress.set_totals(Totals {
            files: 3,
            bytes: 3100 * MB,
            ..Totals::default()
        });
        progress.add_skipped(550 * MB);
        progress.add_bytes(1000 * MB);
        progress.set_phase(Phase::Copying);
        progress.snapshot()
    }

    fn shown(snapshot: &Snapshot, glyphs: Glyphs, width: usize) -> Vec<String> {
        drawn(
            &lines(snapshot, Some(229.0 * MB as f64), glyphs, width),
            glyphs,
        )
    }

    fn drawn(lines: &[BarLine], glyphs: Glyphs) -> Vec<String> {
        let size = Size {
            columns: 200,
            rows: 24,
            reflows: true,
        };
        let mut bars = Bars::new(glyphs);
        bars.redraw("", lines, size);
        bars.lines()
    }

    #[test]
    fn a_stream_has_a_bar_while_its_length_is_believed() {
        let shown = |said: u64, come: u64| {
            let progress = Progress::default();
            progress.set_totals(Totals {
                files: 1,
                streams: 1,
                bytes: said * MB,
                ..Totals::default()
            });
            progress.add_bytes(come * MB);
            progress.set_phase(Phase::Copying);
            let lines = lines(&progress.snapshot(), Some(50e6), Glyphs::Ascii, 80);
            (lines[0].bar.is_some(), lines[0].text.trim().to_owned())
        };
        assert_eq!(shown(0, 70), (false, "70.0 MB copied  50.0 MB/s".into()));
        assert_eq!(shown(60, 70), (false, "70.0 MB copied  50.0 MB/s".into()));
        let (has_bar, text) = shown(700, 70);
        assert!(has_bar && text.ends_with("0:13 left"), "{text}");
    }

    #[test]
    fn eighty_columns_have_room_for_all() {
        let mut snapshot = halfway();
        snapshot.names = vec!["var/db/base.sqlite".to_owned(), "n".repeat(100)];
        let lines = shown(&snapshot, Glyphs::Utf8, 80);
        assert_eq!(
            lines[0],
            "[█████████████▌             ]  50%  1.55 GB of 3.10 GB   229 MB/s     0:07 left"
        );
        assert_eq!(lines[1], "  var/db/base.sqlite");
        assert_eq!(lines[2], format!("  …{}", "n".repeat(76)));
        assert!(lines.iter().all(|line| columns(line) <= 79));
        assert_eq!(
            shown(&snapshot, Glyphs::Ascii, 80)[0],
            "[#############>             ]  50%  1.55 GB of 3.10 GB   229 MB/s     0:07 left"
        );
    }

    #[test]
    fn a_narrow_terminal_loses_the_least_telling_first() {
        let snapshot = halfway();
        for (width, line) in [
            (60, " 50%  1.55 GB of 3.10 GB   229 MB/s     0:07 left"),
            (40, " 50%   229 MB/s     0:07 left"),
            (20, " 50%   229 MB/s"),
            (8, " 50%"),
        ] {
            assert_eq!(shown(&snapshot, Glyphs::Utf8, width), [line]);
        }
        let mut named = halfway();
        named.names = vec!["名前".repeat(50)];
        for width in 0..200 {
            for line in shown(&named, Glyphs::Utf8, width) {
                assert!(columns(&line) < width.max(1), "{width}: {line}");
            }
        }
    }

    #[test]
    fn wide_names_are_cut_by_columns_and_become_ascii_where_they_must() {
        let name = "目录/файл/名前名前.bin";
        assert_eq!(tail(name, Glyphs::Utf8, 40), name);
        assert_eq!(tail(name, Glyphs::Utf8, 12), "…前名前.bin");
        assert_eq!(tail(name, Glyphs::Utf8, 13), "…名前名前.bin");
        assert_eq!(tail(name, Glyphs::Ascii, 40), "??/????/????.bin");
        assert_eq!(tail(name, Glyphs::Ascii, 10), "...???.bin");
    }

    #[test]
    fn a_wait_says_what_for_and_how_long() {
        let progress = Progress::default();
        let shown = |until: Option<SystemTime>| {
            progress.set_waiting("waiting until noon".to_owned(), until);
            shown(&progress.snapshot(), Glyphs::Utf8, 80)
        };
        let later = SystemTime::now() + Duration::from_millis(3_600_400);
        assert_eq!(shown(Some(later)), ["waiting until noon, 1:00:01 left"]);
        let over = shown(Some(SystemTime::UNIX_EPOCH));
        assert_eq!(over, ["waiting until noon, 0:00 left"]);
        assert_eq!(shown(None), ["waiting until noon"]);
        progress.end_waiting(Duration::from_secs(5));
        let now = progress.snapshot();
        assert_eq!((now.waiting, now.waited.as_secs()), (None, 5));
    }

    #[test]
    fn each_phase_says_what_it_is() {
        let mut snapshot = halfway();
        snapshot.phase = Phase::Connecting;
        assert!(shown(&snapshot, Glyphs::Utf8, 80).is_empty(), "ssh may ask");
        snapshot.phase = Phase::Scanning;
        snapshot.scanned_files = 12_345;
        snapshot.scanned_bytes = 3100 * MB;
        let scanning = "scanning 12,345 files, 3.10 GB";
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80), [scanning]);
        let one = Snapshot {
            scanned_files: 1,
            ..snapshot.clone()
        };
        let shown_one = shown(&one, Glyphs::Utf8, 80);
        assert_eq!(shown_one, ["scanning 1 file, 3.10 GB"]);
        snapshot.phase = Phase::Flushing;
        let flushing = shown(&snapshot, Glyphs::Utf8, 80);
        assert!(flushing[0].ends_with("229 MB/s  flushing 1.55 GB"));
        snapshot.phase = Phase::Reconnecting;
        let again = shown(&snapshot, Glyphs::Utf8, 80);
        assert!(
            again[0].ends_with("229 MB/s  logging in again"),
            "{again:?}"
        );
        snapshot.phase = Phase::Flushing;
        snapshot.totals = None;
        let line = format!("1.55 GB copied  229 MB/s  {scanning}");
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80), [line]);
        (snapshot.scanned_files, snapshot.moved_bytes) = (0, 1);
        let line = "1.55 GB copied  229 MB/s";
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80), [line]);
        snapshot.moved_bytes = 0;
        for (files, line) in [
            (0, "0 files, 1.55 GB  229 MB/s"),
            (1, "1 file, 1.55 GB is the same  229 MB/s"),
            (2, "2 files, 1.55 GB are the same  229 MB/s"),
        ] {
            snapshot.files = files;
            assert_eq!(shown(&snapshot, Glyphs::Utf8, 80), [line]);
        }
    }

    #[test]
    fn what_was_there_has_a_line_of_its_own_while_it_is_verified() {
        let mut snapshot = halfway();
        (snapshot.already_bytes, snapshot.checked_bytes) = (550 * MB, 120 * MB);
        let line = "  verified 120 MB of 550 MB already there";
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80)[1], line);
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 20)[1], line[..19]);
        snapshot.checked_bytes = 550 * MB;
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80).len(), 1);
    }

    #[test]
    fn nothing_is_complete_before_it_is() {
        let mut snapshot = halfway();
        snapshot.done_bytes = 3099 * MB;
        assert!(shown(&snapshot, Glyphs::Ascii, 80)[0].contains("  99%  "));
        snapshot.done_bytes = 3101 * MB;
        assert!(shown(&snapshot, Glyphs::Ascii, 80)[0].contains("] 100%  "));
        let stalled = &lines(&snapshot, None, Glyphs::Ascii, 80)[0].text;
        assert!(stalled.contains("-- MB/s"), "{stalled}");
        let slow = &lines(&halfway(), Some(0.0), Glyphs::Ascii, 80)[0].text;
        assert!(slow.ends_with("0 B/s    --:-- left"), "{slow}");
    }
}

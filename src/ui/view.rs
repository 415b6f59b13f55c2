//! Conversion of a snapshot to lines for the terminal: the total with the bar, the destinations if
//! there are several, and the names of files that are being copied. It has no side effects. No line
//! is as wide as the terminal, so none wraps.

use std::time::{Duration, SystemTime};

use console::measure_text_width;

use crate::manifest::Totals;
use crate::progress::{Copies, DestProgress, Phase, Snapshot, Waiting};
use crate::units::{clock, count, plural, rate, size};

use super::rate::CopyRates;
use super::terminal::{Glyphs, Size};

/// A shorter bar shows less than the number beside it.
const BAR_MIN: usize = 10;
/// A longer bar only increases the distance between name and number.
const BAR_MAX: usize = 60;

/// Columns before the lines below the bar.
const INDENT: &str = "  ";

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
pub(super) fn lines(
    snapshot: &Snapshot,
    rates: &CopyRates,
    glyphs: Glyphs,
    size: Size,
) -> Vec<BarLine> {
    // The last column stays empty, because terminals differ on whether it causes a wrap.
    let width = size.columns.saturating_sub(1);
    // A row stays for the text above.
    let rows = size.rows.saturating_sub(1).max(1);
    let Some(first) = first(snapshot, rates, width) else {
        return Vec::new();
    };
    let mut lines = vec![first];
    let is_under_way = matches!(
        snapshot.phase,
        Phase::Reconnecting | Phase::Copying | Phase::Flushing
    );
    if is_under_way && !is_check(snapshot) {
        lines.extend(details(snapshot, rates, width));
    }
    let above = format!("{INDENT}figures above: ");
    if let Some(several) = several(snapshot, width.saturating_sub(columns(&above))) {
        lines.push(cut(&format!("{above}{several}"), width).into());
        if let Some(Copies::Together { dests, .. }) = &snapshot.copies {
            let rows = rows.saturating_sub(lines.len());
            lines.extend(destinations(dests, &rates.each, width, rows));
        }
    }
    for name in &snapshot.names {
        let room = width.saturating_sub(INDENT.len());
        lines.push(format!("{INDENT}{}", tail(name, glyphs, room)).into());
    }
    if glyphs == Glyphs::Ascii {
        let lines = lines.iter_mut();
        lines.for_each(|line| line.text = ascii(&line.text));
    }
    lines.retain(|line| line.columns() <= width);
    lines.truncate(rows);
    lines
}

/// The line with the bar, or with what takes its place.
fn first(snapshot: &Snapshot, rates: &CopyRates, width: usize) -> Option<BarLine> {
    let text = match snapshot.phase {
        // Between two logins no ssh asks.
        Phase::Connecting if next_login(snapshot).is_some() => login(snapshot, "logging in again"),
        Phase::Connecting | Phase::Done => return None,
        Phase::Waiting => waiting(snapshot),
        Phase::Scanning => scanning(snapshot),
        Phase::Reconnecting | Phase::Copying | Phase::Flushing => match &snapshot.totals {
            None if snapshot.phase == Phase::Reconnecting => login(snapshot, "logging in again"),
            None if is_check(snapshot) => {
                format!("{}  {}", same(snapshot), speed(rates.recent))
            }
            Some(totals) if !is_endless(snapshot, totals) => {
                return Some(whole(snapshot, totals, rates.recent, width));
            }
            totals => {
                let copied = format!("{} copied", size(snapshot.done_bytes));
                let mut fields = vec![copied, speed(rates.recent)];
                match snapshot.phase {
                    Phase::Reconnecting => fields.push(login(snapshot, "logging in again")),
                    Phase::Flushing if totals.is_some() => fields.push("flushing".to_owned()),
                    _ => {}
                }
                // The other end may scan.
                let is_scanning = totals.is_none() && snapshot.scanned_files > 0;
                fields.extend(is_scanning.then(|| scanning(snapshot)));
                fields.join("  ")
            }
        },
    };
    Some(cut(&text, width).into())
}

/// What the first line has no room for: `3 of 12 files, average 187 MB/s`. What does not fit into
/// the same line begins another one.
fn details(snapshot: &Snapshot, rates: &CopyRates, width: usize) -> Vec<BarLine> {
    let fields = [
        files(snapshot),
        average(rates),
        is_verifying(snapshot).then(|| verifying(snapshot)),
    ];
    let mut lines: Vec<String> = Vec::new();
    for field in fields.into_iter().flatten() {
        match lines.last_mut() {
            Some(line) if columns(line) + 2 + columns(&field) <= width => {
                line.push_str(", ");
                line.push_str(&field);
            }
            _ => lines.push(format!("{INDENT}{field}")),
        }
    }
    lines.iter().map(|line| cut(line, width).into()).collect()
}

/// `3 of 12 files`, if there are several.
pub(super) fn files(snapshot: &Snapshot) -> Option<String> {
    let done = snapshot.done_files();
    match snapshot.totals {
        Some(totals) if totals.files.max(done) > 1 => {
            let of = plural(totals.files.max(done), "file", "files");
            Some(format!("{} of {of}", count(done)))
        }
        None if done > 0 => Some(plural(done, "file", "files")),
        _ => None,
    }
}

/// `average 187 MB/s`, from 10 s after the first byte.
pub(super) fn average(rates: &CopyRates) -> Option<String> {
    rates
        .average
        .map(|average| format!("average {}", rate(average)))
}

/// The copies that the figures are about, and how many are over: `web2, the slowest of 5
/// destinations; 3 done, 1 failed`. A long name is cut where that makes the rest fit into `room`
/// columns. None for a single copy, and while all wait for the time of the start.
pub(super) fn several(snapshot: &Snapshot, room: usize) -> Option<String> {
    match snapshot.copies.as_ref()? {
        _ if snapshot.phase == Phase::Waiting && snapshot.began.is_none() => None,
        Copies::InTurn { over, all } => Some(format!("host {} of {all}", (over + 1).min(*all))),
        Copies::Together { dests, shown } => {
            let name = &dests.get(*shown)?.name;
            let states = dests.iter().map(DestState::of);
            let over = counts(states.filter(|state| state.is_over()));
            let over = if over.is_empty() {
                over
            } else {
                format!("; {over}")
            };
            let rest = format!(", the slowest of {} destinations{over}", dests.len());
            let name = cut(name, room.saturating_sub(columns(&rest)).max(NAME_MIN));
            Some(format!("{name}{rest}"))
        }
    }
}

/// What one of several destinations does, in the order in which they are shown if there is too
/// little room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DestState {
    Copying,
    Waiting,
    Failed,
    Done,
}

impl DestState {
    fn of(dest: &DestProgress) -> DestState {
        match dest.phase {
            Phase::Done if dest.has_failed => DestState::Failed,
            Phase::Done => DestState::Done,
            Phase::Connecting | Phase::Reconnecting | Phase::Waiting => DestState::Waiting,
            Phase::Scanning | Phase::Copying | Phase::Flushing => DestState::Copying,
        }
    }

    fn is_over(self) -> bool {
        matches!(self, DestState::Done | DestState::Failed)
    }

    fn name(self) -> &'static str {
        match self {
            DestState::Copying => "copying",
            DestState::Waiting => "waiting",
            DestState::Failed => "failed",
            DestState::Done => "done",
        }
    }
}

/// `3 done, 1 failed`; empty if there are none.
fn counts(states: impl Iterator<Item = DestState>) -> String {
    let states: Vec<_> = states.collect();
    let number = |which| states.iter().filter(|state| **state == which).count();
    let counts = [
        DestState::Copying,
        DestState::Waiting,
        DestState::Done,
        DestState::Failed,
    ]
    .map(|which| (number(which), which.name()));
    let counts = counts.iter().filter(|(number, _)| *number > 0);
    let counts: Vec<_> = counts
        .map(|(number, name)| format!("{number} {name}"))
        .collect();
    counts.join(", ")
}

/// A line for each destination in the order typed, with those that still copy first if there is no
/// room for all, and then a line that counts the rest.
fn destinations(
    dests: &[DestProgress],
    rates: &[Option<f64>],
    width: usize,
    rows: usize,
) -> Vec<BarLine> {
    let mut order: Vec<usize> = (0..dests.len()).collect();
    let mut shown = dests.len();
    if rows < dests.len() {
        order.sort_by_key(|n| DestState::of(&dests[*n]));
        shown = rows.saturating_sub(1);
    }
    let (each, rest) = order.split_at(shown);
    let names = each.iter().map(|n| columns(&dests[*n].name));
    // The figures are more important than the end of a long name.
    let names = names.max().unwrap_or(0).min((width / 3).max(NAME_MIN));
    let rate = |n: usize| rates.get(n).copied().flatten();
    let mut lines: Vec<BarLine> = each
        .iter()
        .map(|n| destination(&dests[*n], rate(*n), names, width))
        .collect();
    if !rest.is_empty() && rows > 0 {
        let number = rest.len();
        let counts = counts(rest.iter().map(|n| DestState::of(&dests[*n])));
        let line = match shown {
            0 => format!("{INDENT}{counts}"),
            _ => format!("{INDENT}and {number} more: {counts}"),
        };
        lines.push(cut(&line, width).into());
    }
    lines
}

/// The least columns of a destination's name, if it has that many.
const NAME_MIN: usize = 8;

/// Name, percentage, rate and remaining time or state. `names` is the width of the names.
fn destination(dest: &DestProgress, rate: Option<f64>, names: usize, width: usize) -> BarLine {
    let name = cut(&dest.name, names);
    let name = format!(
        "{INDENT}{name}{}",
        " ".repeat(names.saturating_sub(columns(&name)))
    );
    let state = DestState::of(dest);
    let amount = match &dest.totals {
        Some(totals) if totals.bytes > 0 || totals.streams == 0 => {
            let (done, of) = share(dest.done_bytes, dest.files, totals);
            format!("{}%", (fraction(done, of) * 100.0).floor())
        }
        _ => size(dest.done_bytes),
    };
    let amount = format!("{amount:>7}");
    let speed = match state {
        DestState::Copying => speed(rate),
        _ => String::new(),
    };
    let speed = format!("{speed:>9}");
    let end = match (dest.phase, &dest.totals) {
        (Phase::Scanning, _) => "scanning".to_owned(),
        (Phase::Flushing, _) => "flushing".to_owned(),
        (Phase::Copying, Some(totals)) if totals.bytes > 0 => {
            let left = totals.bytes.saturating_sub(dest.done_bytes);
            format!("{} left", eta(left, rate))
        }
        _ => state.name().to_owned(),
    };
    // In a narrow terminal the word is in the place of the percentage.
    let short = match state {
        DestState::Copying => amount.as_str(),
        _ => &end,
    };
    let rows: [&[&str]; 2] = [&[&amount, &speed, &end], &[&amount, &end]];
    for fields in rows {
        let line = format!("{name}  {}", fields.join("  "));
        if columns(&line) <= width {
            return line.into();
        }
    }
    cut(&format!("{name}  {:>7}", short.trim()), width).into()
}

/// `waiting until 2026-11-28 22:00 (--start-at), 1:23:45 left`
pub(super) fn waiting(snapshot: &Snapshot) -> String {
    let Some(Waiting { what, until }) = &snapshot.waiting else {
        return "waiting".to_owned();
    };
    let left = until.map(|until| until.duration_since(SystemTime::now()).unwrap_or_default());
    let left = left.map(|left| format!(", {} left", seconds(left)));
    format!("{what}{}", left.unwrap_or_default())
}

/// `what`, and the time until the next login if it has not begun: `logging in again in 0:28`.
pub(super) fn login(snapshot: &Snapshot, what: &str) -> String {
    match next_login(snapshot) {
        Some(left) => format!("{what} in {}", seconds(left)),
        None => what.to_owned(),
    }
}

/// The time until the next login; None if that has begun.
fn next_login(snapshot: &Snapshot) -> Option<Duration> {
    let left = snapshot
        .next_login?
        .duration_since(SystemTime::now())
        .ok()?;
    (!left.is_zero()).then_some(left)
}

fn seconds(time: Duration) -> String {
    clock(time.as_secs_f64().ceil() as u64)
}

/// True for a check of a list, which knows no totals, and for a copy that has neither begun nor
/// knows its totals.
pub(super) fn is_check(snapshot: &Snapshot) -> bool {
    snapshot.totals.is_none() && snapshot.scanned_files == 0 && snapshot.moved_bytes == 0
}

/// `12 files, 5.00 MB are the same`
pub(super) fn same(snapshot: &Snapshot) -> String {
    let files = plural(snapshot.files, "file", "files");
    let bytes = size(snapshot.done_bytes);
    let same = match snapshot.files {
        0 => "",
        1 => " is the same",
        _ => " are the same",
    };
    format!("{files}, {bytes}{same}")
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
    totals.streams > 0 && is_more
}

/// Bar, percentage, bytes, rate and remaining time. A narrow terminal gets fewer of them.
fn whole(snapshot: &Snapshot, totals: &Totals, rate: Option<f64>, width: usize) -> BarLine {
    let bytes = snapshot.done_bytes;
    let left = totals.bytes.saturating_sub(bytes);
    let (done, of) = share(bytes, snapshot.files, totals);
    // Rounded down: 100 % appears only when the copy is complete.
    let percent = format!("{:>3}%", (fraction(done, of) * 100.0).floor());
    let amount = format!("{:>7} of {:>7}", size(bytes), size(totals.bytes));
    let speed = format!("{:>9}", speed(rate));
    let end = match snapshot.phase {
        Phase::Flushing if left > 0 => format!("flushing {}", size(left)),
        Phase::Flushing => "flushing".to_owned(),
        Phase::Reconnecting => login(snapshot, "logging in again"),
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

/// How much is done, of how much: bytes, or files if all are empty. The second is not 0.
fn share(bytes: u64, files: u64, totals: &Totals) -> (u64, u64) {
    match totals.bytes {
        0 => (files, totals.files.max(1)),
        all => (bytes, all),
    }
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

fn ascii(text: &str) -> String {
    text.replace(|c: char| !c.is_ascii(), "?")
}

/// The end of `name` that fits into `width` columns. It distinguishes files better than the
/// beginning.
fn tail(name: &str, glyphs: Glyphs, width: usize) -> String {
    let (name, ellipsis) = match glyphs {
        Glyphs::Utf8 => (name.to_owned(), "…"),
        Glyphs::Ascii => (ascii(name), "..."),
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
    use std::sync::Arc;

    use super::*;
    use crate::progress::Progress;
    use crate::progress::together::Together;
    use crate::ui::bars::Bars;

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
        progress.add_files(1);
        progress.set_phase(Phase::Copying);
        progress.snapshot()
    }

    fn sized(columns: usize, rows: usize) -> Size {
        Size {
            columns,
            rows,
            reflows: true,
        }
    }

    fn recent(rate: Option<f64>) -> CopyRates {
        CopyRates {
            recent: rate,
            ..CopyRates::default()
        }
    }

    fn shown(snapshot: &Snapshot, glyphs: Glyphs, width: usize) -> Vec<String> {
        let rates = recent(Some(229.0 * MB as f64));
        drawn(&lines(snapshot, &rates, glyphs, sized(width, 24)), glyphs)
    }

    /// Without what the line below the bar says.
    fn bar(snapshot: &Snapshot, glyphs: Glyphs, width: usize) -> String {
        shown(snapshot, glyphs, width).remove(0)
    }

    fn drawn(lines: &[BarLine], glyphs: Glyphs) -> Vec<String> {
        let mut bars = Bars::new(glyphs);
        bars.redraw("", lines, sized(200, 100));
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
            let rates = recent(Some(50e6));
            let lines = lines(&progress.snapshot(), &rates, Glyphs::Ascii, sized(80, 24));
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
        assert_eq!(lines[1], "  1 of 3 files");
        assert_eq!(lines[2], "  var/db/base.sqlite");
        assert_eq!(lines[3], format!("  …{}", "n".repeat(76)));
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
            assert_eq!(bar(&snapshot, Glyphs::Utf8, width), line);
        }
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 10)[1], "  1 of 3 ");
        let mut named = halfway();
        named.names = vec!["名前".repeat(50)];
        (named.already_bytes, named.checked_bytes) = (550 * MB, 120 * MB);
        named.copies = several_hosts(["名前.example.org", "b", "c"]).copies;
        let rates = CopyRates {
            recent: Some(229e6),
            average: Some(187e6),
            each: vec![Some(1e9), None, Some(0.0)],
        };
        for width in 0..200 {
            for rows in 1..16 {
                let lines = lines(&named, &rates, Glyphs::Utf8, sized(width, rows));
                assert!(lines.len() <= rows, "{width}: {rows}");
                for line in drawn(&lines, Glyphs::Utf8) {
                    assert!(columns(&line) < width.max(1), "{width}: {line}");
                }
            }
        }
    }

    #[test]
    fn the_average_shares_a_line_with_what_fits_there() {
        let mut snapshot = halfway();
        (snapshot.already_bytes, snapshot.checked_bytes) = (550 * MB, 120 * MB);
        let rates = CopyRates {
            average: Some(187e6),
            ..recent(Some(229e6))
        };
        let mut below = |width, totals: u64| {
            snapshot.totals.as_mut().unwrap().files = totals;
            let lines = lines(&snapshot, &rates, Glyphs::Utf8, sized(width, 24));
            drawn(&lines[1..], Glyphs::Utf8)
        };
        let verified = "verified 120 MB of 550 MB already there";
        let files = "1,000 of 1,000,000 files";
        assert_eq!(below(80, 1), [format!("  average 187 MB/s, {verified}")]);
        let two = [
            "  1 of 1,000,000 files, average 187 MB/s".to_owned(),
            format!("  {verified}"),
        ];
        assert_eq!(below(80, 1_000_000), two);
        assert_eq!(
            below(40, 1_000_000)[..2],
            ["  1 of 1,000,000 files", "  average 187 MB/s"]
        );
        let all = format!("  1 of 1,000,000 files, average 187 MB/s, {verified}");
        assert_eq!(below(200, 1_000_000), [all]);
        snapshot.files = 1000;
        assert_eq!(super::files(&snapshot).unwrap(), files);
        // A source that grows may bring more than was counted.
        snapshot.files = 1_000_001;
        assert_eq!(
            super::files(&snapshot).unwrap(),
            "1,000,001 of 1,000,001 files"
        );
    }

    fn several_hosts<const N: usize>(names: [&str; N]) -> Snapshot {
        let each = names.map(|name| {
            let progress = Arc::<Progress>::default();
            progress.set_totals(Totals {
                files: 1,
                bytes: 3100 * MB,
                ..Totals::default()
            });
            progress.set_phase(Phase::Copying);
            (name.to_owned(), progress)
        });
        each[0].1.add_bytes(1000 * MB);
        each[1].1.add_bytes(900 * MB);
        each[2].1.add_bytes(800 * MB);
        Together::new(each.into_iter(), false).snapshot()
    }

    #[test]
    fn each_destination_has_its_line_and_those_without_room_are_counted() {
        let names: Vec<_> = (1..=64).map(|n| format!("web{n}")).collect();
        let names: [&str; 64] = std::array::from_fn(|n| &*names[n]);
        let mut snapshot = several_hosts(names);
        let Some(Copies::Together { dests, shown }) = &mut snapshot.copies else {
            panic!("several")
        };
        *shown = 48;
        let mut end = |hosts: std::ops::Range<usize>, phase, has_failed| {
            for dest in &mut dests[hosts] {
                (dest.phase, dest.has_failed) = (phase, has_failed);
            }
        };
        end(1..2, Phase::Done, true);
        end(3..44, Phase::Done, false);
        end(44..48, Phase::Reconnecting, false);
        let rates = CopyRates {
            each: vec![Some(100e6), None, Some(50e6)],
            ..recent(Some(50e6))
        };
        let shown = |columns, rows| {
            drawn(
                &lines(&snapshot, &rates, Glyphs::Utf8, sized(columns, rows)),
                Glyphs::Utf8,
            )
        };
        let all = shown(80, 100);
        assert_eq!(all.len(), 2 + 64);
        assert_eq!(
            all[1],
            "  figures above: web49, the slowest of 64 destinations; 41 done, 1 failed"
        );
        assert_eq!(all[2], "  web1       32%   100 MB/s  0:21 left");
        assert_eq!(all[3], "  web2       29%             failed");
        assert_eq!(all[5], "  web4        0%             done");
        assert_eq!(all[46], "  web45       0%             waiting");
        let small = shown(80, 24);
        assert_eq!(small.len(), 23, "a row for the line above");
        assert_eq!(small[2], all[2]);
        assert_eq!(small[3], "  web3       25%  50.0 MB/s  0:46 left");
        assert_eq!(small[21], "  web46       0%             waiting");
        assert_eq!(small[22], "  and 44 more: 2 waiting, 41 done, 1 failed");
        let tiny = shown(80, 4);
        assert_eq!(tiny[2], "  18 copying, 4 waiting, 41 done, 1 failed");
        let narrow = shown(24, 100);
        assert_eq!(narrow[2], "  web1       32%");
        assert_eq!(narrow[3], "  web2    failed");
        let Some(Copies::Together { dests, .. }) = &mut snapshot.copies else {
            panic!("several")
        };
        dests[48].name = "web49.example.org".into();
        let long = lines(&snapshot, &rates, Glyphs::Utf8, sized(80, 24));
        assert_eq!(
            long[1].text,
            "  figures above: web49.examp, the slowest of 64 destinations; 41 done, 1 failed"
        );
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
        let again = bar(&snapshot, Glyphs::Utf8, 80);
        assert!(again.ends_with("229 MB/s  logging in again"), "{again}");
        snapshot.next_login = Some(SystemTime::now() + Duration::from_millis(29_500));
        let again = bar(&snapshot, Glyphs::Utf8, 80);
        assert!(
            again.ends_with("229 MB/s  logging in again in 0:30"),
            "{again}"
        );
        snapshot.phase = Phase::Connecting;
        let again = shown(&snapshot, Glyphs::Utf8, 80);
        assert_eq!(again, ["logging in again in 0:30"], "no ssh runs");
        snapshot.phase = Phase::Flushing;
        snapshot.totals = None;
        let line = format!("1.55 GB copied  229 MB/s  {scanning}");
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80), [&*line, "  1 file"]);
        (snapshot.scanned_files, snapshot.moved_bytes) = (0, 1);
        let line = "1.55 GB copied  229 MB/s";
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80), [line, "  1 file"]);
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
    fn what_was_there_is_below_the_bar_while_it_is_verified() {
        let mut snapshot = halfway();
        (snapshot.already_bytes, snapshot.checked_bytes) = (550 * MB, 120 * MB);
        let line = "  1 of 3 files, verified 120 MB of 550 MB already there";
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80)[1], line);
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 20)[2], "  verified 120 MB o");
        snapshot.checked_bytes = 550 * MB;
        assert_eq!(shown(&snapshot, Glyphs::Utf8, 80).len(), 2);
    }

    #[test]
    fn nothing_is_complete_before_it_is() {
        let mut snapshot = halfway();
        snapshot.done_bytes = 3099 * MB;
        assert!(shown(&snapshot, Glyphs::Ascii, 80)[0].contains("  99%  "));
        snapshot.done_bytes = 3101 * MB;
        assert!(shown(&snapshot, Glyphs::Ascii, 80)[0].contains("] 100%  "));
        let first = |snapshot, rate| {
            let mut lines = lines(snapshot, &recent(rate), Glyphs::Ascii, sized(80, 24));
            lines.remove(0).text
        };
        let stalled = first(&snapshot, None);
        assert!(stalled.contains("-- MB/s"), "{stalled}");
        let slow = first(&halfway(), Some(0.0));
        assert!(slow.ends_with("0 B/s    --:-- left"), "{slow}");
    }
}

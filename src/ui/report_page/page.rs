//! The page of the report: HTML that needs no script and nothing from the network. Every text from
//! outside is escaped.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value;

use super::charts::{
    self, COLOURS, LINES, Mark, ROWS_MAX, ThroughputLine, TimeLine, Width, fast_stream,
    method_runs, methods,
};
use super::collected::{CommandReport, CopyEnd, CopyReport, DETAILED_MAX, MESSAGES_MAX};
use super::series::Point;
use crate::report::event::HostEnd;
use crate::ui::events::utc;
use crate::units::{clock, count, duration, plural, rate, size};

/// Operands that the title names.
const NAMED_MAX: usize = 3;

const NO_CONNECTION: &str = "A copy on one machine needs no connection.";

const STYLE: &str = include_str!("style.css");

/// Nothing may be loaded, and no script may run, even if a text were not escaped.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

type PageOut<'a> = &'a mut dyn Write;

/// A text in a page, also in an attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // All texts are printable already.
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Writes the page.
pub(super) fn write(out: PageOut<'_>, report: &CommandReport) -> io::Result<()> {
    let copies = copies(report);
    let title = title(report);
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <title>{title}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n",
        colours()
    )?;
    heading(out, report, &copies, &title)?;
    let time = TimeLine::of(report.seconds);
    match copies[..] {
        [] => writeln!(out, "<p>The copy ended before it began.</p>")?,
        [copy] => {
            result(out, copy)?;
            details(out, copy, time, true)?;
        }
        _ => several(out, &copies, time)?,
    }
    about(out, &copies)?;
    writeln!(out, "</body>\n</html>")
}

/// The copies to destinations, or the only copy.
fn copies(report: &CommandReport) -> Vec<&CopyReport> {
    let has_names = report.copies.iter().any(|copy| !copy.name.is_empty());
    let copies = report.copies.iter();
    copies
        .filter(|copy| !has_names || !copy.name.is_empty())
        .collect()
}

/// The colours of the drawings as variables, and the rules that apply them: an attribute of a
/// drawing counts less than a rule.
fn colours() -> String {
    let hex = |colour: &charts::Colour| {
        let (r, g, b) = (colour.light.0, colour.light.1, colour.light.2);
        format!("#{r:02X}{g:02X}{b:02X}")
    };
    let light = COLOURS
        .iter()
        .map(|it| format!("--{}: {};", it.name, hex(it)));
    let dark = COLOURS
        .iter()
        .map(|it| format!("--{}: {};", it.name, it.dark));
    let (light, dark): (String, String) = (light.collect(), dark.collect());
    let mut style = format!(
        ":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    );
    for colour in &COLOURS {
        let (hex, name) = (hex(colour), colour.name);
        style += &format!(
            "[fill=\"{hex}\"] {{ fill: var(--{name}); }} \
             [stroke=\"{hex}\"] {{ stroke: var(--{name}); }} \
             .{name} {{ background: var(--{name}); }}\n"
        );
    }
    style
}

/// `fastcp: a, b to db1:/srv`, escaped.
fn title(report: &CommandReport) -> String {
    let names = |names: &[String]| {
        let mut named = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>();
        if names.len() > NAMED_MAX {
            named.push(format!("{} more", count((names.len() - NAMED_MAX) as u64)));
        }
        named.join(", ")
    };
    let start = &report.start;
    let what = match (start.check, start.dry_run) {
        (true, _) => "Check of",
        (false, true) => "Dry run of a copy of",
        (false, false) => "Copy of",
    };
    let to = match start.dests.is_empty() {
        true => String::new(),
        false => format!(" to {}", names(&start.dests)),
    };
    escape(&format!("{what} {}{to}", names(&start.sources)))
}

/// The class and the word for a result.
fn state(end: Option<&CopyEnd>) -> (&'static str, &'static str) {
    match end {
        None => ("bad", "no result"),
        Some(end) if end.exit_code == 0 => ("good", "complete"),
        Some(end) if end.is_wanted => ("warn", "interrupted"),
        Some(end) if end.error.is_some() => ("bad", "failed"),
        Some(_) => ("warn", "incomplete"),
    }
}

fn heading(
    out: PageOut<'_>,
    report: &CommandReport,
    copies: &[&CopyReport],
    title: &str,
) -> io::Result<()> {
    // The first one that is not complete stands for all.
    let ends = copies.iter().map(|copy| copy.end.as_ref());
    let is_bad = |end: &Option<&CopyEnd>| end.is_none_or(|end| end.exit_code != 0);
    let worst = ends.clone().find(is_bad).or(ends.clone().next());
    let (class, word) = state(worst.flatten());
    writeln!(
        out,
        "<h1>{title} <span class=\"state {class}\">{word}</span></h1>"
    )?;
    let start = &report.start;
    writeln!(
        out,
        "<p class=\"soft\">fastcp {} on {} as {}, {} to {}</p>",
        escape(&start.version),
        escape(&start.host),
        escape(&start.user),
        utc(report.began),
        report.ended.map_or_else(|| "?".to_owned(), utc),
    )
}

/// The summary, the error and the figures of one copy.
fn result(out: PageOut<'_>, copy: &CopyReport) -> io::Result<()> {
    let Some(end) = &copy.end else {
        return writeln!(out, "<p class=\"error\">The copy has no result.</p>");
    };
    writeln!(out, "<div class=\"result\">")?;
    if let Some(error) = &end.error {
        let (error, code) = (escape(error), end.exit_code);
        writeln!(out, "<p class=\"error\">{error} (exit code {code})</p>")?;
    } else if end.exit_code != 0 {
        writeln!(out, "<p class=\"error\">Exit code {}</p>", end.exit_code)?;
    }
    for line in &end.summary {
        writeln!(out, "<p>{}</p>", escape(line))?;
    }
    writeln!(out, "</div>")?;
    figures(out, copy, end)
}

/// The figures of the event `end`, each under its name there.
fn figures(out: PageOut<'_>, copy: &CopyReport, end: &CopyEnd) -> io::Result<()> {
    let figure = |name: &str| &end.figures[name];
    let number = |name: &str| figure(name).as_u64().unwrap_or_default();
    let seconds =
        |name: &str| Duration::from_secs_f64(figure(name).as_f64().unwrap_or(0.0).max(0.0));
    let bytes = |name: &str| match number(name) {
        small @ ..1000 => plural(small, "byte", "bytes"),
        large => format!("{} ({} B)", size(large), count(large)),
    };
    let mut rows = vec![
        ("Files", "files", count(number("files"))),
        ("In place", "bytes", bytes("bytes")),
        ("On the wire", "wire_bytes", bytes("wire_bytes")),
        ("Time", "seconds", duration(seconds("seconds"))),
        (
            "Moving data",
            "data_seconds",
            duration(seconds("data_seconds")),
        ),
        (
            "Average",
            "bytes_per_s",
            rate(figure("bytes_per_s").as_f64().unwrap_or(0.0)),
        ),
        ("Streams", "streams", count(number("streams"))),
    ];
    if figure("login_seconds").is_number() {
        rows.push(("Login", "login_seconds", duration(seconds("login_seconds"))));
    }
    // Without these, most copies have nothing to tell.
    for (label, name) in [
        ("Already there", "already_bytes"),
        ("Sent again", "sent_again_bytes"),
        ("Damaged", "damaged_bytes"),
        ("Not sent", "unsent_bytes"),
    ] {
        if number(name) > 0 {
            rows.push((label, name, bytes(name)));
        }
    }
    for (label, name) in [
        ("Unchanged files", "files_unchanged"),
        ("Failed entries", "failed"),
        ("Further logins", "logins_again"),
        ("Deleted", "deleted"),
    ] {
        if number(name) > 0 {
            rows.push((label, name, count(number(name))));
        }
    }
    if seconds("waited_seconds") > Duration::ZERO {
        rows.push((
            "Waited",
            "waited_seconds",
            duration(seconds("waited_seconds")),
        ));
    }
    if let Some(chunks) = figure("chunks").as_object().filter(|it| !it.is_empty()) {
        let each = chunks.iter();
        let each = each.map(|(codec, number)| {
            format!("{} {codec}", count(number.as_u64().unwrap_or_default()))
        });
        rows.push(("Chunks", "chunks", each.collect::<Vec<_>>().join(", ")));
    }
    writeln!(out, "<div class=\"figures\">")?;
    for (label, name, value) in rows {
        let exact = match figure(name) {
            Value::Object(_) => String::new(),
            exact => format!(" data-{}=\"{exact}\"", name.replace('_', "-")),
        };
        let value = escape(&value);
        writeln!(out, "<dl><dt>{label}</dt><dd{exact}>{value}</dd></dl>")?;
    }
    writeln!(out, "</div>\n<dl>")?;
    if !copy.route.is_empty() {
        writeln!(out, "<dt>Route</dt><dd>{}</dd>", escape(&copy.route))?;
    }
    for login in &copy.logins {
        let end = match login.end {
            HostEnd::Source => "Source host",
            HostEnd::Dest => "Destination host",
        };
        let name = match login.name.is_empty() {
            true => String::new(),
            false => format!(" ({}, user {})", escape(&login.name), escape(&login.user)),
        };
        let (host, version) = (escape(&login.host), escape(&login.version));
        writeln!(out, "<dt>{end}</dt><dd>{host}{name}, fastcp {version}</dd>")?;
    }
    writeln!(out, "</dl>")
}

/// Draws in both widths.
fn drawn(
    out: PageOut<'_>,
    draw: impl Fn(Width) -> Option<String>,
    otherwise: &str,
) -> io::Result<bool> {
    for width in [Width::Wide, Width::Narrow] {
        match draw(width) {
            Some(svg) => out.write_all(svg.as_bytes())?,
            None => {
                writeln!(out, "<p class=\"soft\">{otherwise}</p>")?;
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Names the colours of a drawing. The names are escaped.
fn key(out: PageOut<'_>, names: &[(&str, String)]) -> io::Result<()> {
    write!(out, "<div class=\"key\">")?;
    for (class, name) in names {
        write!(out, "<span><i class=\"{class}\"></i>{name}</span>")?;
    }
    writeln!(out, "</div>")
}

fn explained(out: PageOut<'_>, text: &str) -> io::Result<()> {
    writeln!(out, "<p class=\"about\">{text}</p>")
}

/// The drawings and tables of one copy.
fn details(out: PageOut<'_>, copy: &CopyReport, time: TimeLine, is_only: bool) -> io::Result<()> {
    let points = copy.series.points();
    let is_local = copy.series.stream_totals().is_empty() && copy.route == "local";
    if !points
        .iter()
        .any(|point| point.content > 0 || point.wire > 0)
    {
        explained(out, "No data moved, so there are no drawings.")?;
        if !copy.marks.is_empty() {
            writeln!(out, "<h3>Connections and retries</h3>")?;
            retries(out, copy, time)?;
        }
        files(out, copy)?;
        return messages(out, copy);
    }
    if is_only {
        writeln!(out, "<h2>Over time</h2>")?;
    }
    writeln!(out, "<h3>Throughput</h3>")?;
    throughput(out, points, time, is_local)?;
    writeln!(out, "<h3>Throughput of each connection</h3>")?;
    connections(out, copy, time, is_local)?;
    writeln!(out, "<h3>What was busy</h3>")?;
    let silent = "The sending end has not told what was busy: the copy was too short, or the \
                  fastcp there is older.";
    if drawn(out, |width| charts::busy(width, time, points), silent)? {
        explained(
            out,
            "Each row goes from 0 to 100 %. Network: all connections had unsent bytes that the \
             receiver took. Compression, decompression: the mean of all worker threads. Source, \
             destination: a read or write was in progress and the workers had nothing else to do.",
        )?;
    }
    writeln!(out, "<h3>Compression</h3>")?;
    compression(out, points, time, is_local)?;
    writeln!(out, "<h3>Connections and retries</h3>")?;
    match is_local {
        true => explained(out, NO_CONNECTION)?,
        false => retries(out, copy, time)?,
    }
    files(out, copy)?;
    messages(out, copy)
}

fn throughput(
    out: PageOut<'_>,
    points: &[Point],
    time: TimeLine,
    is_local: bool,
) -> io::Result<()> {
    let mut lines = vec![ThroughputLine {
        points,
        bytes: |point| point.content,
        colour: LINES[0].0,
        is_filled: true,
    }];
    let peak = |bytes: fn(&Point) -> u64| {
        let rates = points.iter().map(|point| point.per_s(bytes(point)));
        rate(rates.fold(0.0, f64::max))
    };
    let peaks = [peak(|point| point.content), peak(|point| point.wire)];
    let mut names = vec![(
        LINES[0].1,
        format!("written at the destination (peak {})", peaks[0]),
    )];
    if !is_local {
        lines.push(ThroughputLine {
            points,
            bytes: |point| point.wire,
            colour: LINES[1].0,
            is_filled: false,
        });
        names.push((LINES[1].1, format!("on the wire (peak {})", peaks[1])));
    }
    let draw = |width| {
        let about = "Throughput over time";
        (!points.is_empty()).then(|| charts::throughput(width, time, about, &lines, 240))?
    };
    if !drawn(out, draw, "No data moved.")? {
        return Ok(());
    }
    key(out, &names)?;
    match is_local {
        true => Ok(()),
        false => explained(
            out,
            "Bytes on the wire count when a connection takes them: new connections fill their \
             buffers at once.",
        ),
    }
}

fn connections(
    out: PageOut<'_>,
    copy: &CopyReport,
    time: TimeLine,
    is_local: bool,
) -> io::Result<()> {
    let otherwise = match is_local {
        true => NO_CONNECTION,
        false => {
            "Not known here: the copy was too short, or the fastcp on the sending host is older."
        }
    };
    let draw = |width| charts::connections(width, time, &copy.series);
    if !drawn(out, draw, otherwise)? {
        return Ok(());
    }
    let most = fast_stream(copy.series.points());
    let mut names = vec![("heat0", "idle".to_owned())];
    for (nth, class) in ["heat1", "heat2", "heat3", "heat4", "heat5"]
        .iter()
        .enumerate()
    {
        let fifths = |nth: usize| rate(most * nth as f64 / 5.0);
        names.push((
            class,
            match nth {
                4 => format!("over {}", fifths(4)),
                _ => format!("up to {}", fifths(nth + 1)),
            },
        ));
    }
    key(out, &names)?;
    let totals = copy.series.stream_totals();
    let carried = totals.values().filter(|bytes| **bytes > 0);
    let (least, most) = (carried.clone().min(), carried.clone().max());
    let all = carried.count();
    let mut told = match all {
        1 => format!("The only connection carried {}.", size(*most.unwrap_or(&0))),
        all => format!(
            "{} carried {} to {} each.",
            plural(all as u64, "connection", "connections"),
            size(*least.unwrap_or(&0)),
            size(*most.unwrap_or(&0))
        ),
    };
    if all > ROWS_MAX {
        told += &format!(" The {ROWS_MAX} that carried the most are shown.");
    }
    explained(out, &told)
}

fn compression(
    out: PageOut<'_>,
    points: &[Point],
    time: TimeLine,
    is_local: bool,
) -> io::Result<()> {
    if is_local {
        return explained(out, "A copy on one machine compresses nothing.");
    }
    let draw = |width| charts::compression(width, time, points);
    if !drawn(out, draw, "No data was sent.")? {
        return Ok(());
    }
    let methods = methods(&method_runs(points));
    let all: f64 = methods.iter().map(|method| method.seconds).sum();
    let classes = LINES.map(|(_, class)| format!("{class} faint"));
    let names = methods.iter().zip(classes.iter().cycle());
    let names: Vec<_> = names
        .map(|(method, class)| {
            let share = method.seconds / all.max(1e-3) * 100.0;
            let name = escape(&method.name);
            (class.as_str(), format!("{name} ({share:.0} % of the time)"))
        })
        .collect();
    key(out, &names)?;
    explained(
        out,
        "The line is the ratio of content to bytes on the wire. Above it is the method for data \
         that shrinks; other data goes uncompressed.",
    )
}

fn retries(out: PageOut<'_>, copy: &CopyReport, time: TimeLine) -> io::Result<()> {
    let points = copy.series.points();
    let draw = |width| charts::connection_count(width, time, points, &copy.marks);
    let number = |mark: Mark| copy.marks.iter().filter(|it| it.1 == mark).count() as u64;
    let logins = number(Mark::LoggedInAgain);
    let dialled = number(Mark::DialledAgain);
    if drawn(out, draw, "Not known here.")? {
        let mut names = vec![("purple", "connections that are up".to_owned())];
        if logins > 0 {
            names.push(("red", "lost, or a login failed".to_owned()));
        }
        if dialled > 0 {
            names.push(("orange", "a stream was dialled again".to_owned()));
        }
        key(out, &names)?;
    }
    let mut told = match (logins, dialled) {
        (0, 0) => "No connection was lost.".to_owned(),
        _ => format!(
            "{}, {} dialled again.",
            plural(logins, "login was repeated", "logins were repeated"),
            plural(dialled, "stream was", "streams were")
        ),
    };
    if copy.more_marks > 0 {
        told += &format!(" {} more are not shown.", count(copy.more_marks));
    }
    let again: u64 = points.iter().map(|point| point.again).sum();
    match again {
        0 => told += " No data was sent twice.",
        again => told += &format!(" {} were sent again:", size(again)),
    }
    explained(out, &told)?;
    if again > 0 {
        let line = [ThroughputLine {
            points,
            bytes: |point| point.again,
            colour: LINES[4].0,
            is_filled: true,
        }];
        let about = "Data sent again over time";
        let draw = |width| charts::throughput(width, time, about, &line, 130);
        drawn(out, draw, "")?;
    }
    Ok(())
}

/// A table. The cells are escaped; those in `numbers` are on the right.
fn table(
    out: PageOut<'_>,
    heads: &[&str],
    numbers: &[usize],
    rows: impl Iterator<Item = Vec<String>>,
) -> io::Result<()> {
    let class = |nth: usize| match numbers.contains(&nth) {
        true => " class=\"number\"",
        false => "",
    };
    write!(out, "<div class=\"scroll\"><table>\n<tr>")?;
    for (nth, head) in heads.iter().enumerate() {
        write!(out, "<th{}>{head}</th>", class(nth))?;
    }
    writeln!(out, "</tr>")?;
    for row in rows {
        write!(out, "<tr>")?;
        for (nth, cell) in row.iter().enumerate() {
            write!(out, "<td{}>{cell}</td>", class(nth))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table></div>")
}

fn code(path: &str) -> String {
    format!("<code>{}</code>", escape(path))
}

fn files(out: PageOut<'_>, copy: &CopyReport) -> io::Result<()> {
    writeln!(out, "<h3>Largest files</h3>")?;
    match copy.largest.is_empty() {
        true => explained(out, "No file came to its place.")?,
        false => {
            let rows = copy.largest.iter().map(|file| {
                let result = file.result.name().to_owned();
                vec![code(&file.path), size(file.size), result]
            });
            table(out, &["File", "Size", "Result"], &[1], rows)?;
        }
    }
    writeln!(out, "<h3>Slowest files</h3>")?;
    let end = copy.end.as_ref();
    let slowest = end.map_or(&[][..], |end| &end.slowest);
    if slowest.is_empty() {
        return explained(
            out,
            match end.is_some_and(|end| end.is_between) {
                true => "Not known here: the data of two other hosts does not pass this one.",
                false => "No file was large enough to be timed: small files travel together.",
            },
        );
    }
    let rows = slowest.iter().map(|file| {
        let per_s = file.size as f64 / file.time.as_secs_f64().max(1e-6);
        let time = duration(file.time);
        vec![code(&file.path), size(file.size), time, rate(per_s)]
    });
    table(out, &["File", "Size", "Time", "Average"], &[1, 2, 3], rows)?;
    explained(
        out,
        "The time of a file is that from the first read piece to the last acknowledged one, or to \
         its place. Files are copied side by side. Small files travel together and have no time.",
    )
}

fn messages(out: PageOut<'_>, copy: &CopyReport) -> io::Result<()> {
    if copy.messages.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h3>Errors and notices</h3>\n<ul>")?;
    for message in &copy.messages {
        writeln!(out, "<li>{}</li>", escape(message))?;
    }
    writeln!(out, "</ul>")?;
    match copy.more_messages {
        0 => Ok(()),
        more => explained(
            out,
            &format!("The first {MESSAGES_MAX}; {} more.", count(more)),
        ),
    }
}

/// The destinations side by side, and then each.
fn several(out: PageOut<'_>, copies: &[&CopyReport], time: TimeLine) -> io::Result<()> {
    writeln!(out, "<h2>Destinations</h2>")?;
    let rows = copies.iter().map(|copy| {
        let figure = |name: &str| copy.end.as_ref().map(|end| &end.figures[name]);
        let bytes = figure("bytes").and_then(Value::as_u64);
        let per_s = figure("bytes_per_s").and_then(Value::as_f64);
        let seconds = figure("seconds").and_then(Value::as_f64);
        let (class, word) = state(copy.end.as_ref());
        let error = copy.end.as_ref().and_then(|end| end.error.as_deref());
        vec![
            escape(copy.dest.as_deref().unwrap_or(&copy.name)),
            bytes.map_or_else(String::new, size),
            seconds.map_or_else(String::new, |it| clock(it.round() as u64)),
            per_s.map_or_else(String::new, rate),
            format!("<span class=\"state {class}\">{word}</span>"),
            escape(error.unwrap_or_default()),
        ]
    });
    let heads = ["Destination", "In place", "Time", "Average", "Result", ""];
    table(out, &heads, &[1, 2, 3], rows)?;
    writeln!(out, "<h3>Throughput of each destination</h3>")?;
    let detailed = &copies[..copies.len().min(DETAILED_MAX)];
    let lines = detailed.iter().zip(LINES);
    let lines: Vec<_> = lines
        .map(|(copy, (colour, _))| ThroughputLine {
            points: copy.series.points(),
            bytes: |point| point.content,
            colour,
            is_filled: false,
        })
        .collect();
    let about = "Throughput of each destination over time";
    let draw = |width| charts::throughput(width, time, about, &lines, 240);
    drawn(out, draw, "No data moved.")?;
    let names = detailed.iter().zip(LINES);
    let names: Vec<_> = names
        .map(|(copy, (_, class))| (class, escape(&copy.name)))
        .collect();
    key(out, &names)?;
    if copies.len() > detailed.len() {
        explained(
            out,
            &format!("Drawings show the first {DETAILED_MAX} destinations."),
        )?;
    }
    for copy in detailed {
        let dest = copy.dest.as_deref().unwrap_or(&copy.name);
        writeln!(out, "<h2>{}</h2>", escape(dest))?;
        result(out, copy)?;
        details(out, copy, time, false)?;
    }
    Ok(())
}

fn about(out: PageOut<'_>, copies: &[&CopyReport]) -> io::Result<()> {
    let each = copies.iter().map(|copy| copy.series.readings_each()).max();
    let each = u64::from(each.unwrap_or(1));
    let mut told = format!(
        "The figures were read once a second. One point of a drawing stands for {}.",
        plural(each, "second", "seconds")
    );
    if copies
        .iter()
        .any(|copy| copy.end.as_ref().is_some_and(|end| end.is_between))
    {
        told += " The data went between two other hosts: the figures are those that the sending \
                 host has told.";
    }
    told += " Waits for the time of the start are left out.";
    writeln!(out, "<h2>About this page</h2>")?;
    explained(out, &told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_become_markup() {
        let evil = "<script>alert('&\"')</script>\u{1b}";
        let escaped = escape(evil);
        assert_eq!(
            escaped,
            "&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;\u{fffd}"
        );
    }
}

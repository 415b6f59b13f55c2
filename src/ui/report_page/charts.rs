//! The drawings of the report, as SVG. Each is made for two widths, of which the page shows one.
//! Colours are those of a light page; for a dark one the page's style replaces them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::TextStyle;

use super::series::{Point, STAGES, Series};
use crate::units::rate;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// A colour on a light page, its name in the style, and the colour on a dark page.
pub(super) struct Colour {
    pub light: RGBColor,
    pub name: &'static str,
    pub dark: &'static str,
}

const INK: RGBColor = RGBColor(0x3c, 0x43, 0x4b);
const GRID: RGBColor = RGBColor(0xe1, 0xe4, 0xe8);
const AXIS: RGBColor = RGBColor(0x9a, 0xa1, 0xa9);
const BLUE: RGBColor = RGBColor(0x1f, 0x6f, 0xb8);
const ORANGE: RGBColor = RGBColor(0xd0, 0x6a, 0x10);
const GREEN: RGBColor = RGBColor(0x2f, 0x8f, 0x57);
const PURPLE: RGBColor = RGBColor(0x84, 0x56, 0xb8);
const RED: RGBColor = RGBColor(0xc4, 0x30, 0x2b);

/// From no throughput to the most.
const HEAT: [RGBColor; 6] = [
    RGBColor(0xee, 0xf1, 0xf4),
    RGBColor(0xc9, 0xdf, 0xf2),
    RGBColor(0x9c, 0xc5, 0xe8),
    RGBColor(0x63, 0xa3, 0xd8),
    RGBColor(0x2e, 0x7d, 0xc0),
    RGBColor(0x0d, 0x4f, 0x8b),
];

const fn colour(light: RGBColor, name: &'static str, dark: &'static str) -> Colour {
    Colour { light, name, dark }
}

pub(super) const COLOURS: [Colour; 14] = [
    colour(INK, "ink", "#c9d1d9"),
    colour(GRID, "grid", "#2d333b"),
    colour(AXIS, "axis", "#6e7681"),
    colour(BLUE, "blue", "#58a6ff"),
    colour(ORANGE, "orange", "#f0a04b"),
    colour(GREEN, "green", "#56c27f"),
    colour(PURPLE, "purple", "#b78cf0"),
    colour(RED, "red", "#ff7b72"),
    colour(HEAT[0], "heat0", "#22272e"),
    colour(HEAT[1], "heat1", "#143656"),
    colour(HEAT[2], "heat2", "#1b517f"),
    colour(HEAT[3], "heat3", "#2a75b3"),
    colour(HEAT[4], "heat4", "#4b9fe0"),
    colour(HEAT[5], "heat5", "#9ad0ff"),
];

/// The colours of lines that are drawn side by side, by their names in the style.
pub(super) const LINES: [(RGBColor, &str); 5] = [
    (BLUE, "blue"),
    (ORANGE, "orange"),
    (GREEN, "green"),
    (PURPLE, "purple"),
    (RED, "red"),
];

/// The opacity of colours behind a text; that of the class `faint`.
const FAINT: f64 = 0.35;

/// Connections that have a row; the busiest ones.
pub(super) const ROWS_MAX: usize = 32;

/// How wide a drawing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Wide,
    /// For a phone.
    Narrow,
}

impl Width {
    fn pixels(self) -> u32 {
        match self {
            Width::Wide => 940,
            Width::Narrow => 360,
        }
    }

    /// Pixels to the left of the drawing.
    fn labels(self) -> u32 {
        match self {
            Width::Wide => 146,
            Width::Narrow => 82,
        }
    }

    fn times(self) -> usize {
        match self {
            Width::Wide => 11,
            Width::Narrow => 5,
        }
    }

    /// Cells of a row of connections; more cells than these would make the page large.
    fn cells(self) -> usize {
        match self {
            Width::Wide => 160,
            Width::Narrow => 60,
        }
    }
}

/// What a marker on the time line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    LoggedInAgain,
    DialledAgain,
}

/// The time line that all drawings share.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLine {
    /// The unit of the numbers on it, in seconds.
    unit_s: f64,
    unit: &'static str,
    /// The end, in this unit.
    end: f64,
}

impl TimeLine {
    pub(super) fn of(seconds: f64) -> TimeLine {
        let (unit_s, unit) = match seconds {
            ..=180.0 => (1.0, "s"),
            ..=10_800.0 => (60.0, "min"),
            _ => (3600.0, "h"),
        };
        TimeLine {
            unit_s,
            unit,
            end: seconds.max(0.01) / unit_s,
        }
    }

    fn at(&self, seconds: f64) -> f64 {
        (seconds / self.unit_s).clamp(0.0, self.end)
    }

    fn label(&self, at: f64) -> String {
        format!("{} {}", short(at), self.unit)
    }
}

/// An axis of rows, counted from below, with labels at these places.
struct Rows {
    rows: f64,
    labels: Vec<f64>,
}

impl Rows {
    fn new(rows: usize, labels: Vec<f64>) -> Rows {
        Rows {
            rows: rows as f64,
            labels,
        }
    }
}

impl Ranged for Rows {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        low + (value / self.rows * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labels.clone()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.rows
    }
}

/// A number without needless zeros.
fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "" | "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// `50 MB/s`
fn short_rate(bytes_per_s: f64) -> String {
    let text = rate(bytes_per_s.max(0.0));
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            let number = number.trim_end_matches('0').trim_end_matches('.');
            format!("{number} {unit}")
        }
        _ => text,
    }
}

/// Smaller than they look: without its own fonts the library divides them by 1.24.
fn text(colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", 15).into_font().color(&colour)
}

fn small_text(colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", 14).into_font().color(&colour)
}

/// Draws an image of this height with a text for those who cannot see it.
fn image(
    width: Width,
    height: u32,
    about: &str,
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Option<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width.pixels(), height)).into_drawing_area();
        // Nothing fails that writes to a string.
        draw(&area).ok()?;
        area.present().ok()?;
    }
    let class = match width {
        Width::Wide => "wide",
        Width::Narrow => "narrow",
    };
    let begins = format!("<svg class=\"{class}\" role=\"img\" aria-label=\"{about}\" ");
    Some(svg.replacen("<svg ", &begins, 1))
}

/// The points as a line: each in the middle of its time, with the first and the last ones drawn out
/// to their ends.
fn line(points: &[Point], time: TimeLine, value: impl Fn(&Point) -> f64) -> Vec<(f64, f64)> {
    let mut line = Vec::with_capacity(points.len() + 2);
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return line;
    };
    line.push((time.at(first.from), value(first)));
    for point in points {
        line.push((time.at((point.from + point.until) / 2.0), value(point)));
    }
    line.push((time.at(last.until), value(last)));
    line
}

/// Parts of the points that follow one another and that have a value.
fn parts(points: &[Point], has: impl Fn(&Point) -> bool) -> Vec<&[Point]> {
    points
        .split(|point| !has(point))
        .filter(|part| !part.is_empty())
        .collect()
}

/// One line of a drawing of throughput.
pub(super) struct ThroughputLine<'a> {
    pub points: &'a [Point],
    pub bytes: fn(&Point) -> u64,
    pub colour: RGBColor,
    pub is_filled: bool,
}

/// Draws lines of bytes a second.
pub(super) fn throughput(
    width: Width,
    time: TimeLine,
    about: &str,
    lines: &[ThroughputLine<'_>],
    height: u32,
) -> Option<String> {
    let value = |line: &ThroughputLine<'_>, point: &Point| point.per_s((line.bytes)(point));
    let most = lines
        .iter()
        .flat_map(|line| line.points.iter().map(|point| value(line, point)))
        .fold(1.0, f64::max);
    image(width, height, about, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(16)
            .x_label_area_size(24)
            .y_label_area_size(width.labels())
            .build_cartesian_2d(0.0..time.end, 0.0..most * 1.06)?;
        chart
            .configure_mesh()
            .x_labels(width.times())
            .y_labels(5)
            .x_label_formatter(&|at| time.label(*at))
            .y_label_formatter(&|value| short_rate(*value))
            .label_style(text(INK))
            .axis_style(AXIS)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for one in lines {
            let points = line(one.points, time, |point| value(one, point));
            match one.is_filled {
                true => chart.draw_series(
                    AreaSeries::new(points, 0.0, one.colour.mix(0.25))
                        .border_style(one.colour.stroke_width(2)),
                )?,
                false => chart.draw_series(LineSeries::new(points, one.colour.stroke_width(2)))?,
            };
        }
        Ok(())
    })
}

/// Draws how busy each stage was: five rows from 0 to 100 %. None if that is not known.
pub(super) fn busy(width: Width, time: TimeLine, points: &[Point]) -> Option<String> {
    let rows = STAGES.len();
    let known = parts(points, |point| point.shares.is_some());
    let seconds: f64 = known.iter().copied().flatten().map(Point::seconds).sum();
    if known.is_empty() {
        return None;
    }
    let share = |point: &Point, nth: usize| f64::from(point.shares.map_or(0.0, |it| it[nth]));
    let mean = |nth: usize| {
        let points = known.iter().copied().flatten();
        points.map(|it| share(it, nth) * it.seconds()).sum::<f64>() / seconds.max(1e-3)
    };
    let names: Vec<String> = (0..rows)
        .map(|nth| format!("{} {:.0} %", STAGES[nth], mean(nth) * 100.0))
        .collect();
    // The first stage is on top.
    let base = |nth: usize| (rows - 1 - nth) as f64;
    let middles: Vec<f64> = (0..rows).map(|nth| base(nth) + 0.5).collect();
    let name_at = |at: f64| {
        let nth = rows - 1 - (at.max(0.0) as usize).min(rows - 1);
        names[nth].clone()
    };
    image(
        width,
        46 * rows as u32 + 36,
        "How busy each stage was",
        |area| {
            let mut chart = ChartBuilder::on(area)
                .margin(6)
                .margin_right(16)
                .x_label_area_size(24)
                .y_label_area_size(width.labels().max(142))
                .build_cartesian_2d(0.0..time.end, Rows::new(rows, middles))?;
            chart
                .configure_mesh()
                .disable_y_mesh()
                .x_labels(width.times())
                .y_labels(rows)
                .x_label_formatter(&|at| time.label(*at))
                .y_label_formatter(&|at| name_at(*at))
                .label_style(text(INK))
                .axis_style(AXIS)
                .bold_line_style(GRID)
                .light_line_style(TRANSPARENT)
                .draw()?;
            for (nth, (colour, _)) in LINES.iter().enumerate().take(rows) {
                let base = base(nth);
                let separator = vec![(0.0, base), (time.end, base)];
                chart.draw_series([PathElement::new(separator, AXIS.mix(0.6))])?;
                for part in &known {
                    let points = line(part, time, |point| base + 0.88 * share(point, nth));
                    let filled = AreaSeries::new(points, base, colour.mix(0.3));
                    chart.draw_series(filled.border_style(colour.stroke_width(1)))?;
                }
            }
            Ok(())
        },
    )
}

/// The ratio of content to bytes on the wire; None if none were sent.
fn ratio(point: &Point) -> Option<f64> {
    (point.wire > 0 && point.raw > 0).then(|| point.raw as f64 / point.wire as f64)
}

/// Draws the ratio of the compression, and above it the method. None if nothing was sent.
pub(super) fn compression(width: Width, time: TimeLine, points: &[Point]) -> Option<String> {
    let known = parts(points, |point| ratio(point).is_some());
    let ratios = known.iter().copied().flatten().filter_map(ratio);
    let most = ratios.fold(1.0, f64::max);
    if known.is_empty() {
        return None;
    }
    let top = most * 1.08 + 0.02;
    let band = (top * 1.06, top * 1.24);
    image(width, 190, "Compression over time", |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(16)
            .x_label_area_size(24)
            .y_label_area_size(width.labels())
            .build_cartesian_2d(0.0..time.end, 0.0..band.1)?;
        chart
            .configure_mesh()
            .x_labels(width.times())
            .y_labels(5)
            .x_label_formatter(&|at| time.label(*at))
            .y_label_formatter(&|ratio| match *ratio {
                ratio if ratio > top => String::new(),
                ratio => format!("{} : 1", short(ratio)),
            })
            .label_style(text(INK))
            .axis_style(AXIS)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for part in &known {
            let points = line(part, time, |point| ratio(point).unwrap_or(1.0));
            let filled = AreaSeries::new(points, 0.0, GREEN.mix(0.2));
            chart.draw_series(filled.border_style(GREEN.stroke_width(2)))?;
        }
        let pixels = f64::from(width.pixels() - width.labels()) / time.end;
        let runs = method_runs(points);
        let methods = methods(&runs);
        for run in runs {
            let (from, until) = (time.at(run.from), time.at(run.until));
            let nth = methods.iter().position(|method| method.name == run.name);
            let colour = LINES[nth.unwrap_or(0) % LINES.len()].0.mix(FAINT);
            let corners = [(from, band.0), (until, band.1)];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            // A character takes 7 pixels at most.
            if (until - from) * pixels >= 7.0 * run.name.len() as f64 + 10.0 {
                let at = (from + 5.0 / pixels, band.0 + 0.82 * (band.1 - band.0));
                chart.draw_series([Text::new(run.name, at, small_text(INK))])?;
            }
        }
        Ok(())
    })
}

/// A time in which the method stayed the same.
pub(super) struct MethodRun {
    pub from: f64,
    pub until: f64,
    pub name: String,
}

pub(super) fn method_runs(points: &[Point]) -> Vec<MethodRun> {
    let mut runs: Vec<MethodRun> = Vec::new();
    for point in points.iter().filter(|point| point.wire > 0) {
        let Some(method) = point.method else {
            continue;
        };
        let name = method.to_string();
        match runs.last_mut() {
            Some(last) if last.name == name => last.until = point.until,
            _ => runs.push(MethodRun {
                from: point.from,
                until: point.until,
                name,
            }),
        }
    }
    runs
}

/// How long a method was in use.
pub(super) struct MethodTime {
    pub name: String,
    pub seconds: f64,
}

/// In the order of their first use, which is that of [`LINES`].
pub(super) fn methods(runs: &[MethodRun]) -> Vec<MethodTime> {
    let mut methods: Vec<MethodTime> = Vec::new();
    for run in runs {
        let seconds = run.until - run.from;
        match methods.iter_mut().find(|method| method.name == run.name) {
            Some(method) => method.seconds += seconds,
            None => methods.push(MethodTime {
                name: run.name.clone(),
                seconds,
            }),
        }
    }
    methods
}

/// The streams that have a row, by their numbers.
pub(super) fn shown_streams(totals: &BTreeMap<u16, u64>) -> Vec<u16> {
    let mut busiest: Vec<_> = totals.iter().filter(|(_, bytes)| **bytes > 0).collect();
    busiest.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
    let mut shown: Vec<u16> = busiest.iter().take(ROWS_MAX).map(|it| *it.0).collect();
    shown.sort_unstable();
    shown
}

/// The throughput of a stream, in bytes a second, that few points exceed: a single burst is not to
/// make all others pale.
pub(super) fn fast_stream(points: &[Point]) -> f64 {
    let rates = points.iter().flat_map(|point| &point.streams);
    let rates = rates.map(|stream| stream.1).filter(|rate| *rate > 0.0);
    let mut rates: Vec<f32> = rates.collect();
    let at = rates.len() * 98 / 100;
    if at == rates.len() {
        return 0.0;
    }
    let (_, rate, _) = rates.select_nth_unstable_by(at, f32::total_cmp);
    f64::from(*rate)
}

/// Draws the throughput of each connection as a row of cells. None if no connection is known.
pub(super) fn connections(width: Width, time: TimeLine, series: &Series) -> Option<String> {
    let points = series.points();
    let streams = shown_streams(series.stream_totals());
    let most = fast_stream(points);
    if streams.is_empty() || most <= 0.0 {
        return None;
    }
    let rows = streams.len();
    let row_height = if rows > 16 { 13 } else { 18 };
    let row_of = |nth: usize| (rows - 1 - nth) as f64;
    let every = if rows > 16 { 2 } else { 1 };
    let labelled = (0..rows).filter(|nth| nth % every == 0);
    let middles: Vec<f64> = labelled.map(|nth| row_of(nth) + 0.5).collect();
    let name_at = |at: f64| {
        let nth = rows - 1 - (at.max(0.0) as usize).min(rows - 1);
        format!("{}", nth + 1)
    };
    let merged = points.len().div_ceil(width.cells());
    let cells: Vec<&[Point]> = points.chunks(merged.max(1)).collect();
    let height = rows as u32 * row_height + 40;
    image(width, height, "Throughput of each connection", |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(16)
            .x_label_area_size(24)
            .y_label_area_size(width.labels())
            .build_cartesian_2d(0.0..time.end, Rows::new(rows, middles))?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_labels(width.times())
            .y_labels(rows)
            .x_label_formatter(&|at| time.label(*at))
            .y_label_formatter(&|at| name_at(*at))
            .label_style(small_text(INK))
            .axis_style(AXIS)
            .draw()?;
        for (nth, stream) in streams.iter().enumerate() {
            let row = (row_of(nth) + 0.08, row_of(nth) + 0.92);
            for run in heat_runs(&cells, *stream, most) {
                let corners = [(time.at(run.from), row.0), (time.at(run.until), row.1)];
                let cell = Rectangle::new(corners, HEAT[run.level].filled());
                chart.draw_series([cell])?;
            }
        }
        Ok(())
    })
}

/// A time in which a stream had about the same throughput.
struct HeatRun {
    from: f64,
    until: f64,
    level: usize,
}

fn heat_runs(cells: &[&[Point]], stream: u16, most: f64) -> Vec<HeatRun> {
    let mut runs: Vec<HeatRun> = Vec::new();
    for cell in cells {
        let (mut bytes, mut seconds, mut is_up) = (0.0, 0.0, false);
        for point in *cell {
            seconds += point.seconds();
            if let Some(found) = point.streams.iter().find(|found| found.0 == stream) {
                is_up = true;
                bytes += f64::from(found.1) * point.seconds();
            }
        }
        let (Some(first), Some(last)) = (cell.first(), cell.last()) else {
            continue;
        };
        if !is_up {
            continue;
        }
        let share = (bytes / seconds / most).min(1.0);
        let level = match share {
            ..0.02 => 0,
            share => ((share * 5.0).ceil() as usize).clamp(1, HEAT.len() - 1),
        };
        match runs.last_mut() {
            Some(run) if run.level == level && run.until == first.from => run.until = last.until,
            _ => runs.push(HeatRun {
                from: first.from,
                until: last.until,
                level,
            }),
        }
    }
    runs
}

/// Draws the number of connections, and marks what was repeated.
pub(super) fn connection_count(
    width: Width,
    time: TimeLine,
    points: &[Point],
    marks: &[(f64, Mark)],
) -> Option<String> {
    let known = parts(points, |point| point.connections.is_some());
    let count = |point: &Point| f64::from(point.connections.unwrap_or(0));
    let most = known
        .iter()
        .copied()
        .flatten()
        .map(count)
        .fold(1.0, f64::max);
    if known.is_empty() && marks.is_empty() {
        return None;
    }
    let top = most * 1.15 + 0.2;
    image(width, 150, "Number of connections", |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(6)
            .margin_right(16)
            .x_label_area_size(24)
            .y_label_area_size(width.labels())
            .build_cartesian_2d(0.0..time.end, 0.0..top)?;
        chart
            .configure_mesh()
            .x_labels(width.times())
            .y_labels(5)
            .x_label_formatter(&|at| time.label(*at))
            .y_label_formatter(&|number| match number.fract() {
                0.0 => short(*number),
                _ => String::new(),
            })
            .label_style(text(INK))
            .axis_style(AXIS)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for part in &known {
            let steps = part.iter().flat_map(|point| {
                let ends = [point.from, point.until];
                ends.map(|at| (time.at(at), count(point)))
            });
            let filled = AreaSeries::new(steps, 0.0, PURPLE.mix(0.15));
            chart.draw_series(filled.border_style(PURPLE.stroke_width(2)))?;
        }
        for (at, mark) in marks {
            let colour = match mark {
                Mark::LoggedInAgain => RED,
                Mark::DialledAgain => ORANGE,
            };
            let upright = vec![(time.at(*at), 0.0), (time.at(*at), top)];
            chart.draw_series([PathElement::new(upright, colour.stroke_width(2))])?;
        }
        Ok(())
    })
}

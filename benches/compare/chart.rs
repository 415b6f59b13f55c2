//! The chart: for each cell a bar per tool, whose length is its time relative to the cell's
//! longest.

use std::fmt::Write;

use crate::results::Measured;
use crate::tools::FASTCP;

const WIDTH: f64 = 900.0;
/// Where bars begin, and the length of the longest.
const LEFT: f64 = 190.0;
const BAR: f64 = 560.0;
const LINE: f64 = 20.0;
const HEAD: f64 = 34.0;

pub(crate) fn svg(all: &[Measured], machine: &str) -> String {
    let mut body = String::new();
    let mut y = HEAD;
    text(&mut body, 10.0, y - 12.0, "start", "#555", machine);
    for cell in all {
        y += HEAD;
        let title = format!(
            "{}: {} ({:.0} MB)",
            cell.link,
            cell.input,
            cell.bytes as f64 / 1e6
        );
        text(&mut body, 10.0, y - 10.0, "start", "#000", &title);
        let times: Vec<_> = cell
            .rows
            .iter()
            .filter_map(|row| Some((row.tool, row.seconds()?)))
            .collect();
        let longest = times
            .iter()
            .map(|(_, seconds)| *seconds)
            .fold(0.0, f64::max);
        for (tool, seconds) in times {
            let length = (BAR * seconds / longest.max(1e-9)).max(1.0);
            let colour = if tool == FASTCP { "#0a7d4b" } else { "#b7bcc4" };
            text(&mut body, LEFT - 8.0, y + 11.0, "end", "#000", tool);
            let _ = writeln!(
                body,
                r#"<rect x="{LEFT}" y="{y}" width="{length:.1}" height="14" fill="{colour}"/>"#
            );
            let figure = format!("{seconds:.2} s, {:.0} MB/s", cell.rate(seconds));
            text(
                &mut body,
                LEFT + length + 6.0,
                y + 11.0,
                "start",
                "#000",
                &figure,
            );
            y += LINE;
        }
    }
    let height = y + LINE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn text(body: &mut String, x: f64, y: f64, anchor: &str, colour: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        body,
        r#"<text x="{x:.1}" y="{y}" text-anchor="{anchor}" fill="{colour}">{what}</text>"#
    );
}

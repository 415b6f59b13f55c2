//! The Markdown table, with a description of the machine.

use std::fmt::Write;
use std::process::Command;

use crate::input::Input;
use crate::results::{Measured, Row};
use crate::shell;
use crate::tools::FASTCP;

pub(crate) fn markdown(
    all: &[Measured],
    inputs: &[Input],
    rounds: usize,
    notes: &[String],
) -> String {
    let mut out = format!("{}\n\n", machine());
    let _ = writeln!(
        out,
        "Medians of {rounds} interleaved rounds in seconds, logins included, each copy compared \
         with its source; fastcp knows nothing of the round before. A ratio is fastcp's time for one of the tool's.\n"
    );
    out += "| link | input | tool | s | MB/s | CPU s | ratio | goal |\n";
    out += "|---|---|---|---:|---:|---:|---:|---|\n";
    for cell in all {
        out += &rows(cell);
    }
    out.push('\n');
    let peaks = all.iter().flat_map(|cell| &cell.rows).map(Row::peak_bytes);
    if let Some(peak) = peaks.max().filter(|peak| *peak > 0) {
        let megabytes = peak as f64 / 1e6;
        let _ = writeln!(
            out,
            "- CPU: of the whole machine, both ends; no process of fastcp held more than {megabytes:.0} MB"
        );
    }
    for input in inputs.iter().filter(|input| !input.about.is_empty()) {
        let megabytes = input.bytes as f64 / 1e6;
        let _ = writeln!(out, "- {}: {megabytes:.0} MB, {}", input.name, input.about);
    }
    for note in notes {
        let _ = writeln!(out, "- {note}");
    }
    out
}

/// Characters of a failed tool's message that the table shows.
const FAULT_MAX: usize = 100;

/// Escapes a pipe sign, which would end a cell of the table.
fn name(tool: &str) -> String {
    match tool {
        FASTCP => format!("**{FASTCP}**"),
        tool => tool.replace('|', "\\|"),
    }
}

fn rows(cell: &Measured) -> String {
    let mut out = String::new();
    let reached = cell.reached();
    let own = cell.seconds_of(FASTCP);
    for row in &cell.rows {
        let is_own = row.tool == FASTCP;
        let goal = reached.iter().find(|it| it.goal.tool == row.tool);
        let Some(seconds) = row.seconds() else {
            let fault = row.fault.as_deref().unwrap_or("no time");
            let fault: String = fault
                .chars()
                .filter(|c| !"|\n".contains(*c))
                .take(FAULT_MAX)
                .collect();
            let _ = writeln!(
                out,
                "| {} | {} | {} | | | | | {fault} |",
                cell.link,
                cell.input,
                name(row.tool)
            );
            continue;
        };
        let cpu = row.cpu_seconds();
        let cpu = cpu.map_or(String::new(), |seconds| format!("{seconds:.1}"));
        let plain = own.filter(|_| !is_own).map(|own| own / seconds);
        let ratio = goal.and_then(|it| it.ratio).or(plain);
        let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let _ = writeln!(
            out,
            "| {} | {} | {} | {seconds:.2} | {:.0} | {cpu} | {ratio} | {} |",
            cell.link,
            cell.input,
            name(row.tool),
            cell.rate(seconds),
            goal.map_or(String::new(), words),
        );
    }
    for goal in reached
        .iter()
        .filter(|it| it.goal.tool == crate::cells::BEST)
    {
        let ratio = goal
            .ratio
            .map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let (link, input, tool) = (&cell.link, &cell.input, goal.goal.tool);
        let _ = writeln!(
            out,
            "| {link} | {input} | {tool} | | | | {ratio} | {} |",
            words(goal)
        );
    }
    out
}

fn words(it: &crate::results::Reached) -> String {
    let login = if it.goal.without_login {
        " without login"
    } else {
        ""
    };
    let verdict = match it.is_reached() {
        Some(true) => "reached",
        Some(false) => "**missed**",
        None => "not measured",
    };
    format!("≤ {:.2}{login}: {verdict}", it.goal.most)
}

/// Processor, kernel, memory, date and fastcp version, in one line.
pub(crate) fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let run = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        shell::text(command).unwrap_or_default()
    };
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let memory = memory
        .split_whitespace()
        .next()
        .and_then(|kb| kb.parse::<f64>().ok());
    format!(
        "{processors} processors ({}), {:.0} GB, Linux {}, {}; {}",
        field(&read("/proc/cpuinfo"), "model name"),
        memory.unwrap_or(0.0) * 1024.0 / 1e9,
        run("uname -r"),
        run("date +%F"),
        run(&format!(
            "{} --version | head -1",
            shell::quote(env!("CARGO_BIN_EXE_fastcp"))
        )),
    )
}

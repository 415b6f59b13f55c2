//! A comparison of fastcp with the tools that people use instead, on many links and kinds of data.
//!
//! `cells` lists the comparisons. Every round runs each tool of a cell once, so that varying
//! conditions affect all tools alike. The bench compares every copy with its source. It writes the
//! table and the chart into `target/`, and names the tools and links that it had to leave out.

mod cells;
mod chart;
mod input;
mod memory;
mod place;
mod regret;
mod results;
mod rounds;
mod shell;
mod spent;
#[allow(dead_code, unused_macros, unused_imports)]
#[path = "../../tests/it/support/mod.rs"]
mod support;
mod table;
mod tools;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use cells::{CELLS, Cell, LINKS, Link, SWEEP_SECONDS, shrinks, slow_cell, slow_links};
use input::{Input, Sizes};
use place::{How, Place};
use results::Measured;
use rounds::Bench;

const USAGE: &str = "\
usage: cargo bench --bench compare -- --all [options]      every cell of benches/compare/cells.rs but the slow
       cargo bench --bench compare -- [user@]HOST:/SCRATCH/DIR [options]
                                                           the link to this host
  --quick              tiny inputs, one round: shows that everything works
  --slow               links of 1 to 50 Mbit/s and 20 to 300 ms, random data beside scp
  --regret             the tuner's choices beside a sweep of forced ones
  --wrong-memory       fastcp with 128 streams remembered from another link beside itself with nothing
  --link-with CMD      makes links: CMD up --rtt MS --rate MBIT --loss PERCENT [--fw none],
                       CMD src WORDS (from there `ssh dst` works), CMD down
  --links A;B          only these links, or those whose names hold such a word
  --inputs A,B         only these: random database files log sparse
  --tools A,B          only tools whose names hold one of these words, and fastcp
  --input PATH         this file or directory in place of all inputs (with HOST:)
  --rounds N           how often each tool runs (3)
  --scale F            inputs so many times as large (1)
  --work DIR           where inputs and copies lie (target/compare)
  -F FILE              ssh's configuration (with HOST:)
  --remote-path CMD    fastcp on the far side, if it is not on PATH there (with HOST:)
  --fastcp-flags WORDS more flags for fastcp

Links are made of network namespaces otherwise, for root, where the kernel has netem.";

/// The parsed arguments.
struct Asked {
    how: How,
    /// The directory on the host that the user named.
    far_dir: Option<String>,
    is_quick: bool,
    is_slow: bool,
    is_regret: bool,
    is_wrong_memory: bool,
    links: Vec<String>,
    inputs: Vec<String>,
    tools: Vec<String>,
    input: Option<PathBuf>,
    rounds: usize,
    scale: f64,
    work: PathBuf,
    fastcp_flags: Vec<String>,
}

impl Asked {
    fn sizes(&self) -> Sizes {
        match self.is_quick {
            true => Sizes::QUICK,
            false => Sizes::FULL.scaled(self.scale),
        }
    }
}

fn main() -> ExitCode {
    // cargo adds --bench.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let asks = |word: &String| word == "--help" || word == "--test";
    if words.is_empty() || words.iter().any(asks) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match parse(words).and_then(|asked| compare(&asked)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("compare: {message}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: Vec<String>) -> Result<Asked, String> {
    let mut asked = Asked {
        how: How::Own,
        far_dir: None,
        is_quick: false,
        is_slow: false,
        is_regret: false,
        is_wrong_memory: false,
        links: Vec::new(),
        inputs: Vec::new(),
        tools: Vec::new(),
        input: None,
        rounds: 3,
        scale: 1.0,
        work: target().join("compare"),
        fastcp_flags: Vec::new(),
    };
    let (mut place, mut ssh_config, mut remote_path) = (None, None, None);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value\n{USAGE}"));
        let list = |text: String, by: char| text.split(by).map(str::to_owned).collect();
        match word.as_str() {
            "--all" => {}
            "--quick" => (asked.is_quick, asked.rounds) = (true, 1),
            "--slow" => asked.is_slow = true,
            "--regret" => asked.is_regret = true,
            "--wrong-memory" => asked.is_wrong_memory = true,
            "--link-with" => asked.how = How::With(value()?),
            "--links" => asked.links = list(value()?, ';'),
            "--inputs" => asked.inputs = list(value()?, ','),
            "--tools" => asked.tools = list(value()?, ','),
            "--input" => asked.input = Some(PathBuf::from(value()?)),
            "--rounds" => asked.rounds = value()?.parse().map_err(|_| "--rounds needs a number")?,
            "--scale" => asked.scale = value()?.parse().map_err(|_| "--scale needs a number")?,
            "--work" => asked.work = PathBuf::from(value()?),
            "-F" => ssh_config = Some(value()?),
            "--remote-path" => remote_path = Some(value()?),
            "--fastcp-flags" => asked.fastcp_flags = list(value()?, ' '),
            _ if word.starts_with('-') => return Err(format!("{word}?\n{USAGE}")),
            _ => place = Some(word),
        }
    }
    if let Some(place) = place {
        let (host, dir) = place
            .split_once(':')
            .ok_or(format!("{place} names no host\n{USAGE}"))?;
        if !dir.starts_with('/') {
            return Err(format!(
                "the scratch directory has to start with a slash: {dir}"
            ));
        }
        asked.far_dir = Some(dir.to_owned());
        asked.how = How::Host {
            host: host.to_owned(),
            ssh_config,
            remote_path,
        };
    }
    fs::create_dir_all(&asked.work).map_err(|e| format!("{}: {e}", asked.work.display()))?;
    asked.work = asked.work.canonicalize().map_err(|e| e.to_string())?;
    Ok(asked)
}

/// cargo's target directory.
fn target() -> PathBuf {
    let tests = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tests.parent().unwrap_or(tests).to_owned()
}

/// Results of one run of the bench so far.
#[derive(Default)]
struct Found {
    measured: Vec<Measured>,
    regrets: Vec<regret::Regret>,
    /// Measurements that were left out, with the reason.
    notes: Vec<String>,
    inputs: Vec<Input>,
}

fn compare(asked: &Asked) -> Result<(), String> {
    let mut found = Found::default();
    let all = match asked.is_slow {
        true => slow_links(),
        false => LINKS.to_vec(),
    };
    let is_wanted = |link: &Link| {
        let wants = |word: &String| {
            let is_name = all.iter().any(|other| other.name == word);
            link.name == word || (!is_name && link.name.contains(word.as_str()))
        };
        asked.links.is_empty() || asked.links.iter().any(wants)
    };
    let links: Vec<Link> = match &asked.how {
        How::Host { .. } => vec![Link {
            name: "this host",
            ..LINKS[0]
        }],
        _ => all.iter().copied().filter(is_wanted).collect(),
    };
    for link in &links {
        println!("\n{}", link.name);
        match Place::make(link, &asked.how, &asked.work) {
            Ok(place) => {
                for cell in cells_of(link, asked) {
                    let began = Instant::now();
                    if let Err(why) = try_cell(asked, &place, link, &cell, &mut found) {
                        found.leave_out(&format!("{}, {}: {why}", link.name, cell.input));
                    }
                    println!("  {} s for the cell", began.elapsed().as_secs());
                }
            }
            Err(why) => found.leave_out(&format!("{}: {why}", link.name)),
        }
    }
    found.write(asked)
}

/// The cells of a link. For the regret, or a host that the user named, every input has one.
fn cells_of(link: &Link, asked: &Asked) -> Vec<Cell> {
    const INPUTS: [&str; 5] = ["random", "database", "files", "log", "sparse"];
    const TOOLS: &[&str] = &[
        "scp",
        "rsync -a",
        "tar|nc",
        "tar|lz4|nc",
        "tar|zstd|nc",
        "bbcp",
    ];
    let wanted =
        |input: &str| asked.inputs.is_empty() || asked.inputs.iter().any(|other| other == input);
    let all = |inputs: &[&'static str]| -> Vec<Cell> {
        let cell = |input: &&'static str| Cell {
            link: link.name,
            input,
            bytes: 0,
            tools: TOOLS,
            goals: &[],
        };
        inputs.iter().map(cell).collect()
    };
    let cells = match &asked.how {
        How::Host { .. } if asked.input.is_some() => return all(&["what was named"]),
        How::Host { .. } => all(&INPUTS),
        _ if asked.is_slow => vec![slow_cell(link)],
        _ if asked.is_regret => all(&INPUTS),
        _ => CELLS
            .iter()
            .filter(|cell| cell.link == link.name)
            .copied()
            .collect(),
    };
    cells
        .into_iter()
        .filter(|cell| wanted(cell.input))
        .collect()
}

fn try_cell(
    asked: &Asked,
    place: &Place,
    link: &Link,
    cell: &Cell,
    found: &mut Found,
) -> Result<(), String> {
    let input = match &asked.input {
        Some(path) => Input::given(path.clone())?,
        None => input::make(cell.input, &asked.sizes(), &asked.work)?,
    };
    println!("{}: {:.1} MB", input.name, input.bytes as f64 / 1e6);
    let into = asked.far_dir.as_ref().map_or_else(
        || asked.work.join("copy").display().to_string(),
        |dir| format!("{dir}/fastcp-compare-{}", std::process::id()),
    );
    let bench = Bench { asked, place, into };
    if asked.is_wrong_memory {
        let input = match cell.bytes {
            0 => input,
            bytes => input.cut((bytes as f64 * asked.scale) as u64, &asked.work)?,
        };
        let regret = bench.wrong_memory(link, cell, &input)?;
        found.regrets.push(regret);
        return Ok(());
    }
    if asked.is_regret {
        let bytes = match link.mbit_per_s {
            0 => input.bytes,
            rate => (f64::from(rate) * 125e3 * SWEEP_SECONDS * shrinks(cell.input)) as u64,
        };
        let input = input.cut(bytes, &asked.work)?;
        let copy = |flags: &[String], most| bench.copy(&input, flags, most);
        found
            .regrets
            .push(regret::measure(link.name, cell.input, copy)?);
        return Ok(());
    }
    let input = match cell.bytes {
        0 => input,
        bytes => input.cut((bytes as f64 * asked.scale) as u64, &asked.work)?,
    };
    found
        .measured
        .push(bench.rounds(link, cell, &input, &mut found.notes)?);
    if !found.inputs.iter().any(|other| other.name == input.name) {
        found.inputs.push(input);
    }
    Ok(())
}

impl Found {
    fn leave_out(&mut self, what: &str) {
        println!("  left out: {what}");
        self.notes.push(format!("left out: {what}"));
    }

    fn write(&self, asked: &Asked) -> Result<(), String> {
        let machine = table::machine();
        let mut files = Vec::new();
        if asked.is_wrong_memory {
            let text = regret::markdown_of_memory(&self.regrets, asked.rounds, &machine);
            files.push(("wrong-memory.md", text));
        } else if asked.is_regret {
            files.push(("regret.md", regret::markdown(&self.regrets, &machine)));
        } else {
            let rounds = asked.rounds;
            let text = table::markdown(&self.measured, &self.inputs, rounds, &self.notes);
            files.push(("compare.md", text));
            files.push(("compare.svg", chart::svg(&self.measured, &machine)));
        }
        println!();
        for (name, text) in files {
            let path = target().join(name);
            fs::write(&path, &text).map_err(|e| format!("{}: {e}", path.display()))?;
            if name.ends_with(".md") {
                print!("{text}");
            }
            println!("\nwritten to {}", path.display());
        }
        match self.measured.is_empty() && self.regrets.is_empty() {
            true => Err("nothing could be measured".to_owned()),
            false => Ok(()),
        }
    }
}

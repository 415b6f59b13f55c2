//! fastcp beside the tools that people use instead, on a link and data that you name.
//!
//! Every round runs every tool once, so that a change of the weather hits all alike; every copy
//! is compared with its source; the table tells medians and how many times fastcp's time a tool
//! took. Only programs that both ends have take part.

mod tools;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tools::{Far, Tool};

const USAGE: &str = "\
usage: cargo bench --bench compare -- [user@]HOST:/SCRATCH/DIR --input FILE_OR_DIR [options]
       cargo bench --bench compare -- --rsh local /SCRATCH/DIR --input FILE_OR_DIR [options]

  --input PATH         what is copied
  --rounds N           how often each tool runs (3)
  --only NAME,NAME     only these tools and fastcp
  -F FILE              ssh's configuration, for all tools
  --remote-path CMD    fastcp on the far side, if it is not on PATH there
  --fastcp-flags WORDS more flags for fastcp";

/// What was typed.
struct Asked {
    far: Far,
    input: PathBuf,
    rounds: usize,
    only: Option<Vec<String>>,
}

fn main() -> ExitCode {
    // cargo itself adds --bench.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    if words.is_empty()
        || words
            .iter()
            .any(|word| word == "--help" || word == "--test")
    {
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
    let (mut place, mut input, mut only) = (None, None, None);
    let (mut rounds, mut local) = (3, false);
    let mut far = Far::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--input" => input = Some(PathBuf::from(value()?)),
            "--rounds" => rounds = value()?.parse().map_err(|_| "--rounds needs a number")?,
            "--only" => only = Some(value()?.split(',').map(str::to_owned).collect()),
            "--rsh" => local = value()? == "local",
            "-F" => far.ssh_config = Some(value()?),
            "--remote-path" => far.remote_path = Some(value()?),
            "--fastcp-flags" => far.fastcp_flags = value()?.split(' ').map(str::to_owned).collect(),
            _ if word.starts_with('-') => return Err(format!("{word}?\n{USAGE}")),
            _ => place = Some(word),
        }
    }
    let place = place.ok_or(format!("where to?\n{USAGE}"))?;
    match place.split_once(':') {
        _ if local => far.dir = place,
        Some((host, dir)) => (far.host, far.dir) = (Some(host.to_owned()), dir.to_owned()),
        None => return Err(format!("{place} names no host\n{USAGE}")),
    }
    if !far.dir.starts_with('/') {
        return Err(format!(
            "the scratch directory has to start with a slash: {}",
            far.dir
        ));
    }
    let input = input.ok_or(format!("--input is missing\n{USAGE}"))?;
    let input = input
        .canonicalize()
        .map_err(|cause| format!("{}: {cause}", input.display()))?;
    Ok(Asked {
        far,
        input,
        rounds,
        only,
    })
}

fn compare(asked: &Asked) -> Result<(), String> {
    let (tools, absent): (Vec<Tool>, Vec<Tool>) = tools::all(asked.far.host.is_some())
        .into_iter()
        .filter(|tool| {
            let wanted = asked.only.as_ref();
            tool.name == "fastcp"
                || wanted.is_none_or(|only| only.iter().any(|name| name == tool.name))
        })
        .partition(|tool| asked.far.has(tool));
    for tool in &absent {
        println!(
            "not here or not there: {} (needs {})",
            tool.name,
            tool.needs.join(", ")
        );
    }
    let wanted = asked.far.digests_here(&asked.input)?;
    let bytes = tools::bytes_below(&asked.input).map_err(|cause| cause.to_string())?;
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); tools.len()];
    for round in 0..asked.rounds {
        for (tool, times) in tools.iter().zip(&mut times) {
            let into = format!("{}/fastcp-compare-{}", asked.far.dir, std::process::id());
            asked.far.make_dir(&into)?;
            let since = Instant::now();
            let ran = (tool.run)(&asked.far, &asked.input, &into);
            let took = since.elapsed();
            let got = ran.and_then(|()| asked.far.digests_there(&into));
            asked.far.remove_dir(&into)?;
            match got {
                Ok(got) if got == wanted => times.push(took),
                Ok(_) => return Err(format!("{}: the copy differs from its source", tool.name)),
                Err(message) => println!("{}: {message}", tool.name),
            }
            println!(
                "round {}: {:16} {:8.2} s",
                round + 1,
                tool.name,
                took.as_secs_f64()
            );
        }
    }
    print_table(&tools, times, bytes, asked.far.login_time());
    Ok(())
}

fn print_table(tools: &[Tool], times: Vec<Vec<Duration>>, bytes: u64, login: Option<Duration>) {
    let medians: Vec<Option<f64>> = times.into_iter().map(median).collect();
    let own = tools.iter().position(|tool| tool.name == "fastcp");
    let own = own.and_then(|index| medians[index]);
    println!(
        "\n{:.1} MB; medians; x = how many times fastcp's time",
        bytes as f64 / 1e6
    );
    if let Some(login) = login {
        println!(
            "a login that does nothing takes {:.2} s",
            login.as_secs_f64()
        );
    }
    println!("{:16} {:>8} {:>9} {:>7}", "", "s", "MB/s", "x");
    for (tool, median) in tools.iter().zip(&medians) {
        let Some(seconds) = median else {
            println!("{:16} failed", tool.name);
            continue;
        };
        let ratio = own.map_or(String::new(), |own| format!("{:.2}", seconds / own));
        let rate = bytes as f64 / 1e6 / seconds;
        println!("{:16} {seconds:8.2} {rate:9.1} {ratio:>7}", tool.name);
    }
}

fn median(mut times: Vec<Duration>) -> Option<f64> {
    times.sort();
    times.get(times.len() / 2).map(Duration::as_secs_f64)
}

//! The regret: how much slower the tuner's choice is than the best settings that a user could have
//! chosen. One coarse sweep finds three candidates, which then run in turns with the defaults.

use std::fmt::Write;
use std::time::Duration;

use crate::cells::{
    REGRET_MAX, REGRET_MEAN_MAX, SWEEP_CODECS, SWEEP_STREAMS, WRONG_MEMORY_MAX, WRONG_STREAMS,
};
use crate::results::median;
use crate::tools::COPY_MAX;

/// Candidates that run again, and their number of runs.
const CANDIDATES: usize = 3;
const ROUNDS: usize = 5;

pub(crate) struct Regret {
    pub link: String,
    pub input: String,
    /// Medians, in seconds.
    pub default: f64,
    pub best: f64,
    /// The flags of the best.
    pub flags: String,
}

impl Regret {
    pub(crate) fn ratio(&self) -> f64 {
        self.default / self.best
    }
}

/// `copy` runs fastcp with these flags and checks the copy. It returns None if the copy would have
/// taken longer than the given time.
///
/// # Errors
/// If a copy fails.
pub(crate) fn measure(
    link: &str,
    input: &str,
    copy: impl Fn(&[String], Duration) -> Result<Option<Duration>, String>,
) -> Result<Regret, String> {
    let mut sweep: Vec<(Duration, Vec<String>)> = Vec::new();
    for streams in SWEEP_STREAMS {
        for codec in SWEEP_CODECS {
            let streams = streams.to_string();
            let flags = ["--compress", codec, "--streams", &streams].map(str::to_owned);
            // A copy slower than this many others is no candidate, so it is stopped. One connection
            // takes minutes on a link with losses.
            let most = sweep
                .get(CANDIDATES - 1)
                .map_or(COPY_MAX, |(took, _)| *took);
            let took = copy(&flags, most)?;
            let told = took.map_or_else(
                || format!("over {:.2} s", most.as_secs_f64()),
                |took| format!("{:8.2} s", took.as_secs_f64()),
            );
            println!("  sweep: {:32} {told}", flags.join(" "));
            sweep.extend(took.map(|took| (took, flags.to_vec())));
            sweep.sort();
        }
    }
    let mut runs: Vec<(Vec<String>, Vec<Duration>)> = vec![(Vec::new(), Vec::new())];
    let candidates = sweep.into_iter().take(CANDIDATES);
    runs.extend(candidates.map(|(_, flags)| (flags, Vec::new())));
    for _ in 0..ROUNDS {
        for (flags, times) in &mut runs {
            let took = copy(flags, COPY_MAX)?;
            times.push(took.ok_or_else(|| format!("{COPY_MAX:?} were not enough"))?);
        }
    }
    let mut medians = runs
        .iter()
        .filter_map(|(flags, times)| Some((median(times)?, flags)));
    let (default, _) = medians.next().ok_or("no round")?;
    let best = medians.min_by(|(a, _), (b, _)| a.total_cmp(b));
    let (best, flags) = best.ok_or("no candidate")?;
    println!(
        "  defaults {default:.2} s, best {best:.2} s: {:.2}",
        default / best
    );
    Ok(Regret {
        link: link.to_owned(),
        input: input.to_owned(),
        default,
        best,
        flags: flags.join(" "),
    })
}

pub(crate) fn markdown_of_memory(all: &[Regret], rounds: usize, machine: &str) -> String {
    let mut out = format!(
        "{machine}\n\nMedians of {rounds} interleaved rounds in seconds, with {WRONG_STREAMS} streams \
         remembered from another link and with nothing remembered.\n\n\
         | link | input | {WRONG_STREAMS} streams | nothing | ratio |\n|---|---|---:|---:|---:|\n"
    );
    for it in all {
        let missed = match it.ratio() > WRONG_MEMORY_MAX {
            true => " **missed**",
            false => "",
        };
        let (link, input, ratio) = (&it.link, &it.input, it.ratio());
        let _ = writeln!(
            out,
            "| {link} | {input} | {:.2} | {:.2} | {ratio:.2}{missed} |",
            it.default, it.best
        );
    }
    let _ = writeln!(out, "\nEach ratio is to be at most {WRONG_MEMORY_MAX}.");
    out
}

pub(crate) fn markdown(all: &[Regret], machine: &str) -> String {
    let mut out = format!(
        "{machine}\n\nMedians of {ROUNDS} interleaved rounds in seconds; regret is the defaults' \
         time for one of the best of {CANDIDATES} candidates.\n\n\
         | link | input | defaults | best | by | regret |\n|---|---|---:|---:|---|---:|\n"
    );
    for it in all {
        let missed = if it.ratio() > REGRET_MAX {
            " **missed**"
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "| {} | {} | {:.2} | {:.2} | `{}` | {:.2}{missed} |",
            it.link,
            it.input,
            it.default,
            it.best,
            it.flags,
            it.ratio()
        );
    }
    let logs: f64 = all.iter().map(|it| it.ratio().ln()).sum();
    let mean = (logs / all.len().max(1) as f64).exp();
    let verdict = if mean <= REGRET_MEAN_MAX {
        "reached"
    } else {
        "**missed**"
    };
    let _ = writeln!(
        out,
        "\nGeometric mean {mean:.3} (goal: at most {REGRET_MEAN_MAX}, {verdict}); goal of each cell: \
         at most {REGRET_MAX}."
    );
    out
}

//! Runs of the tools: each copies into an empty directory, and each copy is compared with its
//! source.

use std::path::PathBuf;
use std::time::Duration;

use crate::cells::{BEST, Cell, Link, WRONG_STREAMS};
use crate::input::{self, Input};
use crate::place::Place;
use crate::regret::Regret;
use crate::results::{Measured, Row, median};
use crate::spent::{self, Spent};
use crate::tools::{self, COPY_MAX, Chosen, Errand, FASTCP, TIMED_OUT, Tool};
use crate::{Asked, memory, shell};

/// Runs tools between two ends.
pub(crate) struct Bench<'a> {
    pub asked: &'a Asked,
    pub place: &'a Place,
    /// The destination directory at the far end.
    pub into: String,
}

impl Bench<'_> {
    /// Runs every tool of the cell once in each round.
    ///
    /// # Errors
    /// If a login fails. The error of a tool is in its row instead.
    pub(crate) fn rounds(
        &self,
        link: &Link,
        cell: &Cell,
        input: &Input,
        notes: &mut Vec<String>,
    ) -> Result<Measured, String> {
        let tools = self.tools(cell, notes);
        let mut flags = self.asked.fastcp_flags.clone();
        if tools.iter().any(|tool| tool.name == "iperf3 like fastcp") {
            // Only these messages tell which congestion control fastcp chose.
            flags.push("-v".to_owned());
        }
        let row = |tool: &&'static Tool| Row {
            tool: tool.name,
            times: Vec::new(),
            spent: Vec::new(),
            fault: None,
        };
        let mut rows: Vec<Row> = tools.iter().map(row).collect();
        let (mut logins, mut chosen) = (Vec::new(), Chosen::default());
        for round in 1..=self.asked.rounds {
            logins.push(self.place.login_time()?);
            for (tool, row) in tools.iter().zip(&mut rows) {
                match self.once(tool, input, &flags, COPY_MAX, None, &mut chosen) {
                    Ok((took, spent)) => {
                        row.times.push(took);
                        row.spent.extend(self.place.is_here.then_some(spent));
                    }
                    Err(why) => row.fault = Some(why),
                }
                let last = row.fault.clone().unwrap_or_default();
                let took = row.times.last().map_or(0.0, Duration::as_secs_f64);
                println!("  round {round}: {:18} {took:8.2} s {last}", tool.name);
            }
        }
        Ok(Measured {
            link: link.name.to_owned(),
            input: cell.input.to_owned(),
            bytes: input.bytes,
            logins,
            rows,
            goals: cell.goals.to_vec(),
        })
    }

    /// Runs fastcp with these flags and checks the copy. None if it was stopped after `most`.
    ///
    /// # Errors
    /// If fastcp fails, or the copy differs from its source.
    pub(crate) fn copy(
        &self,
        input: &Input,
        flags: &[String],
        most: Duration,
    ) -> Result<Option<Duration>, String> {
        self.copy_with(input, flags, most, None)
    }

    /// Like [`Bench::copy`], with these stored settings.
    fn copy_with(
        &self,
        input: &Input,
        flags: &[String],
        most: Duration,
        memory: Option<&str>,
    ) -> Result<Option<Duration>, String> {
        let fastcp = tools::named(FASTCP).expect("it is in the list");
        let flags = [&self.asked.fastcp_flags[..], flags].concat();
        let chosen = &mut Chosen::default();
        match self.once(fastcp, input, &flags, most, memory, chosen) {
            Ok((took, _)) => Ok(Some(took)),
            Err(why) if why.contains(TIMED_OUT) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Runs fastcp without stored settings and with those of another link, in turns.
    ///
    /// # Errors
    /// If fastcp fails, a copy differs from its source, or a copy is too short to store settings.
    pub(crate) fn wrong_memory(
        &self,
        link: &Link,
        cell: &Cell,
        input: &Input,
    ) -> Result<Regret, String> {
        let copy = |memory: Option<&str>| {
            let took = self.copy_with(input, &[], COPY_MAX, memory)?;
            took.ok_or_else(|| format!("{COPY_MAX:?} were not enough"))
        };
        // The stored key and round trip are those of this link. Only the number of connections is
        // wrong.
        copy(None)?;
        let wrong = memory::of_other_link(&self.cache())?;
        let (mut none, mut with) = (Vec::new(), Vec::new());
        for round in 1..=self.asked.rounds {
            none.push(copy(None)?);
            with.push(copy(Some(&wrong))?);
            let seconds = |times: &[Duration]| times.last().map_or(0.0, Duration::as_secs_f64);
            println!(
                "  round {round}: {:.2} s with nothing remembered, {:.2} s with {WRONG_STREAMS} streams",
                seconds(&none),
                seconds(&with)
            );
        }
        Ok(Regret {
            link: link.name.to_owned(),
            input: cell.input.to_owned(),
            default: median(&with).ok_or("no round")?,
            best: median(&none).ok_or("no round")?,
            flags: "nothing remembered".to_owned(),
        })
    }

    /// The directory of fastcp's stored settings.
    fn cache(&self) -> PathBuf {
        self.asked.work.join("cache")
    }

    fn once(
        &self,
        tool: &Tool,
        input: &Input,
        flags: &[String],
        most: Duration,
        memory: Option<&str>,
        chosen: &mut Chosen,
    ) -> Result<(Duration, Spent), String> {
        let into = shell::quote(&self.into);
        shell::finish(self.place.far(&format!("rm -rf {into} && mkdir -p {into}")))?;
        let cache = self.cache();
        input::remove(&cache).map_err(|e| e.to_string())?;
        if let Some(memory) = memory {
            memory::put(&cache, memory)?;
        }
        let errand = Errand {
            place: self.place,
            cache: &cache,
            input: &input.path,
            bytes: input.bytes,
            into: &self.into,
            seconds: if self.asked.is_quick { 1 } else { 10 },
            fastcp_flags: flags,
            most,
            chosen: *chosen,
        };
        let (ran, spent) = spent::while_doing(|| tool.run(&errand));
        let ran = ran?;
        *chosen = ran.chosen.unwrap_or(*chosen);
        if !tool.is_rate {
            self.place.check(&input.path, &self.into)?;
        }
        shell::finish(self.place.far(&format!("rm -rf {into}")))?;
        Ok((ran.took, spent))
    }

    /// The installed tools of the cell, fastcp first.
    fn tools(&self, cell: &Cell, notes: &mut Vec<String>) -> Vec<&'static Tool> {
        let of_goals = cell
            .goals
            .iter()
            .map(|goal| goal.tool)
            .filter(|tool| *tool != BEST);
        let wanted = |name: &&str| {
            let words = &self.asked.tools;
            words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
        };
        let names = of_goals.chain(cell.tools.iter().copied()).filter(wanted);
        let mut tools = vec![tools::named(FASTCP).expect("it is in the list")];
        for tool in names.filter_map(tools::named) {
            if self.place.has(tool.needs) && (self.place.is_here || !tool.is_local) {
                tools.push(tool);
                continue;
            }
            let note = format!("left out: {} (needs {})", tool.name, tool.needs.join(", "));
            if !notes.contains(&note) {
                println!("  {note}");
                notes.push(note);
            }
        }
        tools
    }
}

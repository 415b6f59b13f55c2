//! `--help` on one screen, `--help all`, and the pages of `--help TOPIC`. `--man` prints the same as
//! manual pages.

use std::ffi::{OsStr, OsString};

use clap::builder::Resettable;
use clap::{Command, CommandFactory};

use crate::error::{Error, Result};
use crate::guide;
use crate::ui::stdout;
use crate::units::printable;

use super::args::Args;
use super::exit::code_of;
use super::man;

/// Options that most people use, in their order on the short page: one screen of 80 columns and 24
/// lines.
const COMMON: [&str; 20] = [
    "recursive",
    "archive",
    "preserve",
    "dry_run",
    "check",
    "also",
    "delete",
    "exclude",
    "snapshot",
    "inplace",
    "fsync",
    "bwlimit",
    "retry_for",
    "port",
    "identities",
    "sudo",
    "quiet",
    "verbose",
    "json",
    "version",
];

const SHORT: &str = "{usage-heading} {usage}\n\n{options}";

const MORE: &str = "--help all: every option, exit codes; --help TOPIC: scp, rsync, pipes ...\n";

/// The topic of the page with all options.
const ALL: &str = "all";

/// A request for a page, by the first words of the command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PageRequest {
    Help(OsString),
    /// Without a topic it is the page about the command.
    Man(Option<OsString>),
}

impl PageRequest {
    /// `--help TOPIC` and `--man` ask for a page only at the start: in `-r --help x`, `x` is not a
    /// topic.
    pub(super) fn of(mut words: impl Iterator<Item = OsString>) -> Option<PageRequest> {
        let first = words.next()?;
        let topic = words.next();
        let topic = topic.filter(|word| !word.as_encoded_bytes().starts_with(b"-"));
        match first.to_str()? {
            "--help" => topic.map(PageRequest::Help),
            "--man" => Some(PageRequest::Man(topic)),
            _ => None,
        }
    }

    /// Prints the page; returns the exit code.
    ///
    /// # Errors
    /// Usage, if there is no such page.
    pub(super) fn answer(&self) -> Result<i32> {
        let text = match self {
            PageRequest::Help(topic) if topic == ALL => all(),
            PageRequest::Help(topic) => page("--help", topic)?.to_owned(),
            PageRequest::Man(None) => man::command(Args::command()),
            PageRequest::Man(Some(topic)) => {
                let text = page("--man", topic)?;
                man::page(&topic.to_string_lossy(), text)
            }
        };
        Ok(code_of(0, stdout::show(&text)))
    }
}

fn page(option: &str, topic: &OsStr) -> Result<&'static str> {
    topic.to_str().and_then(guide::page).ok_or_else(|| {
        let topic = printable(topic.as_encoded_bytes());
        Error::usage(format!(
            "{option} has no topic {topic}; the topics are {}",
            guide::topics()
        ))
    })
}

/// The options that most people use.
pub(super) fn short() -> String {
    let place = |id: &str| COMMON.iter().position(|common| *common == id);
    let command = Args::command().help_template(SHORT);
    let mut command: Command = command.mut_args(|arg| match place(arg.get_id().as_str()) {
        Some(place) => arg.help_heading(Resettable::Reset).display_order(place),
        None => arg.hide(true),
    });
    format!("{}\n{MORE}", command.render_help().to_string().trim_end())
}

/// All options, exit codes and examples.
fn all() -> String {
    Args::command().render_help().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_the_word_after_a_first_help() {
        let asked = |line: &str| PageRequest::of(line.split_whitespace().map(OsString::from));
        assert_eq!(
            asked("--help routes"),
            Some(PageRequest::Help("routes".into()))
        );
        assert_eq!(asked("--man"), Some(PageRequest::Man(None)));
        assert_eq!(
            asked("--man pipes"),
            Some(PageRequest::Man(Some("pipes".into())))
        );
        for line in [
            "--help",
            "-h routes",
            "--help -r",
            "a --help routes",
            "routes",
            "a --man",
            "",
        ] {
            assert_eq!(asked(line), None, "{line}");
        }
    }

    #[test]
    fn the_short_page_fits_a_screen_and_the_long_one_80_columns() {
        Args::command().debug_assert();
        let short = short();
        assert!(short.lines().count() <= 23, "{short}");
        assert_eq!(
            short.matches("\n  -").count() + short.matches("\n      --").count(),
            COMMON.len()
        );
        for text in [short, all()] {
            assert!(text.lines().all(|line| line.len() <= 80), "{text}");
            assert!(!text.contains("--server"));
        }
    }
}

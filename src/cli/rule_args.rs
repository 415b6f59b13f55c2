//! The options with filter rules, in the order typed: the first rule that matches decides.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, ValueHint};

use crate::selection::{LineForm, Parsed};

/// The heading of all options that choose files.
pub(super) const CHOOSING: &str = "Choosing files";

/// An option with a rule, or with a file of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleOption {
    Exclude,
    Include,
    ExcludeFrom,
    IncludeFrom,
    Filter,
}

/// What `--help` says of each.
const OPTIONS: [(RuleOption, &str, &str, &str); 5] = [
    (
        RuleOption::Exclude,
        "exclude",
        "PATTERN",
        "Leave out entries that match, as in rsync",
    ),
    (
        RuleOption::Include,
        "include",
        "PATTERN",
        "Copy entries that match, whatever later rules say",
    ),
    (
        RuleOption::ExcludeFrom,
        "exclude-from",
        "FILE",
        "Leave out entries that match a line of FILE",
    ),
    (
        RuleOption::IncludeFrom,
        "include-from",
        "FILE",
        "Copy entries that match a line of FILE",
    ),
    (
        RuleOption::Filter,
        "filter",
        "RULE",
        "Filter rule in rsync's syntax",
    ),
];

/// The options with rules, their names and values, in the order typed.
#[derive(Debug, Default)]
pub(super) struct RuleArgs(pub Vec<(RuleOption, &'static str, OsString)>);

impl RuleArgs {
    /// The files of rules that the options name; `-` is stdin.
    pub(super) fn files(&self) -> impl Iterator<Item = OsString> {
        self.0.iter().filter_map(|(option, _, value)| match option {
            RuleOption::ExcludeFrom | RuleOption::IncludeFrom => Some(value.clone()),
            RuleOption::Filter => match Parsed::of(value.as_bytes(), LineForm::Rules) {
                Ok(Parsed::Merge { file, .. }) => Some(OsString::from_vec(file)),
                _ => None,
            },
            RuleOption::Exclude | RuleOption::Include => None,
        })
    }

    pub(super) fn reads_stdin(&self) -> bool {
        self.files().any(|file| file == "-")
    }
}

impl clap::Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        command.args(OPTIONS.map(|(_, name, value, help)| {
            Arg::new(name)
                .long(name)
                .value_name(value)
                .help(help)
                .help_heading(CHOOSING)
                .value_hint(match value {
                    "FILE" => ValueHint::FilePath,
                    _ => ValueHint::Other,
                })
                .value_parser(clap::value_parser!(OsString))
                // A pattern may begin with a dash, and so does a rule.
                .allow_hyphen_values(true)
                .action(ArgAction::Append)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        RuleArgs::augment_args(command)
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<RuleArgs, clap::Error> {
        let mut typed = Vec::new();
        for (option, name, ..) in OPTIONS {
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            typed.extend(
                places
                    .zip(values)
                    .map(|(at, value)| (at, (option, name, value.clone()))),
            );
        }
        typed.sort_by_key(|(at, ..)| *at);
        let typed = typed.into_iter().map(|(_, typed)| typed);
        Ok(RuleArgs(typed.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = RuleArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

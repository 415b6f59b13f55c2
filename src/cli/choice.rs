//! The options that choose files.
//!
//! The first filter rule that matches decides, so the options with rules count in the order in
//! which they were typed.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, ValueHint};

use crate::dir::home;
use crate::error::{Error, Result, reason_of};
use crate::selection::{
    BadRule, LineForm, Parsed, RULE_FILE_MAX, Rule, RuleLines, Selection, Selector,
};
use crate::session::{EndKind, Operand};
use crate::units::printable;

use super::args::{Args, CHOOSING};

/// Rule files that name one another end somewhere.
const DEPTH_MAX: usize = 10;

/// An option with a rule, or with a file of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleOption {
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
        "Leave out what matches, as rsync does",
    ),
    (
        RuleOption::Include,
        "include",
        "PATTERN",
        "Copy what matches in spite of later rules",
    ),
    (
        RuleOption::ExcludeFrom,
        "exclude-from",
        "FILE",
        "Leave out what matches a line of FILE",
    ),
    (
        RuleOption::IncludeFrom,
        "include-from",
        "FILE",
        "Copy what matches a line of FILE",
    ),
    (
        RuleOption::Filter,
        "filter",
        "RULE",
        "Filter rule in rsync's syntax",
    ),
];

/// The options with rules, in the order typed.
#[derive(Debug, Default)]
pub(super) struct RuleArgs(Vec<(RuleOption, OsString)>);

impl clap::Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        command.args(OPTIONS.map(|(_, name, value, help)| {
            Arg::new(name)
                .long(name)
                .value_name(value)
                .help(help)
                .help_heading(CHOOSING)
                .value_hint(ValueHint::Other)
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
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<RuleArgs, clap::Error> {
        let mut typed = Vec::new();
        for (option, name, ..) in OPTIONS {
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            typed.extend(places.zip(values).map(|(at, value)| (at, option, value)));
        }
        typed.sort_by_key(|(at, ..)| *at);
        let typed = typed.into_iter();
        Ok(RuleArgs(
            typed
                .map(|(_, option, value)| (option, value.clone()))
                .collect(),
        ))
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        *self = RuleArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Which entries of `sources` are copied.
///
/// # Errors
/// Usage, if a rule is wrong, or a file of rules cannot be read.
pub(super) fn selector(args: &Args, sources: &[Operand]) -> Result<Arc<Selector>> {
    let now = SystemTime::now();
    let selection = Selection {
        rules: rules(args)?,
        min_size: args.min_size,
        max_size: args.max_size,
        modified_from: args.max_age.map(|age| seconds(now, age)),
        modified_to: args.min_age.map(|age| seconds(now, age)),
        one_file_system: args.one_file_system,
    };
    let selector = Selector::new(selection).map_err(|why| Error::usage(why.to_string()))?;
    if selector.is_choosing() && sources.iter().any(|source| source.what != EndKind::Path) {
        return Err(Error::usage(
            "--exclude and the other options that choose files do not apply to a pipe or command",
        ));
    }
    Ok(Arc::new(selector))
}

/// The time before `now`, in seconds since 1970.
fn seconds(now: SystemTime, age: Duration) -> i64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = since.map_or(0, |since| since.as_secs() as i64);
    now.saturating_sub_unsigned(age.as_secs())
}

fn rules(args: &Args) -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for (option, value) in &args.rules.0 {
        let (take, is_file) = match option {
            RuleOption::Exclude => (false, false),
            RuleOption::Include => (true, false),
            RuleOption::ExcludeFrom => (false, true),
            RuleOption::IncludeFrom => (true, true),
            RuleOption::Filter => {
                let parsed = Parsed::of(value.as_bytes(), LineForm::Rules);
                add(&mut rules, parsed, "--filter", DEPTH_MAX)?;
                continue;
            }
        };
        let form = LineForm::Patterns { take };
        let name = OPTIONS.iter().find(|it| it.0 == *option);
        let name = format!("--{}", name.map_or("", |it| it.1));
        match is_file {
            true => read(&mut rules, value, form, false, &name, DEPTH_MAX)?,
            false => add(&mut rules, Parsed::of(value.as_bytes(), form), &name, 0)?,
        }
    }
    if args.cvs_exclude {
        rules.extend(Rule::of_cvs());
        rules.push(Rule::cvs_file());
        let own = home::own().map(|home| home.join(".cvsignore"));
        if let Some(own) = own.filter(|own| own.exists()) {
            let form = LineForm::BarePatterns { take: false };
            read(&mut rules, own.as_os_str(), form, true, "--cvs-exclude", 0)?;
        }
        let words = std::env::var_os("CVSIGNORE").unwrap_or_default();
        let form = LineForm::BarePatterns { take: false };
        for parsed in RuleLines::new(words.as_bytes(), form, true) {
            add(&mut rules, parsed, "CVSIGNORE", 0)?;
        }
    }
    Ok(rules)
}

/// Adds a rule. `from` says where it stands.
fn add(
    rules: &mut Vec<Rule>,
    parsed: std::result::Result<Parsed, BadRule>,
    from: &str,
    depth: usize,
) -> Result<()> {
    match parsed.map_err(|why| Error::usage(format!("{from}: {why}")))? {
        Parsed::Rules(more) => rules.extend(more),
        Parsed::Clear => rules.clear(),
        Parsed::Merge {
            file,
            form,
            splits_words,
        } => {
            let file = OsStr::from_bytes(&file);
            read(rules, file, form, splits_words, from, depth)?;
        }
    }
    Ok(())
}

/// Adds the rules in a file, or those on stdin for `-`.
fn read(
    rules: &mut Vec<Rule>,
    file: &OsStr,
    form: LineForm,
    splits_words: bool,
    from: &str,
    depth: usize,
) -> Result<()> {
    let shown = format!("{from} {}", printable(file.as_bytes()));
    let fail = |why: &str| Error::usage(format!("{shown}: {why}"));
    let mut text = Vec::new();
    let most = RULE_FILE_MAX as u64 + 1;
    let read = match file == "-" {
        true => std::io::stdin().lock().take(most).read_to_end(&mut text),
        false => std::fs::File::open(file).and_then(|it| it.take(most).read_to_end(&mut text)),
    };
    read.map_err(|error| fail(&reason_of(&error)))?;
    if text.len() > RULE_FILE_MAX {
        return Err(fail("a rule file may have at most 1 MiB"));
    }
    for parsed in RuleLines::new(&text, form, splits_words) {
        let Some(depth) = depth.checked_sub(1) else {
            if matches!(parsed, Ok(Parsed::Merge { .. })) {
                return Err(fail("rule files are nested too deeply"));
            }
            add(rules, parsed, &shown, 0)?;
            continue;
        };
        add(rules, parsed, &shown, depth)?;
    }
    Ok(())
}

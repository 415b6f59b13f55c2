//! The options that choose files.
//!
//! The first filter rule that matches decides, so the options with rules count in the order in
//! which they were typed.

use std::ffi::OsStr;
use std::io::{Read, StdinLock};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use crate::dir::home;
use crate::error::{Error, Result, reason_of};
use crate::pipe::{is_stdin_closed, open_option_file};
use crate::selection::{
    BadRule, LineForm, Parsed, RULES_MAX, Rule, RuleLines, Selection, Selector,
};
use crate::session::{EndKind, Operand};
use crate::units::printable;

use super::args::Args;
use super::rule_args::RuleOption;

/// Most bytes of a rule file that this process reads before the copy, comments included.
const FILE_MAX: u64 = 1 << 20;

/// Most levels of rule files that name other rule files, so that a loop ends.
const DEPTH_MAX: usize = 32;

const NO_FILES: &str =
    "--exclude and the other options that choose files do not apply to a pipe or command";

/// Which entries of `sources` are copied.
///
/// # Errors
/// Usage, if a rule is wrong, or a file of rules cannot be read.
pub(super) fn selector(
    args: &Args,
    sources: &[Operand],
    start: SystemTime,
) -> Result<Arc<Selector>> {
    let has_options = !args.rules.0.is_empty() || args.cvs_exclude;
    let has_files = || sources.iter().all(|source| source.what == EndKind::Path);
    if has_options && !has_files() {
        return Err(Error::usage(NO_FILES));
    }
    let selection = Selection {
        rules: rules(args)?,
        min_size: args.min_size,
        max_size: args.max_size,
        modified_from: args.max_age.map(|age| seconds(start, age)),
        modified_to: args.min_age.map(|age| seconds(start, age)),
        one_file_system: args.one_file_system,
    };
    let selector = Selector::new(selection).map_err(|why| Error::usage(why.to_string()))?;
    if selector.is_choosing() && !has_files() {
        return Err(Error::usage(NO_FILES));
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
    for (option, name, value) in &args.rules.0 {
        let (take, is_file) = match option {
            RuleOption::Exclude => (false, false),
            RuleOption::Include => (true, false),
            RuleOption::ExcludeFrom => (false, true),
            RuleOption::IncludeFrom => (true, true),
            RuleOption::Filter => {
                let parsed = Parsed::of(value.as_bytes(), LineForm::Rules);
                add(&mut rules, parsed, "--filter", (DEPTH_MAX, args.from0))?;
                continue;
            }
        };
        let form = LineForm::Patterns { take };
        let name = format!("--{name}");
        match is_file {
            true => {
                let form = FileForm {
                    form,
                    splits_words: false,
                    has_nuls: args.from0,
                };
                read(&mut rules, value, form, &name, DEPTH_MAX)?;
            }
            false => {
                let parsed = Parsed::of(value.as_bytes(), form);
                add(&mut rules, parsed, &name, (0, args.from0))?;
            }
        }
    }
    if args.cvs_exclude {
        rules.push(Rule::cvs_file());
        rules.extend(cvs_rules()?);
    }
    Ok(rules)
}

/// The rules of `--cvs-exclude` that hold in every directory. A `!` in `~/.cvsignore` or
/// `CVSIGNORE` removes the rules before it in this list, but no rule of the command line.
fn cvs_rules() -> Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Rule::of_cvs().collect();
    let form = LineForm::BarePatterns { take: false };
    let own = home::own().map(|home| home.join(".cvsignore"));
    if let Some(own) = own.filter(|own| own.exists()) {
        let form = FileForm {
            form,
            splits_words: true,
            has_nuls: false,
        };
        read(&mut rules, own.as_os_str(), form, "--cvs-exclude", 0)?;
    }
    let words = std::env::var_os("CVSIGNORE").unwrap_or_default();
    for parsed in RuleLines::new(words.as_bytes(), form, true) {
        add(&mut rules, parsed, "CVSIGNORE", (0, false))?;
    }
    Ok(rules)
}

/// The form of a file of rules.
#[derive(Clone, Copy)]
struct FileForm {
    form: LineForm,
    splits_words: bool,
    /// `--from0`
    has_nuls: bool,
}

/// Adds a rule. `from` says where it stands.
fn add(
    rules: &mut Vec<Rule>,
    parsed: std::result::Result<Parsed, BadRule>,
    from: &str,
    (depth, has_nuls): (usize, bool),
) -> Result<()> {
    match parsed.map_err(|why| Error::usage(format!("{from}: {why}")))? {
        Parsed::Rules(more) => rules.extend(more),
        Parsed::Cvs => rules.extend(cvs_rules()?),
        Parsed::Clear => rules.clear(),
        Parsed::Merge {
            own,
            file,
            form,
            splits_words,
        } => {
            rules.extend(own);
            let file = OsStr::from_bytes(&file);
            let form = FileForm {
                form,
                splits_words,
                has_nuls,
            };
            read(rules, file, form, from, depth)?;
        }
    }
    match rules.len() > RULES_MAX {
        true => Err(Error::usage(BadRule::too_many().to_string())),
        false => Ok(()),
    }
}

/// Adds the rules in a file, or those on stdin for `-`.
fn read(
    rules: &mut Vec<Rule>,
    file: &OsStr,
    form: FileForm,
    from: &str,
    depth: usize,
) -> Result<()> {
    let shown = format!("{from} {}", printable(file.as_bytes()));
    let fail = |why: &str| Error::usage(format!("{shown}: {why}"));
    let mut text = Vec::new();
    let most = FILE_MAX + 1;
    let read = match file == "-" {
        true => stdin(&shown)?.take(most).read_to_end(&mut text),
        false => {
            open_option_file(file.as_ref()).and_then(|it| it.take(most).read_to_end(&mut text))
        }
    };
    read.map_err(|error| fail(&reason_of(&error)))?;
    if text.len() as u64 > FILE_MAX {
        return Err(fail("a rule file may have at most 1 MiB"));
    }
    let FileForm {
        form,
        splits_words,
        has_nuls,
    } = form;
    for parsed in RuleLines::new(&text, form, splits_words).with_nuls(has_nuls) {
        let Some(depth) = depth.checked_sub(1) else {
            if matches!(parsed, Ok(Parsed::Merge { .. })) {
                return Err(fail("rule files are nested too deeply"));
            }
            add(rules, parsed, &shown, (0, has_nuls))?;
            continue;
        };
        add(rules, parsed, &shown, (depth, has_nuls))?;
    }
    Ok(())
}

/// Standard input with rules or names; `shown` is for messages.
///
/// # Errors
/// Usage, if this process was started without one, or something else was read from it: there would
/// be no rules and no names.
pub(super) fn stdin(shown: &str) -> Result<StdinLock<'static>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let why = match (is_stdin_closed(), IS_TAKEN.swap(true, Relaxed)) {
        (true, _) => "standard input is closed",
        (false, true) => "standard input can be read only once",
        (false, false) => return Ok(std::io::stdin().lock()),
    };
    Err(Error::usage(format!("{shown}: {why}")))
}

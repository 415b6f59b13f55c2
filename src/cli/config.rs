//! Options from configuration files (`/etc/fastcp/config`, `~/.config/fastcp/config`) and from
//! `FASTCP_FLAGS`. They stand before the words of the command line, so the later word wins as it
//! does among typed words.
//!
//! The files are TOML. `[default]` holds for each copy, `[host."db*"]` for a copy from or to such a
//! host. A key is the long name of an option, so that there is one definition of the options.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind as Fault;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, Parser};
use globset::Glob;
use toml::{Table, Value};

use crate::error::{Error, Kind, Result, reason_of};
use crate::units::printable;

use super::args::{Args, DATA, SSH};
use super::{exit, operand};

const SYSTEM: &str = "/etc/fastcp/config";

/// Below `$XDG_CONFIG_HOME` or `~/.config`.
const OF_USER: &str = "fastcp/config";

const VARIABLE: &str = "FASTCP_FLAGS";

/// A longer file is not written by hand.
const FILE_MAX: u64 = 1 << 20;

/// Limit of the options that files and `FASTCP_FLAGS` give together: each of them is parsed alone.
const SETTINGS_MAX: usize = 1000;

/// Options for sources and destinations, and options that copy nothing. The user must see them in the
/// command.
const TYPED_ONLY: &[&str] = &[
    "also",
    "also-from",
    "check",
    "clean",
    "completions",
    "dry-run",
    "files-from",
    "from-command",
    "help",
    "licenses",
    "man",
    "map",
    "no-config",
    "probe",
    "remove",
    "sample",
    "scp",
    "show-config",
    "size",
    "to-command",
    "version",
];

const TO_BE_TYPED: &str = "it has to be typed on the command line";

/// Hidden options without `no-` that files may give. Those with `no-` are for users anyway.
const HIDDEN_BUT_ALLOWED: &[&str] = &["hard-links", "retries"];

/// Options that weaken a copy, delete something or choose the program that runs at the other end.
/// Each run says that they apply.
const TOLD: &[&str] = &[
    "--allow-empty",
    "--delete",
    "--delete-excluded",
    "--force",
    "--inplace",
    "--keep",
    "--live",
    NO_ENCRYPT,
    "--remote-path",
    "--remove-source-files",
    "--rsh",
    "--sudo",
    "--trust-partial",
    // Letters that ssh gets.
    "-A",
    "-S",
    "-o",
];

const NO_ENCRYPT: &str = "--no-encrypt";

const FROM_HERE: &str = "options from the configuration";

/// Options, by clap's names, of which the later one counts.
const OPPOSITES: [(&str, &str); 2] = [("quiet", "verbose"), ("quiet", "progress")];

/// One option as it would be typed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// clap's name of the option.
    id: String,
    /// `--delete` or `-o`.
    name: String,
    word: OsString,
    /// The file with the section, or the variable.
    origin: String,
}

/// A file or the variable, for `--show-config`.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    name: String,
    is_there: bool,
}

/// The options of all files and of the variable, in the order in which they apply.
#[derive(Debug, Default)]
pub(super) struct Config {
    places: Vec<Place>,
    settings: Vec<Setting>,
    /// What this copy cannot have ([`Config::applied`]).
    left_out: Vec<Setting>,
}

/// `args`, which were parsed from the words `typed`, with the options of the configuration.
///
/// # Errors
/// Usage, as of [`Config::read`].
pub(super) fn with_config(args: Args, typed: &[OsString]) -> Result<(Args, Config)> {
    // The version alone depends on no option, and is asked for when something does not work.
    let is_bare = args.version && args.operands.is_empty();
    if args.no_config || is_bare {
        return Ok((args, Config::default()));
    }
    let command = Args::command();
    let hosts = hosts(&args);
    let mut config = Config::read(&hosts, &command)?;
    // These copy nothing.
    if args.version || args.remove {
        config.limit_to(&[SSH], &command);
        config.settings.retain(|setting| setting.id != "rsh");
    } else if args.probe || args.clean {
        let headings = [DATA, SSH];
        let of_here = if hosts.is_empty() {
            &headings[..1]
        } else {
            &headings
        };
        config.limit_to(of_here, &command);
    }
    if config.settings.is_empty() {
        return Ok((args, config));
    }
    config.settle(typed, &command);
    match arguments(&config.settings, typed) {
        Ok(args) => Ok((args, config)),
        Err(error) => Err(config.explain(error)),
    }
}

/// The arguments of the words `typed` with `settings` before them.
fn arguments(settings: &[Setting], typed: &[OsString]) -> Result<Args> {
    let name = OsString::from("fastcp");
    let words = settings.iter().map(|setting| &setting.word);
    let words = std::iter::once(&name).chain(words).chain(typed);
    Args::try_parse_from(words).map_err(|fault| Error::usage(reason(&fault)))
}

/// True if a list or a file of rules is a pipe or stdin, which can be read only once.
fn reads_pipe(args: &Args) -> bool {
    let is_pipe = |file: &OsStr| {
        // What cannot be looked at cannot be read either.
        file == "-" || fs::metadata(file).is_ok_and(|at| !at.is_file())
    };
    let also_from = args.also_from.as_deref().map(Path::as_os_str);
    let lists = [args.files_from.as_deref(), also_from];
    lists.into_iter().flatten().any(is_pipe) || args.rules.files().any(|file| is_pipe(&file))
}

/// The hosts that the command names.
fn hosts(args: &Args) -> Vec<String> {
    // Malformed operands are refused later.
    let operands = args.operands.iter().chain(&args.also).cloned();
    let operands = operands.filter_map(|word| operand::parse(word).ok());
    operands
        .filter_map(|operand| operand.host)
        .map(|host| host.name)
        .collect()
}

impl Config {
    /// Reads the files and the variable for a command that names `hosts`.
    ///
    /// # Errors
    /// Usage, if a file cannot be read, may have been written by another user, or gives an option
    /// that does not exist, that has to be typed or whose value is malformed.
    fn read(hosts: &[String], command: &Command) -> Result<Config> {
        let mut config = Config::default();
        for path in [Some(PathBuf::from(SYSTEM)), of_user()]
            .into_iter()
            .flatten()
        {
            config.add_file(&path, hosts, command)?;
        }
        config.add_variable(std::env::var_os(VARIABLE), command)?;
        if config.settings.len() > SETTINGS_MAX {
            return Err(Error::usage(format!(
                "the configuration files and {VARIABLE} give more than {SETTINGS_MAX} options \
                 together"
            )));
        }
        Ok(config)
    }

    fn add_file(&mut self, path: &Path, hosts: &[String], command: &Command) -> Result<()> {
        let name = printable(path.as_os_str().as_bytes());
        let text = text_of(path, &name)?;
        self.places.push(Place {
            name: name.clone(),
            is_there: text.is_some(),
        });
        let Some(text) = text else { return Ok(()) };
        let table: Table = text.parse().map_err(|fault: toml::de::Error| {
            let line = fault
                .span()
                .map_or(1, |span| 1 + newlines(&text[..span.start]));
            Error::usage(format!(
                "{name}: line {line}: {}",
                fault.message().trim_end()
            ))
        })?;
        let sections = sections(table, hosts);
        for section in sections.map_err(|why| Error::usage(format!("{name}: {why}")))? {
            let origin = format!("{name} [{}]", section.name);
            // A mistake in the section of another host should not wait for that host.
            let mut checked = Config::default();
            let config = if section.holds {
                &mut *self
            } else {
                &mut checked
            };
            for (key, value) in section.keys {
                config.add_key(&key, &value, &origin, command)?;
            }
        }
        Ok(())
    }

    fn add_key(&mut self, key: &str, value: &Value, origin: &str, command: &Command) -> Result<()> {
        let refused =
            |why: String| Error::usage(format!("{origin}: {}: {why}", printable(key.as_bytes())));
        if value.is_table() && origin.contains("[host.") {
            return Err(refused(
                "write the name of a host with quotation marks: [host.\"db1.example.org\"]"
                    .to_owned(),
            ));
        }
        let find = |long: &str| {
            command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(long))
        };
        let Some(arg) = find(key) else {
            return Err(refused("there is no such option".to_owned()));
        };
        check_allowed(arg).map_err(|why| refused(why.to_owned()))?;
        let words = match value {
            Value::Boolean(true) => vec![format!("--{key}")],
            Value::Boolean(false) => {
                let opposite = match key.strip_prefix("no-") {
                    Some(rest) => rest.to_owned(),
                    None => format!("no-{key}"),
                };
                if find(&opposite).is_none() {
                    // An earlier section may have given it.
                    let id = arg.get_id().as_str();
                    self.settings.retain(|setting| setting.id != id);
                    return Ok(());
                }
                vec![format!("--{opposite}")]
            }
            Value::Array(values) => values
                .iter()
                .map(|value| scalar(value).map(|value| format!("--{key}={value}")))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| refused("expected strings or numbers in [ ]".to_owned()))?,
            value => {
                let value = scalar(value).ok_or_else(|| {
                    refused(
                        "expected true, false, a string, a number, or several in [ ]".to_owned(),
                    )
                })?;
                vec![format!("--{key}={value}")]
            }
        };
        for word in words {
            let words = vec![OsString::from(word)];
            self.add_words(&words, origin, command).map_err(refused)?;
        }
        Ok(())
    }

    fn add_variable(&mut self, value: Option<OsString>, command: &Command) -> Result<()> {
        let value = value.filter(|value| !value.is_empty());
        self.places.push(Place {
            name: VARIABLE.to_owned(),
            is_there: value.is_some(),
        });
        let Some(value) = value else { return Ok(()) };
        let refused = |why: String| Error::usage(format!("{VARIABLE}: {why}"));
        let words = shlex::bytes::split(value.as_bytes())
            .ok_or_else(|| refused("a quotation mark is missing".to_owned()))?;
        let words: Vec<_> = words
            .iter()
            .map(|word| OsStr::from_bytes(word).to_owned())
            .collect();
        self.add_words(&words, VARIABLE, command).map_err(refused)
    }

    /// Adds the options in `words`, each as one setting.
    ///
    /// # Errors
    /// A sentence, if they are no options that may be given here.
    fn add_words(
        &mut self,
        words: &[OsString],
        origin: &str,
        command: &Command,
    ) -> std::result::Result<(), String> {
        let matches = parse(words, command).map_err(|fault| reason(&fault))?;
        let mut found = Vec::new();
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            if !is_typed(&matches, id) {
                continue;
            }
            check_allowed(arg).map_err(|why| match arg.is_positional() {
                true => "only options may stand here, no SOURCE and no DEST".to_owned(),
                false => format!("{}: {why}", name_of(arg)),
            })?;
            for (at, word) in typed_words(arg, &matches) {
                let setting = Setting {
                    id: id.to_owned(),
                    name: name_of(arg),
                    word,
                    origin: origin.to_owned(),
                };
                found.push((at, setting));
            }
        }
        // The order of rules matters.
        found.sort_by_key(|(at, _)| *at);
        self.settings
            .extend(found.into_iter().map(|(_, setting)| setting));
        Ok(())
    }

    /// Leaves out what `typed`, the words of the command line, or a later setting replaces or
    /// contradicts.
    fn settle(&mut self, typed: &[OsString], command: &Command) {
        // A malformed line is refused later, with its own message.
        let typed_ids: Vec<String> = match parse(typed, command) {
            Ok(matches) => {
                let ids = command.get_arguments().map(|arg| arg.get_id().as_str());
                let ids = ids.filter(|id| is_typed(&matches, id));
                ids.map(str::to_owned).collect()
            }
            Err(_) => Vec::new(),
        };
        // Values do not matter for what replaces what.
        let mut replaced = HashMap::new();
        let mut kept: Vec<Setting> = Vec::new();
        for setting in std::mem::take(&mut self.settings).into_iter().rev() {
            let id = &setting.id;
            let arg = option(command, id);
            let is_repeated = |by: &Setting| match arg.map(Arg::get_action) {
                Some(ArgAction::Append) => false,
                // `-v -v` of one place count together.
                Some(ArgAction::Count) => by.id == *id && by.origin != setting.origin,
                _ => by.id == *id,
            };
            let adds = arg.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Append));
            let is_typed = typed_ids.contains(id) && !adds;
            let is_opposite = OPPOSITES.iter().any(|(one, other)| {
                let by = |opposite: &str| {
                    typed_ids.iter().any(|typed| typed == opposite)
                        || kept.iter().any(|later| later.id == opposite)
                };
                id == one && by(other) || id == other && by(one)
            });
            let mut gives_way_to = |later: &str, words: &[OsString]| {
                let pair = (setting.id.clone(), later.to_owned());
                *replaced
                    .entry(pair)
                    .or_insert_with(|| gives_way(&setting.word, words, &setting.id, command))
            };
            let is_replaced = is_typed
                || is_opposite
                || kept.iter().any(|later| {
                    is_repeated(later)
                        || later.id != *id
                            && gives_way_to(&later.id, std::slice::from_ref(&later.word))
                })
                || gives_way_to("the typed words", typed);
            if !is_replaced {
                kept.push(setting);
            }
        }
        kept.reverse();
        self.settings = kept;
    }

    /// Carries out `make` with the options of the configuration before those in `typed`. `args` are
    /// both together. An option that cannot be combined with the typed ones, or has no meaning for
    /// this copy, is left out.
    ///
    /// # Errors
    /// Those of `make` for the typed words alone.
    pub(super) fn applied<T>(
        &mut self,
        args: Args,
        typed: &[OsString],
        make: impl Fn(Args) -> Result<T>,
    ) -> Result<T> {
        let reads_pipe = !self.settings.is_empty() && reads_pipe(&args);
        let refused = match make(args) {
            Err(error) if error.kind == Kind::Usage && !self.settings.is_empty() => error,
            made => return made,
        };
        if reads_pipe {
            return Err(self.explain(refused));
        }
        let attempt = |settings: &[Setting]| make(arguments(settings, typed)?);
        let mut made = attempt(&[])?;
        let mut kept = Vec::new();
        for setting in std::mem::take(&mut self.settings) {
            kept.push(setting);
            match attempt(&kept) {
                Ok(more) => made = more,
                Err(_) => self.left_out.extend(kept.pop()),
            }
        }
        self.settings = kept;
        Ok(made)
    }

    /// Leaves out the options that have none of these headings of `--help`.
    fn limit_to(&mut self, headings: &[&str], command: &Command) {
        let has = |setting: &Setting| {
            let heading = option(command, &setting.id).and_then(Arg::get_help_heading);
            heading.is_some_and(|heading| headings.contains(&heading))
        };
        self.settings.retain(has);
    }

    /// The words to stand before those of the command line.
    fn words(&self) -> impl Iterator<Item = &OsString> {
        self.settings.iter().map(|setting| &setting.word)
    }

    /// Prints a line for each option of [`TOLD`] that applies; if `is_quiet`, only for
    /// `--no-encrypt`, since others can then read the data.
    pub(super) fn warn(&self, is_quiet: bool) {
        let is_told = |setting: &&Setting| match is_quiet {
            true => setting.name == NO_ENCRYPT,
            false => TOLD.contains(&&*setting.name),
        };
        for setting in self.settings.iter().filter(is_told) {
            let (word, origin) = (shown(&setting.word), &setting.origin);
            exit::say(&format!("fastcp: {word} applies, from {origin}\n"));
        }
    }

    /// The lines of `-v`.
    pub(super) fn details(&self) -> impl Iterator<Item = String> {
        let line = |what: &str, settings: &[Setting]| {
            let words: Vec<_> = settings
                .iter()
                .map(|setting| shown(&setting.word))
                .collect();
            (!words.is_empty()).then(|| format!("{what}: {}", words.join(" ")))
        };
        let lines = [
            line(FROM_HERE, &self.settings),
            line(
                "options from the configuration that this copy cannot have",
                &self.left_out,
            ),
        ];
        lines.into_iter().flatten()
    }

    /// The error of a combination, with the options that nobody has typed.
    pub(super) fn explain(&self, error: Error) -> Error {
        let words: Vec<_> = self.words().map(shown).collect();
        if words.is_empty() || error.kind != Kind::Usage {
            return error;
        }
        Error::usage(format!(
            "{} ({FROM_HERE}: {}; --no-config leaves them out)",
            error.message,
            words.join(" ")
        ))
    }

    /// The text of `--show-config`.
    pub(super) fn text(&self) -> String {
        let widest = |names: &mut dyn Iterator<Item = usize>| names.max().unwrap_or(0).min(40);
        let mut text = String::new();
        let width = widest(&mut self.places.iter().map(|place| place.name.len()));
        for Place { name, is_there } in &self.places {
            let state = match (is_there, name == VARIABLE) {
                (true, false) => "read",
                (false, false) => "not there",
                (true, true) => "set",
                (false, true) => "not set",
            };
            text += &format!("{name:width$}  {state}\n");
        }
        let words: Vec<_> = self.words().map(shown).collect();
        let width = widest(&mut words.iter().map(String::len));
        text += match words.is_empty() {
            true => "\nno option applies\n",
            false => "\n",
        };
        for (word, setting) in words.iter().zip(&self.settings) {
            text += &format!("{word:width$}  {}\n", setting.origin);
        }
        text
    }
}

/// The user's file. As the XDG specification demands, a relative directory is ignored.
fn of_user() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let named = named.filter(|dir| dir.is_absolute());
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let dir = named.or_else(|| home.map(|home| home.join(".config")))?;
    Some(dir.join(OF_USER))
}

/// The text of the file, if it exists.
fn text_of(path: &Path, name: &str) -> Result<Option<String>> {
    let failed = |cause: std::io::Error| {
        Error::usage(format!(
            "{name}: cannot read the configuration: {}",
            reason_of(&cause)
        ))
    };
    // Reading a FIFO or a device could block.
    let at = match fs::metadata(path) {
        Ok(at) => at,
        Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        // The home directory may belong to another user, as under sudo -u: no file of this user.
        Err(cause) if cause.kind() == ErrorKind::PermissionDenied && path != Path::new(SYSTEM) => {
            return Ok(None);
        }
        Err(cause) => return Err(failed(cause)),
    };
    if !at.is_file() {
        return Err(Error::usage(format!(
            "{name}: the configuration must be a file"
        )));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    check_owner(&file.metadata().map_err(failed)?, name)?;
    file.take(FILE_MAX + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    match text.len() as u64 > FILE_MAX {
        true => Err(Error::usage(format!(
            "{name}: the configuration is longer than 1 MiB"
        ))),
        false => Ok(Some(text)),
    }
}

/// Whoever may write the file could make the user copy without encryption, or delete.
fn check_owner(at: &Metadata, name: &str) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if at.uid() != 0 && at.uid() != own {
        return Err(Error::usage(format!(
            "{name}: the configuration belongs to another user, so it is not read: change its owner, \
             or write --no-config"
        )));
    }
    match at.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(Error::usage(format!(
            "{name}: others may write the configuration, so it is not read: chmod go-w {name}"
        ))),
    }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

struct Section {
    /// Without its brackets.
    name: String,
    keys: Table,
    /// It is for one of the hosts, or for all.
    holds: bool,
}

/// The sections of a file in their order, but `default` first.
fn sections(mut table: Table, hosts: &[String]) -> std::result::Result<Vec<Section>, String> {
    let mut found = Vec::new();
    match table.remove("default") {
        None => {}
        Some(Value::Table(keys)) => found.push(Section {
            name: "default".to_owned(),
            keys,
            holds: true,
        }),
        Some(_) => return Err("default must be a section: [default]".to_owned()),
    }
    let of_hosts = match table.remove("host") {
        None => Table::new(),
        Some(Value::Table(of_hosts)) => of_hosts,
        Some(_) => {
            return Err(format!(
                "host: the section needs a pattern: write {HOST_SECTION}"
            ));
        }
    };
    if let Some((key, value)) = table.iter().next() {
        let key = printable(key.as_bytes());
        return Err(match value {
            Value::Table(_) => {
                format!("there is no section [{key}]: write [default], or {HOST_SECTION}")
            }
            _ => format!("{key} is in no section: write [default] above it, or {HOST_SECTION}"),
        });
    }
    for (patterns, keys) in of_hosts {
        let Value::Table(keys) = keys else {
            return Err(format!(
                "host: the section needs a pattern: write {HOST_SECTION}"
            ));
        };
        found.push(Section {
            name: format!("host.\"{}\"", printable(patterns.as_bytes())),
            keys,
            holds: matches(&patterns, hosts)?,
        });
    }
    Ok(found)
}

const HOST_SECTION: &str = "[host.\"PATTERN\"] for the options of a host";

/// True if one of the hosts matches a pattern, and no pattern with `!`, as in ssh_config(5).
fn matches(patterns: &str, hosts: &[String]) -> std::result::Result<bool, String> {
    let mut kinds = Vec::new();
    for pattern in patterns.split_whitespace() {
        let (is_excluded, pattern) = match pattern.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        let glob = Glob::new(pattern).map_err(|_| {
            format!(
                "[host.\"{}\"] is not a valid pattern: a [ or {{ may be left open",
                printable(patterns.as_bytes())
            )
        })?;
        kinds.push((is_excluded, glob.compile_matcher()));
    }
    Ok(hosts.iter().any(|host| {
        let is = |excluded: bool| {
            kinds
                .iter()
                .any(|(kind, glob)| *kind == excluded && glob.is_match(host))
        };
        is(false) && !is(true)
    }))
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

/// # Errors
/// Why the option may not be given in a file or in the variable.
fn check_allowed(arg: &Arg) -> std::result::Result<(), &'static str> {
    let long = arg.get_long().unwrap_or_default();
    // `--no-overwrite` belongs to a forced command; the other hidden ones with `--no-` are for users.
    let is_internal = arg.is_hide_set()
        && !long.is_empty()
        && (!long.starts_with("no-") || long == "no-overwrite")
        && !HIDDEN_BUT_ALLOWED.contains(&long);
    if arg.is_positional() || is_internal {
        return Err("there is no such option");
    }
    match TYPED_ONLY.contains(&long) {
        true => Err(TO_BE_TYPED),
        false => Ok(()),
    }
}

fn option<'a>(command: &'a Command, id: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_id() == id)
}

fn parse(words: &[OsString], command: &Command) -> std::result::Result<ArgMatches, clap::Error> {
    let name = OsString::from("fastcp");
    let words = std::iter::once(&name).chain(words);
    command.clone().try_get_matches_from(words)
}

fn is_typed(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// True if `earlier` has no effect before `later`: it is replaced, or both cannot be combined.
fn gives_way(earlier: &OsString, later: &[OsString], id: &str, command: &Command) -> bool {
    if parse(later, command).is_err() {
        return false;
    }
    let words: Vec<_> = std::iter::once(earlier).chain(later).cloned().collect();
    match parse(&words, command) {
        Ok(matches) => !is_typed(&matches, id),
        Err(fault) => fault.kind() == Fault::ArgumentConflict,
    }
}

/// The words that give `arg` in `matches`, with their positions.
fn typed_words(arg: &Arg, matches: &ArgMatches) -> Vec<(usize, OsString)> {
    let id = arg.get_id().as_str();
    let name = name_of(arg);
    let mut at = matches.indices_of(id).into_iter().flatten();
    let mut next = || at.next().unwrap_or(usize::MAX);
    match arg.get_action() {
        ArgAction::SetTrue => vec![(next(), name.into())],
        ArgAction::Count => {
            let at = next();
            (0..matches.get_count(id))
                .map(|_| (at, name.clone().into()))
                .collect()
        }
        _ => {
            let values: Vec<_> = matches.get_raw(id).into_iter().flatten().collect();
            if values.is_empty() {
                // An option whose value may be left out.
                return vec![(next(), name.into())];
            }
            let join = if arg.get_long().is_some() { "=" } else { "" };
            let word = |value| {
                let mut word = OsString::from(format!("{name}{join}"));
                word.push(value);
                (next(), word)
            };
            values.into_iter().map(word).collect()
        }
    }
}

/// As it is typed: the long name if it has one.
fn name_of(arg: &Arg) -> String {
    match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => arg.get_id().to_string(),
    }
}

/// For messages, quoted as for a shell.
fn shown(word: &OsString) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_=+:,./@%".contains(byte);
    let word = word.as_bytes();
    if word.iter().all(is_plain) {
        return printable(word);
    }
    let quoted = shlex::bytes::try_quote(word);
    printable(&quoted.unwrap_or(word.into()))
}

/// clap's message on one line, without its advice.
fn reason(fault: &clap::Error) -> String {
    if fault.kind() == Fault::DisplayHelp {
        return format!("--help: {TO_BE_TYPED}");
    }
    let text = fault.render().to_string();
    let lines = text.lines().map(str::trim);
    let lines: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let line = lines.join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that apply with `file` as the user's file and `variable`, before `typed`.
    fn applied(file: &str, variable: &str, hosts: &[&str], typed: &str) -> Result<String> {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("config");
        fs::write(&path, file).unwrap();
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let command = Args::command();
        let mut config = Config::default();
        config.add_file(&path, &hosts, &command).map_err(|error| {
            let place = printable(path.as_os_str().as_bytes());
            Error::usage(error.message.replace(&place, "FILE"))
        })?;
        config.add_variable(Some(variable.into()), &command)?;
        let typed: Vec<_> = typed.split_whitespace().map(OsString::from).collect();
        config.settle(&typed, &command);
        let words: Vec<_> = config.words().map(shown).collect();
        Ok(words.join(" "))
    }

    #[test]
    fn sections_apply_in_their_order_to_the_hosts_that_they_name() {
        let file = "\
            [host.\"db* !dbtest\"]\nstreams = 8\nfsync = true\n\
            [default]\nstreams = 2\nexclude = [\"*.o\", \"a b\"]\ntimeout = \"10s\"\n\
            [host.web]\nfsync = false\n";
        for (hosts, words) in [
            (
                &[][..],
                "--streams=2 '--exclude=*.o' '--exclude=a b' --timeout=10s",
            ),
            (
                &["dbtest"],
                "--streams=2 '--exclude=*.o' '--exclude=a b' --timeout=10s",
            ),
            (
                &["db1"],
                "'--exclude=*.o' '--exclude=a b' --timeout=10s --streams=8 --fsync",
            ),
            (
                &["db1", "web"],
                "'--exclude=*.o' '--exclude=a b' --timeout=10s --streams=8",
            ),
        ] {
            assert_eq!(applied(file, "", hosts, "").unwrap(), words, "{hosts:?}");
        }
    }

    #[test]
    fn the_later_word_wins_and_the_typed_one_last() {
        let file = "[default]\nbwlimit = \"1M\"\nwhole-file = true\nno-times = true\nlive = true\n";
        for (variable, typed, words) in [
            ("", "", "--bwlimit=1M --whole-file --no-times --live"),
            (
                "--bwlimit 2M -q",
                "",
                "--whole-file --no-times --live --bwlimit=2M --quiet",
            ),
            ("", "--bwlimit 3M a h:", "--whole-file --no-times --live"),
            // These cannot be combined.
            ("", "-l 100 a h:", "--whole-file --no-times --live"),
            ("-l 100", "", "--whole-file --no-times --live -l100"),
            // These replace each other.
            (
                "--no-whole-file -t",
                "",
                "--bwlimit=1M --live --no-whole-file --times",
            ),
            ("", "--no-whole-file -t a h:", "--bwlimit=1M --live"),
            (
                "--wait",
                "-v",
                "--bwlimit=1M --whole-file --no-times --live --wait",
            ),
            ("-q", "-v", "--bwlimit=1M --whole-file --no-times --live"),
            (
                "-q --progress=1min",
                "",
                "--bwlimit=1M --whole-file --no-times --live --progress=1min",
            ),
            (
                "-q",
                "--progress",
                "--bwlimit=1M --whole-file --no-times --live",
            ),
            (
                "-v -q",
                "-vv",
                "--bwlimit=1M --whole-file --no-times --live",
            ),
            (
                "-v -v",
                "",
                "--bwlimit=1M --whole-file --no-times --live --verbose --verbose",
            ),
            // The order of rules counts.
            (
                "--include b --exclude '*' --include c",
                "",
                "--bwlimit=1M --whole-file --no-times --live --include=b '--exclude=*' --include=c",
            ),
            // A malformed line is refused later, with its own message.
            ("", "--nope", "--bwlimit=1M --whole-file --no-times --live"),
        ] {
            let applied = applied(file, variable, &[], typed).unwrap();
            assert_eq!(applied, words);
        }
    }

    #[test]
    fn what_cannot_hold_names_its_place_and_its_reason() {
        for (file, variable, told) in [
            ("streams = 2", "", "FILE: streams is in no section"),
            (
                "[default]\nstreams = 2\n[hosts.x]\n",
                "",
                "FILE: there is no section [hosts]",
            ),
            ("[host]\nstreams = 2\n", "", "[host.\"PATTERN\"]"),
            (
                "[host.\"a[\"]\nstreams = 2\n",
                "",
                "is not a valid pattern: a [ or { may",
            ),
            ("[default]\nstreams = \n", "", "FILE: line 2: "),
            (
                "[default]\nstreems = 2\n",
                "",
                "FILE [default]: streems: there is no such option",
            ),
            (
                "[host.nas.example.org]\nstreams = 2\n",
                "",
                "with quotation marks: [host.\"db1.example.org\"]",
            ),
            ("", "-h", "FASTCP_FLAGS: --help: it has to be typed"),
            (
                "[host.other]\nstreams = 0\n",
                "",
                "FILE [host.\"other\"]: streams: invalid value '0'",
            ),
            (
                "[default]\nstreams = 0\n",
                "",
                "FILE [default]: streams: invalid value '0'",
            ),
            (
                "[default]\nstreams = true\n",
                "",
                "FILE [default]: streams: ",
            ),
            (
                "[default]\nfsync = \"yes\"\n",
                "",
                "FILE [default]: fsync: ",
            ),
            (
                "[default]\nfsync = {a=1}\n",
                "",
                "FILE [default]: fsync: expected true, false",
            ),
            (
                "[default]\nalso = \"h:\"\n",
                "",
                "FILE [default]: also: it has to be typed",
            ),
            ("[default]\nserver = true\n", "", "there is no such option"),
            (
                "[default]\nno-overwrite = true\n",
                "",
                "FILE [default]: no-overwrite: ",
            ),
            (
                "",
                "--delete a",
                "FASTCP_FLAGS: only options may stand here",
            ),
            ("", "-n", "FASTCP_FLAGS: --dry-run: it has to be typed"),
            (
                "",
                "--exclude 'a",
                "FASTCP_FLAGS: a quotation mark is missing",
            ),
            ("", "--nope", "FASTCP_FLAGS: "),
            (
                "",
                "--server",
                "FASTCP_FLAGS: --server: there is no such option",
            ),
        ] {
            let error = applied(file, variable, &["h"], "").expect_err(told);
            assert!(error.message.contains(told), "{told}: {}", error.message);
        }
    }

    #[test]
    fn each_option_that_is_told_or_has_to_be_typed_exists() {
        let command = Args::command();
        let has = |name: &str| {
            command
                .get_arguments()
                .any(|arg| arg.get_long() == Some(name))
        };
        let told = TOLD.iter().filter_map(|name| name.strip_prefix("--"));
        for name in told
            .chain(TYPED_ONLY.iter().copied())
            .chain(HIDDEN_BUT_ALLOWED.iter().copied())
        {
            assert!(has(name), "{name}");
        }
    }
}

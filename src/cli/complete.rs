//! Completion of places, for the scripts of [`completions`]: names of hosts, and paths on them. As
//! scp's completion does, it looks into ssh's configuration, `known_hosts`, and the directory on the
//! host.
//!
//! A name with a control character is not offered, since a shell shows it as it is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgAction, Command, CommandFactory, Parser};
use clap_complete::Shell;

use crate::app::remote_admin::RemoteAdmin;
use crate::session::Operand;
use crate::ui::stdout;

use super::args::Args;
use super::request::ssh_options;
use super::{completions, config, exit, operand, ssh_config};

/// The first word of such a command line; the shell and the words follow.
pub(super) const FLAG: &str = "--complete";

/// The exit codes with which no word is printed: the shell is to complete an option or its value,
/// or a file of this machine.
const OF_OPTION: i32 = 1;
const OF_FILE: i32 = 2;

/// How long a login and the list of a directory may take while someone waits for the shell.
const PATIENCE: Duration = Duration::from_secs(5);

/// The characters at which bash splits a word to complete, of its default `COMP_WORDBREAKS`.
const BREAKS: [char; 2] = [':', '='];

/// Answers a shell that asks for completions; returns the exit code. None if nobody asks.
pub(super) fn asked(mut words: impl Iterator<Item = OsString>) -> Option<i32> {
    if words.next()? != FLAG {
        return None;
    }
    let shell = words.next()?;
    let shell = completions::shell(shell.to_str()?).ok()?;
    let line = match shell {
        Shell::Bash => TypedLine::of_bash(
            &std::env::var("COMP_LINE").ok()?,
            std::env::var("COMP_POINT").ok()?.parse().ok()?,
        ),
        _ => TypedLine::of_words(words.collect()),
    };
    Some(match line.candidates() {
        Ok(found) => {
            let lines = found.iter().map(|word| line.shown(word) + "\n");
            // The script reads nothing if this fails.
            exit::code_of(0, stdout::show(&lines.collect::<String>()))
        }
        Err(code) => code,
    })
}

/// A command line up to the cursor.
struct TypedLine {
    /// The words before the last, without the name of the program.
    before: Vec<OsString>,
    /// The word to complete, without quotes.
    word: String,
    /// How bash wants the candidates; None if the shell quotes them.
    bash: Option<BashWord>,
}

/// What bash replaces of the last word.
struct BashWord {
    /// Characters of the word that stay.
    kept: usize,
    quote: Option<char>,
}

/// A candidate for the word to complete.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    word: String,
    /// Nothing follows in this word.
    is_whole: bool,
}

impl TypedLine {
    fn of_words(mut words: Vec<OsString>) -> TypedLine {
        let word = words.pop().unwrap_or_default();
        TypedLine {
            before: words,
            word: word.to_string_lossy().into_owned(),
            bash: None,
        }
    }

    /// Splits `line` up to its character `point` as bash does, but for expansions.
    fn of_bash(line: &str, point: usize) -> TypedLine {
        let mut words = Vec::new();
        let (mut word, mut is_begun) = (String::new(), false);
        let (mut kept, mut opened_at, mut quote) = (0, 0, None);
        let mut chars = line.chars().take(point);
        while let Some(c) = chars.next() {
            match (quote, c) {
                (None, c) if c.is_ascii_whitespace() => {
                    if std::mem::take(&mut is_begun) {
                        words.push(OsString::from(std::mem::take(&mut word)));
                    }
                    kept = 0;
                    continue;
                }
                (None, '\'' | '"') => (quote, opened_at) = (Some(c), word.chars().count()),
                (Some(open), c) if c == open => quote = None,
                (None | Some('"'), '\\') => word.extend(chars.next()),
                (None, c) if BREAKS.contains(&c) => {
                    word.push(c);
                    kept = word.chars().count();
                }
                (_, c) => word.push(c),
            }
            is_begun = true;
        }
        let kept = if quote.is_some() { opened_at } else { kept };
        TypedLine {
            before: words.into_iter().skip(1).collect(),
            word,
            bash: Some(BashWord { kept, quote }),
        }
    }

    /// The candidates, or the exit code if the shell knows better.
    fn candidates(&self) -> Result<Vec<Candidate>, i32> {
        let (head, place) = self.place().ok_or(OF_OPTION)?;
        let typed = operand::parse(place.into()).map_err(|_| OF_FILE)?;
        let found = match &typed.host {
            Some(_) => self.remote(&typed).unwrap_or_default(),
            None => {
                let hosts = self.hosts(place);
                if hosts.is_empty() {
                    return Err(OF_FILE);
                }
                // Other shells add the files by themselves.
                let files = self.bash.as_ref().map(|_| local(place));
                hosts.into_iter().chain(files.unwrap_or_default()).collect()
            }
        };
        let whole = |it: Candidate| Candidate {
            word: format!("{head}{}", it.word),
            ..it
        };
        Ok(found.into_iter().map(whole).collect())
    }

    /// The part of the last word that is a place, and the part before it. None if the word is an
    /// option or another option's value.
    fn place(&self) -> Option<(&str, &str)> {
        let command = Args::command();
        let mut value_of = None;
        let mut only_operands = false;
        for word in &self.before {
            let word = word.to_str().unwrap_or_default();
            match value_of.take() {
                _ if only_operands => {}
                Some(_) => {}
                None if word == "--" => only_operands = true,
                None => value_of = awaiting(&command, word),
            }
        }
        let word = &self.word[..];
        match value_of {
            Some(option) => is_place(option).then_some(("", word)),
            None if only_operands || !word.starts_with('-') => Some(("", word)),
            None => {
                let (name, _) = word.strip_prefix("--")?.split_once('=')?;
                let mut options = command.get_arguments();
                let option = options.find(|arg| arg.get_long() == Some(name))?;
                is_place(option).then(|| word.split_at("--=".len() + name.len()))
            }
        }
    }

    /// The options of this line and of the configuration.
    fn args(&self) -> Option<Args> {
        let mut typed = self.before.clone();
        typed.push(OsString::from(&self.word));
        let name = std::iter::once(OsString::from("fastcp"));
        let args = Args::try_parse_from(name.chain(typed.iter().cloned())).ok()?;
        let (args, _) = config::with_config(args, &typed).ok()?;
        Some(args)
    }

    /// The names below the directory of a place on a host.
    fn remote(&self, typed: &Operand) -> Option<Vec<Candidate>> {
        let place = typed.typed.to_str()?;
        let path = std::str::from_utf8(&typed.path).ok()?;
        // What precedes the path. In scp:// operands the path is written in another way.
        let head = place
            .strip_suffix(path)
            .filter(|_| !place.contains("://"))?;
        let (dir, prefix) = path.split_at(path.rfind('/').map_or(0, |at| at + 1));
        let asked = match dir {
            "" => "./".to_owned(),
            _ if dir.starts_with('/') => dir.to_owned(),
            _ => match dir.strip_prefix('~') {
                // Relative to the home directory, which is where a login begins.
                Some(rest) => format!(".{}", Some(rest).filter(|it| it.starts_with('/'))?),
                None => format!("./{dir}"),
            },
        };
        if asked.contains('\n') {
            return None;
        }
        let mut args = self.args()?;
        let sudo = args.sudo.take();
        let mut ssh = ssh_options(&mut args);
        (ssh.batch, ssh.quiet, ssh.verbose) = (true, true, 0);
        let visit = RemoteAdmin {
            host: typed.host.clone()?,
            ssh,
            sudo,
            timeout: PATIENCE,
        };
        // A host that gives no answer has no names.
        let names = visit.list(asked.as_bytes()).ok()?;
        let names = names.iter().filter_map(|name| {
            let name = std::str::from_utf8(name).ok()?;
            named(prefix, name.trim_end_matches('/'), name.ends_with('/'))
        });
        let below = |it: Candidate| Candidate {
            word: format!("{head}{dir}{}", it.word),
            ..it
        };
        Some(names.map(below).collect())
    }

    /// The hosts whose names begin with `typed`, which may have a user.
    fn hosts(&self, typed: &str) -> Vec<Candidate> {
        let (user, typed) = typed.split_at(typed.find('@').map_or(0, |at| at + 1));
        let config = self.args().and_then(|args| args.config);
        let mut names = ssh_config::hosts(config.as_deref());
        let home = std::env::home_dir().map(|home| home.join(".ssh/known_hosts"));
        let files = [home, Some(PathBuf::from("/etc/ssh/ssh_known_hosts"))];
        let files = files.iter().flatten();
        for text in files.filter_map(|file| ssh_config::text_of(file)) {
            names.extend(text.lines().flat_map(known).map(str::to_owned));
        }
        names.sort();
        names.dedup();
        let names = names.iter().filter(|name| name.starts_with(typed));
        let names = names.filter_map(|name| named("", name, false));
        let hosts = names.map(|it| Candidate {
            word: format!("{user}{}:", it.word),
            is_whole: false,
        });
        hosts.collect()
    }

    /// A candidate as the shell reads it.
    fn shown(&self, candidate: &Candidate) -> String {
        let Some(BashWord { kept, quote }) = &self.bash else {
            return candidate.word.clone();
        };
        let special = match quote {
            None => " !\"#$&'()*;<>?[\\]^`{|}",
            Some('"') => "\"\\$`",
            Some(_) => "",
        };
        let mut text = String::new();
        for c in candidate.word.chars().skip(*kept) {
            if special.contains(c) {
                text.push('\\');
            }
            text.push(c);
        }
        if candidate.is_whole {
            text.extend(*quote);
            text.push(' ');
        }
        text
    }
}

/// The option whose value is the next word, if `word` is such an option or letters that end with
/// one.
fn awaiting<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let takes = |arg: &&Arg| {
        let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        takes && !arg.is_require_equals_set()
    };
    let mut options = command.get_arguments();
    if let Some(name) = word.strip_prefix("--") {
        return options
            .find(|arg| arg.get_long() == Some(name))
            .filter(takes);
    }
    let letters = word.strip_prefix('-')?;
    let option = |letter| {
        let mut options = command.get_arguments();
        options
            .find(|arg| arg.get_short() == Some(letter))
            .filter(takes)
    };
    let (at, option) = letters
        .char_indices()
        .find_map(|(at, it)| Some((at, option(it)?)))?;
    (at + 1 == letters.len()).then_some(option)
}

/// The value of the option is a place.
fn is_place(option: &Arg) -> bool {
    let names = option.get_value_names().unwrap_or_default();
    names.first().is_some_and(|name| name == "DEST")
}

/// The plain names of a line of `known_hosts`: neither hashed, nor patterns, nor with a port.
fn known(line: &str) -> impl Iterator<Item = &str> {
    let is_plain = |name: &&str| !name.contains(['*', '?', '!', '[', '|', '#', '@']);
    let names = line.split_ascii_whitespace().next().unwrap_or_default();
    names
        .split(',')
        .filter(|name| !name.is_empty())
        .filter(is_plain)
}

/// `name` as a candidate, if it begins with `prefix`. Hidden names are offered only if asked for.
fn named(prefix: &str, name: &str, is_dir: bool) -> Option<Candidate> {
    let is_hidden = name.starts_with('.') && !prefix.starts_with('.');
    let is_shown = name.starts_with(prefix) && !is_hidden && !matches!(name, "" | "." | "..");
    if !is_shown || name.chars().any(char::is_control) {
        return None;
    }
    Some(Candidate {
        word: if is_dir {
            format!("{name}/")
        } else {
            name.to_owned()
        },
        is_whole: !is_dir,
    })
}

/// The files of this machine.
fn local(typed: &str) -> Vec<Candidate> {
    let (dir, prefix) = typed.split_at(typed.rfind('/').map_or(0, |at| at + 1));
    let shown = if dir.is_empty() { "./" } else { dir };
    let Ok(entries) = std::fs::read_dir(Path::new(shown)) else {
        return Vec::new();
    };
    let found = entries.flatten().filter_map(|entry| {
        let is_dir = entry.path().is_dir();
        let name = entry.file_name();
        let name = name.to_str()?;
        let found = named(prefix, name, is_dir)?;
        Some(Candidate {
            word: format!("{dir}{}", found.word),
            ..found
        })
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by(|a, b| a.word.cmp(&b.word));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(line: &str) -> TypedLine {
        TypedLine::of_bash(line, line.chars().count())
    }

    #[test]
    fn a_line_is_split_as_bash_splits_it() {
        for (line, before, word, kept) in [
            ("fastcp ", "", "", 0),
            ("fastcp a", "", "a", 0),
            ("fastcp a h:/srv/x", "a", "h:/srv/x", 2),
            ("fastcp 'a b' h:x\\ y", "a b", "h:x y", 2),
            ("fastcp h:a\\:b:c", "", "h:a:b:c", 6),
            ("fastcp --also=h:x", "", "--also=h:x", 9),
            ("fastcp \"h:x y", "", "h:x y", 0),
            ("fastcp h:\"x y", "", "h:x y", 2),
            ("fastcp h:\"x y\"z", "", "h:x yz", 2),
        ] {
            let split = bash(line);
            let words: Vec<_> = split.before.iter().map(|it| it.to_string_lossy()).collect();
            assert_eq!((&*words.join("|"), &*split.word), (before, word), "{line}");
            assert_eq!(split.bash.expect("of bash").kept, kept, "{line}");
        }
        assert_eq!(TypedLine::of_bash("fastcp äb h:x", 10).word, "");
    }

    #[test]
    fn bash_gets_the_part_after_the_last_colon_with_its_own_quotes() {
        let candidate = |word: &str, is_whole| Candidate {
            word: word.to_owned(),
            is_whole,
        };
        for (line, word, is_whole, shown) in [
            ("fastcp h:x", "h:x y", true, "x\\ y "),
            ("fastcp h:x", "h:x$(id)/", false, "x\\$\\(id\\)/"),
            ("fastcp we", "web1:", false, "web1:"),
            ("fastcp --also=h:x", "--also=h:x1", true, "x1 "),
            ("fastcp 'h:x", "h:x y", true, "h:x y' "),
            ("fastcp \"h:x", "h:x$y/", false, "h:x\\$y/"),
        ] {
            assert_eq!(
                bash(line).shown(&candidate(word, is_whole)),
                shown,
                "{line}"
            );
        }
        let plain = TypedLine::of_words(vec!["h:x".into()]);
        assert_eq!(plain.shown(&candidate("h:x y", true)), "h:x y");
    }

    #[test]
    fn only_operands_and_destinations_are_places() {
        for (line, place) in [
            ("fastcp h:a", Some("h:a")),
            ("fastcp -P h:a", None),
            ("fastcp -rP h:a", None),
            ("fastcp -P22 h:a", Some("h:a")),
            ("fastcp -Pr h:a", Some("h:a")),
            ("fastcp --port h:a", None),
            ("fastcp --port=22 h:a", Some("h:a")),
            ("fastcp --check h:a", Some("h:a")),
            ("fastcp --also h:a", Some("h:a")),
            ("fastcp --also=h:a", Some("h:a")),
            ("fastcp --exclude=h:a", None),
            ("fastcp --al", None),
            ("fastcp -- -h:a", Some("-h:a")),
            ("fastcp -- -P h:a", Some("h:a")),
        ] {
            let line = bash(line);
            assert_eq!(line.place().map(|(_, place)| place), place, "{}", line.word);
        }
    }

    #[test]
    fn names_are_offered_as_far_as_they_can_be_shown() {
        let found = |prefix, name| named(prefix, name, false).map(|it| it.word);
        assert_eq!(found("a", "ab c"), Some("ab c".to_owned()));
        assert_eq!(found("", ".a"), None);
        assert_eq!(found(".", ".a"), Some(".a".to_owned()));
        assert_eq!(found(".", ".."), None);
        assert_eq!(found("", "a\u{1b}[2J"), None);
        let known = |line| known(line).collect::<Vec<_>>();
        assert_eq!(known("web1,10.0.0.1 ssh-rsa AAAA"), ["web1", "10.0.0.1"]);
        for line in [
            "|1|x=|y= ssh-rsa A",
            "[h]:22 ssh-rsa A",
            "*.x ssh-rsa A",
            "# c",
            "",
        ] {
            assert_eq!(known(line), Vec::<&str>::new(), "{line}");
        }
    }
}

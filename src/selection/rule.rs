//! The syntax of filter rules, as `parse_rule_tok` in rsync 3 (`exclude.c`) reads it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::limits::RULES_MAX;
use crate::dir::is_reserved;
use crate::manifest::NAME_MAX;
use crate::units::printable;

/// Most bytes of a bad rule that are shown.
const SHOWN_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    Pattern(RulePattern),
    /// The rules in a file of each directory.
    File(RuleFile),
}

/// A pattern, and what happens to the entries that match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulePattern {
    pub takes: bool,
    pub side: RuleSide,
    /// The rule is for the entries that do not match.
    pub negated: bool,
    pub pattern: Vec<u8>,
}

/// Where a rule applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleSide {
    /// It leaves out entries that match, and `--delete` keeps them.
    #[default]
    Both,
    /// It only leaves entries out (`hide`, `show`, modifier `s`).
    Source,
    /// It only says what `--delete` keeps (`protect`, `risk`, modifier `r`).
    Destination,
}

/// A file with rules for its directory and those below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleFile {
    pub name: Vec<u8>,
    pub is_inherited: bool,
    pub form: LineForm,
    pub splits_words: bool,
}

impl RuleFile {
    /// # Errors
    /// If its name is none, or that of an unfinished file.
    pub(super) fn check(&self) -> Result<(), BadRule> {
        let name = &self.name;
        let is_odd = name.is_empty() || name.len() > NAME_MAX || name == b"." || name == b"..";
        if is_odd || name.contains(&0) || is_reserved(name) {
            return Err(BadRule::at(name, "this cannot be the name of a rule file"));
        }
        if name.contains(&b'/') {
            return Err(BadRule::at(
                name,
                "the name for dir-merge must not contain a slash",
            ));
        }
        Ok(())
    }
}

/// What the lines of a rule file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LineForm {
    /// Rules: `- *.o`
    Rules,
    /// Patterns of entries to take or to leave out; `+ ` or `- ` before one says otherwise, and `!`
    /// alone removes the rules before it.
    Patterns { take: bool },
    /// Patterns in which `+ `, `- ` and `!` have no special meaning.
    BarePatterns { take: bool },
}

/// One rule as parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// None for a rule without effect in a copy.
    Rules(Vec<Rule>),
    /// The rules in this file stand here, after `own`.
    Merge {
        own: Option<Rule>,
        file: Vec<u8>,
        form: LineForm,
        splits_words: bool,
    },
    /// The rules of `--cvs-exclude` that hold in every directory stand here: those of
    /// [`Rule::of_cvs`], and where the command has them, those of its user.
    Cvs,
    /// The rules before this one are removed.
    Clear,
}

/// Why a rule is refused: a sentence, printable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRule(String);

impl BadRule {
    pub(super) fn new(why: &str) -> BadRule {
        BadRule(why.to_owned())
    }

    pub fn too_many() -> BadRule {
        BadRule(format!("there are more than {RULES_MAX} filter rules"))
    }

    fn at(rule: &[u8], why: &str) -> BadRule {
        let shown = &rule[..rule.len().min(SHOWN_MAX)];
        BadRule(format!("{}: {why}", printable(shown)))
    }
}

impl fmt::Display for BadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Rule {
    /// The pattern, or the name of the file.
    pub fn text(&self) -> &[u8] {
        match self {
            Rule::Pattern(rule) => &rule.pattern,
            Rule::File(file) => &file.name,
        }
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self, Rule::File(_))
    }

    fn leaves_out(pattern: &[u8]) -> Rule {
        Rule::Pattern(RulePattern {
            takes: false,
            side: RuleSide::Both,
            negated: false,
            pattern: pattern.to_vec(),
        })
    }

    /// The rules of `--cvs-exclude` that hold in every directory, without those of the user.
    pub fn of_cvs() -> impl Iterator<Item = Rule> {
        let names = CVS.split(|byte| *byte == b' ');
        names.map(Rule::leaves_out)
    }

    /// `.cvsignore` in each directory.
    pub fn cvs_file() -> Rule {
        Rule::File(RuleFile {
            name: b".cvsignore".to_vec(),
            is_inherited: false,
            form: LineForm::BarePatterns { take: false },
            splits_words: true,
        })
    }
}

/// What rsync leaves out with `--cvs-exclude`.
const CVS: &[u8] =
    b"RCS SCCS CVS CVS.adm RCSLOG cvslog.* tags TAGS .make.state .nse_depinfo *~ #* \
    .#* ,* _$* *$ *.old *.bak *.BAK *.orig *.rej .del-* *.a *.olb *.o *.obj *.so *.exe *.Z *.elc \
    *.ln core .svn/ .git/ .hg/ .bzr/";

/// The rules in a text, one in each line, or in each word.
pub struct RuleLines<'a> {
    rest: &'a [u8],
    form: LineForm,
    splits_words: bool,
    /// A NUL ends a rule, and no line does.
    has_nuls: bool,
    /// Lines before `rest`.
    lines: usize,
    /// That of the rule that was given last, counted from 1.
    line: usize,
}

impl<'a> RuleLines<'a> {
    pub fn new(text: &'a [u8], form: LineForm, splits_words: bool) -> RuleLines<'a> {
        RuleLines {
            rest: text,
            form,
            splits_words,
            has_nuls: false,
            lines: 0,
            line: 0,
        }
    }

    /// With `has_nuls`, a NUL ends a rule, and no line does (`--from0`).
    pub fn with_nuls(self, has_nuls: bool) -> RuleLines<'a> {
        let has_nuls = has_nuls && !self.splits_words;
        RuleLines { has_nuls, ..self }
    }

    /// The line of the last rule, counted from 1.
    pub fn line(&self) -> usize {
        self.line
    }
}

impl Iterator for RuleLines<'_> {
    type Item = Result<Parsed, BadRule>;

    fn next(&mut self) -> Option<Self::Item> {
        let ends = |byte: &u8| match self.splits_words {
            true => is_space(*byte),
            false if self.has_nuls => *byte == 0,
            false => matches!(byte, b'\n' | b'\r'),
        };
        let end_of_line = if self.has_nuls { 0 } else { b'\n' };
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let end = self.rest.iter().position(ends).unwrap_or(self.rest.len());
            let line = &self.rest[..end];
            self.line = self.lines + 1;
            self.lines += usize::from(self.rest.get(end) == Some(&end_of_line));
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            let is_comment = !self.splits_words && matches!(line, [b'#' | b';', ..]);
            if self.splits_words && line == b"!" {
                return Some(Ok(Parsed::Clear));
            }
            if !line.is_empty() && !is_comment {
                return Some(Parsed::of(line, self.form));
            }
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

impl Parsed {
    /// Parses a rule, or a pattern, as `form` says.
    ///
    /// # Errors
    /// A sentence.
    pub fn of(text: &[u8], form: LineForm) -> Result<Parsed, BadRule> {
        let (take, pattern) = match form {
            LineForm::Rules => return rule(text),
            LineForm::BarePatterns { take } => (take, text),
            LineForm::Patterns { .. } if text == b"!" => return Ok(Parsed::Clear),
            LineForm::Patterns { take } => match text {
                [b'+', b' ', pattern @ ..] => (true, pattern),
                [b'-', b' ', pattern @ ..] => (false, pattern),
                pattern => (take, pattern),
            },
        };
        // As in rsync, an empty pattern is no rule.
        if pattern.is_empty() {
            return Ok(Parsed::Rules(Vec::new()));
        }
        Ok(Parsed::Rules(vec![Rule::Pattern(RulePattern {
            takes: take,
            side: RuleSide::Both,
            negated: false,
            pattern: pattern.to_vec(),
        })]))
    }
}

/// The long names of rules.
const NAMES: [(&[u8], u8); 9] = [
    (b"clear", b'!'),
    (b"dir-merge", b':'),
    (b"exclude", b'-'),
    (b"hide", b'H'),
    (b"include", b'+'),
    (b"merge", b'.'),
    (b"protect", b'P'),
    (b"risk", b'R'),
    (b"show", b'S'),
];

/// Divides a rule into its letter, its modifiers and what follows.
fn divide(text: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let named = NAMES.iter().find_map(|(name, letter)| {
        let rest = text.strip_prefix(*name)?;
        let ends = rest
            .first()
            .is_none_or(|byte| matches!(byte, b' ' | b'_' | b','));
        ends.then_some((*letter, rest))
    });
    let (letter, rest) = match named {
        Some(named) => named,
        None => {
            let (letter, rest) = text.split_first()?;
            (*letter, rest)
        }
    };
    let rest = rest.strip_prefix(b",").unwrap_or(rest);
    let end = rest.iter().position(|byte| matches!(byte, b' ' | b'_'));
    let end = end.unwrap_or(rest.len());
    let argument = rest.get(end + 1..).unwrap_or_default();
    Some((letter, &rest[..end], argument))
}

fn rule(text: &[u8]) -> Result<Parsed, BadRule> {
    let refused = |why: &str| Err(BadRule::at(text, why));
    let Some((letter, modifiers, argument)) = divide(text) else {
        return Ok(Parsed::Rules(Vec::new()));
    };
    let allowed: &[u8] = match letter {
        b'-' => b"/!Crspx",
        b'+' => b"/!rspx",
        b'H' | b'S' | b'P' | b'R' => b"/!px",
        b'.' | b':' => b"-+Cenw/rspx",
        b'!' if modifiers.is_empty() && argument.is_empty() => return Ok(Parsed::Clear),
        b'!' => return refused("nothing may follow !"),
        _ => {
            return refused("no such rule; a rule is \"- PATTERN\" or \"+ PATTERN\", for example");
        }
    };
    if let Some(modifier) = modifiers.iter().find(|it| !allowed.contains(it)) {
        let modifier = printable(&[*modifier]);
        return refused(&format!("this rule has no modifier {modifier}"));
    }
    let has = |modifier: u8| modifiers.contains(&modifier);
    if has(b'/') {
        return refused("fastcp does not match absolute paths (modifier /)");
    }
    if matches!(letter, b'.' | b':') {
        return merge(text, letter == b':', modifiers, argument);
    }
    if has(b'C') {
        return match argument {
            b"" => Ok(Parsed::Cvs),
            _ => refused("nothing may follow -C"),
        };
    }
    if argument.is_empty() {
        return refused("the pattern is missing");
    }
    // It selects attributes.
    if has(b'x') {
        return Ok(Parsed::Rules(Vec::new()));
    }
    let sides: &[RuleSide] = match (letter, has(b's'), has(b'r')) {
        // With --delete-excluded, only a rule with a side protects entries.
        (b'-' | b'+', true, true) => &[RuleSide::Source, RuleSide::Destination],
        (b'H' | b'S', ..) | (_, true, _) => &[RuleSide::Source],
        (b'P' | b'R', ..) | (_, _, true) => &[RuleSide::Destination],
        _ => &[RuleSide::Both],
    };
    let rule = |side: &RuleSide| {
        Rule::Pattern(RulePattern {
            takes: matches!(letter, b'+' | b'S' | b'R'),
            side: *side,
            negated: has(b'!'),
            pattern: argument.to_vec(),
        })
    };
    Ok(Parsed::Rules(sides.iter().map(rule).collect()))
}

fn merge(
    text: &[u8],
    is_per_directory: bool,
    modifiers: &[u8],
    argument: &[u8],
) -> Result<Parsed, BadRule> {
    let has = |modifier: u8| modifiers.contains(&modifier);
    let form = match (has(b'-') || has(b'C'), has(b'+')) {
        (true, true) => {
            return Err(BadRule::at(
                text,
                "the modifiers - and + exclude each other",
            ));
        }
        (true, false) => LineForm::BarePatterns { take: false },
        (false, true) => LineForm::BarePatterns { take: true },
        (false, false) => LineForm::Rules,
    };
    if has(b'x') {
        return Ok(Parsed::Rules(Vec::new()));
    }
    if has(b'r') && !has(b's') {
        return Err(BadRule::at(
            text,
            "a file of rules always applies to the source: modifier r (receiver) is possible only \
             with s (sender)",
        ));
    }
    let argument: &[u8] = match argument {
        b"" if has(b'C') => b".cvsignore",
        argument => argument,
    };
    let splits_words = has(b'w') || has(b'C');
    let name = argument
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or_default();
    if name.is_empty() {
        return Err(BadRule::at(text, "the name of the file is missing"));
    }
    let own = has(b'e').then(|| Rule::leaves_out(name));
    if !is_per_directory {
        return Ok(Parsed::Merge {
            own,
            file: argument.to_vec(),
            form,
            splits_words,
        });
    }
    // A slash before it makes rsync also look above the directories that are copied.
    let file = RuleFile {
        name: argument.strip_prefix(b"/").unwrap_or(argument).to_vec(),
        is_inherited: !(has(b'n') || has(b'C')),
        form,
        splits_words,
    };
    file.check()?;
    let rules = own.into_iter().chain([Rule::File(file)]);
    Ok(Parsed::Rules(rules.collect()))
}

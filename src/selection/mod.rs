//! The user's choice of entries to copy: filter rules with rsync's syntax and meaning, bounds on size
//! and age, one file system.
//!
//! The first rule that matches an entry decides; an entry that no rule matches is copied. Directories
//! that are left out are not searched.

mod limits;
mod pattern;
mod rule;
mod rule_list;

use std::io;
use std::sync::Arc;

use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};

use crate::manifest::{Timestamp, file_type};

use limits::{FILES_BYTES_MAX, RULES_BYTES_MAX};
pub use limits::{RULE_FILE_MAX, RULES_MAX};
use pattern::Target;
pub use rule::{BadRule, LineForm, Parsed, Rule, RuleFile, RuleLines, RulePattern, RuleSide};
use rule_list::RuleList;

/// The user's choice, as sent to the source's host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    pub rules: Vec<Rule>,
    /// Bytes of a regular file.
    pub min_size: Option<u64>,
    pub max_size: Option<u64>,
    /// Seconds since 1970 of a regular file's last modification.
    pub modified_from: Option<i64>,
    pub modified_to: Option<i64>,
    /// `-x`: directories on other file systems are made but not entered.
    pub one_file_system: bool,
}

/// A [`Selection`] that is ready for use.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    selection: Selection,
    list: RuleList,
}

impl PartialEq for Selector {
    fn eq(&self, other: &Selector) -> bool {
        self.selection == other.selection
    }
}

impl Eq for Selector {}

/// The rules that the files in a directory and in those above it add.
#[derive(Clone, Debug, Default)]
pub struct DirectoryRules {
    /// One for each rule that names such a file.
    files: Vec<Option<Arc<FileRules>>>,
    held: HeldRules,
}

/// What the rules of a directory and of those above it need in memory. Also the rules of those above
/// that no longer apply count: they come back when the walk leaves this directory.
#[derive(Clone, Copy, Debug, Default)]
struct HeldRules {
    rules: usize,
    /// Bytes of the files and of the paths of their directories.
    bytes: usize,
}

/// The rules of one file.
#[derive(Debug)]
struct FileRules {
    list: RuleList,
    /// Those of the file in a directory above, which count after these.
    outer: Option<Arc<FileRules>>,
}

/// Why the rules of a directory are unknown.
#[derive(Debug)]
pub enum NoRules {
    /// The file of this name cannot be read.
    Unreadable(Vec<u8>, io::Error),
    /// The file of this name has a bad rule in this line, counted from 1, or too many rules.
    Bad(Vec<u8>, usize, BadRule),
}

impl Selector {
    /// # Errors
    /// If the rules are too many or too long.
    pub fn new(selection: Selection) -> Result<Selector, BadRule> {
        let list = RuleList::new(&selection.rules, b"")?;
        let bytes: usize = selection.rules.iter().map(|rule| rule.text().len()).sum();
        if bytes > RULES_BYTES_MAX {
            return Err(BadRule::new("the rules have more than 512 KiB in all"));
        }
        Ok(Selector { selection, list })
    }

    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// True if something may be left out.
    pub fn is_choosing(&self) -> bool {
        self.selection != Selection::default()
    }

    /// True if an entry's path matters.
    pub fn has_rules(&self) -> bool {
        !self.selection.rules.is_empty()
    }

    /// True if the entry `name` of the directory at `path` is copied: by the rules, and if it is a
    /// regular file, by its size and age. `here` are the directory's own rules.
    pub fn takes(&self, here: &DirectoryRules, path: &[u8], name: &[u8], stat: &Stat) -> bool {
        let kind = file_type(stat);
        let modified = Timestamp::mtime(stat).s;
        self.takes_name(here, path, name, kind == FileType::Directory)
            && (kind != FileType::RegularFile || self.takes_file(stat.st_size as u64, modified))
    }

    /// True if the rules take the entry `name` of the directory at `path`. A path is empty or begins
    /// with `/`. The top is the directory that the user named if its contents are copied, otherwise
    /// its parent.
    pub fn takes_name(
        &self,
        here: &DirectoryRules,
        path: &[u8],
        name: &[u8],
        is_directory: bool,
    ) -> bool {
        let sides = [RuleSide::Both, RuleSide::Source];
        self.verdict(here, (path, name), is_directory, &sides)
    }

    /// True if `--delete` must keep an entry that the source does not have. `excluded_too`: only rules
    /// for the destination alone protect (`--delete-excluded`).
    pub fn protects(
        &self,
        here: &DirectoryRules,
        (path, name): (&[u8], &[u8]),
        is_directory: bool,
        excluded_too: bool,
    ) -> bool {
        let sides = protecting(excluded_too);
        !self.verdict(here, (path, name), is_directory, sides)
    }

    /// True if [`protects`](Self::protects) may be true for some entry.
    pub fn may_protect(&self, excluded_too: bool) -> bool {
        self.list.has_one_for(protecting(excluded_too))
    }

    fn verdict(
        &self,
        here: &DirectoryRules,
        (path, name): (&[u8], &[u8]),
        is_directory: bool,
        sides: &[RuleSide],
    ) -> bool {
        if !self.has_rules() {
            return true;
        }
        let target = Target::new(path, name, is_directory);
        let of_file = |file: usize| here.verdict(file, &target, sides);
        self.list.verdict(&target, sides, of_file).unwrap_or(true)
    }

    /// True if a regular file has the right size and age.
    fn takes_file(&self, size: u64, modified: i64) -> bool {
        let Selection {
            min_size,
            max_size,
            modified_from,
            modified_to,
            ..
        } = &self.selection;
        min_size.is_none_or(|min| size >= min)
            && max_size.is_none_or(|max| size <= max)
            && modified_from.is_none_or(|from| modified >= from)
            && modified_to.is_none_or(|to| modified <= to)
    }

    /// True if files of some sizes or ages are left out.
    pub fn has_bounds(&self) -> bool {
        let Selection {
            min_size,
            max_size,
            modified_from,
            modified_to,
            ..
        } = &self.selection;
        min_size.or(*max_size).is_some() || modified_from.or(*modified_to).is_some()
    }

    /// True if an entry that the user named may be left out.
    pub fn may_leave_out_operands(&self) -> bool {
        let all_operands = Selection {
            one_file_system: self.selection.one_file_system,
            ..Selection::default()
        };
        self.selection != all_operands
    }

    /// The rules of the directory at `path` (as in [`takes_name`](Self::takes_name); empty at the top).
    /// `outer` are those of its parent; `read` reads a file in the directory, None if there is
    /// none.
    ///
    /// # Errors
    /// If a rule file cannot be read or has a bad rule: nobody knows then which entries it leaves
    /// out.
    pub fn enter(
        &self,
        outer: &DirectoryRules,
        path: &[u8],
        mut read: impl FnMut(&[u8]) -> io::Result<Option<Vec<u8>>>,
    ) -> Result<DirectoryRules, NoRules> {
        let mut files = Vec::new();
        let mut held = outer.held;
        for (n, file) in self.list.files().enumerate() {
            let above = outer.files.get(n).cloned().flatten();
            let above = above.filter(|_| file.is_inherited);
            let text = read(&file.name);
            let text = text.map_err(|e| NoRules::Unreadable(file.name.clone(), e))?;
            files.push(match text {
                None => above,
                Some(text) => {
                    let rules = FileRules::parse(&text, file, path, above, &mut held);
                    let bad = |(line, why)| NoRules::Bad(file.name.clone(), line, why);
                    Some(Arc::new(rules.map_err(bad)?))
                }
            });
        }
        Ok(DirectoryRules { files, held })
    }
}

/// The sides of rules that protect entries at the destination.
fn protecting(excluded_too: bool) -> &'static [RuleSide] {
    match excluded_too {
        true => &[RuleSide::Destination],
        false => &[RuleSide::Both, RuleSide::Destination],
    }
}

impl DirectoryRules {
    fn verdict(&self, file: usize, target: &Target, sides: &[RuleSide]) -> Option<bool> {
        let mut next = self.files.get(file)?.as_ref();
        while let Some(rules) = next {
            if let Some(takes) = rules.list.verdict(target, sides, |_| None) {
                return Some(takes);
            }
            next = rules.outer.as_ref();
        }
        None
    }
}

impl FileRules {
    fn parse(
        text: &[u8],
        file: &RuleFile,
        path: &[u8],
        mut outer: Option<Arc<FileRules>>,
        held: &mut HeldRules,
    ) -> Result<FileRules, (usize, BadRule)> {
        let mut rules = Vec::new();
        let mut lines = RuleLines::new(text, file.form, file.splits_words);
        while let Some(parsed) = lines.next() {
            let bad = |why| (lines.line(), why);
            match parsed.map_err(bad)? {
                Parsed::Rules(more) if !more.iter().any(Rule::is_file) => rules.extend(more),
                Parsed::Cvs => rules.extend(Rule::of_cvs()),
                Parsed::Rules(_) | Parsed::Merge { .. } => {
                    return Err(bad(BadRule::new(
                        "a dir-merge file cannot name another rule file",
                    )));
                }
                Parsed::Clear => {
                    rules.clear();
                    outer = None;
                }
            }
            if held.rules + rules.len() > RULES_MAX {
                return Err(bad(BadRule::too_many()));
            }
        }
        held.rules += rules.len();
        held.bytes += text.len() + path.len();
        let list = match held.bytes > FILES_BYTES_MAX {
            true => Err(BadRule::new(
                "the rule files here and in the directories above have more than 4 MiB with their paths",
            )),
            false => RuleList::new(&rules, path),
        };
        let list = list.map_err(|why| (lines.line(), why))?;
        Ok(FileRules { list, outer })
    }
}

#[cfg(test)]
mod tests;

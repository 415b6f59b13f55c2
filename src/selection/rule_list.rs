//! A list of rules, of which the first that matches decides.

use super::limits::{FILES_MAX, PATTERN_MAX, RULES_MAX};
use super::pattern::{Pattern, Target};
use super::rule::{BadRule, Rule, RuleFile, RuleSide};

#[derive(Clone, Debug, Default)]
pub(super) struct RuleList {
    rules: Vec<ListedRule>,
    /// The directory in which they stand: there a pattern with a leading slash begins.
    top: Vec<u8>,
}

#[derive(Clone, Debug)]
enum ListedRule {
    Pattern {
        pattern: Pattern,
        takes: bool,
        side: RuleSide,
        is_negated: bool,
    },
    File(RuleFile),
}

impl RuleList {
    /// # Errors
    /// If there are too many rules, a pattern is too long, or the name of a file is none.
    pub(super) fn new(rules: &[Rule], top: &[u8]) -> Result<RuleList, BadRule> {
        if rules.len() > RULES_MAX {
            return Err(BadRule::too_many());
        }
        if rules.iter().filter(|rule| rule.is_file()).count() > FILES_MAX {
            let why = format!("more than {FILES_MAX} dir-merge rules");
            return Err(BadRule::new(&why));
        }
        let rules = rules.iter().map(|rule| match rule {
            Rule::Pattern(rule) if rule.pattern.len() > PATTERN_MAX => {
                let why = format!("a pattern has more than {PATTERN_MAX} bytes");
                Err(BadRule::new(&why))
            }
            Rule::Pattern(rule) => Ok(ListedRule::Pattern {
                pattern: Pattern::new(&rule.pattern),
                takes: rule.takes,
                side: rule.side,
                is_negated: rule.negated,
            }),
            Rule::File(file) => {
                file.check()?;
                Ok(ListedRule::File(file.clone()))
            }
        });
        Ok(RuleList {
            rules: rules.collect::<Result<_, _>>()?,
            top: top.to_vec(),
        })
    }

    /// The files that rules name, in order.
    pub(super) fn files(&self) -> impl Iterator<Item = &RuleFile> {
        self.rules.iter().filter_map(|rule| match rule {
            ListedRule::File(file) => Some(file),
            ListedRule::Pattern { .. } => None,
        })
    }

    /// True if a rule, or one in a file, is for one of these sides.
    pub(super) fn has_one_for(&self, sides: &[RuleSide]) -> bool {
        self.rules.iter().any(|rule| match rule {
            ListedRule::Pattern { side, .. } => sides.contains(side),
            ListedRule::File(_) => true,
        })
    }

    /// What the first rule for these sides that matches says; None if none does. `of_file` answers
    /// for the rules in the nth of the [`files`](Self::files).
    pub(super) fn verdict(
        &self,
        target: &Target,
        sides: &[RuleSide],
        mut of_file: impl FnMut(usize) -> Option<bool>,
    ) -> Option<bool> {
        let mut files = 0..;
        self.rules.iter().find_map(|rule| match rule {
            ListedRule::Pattern {
                pattern,
                takes,
                side,
                is_negated,
            } => (sides.contains(side) && pattern.matches(target, &self.top) != *is_negated)
                .then_some(*takes),
            ListedRule::File(_) => of_file(files.next()?),
        })
    }
}

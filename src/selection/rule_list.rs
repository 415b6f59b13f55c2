//! A list of rules, compiled into one automaton.

use regex::bytes::{RegexSet, RegexSetBuilder};

use super::RULES_MAX;
use super::pattern;
use super::rule::{BadRule, Rule, RuleFile, RulePattern};

/// Most bytes of the automaton.
const COMPILED_MAX: usize = 16 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct RuleList {
    rules: Vec<Rule>,
    /// The patterns in the order of the rules.
    patterns: RegexSet,
}

impl RuleList {
    /// Patterns with a leading slash are anchored at the directory `at`.
    ///
    /// # Errors
    /// If the list is too long.
    pub(super) fn new(rules: Vec<Rule>, at: &[u8]) -> Result<RuleList, BadRule> {
        if rules.len() > RULES_MAX {
            return Err(BadRule::new(&format!(
                "there are more than {RULES_MAX} rules"
            )));
        }
        let patterns = rules.iter().filter_map(|rule| match rule {
            Rule::Pattern(rule) => Some(pattern::to_regex(&rule.pattern, at)),
            Rule::File(_) => None,
        });
        let built = RegexSetBuilder::new(patterns)
            .unicode(false)
            .dot_matches_new_line(true)
            .size_limit(COMPILED_MAX)
            .build();
        let too_large = |_| BadRule::new("the rules take too much memory: shorten the list");
        let patterns = built.map_err(too_large)?;
        Ok(RuleList { rules, patterns })
    }

    /// The files that rules name, in order.
    pub(super) fn files(&self) -> impl Iterator<Item = &RuleFile> {
        self.rules.iter().filter_map(|rule| match rule {
            Rule::File(file) => Some(file),
            Rule::Pattern(_) => None,
        })
    }

    /// What the first rule that matches says; None if none does. `of_file` answers for the rules in
    /// the nth of the [`files`](Self::files).
    pub(super) fn verdict(
        &self,
        target: &[u8],
        mut of_file: impl FnMut(usize) -> Option<bool>,
    ) -> Option<bool> {
        if self.rules.is_empty() {
            return None;
        }
        let matches = self.patterns.matches(target);
        let (mut patterns, mut files) = (0.., 0..);
        for rule in &self.rules {
            match rule {
                Rule::Pattern(RulePattern { takes, negated, .. }) => {
                    let nth = patterns.next().expect("endless");
                    if matches.matched(nth) != *negated {
                        return Some(*takes);
                    }
                }
                Rule::File(_) => {
                    let nth = files.next().expect("endless");
                    if let Some(takes) = of_file(nth) {
                        return Some(takes);
                    }
                }
            }
        }
        None
    }
}

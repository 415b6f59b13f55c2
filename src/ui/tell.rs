//! The amount of output about a finished copy.

use super::Output;

/// From least to most output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// The reason for an early end.
    Failures,
    /// The summary of an incomplete copy.
    Incomplete,
    /// The summary of each copy.
    Each,
    /// Also what limited the copy.
    All,
}

impl Verbosity {
    pub fn of(output: Output, is_at_terminal: bool) -> Verbosity {
        match output {
            Output { quiet: true, .. } => Verbosity::Failures,
            Output { verbose: true, .. } => Verbosity::All,
            Output { summary: true, .. } => Verbosity::Each,
            _ if is_at_terminal => Verbosity::Each,
            _ => Verbosity::Incomplete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_outranks_verbose_and_that_a_summary_or_a_terminal() {
        let told = |quiet, verbose, summary| {
            let output = Output {
                quiet,
                verbose,
                summary,
                ..Output::default()
            };
            [false, true].map(|is_at_terminal| Verbosity::of(output, is_at_terminal))
        };
        assert_eq!(told(true, true, true), [Verbosity::Failures; 2]);
        assert_eq!(told(false, true, false), [Verbosity::All; 2]);
        assert_eq!(told(false, false, true), [Verbosity::Each; 2]);
        assert_eq!(
            told(false, false, false),
            [Verbosity::Incomplete, Verbosity::Each]
        );
    }
}

//! How much the user reads about a copy: options, and levels of verbosity.

use std::time::Duration;

/// Options for the amount of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Errors only; takes precedence over `verbose`, `summary` and `progress`.
    pub quiet: bool,
    pub verbose: bool,
    /// A line for each entry that is copied (`-vv`), unless `changes` has one.
    pub names_files: bool,
    /// Show the summary even if stderr is not a terminal.
    pub summary: bool,
    /// Print a line of progress at this interval, in place of bars.
    pub progress: Option<Duration>,
    /// No bars, because other text is on the terminal: data that is typed or shown, or lines on
    /// stdout.
    pub plain: bool,
    /// Write events to stdout as lines of JSON, in addition to the output on stderr.
    pub json: bool,
    /// Write a line to stdout for each change at the destination.
    pub changes: bool,
    /// These lines tell differences between the ends (`--check`).
    pub check: bool,
}

/// From least to most output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verbosity {
    /// The reason for an early end.
    Failures,
    /// With several destinations also the summary of each incomplete copy.
    Incomplete,
    /// The summary of each copy; with one destination also what limited it.
    Each,
    /// What limited each copy too.
    All,
}

impl Verbosity {
    pub(super) fn of(output: Output, is_at_terminal: bool) -> Verbosity {
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

//! The amount of output about a finished copy.

use super::Output;

/// From least to most output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tell {
    /// The reason for an early end.
    Failures,
    /// The summary of an incomplete copy.
    Incomplete,
    /// The summary of each copy.
    Each,
    /// Also what limited the copy.
    All,
}

impl Tell {
    pub fn of(output: Output, is_at_terminal: bool) -> Tell {
        match output {
            Output { quiet: true, .. } => Tell::Failures,
            Output { verbose: true, .. } => Tell::All,
            Output { summary: true, .. } => Tell::Each,
            _ if is_at_terminal => Tell::Each,
            _ => Tell::Incomplete,
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
            [false, true].map(|is_at_terminal| Tell::of(output, is_at_terminal))
        };
        assert_eq!(told(true, true, true), [Tell::Failures; 2]);
        assert_eq!(told(false, true, false), [Tell::All; 2]);
        assert_eq!(told(false, false, true), [Tell::Each; 2]);
        assert_eq!(told(false, false, false), [Tell::Incomplete, Tell::Each]);
    }
}

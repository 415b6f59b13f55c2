//! The result of a run, and checks of it.

use std::time::Duration;

use serde_json::Value;

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// None if a signal ended it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    /// None if it was not measured.
    pub(super) peak_rss_bytes: Option<u64>,
    pub elapsed: Duration,
    /// The command line.
    pub line: String,
}

impl Done {
    #[track_caller]
    pub(crate) fn succeeds(&self) -> &Done {
        self.exits(0)
    }

    /// fastcp itself chose the exit code: no signal ended it, and it did not panic.
    #[track_caller]
    pub(crate) fn fails(&self) -> &Done {
        let own = self.code.is_some_and(|code| (1..=13).contains(&code));
        assert!(own, "should have failed: {self}");
        self.never_says("panicked")
    }

    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> &Done {
        assert_eq!(self.code, Some(code), "exit code of {self}");
        self
    }

    /// stderr contains `text`, ignoring case.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Done {
        assert!(
            self.stderr.to_lowercase().contains(&text.to_lowercase()),
            "should have said {text:?}: {self}"
        );
        self
    }

    #[track_caller]
    pub(crate) fn never_says(&self, text: &str) -> &Done {
        assert!(
            !self.stderr.to_lowercase().contains(&text.to_lowercase()),
            "should not have said {text:?}: {self}"
        );
        self
    }

    /// Nothing on stdout, nothing on stderr.
    #[track_caller]
    pub(crate) fn is_silent(&self) -> &Done {
        assert!(
            self.stdout.is_empty() && self.stderr.is_empty(),
            "should have been silent: {self}"
        );
        self
    }

    /// The peak resident memory of the process itself or of one of its descendants.
    #[track_caller]
    pub(crate) fn peak_rss_bytes(&self) -> u64 {
        self.peak_rss_bytes.expect("a run that is measured")
    }

    /// The summary's bytes on the wire, `… (wire 24.1 MB, …`; 0 where it has no such figure.
    #[track_caller]
    pub(crate) fn wire_bytes(&self) -> usize {
        let text = format!("{}{}", self.stdout_text(), self.stderr);
        let Some((_, told)) = text.split_once("wire ") else {
            return 0;
        };
        let mut words = told.split([' ', ',', ')']);
        let number: f64 = words
            .next()
            .and_then(|word| word.parse().ok())
            .expect("a number");
        let unit = match words.next() {
            Some("B") => 1.0,
            Some("KB") => 1e3,
            Some("MB") => 1e6,
            other => panic!("a unit: {other:?} of {text}"),
        };
        (number * unit) as usize
    }

    /// The events of `--json`, in order.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        let event = |line: &[u8]| serde_json::from_slice(line).expect("a line of JSON");
        let lines = self.stdout.split_inclusive(|byte| *byte == b'\n');
        lines.map(event).collect()
    }

    /// The last event of `--json`, which has the result.
    #[track_caller]
    pub(crate) fn end(&self) -> Value {
        let last = self.events().pop().expect("an event");
        assert_eq!(last["event"], "end", "{self}");
        last
    }

    /// That of each of several destinations.
    #[track_caller]
    pub(crate) fn ends(&self) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| event["event"] == "end");
        events
    }

    pub(crate) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.line)?;
        match (self.code, self.signal) {
            (Some(code), _) => writeln!(f, "  exit {code} after {:?}", self.elapsed)?,
            (None, signal) => writeln!(f, "  signal {signal:?} after {:?}", self.elapsed)?,
        }
        for (name, text) in [
            ("stdout", self.stdout_text()),
            ("stderr", self.stderr.clone()),
        ] {
            for line in text.lines() {
                writeln!(f, "  {name}: {line}")?;
            }
        }
        Ok(())
    }
}

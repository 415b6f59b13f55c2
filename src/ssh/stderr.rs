//! The stderr of the far end's process, passed on line by line and printable.

use std::mem::take;

use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;

use super::questions::{Question, Questions};
use crate::units::printable;

/// Most bytes of one line of the far end's stderr that are shown at once.
const LINE_MAX: usize = 4096;

/// Most bytes that are read before a question; more than a pipe holds.
const BEFORE_QUESTION_MAX: usize = 1 << 20;

/// The stderr of a started process, and the questions that it asks.
pub struct Stderr {
    pub(super) pipe: ChildStderr,
    pub(super) questions: Option<Questions>,
}

/// Passes on the far end's stderr until it is closed, one printable line at a time. Lines longer
/// than [`LINE_MAX`] are split. Before a question of ssh, `hold` clears the terminal and keeps it
/// clear while its value lives.
pub async fn relay_stderr<F: Future>(
    mut stderr: Stderr,
    mut line_out: impl FnMut(&str),
    mut hold: impl FnMut() -> F,
) {
    let mut lines = LineBuffer::default();
    let mut read = [0; LINE_MAX];
    loop {
        tokio::select! {
            question = next(stderr.questions.as_ref()) => {
                // ssh wrote its message before it started the program that asks.
                let mut left = BEFORE_QUESTION_MAX;
                while let Ok(len @ 1..) = rustix::io::read(&stderr.pipe, &mut read[..]) {
                    lines.add(&read[..len], &mut line_out);
                    left = left.saturating_sub(len);
                    if left == 0 {
                        break;
                    }
                }
                lines.end(&mut line_out);
                question.let_ask(hold()).await;
            }
            len = stderr.pipe.read(&mut read) => match len {
                Ok(len @ 1..) => lines.add(&read[..len], &mut line_out),
                Ok(0) | Err(_) => return lines.end(&mut line_out),
            }
        }
    }
}

/// For a process that asks nothing.
pub async fn no_hold() {}

async fn next(questions: Option<&Questions>) -> Question {
    match questions {
        Some(questions) => questions.next().await,
        None => std::future::pending().await,
    }
}

/// Collects bytes into lines.
#[derive(Default)]
struct LineBuffer {
    line: Vec<u8>,
    /// Part of the current line has been shown.
    goes_on: bool,
}

impl LineBuffer {
    fn add(&mut self, bytes: &[u8], line_out: &mut impl FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' {
                while self.line.last() == Some(&b'\r') {
                    self.line.pop();
                }
                // A line that ended exactly at a split does not produce an empty line.
                if !(self.goes_on && self.line.is_empty()) {
                    line_out(&printable(&self.line));
                }
                self.line.clear();
                self.goes_on = false;
                continue;
            }
            self.line.push(byte);
            if self.line.len() == LINE_MAX {
                line_out(&printable(&take(&mut self.line)));
                self.goes_on = true;
            }
        }
    }

    /// Shows an incomplete line.
    fn end(&mut self, line_out: &mut impl FnMut(&str)) {
        if !self.line.is_empty() {
            line_out(&printable(&take(&mut self.line)));
            self.goes_on = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_long_line_comes_in_pieces_and_its_end_is_no_line() {
        let script = "head -c 8192 /dev/zero | tr '\\0' A >&2; printf '\\n\\nend\\n' >&2";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = Vec::new();
        let stderr = Stderr {
            pipe: child.stderr.take().unwrap(),
            questions: None,
        };
        relay_stderr(stderr, |line| lines.push(line.len()), no_hold).await;
        child.wait().await.unwrap();
        assert_eq!(lines, [4096, 4096, 0, 3]);
    }
}

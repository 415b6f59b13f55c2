//! Questions about sums of directories, which let the walk leave out what the receiver has.

use crate::digest::Digest;
use crate::wire::message::{SUMS_MAX, SumsAnswer, SumsFound};

#[derive(Default)]
pub(super) struct SumQuestions {
    /// The receiver's key for sums, if it compares them.
    pub key: Option<Digest>,
    /// Number of questions that it has not answered.
    asked: usize,
    /// Its answers, until the walk takes them.
    answers: Vec<SumsAnswer>,
}

impl SumQuestions {
    /// Counts questions that are about to be sent.
    pub(super) fn ask(&mut self, count: usize) {
        self.asked += count;
    }

    /// Adds an answer. False if it answers no question, or is too long.
    pub(super) fn add_answer(&mut self, answer: SumsAnswer) -> bool {
        let is_long = matches!(&answer.found, SumsFound::Some(bits) if bits.len() > SUMS_MAX / 8);
        let Some(asked) = self.asked.checked_sub(1).filter(|_| !is_long) else {
            return false;
        };
        self.asked = asked;
        self.answers.push(answer);
        true
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    pub(super) fn take_answers(&mut self) -> Vec<SumsAnswer> {
        std::mem::take(&mut self.answers)
    }
}

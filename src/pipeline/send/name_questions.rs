//! The receiver's questions about names that only it has (`--delete`).

use crate::wire::message::{OWN_NAMES_MAX, OWN_NAMES_WAITING, OwnNames};

/// The receiver's questions that wait for the walk's thread.
pub(super) struct NameQuestions {
    put: async_channel::Sender<Vec<OwnNames>>,
    waiting: async_channel::Receiver<Vec<OwnNames>>,
}

impl Default for NameQuestions {
    fn default() -> NameQuestions {
        let (put, waiting) = async_channel::bounded(OWN_NAMES_WAITING);
        NameQuestions { put, waiting }
    }
}

impl NameQuestions {
    /// Never waits. Returns false if there are more questions than allowed.
    pub(super) fn add(&self, question: Vec<OwnNames>) -> bool {
        let names: usize = question.iter().map(|names| names.entries.len()).sum();
        let is_allowed = (1..=OWN_NAMES_MAX).contains(&names);
        // A queue that is closed is one of a copy that ends.
        is_allowed && (self.put.try_send(question).is_ok() || self.put.is_closed())
    }

    /// Waits for a question. None when the copy ends.
    pub(super) fn take(&self) -> Option<Vec<OwnNames>> {
        self.waiting.recv_blocking().ok()
    }

    pub(super) fn close(&self) {
        self.put.close();
    }
}

//! The message about files in place, for a client that keeps a record of them.

use serde::{Deserialize, Serialize};

use crate::limited_list;
use crate::report::event::FileDone;

/// Files that a receiver has put in place since the last such message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesDone {
    #[serde(deserialize_with = "limited_list::deserialize::<FILES_DONE_MAX, _, _>")]
    pub files: Vec<FileDone>,
}

/// Most files in one message.
pub const FILES_DONE_MAX: usize = 1024;

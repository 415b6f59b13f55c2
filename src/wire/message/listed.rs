//! Messages about copies whose files keep their paths (`--relative`, `--files-from`), and the list of
//! files, if the client sends it.

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::file_list::{ListForm, NamesFrom, RelativeCopy};

/// What a sender must know of such a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelativeTerms {
    /// `--no-implied-dirs`
    pub plain_parents: bool,
    pub names: NamesSource,
}

/// Where the sender finds the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamesSource {
    Operands,
    /// The client sends [`FileNames`].
    Sent,
    /// A file on the sender's host.
    File {
        #[serde(with = "byte_strings")]
        path: Vec<u8>,
        /// `--from0`
        nul: bool,
    },
}

/// Part of a list of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileNames {
    /// Whole names, each with a NUL at its end, in some 32 KiB.
    #[serde(with = "byte_strings")]
    pub names: Vec<u8>,
    pub is_last: bool,
}

impl RelativeTerms {
    pub fn of(copy: &RelativeCopy) -> RelativeTerms {
        RelativeTerms {
            plain_parents: copy.plain_parents,
            names: match &copy.names {
                NamesFrom::Operands => NamesSource::Operands,
                NamesFrom::List(_) | NamesFrom::Sent => NamesSource::Sent,
                NamesFrom::File { path, form } => NamesSource::File {
                    path: path.clone(),
                    nul: *form == ListForm::Nul,
                },
            },
        }
    }

    /// As the server carries it out.
    pub fn into_copy(self) -> RelativeCopy {
        RelativeCopy {
            plain_parents: self.plain_parents,
            names: match self.names {
                NamesSource::Operands => NamesFrom::Operands,
                NamesSource::Sent => NamesFrom::Sent,
                NamesSource::File { path, nul } => NamesFrom::File {
                    path,
                    form: match nul {
                        true => ListForm::Nul,
                        false => ListForm::Lines,
                    },
                },
            },
        }
    }
}

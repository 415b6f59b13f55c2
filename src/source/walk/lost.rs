//! Listed names that do not exist, or that cannot be reached.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use crate::dir::Dir;
use crate::error::{Error, Kind, Side};
use crate::file_list::ListRange;
use crate::source::listed::ListedSource;

/// Listed names that cannot be found, each of which gets an error.
pub(super) struct LostNames {
    pub rest: ListRange,
    /// Only those of this base.
    pub base: u16,
    pub cause: LostCause,
    /// A directory above them, in which each has a separate cause.
    pub above: Option<Arc<Dir>>,
    /// Bytes of the path of that directory, with a slash.
    pub skip: usize,
    /// Links on the way are followed.
    pub follows: bool,
}

#[derive(Clone, Copy)]
pub(super) enum LostCause {
    Errno(Errno),
    Other(&'static str),
}

impl LostCause {
    pub(super) fn of(cause: &io::Error) -> LostCause {
        match Errno::from_io_error(cause) {
            Some(errno) => LostCause::Errno(errno),
            None => LostCause::Other("cannot open its directory: nested too deeply, or replaced"),
        }
    }
}

impl LostNames {
    /// The error of the next name.
    pub(super) fn next(&mut self, source: &ListedSource) -> Option<Error> {
        loop {
            let (base, name) = source.list.next_name(&mut self.rest)?;
            if base != self.base {
                continue;
            }
            let cause = self.above.as_ref().and_then(|dir| {
                let looked = dir.stat_below(name.get(self.skip..)?, self.follows);
                looked.err().as_ref().map(LostCause::of)
            });
            let base = source.bases.get(usize::from(base))?;
            let path = base.path_of(name);
            return Some(match cause.unwrap_or(self.cause) {
                LostCause::Errno(errno) => {
                    Error::io(Kind::Read, Side::Source, path, "", io::Error::from(errno))
                }
                LostCause::Other(what) => Error::new(Kind::Read, Side::Source, what).at(path),
            });
        }
    }
}

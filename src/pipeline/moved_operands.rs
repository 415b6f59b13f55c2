//! Operands whose copies are on disk, so that `--remove-source-files` has removed them or is about to.
//! If the connection is lost then, the next session of the same command does not miss them.

use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use nix::libc;
use parking_lot::Mutex;

use crate::error::{Error, Kind};
use crate::manifest::EntryId;

/// The moved operands, as the client knows them.
#[derive(Default)]
pub struct MovedOperands(Mutex<MovedState>);

#[derive(Default)]
struct MovedState {
    /// The roots of this session, in the order of their ids.
    roots: Vec<MovingRoot>,
    /// The operands that earlier sessions have copied.
    moved: HashSet<Vec<u8>>,
}

struct MovingRoot {
    /// As it was typed, without the host.
    operand: Vec<u8>,
    is_durable: bool,
}

impl MovedOperands {
    /// Notes the operand of each root.
    pub fn set_roots(&self, operands: impl Iterator<Item = Vec<u8>>) {
        let root = |operand| MovingRoot {
            operand,
            is_durable: false,
        };
        self.0.lock().roots = operands.map(root).collect();
    }

    /// Notes that the copies of these entries are on disk.
    pub fn are_durable(&self, entries: Range<EntryId>) {
        let mut state = self.0.lock();
        let len = state.roots.len();
        // The first root has the number 1. A peer may send any range.
        let index = |id: EntryId| id.saturating_sub(1).min(len as u64) as usize;
        let roots = &mut state.roots;
        let moved = roots.get_mut(index(entries.start)..index(entries.end));
        for root in moved.into_iter().flatten() {
            root.is_durable = true;
        }
    }

    /// Prepares for another session: operands of which all roots are durable have been moved.
    pub fn begin_again(&self) {
        let mut state = self.0.lock();
        let roots = std::mem::take(&mut state.roots);
        let left = roots.iter().filter(|root| !root.is_durable);
        let left: HashSet<&[u8]> = left.map(|root| &root.operand[..]).collect();
        let operands = roots.iter().map(|root| &root.operand);
        let done = operands.filter(|operand| !left.contains(&operand[..]));
        state.moved.extend(done.cloned());
    }

    /// True if `error` says that such an operand was not found.
    pub fn has(&self, error: &Error) -> bool {
        let is_missing = error.kind == Kind::Read && error.errno == libc::ENOENT;
        let path = error.path.as_deref().filter(|_| is_missing);
        path.is_some_and(|path| self.0.lock().moved.contains(path.as_os_str().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error as IoError;

    use super::*;
    use crate::error::Side;

    #[test]
    fn an_operand_is_moved_when_all_its_files_have_arrived() {
        let operands = MovedOperands::default();
        let missing = |path: &str, errno| {
            let cause = IoError::from_raw_os_error(errno);
            operands.has(&Error::io(Kind::Read, Side::Source, path, "", cause))
        };
        let typed = ["a", "*.log", "*.log", "b"];
        let set_roots = || operands.set_roots(typed.iter().map(|name| name.as_bytes().to_vec()));
        set_roots();
        operands.are_durable(1..3);
        operands.are_durable(5..90);
        assert!(!missing("a", libc::ENOENT), "this session had it");
        operands.begin_again();
        assert!(missing("a", libc::ENOENT));
        assert!(!missing("a", libc::EACCES));
        assert!(!missing("*.log", libc::ENOENT) && !missing("b", libc::ENOENT));
        // A session that did not get as far changes nothing.
        operands.begin_again();
        set_roots();
        operands.are_durable(2..4);
        operands.begin_again();
        assert!(missing("a", libc::ENOENT) && missing("*.log", libc::ENOENT));
        assert!(!missing("b", libc::ENOENT));
    }
}

//! The user's selection along the walk.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Name;
use crate::selection::{DirectoryRules, NoRules, RULE_FILE_MAX, Selector};
use crate::source::part::PartOf;

pub(in crate::source) struct WalkChoice {
    selector: Arc<Selector>,
    /// The innermost directory as the rules see it: empty where the contents of a directory are
    /// copied, else `/` and its name, and so on.
    path: Vec<u8>,
    /// From the directory that the user named to the innermost one.
    levels: Vec<ChoiceLevel>,
    /// Number of entries that were left out.
    left_out: u64,
}

struct ChoiceLevel {
    rules: DirectoryRules,
    /// Length of the path of the directory above.
    outer: usize,
}

impl WalkChoice {
    pub(in crate::source) fn new(selector: Arc<Selector>) -> WalkChoice {
        WalkChoice {
            selector,
            path: Vec::new(),
            levels: Vec::new(),
            left_out: 0,
        }
    }

    /// Goes into a directory; `name` is None where the contents of a named one are copied.
    ///
    /// # Errors
    /// `Kind::Read` if a rule file there cannot be read or is wrong. The directory is not entered.
    pub(in crate::source) fn enter(&mut self, name: Option<&Name>, dir: &Arc<Dir>) -> Result<()> {
        let outer = self.path.len();
        if let Some(name) = name.filter(|_| self.selector.has_rules()) {
            self.path.push(b'/');
            self.path.extend_from_slice(name.as_bytes());
        }
        let first = DirectoryRules::default();
        let above = self.levels.last().map_or(&first, |level| &level.rules);
        let read = |name: &[u8]| read(dir, OsStr::from_bytes(name));
        match self.selector.enter(above, &self.path, read) {
            Ok(rules) => {
                self.levels.push(ChoiceLevel { rules, outer });
                Ok(())
            }
            Err(why) => {
                self.path.truncate(outer);
                Err(told(why, dir))
            }
        }
    }

    /// Goes to the directory that has `part`.
    ///
    /// # Errors
    /// As [`enter`](Self::enter), or if a directory on the way cannot be opened.
    pub(in crate::source) fn enter_way(
        &mut self,
        part: &PartOf,
        handles: &Arc<Handles>,
    ) -> Result<()> {
        let what = "cannot open the directories between SOURCE and its part (--map)";
        let way = part.way(handles);
        let way =
            way.map_err(|cause| Error::io(Kind::Read, Side::Source, &part.source, what, cause))?;
        for (name, dir) in &way {
            self.enter(name.as_ref(), dir)?;
        }
        Ok(())
    }

    /// Goes into a directory that the source does not have. The rules of those above apply.
    pub(in crate::source) fn enter_missing(&mut self, name: &Name) {
        let outer = self.path.len();
        if self.selector.has_rules() {
            self.path.push(b'/');
            self.path.extend_from_slice(name.as_bytes());
        }
        let first = DirectoryRules::default();
        let above = self.levels.last().map_or(&first, |level| &level.rules);
        // Nothing is read, so nothing can fail.
        let rules = self.selector.enter(above, &self.path, |_| Ok(None));
        let rules = rules.unwrap_or_default();
        self.levels.push(ChoiceLevel { rules, outer });
    }

    /// Leaves the innermost directory.
    pub(super) fn leave(&mut self) {
        if let Some(level) = self.levels.pop() {
            self.path.truncate(level.outer);
        }
    }

    /// Leaves all directories.
    pub(super) fn leave_all(&mut self) {
        self.levels.clear();
        self.path.clear();
    }

    /// True if the entry `name` of the innermost directory is copied.
    pub(super) fn takes(&self, name: &Name, stat: &Stat) -> bool {
        let Some(level) = self.levels.last() else {
            return true;
        };
        self.selector
            .takes(&level.rules, &self.path, name.as_bytes(), stat)
    }

    /// Counts an entry that is left out. Returns the new number.
    pub(super) fn count_left_out(&mut self) -> u64 {
        self.left_out += 1;
        self.left_out
    }

    /// True if the rules leave out the entry `name` of the innermost directory, whose type is
    /// unknown.
    pub(super) fn leaves_out(&self, name: &Name) -> bool {
        let Some(level) = self.levels.last() else {
            return false;
        };
        let (path, name) = (&self.path, name.as_bytes());
        let takes = |as_directory| {
            let rules = &level.rules;
            self.selector.takes_name(rules, path, name, as_directory)
        };
        !takes(false) || !takes(true)
    }

    /// True if the rules leave out the entry `name` of the innermost directory.
    pub(in crate::source) fn leaves_out_as(&self, name: &Name, is_directory: bool) -> bool {
        let Some(level) = self.levels.last() else {
            return false;
        };
        let (rules, name) = (&level.rules, name.as_bytes());
        !self
            .selector
            .takes_name(rules, &self.path, name, is_directory)
    }

    /// True if `--delete` must keep it at the destination.
    pub(in crate::source) fn protects(
        &self,
        name: &Name,
        is_directory: bool,
        excluded_too: bool,
    ) -> bool {
        let Some(level) = self.levels.last() else {
            return false;
        };
        let place = (&self.path[..], name.as_bytes());
        self.selector
            .protects(&level.rules, place, is_directory, excluded_too)
    }

    /// True if directories on other file systems are made but not entered.
    pub(super) fn stays_on_one_file_system(&self) -> bool {
        self.selector.selection().one_file_system
    }
}

/// None if there is no such file; a directory of this name does not count.
fn read(dir: &Arc<Dir>, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
    // A FIFO of this name must not make the copy wait. A link could lead to another user's
    // file, or to a device.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = match dir.open(name, flags, Mode::empty()) {
        Ok(fd) => std::fs::File::from(fd),
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::NOENT) => return Ok(None),
            Some(Errno::LOOP) => return Err(io::Error::other("it is a symbolic link")),
            _ => return Err(e),
        },
    };
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Ok(None);
    }
    if !kind.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(RULE_FILE_MAX as u64 + 1).read_to_end(&mut text)?;
    if text.len() > RULE_FILE_MAX {
        return Err(Errno::FBIG.into());
    }
    Ok(Some(text))
}

fn told(why: NoRules, dir: &Arc<Dir>) -> Error {
    let at = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
    match why {
        NoRules::Unreadable(name, cause) => {
            let what = "cannot read the filter rules, so its directory is not read";
            Error::io(Kind::Read, Side::Source, at(&name), what, cause)
        }
        NoRules::Bad(name, line, why) => {
            let what =
                format!("bad filter rule in line {line}, so its directory is not read: {why}");
            Error::new(Kind::Read, Side::Source, what).at(at(&name))
        }
    }
}

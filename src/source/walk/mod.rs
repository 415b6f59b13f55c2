//! The walk over everything that the user named, one [`Step`] per entry. It goes depth first, in
//! the order in which the file system lists a directory. Its memory grows with the depth of a tree,
//! not its size, except for files with several names, within bounds: see [`names`].
//!
//! Every entry is opened through its parent's handle, one component at a time. So a path may have
//! any length, and nobody can redirect the walk by replacing a directory with a link.
//!
//! Order of steps: first everything that the user named, in order, or as much of it as the receiver
//! has room for; then the tree of each named directory, which ends with its `EndDirectory`; last
//! the further names of files with several names (hard links). When [`names::FURTHER_NAMES_MAX`] of
//! these are waiting, they come before the trees end.

mod choice;
mod level;
mod listed;
mod lost;
mod metadata;
mod names;
mod roots;
mod spot;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{FileType, Stat, fgetxattr};
use rustix::io::Errno;

use crate::dir::acl::{self, mode_without_list};
use crate::dir::{DEPTH_MAX, Dir, Handles, RESERVED, is_reserved, may_leave};
use crate::error::{Error, Kind, Side};
use crate::file_list::FileList;
use crate::keep::Keep;
use crate::manifest::{
    EntryId, EntryKind, Identity, NO_PARENT, Name, OPERAND_BYTES_MAX, SpecialFile, file_type,
};
use crate::mirror::NameSums;

use super::device::is_device;
use super::found::{DANGLING, FoundFile, REMOVED, REPLACED, special};
use super::listed::ListedSource;
use super::operand::NamedSource;
use super::part::{PartOf, Parts};
use super::pipe_spec::is_pipe;
use crate::selection::Selector;
pub(super) use choice::WalkChoice;
use level::{Level, LevelTerms};
use lost::LostNames;
use metadata::WalkMetadata;
use names::{FurtherName, LinkedNames};
use roots::WalkRoots;
pub use roots::root_id;
use spot::WalkSpot;

/// Number of innermost directories that stay open for reading; outer ones keep their position.
const READING_MAX: usize = 64;

/// Number of entries in a row that the walk may leave out without a step.
const LEFT_OUT_EVERY: u64 = 1000;

// Nearly all steps are entries, so boxing them would save nothing.
#[allow(clippy::large_enum_variant)]
pub enum Step {
    Entry(FoundFile),
    /// With [`WalkOptions::holds`], an entry without a number, which its directory does not count as
    /// a child: anything in a tree but directories and files with several names.
    Unnumbered(FoundFile),
    /// All `children` entries whose parent is `id` have been announced, or will be as hard links.
    EndDirectory {
        id: EntryId,
        children: u64,
        /// With [`WalkOptions::sums_names`], the names of all its entries that are copied. None if
        /// it was not read to its end.
        names: Option<NameSums>,
        /// The user named the directory.
        is_named: bool,
    },
    /// An entry that is not copied, with the reason; no directory counts it as a child.
    Failed(Error),
    /// A listed name that does not exist, or that cannot be reached.
    Missing(Error),
    /// Many entries were left out. The caller sees that the walk goes on, and may end it.
    LeftOut,
    /// A FIFO, a socket or a device inside a tree. Nobody expects its content, so this is no
    /// failure.
    Special(Error),
}

pub struct Walk {
    roots: WalkRoots,
    options: WalkOptions,
    handles: Arc<Handles>,
    choice: WalkChoice,
    /// Named directories that are not walked yet.
    trees: NamedTrees,
    /// Listed names that cannot be found.
    lost: VecDeque<LostNames>,
    /// The directory that was announced last and is entered next.
    entering: Option<Entering>,
    levels: Vec<Level>,
    queued: VecDeque<Step>,
    numbers: EntryNumbers,
    linked: LinkedNames,
    metadata: WalkMetadata,
    symlinks: SymlinkCounts,
}

/// The symbolic links in trees that were announced as links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymlinkCounts {
    pub all: u64,
    /// Those that lead out of their tree, by their text.
    pub outside: u64,
}

/// The numbers of entries, each given once.
#[derive(Clone)]
pub struct EntryNumbers(Arc<AtomicU64>);

impl EntryNumbers {
    fn from(first: EntryId) -> EntryNumbers {
        EntryNumbers(Arc::new(AtomicU64::new(first)))
    }

    pub fn take(&self) -> EntryId {
        self.0.fetch_add(1, Relaxed)
    }
}

struct Entering {
    id: EntryId,
    parent: Arc<Dir>,
    name: Name,
    identity: (u64, u64),
    through_link: bool,
    how: LevelTerms,
}

/// Named directories. All of them are announced before the first one is walked, unless their entries
/// are large: the receiver holds these until the directories are complete.
#[derive(Default)]
struct NamedTrees {
    waiting: VecDeque<NamedTree>,
    /// [`Entry::heap_bytes`](crate::manifest::Entry::heap_bytes) since nothing was waiting.
    bytes: usize,
}

struct NamedTree {
    id: EntryId,
    dir: Arc<Dir>,
    /// None if only its contents are copied.
    name: Option<Name>,
    part: Option<Arc<PartOf>>,
    how: LevelTerms,
}

/// What the user wants to be copied of the trees.
#[derive(Clone, Debug, Default)]
pub struct WalkOptions {
    /// Symbolic links inside trees are copied as the files that they lead to.
    pub follow_links: bool,
    /// `--scp`: a link inside a tree is copied as the file that it leads to, and fails if it leads to
    /// anything else. Each name of a file is a separate file.
    pub scp: bool,
    pub selector: Arc<Selector>,
    pub keep: Keep,
    /// The receiver compares modes of existing files, so a mode is what the destination would get.
    pub compares_modes: bool,
    /// The caller holds entries back and gives them their numbers, from [`Walk::numbers`].
    pub holds: bool,
    /// The names in each directory are summed up.
    pub sums_names: bool,
    /// The user named more, which was not found.
    pub lacks_operands: bool,
    /// The user may have named more, which is left out.
    pub may_lack_names: bool,
    /// Only these entries of the named directory are copied. Then there is one.
    pub listed: Option<Arc<ListedSource>>,
    /// Parts of the first named directory that are named by themselves.
    pub parts: Arc<Parts>,
}

impl Walk {
    pub fn new<R: Into<Arc<NamedSource>>>(
        roots: Vec<R>,
        options: WalkOptions,
        handles: Arc<Handles>,
    ) -> Walk {
        let roots: Vec<_> = roots.into_iter().map(Into::into).collect();
        Walk {
            numbers: EntryNumbers::from(root_id(roots.len())),
            // A listed name may lead through a link.
            linked: LinkedNames::new(
                roots.len() == 1 && !options.follow_links && options.listed.is_none(),
            ),
            metadata: WalkMetadata::new(options.keep, options.compares_modes),
            symlinks: SymlinkCounts::default(),
            roots: WalkRoots::new(roots),
            choice: WalkChoice::new(options.selector.clone()),
            options,
            handles,
            trees: NamedTrees::default(),
            lost: VecDeque::new(),
            entering: None,
            levels: Vec::new(),
            queued: VecDeque::new(),
        }
    }

    /// The numbers of entries, which the walk takes too.
    pub fn numbers(&self) -> EntryNumbers {
        self.numbers.clone()
    }

    /// Number of named things that the walk has not reached yet.
    pub fn named(&self) -> usize {
        self.roots.len()
    }

    /// True if the user named more, which was not found.
    pub fn lacks_operands(&self) -> bool {
        self.options.lacks_operands
    }

    /// True if the user may have named more, which is left out.
    pub fn may_lack_names(&self) -> bool {
        self.options.may_lack_names
    }

    /// Listed names; links on the way to them are followed.
    pub fn ways(&self) -> Option<Arc<FileList>> {
        let listed = self.options.listed.as_ref();
        let listed = listed.filter(|_| !self.roots.are_confined());
        listed.map(|listed| listed.list.clone())
    }

    /// Each named thing that the walk has not reached.
    pub fn roots(&self) -> Vec<Arc<NamedSource>> {
        self.roots.rest()
    }

    /// The receiver remembers any number of files with several names, so the walk does too.
    pub fn remember_all_names(&mut self) {
        self.linked.first.remember_all();
    }

    /// Number of further names of files that are announced as separate files, since their first names
    /// could not be remembered.
    pub fn unlinked(&self) -> u64 {
        self.linked.first.unlinked()
    }

    /// The symbolic links so far.
    pub fn symlinks(&self) -> SymlinkCounts {
        self.symlinks
    }

    /// Number of entries with extended attributes that could not be read, or that are too many.
    pub fn unread_attributes(&self) -> u64 {
        self.metadata.unread_attributes()
    }

    /// Does one piece of work, which may queue steps. False at the end.
    fn advance(&mut self) -> bool {
        if let Some(further) = self.linked.further.take_overflowing() {
            self.further_name(further);
        } else if let Some(lost) = self.lost.front_mut() {
            let source = self.options.listed.as_ref();
            match source.and_then(|source| lost.next(source)) {
                Some(error) => self.queued.push_back(Step::Missing(error)),
                None => drop(self.lost.pop_front()),
            }
        } else if let Some((id, root)) = self.next_root() {
            if let Err(cause) = self.root(id, &root) {
                self.fail_io(root.path.clone(), "cannot open", cause);
            }
        } else if let Some(entering) = self.entering.take() {
            self.enter(entering);
        } else if self.next_listed() {
            // It has done a piece of work.
        } else if let Some(level) = self.levels.last_mut() {
            match level.next_name() {
                Ok(Some(name)) => self.child(name),
                Ok(None) => self.leave(),
                Err(cause) => {
                    level.names = None;
                    let path = level.dir.path();
                    self.fail_io(path, "cannot read the directory", cause);
                    self.leave();
                }
            }
        } else if let Some(tree) = self.trees.waiting.pop_front() {
            self.begin_root();
            self.enter_tree(tree);
        } else if let Some(further) = self.linked.further.take() {
            self.further_name(further);
        } else {
            return false;
        }
        true
    }

    fn next_root(&mut self) -> Option<(EntryId, Arc<NamedSource>)> {
        if self.trees.bytes >= OPERAND_BYTES_MAX {
            let is_walking = self.entering.is_some() || !self.levels.is_empty();
            if is_walking || !self.trees.waiting.is_empty() {
                return None;
            }
            self.trees.bytes = 0;
        }
        self.roots.next()
    }

    /// No file gets a link to one in another root, which may be on another file system, if parts go
    /// to separate places. Each tree is walked by itself then.
    fn begin_root(&mut self) {
        if !self.options.parts.is_empty() {
            self.linked.first.forget_all(!self.options.follow_links);
        }
    }

    fn enter_tree(&mut self, tree: NamedTree) {
        if let Some(part) = &tree.part
            && let Err(error) = self.choice.enter_way(part, &self.handles)
        {
            self.choice.leave_all();
            self.queued.push_back(Step::Failed(error));
            self.queued.push_back(not_entered(tree.id));
            return;
        }
        self.push_level(tree.id, tree.dir, tree.name.as_ref(), tree.how);
    }

    fn root(&mut self, id: EntryId, root: &NamedSource) -> io::Result<()> {
        self.begin_root();
        if let Some(source) = self.options.listed.clone() {
            return self.listed_root(id, root, &source);
        }
        if root.is_directory() {
            let dir = root.open(&root.path, &self.handles)?;
            let stat = status_of(&dir)?;
            let how = self.whole(dir.identity().0);
            self.trees.waiting.push_back(NamedTree {
                id,
                dir: dir.clone(),
                name: (root.part.is_some() || !root.contents).then(|| root.name.clone()),
                part: root.part.clone(),
                how,
            });
            let spot = self.root_spot(id, dir, root);
            let found = self.metadata.found(id, spot, EntryKind::Directory, &stat);
            self.trees.bytes += found.entry.heap_bytes();
            self.queued.push_back(Step::Entry(found));
            return Ok(());
        }
        let dir = self.roots.parent_of(root, &self.handles)?;
        let spot = self.root_spot(id, dir, root);
        let stat = spot.stat()?;
        if file_type(&stat) == FileType::Directory {
            self.fail(Kind::Changed, &spot, "became a directory during the copy");
        } else if root.confine.is_some() && file_type(&stat) != FileType::RegularFile {
            self.fail(Kind::Changed, &spot, "is no longer a file");
        } else if is_device(&stat) {
            let found = spot.into_device(id, &stat, self.options.keep);
            self.queued
                .push_back(found.map_or_else(Step::Failed, Step::Entry));
        } else {
            self.visit(spot, stat);
        }
        Ok(())
    }

    /// A directory that the user named, with all that it has.
    fn whole(&self, top_device: u64) -> LevelTerms {
        LevelTerms {
            reads: true,
            enters: true,
            listed: None,
            is_named: true,
            top_device,
            sums_names: self.options.sums_names,
        }
    }

    fn root_spot(&self, id: EntryId, dir: Arc<Dir>, root: &NamedSource) -> WalkSpot {
        WalkSpot {
            id: Some(id),
            parent: NO_PARENT,
            dir,
            name: root.name.clone(),
            through_link: root.confine.is_none(),
            is_followed: false,
        }
    }

    /// Handles one name in the innermost directory.
    fn child(&mut self, name: Vec<u8>) {
        let level = self.levels.last().expect("called for a level");
        if let (Some(listed), Some(source)) = (&level.listed, &self.options.listed)
            && source.list.find(&listed.all, &name).is_some()
        {
            // `next_listed` has visited it, or told of it.
            return;
        }
        let Ok(name) = Name::try_from(name) else {
            let error = Error::new(
                Kind::Entry,
                Side::Source,
                "contains a name of more than 255 bytes, which is not copied",
            );
            let error = error.at(level.dir.path());
            self.queued.push_back(Step::Failed(error));
            return;
        };
        self.found_by_reading(name);
    }

    /// Visits an entry of the innermost directory, unless a rule leaves it out.
    fn found_by_reading(&mut self, name: Name) {
        let level = self.levels.last_mut().expect("called for a level");
        let parts = &self.options.parts;
        if !parts.is_empty() && parts.contains(&(level.dir.identity(), name.clone())) {
            // The place of that name at the destination is not deleted.
            if let Some(names) = &mut level.names {
                names.add(name.as_bytes());
            }
            return self.left_out();
        }
        let is_own = self.roots.are_confined() && is_reserved(name.as_bytes());
        let spot = WalkSpot {
            id: None,
            parent: level.id,
            dir: level.dir.clone(),
            name,
            through_link: self.options.follow_links,
            is_followed: false,
        };
        match spot.stat() {
            Ok(stat) if !self.choice.takes(&spot.name, &stat) => self.left_out(),
            _ if is_own => self.fail(Kind::Refused, &spot, RESERVED),
            Ok(stat) => self.visit(spot, stat),
            Err(_) if self.choice.leaves_out(&spot.name) => self.left_out(),
            Err(cause) => {
                let dangling = spot.through_link && spot.dir.stat(spot.name.as_os_str()).is_ok();
                let what = if dangling { DANGLING } else { "" };
                self.fail_io(spot.path(), what, cause);
            }
        }
    }

    fn left_out(&mut self) {
        if self.choice.count_left_out().is_multiple_of(LEFT_OUT_EVERY) {
            self.queued.push_back(Step::LeftOut);
        }
    }

    fn visit(&mut self, spot: WalkSpot, stat: Stat) {
        match file_type(&stat) {
            FileType::RegularFile => self.file(spot, stat),
            FileType::Directory => self.directory(spot, stat),
            FileType::Symlink if self.options.scp => self.followed_as_by_scp(spot),
            FileType::Symlink => match self.link_text(&spot) {
                Ok(text) if self.holds_here() && spot.parent != NO_PARENT => {
                    self.unnumbered(spot, EntryKind::Symlink(text), &stat);
                }
                Ok(text) => {
                    let id = self.number(&spot);
                    self.announce(id, spot, EntryKind::Symlink(text), &stat);
                }
                Err(cause) => self.fail_io(spot.path(), "cannot read the link", cause),
            },
            other if spot.parent == NO_PARENT && is_pipe(other) => {
                let id = self.number(&spot);
                self.announce(id, spot, EntryKind::Pipe, &stat);
            }
            other if self.metadata.takes_special(other) && spot.parent != NO_PARENT => {
                let kind = SpecialFile::of(other).map(EntryKind::Special);
                let kind = kind.expect("a special file");
                if self.holds_here() {
                    return self.unnumbered(spot, kind, &stat);
                }
                let id = self.number(&spot);
                self.announce(id, spot, kind, &stat);
            }
            other => {
                let what = special(other).unwrap_or("of an unknown type");
                let error = Error::new(
                    Kind::Entry,
                    Side::Source,
                    format!("is {what}, which is not copied"),
                );
                let error = error.at(spot.path());
                self.queued.push_back(match spot.parent {
                    NO_PARENT => Step::Failed(error),
                    _ => Step::Special(error),
                });
            }
        }
    }

    /// The text of a link, which is counted.
    fn link_text(&mut self, spot: &WalkSpot) -> io::Result<Vec<u8>> {
        let text = spot.link_text()?;
        // The innermost level has the link. One that the user named is in no tree.
        if let Some(depth) = self.levels.len().checked_sub(1)
            && spot.parent != NO_PARENT
        {
            self.symlinks.all += 1;
            self.symlinks.outside += u64::from(may_leave(&text, depth));
        }
        Ok(text)
    }

    /// scp copies a link as a file, or not at all.
    fn followed_as_by_scp(&mut self, spot: WalkSpot) {
        if self.roots.are_confined() {
            let why = "is a symbolic link, and this key may not follow links (--confine)";
            return self.fail(Kind::Entry, &spot, why);
        }
        let spot = WalkSpot {
            through_link: true,
            ..spot
        };
        match spot.stat() {
            Ok(stat) if file_type(&stat) == FileType::RegularFile => self.file(spot, stat),
            Ok(stat) => {
                let what = special(file_type(&stat)).unwrap_or("a directory");
                let message = format!("is a link to {what}, and scp copies no such link (--scp)");
                self.fail(Kind::Entry, &spot, &message);
            }
            Err(cause) => {
                let is_missing = Errno::from_io_error(&cause) == Some(Errno::NOENT);
                let what = if is_missing { DANGLING } else { "" };
                self.fail_io(spot.path(), what, cause);
            }
        }
    }

    fn file(&mut self, spot: WalkSpot, mut stat: Stat) {
        if self.options.scp {
            stat.st_nlink = 1;
        }
        if self.holds_here() && stat.st_nlink == 1 && spot.parent != NO_PARENT {
            return self.unnumbered(spot, EntryKind::File, &stat);
        }
        if stat.st_nlink > 1
            && let Some((first, is_last)) = self.linked.first.find(&stat)
        {
            self.count_child(&spot);
            if is_last {
                stat.st_nlink = 1;
            }
            self.linked.further.add(FurtherName { spot, first, stat });
            return;
        }
        let id = self.number(&spot);
        let name_len = spot.name.as_bytes().len();
        if stat.st_nlink > 1 && !self.linked.first.remember(id, name_len, &stat) {
            stat.st_nlink = 1;
        }
        self.announce(id, spot, EntryKind::File, &stat);
    }

    /// A directory that was found by reading the one above it.
    fn directory(&mut self, spot: WalkSpot, stat: Stat) {
        let level = self.levels.last();
        let enters = level.is_none_or(|level| level.enters);
        let how = LevelTerms {
            reads: enters,
            enters,
            is_named: false,
            ..self.whole(level.map_or(stat.st_dev, |level| level.top_device))
        };
        self.directory_by(spot, stat, how, false);
    }

    /// A directory. `is_plain`: nobody named it.
    fn directory_by(&mut self, spot: WalkSpot, mut stat: Stat, how: LevelTerms, is_plain: bool) {
        let identity = (stat.st_dev, stat.st_ino);
        // The destination may put it one level deeper, below the directory that receives the copy.
        if self.levels.len() >= DEPTH_MAX {
            self.fail(
                Kind::Entry,
                &spot,
                "is nested too deeply, so it is not copied: copy this directory in a run of its \
                 own",
            );
            return;
        }
        // Without links there is no way back, and the comparison finds nothing. A listed name may lead
        // back, but it ends.
        if (self.options.follow_links || self.options.listed.is_none())
            && self
                .levels
                .iter()
                .any(|level| level.dir.identity() == identity)
        {
            self.fail(
                Kind::Entry,
                &spot,
                "leads back to a directory above it, so it is not copied",
            );
            return;
        }
        stat.st_mode = spot.mode_without_list(stat.st_mode);
        let id = self.number(&spot);
        let is_elsewhere = self.choice.stays_on_one_file_system() && how.top_device != stat.st_dev;
        let is_entered = !is_elsewhere && (how.reads || how.listed.is_some());
        let mark = (!(how.reads && how.enters)).then_some(is_plain);
        self.entering = is_entered.then(|| Entering {
            id,
            parent: spot.dir.clone(),
            name: spot.name.clone(),
            identity,
            through_link: spot.through_link,
            how,
        });
        self.announce_directory(id, spot, &stat, mark);
        if !is_entered {
            self.queued.push_back(not_entered(id));
        }
    }

    /// Announces a directory, with a mark if it is copied without all that it has: true if nobody
    /// named it.
    fn announce_directory(&mut self, id: EntryId, spot: WalkSpot, stat: &Stat, mark: Option<bool>) {
        self.count_child(&spot);
        let mut found = self.metadata.found(id, spot, EntryKind::Directory, stat);
        if let Some(is_plain) = mark {
            found.entry.imply(is_plain);
        }
        self.queued.push_back(Step::Entry(found));
    }

    fn enter(&mut self, entering: Entering) {
        let Entering {
            id,
            parent,
            name,
            identity,
            through_link,
            how,
        } = entering;
        // If it cannot be read, its listed entries are copied all the same.
        let opened = if how.listed.is_some() {
            parent.passed(&name, through_link)
        } else if through_link {
            parent.linked(&name)
        } else {
            parent.child(&name)
        };
        let own = opened.as_ref().ok();
        let own = own.filter(|dir| dir.identity() == identity);
        let how = match how.listed {
            Some(listed) => LevelTerms {
                listed: Some(self.listed_dirs(listed, &name, (&parent, own))),
                ..how
            },
            None => how,
        };
        match opened {
            Ok(dir) if dir.identity() == identity => {
                return self.push_level(id, dir, Some(&name), how);
            }
            Ok(_) => {
                let error = Error::new(Kind::Changed, Side::Source, REPLACED);
                let error = error.at(parent.path().join(&name));
                self.queued.push_back(Step::Failed(error));
            }
            Err(cause) => self.fail_io(parent.path().join(&name), "cannot open", cause),
        }
        self.queued.push_back(not_entered(id));
    }

    fn push_level(&mut self, id: EntryId, dir: Arc<Dir>, name: Option<&Name>, how: LevelTerms) {
        if let Err(error) = self.choice.enter(name, &dir) {
            if self.levels.is_empty() {
                self.choice.leave_all();
            }
            self.queued.push_back(Step::Failed(error));
            self.queued.push_back(not_entered(id));
            return;
        }
        self.levels.push(Level::new(id, dir, how));
        if let Some(outer) = self.levels.len().checked_sub(READING_MAX + 1) {
            self.levels[outer].pause();
        }
    }

    fn leave(&mut self) {
        self.choice.leave();
        let level = self.levels.pop().expect("called for a level");
        if self.levels.is_empty() {
            self.choice.leave_all();
        }
        self.queued.push_back(Step::EndDirectory {
            id: level.id,
            children: level.children,
            names: level.names,
            is_named: level.is_named,
        });
    }

    /// Announces a further name even if it is gone, because it stands for the bytes read under the
    /// first name. In that case the copy differs from the source, so an error follows.
    fn further_name(&mut self, further: FurtherName) {
        let FurtherName { spot, first, stat } = further;
        let changed = |what| Some(Error::new(Kind::Changed, Side::Source, what).at(spot.path()));
        let failure = match spot.stat() {
            Ok(now) if is_same(&stat, &now) => None,
            Ok(_) => changed("was written or replaced during the copy"),
            Err(cause) if Errno::from_io_error(&cause) == Some(Errno::NOENT) => changed(REMOVED),
            Err(cause) => {
                let what = "cannot look at it again";
                Some(Error::io(
                    Kind::Read,
                    Side::Source,
                    spot.path(),
                    what,
                    cause,
                ))
            }
        };
        let id = spot.id.unwrap_or_else(|| self.take_id());
        let found = self
            .metadata
            .found(id, spot, EntryKind::HardLink(first), &stat);
        self.queued.push_back(Step::Entry(found));
        self.queued.extend(failure.map(Step::Failed));
    }

    fn announce(&mut self, id: EntryId, spot: WalkSpot, kind: EntryKind, stat: &Stat) {
        self.count_child(&spot);
        let found = self.metadata.found(id, spot, kind, stat);
        self.queued.push_back(Step::Entry(found));
    }

    fn unnumbered(&mut self, spot: WalkSpot, kind: EntryKind, stat: &Stat) {
        self.add_name(&spot);
        let found = self.metadata.found(0, spot, kind, stat);
        self.queued.push_back(Step::Unnumbered(found));
    }

    fn count_child(&mut self, spot: &WalkSpot) {
        if spot.parent != NO_PARENT {
            let level = self.levels.last_mut().expect("a child stands in a level");
            level.children += 1;
        }
        self.add_name(spot);
    }

    /// Adds the name of an entry that is copied to those of its directory.
    fn add_name(&mut self, spot: &WalkSpot) {
        if spot.parent != NO_PARENT
            && let Some(level) = self.levels.last_mut()
            && let Some(names) = &mut level.names
        {
            names.add(spot.name.as_bytes());
        }
    }

    fn number(&mut self, spot: &WalkSpot) -> EntryId {
        spot.id.unwrap_or_else(|| self.take_id())
    }

    fn take_id(&mut self) -> EntryId {
        self.numbers.take()
    }

    fn fail(&mut self, kind: Kind, spot: &WalkSpot, what: &str) {
        let error = Error::new(kind, Side::Source, what).at(spot.path());
        self.queued.push_back(Step::Failed(error));
    }

    fn fail_io(&mut self, path: PathBuf, what: &str, cause: io::Error) {
        let error = Error::io(Kind::Read, Side::Source, path, what, cause);
        self.queued.push_back(Step::Failed(error));
    }
}

impl Iterator for Walk {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.queued.pop_front() {
                return Some(step);
            }
            if !self.advance() {
                return None;
            }
        }
    }
}

/// The status of a directory, with the mode of a copy without its ACL.
fn status_of(dir: &Arc<Dir>) -> io::Result<Stat> {
    let fd = dir.handle()?;
    let mut stat = rustix::fs::fstat(&*fd)?;
    let list = |room: &mut [u8]| fgetxattr(&*fd, acl::ACCESS, room);
    stat.st_mode = mode_without_list(stat.st_mode, list);
    Ok(stat)
}

/// The end of a directory that is not read.
fn not_entered(id: EntryId) -> Step {
    Step::EndDirectory {
        id,
        children: 0,
        names: None,
        is_named: false,
    }
}

/// Compares more than the inode number, which the file system may reuse at once.
fn is_same(before: &Stat, after: &Stat) -> bool {
    let (before, after) = (Identity::of(before), Identity::of(after));
    let ctime = after.ctime;
    Identity { ctime, ..before } == after
}

#[cfg(test)]
mod tests;

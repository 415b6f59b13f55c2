//! The walk over listed names. It goes through the directories that lead to them, and announces these
//! like other directories.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::level::{LevelTerms, ListedLevel};
use super::lost::{LostCause, LostNames};
use super::spot::WalkSpot;
use super::{NamedTree, Step, Walk, status_of};
use crate::dir::{DEPTH_MAX, Dir, RESERVED, is_reserved, is_trusted};
use crate::error::{Error, Kind, Side};
use crate::file_list::{ListRange, ListedChild};
use crate::manifest::{EntryId, Name, file_type};
use crate::source::listed::ListedSource;
use crate::source::operand::NamedSource;

/// From this number of listed names in a directory on, the receiver compares sums of its entries.
/// With fewer, it does not read a directory that may be large.
const HOLDS_FROM: usize = 256;

const SAME_NAME: &str = "would get the same name as another listed entry: only that one is copied; \
                         copy this one in another run, to another place";

const LEADS_OUT: &str = "is behind a symbolic link that belongs to another user and leads out of \
                         SOURCE (or, for BASE/./NAME, out of BASE), so it is not followed: name the \
                         path that it leads to";

/// A listed entry, or a directory that leads to listed names.
struct ListedEntry {
    spot: WalkSpot,
    stat: Stat,
    /// The base in which it was found.
    base: u16,
    /// The directories that have the listed names below it.
    dirs: Vec<(u16, Arc<Dir>)>,
}

impl Walk {
    /// The directory whose listed entries are copied.
    pub(super) fn listed_root(
        &mut self,
        id: EntryId,
        root: &NamedSource,
        source: &Arc<ListedSource>,
    ) -> io::Result<()> {
        let top = source.list.top();
        let mut dirs = Vec::new();
        let used = source.list.bases_of(&top.all());
        for number in used {
            let Some(base) = source.bases.get(usize::from(number)) else {
                continue;
            };
            match base.open(&self.handles) {
                Ok(dir) => dirs.push((number, dir)),
                Err(cause) => self.lose(top.all(), number, LostCause::of(&cause)),
            }
        }
        let own = source.list.bases_of(&top.own);
        let of_own = |base: &u16| dirs.iter().find(|(number, _)| number == base);
        let chosen = own.iter().find_map(of_own);
        // Without it nobody has named the directory itself.
        let reads = chosen.is_some();
        let dir = match chosen.or(dirs.first()) {
            Some((base, dir)) => {
                let (base, dir) = (*base, dir.clone());
                self.refuse_further(&own, &dirs, base, Path::new(""));
                dir
            }
            None => root.open(&root.path, &self.handles)?,
        };
        let stat = status_of(&dir)?;
        let how = LevelTerms {
            reads,
            enters: reads && source.recursive,
            is_named: reads,
            listed: Some(ListedLevel {
                dirs,
                all: top.below,
                rest: top.below,
            }),
            ..self.whole(dir.identity().0)
        };
        let is_whole = how.enters;
        self.trees.waiting.push_back(NamedTree {
            id,
            dir: dir.clone(),
            name: None,
            part: None,
            how,
        });
        let spot = self.root_spot(id, dir, root);
        self.announce_directory(id, spot, &stat, (!is_whole).then_some(!reads));
        Ok(())
    }

    /// Visits the next listed entry of the innermost directory. False if there is none.
    pub(super) fn next_listed(&mut self) -> bool {
        let Some(source) = self.options.listed.clone() else {
            return false;
        };
        let Some(level) = self.levels.last_mut() else {
            return false;
        };
        let Some(listed) = &mut level.listed else {
            return false;
        };
        let Some(child) = source.list.next_child(&mut listed.rest) else {
            return false;
        };
        self.listed_child(&source, &child);
        true
    }

    fn listed_child(&mut self, source: &ListedSource, child: &ListedChild<'_>) {
        let Ok(name) = Name::try_from(child.name.to_vec()) else {
            let what = "is not a file name: it has more than 255 bytes, or a NUL";
            for base in source.list.bases_of(&child.all()) {
                self.lose(child.all(), base, LostCause::Other(what));
            }
            return;
        };
        let Some(entry) = self.look_for(source, child, &name) else {
            return self.read_listed(source, child, name);
        };
        let level = self.levels.last();
        let level = level.filter(|level| Arc::ptr_eq(&level.dir, &entry.spot.dir));
        let (reads_here, enters_here) =
            level.map_or((false, false), |level| (level.reads(), level.enters));
        let is_own = source.list.has_base(&child.own, entry.base);
        let takes = self.choice.takes(&name, &entry.stat);
        let is_named = takes && (is_own || reads_here);
        let is_way = !entry.dirs.is_empty();
        if !is_named && !is_way {
            // A rule leaves it out, or only names below it are listed, which are missing.
            if is_own {
                self.left_out();
            }
            return;
        }
        let ListedEntry {
            spot,
            stat,
            base,
            dirs,
        } = entry;
        if self.roots.are_confined() && is_reserved(name.as_bytes()) {
            return self.fail(Kind::Refused, &spot, RESERVED);
        }
        if file_type(&stat) != FileType::Directory {
            return self.visit(spot, stat);
        }
        let has_contents = takes && source.list.has_contents_in(&child.own, base);
        let is_recursive = source.recursive && is_own || enters_here;
        // A link that is followed only because names below it are listed is no directory to copy.
        let enters = takes && is_recursive && (has_contents || !spot.is_followed);
        let how = LevelTerms {
            reads: has_contents || enters,
            enters,
            is_named: is_own,
            listed: is_way.then_some(ListedLevel {
                dirs,
                all: child.below,
                rest: child.below,
            }),
            // A listed directory may be on another file system.
            ..self.whole(stat.st_dev)
        };
        self.directory_by(spot, stat, how, source.plain_parents && !is_named);
    }

    /// Visits the entry of the innermost directory with a name that is listed in other bases, and
    /// missing there: reading passes over all listed names.
    fn read_listed(&mut self, source: &ListedSource, child: &ListedChild<'_>, name: Name) {
        let Some(level) = self.levels.last().filter(|level| level.reads()) else {
            return;
        };
        let dir = level.dir.clone();
        let dirs = self.dirs_of(&source.list.bases_of(&child.all()));
        // Then it has been looked for here too.
        let is_listed_here = dirs.iter().any(|(_, of)| Arc::ptr_eq(of, &dir));
        let is_missing = dir
            .stat(name.as_os_str())
            .is_err_and(|cause| does_not_exist(&cause));
        if !is_listed_here && !is_missing {
            self.found_by_reading(name);
        }
    }

    /// Looks for a listed entry in all bases. Names that are missing get errors.
    fn look_for(
        &mut self,
        source: &ListedSource,
        child: &ListedChild<'_>,
        name: &Name,
    ) -> Option<ListedEntry> {
        let list = &source.list;
        let own = list.bases_of(&child.own);
        let (mut found, mut dirs) = (Vec::new(), Vec::new());
        let mut chosen: Option<ListedEntry> = None;
        for (base, dir) in self.dirs_of(&list.bases_of(&child.all())) {
            let (spot, stat) = match self.look_in(source, child, (base, &dir), name) {
                Ok(Some((entry, is_way))) => {
                    found.push((base, dir.clone()));
                    dirs.extend(is_way.then_some((base, dir)));
                    entry
                }
                Ok(None) => continue,
                // A rule may leave out an entry whose status cannot be read.
                Err(cause)
                    if !does_not_exist(&cause)
                        && child.below.is_empty()
                        && self.choice.leaves_out(name) =>
                {
                    continue;
                }
                Err(cause) => {
                    self.lose(child.all(), base, LostCause::of(&cause));
                    continue;
                }
            };
            // A directory is better than a file, and the listed entry than one in another base.
            let rank = |stat: &Stat, base| {
                let is_own = own.binary_search(&base).is_ok();
                (file_type(stat) == FileType::Directory, is_own)
            };
            let is_better = |old: &ListedEntry| rank(&stat, base) > rank(&old.stat, old.base);
            if chosen.as_ref().is_none_or(is_better) {
                chosen = Some(ListedEntry {
                    spot,
                    stat,
                    base,
                    dirs: Vec::new(),
                });
            }
        }
        let chosen = chosen?;
        self.refuse_further(&own, &found, chosen.base, name.as_ref());
        let of_level = self.levels.last().map(|level| level.dir.clone());
        let is_told = |dir: &Arc<Dir>| {
            let same = |(base, of): &(u16, Arc<Dir>)| own.contains(base) && Arc::ptr_eq(of, dir);
            found.iter().any(same)
        };
        if let Some(dir) =
            of_level.filter(|dir| !Arc::ptr_eq(dir, &chosen.spot.dir) && !is_told(dir))
        {
            self.refuse_read(&dir, name);
        }
        Some(ListedEntry { dirs, ..chosen })
    }

    /// An entry that reading finds in `dir`, the innermost directory, and that has the name of a
    /// listed one in another base, which is copied.
    fn refuse_read(&mut self, dir: &Arc<Dir>, name: &Name) {
        let Some(level) = self.levels.last().filter(|level| level.reads()) else {
            return;
        };
        let enters = level.enters;
        // An entry whose status cannot be read is not copied either.
        let Ok(stat) = dir.stat(name.as_os_str()) else {
            return;
        };
        let is_whole = enters || file_type(&stat) != FileType::Directory;
        if is_whole && self.choice.takes(name, &stat) {
            let error = Error::new(Kind::Usage, Side::Source, SAME_NAME);
            let error = error.at(dir.path().join(name));
            self.queued.push_back(Step::Failed(error));
        }
    }

    /// Looks for a listed entry in one base. The second value is true for a directory that leads to
    /// listed names. None if only names below it are listed, which are missing.
    fn look_in(
        &mut self,
        source: &ListedSource,
        child: &ListedChild<'_>,
        (base, dir): (u16, &Arc<Dir>),
        name: &Name,
    ) -> io::Result<Option<((WalkSpot, Stat), bool)>> {
        let has = |range: &ListRange| source.list.has_base(range, base);
        let (is_own, is_passed) = (has(&child.own), has(&child.below));
        let has_contents = source.list.has_contents_in(&child.own, base);
        let spot = self.spot_in(dir, name, is_passed || has_contents);
        let (spot, stat) = self.status_of_listed(spot)?;
        if file_type(&stat) != FileType::Directory {
            let cause = match file_type(&stat) {
                FileType::Symlink if !is_trusted(&stat) => LostCause::Other(LEADS_OUT),
                _ => LostCause::Errno(Errno::NOTDIR),
            };
            self.lose(child.below, base, cause);
            return Ok(Some(((spot, stat), false)));
        }
        if is_passed && self.leads_somewhere(source, child, (base, dir)) {
            return Ok(Some(((spot, stat), true)));
        }
        let reads = |level: &super::Level| level.reads() && Arc::ptr_eq(&level.dir, dir);
        let reads_here = self.levels.last().is_some_and(reads);
        if !is_own && !reads_here {
            return Ok(None);
        }
        if !spot.is_followed || has_contents {
            return Ok(Some(((spot, stat), false)));
        }
        // Nothing below it exists, so it is only a link.
        let link = self.spot_in(dir, name, false);
        Ok(Some((self.status_of_listed(link)?, false)))
    }

    /// The directories of these bases in the innermost level.
    fn dirs_of(&self, bases: &[u16]) -> Vec<(u16, Arc<Dir>)> {
        let listed = self.levels.last().and_then(|level| level.listed.as_ref());
        let dirs = listed.map_or(&[][..], |listed| &listed.dirs);
        let is_wanted = |(base, _): &&(u16, Arc<Dir>)| bases.binary_search(base).is_ok();
        dirs.iter().filter(is_wanted).cloned().collect()
    }

    /// `is_passed`: names below it are listed, so that a link is followed, as in any path.
    fn spot_in(&self, dir: &Arc<Dir>, name: &Name, is_passed: bool) -> WalkSpot {
        WalkSpot {
            id: None,
            parent: self.levels.last().map_or(0, |level| level.id),
            dir: dir.clone(),
            name: name.clone(),
            through_link: self.options.follow_links || is_passed && !self.roots.are_confined(),
            is_followed: false,
        }
    }

    /// A link that leads to no directory, or that is not followed, is copied as a link, without `-L`.
    fn status_of_listed(&self, mut spot: WalkSpot) -> io::Result<(WalkSpot, Stat)> {
        if self.options.follow_links || !spot.through_link {
            let stat = spot.stat()?;
            return Ok((spot, stat));
        }
        spot.through_link = false;
        let stat = spot.stat()?;
        if file_type(&stat) != FileType::Symlink {
            return Ok((spot, stat));
        }
        let link = stat;
        spot.through_link = true;
        match spot.stat() {
            Ok(stat)
                if file_type(&stat) == FileType::Directory
                    && may_follow(&spot.dir, &spot.name, &link) =>
            {
                spot.is_followed = true;
                Ok((spot, stat))
            }
            _ => {
                spot.through_link = false;
                Ok((spot, link))
            }
        }
    }

    /// Opens the directories in which the listed entries of the next level are. `own` is the one
    /// in `above`, if it is open.
    pub(super) fn listed_dirs(
        &mut self,
        listed: ListedLevel,
        name: &Name,
        (above, own): (&Arc<Dir>, Option<&Arc<Dir>>),
    ) -> ListedLevel {
        let ListedLevel { dirs, all, rest } = listed;
        let mut opened = Vec::with_capacity(dirs.len());
        for (base, parent) in dirs {
            let dir = match own.filter(|_| Arc::ptr_eq(&parent, above)) {
                Some(own) => Ok(own.clone()),
                None => self.pass(&parent, name),
            };
            match dir {
                Ok(dir) => opened.push((base, dir)),
                Err(cause) => self.lose(all, base, LostCause::of(&cause)),
            }
        }
        ListedLevel {
            dirs: opened,
            all,
            rest,
        }
    }

    /// Opens a directory on the way to listed names.
    fn pass(&self, parent: &Arc<Dir>, name: &Name) -> io::Result<Arc<Dir>> {
        let opened = parent.passed(name, self.options.follow_links);
        if opened.is_ok() || self.options.follow_links || self.roots.are_confined() {
            return opened;
        }
        let link = parent.stat(name.as_os_str())?;
        match file_type(&link) == FileType::Symlink && may_follow(parent, name, &link) {
            true => parent.passed(name, true),
            false => opened,
        }
    }

    /// Each of these names of a base gets an error.
    fn lose(&mut self, names: ListRange, base: u16, cause: LostCause) {
        if !names.is_empty() {
            self.lost.push_back(LostNames {
                rest: names,
                base,
                cause,
                above: None,
                skip: 0,
                follows: false,
            });
        }
    }

    /// True if one of the names below `child` exists in `dir`, one of the innermost directories.
    /// Otherwise no directory is made for them, and each gets an error.
    fn leads_somewhere(
        &mut self,
        source: &ListedSource,
        child: &ListedChild<'_>,
        (base, dir): (u16, &Arc<Dir>),
    ) -> bool {
        let follows = !self.roots.are_confined();
        let mut rest = child.below;
        while let Some((of, name)) = source.list.next_name(&mut rest) {
            let below = name.get(child.own.skipped()..).unwrap_or_default();
            // An entry whose status cannot be read may exist.
            let is_missing = |cause: &io::Error| {
                let errno = Errno::from_io_error(cause);
                matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
            };
            if of == base
                && !dir
                    .stat_below(below, follows)
                    .as_ref()
                    .is_err_and(is_missing)
            {
                return true;
            }
        }
        self.lost.push_back(LostNames {
            rest: child.below,
            base,
            cause: LostCause::Errno(Errno::NOENT),
            above: Some(dir.clone()),
            skip: child.own.skipped(),
            follows,
        });
        false
    }

    /// A name that is listed in several bases is copied from one only, `chosen`.
    fn refuse_further(&mut self, own: &[u16], dirs: &[(u16, Arc<Dir>)], chosen: u16, name: &Path) {
        for (base, dir) in dirs {
            if *base == chosen || own.binary_search(base).is_err() {
                continue;
            }
            let error = Error::new(Kind::Usage, Side::Source, SAME_NAME);
            let error = error.at(dir.path().join(name));
            self.queued.push_back(Step::Failed(error));
        }
    }

    /// True if entries of the innermost directory are held back, to be compared by sums.
    pub(super) fn holds_here(&self) -> bool {
        let has_many = |level: &super::Level| {
            let listed = level.listed.as_ref().map_or(0, |listed| listed.all.len());
            level.reads() || listed >= HOLDS_FROM
        };
        self.options.holds && self.levels.last().is_none_or(has_many)
    }
}

fn does_not_exist(cause: &io::Error) -> bool {
    Errno::from_io_error(cause) == Some(Errno::NOENT)
}

/// True if `link`, called `name` in `dir`, may be followed: another user may have planted it only if it
/// stays below the base of the names.
fn may_follow(dir: &Arc<Dir>, name: &Name, link: &Stat) -> bool {
    let (base, _) = dir.below();
    let stays = |dir: Arc<Dir>| dir.with_those_above(DEPTH_MAX).contains(&base.identity());
    is_trusted(link) || dir.passed(name, true).is_ok_and(stays)
}

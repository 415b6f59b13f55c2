//! A big file on its way: chunks are written at their offsets from several threads at once, then
//! it gets its name. Dropped before that it leaves nothing behind, kept it waits for a later run.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, FileType, Stat, StatxFlags, fallocate, fstat, statx};
use rustix::io::Errno;

use super::in_use::refuse_in_use;
use super::inplace::InPlace;
use super::temporary::Temporary;
use super::{Rules, Slot, Standing, commit, identity, space};
use crate::chunk::VerifiedChunk;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Entry, Inode, Timestamp, file_type};

/// The grain of holes, in bytes: no common file system has a finer one.
const BLOCK: usize = 4096;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pub struct Partial {
    target: Target,
    entry: Arc<Entry>,
    rules: Rules,
    /// What has not been written may hold anything but zeros.
    dirty: bool,
}

enum Target {
    /// Beside the final name.
    Beside(Box<Temporary>),
    /// What stands under the final name.
    InPlace(InPlace),
}

impl Partial {
    /// Makes an empty file of the entry's size beside its final name, or opens what stands there.
    ///
    /// # Errors
    /// Also where it is clear already that it could not get its name: a directory stands there, or
    /// a file whose owner could not be kept, or one that is in use.
    pub fn create(slot: &Slot, entry: Arc<Entry>, rules: &Rules) -> Result<Partial> {
        let old = replaceable(slot, rules)?;
        let partial = match InPlace::open(slot, old.as_ref(), rules)? {
            Some(file) => Partial::new(Target::InPlace(file), entry, rules, true),
            None => {
                let temporary = Box::new(Temporary::create(slot)?);
                rehearse(&temporary, old.as_ref())?;
                Partial::new(Target::Beside(temporary), entry, rules, false)
            }
        };
        partial.fit()?;
        Ok(partial)
    }

    /// Goes on with what an earlier run left for this slot, if it is `inode`, was written `inplace`
    /// as this is to be, and nobody else can have written it.
    ///
    /// # Errors
    /// As [`create`](Partial::create).
    pub fn resume(
        slot: &Slot,
        entry: Arc<Entry>,
        rules: &Rules,
        inode: &Inode,
        inplace: bool,
    ) -> Result<Option<Partial>> {
        let old = replaceable(slot, rules)?;
        let target = match InPlace::open(slot, old.as_ref(), rules)? {
            Some(file) if inplace && inode_of(&file.file).is_ok_and(|found| found.is(inode)) => {
                Target::InPlace(file)
            }
            Some(_) => return Ok(None),
            None if inplace => return Ok(None),
            None => {
                let is_it =
                    |file: &File, _: &Stat| inode_of(file).is_ok_and(|found| found.is(inode));
                let Some(temporary) = Temporary::reopen(slot, is_it)? else {
                    return Ok(None);
                };
                rehearse(&temporary, old.as_ref())?;
                Target::Beside(Box::new(temporary))
            }
        };
        let partial = Partial::new(target, entry, rules, true);
        partial.fit()?;
        Ok(Some(partial))
    }

    fn new(target: Target, entry: Arc<Entry>, rules: &Rules, dirty: bool) -> Partial {
        Partial {
            target,
            entry,
            rules: *rules,
            dirty,
        }
    }

    /// Gives it the entry's size.
    fn fit(&self) -> Result<()> {
        let size = self.entry.size;
        let fitted = match &self.target {
            Target::Beside(temporary) => temporary.file.set_len(size),
            Target::InPlace(file) => file.grow(size),
        };
        fitted.map_err(|cause| match Errno::from_io_error(&cause) {
            // A negative length, or beyond what a file may have here.
            Some(Errno::INVAL | Errno::FBIG) | None => {
                let message = format!("{size} bytes are too many for a file here");
                Error::new(Kind::Write, Side::Dest, message).at(self.slot().path())
            }
            Some(_) => space::write_error(self.slot(), size, cause),
        })
    }

    /// What is written to.
    pub fn inode(&self) -> Result<Inode> {
        let inode = inode_of(self.file());
        inode.map_err(|cause| self.slot().error("cannot look at what is written", cause))
    }

    pub fn is_inplace(&self) -> bool {
        matches!(self.target, Target::InPlace(_))
    }

    /// Reads what was written, all of `into`.
    pub fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.file().read_exact_at(into, offset)
    }

    /// A later run can go on with it.
    pub fn keep(self) {
        if let Target::Beside(mut temporary) = self.target {
            temporary.keep();
        }
    }

    /// Writes a chunk at its offset. Blocks of zeros of a sparse source stay holes.
    pub fn write(&self, chunk: &VerifiedChunk) -> Result<()> {
        self.write_at(chunk.data(), chunk.place().offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let file = self.file();
        // Where something else may be, a hole is one only when it has been made.
        let has_holes = self.entry.is_sparse()
            && (!self.dirty || self.punch(offset, data.len() as u64).is_ok());
        let written = if has_holes {
            write_sparse(file, data, offset).map(drop)
        } else {
            file.write_all_at(data, offset)
        };
        written.map_err(|cause| self.write_error(cause))
    }

    /// A range of zeros: a hole if the source is sparse, else room that is really taken.
    pub fn write_zeros(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        let has_hole =
            || self.entry.is_sparse() && (!self.dirty || self.punch(offset, len).is_ok());
        if len == 0 || has_hole() {
            return Ok(());
        }
        let file = self.file();
        match fallocate(file, FallocateFlags::ZERO_RANGE, offset, len) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => {}
            Err(cause) => return Err(self.write_error(cause.into())),
        }
        let mut at = offset;
        while at < offset + len {
            let step = (offset + len - at).min(ZEROS.len() as u64);
            file.write_all_at(&ZEROS[..step as usize], at)
                .map_err(|cause| self.write_error(cause))?;
            at += step;
        }
        Ok(())
    }

    /// What is beyond `length` does not count: the source became shorter while it was read.
    pub fn shortened(mut self, length: u64) -> Result<Partial> {
        let mut entry = Entry::clone(&self.entry);
        entry.size = length.min(entry.size);
        self.entry = Arc::new(entry);
        if let Target::Beside(temporary) = &self.target {
            let cut = temporary.file.set_len(self.entry.size);
            cut.map_err(|cause| self.write_error(cause))?;
        }
        Ok(self)
    }

    fn punch(&self, offset: u64, len: u64) -> rustix::io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.file(), flags, offset, len)
    }

    /// Gives the file its identity and its name. The caller has seen that every range is written.
    /// Returns what stands under the name now.
    pub fn commit(self) -> Result<Standing> {
        let stat = match self.target {
            Target::Beside(temporary) => commit::commit(*temporary, &self.entry, &self.rules)?,
            Target::InPlace(file) => file.commit(&self.entry, &self.rules)?,
        };
        Ok(Standing::of(&stat))
    }

    pub fn slot(&self) -> &Slot {
        match &self.target {
            Target::Beside(temporary) => &temporary.slot,
            Target::InPlace(file) => &file.slot,
        }
    }

    fn file(&self) -> &File {
        match &self.target {
            Target::Beside(temporary) => &temporary.file,
            Target::InPlace(file) => &file.file,
        }
    }

    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// A range beyond the announced size breaks the protocol.
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.entry.size => Ok(()),
            _ => {
                let message = "the other side sent bytes beyond the end of the file";
                Err(Error::new(Kind::Lost, Side::Dest, message).at(self.slot().path()))
            }
        }
    }

    fn write_error(&self, cause: io::Error) -> Error {
        space::write_error(self.slot(), self.entry.size, cause)
    }
}

/// What stands under the name, if that may be replaced or written.
fn replaceable(slot: &Slot, rules: &Rules) -> Result<Option<Stat>> {
    let old = slot.stat()?;
    if let Some(old) = &old {
        commit::may_replace(slot, old)?;
        refuse_in_use(slot, old, rules)?;
    }
    Ok(old)
}

/// Sees before the content is sent whether the owner of what is there can be kept.
fn rehearse(temporary: &Temporary, old: Option<&Stat>) -> Result<()> {
    match old {
        Some(old) if file_type(old) == FileType::RegularFile => identity::rehearse(temporary, old),
        _ => Ok(()),
    }
}

fn inode_of(file: &File) -> io::Result<Inode> {
    let told = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let birth = match told {
        Ok(told) if told.stx_mask & StatxFlags::BTIME.bits() != 0 => Timestamp {
            s: told.stx_btime.tv_sec,
            ns: told.stx_btime.tv_nsec,
        },
        // An old kernel, or a file system that does not keep it.
        _ => Timestamp::default(),
    };
    let stat = fstat(file)?;
    Ok(Inode {
        dev: stat.st_dev,
        ino: stat.st_ino,
        birth,
    })
}

/// Writes what is not zeros, in runs as long as there are; returns the end of the last one (0 if
/// none). For files whose unwritten ranges read as zeros.
pub(super) fn write_sparse(file: &File, data: &[u8], offset: u64) -> io::Result<u64> {
    // The first block is short where the offset is not aligned.
    let first = (BLOCK - (offset % BLOCK as u64) as usize).min(data.len());
    let mut end = 0;
    let mut run = 0..0;
    let mut block = 0..first;
    while !block.is_empty() {
        if !is_zero(&data[block.clone()]) {
            if run.end != block.start {
                end = write_run(file, data, offset, run)?.max(end);
                run = block.clone();
            }
            run.end = block.end;
        }
        block = block.end..(block.end + BLOCK).min(data.len());
    }
    Ok(write_run(file, data, offset, run)?.max(end))
}

fn write_run(
    file: &File,
    data: &[u8],
    offset: u64,
    run: std::ops::Range<usize>,
) -> io::Result<u64> {
    if run.is_empty() {
        return Ok(0);
    }
    let end = offset + run.end as u64;
    file.write_all_at(&data[run.clone()], offset + run.start as u64)?;
    Ok(end)
}

/// `block` is no longer than ZEROS. Comparing with zeros compiles to memcmp, which looks at the
/// first bytes first.
fn is_zero(block: &[u8]) -> bool {
    block == &ZEROS[..block.len()]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::testing::*;
    use super::*;

    const SIZE: u64 = 4 << 20;

    fn sparse(size: u64) -> Arc<Entry> {
        let mut entry = file(size, 0o644);
        entry.allocated = 0;
        Arc::new(entry)
    }

    #[test]
    fn holes_of_a_sparse_source_stay_holes_and_zeros_of_another_take_room() {
        let temp = tempfile::tempdir().unwrap();
        let mut data = vec![0; 1 << 20];
        data[5000] = 1;
        data[70_000] = 2;
        let dense = Arc::new(file(SIZE, 0o644));
        for (name, entry) in [("sparse", sparse(SIZE)), ("dense", dense)] {
            let partial = Partial::create(&slot(temp.path(), name), entry, &rules()).unwrap();
            partial.write_at(&data, 1 << 20).unwrap();
            partial.write_zeros(2 << 20, 1 << 20).unwrap();
            partial.write_at(&[3; 100], SIZE - 100).unwrap();
            partial.commit().unwrap();
        }
        let read = |name| std::fs::read(temp.path().join(name)).unwrap();
        assert_eq!(read("sparse"), read("dense"));
        assert_eq!(&read("sparse")[1 << 20..2 << 20], data);
        let taken = |name| std::fs::metadata(temp.path().join(name)).unwrap().blocks() * 512;
        assert!(taken("sparse") <= 64 << 10, "{}", taken("sparse"));
        assert!(taken("dense") >= 2 << 20, "{}", taken("dense"));
    }

    #[test]
    fn a_kept_partial_is_gone_on_with_if_it_is_the_one_that_was_left() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let entry = sparse(SIZE);
        let kept = |content: &[u8]| {
            let partial = Partial::create(&slot, entry.clone(), &rules()).unwrap();
            partial.write_at(content, 0).unwrap();
            let inode = partial.inode().unwrap();
            partial.keep();
            inode
        };
        let resume = |inode| Partial::resume(&slot, entry.clone(), &rules(), inode, false).unwrap();
        let inode = kept(&[7; 5000]);
        let other = Inode {
            ino: inode.ino + 1,
            ..inode
        };
        assert!(resume(&other).is_none());
        let partial = resume(&inode).expect("it is there");
        let mut there = [0; 5000];
        partial.read(&mut there, 0).unwrap();
        assert_eq!(there, [7; 5000]);
        // What comes now replaces what was there, also where it is zeros.
        partial.write_zeros(0, 4096).unwrap();
        partial.write_at(&[0; 904], 4096).unwrap();
        partial.commit().unwrap();
        let content = std::fs::read(temp.path().join("a")).unwrap();
        assert!(content.len() as u64 == SIZE && content.iter().all(|&byte| byte == 0));
        // One that others may have written is not.
        let inode = kept(&[7; 5000]);
        let name = &names(temp.path())[0];
        std::fs::hard_link(temp.path().join(name), temp.path().join("more")).unwrap();
        assert!(resume(&inode).is_none());
    }

    #[test]
    fn in_place_is_the_same_file_with_the_new_length_and_no_link_is_followed() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a");
        let inplace = Rules {
            inplace: true,
            ..rules()
        };
        for len in [10, 9000] {
            std::fs::write(&path, vec![9; len]).unwrap();
            let before = std::fs::metadata(&path).unwrap().ino();
            let entry = Arc::new(file(5000, 0o644));
            let partial = Partial::create(&slot(temp.path(), "a"), entry, &inplace).unwrap();
            assert_eq!(names(temp.path()), ["a"]);
            partial.write_at(&[1; 5000], 0).unwrap();
            partial.commit().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), [1; 5000]);
            assert_eq!(std::fs::metadata(&path).unwrap().ino(), before);
        }
        std::os::unix::fs::symlink("a", temp.path().join("link")).unwrap();
        let linked = Partial::create(&slot(temp.path(), "link"), sparse(5), &inplace);
        assert_eq!(linked.err().expect("refused").kind, Kind::Refused);
    }

    #[test]
    fn runs_of_zeros_at_odd_offsets_come_out_right() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("f");
        let mut expected = vec![0; 30_000];
        for at in [0, 4095, 4096, 12_287, 20_480, 29_999] {
            expected[at] = 9;
        }
        for offset in [0, 1, 4095, 4096, 4097] {
            let file = File::create(&path).unwrap();
            let end = write_sparse(&file, &expected[offset..], offset as u64).unwrap();
            assert_eq!(end, 30_000);
            assert_eq!(
                &std::fs::read(&path).unwrap()[offset..],
                &expected[offset..]
            );
        }
    }

    #[test]
    fn nothing_is_left_of_a_dropped_partial_and_nothing_is_written_beyond_its_end() {
        let temp = tempfile::tempdir().unwrap();
        let slot = slot(temp.path(), "a");
        let partial = Partial::create(&slot, Arc::new(file(10, 0o644)), &rules()).unwrap();
        assert_eq!(names(temp.path()).len(), 1);
        for (offset, len) in [(0, 11), (10, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(partial.write_zeros(offset, len).is_err());
        }
        drop(partial);
        assert_eq!(names(temp.path()), [""; 0]);
        for size in [u64::MAX, 1 << 63] {
            let huge = Partial::create(&slot, sparse(size), &rules());
            let message = huge.err().expect("refused").message;
            assert!(message.contains("too many"), "{message}");
        }
        assert_eq!(names(temp.path()), [""; 0]);
    }
}

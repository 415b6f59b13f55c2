//! The comparison of files with a list of digests (`--check=LIST`), on the threads of the host that
//! has the files. Each worker reads a small file; a large one is read in pieces by all of them.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Advice, Stat, fadvise, fstat};
use tokio::sync::Notify;

use crate::cache::{self, Before};
use crate::chunk::CHUNK_SIZE;
use crate::digest::{Digest, Tree, of_range};
use crate::error::{Error, Kind, Side};
use crate::source::{ListedFile, ListedPlace, read_up_to};
use crate::wire::message::{Fault, FoundContent, LISTED_MAX, ListedDigest, VerifiedFile};

/// Bytes of lines that may wait for workers. Twice what a client of this version sends before it has
/// answers ([`LINES_MAX`], [`LINE_BYTES_MAX`]), so that its messages are always read.
const WAITING_MAX: usize = 2 * LINE_BYTES_MAX;

/// Lines that may be unanswered, and their bytes: enough work for a second, and little memory.
pub const LINES_MAX: usize = 16 << 10;
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// Answers are given together: so many, or those of this time.
const ANSWERS: usize = LISTED_MAX / 4;
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// Bytes of errors in one group of answers: a message has a limit.
const FAULT_BYTES: usize = 64 << 10;

/// Takes groups of answers. May wait.
pub type TellFound = Box<dyn Fn(Vec<VerifiedFile>) + Send + Sync>;

/// The lines of a list, the workers' queue, and the answers.
pub struct ListCheck {
    place: ListedPlace,
    /// `--drop-cache`
    drops_pages: bool,
    work: Mutex<CheckWork>,
    came: Condvar,
    answers: Mutex<Answers>,
    tell: TellFound,
    /// Notified when lines were taken, and when the last one is answered.
    taken: Notify,
}

#[derive(Default)]
struct CheckWork {
    lines: VecDeque<ListedDigest>,
    /// Bytes of memory of `lines`.
    bytes: usize,
    /// Files with pieces that nobody reads yet.
    large: VecDeque<Arc<LargeFile>>,
    /// Lines that were taken and are not answered.
    under_way: usize,
    had_last: bool,
    is_over: bool,
}

/// A file that several workers read.
struct LargeFile {
    line: ListedDigest,
    file: File,
    stat: Stat,
    before: Option<Before>,
    state: Mutex<LargeState>,
}

struct LargeState {
    /// Where the next piece begins.
    next: u64,
    /// Pieces that are being read.
    readers: usize,
    tree: Tree,
    failed: Option<Error>,
}

struct Answers {
    files: Vec<VerifiedFile>,
    fault_bytes: usize,
    told_at: Instant,
}

/// What a worker does next.
enum CheckTask {
    Line(ListedDigest),
    /// The piece at this offset.
    Piece(Arc<LargeFile>, u64),
}

const CHANGED: &str = "changed while it was read";

impl ListCheck {
    pub fn new(place: ListedPlace, drops_pages: bool, tell: TellFound) -> ListCheck {
        ListCheck {
            place,
            drops_pages,
            work: Mutex::default(),
            came: Condvar::new(),
            answers: Mutex::new(Answers {
                files: Vec::new(),
                fault_bytes: 0,
                told_at: Instant::now(),
            }),
            tell,
            taken: Notify::new(),
        }
    }

    /// Adds lines. Never waits.
    pub fn add(&self, lines: Vec<ListedDigest>, is_last: bool) {
        let mut work = self.work.lock();
        work.bytes += lines.iter().map(ListedDigest::weight).sum::<usize>();
        work.lines.extend(lines);
        work.had_last |= is_last;
        drop(work);
        self.came.notify_all();
        // There may have been none.
        self.taken.notify_one();
    }

    /// Waits until there is room for more lines.
    pub async fn room(&self) {
        while self.is_full() {
            self.taken.notified().await;
        }
    }

    pub fn is_full(&self) -> bool {
        self.work.lock().bytes > WAITING_MAX
    }

    /// Waits until all lines are answered.
    pub async fn done(&self) {
        loop {
            let is_done = {
                let work = self.work.lock();
                work.had_last && work.lines.is_empty() && work.under_way == 0
            };
            if is_done {
                // A later caller finds it done too.
                self.taken.notify_one();
                return;
            }
            self.taken.notified().await;
        }
    }

    /// Ends each worker after its current file.
    pub fn end(&self) {
        self.work.lock().is_over = true;
        self.came.notify_all();
    }

    /// Runs a worker until the [`end`](Self::end).
    pub fn run(&self) {
        let mut buffer = vec![0; CHUNK_SIZE + 1];
        while let Some(task) = self.next() {
            match task {
                CheckTask::Line(line) => self.line(line, &mut buffer),
                CheckTask::Piece(file, offset) => self.piece(&file, offset, &mut buffer),
            }
            self.tell_due();
        }
    }

    fn next(&self) -> Option<CheckTask> {
        let mut work = self.work.lock();
        loop {
            if work.is_over {
                return None;
            }
            // A large file first, so that few are open at a time.
            if let Some(file) = work.large.front().cloned() {
                let Some(offset) = file.state.lock().take(file.size()) else {
                    work.large.pop_front();
                    continue;
                };
                return Some(CheckTask::Piece(file, offset));
            }
            if let Some(line) = work.lines.pop_front() {
                work.bytes -= line.weight();
                work.under_way += 1;
                let has_room = work.bytes <= WAITING_MAX;
                drop(work);
                if has_room {
                    self.taken.notify_one();
                }
                return Some(CheckTask::Line(line));
            }
            self.came.wait(&mut work);
        }
    }

    fn line(&self, line: ListedDigest, buffer: &mut [u8]) {
        let found = match self.place.open(&line.path) {
            Err(error) => FoundContent::Failed(Fault::of(&error, 0, 0)),
            Ok(ListedFile::Missing) => FoundContent::Missing,
            Ok(ListedFile::Other) => FoundContent::Differs,
            Ok(ListedFile::Regular(file, stat)) if stat.st_size > CHUNK_SIZE as i64 => {
                return self.begin_large(line, file, stat);
            }
            Ok(ListedFile::Regular(file, stat)) => {
                match self.read_small(&line, &file, &stat, buffer) {
                    Ok(found) => found,
                    Err(error) => FoundContent::Failed(Fault::of(&error, 0, 0)),
                }
            }
        };
        self.answer(line.number, found);
    }

    fn read_small(
        &self,
        line: &ListedDigest,
        file: &File,
        stat: &Stat,
        buffer: &mut [u8],
    ) -> Result<FoundContent, Error> {
        let size = stat.st_size as u64;
        let brings = self.drops_pages && !cache::is_cached(file, 0..size);
        // One byte more shows whether the file has grown.
        let read = read_up_to(file, 0, &mut buffer[..size as usize + 1]);
        if brings && size > 0 {
            cache::drop_read(file, 0..size);
        }
        let read = read.map_err(|cause| self.cannot_read(line, cause))?;
        let digest = of_range(&buffer[..read], 0, true);
        self.compare(line, (read as u64, digest), file, stat)
    }

    fn begin_large(&self, line: ListedDigest, file: File, stat: Stat) {
        // Advice only.
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        let before = self.drops_pages.then(Before::default);
        if before.is_some() {
            cache::read_without_readahead(&file);
        }
        let state = LargeState {
            next: 0,
            readers: 0,
            tree: Tree::new(stat.st_size as u64, CHUNK_SIZE as u64),
            failed: None,
        };
        let file = LargeFile {
            line,
            file,
            stat,
            before,
            state: Mutex::new(state),
        };
        self.work.lock().large.push_back(Arc::new(file));
        self.came.notify_all();
    }

    fn piece(&self, file: &LargeFile, offset: u64, buffer: &mut [u8]) {
        let len = (file.size() - offset).min(CHUNK_SIZE as u64) as usize;
        let room = &mut buffer[..len];
        let brings = file.before.as_ref();
        let brings = brings.is_some_and(|it| !it.was_cached(&file.file, offset, file.size()));
        let read = read_up_to(&file.file, offset, room);
        if brings {
            cache::drop_read(&file.file, offset..offset + len as u64);
        }
        let digest = match read {
            Ok(read) if read == len => Ok(of_range(room, offset, false)),
            Ok(_) => Err(self.changed(&file.line)),
            Err(cause) => Err(self.cannot_read(&file.line, cause)),
        };
        let mut state = file.state.lock();
        match digest {
            Ok(digest) => drop(state.tree.add(offset, digest)),
            Err(error) => {
                state.failed = Some(error);
                // Nobody reads the rest.
                state.next = file.size();
            }
        }
        state.readers -= 1;
        if state.readers > 0 || state.next < file.size() {
            return;
        }
        let (failed, root) = (state.failed.take(), state.tree.root());
        drop(state);
        let found = match (failed, root) {
            (Some(error), _) => Err(error),
            (None, Some(root)) => {
                self.compare(&file.line, (file.size(), root), &file.file, &file.stat)
            }
            (None, None) => Err(self.changed(&file.line)),
        };
        let found = found.unwrap_or_else(|error| FoundContent::Failed(Fault::of(&error, 0, 0)));
        self.answer(file.line.number, found);
    }

    /// Compares length and digest of the file with the line.
    ///
    /// # Errors
    /// `Kind::Changed`, if it differs and the file has changed since it was opened.
    fn compare(
        &self,
        line: &ListedDigest,
        (len, digest): (u64, Digest),
        file: &File,
        before: &Stat,
    ) -> Result<FoundContent, Error> {
        if digest == line.digest {
            return Ok(FoundContent::Same(len));
        }
        let now = fstat(file).map_err(|cause| self.cannot_read(line, cause.into()))?;
        let of = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        match of(&now) == of(before) && len == now.st_size as u64 {
            true => Ok(FoundContent::Differs),
            false => Err(self.changed(line)),
        }
    }

    fn cannot_read(&self, line: &ListedDigest, cause: std::io::Error) -> Error {
        let path = self.place.path_of(&line.path);
        Error::io(Kind::Read, Side::Source, path, "cannot read", cause)
    }

    fn changed(&self, line: &ListedDigest) -> Error {
        let path = self.place.path_of(&line.path);
        Error::new(Kind::Changed, Side::Source, CHANGED).at(path)
    }

    fn answer(&self, number: u64, found: FoundContent) {
        let mut answers = self.answers.lock();
        if let FoundContent::Failed(fault) = &found {
            answers.fault_bytes += fault.path.len() + fault.text.len();
        }
        answers.files.push(VerifiedFile { number, found });
        if answers.are_enough() || self.work.lock().has_nothing_else() {
            // The lock is kept, so that the answer to the last line is sent last.
            (self.tell)(answers.take());
        }
        let mut work = self.work.lock();
        work.under_way -= 1;
        let is_last = work.under_way == 0 && work.lines.is_empty();
        drop((work, answers));
        if is_last {
            self.taken.notify_one();
        }
    }

    /// Tells answers that have waited for long enough, while a large file is read.
    fn tell_due(&self) {
        let mut answers = self.answers.lock();
        if !answers.files.is_empty() && answers.told_at.elapsed() >= ANSWER_TIME {
            (self.tell)(answers.take());
        }
    }
}

impl Answers {
    fn are_enough(&self) -> bool {
        self.files.len() >= ANSWERS || self.fault_bytes >= FAULT_BYTES
    }

    fn take(&mut self) -> Vec<VerifiedFile> {
        (self.told_at, self.fault_bytes) = (Instant::now(), 0);
        std::mem::take(&mut self.files)
    }
}

impl LargeState {
    /// The offset of the next piece; None if there is none.
    fn take(&mut self, size: u64) -> Option<u64> {
        let offset = Some(self.next).filter(|next| *next < size)?;
        self.next += CHUNK_SIZE as u64;
        self.readers += 1;
        Some(offset)
    }
}

impl CheckWork {
    /// True if the line that is being answered is the last one so far.
    fn has_nothing_else(&self) -> bool {
        self.lines.is_empty() && self.under_way == 1
    }
}

impl LargeFile {
    fn size(&self) -> u64 {
        self.stat.st_size as u64
    }
}

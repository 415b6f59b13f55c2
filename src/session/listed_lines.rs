//! The lines of a list of digests on their way from the list to the host that has the files, and the
//! answers. After a lost connection the next session repeats the unanswered lines.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::context::ClientContext;
use crate::digest::line::{self, LINE_MAX};
use crate::error::{Error, Kind, Result, Side, reason_of};
use crate::itemize::{ItemAction, ItemChanges, ItemKind, ItemizedEntry};
use crate::pipeline::list_check::{LINE_BYTES_MAX, LINES_MAX};
use crate::threads;
use crate::wire::message::{FoundContent, ItemizedEntries, ListedDigest, VerifiedFile};

/// Lines in one message, and about how many bytes they have.
const GROUP: usize = 512;
const GROUP_BYTES: usize = 64 << 10;

/// Groups of lines that were read and wait.
const GROUPS_WAITING: usize = 4;

/// A file whose first lines, so many of them, are all invalid is no list.
const BAD_LINES_MAX: u64 = 3;

/// Clones share the lines.
#[derive(Clone)]
pub struct ListedLines {
    /// From the thread that reads the list.
    groups: Arc<tokio::sync::Mutex<mpsc::Receiver<Vec<ListedDigest>>>>,
    unanswered: Arc<Mutex<UnansweredLines>>,
    answered: Arc<Notify>,
}

#[derive(Default)]
struct UnansweredLines {
    lines: BTreeMap<u64, ListedDigest>,
    bytes: usize,
    /// The list has no more lines.
    had_last: bool,
    /// There were answers since the last session began.
    has_progress: bool,
}

impl ListedLines {
    /// Starts a thread that reads the list. `shown` is its name for messages. With `from_root`, a
    /// slash at the start of a name does not count.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn read(
        list: impl Read + Send + 'static,
        shown: String,
        from_root: bool,
        client: &ClientContext,
    ) -> Result<ListedLines> {
        let (put, groups) = mpsc::channel(GROUPS_WAITING);
        let reader = ListReader {
            list: BufReader::new(list),
            shown,
            from_root,
            number: 0,
            client: client.clone(),
        };
        threads::start(move || reader.run(&put))?;
        Ok(ListedLines {
            groups: Arc::new(tokio::sync::Mutex::new(groups)),
            unanswered: Arc::default(),
            answered: Arc::default(),
        })
    }

    /// The next lines, when there is room for more unanswered ones. None after the last.
    pub async fn next(&self) -> Option<Vec<ListedDigest>> {
        while self.unanswered.lock().is_full() {
            self.answered.notified().await;
        }
        let Some(group) = self.groups.lock().await.recv().await else {
            self.unanswered.lock().had_last = true;
            self.answered.notify_one();
            return None;
        };
        let mut unanswered = self.unanswered.lock();
        for line in &group {
            unanswered.bytes += line.weight();
            unanswered.lines.insert(line.number, line.clone());
        }
        Some(group)
    }

    /// The unanswered lines of earlier sessions, in groups.
    pub fn again(&self) -> Vec<Vec<ListedDigest>> {
        let lines: Vec<_> = self.unanswered.lock().lines.values().cloned().collect();
        let mut groups = Grouped::default();
        let mut all: Vec<_> = lines.into_iter().filter_map(|it| groups.add(it)).collect();
        all.push(groups.lines);
        all.retain(|group| !group.is_empty());
        all
    }

    /// Waits until all lines are answered.
    pub async fn done(&self) {
        while !self.unanswered.lock().is_done() {
            self.answered.notified().await;
        }
        // A later caller finds it done too.
        self.answered.notify_one();
    }

    /// True if there were answers since the last call.
    pub fn has_progress(&self) -> bool {
        std::mem::take(&mut self.unanswered.lock().has_progress)
    }

    /// Reports answers to the user. Never waits.
    ///
    /// # Errors
    /// A sentence, if there is no such line.
    pub fn answer(
        &self,
        files: Vec<VerifiedFile>,
        client: &ClientContext,
    ) -> Result<(), &'static str> {
        for VerifiedFile { number, found } in files {
            let line = {
                let mut unanswered = self.unanswered.lock();
                let line = unanswered.lines.remove(&number);
                let line = line.ok_or("an answer about a file that nobody asked for")?;
                unanswered.bytes -= line.weight();
                unanswered.has_progress = true;
                line
            };
            let changes = match found {
                FoundContent::Same(bytes) => {
                    client.progress.add_unchanged(bytes);
                    continue;
                }
                FoundContent::Failed(fault) => {
                    client.news.failures.add(&fault.into_error());
                    continue;
                }
                FoundContent::Differs => ItemChanges::default(),
                FoundContent::Missing => ItemChanges::of_new(),
            };
            let entries = vec![ItemizedEntry {
                action: ItemAction::Sent,
                kind: ItemKind::File,
                changes,
                size: 0,
                path: line.path,
                target: Vec::new(),
            }];
            client.news.itemized.add(&ItemizedEntries {
                entries,
                ..ItemizedEntries::default()
            });
        }
        self.answered.notify_one();
        Ok(())
    }
}

impl UnansweredLines {
    fn is_full(&self) -> bool {
        self.lines.len() + GROUP > LINES_MAX || self.bytes + 2 * GROUP_BYTES > LINE_BYTES_MAX
    }

    fn is_done(&self) -> bool {
        self.had_last && self.lines.is_empty()
    }
}

/// Lines that are put into groups.
#[derive(Default)]
struct Grouped {
    lines: Vec<ListedDigest>,
    bytes: usize,
}

impl Grouped {
    /// Returns a group when it is full.
    fn add(&mut self, line: ListedDigest) -> Option<Vec<ListedDigest>> {
        self.bytes += line.weight();
        self.lines.push(line);
        if self.lines.len() < GROUP && self.bytes < GROUP_BYTES {
            return None;
        }
        self.bytes = 0;
        Some(std::mem::take(&mut self.lines))
    }
}

/// The thread that reads the list.
struct ListReader<R> {
    list: BufReader<R>,
    shown: String,
    from_root: bool,
    /// Of the line that was read last; 1 for the first.
    number: u64,
    client: ClientContext,
}

impl<R: Read> ListReader<R> {
    fn run(mut self, put: &mpsc::Sender<Vec<ListedDigest>>) {
        let mut groups = Grouped::default();
        let (mut line, mut good) = (Vec::new(), 0);
        loop {
            line.clear();
            let most = LINE_MAX as u64 + 1;
            match self.list.by_ref().take(most).read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => self.number += 1,
                Err(cause) => {
                    let message = format!("{}: cannot read: {}", self.shown, reason_of(&cause));
                    self.fail(message);
                    break;
                }
            }
            let group = match self.listed(&line) {
                Ok(line) => {
                    good += 1;
                    groups.add(line)
                }
                Err(why) => {
                    self.fail(format!("{}: line {}: {why}", self.shown, self.number));
                    None
                }
            };
            if let Some(group) = group
                && put.blocking_send(group).is_err()
            {
                return;
            }
            let why = match line.len() > LINE_MAX {
                true => "that line is too long",
                false if good == 0 && self.number >= BAD_LINES_MAX => {
                    "none of the lines so far is valid, so this is probably no list of digests"
                }
                false => continue,
            };
            self.fail(format!("{}: fastcp read no further: {why}", self.shown));
            break;
        }
        if self.number == 0 && !self.client.news.failures.has_some() {
            self.fail(format!(
                "{}: names no file, so nothing was compared",
                self.shown
            ));
        }
        // Fails only if the check has ended.
        let _ = put.blocking_send(groups.lines);
    }

    fn listed(&self, line: &[u8]) -> Result<ListedDigest, &'static str> {
        if line.len() > LINE_MAX {
            return Err("is longer than any line of b3sum");
        }
        let (mut path, digest) = line::parse(line)?;
        if self.from_root {
            let slashes = path.iter().take_while(|byte| **byte == b'/').count();
            path.drain(..slashes);
        }
        if path.first() == Some(&b'/') {
            return Err("has a name that begins with a slash: write / or HOST:/ as the directory");
        }
        if path.split(|byte| *byte == b'/').any(|name| name == b"..") {
            return Err("has a name with .., which may lead out of the directory");
        }
        Ok(ListedDigest {
            number: self.number,
            path,
            digest,
        })
    }

    fn fail(&self, message: String) {
        let error = Error::new(Kind::Usage, Side::Here, message);
        self.client.news.failures.add(&error);
    }
}

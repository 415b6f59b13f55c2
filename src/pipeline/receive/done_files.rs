//! The receiver's record of files in place, for a client that wants it (`--json`, `--log-file`,
//! `--report`).
//! Files are collected into messages for the user's end.

use std::mem::take;
use std::sync::Arc;

use parking_lot::Mutex;

use super::landed_names::LandedNames;
use crate::digest::Digest;
use crate::pipeline::context::Context;
use crate::pipeline::digest_list::ListedPath;
use crate::report::event::{FileDone, FileResult};
use crate::wire::message::{FilesDone, Message};

/// Files in one message, and about how many bytes they take.
const SAID_MAX: usize = 256;
const SAID_BYTES_MAX: usize = 64 << 10;

pub(super) struct DoneFiles {
    context: Arc<Context>,
    is_on: bool,
    names: Arc<LandedNames>,
    unsaid: Mutex<UnsaidFiles>,
}

#[derive(Default)]
struct UnsaidFiles {
    files: Vec<FileDone>,
    /// Bytes of memory.
    weight: usize,
}

/// The content of a file in place.
#[derive(Clone, Copy, Debug)]
pub struct PlacedContent {
    /// Bytes.
    pub size: u64,
    pub digest: Option<Digest>,
    pub result: FileResult,
}

impl DoneFiles {
    pub(super) fn new(context: Arc<Context>, names: Arc<LandedNames>) -> DoneFiles {
        let options = &context.options;
        DoneFiles {
            is_on: options.reports_files && !options.dry_run,
            context,
            names,
            unsaid: Mutex::default(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A file is in place.
    pub(super) fn add(&self, listed: Option<&ListedPath>, placed: &PlacedContent) {
        if !self.is_on {
            return;
        }
        let file = FileDone {
            path: self.names.path(listed),
            size: placed.size,
            digest: placed.digest,
            result: placed.result,
        };
        let mut unsaid = self.unsaid.lock();
        unsaid.weight += file.weight();
        unsaid.files.push(file);
        if unsaid.files.len() >= SAID_MAX || unsaid.weight >= SAID_BYTES_MAX {
            self.say(&mut unsaid);
        }
    }

    /// Sends the collected files.
    pub(super) fn flush(&self) {
        if !self.is_on {
            return;
        }
        let mut unsaid = self.unsaid.lock();
        if !unsaid.files.is_empty() {
            self.say(&mut unsaid);
        }
    }

    /// Reports files if the user sees this end; otherwise the other end passes them on. The lock is
    /// held until then: the thread that ends the copy flushes too, and must not come first.
    fn say(&self, unsaid: &mut UnsaidFiles) {
        let (context, UnsaidFiles { files, .. }) = (&self.context, take(unsaid));
        if !context.news.itemized.is_shown() {
            return context.say(Message::FilesDone(FilesDone { files }));
        }
        context.news.itemized.room_blocking(|| context.is_ending());
        context.news.files_done(files);
    }
}

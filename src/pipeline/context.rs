//! The context of one end of a copy, which all its parts share.

use std::sync::Arc;

use super::budget::Budget;
use super::digest_list::DigestList;
use super::news::News;
use super::shutdown::Shutdown;
use crate::chunk::patch::PageHasher;
use crate::chunk::{CHUNK_SIZE, Pool};
use crate::control::Outgoing;
use crate::error::Error;
use crate::manifest::EntryId;
use crate::progress::Progress;
use crate::report::TellUser;
use crate::wire::hello::Hello;
use crate::wire::message::{CopyOptions, Fault, Message};

/// One end of a copy: its options, its memory, and where its news goes.
pub struct Context {
    pub options: CopyOptions,
    pub budget: Budget,
    /// Bytes.
    pub chunk_size: usize,
    pub agreed: Agreement,
    /// The same at both ends.
    pub page_hasher: PageHasher,
    /// Buffers for chunks: the back-pressure of this end.
    pub pool: Pool,
    pub control: Outgoing,
    /// Shows the lines that commands write to stderr.
    pub tell: TellUser,
    pub news: Arc<News>,
    pub progress: Arc<Progress>,
    pub shutdown: Arc<Shutdown>,
    pub digests: Option<Arc<DigestList>>,
}

/// What the versions of both ends support, and the options ask for.
#[derive(Clone, Copy, Debug)]
pub struct Agreement {
    /// Pieces of files end at multiples of this many bytes, except at the end of a file. Less than
    /// a chunk if both ends support it.
    pub grain: u64,
    /// The other end is of a version that repairs: as a receiver, it asks again for ranges of
    /// earlier runs that it finds damaged; as a sender, it sends them, and reports which files were
    /// just written.
    pub peer_repairs: bool,
    /// Existing files are compared with their new versions, and only changed pages are sent.
    pub patches: bool,
    /// Content of existing files is found if it has moved within its file.
    pub shifts: bool,
    /// The other end, as a receiver, remembers any number of files with several names.
    pub peer_remembers_links: bool,
    /// The user is told of files that only grew, so such files are copied.
    pub tells_growth: bool,
}

impl Agreement {
    /// Between the ends with these hellos, about chunks of `chunk_size` bytes.
    pub fn between(own: &Hello, peer: &Hello, chunk_size: u32, options: &CopyOptions) -> Agreement {
        Agreement {
            grain: own.grain(peer, chunk_size),
            peer_repairs: peer.tells(),
            patches: peer.can_patch() && options.compares_remotely(),
            shifts: peer.can_shift() && options.finds_moved_content(),
            peer_remembers_links: peer.remembers_links(),
            tells_growth: peer.tells_growth,
        }
    }

    /// Between two ends in one process. To read an old version costs as much there as to write the
    /// new one, so existing files are compared on request only.
    pub fn local(options: &CopyOptions) -> Agreement {
        let compares = options.compares == Some(true);
        Agreement {
            grain: CHUNK_SIZE as u64,
            peer_repairs: true,
            patches: compares,
            shifts: compares && options.finds_moved_content(),
            peer_remembers_links: true,
            tells_growth: true,
        }
    }
}

impl Context {
    /// Sends a message to the other end. If the connection is lost, its reader reports that.
    pub fn say(&self, message: Message) {
        let _ = self.control.send_blocking(message);
    }

    /// Reports the failure of an entry, or of none in particular (0), to the user and to the other
    /// end.
    pub fn report_fault(&self, error: &Error, id: EntryId, parent: EntryId) {
        self.news.failures.add(error);
        self.say(Message::Fault(Fault::of(error, id, parent)));
    }

    /// True if files of the source are removed once their copies are on disk.
    pub fn removes_sources(&self) -> bool {
        self.options.mirror.removes_sources && !self.options.dry_run
    }

    pub fn is_ending(&self) -> bool {
        self.shutdown.is_ending()
    }
}

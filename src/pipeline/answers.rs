//! What the sender does with the receiver's words. Called by the task that reads control, so
//! nothing here waits for a disk, a buffer or the network.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::chunk::ChunkKind;
use crate::chunk::split::Cut;
use crate::digest::Tree;
use crate::manifest::{EntryId, Name};
use crate::pipeline::plan::{File, Member, Plan, What};
use crate::pipeline::sender::Sender;
use crate::units::printable;
use crate::wire::message::{Ack, Fault, Message, Want, WantKind};

/// The peer said what no receiver says.
#[derive(Debug, thiserror::Error)]
#[error("the receiver broke the protocol: {0}")]
pub struct Breach(pub &'static str);

impl Sender {
    /// Takes one message of the receiver's.
    pub fn answer(&self, message: Message) -> Result<(), Breach> {
        match message {
            Message::Landed(landed) => {
                if let Some(list) = &self.digests {
                    list.set_landed(landed.names.into_iter().map(name_or_none).collect());
                }
                self.plans.start();
            }
            Message::Want(wants) => wants.into_iter().for_each(|want| self.wanted(want)),
            Message::Ack(ack) => self.acknowledged(ack)?,
            Message::Nack(chunks) => chunks
                .into_iter()
                .for_each(|chunk| self.plans.nacked(chunk)),
            Message::Fault(fault) => self.receiver_failed(fault)?,
            Message::Done(()) if self.plans.is_done() => {
                self.plans.end();
                self.done.notify_one();
            }
            _ => return Err(Breach("a message out of place")),
        }
        Ok(())
    }

    /// An entry that is not open (any more) was failed by us meanwhile.
    fn wanted(&self, want: Want) {
        let digest_only = match want.kind {
            WantKind::Fresh => false,
            WantKind::Digest => true,
            // What it has of it is for a later version to make use of: it gets all.
            WantKind::Have(_) | WantKind::Compare(_) => false,
            WantKind::Skip => {
                self.plans.close(want.entry);
                return;
            }
        };
        let needs_tree = digest_only || self.options.digests;
        let made = self.plans.want(want.entry, |source, listed| {
            let found = source.found().clone();
            let size = found.entry.size;
            let tree = (needs_tree || !found.entry.is_sparse())
                .then(|| Mutex::new(Tree::new(size, self.chunk_size as u64)));
            File {
                source,
                cut: Mutex::new(Cut::new(size, self.chunk_size as u64)),
                tree,
                covered: AtomicU64::new(0),
                failed: AtomicBool::new(false),
                digest_only,
                listed,
                found,
            }
        });
        if let Some(file) = made {
            let name = printable(file.found.name.as_bytes());
            self.progress.start_name(want.entry, name);
        }
    }

    fn acknowledged(&self, ack: Ack) -> Result<(), Breach> {
        for span in ack.chunks {
            if span.start > span.end {
                return Err(Breach("an impossible chunk"));
            }
            for plan in self.plans.settle_chunks(span.start..span.end) {
                self.count(&plan);
            }
        }
        for (spans, placed) in [(ack.entries, true), (ack.failed, false)] {
            for span in spans {
                let possible = 0 < span.start && span.start < span.end;
                if !possible || !self.plans.is_met(span.end - 1) {
                    return Err(Breach("an impossible entry"));
                }
                for entry in self.plans.settle_entries(span.start..span.end) {
                    self.close_file(entry, placed);
                }
                if let (Some(list), true) = (&self.digests, placed) {
                    list.links_placed(span.start..span.end);
                }
            }
        }
        Ok(())
    }

    /// A chunk is where it belongs.
    fn count(&self, plan: &Plan) {
        match &plan.what {
            What::Piece { piece, .. } if piece.kind == ChunkKind::Zeros => {
                self.progress.add_skipped(u64::from(piece.len));
            }
            What::Piece { piece, .. } => self.progress.add_bytes(u64::from(piece.len)),
            What::Pack(members) => members.iter().for_each(|member| self.count_member(member)),
        }
    }

    fn count_member(&self, member: &Member) {
        let entry = &member.found.entry;
        self.progress.end_name(entry.id);
        if member.failed.load(Relaxed) || self.plans.has_failed(entry.id) {
            return;
        }
        self.progress.add_bytes(entry.size);
        self.progress.add_files(1);
        if let (Some(list), Some(listed), Some(digest)) =
            (&self.digests, &member.listed, member.digest.get())
        {
            list.add(listed, digest);
            list.remember(entry, digest);
        }
    }

    /// A big file is in place, or failed along with its directory.
    fn close_file(&self, entry: EntryId, placed: bool) {
        let Some(file) = self.plans.close(entry) else {
            return;
        };
        self.progress.end_name(entry);
        if !placed {
            self.progress.add_failed();
            return;
        }
        self.progress.add_files(1);
        let Some(file) = file else { return };
        if file.digest_only {
            self.progress.add_skipped(file.found.entry.size);
        }
        if let (Some(list), Some(listed), Some(root)) = (&self.digests, &file.listed, file.root()) {
            list.add(listed, &root);
            list.remember(&file.found.entry, &root);
        }
    }

    /// The receiver cannot place an entry.
    fn receiver_failed(&self, fault: Fault) -> Result<(), Breach> {
        let entry = fault.entry;
        if !self.plans.is_met(entry) {
            return Err(Breach("an entry that it was not told of"));
        }
        self.tally.add(&fault.into_error());
        if entry != 0 {
            self.plans.entry_failed(entry);
            if let Some(Some(file)) = self.plans.close(entry) {
                file.failed.store(true, Relaxed);
            }
            self.progress.end_name(entry);
        }
        Ok(())
    }
}

/// A name of the receiver's, or nothing where it is none.
fn name_or_none(bytes: Vec<u8>) -> Vec<u8> {
    Name::try_from(bytes).map_or_else(|_| Vec::new(), Vec::from)
}

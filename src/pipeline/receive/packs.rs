//! Packs at the receiver: each pack is verified as a whole, then each small file gets its name. A
//! pack may arrive before its directories, which are announced on the control connection. It then
//! waits for them.

use std::sync::Arc;

use super::arrived::PackClaim;
use super::done_files::PlacedContent;
use super::entries::{Entries, NOT_IN_SCP};
use super::entry_table::Location;
use super::recorded::{finished, standing};
use super::worker::Worker;
use crate::chunk::pack::Pack;
use crate::chunk::pool::TAILROOM;
use crate::chunk::{Buffer, EncodedChunk, Pool, VerifiedChunk};
use crate::dest::{self, Standing};
use crate::journal::record::Finished;
use crate::manifest::Entry;
use crate::pipeline::context::Context;
use crate::pipeline::worker_time::Activity;
use crate::report::event::FileResult;

/// Places packs. What their members belong to is in [`Entries`].
pub struct PackPlacer {
    entries: Arc<Entries>,
}

impl PackPlacer {
    pub fn new(entries: Arc<Entries>) -> PackPlacer {
        PackPlacer { entries }
    }

    fn context(&self) -> &Context {
        self.entries.context()
    }

    /// Claims, decodes and verifies a pack, and places its members.
    pub fn encoded_pack(&self, encoded: EncodedChunk, worker: &mut Worker<'_>) {
        let (number, digest) = (encoded.place.chunk, encoded.digest);
        let claim = self.entries.table().chunks.claim_pack(number);
        match claim {
            PackClaim::Yours => {}
            PackClaim::Taken => return,
            PackClaim::Done => return self.entries.report.acks.chunk(number),
        }
        let chunk = match self.is_large(&encoded) {
            false => worker.decode(encoded),
            // If no memory is free now, the pack is sent again as smaller packs.
            true => self
                .buffer_of_lent(&encoded)
                .and_then(|into| worker.decode_into(encoded, into)),
        };
        match chunk.and_then(|chunk| chunk.verify_pack(digest).ok()) {
            Some(verified) => {
                worker.clock.turn_to(Activity::Disk);
                self.pack(verified);
            }
            None => {
                self.entries.table().chunks.unclaim_pack(number);
                self.entries.report.damaged(number);
            }
        }
    }

    fn is_large(&self, encoded: &EncodedChunk) -> bool {
        encoded.place.raw_len as usize > self.context().chunk_size + TAILROOM
    }

    /// A buffer for a large pack in memory that the pool lends, including the memory that a decoder
    /// needs.
    fn buffer_of_lent(&self, encoded: &EncodedChunk) -> Option<Buffer> {
        let raw_len = encoded.place.raw_len as usize;
        let lent = (2 * raw_len).div_ceil(Pool::slot_size(self.context().chunk_size));
        Some(Buffer::of_lent(raw_len, self.context().pool.lend(lent)?))
    }

    /// Places the members of a pack, unless it must wait for one of their directories.
    pub fn pack(&self, chunk: VerifiedChunk) {
        let number = chunk.place().chunk;
        let Ok(pack) = Pack::parse(&chunk) else {
            return self.entries.report.breach("a malformed pack");
        };
        let mut members: Vec<_> = pack.collect();
        let owned = members.iter_mut().map(|(entry, _)| entry);
        owned.for_each(|entry| self.entries.localize(entry));
        {
            let mut table = self.entries.table();
            let is_unknown = |entry: &Entry| {
                matches!(
                    table.locate(entry.id, entry.parent, &entry.name, false),
                    Location::Unknown
                ) && !table.is_accounted(entry.id)
            };
            if !members.iter().all(|(entry, _)| table.roots.fits(entry)) {
                drop(table);
                return self
                    .entries
                    .report
                    .breach("an entry that differs from its announcement");
            }
            if !members
                .iter()
                .all(|(entry, _)| self.entries.is_expected(entry))
            {
                drop(table);
                return self.entries.report.breach(NOT_IN_SCP);
            }
            let mut entries = members.iter().map(|(entry, _)| entry);
            // Nothing of such a pack is placed.
            if !entries.all(|entry| self.entries.is_requested(&table, entry)) {
                return;
            }
            if members.iter().any(|(entry, _)| is_unknown(entry)) {
                if table.is_walked() {
                    drop(table);
                    return self
                        .entries
                        .report
                        .breach("an entry of a directory that was not announced");
                }
                drop(members);
                table.chunks.park(chunk);
                return;
            }
        }
        let mut records = Vec::with_capacity(members.len());
        for (entry, content) in &members {
            self.member(entry, content, &mut records);
        }
        // Recorded before the pack is acknowledged, so that the journal has every pack that the
        // sender counts as done.
        if let Some(journal) = self.entries.journal() {
            journal.finished(&records);
        }
        self.entries.report.flush();
        self.entries.report.acks.chunk(number);
        self.entries.table().chunks.done(number);
        self.entries.finish_directories(None);
    }

    fn member(&self, entry: &Entry, content: &[u8], records: &mut Vec<Finished>) {
        let Some((location, path)) = self.entries.claim_small(entry) else {
            return; // It failed at the sender, or came in another pack.
        };
        let (slot, listed) = match location {
            Location::Slot(slot, listed) => (slot, listed),
            Location::Directory(..)
            | Location::Exit(..)
            | Location::Planned(_)
            | Location::Unknown => {
                return self
                    .entries
                    .report
                    .breach("a file where a directory was announced");
            }
            Location::Lost => return self.entries.lost_with_directory(entry),
            Location::LeftOut => return self.entries.stays(entry.id, entry.parent),
            Location::Refused => return,
        };
        self.context()
            .progress
            .pass_name(|| slot.path_in_copy(&entry.name));
        let placed = self.entries.check_name(entry, &slot);
        // A sender that writes a list of digests has not asked. An entry with a place has a path.
        let place = (&slot, &path.unwrap_or_default());
        if placed.is_ok() && matches!(standing(&self.entries, place, entry), Ok(Standing::Stays)) {
            return self.entries.stays(entry.id, entry.parent);
        }
        let itemizer = &self.entries.report.itemizer;
        let item = placed.and_then(|()| itemizer.change(&slot, entry, listed.as_ref(), true));
        let rules = &self.entries.rules;
        let placed = item.and_then(|item| {
            self.entries.make_room(&slot, entry)?;
            Ok((item, dest::place_small(&slot, entry, content, rules)?))
        });
        match placed {
            Ok((item, existing)) => {
                // With `--no-clobber` the same file may have been there.
                itemizer.report(item.filter(|_| existing.is_some()), entry, None);
                let digest = *blake3::hash(content).as_bytes();
                match (&existing, path) {
                    (Some(existing), Some(path)) => {
                        let young = self.entries.is_young(entry);
                        records.push(finished(path, entry, young, existing, Some(digest)));
                        self.context().progress.add_bytes(entry.size);
                    }
                    _ => self.context().progress.add_skipped(entry.size),
                }
                self.entries
                    .remember_linked(entry, &slot, existing.as_ref());
                if existing.is_some() {
                    self.entries.found_durable(entry, &slot);
                }
                let placed = PlacedContent {
                    size: entry.size,
                    digest: Some(digest),
                    result: match existing {
                        Some(_) => FileResult::Copied,
                        None => FileResult::Unchanged,
                    },
                };
                self.entries.file_placed(entry, listed.as_ref(), &placed);
            }
            Err(error) => self.entries.fail(entry.id, entry.parent, &error),
        }
    }
}

//! Packs at the receiver: each pack is verified as a whole, then each small file gets its name. A
//! pack may arrive before its directories, which are announced on the control connection. It then
//! waits for them.

use super::entry_table::{Location, PackClaim};
use super::resume::finished;
use crate::chunk::pack::Pack;
use crate::chunk::pool::TAILROOM;
use crate::chunk::{Buffer, EncodedChunk, Pool, VerifiedChunk};
use crate::dest;
use crate::journal::record::Finished;
use crate::manifest::Entry;
use crate::pipeline::receive::{Hands, Receiver};
use crate::pipeline::worker_time::Activity;

impl Receiver {
    pub(in crate::pipeline) fn encoded_pack(&self, encoded: EncodedChunk, hands: &mut Hands<'_>) {
        let (number, digest) = (encoded.place.chunk, encoded.digest);
        let claim = self.table.lock().claim_pack(number);
        match claim {
            PackClaim::Yours => {}
            PackClaim::Taken => return,
            PackClaim::Done => return self.acks.chunk(number),
        }
        let chunk = match self.is_large(&encoded) {
            false => hands.decode(encoded),
            // If no memory is free now, the pack is sent again as smaller packs.
            true => self
                .buffer_of_lent(&encoded)
                .and_then(|into| hands.decode_into(encoded, into)),
        };
        match chunk.and_then(|chunk| chunk.verify_pack(digest).ok()) {
            Some(verified) => {
                hands.shift.turn_to(Activity::Disk);
                self.pack(verified);
            }
            None => {
                self.table.lock().unclaim_pack(number);
                self.damaged(number);
            }
        }
    }

    fn is_large(&self, encoded: &EncodedChunk) -> bool {
        encoded.place.raw_len as usize > self.chunk_size as usize + TAILROOM
    }

    /// A buffer for a large pack in memory that the pool lends, including the memory that a decoder
    /// needs.
    fn buffer_of_lent(&self, encoded: &EncodedChunk) -> Option<Buffer> {
        let raw_len = encoded.place.raw_len as usize;
        let lent = (2 * raw_len).div_ceil(Pool::slot_size(self.chunk_size as usize));
        Some(Buffer::of_lent(raw_len, self.pool.lend(lent)?))
    }

    /// Places the members of a pack, unless it must wait for one of their directories.
    pub(in crate::pipeline) fn pack(&self, chunk: VerifiedChunk) {
        let number = chunk.place().chunk;
        let Ok(pack) = Pack::parse(&chunk) else {
            return self.breach("a pack that does not read");
        };
        let members: Vec<_> = pack.collect();
        {
            let mut table = self.table.lock();
            let is_unknown = |entry: &Entry| {
                matches!(
                    table.spot(entry.id, entry.parent, &entry.name, false),
                    Location::Unknown
                ) && !table.is_accounted(entry.id)
            };
            if !members.iter().all(|(entry, _)| table.fits_root(entry)) {
                drop(table);
                return self.breach("an entry that differs from its announcement");
            }
            if members.iter().any(|(entry, _)| is_unknown(entry)) {
                if table.is_walked() {
                    drop(table);
                    return self.breach("a file of a directory that was not announced");
                }
                drop(members);
                table.parked.push(chunk);
                return;
            }
        }
        let mut records = Vec::with_capacity(members.len());
        for (entry, content) in &members {
            self.member(entry, content, &mut records);
        }
        // Recorded before the pack is acknowledged, so that the journal has every pack that the
        // sender counts as done.
        if let Some(journal) = self.journal() {
            journal.finished(&records);
        }
        self.acks.chunk(number);
        self.table.lock().chunk_done(number);
        self.finish_directories(None);
    }

    fn member(&self, entry: &Entry, content: &[u8], records: &mut Vec<Finished>) {
        let (spot, path) = {
            let table = self.table.lock();
            if table.is_known(entry.id) {
                return; // It failed at the sender, or came before.
            }
            let spot = table.spot(entry.id, entry.parent, &entry.name, self.digests.is_some());
            (spot, table.path_of(entry.id, entry.parent, &entry.name))
        };
        let (slot, listed) = match spot {
            Location::Slot(slot, listed) => (slot, listed),
            Location::Directory(..) | Location::Exit(..) | Location::Unknown => {
                return self.breach("a file where a directory was announced");
            }
            Location::Lost => return self.lost_with_directory(entry),
        };
        let placed = self.check_name(entry, &slot);
        match placed.and_then(|()| dest::place_small(&slot, entry, content, &self.rules)) {
            Ok(standing) => {
                let digest = *blake3::hash(content).as_bytes();
                match (&standing, path) {
                    (Some(standing), Some(path)) => {
                        let young = self.is_young(entry);
                        records.push(finished(path, entry, young, standing, Some(digest)));
                        self.progress.add_bytes(entry.size);
                    }
                    _ => self.progress.add_skipped(entry.size),
                }
                self.remember_linked(entry, &slot, standing.as_ref());
                self.file_placed(entry, listed.as_ref(), || digest);
            }
            Err(error) => self.fail(entry.id, entry.parent, &error),
        }
    }
}

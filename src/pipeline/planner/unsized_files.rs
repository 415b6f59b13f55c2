//! Files of which nobody knows how long they are before they are read to their end. Those that the
//! kernel makes up go into packs as other small files do, with the room that a pack has left; one
//! that has none goes as a stream, from the planner's thread as all streams do.

use std::collections::HashMap;

use crate::manifest::{Extension, MADE_UP, NO_PARENT};
use crate::pipeline::digest_list::Listed;
use crate::pipeline::plans::Ended;
use crate::source::Found;
use crate::source::stream::{Sizes, has_unsaid_content, sizes};

use super::Planner;

/// Bytes that are reckoned with for a file of which nobody knows: most of /proc have fewer.
const PAGE: u64 = 4096;

#[derive(Default)]
pub(super) struct Unsized {
    /// By device, what is said there of sizes.
    sizes: HashMap<u64, Sizes>,
    /// Some are in packs, in which they may have no room.
    are_packed: bool,
}

impl Planner<'_> {
    /// True of a file that is followed while it grows, and where its size says nothing: of one that
    /// says it is empty and is not, and of all where the kernel makes content up (/proc, /sys).
    pub(super) fn is_unsized(&mut self, found: &Found) -> bool {
        let sender = self.sender;
        if sender.options.follow_ms.is_some() && found.entry.parent == NO_PARENT {
            return true;
        }
        match self.unsized_files.sizes.get(&found.identity.dev) {
            Some(Sizes::MadeUp | Sizes::Spent) => return true,
            Some(Sizes::True) if found.entry.size > 0 => return false,
            _ if found.entry.is_device() => return false,
            _ => {}
        }
        // What cannot be opened fails for its reason when it is sent.
        let Ok((file, stat)) = found.open(sender.changes()) else {
            return false;
        };
        let sizes = sizes(&file);
        self.unsized_files.sizes.insert(found.identity.dev, sizes);
        sizes != Sizes::True || has_unsaid_content(&file, &stat)
    }

    /// What is read to its end, wherever that is. A stream costs a round trip, so files that the
    /// kernel makes up, which come by the hundred and are short, go into packs. Not for a list of
    /// digests, which has to know what came of a pack that was read twice.
    pub(super) fn unsized_file(
        &mut self,
        mut found: Found,
        listed: Option<Listed>,
    ) -> Result<(), Ended> {
        let is_alone = found.entry.parent == NO_PARENT
            && (self.alone || self.sender.options.follow_ms.is_some());
        let is_made_up = self.unsized_files.sizes.get(&found.identity.dev) == Some(&Sizes::MadeUp);
        if !is_made_up || is_alone || self.sender.digests.is_some() {
            return self.stream(found, listed);
        }
        found.entry.size = PAGE;
        found.entry.links = 1;
        found.entry.extensions.push(Extension {
            tag: MADE_UP,
            bytes: Vec::new(),
        });
        self.unsized_files.are_packed = true;
        self.small_file(found, listed)
    }

    /// Waits for the packs in which something may have had no room, and sends that.
    pub(super) fn finish_unsized(&mut self) -> Result<(), Ended> {
        if self.unsized_files.are_packed {
            self.sender.plans.wait_idle()?;
        }
        self.send_outgrown()
    }

    pub(super) fn send_outgrown(&mut self) -> Result<(), Ended> {
        let outgrown = self.sender.plans.take_outgrown();
        let mut streams = outgrown.into_iter();
        streams.try_for_each(|(found, listed)| self.stream(found, listed))
    }
}

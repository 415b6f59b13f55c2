//! Files whose length is unknown until they are read to the end. Files that the kernel makes up
//! are packed like other small files, if the pack has room left. Otherwise such a file is sent as
//! a pipe, on the planner's thread like all pipes.

use std::collections::HashMap;

use crate::manifest::{Extension, MADE_UP, NO_PARENT};
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::scheduler::Ended;
use crate::source::FoundFile;
use crate::source::pipe::{Sizes, has_unsaid_content, sizes};

use super::SourceWalk;

/// The assumed size in bytes of a file of unknown size. Most files of /proc are shorter.
const PAGE: u64 = 4096;

#[derive(Default)]
pub(super) struct Unsized {
    /// By device number, whether sizes can be trusted there.
    sizes: HashMap<u64, Sizes>,
    /// Some are in packs, which may have no room for them.
    are_packed: bool,
}

impl SourceWalk<'_> {
    /// True for a file that is followed while it grows, and for a file whose size means nothing.
    /// That is a file that claims to be empty and is not, and every file made up by the kernel
    /// (/proc, /sys).
    pub(super) fn is_unsized(&mut self, found: &FoundFile) -> bool {
        let sender = self.sender;
        if sender.context.options.follow_ms.is_some() && found.entry.parent == NO_PARENT {
            return true;
        }
        match self.unsized_files.sizes.get(&found.identity.dev) {
            Some(Sizes::MadeUp | Sizes::Spent) => return true,
            Some(Sizes::True) if found.entry.size > 0 => return false,
            _ if found.entry.is_device() => return false,
            _ => {}
        }
        // A file that cannot be opened fails with the reason when it is sent.
        let Ok((file, stat)) = found.open(sender.changes()) else {
            return false;
        };
        let sizes = sizes(&file);
        self.unsized_files.sizes.insert(found.identity.dev, sizes);
        sizes != Sizes::True || has_unsaid_content(&file, &stat)
    }

    /// Plans a file that is read to its end, wherever that is. A pipe costs a round trip. Files
    /// made up by the kernel are short and come by the hundred, so they go into packs. A list of
    /// digests rules out packs, since it must know the result of a pack that was read twice.
    pub(super) fn unsized_file(
        &mut self,
        mut found: FoundFile,
        listed: Option<ListedPath>,
    ) -> Result<(), Ended> {
        let is_alone = found.entry.parent == NO_PARENT
            && (self.alone || self.sender.context.options.follow_ms.is_some());
        let is_made_up = self.unsized_files.sizes.get(&found.identity.dev) == Some(&Sizes::MadeUp);
        if !is_made_up || is_alone || self.sender.context.digests.is_some() {
            return self.pipe(found, listed);
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

    /// Waits for packs that may have no room for some file, then sends those files.
    pub(super) fn finish_unsized(&mut self) -> Result<(), Ended> {
        if self.unsized_files.are_packed {
            self.sender.scheduler.wait_idle()?;
        }
        self.send_outgrown()
    }

    pub(super) fn send_outgrown(&mut self) -> Result<(), Ended> {
        let outgrown = self.sender.scheduler.take_outgrown();
        let mut streams = outgrown.into_iter();
        streams.try_for_each(|(found, listed)| self.pipe(found, listed))
    }
}

//! Small files on their way into packs. If an earlier run may have finished some of them, the
//! receiver is asked first. Batches of questions are sent without waiting for answers, and the
//! files that the receiver wants are packed as answers arrive.

use crate::chunk::split::Gathering;
use crate::manifest::Entry;
use crate::pipeline::digest_list::ListedPath;
use crate::pipeline::send::plan::PackMember;
use crate::pipeline::send::scheduler::{Ended, SmallFileMode};
use crate::source::{FoundFile, mark_young};
use crate::wire::message::Message;

use super::SourceWalk;

/// The most entries in one question, and about how many bytes they may take.
const ASK_MAX: usize = 256;
const ASK_BYTES_MAX: usize = 64 << 10;

/// The approximate size of an entry in bytes, without its names.
const ENTRY_BYTES: usize = 200;

/// Packs that may be gathered before the receiver says whether to ask. Then the walk waits.
const EARLY_MAX: usize = 64;

#[derive(Default)]
pub(super) struct SmallFiles {
    gathering: Gathering<PackMember>,
    /// Full packs, gathered before the receiver said where everything lands.
    early: Vec<Vec<PackMember>>,
    landed: Option<SmallFileMode>,
    /// Files to ask about in the next message.
    asking: Vec<PackMember>,
    asking_bytes: usize,
}

impl SourceWalk<'_> {
    pub(super) fn small_file(
        &mut self,
        found: FoundFile,
        listed: Option<ListedPath>,
    ) -> Result<(), Ended> {
        let member = PackMember::new(found, listed);
        self.see_landed()?;
        match self.small.landed {
            Some(SmallFileMode::Resumes) => return self.ask(member),
            Some(SmallFileMode::Ordered) => return self.big_file(member.found, member.listed),
            Some(SmallFileMode::Fresh) | None => {}
        }
        let (size, name_len) = (member.found.entry.size, member.found.name.as_bytes().len());
        let Some(pack) = self.small.gathering.add(member, size, name_len) else {
            return Ok(());
        };
        if self.small.landed.is_some() {
            return self.pack(pack);
        }
        self.small.early.push(pack);
        if self.small.early.len() >= EARLY_MAX {
            self.wait_landed()?;
        }
        Ok(())
    }

    /// Plans or asks about all gathered files, so that none is held back.
    pub(super) fn flush_small(&mut self) -> Result<(), Ended> {
        if let Some(pack) = self.small.gathering.take() {
            if self.small.landed.is_none() {
                self.small.early.push(pack);
                return self.wait_landed();
            }
            self.pack(pack)?;
        }
        if !self.small.early.is_empty() {
            self.wait_landed()?;
        }
        self.send_asking()
    }

    fn wait_landed(&mut self) -> Result<(), Ended> {
        // The receiver says where the copy lands without waiting for entries.
        self.flush_entries()?;
        self.sender.scheduler.wait_landed()?;
        self.see_landed()?;
        self.send_asking()
    }

    /// Looks whether the receiver has said how small files are sent. Then plans the files gathered
    /// so far.
    fn see_landed(&mut self) -> Result<(), Ended> {
        if self.small.landed.is_some() {
            return Ok(());
        }
        self.small.landed = self.sender.scheduler.landed();
        if let (Some(SmallFileMode::Resumes | SmallFileMode::Ordered), Some(share)) =
            (self.small.landed, &self.sender.share)
        {
            share.packs_differ();
        }
        let early = match self.small.landed {
            None => return Ok(()),
            Some(SmallFileMode::Fresh) => std::mem::take(&mut self.small.early),
            Some(landed) => {
                let gathered = self.small.gathering.take();
                let early = std::mem::take(&mut self.small.early);
                for member in early.into_iter().chain(gathered).flatten() {
                    match landed {
                        SmallFileMode::Ordered => self.big_file(member.found, member.listed)?,
                        SmallFileMode::Fresh | SmallFileMode::Resumes => self.ask(member)?,
                    }
                }
                return Ok(());
            }
        };
        early.into_iter().try_for_each(|pack| self.pack(pack))
    }

    /// Plans a pack, after announcing the directories of its files.
    fn pack(&mut self, pack: Vec<PackMember>) -> Result<(), Ended> {
        self.flush_entries()?;
        self.sender.scheduler.add_pack(pack)
    }

    fn ask(&mut self, member: PackMember) -> Result<(), Ended> {
        let entry = &member.found.entry;
        let names = entry.name.as_bytes().len() + entry.user.len() + entry.group.len();
        self.small.asking_bytes += ENTRY_BYTES + names;
        self.small.asking.push(member);
        if self.small.asking.len() >= ASK_MAX || self.small.asking_bytes >= ASK_BYTES_MAX {
            self.send_asking()
        } else {
            Ok(())
        }
    }

    fn send_asking(&mut self) -> Result<(), Ended> {
        let members = std::mem::take(&mut self.small.asking);
        self.small.asking_bytes = 0;
        if members.is_empty() {
            return Ok(());
        }
        self.flush_entries()?;
        let entries: Vec<Entry> = members
            .iter()
            .map(|member| {
                let mut entry = member.found.entry.clone();
                mark_young(&mut entry);
                entry
            })
            .collect();
        self.sender.scheduler.announcing(&entries);
        self.sender.scheduler.ask(members);
        self.sender.say_or_end(Message::Ask(entries))
    }
}

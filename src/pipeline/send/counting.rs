//! The totals of a copy that begins while its sources are counted. The walk of the copy counts too;
//! whichever of the two knows the totals first reports them.

use std::sync::Arc;

use super::Sender;
use super::scheduler::Ended;
use crate::error::Error;
use crate::manifest::Totals;
use crate::progress::Phase;
use crate::source::{CountStart, FoundFile, SourceCount, count};
use crate::wire::message::Message;

/// Number of files that the walk meets between two reports of its progress.
const PROGRESS_EVERY: u64 = 1000;

/// The walk's own count, while the receiver has no totals.
#[derive(Default)]
pub(super) struct WalkCount {
    /// None once the totals are known.
    count: Option<Arc<SourceCount>>,
    totals: Totals,
}

impl WalkCount {
    /// Waits until the receiver has landed, or until the totals that it needs for that are known.
    pub(super) fn begin(sender: &Sender) -> Result<WalkCount, Ended> {
        let Some(count) = sender.scheduler.count() else {
            return Ok(WalkCount::default());
        };
        let start = count.wait();
        sender.context.progress.set_phase(Phase::Copying);
        let mut counting = WalkCount {
            count: Some(count),
            totals: Totals::default(),
        };
        match start {
            CountStart::Landed => Ok(counting),
            CountStart::Counted(totals) => counting.tell(sender, totals).map(|()| counting),
            CountStart::Ended => {
                if !sender.context.is_ending() {
                    sender.context.shutdown.end(Error::panicked());
                }
                Err(Ended)
            }
        }
    }

    /// Takes an entry that the walk has met.
    pub(super) fn met(&mut self, sender: &Sender, found: &FoundFile) -> Result<(), Ended> {
        let Some(going_on) = &self.count else {
            return Ok(());
        };
        if let Some(totals) = going_on.totals() {
            return self.tell(sender, totals);
        }
        count(&mut self.totals, found);
        if self.totals.files.is_multiple_of(PROGRESS_EVERY) {
            sender.context.progress.set_scanned(&self.totals);
        }
        Ok(())
    }

    /// The walk has met all entries.
    pub(super) fn end(&mut self, sender: &Sender) -> Result<(), Ended> {
        let Some(count) = &self.count else {
            return Ok(());
        };
        count.end();
        let totals = sender.context.options.totals(self.totals);
        self.tell(sender, totals)
    }

    fn tell(&mut self, sender: &Sender, totals: Totals) -> Result<(), Ended> {
        self.count = None;
        sender.context.progress.set_totals(totals);
        sender.report.say_or_end(Message::Counted(totals))
    }
}

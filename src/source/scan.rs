//! The size of a copy, counted by a walk before the first byte is read.

use std::sync::Arc;

use crate::dir::Handles;
use crate::keep::Keep;
use crate::manifest::{EntryKind, Totals};

use super::device::SourceDevice;
use super::found::FoundFile;
use super::operand::NamedSource;
use super::walk::{Step, Walk, WalkOptions};

/// File systems allocate space in blocks of this many bytes.
const BLOCK: u64 = 4096;

/// Number of entries between two calls of `goes_on`.
const PROGRESS_EVERY: u64 = 1000;

/// Counts everything below `roots`. Errors are left to the walk that copies. `goes_on` gets the
/// totals so far; if it returns false, the count ends without a result.
pub fn scan<R: Clone + Into<Arc<NamedSource>>>(
    roots: &[R],
    options: &WalkOptions,
    goes_on: &mut dyn FnMut(&Totals) -> bool,
) -> Option<Totals> {
    let mut totals = Totals::default();
    let mut steps = 0;
    let handles = Arc::new(Handles::default());
    let options = WalkOptions {
        // Names and attributes are not counted.
        keep: Keep {
            devices: options.keep.devices,
            specials: options.keep.specials,
            ..Keep::default()
        },
        compares_modes: false,
        holds: false,
        sums_names: false,
        ..options.clone()
    };
    let mut walk = Walk::new(roots.to_vec(), options, handles);
    walk.remember_all_names();
    for step in walk {
        if let Step::Entry(found) = step {
            count(&mut totals, &found);
        }
        steps += 1;
        if steps % PROGRESS_EVERY == 0 && !goes_on(&totals) {
            return None;
        }
    }
    goes_on(&totals).then_some(totals)
}

/// Counts an entry of a walk. All entries but directories count as files; the bytes of a file with
/// several names count once.
pub fn count(totals: &mut Totals, found: &FoundFile) {
    let entry = &found.entry;
    if entry.kind == EntryKind::Directory {
        totals.directories += 1;
        return;
    }
    totals.files += 1;
    totals.streams += u64::from(entry.kind == EntryKind::Pipe);
    if entry.kind != EntryKind::File {
        return;
    }
    totals.bytes = totals.bytes.saturating_add(entry.size);
    let allocated = match entry.is_device() {
        true => SourceDevice::open(&found.path(), false).map_or(0, |device| device.content()),
        false => entry.allocated,
    };
    // Space that is allocated beyond the end of a file is not copied.
    let whole = entry.size.checked_next_multiple_of(BLOCK);
    let allocated = allocated.min(whole.unwrap_or(u64::MAX));
    totals.allocated = totals.allocated.saturating_add(allocated);
    totals.largest = totals.largest.max(allocated);
}

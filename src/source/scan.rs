//! The size of a copy, counted by a walk before the first byte is read.

use std::sync::Arc;

use crate::dir::Handles;
use crate::keep::Keep;
use crate::manifest::{Entry, EntryKind, Totals};

use super::device::SourceDevice;
use super::operand::NamedSource;
use super::walk::{Step, Walk, WalkOptions};

/// File systems allocate space in blocks of this many bytes.
const BLOCK: u64 = 4096;

/// Number of entries between two calls of `on_progress`.
const PROGRESS_EVERY: u64 = 1000;

/// Counts everything below `roots`. Errors are left to the walk that copies. `on_progress` gets the
/// number of files and bytes found since its last call. All entries but directories count as files;
/// the bytes of a file with several names count once.
pub fn scan(
    roots: &[NamedSource],
    options: &WalkOptions,
    on_progress: &mut dyn FnMut(u64, u64),
) -> Totals {
    let mut totals = Totals::default();
    let (mut files, mut bytes) = (0, 0);
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
    for step in Walk::new(roots.to_vec(), options, handles) {
        let Step::Entry(found) = step else { continue };
        if found.entry.kind == EntryKind::Directory {
            totals.directories += 1;
            continue;
        }
        let content = || {
            let device = SourceDevice::open(&found.path(), false);
            device.map_or(0, |device| device.content())
        };
        let allocated = match found.entry.is_device() {
            true => content(),
            false => found.entry.allocated,
        };
        add(&mut totals, &found.entry, allocated);
        files += 1;
        bytes += found.entry.size;
        if files == PROGRESS_EVERY {
            on_progress(files, bytes);
            (files, bytes) = (0, 0);
        }
    }
    on_progress(files, bytes);
    totals
}

/// `allocated` is the number of bytes that the content occupies at the source.
fn add(totals: &mut Totals, entry: &Entry, allocated: u64) {
    totals.files += 1;
    totals.streams += u64::from(entry.kind == EntryKind::Pipe);
    if entry.kind != EntryKind::File {
        return;
    }
    totals.bytes = totals.bytes.saturating_add(entry.size);
    // Space that is allocated beyond the end of a file is not copied.
    let whole = entry
        .size
        .checked_next_multiple_of(BLOCK)
        .unwrap_or(u64::MAX);
    let allocated = allocated.min(whole);
    totals.allocated = totals.allocated.saturating_add(allocated);
    totals.largest = totals.largest.max(allocated);
}

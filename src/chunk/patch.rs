//! A patch: a range of a file, described by what differs from the receiver's existing file (rsync's
//! "basis file").
//!
//! The receiver sends a short digest of each page of its range ([`PageHasher::digests`]). The sender
//! makes a patch with the pages that differ ([`make`]), and the receiver applies it to its own bytes
//! ([`apply`]). It then verifies the BLAKE3 digest of the whole range. So two pages with the same
//! short digest cost a second transfer, and never make a wrong file.
//!
//! ```text
//! length of the steps u32 | steps | new bytes of all steps
//! ```
//!
//! A step is two numbers in postcard: how many existing bytes stay, and how many new bytes follow
//! them. Numbers of fixed length are little-endian.

use std::ops::Range;

use twox_hash::XxHash3_128;

use crate::digest;

/// Bytes of a page. Databases write pages of 4 KiB (SQLite), 8 KiB (PostgreSQL) or 16 KiB (InnoDB),
/// and file systems blocks of 4 KiB.
pub const PAGE: usize = 4096;

/// Bytes of the digest of a page. Of 2^32 changed pages, one seems unchanged.
pub const PAGE_DIGEST_LEN: usize = 4;

/// Bytes of the secret of a [`PageHasher`]: as many as XXH3 mixes into a page.
pub const PAGE_SECRET_LEN: usize = 192;

/// Bytes before the steps.
const LENGTH: usize = size_of::<u32>();

/// Most bytes of a step: two numbers of 32 bits.
const STEP_MAX: usize = 10;

/// A patch that does not fit the range or the existing bytes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a patch that does not fit its range")]
pub struct BadPatch;

/// Computes the short digests of pages. The hashers of both ends of a session have the same secret.
///
/// A page is hashed by XXH3-128, in a sixth of the time of BLAKE3, which cannot use all lanes of a
/// processor for so few bytes. The secret keeps others from preparing pages that seem unchanged. XXH3
/// is no one-way function, and the sender knows the secret. So the digest is the beginning of the
/// BLAKE3 of the 16 bytes of XXH3, and the sender can learn no more from it than by guessing a page.
pub struct PageHasher {
    secret: [u8; PAGE_SECRET_LEN],
}

impl PageHasher {
    /// `secret`: random bytes that only the two ends know.
    pub fn new(secret: [u8; PAGE_SECRET_LEN]) -> PageHasher {
        PageHasher { secret }
    }

    /// The short digests of all pages of `data`, one after another. The last page may be shorter.
    pub fn digests(&self, data: &[u8]) -> Vec<u8> {
        data.chunks(PAGE)
            .flat_map(|page| self.digest(page))
            .collect()
    }

    fn digest(&self, page: &[u8]) -> [u8; PAGE_DIGEST_LEN] {
        let hash = XxHash3_128::oneshot_with_secret(&self.secret, page);
        let hash = hash.expect("the secret has more than the 136 bytes that XXH3 needs");
        let digest = digest::of_range(&hash.to_le_bytes(), 0, true);
        std::array::from_fn(|n| digest[n])
    }
}

/// Writes a patch into `into` that makes `data` from a range whose pages have these digests, by
/// `hasher`. Returns the patch's length, and the number of its new bytes; None if it does not fit.
pub fn make(
    data: &[u8],
    pages: &[u8],
    hasher: &PageHasher,
    into: &mut [u8],
) -> Option<(usize, usize)> {
    let steps = steps(data, pages, hasher);
    let body = into.get_mut(LENGTH..)?;
    let mut used = 0;
    for step in &steps {
        let room = body.get_mut(used..used + STEP_MAX)?;
        let numbers = (step.kept as u32, step.new.len() as u32);
        used += postcard::to_slice(&numbers, room).ok()?.len();
    }
    let mut end = LENGTH + used;
    into[..LENGTH].copy_from_slice(&(used as u32).to_le_bytes());
    let mut new = 0;
    for PatchStep { new: range, .. } in steps {
        let room = into.get_mut(end..end + range.len())?;
        room.copy_from_slice(&data[range.clone()]);
        (end, new) = (end + range.len(), new + range.len());
    }
    Some((end, new))
}

/// Changes `data`, whose first `existing` bytes are those of the receiver, into the range that the
/// patch describes. Returns the parts that were written, in ascending order.
///
/// # Errors
/// If the steps do not add up to `data`, do not end at pages, or keep bytes that do not exist. With
/// shorter steps, a sender could try out single bytes of the existing file.
pub fn apply(
    patch: &[u8],
    data: &mut [u8],
    existing: usize,
) -> Result<Vec<Range<usize>>, BadPatch> {
    let (length, rest) = patch.split_at_checked(LENGTH).ok_or(BadPatch)?;
    let length = u32::from_le_bytes(std::array::from_fn(|n| length[n])) as usize;
    let (mut steps, mut new) = rest.split_at_checked(length).ok_or(BadPatch)?;
    let (mut at, mut written) = (0, Vec::new());
    while !steps.is_empty() {
        let ((kept, len), after): ((u32, u32), _) =
            postcard::take_from_bytes(steps).map_err(|_| BadPatch)?;
        let start = at + kept as usize;
        // A step has new pages, or it is the last one.
        let is_step = len > 0 || after.is_empty() && kept > 0;
        let is_page = |end: usize| end.is_multiple_of(PAGE) || end == data.len();
        let is_step = is_step && is_page(start) && is_page(start.saturating_add(len as usize));
        if !is_step || kept > 0 && start > existing {
            return Err(BadPatch);
        }
        let (bytes, left) = new.split_at_checked(len as usize).ok_or(BadPatch)?;
        let room = data.get_mut(start..start + bytes.len()).ok_or(BadPatch)?;
        room.copy_from_slice(bytes);
        if !bytes.is_empty() {
            written.push(start..start + bytes.len());
        }
        (steps, new, at) = (after, left, start + bytes.len());
    }
    match at == data.len() && new.is_empty() {
        true => Ok(written),
        false => Err(BadPatch),
    }
}

struct PatchStep {
    /// Bytes that stay.
    kept: usize,
    /// The part of the range that follows them and is new.
    new: Range<usize>,
}

fn steps(data: &[u8], pages: &[u8], hasher: &PageHasher) -> Vec<PatchStep> {
    let mut steps: Vec<PatchStep> = Vec::new();
    let mut kept = 0;
    let mut digests = pages.chunks_exact(PAGE_DIGEST_LEN);
    for (start, page) in (0..).step_by(PAGE).zip(data.chunks(PAGE)) {
        let is_same = digests
            .next()
            .is_some_and(|known| known == hasher.digest(page));
        let end = start + page.len();
        match steps.last_mut() {
            _ if is_same => kept += page.len(),
            Some(last) if kept == 0 => last.new.end = end,
            _ => {
                let new = start..end;
                steps.push(PatchStep { kept, new });
                kept = 0;
            }
        }
    }
    if kept > 0 {
        let new = data.len()..data.len();
        steps.push(PatchStep { kept, new });
    }
    steps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hasher() -> PageHasher {
        PageHasher::new(std::array::from_fn(|n| n as u8))
    }

    fn patched(old: &[u8], new: &[u8]) -> Option<(Vec<u8>, usize, Vec<Range<usize>>)> {
        let mut room = vec![0; new.len() + 4096];
        let (len, fresh) = make(new, &hasher().digests(old), &hasher(), &mut room)?;
        let mut data = old.to_vec();
        data.resize(new.len(), 0xee);
        let written = apply(&room[..len], &mut data, old.len().min(new.len())).unwrap();
        Some((data, fresh, written))
    }

    #[test]
    fn one_changed_page_is_one_new_page() {
        let old: Vec<u8> = (0..64 * PAGE).map(|n| (n / 7) as u8).collect();
        let mut new = old.clone();
        new[5 * PAGE + 17] ^= 1;
        let (made, fresh, written) = patched(&old, &new).unwrap();
        assert!(made == new);
        assert_eq!(fresh, PAGE);
        assert_eq!(written.len(), 1);
        assert_eq!(written[0], 5 * PAGE..6 * PAGE);
        let mut room = vec![0; 4200];
        let pages = hasher().digests(&old);
        let (len, _) = make(&new, &pages, &hasher(), &mut room).unwrap();
        assert!(len < PAGE + 16, "{len}");
        assert_eq!(make(&new, &pages, &hasher(), &mut room[..PAGE]), None);
    }

    /// Both ends compute them, perhaps in different versions.
    #[test]
    fn short_digests_are_those_of_wire_version_1() {
        let data: Vec<u8> = (0..2 * PAGE + 100).map(|n| (n / 7) as u8).collect();
        let digests = |hasher: &PageHasher| -> String {
            let digests = hasher.digests(&data).into_iter();
            digests.map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(digests(&hasher()), "7d9a84da29d2615d92fd8a1a");
        let other = PageHasher::new([7; PAGE_SECRET_LEN]);
        assert_eq!(digests(&other), "abb4de90586302bee1b377a4");
    }

    proptest! {
        #[test]
        fn whatever_exists_becomes_what_is_wanted(
            old in proptest::collection::vec(0u8..3, 0..12),
            new in proptest::collection::vec(0u8..3, 1..12),
            (cut_old, cut_new) in (0usize..PAGE, 0usize..PAGE),
        ) {
            let pages = |kinds: &[u8], cut: usize| {
                let mut bytes: Vec<u8> = kinds.iter().flat_map(|kind| vec![*kind; PAGE]).collect();
                bytes.truncate(bytes.len().saturating_sub(cut));
                bytes
            };
            let (old, new) = (pages(&old, cut_old), pages(&new, cut_new));
            let (made, fresh, written) = patched(&old, &new).expect("there is room");
            prop_assert!(made == new);
            prop_assert_eq!(fresh, written.iter().map(Range::len).sum::<usize>());
        }

        #[test]
        fn a_hostile_patch_is_refused_or_stays_within_the_range(
            patch in proptest::collection::vec(any::<u8>(), 0..64),
            steps in 0u32..80,
            existing in 0usize..300,
        ) {
            let patch = [&steps.to_le_bytes()[..], &patch].concat();
            let mut data = vec![0; 200];
            if let Ok(written) = apply(&patch, &mut data, existing.min(200)) {
                prop_assert!(written.iter().all(|part| part.end <= 200));
            }
        }
    }

    #[test]
    fn steps_that_do_not_add_up_are_refused() {
        const P: u32 = PAGE as u32;
        let patch = |steps: &[(u32, u32)], new: usize| {
            let body: Vec<u8> = steps
                .iter()
                .flat_map(|step| postcard::to_allocvec(step).unwrap())
                .collect();
            let length = (body.len() as u32).to_le_bytes();
            [&length[..], &body, &vec![1; new]].concat()
        };
        let tried = |steps: &[(u32, u32)], new, existing| {
            let mut data = vec![0; 3 * PAGE + 100];
            apply(&patch(steps, new), &mut data, existing).map(|_| ())
        };
        let all = 3 * PAGE + 100;
        assert_eq!(tried(&[(P, P), (P + 100, 0)], PAGE, all), Ok(()));
        assert_eq!(tried(&[(0, all as u32)], all, 0), Ok(()));
        for (steps, new, existing) in [
            (&[(P, P), (P + 100, 0)][..], PAGE, all - 1),
            (&[(P, P), (P + 100, 0)], PAGE + 1, all),
            (&[(P, P), (P + 100, 0)], PAGE - 1, all),
            (&[(P, P), (P + 101, 0)], PAGE, all + 1),
            (&[(P, P)], PAGE, all),
            (&[(P, 0), (2 * P + 100, 0)], 0, all),
            // Not at pages.
            (&[(P + 1, P - 1), (P + 100, 0)], PAGE - 1, all),
            (&[(P, 1), (2 * P + 99, 0)], 1, all),
            (&[(0, 0)], 0, all),
            (&[(u32::MAX, u32::MAX)], 0, all),
            (&[], 0, all),
        ] {
            assert_eq!(tried(steps, new, existing), Err(BadPatch), "{steps:?}");
        }
        assert_eq!(apply(&[], &mut [0; 100], 0), Err(BadPatch));
        assert_eq!(apply(&[255; 4], &mut [0; 100], 0), Err(BadPatch));
    }
}

//! Checks of a message before it is decoded: its length, and lists that are whole bodies.

use super::entries::{RANGES_MAX, Want};
use super::limits::{DIRECTORIES_MAX, ENTRIES_MAX, MESSAGE_MAX, WANTS_MAX};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadMessage {
    #[error("the unknown type {0}")]
    Unknown(u16),
    #[error("a malformed body of type {0}")]
    Malformed(u16),
    #[error("a body of {0} bytes, which is too long")]
    TooLong(u32),
    #[error("too many elements in a body of type {0}")]
    TooMany(u16),
}

/// Most bytes of most bodies: a heartbeat, a port, data sent through control, a reason.
const SMALL: u32 = super::DATA_MAX as u32 + 64;

/// Most bytes of a body that contains paths or names.
const MEDIUM: u32 = 1 << 20;

/// Most bytes of a body of type `number`.
pub(super) fn body_max(number: u16) -> u32 {
    match number {
        // Open, Roots, Landed, Ack, AllSent, Relay, Durable, Uncounted.
        1 | 5 | 6 | 10 | 13 | 21 | 45 | 53 => MESSAGE_MAX,
        // Want: one file's ranges take up to 3.4 MB.
        8 => MESSAGE_MAX / 2,
        // Entries, Fault, Abort, Ask, Vanished, FileDigests, Select, Names, OwnNames, Itemized,
        // SourcesRemoved, Archive, ListedDigests, VerifiedFiles, Map, Leftovers, Grew, FilesDone.
        7
        | 19
        | 20
        | 22
        | 23
        | 30
        | 33
        | 34
        | 39
        | 40
        | 43
        | 46
        | 49..=51
        | 55
        | 0x8030
        | 0x8032 => MEDIUM,
        // Activity.
        0x8033 => SMALL,
        n if n & OPTIONAL != 0 => MESSAGE_MAX,
        _ => SMALL,
    }
}

/// Checks lists that are whole bodies, which the types of fields cannot limit.
pub(super) fn check(number: u16, body: &[u8]) -> Result<(), BadMessage> {
    if body.len() > body_max(number) as usize {
        return Err(BadMessage::TooLong(body.len() as u32));
    }
    let fits = match number {
        7 | 22 => count(body).is_none_or(|(count, _)| count <= ENTRIES_MAX),
        39 | 40 => count(body).is_none_or(|(count, _)| count <= DIRECTORIES_MAX),
        8 => wants_fit(body),
        _ => true,
    };
    if fits {
        Ok(())
    } else {
        Err(BadMessage::TooMany(number))
    }
}

/// The number of elements and the bytes after it; None if the body does not begin with a number.
fn count(body: &[u8]) -> Option<(usize, &[u8])> {
    postcard::take_from_bytes(body).ok()
}

/// Adds up the ranges, one want at a time.
fn wants_fit(body: &[u8]) -> bool {
    let Some((count, mut rest)) = count(body) else {
        return true;
    };
    let mut ranges = 0;
    for _ in 0..count {
        // The decoder reports malformed elements.
        let Ok((want, after)) = postcard::take_from_bytes::<Want>(rest) else {
            break;
        };
        let (have, compare) = want.kind.ranges();
        ranges += have.len() + compare.len();
        if ranges > ALL_RANGES_MAX {
            return false;
        }
        rest = after;
    }
    count <= WANTS_MAX
}

/// Ranges of all wants in one message, and of all files that are being sent.
pub const ALL_RANGES_MAX: usize = 2 * RANGES_MAX;

/// Set in types that an older end may skip.
pub(super) const OPTIONAL: u16 = 0x8000;

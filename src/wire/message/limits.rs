//! Limits on the contents of messages. A list element can take one or two bytes in a body and
//! fifty in memory, so the body's length is not a sufficient bound. Lists have their own limits,
//! which are checked before elements are stored.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{BadMessage, MESSAGE_MAX, RANGES_MAX, Want, WantKind};

/// Operands of one copy. The receiver's tables take some 400 bytes each, about 50 MB in all.
pub const ROOTS_MAX: usize = 1 << 17;

/// Spans in one list of an acknowledgement, and in the list of unused entry numbers.
pub const SPANS_MAX: usize = 1 << 17;

/// Entries in one message. Senders put in at most 256.
pub const ENTRIES_MAX: usize = 1024;

/// Wants in one message, which answers a message of entries.
const WANTS_MAX: usize = ENTRIES_MAX;

/// Ranges of all wants in one message, and of all files that are being sent.
pub const ALL_RANGES_MAX: usize = 2 * RANGES_MAX;

/// Most bytes of most bodies: a heartbeat, a port, data sent through control, a reason.
const SMALL: u32 = super::DATA_MAX as u32 + 64;

/// Most bytes of a body that contains paths or names.
const MEDIUM: u32 = 1 << 20;

/// Most bytes of a body of type `number`.
pub fn body_max(number: u16) -> u32 {
    match number {
        // Open, Roots, Landed, Ack, AllSent, Relay.
        1 | 5 | 6 | 10 | 13 | 21 => MESSAGE_MAX,
        // Want: one file's ranges take up to 3.4 MB.
        8 => MESSAGE_MAX / 2,
        // Entries, Fault, Abort, Ask, Vanished, FileDigests.
        7 | 19 | 20 | 22 | 23 | 30 => MEDIUM,
        n if n & super::OPTIONAL != 0 => MESSAGE_MAX,
        _ => SMALL,
    }
}

/// Checks lists that are whole bodies, which the types of fields cannot limit.
pub fn check(number: u16, body: &[u8]) -> Result<(), BadMessage> {
    if body.len() > body_max(number) as usize {
        return Err(BadMessage::TooLong(body.len() as u32));
    }
    let fits = match number {
        7 | 22 => count(body).is_none_or(|(count, _)| count <= ENTRIES_MAX),
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
        ranges += match want.kind {
            WantKind::Have(ranges) => ranges.len(),
            WantKind::Compare(ranges) => ranges.len(),
            WantKind::Fresh | WantKind::Skip | WantKind::Digest => 0,
        };
        if ranges > ALL_RANGES_MAX {
            return false;
        }
        rest = after;
    }
    count <= WANTS_MAX
}

/// Decodes a list of at most `MAX` elements. Allocates memory for elements that arrived, not for
/// the announced number.
///
/// # Errors
/// If the list is longer.
pub fn list<'de, const MAX: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    from.deserialize_seq(Bounded::<T, MAX>(PhantomData))
}

struct Bounded<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = from.next_element()? {
            if elements.len() == MAX {
                return Err(A::Error::custom("too many elements"));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}

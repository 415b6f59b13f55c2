//! Limits on the contents of messages. A list element can take one or two bytes in a body and
//! fifty in memory, so the body's length is not a sufficient bound. Lists have their own limits,
//! which are checked before elements are stored.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Operands of one copy. The receiver's tables take some 400 bytes each, about 50 MB in all.
pub const ROOTS_MAX: usize = 1 << 17;

/// Spans in one list of an acknowledgement, and in the list of unused entry numbers.
pub const SPANS_MAX: usize = 1 << 17;

/// Entries in one message. Senders put in at most 256.
pub(super) const ENTRIES_MAX: usize = 1024;

/// Directories in one message about names. Senders put in at most 64.
pub(super) const DIRECTORIES_MAX: usize = 256;

/// Wants in one message, which answers a message of entries.
pub(super) const WANTS_MAX: usize = ENTRIES_MAX;

/// Most bytes of a body: enough for the roots of some 100,000 operands.
pub const MESSAGE_MAX: u32 = 8 << 20;

/// Decodes a list of at most `MAX` elements. Allocates memory for elements that arrived, not for
/// the announced number.
///
/// # Errors
/// If the list is longer.
pub(super) fn list<'de, const MAX: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
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

//! Lists that decode up to a limit. An element can take one or two bytes in a body and fifty in
//! memory, so the body's length is not a sufficient bound.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with)]`: decodes a list of at most `MAX` elements. Allocates memory for
/// elements that arrived, not for the announced number.
///
/// # Errors
/// If the list is longer.
pub fn deserialize<'de, const MAX: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    collect::<MAX, T, Vec<T>, D>(from)
}

/// The same for a list of another type.
///
/// # Errors
/// If the list is longer.
pub fn collect<'de, const MAX: usize, T, L, D>(from: D) -> Result<L, D::Error>
where
    T: Deserialize<'de>,
    L: Default + Extend<T>,
    D: Deserializer<'de>,
{
    from.deserialize_seq(Bounded::<T, L, MAX>(PhantomData))
}

struct Bounded<T, L, const MAX: usize>(PhantomData<(T, L)>);

impl<'de, T, L, const MAX: usize> Visitor<'de> for Bounded<T, L, MAX>
where
    T: Deserialize<'de>,
    L: Default + Extend<T>,
{
    type Value = L;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<L, A::Error> {
        let mut elements = L::default();
        let mut count = 0;
        while let Some(element) = from.next_element()? {
            if count == MAX {
                return Err(A::Error::custom("too many elements"));
            }
            elements.extend([element]);
            count += 1;
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_longer_list_is_refused() {
        let read = |len: u8| {
            let written = postcard::to_allocvec(&vec![(); len.into()]).unwrap();
            let mut from = postcard::Deserializer::from_bytes(&written);
            super::deserialize::<3, (), _>(&mut from).map(|list| list.len())
        };
        assert_eq!(read(3), Ok(3));
        assert!(read(4).is_err());
    }
}

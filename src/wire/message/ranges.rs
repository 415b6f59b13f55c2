//! Lists of number ranges, as acknowledgements contain them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::limits::SPANS_MAX;
use crate::limited_list;

/// Spans that need no heap memory. Nearly every chunk causes an acknowledgement, which has one or
/// two spans if chunks arrive almost in order.
const FEW: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    pub start: u64,
    /// Exclusive.
    pub end: u64,
}

/// A list of spans. On the wire it is identical to a `Vec` of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumberRanges {
    few: [ByteRange; FEW],
    /// Spans in use in `few`.
    len: usize,
    /// Empty until `few` is full.
    more: Vec<ByteRange>,
}

impl NumberRanges {
    pub fn push(&mut self, span: ByteRange) {
        match self.few.get_mut(self.len) {
            Some(place) => {
                *place = span;
                self.len += 1;
            }
            None => self.more.push(span),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.few[..self.len].iter().chain(&self.more).copied()
    }

    pub fn len(&self) -> usize {
        self.len + self.more.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Extend<ByteRange> for NumberRanges {
    fn extend<I: IntoIterator<Item = ByteRange>>(&mut self, spans: I) {
        spans.into_iter().for_each(|span| self.push(span));
    }
}

impl FromIterator<ByteRange> for NumberRanges {
    fn from_iter<I: IntoIterator<Item = ByteRange>>(from: I) -> NumberRanges {
        let mut spans = NumberRanges::default();
        spans.extend(from);
        spans
    }
}

impl Serialize for NumberRanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for NumberRanges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NumberRanges, D::Error> {
        limited_list::collect::<SPANS_MAX, ByteRange, _, _>(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_them_is_on_the_wire_what_a_vec_is() {
        for count in 0..12 {
            let vec: Vec<ByteRange> = (0..count)
                .map(|n| ByteRange {
                    start: 300 * n,
                    end: 300 * n + 7,
                })
                .collect();
            let spans: NumberRanges = vec.iter().copied().collect();
            assert!(spans.iter().eq(vec.iter().copied()));
            assert_eq!(spans.is_empty(), vec.is_empty());
            let bytes = postcard::to_allocvec(&spans).unwrap();
            assert_eq!(bytes, postcard::to_allocvec(&vec).unwrap());
            assert_eq!(postcard::from_bytes::<NumberRanges>(&bytes).unwrap(), spans);
        }
    }

    #[test]
    fn a_length_that_is_a_lie_takes_no_memory() {
        let mut bytes = postcard::to_allocvec(&u32::MAX).unwrap();
        bytes.extend([0; 4]);
        assert!(postcard::from_bytes::<NumberRanges>(&bytes).is_err());
    }
}

//! Fast serialization of byte strings. serde reads and writes a `Vec<u8>` byte by byte; these
//! functions do it in one piece. In postcard both forms are a length and the bytes.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// For `#[serde(with = "byte_strings")]`.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// For `#[serde(with = "byte_strings")]`. Allocates no more memory than the message has.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(ByteStrings)
}

struct ByteStrings;

impl Visitor<'_> for ByteStrings {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct ByteString(#[serde(with = "super")] Vec<u8>);

    #[test]
    fn they_are_written_as_a_list_of_bytes_is() {
        for len in [0, 1, 127, 128, 70_000] {
            let bytes = vec![0xa5; len];
            let written = postcard::to_allocvec(&bytes).unwrap();
            assert_eq!(
                postcard::to_allocvec(&ByteString(bytes.clone())).unwrap(),
                written
            );
            let read: ByteString = postcard::from_bytes(&written).unwrap();
            assert_eq!(read.0, bytes);
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_refused() {
        let four_billion = [0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3];
        assert!(postcard::from_bytes::<ByteString>(&four_billion).is_err());
    }
}

//! The algorithms that a copy may use to compress and to seal its chunks, and their numbers on the
//! wire.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A discriminant is the codec's number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    None = 0,
    /// One LZ4 block, without a frame.
    Lz4 = 1,
    /// One Zstandard frame.
    Zstd = 2,
    /// gzip's method, deflate, without a header.
    Gzip = 3,
    /// One LZMA2 stream without a header; its dictionary is as long as the chunk.
    Lzma = 4,
}

impl Codec {
    /// Numbers of the codecs that this build decodes.
    pub const KNOWN: [u8; 5] = [0, 1, 2, 3, 4];

    pub const fn number(self) -> u8 {
        self as u8
    }

    pub const fn from_number(number: u8) -> Option<Codec> {
        match number {
            0 => Some(Codec::None),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            3 => Some(Codec::Gzip),
            4 => Some(Codec::Lzma),
            _ => None,
        }
    }
}

/// The compression that the sender is asked to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compress {
    /// Compress chunks whose sample shrinks, by the method that suits the link. The sender finds
    /// it while it copies, and begins with [`AUTO`](crate::codec::AUTO).
    #[default]
    Auto,
    None,
    Lz4,
    /// Level, -7 to 19.
    Zstd(i32),
    /// Level, 1 to 9.
    Gzip(u32),
    /// Level, 1 to 9, as in xz.
    Lzma(u32),
}

/// The method for chunks whose sample shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    #[default]
    None,
    Lz4,
    Zstd(i32),
    /// Only on request; the tuner never chooses it.
    Gzip(u32),
    Lzma(u32),
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Method::None => f.write_str("no compression"),
            Method::Lz4 => f.write_str("lz4"),
            Method::Zstd(level) => write!(f, "zstd {level}"),
            Method::Gzip(level) => write!(f, "gzip {level}"),
            Method::Lzma(level) => write!(f, "lzma {level}"),
        }
    }
}

/// Bytes of the longest tag.
pub const TAG_LEN: usize = 16;

/// The algorithm that seals frames; one for a session, agreed in the hello. A discriminant is its
/// number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Suite {
    None = 0,
    Aes128Gcm = 1,
    ChaCha20Poly1305 = 2,
    /// Keyed BLAKE3, cut to 16 bytes: authentic, not secret.
    Tag = 3,
}

impl Suite {
    pub const fn number(self) -> u8 {
        self as u8
    }

    pub const fn from_number(number: u8) -> Option<Suite> {
        match number {
            0 => Some(Suite::None),
            1 => Some(Suite::Aes128Gcm),
            2 => Some(Suite::ChaCha20Poly1305),
            3 => Some(Suite::Tag),
            _ => None,
        }
    }

    /// The faster of the two that encrypt: AES if this processor has instructions for it (4.3 GB/s
    /// a core against 1.7 for ChaCha20), otherwise ChaCha20, which needs none.
    pub fn preferred() -> Suite {
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        let has_aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes {
            Suite::Aes128Gcm
        } else {
            Suite::ChaCha20Poly1305
        }
    }

    /// Bytes of the tag after the payload.
    pub const fn tag_len(self) -> usize {
        match self {
            Suite::None => 0,
            _ => TAG_LEN,
        }
    }
}

//! Key derivation: all keys come from the session's secret, with a context for each purpose. A key
//! for one purpose, direction, suite or epoch reveals nothing about any other.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, Algorithm, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use rustix::rand::GetRandomFlags;
use zeroize::Zeroize;

use crate::algorithms::Suite;

const AEAD_KEY: &str = "fastcp 2026 wire 1: key of sealed frames";
const TAG_KEY: &str = "fastcp 2026 wire 1: key of tagged frames";
const PAGE_SECRET: &str = "fastcp 2026 wire 1: secret of the digests of pages";

/// 256 random bits that client and server share. The client draws them for each session and sends
/// them to the server through ssh. They are never written, shown or used as a key directly.
pub struct Secret([u8; 32]);

impl Secret {
    /// A new random secret.
    ///
    /// # Panics
    /// If the system has no random bytes: nothing safe could be done then.
    pub fn random() -> Secret {
        let mut secret = Secret([0; 32]);
        fill(&mut secret.0);
        secret
    }

    /// Random bytes that are not secret: a session's name.
    pub fn session() -> [u8; 16] {
        let mut name = [0; 16];
        fill(&mut name);
        name
    }

    /// Copies the secret from `bytes` and wipes them.
    pub fn take(bytes: &mut [u8; 32]) -> Secret {
        let secret = Secret(*bytes);
        bytes.zeroize();
        secret
    }

    pub(super) fn copy(&self) -> Secret {
        Secret(self.0)
    }

    /// The secret itself, to send it to the server. The caller wipes its copy.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Fills `bytes` from the kernel. The generator of aws-lc first gathers its own entropy, which
/// takes 20 ms of a processor in each process.
fn fill<const LEN: usize>(bytes: &mut [u8; LEN]) {
    const { assert!(LEN <= 256, "getrandom fills up to 256 bytes at once") };
    let filled = rustix::rand::getrandom(bytes, GetRandomFlags::empty());
    assert_eq!(filled, Ok(LEN), "the system has a random number generator");
}

/// The purpose of a [`mac`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The first bytes of a connection, from the end that dialled.
    StreamOpening,
    /// The listener's answer to them.
    StreamAnswer,
}

impl Purpose {
    fn context(self) -> &'static str {
        match self {
            Purpose::StreamOpening => "fastcp 2026 wire 1: mac of a stream's opening",
            Purpose::StreamAnswer => "fastcp 2026 wire 1: mac of the answer to a stream's opening",
        }
    }
}

/// A code that proves knowledge of the secret, and that `bytes` come from an end that knows it.
pub fn mac(secret: &Secret, purpose: Purpose, bytes: &[u8]) -> [u8; 32] {
    *hash(secret, purpose, bytes).as_bytes()
}

/// True if `mac` is correct. A wrong one takes as long to check as the correct one.
#[must_use]
pub fn verify_mac(secret: &Secret, purpose: Purpose, bytes: &[u8], mac: &[u8; 32]) -> bool {
    // `blake3::Hash` compares in constant time.
    hash(secret, purpose, bytes) == *mac
}

fn hash(secret: &Secret, purpose: Purpose, bytes: &[u8]) -> blake3::Hash {
    let mut key = blake3::derive_key(purpose.context(), &secret.0);
    let hash = blake3::keyed_hash(&key, bytes);
    key.zeroize();
    hash
}

/// The secret of the short digests of pages. It reveals nothing about any key, and is not wiped: it
/// only keeps others from preparing two pages with one digest.
pub fn page_secret<const LEN: usize>(secret: &Secret) -> [u8; LEN] {
    let key = blake3::derive_key(PAGE_SECRET, &secret.0);
    let mut bytes = [0; LEN];
    blake3::Hasher::new_keyed(&key)
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// The direction of a frame. Each direction has separate keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    ToServer = 0,
    ToClient = 1,
}

/// The key of one direction and epoch; wiped when dropped.
pub(super) enum SealKey {
    None,
    /// aws-lc wipes its own copy.
    Aead(LessSafeKey),
    Tag(TagKey),
}

pub(super) struct TagKey(pub(super) [u8; 32]);

impl Drop for TagKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl SealKey {
    pub(super) fn derive(
        secret: &Secret,
        direction: Direction,
        suite: Suite,
        epoch: u32,
    ) -> SealKey {
        match suite {
            Suite::None => SealKey::None,
            Suite::Aes128Gcm => aead(&AES_128_GCM, secret, direction, suite, epoch),
            Suite::ChaCha20Poly1305 => aead(&CHACHA20_POLY1305, secret, direction, suite, epoch),
            Suite::Tag => SealKey::Tag(TagKey(material(TAG_KEY, secret, direction, suite, epoch))),
        }
    }
}

fn aead(
    algorithm: &'static Algorithm,
    secret: &Secret,
    direction: Direction,
    suite: Suite,
    epoch: u32,
) -> SealKey {
    let mut bytes = material(AEAD_KEY, secret, direction, suite, epoch);
    let key = UnboundKey::new(algorithm, &bytes[..algorithm.key_len()]);
    bytes.zeroize();
    SealKey::Aead(LessSafeKey::new(
        key.expect("as long as the algorithm's key"),
    ))
}

fn material(
    context: &str,
    secret: &Secret,
    direction: Direction,
    suite: Suite,
    epoch: u32,
) -> [u8; 32] {
    let mut input = [0; 32 + 1 + 1 + 4];
    input[..32].copy_from_slice(&secret.0);
    input[32] = direction as u8;
    input[33] = suite.number();
    input[34..].copy_from_slice(&epoch.to_le_bytes());
    let key = blake3::derive_key(context, &input);
    input.zeroize();
    key
}

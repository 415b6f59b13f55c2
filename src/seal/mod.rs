//! Encryption and authentication of frames: only processes that know the session's [`Secret`] can
//! make or read a sealed frame.
//!
//! ssh has authenticated both ends and carries the secret, so there is no key exchange: the keys
//! for each direction and epoch are derived from the secret. A frame is sealed whole, with its
//! header as associated data and with a number that is never reused with its key. The chunk's
//! number cannot serve for this: a retransmitted chunk may be encoded differently, and two
//! plaintexts under one number reveal both. A key is replaced after 64 GiB, long before its limit
//! (AES-GCM: 2^38.5 bytes, RFC 8446 5.5).
//!
//! The suite [`Tag`](Suite::Tag) authenticates without encryption. [`None`](Suite::None) does
//! nothing; it is for connections that ssh itself protects.
//!
//! Replays are not rejected here: a replayed frame is a chunk that is already done.

mod keys;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use aws_lc_rs::aead::{Aad, Nonce};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use keys::SealKey;
pub use keys::{Direction, Purpose, Secret, mac, page_secret, verify_mac};
use parking_lot::RwLock;

use crate::algorithms::{Suite, TAG_LEN};

/// Bytes in an epoch, as a power of two.
const EPOCH_BITS: u32 = 36;

/// An epoch more than this far beyond the highest one seen is rejected without deriving its key.
/// The bytes in flight, in buffers and sockets, are far less than an epoch.
const EPOCHS_AHEAD: u32 = 2;

/// Keys kept: of the current epoch, its neighbours, and an epoch that is being retransmitted.
const KEYS_KEPT: usize = 4;

/// The right to seal one payload. Both numbers go into the frame's header. It is not `Clone`,
/// since it may be used only once.
#[derive(Debug, PartialEq, Eq)]
pub struct SealTicket {
    pub epoch: u32,
    pub counter: u64,
}

/// The frame was not sealed with this session's key, or was changed on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("received data failed authentication with this session's key")]
pub struct Unsealed;

/// Seals everything that this process sends in one direction of a session; all workers share it.
pub struct Sealer {
    keys: Keys,
    epoch_bits: u32,
    /// Not restarted with an epoch, so that no number is used twice even if epochs are wrong.
    counter: AtomicU64,
    bytes: AtomicU64,
}

impl Sealer {
    pub fn new(secret: &Secret, direction: Direction, suite: Suite) -> Sealer {
        Sealer::with_epochs(secret, direction, suite, EPOCH_BITS)
    }

    /// With epochs of 2^`epoch_bits` bytes.
    pub fn with_epochs(
        secret: &Secret,
        direction: Direction,
        suite: Suite,
        epoch_bits: u32,
    ) -> Sealer {
        Sealer {
            keys: Keys::new(secret, direction, suite),
            epoch_bits,
            counter: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    pub fn suite(&self) -> Suite {
        self.keys.suite
    }

    /// A ticket for one payload of `len` bytes. A sealed frame may be sent again unchanged; a
    /// chunk that is encoded again needs a new ticket.
    pub fn reserve(&self, len: usize) -> SealTicket {
        let before = self.bytes.fetch_add(len as u64, Relaxed);
        SealTicket {
            epoch: u32::try_from(before >> self.epoch_bits).unwrap_or(u32::MAX),
            counter: self.counter.fetch_add(1, Relaxed),
        }
    }

    /// Seals `payload` in place together with `header`, and returns the tag. Only the first
    /// [`tag_len`](Suite::tag_len) bytes of the tag count.
    pub fn seal(&self, ticket: SealTicket, header: &[u8], payload: &mut [u8]) -> [u8; TAG_LEN] {
        let SealTicket { epoch, counter } = ticket;
        let (key, kept) = self.keys.get(epoch);
        if !kept {
            self.keys.keep(epoch, &key);
        }
        match &*key {
            SealKey::None => [0; TAG_LEN],
            SealKey::Tag(key) => keyed_tag(&key.0, counter, header, payload),
            SealKey::Aead(key) => {
                let nonce = self.keys.nonce(counter);
                let tag = key
                    .seal_in_place_separate_tag(nonce, Aad::from(header), payload)
                    .expect("fails only beyond 2^36 bytes");
                tag.as_ref()
                    .try_into()
                    .expect("both suites' tags have 16 bytes")
            }
        }
    }
}

/// Opens everything that this process receives from one direction of a session; all workers share
/// it.
pub struct Opener {
    keys: Keys,
    /// The highest epoch of any opened frame.
    highest: AtomicU32,
}

impl Opener {
    pub fn new(secret: &Secret, direction: Direction, suite: Suite) -> Opener {
        Opener {
            keys: Keys::new(secret, direction, suite),
            highest: AtomicU32::new(0),
        }
    }

    pub fn suite(&self) -> Suite {
        self.keys.suite
    }

    /// Opens `payload` in place.
    ///
    /// # Errors
    /// If the payload, `header`, the tag or one of the numbers differs from those that were
    /// sealed. The payload is then unusable.
    pub fn open(
        &self,
        epoch: u32,
        counter: u64,
        header: &[u8],
        payload: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Unsealed> {
        if epoch > self.highest.load(Relaxed).saturating_add(EPOCHS_AHEAD) {
            return Err(Unsealed);
        }
        let (key, kept) = self.keys.get(epoch);
        match &*key {
            SealKey::None => return Ok(()),
            SealKey::Tag(key) => {
                let right = keyed_tag(&key.0, counter, header, payload);
                verify_slices_are_equal(&right, tag).map_err(|_| Unsealed)?;
            }
            SealKey::Aead(key) => {
                let nonce = self.keys.nonce(counter);
                key.open_in_place_separate_tag(nonce, Aad::from(header), tag, payload)
                    .map_err(|_| Unsealed)?;
            }
        }
        // Only after the frame proved to come from the peer: a stranger must not evict keys or
        // advance epochs.
        if !kept {
            self.keys.keep(epoch, &key);
            self.highest.fetch_max(epoch, Relaxed);
        }
        Ok(())
    }
}

/// The payload comes first, so that BLAKE3 reads it in long aligned pieces. The rest cannot be
/// mistaken for part of the payload, since its last 16 bytes have a fixed meaning.
fn keyed_tag(key: &[u8; 32], counter: u64, header: &[u8], payload: &[u8]) -> [u8; TAG_LEN] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(payload).update(header);
    hasher.update(&(header.len() as u64).to_le_bytes());
    hasher.update(&counter.to_le_bytes());
    let mut tag = [0; TAG_LEN];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_LEN]);
    tag
}

/// The keys of one direction, for a few epochs at once.
struct Keys {
    secret: Secret,
    direction: Direction,
    suite: Suite,
    /// Every worker reads it for every frame; it is written once an epoch.
    kept: RwLock<Vec<(u32, Arc<SealKey>)>>,
}

impl Keys {
    fn new(secret: &Secret, direction: Direction, suite: Suite) -> Keys {
        Keys {
            secret: secret.copy(),
            direction,
            suite,
            kept: RwLock::new(Vec::with_capacity(KEYS_KEPT)),
        }
    }

    /// The key, and whether it was kept.
    fn get(&self, epoch: u32) -> (Arc<SealKey>, bool) {
        let kept = self.kept.read();
        if let Some((_, key)) = kept.iter().find(|(of, _)| *of == epoch) {
            return (key.clone(), true);
        }
        drop(kept);
        let key = SealKey::derive(&self.secret, self.direction, self.suite, epoch);
        (Arc::new(key), false)
    }

    /// Keeps a key for the next frame of its epoch, and drops the oldest if there are too many.
    fn keep(&self, epoch: u32, key: &Arc<SealKey>) {
        let mut kept = self.kept.write();
        if kept.iter().any(|(of, _)| *of == epoch) {
            return;
        }
        if kept.len() == KEYS_KEPT {
            let oldest = (0..kept.len()).min_by_key(|&n| kept[n].0);
            kept.swap_remove(oldest.expect("there are some"));
        }
        kept.push((epoch, key.clone()));
    }

    /// 4 bytes for the direction, 8 for the counter.
    fn nonce(&self, counter: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[0] = self.direction as u8;
        nonce[4..].copy_from_slice(&counter.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

#[cfg(test)]
mod tests;

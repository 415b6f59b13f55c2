//! Frames that must open, and frames that must not.

use std::collections::HashSet;

use Direction::{ToClient, ToServer};
use proptest::prelude::*;

use super::*;

const SEALING: [Suite; 3] = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305, Suite::Tag];
const HEADER: [u8; 64] = [5; 64];

fn pair(suite: Suite, epoch_bits: u32) -> (Sealer, Opener) {
    let secret = Secret::random();
    let sealer = Sealer::with_epochs(&secret, ToServer, suite, epoch_bits);
    (sealer, Opener::new(&secret, ToServer, suite))
}

/// Epoch, counter, payload and tag.
type Sealed = (u32, u64, Vec<u8>, [u8; TAG_LEN]);

fn seal(sealer: &Sealer, text: &[u8]) -> Sealed {
    let ticket = sealer.reserve(text.len());
    let (epoch, counter) = (ticket.epoch, ticket.counter);
    let mut payload = text.to_vec();
    let tag = sealer.seal(ticket, &HEADER, &mut payload);
    (epoch, counter, payload, tag)
}

fn open(opener: &Opener, sealed: &Sealed) -> Result<Vec<u8>, Unsealed> {
    let (epoch, counter, mut payload, tag) = sealed.clone();
    opener.open(epoch, counter, &HEADER, &mut payload, &tag)?;
    Ok(payload)
}

#[test]
fn what_was_sealed_opens_and_only_tags_leave_it_readable() {
    for suite in SEALING.into_iter().chain([Suite::None]) {
        let (sealer, opener) = pair(suite, EPOCH_BITS);
        for text in [&b"a row of a table"[..], b""] {
            let sealed = seal(&sealer, text);
            let readable = matches!(suite, Suite::Tag | Suite::None) || text.is_empty();
            assert_eq!(sealed.2 == text, readable);
            assert_eq!(open(&opener, &sealed).unwrap(), text);
            assert_eq!(
                open(&opener, &sealed).unwrap(),
                text,
                "it may be sent again"
            );
        }
    }
}

#[test]
fn any_flipped_bit_is_refused() {
    for suite in SEALING {
        let (sealer, opener) = pair(suite, EPOCH_BITS);
        let (epoch, counter, payload, tag) = seal(&sealer, b"123456789");
        let parts = HEADER.len() + payload.len() + TAG_LEN;
        for bit in 0..parts * 8 + 64 {
            let mut bytes = [&HEADER[..], &payload, &tag, &counter.to_le_bytes()].concat();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (header, rest) = bytes.split_at_mut(HEADER.len());
            let (payload, rest) = rest.split_at_mut(payload.len());
            let (tag, counter) = rest.split_at(TAG_LEN);
            let counter = u64::from_le_bytes(counter.try_into().unwrap());
            let opened = opener.open(epoch, counter, header, payload, tag.try_into().unwrap());
            assert_eq!(opened, Err(Unsealed), "{suite:?}, bit {bit}");
        }
    }
}

#[test]
fn a_frame_opens_only_with_its_own_direction_suite_epoch_and_secret() {
    for suite in SEALING {
        let secret = Secret::random();
        let sealer = Sealer::new(&secret, ToServer, suite);
        let sealed = seal(&sealer, b"text");
        let (epoch, counter, payload, tag) = sealed.clone();
        for other in SEALING.into_iter().filter(|other| *other != suite) {
            assert!(open(&Opener::new(&secret, ToServer, other), &sealed).is_err());
        }
        assert!(open(&Opener::new(&secret, ToClient, suite), &sealed).is_err());
        assert!(open(&Opener::new(&Secret::random(), ToServer, suite), &sealed).is_err());
        let opener = Opener::new(&secret, ToServer, suite);
        assert!(open(&opener, &(epoch + 1, counter, payload, tag)).is_err());
        assert!(open(&opener, &sealed).is_ok());
    }
}

#[test]
fn keys_change_with_the_epoch_and_old_frames_still_open() {
    for suite in SEALING {
        let (sealer, opener) = pair(suite, 10);
        let frames: Vec<_> = (0..40).map(|_| seal(&sealer, &[1; 300])).collect();
        assert_eq!(
            (frames[0].0, frames[3].0, frames[4].0, frames[39].0),
            (0, 0, 1, 11)
        );
        for frame in &frames {
            assert_eq!(open(&opener, frame), Ok(vec![1; 300]));
        }
        assert_eq!(
            open(&opener, &frames[0]),
            Ok(vec![1; 300]),
            "one from the first epoch"
        );
        assert!(opener.keys.kept.read().len() <= KEYS_KEPT);
        assert!(sealer.keys.kept.read().len() <= KEYS_KEPT);
    }
}

#[test]
fn a_stranger_neither_moves_the_epoch_on_nor_pushes_keys_out() {
    let (sealer, opener) = pair(Suite::Aes128Gcm, 10);
    let good: Vec<_> = (0..40).map(|_| seal(&sealer, &[1; 300])).collect();
    for epoch in (0..20).chain([u32::MAX]) {
        let forged = (epoch, 0, vec![0; 100], [0; TAG_LEN]);
        assert_eq!(open(&opener, &forged), Err(Unsealed));
    }
    assert!(opener.keys.kept.read().is_empty());
    assert_eq!(
        open(&opener, &good[39]),
        Err(Unsealed),
        "epoch 11 comes out of nowhere"
    );
    assert!(open(&opener, &good[0]).is_ok());
}

#[test]
fn no_number_is_used_twice_across_threads() {
    let (sealer, _) = pair(Suite::Aes128Gcm, 16);
    let tickets: Vec<SealTicket> = std::thread::scope(|scope| {
        let take = || {
            (0..5000)
                .map(|n| sealer.reserve(n % 100))
                .collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let counters: HashSet<u64> = tickets.iter().map(|ticket| ticket.counter).collect();
    assert_eq!(counters.len(), 20_000);
    let bytes = 4 * 50 * (99 * 100 / 2);
    assert_eq!(
        tickets.iter().map(|ticket| ticket.epoch).max(),
        Some(bytes >> 16)
    );
}

#[test]
fn a_mac_is_good_for_its_bytes_and_purpose_alone() {
    let secret = Secret::random();
    let made = mac(&secret, Purpose::StreamOpening, b"stream 3");
    assert!(verify_mac(
        &secret,
        Purpose::StreamOpening,
        b"stream 3",
        &made
    ));
    assert!(!verify_mac(
        &secret,
        Purpose::StreamOpening,
        b"stream 4",
        &made
    ));
    assert!(!verify_mac(
        &secret,
        Purpose::StreamAnswer,
        b"stream 3",
        &made
    ));
    assert!(!verify_mac(
        &Secret::random(),
        Purpose::StreamOpening,
        b"stream 3",
        &made
    ));
}

#[test]
fn derived_keys_are_those_of_wire_version_1() {
    let secret = Secret::take(&mut [1; 32]);
    let sealed = SEALING.map(|suite| {
        let sealer = Sealer::with_epochs(&secret, ToClient, suite, 2);
        seal(&sealer, b"first");
        let (epoch, counter, payload, tag) = seal(&sealer, b"second");
        assert_eq!((epoch, counter), (1, 1));
        blake3::hash(&[payload, tag.to_vec()].concat()).to_hex()[..16].to_owned()
    });
    assert_eq!(
        sealed,
        ["f65ba96c077ad038", "eeee70c6155d5d30", "c897a8e0f4316f55"]
    );
    let opening = mac(&secret, Purpose::StreamOpening, b"stream 3");
    assert_eq!(
        blake3::Hash::from(opening).to_hex()[..16],
        *"7a9bf5fd7d24a264"
    );
    assert_eq!(
        blake3::hash(&page_secret::<192>(&secret)).to_hex()[..16],
        *"0570b87810ae8f33"
    );
}

#[test]
fn a_secret_is_not_shown_and_not_left_behind() {
    let mut bytes = [0xAB; 32];
    let secret = Secret::take(&mut bytes);
    assert_eq!(bytes, [0; 32]);
    assert_eq!(secret.expose(), &[0xAB; 32]);
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    assert_ne!(Secret::random().expose(), Secret::random().expose());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn payloads_of_any_length_come_back(text in prop::collection::vec(any::<u8>(), 0..5000)) {
        for suite in SEALING {
            let (sealer, opener) = pair(suite, EPOCH_BITS);
            prop_assert_eq!(open(&opener, &seal(&sealer, &text)).unwrap(), text.clone());
        }
    }
}

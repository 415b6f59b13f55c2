//! The header byte by byte, each error, and that no header beyond the limits is accepted.

use super::*;
use proptest::prelude::*;

const LIMITS: FrameLimits = FrameLimits {
    chunk_size: 1 << 20,
    frame_max: (1 << 20) + (64 << 10) + 32,
    pack_max: (1 << 20) + (64 << 10) - 16,
    range_max: 1 << 20,
};

fn header() -> FrameHeader {
    FrameHeader {
        kind: ChunkKind::Range,
        codec: Codec::Zstd,
        suite: Suite::Aes128Gcm,
        epoch: 0x0809_0A0B,
        counter: 0x1011_1213_1415_1617,
        chunk: 0x1819_1A1B_1C1D_1E1F,
        entry: 0x2021_2223_2425_2627,
        offset: 0x2829_2A2B_2C20_0000,
        raw_len: 0x0003_3233,
        wire_len: 0x0003_3132,
    }
}

#[test]
fn a_large_pack_is_one_where_it_is_expected_and_short_on_the_wire() {
    let pack = |raw_len: u32, codec: Codec, wire_len: u32| {
        let header = FrameHeader {
            kind: ChunkKind::Pack,
            codec,
            entry: 0,
            offset: 0,
            raw_len,
            wire_len,
            ..header()
        };
        header.to_bytes()
    };
    let large = LIMITS.with_large();
    let longest = LARGE_PACK as u32 * (1 << 20) + (64 << 10) - 16;
    let bytes = pack(longest, Codec::Zstd, LIMITS.frame_max);
    assert!(FrameHeader::parse(&bytes, &large).is_ok());
    let fault = |bytes: &[u8; HEADER_LEN], limits| FrameHeader::parse(bytes, limits).unwrap_err();
    let is_long = |fault| matches!(fault, BadFrame::RawLength { .. });
    assert!(is_long(fault(&bytes, &LIMITS)));
    assert!(is_long(fault(&pack(longest + 1, Codec::Zstd, 100), &large)));
    let is_wide = |fault| matches!(fault, BadFrame::WireLength { .. });
    assert!(is_wide(fault(
        &pack(longest, Codec::Zstd, LIMITS.frame_max + 1),
        &large
    )));
    assert!(is_wide(fault(
        &pack(longest, Codec::None, longest + 48),
        &large
    )));
}

#[test]
fn the_header_of_version_1_byte_by_byte() {
    let bytes = [
        "01010201 00000000 0b0a0908 00000000 1716151413121110 1f1e1d1c1b1a1918",
        "2726252423222120 0000202c2b2a2928 33320300 32310300 0000000000000000",
    ];
    let written = header().to_bytes();
    let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, bytes.concat().replace(' ', ""));
    assert_eq!(FrameHeader::parse(&written, &LIMITS), Ok(header()));
    assert_eq!(FrameLimits::new(1 << 20), LIMITS);
}

#[test]
fn each_fault_has_its_name() {
    fn parse(change: impl Fn(&mut [u8; HEADER_LEN])) -> Result<FrameHeader, BadFrame> {
        let mut bytes = header().to_bytes();
        change(&mut bytes);
        FrameHeader::parse(&bytes, &LIMITS)
    }
    let (kind, raw_len) = (ChunkKind::Range, header().raw_len);
    assert_eq!(parse(|b| b[0] = 2), Err(BadFrame::Version(2)));
    assert_eq!(parse(|b| b[1] = 10), Err(BadFrame::Kind(10)));
    assert_eq!(parse(|b| b[2] = 5), Err(BadFrame::Codec(5)));
    assert_eq!(parse(|b| b[3] = 4), Err(BadFrame::Suite(4)));
    assert_eq!(parse(|b| b[6] = 1), Err(BadFrame::Flags(0x1_0000)));
    assert_eq!(parse(|b| b[12] = 1), Err(BadFrame::Dictionary(1)));
    let entry = 0;
    let fault = Err(BadFrame::Entry { kind, entry });
    assert_eq!(parse(|b| b[32..40].fill(0)), fault);
    let offset = header().offset + 1;
    assert_eq!(parse(|b| b[40] = 1).map(|header| header.offset), Ok(offset));
    for never_sent in [3, 5, 6] {
        assert_eq!(
            parse(|b| b[1] = never_sent),
            Err(BadFrame::Kind(never_sent))
        );
    }
    // A range of 5,000 bytes has two blocks of at least 2 KiB, each with an anchor of 10 bytes.
    let anchors = |codec: Codec, bytes: u32| {
        let wire_len = 48 + bytes;
        parse(|b| {
            (b[1], b[2]) = (9, codec.number());
            b[48..52].copy_from_slice(&5000u32.to_le_bytes());
            b[52..56].copy_from_slice(&wire_len.to_le_bytes());
        })
        .map_err(|fault| matches!(fault, BadFrame::WireLength { .. }))
        .map(|header| header.encoded_len())
    };
    assert_eq!(anchors(Codec::None, 20), Ok(20));
    for (codec, bytes) in [(Codec::None, 0), (Codec::None, 21), (Codec::Zstd, 20)] {
        assert_eq!(anchors(codec, bytes), Err(true), "{bytes}");
    }
    for raw_len in [0, (1 << 20) + 1, u32::MAX] {
        let fault = Err(BadFrame::RawLength { kind, raw_len });
        assert_eq!(
            parse(|b| b[48..52].copy_from_slice(&raw_len.to_le_bytes())),
            fault
        );
    }
    // Shorter than digest and tag; no encoded byte; compressed to the raw length.
    for wire_len in [0, 47, 48, raw_len + 48, LIMITS.frame_max + 1, u32::MAX] {
        let fault = Err(BadFrame::WireLength {
            kind,
            raw_len,
            wire_len,
        });
        assert_eq!(
            parse(|b| b[52..56].copy_from_slice(&wire_len.to_le_bytes())),
            fault
        );
    }
    assert!(
        parse(|b| b[56..].fill(0xFF)).is_ok(),
        "reserved is not looked at"
    );
    assert!(parse(|b| b[4..6].fill(0xFF)).is_ok(), "flags to ignore");
}

#[test]
fn a_range_ends_before_the_last_number() {
    let mut last = header();
    last.offset = u64::MAX - ((1 << 20) - 1);
    (last.raw_len, last.wire_len) = ((1 << 20) - 1, 100);
    assert_eq!(FrameHeader::parse(&last.to_bytes(), &LIMITS), Ok(last));
    last.raw_len = 1 << 20;
    let (kind, offset) = (last.kind, last.offset);
    let fault = Err(BadFrame::Offset { kind, offset });
    assert_eq!(FrameHeader::parse(&last.to_bytes(), &LIMITS), fault);
}

/// Raw and encoded lengths, many of them invalid.
fn lengths() -> impl Strategy<Value = u32> {
    prop_oneof![
        0u32..200,
        (1u32 << 20) - 20..(1 << 20) + 100,
        LIMITS.frame_max - 100..LIMITS.frame_max + 100,
        any::<u32>(),
    ]
}

prop_compose! {
    fn headers()(
        kind in prop::sample::select(&KINDS[..]), codec in 0u8..4, suite in 0u8..4, epoch: u32,
        counter: u64, chunk: u64, entry in prop_oneof![Just(0), any::<u64>()],
        slot in 0u64..1 << 44, raw_len in lengths(), wire_len in lengths(),
    ) -> FrameHeader {
        FrameHeader {
            kind: kind.0,
            codec: Codec::from_number(codec).unwrap(),
            suite: Suite::from_number(suite).unwrap(),
            epoch, counter, chunk, entry,
            offset: if entry == 0 { 0 } else { slot << 20 },
            raw_len, wire_len,
        }
    }
}

fn assert_within_limits(header: &FrameHeader) {
    assert!(header.wire_len <= LIMITS.frame_max);
    let tail = header.encoded_len() + header.suite.tag_len();
    assert!(tail <= (1 << 20) + TAILROOM, "a buffer has room for it");
    assert_eq!(DIGEST_LEN + tail, header.wire_len as usize);
    match header.kind {
        ChunkKind::Zeros | ChunkKind::Digest => {
            assert!(header.raw_len <= ZEROS_MAX && header.encoded_len() == 0);
        }
        ChunkKind::Anchors => assert!(header.encoded_len() <= anchors::most(1 << 20)),
        ChunkKind::Range | ChunkKind::Pack | ChunkKind::Patch => {
            assert!(header.raw_len as usize <= (1 << 20) + TAILROOM - TAG_LEN);
        }
    }
    assert!(
        header
            .offset
            .checked_add(u64::from(header.raw_len))
            .is_some()
    );
    assert!(header.kind != ChunkKind::Pack || header.offset == 0);
    if header.codec == Codec::None && header.kind == ChunkKind::Range {
        assert_eq!(header.encoded_len(), header.raw_len as usize);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_header_of_ours_comes_back(mut header in headers()) {
        let encoded = header.encoded_len();
        if let Ok(parsed) = FrameHeader::parse(&header.to_bytes(), &LIMITS) {
            prop_assert_eq!(parsed, header);
        }
        // The same header, made valid.
        header.kind = ChunkKind::Range;
        header.entry |= 1;
        header.raw_len = header.raw_len % (1 << 20) + 1;
        if header.raw_len == 1 {
            header.codec = Codec::None;
        }
        let place = header.place();
        let encoded = match header.codec {
            Codec::None => header.raw_len as usize,
            _ => 1 + encoded % (header.raw_len as usize - 1),
        };
        let made = FrameHeader::of(&place, header.codec, encoded, header.suite);
        prop_assert_eq!(made.encoded_len(), encoded);
        prop_assert_eq!(made.place(), place);
        prop_assert_eq!(FrameHeader::parse(&made.to_bytes(), &LIMITS), Ok(made));
    }

    #[test]
    fn no_bytes_parse_to_something_beyond_the_limits(
        header in headers(), noise in prop::collection::vec((0usize..64, any::<u8>()), 0..4)
    ) {
        let mut bytes = header.to_bytes();
        for (at, byte) in noise {
            bytes[at] = byte;
        }
        if let Ok(header) = FrameHeader::parse(&bytes, &LIMITS) {
            assert_within_limits(&header);
        }
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::array::uniform32(any::<[u8; 2]>()), ours: bool) {
        if ours {
            bytes[0] = [VERSION, 1 + bytes[0][1] % 9];
        }
        let bytes: [u8; HEADER_LEN] = bytes.concat().try_into().unwrap();
        if let Ok(header) = FrameHeader::parse(&bytes, &LIMITS) {
            assert_within_limits(&header);
        }
    }
}

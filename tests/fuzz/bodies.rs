//! Inputs that a peer sends or a user types, in any form. No input may panic, hang or exceed its
//! memory bound, and accepted input keeps the parser's promises.
//!
//! One function for each target. cargo-fuzz runs them (`cargo +nightly fuzz run --fuzz-dir
//! tests/fuzz TARGET`). Every `cargo test` runs them over the stored inputs in `corpus/TARGET/`.
#![allow(dead_code)]

#[path = "journal.rs"]
mod recorded;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use fastcp::algorithms::{Codec, Compress, Suite};
use fastcp::chunk::pack::{Pack, PackWriter, TableForm};
use fastcp::chunk::{Buffer, Chunk, ChunkKind, ChunkPlace, EncodedChunk, Pool};
use fastcp::codec::{Decoder, Encoder};
use fastcp::control::Incoming;
use fastcp::manifest::{Entry, EntryKind, NAME_MAX, Name};
use fastcp::seal::{Direction, Opener, Secret};
use fastcp::source::{Lookup, operand_path, pattern};
use fastcp::transport::connection::recv;
use fastcp::transport::connection::stats::ConnectionStats;
use fastcp::wire::frame::FrameLimits;
use fastcp::wire::greeting::Greeting;
use fastcp::wire::hello::Hello;
use fastcp::wire::message::{HEADER_LEN, MESSAGE_MAX, Message, parse_header};
use fastcp::{cli, digest, source, units};

pub(super) use recorded::journal;

/// Small, so that a run is quick and inputs reach every bound.
const CHUNK: usize = 4096;

/// Runs a target on one input.
pub(super) type Body = fn(&[u8]);

/// The functions by the names of their targets.
pub(super) const TARGETS: &[(&str, Body)] = &[
    ("frames", frames),
    ("codecs", codecs),
    ("packs", packs),
    ("hello", hello),
    ("control", control),
    ("operands", operands),
    ("patterns", patterns),
    ("journal", journal),
];

/// A data connection: reads, opens, decodes and verifies every frame, as a receiver does.
pub(super) fn frames(data: &[u8]) {
    let Some((&suite, bytes)) = data.split_first() else {
        return;
    };
    let suite = Suite::from_number(suite % 4).expect("there are four");
    let opener = Opener::new(&Secret::take(&mut [7; 32]), Direction::ToServer, suite);
    let limits = FrameLimits::new(CHUNK as u32);
    let pool = Pool::new(2, CHUNK);
    let mut decoder = Decoder::new(CHUNK);
    now(async {
        let _ = recv(
            bytes,
            &limits,
            &pool,
            &ConnectionStats::default(),
            |frame| {
                let header = *frame.header();
                assert!(header.wire_len <= limits.frame_max);
                assert!(header.raw_len <= limits.pack_max || header.kind == ChunkKind::Zeros);
                if let Ok(encoded) = frame.open(&opener) {
                    verified(encoded, &mut decoder);
                }
                true
            },
        )
        .await;
    });
    assert_eq!(pool.free(), 2, "a buffer is lost");
}

fn verified(encoded: EncodedChunk, decoder: &mut Decoder) {
    let (place, digest) = (encoded.place, encoded.digest);
    let Ok(chunk) = decoder.decode(encoded) else {
        return;
    };
    let is_range = place.kind == ChunkKind::Range;
    let verified = match place.kind {
        ChunkKind::Pack => chunk.verify_pack(digest),
        _ => chunk.verify(digest, place.offset == 0),
    };
    if let Ok(verified) = verified
        && is_range
    {
        let right = digest::of_range(verified.data(), place.offset, place.offset == 0);
        assert_eq!(verified.digest(), right);
    }
}

/// Bytes that claim to be compressed decode to exactly the announced length, or not at all. Encoded
/// bytes decode to the original.
pub(super) fn codecs(data: &[u8]) {
    let Some((&[codec, low, high], bytes)) = data.split_first_chunk() else {
        return;
    };
    let bytes = &bytes[..bytes.len().min(CHUNK)];
    let place = ChunkPlace {
        kind: ChunkKind::Range,
        chunk: 0,
        entry: 1,
        offset: 0,
        raw_len: u32::from(u16::from_le_bytes([low, high])),
    };
    let mut decoder = Decoder::new(CHUNK);
    let encoded = EncodedChunk {
        place,
        digest: [0; 32],
        codec,
        buffer: buffer(bytes),
    };
    if let Ok(chunk) = decoder.decode(encoded) {
        assert_eq!(chunk.buffer.len(), place.raw_len as usize);
    }
    let place = ChunkPlace {
        raw_len: bytes.len() as u32,
        ..place
    };
    let compress = [
        Compress::None,
        Compress::Lz4,
        Compress::Zstd(i32::from(low % 4)),
        Compress::Gzip(1),
        Compress::Lzma(1),
    ][usize::from(codec % 5)];
    let chunk = Chunk {
        place,
        buffer: buffer(bytes),
    };
    let encoded = Encoder::new(CHUNK).encode(chunk, compress, [0; 32]);
    assert!(Codec::from_number(encoded.codec).is_some());
    let back = decoder.decode(encoded).expect("what we encoded decodes");
    assert_eq!(back.buffer.data(), bytes);
}

/// The input as a pack, with the digest of its table. Then a pack that is made from the input, in
/// which verification must notice every changed bit.
pub(super) fn packs(data: &[u8]) {
    let bytes = &data[..data.len().min(CHUNK)];
    if let Some((rest, len)) = bytes.split_last_chunk::<4>()
        && let Some(start) = rest.len().checked_sub(u32::from_le_bytes(*len) as usize)
        && let Ok(verified) = pack(bytes).verify_pack(*blake3::hash(&rest[start..]).as_bytes())
    {
        let files = Pack::parse(&verified).expect("it was verified");
        for (entry, content) in files {
            assert_eq!(entry.size, content.len() as u64);
            sound(&entry);
        }
    }
    made_pack(bytes);
}

fn made_pack(bytes: &[u8]) {
    let Some((&[cut, at, bit], bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let mut buffer = Buffer::loose(CHUNK);
    let form = match at % 2 {
        0 => TableForm::Records,
        _ => TableForm::Columns,
    };
    let mut writer = PackWriter::new(&mut buffer, form);
    let mut files = Vec::new();
    for content in bytes.chunks(usize::from(cut).max(1)).take(20) {
        let entry = small_file(files.len() as u64 + 1, content);
        let Some(room) = writer.room(&entry) else {
            break;
        };
        room.copy_from_slice(content);
        writer.push(entry);
        files.push(content);
    }
    let (len, digest) = writer.finish();
    assert_eq!(buffer.len(), len as usize);
    let whole = buffer.data().to_vec();
    let verified = pack(&whole).verify_pack(digest).ok().expect("it is whole");
    let found: Vec<_> = Pack::parse(&verified).expect("it is a pack").collect();
    assert!(found.iter().map(|(_, content)| *content).eq(files));
    let mut bent = whole;
    let at = (usize::from(at) << 4) % bent.len();
    bent[at] ^= 1 << (bit % 8);
    // The digest does not cover the length of the table, but a wrong length selects other bytes for
    // it.
    assert!(pack(&bent).verify_pack(digest).is_err(), "byte {at} bent");
}

fn pack(bytes: &[u8]) -> Chunk {
    let place = ChunkPlace {
        kind: ChunkKind::Pack,
        chunk: 0,
        entry: 0,
        offset: 0,
        raw_len: bytes.len() as u32,
    };
    Chunk {
        place,
        buffer: buffer(bytes),
    }
}

/// The server's first line, after its magic, or the first line of a far side without a server.
pub(super) fn hello(data: &[u8]) {
    let _ = Greeting::parse(data);
    let _ = now(Incoming::new(data).first(Duration::from_secs(1)));
    if let Ok(hello) = Hello::parse(data) {
        let line = hello.to_line();
        assert_eq!(line.last(), Some(&b'\n'));
        let mut incoming = Incoming::new(&line[..]);
        let again = now(incoming.hello(Duration::from_secs(1)));
        assert_eq!(again.expect("our own line").to_line(), line);
    }
}

/// Control: the output of a login shell, a hello, and any number of messages.
pub(super) fn control(data: &[u8]) {
    now(async {
        let mut incoming = Incoming::new(data);
        if incoming.hello(Duration::from_secs(1)).await.is_ok() {
            while let Ok(message) = incoming.next().await {
                heard(message);
            }
        }
        let mut incoming = Incoming::new(data);
        while let Ok(message) = incoming.next().await {
            heard(message);
        }
    });
}

/// A decoded message can be encoded again and keeps its meaning.
fn heard(message: Message) {
    let mut said = Vec::new();
    message.encode(&mut said);
    let header = said[..HEADER_LEN].try_into().expect("its length");
    if let Ok((number, len)) = parse_header(header) {
        assert_eq!(len as usize, said.len() - HEADER_LEN);
        let again = Message::decode(number, &said[HEADER_LEN..]).expect("our own words");
        let mut twice = Vec::new();
        again.expect("a known number").encode(&mut twice);
        assert_eq!(said, twice);
    }
    // The memory of a message is a bounded multiple of its bytes.
    assert!(message.weight() <= 64 * MESSAGE_MAX as usize);
    match message {
        Message::Entries(entries) => entries.iter().for_each(sound),
        Message::Ask(entries) => entries.iter().for_each(sound),
        Message::Fault(fault) => {
            let error = fault.into_error();
            assert!(!error.to_string().contains(|c: char| c.is_control()));
            assert_ne!(error.kind.exit_code(), 0);
        }
        _ => {}
    }
}

/// Asserts that the entry's name is no path.
fn sound(entry: &Entry) {
    let name = entry.name.as_bytes();
    assert!(!name.is_empty() && name.len() <= NAME_MAX);
    assert!(name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0));
}

/// Operands as a user types them, and names that a server may answer to them.
pub(super) fn operands(data: &[u8]) {
    if let Ok(operand) = cli::operand::parse(OsString::from_vec(data.to_vec()))
        && let Some(host) = &operand.host
    {
        for word in [Some(&host.name), host.user.as_ref()].into_iter().flatten() {
            assert!(!word.is_empty() && !word.starts_with('-'));
            assert!(!word.contains(|c: char| c.is_control()));
        }
    }
    let text = String::from_utf8_lossy(data);
    let _ = units::parse_size(&text);
    assert!(!units::printable(data).contains(|c: char| c.is_control()));
    assert!(!units::harmless(&text).contains(|c: char| c.is_control() && c != '\n'));

    let mut parts = data.splitn(2, |byte| *byte == 0);
    let typed = parts.next().unwrap_or_default();
    if let Ok(name) = Name::try_from(parts.next().unwrap_or(b"a").to_vec()) {
        operand_path::may_be_named(typed, &name);
        pattern::component_matches(typed, name.as_bytes());
    }
}

/// Expands patterns in a directory of three names. Patterns that lead out of it are skipped.
pub(super) fn patterns(typed: &[u8]) {
    thread_local! {
        static DIR: tempfile::TempDir = {
            let dir = tempfile::tempdir().expect("a directory");
            std::fs::write(dir.path().join("a"), "a").expect("a file");
            std::fs::write(dir.path().join("b[1].txt"), "b").expect("a file");
            std::fs::create_dir(dir.path().join("d")).expect("a directory");
            dir
        };
    }
    if typed.starts_with(b"/") || typed.starts_with(b"~") || typed.contains(&b'.') {
        return;
    }
    DIR.with(|dir| {
        let lookup = Lookup {
            confine: None,
            base: dir.path().to_owned(),
            remote: true,
            scp: false,
        };
        let (named, errors) = source::expand(typed, &lookup, true, &Default::default());
        assert!(named.len() <= 4 && errors.len() <= 4);
        for error in errors {
            assert!(!error.to_string().contains(|c: char| c.is_control()));
        }
        let place = pattern::PatternRoot {
            base: dir.path(),
            confine: None,
        };
        let matches = pattern::expand(&place, typed);
        assert!(
            matches
                .paths
                .iter()
                .all(|found| found.path.as_os_str().as_bytes().len() < 5000)
        );
    });
}

fn buffer(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::loose(CHUNK);
    buffer.room()[..bytes.len()].copy_from_slice(bytes);
    buffer.set_len(bytes.len());
    buffer
}

fn small_file(id: u64, content: &[u8]) -> Entry {
    let name = Name::try_from(id.to_string().into_bytes()).expect("a name");
    Entry {
        mode: 0o644,
        size: content.len() as u64,
        allocated: content.len() as u64,
        dev: 1,
        ino: id,
        ..Entry::new(id, 0, name, EntryKind::File)
    }
}

/// Runs a future to its end on this thread. It may not wait for another thread.
fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime on this thread")
        .block_on(future)
}

//! A peer that a test plays by hand: it knows the protocol and its keys, and sends the messages
//! and frames that the test chooses.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fastcp::algorithms::Suite;
use fastcp::chunk::pack::{PackWriter, TableForm};
use fastcp::chunk::patch::PageHasher;
use fastcp::chunk::{Buffer, ChunkKind, ChunkPlace, EncodedChunk};
use fastcp::digest::{self, Digest};
use fastcp::manifest::{Entry, EntryId, EntryKind, Name, Root, Timestamp};
use fastcp::seal::{Direction, Sealer, Secret, page_secret};
use fastcp::session::host;
use fastcp::transport::connection::handshake::{DialRole, Keyring};
use fastcp::transport::frames::SealedChunk;
use fastcp::wire::hello::{Hello, MAGIC};
use fastcp::wire::message::{ByteRange, HEADER_LEN, Message, Open, Role, parse_header};

use super::run::Done;

/// Control, message by message or byte by byte. A failed write is ignored: the other end has
/// gone, and its exit code tells why.
pub(crate) struct Control {
    from: File,
    to: File,
}

impl Control {
    pub(crate) fn new(from: impl Into<OwnedFd>, to: impl Into<OwnedFd>) -> Control {
        Control {
            from: File::from(from.into()),
            to: File::from(to.into()),
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.to.write_all(bytes).ok();
    }

    pub(crate) fn say(&mut self, message: Message) {
        self.bytes(&encode(&message));
    }

    /// Sends `message`; false once nobody reads.
    pub(crate) fn is_heard(&mut self, message: &Message) -> bool {
        self.to.write_all(&encode(message)).is_ok()
    }

    pub(crate) fn say_hello(&mut self) {
        self.say_hello_as(&host::hello());
    }

    pub(crate) fn say_hello_as(&mut self, hello: &Hello) {
        self.bytes(&hello.to_line());
    }

    /// Reads up to the end of the other end's hello.
    pub(crate) fn hear_hello(&mut self) -> Option<Hello> {
        let mut said = Vec::new();
        while !said.ends_with(b"\n") || !contains(&said, MAGIC) {
            let mut byte = [0];
            self.from.read_exact(&mut byte).ok()?;
            said.push(byte[0]);
        }
        let at = said.windows(MAGIC.len()).position(|part| part == MAGIC)?;
        Hello::parse(&said[at + MAGIC.len()..said.len() - 1]).ok()
    }

    /// The next message, None at the end.
    pub(crate) fn hear(&mut self) -> Option<Message> {
        let mut header = [0; HEADER_LEN];
        self.from.read_exact(&mut header).ok()?;
        let (number, len) = parse_header(header).expect("the end under test is honest");
        let mut body = vec![0; len as usize];
        self.from.read_exact(&mut body).ok()?;
        let message = Message::decode(number, &body).expect("the end under test is honest");
        Some(message.expect("of a type that there is"))
    }

    /// The next message for which `wanted` is true; None at the end.
    pub(crate) fn hear_until(
        &mut self,
        mut wanted: impl FnMut(&Message) -> bool,
    ) -> Option<Message> {
        loop {
            let message = self.hear()?;
            if wanted(&message) {
                return Some(message);
            }
        }
    }

    /// Closes the sending half: the other end finds the connection closed.
    pub(crate) fn hang_up(&mut self) {
        drop(self.take_writer());
    }

    /// Reads messages until the other end has closed.
    pub(crate) fn hear_out(&mut self) {
        while self.hear().is_some() {}
    }

    /// The same for bytes that need not be messages.
    pub(crate) fn hear_out_raw(&mut self) {
        std::io::copy(&mut self.from, &mut std::io::sink()).ok();
    }

    /// The reading half and the writing half.
    pub(crate) fn split(self) -> (File, File) {
        (self.from, self.to)
    }

    /// The writing half, for the caller to write to. Later messages of this `Control` go to
    /// /dev/null.
    pub(crate) fn take_writer(&mut self) -> File {
        let null = File::options().write(true).open("/dev/null");
        std::mem::replace(&mut self.to, null.expect("open /dev/null"))
    }

    /// Closes the reading half and gives the writing half.
    pub(crate) fn deafen(self) -> File {
        self.to
    }
}

pub(crate) fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

/// `message` with bytes that an honest end cannot send: the encoded name `from`, with its length,
/// becomes `to`.
pub(crate) fn with_name(message: &Message, from: &str, to: &[u8]) -> Vec<u8> {
    let mut bytes = encode(message);
    replace_name(&mut bytes, from, to);
    let len = (bytes.len() - HEADER_LEN) as u32;
    bytes[2..HEADER_LEN].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Replaces a name with its length prefix. Both lengths are below 16384.
pub(crate) fn replace_name(bytes: &mut Vec<u8>, from: &str, to: &[u8]) {
    let written = |text: &[u8]| {
        let mut out = match text.len() {
            len @ 0..128 => vec![len as u8],
            len => vec![len as u8 | 0x80, (len >> 7) as u8],
        };
        out.extend_from_slice(text);
        out
    };
    let from = written(from.as_bytes());
    let at = bytes.windows(from.len()).position(|part| part == from);
    let at = at.expect("the name is in the message");
    bytes.splice(at..at + from.len(), written(to));
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A message of type `number` with any body; `len` may be wrong.
pub(crate) fn raw(number: u16, len: u32, body: &[u8]) -> Vec<u8> {
    [&number.to_le_bytes()[..], &len.to_le_bytes(), body].concat()
}

pub(crate) fn name(text: &str) -> Name {
    Name::try_from(text.as_bytes().to_vec()).expect("a name")
}

pub(crate) fn entry(
    id: EntryId,
    parent: EntryId,
    named: &str,
    kind: EntryKind,
    size: u64,
) -> Entry {
    let time = Timestamp {
        s: 1_000_000_000,
        ns: 0,
    };
    Entry {
        mode: if kind == EntryKind::Directory {
            0o755
        } else {
            0o644
        },
        size,
        allocated: size,
        mtime: time,
        atime: time,
        ctime: time,
        dev: 1,
        ino: id,
        ..Entry::new(id, parent, name(named), kind)
    }
}

pub(crate) fn directory(id: EntryId, parent: EntryId, named: &str) -> Entry {
    entry(id, parent, named, EntryKind::Directory, 0)
}

pub(crate) fn file(id: EntryId, parent: EntryId, named: &str, size: u64) -> Entry {
    entry(id, parent, named, EntryKind::File, size)
}

pub(crate) fn symlink(id: EntryId, parent: EntryId, named: &str, text: impl AsRef<OsStr>) -> Entry {
    let text = text.as_ref().as_encoded_bytes().to_vec();
    entry(id, parent, named, EntryKind::Symlink(text), 0)
}

/// The root for operand 0.
pub(crate) fn root(id: EntryId, named: &str, is_directory: bool) -> Root {
    Root {
        id,
        operand: 0,
        name: name(named),
        is_directory,
        contents: false,
        dev: 1,
        ino: id,
    }
}

pub(crate) fn span(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

/// The keys and the chunk size of a session, and frames made with them.
pub(crate) struct Keys {
    pub sealer: Sealer,
    pub keyring: Arc<Keyring>,
    pub page_hasher: PageHasher,
    pub chunk_size: usize,
    next_chunk: u64,
}

impl Keys {
    pub(crate) fn new(open: &Open, mut secret: [u8; 32], direction: Direction) -> Keys {
        let secret = Secret::take(&mut secret);
        let suite = Suite::from_number(open.suite).expect("a suite that there is");
        let role = match open.role {
            Role::Sender { .. } | Role::Producer { .. } | Role::Verifier { .. } => {
                DialRole::Receives
            }
            Role::Receiver { .. }
            | Role::Consumer { .. }
            | Role::Probe { .. }
            | Role::Cleaner { .. } => DialRole::Sends,
        };
        Keys {
            sealer: Sealer::new(&secret, direction, suite),
            page_hasher: PageHasher::new(page_secret(&secret)),
            keyring: Arc::new(Keyring::new(secret, open.session, role)),
            chunk_size: open.chunk_size as usize,
            next_chunk: 0,
        }
    }

    /// A chunk of a file under the next chunk number.
    pub(crate) fn place(&mut self, entry: EntryId, offset: u64, raw_len: usize) -> ChunkPlace {
        self.next_chunk += 1;
        ChunkPlace {
            kind: ChunkKind::Range,
            chunk: self.next_chunk - 1,
            entry,
            offset,
            raw_len: raw_len as u32,
        }
    }

    /// A pack of files with these contents.
    pub(crate) fn pack(&mut self, members: &[(Entry, &[u8])]) -> Vec<u8> {
        let mut buffer = Buffer::loose(self.chunk_size);
        let mut writer = PackWriter::new(&mut buffer, TableForm::Records);
        for (entry, content) in members {
            let room = writer.room(entry).expect("it fits");
            room.copy_from_slice(content);
            writer.push(entry.clone());
        }
        writer.finish();
        let place = ChunkPlace {
            kind: ChunkKind::Pack,
            ..self.place(0, 0, buffer.len())
        };
        // Contents, table, the table's length.
        let contents: usize = members.iter().map(|(_, content)| content.len()).sum();
        let table = &buffer.data()[contents..buffer.len() - 4];
        let digest = blake3::hash(table).into();
        self.frame(place, digest, buffer.data())
    }

    /// A frame as a stream carries it, uncompressed.
    pub(crate) fn frame(&self, place: ChunkPlace, digest: Digest, data: &[u8]) -> Vec<u8> {
        let mut buffer = Buffer::loose(self.chunk_size);
        buffer.room()[..data.len()].copy_from_slice(data);
        buffer.set_len(data.len());
        let encoded = EncodedChunk {
            place,
            digest,
            codec: 0,
            buffer,
        };
        SealedChunk::seal(encoded, &self.sealer).bytes().to_vec()
    }

    /// The honest frame of one chunk of a file of `size` bytes.
    pub(crate) fn piece(&mut self, entry: EntryId, offset: u64, size: u64, data: &[u8]) -> Vec<u8> {
        let place = self.place(entry, offset, data.len());
        let digest = digest::of_range(data, offset, data.len() as u64 == size);
        self.frame(place, digest, data)
    }
}

/// Checks every run against a dishonest peer: fastcp fails by itself, not by a signal, and its
/// messages are short and in readable characters.
#[track_caller]
pub(crate) fn held_out(done: &Done) -> &Done {
    done.fails();
    readable(done)
}

#[track_caller]
pub(crate) fn readable(done: &Done) -> &Done {
    let odd = |c: char| c.is_control() && c != '\n';
    assert!(!done.stderr.contains(odd), "control characters: {done}");
    assert!(done.stderr.len() < 20_000, "too much was said: {done}");
    done.never_says("panicked")
}

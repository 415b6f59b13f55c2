//! Control messages: type u16, body length u32, body (postcard), all little-endian. A type with
//! the top bit set may be skipped by an end that does not know it. Formats are append-only: a new
//! meaning is a new type, since a body says nothing of its own shape.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::codec::Compress;
use crate::digest::Digest;
use crate::error::{Error, Kind, Side};
use crate::manifest::{Entry, EntryId, EntryKind, Extension, NAME_MAX, Root, Totals};
use crate::tuner::{Remembered, Verdict};
use crate::wire::account::Account;

/// Most bytes of a body: the roots of some 100,000 operands.
pub const MESSAGE_MAX: u32 = 8 << 20;

/// Bytes before a body.
pub const HEADER_LEN: usize = 6;

/// A type that an older end may skip.
const OPTIONAL: u16 = 0x8000;

/// What both ends of a copy are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOptions {
    /// `-r`
    pub recursive: bool,
    /// `-p`: mode with set-id bits, and times.
    pub preserve: bool,
    /// `-L`: symbolic links in trees are followed.
    pub follow_links: bool,
    pub no_clobber: bool,
    pub fsync: bool,
    /// `--no-target-directory`
    pub no_target_directory: bool,
    pub compress: Compress,
    /// `--digests` was given: the digest of files with holes is needed too.
    pub digests: bool,
    /// Bytes a second that the sender may put on the wire, all streams together.
    pub rate_limit: Option<u64>,
    /// Worker threads of each process; None: its processors.
    pub threads: Option<u16>,
    /// Bytes of each process's buffer pool; None: 256 MiB, or an eighth of the machine's memory
    /// if that is less.
    pub memory: Option<u64>,
    /// `--no-resume`: what an earlier run left is thrown away.
    pub no_resume: bool,
    /// `--live`: a source may change while it is read.
    pub live: bool,
    /// `--inplace`: what stands there is written into.
    pub inplace: bool,
    /// `--force`: what another process holds open for writing is replaced all the same, and a
    /// device that is in use is written.
    pub force: bool,
    /// `--congestion`: of the sender's data sockets.
    pub congestion: Option<String>,
    /// Seconds without a word from the other end after which it is given up.
    pub timeout_s: u16,
    /// `--direct-io`: devices are read past the page cache too, and where one cannot be written past
    /// it, it is not written.
    pub direct_io: bool,
    /// `--size`: bytes that a stream has, as the user believes; how many are read of a device that
    /// never ends.
    pub size: Option<u64>,
    /// `--follow`: a source that grows is read until it has not for so many milliseconds.
    pub follow_ms: Option<u64>,
    /// `--spool`: what has come of a stream is kept when its connection is lost.
    pub spool: bool,
    /// `--nice`: idle CPU and I/O class.
    pub nice: bool,
    /// `--drop-cache`: what comes into the page cache goes out behind the copy.
    pub drop_cache: bool,
}

/// What the server is to be in this copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Sends these operands, as typed after the colon.
    Sender { operands: Vec<Vec<u8>> },
    /// Receives into this path, as typed after the colon; `sources` are as the user typed them,
    /// for messages.
    Receiver {
        path: Vec<u8>,
        sources: Vec<Vec<u8>>,
    },
    /// Sends what this command writes to its stdout.
    Producer { command: Vec<u8> },
    /// Gives what comes to this command's stdin; `source` is as the user typed it.
    Consumer { command: Vec<u8>, source: Vec<u8> },
}

impl Role {
    /// The server has the data.
    pub fn sends(&self) -> bool {
        matches!(self, Role::Sender { .. } | Role::Producer { .. })
    }
}

/// The client's first message: everything the server has to know, in one flight with what follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    pub role: Role,
    pub options: CopyOptions,
    /// 128 bits that no other session has.
    pub session: [u8; 16],
    /// The seal of the data streams, by number.
    pub suite: u8,
    /// What the user asked for; None: as many as prove to be best.
    pub streams: Option<u16>,
    /// Bytes in a chunk.
    pub chunk_size: u32,
    /// What the client knows of the way from an earlier copy.
    pub remembered: Option<Remembered>,
    /// Sessions of the same command whose connection was lost: their servers give way to this one.
    pub before: Vec<[u8; 16]>,
    /// The server is to listen for data streams.
    pub listens: bool,
    /// On one of these ports, else on an ephemeral one.
    pub ports: Option<Ports>,
    /// The other end of the copy is another server: its hello was given for the client's, its words
    /// come in [`Relay`], and data is sealed as a client seals it.
    pub between: bool,
}

/// `--ports`: from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    pub first: u16,
    /// Not below the first.
    pub last: u16,
}

/// More sessions of one command than `--retries` allows.
pub const SESSIONS_MAX: usize = 1000;

/// Comes right after `Open`, in a message of its own so that its buffer can be wiped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct SessionSecret(pub [u8; 32]);

impl std::fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionSecret(…)")
    }
}

/// Where the sender of this message takes data streams; without an address it takes none (any
/// more).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// Textual addresses, best first, at most [`ADDRESSES_MAX`].
    pub addresses: Vec<String>,
    pub port: u16,
}

/// More addresses than a host is worth trying at.
pub const ADDRESSES_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roots {
    pub roots: Vec<Root>,
    pub totals: Totals,
}

/// The receiver has found where each root lands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landed {
    /// Per root its name relative to the destination directory; empty where its contents land
    /// in that directory itself.
    pub names: Vec<Vec<u8>>,
    /// Some of it is there from an earlier run: small files are asked about before they are sent.
    pub resumes: bool,
    /// Everything leaves in order there (a pipe): nothing goes into packs, and no chunk is sent
    /// that is so many or more after the first without an acknowledgement.
    pub ordered: bool,
    /// How many those are, also for chunks of a stream that lands as a file. At least 1.
    pub window: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// Most ranges in one [`WantKind`]: all of a file that a copy left in pieces, in some 3 MB.
pub const RANGES_MAX: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WantKind {
    /// All of it.
    Fresh,
    /// None of it: it is there, or it failed.
    Skip,
    /// All but these ranges of bytes, whose merged chaining values are given, as a tree's frontier
    /// has them; of a file without a tree whole chunks with any value.
    Have(Vec<(Span, Digest)>),
    /// Its digest alone: `EntryEnd` with the root, no chunk.
    Digest,
    /// All of it, but of these ranges the digests of chunks first (frame kind `Digest`): what was
    /// there may be the same although its source is not known to be.
    Compare(Vec<Span>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    pub entry: EntryId,
    pub kind: WantKind,
}

/// What is done since the last `Ack`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Chunks whose bytes are verified and written.
    pub chunks: Vec<Span>,
    /// Entries that are in place; directories as soon as they are made.
    pub entries: Vec<Span>,
    /// Entries that failed along with their directory, of which a `Fault` tells.
    pub failed: Vec<Span>,
}

/// No more is announced of an entry: a file's content was read to its end, or a directory's
/// children were all named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryEnd {
    pub entry: EntryId,
    /// Bytes of a file, children of a directory.
    pub length: u64,
    /// The BLAKE3 of a file; None for a directory and for a file with holes that nobody asked for.
    pub root: Option<Digest>,
}

/// A fault at the sender of this message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub kind: Kind,
    pub errno: i32,
    pub side: Side,
    /// 0 where it is not of one entry.
    pub entry: EntryId,
    /// The entry's parent, since the other end may never have heard of the entry.
    pub parent: EntryId,
    /// Empty where there is none.
    pub path: Vec<u8>,
    /// At most [`TEXT_MAX`] bytes.
    pub text: String,
}

/// Bytes of a fault's text that are looked at.
const TEXT_MAX: usize = 1024;

/// Bytes of a fault's path that are looked at.
const PATH_MAX: usize = 4096;

/// Signals have numbers from 1 to this.
const SIGNAL_MAX: i32 = 64;

/// The walk is over: every entry was announced or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllSent {
    /// The last number that was given to an entry.
    pub last: EntryId,
    /// Numbers up to it that no entry has.
    pub unused: Vec<Span>,
}

/// Bytes of frames that ride on control, for when there is no stream: at most [`DATA_MAX`] each,
/// and no more than the other end has given `Credit` for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    pub bytes: Vec<u8>,
}

/// Bytes of a `Data`: what stands before a control message that is said meanwhile.
pub const DATA_MAX: usize = 64 << 10;

/// What an end has seen lately; comes every few seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub counter: u64,
    /// The streams that are up at this end.
    pub streams: Vec<StreamFacts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamFacts {
    pub stream: u16,
    pub attempt: u16,
    /// Bytes of frames that this end has parsed, or handed to its socket.
    pub bytes: u64,
    /// This end's reader waits for a buffer: it is slow, not dead.
    pub waits: bool,
}

/// What is gone by from now on: the sender tells how many streams, to whoever dials them and tells
/// the user; the client how fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tune {
    /// Streams that there should be.
    pub streams: Option<u16>,
    /// Bytes a second; 0 is no limit.
    pub rate_limit: Option<u64>,
    /// Why it changed, a line; empty where there is nothing to tell.
    pub reason: String,
}

/// What the receiver did with its time, counted from its start. Comes with acknowledgements, and
/// before the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    pub elapsed_us: u64,
    /// Of all workers together: opening, decompressing, digesting.
    pub workers_us: u64,
    /// The part of it that was decompressing.
    pub decode_us: u64,
    /// A write was under way and the workers had nothing else to do.
    pub write_us: u64,
    /// Streams' readers waited for a buffer, as a mean of all streams.
    pub waits_us: u64,
}

/// The sender's last word, for the end that the user sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// None where there was nothing to measure.
    pub verdict: Option<Verdict>,
    /// What was learnt of the way, for the next copy.
    pub remembered: Option<Remembered>,
}

/// Shares are no NaN where an end made them.
impl Eq for Conclusion {}

/// The other end's words in a copy between two remote hosts, read and checked by the client. Its
/// message is encoded as it would be alone, so that decoding one never goes deeper into it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relay {
    pub number: u16,
    pub body: Vec<u8>,
}

/// Bytes of a message that fits into a [`Relay`]: less its number and its length.
const RELAYED_MAX: usize = MESSAGE_MAX as usize - 16;

impl Relay {
    /// None for one that is too long.
    pub fn of(message: &Message) -> Option<Relay> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let body = bytes.split_off(HEADER_LEN);
        let number = u16::from_le_bytes([bytes[0], bytes[1]]);
        (body.len() <= RELAYED_MAX).then_some(Relay { number, body })
    }

    /// What was said; None for what this version may skip.
    ///
    /// # Errors
    /// Where it does not read.
    pub fn message(&self) -> Result<Option<Message>, BadMessage> {
        Message::decode(self.number, &self.body)
    }
}

macro_rules! messages {
    ($($number:expr => $name:ident($body:ty)),+ $(,)?) => {
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Message { $($name($body)),+ }

        impl Message {
            /// Appends header and body.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Message::$name(body) => put(out, $number, body)),+ }
            }

            /// Reads a body; `None` for a type that is unknown and may be skipped.
            pub fn decode(number: u16, body: &[u8]) -> Result<Option<Message>, BadMessage> {
                match number {
                    $(n if n == $number => get(n, body).map(|body| Some(Message::$name(body))),)+
                    n if n & OPTIONAL != 0 => Ok(None),
                    n => Err(BadMessage::Unknown(n)),
                }
            }
        }
    };
}

messages! {
    1 => Open(Open),
    2 => Secret(SessionSecret),
    3 => Listen(Listen),
    4 => Dial(Listen),
    5 => Roots(Roots),
    6 => Landed(Landed),
    7 => Entries(Vec<Entry>),
    8 => Want(Vec<Want>),
    9 => Digests((EntryId, Vec<Digest>)),
    10 => Ack(Ack),
    11 => Nack(Vec<u64>),
    12 => EntryEnd(Vec<EntryEnd>),
    13 => AllSent(AllSent),
    14 => Done(()),
    15 => Data(Data),
    16 => Credit(u64),
    17 => Heartbeat(Heartbeat),
    18 => Tune(Tune),
    19 => Fault(Fault),
    20 => Abort(Fault),
    21 => Relay(Relay),
    22 => Ask(Vec<Entry>),
    23 => Vanished(Fault),
    24 => Enough(()),
    25 => Busy(Busy),
    26 => Conclusion(Conclusion),
    27 => Account(Account),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadMessage {
    #[error("an unknown message of type {0}")]
    Unknown(u16),
    #[error("a message of type {0} that does not read")]
    Malformed(u16),
    #[error("a message of {0} bytes")]
    TooLong(u32),
}

/// Type and body length.
pub fn parse_header(header: [u8; HEADER_LEN]) -> Result<(u16, u32), BadMessage> {
    let [t0, t1, l0, l1, l2, l3] = header;
    let len = u32::from_le_bytes([l0, l1, l2, l3]);
    if len > MESSAGE_MAX {
        return Err(BadMessage::TooLong(len));
    }
    Ok((u16::from_le_bytes([t0, t1]), len))
}

fn put<T: Serialize>(out: &mut Vec<u8>, number: u16, body: &T) {
    let start = out.len();
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let with_body = postcard::to_extend(body, std::mem::take(out));
    *out = with_body.expect("every length here is known, and a vector grows");
    let len = (out.len() - start - HEADER_LEN) as u32;
    out[start + 2..start + HEADER_LEN].copy_from_slice(&len.to_le_bytes());
}

fn get<T: DeserializeOwned>(number: u16, body: &[u8]) -> Result<T, BadMessage> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(BadMessage::Malformed(number)),
    }
}

impl Message {
    /// About how many bytes of memory it takes, of messages that a sender says of entries.
    pub fn weight(&self) -> usize {
        let inside = match self {
            Message::Entries(entries) | Message::Ask(entries) => {
                entries.iter().map(weight_of).sum()
            }
            Message::EntryEnd(ends) => ends.len() * size_of::<EntryEnd>(),
            Message::Roots(roots) => roots.roots.len() * (size_of::<Root>() + NAME_MAX),
            Message::AllSent(all) => all.unused.len() * size_of::<Span>(),
            Message::Fault(fault) | Message::Vanished(fault) => fault.path.len() + fault.text.len(),
            _ => 0,
        };
        size_of::<Message>() + inside
    }
}

fn weight_of(entry: &Entry) -> usize {
    let text = match &entry.kind {
        EntryKind::Symlink(text) => text.len(),
        _ => 0,
    };
    let one = |extension: &Extension| size_of::<Extension>() + extension.bytes.len();
    let extensions: usize = entry.extensions.iter().map(one).sum();
    let names = entry.name.as_bytes().len() + entry.user.len() + entry.group.len();
    size_of::<Entry>() + names + text + extensions
}

impl Fault {
    pub fn of(error: &Error, entry: EntryId, parent: EntryId) -> Fault {
        use std::os::unix::ffi::OsStrExt;
        let path = error
            .path
            .as_ref()
            .map_or(Vec::new(), |p| p.as_os_str().as_bytes().to_vec());
        let text = error.message.chars().take(TEXT_MAX / 4).collect();
        Fault {
            kind: error.kind,
            errno: error.errno,
            side: error.side,
            entry,
            parent,
            path,
            text,
        }
    }

    /// As an error of this end, its text made printable and its length bounded.
    pub fn into_error(self) -> Error {
        use std::os::unix::ffi::OsStringExt;
        let text: String = self.text.chars().take(TEXT_MAX).collect();
        let mut path = self.path;
        path.truncate(PATH_MAX);
        // Nothing bigger than what is kept stays behind it.
        path.shrink_to_fit();
        let path = std::ffi::OsString::from_vec(path);
        let kind = match self.kind {
            // No signal has this number, and 128 more of it could be the exit code of a success.
            Kind::Signal(number) if !(1..=SIGNAL_MAX).contains(&number) => Kind::Lost,
            kind => kind,
        };
        Error {
            kind,
            side: self.side,
            path: (!path.is_empty()).then(|| path.into()),
            message: crate::units::harmless(&text),
            errno: self.errno,
        }
    }
}

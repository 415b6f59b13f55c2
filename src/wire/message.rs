//! Control messages: type u16, body length u32, body (postcard), all little-endian. An end skips
//! unknown types that have the top bit set. A body does not describe its own shape, so formats
//! never change: a new meaning gets a new type.

mod check;
mod differs;
mod entries;
mod fault;
mod files_done;
mod first_messages;
mod itemized;
mod leftovers;
mod limits;
mod listed;
mod mirror;
mod ranges;
mod snapshot;
mod traffic;
mod verified;
mod weight;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::first_messages::{
    ADDRESSES_MAX, Archive, CopyOptions, Listen, MapTerms, Open, Ports, Role, SESSIONS_MAX,
    SessionSecret,
};
pub use self::ranges::{ByteRange, NumberRanges};
use super::progress_report::ProgressReport;
use crate::digest::Digest;
use crate::keep::NotKept;
use crate::manifest::{Entry, EntryId, Totals};
use crate::outcome::CopyActivity;
use crate::selection::Selection;
use check::OPTIONAL;
pub use check::{ALL_RANGES_MAX, BadMessage};
pub use differs::DifferingChunk;
pub use entries::{
    Ack, AllSent, DirectorySum, EntryEnd, EntrySums, FileDigest, Missing, RANGES_MAX, RootSpace,
    RootSpaces, Roots, RootsResolved, SHORT_SUM, SUMS_MAX, SumsAnswer, SumsFound, UncountedRoots,
    Want, WantKind,
};
pub use fault::Fault;
pub use files_done::{FILES_DONE_MAX, FilesDone};
pub use itemized::{ITEMIZED_MAX, ItemizedEntries};
pub use leftovers::{LEFTOVERS_MAX, Leftover, LeftoverFate, Leftovers};
pub use limits::{MESSAGE_MAX, ROOTS_MAX, SPANS_MAX};
pub use listed::{FileNames, NamesSource, RelativeTerms};
pub use mirror::{
    ABOVE_MAX, DeletedEntries, DirectoryNames, ExtraEntries, OWN_NAMES_MAX, OWN_NAMES_WAITING,
    OwnEntry, OwnEntryIs, OwnNames, RemovedSources, SourcePlaces,
};
pub use snapshot::SnapshotReport;
pub use traffic::{Busy, Conclusion, ConnectionFacts, DATA_MAX, Data, Heartbeat, Tried, Tune};
pub use verified::{
    FoundContent, LISTED_MAX, ListedDigest, ListedDigests, VerifiedFile, VerifiedFiles,
};
pub use weight::entry_weight;

/// Bytes before a body.
pub const HEADER_LEN: usize = 6;

/// A message of the other end in a copy between two remote hosts. The client reads and checks it.
/// The inner message is encoded separately, so that decoding never recurses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relay {
    pub number: u16,
    pub body: Vec<u8>,
}

/// Most bytes of a body inside a [`Relay`], which adds a number and a length.
const RELAYED_MAX: usize = MESSAGE_MAX as usize - 16;

impl Relay {
    /// None if the message is too long.
    pub fn of(message: &Message) -> Option<Relay> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let body = bytes.split_off(HEADER_LEN);
        let number = u16::from_le_bytes([bytes[0], bytes[1]]);
        (body.len() <= RELAYED_MAX).then_some(Relay { number, body })
    }

    /// The inner message; None for an unknown type that may be skipped.
    ///
    /// # Errors
    /// If the body is malformed or the type is unknown and required.
    pub fn message(&self) -> Result<Option<Message>, BadMessage> {
        Message::decode(self.number, &self.body)
    }
}

macro_rules! messages {
    ($($number:expr => $name:ident($body:ty)),+ $(,)?) => {
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Message { $($name($body)),+ }

        impl Message {
            /// Appends header and body to `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Message::$name(body) => put(out, $number, body)),+ }
            }

            /// Decodes a body; `None` for an unknown type that may be skipped.
            pub fn decode(number: u16, body: &[u8]) -> Result<Option<Message>, BadMessage> {
                check::check(number, body)?;
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
    6 => Landed(RootsResolved),
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
    27 => Tried(Tried),
    28 => Account(ProgressReport),
    // Bytes of an earlier run's partial files that the receiver has re-read so far.
    0x801d => Checked(u64),
    30 => FileDigests(Vec<FileDigest>),
    // Sent only to a sender whose hello has the feature.
    31 => Missing(Missing),
    // Follows the secret of a client whose hello says so.
    33 => Select(Selection),
    // Follows these messages of a client whose hello says so.
    34 => Archive(Archive),
    // The receiver's key for sums of directories. Sent before `Landed` if a destination exists.
    35 => SumUp(Digest),
    36 => DirectorySums(Vec<DirectorySum>),
    37 => EntrySums(EntrySums),
    38 => Summed(SumsAnswer),
    // Names in directories, and which of the receiver's the sender does not have (`--delete`).
    39 => Names(Vec<DirectoryNames>),
    40 => OwnNames(Vec<OwnNames>),
    41 => Extra(ExtraEntries),
    42 => SourcePlaces(SourcePlaces),
    // The pages that the receiver has of a chunk whose digest it was sent. Sent only to a sender whose
    // hello has the feature.
    44 => Differs(DifferingChunk),
    // Changes at the destination, for a client whose hello asks for them.
    43 => Itemized(ItemizedEntries),
    // Entries whose copies are on disk, before they are acknowledged; and what the sender has removed
    // of them at the source (`--remove-source-files`).
    45 => Durable(NumberRanges),
    46 => SourcesRemoved(RemovedSources),
    // Follows these messages of a client whose hello says so, to a sender.
    47 => Relative(RelativeTerms),
    // The client's list of files.
    48 => FileNames(FileNames),
    // Lines of a list of digests, and what a verifier found (`--check=LIST`).
    49 => ListedDigests(ListedDigests),
    50 => VerifiedFiles(VerifiedFiles),
    // Follows these messages of a client whose hello says so: parts with separate places (`--map`).
    51 => Map(MapTerms),
    // Before `Roots`, if there are such parts.
    52 => RootSpaces(RootSpaces),
    // The roots before the totals, and the totals. Sent only to a receiver whose hello has the feature.
    53 => Uncounted(UncountedRoots),
    54 => Counted(Totals),
    // Files that copies have left, and what became of them (`--clean`).
    55 => Leftovers(Leftovers),
    // Number of FIFOs, sockets and devices that the sender skipped.
    0x801f => Special(u64),
    // Number of files with several names (hard links) that were copied as separate files.
    0x8020 => Unlinked(u64),
    // Number of entries that a receiver has not copied because of what exists there.
    0x8024 => Stayed(u64),
    // Entries that a receiver has deleted.
    0x8025 => Deleted(DeletedEntries),
    // The complete snapshot that a receiver has made.
    0x8026 => Snapshot(SnapshotReport),
    // Files that a receiver has put in place, for a client whose hello asks for them.
    0x8032 => FilesDone(FilesDone),
    // What the sending server does now, once a second, for the client's report of the copy.
    0x8033 => Activity(CopyActivity),
    // Metadata that this end could not keep.
    0x8023 => NotKept(NotKept),
    // A file that only grew, which the sender copies up to an earlier length. Sent only if the user's
    // program knows it.
    0x8030 => Grew(Fault),
    // Number of symbolic links that the sender copies as links, and how many of them lead out of
    // their tree.
    0x8031 => Symlinks((u64, u64)),
}

impl Message {
    /// Changes the faults that the user reads.
    pub fn each_fault(&mut self, mut change: impl FnMut(&mut Fault)) {
        match self {
            Message::Fault(fault)
            | Message::Abort(fault)
            | Message::Vanished(fault)
            | Message::Grew(fault) => change(fault),
            Message::VerifiedFiles(VerifiedFiles { files }) => {
                let faults = files.iter_mut().filter_map(|file| match &mut file.found {
                    FoundContent::Failed(fault) => Some(fault),
                    _ => None,
                });
                faults.for_each(change);
            }
            Message::Leftovers(Leftovers { files, .. }) => {
                let faults = files.iter_mut().filter_map(|file| match &mut file.fate {
                    LeftoverFate::Failed(fault) => Some(fault),
                    _ => None,
                });
                faults.for_each(change);
            }
            _ => {}
        }
    }
}

/// Parses type and body length.
pub fn parse_header(header: [u8; HEADER_LEN]) -> Result<(u16, u32), BadMessage> {
    let [t0, t1, l0, l1, l2, l3] = header;
    let (number, len) = (
        u16::from_le_bytes([t0, t1]),
        u32::from_le_bytes([l0, l1, l2, l3]),
    );
    if len > check::body_max(number) {
        return Err(BadMessage::TooLong(len));
    }
    Ok((number, len))
}

fn put<T: Serialize>(out: &mut Vec<u8>, number: u16, body: &T) {
    let start = out.len();
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    postcard::to_io(body, &mut *out).expect("every length here is known, and a vector grows");
    let len = (out.len() - start - HEADER_LEN) as u32;
    out[start + 2..start + HEADER_LEN].copy_from_slice(&len.to_le_bytes());
}

fn get<T: DeserializeOwned>(number: u16, body: &[u8]) -> Result<T, BadMessage> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(BadMessage::Malformed(number)),
    }
}

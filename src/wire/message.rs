//! Control messages: type u16, body length u32, body (postcard), all little-endian. A type with
//! the top bit set may be skipped by an end that does not know it. Formats are append-only: a new
//! meaning is a new type, since a body says nothing of its own shape.

mod entries;
mod fault;
mod limits;
mod opening;
mod spans;
mod traffic;
mod weight;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::{Entry, EntryId};
use crate::wire::account::Account;
pub use entries::{
    Ack, AllSent, EntryEnd, FileDigest, Landed, Missing, RANGES_MAX, Roots, Span, Want, WantKind,
};
pub use fault::Fault;
pub use limits::{ALL_RANGES_MAX, ROOTS_MAX, SPANS_MAX};
pub use opening::{
    ADDRESSES_MAX, CopyOptions, Listen, Open, Ports, Role, SESSIONS_MAX, SessionSecret,
};
pub use spans::Spans;
pub use traffic::{Busy, Conclusion, DATA_MAX, Data, Heartbeat, StreamFacts, Tried, Tune};
pub use weight::entry_weight;

/// Most bytes of a body: the roots of some 100,000 operands.
pub const MESSAGE_MAX: u32 = 8 << 20;

/// Bytes before a body.
pub const HEADER_LEN: usize = 6;

/// A type that an older end may skip.
const OPTIONAL: u16 = 0x8000;

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
                limits::check(number, body)?;
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
    27 => Tried(Tried),
    28 => Account(Account),
    // Bytes of what an earlier run left that the receiver has read again so far.
    0x801d => Checked(u64),
    30 => FileDigests(Vec<FileDigest>),
    // Only to a sender that says it knows it.
    31 => Missing(Missing),
    // FIFOs, sockets and devices in the source's trees that the sender has skipped.
    0x801f => Special(u64),
    // Files whose further names (hard links) came as files of their own.
    0x8020 => Unlinked(u64),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadMessage {
    #[error("an unknown message of type {0}")]
    Unknown(u16),
    #[error("a message of type {0} that does not read")]
    Malformed(u16),
    #[error("a message of {0} bytes")]
    TooLong(u32),
    #[error("a message of type {0} with more in it than it may hold")]
    TooMany(u16),
}

/// Type and body length.
pub fn parse_header(header: [u8; HEADER_LEN]) -> Result<(u16, u32), BadMessage> {
    let [t0, t1, l0, l1, l2, l3] = header;
    let (number, len) = (
        u16::from_le_bytes([t0, t1]),
        u32::from_le_bytes([l0, l1, l2, l3]),
    );
    if len > limits::body_max(number) {
        return Err(BadMessage::TooLong(len));
    }
    Ok((number, len))
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

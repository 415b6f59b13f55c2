//! What a session begins with: the client's first words, the secret, and where streams are taken.

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::codec::Compress;
use crate::tuner::Remembered;

use super::limits::{self, ROOTS_MAX};

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
    /// `--polite`: the sender leaves the link to other traffic. The client's hello tells it, since
    /// a message of version 1 has no field for it.
    #[serde(skip)]
    pub polite: bool,
}

/// What the server is to be in this copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Sends these operands, as typed after the colon.
    Sender {
        #[serde(deserialize_with = "limits::list::<ROOTS_MAX, _, _>")]
        operands: Vec<Vec<u8>>,
    },
    /// Receives into this path, as typed after the colon; `sources` are as the user typed them,
    /// for messages.
    Receiver {
        path: Vec<u8>,
        #[serde(deserialize_with = "limits::list::<ROOTS_MAX, _, _>")]
        sources: Vec<Vec<u8>>,
    },
    /// Sends what this command writes to its stdout.
    Producer { command: Vec<u8> },
    /// Gives what comes to this command's stdin; `source` is as the user typed it.
    Consumer { command: Vec<u8>, source: Vec<u8> },
    /// Keeps nothing of what comes, which shows what the link carries; first tries how fast the
    /// place is written that this path names, unless it is empty, and says `Tried` either way.
    Probe { path: Vec<u8> },
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
    #[serde(deserialize_with = "limits::list::<SESSIONS_MAX, _, _>")]
    pub before: Vec<[u8; 16]>,
    /// The server is to listen for data streams.
    pub listens: bool,
    /// On one of these ports, else on an ephemeral one.
    pub ports: Option<Ports>,
    /// The other end of the copy is another server: its hello was given for the client's, its words
    /// come in [`Relay`](super::Relay), and data is sealed as a client seals it.
    pub between: bool,
}

/// `--ports`: from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    pub first: u16,
    /// Not below the first.
    pub last: u16,
}

/// Sessions of one command.
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

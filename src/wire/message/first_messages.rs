//! Messages that open a session: the client's request, the secret, and addresses for data
//! connections.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::algorithms::Compress;
use crate::backup::BackupPlace;
use crate::earlier::{EarlierCopies, Reuse};
use crate::file_list::RelativeCopy;
use crate::keep::{Keep, MetadataChanges, UnchangedBy, Update};
use crate::limited_list;
use crate::manifest::Totals;
use crate::mapping::{MAPS_MAX, Mapping};
use crate::mirror::Mirror;
use crate::outcome::Remembered;
use crate::selection::Selector;
use crate::snapshot::SnapshotTerms;

use super::limits::ROOTS_MAX;

/// Options of a copy, sent to both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOptions {
    /// `-r`
    pub recursive: bool,
    /// `-p`: mode with set-id bits, and times.
    pub preserve: bool,
    /// `-L`: follow symbolic links in trees.
    pub follow_links: bool,
    pub no_clobber: bool,
    pub fsync: bool,
    /// `--no-target-directory`
    pub no_target_directory: bool,
    pub compress: Compress,
    /// `--digests`: files with holes need a digest too.
    pub digests: bool,
    /// Bytes a second that the sender may send, all streams together.
    pub rate_limit: Option<u64>,
    /// Worker threads of each process; None: one for each processor.
    pub threads: Option<u16>,
    /// Bytes of each process's buffer pool; None: 256 MiB, or an eighth of the machine's memory
    /// if that is less.
    pub memory: Option<u64>,
    /// `--no-resume`: discard what an earlier run left.
    pub no_resume: bool,
    /// `--live`: a source may change while it is read.
    pub live: bool,
    /// `--inplace`: write into existing files.
    pub inplace: bool,
    /// `--force`: replace files that another process has open for writing, and write to devices
    /// that are in use.
    pub force: bool,
    /// `--congestion`: congestion control of the sender's data sockets.
    pub congestion: Option<String>,
    /// Give up after hearing nothing from the other end for this many seconds.
    pub timeout_s: u16,
    /// `--direct-io`: bypass the page cache also when reading devices. A device that cannot be
    /// written with direct I/O is not written.
    pub direct_io: bool,
    /// `--size`: the user's estimate of a pipe's size in bytes; also the number of bytes to read
    /// from an endless device.
    pub size: Option<u64>,
    /// `--follow`: read a growing source until it has not grown for this many milliseconds.
    pub follow_ms: Option<u64>,
    /// `--spool`: keep the received part of a pipe if the connection is lost.
    pub spool: bool,
    /// `--nice`: idle CPU and I/O scheduling class.
    pub nice: bool,
    /// `--drop-cache`: drop pages from the page cache once they are copied.
    pub drop_cache: bool,
    /// `--polite`: the sender yields to other traffic on the link. Sent in the client's hello,
    /// because a message of version 1 has no field for it.
    #[serde(skip)]
    pub polite: bool,
    /// `--whole-file` and `--no-whole-file`: whether existing files are compared. None: except in a
    /// copy on one machine. Sent in the hello too.
    #[serde(skip)]
    pub compares: Option<bool>,
    /// `--mkpath`: make missing directories of the destination. Sent in the hello too.
    #[serde(skip)]
    pub mkpath: bool,
    /// `--dry-run`: nothing is written. Sent in the hello too.
    #[serde(skip)]
    pub dry_run: bool,
    /// `--itemize-changes`: the user wants to know each change. Sent in the hello too.
    #[serde(skip)]
    pub itemizes: bool,
    /// The client keeps a record of files in place. Sent in the hello too.
    #[serde(skip)]
    pub reports_files: bool,
    /// `--check`: a dry run that compares contents, and writes nothing in any case. Sent in the hello.
    #[serde(skip)]
    pub check: bool,
    /// `--relative`, `--files-from`: files keep their paths below the destination. That is so is sent
    /// in the hello too, and the rest to the sender in [`Relative`](super::Message::Relative).
    #[serde(skip)]
    pub relative: Option<Arc<RelativeCopy>>,
    /// `--map`: parts of the source that go to separate places. Sent in
    /// [`Map`](super::Message::Map).
    #[serde(skip)]
    pub maps: Arc<Vec<Mapping>>,
    /// Sources on other hosts go to the same destination in other sessions. Sent in the hello.
    #[serde(skip)]
    pub is_beside: bool,
    /// `--scp`: sources, places and modes are as in scp. Sent in the hello.
    #[serde(skip)]
    pub scp: bool,
    /// The metadata to keep. Sent in [`Archive`](super::Message::Archive), except `-p`.
    #[serde(skip)]
    pub keep: Keep,
    /// Which existing files stay. Sent in the same message.
    #[serde(skip)]
    pub update: Update,
    /// Modes and owners that copies get instead. Sent in the same message.
    #[serde(skip)]
    pub changes: Arc<MetadataChanges>,
    /// The entries to delete. Sent in the same message.
    #[serde(skip)]
    pub mirror: Mirror,
    /// `--backup`: where old versions go. Sent in the same message.
    #[serde(skip)]
    pub backup: Option<BackupPlace>,
    /// `--link-dest`, `--copy-dest`: directories with earlier copies. Sent in the same message.
    #[serde(skip)]
    pub earlier: Option<EarlierCopies>,
    /// `--snapshot`: the copy goes into a new directory with the date as its name. Sent in the same
    /// message.
    #[serde(skip)]
    pub snapshot: Option<SnapshotTerms>,
    /// Which entries are copied. Sent in [`Select`](super::Message::Select), for the same reason.
    #[serde(skip)]
    pub selector: Arc<Selector>,
}

impl CopyOptions {
    /// The totals of the sources, after a count. Files that are followed have no end, and the user
    /// may know the length of a pipe.
    pub fn totals(&self, counted: Totals) -> Totals {
        let mut totals = counted;
        if self.follow_ms.is_some() {
            totals.streams = totals.files;
        }
        if totals.streams > 0 && totals.files == 1 {
            totals.bytes = self.size.unwrap_or(totals.bytes);
        }
        totals
    }

    /// Checks that the other options go with `--snapshot`. Both ends check this: nothing in a snapshot
    /// may be written in place, because older snapshots share the files.
    ///
    /// # Errors
    /// The sentence for the user.
    pub fn check_snapshot(&self) -> Result<(), &'static str> {
        let Some(terms) = &self.snapshot else {
            return Ok(());
        };
        let update = &self.update;
        let leaves = update.leaves_out();
        let others = [
            (
                self.check,
                "--check compares with one copy: name a snapshot, as in DEST/latest/, and leave out \
                 --snapshot",
            ),
            (
                update.unchanged_by != UnchangedBy::SizeAndTime || !self.keep.times,
                "--snapshot finds unchanged files by size and time: add -a, and leave out --checksum, \
                 --size-only, -I and --no-times",
            ),
            (
                !self.recursive && self.relative.is_none(),
                "--snapshot copies whole directories: add -a",
            ),
            (
                self.earlier.is_some(),
                "--snapshot finds the last snapshot itself: leave out --link-dest and --copy-dest",
            ),
            (
                self.inplace,
                "--snapshot writes nothing in place, since snapshots share files: leave out --inplace",
            ),
            (
                self.no_clobber || leaves,
                "--snapshot makes a complete copy: leave out --no-clobber, --update, --existing and \
                 --ignore-existing",
            ),
            (
                self.mirror.deletes,
                "a snapshot has only the entries of the source: --delete is not needed, leave it out",
            ),
            (
                self.backup.is_some(),
                "older snapshots keep the old versions: leave out --backup",
            ),
            (
                self.mirror.removes_sources,
                "--snapshot and --remove-source-files cannot be combined: the next snapshot would have \
                 none of the files",
            ),
            (
                self.digests,
                "--snapshot and --digests cannot be combined: unchanged files are not read",
            ),
            (
                self.no_target_directory,
                "--snapshot makes its own directory: leave out --no-target-directory",
            ),
            (
                terms.keep.is_some_and(|keep| !keep.is_possible()),
                "--keep: not a possible number of snapshots",
            ),
        ];
        match others.iter().find(|(is_given, _)| *is_given) {
            Some((_, why)) => Err(why),
            None => Ok(()),
        }
    }

    /// True if this dry run compares the contents of files (`--checksum`), for which digests travel
    /// over data connections.
    pub fn dry_run_reads(&self) -> bool {
        self.dry_run && self.update.unchanged_by == UnchangedBy::Content
    }

    /// True if existing entries that are in the way of others may be removed. A check only finds them.
    pub fn makes_room(&self) -> bool {
        let stays = self.no_clobber || self.update.new_only || self.check;
        self.mirror.deletes && !stays
    }

    /// How unchanged files of earlier copies are used, if there may be any.
    pub fn reuse(&self) -> Option<Reuse> {
        let earlier = self.earlier.as_ref().map(|earlier| earlier.reuse);
        earlier.or(self.snapshot.map(|_| Reuse::Link))
    }

    /// True if a copy to another host compares existing files.
    pub fn compares_remotely(&self) -> bool {
        self.compares != Some(false)
    }

    /// True if a copy that compares existing files also finds content that has moved within them. In
    /// place, that content may be overwritten before it is needed.
    pub fn finds_moved_content(&self) -> bool {
        self.compares_remotely() && !self.inplace
    }
}

/// The server's part in this copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Sends these operands, as typed after the colon.
    Sender {
        #[serde(deserialize_with = "limited_list::deserialize::<ROOTS_MAX, _, _>")]
        operands: Vec<Vec<u8>>,
    },
    /// Receives into this path, as typed after the colon. `sources` are as the user typed them,
    /// for messages.
    Receiver {
        path: Vec<u8>,
        #[serde(deserialize_with = "limited_list::deserialize::<ROOTS_MAX, _, _>")]
        sources: Vec<Vec<u8>>,
    },
    /// Runs this command and sends its stdout.
    Producer { command: Vec<u8> },
    /// Runs this command and writes received data to its stdin. `source` is as the user typed it,
    /// for messages.
    Consumer { command: Vec<u8>, source: Vec<u8> },
    /// Discards received data, to measure the link. First measures the write speed at `path`,
    /// unless it is empty, and always answers with `Tried`.
    Probe { path: Vec<u8> },
    /// Compares files below this path with the digests of a list (`--check=LIST`).
    Verifier { path: Vec<u8> },
    /// Removes what copies have left below this directory (`--clean`); in a dry run, only finds it.
    Cleaner { path: Vec<u8> },
}

impl Role {
    /// True if the server has the data.
    pub fn sends(&self) -> bool {
        matches!(
            self,
            Role::Sender { .. } | Role::Producer { .. } | Role::Verifier { .. }
        )
    }
}

/// The client's first message. It has everything that the server needs, so the client can send
/// further messages without waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    pub role: Role,
    pub options: CopyOptions,
    /// 128 bits that are unique to this session.
    pub session: [u8; 16],
    /// Suite number of the data connections' seal.
    pub suite: u8,
    /// The number of connections that the user requested; None: the tuner chooses.
    pub streams: Option<u16>,
    /// Bytes in a chunk.
    pub chunk_size: u32,
    /// What the client remembers of this link from an earlier copy.
    pub remembered: Option<Remembered>,
    /// Sessions of the same command that lost their connection. Their servers give way to this
    /// one.
    #[serde(deserialize_with = "limited_list::deserialize::<SESSIONS_MAX, _, _>")]
    pub before: Vec<[u8; 16]>,
    /// The server listens for data connections.
    pub listens: bool,
    /// Listen on one of these ports; None: an ephemeral port.
    pub ports: Option<Ports>,
    /// The other end of the copy is another server. The client forwarded that server's hello
    /// instead of its own, forwards its messages in [`Relay`](super::Relay), and data is sealed
    /// as a client seals it.
    pub between: bool,
}

#[cfg(test)]
impl Open {
    /// What a client sends for a copy that nothing is known about.
    pub(crate) fn plain(role: Role, options: CopyOptions) -> Open {
        Open {
            role,
            options,
            session: [0; 16],
            suite: 1,
            streams: None,
            chunk_size: crate::chunk::CHUNK_SIZE as u32,
            remembered: None,
            before: Vec::new(),
            listens: true,
            ports: None,
            between: false,
        }
    }
}

/// `--ports`: an inclusive range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    pub first: u16,
    /// At least `first`.
    pub last: u16,
}

/// What a copy does beyond `-p` with metadata and existing files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    pub keep: Keep,
    pub update: Update,
    pub changes: MetadataChanges,
    pub mirror: Mirror,
    pub backup: Option<BackupPlace>,
    pub earlier: Option<EarlierCopies>,
    pub snapshot: Option<SnapshotTerms>,
}

/// Parts of the source with separate places (`--map`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapTerms {
    #[serde(deserialize_with = "limited_list::deserialize::<MAPS_MAX, _, _>")]
    pub maps: Vec<Mapping>,
}

/// Most sessions of one command.
pub const SESSIONS_MAX: usize = 1000;

/// Sent right after `Open`. Because it is a separate message, both ends can wipe its buffer.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct SessionSecret(pub [u8; 32]);

impl std::fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionSecret(…)")
    }
}

/// Where the sender of this message accepts data connections. Without an address it accepts none,
/// or no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// Textual addresses, best first, at most [`ADDRESSES_MAX`].
    pub addresses: Vec<String>,
    pub port: u16,
}

impl Listen {
    pub fn nowhere() -> Listen {
        Listen {
            addresses: Vec::new(),
            port: 0,
        }
    }

    pub fn is_nowhere(&self) -> bool {
        self.port == 0 || self.addresses.is_empty()
    }
}

/// More addresses of one host than are worth trying.
pub const ADDRESSES_MAX: usize = 8;

//! The destination of a copy as the user named it, and the sessions of this run of fastcp: the
//! current one, and earlier ones whose connection was lost.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::dest::{SinkSpec, Spec};
use crate::journal::record::Hash;
use crate::report::TellUser;

/// How the user named a root, where the destination depends on that.
#[derive(Clone, Debug)]
pub struct Typed {
    pub operand: OsString,
    pub follow_name: bool,
}

/// The destination that the user named.
#[derive(Clone, Debug)]
pub enum To {
    Path(Spec),
    /// Stdout or a command.
    Exit(SinkSpec),
}

/// The destination of a copy.
pub struct CopyDestination {
    pub to: To,
    /// Device and inode numbers mean the same at both ends.
    pub same_machine: bool,
    /// One per operand.
    pub typed: Vec<Typed>,
    /// The paths of the operands, if another host looks them up and must send nothing else. Empty if
    /// this end does not check that.
    pub asked: Vec<Vec<u8>>,
    pub sessions: Sessions,
}

/// What a receiver knows about the sessions of its command.
#[derive(Clone)]
pub struct Sessions {
    pub own: [u8; 16],
    /// Earlier sessions whose connection was lost. A server that still runs one of them, for the
    /// same owner, gives way.
    pub before: Vec<[u8; 16]>,
    /// The owner of the session; zero if the client gave none.
    pub owner: Hash,
    /// `--trust-partial`: data that is believed to be intact is not read again.
    pub trusts: bool,
    pub tell: TellUser,
    /// Counts the bytes from the other end; None if that end is in this process.
    pub heard: Option<Arc<AtomicU64>>,
}

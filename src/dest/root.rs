//! The roots of a copy at the destination: how the user named each, and where it lands.

use std::path::PathBuf;
use std::sync::Arc;

use super::earlier::{EarlierDirs, EarlierPlace};
use super::sink_spec::SinkSpec;
use super::slot::EntrySlot;
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Name, Root};
use crate::units::printable;

/// A source root and how the user named it.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub root: &'a Root,
    /// The operand as typed, for messages; empty for the root's own name.
    pub typed: &'a [u8],
    /// The user typed the root's name exactly, so a symbolic link of that name in the destination
    /// is followed. False for a name that matched a pattern, since the peer chose it, and with
    /// sources on several hosts.
    pub follow_name: bool,
}

/// Where one root lands.
#[derive(Clone)]
pub struct RootTarget {
    pub landing: Landing,
    /// Its name relative to the destination directory, for lists of digests. Empty if the root's
    /// contents land directly in the destination.
    pub listed: Vec<u8>,
    /// An entry exists there already, to be replaced or filled.
    pub existed: bool,
    /// The same place in earlier copies.
    pub earlier: EarlierPlace,
}

#[derive(Clone)]
pub enum Landing {
    /// A name to make or replace; an existing directory of that name is entered.
    Name(EntrySlot),
    /// An existing directory to fill. It may have no name (`/`, `.`).
    Directory(Arc<Dir>),
    /// A pipe, a command or a character device, which keeps nothing.
    Exit(SinkSpec),
    /// In a dry run: a name in a directory that does not exist and would be made.
    Missing(PathBuf),
}

impl Source<'_> {
    /// The name by which the user knows the source.
    pub(super) fn shown(&self) -> String {
        match self.typed {
            [] => printable(self.root.name.as_bytes()),
            typed => printable(typed),
        }
    }
}

impl RootTarget {
    /// Notes the directories of earlier copies that are like the destination directory.
    pub fn set_earlier(&mut self, dirs: &EarlierDirs) {
        self.earlier = match Name::try_from(self.listed.clone()) {
            Ok(name) => dirs.place(name),
            Err(_) if self.listed.is_empty() => dirs.place_of_all(),
            Err(_) => EarlierPlace::default(),
        };
    }
}

impl Landing {
    /// The directory that holds the name, or that is filled itself.
    pub fn dir(&self) -> Option<&Arc<Dir>> {
        match self {
            Landing::Name(slot) => Some(&slot.dir),
            Landing::Directory(dir) => Some(dir),
            Landing::Exit(_) | Landing::Missing(_) => None,
        }
    }

    /// The path, for messages.
    pub fn path(&self) -> PathBuf {
        match self {
            Landing::Name(slot) => slot.path(),
            Landing::Directory(dir) => dir.path(),
            Landing::Exit(exit) => exit.path().to_owned(),
            Landing::Missing(path) => path.clone(),
        }
    }

    /// The slot, if it is a block device that the user named.
    pub fn device(&self) -> Option<&EntrySlot> {
        match self {
            Landing::Name(slot) if slot.device.is_some() => Some(slot),
            _ => None,
        }
    }
}

impl SinkSpec {
    /// The target for the only root of a copy to this exit.
    ///
    /// # Errors
    /// `Kind::Usage` for anything but one file or one pipe.
    pub fn target(&self, roots: &[Root]) -> Result<RootTarget> {
        match roots {
            [root] if !root.is_directory => Ok(RootTarget {
                landing: Landing::Exit(self.clone()),
                // b3sum uses the same name.
                listed: b"-".to_vec(),
                existed: true,
                earlier: EarlierPlace::default(),
            }),
            _ => {
                let message = "takes one file or pipe, not a directory \
                               (for a tree: --from-command 'tar -c DIR')";
                Err(Error::new(Kind::Usage, Side::Dest, message).at(self.path()))
            }
        }
    }
}

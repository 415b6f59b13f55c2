//! scp's rules for one source: its place, given the entry at the destination.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FileType, Stat};

use super::user_path::{FoundPath, Reach, missing};
use super::{EntrySlot, SinkSpec, commit};
use crate::dest::root::{Landing, Source};
use crate::dir::Dir;
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Root, file_type};

const NO_FILE_NAME: &str = "is a directory; add the name of the file to write";
const NO_SLASH: &str = "is not a directory; leave out the slash at the end to replace it";

/// The copies for which scp's rules for the destination differ from ours, and from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScpPlaces {
    /// For several sources, scp makes a missing directory. It makes none that is typed with a slash.
    Upload,
    /// For the matches of a pattern, scp makes a missing directory.
    Download,
    /// Between two hosts, scp makes none.
    Between,
}

/// The destination as the rules see it.
pub(super) struct ExistingPlace<'a> {
    pub path: PathBuf,
    /// It was typed as a directory (`x/`, `.`, or nothing at all).
    pub means_directory: bool,
    /// It is for one source only.
    pub alone: bool,
    pub scp: Option<ScpPlaces>,
    pub reach: Reach<'a>,
}

/// Device and inode of a directory, a name in it, and a name in that directory; empty without one.
type PlaceKey<'a> = (Option<(u64, u64)>, &'a [u8], &'a [u8]);

/// A target whose directory may have to be made first.
pub(super) struct Resolved {
    pub landing: Landing,
    /// `landing` is a directory to make first; the root lands in it under its own name.
    pub within: bool,
    pub listed: Vec<u8>,
    /// Device and inode of the existing entry, and whether it is a directory.
    pub existing: Option<((u64, u64), bool)>,
}

impl ExistingPlace<'_> {
    /// The source becomes the destination; the contents of a directory land directly in it.
    pub(super) fn become_it(&self, source: &Source, found: &FoundPath) -> Result<Resolved> {
        let root = source.root;
        match found {
            FoundPath::Directory(dir) if root.is_directory => Ok(Resolved::directory(dir, vec![])),
            FoundPath::Directory(..) => Err(self.usage(NO_FILE_NAME)),
            FoundPath::Other(..) if root.is_directory => Err(self.not_a_directory(source)),
            FoundPath::Nothing(_) if !self.alone => Err(missing(&self.path)),
            FoundPath::Nothing(slot) if root.is_directory => {
                Ok(Resolved::nothing(slot.clone(), vec![]))
            }
            _ => self.as_file(found),
        }
    }

    /// The source lands in the destination if that is a directory, and becomes it otherwise.
    pub(super) fn land(&self, source: &Source, found: &FoundPath) -> Result<Resolved> {
        let root = source.root;
        match found {
            FoundPath::Directory(dir) => self.inside(source, dir),
            FoundPath::Other(..) if !self.alone || root.is_directory => {
                Err(self.not_a_directory(source))
            }
            FoundPath::Nothing(slot) if self.is_made_for(root) => Ok(Resolved {
                within: true,
                ..Resolved::nothing(slot.clone(), root.name.as_bytes().to_vec())
            }),
            FoundPath::Nothing(_) if !self.alone => Err(missing(&self.path)),
            // The directory becomes the destination, so its listed paths begin below it.
            FoundPath::Nothing(slot) if root.is_directory => {
                Ok(Resolved::nothing(slot.clone(), Vec::new()))
            }
            _ => self.as_file(found),
        }
    }

    /// True if the missing destination is a symbolic link that leads to nothing.
    pub(super) fn is_dangling(&self) -> bool {
        // A slash at the end would follow the link.
        let path = self.path.components().as_path();
        path.symlink_metadata().is_ok()
    }

    /// True if no directory is made where a dangling link leads to. Only in an upload scp makes one,
    /// since its server resolves the path.
    pub(super) fn makes_no_targets(&self) -> bool {
        self.scp.is_some_and(|places| places != ScpPlaces::Upload)
    }

    /// True if the missing destination is made as a directory that the source lands in.
    fn is_made_for(&self, root: &Root) -> bool {
        match self.scp {
            Some(places) => !self.alone && places != ScpPlaces::Between,
            None => root.is_directory && self.means_directory,
        }
    }

    /// A file becomes the destination, which may not be a directory.
    fn as_file(&self, found: &FoundPath) -> Result<Resolved> {
        match found {
            FoundPath::Nothing(_) if self.means_directory => Err(missing(&self.path)),
            FoundPath::Nothing(slot) => Ok(Resolved::nothing(
                slot.clone(),
                slot.name.as_bytes().to_vec(),
            )),
            FoundPath::Other(..) if self.means_directory => Err(self.usage(NO_SLASH)),
            FoundPath::Other(slot, stat) if file_type(stat) == FileType::BlockDevice => {
                // Listed as typed: the name of a volume's link says more than that of the device.
                let typed = self.path.file_name().unwrap_or(slot.name.as_os_str());
                let listed = typed.as_bytes().to_vec();
                let device = Some(Arc::from(self.path.as_path()));
                let slot = EntrySlot {
                    device,
                    ..slot.clone()
                };
                Ok(Resolved::existing(slot, listed, stat))
            }
            FoundPath::Other(slot, stat) => {
                let listed = slot.name.as_bytes().to_vec();
                let resolved = Resolved::existing(slot.clone(), listed, stat);
                if let Some(exit) = SinkSpec::of(slot.path(), stat) {
                    let landing = Landing::Exit(exit);
                    return Ok(Resolved {
                        landing,
                        ..resolved
                    });
                }
                commit::may_replace(slot, stat)?;
                Ok(resolved)
            }
            FoundPath::Directory(..) => Err(self.usage(NO_FILE_NAME)),
        }
    }

    /// The source lands under the root's own name in `dir`. A link that the user named is followed,
    /// but none of another user. A conflict (a directory where a file exists) fails only that entry,
    /// when it arrives.
    fn inside(&self, source: &Source, dir: &Arc<Dir>) -> Result<Resolved> {
        let root = source.root;
        let listed = root.name.as_bytes().to_vec();
        let slot = EntrySlot::new(dir.clone(), root.name.clone());
        let Some(stat) = slot.stat()? else {
            return Ok(Resolved::nothing(slot, listed));
        };
        if file_type(&stat) != FileType::Symlink || !source.follow_name {
            return Ok(Resolved::existing(slot, listed, &stat));
        }
        match self.reach.find_inside(&slot.path())? {
            // scp makes no directory through a link: this one fails when it arrives.
            FoundPath::Nothing(_) if root.is_directory && self.makes_no_targets() => {
                Ok(Resolved::existing(slot, listed, &stat))
            }
            FoundPath::Nothing(slot) => Ok(Resolved::nothing(slot, listed)),
            FoundPath::Other(slot, stat) => Ok(Resolved::existing(slot, listed, &stat)),
            FoundPath::Directory(dir) if root.is_directory => Ok(Resolved::directory(&dir, listed)),
            FoundPath::Directory(..) => {
                Err(Error::new(Kind::Usage, Side::Dest, NO_FILE_NAME).at(slot.path()))
            }
        }
    }

    /// In a dry run with `--mkpath`: the source's place in a directory that does not exist. With
    /// `whole`, that is the destination itself.
    pub(super) fn would_be_made(&self, source: &Source, whole: bool) -> Resolved {
        let root = source.root;
        let name = root.name.as_bytes().to_vec();
        match (whole, root.is_directory) {
            (true, true) if root.contents => Resolved::missing(self.path.clone(), Vec::new()),
            (true, _) => Resolved::missing(self.path.join(&root.name), name),
            (false, true) => Resolved::missing(self.path.clone(), Vec::new()),
            (false, false) => {
                let name = self
                    .path
                    .file_name()
                    .map_or(name, |name| name.as_bytes().to_vec());
                Resolved::missing(self.path.clone(), name)
            }
        }
    }

    fn usage(&self, message: &str) -> Error {
        Error::new(Kind::Usage, Side::Dest, message).at(&self.path)
    }

    fn not_a_directory(&self, source: &Source) -> Error {
        if self.alone {
            let name = source.shown();
            self.usage(&format!(
                "is not a directory, so the directory {name} cannot go there"
            ))
        } else {
            self.usage("is not a directory; several sources need one")
        }
    }
}

impl Resolved {
    fn nothing(slot: EntrySlot, listed: Vec<u8>) -> Resolved {
        Resolved {
            landing: Landing::Name(slot),
            within: false,
            listed,
            existing: None,
        }
    }

    fn existing(slot: EntrySlot, listed: Vec<u8>, stat: &Stat) -> Resolved {
        let is_directory = file_type(stat) == FileType::Directory;
        Resolved {
            existing: Some(((stat.st_dev, stat.st_ino), is_directory)),
            ..Resolved::nothing(slot, listed)
        }
    }

    fn directory(dir: &Arc<Dir>, listed: Vec<u8>) -> Resolved {
        Resolved {
            landing: Landing::Directory(dir.clone()),
            within: false,
            listed,
            existing: Some((dir.identity(), true)),
        }
    }

    /// In a dry run: a name in a directory that does not exist.
    pub(super) fn missing(path: PathBuf, listed: Vec<u8>) -> Resolved {
        Resolved {
            landing: Landing::Missing(path),
            within: false,
            listed,
            existing: None,
        }
    }

    /// A directory that an interrupted copy has made.
    pub(super) fn begun(slot: EntrySlot, dir: &Arc<Dir>) -> Resolved {
        Resolved {
            existing: Some((dir.identity(), true)),
            ..Resolved::nothing(slot, Vec::new())
        }
    }

    /// Two roots with the same key would land in one place.
    pub(super) fn key<'a>(&'a self, source: &'a Source) -> PlaceKey<'a> {
        match (&self.landing, self.existing) {
            (_, Some((identity, true))) => (Some(identity), b"", b""),
            (Landing::Name(slot), _) => {
                let within: &[u8] = match self.within {
                    true => source.root.name.as_bytes(),
                    false => b"",
                };
                (Some(slot.dir.identity()), slot.name.as_bytes(), within)
            }
            (Landing::Directory(dir), _) => (Some(dir.identity()), b"", b""),
            (Landing::Missing(path), _) => (None, path.as_os_str().as_bytes(), b""),
            (Landing::Exit(_), existing) => (existing.map(|(identity, _)| identity), b"", b""),
        }
    }

    /// The path, for messages.
    pub(super) fn path(&self, source: &Source) -> PathBuf {
        match &self.landing {
            Landing::Name(slot) if self.within => slot.path().join(&source.root.name),
            landing => landing.path(),
        }
    }
}

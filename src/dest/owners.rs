//! Owners and groups by name: the numbers that they have on this host.

use std::collections::HashMap;

use nix::errno::Errno;
use nix::unistd::{Group, User};
use parking_lot::Mutex;

use super::Rules;
use crate::dir::attributes::change;
use crate::error::{Error, Kind, Result, Side, reason_of};
use crate::keep::{MetadataChanges, NewOwner};
use crate::manifest::Entry;
use crate::units::printable;

/// Most names that are remembered; more are looked up each time.
const NAMES_MAX: usize = 10_000;

/// Longest name of a user or group that is looked up, in bytes.
const NAME_LEN_MAX: usize = 256;

/// Names of users and groups, each looked up once. None for a name that this host does not have.
#[derive(Default)]
pub struct Owners {
    users: Mutex<HashMap<Vec<u8>, Option<u32>>>,
    groups: Mutex<HashMap<Vec<u8>, Option<u32>>>,
}

impl Owners {
    /// Changes owner, group and mode as `--chown` and `--chmod` say. Then replaces the source's
    /// numbers of owner and group by the numbers that their names have here. A name that is unknown
    /// here keeps its number.
    pub fn localize(&self, entry: &mut Entry, rules: &Rules) {
        let keep = &rules.keep;
        change(entry, &rules.changes);
        if keep.numeric_ids && rules.changes.is_empty() {
            return;
        }
        // If a directory service does not answer, the number counts.
        if keep.owner && !entry.user.is_empty() {
            let user = self.user(&entry.user).ok().flatten();
            entry.uid = user.unwrap_or(entry.uid);
        }
        if keep.group && !entry.group.is_empty() {
            let group = self.group(&entry.group).ok().flatten();
            entry.gid = group.unwrap_or(entry.gid);
        }
    }

    /// # Errors
    /// `Kind::Refused` if this host does not know the user or group of `--chown`, or cannot look it up.
    pub fn check(&self, changes: &MetadataChanges) -> Result<()> {
        let check = |what: &str, name: &[u8], found: nix::Result<Option<u32>>| {
            let name = printable(name);
            let message = match found {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => format!("there is no {what} {name} (--chown)"),
                Err(cause) => {
                    let cause = reason_of(&cause.into());
                    format!("cannot look up the {what} {name} (--chown): {cause}")
                }
            };
            Err(Error::new(Kind::Refused, Side::Dest, message))
        };
        if let Some(NewOwner::Name(name)) = &changes.user {
            check("user", name, self.user(name))?;
        }
        if let Some(NewOwner::Name(name)) = &changes.group {
            check("group", name, self.group(name))?;
        }
        Ok(())
    }

    fn user(&self, name: &[u8]) -> nix::Result<Option<u32>> {
        look_up(&self.users, name, |name| {
            let user = User::from_name(name)?;
            Ok(user.map(|user| user.uid.as_raw()))
        })
    }

    fn group(&self, name: &[u8]) -> nix::Result<Option<u32>> {
        look_up(&self.groups, name, |name| {
            let group = Group::from_name(name)?;
            Ok(group.map(|group| group.gid.as_raw()))
        })
    }
}

fn look_up(
    known: &Mutex<HashMap<Vec<u8>, Option<u32>>>,
    name: &[u8],
    ask: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> nix::Result<Option<u32>> {
    // A peer could fill the memory with longer ones.
    if name.len() > NAME_LEN_MAX {
        return Ok(None);
    }
    if let Some(found) = known.lock().get(name) {
        return Ok(*found);
    }
    let text = std::str::from_utf8(name).ok();
    let text = text.filter(|text| !text.contains('\0'));
    // No lock is held, since a directory service may take its time.
    let found = match text.map_or(Ok(None), ask) {
        // What getpwnam(3) may report for an unknown name.
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => None,
        found => found?,
    };
    let mut known = known.lock();
    if known.len() < NAMES_MAX {
        known.insert(name.to_vec(), found);
    }
    Ok(found)
}

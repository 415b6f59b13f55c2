//! Metadata that a plain status does not have: extended attributes, with the access control lists
//! among them, and the names of owners and groups.

use std::collections::HashMap;

use nix::unistd::{Gid, Group, Uid, User};
use rustix::io::Errno;

use crate::keep::Keep;
use crate::manifest::{Attribute, Entry};

/// The longest list of names and the longest value on Linux, in bytes.
const LEN_MAX: usize = 64 << 10;

/// Room for most lists and values, in bytes.
const USUAL_LEN: usize = 512;

/// The attributes that are kept, sorted by name, and the first error if some could not be read. A
/// file system without attributes has none.
///
/// `list` puts the names into a buffer, and `get` the value of a name.
pub fn read(
    keep: &Keep,
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&str, &mut [u8]) -> rustix::io::Result<usize>,
) -> (Vec<Attribute>, Option<Errno>) {
    let names = match whole(list) {
        Ok(names) => names,
        Err(Errno::NOTSUP | Errno::NOSYS) => return (Vec::new(), None),
        Err(cause) => return (Vec::new(), Some(cause)),
    };
    let (mut attributes, mut failed) = (Vec::new(), None);
    for name in names.split(|&byte| byte == 0) {
        if name.is_empty() || !keep.takes(name) {
            continue;
        }
        let Ok(text) = std::str::from_utf8(name) else {
            failed = failed.or(Some(Errno::ILSEQ));
            continue;
        };
        match whole(|room| get(text, room)) {
            Ok(value) => attributes.push(Attribute {
                name: name.to_vec(),
                value,
            }),
            // It was removed since.
            Err(Errno::NODATA) => {}
            Err(cause) => failed = failed.or(Some(cause)),
        }
    }
    attributes.sort();
    (attributes, failed)
}

/// Calls `get` with a buffer that is large enough.
fn whole(get: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut usual = [0; USUAL_LEN];
    match get(&mut usual) {
        Ok(len) => Ok(usual[..len.min(USUAL_LEN)].to_vec()),
        Err(Errno::RANGE) => {
            let mut room = vec![0; LEN_MAX];
            let len = get(&mut room)?;
            room.truncate(len);
            Ok(room)
        }
        Err(cause) => Err(cause),
    }
}

/// Names of users and groups by number, each looked up once.
#[derive(Default)]
pub struct OwnerNames {
    users: HashMap<u32, Vec<u8>>,
    groups: HashMap<u32, Vec<u8>>,
}

impl OwnerNames {
    /// Names the owner and group of `entry`, if they are kept by name and this host knows the names.
    pub fn name(&mut self, entry: &mut Entry, keep: &Keep) {
        if keep.numeric_ids {
            return;
        }
        // If a directory service does not answer, the number counts.
        if keep.owner {
            let known = self.users.entry(entry.uid).or_insert_with_key(|&uid| {
                let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
                user.map_or_else(Vec::new, |user| user.name.into_bytes())
            });
            entry.user.clone_from(known);
        }
        if keep.group {
            let known = self.groups.entry(entry.gid).or_insert_with_key(|&gid| {
                let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
                group.map_or_else(Vec::new, |group| group.name.into_bytes())
            });
            entry.group.clone_from(known);
        }
    }
}

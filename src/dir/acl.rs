//! POSIX access control lists, as far as a copy needs them. The default list of a directory
//! determines the permissions of new files in it. If a list has a mask, the group bits of the mode
//! are that mask, not the permissions of the owning group.

use std::os::fd::AsFd;

use rustix::fs::{Mode, XattrFlags, fchmod, fgetxattr, fsetxattr};
use rustix::io::Errno;

pub use crate::keep::{ACCESS_LIST as ACCESS, DEFAULT_LIST as DEFAULT};

/// The first four bytes of a list: the only version that exists.
const VERSION: [u8; 4] = 2u32.to_le_bytes();

const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Room for a list of a hundred names, in bytes.
const USUAL_LEN: usize = 1 << 10;

/// The longest value of an extended attribute on Linux, in bytes.
const LEN_MAX: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<AclLine>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclLine {
    tag: u16,
    permissions: u16,
    /// The user or group, in a line that names one.
    id: u32,
}

impl Acl {
    /// Reads the list `name` of an open file. None if there is none, or lists are not supported.
    pub fn of(file: impl AsFd, name: &str) -> Option<Acl> {
        Acl::read(|room| fgetxattr(&file, name, room))
    }

    /// Parses the list that `get` puts into a buffer.
    pub fn read(get: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Option<Acl> {
        let mut room = [0; USUAL_LEN];
        match get(&mut room) {
            Ok(len) => Acl::parse(room.get(..len)?),
            Err(Errno::RANGE) => {
                let mut room = vec![0; LEN_MAX];
                let len = get(&mut room).ok()?;
                Acl::parse(room.get(..len)?)
            }
            Err(_) => None,
        }
    }

    fn parse(bytes: &[u8]) -> Option<Acl> {
        let lines = bytes.strip_prefix(&VERSION)?.as_chunks::<8>();
        let (lines, []) = lines else {
            return None;
        };
        let line = |&[t, ag, p, erms, a, b, c, d]: &[u8; 8]| AclLine {
            tag: u16::from_le_bytes([t, ag]),
            permissions: u16::from_le_bytes([p, erms]),
            id: u32::from_le_bytes([a, b, c, d]),
        };
        let acl = Acl(lines.iter().map(line).collect());
        let has = |tag| acl.permissions(tag).is_some();
        (has(USER_OBJ) && has(GROUP_OBJ) && has(OTHER)).then_some(acl)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_vec();
        for line in &self.0 {
            bytes.extend(line.tag.to_le_bytes());
            bytes.extend(line.permissions.to_le_bytes());
            bytes.extend(line.id.to_le_bytes());
        }
        bytes
    }

    /// The list of a new file made with `mode` in a directory with this default list, as in the
    /// kernel.
    pub fn masked(&self, mode: u32) -> Acl {
        let has_mask = self.permissions(MASK).is_some();
        let mut masked = self.clone();
        for line in &mut masked.0 {
            line.permissions &= match line.tag {
                USER_OBJ => (mode >> 6 & 7) as u16,
                MASK => (mode >> 3 & 7) as u16,
                GROUP_OBJ if !has_mask => (mode >> 3 & 7) as u16,
                OTHER => (mode & 7) as u16,
                _ => continue,
            };
        }
        masked
    }

    /// The list after a change of the mode to `mode`, as `chmod` does it: a mask stands for the
    /// permissions of the group.
    fn with_mode(&self, mode: u32) -> Acl {
        let has_mask = self.permissions(MASK).is_some();
        let mut changed = self.clone();
        for line in &mut changed.0 {
            line.permissions = match line.tag {
                USER_OBJ => (mode >> 6 & 7) as u16,
                MASK => (mode >> 3 & 7) as u16,
                GROUP_OBJ if !has_mask => (mode >> 3 & 7) as u16,
                OTHER => (mode & 7) as u16,
                _ => continue,
            };
        }
        changed
    }

    /// The permission bits of a file with this list.
    fn mode(&self) -> u32 {
        let of = |tag| u32::from(self.permissions(tag).unwrap_or(0));
        let group = match self.permissions(MASK) {
            Some(mask) => u32::from(mask),
            None => of(GROUP_OBJ),
        };
        of(USER_OBJ) << 6 | group << 3 | of(OTHER)
    }

    /// Sets the list on an open file, or the equivalent mode together with the bits `set_id`.
    pub fn give(&self, file: impl AsFd, set_id: u32) -> rustix::io::Result<()> {
        if self.permissions(MASK).is_some() {
            return fsetxattr(&file, ACCESS, &self.bytes(), XattrFlags::empty());
        }
        let of = |tag| u32::from(self.permissions(tag).unwrap_or(0));
        let mode = of(USER_OBJ) << 6 | of(GROUP_OBJ) << 3 | of(OTHER) | set_id;
        fchmod(&file, Mode::from_raw_mode(mode))
    }

    /// The permissions of the owning group, which differ from the group bits of the mode.
    fn owning_group(&self) -> u32 {
        let mask = self.permissions(MASK).unwrap_or(7);
        u32::from(self.permissions(GROUP_OBJ).unwrap_or(0) & mask)
    }

    fn permissions(&self, tag: u16) -> Option<u16> {
        let line = self.0.iter().find(|line| line.tag == tag)?;
        Some(line.permissions & 7)
    }
}

/// Applies `change` to the mode of a file that has the list `value`, and to the list. Returns the new
/// list, and the new mode without it. None if `value` is no list.
pub fn change_mode(
    value: &[u8],
    mode: u32,
    change: impl FnOnce(u32) -> u32,
) -> Option<(Vec<u8>, u32)> {
    let list = Acl::parse(value)?;
    let mode = change(mode & !0o777 | list.mode());
    let list = list.with_mode(mode);
    let without = mode & !0o070 | list.owning_group() << 3;
    Some((list.bytes(), without))
}

/// The mode for a copy that does not get the source's list. With a list, the group bits are its
/// mask: the most that any named user or group may do. They become the owning group's permissions.
pub fn mode_without_list(mode: u32, get: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> u32 {
    if mode & 0o070 == 0 {
        return mode;
    }
    match Acl::read(get) {
        Some(acl) => mode & !0o070 | acl.owning_group() << 3,
        None => mode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(lines: &[(u16, u16)]) -> Acl {
        let line = |&(tag, permissions)| AclLine {
            tag,
            permissions,
            id: u32::MAX,
        };
        Acl(lines.iter().map(line).collect())
    }

    #[test]
    fn a_list_is_masked_as_the_kernel_does() {
        let full = [
            (USER_OBJ, 7),
            (0x02, 6),
            (GROUP_OBJ, 5),
            (MASK, 7),
            (OTHER, 0),
        ];
        let masked = acl(&full).masked(0o644);
        let expected = [
            (USER_OBJ, 6),
            (0x02, 6),
            (GROUP_OBJ, 5),
            (MASK, 4),
            (OTHER, 0),
        ];
        assert_eq!(masked, acl(&expected));
        assert_eq!(Acl::parse(&masked.bytes()), Some(masked));
        let minimal = [(USER_OBJ, 7), (GROUP_OBJ, 5), (OTHER, 5)];
        let expected = [(USER_OBJ, 6), (GROUP_OBJ, 4), (OTHER, 4)];
        assert_eq!(acl(&minimal).masked(0o644), acl(&expected));
        assert_eq!(Acl::parse(&VERSION), None);
    }

    #[test]
    fn the_mask_does_not_become_the_groups_rights() {
        let list = acl(&[
            (USER_OBJ, 6),
            (0x02, 6),
            (GROUP_OBJ, 0),
            (MASK, 6),
            (OTHER, 0),
        ]);
        let bytes = list.bytes();
        let get = |room: &mut [u8]| {
            room[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        };
        assert_eq!(mode_without_list(0o4660, get), 0o4600);
        let none = |_: &mut [u8]| Err(Errno::NODATA);
        assert_eq!(mode_without_list(0o664, none), 0o664);
    }
}

//! The metadata that a copy keeps, and the existing files that it leaves alone.

mod changes;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

pub use changes::{BadChange, MetadataChanges, NewOwner};

/// The extended attribute with the access control list of a file or directory.
pub const ACCESS_LIST: &str = "system.posix_acl_access";

/// The extended attribute with the list that new entries of a directory inherit.
pub const DEFAULT_LIST: &str = "system.posix_acl_default";

/// The metadata that the destination gets from the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// Permission bits, and set-id bits if owner or group are the source's.
    pub perms: bool,
    /// Modification and access times, in nanoseconds.
    pub times: bool,
    /// Directories do not get their times.
    pub omit_dir_times: bool,
    pub owner: bool,
    pub group: bool,
    /// Owners and groups are numbers, and not names.
    pub numeric_ids: bool,
    /// POSIX access control lists.
    pub acls: bool,
    /// Extended attributes, as [`Keep::takes`] chooses.
    pub xattrs: bool,
    /// Block and character devices.
    pub devices: bool,
    /// FIFOs and sockets.
    pub specials: bool,
}

impl Keep {
    /// `-p`, as in scp.
    pub fn modes_and_times() -> Keep {
        Keep {
            perms: true,
            times: true,
            ..Keep::default()
        }
    }

    /// `-a`.
    pub fn everything() -> Keep {
        Keep {
            perms: true,
            times: true,
            omit_dir_times: false,
            owner: true,
            group: true,
            numeric_ids: false,
            acls: true,
            xattrs: true,
            devices: true,
            specials: true,
        }
    }

    /// True if the sender reads extended attributes, which hold the access control lists too.
    pub fn has_attributes(&self) -> bool {
        self.acls || self.xattrs
    }

    /// True if more than modes and times is kept.
    pub fn has_owners_or_attributes(&self) -> bool {
        self.owner || self.group || self.has_attributes()
    }

    /// True if the sender looks up the names of owners and groups.
    pub fn has_names(&self) -> bool {
        (self.owner || self.group) && !self.numeric_ids
    }

    /// True if the extended attribute `name` is kept. Labels and signatures of the source's security
    /// modules mean nothing on another host.
    pub fn takes(&self, name: &[u8]) -> bool {
        const OF_THIS_HOST: [&[u8]; 4] = [
            b"security.selinux",
            b"security.SMACK64",
            b"security.ima",
            b"security.evm",
        ];
        let is_of_this_host = OF_THIS_HOST.iter().any(|one| name.starts_with(one));
        if is_acl(name) {
            return self.acls;
        }
        let spaces: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];
        self.xattrs && spaces.iter().any(|space| name.starts_with(space)) && !is_of_this_host
    }
}

/// True if an access control list is stored under this name.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_LIST.as_bytes() || name == DEFAULT_LIST.as_bytes()
}

/// How a copy finds out that an existing file is unchanged, so that its content is not sent. It is
/// read only for [`Content`](UnchangedBy::Content).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnchangedBy {
    /// Every file is sent.
    #[default]
    Nothing,
    /// Size and modification time.
    SizeAndTime,
    /// `--size-only`.
    Size,
    /// `--checksum`: the BLAKE3 of its content, which is read for that.
    Content,
}

/// What happens to files that exist at the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    pub unchanged_by: UnchangedBy,
    /// `--update`: a file that is newer than the source stays.
    pub newer_stays: bool,
    /// `--existing`: nothing new is made.
    pub existing_only: bool,
    /// `--ignore-existing`: what exists stays.
    pub new_only: bool,
}

impl Update {
    /// True if whole directories can be found unchanged.
    pub fn sums_up(&self) -> bool {
        self.unchanged_by != UnchangedBy::Nothing
    }

    /// True if an entry's time is part of its sum.
    pub fn sums_have_times(&self, keep: &Keep) -> bool {
        self.unchanged_by == UnchangedBy::SizeAndTime || keep.times
    }

    /// True if the receiver may keep existing files, so that the sender asks before it sends one.
    pub fn asks(&self) -> bool {
        *self != Update::default()
    }

    /// True if entries may be left out because of what exists, or does not exist, at the destination.
    pub fn leaves_out(&self) -> bool {
        self.newer_stays || self.existing_only || self.new_only
    }
}

/// Metadata that could not be kept, in entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotKept {
    pub owners: u64,
    pub groups: u64,
    pub acls: u64,
    pub xattrs: u64,
    /// Devices that could not be made.
    pub devices: u64,
    /// FIFOs and sockets that could not be made.
    pub specials: u64,
    /// Entries whose attributes could not be read at the source.
    pub unread: u64,
    /// 1 if root could not keep them.
    pub as_root: u64,
    /// Hard links that became separate files, because the file system could not make them.
    pub links: u64,
    /// Entries without the set-user-ID or set-group-ID bit of their source.
    pub set_ids: u64,
}

impl NotKept {
    /// Adds what another copy could not keep.
    pub fn add(&mut self, other: &NotKept) {
        for (count, of_other) in [
            (&mut self.owners, other.owners),
            (&mut self.groups, other.groups),
            (&mut self.acls, other.acls),
            (&mut self.xattrs, other.xattrs),
            (&mut self.devices, other.devices),
            (&mut self.specials, other.specials),
            (&mut self.unread, other.unread),
            (&mut self.as_root, other.as_root),
            (&mut self.links, other.links),
            (&mut self.set_ids, other.set_ids),
        ] {
            *count = count.saturating_add(of_other);
        }
    }
}

/// Counts what could not be kept.
#[derive(Debug, Default)]
pub struct NotKeptCounters {
    owners: AtomicU64,
    groups: AtomicU64,
    acls: AtomicU64,
    xattrs: AtomicU64,
    devices: AtomicU64,
    specials: AtomicU64,
    unread: AtomicU64,
    as_root: AtomicU64,
    links: AtomicU64,
    set_ids: AtomicU64,
}

impl NotKeptCounters {
    pub fn add(&self, some: &NotKept) {
        // The numbers come from a peer and must not overflow a counter.
        let add = |to: &AtomicU64, count: u64| to.fetch_add(count.min(1 << 40), Relaxed);
        add(&self.owners, some.owners);
        add(&self.groups, some.groups);
        add(&self.acls, some.acls);
        add(&self.xattrs, some.xattrs);
        add(&self.devices, some.devices);
        add(&self.specials, some.specials);
        add(&self.unread, some.unread);
        add(&self.as_root, some.as_root);
        add(&self.links, some.links);
        add(&self.set_ids, some.set_ids);
    }

    pub fn get(&self) -> NotKept {
        NotKept {
            owners: self.owners.load(Relaxed),
            groups: self.groups.load(Relaxed),
            acls: self.acls.load(Relaxed),
            xattrs: self.xattrs.load(Relaxed),
            devices: self.devices.load(Relaxed),
            specials: self.specials.load(Relaxed),
            unread: self.unread.load(Relaxed),
            as_root: self.as_root.load(Relaxed),
            links: self.links.load(Relaxed),
            set_ids: self.set_ids.load(Relaxed),
        }
    }

    pub fn reset(&self) {
        for counter in [
            &self.owners,
            &self.groups,
            &self.acls,
            &self.xattrs,
            &self.devices,
            &self.specials,
            &self.unread,
            &self.as_root,
            &self.links,
            &self.set_ids,
        ] {
            counter.store(0, Relaxed);
        }
    }
}

//! Whether a lock (flock) shows the processes of other hosts. Where it does not, a file that nobody
//! has locked here may be in use on another host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{major, minor};

use super::{DEVICES_MAX, Dir, kind};

/// Where locks show nothing, a file that was written this recently counts as used. A copy touches
/// its journal every second; this allows for clocks that differ.
pub const RECENT: Duration = Duration::from_secs(3600);

const NFS: u64 = 0x6969;

/// File systems whose locks may be those of this host alone, by their statfs(2) magic numbers: FUSE
/// (such as sshfs), SMB, 9p, VirtualBox shared folders, and Lustre.
const OWN_LOCKS: [u64; 7] = [
    0x6573_5546,
    0xff53_4d42,
    0xfe53_4d42,
    0x517b,
    0x0102_1997,
    0x786f_4256,
    0x0bd0_0bd0,
];

impl Dir {
    /// True if locks of files in this directory show all processes that use its file system through
    /// a mount: those of this host, or those of all hosts.
    pub fn shares_locks(self: &Arc<Dir>) -> bool {
        static KNOWN: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());
        match kind(self) {
            None => false,
            Some(NFS) => {
                if let Some(known) = KNOWN.lock().get(&self.dev) {
                    return *known;
                }
                // Without /proc nothing shows it.
                let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
                let shares = nfs_shares_locks(&mounts, self.dev);
                let mut known = KNOWN.lock();
                if known.len() < DEVICES_MAX {
                    known.insert(self.dev, shares);
                }
                shares
            }
            Some(kind) => !OWN_LOCKS.contains(&kind),
        }
    }
}

/// True if the server keeps the locks of flock for this device. `mounts` is the table of mounts
/// (/proc/self/mountinfo), whose third column is the device.
fn nfs_shares_locks(mounts: &str, device: u64) -> bool {
    let device = format!("{}:{}", major(device), minor(device));
    let mount = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some(&device));
    let options = mount.and_then(|mount| mount.rsplit(' ').next());
    options.is_some_and(|options| {
        let mut options = options.split(',');
        options.any(|option| matches!(option, "local_lock=none" | "local_lock=posix"))
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn the_table_of_mounts_shows_whether_an_nfs_server_keeps_the_locks() {
        let mounts = "\
            22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            90 22 0:51 / /a rw shared:50 - nfs4 h:/a rw,vers=4.2,local_lock=none,addr=10.0.0.1\n\
            91 22 0:52 / /b rw - nfs h:/b rw,vers=3,nolock,local_lock=all,addr=10.0.0.1\n\
            92 22 0:53 / /c rw - nfs h:/c rw,vers=3,local_lock=flock\n";
        let shares = |minor| nfs_shares_locks(mounts, makedev(0, minor));
        assert_eq!([51, 52, 53, 54].map(shares), [true, false, false, false]);
    }
}

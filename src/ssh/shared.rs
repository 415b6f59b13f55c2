//! The users of a shared ssh connection (`ControlMaster`).
//!
//! If the user's configuration says so, the ssh of a login becomes the master of a connection, and
//! other ssh processes of the user add their sessions to it. If the master is killed, all these
//! sessions end.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// The state of a connected socket in `/proc/PID/net/unix`.
const CONNECTED: &str = "03";

/// True if other processes use the connection of ssh (process `id`): it has accepted connections to
/// its `ControlPath`. False if /proc does not show it.
pub(super) fn serves_others(id: i32) -> bool {
    let process = Path::new("/proc").join(id.to_string());
    let sockets = fs::read(process.join("net/unix")).unwrap_or_default();
    let sockets = String::from_utf8_lossy(&sockets);
    let accepted = accepted(&sockets);
    let handles = fs::read_dir(process.join("fd")).into_iter().flatten();
    let mut targets = handles.filter_map(|handle| fs::read_link(handle.ok()?.path()).ok());
    targets.any(|target| inode(&target).is_some_and(|inode| accepted.contains(inode)))
}

/// The inodes of the connected sockets that have a path. A socket that was accepted has the path of
/// its listener; one that has connected, such as ssh's to its agent, has none.
fn accepted(sockets: &str) -> HashSet<&str> {
    let fields = sockets.lines().map(str::split_whitespace);
    let found = fields.filter_map(|mut fields| {
        let state = fields.nth(5)?;
        let (inode, path) = (fields.next()?, fields.next()?);
        (state == CONNECTED && path.starts_with('/')).then_some(inode)
    });
    found.collect()
}

/// The inode of a socket from the text of its link in `/proc/PID/fd`.
fn inode(target: &Path) -> Option<&str> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn only_an_accepted_connection_counts() {
        let sockets = "\
            Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 11 /tmp/s.FEkm52IXRrLMl0fL\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 12\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 13 @name\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 14 /tmp/with space\n";
        assert_eq!(accepted(sockets), HashSet::from(["14"]));
    }

    #[test]
    fn a_process_with_an_accepted_connection_serves_others() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        let _accepted = listener.accept().unwrap();
        assert!(serves_others(std::process::id().try_into().unwrap()));
        assert!(!serves_others(0), "no such process");
    }
}

//! Keys that logins are made with.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Case;

/// Makes an ed25519 key pair at `path`.
pub fn make_key(path: &Path, passphrase: &str) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-C", "fastcp test", "-N", passphrase])
        .arg("-f")
        .arg(path)
        .stdin(Stdio::null())
        .status()
        .expect("run ssh-keygen");
    assert!(made.success(), "ssh-keygen failed");
}

/// From now on the host is open to one key alone, which has this passphrase.
pub fn lock(case: &Case, passphrase: &str) -> PathBuf {
    let key = case.scratch.path("locked");
    make_key(&key, passphrase);
    let public = std::fs::read_to_string(key.with_extension("pub")).expect("read a key");
    case.host().dir().append("authorized_keys", public);
    std::fs::remove_file(case.host().key()).expect("remove the other key");
    key
}

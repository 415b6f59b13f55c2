//! ssh keys for logins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use super::Case;

/// The contents of the two files of a key pair.
#[derive(Clone)]
pub(crate) struct Pair {
    pub private: Vec<u8>,
    pub public: Vec<u8>,
}

/// The key pair of this name, shared by all tests of a run: making one can take longer than a copy.
pub(crate) fn pair(name: &str) -> Pair {
    static PAIRS: Mutex<BTreeMap<String, Pair>> = Mutex::new(BTreeMap::new());
    let mut pairs = PAIRS.lock().expect("no panic while held");
    let made = || {
        let dir = tempfile::tempdir().expect("make a directory");
        let path = dir.path().join("key");
        make_key(&path, "");
        let read = |path: &Path| std::fs::read(path).expect("read a key");
        Pair {
            private: read(&path),
            public: read(&path.with_extension("pub")),
        }
    };
    pairs.entry(name.to_owned()).or_insert_with(made).clone()
}

/// Makes an ed25519 key pair at `path`.
pub(crate) fn make_key(path: &Path, passphrase: &str) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-C", "fastcp test", "-N", passphrase])
        .arg("-f")
        .arg(path)
        .stdin(Stdio::null())
        .status()
        .expect("run ssh-keygen");
    assert!(made.success(), "ssh-keygen failed");
}

/// From now on the host accepts only one key, which has this passphrase.
pub(crate) fn lock(case: &Case, passphrase: &str) -> PathBuf {
    let key = case.scratch.path("locked");
    make_key(&key, passphrase);
    let public = std::fs::read_to_string(key.with_extension("pub")).expect("read a key");
    case.host().dir().append("authorized_keys", public);
    std::fs::remove_file(case.host().key()).expect("remove the other key");
    key
}

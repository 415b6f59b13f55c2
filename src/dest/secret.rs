//! The user's secret key. It shows which journals and which copies are those of this user.
//!
//! It is stored in `~/.local/state/fastcp/key` (or `$XDG_STATE_HOME/fastcp/key`): 32 random bytes
//! that nobody else may read. It is made on first use, and replaced only if others could read it or
//! it is damaged. If it cannot be stored, this process uses a key that no other process knows, so
//! no other process can resume this copy.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::libc;
use nix::unistd::{Uid, User};
use rustix::rand::{GetRandomFlags, getrandom};

use super::device_journal::{make_private, state_directory};

const NAME: &str = "key";

const LEN: usize = 32;

pub struct UserKey {
    pub bytes: [u8; LEN],
    /// The key is stored, so a later process finds it again.
    pub is_kept: bool,
}

/// This user's key, the same for the life of the process.
pub fn user_key() -> &'static UserKey {
    static KEY: OnceLock<UserKey> = OnceLock::new();
    KEY.get_or_init(|| {
        let kept = places().iter().find_map(|dir| kept_in(dir));
        let is_kept = kept.is_some();
        // Without random bytes no session comes about either.
        let bytes = kept.unwrap_or_else(|| random().expect("the system has random numbers"));
        UserKey { bytes, is_kept }
    })
}

/// The key, if it is stored already; nothing is made.
pub fn stored_user_key() -> Option<[u8; LEN]> {
    places().iter().find_map(|dir| match read(&dir.join(NAME)) {
        FoundSecret::Key(key) => Some(key),
        FoundSecret::Nothing | FoundSecret::Spoilt | FoundSecret::NotOurs => None,
    })
}

/// Directories for the key, the best first. `sudo` may leave `HOME` as that of another user, where
/// a file of this user would only be in the way.
fn places() -> Vec<PathBuf> {
    let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let owner = |path: &Path| {
        let found = path.ancestors().find_map(|above| above.metadata().ok());
        found.map(|found| found.uid())
    };
    let uid = Uid::effective();
    let own = |dir: &PathBuf| owner(dir) == Some(uid.as_raw());
    let first = state_directory(named).ok().filter(own);
    let user = User::from_uid(uid).ok().flatten();
    let second = user
        .map(|user| user.dir.join(".local/state/fastcp"))
        .filter(own);
    first.into_iter().chain(second).collect()
}

/// The stored key in `dir`, made if necessary. None if that fails.
fn kept_in(dir: &Path) -> Option<[u8; LEN]> {
    make_private(dir).ok()?;
    let path = dir.join(NAME);
    match read(&path) {
        FoundSecret::Key(key) => return Some(key),
        FoundSecret::NotOurs => return None,
        FoundSecret::Nothing => {}
        // Others may know it, or it was cut short: a new key replaces it.
        FoundSecret::Spoilt => std::fs::remove_file(&path).ok()?,
    }
    // A key that could be guessed is worse than none.
    let key = random().ok()?;
    let mut own = OsString::from(format!("{NAME}."));
    own.push(key_name().ok()?);
    let own = dir.join(own);
    let made = make(&own, &key).and_then(|()| std::fs::hard_link(&own, &path));
    let _ = std::fs::remove_file(&own);
    match made {
        Ok(()) => {}
        // Another process was faster. On a file system without links the key is renamed instead.
        // Two processes may do that at once; the key that is read below is one of theirs.
        Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(_) => {
            let renamed = make(&own, &key).and_then(|()| std::fs::rename(&own, &path));
            if renamed.is_err() {
                let _ = std::fs::remove_file(&own);
            }
        }
    }
    match read(&path) {
        FoundSecret::Key(key) => Some(key),
        _ => None,
    }
}

enum FoundSecret {
    Key([u8; LEN]),
    Nothing,
    Spoilt,
    NotOurs,
}

fn read(path: &Path) -> FoundSecret {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return FoundSecret::Nothing,
        Err(_) => return FoundSecret::NotOurs,
    };
    let Ok(meta) = file.metadata() else {
        return FoundSecret::NotOurs;
    };
    if !meta.is_file() || meta.uid() != Uid::effective().as_raw() {
        return FoundSecret::NotOurs;
    }
    let mut key = [0; LEN];
    let is_private = meta.mode() & 0o077 == 0;
    let is_whole = meta.len() == LEN as u64 && file.read_exact(&mut key).is_ok();
    match is_private && is_whole {
        true => FoundSecret::Key(key),
        false => FoundSecret::Spoilt,
    }
}

fn make(path: &Path, key: &[u8; LEN]) -> std::io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(key)?;
    // A power failure must not leave an empty key.
    file.sync_all()
}

fn key_name() -> std::io::Result<String> {
    let random = random()?;
    let digits = random[..8].iter().map(|byte| format!("{byte:02x}"));
    Ok(digits.collect())
}

/// Waits for entropy just after boot.
fn random() -> std::io::Result<[u8; LEN]> {
    let mut random = [0; LEN];
    // 32 bytes are always returned whole.
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn many_who_make_a_key_at_once_have_one_and_it_stays() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/fastcp");
        let keys: Vec<_> = std::thread::scope(|scope| {
            let each = || scope.spawn(|| kept_in(&dir).expect("a key"));
            let threads: Vec<_> = (0..8).map(|_| each()).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0] && *key != [0; LEN]));
        let names: Vec<_> = std::fs::read_dir(&dir).unwrap().collect();
        assert_eq!(names.len(), 1);
        let meta = std::fs::metadata(dir.join(NAME)).unwrap();
        assert_eq!(meta.mode() & 0o777, 0o600);
    }

    #[test]
    fn a_key_that_others_could_read_is_replaced_and_a_link_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("fastcp");
        let first = kept_in(&dir).unwrap();
        let path = dir.join(NAME);
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode(0o644)).unwrap();
        let second = kept_in(&dir).unwrap();
        assert_ne!(first, second);
        std::fs::write(&path, b"cut").unwrap();
        assert_ne!(kept_in(&dir).unwrap(), second);
        std::fs::rename(&path, temp.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", &path).unwrap();
        assert_eq!(kept_in(&dir), None);
    }
}

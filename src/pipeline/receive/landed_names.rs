//! Paths of entries below the destination, for the user.

use std::sync::OnceLock;

use crate::pipeline::digest_list::ListedPath;

/// Longest path in a message, in bytes; the rest is left out.
pub(super) const PATH_MAX: usize = 256 << 10;

/// The names of the roots at the destination, with which paths begin.
#[derive(Default)]
pub(super) struct LandedNames(OnceLock<Vec<Vec<u8>>>);

impl LandedNames {
    /// Sets the names, in the order of the roots.
    pub(super) fn set(&self, names: Vec<Vec<u8>>) {
        // Roots land once, so it was not set before.
        let _ = self.0.set(names);
    }

    /// The path below the destination, at most [`PATH_MAX`] bytes of it.
    pub(super) fn path(&self, listed: Option<&ListedPath>) -> Vec<u8> {
        let Some(listed) = listed else {
            return Vec::new();
        };
        let names = self.0.get();
        let root = names.and_then(|names| names.get(listed.root));
        let root = root.map_or(&b""[..], |name| name);
        let below = listed.below();
        let between: &[u8] = match root.is_empty() || below.is_empty() {
            true => b"",
            false => b"/",
        };
        let mut path = [root, between, &below].concat();
        path.truncate(PATH_MAX);
        path
    }
}

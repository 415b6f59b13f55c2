//! The list that `--digests` writes: what `b3sum` prints, with paths relative to the destination,
//! so that `b3sum --check` run there accepts it.
//!
//! A list is UTF-8 (b3sum refuses any other, and a name with U+FFFD too): a name that is not is
//! left out and counted. Newlines and backslashes are escaped as b3sum does.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::digest::Digest;
use crate::manifest::{Entry, EntryId};

/// Where a file stands: below which root, and its path from there (empty for the root itself).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub root: usize,
    pub below: Vec<u8>,
}

impl Listed {
    /// The place of `name` in this directory.
    pub fn child(&self, name: &[u8]) -> Listed {
        let mut below = self.below.clone();
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(name);
        Listed {
            root: self.root,
            below,
        }
    }
}

pub struct DigestList {
    out: Mutex<Out>,
    /// Names of the roots at the destination.
    landed: OnceLock<Vec<Vec<u8>>>,
    links: Mutex<Links>,
}

/// Further names of one file have its digest and no content of their own.
#[derive(Default)]
struct Links {
    /// Of files with several names.
    digests: HashMap<EntryId, Digest>,
    /// Further names that are not yet in place.
    waiting: BTreeMap<EntryId, (Listed, EntryId)>,
}

struct Out {
    file: BufWriter<File>,
    error: Option<io::Error>,
    unlisted: Vec<Vec<u8>>,
    more_unlisted: u64,
}

/// Names that are kept to be told; more are counted.
const UNLISTED_KEPT: usize = 20;

impl DigestList {
    pub fn create(path: &Path) -> io::Result<DigestList> {
        let file = BufWriter::new(File::create(path)?);
        let out = Out {
            file,
            error: None,
            unlisted: Vec::new(),
            more_unlisted: 0,
        };
        Ok(DigestList {
            out: Mutex::new(out),
            landed: OnceLock::new(),
            links: Mutex::default(),
        })
    }

    /// Tells where the roots landed; comes before any file is in place.
    pub fn set_landed(&self, names: Vec<Vec<u8>>) {
        // A second telling changes nothing: the first is what the files went by.
        let _ = self.landed.set(names);
    }

    pub fn add(&self, listed: &Listed, digest: &Digest) {
        let names = self.landed.get().map_or(&[][..], |names| names);
        let root = names.get(listed.root).map_or(&[][..], |name| name);
        let path = match (root, &listed.below[..]) {
            (root, b"") => root.to_vec(),
            (b"", below) => below.to_vec(),
            (root, below) => [root, b"/", below].concat(),
        };
        let mut out = self.out.lock().expect("no panic while held");
        match line(&path, digest) {
            Some(line) => {
                let written = out.file.write_all(line.as_bytes());
                if let Err(error) = written {
                    out.error.get_or_insert(error);
                }
            }
            None if out.unlisted.len() < UNLISTED_KEPT => out.unlisted.push(path),
            None => out.more_unlisted += 1,
        }
    }

    /// Another session lists everything anew, what is in place already too: a source may have
    /// changed since.
    pub fn begin_again(&self) {
        *self.links() = Links::default();
        let mut out = self.out.lock().expect("no panic while held");
        out.unlisted.clear();
        out.more_unlisted = 0;
        let emptied = out.file.flush().and_then(|()| {
            let file = out.file.get_mut();
            // A pipe cannot take back what was said.
            file.set_len(0).and_then(|()| file.rewind()).or(Ok(()))
        });
        if let Err(error) = emptied {
            out.error.get_or_insert(error);
        }
    }

    /// Remembers the digest of a file that may have further names.
    pub fn remember(&self, entry: &Entry, digest: &Digest) {
        if entry.links > 1 {
            self.links().digests.insert(entry.id, *digest);
        }
    }

    /// `link` is to be a further name of `first`.
    pub fn add_link(&self, link: EntryId, first: EntryId, listed: Listed) {
        self.links().waiting.insert(link, (listed, first));
    }

    /// The entries with these numbers are in place; so were the first names of the links among
    /// them before.
    pub fn links_placed(&self, entries: Range<EntryId>) {
        let mut links = self.links();
        let placed: Vec<EntryId> = links.waiting.range(entries).map(|(&id, _)| id).collect();
        for id in placed {
            let Some((listed, first)) = links.waiting.remove(&id) else {
                continue;
            };
            if let Some(digest) = links.digests.get(&first) {
                self.add(&listed, digest);
            }
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().expect("no panic while held")
    }

    /// Writes what is left. Gives the names that could not be listed and how many more there were.
    pub fn finish(&self) -> io::Result<(Vec<Vec<u8>>, u64)> {
        let mut out = self.out.lock().expect("no panic while held");
        if let Some(error) = out.error.take() {
            return Err(error);
        }
        out.file.flush()?;
        Ok((std::mem::take(&mut out.unlisted), out.more_unlisted))
    }
}

/// b3sum's line; None if no list can hold the name.
fn line(path: &[u8], digest: &Digest) -> Option<String> {
    let path = std::str::from_utf8(path)
        .ok()
        .filter(|path| !path.contains('\u{fffd}'))?;
    let hex = blake3::Hash::from_bytes(*digest).to_hex();
    let escaped = path
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r");
    let mark = if escaped == path { "" } else { "\\" };
    Some(format!("{mark}{hex}  {escaped}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_b3sum() {
        let hex = "00".repeat(32);
        assert_eq!(line(b"a b", &[0; 32]).unwrap(), format!("{hex}  a b\n"));
        assert_eq!(
            line(b"a\\b\nc", &[0; 32]).unwrap(),
            format!("\\{hex}  a\\\\b\\nc\n")
        );
        assert_eq!(line(b"\xff", &[0; 32]), None);
        assert_eq!(line("a\u{fffd}".as_bytes(), &[0; 32]), None);
    }
}

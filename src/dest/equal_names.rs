//! A test whether a file system treats different names as equal: `A` and `a` if it ignores case,
//! `a.` and `a` if it drops trailing dots. It runs only where two names of a copy could collide.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, fstatfs, ioctl_getflags, unlinkat};

use super::own_names::{OwnName, random_name};
use super::{EntrySlot, Rules};
use crate::dir::Dir;
use crate::manifest::Name;

/// How a directory treats the spelling of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spelling {
    /// Names that differ only in case are the same.
    pub ignores_case: bool,
    /// Dots at the end of a name are dropped.
    pub drops_dots: bool,
}

/// Tests a directory: makes a file, looks for it under other spellings, and removes it. Where no
/// file can be made, no new name can appear either, so all spellings count as different. So they do
/// in a dry run, which makes none.
pub fn spelling(dir: &Arc<Dir>, rules: &Rules) -> Spelling {
    match rules.dry_run {
        true => Spelling::default(),
        false => tested_spelling(dir),
    }
}

fn tested_spelling(dir: &Arc<Dir>) -> Spelling {
    let test = |found_as: &dyn Fn(&Path) -> bool, name: &OsStr| {
        let mut dotted = name.to_owned();
        dotted.push(".");
        Spelling {
            ignores_case: found_as(name.to_ascii_uppercase().as_ref()),
            drops_dots: found_as(dotted.as_ref()),
        }
    };
    with_probe(dir, "", test).unwrap_or_default()
}

/// Makes a file in `dir` with `mark` in its name, and removes it. `test` can look for other names, and
/// gets the file's name. None if the file cannot be made.
fn with_probe<T>(
    dir: &Arc<Dir>,
    mark: &str,
    test: impl FnOnce(&dyn Fn(&Path) -> bool, &OsStr) -> T,
) -> Option<T> {
    let probe = Name::try_from(b"probe".to_vec()).expect("a name without a slash");
    let name = random_name(&EntrySlot::new(dir.clone(), probe));
    let name: OsString = name
        .to_str()?
        .replace(".part", &format!("{mark}.part"))
        .into();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let make = || dir.open(&name, flags, Mode::RUSR | Mode::WUSR);
    let (Ok(handle), Some(Ok((_own, _file)))) = (dir.handle(), OwnName::claim(dir, &name, make))
    else {
        return None;
    };
    // The name is random, so a file found under another spelling is this file. Inode numbers would
    // not show it: file systems in user space number one file differently under each of its names.
    let found_as = |other: &Path| dir.stat(other.as_os_str()).is_ok();
    let tested = test(&found_as, &name);
    // If it cannot be removed, its name shows that it is fastcp's.
    let _ = unlinkat(&*handle, &name, AtFlags::empty());
    Some(tested)
}

/// True if a directory treats the composed and the decomposed form of a letter as equal. None if it
/// takes no file.
fn treats_forms_as_equal(dir: &Arc<Dir>) -> Option<bool> {
    let test = |found_as: &dyn Fn(&Path) -> bool, name: &OsStr| {
        let name = name.to_string_lossy();
        found_as(name.replace('\u{e9}', "e\u{301}").as_ref())
    };
    // A file system that does not take the letter cannot confuse its forms.
    with_probe(dir, "", |_, _| ())?;
    Some(with_probe(dir, "-\u{e9}", test).unwrap_or(false))
}

/// Which file systems treat different names as equal.
#[derive(Default)]
pub struct Spellings {
    /// By device number.
    confuse: HashMap<u64, bool>,
}

impl Spellings {
    /// True if two names of a copy could be one name in `dir`. Most local file systems say so
    /// themselves; of any other the first directory is tested. A dry run makes no file for that:
    /// all names count as different.
    pub fn may_confuse(&mut self, dir: &Arc<Dir>, rules: &Rules) -> bool {
        const CASEFOLD: u32 = 0x4000_0000;
        const EXT4: u64 = 0xef53;
        const XFS: u64 = 0x5846_5342;
        const BTRFS: u64 = 0x9123_683e;
        const TMPFS: u64 = 0x0102_1994;
        const F2FS: u64 = 0xf2f5_2010;
        const BCACHEFS: u64 = 0xca45_1a4e;
        let Ok(handle) = dir.handle() else {
            return true;
        };
        match fstatfs(&*handle).map_or(0, |found| found.f_type as u64) {
            BTRFS | XFS => false,
            // Each directory has a flag.
            EXT4 | TMPFS | F2FS | BCACHEFS => {
                ioctl_getflags(&*handle).is_ok_and(|flags| flags.bits() & CASEFOLD != 0)
            }
            _ => !rules.dry_run && self.tested(dir),
        }
    }
}

impl Spellings {
    fn tested(&mut self, dir: &Arc<Dir>) -> bool {
        let device = dir.identity().0;
        if let Some(confuse) = self.confuse.get(&device) {
            return *confuse;
        }
        // Another directory of this file system may take a file.
        let Some(forms) = treats_forms_as_equal(dir) else {
            return true;
        };
        let confuse = forms || tested_spelling(dir) != Spelling::default();
        self.confuse.insert(device, confuse);
        confuse
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::rules;
    use super::*;
    use crate::dir::Handles;

    #[test]
    fn a_directory_is_asked_and_left_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::root(temp.path(), &Arc::new(Handles::default())).unwrap();
        assert_eq!(spelling(&dir, &rules()), Spelling::default());
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }
}

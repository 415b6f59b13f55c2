//! Names that a file system takes for one: `A` and `a` where it ignores upper and lower case, `a.`
//! and `a` where it drops dots at the end. It is asked only where names of a copy could be
//! mistaken for each other.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, unlinkat};

use super::Slot;
use super::own_name::{OwnName, random_name};
use crate::dir::Dir;
use crate::manifest::Name;

/// What a directory makes of the names in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spelling {
    /// Names that differ in upper and lower case only are one.
    pub ignores_case: bool,
    /// A name is shortened by the dots at its end.
    pub drops_dots: bool,
}

impl Spelling {
    /// Every name is what it is.
    pub fn is_exact(self) -> bool {
        self == Spelling::default()
    }
}

/// Makes a file in `dir`, looks for it under other names, and removes it. Where no file can be made
/// nothing new gets a name either, so there every name counts as what it is.
pub fn spelling(dir: &Arc<Dir>) -> Spelling {
    let probe = Name::try_from(b"probe".to_vec()).expect("a name without a slash");
    let name = random_name(&Slot::new(dir.clone(), probe));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let make = || dir.open(&name, flags, Mode::RUSR | Mode::WUSR);
    let (Ok(handle), Some(Ok((_own, _file)))) = (dir.handle(), OwnName::claim(dir, &name, make))
    else {
        return Spelling::default();
    };
    // The name is a random one, so what is found is this file. Its inode would not tell: file systems
    // of user space number one file differently under each of its names.
    let found_as = |other: &Path| dir.stat(other.as_os_str()).is_ok();
    let mut dotted = name.clone();
    dotted.push(".");
    let spelling = Spelling {
        ignores_case: found_as(name.to_ascii_uppercase().as_ref()),
        drops_dots: found_as(dotted.as_ref()),
    };
    // If it stays, its name tells whose it is.
    let _ = unlinkat(&*handle, &name, AtFlags::empty());
    spelling
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::Handles;

    #[test]
    fn a_directory_is_asked_and_left_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::root(temp.path(), &Arc::new(Handles::default())).unwrap();
        assert!(spelling(&dir).is_exact());
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }
}

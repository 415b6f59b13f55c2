//! `--chmod` and `--chown`: modes and owners that the copies get instead of the source's.

use serde::{Deserialize, Serialize};

use crate::byte_strings;
use crate::units::printable;

/// Most changes in one `--chmod`.
const CHANGES_MAX: usize = 64;

/// Longest name of a user or group, in bytes.
const NAME_MAX: usize = 256;

/// What `--chmod` and `--chown` say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataChanges {
    modes: Vec<ModeChange>,
    pub user: Option<NewOwner>,
    pub group: Option<NewOwner>,
}

/// A user or group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewOwner {
    Number(u32),
    Name(#[serde(with = "byte_strings")] Vec<u8>),
}

/// One part of `--chmod`: which bits become set and which are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ModeChange {
    of: ChangedKind,
    clear: u16,
    set: u16,
    /// Execute permissions to set in a directory, or in a file that somebody may execute at the source.
    set_execute: u16,
    /// Execute permissions to clear under the same condition.
    clear_execute: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ChangedKind {
    All,
    Directories,
    Files,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadChange {
    #[error("--chmod: {0} is not a change of modes (such as u=rwX,go=rX or D755,F644)")]
    Mode(String),
    #[error("--chown: {0} is not an owner (USER, USER:GROUP or :GROUP)")]
    Owner(String),
    #[error("--chmod: more than {CHANGES_MAX} changes of modes")]
    TooMany,
}

/// The permissions of a class, and the special bit that `s` means for it.
const CLASSES: [(char, u16, u16); 4] = [
    ('u', 0o700, 0o4000),
    ('g', 0o070, 0o2000),
    ('o', 0o007, 0),
    ('a', 0o777, 0),
];

impl MetadataChanges {
    pub fn is_empty(&self) -> bool {
        *self == MetadataChanges::default()
    }

    /// Adds the changes of one `--chmod`, in chmod's syntax, with `D` or `F` before a change that is
    /// only for directories or files. A change without a class does not set or take away permissions
    /// that are in `umask`. As in rsync, `=` changes special bits only where it has `s` or `t`.
    ///
    /// # Errors
    /// If the text is no such list.
    pub fn add_modes(&mut self, text: &str, umask: u32) -> Result<(), BadChange> {
        for part in text.split(',') {
            if self.modes.len() >= CHANGES_MAX {
                return Err(BadChange::TooMany);
            }
            let change = ModeChange::parse(part, umask as u16);
            let change = change.ok_or_else(|| BadChange::Mode(printable(part.as_bytes())))?;
            self.modes.push(change);
        }
        Ok(())
    }

    /// Sets the owner, group or both.
    ///
    /// # Errors
    /// If the text names neither.
    pub fn set_owner(&mut self, text: &str) -> Result<(), BadChange> {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let owner = |name: &str| match (name, name.parse()) {
            ("", _) => None,
            (_, Ok(number)) => Some(NewOwner::Number(number)),
            (name, _) => Some(NewOwner::Name(name.as_bytes().to_vec())),
        };
        (self.user, self.group) = (owner(user), owner(group));
        let is_name = |name: &str| !name.contains([':', '\0']);
        let names_any = self.user.is_some() || self.group.is_some();
        match names_any && is_name(user) && is_name(group) && self.is_within_limits() {
            true => Ok(()),
            false => Err(BadChange::Owner(printable(text.as_bytes()))),
        }
    }

    /// True if a peer may send this.
    pub fn is_within_limits(&self) -> bool {
        // To the system, the largest number means no change.
        let is_possible = |owner: &Option<NewOwner>| match owner {
            Some(NewOwner::Name(name)) => name.len() <= NAME_MAX,
            Some(NewOwner::Number(number)) => *number < u32::MAX,
            None => true,
        };
        self.modes.len() <= CHANGES_MAX && is_possible(&self.user) && is_possible(&self.group)
    }

    /// The mode that a copy gets. `mode` is the source's.
    pub fn mode(&self, mode: u32, is_directory: bool) -> u32 {
        let may_execute = is_directory || mode & 0o111 != 0;
        let mut mode = mode;
        for change in &self.modes {
            let applies = match change.of {
                ChangedKind::All => true,
                ChangedKind::Directories => is_directory,
                ChangedKind::Files => !is_directory,
            };
            if !applies {
                continue;
            }
            let bits = |bits: u16| if may_execute { u32::from(bits) } else { 0 };
            let (set, clear) = (bits(change.set_execute), bits(change.clear_execute));
            mode = mode & !u32::from(change.clear) & !clear | u32::from(change.set) | set;
        }
        mode
    }
}

impl ModeChange {
    /// `D755`, `g+s`, `ug=rwX`, `Fo-w`.
    fn parse(text: &str, umask: u16) -> Option<ModeChange> {
        let (of, text) = match text.as_bytes().first()? {
            b'D' => (ChangedKind::Directories, &text[1..]),
            b'F' => (ChangedKind::Files, &text[1..]),
            _ => (ChangedKind::All, text),
        };
        let none = ModeChange {
            of,
            clear: 0,
            set: 0,
            set_execute: 0,
            clear_execute: 0,
        };
        if !text.is_empty() && text.chars().all(|c| c.is_digit(8)) {
            let set = u16::from_str_radix(text, 8)
                .ok()
                .filter(|&set| set <= 0o7777)?;
            let clear = 0o7777;
            return Some(ModeChange { set, clear, ..none });
        }
        let at = text.find(['+', '-', '='])?;
        let (classes, rest) = text.split_at(at);
        let (operator, letters) = rest.split_at(1);
        let (mut whose, mut special_of) = (0, 0);
        for class in classes.chars() {
            let found = CLASSES.iter().find(|(letter, ..)| *letter == class)?;
            (whose, special_of) = (whose | found.1, special_of | found.2);
        }
        let mut umask = umask;
        match classes.is_empty() {
            true => whose = 0o777,
            false => umask = 0,
        }
        let (mut bits, mut execute, mut special) = (0, 0, 0);
        for letter in letters.chars() {
            match letter {
                'r' => bits |= 0o444,
                'w' => bits |= 0o222,
                'x' => bits |= 0o111,
                's' if special_of == 0 => special |= 0o4000,
                's' => special |= special_of,
                't' => special |= 0o1000,
                'X' => execute |= 0o111,
                _ => return None,
            }
        }
        let bits = bits & whose & !umask | special;
        let execute = execute & whose & !umask;
        Some(match operator {
            "+" => ModeChange {
                set: bits,
                set_execute: execute,
                ..none
            },
            "-" => ModeChange {
                clear: bits,
                clear_execute: execute,
                ..none
            },
            _ => ModeChange {
                clear: whose | if special == 0 { 0 } else { special_of },
                set: bits,
                set_execute: execute,
                ..none
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, mode: u32, is_directory: bool) -> u32 {
        let mut changes = MetadataChanges::default();
        changes.add_modes(text, 0o022).unwrap();
        changes.mode(mode, is_directory)
    }

    #[test]
    fn modes_change_as_chmod_says() {
        for (text, file, directory) in [
            ("D755,F644", 0o644, 0o755),
            ("u=rwX,go=rX", 0o644, 0o755),
            ("go-rwx", 0o600, 0o700),
            ("Dg+s,Fa+x", 0o751, 0o2751),
            ("a=", 0, 0),
            ("+t", 0o1640, 0o1751),
            ("600", 0o600, 0o600),
            ("-w", 0o440, 0o551),
            ("o=,u-w,F444,Fu+w", 0o644, 0o550),
            ("=rX", 0o444, 0o555),
            ("=rwx", 0o755, 0o755),
            ("=", 0, 0),
            ("+w", 0o640, 0o751),
        ] {
            let found = (changed(text, 0o640, false), changed(text, 0o751, true));
            assert_eq!(found, (file, directory), "{text}");
        }
        // X counts execute permissions of the source.
        assert_eq!(changed("go=X", 0o744, false), 0o711);
        assert_eq!(changed("u=rw,go=rX", 0o744, false), 0o655);
        // A directory of a group keeps its set-group-ID bit.
        assert_eq!(changed("ug=rwX,o=rX", 0o2755, true), 0o2775);
        assert_eq!(changed("g=rx", 0o6775, false), 0o6755);
        assert_eq!(changed("ug=rxs,o=t", 0o755, false), 0o7550);
        assert_eq!(changed("g=s", 0o755, true), 0o2705);
        let told = MetadataChanges::default().add_modes("u+\x1b", 0);
        assert_eq!(told, Err(BadChange::Mode("u+\\x1b".to_owned())));
        for text in ["", "rwx", "u+q", "z+r", "99", "D", "u+r,", "77777"] {
            assert!(
                MetadataChanges::default().add_modes(text, 0).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn an_owner_is_a_name_or_a_number() {
        let owners = |text: &str| {
            let mut changes = MetadataChanges::default();
            changes
                .set_owner(text)
                .map(|()| (changes.user, changes.group))
        };
        let name = |name: &str| Some(NewOwner::Name(name.into()));
        assert_eq!(owners("www"), Ok((name("www"), None)));
        assert_eq!(owners(":33"), Ok((None, Some(NewOwner::Number(33)))));
        assert_eq!(
            owners("0:www"),
            Ok((Some(NewOwner::Number(0)), name("www")))
        );
        for text in ["", ":", "a:b:c", "4294967295", "0:4294967295"] {
            assert!(owners(text).is_err(), "{text}");
        }
        // The second is a name.
        assert!(owners("4294967294:4294967296").is_ok());
    }
}

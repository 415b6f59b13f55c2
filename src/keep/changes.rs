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
    /// Execute permissions to set in a directory, or in a file that somebody may execute.
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

/// The bits of the classes u, g and o.
const CLASSES: [(char, u16); 3] = [('u', 0o4700), ('g', 0o2070), ('o', 0o1007)];

impl MetadataChanges {
    pub fn is_empty(&self) -> bool {
        *self == MetadataChanges::default()
    }

    /// Adds the changes of one `--chmod`, in chmod's syntax, with rsync's `D` or `F` before a change
    /// that is only for directories or files. A change without a class leaves the bits of `umask` as
    /// they are.
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
            let may_execute = is_directory || mode & 0o111 != 0;
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
        let mut whose = 0;
        for class in classes.chars() {
            whose |= match class {
                'a' => 0o7777,
                class => CLASSES.iter().find(|(letter, _)| *letter == class)?.1,
            };
        }
        if classes.is_empty() {
            whose = 0o7777 & !umask;
        }
        let (mut bits, mut execute) = (0, 0);
        for letter in letters.chars() {
            match letter {
                'r' => bits |= 0o444,
                'w' => bits |= 0o222,
                'x' => bits |= 0o111,
                's' => bits |= 0o6000,
                't' => bits |= 0o1000,
                'X' => execute |= 0o111,
                _ => return None,
            }
        }
        let (bits, execute) = (bits & whose, execute & whose);
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
                clear: whose & 0o7777,
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
        ] {
            let found = (changed(text, 0o640, false), changed(text, 0o751, true));
            assert_eq!(found, (file, directory), "{text}");
        }
        // X counts execute permissions at that moment.
        assert_eq!(changed("go=X", 0o744, false), 0o711);
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

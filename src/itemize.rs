//! The changes that a copy makes to one entry, for `--itemize-changes` and `-n`, in rsync's form:
//! `>f.st...... path`.

use serde::{Deserialize, Serialize};

use crate::byte_strings;

/// A change of one entry at the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemizedEntry {
    pub action: ItemAction,
    pub kind: ItemKind,
    pub changes: ItemChanges,
    /// Bytes of content that are sent.
    pub size: u64,
    /// Below the destination; empty for the destination itself.
    #[serde(with = "byte_strings")]
    pub path: Vec<u8>,
    /// The text of a symbolic link, or the path of the file that a hard link is made to.
    #[serde(with = "byte_strings")]
    pub target: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemAction {
    /// Content is sent.
    Sent,
    /// Made without content: a directory, a symbolic link or a special file.
    Made,
    /// Made a hard link to another file.
    Linked,
    /// Only metadata changes.
    Corrected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemKind {
    File,
    Directory,
    Symlink,
    Device,
    /// A FIFO or a socket.
    Special,
}

/// The properties of an entry that change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemChanges {
    /// Nothing of this kind has the name, so all properties are new.
    pub is_new: bool,
    /// It takes the place of something of another kind.
    pub replaces: bool,
    /// The text of a symbolic link, the number of a device, or the content of a file that was
    /// compared (`--checksum`).
    pub value: bool,
    pub size: bool,
    /// The modification time becomes that of the source.
    pub time: bool,
    /// The modification time becomes that of the copy.
    pub time_of_copy: bool,
    pub perms: bool,
    pub owner: bool,
    pub group: bool,
    pub acl: bool,
    pub xattrs: bool,
}

impl ItemChanges {
    pub fn of_new() -> ItemChanges {
        ItemChanges {
            is_new: true,
            ..ItemChanges::default()
        }
    }

    pub fn is_none(&self) -> bool {
        *self == ItemChanges::default()
    }
}

/// How an entry differs between the two ends (`--check`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// At the destination.
    Missing,
    /// In its kind or content.
    Content,
    /// Only in metadata that a copy would keep.
    Metadata,
    /// The source does not have it.
    Extra,
}

impl Difference {
    /// The word that begins a line.
    pub fn word(self) -> &'static str {
        match self {
            Difference::Missing => "missing",
            Difference::Content => "differs",
            Difference::Metadata => "metadata",
            Difference::Extra => "extra",
        }
    }
}

/// Marks a deleted entry, in place of a code.
pub const DELETED: &str = "*deleting";

/// Characters of a code.
const CODE_LEN: usize = 11;

impl ItemizedEntry {
    /// rsync's eleven characters `YXcstpoguax`. `goes_out`: the destination is another host.
    pub fn code(&self, goes_out: bool) -> String {
        let changes = &self.changes;
        let action = match self.action {
            ItemAction::Sent if goes_out => '<',
            ItemAction::Sent => '>',
            ItemAction::Made => 'c',
            ItemAction::Linked => 'h',
            ItemAction::Corrected => '.',
        };
        let kind = match self.kind {
            ItemKind::File => 'f',
            ItemKind::Directory => 'd',
            ItemKind::Symlink => 'L',
            ItemKind::Device => 'D',
            ItemKind::Special => 'S',
        };
        let rest = CODE_LEN - 2;
        if changes.is_new {
            return format!("{action}{kind}{}", "+".repeat(rest));
        }
        if changes.is_none() && self.action != ItemAction::Sent {
            return format!("{action}{kind}{}", " ".repeat(rest));
        }
        let time = match (changes.time, changes.time_of_copy) {
            (true, _) => 't',
            (false, true) => 'T',
            (false, false) => '.',
        };
        let shown = |is_changed, letter| if is_changed { letter } else { '.' };
        [
            action,
            kind,
            shown(changes.value, 'c'),
            shown(changes.size, 's'),
            time,
            shown(changes.perms, 'p'),
            shown(changes.owner, 'o'),
            shown(changes.group, 'g'),
            // Access times are not compared.
            '.',
            shown(changes.acl, 'a'),
            shown(changes.xattrs, 'x'),
        ]
        .iter()
        .collect()
    }

    /// What a copy would change, as a difference between the ends.
    pub fn difference(&self) -> Difference {
        match (self.changes.is_new, self.action) {
            (true, _) if self.changes.replaces => Difference::Content,
            (true, _) => Difference::Missing,
            (false, ItemAction::Corrected) => Difference::Metadata,
            (false, _) => Difference::Content,
        }
    }

    /// The path for the user: that of a directory ends with a slash.
    pub fn shown_path(&self) -> Vec<u8> {
        let mut path = match &self.path[..] {
            [] => b".".to_vec(),
            path => path.to_vec(),
        };
        if self.kind == ItemKind::Directory {
            path.push(b'/');
        }
        path
    }

    /// Between the path and the target; None if there is no target.
    pub fn arrow(&self) -> Option<&'static str> {
        match (self.target.is_empty(), self.action) {
            (true, _) => None,
            (false, ItemAction::Linked) => Some(" => "),
            (false, _) => Some(" -> "),
        }
    }

    /// Approximate bytes of memory.
    pub fn weight(&self) -> usize {
        size_of::<ItemizedEntry>() + self.path.len() + self.target.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(action: ItemAction, kind: ItemKind, changes: ItemChanges) -> ItemizedEntry {
        ItemizedEntry {
            action,
            kind,
            changes,
            size: 0,
            path: b"a".to_vec(),
            target: Vec::new(),
        }
    }

    #[test]
    fn codes_are_those_of_rsync() {
        use ItemAction::{Corrected, Linked, Made, Sent};
        let none = ItemChanges::default();
        let new = ItemChanges::of_new();
        let both = ItemChanges {
            size: true,
            time: true,
            ..none
        };
        let copied = ItemChanges {
            time_of_copy: true,
            ..none
        };
        let rest = ItemChanges {
            value: true,
            perms: true,
            owner: true,
            group: true,
            acl: true,
            xattrs: true,
            ..none
        };
        for (action, kind, changes, code) in [
            (Sent, ItemKind::File, new, ">f+++++++++"),
            (Sent, ItemKind::File, none, ">f........."),
            (Sent, ItemKind::File, both, ">f.st......"),
            (Sent, ItemKind::File, copied, ">f..T......"),
            (Made, ItemKind::Directory, new, "cd+++++++++"),
            (Corrected, ItemKind::Directory, both, ".d.st......"),
            (Made, ItemKind::Symlink, rest, "cLc..pog.ax"),
            (Linked, ItemKind::File, none, "hf         "),
            (Made, ItemKind::Device, new, "cD+++++++++"),
            (Made, ItemKind::Special, new, "cS+++++++++"),
        ] {
            assert_eq!(item(action, kind, changes).code(false), code);
        }
        assert_eq!(item(Sent, ItemKind::File, new).code(true), "<f+++++++++");
    }

    #[test]
    fn the_destination_itself_is_a_directory_with_a_dot() {
        let mut root = item(ItemAction::Made, ItemKind::Directory, ItemChanges::of_new());
        assert_eq!(root.shown_path(), b"a/");
        root.path.clear();
        assert_eq!(root.shown_path(), b"./");
    }
}

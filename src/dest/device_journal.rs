//! The place of the journal for a copy to a device. Beside a device fastcp has no directory to
//! write to, and it must find the journal again when the device has another name or number.

use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::EntrySlot;
use crate::device;
use crate::digest::{self, Digest};
use crate::dir::{Dir, Handles, home};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Name;

/// A copy that nobody has resumed for this long is abandoned.
const AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Number of other journals that are kept; each has some 100 bytes for a MiB of its device.
const KEPT_MAX: usize = 32;

/// A journal modified within this time may have a writer; this allows for clocks that differ.
const IN_USE: Duration = Duration::from_secs(3600);

/// Most names in the directory that are looked at.
const LOOKED_AT_MAX: usize = 10_000;

/// The slot of the journal for a copy from `source`, as the user knows it, to the device in `slot`.
/// Makes its directory, which only this user may enter, and removes journals of abandoned copies.
///
/// # Errors
/// `Kind::Write` if there is no home directory or it cannot be written. `Kind::Refused` if the
/// directory belongs to another user.
pub fn device_journal(
    slot: &EntrySlot,
    source: &[u8],
    handles: &Arc<Handles>,
) -> Result<EntrySlot> {
    let path = state_directory(std::env::var_os("XDG_STATE_HOME").map(PathBuf::from))?;
    make_private(&path)?;
    let dir = Dir::root(&path, handles).map_err(|cause| cannot_keep(&path, cause))?;
    // A path that is not a device (any more) is refused when it is opened.
    let device = device::stable_name(&slot.path()).unwrap_or_default();
    let name = journal_name(&device, source);
    sweep(&path, &name, SystemTime::now());
    Ok(EntrySlot::new(dir, name))
}

/// `$XDG_STATE_HOME/fastcp`, or `~/.local/state/fastcp`. As the XDG specification demands, a
/// relative path is ignored.
pub(super) fn state_directory(named: Option<PathBuf>) -> Result<PathBuf> {
    let named = named.filter(|path| path.is_absolute());
    let state = named.or_else(|| Some(home::own()?.join(".local/state")));
    match state {
        Some(state) => Ok(state.join("fastcp")),
        None => {
            let message = "the home directory of this user is unknown, so the journal has no place; set \
                           XDG_STATE_HOME";
            Err(Error::new(Kind::Write, Side::Dest, message))
        }
    }
}

fn journal_name(device: &[u8], source: &[u8]) -> Name {
    // The length separates pairs that would otherwise be the same text.
    let len = (device.len() as u64).to_le_bytes();
    let key: Digest = digest::of_range(&[&len, device, source].concat(), 0, true);
    let hex: String = key[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("device-{hex}.journal").into_bytes();
    Name::try_from(name).expect("hexadecimal digits are a name")
}

/// Removes journals of abandoned copies: all that are too old, and the oldest if there are too
/// many. A journal in use is never old, since its writer touches it every second. Journals that
/// cannot be inspected or removed stay.
fn sweep(dir: &Path, own: &Name, now: SystemTime) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    let age_of = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let is_journal = is_journal_name(name.as_bytes()) && name.as_bytes() != own.as_bytes();
        let found = entry.metadata().ok().filter(|_| is_journal)?;
        let age = now
            .duration_since(found.modified().ok()?)
            .unwrap_or_default();
        found.is_file().then_some((age, entry.path()))
    };
    let entries = entries.flatten().take(LOOKED_AT_MAX);
    let mut journals: Vec<(Duration, PathBuf)> = entries.filter_map(age_of).collect();
    journals.sort_unstable();
    for (nth, (age, path)) in journals.into_iter().enumerate() {
        if age > AGE_MAX || (nth >= KEPT_MAX && age > IN_USE) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_journal_name(name: &[u8]) -> bool {
    let middle = name
        .strip_prefix(b"device-")
        .and_then(|rest| rest.strip_suffix(b".journal"));
    middle.is_some_and(|hex| hex.len() == 16 && hex.iter().all(u8::is_ascii_hexdigit))
}

pub(super) fn make_private(dir: &Path) -> Result<()> {
    let failed = |cause| cannot_keep(dir, cause);
    let mut builder = DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(failed)?;
    let found = std::fs::symlink_metadata(dir).map_err(failed)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        let message = "is not a directory of this user, so fastcp puts no journal there; set \
                       XDG_STATE_HOME";
        return Err(Error::new(Kind::Refused, Side::Dest, message).at(dir));
    }
    if found.mode() & 0o077 != 0 {
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(dir, private).map_err(failed)?;
    }
    Ok(())
}

fn cannot_keep(dir: &Path, cause: std::io::Error) -> Error {
    let what = "cannot keep the journal there";
    Error::io(Kind::Write, Side::Dest, dir, what, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_and_source_has_a_journal_of_its_own() {
        let names = [
            journal_name(b"dm/uuid=LVM-1", b"host:/a"),
            journal_name(b"dm/uuid=LVM-1", b"host:/b"),
            journal_name(b"dm/uuid=LVM-2", b"host:/a"),
            journal_name(b"dm/uuid=LVM-", b"1host:/a"),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert_eq!(names[0], journal_name(b"dm/uuid=LVM-1", b"host:/a"));
        let len = names[0].as_bytes().len();
        assert_eq!(len, "device-0123456789abcdef.journal".len());
    }

    #[test]
    fn journals_that_nobody_goes_on_with_are_swept() {
        let temp = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let journal = |n: usize, age: Duration| {
            let path = temp.path().join(format!("device-{n:016x}.journal"));
            let file = std::fs::File::create(&path).unwrap();
            file.set_modified(now - age).unwrap();
            path
        };
        let old = journal(1, AGE_MAX + IN_USE);
        let own = journal(2, AGE_MAX + IN_USE);
        let in_use = journal(3, Duration::ZERO);
        let other = temp.path().join("device-x.journal");
        std::fs::write(&other, "").unwrap();
        let many: Vec<_> = (4..4 + KEPT_MAX)
            .map(|n| journal(n, IN_USE * n as u32))
            .collect();
        let own_name = Name::try_from(own.file_name().unwrap().as_bytes().to_vec()).unwrap();
        sweep(temp.path(), &own_name, now);
        let left: Vec<bool> = [&old, &own, &in_use, &other, &many[0], &many[KEPT_MAX - 1]]
            .iter()
            .map(|path| path.exists())
            .collect();
        assert_eq!(left, [false, true, true, true, true, false]);
    }

    #[test]
    fn the_directory_is_where_the_user_says_and_for_nobody_else() {
        let temp = tempfile::tempdir().unwrap();
        let dir = state_directory(Some(temp.path().join("state"))).unwrap();
        assert_eq!(dir, temp.path().join("state/fastcp"));
        make_private(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        make_private(&dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let relative = state_directory(Some("state".into())).unwrap();
        assert!(relative.ends_with(".local/state/fastcp"));
    }
}

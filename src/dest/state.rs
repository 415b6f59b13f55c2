//! Where the journal of a copy to a device lies. There is no directory beside it that would be
//! ours to write in, and it must be found again when the device has got another name or number.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Slot, home_directory};
use crate::device;
use crate::digest::{self, Digest};
use crate::dir::{Dir, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::Name;

/// Where the journal of a copy from `source`, as the user knows it, to the device in `slot` is.
/// Makes its directory, which only this user may enter.
///
/// # Errors
/// `Kind::Write` where there is no home or it cannot be written; `Kind::Refused` where the
/// directory is another user's.
pub fn device_journal(slot: &Slot, source: &[u8], handles: &Arc<Handles>) -> Result<Slot> {
    let path = state_directory(std::env::var_os("XDG_STATE_HOME").map(PathBuf::from))?;
    make_private(&path)?;
    let dir = Dir::root(&path, handles).map_err(|cause| cannot_keep(&path, cause))?;
    // What is no device (any more) is refused when it is opened.
    let device = device::stable_name(&slot.path()).unwrap_or_default();
    Ok(Slot::new(dir, journal_name(&device, source)))
}

/// `$XDG_STATE_HOME/fastcp`, or `~/.local/state/fastcp`. As its specification has it, a relative
/// path counts as none.
fn state_directory(named: Option<PathBuf>) -> Result<PathBuf> {
    let named = named.filter(|path| path.is_absolute());
    let state = named.or_else(|| Some(home_directory()?.join(".local/state")));
    match state {
        Some(state) => Ok(state.join("fastcp")),
        None => {
            let message = "no home directory for the state of a copy; set XDG_STATE_HOME";
            Err(Error::new(Kind::Write, Side::Dest, message))
        }
    }
}

fn journal_name(device: &[u8], source: &[u8]) -> Name {
    // The length keeps apart what would be one text otherwise.
    let len = (device.len() as u64).to_le_bytes();
    let key: Digest = digest::of_range(&[&len, device, source].concat(), 0, true);
    let hex: String = key[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("device-{hex}.journal").into_bytes();
    Name::try_from(name).expect("hexadecimal digits are a name")
}

fn make_private(dir: &Path) -> Result<()> {
    let failed = |cause| cannot_keep(dir, cause);
    let mut builder = DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(failed)?;
    let found = std::fs::symlink_metadata(dir).map_err(failed)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        let message = "is another user's, so no state is kept there; set XDG_STATE_HOME";
        return Err(Error::new(Kind::Refused, Side::Dest, message).at(dir));
    }
    if found.mode() & 0o077 != 0 {
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(dir, private).map_err(failed)?;
    }
    Ok(())
}

fn cannot_keep(dir: &Path, cause: std::io::Error) -> Error {
    let what = "cannot keep the state of a copy there";
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

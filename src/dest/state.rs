//! Where the journal of a copy to a device lies. There is no directory beside it that would be
//! ours to write in, and it must be found again when the device has got another name or number.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::home_directory;
use crate::digest::{self, Digest};
use crate::error::{Error, Kind, Result, Side};

/// The journal of a copy from `source` (whatever tells it from others, its host included) to the
/// device of this stable name. Makes its directory, which only this user may enter.
///
/// # Errors
/// `Kind::Write` where there is no home or it cannot be written; `Kind::Refused` where the
/// directory is another user's.
pub fn device_journal(device: &[u8], source: &[u8]) -> Result<PathBuf> {
    let dir = state_directory(std::env::var_os("XDG_STATE_HOME").map(PathBuf::from))?;
    make_private(&dir)?;
    Ok(dir.join(journal_name(device, source)))
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

fn journal_name(device: &[u8], source: &[u8]) -> String {
    // The length keeps apart what would be one text otherwise.
    let len = (device.len() as u64).to_le_bytes();
    let key: Digest = digest::of_range(&[&len, device, source].concat(), 0, true);
    let hex: String = key[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("device-{hex}.journal")
}

fn make_private(dir: &Path) -> Result<()> {
    let failed = |cause| {
        let what = "cannot make the directory for the state of a copy";
        Error::io(Kind::Write, Side::Dest, dir, what, cause)
    };
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
        assert_eq!(names[0].len(), "device-0123456789abcdef.journal".len());
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

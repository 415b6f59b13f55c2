//! Devices, FIFOs and sockets: created at the destination. Like a link, a new one replaces an
//! existing entry in one step.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, chmod, fstat, mknodat, renameat, unlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::attributes::{self, Marked};
use super::in_use::refuse_in_use_elsewhere;
use super::own_names::{self, random_name};
use super::{EntrySlot, Rules, backup, existing, hints, sync_directory, times_of};
use crate::error::{Error, Result, Side};
use crate::keep::NotKept;
use crate::manifest::{Entry, EntryKind, file_type};

/// The mode until owner and mode are set.
const FIRST_MODE: u32 = 0o600;

/// Makes the special file `entry`, an [`EntryKind::Special`]. False if the same one exists and stays
/// (`--no-clobber`, or the key may not change it), or if this user may not make it; that is counted,
/// and no error.
///
/// # Errors
/// If a directory exists there, or with `--no-clobber` anything that is not the same special file.
pub fn place_special(slot: &EntrySlot, entry: &Entry, rules: &Rules) -> Result<bool> {
    let EntryKind::Special(special) = entry.kind else {
        return Err(Error::breach(
            Side::Dest,
            "the sender",
            "an unknown special file",
        ));
    };
    let is_wanted = match special.is_device() {
        true => rules.keep.devices,
        false => rules.keep.specials,
    };
    if !is_wanted {
        let what = "a special file that nobody asked for";
        return Err(Error::breach(Side::Dest, "the sender", what).at(slot.path()));
    }
    let not_made = || {
        let (devices, specials) = match special.is_device() {
            true => (1, 0),
            false => (0, 1),
        };
        rules.not_kept.add(&NotKept {
            devices,
            specials,
            ..NotKept::default()
        });
        Ok(false)
    };
    // A device is a right to the hardware, and a confined key grants none.
    if special.is_device() && !rules.set_id {
        return not_made();
    }
    let wanted = special.file_type();
    // A change of its metadata would change an earlier copy too.
    let is_shared = |stat: &Stat| rules.earlier.is_some() && stat.st_nlink > 1;
    let is_it = |stat: &Stat| {
        !is_shared(stat)
            && file_type(stat) == wanted
            && (!special.is_device() || stat.st_rdev == entry.rdev)
    };
    let old = slot.stat()?;
    match &old {
        Some(old) if is_it(old) => {}
        Some(_) if rules.no_clobber => return Err(existing::stays(slot, rules)),
        Some(old) if !may_replace(old) => {
            return Err(slot.refused(
                "is a directory, and a special file does not replace it; remove it first",
            ));
        }
        _ => match make(slot, wanted, entry.rdev, old.as_ref(), rules) {
            Ok(()) => {}
            Err(MakeError::Node(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                return not_made();
            }
            Err(MakeError::Old(error)) => return Err(error),
            Err(MakeError::Node(cause) | MakeError::Name(cause)) => {
                return Err(hints::name_error(
                    slot,
                    "cannot create the special file",
                    cause,
                ));
            }
        },
    }
    let stays = rules.untouched || rules.no_clobber;
    if old.is_some_and(|old| is_it(&old)) && stays {
        return Ok(false);
    }
    give_metadata(slot, entry, rules, is_it)?;
    if rules.fsync {
        sync_directory(&slot.dir)?;
    }
    Ok(true)
}

fn may_replace(old: &Stat) -> bool {
    file_type(old) != FileType::Directory
}

/// Where it failed.
enum MakeError {
    Node(Errno),
    /// At the existing entry, or at its backup.
    Old(Error),
    Name(Errno),
}

fn make(
    slot: &EntrySlot,
    wanted: FileType,
    device: u64,
    old: Option<&Stat>,
    rules: &Rules,
) -> std::result::Result<(), MakeError> {
    let dir = slot.dir.handle();
    let dir = dir.map_err(|cause| {
        let cause = Errno::from_io_error(&cause).unwrap_or(Errno::IO);
        MakeError::Name(cause)
    })?;
    let node = |name: &OsStr| {
        let mode = Mode::from_raw_mode(FIRST_MODE);
        mknodat(&*dir, name, wanted, mode, device).map_err(MakeError::Node)
    };
    let Some(existing) = old else {
        return node(slot.name.as_os_str());
    };
    let temporary = random_name(slot);
    node(&temporary)?;
    let put = || renameat(&*dir, &temporary, &*dir, slot.name.as_os_str());
    let renamed = refuse_in_use_elsewhere(slot, existing, rules)
        .and_then(|()| backup::keep_old(slot, old, rules))
        .map_err(MakeError::Old)
        .and_then(|kept| {
            // A partial file took the name after it was seen to be free: then only this entry fails.
            let renamed = own_names::while_unused(slot, put).unwrap_or(Err(Errno::BUSY));
            let settled = backup::settle(kept, renamed.is_ok());
            settled.map_err(MakeError::Old)?;
            renamed.map_err(MakeError::Name)
        });
    if renamed.is_err() {
        // The error of the rename is reported.
        let _ = unlinkat(&*dir, &temporary, AtFlags::empty());
    }
    renamed
}

fn give_metadata(
    slot: &EntrySlot,
    entry: &Entry,
    rules: &Rules,
    is_it: impl Fn(&Stat) -> bool,
) -> Result<()> {
    let opened = slot
        .dir
        .open(slot.name.as_os_str(), OFlags::PATH, Mode::empty());
    let fd = opened.map_err(|cause| slot.unreadable(cause))?;
    let mut stat = fstat(&fd).map_err(|cause| slot.no_status(cause))?;
    if !is_it(&stat) {
        return Err(slot.refused("was replaced by another process during the copy; copy it again"));
    }
    let marked = Marked::Path(fd.as_fd());
    let path = Marked::through_proc(&fd.as_fd());
    attributes::give_before_mode(&marked, slot, entry, &mut stat, rules)?;
    let mode = match rules.keep.perms {
        true => rules.mode_to_give(entry, &stat),
        false => rules.new_mode(entry),
    };
    if mode != stat.st_mode & 0o7777 {
        chmod(&path, Mode::from_raw_mode(mode))
            .map_err(|cause| slot.error("cannot set the mode", cause))?;
    }
    attributes::give_after_mode(&marked, slot, entry, rules)?;
    if rules.keep.times {
        utimensat(CWD, &path, &times_of(entry), AtFlags::empty())
            .map_err(|cause| slot.error("cannot set the times", cause))?;
    }
    Ok(())
}

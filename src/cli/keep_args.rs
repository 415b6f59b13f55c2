//! The options for metadata and for existing files. All but `--strict` have rsync's names.

use crate::dest::process_umask;
use crate::error::{Error, Result};
use crate::keep::{BadChange, Keep, MetadataChanges, UnchangedBy, Update};

const METADATA: &str = "Metadata and links";
const EXISTING: &str = "Existing files";

#[derive(Debug, clap::Args)]
pub(super) struct KeepArgs {
    /// -r and all metadata; --no-owner etc. omit a part
    #[arg(short = 'a', long, help_heading = METADATA)]
    pub archive: bool,
    /// Keep times; skip unchanged files
    #[arg(short = 't', long, overrides_with = "no_times", help_heading = METADATA)]
    pub times: bool,
    /// Keep modes (permissions)
    #[arg(long, overrides_with = "no_perms", help_heading = METADATA)]
    pub perms: bool,
    /// Keep owners (needs root)
    #[arg(long, overrides_with = "no_owner", help_heading = METADATA)]
    pub owner: bool,
    /// Keep groups
    #[arg(short = 'g', long, overrides_with = "no_group", help_heading = METADATA)]
    pub group: bool,
    /// Keep access control lists and modes
    #[arg(long, overrides_with = "no_acls", help_heading = METADATA)]
    pub acls: bool,
    /// Keep extended attributes
    #[arg(long, overrides_with = "no_xattrs", help_heading = METADATA)]
    pub xattrs: bool,
    /// Copy devices (needs root)
    #[arg(long, overrides_with = "no_devices", help_heading = METADATA)]
    pub devices: bool,
    /// Copy FIFOs and sockets
    #[arg(long, overrides_with = "no_specials", help_heading = METADATA)]
    pub specials: bool,
    /// Keep owners and groups by number, not by name
    #[arg(long, help_heading = METADATA)]
    pub numeric_ids: bool,
    /// Change modes: u=rwX, D755 (directories), F644 (files)
    #[arg(long, value_name = "CHANGES", help_heading = METADATA)]
    chmod: Vec<String>,
    /// Give the copies another owner (needs root)
    #[arg(long, value_name = "USER[:GROUP]", help_heading = METADATA)]
    chown: Option<String>,
    /// Exit 1 if some metadata could not be kept
    #[arg(long, help_heading = METADATA)]
    pub strict: bool,
    /// Do not set the times of directories
    #[arg(long, help_heading = METADATA)]
    pub omit_dir_times: bool,

    /// Keep existing files that are newer
    #[arg(short = 'u', long, help_heading = EXISTING)]
    pub update: bool,
    /// Copy only entries that exist at the destination
    #[arg(long, help_heading = EXISTING)]
    pub existing: bool,
    /// Copy only entries that do not exist there
    #[arg(long, help_heading = EXISTING)]
    pub ignore_existing: bool,
    /// Skip files of the same content (compares BLAKE3)
    #[arg(long, help_heading = EXISTING)]
    pub checksum: bool,
    /// Skip files of the same size, even if times differ
    #[arg(long, help_heading = EXISTING)]
    pub size_only: bool,
    /// Copy files of the same size and time too
    #[arg(short = 'I', long, help_heading = EXISTING)]
    pub ignore_times: bool,

    #[arg(long, hide = true, overrides_with = "times")]
    no_times: bool,
    #[arg(long, hide = true, overrides_with = "perms")]
    no_perms: bool,
    #[arg(long, hide = true, overrides_with = "owner")]
    no_owner: bool,
    #[arg(long, hide = true, overrides_with = "group")]
    no_group: bool,
    #[arg(long, hide = true, overrides_with = "acls")]
    no_acls: bool,
    #[arg(long, hide = true, overrides_with = "xattrs")]
    no_xattrs: bool,
    #[arg(long, hide = true, overrides_with = "devices")]
    no_devices: bool,
    #[arg(long, hide = true, overrides_with = "specials")]
    no_specials: bool,
    /// Hard links are always kept.
    #[arg(short = 'H', long, hide = true)]
    pub hard_links: bool,
}

impl KeepArgs {
    /// The metadata that is kept, given `-p`.
    pub(super) fn keep(&self, preserve: bool) -> Keep {
        let all = match self.archive {
            true => Keep::everything(),
            false => Keep::default(),
        };
        let (new_user, new_group) = self.new_owners();
        // An ACL without the mode beside it could give the owning group more rights.
        let perms = (all.perms || preserve || self.perms || self.acls) && !self.no_perms;
        Keep {
            perms,
            times: (all.times || preserve || self.times) && !self.no_times,
            omit_dir_times: self.omit_dir_times,
            owner: new_user || (all.owner || self.owner) && !self.no_owner,
            group: new_group || (all.group || self.group) && !self.no_group,
            numeric_ids: self.numeric_ids,
            acls: (all.acls || self.acls) && !self.no_acls && perms,
            xattrs: (all.xattrs || self.xattrs) && !self.no_xattrs,
            devices: (all.devices || self.devices) && !self.no_devices,
            specials: (all.specials || self.specials) && !self.no_specials,
        }
    }

    /// Whether `--chown` names a user, and whether it names a group.
    pub(super) fn new_owners(&self) -> (bool, bool) {
        let chown = self.chown.as_deref().unwrap_or_default();
        let (user, group) = chown.split_once(':').unwrap_or((chown, ""));
        (!user.is_empty(), !group.is_empty())
    }

    /// What the copies get instead of the source's modes and owners.
    ///
    /// # Errors
    /// Usage, if a value is malformed.
    pub(super) fn changes(&self) -> Result<MetadataChanges> {
        let mut changes = MetadataChanges::default();
        let malformed = |why: BadChange| Error::usage(why.to_string());
        for text in &self.chmod {
            changes
                .add_modes(text, process_umask())
                .map_err(malformed)?;
        }
        if let Some(text) = &self.chown {
            changes.set_owner(text).map_err(malformed)?;
        }
        Ok(changes)
    }

    /// Which existing files stay. `-p` alone never skips a file, as in scp.
    pub(super) fn update(&self) -> Update {
        let has_times = (self.archive || self.times) && !self.no_times;
        let unchanged_by = match (self.ignore_times, self.size_only) {
            _ if self.checksum => UnchangedBy::Content,
            (true, _) => UnchangedBy::Nothing,
            (false, true) => UnchangedBy::Size,
            (false, false) if has_times => UnchangedBy::SizeAndTime,
            (false, false) => UnchangedBy::Nothing,
        };
        Update {
            unchanged_by,
            newer_stays: self.update,
            existing_only: self.existing,
            new_only: self.ignore_existing,
        }
    }
}

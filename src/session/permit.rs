//! What the key that started this server allows: the arguments of a forced command, as in
//! `command="fastcp --server --confine /srv/backup --write-only --no-overwrite"`. Whoever has the
//! key may say anything on control, so what is not allowed is refused here, before it begins, or
//! taken away from the rules of the copy.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dest::Rules;
use crate::dir::{Confine, Handles};
use crate::error::{Error, Kind, Result, Side};
use crate::wire::message::{Open, Role};

/// What a server may do for its client; by default all that its user may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    /// `--confine`: nothing but what is in this directory.
    pub confine: Option<PathBuf>,
    pub access: Access,
    /// `--no-overwrite`: what is there stays as it is.
    pub no_overwrite: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Full,
    /// `--read-only`
    Read,
    /// `--write-only`
    Write,
}

impl Permit {
    /// Refuses what may not be asked for.
    ///
    /// # Errors
    /// `Kind::Usage`.
    pub fn check(&self, open: &Open) -> Result<()> {
        let refused = |message: &str| Err(Error::usage(message));
        // Each role by its name, so that a new one has to be thought of here.
        match (&open.role, self.access) {
            (Role::Sender { .. }, Access::Write) => {
                return refused("this key may write there and not read");
            }
            (Role::Receiver { .. }, Access::Read) => {
                return refused("this key may read there and not write");
            }
            (Role::Probe { path }, Access::Read) if !path.is_empty() => {
                return refused("this key may read there and not write: probe HOST: alone");
            }
            (Role::Sender { .. } | Role::Receiver { .. } | Role::Probe { .. }, _) => {}
            // A command is everything that its user may.
            (Role::Producer { .. } | Role::Consumer { .. }, _) if *self == Permit::default() => {}
            (Role::Producer { .. } | Role::Consumer { .. }, _) => {
                return refused("this key may copy files there and run no commands");
            }
        }
        if open.options.inplace && (self.no_overwrite || self.access == Access::Write) {
            return refused("--inplace is not for this key: it may not change what is there");
        }
        if open.options.follow_links && self.confine.is_some() {
            return refused("-L is not for this key: it is confined to a directory there");
        }
        Ok(())
    }

    /// The directory that it is confined to.
    ///
    /// # Errors
    /// `Kind::FarEnd` where that cannot be opened.
    pub fn confine(&self) -> Result<Option<Arc<Confine>>> {
        let Some(path) = &self.confine else {
            return Ok(None);
        };
        let confine = Confine::new(path, &Arc::new(Handles::default())).map_err(|cause| {
            let what = "cannot open the directory that this key is confined to";
            Error::io(Kind::FarEnd, Side::Here, path, what, cause)
        })?;
        Ok(Some(Arc::new(confine)))
    }

    /// Where a relative path begins.
    pub fn base(&self, home: PathBuf) -> PathBuf {
        self.confine.as_deref().map_or(home, Path::to_owned)
    }

    /// The rules of a copy, less what is not allowed. A key that may not read is not told either
    /// whether a guess of what is there is right, and one that is confined makes no programs that
    /// run as somebody else.
    pub fn restrict(&self, rules: Rules) -> Rules {
        Rules {
            no_clobber: rules.no_clobber || self.no_overwrite,
            untouched: self.no_overwrite,
            blind: self.access == Access::Write,
            set_id: self.confine.is_none(),
            ..rules
        }
    }
}

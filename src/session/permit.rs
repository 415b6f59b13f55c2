//! Permissions of the key that started this server: the arguments of a forced command, as in
//! `command="fastcp --server --confine /srv/backup --write-only --no-overwrite"`. Anyone with the
//! key may send any message on control. So this module refuses forbidden requests before the copy
//! begins, or removes the forbidden parts from the rules of the copy.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::chunk::CHUNK_SIZE;
use crate::dest::Rules;
use crate::dir::{Confine, Handles, RESERVED, is_reserved};
use crate::error::{Error, Kind, Result, Side};
use crate::pipeline::Budget;
use crate::wire::message::{CopyOptions, Open, Ports, Role};

/// The actions that a client may request; by default everything that the server's user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permit {
    /// `--confine`: only this directory and its contents.
    pub confine: Option<PathBuf>,
    pub access: PermittedAccess,
    /// `--no-overwrite`: existing files stay unchanged.
    pub no_overwrite: bool,
    /// `--allow-delete`: `--delete` is allowed although the key is limited.
    pub deletes: bool,
    /// `--allow-snapshot`: `--snapshot` is allowed although the key is limited.
    pub snapshots: bool,
    /// `--allow-thinning`: so is `--keep`.
    pub thins: bool,
    /// `--allow-remove-source-files`: files may be removed at the source although the key is limited.
    pub removes_sources: bool,
    /// `--allow-outside-links`: symbolic links may lead out of the directory.
    pub outside_links: bool,
    /// `--ports`: the server may listen on these. Without it, a limited key allows only an
    /// ephemeral port.
    pub ports: Option<Ports>,
    /// `--no-syslog`: sessions leave no line in the system log.
    pub no_syslog: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PermittedAccess {
    #[default]
    Full,
    /// `--read-only`
    Read,
    /// `--write-only`
    Write,
}

impl Permit {
    /// True if the key is not limited: its client may do everything that the server's user may do.
    pub fn permits_all(&self) -> bool {
        let permit = Permit {
            no_syslog: false,
            ..self.clone()
        };
        permit == Permit::default()
    }

    /// True if the user of the key must not know how existing files differ.
    pub fn hides_changes(&self, role: &Role) -> bool {
        !role.sends() && self.access == PermittedAccess::Write
    }

    /// True if a session leaves a line in the system log. A client that wants none is heard only if
    /// its key is not limited: the line is for the administrator who has limited the key.
    pub fn records(&self, is_unwanted: bool) -> bool {
        !self.no_syslog && (!is_unwanted || !self.permits_all())
    }

    /// Refuses forbidden requests.
    ///
    /// # Errors
    /// `Kind::Usage`.
    pub fn check(&self, open: &Open) -> Result<()> {
        let refused = |message: &str| Err(Error::usage(message));
        open.options.check_snapshot().map_err(Error::usage)?;
        // Lists every role, so that a new one must be considered here.
        match (&open.role, self.access) {
            (Role::Sender { .. } | Role::Verifier { .. }, PermittedAccess::Write) => {
                return refused("this key may only write (--write-only)");
            }
            (Role::Cleaner { .. }, PermittedAccess::Write) => {
                return refused("this key may only write (--write-only), and --clean lists files");
            }
            (Role::Cleaner { .. }, _) if self.no_overwrite => {
                return refused(
                    "this key does not allow --clean: its forced command has --no-overwrite",
                );
            }
            (Role::Cleaner { .. }, PermittedAccess::Full)
                if self.confine.is_some() && !self.deletes =>
            {
                return refused(
                    "this key does not allow --clean: its forced command lacks --allow-delete",
                );
            }
            (Role::Receiver { .. } | Role::Cleaner { .. }, PermittedAccess::Read) => {
                return refused("this key may only read (--read-only)");
            }
            (Role::Probe { path }, PermittedAccess::Read) if !path.is_empty() => {
                return refused("this key may only read (--read-only): probe HOST: without a path");
            }
            (
                Role::Sender { .. }
                | Role::Receiver { .. }
                | Role::Probe { .. }
                | Role::Verifier { .. }
                | Role::Cleaner { .. },
                _,
            ) => {}
            // A command can do everything that its user can.
            (Role::Producer { .. } | Role::Consumer { .. }, _) if self.permits_all() => {}
            (Role::Producer { .. } | Role::Consumer { .. }, _) => {
                return refused("this key may not run commands");
            }
        }
        // `Confine` looks at the names of a confined key, since DIR itself may have such a name.
        if self.no_overwrite && self.confine.is_none() && has_reserved_name(open) {
            return refused(RESERVED);
        }
        if open.options.inplace && (self.no_overwrite || self.access == PermittedAccess::Write) {
            return refused(
                "this key does not allow --inplace: its forced command has --write-only or \
                 --no-overwrite",
            );
        }
        let update = &open.options.update;
        let looks = update.leaves_out();
        if looks && self.access == PermittedAccess::Write {
            return refused(
                "this key does not allow --update, --existing and --ignore-existing: it may only \
                 write (--write-only)",
            );
        }
        let itemizes = open.options.itemizes || open.options.dry_run;
        if itemizes && self.hides_changes(&open.role) {
            return refused(
                "this key does not allow --dry-run, --check and --itemize-changes: it may only write \
                 (--write-only), and they show how existing files differ",
            );
        }
        let keeps = self.no_overwrite || self.access == PermittedAccess::Write;
        if open.options.earlier.is_some() && keeps {
            return refused(
                "this key does not allow --link-dest and --copy-dest: its forced command has \
                 --write-only or --no-overwrite",
            );
        }
        let is_limited =
            self.confine.is_some() || self.access != PermittedAccess::Full || self.no_overwrite;
        // A check deletes nothing, and the client could also list the entries that it finds.
        let mirror = &open.options.mirror;
        let deletes = mirror.deletes && !open.role.sends() && !open.options.check;
        if deletes && is_limited && !self.deletes {
            return refused(
                "this key does not allow --delete: its forced command lacks --allow-delete",
            );
        }
        if let Some(snapshot) = open.options.snapshot.filter(|_| !open.role.sends()) {
            if is_limited && !self.snapshots {
                return refused(
                    "this key does not allow --snapshot: its forced command lacks --allow-snapshot",
                );
            }
            if is_limited && snapshot.keep.is_some() && !self.thins {
                return refused(
                    "this key does not allow --keep: its forced command lacks --allow-thinning",
                );
            }
        }
        let removes = open.options.mirror.removes_sources && open.role.sends();
        if removes && is_limited && !self.removes_sources {
            return refused(
                "this key does not allow --remove-source-files: its forced command lacks \
                 --allow-remove-source-files",
            );
        }
        if open.options.follow_links && self.confine.is_some() {
            return refused("this key does not allow -L: it is confined to a directory");
        }
        Ok(())
    }

    /// Bounds a client's choices if the key is limited. The client gets no more memory and
    /// threads, and no larger chunks, than the server takes by default; and it cannot choose the
    /// ports.
    ///
    /// # Errors
    /// `Kind::Usage` for larger chunks, since both ends must agree on their size.
    pub fn bound(&self, open: &mut Open) -> Result<()> {
        if self.permits_all() {
            return Ok(());
        }
        if open.chunk_size as usize > CHUNK_SIZE {
            return Err(Error::usage(
                "this key allows no chunks larger than 1 MiB: install the same version on both hosts",
            ));
        }
        let least = |asked: Option<u64>, own: u64| asked.unwrap_or(own).min(own);
        let own = Budget::memory(&CopyOptions::default());
        open.options.memory = Some(least(open.options.memory, own));
        let own = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let threads = least(open.options.threads.map(u64::from), own);
        open.options.threads = u16::try_from(threads).ok();
        open.ports = self.ports;
        Ok(())
    }

    /// The directory that the key is confined to.
    ///
    /// # Errors
    /// `Kind::FarEnd` if it cannot be opened.
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

    /// The directory from which messages name paths, as the client does. None if the client named
    /// an absolute path, or if the key is not confined.
    pub fn root_of_paths(&self, role: &Role) -> Option<&Path> {
        let is_absolute = |path: &Vec<u8>| path.first() == Some(&b'/');
        let names_absolute = match role {
            Role::Sender { operands } => operands.iter().any(is_absolute),
            Role::Receiver { path, .. }
            | Role::Probe { path }
            | Role::Verifier { path }
            | Role::Cleaner { path } => is_absolute(path),
            Role::Producer { .. } | Role::Consumer { .. } => false,
        };
        self.confine.as_deref().filter(|_| !names_absolute)
    }

    /// The directory in which a relative path begins.
    pub fn base(&self, home: PathBuf) -> PathBuf {
        self.confine.as_deref().map_or(home, Path::to_owned)
    }

    /// The rules of a copy without the forbidden parts. A key that may not read also may not learn
    /// whether a guess about existing content is right. A confined key makes no set-id programs.
    pub fn restrict(&self, rules: Rules) -> Rules {
        // A check replaces nothing, and would take files that stay for equal.
        let keeps = self.no_overwrite && !rules.check;
        // A snapshot goes into a separate directory, and an existing file there may be replaced.
        let keeps = keeps && !rules.snapshot;
        Rules {
            no_clobber: rules.no_clobber || keeps,
            makes_room: rules.makes_room && !keeps,
            untouched: keeps,
            blind: self.access == PermittedAccess::Write,
            set_id: self.confine.is_none(),
            no_own_names: self.confine.is_some() || self.no_overwrite,
            closed: self.no_overwrite,
            links_inside: self.confine.is_some() && !self.outside_links,
            ..rules
        }
    }
}

/// True if a typed path of the destination has a name that only fastcp gives to files.
fn has_reserved_name(open: &Open) -> bool {
    let (Role::Receiver { path, .. } | Role::Probe { path }) = &open.role else {
        return false;
    };
    let backups = open.options.backup.iter().map(|place| &place.directory);
    let parts = open.options.maps.iter().map(|map| &map.to);
    let mut paths = backups.chain(parts).chain([path]);
    paths.any(|path| path.split(|byte| *byte == b'/').any(is_reserved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::BackupPlace;
    use crate::keep::Update;
    use crate::mapping::Mapping;
    use crate::mirror::Mirror;

    fn open(options: CopyOptions) -> Open {
        let ports = Some(Ports {
            first: 22,
            last: 80,
        });
        Open {
            ports,
            ..Open::plain(Role::Probe { path: Vec::new() }, options)
        }
    }

    #[test]
    fn a_wish_about_the_log_limits_nothing() {
        let permit = Permit {
            no_syslog: true,
            ..Permit::default()
        };
        let command = b"true".to_vec();
        let asked = Open::plain(Role::Producer { command }, CopyOptions::default());
        assert!(permit.permits_all() && permit.check(&asked).is_ok());
        let permit = Permit {
            no_overwrite: true,
            ..permit
        };
        assert!(!permit.permits_all() && permit.check(&asked).is_err());
    }

    #[test]
    fn a_key_that_may_only_write_compares_no_files() {
        let update = Update {
            newer_stays: true,
            ..Update::default()
        };
        let options = CopyOptions {
            update,
            ..CopyOptions::default()
        };
        let role = Role::Receiver {
            path: b"x".to_vec(),
            sources: Vec::new(),
        };
        let asked = Open {
            role,
            ..open(options)
        };
        assert!(Permit::default().check(&asked).is_ok());
        let permit = Permit {
            access: PermittedAccess::Write,
            ..Permit::default()
        };
        let refused = permit.check(&asked).unwrap_err();
        assert!(refused.message.contains("--update"), "{refused}");
    }

    #[test]
    fn a_key_that_overwrites_nothing_names_no_files_of_fastcp() {
        let permit = Permit {
            no_overwrite: true,
            ..Permit::default()
        };
        let asked = |path: &str, options: CopyOptions| Open {
            role: Role::Receiver {
                path: path.into(),
                sources: Vec::new(),
            },
            ..open(options)
        };
        let plain = CopyOptions::default;
        let own = "d/.fastcp-snapshots/2026-01-01T000000Z";
        let maps = Arc::new(vec![Mapping {
            from: b"part".to_vec(),
            to: own.into(),
        }]);
        let backup = Some(BackupPlace {
            suffix: Vec::new(),
            directory: own.into(),
        });
        assert!(permit.check(&asked("d/x.fastcp-x", plain())).is_ok());
        for asked in [
            asked(own, plain()),
            asked("d", CopyOptions { maps, ..plain() }),
            asked("d", CopyOptions { backup, ..plain() }),
        ] {
            assert_eq!(permit.check(&asked).unwrap_err().message, RESERVED);
            assert!(Permit::default().check(&asked).is_ok());
        }
    }

    #[test]
    fn a_key_that_may_only_write_shows_no_changes() {
        let options = [
            CopyOptions {
                dry_run: true,
                ..CopyOptions::default()
            },
            CopyOptions {
                itemizes: true,
                ..CopyOptions::default()
            },
        ];
        for options in options {
            let role = Role::Receiver {
                path: b"x".to_vec(),
                sources: Vec::new(),
            };
            let asked = Open {
                role,
                ..open(options)
            };
            let of = |access| Permit {
                access,
                ..Permit::default()
            };
            assert!(of(PermittedAccess::Full).check(&asked).is_ok());
            // A dry run needs the permissions of the copy.
            assert!(of(PermittedAccess::Read).check(&asked).is_err());
            let refused = of(PermittedAccess::Write).check(&asked).unwrap_err();
            assert!(refused.message.contains("--dry-run"), "{refused}");
        }
    }

    #[test]
    fn a_limited_key_deletes_only_if_its_line_allows_it() {
        let options = CopyOptions {
            mirror: Mirror {
                deletes: true,
                ..Mirror::default()
            },
            ..CopyOptions::default()
        };
        let role = Role::Receiver {
            path: b"x".to_vec(),
            sources: Vec::new(),
        };
        let asked = Open {
            role,
            ..open(options)
        };
        assert!(Permit::default().check(&asked).is_ok());
        let confined = Permit {
            confine: Some("/srv".into()),
            ..Permit::default()
        };
        let kept = Permit {
            no_overwrite: true,
            ..Permit::default()
        };
        for limited in [confined, kept] {
            let refused = limited.check(&asked).unwrap_err();
            assert!(refused.message.contains("--allow-delete"), "{refused}");
            let allowed = Permit {
                deletes: true,
                ..limited
            };
            assert!(allowed.check(&asked).is_ok());
        }
    }

    #[test]
    fn a_limited_key_cleans_only_if_it_may_delete_and_read() {
        let asked = Open {
            role: Role::Cleaner {
                path: b"x".to_vec(),
            },
            ..open(CopyOptions::default())
        };
        assert!(Permit::default().check(&asked).is_ok());
        let confined = Permit {
            confine: Some("/srv".into()),
            ..Permit::default()
        };
        let deletes = Permit {
            deletes: true,
            ..confined.clone()
        };
        assert!(deletes.check(&asked).is_ok());
        let of = |access| Permit {
            access,
            ..deletes.clone()
        };
        let keeps = Permit {
            no_overwrite: true,
            ..deletes.clone()
        };
        for (permit, told) in [
            (confined, "--allow-delete"),
            (of(PermittedAccess::Read), "--read-only"),
            (of(PermittedAccess::Write), "--write-only"),
            (keeps, "--no-overwrite"),
        ] {
            let refused = permit.check(&asked).unwrap_err();
            assert!(refused.message.contains(told), "{refused}");
        }
        assert_eq!(deletes.root_of_paths(&asked.role), Some(Path::new("/srv")));
    }

    #[test]
    fn a_limited_key_takes_no_more_of_the_host_than_its_own_defaults() {
        let greedy = CopyOptions {
            memory: Some(1 << 40),
            threads: Some(256),
            ..CopyOptions::default()
        };
        let mut free = open(greedy.clone());
        Permit::default().bound(&mut free).unwrap();
        assert_eq!((free.options, free.ports.is_some()), (greedy.clone(), true));
        let own = Budget::memory(&CopyOptions::default());
        for permit in [
            Permit {
                confine: Some("/srv".into()),
                ..Permit::default()
            },
            Permit {
                access: PermittedAccess::Read,
                ..Permit::default()
            },
        ] {
            let mut bounded = open(greedy.clone());
            permit.bound(&mut bounded).unwrap();
            assert_eq!(bounded.options.memory, Some(own));
            assert!(bounded.options.threads < Some(256));
            assert_eq!(bounded.ports, None);
            // The client may choose less.
            let modest = CopyOptions {
                memory: Some(16 << 20),
                threads: Some(1),
                ..CopyOptions::default()
            };
            let mut bounded = open(modest.clone());
            permit.bound(&mut bounded).unwrap();
            assert_eq!(bounded.options, modest);
            let mut large = open(greedy.clone());
            large.chunk_size = 16 << 20;
            assert!(permit.bound(&mut large).is_err());
            // The key's line may specify ports.
            let ports = Some(Ports {
                first: 5000,
                last: 5010,
            });
            let mut bounded = open(greedy.clone());
            let permit = Permit { ports, ..permit };
            permit.bound(&mut bounded).unwrap();
            assert_eq!(bounded.ports, ports);
        }
    }
}

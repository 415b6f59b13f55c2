//! Names at the destination that sources on other hosts have taken. Each host has a session of its
//! own, so no receiver sees the names of all.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::manifest::{Name, Root};
use crate::session::request::{Operand, Request};
use crate::units::printable;

/// The names of all hosts, as one of them sees them.
#[derive(Clone)]
pub struct TakenNames {
    /// The index of the host.
    host: usize,
    names: Arc<Mutex<HashMap<Name, TakenName>>>,
}

struct TakenName {
    host: usize,
    /// The operand, printable.
    typed: String,
}

impl TakenNames {
    /// One for each of `hosts` hosts.
    pub fn of(hosts: usize) -> impl Iterator<Item = TakenNames> {
        let names = Arc::default();
        (0..hosts).map(move |host| TakenNames {
            host,
            names: Arc::clone(&names),
        })
    }

    /// Takes the names of this host's roots. A second call takes the same ones again.
    ///
    /// # Errors
    /// `Kind::Usage` if another host has one of them, or a name that one of their backups may get.
    pub fn take(&self, request: &Request, roots: &[Root]) -> Result<()> {
        let mut names = self.names.lock();
        self.check_backups(&names, request, roots)?;
        for root in roots {
            let typed = shown_operand(request, root);
            match names.get(&root.name) {
                Some(other) if other.host != self.host => {
                    return Err(same_name(&other.typed, &typed, &root.name));
                }
                _ => {}
            }
            let host = self.host;
            names.insert(root.name.clone(), TakenName { host, typed });
        }
        Ok(())
    }

    /// Refuses a file whose backup could replace a file of an earlier host. The receiver does not
    /// know that the same command has copied that file.
    fn check_backups(
        &self,
        names: &HashMap<Name, TakenName>,
        request: &Request,
        roots: &[Root],
    ) -> Result<()> {
        let backup = request.options.backup.as_ref();
        let Some(place) = backup.filter(|place| place.is_beside()) else {
            return Ok(());
        };
        // Directories get no backups.
        let files = roots.iter().filter(|root| !root.is_directory);
        let files: HashMap<&[u8], &Root> = files.map(|root| (root.name.as_bytes(), root)).collect();
        for (name, earlier) in names.iter().filter(|(_, taken)| taken.host != self.host) {
            let mut name = name.as_bytes();
            // A second backup of a run gets the suffix twice.
            while place.is_backup(name) {
                name = &name[..name.len() - place.suffix.len()];
                if let Some(root) = files.get(name) {
                    let (earlier, typed) = (&earlier.typed, shown_operand(request, root));
                    return Err(Error::usage(format!(
                        "the backup of {typed} could replace the copy of {earlier}: copy {earlier} \
                         afterwards, or add --backup-dir"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The root's operand, printable.
fn shown_operand(request: &Request, root: &Root) -> String {
    let operand = request.sources.get(root.operand as usize);
    operand.map_or_else(String::new, shown)
}

/// The error for two operands that would land in one place.
pub fn same_name(one: &str, two: &str, name: &Name) -> Error {
    let name = printable(name.as_bytes());
    Error::usage(format!(
        "{one} and {two} would get the same name {name}, and one would replace the other; copy them to \
         different names or into different directories"
    ))
}

fn shown(operand: &Operand) -> String {
    use std::os::unix::ffi::OsStrExt;
    printable(operand.typed.as_bytes())
}

//! The lookup of the parts of a source that go to separate places (`--map`). Each is named by
//! itself, and the walk of the source leaves it out.

use std::io;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::found::special;
use super::operand::{Lookup, NamedSource, beyond_a_key, status};
use super::part::{PartOf, Parts};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Name, file_type};
use crate::mapping::Mapping;

/// Looks up the parts of `source`, in order. A link on the way to one is followed, and so is one at
/// its end.
///
/// # Errors
/// `Kind::Usage` or `Kind::Read` for a part that is missing, or neither a file nor a directory.
pub fn find_parts(
    source: &NamedSource,
    maps: &[Mapping],
    lookup: &Lookup,
) -> Result<(Vec<NamedSource>, Parts)> {
    let (mut found, mut parts) = (Vec::new(), Parts::new());
    for map in maps {
        let mut between = map.names().unwrap_or_default();
        let Some(name) = between.pop() else {
            continue;
        };
        let mut above = source.path.clone();
        above.extend(between.iter().map(Name::as_os_str));
        let path = above.join(&name);
        let fail = |cause: io::Error| {
            let what = match Errno::from_io_error(&cause) {
                Some(Errno::NOENT | Errno::NOTDIR) => {
                    "--map names a part of SOURCE that does not exist"
                }
                _ => "cannot look at this part of SOURCE (--map)",
            };
            Error::io(Kind::Read, Side::Source, &path, what, cause)
        };
        let directory = status(&above, lookup).map_err(fail)?;
        let stat = status(&path, lookup).map_err(fail)?;
        let refused = |what: &str| Error::new(Kind::Usage, Side::Source, what).at(&path);
        if lookup.confine.is_some()
            && let Some(what) = beyond_a_key(&stat)
        {
            return Err(refused(what));
        }
        if let Some(what) = special(file_type(&stat)) {
            let what = format!("is {what}, and --map takes files and directories");
            return Err(refused(&what));
        }
        let is_directory = file_type(&stat) == FileType::Directory;
        parts.insert(((directory.st_dev, directory.st_ino), name.clone()));
        found.push(NamedSource {
            path: path.clone(),
            name,
            contents: is_directory,
            stat,
            confine: lookup.confine.clone(),
            part: Some(Arc::new(PartOf {
                source: source.path.clone(),
                confine: lookup.confine.clone(),
                name: (!source.contents).then(|| source.name.clone()),
                between,
            })),
        });
    }
    Ok((found, parts))
}

//! `--map FROM=TO`: parts of the source that go to separate places.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mapping::{self, Mapping};
use crate::session::{EndKind, Operand};
use crate::units::printable;

use super::args::Args;
use super::ends::name;
use super::operand;

/// The mappings that these options ask for.
///
/// # Errors
/// Usage, if options do not fit one another, or a mapping is impossible.
pub(super) fn maps(
    args: &Args,
    sources: &[Operand],
    dests: &[&Operand],
) -> Result<Arc<Vec<Mapping>>> {
    if args.map.is_empty() {
        return Ok(Arc::default());
    }
    let refused = |why: &str| Err(Error::usage(format!("--map {why}")));
    let [source] = sources else {
        return refused("takes one SOURCE, the directory that has all the parts");
    };
    let ends = || std::iter::once(source).chain(dests.iter().copied());
    if ends().any(|end| end.what != EndKind::Path) {
        return refused("divides a directory: SOURCE and DEST cannot be a pipe or command");
    }
    if !args.recursive && !args.keep.archive {
        return refused("divides a directory: add -r or -a");
    }
    let others = [
        ("--files-from", args.files_from.is_some()),
        ("--relative", args.relative),
        ("--follow", args.follow_ms.is_some()),
        // Its paths are below one directory.
        ("--digests", args.digests.is_some()),
        // A part could be in several directories of the copy.
        ("-L", args.follow_links),
        ("--backup-dir", args.mirror.has_backup_dir()),
        ("--snapshot", args.earlier.is_snapshot()),
        (
            args.earlier.flag().unwrap_or_default(),
            args.earlier.flag().is_some(),
        ),
    ];
    if let Some((other, _)) = others.iter().find(|(_, is_given)| *is_given) {
        return refused(&format!("and {other} cannot be combined"));
    }
    let mut hosts = HashSet::new();
    for dest in dests {
        if !hosts.insert(dest.host.as_ref().map(|host| &host.name)) {
            let second = name(dest);
            return refused(&format!(
                "cannot be used for two DESTs on one host, such as {second}: use one run for each DEST"
            ));
        }
    }
    let is_here = dests.iter().any(|dest| dest.host.is_none());
    let maps = args.map.iter().map(|typed| map(typed, source, is_here));
    let maps: Vec<Mapping> = maps.collect::<Result<_>>()?;
    mapping::check(&maps, true).map_err(Error::usage)?;
    Ok(Arc::new(maps))
}

fn map(typed: &OsString, source: &Operand, is_here: bool) -> Result<Mapping> {
    let shown = printable(typed.as_bytes());
    let fail = |why: &str| Error::usage(format!("--map {shown}: {why}"));
    let (from, to) =
        divided(typed.as_bytes()).ok_or_else(|| fail("write FROM=TO (\\= for a = in FROM)"))?;
    let from = part(&from, source).ok_or_else(|| {
        let source = name(source);
        fail(&format!(
            "FROM must be a path below {source}, such as pg_wal"
        ))
    })?;
    if to.is_empty() {
        return Err(fail(
            "TO is empty: name the place of FROM at the destination",
        ));
    }
    let parsed = operand::parse(OsString::from_vec(to))?;
    if parsed.what != EndKind::Path {
        return Err(fail("TO must be a path, not a pipe"));
    }
    if parsed.host.is_some() {
        return Err(fail(
            "TO is always on the host of DEST: write its path alone (./a:b if it has a colon)",
        ));
    }
    if is_here && parsed.path.starts_with(b"~") {
        return Err(fail(
            "your shell has not replaced the ~ in TO: write the whole path",
        ));
    }
    Ok(Mapping {
        from,
        to: parsed.path,
    })
}

/// FROM and TO, on the two sides of the first `=` that has no backslash before it.
fn divided(typed: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut from = Vec::new();
    let mut rest = typed.iter().copied().enumerate();
    while let Some((at, byte)) = rest.next() {
        match byte {
            b'\\' if typed.get(at + 1) == Some(&b'=') => {
                from.push(b'=');
                rest.next();
            }
            b'=' => return Some((from, typed[at + 1..].to_vec())),
            byte => from.push(byte),
        }
    }
    None
}

/// The path of a part below `source`. An absolute FROM begins with SOURCE as typed.
fn part(from: &[u8], source: &Operand) -> Option<Vec<u8>> {
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let names = path.split(|byte| *byte == b'/');
        let names = names.filter(|name| !name.is_empty() && *name != b".");
        names.map(<[u8]>::to_vec).collect()
    };
    let mut below = names(from);
    if from.starts_with(b"/") {
        let above = names(&source.path);
        let is_below = source.path.starts_with(b"/") && below.starts_with(&above);
        if !is_below {
            return None;
        }
        below.drain(..above.len());
    }
    (!below.is_empty()).then(|| below.join(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parted(typed: &str, source: &str) -> Option<(String, String)> {
        let source = operand::parse(source.into()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (from, to) = divided(typed.as_bytes())?;
        Some((text(part(&from, &source)?), text(to)))
    }

    #[test]
    fn a_part_is_named_from_the_source_or_by_its_whole_path() {
        for (typed, source, from, to) in [
            ("pg_wal=/wal", "/pg/", "pg_wal", "/wal"),
            ("./base//16384/=ts", "h:/pg", "base/16384", "ts"),
            ("/pg/main/pg_wal=/wal", "h:/pg//main/", "pg_wal", "/wal"),
            ("a\\=b=c=d", "x", "a=b", "c=d"),
            ("a\\b=c", "x", "a\\b", "c"),
        ] {
            assert_eq!(
                parted(typed, source),
                Some((from.into(), to.into())),
                "{typed}"
            );
        }
        for (typed, source) in [
            ("pg_wal", "/pg"),
            ("a\\=b", "/pg"),
            ("=x", "/pg"),
            ("./=x", "/pg"),
            ("/pg=x", "/pg"),
            ("/pgx/a=x", "/pg"),
            ("/pg/a=x", "pg"),
        ] {
            assert_eq!(parted(typed, source), None, "{typed} {source}");
        }
    }
}

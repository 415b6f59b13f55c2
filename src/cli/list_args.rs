//! `--files-from` and `--relative`: copies whose files keep their paths below the destination.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use crate::error::{Error, Result, reason_of};
use crate::file_list::{FileList, ListForm, NamesFrom, RelativeCopy};
use crate::pipe::open_option_file;
use crate::session::operands::delete_needs_one_base;
use crate::session::{EndKind, Host, Operand};
use crate::units::printable;

use super::args::Args;
use super::ends::name;
use super::{choice, operand};

/// The copy that these options ask for. Reads the list, unless the host of the sources does that.
///
/// # Errors
/// Usage, if options do not fit one another, or the list cannot be read.
pub(super) fn relative(
    args: &Args,
    sources: &[Operand],
    dest: &Operand,
) -> Result<Option<Arc<RelativeCopy>>> {
    if !args.relative && args.files_from.is_none() {
        return match args.no_implied_dirs {
            true => Err(Error::usage(
                "--no-implied-dirs needs --relative or --files-from",
            )),
            false => Ok(None),
        };
    }
    let flag = match args.files_from {
        Some(_) => "--files-from",
        None => "--relative",
    };
    let refused = |why: &str| Err(Error::usage(format!("{flag} {why}")));
    if !sources
        .iter()
        .chain([dest])
        .all(|end| end.what == EndKind::Path)
    {
        return refused(
            "copies files into a directory: SOURCE and DEST cannot be a pipe or command",
        );
    }
    if args.follow_ms.is_some() {
        return refused("and --follow cannot be combined: name the one file that grows");
    }
    let names = match &args.files_from {
        None => NamesFrom::Operands,
        Some(list) => {
            let [source] = sources else {
                return refused("takes one SOURCE, the directory that all names are below");
            };
            names_from(list, source, args)?
        }
    };
    if let NamesFrom::List(list) = &names
        && args.mirror.deletes()
        && list.bases().len() > 1
    {
        return Err(delete_needs_one_base());
    }
    Ok(Some(Arc::new(RelativeCopy {
        plain_parents: args.no_implied_dirs,
        names,
    })))
}

fn names_from(list: &OsString, source: &Operand, args: &Args) -> Result<NamesFrom> {
    let form = match args.from0 {
        true => ListForm::Nul,
        false => ListForm::Lines,
    };
    let shown = printable(list.as_bytes());
    let shown = format!("--files-from {shown}");
    let fail = |why: &str| Error::usage(format!("{shown}: {why}"));
    // `:FILE` is on the host of SOURCE.
    let (host, path) = match list.as_bytes().strip_prefix(b":") {
        Some(path) => (source.host.clone(), path.to_vec()),
        None => {
            let parsed = operand::parse(list.clone())?;
            if parsed.what == EndKind::Stdio {
                if args.rules.reads_stdin() {
                    return Err(fail("stdin is already the source of the filter rules"));
                }
                let list = FileList::read(choice::stdin(&shown)?, form, &shown)?;
                return Ok(NamesFrom::List(Arc::new(list)));
            }
            let host = parsed.host.map(|host| of_source(host, source));
            (host, parsed.path)
        }
    };
    if host.is_some() && host != source.host {
        return Err(fail(&format!(
            "the list must be on this machine or on the host of SOURCE ({}): copy it to one of them \
             first",
            name(source)
        )));
    }
    if host.is_some() {
        return Ok(NamesFrom::File { path, form });
    }
    let file = open_option_file(OsString::from_vec(path).as_ref());
    let file = file.map_err(|error| fail(&reason_of(&error)))?;
    let list = FileList::read(file, form, &shown)?;
    Ok(NamesFrom::List(Arc::new(list)))
}

/// A host with the name of SOURCE's host, and no other user or port, is SOURCE's host.
fn of_source(host: Host, source: &Operand) -> Host {
    let Some(of_source) = &source.host else {
        return host;
    };
    Host {
        user: host.user.or_else(|| of_source.user.clone()),
        port: host.port.or(of_source.port),
        name: host.name,
    }
}

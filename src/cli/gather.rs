//! Sources on several hosts: checks before the first login, and the copy from each host.

use std::collections::HashMap;

use crate::app::fan_out::HOSTS_MAX;
use crate::error::{Error, Result};
use crate::manifest::Name;
use crate::session::taken_names::same_name;
use crate::session::{EndKind, Operand, Request};
use crate::source;

use super::args::Args;
use super::ends::name;

/// # Errors
/// Usage, if the sources are on several hosts and options or operands do not allow that.
pub(super) fn check(args: &Args, sources: &[Operand], dest: &Operand) -> Result<()> {
    let Some(other) = sources.iter().find(|source| source.host != sources[0].host) else {
        return Ok(());
    };
    let (first, other) = (name(&sources[0]), name(other));
    let refused = |why: &str| {
        Err(Error::usage(format!(
            "{first} and {other} are on two hosts: {why}, or copy from one after the other"
        )))
    };
    let options = [
        ("--files-from", args.files_from.is_some()),
        ("--relative", args.relative),
        ("--snapshot", args.earlier.is_snapshot()),
        ("--digests", args.digests.is_some()),
        ("--follow", args.follow_ms.is_some()),
        ("--address", args.address.is_some()),
        ("--no-target-directory", args.no_target_directory),
    ];
    if let Some((option, _)) = options.iter().find(|(_, is_given)| *is_given) {
        return refused(&format!("leave out {option}"));
    }
    if dest.what != EndKind::Path {
        return refused("name a directory as DEST");
    }
    let mut seen: HashMap<Name, &Operand> = HashMap::new();
    for source in sources {
        let Some(last) = source::name_in_copy(&source.path) else {
            let source = name(source);
            return refused(&format!(
                "{source} means the content of a directory, and each source needs a name in DEST: \
                 write the name of the directory, without a slash at its end"
            ));
        };
        // These names are known after the login: of a pattern, and of a home directory.
        let is_home = source.path.starts_with(b"~") && !source.path.contains(&b'/');
        let is_known = source.host.is_none() || !(is_home || source::is_pattern(last));
        let last = Name::try_from(last.to_vec()).ok();
        let Some(last) = last.filter(|_| is_known) else {
            continue;
        };
        if let Some(same) = seen.insert(last.clone(), source)
            && same.host != source.host
        {
            return Err(same_name(&name(same), &name(source), &last));
        }
    }
    let hosts = by_host(sources).len();
    if hosts > HOSTS_MAX {
        return Err(Error::usage(format!(
            "the sources are on {hosts} hosts, at most {HOSTS_MAX} are allowed: copy in several runs"
        )));
    }
    Ok(())
}

/// The sources of each host, in the order typed.
fn by_host(sources: &[Operand]) -> Vec<Vec<Operand>> {
    let mut hosts: Vec<Vec<Operand>> = Vec::new();
    for source in sources {
        match hosts
            .iter_mut()
            .find(|of_host| of_host[0].host == source.host)
        {
            Some(of_host) => of_host.push(source.clone()),
            None => hosts.push(vec![source.clone()]),
        }
    }
    hosts
}

/// The copy from each host.
pub(super) fn groups(request: &Request) -> Vec<Request> {
    let hosts = by_host(&request.sources);
    let is_beside = hosts.len() > 1;
    let group = |sources: Vec<Operand>| {
        let mut group = Request {
            sources: sources.into(),
            ..request.clone()
        };
        group.options.is_beside = is_beside;
        group
    };
    hosts.into_iter().map(group).collect()
}

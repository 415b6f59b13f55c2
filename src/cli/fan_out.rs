//! `--also` and `--also-from`: further destinations for sources on this host.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::app::fan_out::HOSTS_MAX;
use crate::error::{Error, Result, reason_of};
use crate::pipe::open_option_file;
use crate::session::{EndKind, Host, Operand, Request, Route};
use crate::units::printable;

use super::args::Args;
use super::ends::{check_mistyped, end, name};
use super::operand;

/// Most bytes of a file of destinations. The largest number of destinations with the longest
/// names takes less.
const FILE_MAX: u64 = 1 << 20;

/// The further destinations, checked; empty if none are requested.
///
/// # Errors
/// Usage.
pub(super) fn also(args: &Args, sources: &[Operand], dest: &Operand) -> Result<Vec<Operand>> {
    let mut typed = args.also.clone();
    if let Some(file) = &args.also_from {
        typed.extend(listed(file)?);
    }
    if typed.is_empty() {
        return Ok(Vec::new());
    }
    check_flags(args)?;
    if let Some(remote) = sources.iter().find(|source| source.host.is_some()) {
        return Err(Error::usage(format!(
            "{} is on another host: --also copies files of this machine to several destinations",
            name(remote)
        )));
    }
    let mut also = Vec::new();
    for typed in typed {
        let operand = operand::parse(typed)?;
        let operand = match args.to_command.as_deref() {
            Some(line) => end(Some(operand), Some(line), "--to-command")?,
            None => operand::as_destination(operand),
        };
        check_mistyped(&operand, args)?;
        also.push(operand);
    }
    let all = || std::iter::once(dest).chain(&also);
    let is_standard = |dest: &&Operand| matches!(dest.what, EndKind::Stdio | EndKind::Stderr);
    if let Some(dest) = all().find(is_standard) {
        return Err(Error::usage(format!(
            "{}: cannot be one of several destinations: copy to it in a run of its own, or pipe the \
             source through tee",
            name(dest)
        )));
    }
    if all().count() > HOSTS_MAX {
        let number = all().count();
        return Err(Error::usage(format!(
            "{number} destinations given, at most {HOSTS_MAX} are allowed: copy in several runs"
        )));
    }
    let mut places = std::collections::HashSet::new();
    if let Some(twice) = all().find(|dest| !places.insert(place(dest))) {
        return Err(Error::usage(format!(
            "{}: is given twice as a destination",
            name(twice)
        )));
    }
    let mut hosts = std::collections::HashSet::new();
    if args.mirror.has_common_backup_dir()
        && let Some(second) = all().find(|dest| !hosts.insert(dest.host.as_ref()))
    {
        return Err(Error::usage(format!(
            "{}: is the second destination on this host, and both would put backups into the same \
             --backup-dir: give a relative DIR without .., or use one run for each destination",
            name(second)
        )));
    }
    let mut all = all().filter(|_| args.mirror.deletes());
    let is_inside = |dest: &&Operand| {
        let inner = place(dest);
        places.iter().any(|outer| inner.is_inside(outer))
    };
    if let Some(inner) = all.find(is_inside) {
        return Err(Error::usage(format!(
            "{}: is inside another destination, where --delete would delete it",
            name(inner)
        )));
    }
    Ok(also)
}

fn check_flags(args: &Args) -> Result<()> {
    if args.address.is_some() && args.route != Some(Route::Reverse) {
        return Err(Error::usage(
            "--address with --also needs --route reverse, where this machine alone listens",
        ));
    }
    Ok(())
}

/// The place of a destination. It is equal for two destinations if they are the same, as far as
/// their names show, and on this machine the file system.
#[derive(PartialEq, Eq, Hash)]
struct DestPlace<'a> {
    host: Option<&'a Host>,
    /// Empty for the home directory of a host.
    path: Vec<u8>,
}

fn place(dest: &Operand) -> DestPlace<'_> {
    let host = dest.host.as_ref();
    let path = match (dest.what, host) {
        (EndKind::Path, None) => {
            let path = Path::new(OsStr::from_bytes(&dest.path));
            let whole = path.canonicalize().or_else(|_| std::path::absolute(path));
            let whole = whole.map_or_else(|_| path.as_os_str().to_owned(), OsString::from);
            plain(whole.as_bytes())
        }
        (EndKind::Path, Some(_)) => plain(&dest.path),
        _ => dest.path.clone(),
    };
    DestPlace { host, path }
}

/// A path without names that lead nowhere.
fn plain(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
    if path.starts_with(b"/") {
        return [&b"/"[..], &names.join(&b'/')[..]].concat();
    }
    let is_home = names.first().is_some_and(|name| *name == b"~");
    names[usize::from(is_home)..].join(&b'/')
}

impl DestPlace<'_> {
    /// True if it is below the other one.
    fn is_inside(&self, outer: &DestPlace<'_>) -> bool {
        let (path, outer_path) = (&self.path[..], &outer.path[..]);
        let below = match outer_path {
            // `~name` is another user's home directory.
            b"" => !matches!(path, [] | [b'/' | b'~', ..]),
            b"/" => path.len() > 1 && path.starts_with(b"/"),
            _ => path
                .strip_prefix(outer_path)
                .is_some_and(|below| below.starts_with(b"/")),
        };
        below && self.host == outer.host
    }
}

/// The lines of a file, without empty ones and those that begin with `#`.
fn listed(path: &Path) -> Result<Vec<OsString>> {
    let shown = printable(path.as_os_str().as_bytes());
    let fault = |why: &str| Error::usage(format!("--also-from {shown}: {why}"));
    let mut text = Vec::new();
    open_option_file(path)
        .and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut text))
        .map_err(|cause| fault(&reason_of(&cause)))?;
    if text.len() as u64 > FILE_MAX {
        return Err(fault("too long for a list of destinations"));
    }
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    Ok(lines
        .map(|line| OsStr::from_bytes(line).to_owned())
        .collect())
}

/// Names of the destinations for messages: the host alone, or the whole operand where the host is
/// not unique.
pub(super) fn names(request: &Request) -> Vec<String> {
    let short = |dest: &Operand| {
        dest.host
            .as_ref()
            .map(|host| printable(host.name.as_bytes()))
    };
    let shorts: Vec<_> = request.dests().map(short).collect();
    let is_one = |name: &Option<String>| shorts.iter().filter(|other| *other == name).count() == 1;
    let names = request.dests().zip(&shorts);
    names
        .map(|(dest, short)| match short {
            Some(host) if is_one(short) => host.clone(),
            _ => name(dest),
        })
        .collect()
}

/// The file for the list of digests of each destination: FILE, or FILE.NAME with several.
///
/// # Errors
/// Usage, if two destinations would have the same file.
pub(super) fn digest_lists(file: PathBuf, request: &Request) -> Result<Vec<PathBuf>> {
    if request.also.is_empty() {
        return Ok(vec![file]);
    }
    let names = names(request).into_iter();
    let lists: Vec<PathBuf> = names
        .map(|name| {
            let name = name.trim_start_matches("./").trim_matches('/');
            let mut path = file.clone().into_os_string();
            path.push(format!(".{}", name.replace('/', "_")));
            path.into()
        })
        .collect();
    let mut seen = std::collections::HashSet::new();
    match lists.iter().find(|path| !seen.insert(*path)) {
        None => Ok(lists),
        Some(twice) => Err(Error::usage(format!(
            "--digests: the lists of two destinations would both be {}: copy in several runs",
            printable(twice.as_os_str().as_bytes())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::order;
    use super::*;
    use clap::Parser;

    fn ordered(line: &str) -> Result<Request> {
        let words = std::iter::once("fastcp").chain(line.split_whitespace());
        let args = Args::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        order(args).map(|order| order.request)
    }

    fn refused(line: &str) -> String {
        ordered(line).expect_err(line).message
    }

    #[test]
    fn destinations_come_from_flags_and_from_a_file() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("hosts");
        std::fs::write(&file, "# web\n\nc:/p\r\n  u@d:/q \n#e:/p\n").unwrap();
        let line = format!(
            "a h:/p --also b:/p --also ./here --also-from {}",
            file.display()
        );
        let request = ordered(&line).unwrap();
        let typed: Vec<_> = request.dests().map(name).collect();
        assert_eq!(typed, ["h:/p", "b:/p", "./here", "c:/p", "u@d:/q"]);
        assert_eq!(names(&request), ["h", "b", "./here", "c", "d"]);
        let twins = ordered("a h:/p --also h:/q --also i:/p").unwrap();
        assert_eq!(names(&twins), ["h:/p", "h:/q", "i"]);
        let lists = ordered("a h:/p --also h:/q --also i: --also ./k/ --digests d/s").unwrap();
        let wanted = ["d/s.h:_p", "d/s.h:_q", "d/s.i", "d/s.k"];
        assert_eq!(lists.digest_lists, wanted.map(PathBuf::from));
        std::fs::write(&file, vec![b'x'; FILE_MAX as usize + 1]).unwrap();
        assert!(refused(&line).contains("too long"));
    }

    #[test]
    fn what_cannot_go_to_several_is_refused_with_a_sentence() {
        for (line, told) in [
            ("a h:/p --also h:/p/", "is given twice as a destination"),
            ("a h:p --also h:~/./p", "is given twice as a destination"),
            ("a ./p --also p/.", "is given twice as a destination"),
            ("-r --delete a h:/ --also h:/p", "h:/p: is inside another"),
            ("-r --delete a h:p --also h:~//p/q", "is inside another"),
            (
                "-r --delete a h:./p/q --also h:",
                "h:./p/q: is inside another",
            ),
            ("-r --delete a ./p --also p/q", "p/q: is inside another"),
            ("h:a b --also c:/p", "h:a is on another host"),
            ("a h: --also -", "tee"),
            ("a h:a/b --also h:a_b --digests sums", "sums.h:a_b"),
            ("a h:p --also i:p --address x", "--address"),
            ("a h:p --also-from /nonexistent", "--also-from /nonexistent"),
            ("a h:p --also u@i", "looks like a host"),
            ("-a --backup-dir=/o a h:p --also h:q", "h:q: is the second"),
            (
                "-a --backup-dir=../o a h:p --also h:q",
                "the same --backup-dir",
            ),
        ] {
            let message = refused(line);
            assert!(message.contains(told), "{line}: {message}");
        }
        let many = (0..HOSTS_MAX).map(|n| format!(" --also h{n}:"));
        let many = format!("a h:{}", many.collect::<String>());
        assert!(refused(&many).contains("in several runs"));
        for line in [
            "a h:/ --also h:",
            "-r --delete a h:p --also h:pq --also i:p/q --also h:/p/r",
            "-r --delete a h: --also h:~user/p",
            "-r a ./p --also p/q",
            "-a --backup-dir=/o a h:p --also i:p",
            "-a --backup-dir=o a h:p --also h:q",
        ] {
            ordered(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}

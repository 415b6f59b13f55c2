//! The two ends of a copy, from operands, `--from-command` and `--to-command`. The destination must
//! not look like a mistyped host.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::digest::line::{self, LINE_MAX};
use crate::error::{Error, Result};
use crate::session::{EndKind, Operand, Request};
use crate::ui::EndHosts;
use crate::units::printable;

use super::args::Args;
use super::{operand, ssh_config, values};

/// The sources and the destination.
///
/// # Errors
/// Usage.
pub(super) fn ends(operands: Vec<OsString>, args: &Args) -> Result<(Vec<Operand>, Operand)> {
    let operands = operands
        .into_iter()
        .map(operand::parse)
        .collect::<Result<Vec<_>>>()?;
    let (from, to) = (args.from_command.as_deref(), args.to_command.as_deref());
    let (sources, dest) = match (from, to) {
        (None, None) => last_of(operands)?,
        _ => with_commands(operands, from, to)?,
    };
    if sources.len() > 1 && sources.iter().chain([&dest]).any(is_pipe) {
        return Err(Error::usage(
            "a copy from or to a pipe or a command has one source: copy the sources one by one",
        ));
    }
    check_slips(&sources, args)?;
    check_mistyped(&dest, args)?;
    Ok((sources, dest))
}

/// # Errors
/// Usage, if a destination on this machine may be a mistyped host.
pub(super) fn check_mistyped(dest: &Operand, args: &Args) -> Result<()> {
    if dest.host.is_some() || !is_mistyped(dest, args.config.as_deref()) {
        return Ok(());
    }
    let dest = name(dest);
    Err(Error::usage(format!(
        "{dest} does not exist here and looks like a host: \
         write fastcp ... {dest}: for the host, or fastcp ... ./{dest} for a local file"
    )))
}

fn last_of(mut operands: Vec<Operand>) -> Result<(Vec<Operand>, Operand)> {
    match operands.pop() {
        Some(dest) if !operands.is_empty() => Ok((operands, operand::as_destination(dest))),
        _ => Err(Error::usage(
            "a source and a destination are needed: fastcp SOURCE... DEST (see fastcp --help)",
        )),
    }
}

/// A command replaces a path. The operand that says where it runs may be omitted if it runs here.
/// A single operand then belongs to the other end; with two commands it belongs to the
/// destination.
fn with_commands(
    operands: Vec<Operand>,
    from: Option<&OsStr>,
    to: Option<&OsStr>,
) -> Result<(Vec<Operand>, Operand)> {
    let mut operands = operands.into_iter();
    let (source, dest) = match (operands.len(), from, to) {
        (0, Some(_), Some(_)) => (None, None),
        (1, None, Some(_)) => (operands.next(), None),
        (1, Some(_), _) => (None, operands.next()),
        (2, ..) => (operands.next(), operands.next()),
        _ => {
            return Err(Error::usage(
                "a command takes the place of SOURCE or DEST: write fastcp --from-command CMD \
                 [HOST:] DEST or fastcp SOURCE [HOST:] --to-command CMD (HOST: only if the command \
                 runs on another host)",
            ));
        }
    };
    let source = end(source, from, "--from-command")?;
    let dest = end(dest.map(operand::as_destination), to, "--to-command")?;
    Ok((vec![source], dest))
}

/// The command at `place`, or the operand itself if there is no command.
pub(super) fn end(place: Option<Operand>, command: Option<&OsStr>, flag: &str) -> Result<Operand> {
    let Some(line) = command else {
        return Ok(place.expect("without a command there is an operand for this end"));
    };
    if line.as_bytes().iter().all(u8::is_ascii_whitespace) {
        return Err(Error::usage(format!("{flag} is empty")));
    }
    let is_place = |place: &Operand| {
        place.what == EndKind::Stdio || place.host.is_some() && place.path.is_empty()
    };
    if let Some(path) = place.as_ref().filter(|place| !is_place(place)) {
        return Err(Error::usage(format!(
            "{} is a path, but {flag} replaces the path: \
             write HOST: to run the command on HOST, or - to run it here",
            name(path)
        )));
    }
    Ok(Operand {
        typed: line.to_owned(),
        host: place.and_then(|place| place.host),
        what: EndKind::Command,
        path: line.as_bytes().to_vec(),
    })
}

/// Detects a separate word after a flag that takes no value (`-p 22`), or takes it only after `=`
/// (`--sudo USER`). The word became a source. Checked only with several sources: a single missing
/// source gets the ordinary error.
fn check_slips(sources: &[Operand], args: &Args) -> Result<()> {
    let [first, _, ..] = sources else {
        return Ok(());
    };
    let is_here = first.what == EndKind::Path && first.host.is_none();
    let Some(word) = first.typed.to_str().filter(|_| is_here) else {
        return Ok(());
    };
    let is_missing = Path::new(word).symlink_metadata().is_err();
    let is_port = word.parse::<u16>().is_ok();
    let meant = if args.preserve && args.port.is_none() && is_port {
        format!("-P {word} (-p keeps modes and times)")
    } else if args.sudo.is_some() && values::user(word).is_ok() {
        format!("--sudo={word}")
    } else if args.follow_ms.is_some() && values::idle(word).is_ok() {
        format!("--follow={word}")
    } else if args.progress.is_some() && values::interval(word).is_ok() {
        format!("--progress={word}")
    } else {
        return Ok(());
    };
    match is_missing {
        true => Err(Error::usage(format!(
            "{}: no such file or directory: did you mean {meant}?",
            name(first)
        ))),
        false => Ok(()),
    }
}

/// A notice for a user who has typed a list of digests as the source of a comparison.
pub(super) fn list_notice(sources: &[Operand], dest: &Operand) -> Option<String> {
    let [source] = sources else { return None };
    if source.host.is_some() || source.what != EndKind::Path {
        return None;
    }
    let path: &OsStr = OsStr::from_bytes(&source.path);
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut first = Vec::new();
    let list = BufReader::new(File::open(path).ok()?.take(LINE_MAX as u64));
    list.take(LINE_MAX as u64)
        .read_until(b'\n', &mut first)
        .ok()?;
    line::parse(&first).ok()?;
    let (list, dest) = (name(source), name(dest));
    Some(format!(
        "fastcp: {list} is a list of digests, and is compared as a file: to compare the files that \
         it names, write --check={list} {dest}"
    ))
}

fn is_pipe(operand: &Operand) -> bool {
    operand.what != EndKind::Path
}

pub(super) fn name(operand: &Operand) -> String {
    printable(operand.typed.as_bytes())
}

/// The hosts that messages name.
pub(super) fn hosts_of(request: &Request, dest: &Operand) -> EndHosts {
    let name = |operand: &Operand| {
        let host = operand.host.as_ref()?;
        let name = printable(host.name.as_bytes());
        // As it is typed, since a path follows.
        Some(if name.contains(':') {
            format!("[{name}]")
        } else {
            name
        })
    };
    EndHosts {
        source: request.sources.first().and_then(name),
        dest: name(dest),
    }
}

/// True if the destination looks like a host with a forgotten colon. Otherwise the copy would be
/// a local file called `user@host`.
fn is_mistyped(dest: &Operand, config: Option<&Path>) -> bool {
    // A slash makes it a path.
    if dest.what != EndKind::Path || dest.path.contains(&b'/') {
        return false;
    }
    let looks_remote = dest.path.contains(&b'@')
        || dest
            .typed
            .to_str()
            .is_some_and(|host| ssh_config::names(host, config));
    looks_remote && Path::new(&dest.typed).symlink_metadata().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// `host|what|path` of the source and of the destination.
    fn shown(words: &[&str]) -> String {
        let args = Args::try_parse_from(std::iter::once(&"fastcp").chain(words)).unwrap();
        match ends(args.operands.clone(), &args) {
            Err(error) => error.message,
            Ok((sources, dest)) => {
                let one = |operand: &Operand| {
                    let host = operand.host.as_ref().map_or("", |host| &host.name);
                    let path = String::from_utf8_lossy(&operand.path);
                    format!("{host}|{:?}|{path}", operand.what)
                };
                format!("{} -> {}", one(&sources[0]), one(&dest))
            }
        }
    }

    #[test]
    fn a_command_runs_here_or_where_its_operand_says() {
        let (from, to) = (["--from-command", "x y"], ["--to-command", "z"]);
        for (words, meant) in [
            (vec!["-", "h:p"], "|Stdio| -> h|Path|p"),
            (vec!["h:p", "-"], "h|Path|p -> |Stdio|"),
            ([&from[..], &["h:b"]].concat(), "|Command|x y -> h|Path|b"),
            (
                [&from[..], &["h:", "b"]].concat(),
                "h|Command|x y -> |Path|b",
            ),
            ([&from[..], &["-", "b"]].concat(), "|Command|x y -> |Path|b"),
            ([&["a", "h:"], &to[..]].concat(), "|Path|a -> h|Command|z"),
            ([&["h:a"], &to[..]].concat(), "h|Path|a -> |Command|z"),
            ([&["-", "h:"], &to[..]].concat(), "|Stdio| -> h|Command|z"),
            (
                [&from[..], &to, &["h:"]].concat(),
                "|Command|x y -> h|Command|z",
            ),
            (
                [&from[..], &to, &["h:", "-"]].concat(),
                "h|Command|x y -> |Command|z",
            ),
            ([&from[..], &to].concat(), "|Command|x y -> |Command|z"),
        ] {
            assert_eq!(shown(&words), meant, "{words:?}");
        }
    }

    #[test]
    fn a_value_that_was_taken_for_a_source_is_told_apart() {
        for (words, told) in [
            ("-p 2222 a h:", "did you mean -P 2222 (-p"),
            ("-rp 2222 h:a .", "did you mean -P 2222 (-p"),
            ("--sudo carol a h:", "did you mean --sudo=carol?"),
            ("--follow 30s a h:", "did you mean --follow=30s?"),
            ("--follow 30s h:a .", "did you mean --follow=30s?"),
            ("--progress 30s a h:", "did you mean --progress=30s?"),
        ] {
            let message = shown(&words.split(' ').collect::<Vec<_>>());
            assert!(message.contains(told), "{words}: {message}");
        }
        for words in [
            "-p 2222 h:",
            "--sudo carol h:",
            "2222 a h:",
            "-p -P22 2222 a h:",
        ] {
            let meant = shown(&words.split(' ').collect::<Vec<_>>());
            assert!(meant.ends_with("-> h|Path|"), "{words}: {meant}");
        }
    }

    #[test]
    fn ends_that_a_stream_cannot_have_are_refused() {
        let to = ["--to-command", "z"];
        for (words, told) in [
            (vec!["a", "b", "-"], "one source"),
            (vec!["-", "a", "h:"], "one source"),
            ([&["a", "h:p"], &to[..]].concat(), "h:p is a path"),
            (
                [&["a", "b", "h:"], &to[..]].concat(),
                "takes the place of SOURCE or DEST",
            ),
            (to.to_vec(), "takes the place of SOURCE or DEST"),
            (vec!["a", "--to-command", " "], "is empty"),
            (vec!["-"], "are needed"),
        ] {
            let message = shown(&words);
            assert!(message.contains(told), "{words:?}: {message}");
        }
    }
}

//! `fastcp --check=LIST [HOST:]DIR`: compares files with a list of digests.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::session::{DigestsFrom, EndKind, Operand, Request, host};
use crate::ui::{Output, stdout};
use crate::units::printable;

use super::args::Args;
use super::check::{Order, check_log_file, check_report, way};
use super::ends::name;
use super::operand;
use super::request::request;
use super::{choice, list_args};

/// The checked command line of a comparison with `list`.
///
/// # Errors
/// Usage.
pub(super) fn order(mut args: Args, list: &OsStr) -> Result<Order> {
    let source = source(std::mem::take(&mut args.operands))?;
    let from = digests_from(list)?;
    check_flags(&args)?;
    way(&args, source.host.is_some())?;
    let selector = choice::selector(&args, std::slice::from_ref(&source), SystemTime::now())?;
    let relative = list_args::relative(&args, std::slice::from_ref(&source), &source)?;
    if selector.is_choosing() || relative.is_some() || !args.map.is_empty() {
        return Err(refused(
            "the options that choose files, since LIST names the files",
        ));
    }
    if args.json || !args.quiet {
        stdout::check()?;
    }
    let output = Output {
        quiet: args.quiet,
        verbose: args.verbose > 0,
        names_files: false,
        summary: true,
        progress: args.progress,
        plain: std::io::IsTerminal::is_terminal(&std::io::stdout()),
        json: args.json,
        changes: !args.quiet,
        check: true,
    };
    check_log_file(&args)?;
    check_report(&args)?;
    let (ignored, log_file) = (args.ignored.told(), args.log_file.clone());
    let report = args.report.clone();
    let dest = Operand {
        typed: OsString::new(),
        host: None,
        what: EndKind::Path,
        path: Vec::new(),
    };
    let (schedule, start) = args
        .schedule
        .schedule(SystemTime::now(), &host::zone_here)?;
    let mut request = Request {
        schedule,
        check: true,
        check_list: Some(from),
        ..request(args, vec![source], dest, None)?
    };
    request.options.itemizes = false;
    if request.archives() || request.options.preserve || request.options.digests {
        return Err(refused(
            "the options about metadata, existing files and deletion, since only content is compared",
        ));
    }
    // Nothing is written, and nothing is kept for a later run.
    (request.options.dry_run, request.options.no_resume) = (true, true);
    Ok(Order {
        request,
        output,
        log_file,
        report,
        // No data travels that could be read on the way.
        warnings: Vec::from_iter(start),
        ignored,
    })
}

/// The directory that has the files: the working directory if none is named.
fn source(operands: Vec<OsString>) -> Result<Operand> {
    let mut operands = operands.into_iter();
    let typed = operands.next().unwrap_or_else(|| ".".into());
    let source = operand::parse(typed)?;
    if operands.next().is_some() {
        return Err(Error::usage(
            "--check=LIST takes one directory: fastcp --check=LIST [HOST:]DIR; to compare two places, \
             write --check SOURCE DEST",
        ));
    }
    match source.what {
        EndKind::Path => Ok(source),
        _ => Err(Error::usage(format!(
            "{}: --check=LIST takes the directory that has the files",
            name(&source)
        ))),
    }
}

fn digests_from(list: &OsStr) -> Result<DigestsFrom> {
    if list.is_empty() {
        return Err(Error::usage(
            "--check= names no list (a variable that is not set?)",
        ));
    }
    let parsed = operand::parse(list.to_owned())?;
    match (parsed.what, parsed.host) {
        (EndKind::Stdio, _) => Ok(DigestsFrom::Stdin),
        (_, None) => Ok(DigestsFrom::File(list.into())),
        (_, Some(_)) => Err(Error::usage(format!(
            "--check={}: the list must be on this machine: copy it here, or pipe it in: ssh HOST \
             cat LIST | fastcp --check=- ...",
            printable(list.as_bytes())
        ))),
    }
}

fn check_flags(args: &Args) -> Result<()> {
    let others = [
        ("--also", !args.also.is_empty() || args.also_from.is_some()),
        ("--from-command", args.from_command.is_some()),
        ("--to-command", args.to_command.is_some()),
        ("--digests", args.digests.is_some()),
        ("--delete", args.mirror.deletes()),
        ("--follow", args.follow_ms.is_some()),
        ("--no-clobber", args.no_clobber),
        ("--inplace", args.inplace),
        ("--live", args.live),
        ("--itemize-changes", args.itemize_changes),
        ("--bwlimit", args.bwlimit.is_some()),
        ("-l", args.limit_kbit_per_s.is_some()),
    ];
    match others.iter().find(|(_, is_given)| *is_given) {
        Some((other, _)) => Err(refused(other)),
        None => Ok(()),
    }
}

fn refused(what: &str) -> Error {
    Error::usage(format!(
        "--check=LIST compares files with a list and copies none: leave out {what}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn ordered(line: &str) -> Result<Order> {
        let words = std::iter::once("fastcp").chain(line.split_whitespace());
        let mut args =
            Args::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let list = args.check.take().flatten().expect("a list");
        order(args, &list)
    }

    #[test]
    fn a_list_needs_an_equals_sign_and_one_directory() {
        let request = ordered("--check=sums h:d").unwrap().request;
        assert_eq!(request.check_list, Some(DigestsFrom::File("sums".into())));
        assert_eq!(request.sources[0].path, b"d");
        let request = ordered("--check=-").unwrap().request;
        assert_eq!(request.check_list, Some(DigestsFrom::Stdin));
        assert_eq!(request.sources[0].path, b".");
        let args = Args::try_parse_from(["fastcp", "--check", "a", "h:d"]).unwrap();
        assert_eq!((args.check, args.operands.len()), (Some(None), 2));
    }

    #[test]
    fn what_a_list_cannot_be_combined_with_is_refused() {
        for (line, told) in [
            ("--check= h:d", "names no list"),
            ("--check=h:sums h:d", "must be on this machine"),
            ("--check=sums h:d x", "one directory"),
            ("--check=sums -", "has the files"),
            ("--check=sums -a h:d", "metadata"),
            ("--check=sums --sudo d", "run sudo fastcp"),
            ("--check=sums -p h:d", "metadata"),
            ("--check=sums --delete h:d", "--delete"),
            ("--check=sums --exclude x h:d", "choose files"),
            ("--check=sums --files-from /dev/null h:d", "choose files"),
            ("--check=sums --also h:e h:d", "--also"),
            ("--check=sums --digests x h:d", "--digests"),
        ] {
            let error = ordered(line).expect_err(line);
            assert_eq!(error.kind.exit_code(), 2, "{line}");
            assert!(error.message.contains(told), "{line}: {}", error.message);
        }
    }
}

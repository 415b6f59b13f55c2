//! Checks of the parsed command line: combinations of flags, and the two [`ends`](super::ends) of
//! the copy. Each error is a sentence.

use std::io::{ErrorKind, IsTerminal};
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::dest::INPLACE_AND_BACKUP;
use crate::error::{Error, Result, reason_of};
use crate::keep::UnchangedBy;
use crate::report::Reporter;
use crate::session::{EndKind, Operand, Request, Route, Rsh, host};
use crate::ui::{Output, stdout};
use crate::units::printable;

use super::args::Args;
use super::choice;
use super::ends::{ends, list_notice};
use super::fan_out;
use super::gather;
use super::list_args;
use super::map_args;
use super::request::{rate_limit, request};

/// The checked command line.
#[derive(Debug)]
pub(super) struct Order {
    pub request: Request,
    pub output: Output,
    /// `--log-file`
    pub log_file: Option<PathBuf>,
    /// `--report`
    pub report: Option<PathBuf>,
    /// Messages for the user that precede the copy.
    pub warnings: Vec<String>,
    /// One line for each option without effect.
    pub ignored: Vec<String>,
}

impl Order {
    /// Shows the warnings, and in verbose mode the options without effect.
    pub(super) fn tell(&self, reporter: &dyn Reporter) {
        self.warnings.iter().for_each(|line| reporter.notice(line));
        self.ignored.iter().for_each(|line| reporter.detail(line));
    }
}

/// # Errors
/// Usage.
pub(super) fn order(mut args: Args) -> Result<Order> {
    let operands = std::mem::take(&mut args.operands);
    if args.keep.archive && args.ignored.has_sftp_options() {
        return Err(Error::usage(
            "-X takes a value, as in scp: write -a, which keeps extended attributes and access \
             control lists too (see fastcp --help rsync)",
        ));
    }
    if args.keep.archive && args.ignored.has_relative_letter() {
        return Err(Error::usage(
            "-R is scp's letter and has no effect: write --relative for rsync's -R, or leave out -R \
             (see fastcp --help rsync)",
        ));
    }
    args.set_check()?;
    let (sources, dest) = ends(operands, &args)?;
    let also = fan_out::also(&args, &sources, &dest)?;
    gather::check(&args, &sources, &dest)?;
    check_between(&sources, &dest, &args)?;
    let is_remote = |end: &Operand| end.host.is_some();
    let is_remote = also.iter().any(is_remote) || sources.iter().chain([&dest]).any(is_remote);
    way(&args, is_remote)?;
    let mut warnings = Vec::from_iter(clear_warning(&args, is_remote));
    if args.check.is_some() {
        warnings.extend(list_notice(&sources, &dest));
    }
    if args.polite && args.route == Some(Route::Ssh) {
        return Err(Error::usage(
            "--polite has no effect on data that goes through ssh: leave out --route ssh, or limit \
             the rate with --bwlimit",
        ));
    }
    if args.through_here && matches!(args.route, Some(Route::Direct | Route::Reverse)) {
        return Err(Error::usage(
            "-3 sends data between two hosts through this one, --route chooses another way: leave \
             out one of the two",
        ));
    }
    if args.no_clobber && args.inplace {
        return Err(Error::usage(
            "--no-clobber keeps existing files, --inplace overwrites them: choose one",
        ));
    }
    check_mirror(&args)?;
    check_earlier(&args, &sources, &dest)?;
    if args.inplace && (args.keep.update || args.keep.size_only) {
        return Err(Error::usage(
            "--inplace cannot be combined with --update or --size-only: they would keep \
             the half-written file of an interrupted copy",
        ));
    }
    if (args.keep.update || args.keep.size_only)
        && sources.iter().any(|source| source.what != EndKind::Path)
    {
        return Err(Error::usage(
            "--update and --size-only compare files, and a pipe or command has neither time nor size",
        ));
    }
    if args.live && args.digests.is_some() {
        return Err(Error::usage(
            "--digests and --live cannot be combined: a file that changes during the copy has no \
             single digest",
        ));
    }
    if args.digests.as_deref() == Some(Path::new("-")) {
        return Err(Error::usage(
            "--digests cannot write to stdout, because a retry rewrites the list: name a file (./- \
             for a file called \"-\")",
        ));
    }
    if args.json && dest.what == EndKind::Stdio {
        return Err(Error::usage(
            "--json and this copy would both write to stdout: leave out --json (--log-file writes to \
             a file), or copy to a file",
        ));
    }
    check_log_file(&args)?;
    check_report(&args)?;
    check_changes(&args, &sources, &dest)?;
    if args.json || args.lists_changes() {
        stdout::check()?;
    }
    if args.follow_ms.is_some() && sources.iter().any(|source| source.what != EndKind::Path) {
        return Err(Error::usage(
            "--follow is for a file that grows; a pipe or a command is read to its end anyway",
        ));
    }
    if args.follow_ms.is_some() && args.recursive {
        return Err(Error::usage(
            "--follow reads the growing files that you name, and none in directories: leave out -r",
        ));
    }
    let relative = list_args::relative(&args, &sources, &dest)?;
    let dests: Vec<&Operand> = std::iter::once(&dest).chain(&also).collect();
    let maps = map_args::maps(&args, &sources, &dests)?;
    let rate_limit = rate_limit(&args)?;
    let now = SystemTime::now();
    let (schedule, start) = args.schedule.schedule(now, &host::zone_here)?;
    let begins = schedule.start.as_ref().map_or(now, |start| start.at);
    let selector = choice::selector(&args, &sources, begins)?;
    let digests = args.digests.clone();
    let (ignored, log_file) = (args.ignored.told(), args.log_file.clone());
    let report = args.report.clone();
    let output = Output {
        quiet: args.quiet,
        verbose: args.verbose > 0,
        names_files: args.names_files(),
        summary: args.summary || args.dry_run,
        progress: args.progress,
        plain: is_at_terminal(&sources, &dest)
            || (args.lists_changes() || args.json) && std::io::stdout().is_terminal(),
        json: args.json,
        changes: args.lists_changes(),
        check: args.check.is_some(),
    };
    warnings.extend(start);
    let mut request = Request {
        also,
        schedule,
        ..request(args, sources, dest, rate_limit)?
    };
    let mirror = &mut request.options.mirror;
    mirror.may_protect = mirror.deletes && selector.may_protect(mirror.deletes_excluded);
    request.options.selector = selector;
    request.options.relative = relative;
    request.options.maps = maps;
    request.options.check_snapshot().map_err(Error::usage)?;
    if let Some(file) = digests {
        request.digest_lists = fan_out::digest_lists(file, &request)?;
    }
    Ok(Order {
        log_file,
        report,
        output,
        warnings,
        ignored,
        request,
    })
}

/// Refuses options that do not go with earlier copies.
///
/// # Errors
/// Usage.
fn check_earlier(args: &Args, sources: &[Operand], dest: &Operand) -> Result<()> {
    let is_path = |end: &Operand| end.what == EndKind::Path;
    if args.earlier.is_snapshot() && !(is_path(dest) && sources.iter().all(is_path)) {
        return Err(Error::usage(
            "--snapshot copies directories: SOURCE and DEST cannot be a pipe or command",
        ));
    }
    let Some(flag) = args.earlier.flag() else {
        return Ok(());
    };
    if !(is_path(dest) && sources.iter().all(is_path)) {
        return Err(Error::usage(format!(
            "{flag} reuses files: SOURCE and DEST cannot be a pipe or command"
        )));
    }
    if args.keep.update().unchanged_by == UnchangedBy::Nothing {
        return Err(Error::usage(format!(
            "{flag} reuses files of the same size and time: add -a or -t, and leave out -I"
        )));
    }
    let others = [
        (
            "--inplace",
            args.inplace,
            "--inplace would change existing files, which may be hard links to earlier copies",
        ),
        (
            "--no-clobber",
            args.no_clobber,
            "--no-clobber compares content, which is not sent for reused files",
        ),
        (
            "--digests",
            args.digests.is_some(),
            "fastcp does not read the content of reused files",
        ),
        (
            "--remove-source-files",
            args.mirror.removes_sources(),
            "reused files are compared only by size and time, so their sources are not removed",
        ),
    ];
    match others.iter().find(|(_, is_given, _)| *is_given) {
        Some((other, _, why)) => Err(Error::usage(format!(
            "{flag} and {other} cannot be combined: {why}"
        ))),
        None => Ok(()),
    }
}

/// Checks the options that keep old versions, or remove files at the source.
///
/// # Errors
/// Usage.
fn check_mirror(args: &Args) -> Result<()> {
    if args.inplace && args.mirror.keeps_backups() {
        return Err(Error::usage(INPLACE_AND_BACKUP));
    }
    if !args.mirror.removes_sources() {
        return Ok(());
    }
    let no_single_copy = !args.also.is_empty() || args.also_from.is_some();
    let what = match () {
        () if no_single_copy => "--also: one destination may fail after another has its copy",
        () if args.follow_ms.is_some() => "--follow: the file is still written",
        () if args.keep.size_only => "--size-only: the copy may have other content",
        () => return Ok(()),
    };
    Err(Error::usage(format!(
        "--remove-source-files cannot be combined with {what}"
    )))
}

/// # Errors
/// Usage, if the log would go to stdout.
pub(super) fn check_log_file(args: &Args) -> Result<()> {
    match args.log_file.as_deref() == Some(Path::new("-")) {
        true => Err(Error::usage(
            "--log-file appends to a file and cannot write to stdout: name a file (./- for a file \
             called \"-\"), or use --json",
        )),
        false => Ok(()),
    }
}

/// # Errors
/// Usage, if the report would go to stdout.
pub(super) fn check_report(args: &Args) -> Result<()> {
    match args.report.as_deref() == Some(Path::new("-")) {
        true => Err(Error::usage(
            "--report replaces a file and cannot write to stdout: name a file (./- for a file \
             called \"-\")",
        )),
        false => Ok(()),
    }
}

/// Checks the options of dry runs and lines about changes.
///
/// # Errors
/// Usage.
fn check_changes(args: &Args, sources: &[Operand], dest: &Operand) -> Result<()> {
    let is_path = |end: &Operand| end.what == EndKind::Path;
    let has_paths = is_path(dest) && sources.iter().all(is_path);
    if args.dry_run && !has_paths {
        let option = if args.check.is_some() {
            "--check"
        } else {
            "--dry-run"
        };
        return Err(Error::usage(format!(
            "{option} compares files: SOURCE and DEST cannot be a pipe or command"
        )));
    }
    if args.dry_run && args.digests.is_some() {
        return Err(Error::usage(
            "--dry-run copies nothing, so --digests has nothing to list: leave out --digests",
        ));
    }
    if args.itemize_changes && dest.what == EndKind::Stdio {
        return Err(Error::usage(
            "--itemize-changes and this copy would both write to stdout: leave it out, or copy to a \
             file",
        ));
    }
    Ok(())
}

/// Checks how a host is reached. `is_remote`: there is one.
///
/// # Errors
/// Usage.
pub(super) fn way(args: &Args, is_remote: bool) -> Result<()> {
    if let Some(command) = &args.remote_path
        && shlex::split(command).is_none_or(|words| words.first().is_none_or(String::is_empty))
    {
        return Err(Error::usage(format!(
            "--remote-path: {} is not a command: empty, or a quote is left open",
            printable(command.as_bytes())
        )));
    }
    if args.sudo.is_some() && args.rsh == Rsh::Local {
        return Err(Error::usage(
            "--sudo needs a host that ssh reaches; with --rsh local, run sudo fastcp",
        ));
    }
    if args.sudo.is_some() && !is_remote {
        return Err(Error::usage(
            "--sudo runs fastcp as another user on a host, but no operand names a host: leave it \
             out, and run sudo fastcp",
        ));
    }
    if let Some(address) = args.bind {
        check_bind(address)?;
    }
    Ok(())
}

/// The warning for a user who sends data unencrypted.
fn clear_warning(args: &Args, is_remote: bool) -> Option<String> {
    let warning = "fastcp: warning: --no-encrypt: anyone on the network path can read the data \
                   (but not change it)";
    (args.no_encrypt && is_remote).then(|| warning.to_owned())
}

/// Checks that this host has the address. Otherwise no data connection could use it: the copy
/// would go through ssh, or fail with an error about firewalls.
fn check_bind(address: IpAddr) -> Result<()> {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AddrNotAvailable => Err(Error::usage(format!(
            "--bind {address}: this machine has no such address"
        ))),
        Err(e) => {
            let why = reason_of(&e);
            Err(Error::usage(format!("--bind {address}: {why}")))
        }
    }
}

/// Refuses options about this host in a copy between two other hosts.
fn check_between(sources: &[Operand], dest: &Operand, args: &Args) -> Result<()> {
    if dest.host.is_none() || sources.iter().all(|source| source.host.is_none()) {
        return Ok(());
    }
    if args.bind.is_some() {
        return Err(Error::usage(
            "--bind sets an address of this machine, but this copy goes between two other hosts: \
             use --address for the listening host",
        ));
    }
    Ok(())
}

/// True if the data comes from or goes to a terminal, where progress bars would disturb it.
fn is_at_terminal(sources: &[Operand], dest: &Operand) -> bool {
    let is_stdio = |operand: &Operand| operand.what == EndKind::Stdio;
    (is_stdio(dest) && std::io::stdout().is_terminal())
        || dest.what == EndKind::Stderr
        || (sources.iter().any(is_stdio) && std::io::stdin().is_terminal())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Compress, Ports, SshOptions};
    use crate::tuner::POLITE_STREAMS;
    use clap::Parser;

    fn ordered(line: &str) -> Result<Order> {
        let words = std::iter::once("fastcp").chain(line.split_whitespace());
        order(Args::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    fn refused(line: &str) -> String {
        let error = ordered(line).expect_err(line);
        assert_eq!(error.kind.exit_code(), 2, "{line}");
        error.message
    }

    #[test]
    fn letters_mean_what_they_mean_to_scp() {
        let order = ordered(
            "-rp -P2222 -i a -ib -F cfg -J gate -oBatchMode=yes -o User=x -S /bin/sh -46BA \
             -c aes -vvvv -q -l8000 -l 800 -r x h:y",
        )
        .unwrap();
        let Request { options, ssh, .. } = &order.request;
        assert!(options.recursive && options.preserve && !options.follow_links);
        assert_eq!(options.rate_limit, Some(102_400), "the last -l counts");
        assert_eq!(
            *ssh,
            SshOptions {
                program: Some("/bin/sh".into()),
                port: Some(2222),
                identities: vec!["a".into(), "b".into()],
                config: Some("cfg".into()),
                jump: Some("gate".into()),
                options: vec!["BatchMode=yes".into(), "User=x".into()],
                cipher: Some("aes".into()),
                ipv4: true,
                ipv6: true,
                batch: true,
                forward_agent: true,
                quiet: true,
                verbose: 2,
            }
        );
        assert!(order.output.quiet && order.output.verbose);
    }

    #[test]
    fn what_changes_has_no_digest() {
        assert!(refused("--live --digests sums a h:b").contains("--live"));
        assert!(ordered("--live a h:b").unwrap().request.options.live);
    }

    #[test]
    fn stdout_carries_data_alone() {
        assert!(refused("--json h:a -").contains("--json"));
    }

    #[test]
    fn letters_without_effect_are_taken_and_told() {
        let order = ordered("-CORsT -D /sftp -X nrequests=4 -Xbuffer=1 a b").unwrap();
        let letters: Vec<_> = order.ignored.iter().map(|line| &line[..2]).collect();
        assert_eq!(letters, ["-C", "-O", "-R", "-s", "-T", "-D", "-X"]);
    }

    #[test]
    fn three_sends_data_between_hosts_through_this_one() {
        let route = |line: &str| ordered(line).unwrap().request.route;
        assert_eq!(route("-3 h:a i:b").between(), Some(Route::Ssh));
        assert_eq!(
            route("--route reverse h:a i:b").between(),
            Some(Route::Reverse)
        );
        assert_eq!(route("h:a i:b").between(), None);
        assert!(refused("-3 --route direct h:a i:b").contains("leave out one"));
    }

    #[test]
    fn long_flags_reach_the_request() {
        let request = ordered(
            "a h:b --streams 3 --compress zstd:-5 --threads 2 --memory 64Mi --no-encrypt \
             --rsh local --digests sums --no-target-directory --no-clobber --fsync --congestion bbr",
        )
        .unwrap()
        .request;
        assert_eq!((request.streams, request.rsh), (Some(3), Rsh::Local));
        assert_eq!(request.options.compress, Compress::Zstd(-5));
        assert_eq!(request.options.memory, Some(64 << 20));
        assert_eq!(request.options.congestion.as_deref(), Some("bbr"));
        assert!(!request.encrypt && request.options.digests);
        assert_eq!(request.digest_lists, [Path::new("sums")]);
    }

    #[test]
    fn routes_and_limits_reach_the_request() {
        let request = ordered(
            "a h:b --route reverse --ports 9001 --bind 127.0.0.1 --address fe80::1%eth0 \
             --bwlimit 40M --nice --drop-cache --polite",
        )
        .unwrap()
        .request;
        let route = &request.route;
        let ports = Ports {
            first: 9001,
            last: 9001,
        };
        assert_eq!(
            (route.asked, route.ports),
            (Some(Route::Reverse), Some(ports))
        );
        assert_eq!(route.bind.unwrap().to_string(), "127.0.0.1");
        assert_eq!(route.address.as_deref(), Some("fe80::1%eth0"));
        let options = &request.options;
        assert_eq!(options.rate_limit, Some(40_000_000));
        assert!(options.nice && options.drop_cache && options.polite);
        assert_eq!(request.streams, Some(POLITE_STREAMS));
        let request = ordered("a h:b --polite --streams 5").unwrap().request;
        assert_eq!(request.streams, Some(5));
        assert!(refused("--polite --route ssh a h:b").contains("--bwlimit"));
        assert!(refused("--bwlimit @/nonexistent a h:b").contains("--bwlimit"));
    }

    #[test]
    fn faults_within_one_argument_are_refused() {
        for line in [
            "-P 0 a b",
            "-P x a b",
            "-l 0 a b",
            "-l 1M a b",
            "--streams 0 a b",
            "--streams 257 a b",
            "--memory 1M a b",
            "--compress brotli a b",
            "--compress zstd:20 a b",
            "--compress lz4:1 a b",
            "--congestion b/r a b",
            "--congestion 0123456789abcdef a b",
            "--rsh telnet a b",
            "--route back a h:b",
            "--ports 9016-9001 a h:b",
            "--ports 0 a h:b",
            "--bind eth0 a h:b",
            "--address [::1] a h:b",
            "--bwlimit 0 a h:b",
            "--bwlimit 40 a h:b",
            "--bwlimit fast a h:b",
            "--bwlimit 1M -l 800 a h:b",
            "-Z a b",
            "-o",
        ] {
            let words = std::iter::once("fastcp").chain(line.split_whitespace());
            let error = Args::try_parse_from(words).expect_err(line);
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn ends_that_cannot_be_carried_out_are_refused_by_name() {
        assert!(refused("").contains("needed"));
        assert!(refused("a").contains("needed"));
        assert!(refused("x a:x b:y").contains("x and a:x"));
        assert!(refused("--bind 127.0.0.1 a:x b:y").contains("--address"));
        // This address is reserved for documentation.
        assert!(refused("--bind 192.0.2.1 a b:y").contains("this machine has no such address"));
        assert!(refused("a:x b:x c").contains("a:x and b:x"));
        assert!(refused("a:x u@a:x c").contains("u@a:x"));
        assert!(refused("x a:y/ c").contains("two hosts"));
        assert!(refused("--remote-path 'open x a:y").contains("--remote-path"));
        for line in [
            "x y",
            "x h:",
            "h:x h:y d",
            "a:x b:y",
            "a:x a:z b:y",
            "a:x b:y c",
            "a:x u@a:y c",
            "c a:x b:y",
            "-- -x h:",
        ] {
            ordered(line).unwrap();
        }
    }

    #[test]
    fn a_destination_that_may_be_a_host_is_refused_with_both_spellings() {
        let temp = tempfile::tempdir().unwrap();
        let config = temp.path().join("config");
        std::fs::write(&config, "Host alpha\n").unwrap();
        let with = format!("-F {}", config.display());
        for dest in ["alpha", "me@nowhere"] {
            let message = refused(&format!("{with} x {dest}"));
            assert!(message.contains(&format!("... {dest}: for")), "{message}");
            assert!(message.contains(&format!("... ./{dest} for")), "{message}");
        }
        let there = temp.path().join("me@here");
        std::fs::write(&there, "").unwrap();
        ordered(&format!("{with} x ./alpha")).unwrap();
        ordered(&format!("{with} x {}", there.display())).unwrap();
        ordered(&format!("{with} x beta")).unwrap();
    }

    #[test]
    fn a_growing_file_is_named() {
        for line in ["-r --follow d h:", "-ar --follow=1s h:d ."] {
            assert!(refused(line).contains("leave out -r"), "{line}");
        }
        // As a directory, it is refused when it is found.
        let options = ordered("-a --follow log h:").unwrap().request.options;
        assert!(!options.recursive);
    }

    #[test]
    fn sudo_needs_a_host() {
        assert!(refused("--sudo a b").contains("run sudo fastcp"));
        assert!(refused("--rsh local --sudo a h:b").contains("run sudo fastcp"));
        for line in ["--sudo a h:b", "--sudo h:a b", "--sudo a b --also h:"] {
            ordered(line).unwrap();
        }
    }

    #[test]
    fn no_encrypt_is_loud_where_something_travels() {
        assert_eq!(ordered("--no-encrypt a h:b").unwrap().warnings.len(), 1);
        assert!(ordered("--no-encrypt a b").unwrap().warnings.is_empty());
        assert!(ordered("a h:b").unwrap().warnings.is_empty());
    }
}

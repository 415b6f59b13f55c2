//! The command line: parsed ([`args`]), checked ([`check`]) and passed to a session, whose
//! outcome becomes the exit code. No other module uses clap.

mod args;
mod check;
mod choice;
mod clean;
mod clock_time;
mod complete;
mod completions;
mod config;
mod earlier_args;
mod ends;
mod exit;
mod fan_out;
mod forced_command;
mod gather;
mod habits;
mod help;
mod keep_args;
mod list_args;
mod list_check;
mod man;
mod map_args;
mod mirror_args;
pub mod operand;
mod probe;
mod remote_admin;
mod request;
mod rule_args;
mod schedule_args;
mod scp;
mod ssh_config;
mod values;

use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;

use clap::{CommandFactory, Parser};

use crate::error::{Error, Kind, Result};
use crate::pipeline::receive::journal_sync;
use crate::progress::Progress;
use crate::progress::in_turn::InTurn;
use crate::progress::together::Together;
use crate::session::server::NotServed;
use crate::session::{Outcome, Request, host, login_turns, server};
use crate::ui::{CommandStart, Copied, EndHosts, LogFile, Recorded, ReportFile, Screen, stdout};
use crate::units::printable;
use crate::wire::greeting;
use crate::{app, program, ssh};

use args::Args;
use check::Order;
use ends::hosts_of;
use exit::{ScpExit, code_of, refuse};
use help::PageRequest;
use scp::{ScpLine, ScpStep};

/// The libraries in the program, their licenses and copyright notices, as `.ci/licenses` wrote them.
const LICENSES: &str = include_str!("../licenses.txt");

/// Executes the command line; returns the exit code.
pub fn main() -> i32 {
    if let Some(code) = ssh::ask::asked() {
        return code;
    }
    if let Some(words) = scp::line(std::env::args_os()) {
        return copy_as_scp(words);
    }
    if let Some(code) = complete::asked(std::env::args_os().skip(1)) {
        return code;
    }
    if let Some(request) = PageRequest::of(std::env::args_os().skip(1)) {
        return request.answer().unwrap_or_else(|error| refuse(&error));
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // --help goes to stdout with code 0, an error to stderr with code 2.
            if !error.use_stderr() {
                return code_of(0, stdout::show(&help::short()));
            }
            exit::say(&usage(&error));
            return error.exit_code();
        }
    };
    if args.scp {
        let message = "--scp must be the first argument: all others are scp's";
        return refuse(&Error::usage(message));
    }
    if let Some(digest) = &args.placed
        && let Err(error) = program::placed::check(digest)
    {
        return refuse(&error);
    }
    if let Some(versions) = &args.speaks {
        return speaks(versions);
    }
    if args.man {
        return code_of(0, stdout::show(&man::command(Args::command())));
    }
    if args.licenses {
        return code_of(0, stdout::show(LICENSES));
    }
    if let Some(shell) = args.completions {
        let script = completions::script(shell, Args::command());
        return code_of(0, stdout::show(&script));
    }
    if args.syncfs {
        return journal_sync::sync_stdin();
    }
    if args.server {
        let permit = args.permit.to_permit(args.ports, args.no_syslog);
        return match server::run(args.placed.is_some(), permit) {
            Ok(()) => 0,
            Err(NotServed::NotBegun(error)) => refuse(&error),
            Err(NotServed::Told(kind)) => kind.exit_code(),
        };
    }
    let typed: Vec<_> = std::env::args_os().skip(1).collect();
    let is_quiet = args.quiet;
    let (args, mut config) = match config::with_config(args, &typed) {
        Ok(configured) => configured,
        Err(error) => return refuse(&error),
    };
    if args.show_config {
        return code_of(0, stdout::show(&config.text()));
    }
    if args.version || args.remove || args.probe || args.clean {
        config.warn(is_quiet);
        let done = match (args.probe, args.clean) {
            (true, _) => probe::run(args),
            (_, true) => clean::run(args),
            _ => remote_admin::run(args),
        };
        return done.unwrap_or_else(|error| refuse(&config.explain(error)));
    }
    let order = config.applied(args, &typed, |mut args| {
        match args.check.take_if(|list| list.is_some()).flatten() {
            Some(list) => list_check::order(args, &list),
            None => check::order(args),
        }
    });
    match order {
        Ok(mut order) => {
            config.warn(is_quiet);
            order.ignored.extend(config.details());
            copy(order)
        }
        Err(error) => refuse(&error),
    }
}

/// Answers `--speaks`, with which a start-up script tests a program before it executes it.
fn speaks(versions: &str) -> i32 {
    if !greeting::speaks(versions) {
        return Kind::FarEnd.exit_code();
    }
    let _ = writeln!(std::io::stdout(), "{} ok", greeting::MARK);
    0
}

/// clap's message with "fastcp: " before it, as in all other errors.
fn usage(error: &clap::Error) -> String {
    let typed: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(line) = habits::unknown_option(error, &typed, &Args::command()) {
        return line + "\n";
    }
    let text = error.render().to_string();
    let is_about = |option: &str| text.contains(&format!("for '{option}'"));
    let hint = if is_about("-l <KBIT>") {
        "(-l is scp's letter for a rate; symbolic links in a directory stay links)\n"
    } else if is_about("--port <PORT>") {
        "(-P is scp's letter for a port, a number from 1 to 65535; a copy shows progress and resumes \
         without an option)\n"
    } else if is_about("--preserve") {
        "(-p and --preserve keep modes and times and take no value; -a keeps all metadata)\n"
    } else {
        ""
    };
    match text.strip_prefix("error: ") {
        Some(fault) => format!("fastcp: {fault}{hint}"),
        None => text,
    }
}

fn copy(order: Order) -> i32 {
    if !order.request.also.is_empty()
        && let Err(error) = app::fan_out::check(&order.request)
    {
        return refuse(&error);
    }
    let recorded = match recorded(&order) {
        Ok(recorded) => recorded,
        Err(error) => return refuse(&error),
    };
    if !order.request.also.is_empty() {
        return copy_to_all(order, recorded);
    }
    let groups = gather::groups(&order.request);
    if groups.len() > 1 {
        return copy_from_all(&order, groups, recorded);
    }
    let (outcome, told) = copy_from_one(order, recorded);
    code_of(outcome.exit_code(), told)
}

/// Sources that the first event names. A shell may have expanded a pattern to 100,000.
const SOURCES_RECORDED: usize = 100;

/// What the records of the copy begin with, if the user wants any. Opens the log, and checks the
/// place of the report.
///
/// # Errors
/// `Kind::Write` if the log cannot be opened or the report cannot be written.
fn recorded(order: &Order) -> Result<Recorded> {
    // The name of the user may come from a directory server.
    if order.log_file.is_none() && order.report.is_none() && !order.output.json {
        return Ok(Recorded::default());
    }
    let log = order.log_file.as_ref();
    let log = log
        .map(|path| LogFile::open(path, host::zone_here))
        .transpose()?;
    let report = order.report.as_deref().map(ReportFile::check).transpose()?;
    let request = &order.request;
    let sources = request.sources.iter().take(SOURCES_RECORDED);
    // A comparison with a list has none.
    let dests = request.dests().filter(|dest| !dest.typed.is_empty());
    Ok(Recorded {
        start: CommandStart {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: printable(host::name().as_bytes()),
            user: printable(host::user().as_bytes()),
            pid: std::process::id(),
            sources: sources.map(ends::name).collect(),
            dests: dests.map(ends::name).collect(),
            dry_run: request.options.dry_run,
            check: request.check,
        },
        log,
        report,
    })
}

/// Copies from one host. Also returns whether the result was written.
fn copy_from_one(order: Order, recorded: Recorded) -> (Outcome, Result<()>) {
    let progress = Arc::new(Progress::default());
    let reading = progress.clone();
    let hosts = hosts_of(&order.request, &order.request.dest);
    let screen = Screen::open(order.output, hosts, recorded, move || reading.snapshot());
    let reporter = screen.reporter();
    order.tell(&*reporter);
    let outcome = app::copy::run(order.request, progress, reporter);
    let told = screen.finish(&outcome);
    (outcome, told)
}

/// Takes scp's steps, with scp's exit code.
fn copy_as_scp(words: Vec<OsString>) -> i32 {
    let line = match ScpLine::parse(words) {
        Ok(line) => line,
        Err(refused) => {
            if let Some(text) = &refused.for_partner {
                // It may not read any more.
                let _ = stdout::show(text);
            }
            exit::say(&refused.message);
            return refused.code;
        }
    };
    let mut code = 0;
    for step in line.steps() {
        let exit = match step {
            ScpStep::Copy(order) => {
                let is_upload = order.request.sources[0].host.is_none();
                let is_upload_of_several = is_upload && order.request.options.is_beside;
                // Its result is the exit code.
                let (outcome, _) = copy_from_one(*order, Recorded::default());
                ScpExit::of(&outcome, is_upload_of_several)
            }
            ScpStep::Cp(cp) => cp.run().unwrap_or_else(|error| {
                exit::say(&format!("{error}\n"));
                ScpExit::of_entries(false)
            }),
            ScpStep::Failed(error, exit) => {
                exit::say(&format!("{error}\n"));
                exit
            }
        };
        code = exit.after(code);
        if exit.ends {
            break;
        }
    }
    code
}

/// Copies from several hosts, with one result.
fn copy_from_all(order: &Order, groups: Vec<Request>, recorded: Recorded) -> i32 {
    let progress: Vec<_> = groups.iter().map(|_| Arc::<Progress>::default()).collect();
    let in_turn = InTurn(progress.clone());
    let hosts = EndHosts {
        source: None,
        ..hosts_of(&order.request, &order.request.dest)
    };
    let screen = Screen::open(order.output, hosts, recorded, move || in_turn.snapshot());
    order.tell(&*screen.reporter());
    let reporter = |group: &Request| screen.reporter_from(hosts_of(group, &group.dest));
    let ends = progress.into_iter().zip(groups.iter().map(reporter));
    let ends = ends.collect();
    let outcome = app::gather::run(groups, ends);
    let told = screen.finish(&outcome);
    code_of(outcome.exit_code(), told)
}

fn copy_to_all(order: Order, recorded: Recorded) -> i32 {
    let names = fan_out::names(&order.request);
    let progress: Vec<_> = names.iter().map(|_| Arc::<Progress>::default()).collect();
    let named = names.iter().cloned().zip(progress.clone());
    let together = Together::new(named, login_turns::may_ask(&order.request));
    let screen = Screen::open(order.output, EndHosts::default(), recorded, move || {
        together.snapshot()
    });
    order.tell(&*screen.reporter());
    let hosts = order
        .request
        .dests()
        .map(|dest| hosts_of(&order.request, dest));
    let hosts: Vec<_> = hosts.collect();
    let dests: Vec<_> = order.request.dests().map(ends::name).collect();
    let reporters = names.iter().zip(&dests).zip(&hosts);
    let reporters =
        reporters.map(|((name, dest), hosts)| screen.reporter_of(name, dest, hosts.clone()));
    let ends = progress.into_iter().zip(reporters).collect();
    let outcomes = app::fan_out::run(&order.request, ends);
    let each = names.iter().zip(&dests).zip(hosts).zip(&outcomes);
    let copies = each.map(|(((name, dest), hosts), outcome)| Copied {
        name,
        dest,
        hosts,
        outcome,
    });
    let copies: Vec<_> = copies.collect();
    let told = screen.finish_all(&copies);
    code_of(app::fan_out::exit_code(&outcomes), told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_begins_with_our_name() {
        let error = Args::try_parse_from(["fastcp", "--nope"]).unwrap_err();
        assert!(usage(&error).starts_with("fastcp: there is no option --nope"));
        let error = Args::try_parse_from(["fastcp", "--streams", "0"]).unwrap_err();
        assert!(usage(&error).starts_with("fastcp: invalid value '0'"));
        let error = Args::try_parse_from(["fastcp", "-avP", "a", "h:"]).unwrap_err();
        assert!(usage(&error).contains("(-P is scp's letter"));
        let error = Args::try_parse_from(["fastcp", "--preserve=all", "a", "h:"]).unwrap_err();
        assert!(usage(&error).contains("keep modes and times"), "{error}");
    }
}

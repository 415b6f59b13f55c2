//! `fastcp --probe`, which only measures.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::app::probe::Probe;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::session::{EndKind, Host, Operand, Rsh};
use crate::ui::{EndHosts, Output, Recorded, Screen, probe, stdout};
use crate::units::printable;

use super::args::Args;
use super::{check, operand, request};
use crate::cli::exit::code_of;

/// The name of a far end on this machine.
const HERE: &str = "localhost";

/// Returns the exit code.
///
/// # Errors
/// Usage.
pub(super) fn run(mut args: Args) -> Result<i32> {
    args.refuse_dry_run("--probe")?;
    args.schedule.refuse("--probe")?;
    if args.log_file.is_some() {
        let message = "--log-file records a copy, and --probe copies nothing: leave out --log-file";
        return Err(Error::usage(message));
    }
    if args.report.is_some() {
        let message = "--report shows a copy, and --probe copies nothing: leave out --report";
        return Err(Error::usage(message));
    }
    let mut operands = std::mem::take(&mut args.operands).into_iter();
    let typed = operands.next();
    if operands.next().is_some() {
        let message = "--probe takes one operand at most: HOST:, HOST:PATH or a path here";
        return Err(Error::usage(message));
    }
    let dest = match typed {
        Some(typed) => operand::parse(typed)?,
        None => Operand {
            typed: HERE.into(),
            host: None,
            what: EndKind::Path,
            path: Vec::new(),
        },
    };
    if dest.what != EndKind::Path {
        let typed = printable(dest.typed.as_bytes());
        let message = format!("{typed}: --probe takes HOST:, HOST:PATH or a path here");
        return Err(Error::usage(message));
    }
    let dest = match dest.host {
        Some(_) => dest,
        None => {
            args.rsh = Rsh::Local;
            here(dest)
        }
    };
    check::way(&args, dest.host.is_some())?;
    let is_json = args.json;
    let output = Output {
        quiet: args.quiet,
        verbose: args.verbose > 0,
        plain: true,
        ..Output::default()
    };
    stdout::check()?;
    let (rate_limit, sample) = (request::rate_limit(&args)?, args.sample.take());
    let request = request::request(args, Vec::new(), dest.clone(), rate_limit)?;
    let probed = Probe::of(request, dest, sample);
    let progress = Progress::default();
    let recorded = Recorded::default();
    let screen = Screen::open(output, EndHosts::default(), recorded, move || {
        progress.snapshot()
    });
    let (outcome, shown) = probe::show(probed, &screen, is_json);
    screen.close(outcome.fatal.as_ref());
    Ok(code_of(outcome.exit_code(), shown))
}

/// Makes a local path absolute, because a far end on this machine starts in the home directory.
fn here(dest: Operand) -> Operand {
    let path = match dest.path.is_empty() {
        true => Vec::new(),
        false => {
            let typed = Path::new(std::ffi::OsStr::from_bytes(&dest.path));
            let path = std::path::absolute(typed).unwrap_or(typed.to_owned());
            path.into_os_string().into_vec()
        }
    };
    Operand {
        host: Some(Host {
            user: None,
            name: HERE.to_owned(),
            port: None,
        }),
        path,
        ..dest
    }
}

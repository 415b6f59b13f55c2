//! `fastcp --clean [HOST:]DIR`: lists and removes what interrupted copies have left.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::app;
use crate::error::{Error, Result};
use crate::pipeline::leftovers::FOUND_MAX;
use crate::progress::Progress;
use crate::session::context::TellLeftover;
use crate::session::{CopyOptions, EndKind, Operand, Request};
use crate::ui::{Output, Recorded, Screen, StdoutLines, stdout};
use crate::units::{plural, printable, size};
use crate::wire::message::{Leftover, LeftoverFate};

use super::args::Args;
use super::ends::hosts_of;
use super::exit::code_of;
use super::{check, operand, request};

/// Leftovers whose paths are remembered, some 20 MB. A server tells no more.
const TOLD_MAX: usize = FOUND_MAX;

/// Counts of the leftovers so far.
#[derive(Default)]
struct CleanedCounts {
    removed: u64,
    /// Bytes of the removed files.
    bytes: u64,
    left: u64,
    /// Leftovers that another session finds again, after a lost connection: whether they count as
    /// left.
    told: HashMap<Vec<u8>, bool>,
}

/// Returns the exit code.
///
/// # Errors
/// Usage, or a standard output that is closed.
pub(super) fn run(mut args: Args) -> Result<i32> {
    let dest = directory(&mut args)?;
    check::way(&args, dest.host.is_some())?;
    let (is_quiet, dry_run) = (args.quiet, args.dry_run);
    if !is_quiet {
        stdout::check()?;
    }
    let output = Output {
        quiet: is_quiet,
        verbose: args.verbose > 0,
        plain: true,
        ..Output::default()
    };
    let request = request::request(args, Vec::new(), dest, None)?;
    let request = Request {
        options: CopyOptions {
            dry_run,
            timeout_s: request.options.timeout_s,
            nice: request.options.nice,
            ..CopyOptions::default()
        },
        names_files: false,
        ..request
    };
    let progress = Progress::default();
    let hosts = hosts_of(&request, &request.dest);
    let screen = Screen::open(output, hosts, Recorded::default(), move || {
        progress.snapshot()
    });
    let counts = Arc::<Mutex<CleanedCounts>>::default();
    let (lines, queue) = StdoutLines::start();
    let show = move |line| {
        if !is_quiet {
            queue.add(line);
        }
    };
    let tell: TellLeftover = {
        let (counts, dest, show) = (counts.clone(), request.dest.clone(), show.clone());
        Arc::new(move |leftover| {
            if counts.lock().add(leftover, dry_run) {
                show(line(leftover, &dest, dry_run));
            }
        })
    };
    let outcome = app::copy::clean(&request, screen.reporter(), tell);
    if outcome.fatal.is_none() {
        show(counts.lock().line(dry_run));
    }
    let shown = lines.finish(outcome.fatal.as_ref());
    screen.close(outcome.fatal.as_ref());
    Ok(code_of(outcome.exit_code(), shown))
}

/// The only operand.
fn directory(args: &mut Args) -> Result<Operand> {
    args.schedule.refuse("--clean")?;
    let others = [
        ("--json", args.json),
        ("--log-file", args.log_file.is_some()),
        ("--report", args.report.is_some()),
        ("--itemize-changes", args.itemize_changes),
        ("--check", args.check.is_some()),
        ("--also", !args.also.is_empty() || args.also_from.is_some()),
        ("--delete", args.mirror.deletes()),
    ];
    if let Some((other, _)) = others.iter().find(|(_, is_given)| *is_given) {
        return Err(Error::usage(format!(
            "--clean copies nothing: leave out {other}"
        )));
    }
    let mut operands = std::mem::take(&mut args.operands).into_iter();
    let (Some(typed), None) = (operands.next(), operands.next()) else {
        return Err(Error::usage(
            "--clean takes one directory: fastcp --clean [HOST:]DIR",
        ));
    };
    let dest = operand::parse(typed)?;
    match dest.what {
        EndKind::Path => Ok(dest),
        _ => Err(Error::usage(format!(
            "{}: --clean takes a directory",
            printable(dest.typed.as_bytes())
        ))),
    }
}

impl CleanedCounts {
    /// False if an earlier session has told of it.
    fn add(&mut self, leftover: &Leftover, dry_run: bool) -> bool {
        let is_left = leftover.fate != LeftoverFate::Removed;
        match self.told.get(&leftover.path) {
            // It was in use then, for example.
            Some(true) if !is_left => self.left -= 1,
            Some(_) => return false,
            None => {}
        }
        if (is_left || dry_run) && self.told.len() < TOLD_MAX {
            self.told.insert(leftover.path.clone(), is_left);
        }
        if is_left {
            self.left += 1;
        } else {
            self.removed += 1;
            // The number comes from a peer and must not overflow.
            self.bytes = self.bytes.saturating_add(leftover.bytes);
        }
        true
    }

    fn line(&self, dry_run: bool) -> String {
        let files = plural(self.removed, "file", "files");
        let size = size(self.bytes);
        let removed = match (self.removed, dry_run) {
            (0, _) => "nothing to remove".to_owned(),
            (_, true) => format!("{files} would be removed, {size}"),
            (_, false) => format!("{files} removed, {size}"),
        };
        match self.left {
            0 => format!("{removed}\n"),
            left => {
                let left = plural(left, "other file stays", "other files stay");
                format!("{removed}; {left} (see --help resume)\n")
            }
        }
    }
}

/// What became of a leftover, its size and age, and its path as the user would type it.
fn line(leftover: &Leftover, dest: &Operand, dry_run: bool) -> String {
    let fate = match leftover.fate {
        LeftoverFate::Removed if dry_run => "remove".to_owned(),
        LeftoverFate::Removed => "removed".to_owned(),
        LeftoverFate::InUse => "in use".to_owned(),
        LeftoverFate::MaybeInUse => "in use?".to_owned(),
        LeftoverFate::OfUser(user) => format!("uid {user}"),
        LeftoverFate::Unsigned => "unsigned".to_owned(),
        LeftoverFate::Failed(_) => "failed".to_owned(),
    };
    let typed = dest.typed.as_bytes();
    let is_open = dest.path.is_empty() || typed.ends_with(b"/");
    let slash = if is_open { "" } else { "/" };
    format!(
        "{fate:<8} {:>7} {:>8}  {}{slash}{}\n",
        size(leftover.bytes),
        age(leftover.age_s),
        printable(typed),
        printable(&leftover.path),
    )
}

/// In whole units; at most 8 columns up to 999 days.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => plural(seconds / 86_400, "day", "days"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_fate_size_age_and_the_path_as_typed() {
        let leftover = |fate| Leftover {
            path: b"sub/.fastcp-a\nb-0123456789abcdef.part".to_vec(),
            bytes: 1_400_000_000,
            age_s: 12 * 86_400,
            fate,
        };
        let told = |typed: &str, fate, dry_run| {
            let dest = operand::parse(typed.into()).unwrap();
            line(&leftover(fate), &dest, dry_run)
        };
        let name = "sub/.fastcp-a\\nb-0123456789abcdef.part";
        for (typed, dry_run, expected) in [
            ("h:/srv", false, "removed  1.40 GB  12 days  h:/srv/"),
            ("h:", true, "remove   1.40 GB  12 days  h:"),
            ("d/", false, "removed  1.40 GB  12 days  d/"),
        ] {
            let line = told(typed, LeftoverFate::Removed, dry_run);
            assert_eq!(line, format!("{expected}{name}\n"));
        }
        assert!(told("d", LeftoverFate::OfUser(1000), false).starts_with("uid 1000 1.40"));
        let ages = [59, 60, 3600, 172_799, 172_800].map(age);
        assert_eq!(ages, ["59 s", "1 min", "1 h", "47 h", "2 days"]);
    }

    #[test]
    fn the_last_line_counts() {
        let mut counts = CleanedCounts::default();
        assert_eq!(counts.line(false), "nothing to remove\n");
        let leftover = |path: &[u8], fate| Leftover {
            path: path.to_vec(),
            bytes: 512,
            age_s: 0,
            fate,
        };
        assert!(counts.add(&leftover(b"a", LeftoverFate::Removed), false));
        // Those that stay are found again by a session that follows a lost one.
        for is_new in [true, false] {
            let in_use = leftover(b"b", LeftoverFate::InUse);
            assert_eq!(counts.add(&in_use, false), is_new);
        }
        let end = "; 1 other file stays (see --help resume)\n";
        assert_eq!(counts.line(false), format!("1 file removed, 512 B{end}"));
        assert_eq!(
            counts.line(true),
            format!("1 file would be removed, 512 B{end}")
        );
        let removed = leftover(b"b", LeftoverFate::Removed);
        assert!(counts.add(&removed, true) && !counts.add(&removed, true));
        assert_eq!(counts.line(false), "2 files removed, 1.02 KB\n");
    }
}

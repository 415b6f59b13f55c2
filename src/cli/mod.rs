//! The command line: what was typed ([`args`]), checked ([`check`]) and handed to a session; its
//! outcome as an exit code. Nothing below knows that there is a command line.

mod also;
mod args;
mod check;
mod ends;
pub mod operand;
mod permits;
mod probe;
mod request;
mod ssh_config;
mod values;
mod visit;

use std::io::Write;
use std::sync::Arc;

use clap::Parser;

use crate::error::{Error, Kind};
use crate::program;
use crate::progress::Progress;
use crate::progress::together::Together;
use crate::session::{self, NotServed};
use crate::ui::{Copied, Screen};
use crate::wire::greeting;

use args::Args;
use check::Order;

/// Runs what the command line asks for; returns the exit code.
pub fn main() -> i32 {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // --help goes to stdout with 0, a fault to stderr with 2. A reader who has left
            // (`| head`) is no fault.
            let _ = match error.use_stderr() {
                true => std::io::stderr().write_all(usage(&error).as_bytes()),
                false => error.print(),
            };
            return error.exit_code();
        }
    };
    if let Some(digest) = &args.placed
        && let Err(error) = program::placed::check(digest)
    {
        return refuse(&error);
    }
    if let Some(versions) = &args.speaks {
        return speaks(versions);
    }
    if args.server {
        return match session::serve(args.placed.is_some(), args.permit.to_permit()) {
            Ok(()) => 0,
            Err(NotServed::NotBegun(error)) => refuse(&error),
            Err(NotServed::Told(kind)) => kind.exit_code(),
        };
    }
    if args.version || args.remove {
        return visit::run(args).unwrap_or_else(|error| refuse(&error));
    }
    if args.probe {
        return probe::run(args).unwrap_or_else(|error| refuse(&error));
    }
    match check::order(args) {
        Ok(order) => copy(order),
        Err(error) => refuse(&error),
    }
}

/// A start-up line asks every program that it finds before it becomes it.
fn speaks(versions: &str) -> i32 {
    if !greeting::speaks(versions) {
        return Kind::FarEnd.exit_code();
    }
    let _ = writeln!(std::io::stdout(), "{} ok", greeting::MARK);
    0
}

/// clap's text with our name before it, as in every other error.
fn usage(error: &clap::Error) -> String {
    let text = error.render().to_string();
    match text.strip_prefix("error: ") {
        Some(fault) => format!("fastcp: {fault}"),
        None => text,
    }
}

fn copy(order: Order) -> i32 {
    if !order.request.also.is_empty() {
        return copy_to_all(order);
    }
    let progress = Arc::new(Progress::default());
    let reading = progress.clone();
    let screen = Screen::open(order.output, move || reading.snapshot());
    let reporter = screen.reporter();
    order.tell(&*reporter);
    let outcome = session::run(order.request, progress, reporter);
    screen.finish(&outcome);
    outcome.exit_code()
}

fn copy_to_all(order: Order) -> i32 {
    if let Err(error) = session::also::check(&order.request) {
        return refuse(&error);
    }
    let names = also::names(&order.request);
    let progress: Vec<_> = names.iter().map(|_| Arc::<Progress>::default()).collect();
    let together = Together(progress.clone());
    let screen = Screen::open(order.output, move || together.snapshot());
    order.tell(&*screen.reporter());
    let reporters = names.iter().map(|name| screen.reporter_of(name));
    let ends = progress.into_iter().zip(reporters).collect();
    let outcomes = session::also::run(&order.request, ends);
    let dests: Vec<_> = order.request.dests().map(ends::name).collect();
    let each = names.iter().zip(&dests).zip(&outcomes);
    let copies = each.map(|((name, dest), outcome)| Copied {
        name,
        dest,
        outcome,
    });
    let copies: Vec<_> = copies.collect();
    screen.finish_all(&copies);
    session::also::exit_code(&outcomes)
}

fn refuse(error: &Error) -> i32 {
    let _ = writeln!(std::io::stderr(), "{error}");
    error.kind.exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_begins_with_our_name() {
        let error = Args::try_parse_from(["fastcp", "--nope"]).unwrap_err();
        assert!(usage(&error).starts_with("fastcp: unexpected argument '--nope'"));
    }
}

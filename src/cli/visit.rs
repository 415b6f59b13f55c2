//! `fastcp --version [HOST:]` and `fastcp --remove HOST:`, which copy nothing.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use crate::error::{Error, Result};
use crate::session::Rsh;
use crate::session::visit::Visit;
use crate::units::printable;
use crate::wire::PROTOCOL_MAX;

use super::args::Args;
use super::operand;
use super::request::ssh_options;

/// Gives the exit code.
///
/// # Errors
/// Usage, and what keeps a host from being reached.
pub fn run(mut args: Args) -> Result<i32> {
    let operands = std::mem::take(&mut args.operands);
    let is_removal = args.remove;
    if !is_removal {
        let version = env!("CARGO_PKG_VERSION");
        say(&format!("fastcp {version} (protocol {PROTOCOL_MAX})"));
    }
    let mut hosts = Vec::new();
    for typed in operands {
        let operand = operand::parse(typed)?;
        match operand.host {
            Some(host) if operand.path.is_empty() => hosts.push(host),
            _ => {
                let typed = printable(operand.typed.as_bytes());
                let message = format!("{typed}: only HOST: goes with --version and --remove");
                return Err(Error::usage(message));
            }
        }
    }
    if is_removal && hosts.is_empty() {
        return Err(Error::usage("--remove needs a host: fastcp --remove HOST:"));
    }
    if args.rsh == Rsh::Local && !hosts.is_empty() {
        return Err(Error::usage("with --rsh local there is no other host"));
    }
    let sudo = args.sudo.take();
    let ssh = ssh_options(&mut args);
    for host in hosts {
        let name = printable(host.name.as_bytes());
        let visit = Visit {
            host,
            ssh: ssh.clone(),
            sudo: sudo.clone(),
        };
        let (lines, before, none) = match is_removal {
            true => (visit.remove()?, "removed ", "nothing was placed there"),
            false => (visit.tell()?, "", "no fastcp"),
        };
        for line in &lines {
            say(&format!("{name}: {before}{line}"));
        }
        if lines.is_empty() {
            say(&format!("{name}: {none}"));
        }
    }
    Ok(0)
}

/// A reader who has left (`| head`) is no fault.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

//! `fastcp --version [HOST:]` and `fastcp --remove HOST:`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::app::remote_admin::RemoteAdmin;
use crate::error::{Error, Result};
use crate::session::{Host, Operand, Rsh};
use crate::ui::stdout;
use crate::units::printable;
use crate::wire::PROTOCOL_MAX;

use super::args::Args;
use super::operand;
use super::request::ssh_options;

/// Returns the exit code.
///
/// # Errors
/// Usage, a host that cannot be reached, or a standard output that cannot be written.
pub(super) fn run(mut args: Args) -> Result<i32> {
    let operands = std::mem::take(&mut args.operands);
    let is_removal = args.remove;
    let option = if is_removal { "--remove" } else { "--version" };
    args.schedule.refuse(option)?;
    if is_removal {
        args.refuse_dry_run("--remove")?;
    }
    let mut hosts = Vec::new();
    for typed in operands {
        hosts.push(host(typed, is_removal)?);
    }
    if !is_removal {
        let version = env!("CARGO_PKG_VERSION");
        say(&format!("fastcp {version} (protocol {PROTOCOL_MAX})"))?;
    }
    if is_removal && hosts.is_empty() {
        return Err(Error::usage("--remove needs a host: fastcp --remove HOST:"));
    }
    if args.rsh == Rsh::Local && !hosts.is_empty() {
        return Err(Error::usage(
            "--rsh local starts no program on another host: leave it out",
        ));
    }
    let sudo = args.sudo.take();
    let ssh = ssh_options(&mut args);
    for host in hosts {
        let name = printable(host.name.as_bytes());
        let visit = RemoteAdmin {
            host,
            ssh: ssh.clone(),
            sudo: sudo.clone(),
            timeout: Duration::from_secs(args.timeout_s.into()),
        };
        let (lines, before, none) = match is_removal {
            true => (visit.remove()?, "removed ", "nothing was removed"),
            false => (visit.tell()?, "", "no fastcp"),
        };
        for line in &lines {
            say(&format!("{name}: {before}{line}"))?;
        }
        if lines.is_empty() {
            say(&format!("{name}: {none}"))?;
        }
    }
    Ok(0)
}

/// Parses an operand that names a host without a path.
fn host(typed: OsString, is_removal: bool) -> Result<Host> {
    let Operand {
        host, path, typed, ..
    } = operand::parse(typed)?;
    let flag = if is_removal { "--remove" } else { "--version" };
    let typed = printable(typed.as_bytes());
    match host {
        Some(host) if path.is_empty() => Ok(host),
        None if !path.contains(&b'/') && !path.is_empty() => Err(Error::usage(format!(
            "a host is written with a colon: fastcp {flag} {typed}:"
        ))),
        _ => Err(Error::usage(format!("{typed}: {flag} takes HOST: alone"))),
    }
}

fn say(line: &str) -> Result<()> {
    stdout::show(&format!("{line}\n"))
}

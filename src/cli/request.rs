//! Conversion of the checked arguments to a session's [`Request`].

use std::sync::Arc;

use crate::error::Result;
use crate::keep::{Keep, Update};
use crate::session::rate_file::{self, RateFile};
use crate::session::schedule::Schedule;
use crate::session::{CopyOptions, EndKind, Operand, Request, Retry, RouteOptions, SshOptions};
use crate::tuner::POLITE_STREAMS;

use super::args::Args;
use super::values::RateArgument;

/// scp's Kbit is 1024 bits.
const BYTES_PER_KBIT: u64 = 1024 / 8;

/// `-v` and `-vv` are about fastcp alone; each further `v` is one for ssh.
const OWN_VERBOSITY: u8 = 2;

/// The current limit in bytes a second.
///
/// # Errors
/// Usage, if the file of `--bwlimit @FILE` does not contain a rate.
pub(super) fn rate_limit(args: &Args) -> Result<Option<u64>> {
    match &args.bwlimit {
        Some(RateArgument::Fixed(rate)) => Ok(Some(*rate)),
        Some(RateArgument::File(file)) => rate_file::read(file),
        None => Ok(args.limit_kbit_per_s.map(|kbit| kbit * BYTES_PER_KBIT)),
    }
}

/// The request without the destinations of `--also` and the times of start and stop.
pub(super) fn request(
    mut args: Args,
    sources: Vec<Operand>,
    dest: Operand,
    rate_limit: Option<u64>,
) -> Result<Request> {
    let changes = Arc::new(args.keep.changes()?);
    let ssh = ssh_options(&mut args);
    let (keep, update) = kept(&args, &sources);
    // As in rsync, -a does not include -r with --files-from. Nor does it with --follow, which is
    // for files.
    let has_list = args.files_from.is_some();
    let names_files = has_list || args.follow_ms.is_some();
    let recursive = args.recursive || args.keep.archive && !names_files;
    // A trailing slash in the list also means all that a directory has.
    let has_directories = recursive || has_list;
    // The differences that a check finds are counted here.
    let has_lines = args.lists_changes() || args.check.is_some();
    let names_files = args.names_files() && !has_lines;
    let itemizes = has_lines || names_files;
    let lists = args.verbose > 0 || args.json || itemizes;
    let compares = args.compares();
    let backup = args.mirror.backup(&dest)?;
    let earlier = args.earlier.earlier()?;
    let snapshot = args.earlier.snapshot(args.keep.strict)?;
    let mirror = args.mirror.mirror(
        &sources,
        &dest,
        has_directories,
        (args.one_file_system, args.keep.strict),
        lists,
    )?;
    Ok(Request {
        sources: sources.into(),
        dest,
        also: Vec::new(),
        options: CopyOptions {
            recursive,
            preserve: args.preserve,
            follow_links: args.follow_links,
            no_clobber: args.no_clobber,
            // A source file is removed only when its copy is on the disk.
            fsync: args.fsync || mirror.removes_sources,
            no_target_directory: args.no_target_directory,
            compress: args.compress,
            digests: args.digests.is_some(),
            rate_limit,
            threads: args.threads,
            memory: args.memory,
            no_resume: args.no_resume,
            live: args.live,
            inplace: args.inplace,
            force: args.force,
            congestion: args.congestion,
            timeout_s: args.timeout_s,
            direct_io: args.direct_io,
            size: args.size,
            follow_ms: args.follow_ms,
            spool: args.spool,
            nice: args.nice,
            drop_cache: args.drop_cache,
            polite: args.polite,
            compares,
            mkpath: args.mkpath,
            relative: None,
            maps: Arc::default(),
            is_beside: false,
            scp: false,
            dry_run: args.dry_run,
            itemizes,
            reports_files: args.json || args.log_file.is_some() || args.report.is_some(),
            check: args.check.is_some(),
            keep,
            update,
            changes,
            mirror,
            backup,
            earlier,
            snapshot,
            selector: Arc::default(),
        },
        ssh,
        rsh: args.rsh,
        remote_path: args.remote_path,
        sudo: args.sudo,
        no_install: args.no_install,
        no_syslog: args.no_syslog,
        streams: args.streams.or(args.polite.then_some(POLITE_STREAMS)),
        rate_file: match args.bwlimit {
            Some(RateArgument::File(file)) => Some(RateFile::new(file, rate_limit)),
            _ => None,
        },
        route: RouteOptions {
            asked: args.route,
            through_here: args.through_here,
            ports: args.ports,
            bind: args.bind,
            address: args.address,
        },
        names_files,
        trust_partial: args.trust_partial,
        allow_empty: args.allow_empty,
        retry: match args.dry_run {
            // Its lines would come a second time.
            true => Retry::never(),
            false => Retry::of(args.retry_for, args.retries),
        },
        schedule: Schedule::default(),
        strict: args.keep.strict,
        check: args.check.is_some(),
        encrypt: !args.no_encrypt,
        digest_lists: Vec::new(),
        check_list: None,
    })
}

/// The metadata that is kept, and the existing files that stay. Nobody owns the data of a pipe, and
/// it has no time. Its copy can have the owner of `--chown`.
fn kept(args: &Args, sources: &[Operand]) -> (Keep, Update) {
    let keep = args.keep.keep(args.preserve);
    let has_files = sources.iter().all(|source| source.what == EndKind::Path);
    if has_files {
        return (keep, args.keep.update());
    }
    let update = Update {
        existing_only: args.keep.existing,
        new_only: args.keep.ignore_existing,
        ..Update::default()
    };
    let (owner, group) = args.keep.new_owners();
    let keep = Keep {
        perms: keep.perms,
        times: keep.times,
        owner,
        group,
        ..Keep::default()
    };
    (keep, update)
}

/// Moves the options for ssh out of the arguments.
pub(super) fn ssh_options(args: &mut Args) -> SshOptions {
    use std::mem::take;
    SshOptions {
        program: args.program.take(),
        port: args.port,
        identities: take(&mut args.identities),
        config: args.config.take(),
        jump: args.jump.take(),
        options: take(&mut args.options),
        cipher: args.cipher.take(),
        ipv4: args.ipv4,
        ipv6: args.ipv6,
        batch: args.batch,
        forward_agent: args.forward_agent,
        quiet: args.quiet,
        verbose: args.verbose.saturating_sub(OWN_VERBOSITY),
    }
}

//! The server's end of a copy, source or destination, as the client requested it.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::control::Outgoing;
use crate::dest::{
    self, Backups, CleanedDirectory, ModeRules, Rules, ScpPlaces, SharedInodes, SinkSpec, Spec,
    process_umask,
};
use crate::dir::Confine;
use crate::error::{Error, Result};
use crate::pipeline::failures::MoreFailures;
use crate::pipeline::receive::destination::{CopyDestination, Sessions, To, Typed};
use crate::progress::Progress;
use crate::report::TellUser;
use crate::session::operands::{CountedSources, Counting, Expanded, look_up_relative};
use crate::session::permit::Permit;
use crate::session::probe_place;
use crate::session::runtime::off_task;
use crate::source::{self, ListedPlace, Lookup, NamedSource, PipeOrigin, PipeSpec};
use crate::wire::message::{Fault, Message, Open, Role, Tried};

use crate::session::converse::say;

/// The server's end of the copy.
pub(super) enum ServerRole {
    /// With the operands that were not found.
    Source(Expanded, MoreFailures),
    /// With the sources as they were typed.
    Dest(To, Vec<Vec<u8>>),
    /// The directory that has the listed files.
    Verifier(ListedPlace),
    /// The directory to remove leftovers from.
    Cleaner(CleanedDirectory),
}

pub(super) async fn end(open: &Open, permit: &Permit, control: &Outgoing) -> Result<ServerRole> {
    let allowed = permit.clone();
    // On another thread: the user directory may be on a server, and the directory on a disk that
    // hangs.
    let (confine, base) = off_task(move || {
        let base = allowed.base(home());
        Ok::<_, Error>((allowed.confine()?, base))
    })
    .await??;
    let line = |command: &Vec<u8>| OsString::from_vec(command.clone());
    Ok(match &open.role {
        Role::Sender { operands } => {
            let lookup = Lookup {
                base,
                remote: true,
                confine,
                scp: open.options.scp,
            };
            let (found, failed) = named(operands, open, &lookup, control).await?;
            ServerRole::Source(found, failed)
        }
        Role::Verifier { path } => {
            let lookup = Lookup {
                base,
                remote: true,
                confine,
                scp: false,
            };
            let path = path.clone();
            let found = off_task(move || ListedPlace::find(&path, &lookup));
            ServerRole::Verifier(found.await??)
        }
        Role::Cleaner { path } => {
            let path = path.clone();
            let find = move || CleanedDirectory::find(&path, (base, true), confine);
            ServerRole::Cleaner(off_task(find).await??)
        }
        Role::Producer { command } => {
            let spec = PipeSpec::Command(line(command));
            let found = Expanded::nameless(PipeOrigin::Own(spec));
            ServerRole::Source(found, MoreFailures::default())
        }
        Role::Consumer { command, source } => ServerRole::Dest(
            To::Exit(SinkSpec::Command(line(command))),
            vec![source.clone()],
        ),
        Role::Receiver { path, sources } => {
            let to = To::Path(spec(path, open, base, confine));
            ServerRole::Dest(to, sources.clone())
        }
        Role::Probe { path } => {
            let mut tried = Tried::default();
            if !path.is_empty() {
                let place = spec(path, open, base, confine);
                if permit.no_overwrite {
                    let place = place.clone();
                    let look = move || dest::refuse_in_snapshots(&place, &Arc::default());
                    off_task(look).await??;
                }
                tried = probe_place::write_there(place).await?;
            }
            say(control, Message::Tried(tried)).await?;
            ServerRole::Dest(
                To::Exit(probe_place::nowhere()),
                vec![probe_place::SOURCE.into()],
            )
        }
    })
}

fn spec(path: &[u8], open: &Open, base: PathBuf, confine: Option<Arc<Confine>>) -> Spec {
    Spec {
        path: path.to_vec(),
        base,
        remote: true,
        no_target_directory: open.options.no_target_directory,
        inplace: open.options.inplace,
        fsync: open.options.fsync,
        mkpath: open.options.mkpath,
        dry_run: open.options.dry_run,
        check: open.options.check,
        relative: open.options.relative.is_some(),
        is_beside: open.options.is_beside,
        scp: open.options.scp.then_some(match open.between {
            true => ScpPlaces::Between,
            false => ScpPlaces::Upload,
        }),
        confine,
    }
}

/// Counts the requested files, and sends the roots and totals to the client; if it `can_wait` for
/// the totals, they may come later.
pub(super) async fn tell_roots(
    found: Expanded,
    open: &Open,
    can_wait: bool,
    progress: &Arc<Progress>,
    control: &Outgoing,
) -> Result<CountedSources> {
    let counting = Counting::start(found, &open.options, progress);
    let sources = counting.counted(can_wait).await?;
    sources.show(progress);
    for message in sources.opening()? {
        say(control, message).await?;
    }
    Ok(sources)
}

/// Looks up the requested files, and counts those that cannot be copied.
async fn named(
    operands: &[Vec<u8>],
    open: &Open,
    lookup: &Lookup,
    control: &Outgoing,
) -> Result<(Expanded, MoreFailures)> {
    let mut failed = MoreFailures::default();
    if open.options.relative.is_some() {
        let (typed, lookup, options) = (operands.to_vec(), lookup.clone(), open.options.clone());
        let found = off_task(move || {
            let typed: Vec<&[u8]> = typed.iter().map(|typed| &typed[..]).collect();
            look_up_relative(&typed, &options, &lookup)
        });
        let (found, errors) = found.await??;
        for error in &errors {
            failed.note(error);
            say(control, Message::Fault(Fault::of(error, 0, 0))).await?;
        }
        return Ok((found, failed));
    }
    let mut all = Expanded::default();
    for (operand, typed) in operands.iter().enumerate() {
        let (typed, lookup) = (typed.clone(), lookup.clone());
        let (recursive, selector) = (open.options.recursive, open.options.selector.clone());
        let (found, errors) = off_task(move || {
            let (found, errors) = source::expand(&typed, &lookup, recursive, &selector);
            // ssh forwards this to the user.
            let warnings = found.iter().filter_map(NamedSource::warning);
            warnings.for_each(|line| tell()(&line));
            (found, errors)
        })
        .await?;
        for error in &errors {
            failed.note(error);
            say(control, Message::Fault(Fault::of(error, 0, 0))).await?;
        }
        all.add(found, (operand, &operands[operand]), !errors.is_empty())?;
    }
    let (maps, lookup) = (open.options.maps.clone(), lookup.clone());
    let all = off_task(move || all.add_parts(&maps, &lookup).map(|()| all));
    Ok((all.await??, failed))
}

pub(super) fn destination(
    to: To,
    sources: Vec<Vec<u8>>,
    open: &Open,
    same_machine: bool,
) -> CopyDestination {
    // A client that pushes has already looked up the name; another server expands the pattern
    // itself.
    let typed = |operand: Vec<u8>| Typed {
        follow_name: !(open.between && source::is_pattern(&operand)),
        operand: OsString::from_vec(operand),
    };
    CopyDestination {
        to,
        same_machine,
        typed: sources.into_iter().map(typed).collect(),
        asked: Vec::new(),
        sessions: Sessions {
            own: open.session,
            before: open.before.clone(),
            owner: [0; 16],
            trusts: false,
            tell: tell(),
            heard: None,
        },
    }
}

/// Writes a line for the user to stderr, which ssh forwards.
pub(super) fn tell() -> TellUser {
    Arc::new(|line| {
        // Ignores a stderr that nobody reads any more.
        let _ = writeln!(std::io::stderr(), "{line}");
    })
}

fn home() -> PathBuf {
    dest::home_directory().unwrap_or_default()
}

pub(super) fn rules(open: &Open) -> Rules {
    Rules {
        keep: open.options.keep,
        update: open.options.update,
        changes: open.options.changes.clone(),
        not_kept: Arc::default(),
        no_clobber: open.options.no_clobber,
        makes_room: open.options.makes_room(),
        fsync: open.options.fsync,
        inplace: open.options.inplace,
        shared_inodes: SharedInodes::new(open.options.is_beside && !open.options.scp),
        force: open.options.force,
        allow_empty: false,
        blind: false,
        untouched: false,
        set_id: true,
        no_own_names: false,
        links_inside: false,
        direct_io: open.options.direct_io,
        drop_cache: open.options.drop_cache,
        dry_run: open.options.dry_run,
        check: open.options.check,
        backup: open.options.backup.clone().map(Backups::new),
        earlier: open.options.reuse(),
        snapshot: open.options.snapshot.is_some(),
        closed: false,
        modes: match open.options.scp {
            true => ModeRules::ScpUpload,
            false => ModeRules::Usual,
        },
        umask: process_umask(),
    }
}

//! The operands on this machine: what the sources name and where the destination is; and which
//! answers to remote ones a server may give.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::dest::{Rules, Spec, process_umask};
use crate::error::{Error, Kind, Result, Side};
use crate::manifest::{Root, Totals};
use crate::pipeline::landing::Sessions;
use crate::pipeline::placer::{Destination, Typed};
use crate::session::Seat;
use crate::session::request::Request;
use crate::source::{self, Lookup, Named};
use crate::units::printable;
use crate::wire::message::Roots;

/// What the operands of this machine name, and which operand each came from.
#[derive(Default)]
pub struct Expanded {
    pub named: Vec<Named>,
    operands: Vec<u32>,
}

impl Expanded {
    /// As the receiver is told of them.
    pub fn roots(&self) -> Vec<Root> {
        let operands = self.named.iter().zip(&self.operands).enumerate();
        operands
            .map(|(n, (named, operand))| named.to_root(source::root_id(n), *operand))
            .collect()
    }
}

/// Looks up the operands of this machine; one that is not there is a failed entry.
pub fn expand(request: &Request, seat: &Seat) -> Expanded {
    let lookup = Lookup {
        base: PathBuf::new(),
        remote: false,
    };
    let mut all = Expanded::default();
    for (operand, source) in request.sources.iter().enumerate() {
        let (named, errors) = source::expand(&source.path, &lookup, request.options.recursive);
        errors.iter().for_each(|error| seat.tally.add(error));
        let warnings = named.iter().filter_map(Named::warning);
        warnings.for_each(|line| seat.reporter.notice(&line));
        all.operands.extend(named.iter().map(|_| operand as u32));
        all.named.extend(named);
    }
    all
}

/// Counts what is to be copied, while ssh logs in.
pub fn scan(named: Vec<Named>, follow_links: bool, seat: &Seat) -> JoinHandle<Totals> {
    let progress = seat.progress.clone();
    tokio::task::spawn_blocking(move || {
        source::scan(&named, follow_links, &mut |files, bytes| {
            progress.add_scanned(files, bytes)
        })
    })
}

pub fn rules(request: &Request) -> Rules {
    Rules {
        preserve: request.options.preserve,
        no_clobber: request.options.no_clobber,
        fsync: request.options.fsync,
        inplace: request.options.inplace,
        force: request.options.force,
        direct_io: request.options.direct_io,
        drop_cache: request.options.drop_cache,
        umask: process_umask(),
    }
}

/// This session as a receiver on this machine, and the command's sessions before it.
pub fn sessions(own: [u8; 16], before: &[[u8; 16]], seat: &Seat) -> Sessions {
    let reporter = seat.reporter.clone();
    Sessions {
        own,
        before: before.to_vec(),
        heard: None,
        tell: Arc::new(move |line| reporter.notice(line)),
    }
}

/// The destination on this machine.
pub fn destination(request: &Request, same_machine: bool, sessions: Sessions) -> Destination {
    Destination {
        spec: Spec {
            path: request.dest.path.clone(),
            base: PathBuf::new(),
            remote: false,
            no_target_directory: request.options.no_target_directory,
            inplace: request.options.inplace,
        },
        same_machine,
        typed: request
            .sources
            .iter()
            .map(|operand| Typed {
                operand: operand.typed.clone(),
                follow_name: !source::is_pattern(&operand.path),
            })
            .collect(),
        sessions,
    }
}

/// A server may send only what was asked for, and must send all of it unless it `told` of a failure.
pub fn check(request: &Request, roots: &Roots, told: bool) -> Result<()> {
    let (operands, recursive) = (&request.sources, request.options.recursive);
    let refused = |name: &str| {
        let message = format!("the server sent {name}, which was not asked for");
        Err(Error::new(Kind::Breach, Side::Source, message))
    };
    let mut roots_of_none = roots
        .roots
        .iter()
        .filter(|root| root.operand as usize >= operands.len());
    if let Some(root) = roots_of_none.next() {
        return refused(&printable(root.name.as_bytes()));
    }
    for (n, operand) in operands.iter().enumerate() {
        let answers: Vec<&Root> = roots
            .roots
            .iter()
            .filter(|root| root.operand as usize == n)
            .collect();
        if answers.is_empty() && !told {
            let message = "the server neither sent it nor told why";
            let path = &operand.typed;
            return Err(Error::new(Kind::Breach, Side::Source, message).at(path));
        }
        if !source::may_answer(&operand.path, &answers, recursive) {
            let name = answers
                .first()
                .map_or(&b""[..], |root| root.name.as_bytes());
            return refused(&printable(name));
        }
    }
    Ok(())
}

//! The owner of a copy: a hash that only the client's user can produce. It differs for each
//! destination, so that no host can use it at another.

use std::os::unix::ffi::OsStrExt;

use crate::dest::user_key;
use crate::session::request::Request;
use crate::wire::hello::Hello;

/// The owner of copies to this destination, as it was typed.
pub fn of(request: &Request) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_keyed(&user_key().bytes);
    hasher.update(b"owner of copies to ");
    hasher.update(request.dest.typed.as_bytes());
    let mut owner = [0; 16];
    owner.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    owner
}

/// The owner, or none for a dry run, which keeps nothing that could be owned: the key must not be
/// made for it.
pub fn of_copy(request: &Request) -> [u8; 16] {
    match request.options.dry_run {
        true => [0; 16],
        false => of(request),
    }
}

/// Adds to the hello what a server must know of its client.
pub fn introduce(hello: Hello, request: &Request) -> Hello {
    Hello {
        owner: format!("{:032x}", u128::from_be_bytes(of_copy(request))),
        trust_partial: request.trust_partial,
        allow_empty: request.takes_empty(),
        polite: request.options.polite,
        compares: request.options.compares_remotely(),
        mkpath: request.options.mkpath,
        selects: request.selects_there(),
        archives: request.archives(),
        dry_run: request.options.dry_run,
        itemizes: request.options.itemizes,
        itemizes_if_allowed: request.names_files,
        reports_files: request.options.reports_files,
        check: request.check,
        relative: request.options.relative.is_some(),
        maps: request.maps(),
        beside: request.options.is_beside,
        scp: request.options.scp,
        tells_growth: true,
        no_syslog: request.omits_syslog(),
        ..hello
    }
}

//! The first messages from the client to each of two servers.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;

use crate::algorithms::Suite;
use crate::journal;
use crate::session::request::{EndKind, Operand, Request};
use crate::wire::hello::Hello;
use crate::wire::message::Role;

/// The role of each server. The receiver gets no paths or hosts of the sources, but a name for
/// each, for messages, and then a hash that tells these sources from others of the same names.
pub fn roles(request: &Request) -> (Role, Role) {
    let sources = &request.sources;
    let sender = match &sources[..] {
        [source] if source.what == EndKind::Command => Role::Producer {
            command: source.path.clone(),
        },
        sources => Role::Sender {
            operands: sources.iter().map(|source| source.path.clone()).collect(),
        },
    };
    let mut names = names(sources);
    let receiver = match request.dest.what {
        EndKind::Command => Role::Consumer {
            command: request.dest.path.clone(),
            source: names.swap_remove(0),
        },
        _ => {
            let typed = sources.iter().map(|source| source.typed.as_bytes());
            names.push(journal::hash(typed).to_vec());
            Role::Receiver {
                path: request.dest.path.clone(),
                sources: names,
            }
        }
    };
    (sender, receiver)
}

/// The last component of each operand's path, with a number where several are equal.
fn names(sources: &[Operand]) -> Vec<Vec<u8>> {
    let last = |source: &Operand| {
        let path = source.path.strip_suffix(b"/").unwrap_or(&source.path);
        let last = path.rsplit(|&byte| byte == b'/').next();
        match source.what {
            EndKind::Command => b"a command".to_vec(),
            _ => last.unwrap_or(path).to_vec(),
        }
    };
    let mut names: Vec<_> = sources.iter().map(last).collect();
    let mut seen = HashMap::new();
    for name in &names {
        *seen.entry(name.clone()).or_insert(0) += 1;
    }
    for (nth, name) in names.iter_mut().enumerate() {
        if seen.get(name).is_some_and(|&times| times > 1) {
            name.extend_from_slice(format!(" (source {})", nth + 1).as_bytes());
        }
    }
    names
}

/// AES-128-GCM if both hosts prefer it, because they have instructions for it.
pub fn suite_for(sender: &Hello, receiver: &Hello, encrypt: bool) -> Suite {
    let first = |hello: &Hello| {
        hello
            .suites
            .first()
            .and_then(|&suite| Suite::from_number(suite))
    };
    match (encrypt, first(sender), first(receiver)) {
        (false, ..) => Suite::Tag,
        (true, Some(Suite::Aes128Gcm), Some(Suite::Aes128Gcm)) => Suite::Aes128Gcm,
        _ => Suite::ChaCha20Poly1305,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_hears_a_name_of_each_source_and_neither_its_host_nor_its_path() {
        let source = |path: &str| Operand {
            typed: format!("me@db1:{path}").into(),
            host: None,
            what: EndKind::Path,
            path: path.into(),
        };
        let names = |paths: &[&str]| {
            let sources: Vec<_> = paths.iter().map(|path| source(path)).collect();
            let names = names(&sources).into_iter();
            names
                .map(|name| String::from_utf8(name).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&["/srv/secret/a/", "b", ""]), ["a", "b", ""]);
        let same = names(&["/one/x", "/two/x", "y"]);
        assert_eq!(same, ["x (source 1)", "x (source 2)", "y"]);
    }
}

//! Errors as the user reads them: with the host and the path as they were typed.

use crate::error::{Error, Side};
use crate::units::{harmless, printable};

/// The hosts of a copy as the user named them, for messages. None stands for this machine.
#[derive(Clone, Debug, Default)]
pub struct EndHosts {
    pub source: Option<String>,
    pub dest: Option<String>,
}

/// `fastcp: db1:/data/a: no space left`, `fastcp: /data/a: permission denied`.
pub(super) fn sentence(error: &Error, hosts: &EndHosts) -> String {
    format!("fastcp: {}", cause(error, hosts))
}

/// The same without the name of the program.
pub(super) fn cause(error: &Error, hosts: &EndHosts) -> String {
    let host = host(error, hosts);
    let path = error.path.as_ref();
    let path = path.map(|path| printable(path.as_os_str().as_encoded_bytes()));
    let place = match (host, path) {
        (Some(host), Some(path)) => format!("{host}:{path}: "),
        (Some(host), None) => format!("{host}: "),
        (None, Some(path)) => format!("{path}: "),
        (None, None) => String::new(),
    };
    harmless(&format!("{place}{}", error.message))
}

/// The host that the error names; None for this machine.
pub(super) fn host<'a>(error: &Error, hosts: &'a EndHosts) -> Option<&'a str> {
    let host = match error.side {
        Side::Here => &None,
        Side::Source => &hosts.source,
        Side::Dest => &hosts.dest,
    };
    host.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn an_error_names_the_host_and_the_path_as_they_are_typed() {
        let hosts = EndHosts {
            source: None,
            dest: Some("db1".to_owned()),
        };
        let told = |side, path: Option<&str>| {
            let error = Error::new(Kind::Write, side, "no space left");
            let error = path.into_iter().fold(error, |error, path| error.at(path));
            sentence(&error, &hosts)
        };
        let path = Some("/srv/x");
        assert_eq!(told(Side::Dest, path), "fastcp: db1:/srv/x: no space left");
        assert_eq!(told(Side::Dest, None), "fastcp: db1: no space left");
        assert_eq!(told(Side::Source, path), "fastcp: /srv/x: no space left");
        assert_eq!(told(Side::Source, None), "fastcp: no space left");
        assert_eq!(told(Side::Here, None), "fastcp: no space left");
    }
}

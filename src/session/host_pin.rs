//! The address at which each host was reached. A name may stand for several hosts, and a partial
//! copy is on one of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::report::Reporter;
use crate::ssh::{self, Host, SshOptions, is_refusal};
use crate::units::printable;

/// After this many failed logins in a row, the name may lead to another host. Fewer may mean that
/// the host restarts.
const MISSES_MAX: u8 = 3;

/// The addresses reached so far; shared by the sessions of a copy.
#[derive(Clone, Default)]
pub struct HostPin(Arc<Mutex<HashMap<Host, HostPlace>>>);

struct HostPlace {
    /// As the host reports it.
    address: String,
    misses: u8,
}

impl HostPin {
    /// Notes a successful login, and the address at which the host says it was reached.
    pub fn note(&self, host: &Host, address: &str) {
        let place = HostPlace {
            address: address.to_owned(),
            misses: 0,
        };
        self.0.lock().insert(host.clone(), place);
    }

    /// Notes a failed login at the known address, with ssh's words. After `MISSES_MAX` failures,
    /// or at once if ssh refuses to log in by address, the next login uses the name.
    pub fn missed(&self, host: &Host, words: &str) {
        let mut places = self.0.lock();
        let Some(place) = places.get_mut(host) else {
            return;
        };
        place.misses += 1;
        if place.misses >= MISSES_MAX || is_refusal(words) {
            places.remove(host);
        }
    }

    fn address(&self, host: &Host) -> Option<String> {
        let places = self.0.lock();
        Some(places.get(host)?.address.clone())
    }
}

/// ssh options with which a login after a lost connection reaches the same host again, if its name
/// stands for several.
pub async fn again(
    host: &Host,
    pin: &HostPin,
    reporter: &dyn Reporter,
    options: &SshOptions,
) -> Option<SshOptions> {
    let address = pin.address(host)?;
    let pinned = ssh::pinned(host, options, &address).await?;
    let name = printable(host.name.as_bytes());
    let detail = format!("{name} has several addresses: using {address} again");
    reporter.detail(&detail);
    Some(pinned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_looked_for_where_it_was_until_it_has_not_been_there_for_a_while() {
        let host = Host {
            user: None,
            name: "h".into(),
            port: None,
        };
        let reached = HostPin::default();
        reached.missed(&host, "");
        assert_eq!(reached.address(&host), None);
        reached.note(&host, "10.0.0.1");
        for _ in 1..MISSES_MAX {
            reached.missed(&host, "Connection refused");
        }
        assert_eq!(reached.address(&host).as_deref(), Some("10.0.0.1"));
        reached.missed(&host, "Connection refused");
        assert_eq!(reached.address(&host), None);
        reached.note(&host, "10.0.0.2");
        reached.missed(&host, "me@h: Permission denied (gssapi-with-mic).");
        assert_eq!(reached.address(&host), None);
    }
}

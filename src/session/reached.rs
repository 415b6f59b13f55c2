//! Which host each name has led to: a name may stand for several, and what a copy has left lies on
//! one of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::session::Seat;
use crate::session::request::{Request, Rsh};
use crate::ssh::{self, Host, SshOptions, is_refusal};
use crate::units::printable;

/// Logins in vain, one after the other, after which the name may lead elsewhere: a host that
/// restarts is waited for a while.
const MISSES_MAX: u8 = 3;

/// Shared by the sessions of a copy.
#[derive(Clone, Default)]
pub struct Reached(Arc<Mutex<HashMap<Host, Place>>>);

struct Place {
    /// As the host says.
    address: String,
    misses: u8,
}

impl Reached {
    /// A login has come through, and the host says by which of its addresses.
    pub fn note(&self, host: &Host, address: &str) {
        let place = Place {
            address: address.to_owned(),
            misses: 0,
        };
        self.lock().insert(host.clone(), place);
    }

    /// A login at the address where the host was has failed, with these words of ssh's. After some
    /// of them, or at once where ssh does not log in by an address as it does by the name, the next
    /// goes by the name.
    pub fn missed(&self, host: &Host, words: &str) {
        let mut places = self.lock();
        let Some(place) = places.get_mut(host) else {
            return;
        };
        place.misses += 1;
        if place.misses >= MISSES_MAX || is_refusal(words) {
            places.remove(host);
        }
    }

    fn address(&self, host: &Host) -> Option<String> {
        let places = self.lock();
        Some(places.get(host)?.address.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Host, Place>> {
        self.0.lock().expect("no panic while held")
    }
}

/// By which a login after a lost connection reaches the same host again, where its name stands for
/// several.
pub async fn again(
    host: &Host,
    request: &Request,
    seat: &Seat,
    options: &SshOptions,
) -> Option<SshOptions> {
    if request.rsh != Rsh::Ssh {
        return None;
    }
    let address = seat.reached.address(host)?;
    let pinned = ssh::pinned(host, options, &address).await?;
    let name = printable(host.name.as_bytes());
    let detail = format!("{name} has several addresses: it was at {address}");
    seat.reporter.detail(&detail);
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
        let reached = Reached::default();
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

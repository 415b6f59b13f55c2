//! The listening end: the server for the direct route, the client for the reverse one.
//!
//! A connection that cannot prove that it knows the session's secret is dropped after a short
//! wait.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::Connection;
use super::unproven::Unproven;
use crate::transport::connection::duplex::Duplex;
use crate::transport::connection::handshake::Keyring;
use crate::transport::connection::prepare;
use crate::wire::message::Ports;

/// The pause when descriptors or memory run out: others may free some.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port that is open for data connections until this is dropped.
pub struct Listener {
    listener: TcpListener,
    pub port: u16,
}

impl Listener {
    /// Opens a port on `bind`, or on all addresses: one of `ports`, or an ephemeral one. `chance`
    /// selects the first port to try, so that copies which start together do not all try the same
    /// one.
    ///
    /// # Errors
    /// If all of `ports` are taken (`AddrInUse`), or the address does not belong to this host.
    pub async fn open(
        bind: Option<IpAddr>,
        ports: Option<Ports>,
        chance: u16,
    ) -> io::Result<Listener> {
        let Some(Ports { first, last }) = ports else {
            return listen(bind, 0).await;
        };
        let count = u32::from(last.saturating_sub(first)) + 1;
        let mut refusal = io::Error::from(io::ErrorKind::AddrInUse);
        for nth in 0..count {
            let port = u32::from(first) + (u32::from(chance) + nth) % count;
            match listen(bind, port as u16).await {
                Ok(listener) => return Ok(listener),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Accepts connections and hands on each one that proves itself, until `hand_on` returns false.
    pub async fn run(self, keyring: Arc<Keyring>, mut hand_on: impl FnMut(Connection) -> bool) {
        let mut unproven = Unproven::default();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let Ok((mut socket, _)) = accepted else {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    };
                    let keyring = keyring.clone();
                    unproven.add(async move {
                        let id = keyring.welcome(&mut socket).await?;
                        prepare(&socket)?;
                        Ok(Connection { id, link: Duplex::Tcp(socket), expected: None, fate: None })
                    });
                }
                connection = unproven.next() => {
                    if !hand_on(connection) {
                        return;
                    }
                }
            }
        }
    }
}

async fn listen(bind: Option<IpAddr>, port: u16) -> io::Result<Listener> {
    let listener = match bind {
        Some(address) => TcpListener::bind((address, port)).await?,
        None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
            Ok(listener) => listener,
            // Of two copies that start together, one gets the port.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            // A host without IPv6.
            Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?,
        },
    };
    let port = listener.local_addr()?.port();
    Ok(Listener { listener, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_range_gives_each_of_its_ports_once() {
        // Finds a range of three ports that is free now: others may take one of them.
        let mut seen = Vec::new();
        for first in (20_000..60_000).step_by(101) {
            let ports = Some(Ports {
                first,
                last: first + 2,
            });
            let here = Some(Ipv4Addr::LOCALHOST.into());
            let mut open = Vec::new();
            while let Ok(listener) = Listener::open(here, ports, 1).await {
                open.push(listener);
            }
            seen = open.iter().map(|listener| listener.port - first).collect();
            if seen.len() == 3 {
                break;
            }
        }
        assert_eq!(seen, [1, 2, 0]);
    }
}

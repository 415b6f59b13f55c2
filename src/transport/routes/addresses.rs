//! Addresses of a host: the list that it announces, best first, and the subset that its peer
//! accepts.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::wire::message::{ADDRESSES_MAX, Listen};

/// One end of an ssh connection, as in `SSH_CONNECTION` ("client port server port").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SshEnd {
    Client,
    Server,
}

/// The address of that end; None if sshd did not start this process (or sudo removed the
/// variable).
pub fn of_login(connection: &str, end: SshEnd) -> Option<&str> {
    let nth = match end {
        SshEnd::Client => 0,
        SshEnd::Server => 2,
    };
    let word = connection.split(' ').nth(nth)?;
    (!word.is_empty()).then_some(word)
}

/// The addresses at which this host may be reached: `first`, then those of its interfaces.
pub fn own(first: Option<&str>) -> Vec<String> {
    let mut addresses: Vec<String> = first.map(str::to_owned).into_iter().collect();
    for ip in interfaces() {
        let text = ip.to_string();
        if !addresses.contains(&text) {
            addresses.push(text);
        }
    }
    addresses.truncate(ADDRESSES_MAX);
    addresses
}

/// Addresses of interfaces that are up, except loopback and link-local ones.
fn interfaces() -> Vec<IpAddr> {
    use nix::net::if_::InterfaceFlags;
    let Ok(all) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let up = |flags: InterfaceFlags| {
        flags.contains(InterfaceFlags::IFF_UP) && !flags.contains(InterfaceFlags::IFF_LOOPBACK)
    };
    all.filter(|interface| up(interface.flags))
        .filter_map(|interface| {
            let address = interface.address?;
            match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
                (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
                _ => None,
            }
        })
        .filter(|ip| !is_link_local(*ip))
        .collect()
}

/// The other end's announced addresses, except malformed ones and ones that cannot be dialled.
/// Zones are cut off, since a zone has a meaning only on the host that dials. Link-local addresses
/// are dropped, since they need the dialling host's zone.
pub fn announced(listen: &Listen) -> Vec<SocketAddr> {
    let plain = |text: &String| text.split('%').next()?.parse::<IpAddr>().ok();
    let mut addresses = Vec::new();
    for ip in listen
        .addresses
        .iter()
        .take(ADDRESSES_MAX)
        .filter_map(plain)
    {
        let address = SocketAddr::new(ip, listen.port);
        let is_known = addresses.contains(&address);
        if !is_known && !ip.is_unspecified() && !ip.is_multicast() && !is_link_local(ip) {
            addresses.push(address);
        }
    }
    addresses
}

/// The addresses that a name has for the host that announces `listen`. Empty if the host itself
/// announces one of them: the others may belong to other hosts.
pub fn by_name(found: Vec<SocketAddr>, listen: &Listen) -> Vec<SocketAddr> {
    let own = announced(listen);
    match found.iter().any(|address| own.contains(address)) {
        true => Vec::new(),
        false => found,
    }
}

/// Puts the address by which this end knows the other (from its login) first, if the other end
/// announces it or if it is link-local.
pub fn prefer(addresses: &mut Vec<SocketAddr>, listen: &Listen, known: &str) {
    let Some(known) = with_zone(known, listen.port) else {
        return;
    };
    let says_so = addresses.contains(&known);
    if says_so || is_link_local(known.ip()) {
        addresses.retain(|address| *address != known);
        addresses.insert(0, known);
    }
}

/// Parses `fe80::1%eth0` or any address.
pub fn with_zone(text: &str, port: u16) -> Option<SocketAddr> {
    let Some((ip, zone)) = text.split_once('%') else {
        return Some((text.parse::<IpAddr>().ok()?, port).into());
    };
    let scope = match zone.parse() {
        Ok(number) => number,
        Err(_) => nix::net::if_::if_nametoindex(zone).ok()?,
    };
    Some(SocketAddrV6::new(ip.parse().ok()?, port, 0, scope).into())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(addresses: &[&str]) -> Listen {
        Listen {
            addresses: addresses.iter().map(|text| text.to_string()).collect(),
            port: 9,
        }
    }

    #[test]
    fn the_address_that_ssh_reached_comes_first() {
        let connection = "10.0.0.1 5000 10.0.0.2 22";
        assert_eq!(of_login(connection, SshEnd::Server), Some("10.0.0.2"));
        assert_eq!(of_login(connection, SshEnd::Client), Some("10.0.0.1"));
        assert_eq!(of_login("", SshEnd::Server), None);
        assert_eq!(own(Some("192.0.2.7"))[0], "192.0.2.7");
    }

    #[test]
    fn what_cannot_be_dialled_is_left_out_and_many_are_cut() {
        let odd = [
            "x",
            "\u{1b}[2J",
            "%",
            "",
            "0.0.0.0",
            "ff02::1",
            "fe80::1%eth0",
            "::1%lo",
        ];
        assert_eq!(announced(&listen(&odd)), ["[::1]:9".parse().unwrap()]);
        let many = vec!["127.0.0.1"; 5000];
        assert_eq!(announced(&listen(&many)).len(), 1);
    }

    #[test]
    fn a_name_that_stands_for_several_hosts_adds_none_to_one_of_them() {
        let says = listen(&["10.0.0.1", "fd00::1"]);
        let found = |ips: &[&str]| -> Vec<SocketAddr> {
            ips.iter()
                .map(|ip| SocketAddr::new(ip.parse().unwrap(), 9))
                .collect()
        };
        assert!(by_name(found(&["10.0.0.2", "10.0.0.1"]), &says).is_empty());
        let gateway = found(&["203.0.113.9"]);
        assert_eq!(by_name(gateway.clone(), &says), gateway);
    }

    #[test]
    fn an_address_that_this_end_knows_is_preferred_if_the_other_has_it() {
        let says = listen(&["10.0.0.1", "192.0.2.1"]);
        let mut addresses = announced(&says);
        prefer(&mut addresses, &says, "203.0.113.9");
        assert_eq!(addresses[0].to_string(), "10.0.0.1:9", "a gateway's");
        prefer(&mut addresses, &says, "192.0.2.1");
        assert_eq!(addresses[0].to_string(), "192.0.2.1:9");
        assert_eq!(addresses.len(), 2);
        prefer(&mut addresses, &says, "fe80::5%1");
        assert_eq!(addresses[0].to_string(), "[fe80::5%1]:9");
    }
}

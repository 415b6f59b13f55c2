//! The file with the settings that suited each pair of hosts in the last copy. It may be lost: an
//! unreadable file counts as missing, and a failed write is ignored.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

use crate::outcome::Remembered;
use crate::session::request::{Host, Request};
use crate::ssh::Rsh;
use crate::tuner::{FILE_MAX, RememberedRoutes};

/// Copies of one process that end together take turns: each reads and rewrites the whole file.
static WRITING: Mutex<()> = Mutex::new(());

const ROUTES: &str = "/proc/net/route";
const ROUTES_6: &str = "/proc/net/ipv6_route";

/// Addresses that no host has (RFC 5737, RFC 3849), so that only default routes lead to them.
const ELSEWHERE: &str = "192.0.2.1:9";
const ELSEWHERE_6: &str = "[2001:db8::1]:9";

/// The destination of a default route in Linux's table of IPv6 routes.
const ANY_6: &str = "00000000000000000000000000000000";

/// In fastcp's directory inside the user's cache directory.
const NAME: &str = "routes.json";

/// How long a copy waits for the file's disk; after that the file counts as missing.
const PATIENCE: Duration = Duration::from_secs(1);

/// The settings for this pair of hosts; None if none are stored.
pub async fn recall(request: &Request) -> Option<Remembered> {
    let pair = pair(request)?;
    let read = tokio::task::spawn_blocking(move || routes(&path()?).get(&on_this_network(&pair)));
    timeout(PATIENCE, read).await.ok()?.ok().flatten()
}

/// Stores the settings that this copy found.
pub async fn remember(request: &Request, what: Remembered) {
    let Some(pair) = pair(request) else { return };
    let written = tokio::task::spawn_blocking(move || {
        let Some(path) = path() else { return };
        let _writing = WRITING.lock();
        let mut routes = routes(&path);
        routes.put(&on_this_network(&pair), what);
        // If two processes end together, the later one wins.
        let _ = write(&path, &routes.to_text());
    });
    // A write that takes longer is not waited for.
    let _ = timeout(PATIENCE, written).await;
}

/// The name of a pair of hosts; None unless ssh reaches a host. The other direction is a different
/// pair, since another processor or disk may limit it.
fn pair(request: &Request) -> Option<String> {
    let host = request.host().filter(|_| request.rsh == Rsh::Ssh)?;
    let named = |host: &Host| {
        let port = host.port.map_or(String::new(), |port| format!(" {port}"));
        format!("{}{port}", host.name)
    };
    Some(match (request.hosts(), &request.dest.host) {
        (Some((source, dest)), _) => format!("from {} to {}", named(source), named(dest)),
        (None, Some(_)) => format!("to {}", named(host)),
        (None, None) => format!("from {}", named(host)),
    })
}

/// The pair's name with the network that this host is in: the gateway of the default route and
/// this host's address on it. A wrong guess costs little, because the first round trips of a copy
/// must confirm the stored settings.
fn on_this_network(pair: &str) -> String {
    let table = |path| fs::read_to_string(path).unwrap_or_default();
    let found = default_route(&table(ROUTES)).map(|route| (route, own_network(ELSEWHERE)));
    let found = found.or_else(|| {
        let route = default_route_6(&table(ROUTES_6))?;
        Some((route, own_network(ELSEWHERE_6)))
    });
    match found {
        Some((gateway, own)) => format!("{pair} by {gateway} as {own}"),
        None => pair.to_owned(),
    }
}

/// The interface and the gateway of the default route with the lowest metric, as written in
/// Linux's table of IPv4 routes.
fn default_route(table: &str) -> Option<String> {
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [interface, "00000000", gateway, _, _, _, metric, ..] = fields[..] else {
            return None;
        };
        Some((
            metric.parse::<u32>().ok()?,
            format!("{interface} {gateway}"),
        ))
    });
    routes.min().map(|(_, route)| route)
}

/// The same from Linux's table of IPv6 routes, where metrics are hexadecimal. Used only if the
/// host has no IPv4 default route.
fn default_route_6(table: &str) -> Option<String> {
    let routes = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [ANY_6, "00", _, _, gateway, metric, .., interface] = fields[..] else {
            return None;
        };
        let metric = u32::from_str_radix(metric, 16).ok()?;
        (interface != "lo").then(|| (metric, format!("{interface} {gateway}")))
    });
    routes.min().map(|(_, route)| route)
}

/// This host's address on the default route; of an IPv6 address only the network, since hosts
/// change the rest every day (RFC 8981). Nothing is sent to find it out.
fn own_network(elsewhere: &str) -> String {
    let any = if elsewhere == ELSEWHERE_6 {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(any);
    let connected = socket.and_then(|socket| socket.connect(elsewhere).map(|()| socket));
    match connected.and_then(|socket| socket.local_addr()) {
        Ok(address) => network_of(address.ip()),
        Err(_) => String::new(),
    }
}

fn network_of(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}")
        }
    }
}

fn path() -> Option<PathBuf> {
    let is_absolute = |path: &PathBuf| path.is_absolute();
    let named = |name| std::env::var_os(name).map(PathBuf::from);
    let caches = named("XDG_CACHE_HOME").filter(is_absolute);
    let caches = caches.or_else(|| Some(named("HOME").filter(is_absolute)?.join(".cache")))?;
    Some(caches.join("fastcp").join(NAME))
}

fn routes(path: &PathBuf) -> RememberedRoutes {
    let mut text = Vec::new();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path);
    let read = opened.and_then(|file| file.take(FILE_MAX as u64 + 1).read_to_end(&mut text));
    match read {
        Ok(_) => RememberedRoutes::read(&text),
        Err(_) => RememberedRoutes::default(),
    }
}

/// Replaces the file atomically: its name always leads to a complete file.
fn write(path: &PathBuf, text: &[u8]) -> std::io::Result<()> {
    let Some(dir) = path.parent() else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let part = dir.join(format!("{NAME}.{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .and_then(|mut file: File| file.write_all(text))
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_gateway_is_another_network_and_the_lowest_metric_is_the_one_in_use() {
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     wlan0 00000000 0101A8C0 0003 0 0 600 00000000 0 0 0\n\
                     eth0 0000A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0\n\
                     eth0 00000000 FE01A8C0 0003 0 0 100 00000000 0 0 0\n";
        assert_eq!(default_route(table).as_deref(), Some("eth0 FE01A8C0"));
        let wireless: String = table.lines().take(2).map(|it| format!("{it}\n")).collect();
        assert_eq!(default_route(&wireless).as_deref(), Some("wlan0 0101A8C0"));
        for garbage in ["", "Iface", "\n\n a b", "Iface\nx 00000000 y z a b -1\n"] {
            assert_eq!(default_route(garbage), None);
            assert_eq!(default_route_6(garbage), None);
        }
    }

    #[test]
    fn a_network_of_ipv6_alone_is_told_by_gateway_and_prefix() {
        let line = |to: &str, length, gateway, metric, interface| {
            format!("{to} {length} {ANY_6} 00 {gateway} {metric} 00000002 0 00000003 {interface}\n")
        };
        let table = [
            line(
                "fd000000000000000000000000000000",
                "40",
                ANY_6,
                "00000100",
                "eth0",
            ),
            line(
                ANY_6,
                "00",
                "fe800000000000000000000000000002",
                "00000400",
                "wlan0",
            ),
            line(
                ANY_6,
                "00",
                "fe800000000000000000000000000001",
                "00000064",
                "eth0",
            ),
            line(ANY_6, "00", ANY_6, "00000000", "lo"),
        ];
        let found = default_route_6(&table.concat());
        assert_eq!(
            found.as_deref(),
            Some("eth0 fe800000000000000000000000000001")
        );
        let network = |text: &str| network_of(text.parse().expect("an address"));
        let other_day = network("2001:db8:1:2:c0ff:ee:1:1");
        assert_eq!(network("2001:db8:1:2:a:b:c:d"), other_day);
        assert_ne!(network("2001:db8:1:3:a:b:c:d"), other_day);
    }
}

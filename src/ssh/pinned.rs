//! The very host again, where its name stands for several that are taken in turns: what a copy has
//! left, and the session itself, are on the one that the first login reached.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

use super::names::{configuration, host_of, value};
use super::{Host, SshOptions};

/// How long the resolver may take for a name that it had for the first login.
const PATIENCE: Duration = Duration::from_secs(5);

/// What of ssh's configuration may hold the name that ssh connects to: with an address in its place
/// it would mean something else.
const TOKENS: [&str; 3] = ["%h", "%k", "%C"];

/// ssh's port, which known_hosts does not name.
const PORT: &str = "22";

/// `options` by which ssh goes to the address `reached`, and looks for its key under the name, as
/// before. None where the name has no other address, or the address is of another network (behind a
/// gateway, a jump host or a proxy); and where ssh would then read its configuration another way.
pub async fn pinned(host: &Host, options: &SshOptions, reached: &str) -> Option<SshOptions> {
    let reached: IpAddr = reached.parse().ok()?;
    let told = configuration(host, options).await?;
    let name = host_of(&told)?;
    let is_shared = value(&told, "controlpath").is_some();
    if is_shared || TOKENS.iter().any(|token| told.contains(token)) {
        return None;
    }
    let addresses = addresses(&name).await;
    if addresses.len() < 2 || !addresses.contains(&reached) {
        return None;
    }
    // The first of two settings counts.
    let first = vec![
        format!("HostName={reached}"),
        format!("HostKeyAlias={}", key_name(&told, &name)),
    ];
    let pinned = SshOptions {
        options: [first, options.options.clone()].concat(),
        ..options.clone()
    };
    let now = configuration(host, &pinned).await?;
    rest(&told).eq(rest(&now)).then_some(pinned)
}

async fn addresses(name: &str) -> HashSet<IpAddr> {
    match timeout(PATIENCE, lookup_host((name, 0))).await {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        _ => HashSet::new(),
    }
}

/// Under which known_hosts has the host's key.
fn key_name(told: &str, name: &str) -> String {
    match (value(told, "hostkeyalias"), value(told, "port")) {
        (Some(alias), _) => alias.to_owned(),
        (None, Some(port)) if port != PORT => format!("[{name}]:{port}"),
        _ => name.to_owned(),
    }
}

/// All but what is pinned.
fn rest(told: &str) -> impl Iterator<Item = &str> {
    let keyword = |line: &&str| line.split(' ').next().unwrap_or_default().to_owned();
    let lines = told.lines();
    lines.filter(move |line| !["hostname", "hostkeyalias"].contains(&&*keyword(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_looked_for_where_it_was() {
        assert_eq!(key_name("port 22\n", "h"), "h");
        assert_eq!(key_name("port 2222\n", "h"), "[h]:2222");
        assert_eq!(key_name("port 2222\nhostkeyalias k\n", "h"), "k");
    }

    #[test]
    fn nothing_but_the_address_may_change() {
        let told = "user me\nhostname h\nport 22\n";
        let now = "user me\nhostname 10.0.0.1\nport 22\nhostkeyalias h\n";
        assert!(rest(told).eq(rest(now)));
        assert!(!rest(told).eq(rest(&now.replace("me", "you"))));
    }
}

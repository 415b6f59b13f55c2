//! Pinning of later logins to one address, for a host name that resolves to several in turn. The
//! partial files and the session are on the host that the first login reached.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

use super::names::{configuration, host_of, value};
use super::{Host, SshOptions};

/// Time limit for resolving a name that was already resolved for the first login.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tokens in ssh's configuration that may contain the host name. With an address instead of the
/// name they would have another meaning.
const TOKENS: [&str; 3] = ["%h", "%k", "%C"];

/// ssh's default port, which known_hosts omits.
const PORT: &str = "22";

/// `options` with which ssh connects to the address `reached`, but looks up the host key under
/// the name as before. None if the name has no other address, or if `reached` belongs to another
/// network (behind a gateway, jump host or proxy). Also None if the new options would change
/// other parts of ssh's configuration.
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
    // ssh uses the first of two settings.
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

/// The name of the host's key in known_hosts.
fn key_name(told: &str, name: &str) -> String {
    match (value(told, "hostkeyalias"), value(told, "port")) {
        (Some(alias), _) => alias.to_owned(),
        (None, Some(port)) if port != PORT => format!("[{name}]:{port}"),
        _ => name.to_owned(),
    }
}

/// All lines except the pinned settings.
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

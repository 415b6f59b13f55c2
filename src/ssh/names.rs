//! What ssh's configuration makes of a host's name: asked of ssh itself.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::{Host, SshOptions, ssh_arguments};

/// How long ssh may take to read its configuration; a `Match exec` in it may take long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where ssh connects to for this host, if it does so by itself: None behind a jump host or a
/// proxy, whose network is another, and where ssh cannot tell.
pub async fn hostname(host: &Host, options: &SshOptions) -> Option<String> {
    host_of(&configuration(host, options).await?)
}

/// Who a login to the host is there; None where ssh cannot tell.
pub(super) async fn user(host: &Host, options: &SshOptions) -> Option<String> {
    value(&configuration(host, options).await?, "user").map(str::to_owned)
}

/// ssh's own `ConnectTimeout` for the host, where the user has set one.
pub async fn connect_timeout(host: &Host, options: &SshOptions) -> Option<Duration> {
    let told = configuration(host, options).await?;
    let seconds = value(&told, "connecttimeout")?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

pub(super) async fn configuration(host: &Host, options: &SshOptions) -> Option<String> {
    let asking = Command::new(options.program())
        .arg("-G")
        .args(ssh_arguments(host, options))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let told = timeout(PATIENCE, asking).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    told.status.success().then_some(text)
}

pub(super) fn host_of(told: &str) -> Option<String> {
    if value(told, "proxyjump").is_some() || value(told, "proxycommand").is_some() {
        return None;
    }
    value(told, "hostname").map(str::to_owned)
}

pub(super) fn value<'a>(told: &'a str, wanted: &str) -> Option<&'a str> {
    let mut pairs = told.lines().filter_map(|line| line.split_once(' '));
    let found = pairs.find(|(keyword, _)| *keyword == wanted);
    found
        .map(|(_, value)| value)
        .filter(|value| *value != "none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_host_behind_another_is_not_looked_up_here() {
        let plain = "user me\nhostname fe80::1%eth0\nport 22\nproxycommand none\n";
        assert_eq!(host_of(plain).unwrap(), "fe80::1%eth0");
        let jump = "hostname inner\nproxyjump gate\n";
        assert_eq!(host_of(jump), None);
    }
}

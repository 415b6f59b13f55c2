//! Queries of ssh's configuration for a host, answered by ssh itself (`ssh -G`).

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::options::{Host, SshOptions, ssh_arguments};

/// Time limit for ssh to read its configuration. A `Match exec` in it may be slow.
const PATIENCE: Duration = Duration::from_secs(5);

/// The host name or address that ssh connects to. None with a jump host or a proxy, which resolve
/// it in another network, and if ssh does not answer.
pub async fn hostname(host: &Host, options: &SshOptions) -> Option<String> {
    host_of(&configuration(host, options).await?)
}

/// The user's name on the host; None if ssh does not answer.
pub(super) async fn user(host: &Host, options: &SshOptions) -> Option<String> {
    value(&configuration(host, options).await?, "user").map(str::to_owned)
}

/// The user's own `ConnectTimeout` for the host.
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

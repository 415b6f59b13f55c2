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
    let program = options.program.clone().unwrap_or_else(|| "ssh".into());
    let asking = Command::new(program)
        .arg("-G")
        .args(ssh_arguments(host, options))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let told = timeout(PATIENCE, asking).await.ok()?.ok()?;
    told.status
        .success()
        .then(|| of_configuration(&told.stdout))?
}

fn of_configuration(told: &[u8]) -> Option<String> {
    let told = String::from_utf8_lossy(told);
    let value = |wanted: &str| {
        let mut pairs = told.lines().filter_map(|line| line.split_once(' '));
        let found = pairs.find(|(keyword, _)| *keyword == wanted);
        found
            .map(|(_, value)| value)
            .filter(|value| *value != "none")
    };
    if value("proxyjump").is_some() || value("proxycommand").is_some() {
        return None;
    }
    value("hostname").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_host_behind_another_is_not_looked_up_here() {
        let plain = b"user me\nhostname fe80::1%eth0\nport 22\nproxycommand none\n";
        assert_eq!(of_configuration(plain).unwrap(), "fe80::1%eth0");
        let jump = b"hostname inner\nproxyjump gate\n";
        assert_eq!(of_configuration(jump), None);
    }
}

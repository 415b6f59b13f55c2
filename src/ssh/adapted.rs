//! Options of ssh that depend on the user's configuration for a host.

use super::names::{configuration, value};
use super::{Host, SshOptions};

/// Seconds that ssh may take for each address of a host. If one does not answer, ssh tries the next
/// before fastcp gives the login up.
const RECONNECT_TIMEOUT_S: u32 = 15;

/// Options for an unattended login, which never asks and soon times out. With `afresh` ssh does
/// not use a master connection, which may be as dead as the lost one.
pub async fn unattended(host: &Host, options: &SshOptions, afresh: bool) -> SshOptions {
    let options = options.unattended(afresh);
    let told = configuration(host, &options).await.unwrap_or_default();
    limited(&told, options)
}

/// Adds a time limit, unless `told`, the user's configuration for the host, has one. Behind a jump
/// host or proxy ssh has no other address to try, and the proxy may take its time to wake the host.
fn limited(told: &str, mut options: SshOptions) -> SshOptions {
    let decides = ["connecttimeout", "proxycommand", "proxyjump"];
    if decides.iter().all(|name| value(told, name).is_none()) {
        let limit = format!("ConnectTimeout={RECONNECT_TIMEOUT_S}");
        options.options.push(limit);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_has_a_time_limit_unless_the_user_or_a_proxy_decides() {
        let limit = |told: &str| limited(told, SshOptions::default()).options.concat();
        let plain = "connecttimeout none\nproxycommand none\n";
        assert_eq!(limit(plain), "ConnectTimeout=15");
        assert_eq!(limit(""), "ConnectTimeout=15", "ssh did not answer");
        for own in [
            "connecttimeout 60",
            "proxyjump gate",
            "proxycommand wake %h",
        ] {
            assert_eq!(limit(own), "", "{own}");
        }
    }
}

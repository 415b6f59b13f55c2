//! Options of ssh that depend on the user's configuration for a host.

use super::names::{configuration, value};
use super::{Host, SshOptions};

/// Seconds that ssh may take for each address of a host. If one does not answer, ssh tries the next
/// before fastcp gives the login up.
const RECONNECT_TIMEOUT_S: u32 = 15;

/// Log levels at which ssh does not say why a login failed. `ssh -G` calls QUIET by its other name.
const SILENT_LEVELS: [&str; 3] = ["SILENT", "QUIET", "FATAL"];

/// `options` with which ssh says why a login failed, because fastcp decides by that whether it
/// retries.
pub async fn with_reasons(host: &Host, options: SshOptions) -> SshOptions {
    match configuration(host, &options).await {
        Some(told) => saying_why(&told, options),
        None => options,
    }
}

/// Options for an unattended login, which never asks, soon times out and says why it failed. With
/// `afresh` ssh does not use a master connection, which may be as dead as the lost one.
pub async fn unattended(host: &Host, options: &SshOptions, afresh: bool) -> SshOptions {
    let options = options.unattended(afresh);
    let told = configuration(host, &options).await.unwrap_or_default();
    limited(&told, saying_why(&told, options))
}

/// `told` is the user's configuration for the host. ssh uses the first of two settings.
fn saying_why(told: &str, mut options: SshOptions) -> SshOptions {
    if value(told, "loglevel").is_some_and(|level| SILENT_LEVELS.contains(&level)) {
        options.options.insert(0, "LogLevel=ERROR".to_owned());
    }
    options
}

/// Adds a time limit, unless the user has set one. Behind a jump host or proxy ssh has no other
/// address to try, and the proxy may take its time to wake the host.
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

    #[test]
    fn ssh_says_why_a_login_failed_even_if_the_user_wants_it_quiet() {
        let typed = SshOptions {
            options: vec!["LogLevel=QUIET".to_owned()],
            ..SshOptions::default()
        };
        let options = |told: &str| saying_why(told, typed.clone()).options.join(" ");
        for level in SILENT_LEVELS {
            let told = format!("user me\nloglevel {level}\n");
            assert_eq!(options(&told), "LogLevel=ERROR LogLevel=QUIET");
        }
        for told in ["loglevel ERROR\n", "loglevel DEBUG3\n", ""] {
            assert_eq!(options(told), "LogLevel=QUIET", "{told}");
        }
    }
}

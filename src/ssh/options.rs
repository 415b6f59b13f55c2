//! The address of a host for ssh, and the options that are passed to ssh.

use std::ffi::OsString;
use std::path::PathBuf;

/// The address of a host for ssh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    pub user: Option<String>,
    /// A host name, an alias from ssh's configuration, or an address without brackets.
    pub name: String,
    /// From `scp://…:port/`; takes precedence over `-P`.
    pub port: Option<u16>,
}

/// Options that are passed to ssh, with scp's letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SshOptions {
    /// `-S`; default "ssh".
    pub program: Option<PathBuf>,
    pub port: Option<u16>,
    pub identities: Vec<PathBuf>,
    pub config: Option<PathBuf>,
    pub jump: Option<String>,
    /// `-o`, in order.
    pub options: Vec<String>,
    pub cipher: Option<String>,
    pub ipv4: bool,
    pub ipv6: bool,
    pub batch: bool,
    pub forward_agent: bool,
    pub quiet: bool,
    /// Number of `-v` for ssh.
    pub verbose: u8,
}

impl SshOptions {
    pub(super) fn program(&self) -> PathBuf {
        self.program.clone().unwrap_or_else(|| "ssh".into())
    }

    /// Options for a login that never asks. ssh uses the first of two settings, so mandatory ones
    /// precede the user's. With `afresh` ssh does not use a master connection.
    pub(super) fn unattended(&self, afresh: bool) -> SshOptions {
        let mut first = vec!["BatchMode=yes".to_owned()];
        if afresh {
            first.extend(["ControlMaster=no", "ControlPath=none"].map(str::to_owned));
        }
        SshOptions {
            options: [first, self.options.clone()].concat(),
            batch: true,
            ..self.clone()
        }
    }
}

/// Overrides of settings that break a binary pipe. Older versions of ssh do not know the last
/// three; `IgnoreUnknown` makes them ignore these.
pub(super) const PIPE_OPTIONS: [&str; 9] = [
    "-x",
    "-oPermitLocalCommand=no",
    "-oClearAllForwardings=yes",
    "-oRemoteCommand=none",
    "-oRequestTTY=no",
    "-oIgnoreUnknown=StdinNull,ForkAfterAuthentication,SessionType",
    "-oStdinNull=no",
    "-oForkAfterAuthentication=no",
    "-oSessionType=default",
];

/// ssh's arguments before the remote command.
pub(super) fn ssh_arguments(host: &Host, options: &SshOptions) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = PIPE_OPTIONS.iter().map(OsString::from).collect();
    let mut pair = |letter: &str, value: OsString| arguments.extend([letter.into(), value]);
    if let Some(port) = host.port.or(options.port) {
        pair("-p", port.to_string().into());
    }
    for identity in &options.identities {
        pair("-i", identity.into());
    }
    if let Some(config) = &options.config {
        pair("-F", config.into());
    }
    if let Some(jump) = &options.jump {
        pair("-J", jump.into());
    }
    if let Some(cipher) = &options.cipher {
        pair("-c", cipher.into());
    }
    for option in &options.options {
        pair("-o", option.into());
    }
    if let Some(user) = &host.user {
        pair("-l", user.into());
    }
    let flags = [
        (options.ipv4, "-4"),
        (options.ipv6, "-6"),
        // `-q` would suppress ssh's errors, which an error message quotes.
        (options.quiet, "-oLogLevel=ERROR"),
        (options.batch, "-oBatchMode=yes"),
        // Like scp: forwards the agent only with `-A`, whatever the configuration says.
        (
            true,
            if options.forward_agent {
                "-oForwardAgent=yes"
            } else {
                "-oForwardAgent=no"
            },
        ),
    ];
    arguments.extend(
        flags
            .into_iter()
            .filter(|(set, _)| *set)
            .map(|(_, flag)| flag.into()),
    );
    arguments.extend((0..options.verbose).map(|_| "-v".into()));
    arguments.extend(["--".into(), OsString::from(&host.name)]);
    arguments
}

//! A far host: a real sshd on a loopback port, with separate keys, home and PATH.
//!
//! The test itself listens and starts `sshd -i` for every connection. So the port is known, the
//! test need not wait for sshd to start, it can count logins, and no sshd outlives it. A script
//! sets up each login (PATH, HOME, noise), and a test may replace it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::offspring::dying_with_this_thread;
use super::procs::MARK;
use super::run::{fastcp_binary, reap, reap_and_measure};
use super::tree::Dir;
use super::{keys, net};

/// The host's name in ssh's configuration.
pub(crate) const NAME: &str = "far";

/// The name of the second host, where a case has two.
pub(crate) const NEAR: &str = "near";

/// The password for [`Host::ask_for_password`], followed by its hash from `crypt`.
pub(crate) const PASSWORD: &str = "open sesame";
const PASSWORD_HASH: &str = "$6$fastcptest$C4ZL0R9oXPOfkcAzRaFqpL3CV6sR2vKV3VxqGgwqgyKIbOqmW07wF7uzS7v\
                             IR1FgbP2sQ8XHVr6veC.zEbAbq0";

pub(crate) struct Host {
    dir: Dir,
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    /// The network namespace of the host, where it differs from this process's.
    namespace: Option<String>,
}

#[derive(Default)]
struct Shared {
    closing: AtomicBool,
    logins: AtomicUsize,
    /// How many connections to accept first, and how many to refuse after that.
    refusals: Mutex<(usize, usize)>,
    is_measured: AtomicBool,
    peak_rss_bytes: Mutex<u64>,
    sessions: Mutex<Vec<Session>>,
}

/// One sshd process that serves one connection.
struct Session {
    /// Identifies the process even after it was reaped, when another process may have its number.
    pidfd: OwnedFd,
    waiter: JoinHandle<()>,
}

/// The environment of a login on the host.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub path: String,
    /// Shell lines that run before the command.
    pub before: String,
    /// Words before the shell that runs the command, as in `setpriv --x sh -c …`.
    pub under: String,
    /// The login shell.
    pub shell: String,
}

impl Default for Login {
    /// fastcp is on PATH, and the login prints nothing.
    fn default() -> Login {
        let bin = fastcp_binary().parent().expect("has a directory");
        Login {
            path: format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()),
            before: String::new(),
            under: String::new(),
            shell: "/bin/sh".into(),
        }
    }
}

/// A requirement that this machine lacks for a host; a test that gets it is skipped.
#[derive(Debug)]
pub(crate) struct Lacks(pub &'static str);

impl Host {
    /// `dir` takes keys and configuration; a login starts in `home`; every process that a login
    /// starts has `mark` in its environment.
    pub(crate) fn start(dir: Dir, home: &Path, mark: &str) -> Result<Host, Lacks> {
        Host::start_at((Ipv4Addr::LOCALHOST, 0).into(), dir, home, mark)
    }

    /// The same in a network namespace, on ssh's own port.
    pub(crate) fn start_in(
        namespace: &str,
        ip: IpAddr,
        dir: Dir,
        home: &Path,
        mark: &str,
    ) -> Result<Host, Lacks> {
        thread::scope(|scope| {
            let starting = scope.spawn(|| {
                net::enter(namespace);
                let mut host = Host::start_at((ip, 22).into(), dir, home, mark)?;
                host.namespace = Some(namespace.to_owned());
                Ok(host)
            });
            starting.join().expect("it does not panic")
        })
    }

    pub(crate) fn start_at(
        at: SocketAddr,
        dir: Dir,
        home: &Path,
        mark: &str,
    ) -> Result<Host, Lacks> {
        let sshd = find_program("sshd").ok_or(Lacks("sshd"))?;
        find_program("ssh").ok_or(Lacks("ssh"))?;
        find_program("ssh-keygen").ok_or(Lacks("ssh-keygen"))?;
        let listener = TcpListener::bind(at).map_err(|_| Lacks("a loopback address"))?;
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").expect("make sshd's directory");
        }
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let mut host = Host {
            dir,
            address,
            shared: shared.clone(),
            acceptor: None,
            namespace: None,
        };
        host.make_keys();
        host.write_sshd_config(home, mark);
        host.write_ssh_config();
        host.set_login(&Login::default());
        let (config, log) = (host.dir.path("sshd_config"), host.dir.path("sshd.log"));
        host.acceptor = Some(thread::spawn(move || {
            accept(&listener, &sshd, &config, &log, &shared);
        }));
        Ok(host)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// For `ssh -F`.
    pub(crate) fn ssh_config(&self) -> PathBuf {
        self.dir.path("ssh_config")
    }

    /// Adds the `other` host under this name to this host's ssh configuration.
    pub(crate) fn introduce(&self, name: &str, other: &Host) {
        let text = |host: &Host, file: &str| String::from_utf8(host.dir.read(file)).expect("text");
        let theirs = text(other, "ssh_config");
        let theirs = theirs.replacen(NAME, name, 1);
        let theirs = theirs.split("Host *").next().unwrap_or_default();
        let config = theirs.to_owned() + &text(self, "ssh_config");
        self.dir.file("ssh_config", config);
        let known = text(self, "known_hosts") + &text(other, "known_hosts");
        self.dir.file("known_hosts", known);
        other.dir.file("authorized_keys", text(self, "key.pub"));
        fs::copy(self.dir.path("key.pub"), other.dir.path("key.pub")).expect("copy a key");
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.dir.path("key")
    }

    /// Connections that sshd has accepted so far.
    pub(crate) fn logins(&self) -> usize {
        self.shared.logins.load(SeqCst)
    }

    /// From now on the memory of logins is measured.
    pub(crate) fn measure(&self) {
        self.shared.is_measured.store(true, SeqCst);
    }

    /// The peak resident memory of a single process, among all measured logins that have ended.
    pub(crate) fn peak_rss_bytes(&self) -> u64 {
        *self
            .shared
            .peak_rss_bytes
            .lock()
            .expect("no panic while held")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path("sshd.log")).unwrap_or_default()
    }

    /// Waits until every login has ended.
    pub(crate) fn wait_for_logins(&self) {
        loop {
            let next = self
                .shared
                .sessions
                .lock()
                .expect("no panic while held")
                .pop();
            match next {
                Some(session) => session.waiter.join().expect("waiting does not panic"),
                None => return,
            }
        }
    }

    pub(crate) fn set_login(&self, login: &Login) {
        let fixed = fs::read_to_string(self.dir.path("login.env")).expect("written at the start");
        let script = format!(
            "#!/bin/sh\n{fixed}PATH='{}'; export PATH\ncd \"$HOME\" || exit 1\n{}\n\
             exec {} {} -c \"$SSH_ORIGINAL_COMMAND\"\n",
            login.path, login.before, login.under, login.shell,
        );
        self.dir.file("login", script);
        self.dir.mode("login", 0o755);
    }

    /// Closes `refused` connections before any byte is sent on them, as `MaxStartups` does, after
    /// `taken` more were accepted.
    pub(crate) fn refuse(&self, taken: usize, refused: usize) {
        *self.shared.refusals.lock().expect("no panic while held") = (taken, refused);
    }

    /// From now on a login takes the password [`PASSWORD`] and no key. Only root can do this: the
    /// password is valid in a view of the file system that only sshd has.
    pub(crate) fn ask_for_password(&self) {
        let shadow = format!("{}:{PASSWORD_HASH}:19000:0:99999:7:::\n", user());
        self.dir.file("shadow", shadow);
        let config = String::from_utf8(self.dir.read("sshd_config")).expect("text");
        let config = config.replace("PasswordAuthentication no", "PasswordAuthentication yes");
        self.dir
            .file("sshd_config", config + "PubkeyAuthentication no\n");
    }

    /// Restricts the key to this command, as a line of `authorized_keys` does.
    pub(crate) fn force(&self, command: &str) {
        let config = self.dir.read("sshd_config");
        let config = String::from_utf8(config).expect("text");
        let config = config
            .lines()
            .filter(|line| !line.starts_with("ForceCommand"));
        let config: Vec<_> = config.collect();
        self.dir.file("sshd_config", config.join("\n") + "\n");
        let key = fs::read_to_string(self.dir.path("key.pub")).expect("read a key");
        let line = format!("restrict,command=\"{command}\" {key}");
        self.dir.file("authorized_keys", line);
    }

    /// The host's directory for scripts and stand-ins.
    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    fn make_keys(&self) {
        let host = self.dir.0.file_name().expect("it has a name");
        for name in ["host_key", "key"] {
            let pair = keys::pair(&format!("{}/{name}", host.display()));
            self.dir.file(name, &pair.private);
            self.dir.mode(name, 0o600);
            self.dir.file(format!("{name}.pub"), &pair.public);
        }
        fs::copy(self.dir.path("key.pub"), self.dir.path("authorized_keys")).expect("copy a key");
        let public = fs::read_to_string(self.dir.path("host_key.pub")).expect("read a key");
        let ip = self.address.ip();
        let names = match self.port() {
            22 => ip.to_string(),
            port => format!("[{ip}]:{port}"),
        };
        self.dir.file("known_hosts", format!("{names} {public}"));
    }

    fn write_sshd_config(&self, home: &Path, mark: &str) {
        let d = self.dir.0.display();
        self.dir.file(
            "login.env",
            format!(
                "HOME='{}'; {MARK}='{mark}'; LC_ALL=C.UTF-8; export HOME {MARK} LC_ALL\n",
                home.display()
            ),
        );
        // The user's shell runs it, as it runs every command of a login, but without the user's
        // own start-up files. The default key exchange costs 75 ms of processor time per login,
        // this one 7 ms.
        self.dir.file(
            "sshd_config",
            format!(
                "HostKey \"{d}/host_key\"\n\
                 AuthorizedKeysFile \"{d}/authorized_keys\"\n\
                 PidFile none\n\
                 StrictModes no\n\
                 UsePAM no\n\
                 PasswordAuthentication no\n\
                 KbdInteractiveAuthentication no\n\
                 PermitRootLogin yes\n\
                 AllowAgentForwarding yes\n\
                 UseDNS no\n\
                 KexAlgorithms curve25519-sha256\n\
                 LogLevel VERBOSE\n\
                 SetEnv HOME=\"{d}\"\n\
                 ForceCommand exec '{d}/login'\n"
            ),
        );
    }

    fn write_ssh_config(&self) {
        let d = self.dir.0.display();
        self.dir.file(
            "ssh_config",
            format!(
                "Host {NAME}\n\
                 \tHostName {}\n\
                 \tPort {}\n\
                 \tUser {}\n\
                 Host *\n\
                 \tIdentityFile \"{d}/key\"\n\
                 \tIdentitiesOnly yes\n\
                 \tUserKnownHostsFile \"{d}/known_hosts\"\n\
                 \tGlobalKnownHostsFile /dev/null\n\
                 \tStrictHostKeyChecking yes\n\
                 \tUpdateHostKeys no\n",
                self.address.ip(),
                self.port(),
                user(),
            ),
        );
    }
}

impl Shared {
    fn is_refused(&self) -> bool {
        let mut refusals = self.refusals.lock().expect("no panic while held");
        match &mut *refusals {
            (0, 0) => false,
            (0, left) => {
                *left -= 1;
                true
            }
            (before, _) => {
                *before -= 1;
                false
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shared.closing.store(true, SeqCst);
        // Wakes the acceptor, which then sees that it has to end.
        let (address, namespace) = (self.address, self.namespace.take());
        let waking = thread::spawn(move || {
            if let Some(namespace) = namespace {
                net::enter(&namespace);
            }
            TcpStream::connect(address).ok();
        });
        waking.join().ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
        let sessions = self.shared.sessions.lock();
        for session in sessions.expect("no panic while held").iter() {
            pidfd_send_signal(&session.pidfd, Signal::TERM).ok();
        }
        self.wait_for_logins();
    }
}

fn accept(listener: &TcpListener, sshd: &Path, config: &Path, log: &Path, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        if shared.closing.load(SeqCst) {
            return;
        }
        let Ok(connection) = connection else { continue };
        if shared.is_refused() {
            continue;
        }
        shared.logins.fetch_add(1, SeqCst);
        let child = start_sshd(sshd, config, log, connection.into());
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let own = shared.clone();
        let waiter = thread::spawn(move || {
            if !own.is_measured.load(SeqCst) {
                return reap(child);
            }
            let peak = reap_and_measure(child);
            let mut most = own.peak_rss_bytes.lock().expect("no panic while held");
            *most = most.max(peak);
        });
        let mut sessions = shared.sessions.lock().expect("no panic while held");
        sessions.push(Session {
            pidfd: pidfd.expect("it is not reaped yet"),
            waiter,
        });
    }
}

fn start_sshd(sshd: &Path, config: &Path, log: &Path, connection: OwnedFd) -> Child {
    let again = connection.try_clone().expect("duplicate a socket");
    let shadow = config.with_file_name("shadow");
    let mut command = match shadow.is_file() {
        false => dying_with_this_thread(sshd),
        true => {
            let script = "mount --bind \"$0\" /etc/shadow && exec \"$@\"";
            let mut command = dying_with_this_thread("unshare");
            command.args(["--mount", "sh", "-c", script]);
            command.arg(shadow).arg(sshd);
            command
        }
    };
    command
        .arg("-i")
        .arg("-f")
        .arg(config)
        .arg("-E")
        .arg(log)
        .stdin(Stdio::from(connection))
        .stdout(Stdio::from(again))
        .stderr(Stdio::null());
    command.spawn().expect("start sshd")
}

/// The name that this process's user logs in with, or the user's number.
pub(crate) fn user() -> String {
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).expect("read the user database");
    // A container's user may have no name, and then no sshd to log in to either.
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// A program on PATH or in a directory of daemons.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

//! The tools and how each is made to copy; the far side as a place where shell lines run.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where the copies go: a directory on a host, or on this machine.
#[derive(Default)]
pub struct Far {
    pub host: Option<String>,
    pub dir: String,
    pub ssh_config: Option<String>,
    pub remote_path: Option<String>,
    pub fastcp_flags: Vec<String>,
}

pub struct Tool {
    pub name: &'static str,
    /// Programs that both ends must have.
    pub needs: &'static [&'static str],
    /// Copies the file or directory into the directory, which is empty.
    pub run: fn(&Far, &Path, &str) -> Result<(), String>,
}

pub fn all(remote: bool) -> Vec<Tool> {
    let tool = |name, needs, run| Tool { name, needs, run };
    if remote {
        vec![
            tool("fastcp", &[], fastcp),
            tool("scp", &["scp"], scp),
            tool("rsync", &["rsync"], rsync),
            tool("tar|zstd|nc", &["tar", "zstd", "nc"], tar_zstd_nc),
            tool("tar|lz4|ssh", &["tar", "lz4"], tar_lz4_ssh),
            tool("bbcp", &["bbcp"], bbcp),
            tool("mscp", &["mscp"], mscp),
        ]
    } else {
        vec![
            tool("fastcp", &[], fastcp),
            tool("fastcp in one", &[], fastcp_alone),
            tool("cp", &["cp"], cp),
            tool("rsync", &["rsync"], rsync),
            tool("tar|tar", &["tar"], tar_tar),
        ]
    }
}

impl Far {
    /// `sh -c LINE` over there.
    fn shell(&self, line: &str) -> Command {
        match &self.host {
            None => {
                let mut command = Command::new("sh");
                command.args(["-c", line]);
                command
            }
            Some(host) => {
                let mut command = self.ssh("ssh");
                command.args([host, line]);
                command
            }
        }
    }

    /// A program of ssh's family with the configuration that was named.
    fn ssh(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Some(config) = &self.ssh_config {
            command.args(["-F", config]);
        }
        command
    }

    fn ssh_words(&self) -> String {
        let config = self.ssh_config.as_ref();
        config.map_or("ssh".to_owned(), |config| {
            format!("ssh -F {}", quote(config))
        })
    }

    fn operand(&self, path: &str) -> String {
        match &self.host {
            None => path.to_owned(),
            Some(host) => format!("{host}:{path}"),
        }
    }

    pub fn has(&self, tool: &Tool) -> bool {
        let line: Vec<String> = tool
            .needs
            .iter()
            .map(|program| format!("command -v {program} > /dev/null"))
            .collect();
        let line = if line.is_empty() {
            ":".to_owned()
        } else {
            line.join(" && ")
        };
        let mut here = Command::new("sh");
        here.args(["-c", &line]);
        finish(here).is_ok() && finish(self.shell(&line)).is_ok()
    }

    pub fn make_dir(&self, dir: &str) -> Result<(), String> {
        finish(self.shell(&format!("mkdir -p {}", quote(dir))))
    }

    pub fn remove_dir(&self, dir: &str) -> Result<(), String> {
        finish(self.shell(&format!("rm -rf {}", quote(dir))))
    }

    pub fn digests_here(&self, input: &Path) -> Result<String, String> {
        let parent = input.parent().ok_or("--input has no directory")?;
        let name = input
            .file_name()
            .ok_or("--input has no name")?
            .to_string_lossy();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &digests_of(&parent.to_string_lossy(), &quote(&format!("./{name}"))),
        ]);
        output(command)
    }

    pub fn digests_there(&self, dir: &str) -> Result<String, String> {
        output(self.shell(&digests_of(dir, ".")))
    }

    /// None on this machine.
    pub fn login_time(&self) -> Option<Duration> {
        self.host.as_ref()?;
        let since = Instant::now();
        finish(self.shell("true")).ok()?;
        Some(since.elapsed())
    }

    /// Name or address behind an alias of ssh's configuration.
    fn address(&self) -> Result<String, String> {
        let host = self.host.as_deref().ok_or("no host")?;
        let mut command = self.ssh("ssh");
        command.args(["-G", host]);
        let settings = output(command)?;
        let name = settings
            .lines()
            .find_map(|line| line.strip_prefix("hostname "));
        name.map(str::to_owned)
            .ok_or("ssh -G told no host name".to_owned())
    }
}

/// A shell line that prints the digest of every file below, in one order on every machine.
fn digests_of(dir: &str, below: &str) -> String {
    format!(
        "cd {} && find {below} -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum",
        quote(dir)
    )
}

pub fn bytes_below(path: &Path) -> io::Result<u64> {
    let meta = path.symlink_metadata()?;
    if !meta.is_dir() {
        return Ok(meta.len());
    }
    fs::read_dir(path)?
        .map(|entry| bytes_below(&entry?.path()))
        .sum()
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn finish(command: Command) -> Result<(), String> {
    output(command).map(drop)
}

fn output(mut command: Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| format!("{program}: {cause}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!(
            "{program}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

fn fastcp(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let mut command = far.ssh(env!("CARGO_BIN_EXE_fastcp"));
    command.arg("-r").args(&far.fastcp_flags);
    if let Some(path) = &far.remote_path {
        command.args(["--remote-path", path]);
    }
    if far.host.is_none() {
        command.args(["--rsh", "local"]);
    }
    let host = far.host.as_deref().unwrap_or("here");
    command.arg(input).arg(format!("{host}:{into}"));
    finish(command)
}

fn fastcp_alone(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fastcp"));
    command
        .arg("-r")
        .args(&far.fastcp_flags)
        .arg(input)
        .arg(into);
    finish(command)
}

fn scp(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let mut command = far.ssh("scp");
    command.args(["-q", "-r"]).arg(input).arg(far.operand(into));
    finish(command)
}

fn cp(_: &Far, input: &Path, into: &str) -> Result<(), String> {
    let mut command = Command::new("cp");
    command.arg("-r").arg(input).arg(into);
    finish(command)
}

fn rsync(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let mut command = Command::new("rsync");
    command.args(["-a", "-e", &far.ssh_words()]);
    command.arg(input).arg(far.operand(&format!("{into}/")));
    finish(command)
}

fn bbcp(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let ssh = format!("{} -x -a %I -l %U %H bbcp", far.ssh_words());
    let mut command = Command::new("bbcp");
    command
        .args(["-s", "16", "-r", "-T", &ssh])
        .arg(input)
        .arg(far.operand(into));
    finish(command)
}

fn mscp(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let mut command = far.ssh("mscp");
    command.arg("-q").arg(input).arg(far.operand(into));
    finish(command)
}

fn tar(input: &Path) -> Result<Command, String> {
    let parent = input.parent().ok_or("--input has no directory")?;
    let name = input.file_name().ok_or("--input has no name")?;
    let mut command = Command::new("tar");
    command
        .args(["-c", "-f", "-", "-C"])
        .arg(parent)
        .arg("--")
        .arg(name);
    Ok(command)
}

fn tar_tar(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let (first, tarred) = start(tar(input)?, Stdio::null())?;
    let unpack = far.shell(&format!("tar -x -f - -C {}", quote(into)));
    ends([first, start_last(unpack, tarred, Stdio::null())?])
}

fn tar_lz4_ssh(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let (first, tarred) = start(tar(input)?, Stdio::null())?;
    let mut lz4 = Command::new("lz4");
    lz4.args(["-q", "-c", "-"]);
    let (second, packed) = start(lz4, tarred)?;
    let unpack = far.shell(&format!("lz4 -q -d -c - | tar -x -f - -C {}", quote(into)));
    ends([first, second, start_last(unpack, packed, Stdio::null())?])
}

/// A listener over there, the connection from here; the dialling is done by hand, so that it can
/// be tried again until the listener is up.
fn tar_zstd_nc(far: &Far, input: &Path, into: &str) -> Result<(), String> {
    let port = 20_000 + RandomState::new().build_hasher().finish() % 20_000;
    let unpack = format!(
        "nc -h 2>&1 | grep -q 'OpenBSD' && listen='-l' || listen='-l -p'; \
         nc $listen {port} < /dev/null | zstd -q -d -c | tar -x -f - -C {}",
        quote(into)
    );
    let listener = start_last(far.shell(&unpack), Stdio::null(), Stdio::null())?;
    let connection = dial(&far.address()?, u16::try_from(port).expect("below 65536"))?;
    let (first, tarred) = start(tar(input)?, Stdio::null())?;
    let mut zstd = Command::new("zstd");
    zstd.args(["-q", "-1", "-T0", "-c"]);
    let sent = std::os::fd::OwnedFd::from(connection);
    let second = start_last(zstd, tarred, Stdio::from(sent))?;
    ends([first, second, listener])
}

/// Tries for 20 s, since a login comes before the listener.
fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let fault = |cause: io::Error| format!("{host}:{port}: {cause}");
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(fault)?.collect();
    loop {
        match TcpStream::connect(&addresses[..]) {
            Ok(connection) => return Ok(connection),
            Err(cause) if Instant::now() > deadline => return Err(fault(cause)),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A child and what it writes.
fn start(mut command: Command, stdin: Stdio) -> Result<(Child, Stdio), String> {
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|cause| format!("{:?}: {cause}", command.get_program()))?;
    let stdout = child.stdout.take().ok_or("no pipe")?;
    Ok((child, stdout.into()))
}

fn start_last(mut command: Command, stdin: Stdio, stdout: Stdio) -> Result<Child, String> {
    command
        .stdin(stdin)
        .stdout(stdout)
        .spawn()
        .map_err(|cause| format!("{:?}: {cause}", command.get_program()))
}

fn ends<const N: usize>(children: [Child; N]) -> Result<(), String> {
    let mut result = Ok(());
    for mut child in children {
        let status = child.wait().map_err(|cause| cause.to_string())?;
        if !status.success() {
            result = Err(format!("a part of the pipe ended with {status}"));
        }
    }
    result
}

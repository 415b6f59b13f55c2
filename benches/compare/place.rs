//! The two ends of a comparison and their link. The bench makes the link from network namespaces, a
//! program makes it, or it exists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cells::Link;
use crate::shell::{self, quote};
use crate::support::host::{Host, Login, find_program};
use crate::support::net::{At, Ip, Net, Wall};
use crate::support::tree::Dir;

/// How links are made.
#[derive(Clone, Debug)]
pub(crate) enum How {
    /// Network namespaces of the bench, which needs root.
    Own,
    /// A program with the commands `CMD up --rtt MS --rate MBIT --loss PERCENT [--fw none]`, `CMD
    /// src WORDS` and `CMD down`. The other host is then `ssh dst`.
    With(String),
    /// This host, over the existing network.
    Host {
        host: String,
        ssh_config: Option<String>,
        remote_path: Option<String>,
    },
}

/// Two ends. Dropping this removes everything that was made for it.
pub(crate) struct Place {
    /// Words that run a program at the near end.
    near: Vec<String>,
    pub host: String,
    ssh_config: Option<String>,
    pub remote_path: Option<String>,
    /// The host's address for data connections.
    pub address: String,
    /// Both ends see the same files.
    pub is_here: bool,
    link_with: Option<String>,
    _host: Option<Host>,
    /// Declared after the host, so that it is dropped after it.
    _net: Option<Net>,
}

impl Place {
    /// # Errors
    /// The reason, for which the link is left out.
    pub(crate) fn make(link: &Link, how: &How, work: &Path) -> Result<Place, String> {
        match how {
            How::Own => Place::own(link, work),
            How::With(program) => Place::with(link, program),
            How::Host {
                host,
                ssh_config,
                remote_path,
            } => {
                let mut place = Place {
                    near: Vec::new(),
                    host: host.clone(),
                    ssh_config: ssh_config.clone(),
                    remote_path: remote_path.clone(),
                    address: String::new(),
                    is_here: false,
                    link_with: None,
                    _host: None,
                    _net: None,
                };
                let line = format!("{} -G {} | sed -n 's/^hostname //p'", place.ssh(), host);
                place.address = shell::text(place.near(&line))?;
                Ok(place)
            }
        }
    }

    fn with(link: &Link, program: &str) -> Result<Place, String> {
        let loss = link.loss.to_string();
        let (rtt, rate) = (link.round_trip_ms.to_string(), link.mbit_per_s.to_string());
        let mut up = Command::new(program);
        up.args(["up", "--rtt", &rtt, "--rate", &rate, "--loss", &loss]);
        if link.only_ssh {
            up.args(["--fw", "none"]);
        }
        // Its background processes may keep a pipe open, so its output is not piped.
        let status = up.stdin(std::process::Stdio::null()).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("{program} up failed"));
        }
        let mut place = Place {
            near: vec![program.to_owned(), "src".to_owned()],
            host: "dst".to_owned(),
            ssh_config: None,
            remote_path: Some(env!("CARGO_BIN_EXE_fastcp").to_owned()),
            address: String::new(),
            is_here: true,
            link_with: Some(program.to_owned()),
            _host: None,
            _net: None,
        };
        place.address = shell::text(place.near("ssh -G dst | sed -n 's/^hostname //p'"))?;
        Ok(place)
    }

    fn own(link: &Link, work: &Path) -> Result<Place, String> {
        let net = Net::new(Ip::V4AndV6).map_err(|lacks| format!("no {}", lacks.0))?;
        shape(&net, link)?;
        if link.only_ssh {
            // Neither end accepts connections from the other, except for ssh.
            net.open_only(At::Far, &["22"], Wall::Drop);
            net.open_only(At::Near, &[], Wall::Drop);
        }
        let (dir, home) = (work.join("host"), work.join("home"));
        for dir in [&dir, &home] {
            crate::input::remove(dir)
                .and_then(|()| fs::create_dir_all(dir))
                .map_err(|e| e.to_string())?;
        }
        let ip = net.ssh_address();
        let space = net.path(At::Far);
        let host = Host::start_in(&space, ip, Dir(dir), &home, "compare");
        let host = host.map_err(|lacks| format!("no {}", lacks.0))?;
        // scp uses SFTP.
        let servers = [
            "/usr/lib/openssh/sftp-server",
            "/usr/libexec/openssh/sftp-server",
        ];
        if let Some(server) = servers.iter().find(|server| Path::new(server).exists()) {
            host.dir()
                .append("sshd_config", format!("Subsystem sftp {server}\n"));
        }
        let login = Login::default();
        let path = std::env::var("PATH").unwrap_or_default();
        host.set_login(&Login {
            path: format!("{}:{path}", login.path),
            ..login
        });
        Ok(Place {
            near: net.words(At::Near),
            host: crate::support::host::NAME.to_owned(),
            ssh_config: Some(host.ssh_config().display().to_string()),
            remote_path: None,
            address: ip.to_string(),
            is_here: true,
            link_with: None,
            _host: Some(host),
            _net: Some(net),
        })
    }

    /// `sh -c LINE` at the near end.
    pub(crate) fn near(&self, line: &str) -> Command {
        let mut words = self
            .near
            .iter()
            .map(String::as_str)
            .chain(["sh", "-c", line]);
        let mut command = Command::new(words.next().expect("there are three at least"));
        command.args(words);
        command
    }

    /// `sh -c LINE` at the far end.
    pub(crate) fn far(&self, line: &str) -> Command {
        self.near(&format!("{} {} {}", self.ssh(), self.host, quote(line)))
    }

    /// ssh with the configuration that the user named, as shell words.
    pub(crate) fn ssh(&self) -> String {
        format!("ssh{}", self.config())
    }

    /// ` -F FILE`, for ssh and related programs.
    pub(crate) fn config(&self) -> String {
        let config = self.ssh_config.as_ref();
        config.map_or(String::new(), |config| format!(" -F {}", quote(config)))
    }

    /// Both ends have these programs. If they see the same files, one check is enough.
    pub(crate) fn has(&self, programs: &[&str]) -> bool {
        let tests = programs
            .iter()
            .map(|name| format!("command -v {name} > /dev/null"));
        let line = tests
            .chain(["true".to_owned()])
            .collect::<Vec<_>>()
            .join(" && ");
        let is_there = || self.is_here || shell::finish(self.far(&line)).is_ok();
        shell::finish(self.near(&line)).is_ok() && is_there()
    }

    /// How long a login takes that runs only `true`.
    pub(crate) fn login_time(&self) -> Result<Duration, String> {
        let since = Instant::now();
        shell::finish(self.far("true"))?;
        Ok(since.elapsed())
    }

    /// # Errors
    /// If the copy in `dir` at the far end differs from `input`.
    pub(crate) fn check(&self, input: &Path, dir: &str) -> Result<(), String> {
        let name = input
            .file_name()
            .ok_or("an input without a name")?
            .to_string_lossy();
        let copy = format!("{dir}/{name}");
        let differs = "the copy differs from its source";
        if self.is_here {
            let mut compare = Command::new(if input.is_dir() { "diff" } else { "cmp" });
            if input.is_dir() {
                compare.args(["-r", "-q"]);
            }
            compare.arg(input).arg(PathBuf::from(copy));
            return shell::finish(compare).map_err(|_| differs.to_owned());
        }
        let digests = |dir: &str| {
            let (dir, name) = (quote(dir), quote(&format!("./{name}")));
            format!(
                "cd {dir} && find {name} -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"
            )
        };
        let parent = input.parent().ok_or("an input without a directory")?;
        let here = shell::text(self.near(&digests(&parent.to_string_lossy())))?;
        let there = shell::text(self.far(&digests(dir)))?;
        (here == there).then_some(()).ok_or(differs.to_owned())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(program) = &self.link_with {
            let mut down = Command::new(program);
            down.arg("down");
            if let Err(why) = shell::finish(down) {
                eprintln!("compare: {why}");
            }
        }
    }
}

/// Each end delays its packets by half of the round trip.
fn shape(net: &Net, link: &Link) -> Result<(), String> {
    if link.round_trip_ms == 0 && link.mbit_per_s == 0 {
        return Ok(());
    }
    find_program("tc").ok_or("no tc (iproute2)")?;
    let rate = match link.mbit_per_s {
        0 => String::new(),
        rate => format!("rate {rate}mbit"),
    };
    let rule = if link.round_trip_ms == 0 && link.loss == 0.0 {
        format!("tbf {rate} burst 512kb latency 20ms")
    } else {
        let delay = f64::from(link.round_trip_ms) / 2.0;
        // Room for twice the bytes in flight, in packets of 1500 bytes: few are smaller.
        let bytes = f64::from(link.mbit_per_s.max(1000)) * 125.0 * delay * 4.0;
        let packets = (bytes / 1500.0).max(1000.0);
        format!(
            "netem delay {delay}ms {rate} loss {}% limit {packets:.0}",
            link.loss
        )
    };
    for at in [At::Near, At::Far] {
        let mut words = net.words(at);
        words.extend(["tc", "qdisc", "add", "dev", "wire", "root"].map(str::to_owned));
        words.extend(rule.split_whitespace().map(str::to_owned));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        shell::finish(command).map_err(|why| {
            format!("this kernel shapes no links ({why}); --link-with names a program that does")
        })?;
    }
    Ok(())
}

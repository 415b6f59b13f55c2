//! Two linked hosts with separate firewalls: network namespaces, which need root.

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::host::{Lacks, find_program};
use super::wire::{self, Wire};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The host that runs fastcp.
    Near,
    /// The host that runs sshd.
    Far,
}

/// The IP versions of both hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4AndV6,
    V6Only,
}

/// Dropping it removes both namespaces and all they contain.
pub(crate) struct Net {
    name: String,
    ip: Ip,
    /// Replaces the good link.
    bad: OnceLock<Wire>,
}

/// The firewall's answer to an unwanted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wall {
    Drop,
    Reject,
}

impl Net {
    pub(crate) fn new(ip: Ip) -> Result<Net, Lacks> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err(Lacks("root, for network namespaces"));
        }
        find_program("ip").ok_or(Lacks("ip"))?;
        find_program("iptables").ok_or(Lacks("iptables"))?;
        // Interface names have at most 15 bytes.
        let count = COUNT.fetch_add(1, Relaxed);
        let net = Net {
            name: format!("fcp{}x{count}", std::process::id()),
            ip,
            bad: OnceLock::new(),
        };
        let (near, far) = (net.namespace(At::Near), net.namespace(At::Far));
        for space in [&near, &far] {
            if !run("ip", &["netns", "add", space]) {
                return Err(Lacks("the right to make network namespaces"));
            }
            // During duplicate address detection an address cannot be used yet.
            net.must(space, "sysctl -qw net.ipv6.conf.default.accept_dad=0");
            net.must(space, "ip link set lo up");
        }
        let made = run(
            "ip",
            &[
                "link", "add", "wire", "netns", &near, "type", "veth", "peer", "name", "wire",
                "netns", &far,
            ],
        );
        assert!(made, "make a wire");
        for (space, nth) in [(&near, 1), (&far, 2)] {
            if ip == Ip::V4AndV6 {
                net.must(space, &format!("ip addr add 10.77.0.{nth}/24 dev wire"));
            }
            net.must(space, &format!("ip addr add fd77::{nth}/64 dev wire nodad"));
            net.must(space, "ip link set wire up");
        }
        Ok(net)
    }

    /// The address of the host that runs sshd.
    pub(crate) fn ssh_address(&self) -> IpAddr {
        match self.ip {
            Ip::V4AndV6 => [10, 77, 0, 2].into(),
            Ip::V6Only => "fd77::2".parse().expect("an address"),
        }
    }

    /// The address of the host that runs fastcp.
    pub(crate) fn near_address(&self) -> IpAddr {
        match self.ip {
            Ip::V4AndV6 => [10, 77, 0, 1].into(),
            Ip::V6Only => "fd77::1".parse().expect("an address"),
        }
    }

    fn namespace(&self, at: At) -> String {
        match at {
            At::Near => format!("{}n", self.name),
            At::Far => format!("{}f", self.name),
        }
    }

    /// The words before a command that run it on this host.
    pub(crate) fn words(&self, at: At) -> Vec<String> {
        let namespace = self.namespace(at);
        ["ip", "netns", "exec", &namespace]
            .map(str::to_owned)
            .to_vec()
    }

    /// Runs `what` on this host, in a new thread.
    pub(crate) fn within<T: Send>(&self, at: At, what: impl FnOnce() -> T + Send) -> T {
        let path = self.path(at);
        std::thread::scope(|scope| {
            let there = scope.spawn(move || {
                enter(&path);
                what()
            });
            there.join().expect("it does not panic")
        })
    }

    pub(crate) fn path(&self, at: At) -> String {
        format!("/run/netns/{}", self.namespace(at))
    }

    /// Gives a host another address.
    pub(crate) fn add_address(&self, at: At, ip: IpAddr) {
        let space = self.namespace(at);
        self.must(&space, &format!("ip addr add {ip}/24 dev wire"));
    }

    /// Sets the /etc/hosts lines that programs on a host see. Call it for the first time before
    /// any program runs there.
    pub(crate) fn set_names(&self, at: At, lines: &str) {
        let dir = self.names_dir(at);
        std::fs::create_dir_all(&dir).expect("make a directory");
        // Overwritten and not replaced: running programs have this very file mounted over
        // /etc/hosts.
        std::fs::write(dir.join("hosts"), lines).expect("write names");
    }

    fn names_dir(&self, at: At) -> PathBuf {
        PathBuf::from("/etc/netns").join(self.namespace(at))
    }

    /// New connections to a host get through to these ports only.
    pub(crate) fn open_only(&self, at: At, ports: &[&str], wall: Wall) {
        let space = self.namespace(at);
        for iptables in ["iptables", "ip6tables"] {
            let rule = |rest: &str| {
                self.must(
                    &space,
                    &format!("{iptables} -A INPUT -i wire -p tcp {rest}"),
                )
            };
            rule("! --syn -j ACCEPT");
            for port in ports {
                rule(&format!("--dport {port} -j ACCEPT"));
            }
            match wall {
                Wall::Drop => rule("-j DROP"),
                Wall::Reject => rule("-j REJECT --reject-with tcp-reset"),
            }
        }
    }

    /// From now on the host receives only ssh packets.
    pub(crate) fn cut(&self, at: At) {
        let space = self.namespace(at);
        for iptables in ["iptables", "ip6tables"] {
            let ports = "-m multiport ! --dports 22 -m multiport ! --sports 22";
            let rule = format!("{iptables} -I INPUT -i wire -p tcp {ports} -j DROP");
            self.must(&space, &rule);
        }
    }

    /// Silently drops packets of full size.
    pub(crate) fn lose_full_packets(&self, at: At) {
        let space = self.namespace(at);
        let rule = "iptables -A INPUT -i wire -p tcp -m length --length 1200:65535";
        self.must(
            &space,
            &format!("{rule} -m multiport ! --dports 22 -m multiport ! --sports 22 -j DROP"),
        );
    }

    /// For `time` the host receives no packet of a data connection.
    pub(crate) fn close_for(&self, time: Duration, at: At, wall: Wall) {
        let space = self.namespace(at);
        let target = match wall {
            Wall::Drop => "DROP",
            Wall::Reject => "REJECT --reject-with tcp-reset",
        };
        let change = |how: &str| {
            for iptables in ["iptables", "ip6tables"] {
                let rule = format!("INPUT -i wire -p tcp -m multiport ! --ports 22 -j {target}");
                self.must(&space, &format!("{iptables} {how} {rule}"));
            }
        };
        change("-I");
        std::thread::sleep(time);
        change("-D");
    }

    /// From now on packets arrive late, out of order, twice, damaged or not at all. False where
    /// this machine cannot do that.
    pub(crate) fn spoil(&self) -> bool {
        let near = self.namespace(At::Near);
        self.must(&near, "ip link del wire");
        let lay = |at, nth| {
            let device = self.within(at, || wire::device("wire"))?;
            let space = self.namespace(at);
            self.must(&space, &format!("ip addr add 10.77.0.{nth}/24 dev wire"));
            self.must(&space, "ip link set wire up");
            Some(device)
        };
        let wire = lay(At::Near, 1).zip(lay(At::Far, 2));
        wire.is_some_and(|(near, far)| self.bad.set(Wire::new(near, far)).is_ok())
    }

    fn must(&self, space: &str, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        let all = [&["netns", "exec", space][..], &words].concat();
        assert!(run("ip", &all), "{command}");
    }
}

/// Moves this thread, and the processes it starts later, into a network namespace.
pub(crate) fn enter(path: &str) {
    let file = File::open(path).expect("open a network namespace");
    use std::os::fd::AsFd;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("enter a network namespace");
}

fn run(program: &str, words: &[&str]) -> bool {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

impl Drop for Net {
    fn drop(&mut self) {
        for at in [At::Near, At::Far] {
            run("ip", &["netns", "del", &self.namespace(at)]);
            std::fs::remove_dir_all(self.names_dir(at)).ok();
        }
    }
}

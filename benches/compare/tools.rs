//! The tools. Each is a shell line that runs at the near end and copies the input into an empty
//! directory at the far end, with the flags that make the tool fast.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::Place;
use crate::shell::{self, quote};

/// One copy: its ends, its input and its limits.
pub(crate) struct Errand<'a> {
    pub place: &'a Place,
    pub input: &'a Path,
    pub bytes: u64,
    /// The destination directory at the far end.
    pub into: &'a str,
    /// Directory of fastcp's stored settings. Empty unless the bench provides some, so that every
    /// run is like a first one.
    pub cache: &'a Path,
    /// Seconds to send for a tool that copies nothing.
    pub seconds: u32,
    pub fastcp_flags: &'a [String],
    /// fastcp is stopped after this time.
    pub most: Duration,
    /// Settings that fastcp chose in its last run.
    pub chosen: Chosen,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub streams: u64,
    pub bbr: bool,
}

impl Default for Chosen {
    fn default() -> Chosen {
        let (streams, bbr) = (8, false);
        Chosen { streams, bbr }
    }
}

pub(crate) struct Tool {
    pub name: &'static str,
    /// Programs that both ends must have.
    pub needs: &'static [&'static str],
    line: fn(&Errand) -> String,
    /// Copies nothing: the time for the input is calculated from the measured rate.
    pub is_rate: bool,
    /// Runs only at the near end, so both ends have to see the same files.
    pub is_local: bool,
}

/// The result of a run.
pub(crate) struct Ran {
    pub took: Duration,
    /// Only for fastcp.
    pub chosen: Option<Chosen>,
}

const fn tool(
    name: &'static str,
    needs: &'static [&'static str],
    line: fn(&Errand) -> String,
) -> Tool {
    Tool {
        name,
        needs,
        line,
        is_rate: false,
        is_local: false,
    }
}

const fn iperf3(name: &'static str, line: fn(&Errand) -> String) -> Tool {
    Tool {
        is_rate: true,
        ..tool(name, &["iperf3"], line)
    }
}

pub(crate) const FASTCP: &str = "fastcp";

/// No copy in the list takes this long.
pub(crate) const COPY_MAX: Duration = Duration::from_secs(3600);

/// Exit status of `timeout` when it stopped the program.
pub(crate) const TIMED_OUT: &str = "exit status: 124";

const TOOLS: &[Tool] = &[
    tool(FASTCP, &[], fastcp),
    tool("scp", &["scp"], scp),
    tool("rsync -a", &["rsync"], rsync),
    tool("tar|nc", &["tar", "nc"], |it| over_nc(it, "cat", "cat")),
    tool("tar|lz4|nc", &["tar", "lz4", "nc"], |it| {
        over_nc(it, "lz4 -q -c -", "lz4 -q -d -c -")
    }),
    tool("tar|zstd|nc", &["tar", "zstd", "nc"], |it| {
        over_nc(it, "zstd -q -1 -T0 -c", "zstd -q -d -c")
    }),
    tool("tar|zstd -9|ssh", &["tar", "zstd"], over_ssh),
    tool("bbcp", &["bbcp"], bbcp),
    Tool {
        is_local: true,
        ..tool("cat", &["cat"], cat)
    },
    iperf3("iperf3 -P 16", |it| iperf(it, 16, "")),
    iperf3("iperf3 -P 32", |it| iperf(it, 32, "-C cubic")),
    iperf3("iperf3 like fastcp", |it| {
        let congestion = if it.chosen.bbr { "-C bbr" } else { "" };
        iperf(it, it.chosen.streams, congestion)
    }),
];

pub(crate) fn named(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

impl Tool {
    /// # Errors
    /// The tool's messages, if it fails.
    pub(crate) fn run(&self, errand: &Errand) -> Result<Ran, String> {
        let command = errand.place.near(&(self.line)(errand));
        let since = Instant::now();
        let output = shell::output(command)?;
        let mut took = since.elapsed();
        if self.is_rate {
            let rate = received(&output).ok_or("it told no rate")?;
            took = Duration::from_secs_f64(errand.bytes as f64 * 8.0 / rate.max(1.0));
        }
        let chosen = (self.name == FASTCP).then(|| chosen(&output));
        Ok(Ran { took, chosen })
    }
}

/// Rate that iperf3's server received, in bit/s.
fn received(output: &Output) -> Option<f64> {
    let told: Value = serde_json::from_slice(&output.stdout).ok()?;
    told["end"]["sum_received"]["bits_per_second"].as_f64()
}

fn chosen(output: &Output) -> Chosen {
    let mut lines = output.stdout.trim_ascii().rsplit(|byte| *byte == b'\n');
    let last = lines.next().unwrap_or_default();
    let told: Value = serde_json::from_slice(last).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr);
    Chosen {
        streams: told["streams"].as_u64().unwrap_or(8).max(1),
        bbr: said.lines().any(|line| line.starts_with("fastcp: bbr")),
    }
}

fn fastcp(it: &Errand) -> String {
    let place = it.place;
    let path = place.remote_path.as_ref();
    let path = path.map_or(String::new(), |path| {
        format!(" --remote-path {}", quote(path))
    });
    format!(
        "XDG_CACHE_HOME={} timeout {} {} -r --json{}{path} {} {} {}",
        quote(&it.cache.to_string_lossy()),
        it.most.as_secs_f64(),
        quote(env!("CARGO_BIN_EXE_fastcp")),
        place.config(),
        it.fastcp_flags.join(" "),
        input(it),
        operand(it),
    )
}

fn scp(it: &Errand) -> String {
    format!(
        "scp -q -r{} {} {}",
        it.place.config(),
        input(it),
        operand(it)
    )
}

fn rsync(it: &Errand) -> String {
    let ssh = quote(&it.place.ssh());
    format!("rsync -a -S -e {ssh} {} {}/", input(it), operand(it))
}

/// bbcp connects by address, because host names resolve differently in a namespace. Its path at the
/// far end is given, because it may be missing from the PATH of a login.
fn bbcp(it: &Errand) -> String {
    let (there, to) = match it.place.is_here {
        true => (
            shell::find("bbcp"),
            format!("{}:{}", it.place.address, it.into),
        ),
        false => (None, format!("{}:{}", it.place.host, it.into)),
    };
    let there = there.unwrap_or("bbcp".to_owned());
    // bbcp splits the words itself and does not understand quotes.
    let ssh = it.place.ssh().replace('\'', "");
    let ssh = quote(&format!("{ssh} -x -a %I -l %U %H {there}"));
    format!(
        "bbcp -s 16 -w 4m -r -n -T {ssh} {} {}",
        input(it),
        quote(&to)
    )
}

fn cat(it: &Errand) -> String {
    let name = it.input.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "cat {} > {}",
        input(it),
        quote(&format!("{}/{name}", it.into))
    )
}

fn tar(it: &Errand) -> String {
    let parent = it.input.parent().unwrap_or(Path::new("/"));
    let name = it.input.file_name().unwrap_or_default().to_string_lossy();
    let parent = quote(&parent.to_string_lossy());
    format!("tar -c -S -f - -C {parent} -- {}", quote(&name))
}

fn untar(it: &Errand) -> String {
    format!("tar -x -S -f - -C {}", quote(it.into))
}

fn over_ssh(it: &Errand) -> String {
    let unpack = quote(&format!("zstd -q -d -c | {}", untar(it)));
    let (ssh, host) = (it.place.ssh(), &it.place.host);
    format!("{} | zstd -q -9 -T0 -c | {ssh} {host} {unpack}", tar(it))
}

fn over_nc(it: &Errand, pack: &str, unpack: &str) -> String {
    let port = port();
    let listener = format!(
        "nc -h 2>&1 | grep -q OpenBSD && listen=-l || listen='-l -p'; \
         nc $listen {port} < /dev/null | {unpack} | {}",
        untar(it)
    );
    let send = format!(
        "nc -h 2>&1 | grep -q OpenBSD && end=-N || end='-q 0'; {} | {pack} | nc $end {} {port}",
        tar(it),
        it.place.address
    );
    listened(it, port, &listener, &send)
}

/// The most connections that iperf3 accepts.
const IPERF_STREAMS_MAX: u64 = 128;

fn iperf(it: &Errand, streams: u64, flags: &str) -> String {
    let port = port();
    let streams = streams.min(IPERF_STREAMS_MAX);
    let (address, seconds) = (&it.place.address, it.seconds);
    // Without a limit the server would wait forever if its client failed.
    let patience = seconds + 60;
    let listener = format!("timeout {patience} iperf3 -s -1 -p {port} > /dev/null");
    let send = format!("iperf3 -J -c {address} -p {port} -P {streams} -t {seconds} {flags}");
    listened(it, port, &listener, &send)
}

/// Starts a listener at the far end over ssh, and sends as soon as it listens. The line ends after
/// both have ended.
fn listened(it: &Errand, port: u16, listener: &str, send: &str) -> String {
    let listens = format!("grep -qiE ':{port:04x} [0-9a-f]+:0000 0a' /proc/net/tcp /proc/net/tcp6");
    let far = quote(&format!(
        "{{ {listener}; }} & until {listens}; do sleep 0.01; done; echo up; wait"
    ));
    let (ssh, host) = (it.place.ssh(), &it.place.host);
    format!("{ssh} {host} {far} | {{ read up && {{ {send}; }}; cat > /dev/null; }}")
}

/// A random port below the range from which systems choose ports.
fn port() -> u16 {
    let chance = RandomState::new().build_hasher().finish();
    20_000 + u16::try_from(chance % 10_000).expect("below 10,000")
}

fn input(it: &Errand) -> String {
    quote(&it.input.to_string_lossy())
}

fn operand(it: &Errand) -> String {
    quote(&format!("{}:{}", it.place.host, it.into))
}

//! One case in one direction: a source, a destination, perhaps a far host, and a check at the end.
//!
//! The check holds after every test, failing ones too: each file at the destination is byte for
//! byte a file of the source or what stood there before (but for what is cached), no temporary name
//! is left, and no process of the case outlives it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use tempfile::TempDir;

use super::done::Done;
use super::host::{self, Host, Lacks};
use super::net::{At, Ip, Net};
use super::procs::{self, MARK};
use super::run::{Run, fastcp_binary};
use super::tree::{Dir, Tree, What};

/// How long a process may take to notice that its test is over.
const LINGER_LIMIT: Duration = Duration::from_secs(5);

/// Which way a case copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Here to the far host, over ssh.
    Push,
    Pull,
    /// Here to here, one process.
    Here,
    /// `--rsh local`: the far end is a child process.
    LocalPush,
    LocalPull,
    /// From the far host to the far host; with a network of their own from near to far.
    Between,
    LocalBetween,
}

impl Way {
    fn needs_sshd(self) -> bool {
        matches!(self, Way::Push | Way::Pull | Way::Between)
    }

    fn source_is_far(self) -> bool {
        matches!(self, Way::Pull | Way::LocalPull) || self.is_between()
    }

    fn dest_is_far(self) -> bool {
        matches!(self, Way::Push | Way::LocalPush) || self.is_between()
    }

    pub fn is_between(self) -> bool {
        matches!(self, Way::Between | Way::LocalBetween)
    }
}

pub struct Case {
    pub way: Way,
    /// Where sources are.
    pub src: Dir,
    /// Where copies go; empty at first.
    pub dst: Dir,
    /// HOME, on both sides.
    pub home: Dir,
    /// For what belongs to neither end.
    pub scratch: Dir,
    host: Option<Host>,
    /// Where the source is in a copy between two hosts of a network.
    source_host: Option<Host>,
    /// Behind the host, so that it goes after it.
    net: Option<Net>,
    mark: String,
    /// Digests of contents that a file at the destination may have.
    known: RefCell<HashSet<blake3::Hash>>,
    finished: bool,
    /// Last, so that it goes last.
    _dir: TempDir,
}

impl Case {
    fn new(way: Way, net: Option<Net>) -> Result<Case, Lacks> {
        let dir = tempfile::Builder::new()
            .prefix("case-")
            .permissions(std::fs::Permissions::from_mode(0o755))
            .tempdir_in(place())
            .expect("make a directory for the case");
        let root = Dir(dir.path().to_owned());
        let mark = dir.path().display().to_string();
        let home = root.dir("home");
        let host = match &net {
            Some(net) => {
                let ip = net.ssh_address();
                let (space, dir) = (net.path(At::Far), root.dir("host"));
                Some(Host::start_in(&space, ip, dir, &home.0, &mark)?)
            }
            None => way
                .needs_sshd()
                .then(|| Host::start(root.dir("host"), &home.0, &mark))
                .transpose()?,
        };
        let source_host = match (&net, &host) {
            (Some(net), Some(host)) if way.is_between() => {
                let (space, ip) = (net.path(At::Near), net.near_address());
                let dir = root.dir("source host");
                let near = Host::start_in(&space, ip, dir, &home.0, &mark)?;
                host.introduce(host::NEAR, &near);
                Some(near)
            }
            _ => None,
        };
        Ok(Case {
            way,
            src: root.dir("src"),
            dst: root.dir("dst"),
            home,
            scratch: root.dir("scratch"),
            host,
            source_host,
            net,
            mark,
            known: RefCell::default(),
            finished: false,
            _dir: dir,
        })
    }

    /// Runs `body` and then the check; the entry of every test that copies.
    pub fn run(way: Way, body: impl FnOnce(&Case)) {
        match Case::new(way, None) {
            Ok(case) => case.pass(body),
            Err(Lacks(what)) => skip(what),
        }
    }

    /// The same with two hosts that have a network of their own.
    pub fn run_between(way: Way, ip: Ip, body: impl FnOnce(&Case, &Net)) {
        let case = Net::new(ip).and_then(|net| Case::new(way, Some(net)));
        match case {
            Ok(case) => case.pass(|case| body(case, case.net.as_ref().expect("it was given"))),
            Err(Lacks(what)) => skip(what),
        }
    }

    fn pass(mut self, body: impl FnOnce(&Case)) {
        body(&self);
        self.finished = true;
        let faults = self.faults();
        assert!(faults.is_empty(), "afterwards: {}", faults.join("\n  "));
    }

    /// The far host; only for cases that go over ssh.
    pub fn host(&self) -> &Host {
        self.host.as_ref().expect("this case goes over ssh")
    }

    /// Where the source is, of two hosts.
    pub fn source_host(&self) -> &Host {
        self.source_host.as_ref().expect("there are two")
    }

    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// `path` as an operand on the source's side.
    pub fn from(&self, path: impl AsRef<OsStr>) -> OsString {
        let host = match self.source_host {
            Some(_) => host::NEAR,
            None => host::NAME,
        };
        operand(self.way.source_is_far().then_some(host), path.as_ref())
    }

    /// `path` as an operand on the destination's side.
    pub fn to(&self, path: impl AsRef<OsStr>) -> OsString {
        operand(self.way.dest_is_far().then_some(host::NAME), path.as_ref())
    }

    /// `rel` below the source's directory as an operand; a trailing slash is kept.
    pub fn src(&self, rel: impl AsRef<OsStr>) -> OsString {
        self.from(below(&self.src, rel.as_ref()))
    }

    pub fn dst(&self, rel: impl AsRef<OsStr>) -> OsString {
        self.to(below(&self.dst, rel.as_ref()))
    }

    /// fastcp with what this way of copying needs.
    pub fn fastcp(&self) -> Run {
        let run = self.bare();
        match (&self.host, self.way) {
            (Some(host), _) => run.arg("-F").arg(host.ssh_config()),
            (None, Way::Here) => run,
            (None, _) => run.args(["--rsh", "local"]),
        }
    }

    /// fastcp without any argument.
    pub fn bare(&self) -> Run {
        self.remember();
        let run = Run::new(fastcp_binary(), &self.home.0)
            .env("HOME", &self.home.0)
            .env("USER", host::user())
            .env(MARK, &self.mark);
        match &self.net {
            Some(net) => run.under(net.words(At::Near)),
            None => run,
        }
    }

    /// `fastcp FLAGS SRC DST`, both below their directories.
    #[track_caller]
    pub fn copy(&self, flags: &[&str], src: impl AsRef<OsStr>, dst: impl AsRef<OsStr>) -> Done {
        self.copying(flags, src, dst).run()
    }

    /// The same, not yet started.
    pub fn copying(&self, flags: &[&str], src: impl AsRef<OsStr>, dst: impl AsRef<OsStr>) -> Run {
        self.fastcp()
            .args(flags)
            .arg(self.src(src))
            .arg(self.dst(dst))
    }

    /// `fastcp FLAGS SRC... DST`
    #[track_caller]
    pub fn copy_all(&self, flags: &[&str], sources: &[&str], dst: impl AsRef<OsStr>) -> Done {
        self.fastcp()
            .args(flags)
            .args(sources.iter().map(|source| self.src(source)))
            .arg(self.dst(dst))
            .run()
    }

    /// Servers that run for this case now.
    pub fn servers(&self) -> Vec<procs::Process> {
        procs::servers(&self.mark)
    }

    /// Whatever a file below the source or the destination holds now may be found at the
    /// destination later. Called before each run.
    pub fn remember(&self) {
        let mut known = self.known.borrow_mut();
        for dir in [&self.src, &self.dst, &self.home] {
            known.extend(contents(dir).map(|(_, content)| content));
        }
    }

    /// Removes what copies that were cut short have left for the next one: for cases in which they
    /// are to be.
    pub fn sweep(&self) {
        sweep(&self.dst.0);
        sweep(&self.home.0);
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for process in procs::marked(&self.mark) {
            if !process.ends_within(LINGER_LIMIT) {
                faults.push(format!("still running: {}", process.describe()));
                process.kill();
            }
        }
        let mut known = self.known.take();
        known.extend(contents(&self.src).map(|(_, content)| content));
        for dir in [&self.dst, &self.home] {
            for (path, content) in contents(dir) {
                let own = [".cache/fastcp", ".local/state/fastcp/key"];
                let is_own = own.iter().any(|own| path.starts_with(own));
                if !is_own && !known.contains(&content) {
                    faults.push(format!("neither a source nor what stood there: {path:?}"));
                }
            }
        }
        let own: HashSet<_> = temporaries(&self.src).collect();
        for dir in [&self.dst, &self.home, &self.scratch] {
            let left = temporaries(dir).filter(|name| !own.contains(name));
            faults.extend(left.map(|name| format!("left behind in {:?}: {name:?}", dir.0)));
        }
        faults
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if !self.finished {
            eprintln!("{:?}: the test failed", self.way);
            for fault in self.faults() {
                eprintln!("  {fault}");
            }
            if let Some(host) = &self.host {
                eprintln!("sshd said:\n{}", host.log());
            }
        }
        for dir in [&self.dst, &self.src] {
            open_up(&dir.0);
        }
    }
}

/// Where cases have their directories. On ext4 each goes to a part of the disk of its own: to make a
/// file, ext4 looks at every inode of that part that was freed in the last minutes, and thousands of
/// tests free so many that this took a third of the time that the kernel spent on all of them.
fn place() -> &'static Path {
    static PLACE: OnceLock<&Path> = OnceLock::new();
    PLACE.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let spread = || -> std::io::Result<()> {
            let dir = File::open(place)?;
            ioctl_setflags(&dir, ioctl_getflags(&dir)? | IFlags::TOPDIR)?;
            Ok(())
        };
        // Other file systems know no such flag and need none.
        spread().ok();
        place
    })
}

fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_own = entry.file_name().to_string_lossy().starts_with(".fastcp-");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => sweep(&entry.path()),
            Ok(kind) if kind.is_file() && is_own => {
                std::fs::remove_file(entry.path()).expect("remove what was left");
            }
            _ => {}
        }
    }
}

/// Lets the directory of the case be removed, whatever modes a test has left.
fn open_up(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).ok();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}

fn operand(host: Option<&str>, path: &OsStr) -> OsString {
    let mut operand = OsString::new();
    if let Some(host) = host {
        operand.push(host);
        operand.push(":");
    }
    operand.push(path);
    operand
}

/// Unlike `Path::join` this keeps "", "." and a trailing slash as they are.
fn below(dir: &Dir, rel: &OsStr) -> OsString {
    let mut path = dir.0.clone().into_os_string();
    if !rel.is_empty() {
        path.push("/");
        path.push(rel);
    }
    path
}

fn contents(dir: &Dir) -> impl Iterator<Item = (PathBuf, blake3::Hash)> {
    Tree::read(&dir.0)
        .0
        .into_iter()
        .filter_map(|(path, node)| match node.what {
            What::File { content, .. } => Some((path, content)),
            _ => None,
        })
}

/// Names that look like those of unfinished files; a source may have some of its own.
fn temporaries(dir: &Dir) -> impl Iterator<Item = String> {
    Tree::read(&dir.0)
        .0
        .into_keys()
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .filter(|name| name.starts_with(".fastcp-"))
}

/// Says in one line why a test does not run here; a failure where everything has to run.
pub fn skip(what: &str) {
    if std::env::var_os("FASTCP_TEST_STRICT").is_some_and(|value| value == "1") {
        panic!("needs {what}");
    }
    // Past the harness, which would swallow the line of a test that passes.
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    writeln!(std::io::stderr(), "skipped: needs {what}: {name}").ok();
}

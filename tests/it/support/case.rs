//! One copy to test, in one direction: source, destination, far host if needed, and final check.
//!
//! Every test ends with the check, and a failed test prints its result. Each file at the destination
//! and in HOME equals, byte for byte, a file of the source or one that was there before. Exempt are
//! the programs and the key that fastcp keeps in HOME. No temporary file is left, and no process of
//! the case outlives it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use tempfile::TempDir;

use super::done::Done;
use super::host::{self, Host, Lacks};
use super::net::{At, Ip, Net};
use super::procs::{self, MARK};
use super::run::{Run, fastcp_binary};
use super::tree::{Dir, KnownFiles, Tree, What};

/// How long a process may take to notice that its test is over.
const LINGER_LIMIT: Duration = Duration::from_secs(20);

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From this host to the far host, over ssh.
    Push,
    Pull,
    /// On this host, in one process.
    Here,
    /// `--rsh local`: the server is a child process.
    LocalPush,
    LocalPull,
    /// From the far host to itself; with a network, from the near host to the far one.
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

    pub(crate) fn dest_is_far(self) -> bool {
        matches!(self, Way::Push | Way::LocalPush) || self.is_between()
    }

    pub(crate) fn is_between(self) -> bool {
        matches!(self, Way::Between | Way::LocalBetween)
    }
}

pub(crate) struct Case {
    pub way: Way,
    /// The directory of the sources.
    pub src: Dir,
    /// The directory of the copies; empty at first.
    pub dst: Dir,
    /// HOME, on both sides.
    pub home: Dir,
    /// For files that belong to neither end.
    pub scratch: Dir,
    host: Option<Host>,
    /// The source's host in a copy between two hosts of a network.
    source_host: Option<Host>,
    /// After the hosts, so that it is dropped after them.
    net: Option<Net>,
    mark: String,
    /// Digests of the contents that a file at the destination may have.
    known: RefCell<HashSet<blake3::Hash>>,
    known_files: RefCell<KnownFiles>,
    finished: bool,
    /// The last field, so that it is dropped last.
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
            known_files: RefCell::default(),
            finished: false,
            _dir: dir,
        })
    }

    /// Runs `body` and then the check; the entry point of every test that copies.
    pub(crate) fn run(way: Way, body: impl FnOnce(&Case)) {
        match Case::new(way, None) {
            Ok(case) => case.pass(body),
            Err(Lacks(what)) => skip(what),
        }
    }

    /// The same with two hosts on a separate network.
    pub(crate) fn run_between(way: Way, ip: Ip, body: impl FnOnce(&Case, &Net)) {
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

    /// The far host; only for cases that use ssh.
    pub(crate) fn host(&self) -> &Host {
        self.host.as_ref().expect("this case goes over ssh")
    }

    /// The source's host in a case with two hosts.
    pub(crate) fn source_host(&self) -> &Host {
        self.source_host.as_ref().expect("there are two")
    }

    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// `path` as an operand on the source's side.
    pub(crate) fn from(&self, path: impl AsRef<OsStr>) -> OsString {
        let host = match self.source_host {
            Some(_) => host::NEAR,
            None => host::NAME,
        };
        operand(self.way.source_is_far().then_some(host), path.as_ref())
    }

    /// `path` as an operand on the destination's side.
    pub(crate) fn to(&self, path: impl AsRef<OsStr>) -> OsString {
        operand(self.way.dest_is_far().then_some(host::NAME), path.as_ref())
    }

    /// `rel` below the source's directory, as an operand; a trailing slash stays.
    pub(crate) fn src(&self, rel: impl AsRef<OsStr>) -> OsString {
        self.from(below(&self.src, rel.as_ref()))
    }

    pub(crate) fn dst(&self, rel: impl AsRef<OsStr>) -> OsString {
        self.to(below(&self.dst, rel.as_ref()))
    }

    /// fastcp with the options that this way of copying needs.
    pub(crate) fn fastcp(&self) -> Run {
        let run = self.bare();
        match (&self.host, self.way) {
            (Some(host), _) => run.arg("-F").arg(host.ssh_config()),
            (None, Way::Here) => run,
            (None, _) => run.args(["--rsh", "local"]),
        }
    }

    /// fastcp without arguments.
    pub(crate) fn bare(&self) -> Run {
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
    pub(crate) fn copy(
        &self,
        flags: &[&str],
        src: impl AsRef<OsStr>,
        dst: impl AsRef<OsStr>,
    ) -> Done {
        self.copying(flags, src, dst).run()
    }

    /// The same, not yet started.
    pub(crate) fn copying(
        &self,
        flags: &[&str],
        src: impl AsRef<OsStr>,
        dst: impl AsRef<OsStr>,
    ) -> Run {
        self.fastcp()
            .args(flags)
            .arg(self.src(src))
            .arg(self.dst(dst))
    }

    /// `fastcp FLAGS SRC... DST`
    #[track_caller]
    pub(crate) fn copy_all(
        &self,
        flags: &[&str],
        sources: &[&str],
        dst: impl AsRef<OsStr>,
    ) -> Done {
        self.fastcp()
            .args(flags)
            .args(sources.iter().map(|source| self.src(source)))
            .arg(self.dst(dst))
            .run()
    }

    /// Servers that run for this case now.
    pub(crate) fn servers(&self) -> Vec<procs::Process> {
        procs::servers(&self.mark)
    }

    /// Allows the present content of every file below source, destination and home at the
    /// destination later. Called before each run.
    pub(crate) fn remember(&self) {
        let mut known_files = self.known_files.borrow_mut();
        for dir in [&self.src, &self.dst, &self.home] {
            let tree = Tree::read_new(&dir.0, &mut known_files);
            let contents = contents(&tree).map(|(_, content)| content);
            self.known.borrow_mut().extend(contents);
        }
    }

    /// Removes the unfinished files that interrupted copies left for a resume, in cases that
    /// expect such files.
    pub(crate) fn sweep(&self) {
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
        let source = Tree::read_new(&self.src.0, &mut self.known_files.borrow_mut());
        let mut known = self.known.take();
        known.extend(contents(&source).map(|(_, content)| content));
        let own: HashSet<_> = temporaries(&source).collect();
        for dir in [&self.dst, &self.home] {
            let tree = Tree::read(&dir.0);
            for (path, content) in contents(&tree) {
                let own = [".cache/fastcp", ".local/state/fastcp/key"];
                let is_own = own.iter().any(|own| path.starts_with(own));
                if !is_own && !known.contains(&content) {
                    faults.push(format!("neither a source nor what stood there: {path:?}"));
                }
            }
            let left = temporaries(&tree).filter(|name| !own.contains(name));
            faults.extend(left.map(|name| format!("left behind in {:?}: {name:?}", dir.0)));
        }
        let tree = Tree::read_by(&self.scratch.0, &mut |_, _| None);
        let left = temporaries(&tree).filter(|name| !own.contains(name));
        faults.extend(left.map(|name| format!("left behind in {:?}: {name:?}", self.scratch.0)));
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

/// The directory of all cases. On ext4 each case gets its own block group: to create a file, ext4
/// looks at every inode of the group that was freed in the last minutes. Thousands of tests free
/// so many that this took a third of the kernel's time for all of them.
fn place() -> &'static Path {
    static PLACE: OnceLock<&Path> = OnceLock::new();
    PLACE.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let spread = || -> std::io::Result<()> {
            let dir = File::open(place)?;
            ioctl_setflags(&dir, ioctl_getflags(&dir)? | IFlags::TOPDIR)?;
            Ok(())
        };
        // Other file systems do not know the flag and do not need it.
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
                std::fs::remove_file(entry.path()).expect("remove the rest");
            }
            _ => {}
        }
    }
}

/// Lets the directory of the case be removed, whichever modes a test left.
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

/// Unlike `Path::join` this keeps "", "." and a trailing slash.
fn below(dir: &Dir, rel: &OsStr) -> OsString {
    let mut path = dir.0.clone().into_os_string();
    if !rel.is_empty() {
        path.push("/");
        path.push(rel);
    }
    path
}

fn contents(tree: &Tree) -> impl Iterator<Item = (&Path, blake3::Hash)> {
    tree.0.iter().filter_map(|(path, node)| match node.what {
        What::File { content, .. } => Some((&**path, content)),
        _ => None,
    })
}

/// Names that look like fastcp's temporary files; a source may contain such names itself.
fn temporaries(tree: &Tree) -> impl Iterator<Item = String> {
    let names = tree.0.keys().filter_map(|path| path.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".fastcp-"))
}

/// Prints in one line why a test cannot run here. Panics where every test has to run.
pub(crate) fn skip(what: &str) {
    if std::env::var_os("FASTCP_TEST_STRICT").is_some_and(|value| value == "1") {
        panic!("needs {what}");
    }
    lacks(what);
}

/// The same for a program that no run of the tests needs.
pub(crate) fn lacks(what: &str) {
    // Directly to stderr: the harness would hide the output of a test that passes.
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    writeln!(std::io::stderr(), "skipped: needs {what}: {name}").ok();
}

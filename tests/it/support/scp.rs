//! scp and fastcp, run by the same shell line in equal trees, to compare what they leave behind.
//!
//! A tree has two directories with the same names and different contents: `near`, in which the line
//! runs, and `far`, the home directory on the hosts `far` and `other`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, mkfifoat};

use super::procs::MARK;
use super::run::{Run, fastcp_binary};
use super::{Case, Dir, Login, host, noise, skip};

/// The modification time of every file that a tree begins with.
const OLD: u64 = 1_500_000_000;

/// Places of the SFTP server that scp needs.
const SFTP_SERVERS: [&str; 2] = [
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
];

/// How often scp runs until its result is that of fastcp. If a host lets nobody in, scp exits with 1
/// or 255, depending on whether ssh has ended before scp writes to it.
const SCP_RUNS: usize = 4;

/// The program that a line calls `scp`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    Scp,
    Flag,
    /// fastcp under the name scp.
    Link,
}

/// What one line left behind.
#[derive(PartialEq, Eq)]
pub(crate) struct Left {
    code: Option<i32>,
    /// Type, mode, number of names, content and whether the time is old, by path.
    entries: BTreeMap<PathBuf, String>,
}

/// Runs lines in trees below the case's scratch directory.
pub(crate) struct ScpTrees<'a> {
    case: &'a Case,
    link: PathBuf,
    /// The tree of the next line.
    next: Cell<usize>,
    /// Words before the shells on both sides.
    under: Vec<String>,
}

impl<'a> ScpTrees<'a> {
    /// None, after a line about it, if there is no scp or no SFTP server.
    pub(crate) fn new(case: &'a Case, under: Vec<String>) -> Option<ScpTrees<'a>> {
        let servers = SFTP_SERVERS.iter().find(|path| Path::new(path).exists());
        let (Some(server), Some(_)) = (servers, host::find_program("scp")) else {
            skip("scp and an SFTP server");
            return None;
        };
        let dir = case.host().dir();
        let text = |file: &str| String::from_utf8(dir.read(file)).expect("text");
        let config = text("sshd_config") + &format!("Subsystem sftp {server}\n");
        dir.file("sshd_config", config);
        let config = text("ssh_config").replacen("Host far", "Host far other", 1);
        dir.file("ssh_config", config);
        case.host().set_login(&Login {
            before: format!(
                "HOME=$(cat '{}') && export HOME && cd \"$HOME\" || exit 1",
                case.scratch.path("far home").display()
            ),
            under: under.join(" "),
            ..Login::default()
        });
        let link = case.scratch.dir("bin").link("scp", fastcp_binary());
        Some(ScpTrees {
            case,
            link,
            next: Cell::new(0),
            under,
        })
    }

    /// Runs `line` in a fresh tree. `{far}` is the path of that directory, `{user}` and `{port}` are
    /// those of the far host.
    pub(crate) fn run(&self, line: &str, program: Program) -> Left {
        let number = self.next.replace(self.next.get() + 1);
        let tree = self.case.scratch.dir(number.to_string());
        let (near, far) = (tree.dir("near"), tree.dir("far"));
        fill(&near, "near");
        fill(&far, "far");
        let far_path = far.0.display().to_string();
        self.case.scratch.file("far home", &far_path);
        let program = match program {
            Program::Scp => "command scp".to_owned(),
            Program::Flag => format!("'{}' --scp", fastcp_binary().display()),
            Program::Link => format!("'{}'", self.link.display()),
        };
        let config = self.case.host().ssh_config();
        let function = format!("scp() {{ {program} -F '{}' \"$@\"; }}\n", config.display());
        let line = line
            .replace("{far}", &far_path)
            .replace("{user}", &host::user())
            .replace("{port}", &self.case.host().port().to_string());
        let run = Run::new("bash", &near.0).arg("-c").arg(function + &line);
        let done = run
            .env("HOME", &self.case.home.0)
            .env("USER", host::user())
            .env(MARK, self.case.mark())
            .under(&self.under)
            .run();
        done.never_says("panicked");
        let mut entries = BTreeMap::new();
        for side in [&near, &far] {
            read(&tree.0, &side.0, &mut entries);
        }
        self.case.host().wait_for_logins();
        remove(&tree.0);
        Left {
            code: done.code,
            entries,
        }
    }

    /// How the results of scp and `program` for this line differ; None if they do not.
    pub(crate) fn difference(&self, line: &str, program: Program) -> Option<String> {
        let found = self.run(line, program);
        let mut difference = None;
        for _ in 0..SCP_RUNS {
            let wanted = self.run(line, Program::Scp);
            if found == wanted {
                return None;
            }
            difference = Some(format!("{line}\n{}", found.unlike(&wanted)));
        }
        difference
    }
}

impl Left {
    fn unlike(&self, wanted: &Left) -> String {
        let mut lines = Vec::new();
        if self.code != wanted.code {
            lines.push(format!("    exit {:?}, scp {:?}", self.code, wanted.code));
        }
        let paths = self.entries.keys().chain(wanted.entries.keys());
        let paths: std::collections::BTreeSet<_> = paths.collect();
        for path in paths {
            let (own, scp) = (self.entries.get(path), wanted.entries.get(path));
            if own != scp {
                lines.push(format!("    {}: {own:?}, scp {scp:?}", path.display()));
            }
        }
        lines.join("\n")
    }
}

/// Removes a tree, in which a directory may be read-only.
fn remove(tree: &Path) {
    let opened = Command::new("chmod")
        .args(["-R", "u+rwX"])
        .arg(tree)
        .status();
    assert!(opened.is_ok_and(|status| status.success()), "chmod");
    fs::remove_dir_all(tree).expect("remove the tree");
}

/// Fills one side. Its contents name the side.
fn fill(dir: &Dir, side: &str) {
    let content = |path: &str| format!("{side} {path}\n");
    for (path, mode) in [
        ("a", 0o644),
        ("b", 0o600),
        ("ro", 0o444),
        ("run", 0o755),
        ("suid", 0o4755),
        ("wide", 0o666),
        ("a b", 0o644),
        ("co:lon", 0o644),
        ("dir/one", 0o644),
        ("dir/sub/two", 0o600),
        ("priv/p", 0o600),
        ("share/s", 0o664),
        ("links/plain", 0o644),
        ("hard/one", 0o644),
        ("special/f", 0o644),
        ("logs/x.log", 0o644),
        ("logs/y.log", 0o644),
        ("logs/z.txt", 0o644),
        ("logs/.hidden.log", 0o644),
    ] {
        dir.file(path, content(path));
        dir.mode(path, mode);
    }
    dir.file("empty", "");
    dir.file("big", noise(side.len() as u64, 300_000));
    dir.dir("dir/empty");
    dir.link("links/tofile", "plain");
    dir.link("links/up", "../a");
    dir.link("links/todir", "../dir");
    dir.link("links/dangling", "nowhere");
    dir.link("filelink", "a");
    dir.link("dirlink", "dir");
    dir.link("gonelink", "gone");
    dir.hard_link("hard/two", "hard/one");
    for fifo in ["fifo", "special/fifo"] {
        mkfifoat(CWD, dir.path(fifo), 0o644.into()).expect("make a FIFO");
    }
    // What is there at the destination, longer than what replaces it.
    for path in [
        "old",
        "oldro",
        "oldhard",
        "dst/a",
        "dst/dir/one",
        "dst/dir/stays",
    ] {
        dir.file(path, content(path).repeat(20));
    }
    dir.hard_link("oldhard2", "oldhard");
    dir.link("oldlink", "old");
    dir.link("newlink", "made");
    dir.file("theirs", content("theirs").repeat(20));
    // Root alone can give it away. Its group may write to it.
    let _ = chown(dir.path("theirs"), Some(65534), None);
    dir.mode("theirs", 0o664);
    dir.mode("old", 0o640);
    dir.mode("oldro", 0o444);
    dir.mode("priv", 0o700);
    dir.mode("share", 0o775);
    for path in [
        "a", "b", "ro", "run", "suid", "old", "oldro", "oldhard", "big", "dir/one", "share/s",
    ] {
        dir.time(path, OLD, 0);
    }
}

/// Adds the entries below `dir`, by their paths below `top`, but for fastcp's own state.
fn read(top: &Path, dir: &Path, entries: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(dir).expect("read the directory") {
        let path = entry.expect("read an entry").path();
        let name = path.strip_prefix(top).expect("it is below").to_owned();
        if name.ends_with("far/.local") || name.ends_with("far/.cache") {
            continue;
        }
        let meta = path.symlink_metadata().expect("look at it");
        let mode = meta.mode() & 0o7777;
        let shown = if meta.is_dir() {
            read(top, &path, entries);
            format!("directory {mode:o}")
        } else if meta.is_symlink() {
            let target = fs::read_link(&path).expect("read the link");
            format!("link to {}", target.display())
        } else if meta.is_file() {
            let content = fs::read(&path).expect("read it");
            let text = match std::str::from_utf8(&content) {
                Ok(text) if text.len() < 100 => text.trim_end().to_owned(),
                _ => blake3::hash(&content).to_hex()[..16].to_owned(),
            };
            let age = if meta.mtime() == OLD as i64 {
                "old"
            } else {
                "new"
            };
            let (len, links) = (content.len(), meta.nlink());
            format!("file {mode:o} {age} {links} {len} {text}")
        } else {
            format!("special {mode:o}")
        };
        entries.insert(name, shown);
    }
}

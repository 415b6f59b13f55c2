//! Backup tools of a real database at the ends of a copy. Each test starts a PostgreSQL server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::*;

ways! { push, pull =>
    a_dump_goes_from_one_database_into_another,
    a_base_backup_arrives_as_the_tool_left_it,
}

const NEEDS: &str = "PostgreSQL (apt-get install postgresql)";

/// A server with its own directory, which ends when this is dropped.
struct Server {
    bin: PathBuf,
    process: Child,
    /// Data and socket. A short path, because a socket needs one.
    dir: TempDir,
}

impl Server {
    /// None if PostgreSQL is not installed.
    fn start() -> Option<Server> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        let mut bins: Vec<_> = versions
            .flatten()
            .map(|dir| dir.path().join("bin"))
            .collect();
        bins.retain(|bin| bin.join("initdb").exists());
        let bin = bins.into_iter().max()?;
        let dir = tempfile::tempdir().expect("make a directory");
        if rustix::process::geteuid().is_root() {
            // PostgreSQL refuses to run as root.
            assert!(
                Command::new("chown")
                    .arg("nobody")
                    .arg(dir.path())
                    .status()
                    .is_ok()
            );
        }
        let data = dir.path().join("data");
        let made = as_nobody(&bin.join("initdb"))
            .args(["-A", "trust", "-U", "test", "--no-sync", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status()
            .expect("run initdb");
        assert!(made.success(), "initdb failed");
        let process = as_nobody(&bin.join("postgres"))
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-D"])
            .arg(&data)
            .arg("-k")
            .arg(dir.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("start a server");
        let server = Server { bin, process, dir };
        procs::until("the server answers", || {
            server
                .run("psql", "-d postgres -c 'select 1'")
                .ok()
                .map(drop)
        });
        Some(server)
    }

    /// The shell command that runs a PostgreSQL tool on this server.
    fn tool(&self, name: &str, rest: &str) -> String {
        let (bin, socket) = (self.bin.join(name), self.dir.path());
        format!("{} -h {} -U test {rest}", bin.display(), socket.display())
    }

    fn run(&self, tool: &str, rest: &str) -> Result<String, String> {
        let line = self.tool(tool, rest);
        let done = Run::new("sh", "/")
            .args(["-c", &line])
            .limit(Duration::from_secs(120))
            .run();
        match done.code {
            Some(0) => Ok(done.stdout_text()),
            _ => Err(done.to_string()),
        }
    }

    fn query(&self, database: &str, query: &str) -> String {
        let rest = format!("-v ON_ERROR_STOP=1 -At -d {database} -c \"{query}\"");
        self.run("psql", &rest).expect("a query that works")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An immediate shutdown: its data is no longer needed.
        kill_process(Pid::from_child(&self.process), Signal::QUIT).ok();
        self.process.wait().ok();
    }
}

fn as_nobody(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"])
        .arg(program)
        .current_dir("/");
    command
}

const FILL: &str = "create table t as select n, md5(n::text) a, repeat(md5((n % 99)::text), 5) b \
                    from generate_series(1, 60000) n";
const SUM: &str = "select count(*), sum(hashtext(t::text)) from t";

fn between(case: &Case, from: &str, to: &str) -> Run {
    let run = case
        .fastcp()
        .args(["--from-command", from, "--to-command", to]);
    match case.way {
        Way::Pull => run.arg(case.from("")).arg("-"),
        _ => run.arg("-").arg(case.to("")),
    }
}

fn a_dump_goes_from_one_database_into_another(case: &Case) {
    let Some(server) = Server::start() else {
        return skip(NEEDS);
    };
    server.query("postgres", FILL);
    server.query("postgres", "create database other");
    let from = server.tool("pg_dump", "-d postgres");
    let to = server.tool("psql", "-q -v ON_ERROR_STOP=1 -d other");
    between(case, &from, &to).run().succeeds();
    assert_eq!(server.query("other", SUM), server.query("postgres", SUM));
    // The tables that exist by now make the copy fail, and psql says why.
    let done = between(case, &from, &to).run();
    done.exits(10).says("psql").says("already exists");
}

fn a_base_backup_arrives_as_the_tool_left_it(case: &Case) {
    let Some(server) = Server::start() else {
        return skip(NEEDS);
    };
    server.query("postgres", FILL);
    let from = server.tool("pg_basebackup", "-Ft -X none -c fast -D -");
    let to = format!("tar -x -C '{}'", case.scratch.0.display());
    between(case, &from, &to).run().succeeds();
    // The backup contains the digests of all files.
    let verified = Command::new(server.bin.join("pg_verifybackup"))
        .arg("-n")
        .arg(&case.scratch.0)
        .output()
        .expect("run pg_verifybackup");
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success(), "{said}");
}

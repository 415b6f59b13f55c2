//! The file in which it is kept what copies between two hosts needed last time. Safe to lose: what
//! cannot be read is as if it were not there, and what cannot be written is not missed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::timeout;

use crate::session::request::{Host, Request};
use crate::ssh::Rsh;
use crate::tuner::{FILE_MAX, Remembered, Routes};

/// Copies of one process that end at once wait for each other: each reads all that is kept.
static WRITING: Mutex<()> = Mutex::new(());

/// In fastcp's own directory among the user's caches.
const NAME: &str = "routes.json";

/// How long a copy waits for the disk that the file is on; beyond it the file counts as not there.
const PATIENCE: Duration = Duration::from_secs(1);

/// None where nothing is known of this pair of hosts.
pub async fn recall(request: &Request) -> Option<Remembered> {
    let pair = pair(request)?;
    let read = tokio::task::spawn_blocking(move || routes(&path()?).get(&pair));
    timeout(PATIENCE, read).await.ok()?.ok().flatten()
}

/// Keeps what was learnt this time.
pub async fn remember(request: &Request, what: Remembered) {
    let Some(pair) = pair(request) else { return };
    let written = tokio::task::spawn_blocking(move || {
        let Some(path) = path() else { return };
        let _writing = WRITING.lock();
        let mut routes = routes(&path);
        routes.put(&pair, what);
        // Of two processes that end at once the later one's word counts.
        let _ = write(&path, &routes.to_text());
    });
    // What is not written in time is not missed.
    let _ = timeout(PATIENCE, written).await;
}

/// A copy in the other direction is another one: what limits it may be another processor or disk.
/// None for a trial with this machine alone.
fn pair(request: &Request) -> Option<String> {
    let host = request.host().filter(|_| request.rsh == Rsh::Ssh)?;
    let named = |host: &Host| {
        let port = host.port.map_or(String::new(), |port| format!(" {port}"));
        format!("{}{port}", host.name)
    };
    Some(match (request.hosts(), &request.dest.host) {
        (Some((source, dest)), _) => format!("from {} to {}", named(source), named(dest)),
        (None, Some(_)) => format!("to {}", named(host)),
        (None, None) => format!("from {}", named(host)),
    })
}

fn path() -> Option<PathBuf> {
    let is_absolute = |path: &PathBuf| path.is_absolute();
    let named = |name| std::env::var_os(name).map(PathBuf::from);
    let caches = named("XDG_CACHE_HOME").filter(is_absolute);
    let caches = caches.or_else(|| Some(named("HOME").filter(is_absolute)?.join(".cache")))?;
    Some(caches.join("fastcp").join(NAME))
}

fn routes(path: &PathBuf) -> Routes {
    let mut text = Vec::new();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path);
    let read = opened.and_then(|file| file.take(FILE_MAX as u64 + 1).read_to_end(&mut text));
    match read {
        Ok(_) => Routes::read(&text),
        Err(_) => Routes::default(),
    }
}

/// Under its name there is always a whole file.
fn write(path: &PathBuf, text: &[u8]) -> std::io::Result<()> {
    let Some(dir) = path.parent() else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let part = dir.join(format!("{NAME}.{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .and_then(|mut file: File| file.write_all(text))
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

//! Names of hosts in ssh's configuration, to notice `fastcp file alpha` instead of `alpha:`, and to
//! complete names. It is approximate: it finds literal names of `Host` lines, also in included
//! files. It ignores patterns, `Match` lines and files that cannot be read.

use std::path::{Path, PathBuf};

/// Most levels of included files. ssh itself follows 16; this limit only stops files that include
/// each other.
const DEPTH_MAX: usize = 8;

/// Larger files are ignored: they are not written by hand.
const FILE_MAX: u64 = 1 << 20;

/// True if ssh's configuration has a `Host` line with exactly this name.
pub(super) fn names(host: &str, config: Option<&Path>) -> bool {
    hosts(config).iter().any(|name| name == host)
}

/// The names of `Host` lines. The configuration is the file of `-F` alone, or the user's and the
/// system's.
pub(super) fn hosts(config: Option<&Path>) -> Vec<String> {
    let mut found = Vec::new();
    let home = std::env::home_dir().map(|home| home.join(".ssh"));
    match config {
        Some(file) => add_hosts(file, home.as_deref(), 0, &mut found),
        None => {
            if let Some(dir) = home.as_deref() {
                add_hosts(&dir.join("config"), Some(dir), 0, &mut found);
            }
            let system = Path::new("/etc/ssh");
            add_hosts(&system.join("ssh_config"), Some(system), 0, &mut found);
        }
    }
    found
}

/// The content of a small regular file. Reading a FIFO or a device could block.
pub(super) fn text_of(file: &Path) -> Option<String> {
    let is_small = std::fs::metadata(file).is_ok_and(|at| at.is_file() && at.len() <= FILE_MAX);
    let text = is_small.then(|| std::fs::read(file).ok()).flatten()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Relative names of included files start at `dir`.
fn add_hosts(file: &Path, dir: Option<&Path>, depth: usize, found: &mut Vec<String>) {
    let text = text_of(file).unwrap_or_default();
    for (keyword, words) in text.lines().filter_map(keyword) {
        match keyword.as_str() {
            "host" => found.extend(words.into_iter().filter(|word| !is_pattern(word))),
            "include" if depth < DEPTH_MAX => {
                for file in words.iter().flat_map(|word| included(word, dir)) {
                    add_hosts(&file, dir, depth + 1, found);
                }
            }
            _ => {}
        }
    }
}

/// The keyword in lower case and its arguments; `Host=a "b c"` is `host`, `a`, `b c`.
fn keyword(line: &str) -> Option<(String, Vec<String>)> {
    let line = line.trim();
    let end = line.find(|c: char| c.is_whitespace() || c == '=')?;
    let rest = line[end..].trim_start().trim_start_matches('=');
    let words = shlex::split(rest)?;
    Some((line[..end].to_ascii_lowercase(), words))
}

fn is_pattern(word: &str) -> bool {
    word.starts_with('!') || word.contains(['*', '?'])
}

/// The files that an `Include` names: `~/`, relative names, and patterns in the last component.
fn included(word: &str, dir: Option<&Path>) -> Vec<PathBuf> {
    let path = match (word.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => dir.unwrap_or(Path::new("/")).join(word),
    };
    let (Some(parent), Some(last)) = (path.parent(), path.file_name()) else {
        return Vec::new();
    };
    if !is_pattern(&last.to_string_lossy()) {
        return vec![path];
    }
    let Ok(pattern) = globset::Glob::new(&last.to_string_lossy()) else {
        return Vec::new();
    };
    let pattern = pattern.compile_matcher();
    let Ok(entries) = std::fs::read_dir(parent) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| pattern.is_match(name))
        .map(|name| parent.join(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literal_names_of_host_lines_count() {
        let temp = tempfile::tempdir().unwrap();
        let config = temp.path().join("config");
        let more = temp.path().join("more.d");
        std::fs::create_dir(&more).unwrap();
        std::fs::write(more.join("x.conf"), "host = delta\nInclude ../config\n").unwrap();
        std::fs::write(
            &config,
            format!(
                "# Host comment\nHost alpha \"beta\" web* !gamma\n  HostName real\n\
                 Match host matched\nInclude {}/*.conf\n",
                more.display()
            ),
        )
        .unwrap();
        let named = |host| names(host, Some(&config));
        assert!(["alpha", "beta", "delta"].into_iter().all(named));
        for host in [
            "web1", "web*", "gamma", "!gamma", "real", "matched", "comment", "",
        ] {
            assert!(!named(host), "{host}");
        }
    }
}

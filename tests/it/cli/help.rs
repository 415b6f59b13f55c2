//! The pages of `--help TOPIC`, and the flags that the pages and the README name.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use fastcp::guide::PAGES;

use crate::support::done::Done;
use crate::support::run::{Run, fastcp_binary};
use crate::support::skip;

/// Flags for the forced command of a limited key, which `--help` does not list.
const FORCED: [&str; 10] = [
    "--server",
    "--confine",
    "--read-only",
    "--write-only",
    "--no-overwrite",
    "--allow-outside-links",
    "--allow-delete",
    "--allow-remove-source-files",
    "--allow-snapshot",
    "--allow-thinning",
];

/// Pages that also name options of a forced command.
const ABOUT_KEYS: [&str; 2] = ["confined-keys", "snapshots"];

/// A flag of version 0.1, which is accepted and hidden.
const OLD: &str = "--retries";

const README: &str = "README.md";

/// Texts that also name options of rsync. fastcp must answer each of them with a hint.
const ABOUT_RSYNC: [&str; 2] = ["rsync", README];

/// Longest line of a page, in characters.
const COLUMNS: usize = 80;

/// Most lines of the README.
const README_LINES: usize = 200;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    fs::read_to_string(root().join(README)).expect("read the README")
}

fn fastcp(words: &[&str]) -> Done {
    Run::new(fastcp_binary(), "/").args(words).run()
}

/// The long flags in a text, without those of cargo, of commands in quotes and of b3sum.
fn flags(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.contains("cargo "));
    let unquoted = |line: &str| -> String {
        let parts: Vec<_> = line.split('\'').collect();
        match parts.len() % 2 {
            1 => parts.into_iter().step_by(2).collect::<Vec<_>>().join(" "),
            // An apostrophe.
            _ => line.to_owned(),
        }
    };
    let lines = lines.map(|line| unquoted(line).replace("b3sum --check", "b3sum"));
    let is_flag = |word: &&str| {
        let name = word.strip_prefix("--");
        name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
    };
    let of_line = |line: String| -> Vec<String> {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        words.filter(is_flag).map(str::to_owned).collect()
    };
    lines.flat_map(of_line).collect()
}

#[test]
fn each_topic_prints_its_page_and_is_listed() {
    let help = fastcp(&["--help", "all"]).succeeds().stdout_text();
    let listed = help.split_once("Topics: ").expect("a list of topics").1;
    let listed = listed.split("\n\n").next().unwrap_or_default();
    let listed: Vec<_> = listed.split_whitespace().collect();
    let topics: Vec<_> = PAGES.iter().map(|(topic, _)| *topic).collect();
    assert_eq!(listed, topics);
    for (topic, page) in PAGES {
        let done = fastcp(&["--help", topic]);
        assert_eq!(done.succeeds().stdout_text(), *page, "{topic}");
        assert_eq!(done.stderr, "", "{topic}");
        for line in page.lines() {
            assert!(line.chars().count() <= COLUMNS, "{topic}: {line}");
            // A terminal of any locale shows it.
            assert!(line.is_ascii(), "{topic}: {line}");
        }
    }
    let files = fs::read_dir(root().join("src/guide")).expect("read the pages");
    assert_eq!(files.count(), PAGES.len(), "files in src/guide");
}

#[test]
fn an_unknown_topic_is_an_error_that_lists_the_topics() {
    let done = fastcp(&["--help", "nonsense"]);
    done.exits(2).says("no topic nonsense");
    for (topic, _) in PAGES {
        done.says(topic);
    }
    assert!(done.stdout.is_empty(), "{done}");
    // Without a topic it is the usual help.
    fastcp(&["--help", "-r"]).succeeds();
}

#[test]
fn every_flag_that_a_page_or_the_readme_names_exists() {
    let known = flags(&fastcp(&["--help", "all"]).succeeds().stdout_text());
    let readme = readme();
    let texts = PAGES.iter().copied().chain([(README, readme.as_str())]);
    for (name, text) in texts {
        for flag in flags(text) {
            let is_forced = ABOUT_KEYS.contains(&name) && FORCED.contains(&flag.as_str());
            // Each kind of metadata has a flag that takes it away from -a.
            let kept = flag.replacen("--no-", "--", 1);
            if known.contains(&flag) || known.contains(&kept) || is_forced || flag == OLD {
                continue;
            }
            assert!(ABOUT_RSYNC.contains(&name), "{name}: no flag {flag}");
            let hint = format!("there is no option {flag}: ");
            fastcp(&[flag.as_str(), "a", "h:"]).exits(2).says(&hint);
        }
    }
}

#[test]
fn the_readme_is_short_and_its_links_lead_to_files() {
    let readme = readme();
    let lines = readme.lines().count();
    assert!(lines <= README_LINES, "{lines} lines");
    let links = readme.split("](").skip(1);
    for link in links.filter_map(|rest| rest.split(')').next()) {
        assert!(root().join(link).is_file(), "{link}");
    }
}

#[test]
fn each_topic_has_a_manual_page_that_the_formatter_accepts() {
    let topics = PAGES.iter().map(|(topic, _)| Some(*topic));
    for topic in topics.chain([None]) {
        let words = ["--man"].into_iter().chain(topic);
        let page = fastcp(&words.collect::<Vec<_>>()).succeeds().stdout_text();
        assert!(page.contains(".SH NAME\nfastcp"), "{page}");
        let Some(text) = formatted(&page) else {
            return skip("groff");
        };
        // What the page says is what `--help` says, but for marks and breaks.
        let source = match topic {
            Some(topic) => fastcp(&["--help", topic]).stdout_text(),
            None => fastcp(&["--help", "all"]).stdout_text(),
        };
        let shown = words_of(&text);
        let source = source.lines().filter(|line| !line.starts_with("```"));
        let source = source.collect::<Vec<_>>().join("\n");
        for word in words_of(&source).difference(&shown) {
            // A heading is in capitals, a long option may be broken, the list of topics has links.
            let upper = word.to_uppercase();
            let is_there = shown.contains(&upper)
                || text.contains(word)
                || PAGES.iter().any(|(name, _)| name == word);
            assert!(is_there || topic.is_none(), "{topic:?} lacks {word}");
        }
    }
}

/// The page as `man` shows it on a wide terminal; nothing without groff.
fn formatted(page: &str) -> Option<String> {
    let mut groff = Command::new("groff")
        .args(["-man", "-Tascii", "-ww", "-rLL=10000n", "-P-cbou"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = groff.stdin.take().expect("a pipe");
    let page = page.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(page.as_bytes()));
    let output = groff.wait_with_output().expect("groff ends");
    writing.join().expect("no panic").expect("write the page");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{told}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn words_of(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .filter(|word| word.len() > 3)
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_shell_accepts_its_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = fastcp(&["--completions", shell]).succeeds().stdout_text();
        for option in ["retry-for", "stop-after", "exclude-from"] {
            assert!(script.contains(option), "{shell} lacks --{option}");
        }
        assert!(!script.contains("--confine"), "{shell} has hidden options");
        let checked = Command::new(shell)
            .args(["-n", "/dev/stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = checked else {
            return skip(shell);
        };
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin
            .write_all(script.as_bytes())
            .expect("write the script");
        drop(stdin);
        let output = child.wait_with_output().expect("the shell ends");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{shell}: {told}");
    }
    fastcp(&["--completions", "tcsh"])
        .exits(2)
        .says("expected bash, zsh or fish");
}

#[test]
fn the_licenses_name_each_library_of_the_program() {
    let told = fastcp(&["--licenses"]).succeeds().stdout_text();
    let tree = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "--offline", "--edges", "normal"])
        .args(["--prefix", "none"])
        .output()
        .expect("run cargo");
    let errors = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{errors}");
    let tree = String::from_utf8(tree.stdout).expect("text");
    let libraries = tree
        .lines()
        .filter(|line| !line.starts_with("fastcp ") && !line.contains("(proc-macro)"));
    let mut count = 0;
    for library in libraries {
        let mut words = library.split(' ');
        let (name, version) = (words.next().expect("a name"), words.next());
        let version = version.and_then(|it| it.strip_prefix('v'));
        let label = format!("\n{name} {} (", version.expect("a version"));
        assert!(told.contains(&label), "{library}: run .ci/licenses");
        count += 1;
    }
    assert!(count > 50, "{count} libraries");
    assert!(told.contains("Permission is hereby granted, free of charge"));
}

//! A check of the module layers: it reads the sources and reports, with its line, every import
//! that does not point down the table in `src/lib.rs`, and every library or call outside its
//! modules.
//!
//! Tests inside modules follow the same rules: a test that needs a higher module belongs there.

mod circles;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tokens::{Token, tokens};

/// A word that may be used only in these modules.
struct Place {
    word: &'static str,
    modules: &'static [&'static str],
}

const SOCKETS: &[&str] = &["control", "ssh", "transport", "pipeline", "session", "app"];
const SPEAKS: &[&str] = &["cli", "ui"];
/// All modules except those that do no I/O, read no clock and spawn nothing.
const ACTS: &[&str] = &[
    "cli",
    "ui",
    "app",
    "session",
    "pipeline",
    "transport",
    "ssh",
    "control",
    "source",
    "dest",
    "journal",
    "progress",
    "dir",
    "command",
    "device",
    "cache",
    "program",
    "pipe",
    "threads",
    "disk_table",
];

const PLACES: &[Place] = &[
    Place {
        word: "clap",
        modules: &["cli"],
    },
    Place {
        word: "indicatif",
        modules: &["ui"],
    },
    Place {
        word: "plotters",
        modules: &["ui"],
    },
    Place {
        word: "tokio",
        modules: SOCKETS,
    },
    Place {
        word: "tokio_util",
        modules: SOCKETS,
    },
    Place {
        word: "println!",
        modules: SPEAKS,
    },
    Place {
        word: "print!",
        modules: SPEAKS,
    },
    Place {
        word: "eprintln!",
        // A server has no `ui`; ssh passes its stderr to the client's stderr.
        modules: &["cli", "ui", "session"],
    },
    Place {
        word: "eprint!",
        modules: SPEAKS,
    },
    Place {
        word: "dbg!",
        modules: &[],
    },
    Place {
        word: "todo!",
        modules: &[],
    },
    Place {
        word: "std::fs",
        modules: ACTS,
    },
    Place {
        word: "std::net",
        modules: ACTS,
    },
    Place {
        word: "std::process",
        modules: ACTS,
    },
    Place {
        word: "Instant",
        modules: ACTS,
    },
    Place {
        word: "SystemTime",
        modules: ACTS,
    },
    Place {
        word: "thread::spawn",
        modules: ACTS,
    },
];

#[test]
fn imports_point_down_and_libraries_stay_in_their_places() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = fs::read_to_string(src.join("lib.rs")).expect("read lib.rs");
    let levels = levels(&lib);
    let declared = declared(&lib);
    let named: BTreeSet<_> = levels.keys().cloned().collect();
    assert_eq!(declared, named, "the modules and the table in src/lib.rs");

    let mut faults = Vec::new();
    for file in rust_files(&src) {
        let rel = file.strip_prefix(&src).expect("below src");
        let text = fs::read_to_string(&file).expect("read a source");
        let Some(module) = top_module(rel) else {
            continue;
        };
        for (line, fault) in check(&text, rel, &module, &levels) {
            faults.push(format!("src/{}:{line}: {fault}", rel.display()));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn no_file_imports_in_a_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let sources = rust_files(&src).into_iter().filter_map(|file| {
        let rel = file
            .strip_prefix(&src)
            .expect("below src")
            .with_extension("");
        let mut module: Vec<String> = rel
            .iter()
            .map(|name| name.to_str().expect("UTF-8").to_owned())
            .collect();
        match module.last()?.as_str() {
            "main" => return None,
            "mod" | "lib" => module.truncate(module.len() - 1),
            _ => {}
        }
        Some((module, fs::read_to_string(&file).expect("read a source")))
    });
    let found: Vec<Vec<String>> = circles::circles(&sources.collect())
        .iter()
        .map(|circle| circle.iter().map(|module| module.join("::")).collect())
        .collect();
    assert!(found.is_empty(), "circles of files: {found:#?}");
}

/// A reader who meets a type's name knows which type it is.
#[test]
fn every_type_name_is_defined_once() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut definers: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for file in rust_files(&src) {
        for name in types(&fs::read_to_string(&file).expect("read a source")) {
            definers.entry(name).or_default().insert(file.clone());
        }
    }
    definers.retain(|_, files| files.len() > 1);
    assert!(definers.is_empty(), "{definers:#?}");
}

/// Names of types that a file defines, without those of an implementation, such as `type Error`.
fn types(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = 0;
    let tokens = tokens(text);
    for words in tokens.windows(3) {
        match words[0].text.as_str() {
            "{" => open += 1,
            "}" => open -= 1,
            // Not `$name` in a macro.
            "struct" | "enum" | "trait" if words[1].text != "$" => found.push(&words[1].text),
            "type" if open == 0 => found.push(&words[1].text),
            _ => {}
        }
    }
    found.into_iter().cloned().collect()
}

/// Module → its line in the table; 0 is the top.
fn levels(lib: &str) -> BTreeMap<String, usize> {
    lib.lines()
        .skip_while(|line| *line != "//! ```text")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .enumerate()
        .flat_map(|(level, line)| {
            let names = line
                .trim_start_matches("//!")
                .split("..")
                .next()
                .unwrap_or("");
            names
                .split_whitespace()
                .map(move |name| (name.to_owned(), level))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn declared(lib: &str) -> BTreeSet<String> {
    lib.lines()
        .filter_map(|line| Some(line.strip_prefix("pub mod ")?.strip_suffix(';')?.to_owned()))
        .collect()
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("read a directory") {
        let path = entry.expect("read an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// "codec" for codec.rs and for codec/lz4.rs; None for lib.rs and main.rs.
fn top_module(rel: &Path) -> Option<String> {
    let first = rel.iter().next()?.to_str()?;
    match first {
        "lib.rs" | "main.rs" => None,
        name => Some(name.trim_end_matches(".rs").to_owned()),
    }
}

/// The nesting depth of a file's module: 1 for codec.rs and codec/mod.rs, 2 for codec/lz4.rs.
fn depth(rel: &Path) -> usize {
    let ends_in_mod = rel.file_name().is_some_and(|name| name == "mod.rs");
    rel.iter().count() - usize::from(ends_in_mod)
}

fn check(
    text: &str,
    rel: &Path,
    module: &str,
    levels: &BTreeMap<String, usize>,
) -> Vec<(usize, String)> {
    let tokens = tokens(text);
    let mut faults = Vec::new();
    for (line, target) in imports(&tokens, depth(rel)) {
        match (levels.get(module), levels.get(&target)) {
            (_, None) => faults.push((line, format!("`{target}` is not in the table"))),
            (Some(own), Some(other)) if other <= own && target != module => {
                faults.push((
                    line,
                    format!("{module} imports {target}, which is not below it"),
                ));
            }
            _ => {}
        }
    }
    for place in PLACES {
        let words = self::tokens(place.word);
        let allowed = place.modules.contains(&module);
        for window in tokens.windows(words.len()) {
            let same = window.iter().zip(&words).all(|(a, b)| a.text == b.text);
            if same && !allowed {
                faults.push((window[0].line, format!("`{}` in {module}", place.word)));
            }
        }
    }
    faults
}

/// (line, top-level module) of every path from the crate's root. Such a path begins with
/// `crate::` or with enough `super::`; groups in braces count too.
fn imports(tokens: &[Token], depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inline = InlineModules::default();
    let mut at = 0;
    while at < tokens.len() {
        inline.pass(tokens, at);
        let word = tokens[at].text.as_str();
        let preceded = at > 0 && tokens[at - 1].text == "::";
        if word == "crate" && is(tokens, at + 1, "::") {
            roots(tokens, at + 2, &mut found);
        } else if word == "super" && !preceded && is(tokens, at + 1, "::") {
            let mut ups = 0;
            let mut next = at;
            while is(tokens, next, "super") && is(tokens, next + 1, "::") {
                ups += 1;
                next += 2;
            }
            if ups >= depth + inline.open.len() {
                roots(tokens, next, &mut found);
            }
        }
        at += 1;
    }
    found
}

fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.text == text)
}

/// The first names of a path, or of every path in a group.
fn roots(tokens: &[Token], at: usize, found: &mut Vec<(usize, String)>) {
    if !is(tokens, at, "{") {
        if let Some(token) = tokens.get(at) {
            found.push((token.line, token.text.clone()));
        }
        return;
    }
    let mut open = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "{" => open += 1,
            "}" => open -= 1,
            _ if open == 1 && matches!(tokens[index - 1].text.as_str(), "{" | ",") => {
                found.push((token.line, token.text.clone()));
            }
            _ => {}
        }
        if open == 0 {
            return;
        }
    }
}

/// The inline modules (`mod x { … }`) around a position.
#[derive(Default)]
struct InlineModules {
    braces: usize,
    /// The number of open braces at the start of each inline module.
    open: Vec<usize>,
}

impl InlineModules {
    fn pass(&mut self, tokens: &[Token], at: usize) {
        match tokens[at].text.as_str() {
            "{" => {
                if at >= 2 && tokens[at - 2].text == "mod" {
                    self.open.push(self.braces);
                }
                self.braces += 1;
            }
            "}" => {
                self.braces = self.braces.saturating_sub(1);
                if self.open.last() == Some(&self.braces) {
                    self.open.pop();
                }
            }
            _ => {}
        }
    }
}

mod the_check_itself {
    use super::*;

    fn faults(file: &str, text: &str) -> Vec<String> {
        let table =
            "//! ```text\n//! cli .. x\n//! wire .. y\n//! codec seal ... z\n//! error\n//! ```";
        let rel = Path::new(file);
        check(
            text,
            rel,
            &top_module(rel).expect("a module"),
            &levels(table),
        )
        .into_iter()
        .map(|(line, fault)| format!("{line}: {fault}"))
        .collect()
    }

    #[test]
    fn sees_imports_that_point_up_or_sideways() {
        for text in [
            "use crate::wire::Frame;",
            "use crate::{error::Error, wire};",
            "fn f() -> crate::seal::Key {}",
            "use super::seal;",
            "mod tests { use super::super::wire; }",
        ] {
            assert_eq!(faults("codec.rs", text).len(), 1, "{text}");
        }
        assert_eq!(
            faults("codec/lz4.rs", "use super::super::wire::X;").len(),
            1
        );
    }

    #[test]
    fn lets_imports_that_point_down_or_inside_be() {
        for text in [
            "use crate::error::Error;",
            "use crate::codec::X;",
            "// use crate::cli;",
            "const A: &str = \"crate::cli\"; const B: char = '\"'; // crate::cli",
            "mod tests { use super::*; }",
        ] {
            assert!(faults("codec.rs", text).is_empty(), "{text}");
        }
        assert!(faults("codec/lz4.rs", "use super::X; use super::error;").is_empty());
    }

    #[test]
    fn sees_libraries_out_of_place_with_their_line() {
        assert_eq!(
            faults("codec.rs", "\n\nuse tokio::io;"),
            ["3: `tokio` in codec"]
        );
        assert_eq!(faults("wire.rs", "fn f() { println!(\"\") }").len(), 1);
        assert!(faults("cli.rs", "use clap::Parser; fn f() { println!() }").is_empty());
    }
}

//! Circles of files: `a` uses a name of `b`, `b` one of `c`, and `c` one of `a`. A file in a circle
//! cannot be read, tested or moved without the others.
//!
//! A re-export is not a use: who imports a re-exported name uses the file that defines it. A parent
//! declares its children without using them. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};

use super::is;
use super::tokens::{Token, tokens};

/// The path of a module: `["dest", "partial"]`; empty for the crate's root.
pub(super) type Module = Vec<String>;

/// Every circle, as the sorted files that are in it.
pub(super) fn circles(sources: &BTreeMap<Module, String>) -> Vec<Vec<Module>> {
    let files: BTreeMap<&Module, File> = sources
        .iter()
        .map(|(module, text)| (module, File::read(module, text, sources)))
        .collect();
    let mut uses: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, file) in &files {
        if file.is_test {
            continue;
        }
        let found = uses.entry(module).or_default();
        for (target, name) in &file.uses {
            let definer = definer(&files, target, name);
            if definer != **module {
                found.insert(definer);
            }
        }
    }
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = uses
        .keys()
        .map(|from| (*from, reached(&uses, from)))
        .collect();
    let mut circles = BTreeSet::new();
    for (from, there) in &reach {
        let circle: BTreeSet<Module> = there
            .iter()
            .filter(|to| reach.get(*to).is_some_and(|back| back.contains(from)))
            .map(|to| (*to).clone())
            .collect();
        if circle.len() > 1 {
            circles.insert(circle.into_iter().collect::<Vec<_>>());
        }
    }
    circles.into_iter().collect()
}

fn reached<'a>(
    uses: &'a BTreeMap<&Module, BTreeSet<Module>>,
    from: &Module,
) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = uses.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(uses.get(module).into_iter().flatten());
        }
    }
    reached
}

/// The module that defines `name`, which `module` may only re-export.
fn definer(files: &BTreeMap<&Module, File>, module: &Module, name: &str) -> Module {
    let mut at = module.clone();
    // No chain of re-exports is longer.
    for _ in 0..8 {
        match files.get(&at).and_then(|file| file.exports.get(name)) {
            Some(from) => at.clone_from(from),
            None => break,
        }
    }
    at
}

#[derive(Default)]
struct File {
    is_test: bool,
    /// Modules of the crate and the names that are used from them.
    uses: Vec<(Module, String)>,
    /// Re-exported names, and the modules that they come from.
    exports: BTreeMap<String, Module>,
}

impl File {
    fn read(module: &Module, text: &str, sources: &BTreeMap<Module, String>) -> File {
        let last = module.last().map_or("", String::as_str);
        let mut file = File {
            is_test: matches!(last, "tests" | "testing" | "sim" | "scenarios")
                || module
                    .iter()
                    .any(|name| name == "sim" || name == "scenarios"),
            ..File::default()
        };
        let tokens = without_tests(tokens(text));
        // Modules that this file imports, which stand before `::` later.
        let mut imported: BTreeMap<String, Module> = BTreeMap::new();
        let mut at = 0;
        while at < tokens.len() {
            if tokens[at].text == "use" {
                let is_export = at > 0 && matches!(tokens[at - 1].text.as_str(), "pub" | ")");
                let end = (at..tokens.len()).find(|at| is(&tokens, *at, ";"));
                let end = end.unwrap_or(tokens.len());
                for path in paths(&tokens[at + 1..end]) {
                    file.import(module, &path, is_export, sources, &mut imported);
                }
                at = end;
            } else if starts_path(&tokens, at) {
                let mut path = vec![tokens[at].text.clone()];
                while is(&tokens, at + 1, "::") && at + 2 < tokens.len() {
                    path.push(tokens[at + 2].text.clone());
                    at += 2;
                }
                if let Some(from) = imported.get(&path[0]) {
                    file.uses.push((from.clone(), path[1].clone()));
                } else if let Some((from, Some(name))) = resolve(module, &path, sources) {
                    file.uses.push((from, name));
                }
            }
            at += 1;
        }
        file
    }

    fn import(
        &mut self,
        module: &Module,
        path: &[String],
        is_export: bool,
        sources: &BTreeMap<Module, String>,
        imported: &mut BTreeMap<String, Module>,
    ) {
        match resolve(module, path, sources) {
            Some((from, Some(name))) if is_export => {
                self.exports.insert(name, from);
            }
            Some((from, Some(name))) => self.uses.push((from, name)),
            Some((from, None)) => {
                let name = from.last().cloned().unwrap_or_default();
                imported.insert(name, from);
            }
            None => {}
        }
    }
}

/// A path's first word: neither after `::` nor the path of a visibility, `pub(in crate::x)`.
fn starts_path(tokens: &[Token], at: usize) -> bool {
    is(tokens, at + 1, "::") && (at == 0 || !matches!(tokens[at - 1].text.as_str(), "::" | "in"))
}

/// The module that a path leads into, and the first name after it. None outside the crate.
fn resolve(
    module: &Module,
    path: &[String],
    sources: &BTreeMap<Module, String>,
) -> Option<(Module, Option<String>)> {
    let mut names = path.iter().peekable();
    let mut at = module.clone();
    match path.first()?.as_str() {
        "crate" => at.clear(),
        "self" | "super" => {}
        child => {
            let mut below = module.clone();
            below.push(child.to_owned());
            sources.get(&below)?;
        }
    }
    while let Some(word) = names.next_if(|word| matches!(word.as_str(), "crate" | "self" | "super"))
    {
        if word == "super" {
            at.pop()?;
        }
    }
    while let Some(name) = names.peek() {
        let mut below = at.clone();
        below.push((*name).clone());
        if !sources.contains_key(&below) {
            break;
        }
        at = below;
        names.next();
    }
    let name = names.next().filter(|name| *name != "self");
    Some((at, name.cloned()))
}

/// Each path of a `use`, without its groups.
fn paths(tokens: &[Token]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut groups: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            "{" => groups.push(path.len()),
            "}" | "," => {
                let start = groups.last().copied().unwrap_or(0);
                if path.len() > start {
                    found.push(path.clone());
                }
                path.truncate(start);
                if tokens[at].text == "}" {
                    groups.pop();
                    path.truncate(groups.last().copied().unwrap_or(0));
                }
            }
            "::" => {}
            // The new name of an import.
            "as" => at += 1,
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    if !path.is_empty() {
        found.push(path);
    }
    found
}

/// The tokens outside `#[cfg(test)]` items.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let words = ["#", "[", "cfg", "(", "test", ")", "]"];
        let is_test = words
            .iter()
            .enumerate()
            .all(|(nth, word)| is(&tokens, at + nth, word));
        if !is_test {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += words.len();
        let mut open = 0;
        while at < tokens.len() {
            match tokens[at].text.as_str() {
                "{" => open += 1,
                "}" => open -= 1,
                _ => {}
            }
            let ends = open == 0 && matches!(tokens[at].text.as_str(), "}" | ";");
            at += 1;
            if ends {
                break;
            }
        }
    }
    kept
}

mod the_check_itself {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let module = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
        let sources = files
            .iter()
            .map(|(path, text)| (module(path), (*text).to_owned()));
        let circles = circles(&sources.collect());
        let shown = |circle: Vec<Module>| {
            let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            names.join(" ")
        };
        circles.into_iter().map(shown).collect()
    }

    #[test]
    fn sees_files_that_use_each_other() {
        let parent = ("a", "mod b; use self::b::B; pub struct A;");
        assert_eq!(
            of(&[parent, ("a::b", "use super::A; pub struct B;")]),
            ["a a::b"]
        );
        let (a, b) = ("use crate::{b::B, c};", "use super::c::{C, D as E};");
        assert_eq!(
            of(&[("a", a), ("b", b), ("c", "fn f() { crate::a::f() }")]),
            ["a b c"]
        );
        let through_a_module = ("a", "use crate::b; fn f() { b::g() }");
        assert_eq!(of(&[through_a_module, ("b", "use crate::a::f;")]), ["a b"]);
        assert_eq!(
            of(&[("a", "use crate::b::B;"), ("b", "use crate::c::B;")]).len(),
            0
        );
    }

    #[test]
    fn follows_names_to_where_they_are_defined() {
        let exported = ("a", "mod b; mod c; pub use b::B; pub use c::{C, D};");
        let children = [
            exported,
            ("a::b", "use super::C;"),
            ("a::c", "pub struct C;"),
        ];
        assert_eq!(of(&children).len(), 0);
        let around = [
            exported,
            ("a::b", "use super::C;"),
            ("a::c", "use super::B;"),
        ];
        assert_eq!(of(&around), ["a::b a::c"]);
    }

    #[test]
    fn leaves_tests_and_visibilities_alone() {
        let parent = ("a", "mod b; use b::B; fn f() {}");
        let tests = "pub(in crate::a) struct B; #[cfg(test)] mod tests { use super::super::f; }";
        assert_eq!(of(&[parent, ("a::b", tests)]).len(), 0);
    }
}

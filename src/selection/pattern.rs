//! rsync's patterns as regular expressions: `lib/wildmatch.c` and `rule_matches` in `exclude.c` of
//! rsync 3.

use std::fmt::Write;

/// Ends the path of a directory, so that a pattern can ask for one. No path contains it.
pub(super) const DIRECTORY: u8 = 0;

/// A character of a name, and any number of them; of a path.
const ONE: &str = "[^/\\x00]";
const SOME: &str = "[^/\\x00]*";
const PATH: &str = "[^\\x00]*";

/// Matches nothing: paths begin with a slash.
const NOTHING: &str = "\\A\\x00\\z";

/// The regular expression for `pattern`. It is to be searched in `/path`, or in `/path` with
/// [`DIRECTORY`] after it. With a leading slash the pattern matches below `at`, a path or empty.
pub(super) fn to_regex(pattern: &[u8], at: &[u8]) -> String {
    let (pattern, asks_directory) = match pattern {
        [rest @ .., b'/'] if !rest.is_empty() => (rest, true),
        all => (all, false),
    };
    // Escapes count only in patterns with a wildcard.
    let is_wild = pattern.iter().any(|byte| b"*?[".contains(byte));
    let mut regex = match pattern {
        [b'/', ..] => format!("\\A{}", literal(at)),
        // It matches from the start of the path: what it begins with stands for all above.
        [b'*', b'*', ..] => "\\A/?".to_owned(),
        _ => "/".to_owned(),
    };
    let with_itself = is_wild && pattern.ends_with(b"/***");
    let inner = match with_itself {
        true => &pattern[..pattern.len() - b"/***".len()],
        false => pattern,
    };
    match is_wild {
        true => match wild(inner) {
            Some(inner) => regex += &inner,
            None => return NOTHING.to_owned(),
        },
        false => regex += &literal(inner),
    }
    regex += match (with_itself, asks_directory) {
        // The directory itself and everything in it.
        (true, false) => "(?:\\x00|/[^\\x00]*\\x00?)",
        (true, true) => "(?:/[^\\x00]*)?\\x00",
        (false, true) => "\\x00",
        (false, false) => "\\x00?",
    };
    regex + "\\z"
}

fn literal(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        push(&mut out, *byte);
    }
    out
}

fn push(out: &mut String, byte: u8) {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'_' => out.push(char::from(byte)),
        _ => write!(out, "\\x{byte:02x}").expect("a string grows"),
    }
}

/// None if the pattern matches nothing.
fn wild(pattern: &[u8]) -> Option<String> {
    let mut out = String::new();
    let mut rest = pattern;
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'*' => {
                let stars = rest.iter().take_while(|byte| **byte == b'*').count();
                rest = &rest[stars..];
                out += if stars > 0 { PATH } else { SOME };
            }
            b'?' => out += ONE,
            b'[' => {
                let (set, after) = Set::parse(rest)?;
                rest = after;
                out += &set.to_regex()?;
            }
            b'\\' => {
                let (byte, after) = rest.split_first()?;
                rest = after;
                push(&mut out, *byte);
            }
            byte => push(&mut out, *byte),
        }
    }
    Some(out)
}

/// The characters that a bracket expression matches.
struct Set([bool; 256]);

impl Set {
    /// Parses what follows the opening bracket; returns also what follows the closing one. None if
    /// there is none, or a class is unknown.
    fn parse(pattern: &[u8]) -> Option<(Set, &[u8])> {
        let (is_negated, mut rest) = match pattern {
            [b'!' | b'^', rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let mut set = Set([false; 256]);
        let mut previous = None;
        loop {
            let (byte, after) = rest.split_first()?;
            rest = after;
            previous = match (byte, rest, previous) {
                (b'\\', ..) => {
                    let (byte, after) = rest.split_first()?;
                    rest = after;
                    set.0[usize::from(*byte)] = true;
                    Some(*byte)
                }
                (b'-', [last, after @ ..], Some(first)) if *last != b']' => {
                    let (last, after) = match last {
                        b'\\' => after.split_first()?,
                        last => (last, after),
                    };
                    rest = after;
                    for byte in first..=*last {
                        set.0[usize::from(byte)] = true;
                    }
                    None
                }
                (b'[', [b':', after @ ..], _) => match class_name(after) {
                    Some((name, after)) => {
                        let is_in = class(name)?;
                        rest = after;
                        for byte in 0..=u8::MAX {
                            set.0[usize::from(byte)] |= is_in(&byte);
                        }
                        None
                    }
                    None => {
                        set.0[usize::from(b'[')] = true;
                        Some(b'[')
                    }
                },
                (byte, ..) => {
                    set.0[usize::from(*byte)] = true;
                    Some(*byte)
                }
            };
            if let [b']', after @ ..] = rest {
                set.0.iter_mut().for_each(|is_in| *is_in ^= is_negated);
                (set.0[usize::from(b'/')], set.0[usize::from(DIRECTORY)]) = (false, false);
                return Some((set, after));
            }
        }
    }

    /// None if it is empty.
    fn to_regex(&self) -> Option<String> {
        let mut out = "[".to_owned();
        for byte in (0..=u8::MAX).filter(|byte| self.0[usize::from(*byte)]) {
            write!(out, "\\x{byte:02x}").expect("a string grows");
        }
        (out.len() > 1).then(|| out + "]")
    }
}

/// The name before `:]`, and what follows.
fn class_name(pattern: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = pattern.iter().position(|byte| *byte == b']')?;
    let name = pattern[..end].strip_suffix(b":")?;
    Some((name, &pattern[end + 1..]))
}

fn class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| matches!(byte, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| matches!(byte, b' ' | b'\t'..=b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

//! Matching of rsync's patterns: `lib/wildmatch.c` and `rule_matches` in `exclude.c` of rsync 3.
//!
//! The time is at most proportional to the length of the pattern times that of the path, for any
//! pattern, and a pattern takes no memory but its own.

/// A pattern without its trailing slash.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    bytes: Vec<u8>,
    /// It matches directories alone.
    asks_directory: bool,
    place: PatternPlace,
    /// Escapes count only in patterns with a wildcard.
    is_wild: bool,
    /// It ends in `***`: a directory itself matches as if its path ended in a slash.
    with_itself: bool,
    /// A bracket is not closed, or names an unknown class: the pattern matches nothing.
    is_broken: bool,
}

/// Where in a path the pattern begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternPlace {
    /// At the last component.
    Name,
    /// At the top.
    Top,
    /// At the start of the path, with the slash there; for patterns that begin with `**`.
    Start,
    /// After any slash.
    Anywhere,
}

/// The entry that a pattern is compared with.
pub(super) struct Target {
    /// `/`, the path, and one more slash.
    path: Vec<u8>,
    /// Where its name begins.
    name: usize,
    is_directory: bool,
}

impl Target {
    /// The entry `name` of the directory at `path`, which is empty or begins with a slash.
    pub(super) fn new(path: &[u8], name: &[u8], is_directory: bool) -> Target {
        Target {
            path: [path, b"/", name, b"/"].concat(),
            name: path.len() + 1,
            is_directory,
        }
    }
}

impl Pattern {
    pub(super) fn new(typed: &[u8]) -> Pattern {
        let (bytes, asks_directory) = match typed {
            [rest @ .., b'/'] if !rest.is_empty() => (rest, true),
            all => (all, false),
        };
        let is_wild = bytes.iter().any(|byte| b"*?[".contains(byte));
        let has_path = bytes.windows(2).any(|two| two == b"**");
        let place = match bytes {
            [b'/', ..] => PatternPlace::Top,
            [b'*', b'*', ..] => PatternPlace::Start,
            _ if has_path || bytes.contains(&b'/') => PatternPlace::Anywhere,
            _ => PatternPlace::Name,
        };
        let mut pattern = Pattern {
            bytes: bytes.to_vec(),
            asks_directory,
            place,
            is_wild,
            with_itself: is_wild && bytes.ends_with(b"***"),
            is_broken: false,
        };
        pattern.is_broken = is_wild && !pattern.is_whole();
        pattern
    }

    /// True if every token can be read.
    fn is_whole(&self) -> bool {
        let mut at = 0;
        while at < self.bytes.len() {
            match self.token(at) {
                Some((_, next)) => at = next,
                None => return false,
            }
        }
        true
    }

    /// True if it matches. `top` is the path of the directory in which its rule stands.
    pub(super) fn matches(&self, target: &Target, top: &[u8]) -> bool {
        if self.is_broken || (self.asks_directory && !target.is_directory) {
            return false;
        }
        let end = match self.with_itself && target.is_directory {
            true => target.path.len(),
            false => target.path.len() - 1,
        };
        let path = &target.path[..end];
        match self.place {
            PatternPlace::Name => self.is_match(&path[target.name..], false),
            PatternPlace::Top => path.starts_with(top) && self.is_match(&path[top.len()..], false),
            PatternPlace::Start => self.is_match(path, false),
            PatternPlace::Anywhere => self.is_match(&path[1..], true),
        }
    }

    /// True if the pattern matches all of `text`, or what follows one of its slashes if `floats`.
    ///
    /// Only the last `*` and the last `**` are tried at further places. For the earlier ones the
    /// first place is the best, since the later ones match all that an earlier one leaves.
    fn is_match(&self, text: &[u8], floats: bool) -> bool {
        let (mut at, mut place) = (0, 0);
        // Where to go on, and the place from which on the wildcard matches more.
        let mut some: Option<(usize, usize)> = None;
        let mut path: Option<(usize, usize)> = None;
        let mut start = floats.then_some(0);
        loop {
            match self.token(at) {
                Some((Token::Some, next)) => {
                    at = next;
                    some = Some((at, place));
                    continue;
                }
                Some((Token::Path, next)) => {
                    at = next;
                    (some, path, start) = (None, Some((at, place)), None);
                    continue;
                }
                Some((token, next)) if text.get(place).is_some_and(|byte| token.takes(*byte)) => {
                    (at, place) = (next, place + 1);
                    continue;
                }
                None if place == text.len() => return true,
                _ => {}
            }
            let longer = some.filter(|(_, from)| text.get(*from).is_some_and(|byte| *byte != b'/'));
            (at, place) = if let Some((next, from)) = longer {
                some = Some((next, from + 1));
                (next, from + 1)
            } else if let Some((next, from)) = path.filter(|(_, from)| *from < text.len()) {
                (some, path) = (None, Some((next, from + 1)));
                (next, from + 1)
            } else if let Some(from) = start {
                let Some(slash) = text[from..].iter().position(|byte| *byte == b'/') else {
                    return false;
                };
                (some, start) = (None, Some(from + slash + 1));
                (0, from + slash + 1)
            } else {
                return false;
            };
        }
    }

    /// The token at `at` and the place of the next one. None at the end, or if it cannot be read.
    fn token(&self, at: usize) -> Option<(Token<'_>, usize)> {
        let (byte, rest) = self.bytes.get(at..)?.split_first()?;
        if !self.is_wild {
            return Some((Token::Byte(*byte), at + 1));
        }
        Some(match byte {
            b'*' => {
                let stars = rest.iter().take_while(|byte| **byte == b'*').count();
                let token = if stars > 0 { Token::Path } else { Token::Some };
                (token, at + 1 + stars)
            }
            b'?' => (Token::One, at + 1),
            b'[' => {
                let len = set_matches(rest, 0)?.1;
                (Token::Set(&rest[..len]), at + 1 + len)
            }
            b'\\' => (Token::Byte(*rest.first()?), at + 2),
            byte => (Token::Byte(*byte), at + 1),
        })
    }
}

enum Token<'a> {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Some,
    /// `**`
    Path,
    /// What follows the opening bracket, to the closing one.
    Set(&'a [u8]),
}

impl Token<'_> {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Token::Byte(own) => *own == byte,
            Token::One => byte != b'/',
            Token::Set(set) => {
                let matches = set_matches(set, byte);
                byte != b'/' && matches.is_some_and(|(is_in, _)| is_in)
            }
            Token::Some | Token::Path => false,
        }
    }
}

/// Whether a bracket expression matches `byte`, and its length. `set` begins after the opening
/// bracket. None if there is no closing one, or a class is unknown.
fn set_matches(set: &[u8], byte: u8) -> Option<(bool, usize)> {
    let (is_negated, mut rest) = match set {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (mut is_in, mut previous) = (false, None);
    loop {
        let (first, after) = rest.split_first()?;
        rest = after;
        previous = match (first, rest, previous) {
            (b'\\', ..) => {
                let (own, after) = rest.split_first()?;
                rest = after;
                is_in |= *own == byte;
                Some(*own)
            }
            (b'-', [last, after @ ..], Some(low)) if *last != b']' => {
                let (high, after) = match last {
                    b'\\' => after.split_first()?,
                    last => (last, after),
                };
                rest = after;
                is_in |= (low..=*high).contains(&byte);
                None
            }
            (b'[', [b':', after @ ..], _) => match class_name(after) {
                Some((name, after)) => {
                    rest = after;
                    is_in |= class(name)?(&byte);
                    None
                }
                None => {
                    is_in |= byte == b'[';
                    Some(b'[')
                }
            },
            (own, ..) => {
                is_in |= *own == byte;
                Some(*own)
            }
        };
        if let [b']', after @ ..] = rest {
            return Some((is_in != is_negated, set.len() - after.len()));
        }
    }
}

/// The name before `:]`, and what follows.
fn class_name(set: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = set.iter().position(|byte| *byte == b']')?;
    let name = set[..end].strip_suffix(b":")?;
    Some((name, &set[end + 1..]))
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

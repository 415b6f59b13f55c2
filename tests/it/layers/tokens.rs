//! Rust's words and signs, in enough detail to search for paths.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub text: String,
    pub line: usize,
}

/// Words and single signs, without comments and quoted text. `::` is one sign.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let start = at;
        let rest = |text: &str| {
            chars[start..]
                .iter()
                .take(text.len())
                .copied()
                .eq(text.chars())
        };
        let first = chars[at];
        if first.is_whitespace() {
            at += 1;
        } else if first == '/' && rest("//") {
            at = end_of(&chars, at, '\n');
        } else if first == '/' && rest("/*") {
            at += 2;
            while at < chars.len() && !(chars[at] == '/' && chars[at - 1] == '*') {
                at += 1;
            }
            at += 1;
        } else if first == '"' {
            at = end_of_string(&chars, at);
        } else if matches!(first, 'b' | 'r') && ["r\"", "r#", "br\"", "br#"].into_iter().any(rest) {
            at = end_of_raw(&chars, at);
        } else if first == '\'' {
            at = end_of_char(&chars, at);
        } else if first.is_alphanumeric() || first == '_' {
            while at < chars.len() && (chars[at].is_alphanumeric() || chars[at] == '_') {
                at += 1;
            }
            let text = chars[start..at].iter().collect();
            tokens.push(Token { text, line });
        } else {
            at += if first == ':' && rest("::") { 2 } else { 1 };
            let text = chars[start..at].iter().collect();
            tokens.push(Token { text, line });
        }
        at = at.min(chars.len());
        line += chars[start..at].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

fn end_of(chars: &[char], from: usize, sign: char) -> usize {
    (from..chars.len())
        .find(|at| chars[*at] == sign)
        .unwrap_or(chars.len())
}

fn end_of_string(chars: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The end of `r#"…"#`; a raw identifier (`r#type`) ends after its `#`.
fn end_of_raw(chars: &[char], from: usize) -> usize {
    let mut at = end_of(chars, from, 'r') + 1;
    let first = at;
    while chars.get(at) == Some(&'#') {
        at += 1;
    }
    let hashes = at - first;
    if chars.get(at) != Some(&'"') {
        return at;
    }
    loop {
        at = end_of(chars, at + 1, '"');
        let closing = chars[at.min(chars.len())..].iter().skip(1).take(hashes);
        if at >= chars.len() || closing.filter(|c| **c == '#').count() == hashes {
            return at + 1 + hashes;
        }
    }
}

/// The end of `'x'` or `'\n'`; of a lifetime, only the quote is skipped.
fn end_of_char(chars: &[char], from: usize) -> usize {
    match (chars.get(from + 1), chars.get(from + 2)) {
        (Some('\\'), _) => end_of(chars, from + 3, '\'') + 1,
        (Some(_), Some('\'')) => from + 3,
        _ => from + 1,
    }
}

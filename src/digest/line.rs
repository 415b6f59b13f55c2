//! A line of a list of digests, as `b3sum` writes and reads it. Newlines, carriage returns and
//! backslashes in a name are escaped, and a backslash begins such a line.

use super::Digest;

/// Characters of a digest.
const HEX_LEN: usize = 64;

/// The longest line that a list may have, in bytes: a path of 4096 bytes, all escaped.
pub const LINE_MAX: usize = 2 * 4096 + HEX_LEN + 32;

/// A line with its newline; None if no list of b3sum can contain the name.
pub fn format(path: &[u8], digest: &Digest) -> Option<String> {
    let path = std::str::from_utf8(path)
        .ok()
        .filter(|path| !path.contains('\u{fffd}'))?;
    let hex = blake3::Hash::from_bytes(*digest).to_hex();
    let escaped = path
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r");
    let mark = if escaped == path { "" } else { "\\" };
    Some(format!("{mark}{hex}  {escaped}\n"))
}

/// The name and the digest of a line, with or without its newline. Names may be any bytes. Accepts
/// the lines of `b3sum --tag` too.
///
/// # Errors
/// The end of a sentence about the line.
pub fn parse(line: &[u8]) -> Result<(Vec<u8>, Digest), &'static str> {
    const NO_LINE: &str = "is not a line of b3sum (a digest of 64 hexadecimal digits, two spaces \
                           and a name)";
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (is_escaped, line) = match line.strip_prefix(b"\\") {
        Some(line) => (true, line),
        None => (false, line),
    };
    let (hex, name) = plain(line).or_else(|| tagged(line)).ok_or(NO_LINE)?;
    let digest = blake3::Hash::from_hex(hex).map_err(|_| NO_LINE)?;
    let name = match is_escaped {
        true => unescaped(name)?,
        false => name.to_vec(),
    };
    if name.is_empty() {
        return Err("has no name");
    }
    if name.contains(&0) {
        return Err("has a NUL in its name");
    }
    Ok((name, digest.into()))
}

/// The digest and the name of `DIGEST  NAME`.
fn plain(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (hex, rest) = line.split_at_checked(HEX_LEN)?;
    Some((hex, rest.strip_prefix(b"  ")?))
}

/// The same of `BLAKE3 (NAME) = DIGEST`.
fn tagged(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = line.strip_prefix(b"BLAKE3 (")?;
    let (rest, hex) = rest.split_at_checked(rest.len().checked_sub(HEX_LEN)?)?;
    Some((hex, rest.strip_suffix(b") = ")?))
}

fn unescaped(name: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut bytes = name.iter();
    let mut plain = Vec::with_capacity(name.len());
    while let Some(byte) = bytes.next() {
        if *byte != b'\\' {
            plain.push(*byte);
            continue;
        }
        plain.push(match bytes.next() {
            Some(b'\\') => b'\\',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            _ => return Err("has a backslash in its name that escapes nothing"),
        });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_b3sum() {
        let hex = "00".repeat(32);
        assert_eq!(format(b"a b", &[0; 32]).unwrap(), format!("{hex}  a b\n"));
        assert_eq!(
            format(b"a\\b\nc", &[0; 32]).unwrap(),
            format!("\\{hex}  a\\\\b\\nc\n")
        );
        assert_eq!(format(b"\xff", &[0; 32]), None);
        assert_eq!(format("a\u{fffd}".as_bytes(), &[0; 32]), None);
    }

    #[test]
    fn a_line_gives_the_name_that_it_was_made_from() {
        let digest = *blake3::hash(b"x").as_bytes();
        for name in [
            "a",
            " a ",
            "a\\b",
            "a\nb\r",
            "\\",
            "d/é  x",
            "BLAKE3 (a) = ",
        ] {
            let line = format(name.as_bytes(), &digest).unwrap();
            assert_eq!(parse(line.as_bytes()), Ok((name.into(), digest)), "{line}");
        }
        let hex = blake3::hash(b"x").to_hex();
        for (line, name) in [
            (format!("{hex}  a\r\n"), "a"),
            (format!("{hex}  a\\n"), "a\\n"),
            (format!("BLAKE3 (a) b) = {hex}\n"), "a) b"),
            (format!("\\BLAKE3 (a\\nb) = {hex}"), "a\nb"),
        ] {
            assert_eq!(parse(line.as_bytes()), Ok((name.into(), digest)), "{line}");
        }
        let raw = [hex.as_bytes(), b"  \xff"].concat();
        assert_eq!(parse(&raw), Ok((vec![0xff], digest)));
        for line in [
            String::new(),
            "text".to_owned(),
            format!("{hex} a"),
            format!("{hex}  "),
            format!("{hex} *a"),
            format!("x{}  a", &hex[1..]),
            format!("{hex}  a\0"),
            format!("\\{hex}  a\\"),
            format!("\\{hex}  a\\t"),
            "BLAKE3 () = ".to_owned(),
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line:?}");
        }
    }
}

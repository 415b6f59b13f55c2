//! Names of fastcp's own files, which lie beside the files that they are for:
//! `.fastcp-NAME-DIGITS.part` and `.fastcp-NAME-DIGITS.journal`. A person knows a leftover by NAME;
//! fastcp finds its files by the digits. Earlier versions gave names without NAME.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

const BEGINNING: &[u8] = b".fastcp-";

/// The end of the name of a partial file.
pub const PARTIAL: &str = ".part";

/// The end of the name of a journal.
pub const JOURNAL: &str = ".journal";

/// Number of hexadecimal digits that identify a file.
pub const DIGITS: usize = 16;

/// Most bytes of NAME: enough to recognize a file. The longest name of an own file then has 127
/// bytes; some file systems allow no more than 143 (eCryptfs).
const SHOWN_MAX: usize = 80;

/// The name of an own file for the file `of`. Without a name to show, it has only the digits.
pub fn own_name(of: &[u8], digits: &str, end: &str) -> OsString {
    let mut name = BEGINNING.to_vec();
    if !of.is_empty() {
        name.extend(shown(of));
        name.push(b'-');
    }
    name.extend_from_slice(digits.as_bytes());
    name.extend_from_slice(end.as_bytes());
    OsString::from_vec(name)
}

/// True for a name that fastcp may give to one of its files.
pub fn is_own_name(name: &[u8]) -> bool {
    let ends = |end: &str| name.ends_with(end.as_bytes());
    name.starts_with(BEGINNING) && (ends(PARTIAL) || ends(JOURNAL))
}

/// What an own name may consist of: NAME, and the first [`DIGITS`] digits after it. Further digits
/// may follow. A name of digits alone shows no NAME.
pub fn parts(own: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let end = [PARTIAL, JOURNAL]
        .into_iter()
        .find(|end| own.ends_with(end.as_bytes()));
    let middle = own.strip_prefix(BEGINNING);
    let middle = middle
        .zip(end)
        .and_then(|(rest, end)| rest.strip_suffix(end.as_bytes()));
    let after = [0, DIGITS + 1].into_iter();
    after.filter_map(move |after| {
        let (shown, _) = middle?.split_at_checked(middle?.len().checked_sub(after)?)?;
        let (name, digits) = shown.split_at_checked(shown.len().checked_sub(DIGITS)?)?;
        let name = name.strip_suffix(b"-")?;
        (!name.is_empty()).then_some((name, digits))
    })
}

/// The beginning of the name, cut at a character. Control bytes are replaced: a leftover must not
/// break the scripts of people who look for leftovers.
fn shown(name: &[u8]) -> impl Iterator<Item = u8> {
    let is_within = |at: &usize| name.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    // In bytes that are not UTF-8 there may be no character that begins so near.
    let cut = (SHOWN_MAX - 3..=SHOWN_MAX).rev().find(|at| !is_within(at));
    let len = name.len().min(cut.unwrap_or(SHOWN_MAX));
    name[..len]
        .iter()
        .map(|byte| match byte.is_ascii_control() {
            true => b'_',
            false => *byte,
        })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    const HASH: &str = "0123456789abcdef";

    fn shown_in(name: &[u8]) -> Vec<u8> {
        let own = own_name(name, HASH, PARTIAL);
        assert!(is_own_name(own.as_bytes()) && own.len() <= 143);
        let (shown, digits) = parts(own.as_bytes()).next().unwrap();
        assert_eq!(digits, HASH.as_bytes());
        shown.to_vec()
    }

    #[test]
    fn a_name_is_shown_as_far_as_it_fits_and_cut_at_a_character() {
        assert_eq!(shown_in(b"orders.db"), b"orders.db");
        assert_eq!(shown_in(b"a\x1b[2J\nb\x7f"), b"a_[2J_b_");
        assert_eq!(shown_in(&[0xff; 255]), [0xff; 80]);
        assert_eq!(shown_in(&[0x80; 255]), [0x80; 80]);
        for before in 76..=80 {
            let long = ["x".repeat(before), "€".repeat(50)].concat();
            let shown = String::from_utf8(shown_in(long.as_bytes())).unwrap();
            assert!((78..=80).contains(&shown.len()), "{}", shown.len());
            assert!(long.starts_with(&shown));
        }
        assert_eq!(
            own_name(b"", HASH, JOURNAL),
            ".fastcp-0123456789abcdef.journal"
        );
    }

    #[test]
    fn the_parts_of_a_name_are_found_before_one_or_two_groups_of_digits() {
        let of = |name: &str| {
            let parts = parts(name.as_bytes());
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let parts = parts.map(|(name, digits)| (text(name), text(digits)));
            parts.collect::<Vec<_>>()
        };
        let random = own_name(b"a", &format!("{HASH}-fedcba9876543210"), PARTIAL);
        let found = of(random.to_str().unwrap());
        assert_eq!(found.last(), Some(&("a".to_owned(), HASH.to_owned())));
        for name in [
            "",
            ".fastcp-",
            ".fastcp-.part",
            ".fastcp-0123456789abcdef.part",
            ".fastcp--0123456789abcdef.part",
            ".fastcp-a-123.part",
            "a-0123456789abcdef.part",
            ".fastcp-a-0123456789abcdef",
        ] {
            assert_eq!(of(name), [], "{name}");
        }
    }
}

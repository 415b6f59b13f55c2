//! What is said before the two hellos on a host that has no fastcp that fits: lines of text, since
//! the far side is a shell script yet.
//!
//! ```text
//! far side   =fastcp= want SYSTEM MACHINE [gzip]    (or: =fastcp= forbidden)
//! client     DIGEST LENGTH SHA256 GZIPPED
//! far side   =fastcp= send DIRECTORY                (or: =fastcp= failed nowhere)
//! client     a program: GZIPPED bytes by gzip, or LENGTH bytes if that is 0
//! far side   its hello                              (or: =fastcp= failed WHY)
//! ```

/// Begins each line of the far side; what a login shell prints before it is skipped. A shell
/// script cannot hold a hello's NUL bytes.
pub const MARK: &str = "=fastcp=";

/// The versions of the protocol that this build speaks, as a far side's program is asked for them.
pub const PROTOCOLS: &str = "1-1";

/// Most bytes of a program: anything bigger is none of ours.
pub const PROGRAM_MAX: u64 = 1 << 30;

/// What the far side says instead of a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// It has no program that fits, and this is what `uname` calls it.
    Want {
        system: String,
        machine: String,
        /// It has gzip.
        gzip: bool,
    },
    /// Its administrator does not want programs placed.
    Forbidden,
    /// It takes the program in this directory.
    Send {
        directory: Vec<u8>,
    },
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No directory that has room, is writable and lets programs run.
    Nowhere,
    /// It did not get all of it, or could not write it.
    Length,
    /// What it got is not what was sent.
    Digest,
    /// What it got does not run there.
    Start,
}

impl Greeting {
    /// Reads what stands between the mark and the end of the line; None for what no far side says.
    pub fn parse(line: &[u8]) -> Option<Greeting> {
        let line = line.strip_prefix(b" ")?;
        let (word, rest) = match line.iter().position(|&byte| byte == b' ') {
            Some(space) => (&line[..space], &line[space + 1..]),
            None => (line, &b""[..]),
        };
        match word {
            b"want" => {
                let rest = std::str::from_utf8(rest).ok()?;
                let (system, machine) = rest.split_once(' ')?;
                let without = machine.strip_suffix(" gzip");
                Some(Greeting::Want {
                    system: system.to_owned(),
                    machine: without.unwrap_or(machine).to_owned(),
                    gzip: without.is_some(),
                })
            }
            b"forbidden" => Some(Greeting::Forbidden),
            b"send" => Some(Greeting::Send {
                directory: rest.to_vec(),
            }),
            b"failed" => Some(Greeting::Failed(match rest {
                b"nowhere" => Failure::Nowhere,
                b"length" => Failure::Length,
                b"digest" => Failure::Digest,
                b"start" => Failure::Start,
                _ => return None,
            })),
            _ => None,
        }
    }
}

/// The client's line: what it is about to send. `gzipped`: bytes that it sends, if by gzip.
pub fn offer(digest: &str, length: u64, sha256: &str, gzipped: Option<u64>) -> String {
    let gzipped = gzipped.unwrap_or(0);
    format!("{digest} {length} {sha256} {gzipped}\n")
}

/// True if versions `PROTOCOLS` of another build, as it asks for them, and this one's have one in
/// common.
pub fn speaks(asked: &str) -> bool {
    let range = |text: &str| {
        let (min, max) = text.split_once('-')?;
        Some((min.parse::<u16>().ok()?, max.parse::<u16>().ok()?))
    };
    let ours = (super::PROTOCOL_MIN, super::PROTOCOL_MAX);
    range(asked).is_some_and(|(min, max)| min <= ours.1 && ours.0 <= max && min <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_side_says_one_of_a_few_things() {
        let want = |gzip| Greeting::Want {
            system: "Linux".into(),
            machine: "x86_64".into(),
            gzip,
        };
        let parse = |line: &str| Greeting::parse(line.as_bytes()).unwrap();
        assert_eq!(parse(" want Linux x86_64"), want(false));
        assert_eq!(parse(" want Linux x86_64 gzip"), want(true));
        let directory = b"/a b\xff".to_vec();
        assert_eq!(
            Greeting::parse(b" send /a b\xff"),
            Some(Greeting::Send { directory })
        );
        assert_eq!(
            Greeting::parse(b" failed start"),
            Some(Greeting::Failed(Failure::Start))
        );
        for odd in [
            &b""[..],
            b" ",
            b"want Linux x",
            b" want Linux",
            b" failed",
            b" \xff",
        ] {
            assert_eq!(Greeting::parse(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn builds_that_share_a_version_speak_to_each_other() {
        use super::super::{PROTOCOL_MAX, PROTOCOL_MIN};
        assert_eq!(PROTOCOLS, format!("{PROTOCOL_MIN}-{PROTOCOL_MAX}"));
        assert!(speaks(PROTOCOLS) && speaks("0-1") && speaks("1-9"));
        for other in ["2-3", "0-0", "3-1", "", "1", "x-1", "-1--1"] {
            assert!(!speaks(other), "{other}");
        }
    }
}

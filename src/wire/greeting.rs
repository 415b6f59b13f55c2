//! Text lines that precede the hellos where the server has no suitable fastcp. The server's side
//! is still a shell script then.
//!
//! ```text
//! far side   =fastcp= want SYSTEM MACHINE [gzip]    (or: =fastcp= forbidden)
//! client     DIGEST LENGTH SHA256 GZIPPED
//! far side   =fastcp= send DIRECTORY                (or: =fastcp= failed nowhere)
//! client     a program: GZIPPED bytes by gzip, or LENGTH bytes if that is 0
//! far side   its hello                              (or: =fastcp= failed WHY)
//! ```

/// Begins each line of the shell script. The client skips anything that a login shell prints
/// before it. Unlike [`MAGIC`](super::hello::MAGIC) it has no NUL bytes, which a shell script
/// cannot contain.
pub const MARK: &str = "=fastcp=";

/// The protocol versions of this build, in the form that the shell script gets.
pub const PROTOCOLS: &str = "1-1";

/// Most bytes of a program. No fastcp program is larger.
pub const PROGRAM_MAX: u64 = 1 << 30;

/// What the server's shell script sends instead of a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// The host has no suitable program. `system` and `machine` come from `uname`.
    Want {
        system: String,
        machine: String,
        /// The host has gzip.
        gzip: bool,
    },
    /// The host's administrator forbids uploaded programs.
    Forbidden,
    /// The host is ready to store the program in this directory.
    Send {
        directory: Vec<u8>,
    },
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No directory is writable, has room and allows programs to run.
    Nowhere,
    /// The program arrived incomplete or could not be written.
    Length,
    /// The program arrived with other bytes than were sent.
    Digest,
    /// The program does not run on the host.
    Start,
}

impl Greeting {
    /// Parses the text between the mark and the end of the line. None if it is not a greeting.
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

/// The client's line, which describes the program that follows. `gzipped` is the number of
/// compressed bytes if the program is sent through gzip.
pub fn offer(digest: &str, length: u64, sha256: &str, gzipped: Option<u64>) -> String {
    let gzipped = gzipped.unwrap_or(0);
    format!("{digest} {length} {sha256} {gzipped}\n")
}

/// True if this build shares a protocol version with another build, whose [`PROTOCOLS`] are
/// `asked`.
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

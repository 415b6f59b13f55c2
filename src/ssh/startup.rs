//! The command that ssh runs on the far host: it finds a fastcp that fits, or takes one from the
//! client on the same login, and becomes it.
//!
//! The user's login shell reads the command before `sh` does, be it csh or fish: so it is one line
//! in single quotes without a quote, `!`, backslash or newline in it, and nothing that a user or a
//! file is called ever stands in it. What `sh` needs besides itself is `uname`, `mkdir`, `chmod`,
//! `rm`, `dd`, `wc` and, only to place a program, `mktemp`; where there is `sha256sum` it is used.
//! What it says is in [`wire::greeting`](crate::wire::greeting).

use crate::error::{Error, Result};
use crate::wire::greeting::{MARK, PROTOCOLS};

/// How the far end is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Startup {
    /// `--remote-path`: words of a command; nothing is looked for then, and nothing placed.
    pub path: Option<String>,
    /// `--sudo`: the user as whom it runs.
    pub sudo: Option<String>,
    /// The BLAKE3 of this program in hexadecimal.
    pub digest: String,
}

/// Finds or takes a program, and becomes it. `DIGEST`, `SPEAKS`, `MARK` and `ROLE` are put in.
///
/// - `ok` is true for a program that is a fastcp of a protocol that fits.
/// - `have` becomes the program of digest `g` if an earlier login has placed it. A directory in
///   /tmp may be anybody's, so it has to be this user's own and no link.
/// - An empty file that is executed tells whether programs may run where it lies, and zeros
///   whether there is room.
/// - A client that has gone must not end the script by a signal: it has a file to remove.
/// - `dd` reads what there is, at most as much as is missing: nothing that follows is swallowed.
const SCRIPT: &str = concat!(
    r#"g=DIGEST; p=SPEAKS; s="MARK"; "#,
    r#"ok() { [ "$("$@" --speaks $p </dev/null 2>/dev/null)" = "$s ok" ]; }; "#,
    r#"have() { for f in "$HOME"/.cache/fastcp/*-$g/fastcp /tmp/fastcp-*/*-$g/fastcp "#,
    r#"/var/tmp/fastcp-*/*-$g/fastcp /dev/shm/fastcp-*/*-$g/fastcp; do d=${f%/*/fastcp}; "#,
    r#"[ -h "$d" ] || { [ -O "$d" ] && [ -O "$f" ] && ok "$f" --placed $g && "#,
    r#"exec "$f" --placed $g ROLE; }; done; }; "#,
    r#"f=$(command -v fastcp) && ok "$f" && exec "$f" ROLE; have; m=$(uname -m); "#,
    r#"for f in /usr/lib/fastcp/${m%l}*/fastcp; do [ -x "$f" ] && ok "$f" && exec "$f" ROLE; done; "#,
    r#"[ -e /etc/fastcp/no-install ] && { echo "$s forbidden"; exit 4; }; "#,
    r#"echo "$s want $(uname -s) $m"; read -r g l h || exit 4; have; "#,
    r#"u=$(umask); umask 077; trap "" PIPE; t=; for b in "$HOME/.cache" /tmp /var/tmp /dev/shm; do "#,
    r#"case $b in */.cache) d=$b/fastcp; mkdir -p "$d";; *) d=$(mktemp -d $b/fastcp-XXXXXXXX);; "#,
    r#"esac 2>/dev/null || continue; t=$d/.part.$$; { [ -O "$d" ] && true >"$t" && chmod 700 "$t" "#,
    r#"&& "$t" && dd if=/dev/zero of="$t" bs=65536 count=$((l/65536+1)); } 2>/dev/null && break; "#,
    r#"rm -f "$t"; rmdir "$d" 2>/dev/null; t=; done; "#,
    r#"fail() { rm -f "$t"; rmdir "$d" 2>/dev/null; echo "$s failed $1"; exit 4; }; "#,
    r#"[ "$t" ] || fail nowhere; "#,
    r#"echo "$s send $d"; true >"$t"; r=$l; while [ $r -gt 0 ]; do q=$r; "#,
    r#"c=$((r<65536?r:65536)); dd bs=$c count=1 >>"$t" 2>/dev/null; r=$((l-$(wc -c <"$t"))); "#,
    r#"[ $r -lt $q ] || fail length; done; "#,
    r#"command -v sha256sum >/dev/null && case $(sha256sum <"$t") in $h*);; *) fail digest;; esac; "#,
    r#"ok "$t" --placed $g || { "$t" --speaks $p >/dev/null </dev/null; fail start; }; "#,
    r#"umask $u; exec "$t" --placed $g ROLE"#,
);

/// Tells every program that there is, a line each.
const TELL: &str = concat!(
    r#"s="MARK"; tell() { [ -x "$1" ] && echo "$s $1: $("$1" --version </dev/null 2>/dev/null)"; }; "#,
    r#"f=$(command -v fastcp) && tell "$f"; "#,
    r#"for f in "$HOME"/.cache/fastcp/*-*/fastcp /tmp/fastcp-*/*-*/fastcp "#,
    r#"/var/tmp/fastcp-*/*-*/fastcp /dev/shm/fastcp-*/*-*/fastcp; do d=${f%/*/fastcp}; "#,
    r#"[ -h "$d" ] || { [ -O "$d" ] && [ -O "$f" ] && tell "$f"; }; done; "#,
    r#"for f in /usr/lib/fastcp/*/fastcp; do tell "$f"; done; "#,
    r#"[ -e /etc/fastcp/no-install ] && echo "$s /etc/fastcp/no-install: none may be placed"; "#,
    r#"echo "$s end""#,
);

/// Removes what was placed, and nothing else, and tells it.
const REMOVE: &str = concat!(
    r#"s="MARK"; for f in "$HOME"/.cache/fastcp/*-*/fastcp /tmp/fastcp-*/*-*/fastcp "#,
    r#"/var/tmp/fastcp-*/*-*/fastcp /dev/shm/fastcp-*/*-*/fastcp; do d=${f%/*/fastcp}; "#,
    r#"[ -h "$d" ] || { [ -O "$d" ] && [ -O "$f" ] && rm -f "$f" && rmdir "${f%/fastcp}" && "#,
    r#"rm -f "$d"/.part.* && echo "$s $f" && rmdir "$d" 2>/dev/null; }; done; echo "$s end""#,
);

/// What is to be done on the far host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand<'a> {
    /// Become fastcp with these arguments, which are ours and no user's.
    Become(&'a str),
    /// Tell which programs there are.
    Tell,
    /// Remove those that were placed.
    Remove,
}

impl Startup {
    /// The command for it.
    ///
    /// # Errors
    /// Usage, for a `--remote-path` that cannot be a command.
    pub fn command(&self, errand: Errand) -> Result<String> {
        // A user's name has been checked to be one.
        let sudo = |user: &String| format!("sudo -n -H -u {user} -- ");
        let sudo = self.sudo.as_ref().map_or(String::new(), sudo);
        let script = match (errand, &self.path) {
            (Errand::Become(role), Some(path)) => {
                return Ok(format!("{sudo}{} {role}", quoted(path)?));
            }
            (Errand::Become(role), None) => SCRIPT
                .replace("DIGEST", &self.digest)
                .replace("SPEAKS", PROTOCOLS)
                .replace("ROLE", role),
            (Errand::Tell, _) => TELL.to_owned(),
            (Errand::Remove, _) => REMOVE.to_owned(),
        };
        let script = script.replace("MARK", MARK);
        Ok(match sudo.is_empty() {
            true => format!("exec sh -c '{script}'"),
            // The line of the sudoers file that allows it names this very path.
            false => format!("exec {sudo}/bin/sh -c '{script}'"),
        })
    }
}

/// The words of `--remote-path`, each quoted for a POSIX shell; a leading `~/` is left for the
/// remote shell, which alone knows the home directory.
fn quoted(path: &str) -> Result<String> {
    let unreadable = || Error::usage("--remote-path: its quotes do not match");
    let words = shlex::split(path).ok_or_else(unreadable)?;
    let mut command = Vec::new();
    for word in words {
        let (home, rest) = match word.strip_prefix("~/") {
            Some(rest) => ("~/", rest),
            None => ("", &word[..]),
        };
        let quoted = shlex::try_quote(rest)
            .map_err(|_| Error::usage("--remote-path: a NUL byte cannot be in a command"))?;
        command.push(format!("{home}{quoted}"));
    }
    Ok(command.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn at(path: &str) -> Startup {
        Startup {
            path: Some(path.to_owned()),
            ..Startup::default()
        }
    }

    #[test]
    fn a_remote_path_is_quoted_word_by_word() {
        let command = |path: &str| at(path).command(Errand::Become("--server"));
        assert_eq!(command("fastcp").unwrap(), "fastcp --server");
        let odd = command("sudo -n '/opt/my $dir/fastcp'").unwrap();
        assert_eq!(odd, "sudo -n '/opt/my $dir/fastcp' --server");
        assert_eq!(command("~/bin/fastcp").unwrap(), "~/bin/fastcp --server");
        assert_eq!(command("'").unwrap_err().kind, Kind::Usage);
        let startup = Startup {
            sudo: Some("www-data".to_owned()),
            ..at("fastcp")
        };
        assert_eq!(
            startup.command(Errand::Become("--server")).unwrap(),
            "sudo -n -H -u www-data -- fastcp --server"
        );
    }

    #[test]
    fn every_login_shell_reads_the_line_as_one_word() {
        let startup = Startup {
            digest: "0f".repeat(32),
            ..Startup::default()
        };
        for errand in [Errand::Become("--server"), Errand::Tell, Errand::Remove] {
            let command = startup.command(errand).unwrap();
            let script = command.strip_prefix("exec sh -c '").unwrap();
            let script = script.strip_suffix('\'').unwrap();
            assert!(!script.contains(['\'', '!', '\\', '\n']), "{script}");
            for placeholder in ["DIGEST", "SPEAKS", "MARK", "ROLE"] {
                assert!(!script.contains(placeholder), "{placeholder}");
            }
            // What every shell takes in one word, csh included.
            assert!(script.len() < 4000, "{} bytes", script.len());
        }
    }
}

//! The command that ssh runs on the far host. It finds a suitable fastcp, or receives one from
//! the client over the same login, and executes it.
//!
//! The user's login shell (csh, fish, ...) reads the command before `sh` does. So the command is
//! one line in single quotes, without a single quote, `!`, backslash or newline, and the script
//! never contains a name from the user. Besides `sh` it needs `uname` and `ls`; to store a program
//! also `mkdir`, `chmod`, `rm`, `rmdir`, `dd` and `wc`, and outside the home directory `mktemp`. It
//! uses `sleep`, `gzip` and `sha256sum` where they exist. [`wire::greeting`](crate::wire::greeting)
//! describes its output.
//!
//! # Programs of other users
//!
//! Apart from PATH and `/usr/lib/fastcp`, the command runs programs only in directories that belong
//! to this user and that nobody else may write. It opens the directory once, as file descriptor 3,
//! and every later step uses `/proc/PID/fd/3`. So renaming or replacing the directory has no
//! effect. It never runs a program that it finds in world-writable directories (/tmp, /var/tmp,
//! /dev/shm). A program that is stored there gets a new private directory, and deletes itself after
//! it has started.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::wire::greeting::{MARK, PROTOCOLS};

/// Settings for the start of the far end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Startup {
    /// `--remote-path`: a command. Then nothing is searched and nothing stored.
    pub path: Option<String>,
    /// `--sudo`: the user that the command runs as.
    pub sudo: Option<String>,
    /// The BLAKE3 of this program in hexadecimal.
    pub digest: String,
    /// Time limit for a program to answer `--speaks`.
    pub patience: StartupLimit,
}

/// Time limit in whole seconds for a program on the far host to answer, from `--timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupLimit(u64);

impl StartupLimit {
    /// A third of `timeout`, since up to three programs are asked one after the other.
    pub fn of(timeout: Duration) -> StartupLimit {
        StartupLimit((timeout.as_secs() / 3).clamp(2, 10))
    }
}

impl Default for StartupLimit {
    fn default() -> StartupLimit {
        StartupLimit(10)
    }
}

/// `x` is the open directory. `mine` is true if it belongs to this user and only this user may
/// write it.
const MINE: &str = concat!(
    r#"x=/proc/$$/fd/3; "#,
    r#"mine() { [ -O $x/. ] && case $(ls -ld $x/.) in d????-??-*) ;; *) false;; esac; }; "#,
);

/// Finds or receives a program and executes it. `DIGEST`, `SPEAKS`, `MARK`, `PATIENCE` and `ROLE`
/// are replaced.
///
/// - `ok` is true if a program answers in time that it is a fastcp of a suitable protocol. A
///   second background job ends the wait, and a program that hangs is killed. Both jobs report
///   their process id by `$$`, written with `z`: the id of the last job (`$!`) needs a character
///   that csh uses for its history.
/// - `have` executes the program of digest `g` if an earlier login has stored it in the home
///   directory.
/// - `place` tries one directory, which its caller has opened. It executes an empty file to see
///   whether programs may run there, and writes zeros to see whether there is room. It returns if
///   either fails. In the home directory, which containers may share, `mktemp` names the file: in two
///   containers the process ids may be equal.
/// - A client that disconnects must not end the script by a signal, since the script has a file
///   to remove.
/// - `dd` reads available bytes, and at most the missing ones, so it never takes the bytes that
///   follow the program. They go to file `w`; if `k` is not 0, they are `k` bytes from gzip.
const SCRIPT: &str = concat!(
    r#"g=DIGEST; p=SPEAKS; s="MARK"; "#,
    r#"z=$; ok() { { { sh -c "echo pid $z$z; exec sleep PATIENCE" && echo end; } & "#,
    r#"{ sh -c "echo pid $z$z; set -f; IFS=; exec $z@" sh "$@" --speaks $p; echo end; } & } "#,
    r#"</dev/null 2>/dev/null | "#,
    r#"{ n=; e=; i=; a=; while read -r w v; do case $w in pid) n=x$n; i="$i $v";; end) e=x;; "#,
    r#""$s") a=$v;; esac; [ $n$e = xxx ] && break; done; kill -9 $i 2>/dev/null; [ "$a" = ok ]; }; }; "#,
    r#"have() { mine && for f in $x/*-$g/fastcp; do d=${f%/fastcp}; [ -h $d ] || [ -h $f ] || "#,
    r#"{ [ -O $d ] && [ -O $f ] && ok $f --placed $g && exec $f --placed $g ROLE; }; done; }; "#,
    r#"h=; case $HOME in /*) h=$HOME/.cache/fastcp;; esac; "#,
    r#"look() { [ "$h" ] && [ -r "$h/." ] && have 3<"$h/."; }; "#,
    r#"f=$(command -v fastcp) && ok "$f" && exec "$f" ROLE; look; m=$(uname -m); "#,
    r#"for f in /usr/lib/fastcp/${m%l}*/fastcp; do [ -x "$f" ] && ok "$f" && exec "$f" ROLE; done; "#,
    r#"[ -e /etc/fastcp/no-install ] && { echo "$s forbidden"; exit 4; }; "#,
    r#"echo "$s want $(uname -s) $m" $(command -v gzip >/dev/null && echo gzip); "#,
    r#"read -r g l q k || exit 4; look; "#,
    r#"u=$(umask); umask 077; trap "" PIPE; "#,
    r#"clear() { rm -f $t $t.gz; rmdir "$d"; } 2>/dev/null; "#,
    r#"fail() { clear; echo "$s failed $1"; exit 4; }; "#,
    r#"place() { [ "$t" ] || t=$(mktemp $x/.part.XXXXXXXX 2>/dev/null || echo $x/.part.$$); "#,
    r#"{ [ -O $x/. ] && chmod 700 $x/. && mine && rm -f $t && true >$t && chmod 700 $t "#,
    r#"&& $t && dd if=/dev/zero of=$t bs=65536 count=$(((l+k)/65536+1)); } 2>/dev/null || "#,
    r#"{ clear; return 1; }; "#,
    r#"echo "$s send $d"; true >$t; w=$t; [ $k = 0 ] || { l=$k; w=$t.gz; }; "#,
    r#"r=$l; while [ $r -gt 0 ]; do o=$r; "#,
    r#"c=$((r<65536?r:65536)); dd bs=$c count=$((r/c)) >>$w 2>/dev/null; r=$((l-$(wc -c <$w))); "#,
    r#"[ $r -lt $o ] || fail length; done; "#,
    r#"[ $k = 0 ] || { gzip -dc <$w >$t 2>/dev/null && rm -f $w; } || fail digest; "#,
    r#"command -v sha256sum >/dev/null && case $(sha256sum <$t) in $q*);; *) fail digest;; esac; "#,
    r#"ok $t --placed $g || { $t --speaks $p >/dev/null </dev/null; fail start; }; "#,
    r#"umask $u; exec $t --placed $g ROLE; }; "#,
    r#"for d in "$h" /tmp /var/tmp /dev/shm; do case $d in "$h") t=; mkdir -p "$d";; "#,
    r#"*) t=$x/fastcp; d=$(mktemp -d $d/fastcp-XXXXXXXX);; esac 2>/dev/null && [ -r "$d/." ] && "#,
    r#"place 3<"$d/."; done; echo "$s failed nowhere"; exit 4"#,
);

/// `q` matches a digest, with which the name of a stored program's directory ends. Nothing else was
/// stored by fastcp.
const STORED: &str = r#"q=[0-9a-f]; q=$q$q$q$q; q=$q$q$q$q; q=$q$q$q$q; "#;

/// Prints the version of every program that a login would find, one line each.
const TELL: &str = concat!(
    r#"s="MARK"; tell() { [ -x "$1" ] && "#,
    r#"echo "$s $2: $("$1" --version </dev/null 2>/dev/null)"; }; "#,
    r#"f=$(command -v fastcp) && tell "$f" "$f"; "#,
    r#"each() { mine && for f in $x/*-$q/fastcp; do d=${f%/fastcp}; [ -h $d ] || [ -h $f ] || "#,
    r#"{ [ -O $d ] && [ -O $f ] && tell $f "$h${f#$x}"; }; done; }; "#,
    r#"h=; case $HOME in /*) h=$HOME/.cache/fastcp;; esac; "#,
    r#"[ "$h" ] && [ -r "$h/." ] && each 3<"$h/."; "#,
    r#"for f in /usr/lib/fastcp/*/fastcp; do tell "$f" "$f"; done; "#,
    r#"[ -e /etc/fastcp/no-install ] && echo "$s /etc/fastcp/no-install forbids installing fastcp"; "#,
    r#"echo "$s end""#,
);

/// Removes only stored programs, and prints their paths. Version 0.1 also stored programs below
/// world-writable directories. The script enters these in the same safe way, and runs nothing
/// there. Other users may place links there: `here` is true if the open directory is the one that the
/// path names. Only the user can make `c`, the cache in the home directory, a link.
const REMOVE: &str = concat!(
    r#"s="MARK"; here() { l=$(ls -ld $x); [ "$h" = "$c" ] || [ "${l#* -> }" = "$h" ]; }; "#,
    r#"each() { mine && here && for f in $x/*-$q/fastcp; do d=${f%/fastcp}; "#,
    r#"[ -h $d ] || { [ -O $d ] && [ -O $f ] && rm -f $f && rmdir $d && rm -f $x/.part.* && "#,
    r#"echo "$s $h${f#$x}"; }; done; }; "#,
    r#"c=; case $HOME in /*) c=$HOME/.cache/fastcp;; esac; "#,
    r#"for h in "$c" /tmp/fastcp-* /var/tmp/fastcp-* /dev/shm/fastcp-*; do "#,
    r#"[ "$h" ] && [ -O "$h/." ] && [ -r "$h/." ] && { each 3<"$h/."; rmdir "$h" 2>/dev/null; }; "#,
    r#"done; echo "$s end""#,
);

/// Lists the directory that the first line of stdin names: a name in each line, with a slash after
/// that of a directory. A name must not be part of the command, so it comes from stdin.
const LIST: &str = concat!(
    r#"s="MARK"; IFS= read -r d || exit 4; echo "$s begin"; ls -1apL -- "$d" 2>/dev/null; "#,
    r#"echo "$s end""#,
);

/// The task of the command on the far host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand<'a> {
    /// Become fastcp with these arguments, which never come from a user.
    Become(&'a str),
    /// List the programs that exist.
    Tell,
    /// Remove the stored programs.
    Remove,
    /// List the directory that the first line of stdin names.
    List,
}

impl Startup {
    /// The command for `errand`.
    ///
    /// # Errors
    /// Usage, if `--remote-path` cannot be a command.
    pub fn command(&self, errand: Errand) -> Result<String> {
        // The user's name was checked to be one.
        let sudo = |user: &String| format!("sudo -n -H -u {user} -- ");
        let sudo = self.sudo.as_ref().map_or(String::new(), sudo);
        let script = match (errand, &self.path) {
            (Errand::Become(role), Some(path)) => {
                return Ok(format!("{sudo}{} {role}", quoted(path)?));
            }
            (Errand::Become(role), None) => SCRIPT
                .replace("DIGEST", &self.digest)
                .replace("SPEAKS", PROTOCOLS)
                .replace("PATIENCE", &self.patience.0.to_string())
                .replace("ROLE", role),
            (Errand::Tell, _) => format!("{STORED}{TELL}"),
            (Errand::Remove, _) => format!("{STORED}{REMOVE}"),
            (Errand::List, _) => LIST.to_owned(),
        };
        let script = format!("{MINE}{script}").replace("MARK", MARK);
        Ok(match sudo.is_empty() {
            true => format!("exec sh -c '{script}'"),
            // The sudoers line that allows it names exactly this path.
            false => format!("exec {sudo}/bin/sh -c '{script}'"),
        })
    }
}

/// The words of `--remote-path`, each quoted for a POSIX shell. A leading `~/` stays unquoted,
/// because only the remote shell knows the home directory.
fn quoted(path: &str) -> Result<String> {
    let unreadable = || Error::usage("--remote-path: a quote is left open");
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
        for errand in [
            Errand::Become("--server"),
            Errand::Tell,
            Errand::Remove,
            Errand::List,
        ] {
            let command = startup.command(errand).unwrap();
            let script = command.strip_prefix("exec sh -c '").unwrap();
            let script = script.strip_suffix('\'').unwrap();
            assert!(!script.contains(['\'', '!', '\\', '\n']), "{script}");
            for placeholder in ["DIGEST", "SPEAKS", "MARK", "PATIENCE", "ROLE"] {
                assert!(!script.contains(placeholder), "{placeholder}");
            }
            // The length that every shell, including csh, accepts in one word.
            assert!(script.len() < 4000, "{} bytes", script.len());
        }
    }
}

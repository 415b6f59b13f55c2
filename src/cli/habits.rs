//! Hints for options of scp, rsync, cp and rclone that fastcp does not have, and for misspelled
//! ones. A hint never names an option that `--help` does not list.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use crate::units::printable;

const ALL_FILES: &str = "--exclude, --include and --filter choose files by their names";
const PROGRESS: &str =
    "a bar is drawn if stderr is a terminal; --progress prints lines, and --summary the result";
const RESUMES: &str = "run the same command again: it resumes an interrupted copy";
const SSH: &str = "ssh is used anyway: -P PORT, -i KEY, -J HOST, -o OPTION and -F FILE are passed to \
                   it, -S PROGRAM replaces it";
const COMPRESSES: &str = "fastcp compresses where that is faster; --compress zstd:9 sets the codec";
const NEWER: &str = "fastcp compares times to the nanosecond where both file systems keep \
                     nanoseconds";
const LINKS: &str = "symbolic links in a directory stay links; -L follows them";
const FASTER: &str = "fastcp finds the best number of streams by itself; --streams N sets it";
const BACKUPS: &str = "--link-dest DIR reuses unchanged files of an earlier copy";

/// Options of other programs, and what to use instead.
const HABITS: &[(&[&str], &str)] = &[
    (
        &[
            "-z",
            "--compression",
            "--compress-level",
            "--compress-choice",
            "--zc",
            "--zl",
        ],
        COMPRESSES,
    ),
    (&["-e", "--ssh", "--ssh-options"], SSH),
    (
        &["--rsync-path"],
        "--remote-path CMD names the program on HOST",
    ),
    (&["--modify-window"], NEWER),
    (
        &["--usermap", "--groupmap"],
        "fastcp keeps owners by name; --chown gives all files to one owner, --numeric-ids keeps \
         numbers",
    ),
    (&["--interactive"], "--no-clobber keeps files that exist"),
    (
        &["--delete-before"],
        "--delete deletes at the end of the copy",
    ),
    (
        &["--ignore-errors"],
        "--force deletes although some sources could not be read",
    ),
    (
        &["--move"],
        "--remove-source-files removes each file once its copy is on disk",
    ),
    (&["--max-depth"], ALL_FILES),
    (&["--recurse"], "write -r"),
    (
        &["--atimes", "-U"],
        "-p keeps modes and times, -a all metadata",
    ),
    (
        &["--no-preserve"],
        "metadata is kept only with -p, -a and the like",
    ),
    (&["--info", "--stats", "--human-readable"], PROGRESS),
    (&["--debug"], "write -v"),
    (&["--silent"], "write -q"),
    (
        &["--out-format", "--log-file-format"],
        "--log-file FILE and --json record each file",
    ),
    (
        &[
            "--partial",
            "--partial-dir",
            "--append",
            "--append-verify",
            "--resume",
            "--continue",
        ],
        RESUMES,
    ),
    (&["--key", "--password-file"], "-i FILE names a private key"),
    (&["--sparse", "--no-sparse"], "fastcp keeps holes anyway"),
    (
        &["--temp-dir", "--delay-updates"],
        "fastcp writes a new file beside the old one and renames it when it is complete",
    ),
    (
        &["-y", "--fuzzy"],
        "with -a, a file of more than 256 KiB that was renamed or moved at the source is not sent again",
    ),
    (
        &["-m", "--prune-empty-dirs"],
        "--files-from copies the files of a list and creates only the directories that they need",
    ),
    (&["--time-limit"], "write --stop-after TIME, such as 4h"),
    (
        &["-E", "--executability"],
        "-p keeps modes and times, --chmod changes modes",
    ),
    (&["--no-D"], "write --no-devices --no-specials"),
    (
        &["--no-p", "--no-t", "--no-o", "--no-g", "--no-A", "--no-X"],
        "write the long name: --no-perms, --no-times, --no-owner, --no-group, --no-acls, --no-xattrs",
    ),
    (
        &["--write-batch", "--only-write-batch", "--read-batch"],
        "--also DEST copies to several destinations at once",
    ),
    (
        &[
            "--links",
            "--no-dereference",
            "--safe-links",
            "--copy-unsafe-links",
            "--copy-dirlinks",
            "--keep-dirlinks",
            "--munge-links",
            "-k",
            "-K",
        ],
        LINKS,
    ),
    (
        &["--no-links", "--no-l"],
        "symbolic links are copied with -r too; --exclude leaves them out by name",
    ),
    (
        &["--list-only"],
        "-n lists the changes that a copy would make",
    ),
    (
        &["--fake-super", "--super", "--copy-as"],
        "owners are kept if fastcp runs as root; --sudo runs it as root on HOST",
    ),
    (&["--dereference", "--copy-links"], "write -L"),
    (&["--compare-dest"], BACKUPS),
    (
        &["-f"],
        "--filter RULE takes rsync's rules, --force replaces files in use",
    ),
    (
        &["--target-directory"],
        "the destination is the last operand",
    ),
    (
        &["--parents"],
        "--relative keeps the path of SOURCE, --mkpath makes the missing directories of DEST",
    ),
    (
        &["--no-relative", "--no-R"],
        "listed files keep their paths; name them as SOURCEs to copy them into one directory",
    ),
    (
        &["--ignore-missing-args"],
        "each missing file is reported, and the others are copied",
    ),
    (
        &["--delete-missing-args"],
        "--delete deletes entries that a SOURCE directory lacks; the copy of a missing SOURCE \
         stays",
    ),
    (
        &["--open-noatime"],
        "reading changes access times, as with other programs; a file system mounted with noatime \
         keeps them",
    ),
    (
        &["--preallocate"],
        "fastcp reserves no space for a file before it writes it",
    ),
    (&["--iconv"], "names keep their bytes"),
    (
        &["--copy-devices", "--write-devices"],
        "fastcp reads a device that is SOURCE, and writes a block device that is DEST, in any case",
    ),
    (
        &["--max-alloc"],
        "--memory SIZE limits the buffers of each process",
    ),
    (
        &["--checksum-choice", "--cc", "--checksum-seed"],
        "fastcp compares and verifies content by BLAKE3",
    ),
    (
        &["--dirs", "-d", "--old-dirs"],
        "with --files-from, a listed directory is copied without its content",
    ),
    (
        &[
            "-j",
            "--jobs",
            "--parallel",
            "--transfers",
            "--multi-thread-streams",
        ],
        FASTER,
    ),
    (
        &["--limit", "--limit-rate"],
        "write --bwlimit RATE, such as 40M",
    ),
    (&["--contimeout"], "write --timeout TIME"),
    (&["--block-size"], "fastcp compares pages of 4 KiB"),
];

/// The error for an unknown option, with a hint if one is known. None for any other error.
pub(super) fn unknown_option(
    error: &clap::Error,
    line: &[OsString],
    command: &Command,
) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = typed.split('=').next().unwrap_or(typed);
    if name == "-" {
        return letter_with_value(line);
    }
    let tip = habit(name).map(str::to_owned);
    let tip = tip.or_else(|| Some(format!("did you mean {}?", close(name, command)?)));
    let tip = tip.map_or_else(String::new, |tip| format!(": {tip}"));
    let others = with(name, line, command).into_iter().map(|letter| {
        let tip = habit(&letter).map_or_else(String::new, |tip| format!(": {tip}"));
        let letter = printable(letter.as_bytes());
        format!("; no {letter}{tip}")
    });
    let others: String = others.collect();
    let name = printable(name.as_bytes());
    Some(format!(
        "fastcp: there is no option {name}{tip}{others} (see fastcp --help all)"
    ))
}

/// The error for a word such as `-V=1`, whose letters are known and take no value.
fn letter_with_value(line: &[OsString]) -> Option<String> {
    let words = line.iter().take_while(|word| *word != "--");
    let words = words.filter_map(|word| word.to_str()?.strip_prefix('-')?.split_once('='));
    let (letters, value) = { words }.find(|(letters, _)| !letters.starts_with('-'))?;
    let letter = letters.chars().last()?;
    Some(format!(
        "fastcp: -{letter} takes no value: leave out ={} (see fastcp --help all)",
        printable(value.as_bytes())
    ))
}

/// The other unknown letters in the word that has the unknown letter `first`, as `-z` in `-avz`.
fn with(first: &str, line: &[OsString], command: &Command) -> Vec<String> {
    let unknown = |word: &OsString| -> Vec<String> {
        let letters = word.to_str().and_then(|word| word.strip_prefix('-'));
        let mut unknown = Vec::new();
        for letter in letters.unwrap_or_default().chars() {
            let known = command
                .get_arguments()
                .find(|arg| arg.get_short() == Some(letter));
            match known {
                // The rest of the word is this option's value.
                Some(arg) if arg.get_action().takes_values() => break,
                Some(_) => {}
                None => unknown.push(format!("-{letter}")),
            }
        }
        unknown
    };
    let words = line.iter().take_while(|word| *word != "--");
    let mut found = words.filter(|word| !word.to_string_lossy().starts_with("--"));
    let letters = found.find_map(|word| {
        let letters = unknown(word);
        (letters.first().map(String::as_str) == Some(first)).then_some(letters)
    });
    let mut letters = letters.unwrap_or_default();
    letters.dedup();
    letters.retain(|letter| letter != first);
    letters
}

fn habit(name: &str) -> Option<&'static str> {
    let row = HABITS.iter().find(|(names, _)| names.contains(&name));
    row.map(|(_, answer)| *answer)
}

/// The listed long option that is one typing error away, or two if the name is long.
fn close(name: &str, command: &Command) -> Option<String> {
    let typed = name.strip_prefix("--")?;
    let most = if typed.len() < 8 { 1 } else { 2 };
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    // Each slip changes one letter, of four bytes at most. Comparing a very long word takes long.
    let alike = visible.filter_map(Arg::get_long);
    let alike = alike.filter(|long| typed.len().abs_diff(long.len()) <= 4 * most);
    let near = alike.map(|long| (strsim::osa_distance(typed, long), long));
    let (slips, long) = near.min()?;
    (slips <= most).then(|| format!("--{long}"))
}

#[cfg(test)]
mod tests {
    use super::super::args::Args;
    use super::*;
    use clap::{CommandFactory, Parser};

    fn told(line: &str) -> String {
        let words = std::iter::once("fastcp").chain(line.split_whitespace());
        let error = Args::try_parse_from(words).expect_err(line);
        let command = Args::command();
        let typed: Vec<_> = line.split_whitespace().map(OsString::from).collect();
        unknown_option(&error, &typed, &command).unwrap_or_else(|| panic!("{line}: {error}"))
    }

    #[test]
    fn a_habit_is_answered_and_a_slip_is_mended() {
        for (line, tip) in [
            ("-avz a h:", "fastcp compresses"),
            ("-Zavz a h:", "; no -z: fastcp compresses"),
            ("-rpz a h:", "fastcp compresses"),
            ("-e ssh a h:", "-P PORT"),
            ("--delete-before a h:", "--delete deletes at"),
            ("--max-depth=2 a h:", "choose files"),
            ("--recurse a h:", "write -r"),
            ("--atimes a h:", "-p keeps"),
            ("--move a h:", "--remove-source-files"),
            ("--info=progress2 a h:", "--summary"),
            ("--sparse a h:", "keeps holes"),
            ("--rsync-path=x a h:", "--remote-path"),
            ("--no-relative a h:", "name them as SOURCEs"),
            ("--dirs a h:", "without its content"),
            ("--debug a h:", "write -v"),
            ("--silent a h:", "write -q"),
            ("--out-format=x a h:", "--json record each file"),
            ("--partial a h:", "it resumes"),
            ("--key x a h:", "-i FILE"),
            ("--links a h:", "symbolic links in a directory stay"),
            ("--dereference a h:", "write -L"),
            ("--compare-dest=x a h:", "--link-dest DIR"),
            ("-f a h:", "--filter RULE"),
            ("--target-directory=x a", "the last operand"),
            ("--parents a h:", "--relative keeps"),
            ("--transfers 4 a h:", "--streams N"),
            ("--limit-rate 1M a h:", "--bwlimit RATE"),
            ("--time-limit=90 a h:", "--stop-after TIME"),
            ("--contimeout 5 a h:", "--timeout TIME"),
            ("--open-noatime a h:", "mounted with noatime"),
            ("--delete-missing-args a h:", "of a missing SOURCE stays"),
            ("--preallocate a h:", "reserves no space"),
            ("--iconv=utf8 a h:", "keep their bytes"),
            ("--super a h:", "as root on HOST"),
            ("--copy-devices a h:", "a device that is SOURCE"),
            ("--max-alloc=1G a h:", "--memory SIZE"),
            ("--checksum-choice=md5 a h:", "by BLAKE3"),
            ("--stream 4 a h:", "did you mean --streams?"),
            ("--verison", "did you mean --version?"),
            ("--no-clober a h:", "did you mean --no-clobber?"),
        ] {
            let told = told(line);
            assert!(told.contains(tip), "{line}: {told}");
            assert!(told.starts_with("fastcp: there is no option -"), "{told}");
            assert!(told.ends_with(" (see fastcp --help all)"), "{told}");
        }
        for (line, letter) in [("-V=1", 'V'), ("-rq=yes a h:", 'q')] {
            let told = told(line);
            let wanted = format!("fastcp: -{letter} takes no value: leave out =");
            assert!(told.starts_with(&wanted), "{line}: {told}");
        }
        // Control characters are shown as text.
        let escaped = told("-Z\u{1b}\u{9b} a h:");
        assert!(!escaped.contains(char::is_control), "{escaped:?}");
        // No similar option, or only a hidden one.
        for line in ["--frobnicate", "-Z", "--servr", "--speak", "--confin"] {
            let told = told(line);
            assert_eq!(
                told,
                format!("fastcp: there is no option {line} (see fastcp --help all)")
            );
        }
    }

    #[test]
    fn no_answer_is_about_an_option_that_exists_or_names_one_that_is_hidden() {
        let command = Args::command();
        let visible: Vec<_> = command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .collect();
        for (names, answer) in HABITS {
            for name in *names {
                let is = |arg: &Arg| match name.strip_prefix("--") {
                    Some(long) => arg.get_long() == Some(long),
                    None => {
                        arg.get_short().map(|short| format!("-{short}")).as_deref() == Some(name)
                    }
                };
                assert!(!command.get_arguments().any(is), "{name} exists");
            }
            let words = answer.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            for word in words.filter(|word| word.starts_with('-')) {
                let is_there = match word.strip_prefix("--") {
                    // The help of `-a` mentions options such as `--no-owner`, which omit a part.
                    Some(long) => visible.iter().any(|arg| {
                        let own = arg.get_long();
                        own == Some(long) || own.is_some() && own == long.strip_prefix("no-")
                    }),
                    // Letters may be combined.
                    None => word[1..]
                        .chars()
                        .all(|letter| visible.iter().any(|arg| arg.get_short() == Some(letter))),
                };
                assert!(is_there, "{word} in {answer:?}");
            }
        }
    }
}

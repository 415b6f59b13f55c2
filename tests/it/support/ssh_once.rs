//! A program for `-S` that runs ssh for some logins and rejects the others.

use std::path::PathBuf;

use super::case::Case;
use super::host::find_program;

pub(crate) struct SshOnce {
    program: PathBuf,
    log: PathBuf,
}

impl SshOnce {
    /// Later logins fail with this message of ssh's.
    pub(crate) fn new(case: &Case, words: &str) -> SshOnce {
        SshOnce::ending(case, words, 255)
    }

    /// Later logins fail with this message and end with `code`.
    pub(crate) fn ending(case: &Case, words: &str, code: u8) -> SshOnce {
        SshOnce::when("=", case, &format!("echo '{words}' >&2"), code)
    }

    /// Later logins fail with this message of ssh's, but print it only with this option.
    pub(crate) fn saying_only_with(option: &str, case: &Case, words: &str) -> SshOnce {
        let say = format!("case \"$*\" in *{option}*) echo '{words}' >&2;; esac");
        SshOnce::when("=", case, &say, 255)
    }

    /// The first login fails with this message of ssh's, and later ones do not.
    pub(crate) fn not_at_first(case: &Case, words: &str) -> SshOnce {
        SshOnce::when("-gt", case, &format!("echo '{words}' >&2"), 255)
    }

    /// A login whose number relates to 1 like this is carried out; others do this and end. A query
    /// of the configuration (`-G`) is no login.
    fn when(relation: &str, case: &Case, say: &str, code: u8) -> SshOnce {
        let ssh = find_program("ssh").expect("ssh is there: the case has a host");
        let log = case.scratch.path("logins");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = -G ] && exec '{0}' \"$@\"\n\
             echo \"$*\" >> '{1}'\n\
             [ $(wc -l < '{1}') {relation} 1 ] && exec '{0}' \"$@\"\n\
             {say}\nexit {code}\n",
            ssh.display(),
            log.display()
        );
        let program = case.scratch.file("ssh once", script);
        case.scratch.mode("ssh once", 0o755);
        SshOnce { program, log }
    }

    pub(crate) fn program(&self) -> String {
        self.program.display().to_string()
    }

    /// The arguments of each login so far, in order.
    pub(crate) fn logins(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

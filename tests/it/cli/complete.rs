//! Completion of hosts and of the paths on them, as shells ask for it.

use crate::support::procs::MARK;
use crate::support::run::{Run, fastcp_binary};
use crate::support::*;

ways! { push =>
    bash_completes_hosts_files_and_remote_paths,
    other_shells_get_whole_words,
}

/// Calls the function that the script gives to bash, and prints what it would complete.
const ASK: &str = r#"
compopt() { echo "$*"; }
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=($2) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_WORDS[0]=$3
_fastcp_places "$3" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
for word in "${COMPREPLY[@]}"; do echo "$word|"; done
"#;

/// A directory on the far host, in which a login begins.
fn far(case: &Case) -> Dir {
    let far = case.scratch.dir("far");
    for name in ["a b", "x$y", "sub/in", ".hidden", "con\u{1}trol"] {
        far.file(name, "");
    }
    far.link("to sub", "sub");
    far.link("to nowhere", "nowhere");
    case.host().set_login(&Login {
        before: format!("echo Welcome; cd '{}'", far.0.display()),
        ..Login::default()
    });
    far
}

fn bash_completes_hosts_files_and_remote_paths(case: &Case) {
    let far = far(case);
    let near = case.scratch.dir("near");
    near.file("fan/blade", "");
    near.file("fast ball", "");
    let script = case.bare().args(["--completions", "bash"]).run();
    let script = case.scratch.file("script", &script.succeeds().stdout);
    let config = case.host().ssh_config();
    let answer = |line: &str| {
        let line = line.replace("CONFIG", &config.display().to_string());
        let done = Run::new("bash", &near.0)
            .args(["-c", ASK, "bash"])
            .arg(&script)
            .arg(line.replace("FAR", &far.0.display().to_string()))
            .arg(fastcp_binary())
            .env("HOME", &case.home.0)
            .env(MARK, case.mark())
            .run();
        let text = done.succeeds().never_says("fastcp").stdout_text();
        text.replace(&far.0.display().to_string(), "FAR")
    };
    let words = "-o nospace\n";
    for (line, told) in [
        (
            "far:",
            "a\\ b |\nsub/|\nto\\ nowhere |\nto\\ sub/|\nx\\$y |\n",
        ),
        ("-r far:s", "sub/|\n"),
        ("far:sub/", "sub/in |\n"),
        ("far:~/x", "~/x\\$y |\n"),
        ("'far:a", "far:a b' |\n"),
        ("far:.", ".hidden |\n"),
        ("far:FAR/x", "FAR/x\\$y |\n"),
        ("x --also=far:s", "sub/|\n"),
        ("far:nothing/", ""),
        ("nowhere.invalid:", ""),
        ("fa", "far:|\nfan/|\nfast\\ ball |\n"),
        ("me@fa", "me@far:|\n"),
    ] {
        let line = format!("fastcp -F CONFIG {line}");
        assert_eq!(answer(&line), format!("{words}{told}"), "{line}");
    }
    assert_eq!(answer("fastcp fast"), "-o default\n", "a file, and no host");
    assert!(answer("fastcp --retry-f").contains("--retry-for|\n"));
    // The value of an option is not a host's path.
    assert!(!answer("fastcp -F CONFIG -P far:").contains("sub/"));
}

fn other_shells_get_whole_words(case: &Case) {
    far(case);
    let config = case.host().ssh_config();
    for shell in ["zsh", "fish"] {
        let ask = |word: &str| {
            let words = ["--complete", shell, "-F"];
            let run = case.bare().args(words).arg(&config).arg(word).run();
            run.succeeds().stdout_text()
        };
        assert_eq!(ask("far:to"), "far:to nowhere\nfar:to sub/\n");
        assert_eq!(ask("fa"), "far:\n");
    }
}

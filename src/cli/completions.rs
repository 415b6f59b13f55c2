//! Scripts that complete for shells: `fastcp --completions bash`. clap writes the part about
//! options. For hosts and the paths on them, the scripts ask [`complete`](super::complete).

use clap::{Arg, Command, ValueEnum, ValueHint};
use clap_complete::{Shell, generate};

/// Parses the name of a shell for which fastcp has completions.
pub(super) fn shell(text: &str) -> Result<Shell, String> {
    match Shell::from_str(text, false) {
        Ok(shell @ (Shell::Bash | Shell::Zsh | Shell::Fish)) => Ok(shell),
        _ => Err("expected bash, zsh or fish".to_owned()),
    }
}

/// Asks for places. The exit code says what else the word is: an option or its value (1), which
/// clap's function completes, or a file (2), which bash completes.
const BASH: &str = r#"
_fastcp_places() {
    local found
    COMPREPLY=()
    found=$(export COMP_LINE COMP_POINT; "${1/#\~/$HOME}" --complete bash 2>/dev/null)
    case $? in
        0) [[ -z $found ]] || mapfile -t COMPREPLY <<< "$found"; compopt -o nospace ;;
        1) _fastcp "$@" ;;
        *) compopt -o default ;;
    esac
}
complete -F _fastcp_places fastcp
"#;

/// No blank follows a word that ends with a slash or a colon.
const ZSH: &str = r#"
_fastcp_places() {
    local -a found whole
    found=("${(@f)$("${(Q)words[1]}" --complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" \
        2>/dev/null)}")
    found=(${found:#})
    whole=(${found:#*[/:]})
    found=(${(M)found:#*[/:]})
    compadd -a whole
    compadd -S '' -a found
    [[ $PREFIX == *:* ]] || _files
}
"#;

const FISH: &str = r#"
function __fastcp_places
    set -l words (commandline -opc)
    $words[1] --complete fish $words[2..-1] (commandline -ct | string unescape) 2>/dev/null
end
complete -c fastcp -a '(__fastcp_places)'
"#;

/// The script that the shell reads.
pub(super) fn script(shell: Shell, command: Command) -> String {
    let mut text = Vec::new();
    generate(shell, &mut visible(command), "fastcp", &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    match shell {
        Shell::Bash => text + BASH,
        Shell::Zsh => {
            // A function has to be there before it is used. With `*::` the action would not see
            // the words before the operands.
            let text = text
                .replace("'*::operands:_files'", "'*:operands:_fastcp_places'")
                .replace(":DEST:'", ":DEST:_fastcp_places'");
            text.replacen("\n_fastcp() {", &format!("{ZSH}\n_fastcp() {{"), 1)
        }
        _ => text + FISH,
    }
}

/// The options that `--help` lists. clap's scripts offer hidden ones too.
fn visible(mut command: Command) -> Command {
    command.build();
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let options = shown.map(|arg| {
        let mut option = Arg::new(arg.get_id().clone())
            .action(arg.get_action().clone())
            .help(arg.get_help().cloned().unwrap_or_default())
            .short(arg.get_short())
            .num_args(arg.get_num_args().expect("it is built"))
            .require_equals(arg.is_require_equals_set());
        if let Some(long) = arg.get_long() {
            option = option.long(long.to_owned());
        }
        match arg.get_value_names() {
            Some(names) if arg.get_action().takes_values() => option
                .value_names(names.to_vec())
                .value_hint(hint(&names[0])),
            _ => option,
        }
    });
    let operands = Arg::new("operands").num_args(0..);
    Command::new("fastcp")
        .disable_help_flag(true)
        .args(options)
        .arg(operands.value_hint(ValueHint::AnyPath))
}

/// What a value is, by its name in `--help`.
fn hint(name: &str) -> ValueHint {
    match name {
        "FILE" | "LIST" | "PROGRAM" => ValueHint::FilePath,
        "DIR" => ValueHint::DirPath,
        "HOST" => ValueHint::Hostname,
        "USER" => ValueHint::Username,
        "CMD" => ValueHint::CommandString,
        _ => ValueHint::Other,
    }
}

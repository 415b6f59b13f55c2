//! Completion of options for shells: `fastcp --completions bash`.

use clap::{Arg, Command, ValueEnum, ValueHint};
use clap_complete::{Shell, generate};

/// Parses the name of a shell for which fastcp has completions.
pub(super) fn shell(text: &str) -> Result<Shell, String> {
    match Shell::from_str(text, false) {
        Ok(shell @ (Shell::Bash | Shell::Zsh | Shell::Fish)) => Ok(shell),
        _ => Err("expected bash, zsh or fish".to_owned()),
    }
}

/// The script that the shell reads.
pub(super) fn script(shell: Shell, command: Command) -> String {
    let mut text = Vec::new();
    generate(shell, &mut visible(command), "fastcp", &mut text);
    String::from_utf8_lossy(&text).into_owned()
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

//! Programs that the bench runs and waits for.

use std::process::{Command, Output, Stdio};

pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// # Errors
/// A line with the program, its exit status and its last messages.
pub(crate) fn finish(command: Command) -> Result<(), String> {
    output(command).map(drop)
}

/// The program's output.
///
/// # Errors
/// As for [`finish`].
pub(crate) fn output(mut command: Command) -> Result<Output, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| format!("{program}: {cause}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.trim().lines().rev().take(3).collect();
    Err(format!("{program}: {}: {}", output.status, last.join("; ")))
}

/// The program's standard output as text.
///
/// # Errors
/// As for [`finish`].
pub(crate) fn text(command: Command) -> Result<String, String> {
    let output = output(command)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first program of this name on PATH.
pub(crate) fn find(name: &str) -> Option<String> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("command -v {name}")]);
    text(command).ok().filter(|path| !path.is_empty())
}

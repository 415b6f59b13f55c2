//! Properties of the terminal on stderr.

use std::io::IsTerminal;

use rustix::termios::{tcgetpgrp, tcgetwinsize};

/// Used if a terminal does not report its size (serial lines, some CI).
const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// Columns beyond this are not used.
pub(super) const COLUMNS_MAX: u16 = 4096;

/// Characters for the bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Glyphs {
    Utf8,
    Ascii,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Terminal {
    pub glyphs: Glyphs,
    /// False for `TERM=dumb`.
    pub can_redraw: bool,
    reflows: bool,
}

/// The terminal's size at one moment. Read once for each redraw, since it may change in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Not 0, at most `COLUMNS_MAX`.
    pub columns: usize,
    /// Not 0.
    pub rows: usize,
    /// True if the terminal rewraps lines when its width changes. Nearly every terminal does;
    /// xterm, the console and screen cut or keep such lines.
    pub reflows: bool,
}

impl Terminal {
    /// None if stderr is not a terminal.
    pub(super) fn of_stderr() -> Option<Terminal> {
        std::io::stderr().is_terminal().then(|| {
            let variable = |name: &str| std::env::var(name).unwrap_or_default();
            let term = variable("TERM");
            let is_set = |name: &str| std::env::var_os(name).is_some();
            Terminal {
                glyphs: glyphs(["LC_ALL", "LC_CTYPE", "LANG"].map(variable)),
                can_redraw: !matches!(term.as_str(), "" | "dumb"),
                reflows: term != "linux" && !is_set("XTERM_VERSION") && !is_set("STY"),
            }
        })
    }

    pub(super) fn size(&self) -> Size {
        let or = |cells: u16, default| if cells == 0 { default } else { cells.into() };
        let (columns, rows) = match tcgetwinsize(std::io::stderr()) {
            Ok(size) => (size.ws_col.min(COLUMNS_MAX), size.ws_row),
            Err(_) => (0, 0),
        };
        Size {
            columns: or(columns, COLUMNS),
            rows: or(rows, ROWS),
            reflows: self.reflows,
        }
    }

    /// False while a shell owns the terminal (`fastcp ... &`, `bg`).
    pub(super) fn is_foreground(&self) -> bool {
        tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
    }
}

/// As in setlocale, the first of the three that is set and not empty decides.
fn glyphs(locale: [String; 3]) -> Glyphs {
    let locale = locale.into_iter().find(|value| !value.is_empty());
    let locale = locale.unwrap_or_default().to_ascii_lowercase();
    if locale.contains("utf-8") || locale.contains("utf8") {
        Glyphs::Utf8
    } else {
        Glyphs::Ascii
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_locale_variable_that_is_set_decides() {
        for (locale, expected) in [
            (["", "", "en_GB.UTF-8"], Glyphs::Utf8),
            (["C", "", "en_GB.UTF-8"], Glyphs::Ascii),
            (["", "C.utf8", "C"], Glyphs::Utf8),
            (["", "", ""], Glyphs::Ascii),
        ] {
            assert_eq!(glyphs(locale.map(str::to_owned)), expected);
        }
    }
}

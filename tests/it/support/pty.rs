//! A terminal, and the screen that a program draws on it.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// The user's side of a terminal.
pub(crate) struct Terminal {
    master: File,
    slave: PathBuf,
}

impl Terminal {
    pub(crate) fn open(columns: u16, rows: u16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("open a terminal");
        grantpt(&master).expect("own the terminal");
        unlockpt(&master).expect("unlock the terminal");
        let slave = ptsname(&master, Vec::new()).expect("name the terminal");
        let terminal = Terminal {
            master: File::from(master),
            slave: PathBuf::from(slave.into_string().expect("an ASCII name")),
        };
        terminal.resize(columns, rows);
        terminal
    }

    pub(crate) fn slave(&self) -> &Path {
        &self.slave
    }

    /// A handle for the reader of the output.
    pub(crate) fn output(&self) -> OwnedFd {
        self.master.try_clone().expect("duplicate a handle").into()
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.master, size).expect("set the size");
    }

    /// True while the terminal echoes input.
    pub(crate) fn echoes(&self) -> bool {
        let modes = tcgetattr(&self.master).expect("ask the terminal");
        modes.local_modes.contains(LocalModes::ECHO)
    }

    pub(crate) fn type_in(&self, text: &str) {
        (&self.master).write_all(text.as_bytes()).expect("type");
    }
}

/// A grid of characters that understands the control sequences of a progress bar. Text that
/// reaches the last column wraps, as on a real terminal; no line is ever discarded.
pub(crate) struct Screen {
    columns: usize,
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// A line was longer than the terminal is wide.
    pub wrapped: bool,
}

impl Screen {
    pub(crate) fn new(columns: usize) -> Screen {
        Screen {
            columns,
            lines: vec![Vec::new()],
            row: 0,
            column: 0,
            wrapped: false,
        }
    }

    /// The lines that are not blank.
    pub(crate) fn text(&self) -> Vec<String> {
        self.lines
            .iter()
            .map(|line| line.iter().collect::<String>().trim_end().to_owned())
            .filter(|line| !line.is_empty())
            .collect()
    }

    pub(crate) fn draw(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\r' => self.column = 0,
                '\n' => self.down(1),
                '\x1b' if chars.next_if_eq(&'[').is_some() => {
                    let mut number = String::new();
                    let end = loop {
                        match chars.next() {
                            Some(c) if c.is_ascii_alphabetic() => break c,
                            Some(c) => number.push(c),
                            None => return,
                        }
                    };
                    self.control(end, &number);
                }
                c if c.is_control() => {}
                c => self.put(c),
            }
        }
    }

    fn control(&mut self, end: char, number: &str) {
        let count = number.parse().unwrap_or(1).max(1);
        match end {
            'A' => self.row = self.row.saturating_sub(count),
            'B' => self.down(count),
            'C' => self.column += count,
            'D' => self.column = self.column.saturating_sub(count),
            'G' => self.column = count - 1,
            'K' if number == "2" => self.lines[self.row].clear(),
            'K' => self.lines[self.row].truncate(self.column),
            'J' => {
                self.lines[self.row].truncate(self.column);
                self.lines.truncate(self.row + 1);
            }
            _ => {}
        }
    }

    fn down(&mut self, count: usize) {
        self.row += count;
        while self.lines.len() <= self.row {
            self.lines.push(Vec::new());
        }
    }

    fn put(&mut self, c: char) {
        if self.column >= self.columns {
            self.wrapped = true;
            self.column = 0;
            self.down(1);
        }
        let line = &mut self.lines[self.row];
        while line.len() <= self.column {
            line.push(' ');
        }
        line[self.column] = c;
        self.column += 1;
    }
}

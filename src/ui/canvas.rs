//! The surface that indicatif draws on. Its content goes to the terminal in one write, and over
//! the right rows after a resize.
//!
//! indicatif 0.18 fills each line with spaces up to the last column, so that the next line wraps,
//! and moves the cursor back by the rows it counted when it drew. A terminal whose width changes
//! wraps such lines again. If it gets narrower, broken lines remain; if wider, lines above are
//! lost. The canvas keeps the lines in memory and ends each where its text ends. It counts the
//! rows to move back with the terminal's current width.

use std::io;
use std::sync::Arc;

use indicatif::TermLike;
use parking_lot::Mutex;

use super::terminal::{COLUMNS_MAX, Size};
use super::view::columns;

/// Erases to the end of the line, and to the end of the screen.
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// One handle for indicatif to draw on, and a clone to show the result from.
#[derive(Clone, Debug, Default)]
pub(super) struct Canvas(Arc<Mutex<Drawing>>);

#[derive(Debug, Default)]
struct Drawing {
    /// Writes of indicatif between two flushes: a line, then the spaces after it, and so on.
    writes: Vec<String>,
    /// The lines of the last draw. Some of them may be printed lines that stay. The next draw
    /// shows which, because it clears all others.
    lines: Vec<String>,
    /// Lines that stay and are not yet on the terminal, each with its newline.
    above: String,
    /// Rows of the terminal.
    rows: usize,
    /// Columns of each line on the terminal. The cursor is at the end of the last one.
    shown: Vec<usize>,
}

impl Canvas {
    /// Sets the most lines to draw, since lines that have scrolled away could not be erased.
    pub(super) fn set_rows(&self, rows: usize) {
        self.0.lock().rows = rows;
    }

    /// The output that replaces the lines on the terminal with those of the last draw, and puts
    /// printed lines above them. No line may be as wide as the terminal.
    pub(super) fn show(&self, size: Size) -> String {
        let drawing = &mut *self.0.lock();
        let above = std::mem::take(&mut drawing.above);
        if drawing.shown.is_empty() && drawing.lines.is_empty() {
            return above;
        }
        let rows: usize = drawing
            .shown
            .iter()
            .map(|columns| {
                if size.reflows {
                    columns.div_ceil(size.columns).max(1)
                } else {
                    1
                }
            })
            .sum();
        let mut out = String::from("\r");
        if rows > 1 {
            out.push_str(&format!("\x1b[{}A", rows - 1));
        }
        if !above.is_empty() {
            out.push_str(ERASE_BELOW);
            out.push_str(&above);
        }
        for (at, line) in drawing.lines.iter().enumerate() {
            if at > 0 {
                out.push('\n');
            }
            out.push_str(line);
            out.push_str(ERASE_LINE);
        }
        out.push_str(ERASE_BELOW);
        drawing.shown = drawing.lines.iter().map(|line| columns(line)).collect();
        out
    }

    #[cfg(test)]
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().lines.clone()
    }
}

/// Ignores cursor movements: each draw clears the lines of the last one and begins there.
impl TermLike for Canvas {
    /// The largest width, so that indicatif counts each line as one row, before and after a
    /// resize.
    fn width(&self) -> u16 {
        COLUMNS_MAX
    }

    fn height(&self) -> u16 {
        self.0.lock().rows.try_into().unwrap_or(u16::MAX)
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.write_str(line)?;
        self.write_str("")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.lock().writes.push(text.to_owned());
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.lock().lines.pop();
        Ok(())
    }

    /// Ends a draw.
    fn flush(&self) -> io::Result<()> {
        let drawing = &mut *self.0.lock();
        for line in drawing.lines.drain(..) {
            drawing.above.push_str(&line);
            drawing.above.push('\n');
        }
        drawing.lines.extend(drawing.writes.drain(..).step_by(2));
        Ok(())
    }
}

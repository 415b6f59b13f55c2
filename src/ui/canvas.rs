//! What indicatif draws on, and how that comes to the terminal: all at once, and over the right
//! rows after a resize.
//!
//! By itself indicatif 0.18 fills each line with spaces up to the last column, so that the next
//! one wraps, and goes back by the rows it counted when it drew. A terminal that gets another
//! width breaks such lines anew: narrower it keeps torn ones, wider it loses what stood above.
//! Here its lines are kept in memory, each ends where its text ends, and the way back is counted
//! by the width that the terminal has now.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use indicatif::TermLike;

use super::terminal::{COLUMNS_MAX, Size};
use super::view::columns;

/// Erases to the end of the line, and of the screen.
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// One for indicatif to draw on, a clone to show it from.
#[derive(Clone, Debug, Default)]
pub struct Canvas(Arc<Mutex<Drawing>>);

#[derive(Debug, Default)]
struct Drawing {
    /// What indicatif writes between two flushes: a line, then the spaces after it, and so on.
    writes: Vec<String>,
    /// The lines it drew last. Some of them it printed once, to stay; which, its next draw
    /// tells, which clears all others.
    lines: Vec<String>,
    /// Lines that stay and are not yet on the terminal, each with its newline.
    above: String,
    /// Rows of the terminal.
    rows: usize,
    /// Columns of each line on the terminal; the cursor is behind the last one.
    shown: Vec<usize>,
}

impl Canvas {
    fn drawing(&self) -> MutexGuard<'_, Drawing> {
        self.0.lock().expect("no panic while held")
    }

    /// More lines than `rows` are not drawn, since they could not be taken back.
    pub fn set_rows(&self, rows: usize) {
        self.drawing().rows = rows;
    }

    /// What to write so that the terminal shows the lines drawn last in place of those it shows,
    /// and above them what was printed. No line may be as wide as the terminal.
    pub fn show(&self, size: Size) -> String {
        let drawing = &mut *self.drawing();
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
    pub fn lines(&self) -> Vec<String> {
        self.drawing().lines.clone()
    }
}

/// Where the cursor is asked to go does not matter: a draw clears line by line what the last one
/// drew, and begins there.
impl TermLike for Canvas {
    /// As wide as any, so that to indicatif each line is one row, before a resize and after.
    fn width(&self) -> u16 {
        COLUMNS_MAX
    }

    fn height(&self) -> u16 {
        self.drawing().rows.try_into().unwrap_or(u16::MAX)
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
        self.drawing().writes.push(text.to_owned());
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.drawing().lines.pop();
        Ok(())
    }

    /// Ends a draw.
    fn flush(&self) -> io::Result<()> {
        let drawing = &mut *self.drawing();
        for line in drawing.lines.drain(..) {
            drawing.above.push_str(&line);
            drawing.above.push('\n');
        }
        drawing.lines.extend(drawing.writes.drain(..).step_by(2));
        Ok(())
    }
}

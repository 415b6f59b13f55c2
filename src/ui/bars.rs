//! Lines at the bottom of the terminal, redrawn in place by indicatif.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::canvas::Canvas;
use super::terminal::{Glyphs, Size};
use super::view::BarLine;

/// The lines on the terminal.
pub(super) struct Bars {
    glyphs: Glyphs,
    canvas: Canvas,
    all: MultiProgress,
    /// One for each line.
    bars: Vec<ProgressBar>,
}

impl Bars {
    pub(super) fn new(glyphs: Glyphs) -> Bars {
        let canvas = Canvas::default();
        // No limit on draws per second: they go to memory, and each bar draws separately.
        let target = ProgressDrawTarget::term_like(Box::new(canvas.clone()));
        Bars {
            glyphs,
            canvas,
            all: MultiProgress::with_draw_target(target),
            bars: Vec::new(),
        }
    }

    /// The output that replaces the current lines with `lines`, and writes `above` (whole
    /// lines) over them. No line may be as wide as the terminal.
    pub(super) fn redraw(&mut self, above: &str, lines: &[BarLine], size: Size) -> String {
        self.canvas.set_rows(size.rows);
        // Drawing on a canvas cannot fail.
        if !above.is_empty() {
            let _ = self.all.println(above);
        }
        for bar in self.bars.drain(lines.len().min(self.bars.len())..) {
            self.all.remove(&bar);
        }
        self.bars.resize_with(lines.len(), || {
            self.all.add(ProgressBar::hidden()) // drawn from when it has a line
        });
        for (bar, line) in self.bars.iter().zip(lines) {
            bar.set_style(style(line, self.glyphs));
            if let Some(part) = line.bar {
                bar.set_length(part.of);
                bar.set_position(part.done);
            }
            bar.set_message(line.text.clone());
        }
        if lines.is_empty() {
            let _ = self.all.clear();
        }
        self.canvas.show(size)
    }

    #[cfg(test)]
    pub(super) fn lines(&self) -> Vec<String> {
        self.canvas.lines()
    }
}

fn style(line: &BarLine, glyphs: Glyphs) -> ProgressStyle {
    let template = match line.bar {
        Some(part) => format!("[{{bar:{}}}] {{msg}}", part.columns),
        None => "{msg}".to_owned(),
    };
    ProgressStyle::with_template(&template)
        .expect("braces are closed and the width is a number")
        .progress_chars(match glyphs {
            Glyphs::Utf8 => "█▉▊▋▌▍▎▏ ",
            Glyphs::Ascii => "#> ",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Size = Size {
        columns: 80,
        rows: 24,
        reflows: true,
    };
    const NARROW: Size = Size {
        columns: 30,
        ..WIDE
    };

    fn text(text: &str) -> BarLine {
        text.to_owned().into()
    }

    #[test]
    fn the_cursor_goes_back_over_as_many_rows_as_the_terminal_made_of_the_lines() {
        let mut bars = Bars::new(Glyphs::Ascii);
        let lines = [text(&"a".repeat(79)), text(&"b".repeat(40)), text("c")];
        let drawn = bars.redraw("", &lines, WIDE);
        assert!(
            drawn.starts_with("\raaa"),
            "nothing to go back over: {drawn:?}"
        );
        let again = bars.redraw("", &lines, WIDE);
        assert!(again.starts_with("\r\x1b[2A"), "{again:?}");
        assert_eq!(again.matches('\n').count(), 2, "{again:?}");
        let narrow = bars.redraw("", &[text("d")], NARROW);
        assert_eq!(narrow, "\r\x1b[5Ad\x1b[K\x1b[J", "3 + 2 + 1 rows");
        let mut bars = Bars::new(Glyphs::Ascii);
        bars.redraw("", &lines, WIDE);
        let cut = Size {
            reflows: false,
            ..NARROW
        };
        assert_eq!(
            bars.redraw("", &[], cut),
            "\r\x1b[2A\x1b[J",
            "a row is a row"
        );
    }

    #[test]
    fn lines_above_push_the_bars_down_and_are_written_once() {
        let mut bars = Bars::new(Glyphs::Ascii);
        assert_eq!(bars.redraw("early\n", &[], WIDE), "early\n");
        bars.redraw("", &[text("x")], WIDE);
        let long = "l".repeat(200);
        assert_eq!(
            bars.redraw(&format!("told\n\n{long}\n"), &[text("y"), text("z")], WIDE),
            format!("\r\x1b[Jtold\n\n{long}\ny\x1b[K\nz\x1b[K\x1b[J")
        );
        assert_eq!(
            bars.redraw("and\n", &[text("y")], NARROW),
            "\r\x1b[1A\x1b[Jand\ny\x1b[K\x1b[J"
        );
        assert_eq!(bars.redraw("last\n", &[], WIDE), "\r\x1b[Jlast\n\x1b[J");
        assert_eq!(bars.redraw("told\n", &[], WIDE), "told\n");
    }

    #[test]
    fn no_more_lines_than_the_terminal_has_rows() {
        let mut bars = Bars::new(Glyphs::Ascii);
        let lines = [text("a"), text("b"), text("c")];
        let flat = Size { rows: 2, ..WIDE };
        assert_eq!(bars.redraw("", &lines, flat), "\ra\x1b[K\nb\x1b[K\x1b[J");
        let again = bars.redraw("told\n", &lines, WIDE);
        assert!(again.starts_with("\r\x1b[1A\x1b[Jtold\na"), "{again:?}");
        assert!(again.contains("\nc"), "{again:?}");
    }
}

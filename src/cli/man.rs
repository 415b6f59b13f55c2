//! Manual pages: the command with its options, and the pages of the guide in section 7.

use clap::Command;
use clap_mangen::Man;
use roff::{Inline, Roff, bold, roman};

use crate::guide;
use crate::wire::PROTOCOL_MAX;

/// No date, so that each build of the same source prints the same page. Without the blank, the next
/// argument would take its place.
const DATE: &str = " ";

fn source() -> String {
    format!("fastcp {}", env!("CARGO_PKG_VERSION"))
}

/// fastcp(1).
pub(super) fn command(command: Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    let after = command.get_after_help().map(ToString::to_string);
    // The NAME section of a page is one line.
    let command = command.about("copy files between hosts, in parallel, compressed and verified");
    let man = Man::new(command)
        .title("FASTCP")
        .section("1")
        .date(DATE)
        .source(source())
        .manual("fastcp");
    let mut text = Vec::new();
    let options = man
        .render_title(&mut text)
        .and_then(|()| man.render_name_section(&mut text))
        .and_then(|()| man.render_synopsis_section(&mut text))
        .and_then(|()| {
            let mut roff = Roff::new();
            roff.control("SH", ["DESCRIPTION"]);
            roff.text([roman(about.unwrap_or_default())]);
            roff.to_writer(&mut text)
        })
        .and_then(|()| man.render_options_section(&mut text));
    options.expect("a vector takes all");
    let mut roff = Roff::new();
    // The help's last parts are laid out by hand, each with its name before a colon.
    for part in after.unwrap_or_default().split("\n\n") {
        let (name, rest) = part.split_once(':').unwrap_or(("Notes", part));
        if name == "Topics" {
            continue;
        }
        roff.control("SH", [name.to_uppercase().as_str()]);
        literal(
            &mut roff,
            rest.trim_matches('\n').lines().map(str::trim_end),
        );
    }
    roff.control("SH", ["PROTOCOL"]);
    let protocol = format!("This version speaks protocol {PROTOCOL_MAX}.");
    roff.text([roman(protocol)]);
    roff.control("SH", ["SEE ALSO"]);
    let pages = guide::PAGES
        .iter()
        .map(|(name, _)| format!("fastcp-{name}(7)"));
    let pages: Vec<_> = pages
        .chain(["scp(1)", "ssh(1)", "rsync(1)"].map(str::to_owned))
        .collect();
    roff.text([roman(pages.join(", "))]);
    String::from_utf8_lossy(&text).into_owned() + &roff.render()
}

/// fastcp-NAME(7), from a page of the guide in Markdown.
pub(super) fn page(name: &str, text: &str) -> String {
    let mut roff = Roff::new();
    let title = format!("FASTCP-{}", name.to_uppercase());
    roff.control("TH", [title.as_str(), "7", DATE, &source(), "fastcp"]);
    let mut lines = text.lines().peekable();
    // Text of a paragraph or item, which the next lines may continue.
    let mut open = String::new();
    let close = |roff: &mut Roff, open: &mut String| {
        if !open.is_empty() {
            roff.text(inlines(open));
            open.clear();
        }
    };
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            close(&mut roff, &mut open);
            let code = lines.by_ref().take_while(|line| !line.starts_with("```"));
            literal(&mut roff, code);
        } else if let Some(heading) = line.strip_prefix("# ") {
            roff.control("SH", ["NAME"]);
            roff.text([roman(format!("fastcp-{name} - {heading}"))]);
            roff.control("SH", ["DESCRIPTION"]);
        } else if let Some(heading) = line.strip_prefix("## ") {
            close(&mut roff, &mut open);
            roff.control("SH", [heading.to_uppercase().as_str()]);
        } else if line.starts_with('|') {
            close(&mut roff, &mut open);
            let mut rows = vec![line];
            while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
                rows.push(row);
            }
            literal(&mut roff, rows.into_iter());
        } else if let Some(item) = line.strip_prefix("- ") {
            close(&mut roff, &mut open);
            roff.control("IP", ["\\(bu", "2"]);
            item.clone_into(&mut open);
        } else if line.is_empty() {
            close(&mut roff, &mut open);
            // A heading, an item and a block begin by themselves.
            let begins = |line: &&str| {
                !["#", "-", "`", "|"]
                    .iter()
                    .any(|mark| line.starts_with(mark))
                    && !line.is_empty()
            };
            if lines.peek().is_some_and(begins) {
                let is_of_item = lines.peek().is_some_and(|line| line.starts_with("  "));
                roff.control(if is_of_item { "IP" } else { "PP" }, []);
            }
        } else {
            if !open.is_empty() {
                open.push(' ');
            }
            open += line.trim();
        }
    }
    close(&mut roff, &mut open);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("fastcp(1)")]);
    // `render` keeps apostrophes plain, so that commands can be pasted into a shell.
    roff.render()
}

/// Unchanged lines, indented.
fn literal<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("sp", []);
    roff.control("RS", ["2"]);
    roff.control("nf", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("RE", []);
}

/// Text between backquotes is bold, as options are in other manuals.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    let parts = parts.filter(|(_, part)| !part.is_empty());
    parts
        .map(|(number, part)| match number % 2 {
            0 => roman(part),
            _ => bold(part),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_becomes_a_page() {
        let text = "# A title\n\nSome `--flag`\nand text.\n\n- one\n  goes on\n- two\n\n  more\n\n\
                    ## A part\n\n```sh\n.dot 'a' \\n\n```\n\n| a | b |\n|---|---|\n\nEnd.\n";
        let page = page("x", text);
        let expected = [
            ".SH NAME\nfastcp\\-x \\- A title\n.SH DESCRIPTION\n",
            "Some \\fB\\-\\-flag\\fR and text.\n",
            ".IP \\(bu 2\none goes on\n.IP \\(bu 2\ntwo\n.IP\nmore\n",
            ".SH \"A PART\"\n.sp\n.RS 2\n.nf\n\\&.dot \\*(Aqa\\*(Aq \\\\n\n.fi\n.RE\n",
            ".nf\n| a | b |\n|\\-\\-\\-|\\-\\-\\-|\n.fi\n.RE\n.PP\nEnd.\n",
        ];
        for part in expected {
            assert!(page.contains(part), "{part}\n---\n{page}");
        }
    }

    #[test]
    fn each_page_and_each_option_has_its_place() {
        use clap::CommandFactory;
        let page = command(crate::cli::args::Args::command());
        let options = crate::cli::args::Args::command();
        for arg in options.get_arguments().filter(|arg| !arg.is_hide_set()) {
            if let Some(long) = arg.get_long() {
                let long = long.replace('-', "\\-");
                assert!(page.contains(&format!("\\-\\-{long}\\fR")), "{long}");
            }
        }
        for (name, _) in guide::PAGES {
            let name = name.replace('-', "\\-");
            assert!(page.contains(&format!("fastcp\\-{name}(7)")), "{name}");
        }
    }
}

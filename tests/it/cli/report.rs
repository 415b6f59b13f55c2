//! The page of `--report`.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::Path;
use std::time::Duration;

use flate2::read::ZlibDecoder;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::host::find_program;
use crate::support::slow;
use crate::support::*;

ways! { local_push, local_pull, local_between, here => a_copy_is_one_page }

ways! { local_push =>
    a_copy_that_a_signal_ends_has_its_page,
    a_page_that_cannot_be_written_at_the_end_fails_no_copy,
    a_browser_draws_it,
}

ways! { here => a_page_that_cannot_be_written_is_refused_first }

/// The headings of a copy to one destination.
const HEADINGS: [&str; 9] = [
    "Over time",
    "Throughput",
    "Throughput of each connection",
    "What was busy",
    "Compression",
    "Connections and retries",
    "Largest files",
    "Slowest files",
    "About this page",
];

/// Elements that have no end tag.
const VOID: [&str; 2] = ["meta", "!DOCTYPE"];

/// Reads the page. Each of its elements ends, and nothing in it is run or loaded.
#[track_caller]
pub(super) fn page(path: &Path) -> String {
    let page = fs::read_to_string(path).expect("a page in UTF-8");
    assert!(page.starts_with("<!DOCTYPE html>\n"));
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.split([' ', '/']).next().expect("a name");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') || VOID.contains(&name) => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, [""; 0]);
    let harmless = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for word in [
        "<script",
        "javascript:",
        "://",
        "href",
        "src=",
        "url(",
        "@import",
        " onload",
    ] {
        assert!(!harmless.contains(word), "{word}");
    }
    assert!(!page.contains(|c: char| c.is_control() && c != '\n'));
    page
}

/// The page has this text.
#[track_caller]
pub(super) fn assert_shows(page: &str, text: &str) {
    if page.contains(text) {
        return;
    }
    // Without the drawings, which are long.
    let (_, body) = page.split_once("<body>").expect("a body");
    let parts = body
        .split("<svg ")
        .map(|part| match part.split_once("</svg>") {
            Some((_, rest)) => rest,
            None => part,
        });
    let body: String = parts.collect();
    panic!("no {text:?}: {body}");
}

/// The page has these figures of the event `end`.
#[track_caller]
fn assert_has_figures(page: &str, end: &Value) {
    for name in [
        "files",
        "bytes",
        "wire_bytes",
        "seconds",
        "data_seconds",
        "bytes_per_s",
        "streams",
    ] {
        let attribute = format!(" data-{}=\"", name.replace('_', "-"));
        let figure = page
            .split_once(&attribute)
            .and_then(|it| it.1.split_once('"'));
        let (figure, _) = figure.unwrap_or_else(|| panic!("no {name}"));
        match (end[name].as_u64(), end[name].as_f64()) {
            (Some(exact), _) => assert_eq!(figure, exact.to_string(), "{name}"),
            (None, of_end) => {
                // It was read from text, which may change the last digit.
                let (figure, of_end) = (figure.parse::<f64>(), of_end.expect("a number"));
                assert!(figure.is_ok_and(|it| (it - of_end).abs() < 1e-6), "{name}");
            }
        }
    }
}

fn a_copy_is_one_page(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("big", noise(1, 4 * MIB));
    let odd = OsStr::from_bytes(b"<b>&\"'\x1b\n\xff");
    tree.file(odd, "small");
    let report = case.scratch.file("report.html", "<!DOCTYPE html>old");
    let name = report.to_str().expect("text");
    // Long enough that the sending end tells what it does.
    let flags = ["-a", "-l", "20000", "--json", "--report", name];
    let done = case.copy(&flags, "tree", "");
    done.succeeds();
    let page = page(&report);
    for heading in HEADINGS {
        assert_shows(&page, &format!(">{heading}</h"));
    }
    assert_shows(&page, ">complete</span>");
    assert_has_figures(&page, &done.end());
    let escaped = r"<td><code>tree/&lt;b&gt;&amp;&quot;&#39;\x1b\n\xff</code></td>";
    assert_shows(&page, escaped);
    assert_shows(&page, "<td><code>tree/big</code></td>");
    let slowest = page.split_once("Slowest files").expect("the heading").1;
    match case.way.is_between() {
        true => assert!(slowest.contains("Not known here"), "{slowest}"),
        false => assert!(slowest.contains("tree/big</code>"), "{slowest}"),
    }
    // In two widths: what moved, what was busy; and what went over connections.
    let drawings = page.matches("<svg ").count();
    assert!(drawings >= 4, "{drawings}");
    if case.way != Way::Here {
        let connections = "aria-label=\"Throughput of each connection\"";
        assert_eq!(page.matches(connections).count(), 2);
    }
    let mode = case.scratch.mode_of("report.html");
    assert_eq!(mode & 0o644, 0o644, "{mode:o}");
    let left = fs::read_dir(&case.scratch.0).expect("list it").count();
    assert_eq!(left, 1, "temporary files");
}

fn a_copy_that_a_signal_ends_has_its_page(case: &Case) {
    let report = case.scratch.path("report.html");
    let name = report.to_str().expect("text");
    let running = slow::started(case, 20 * MIB, &["--json", "--report", name]);
    running.signal(Signal::INT);
    let done = running.wait();
    let page = page(&report);
    assert_shows(&page, ">interrupted</span>");
    assert_shows(&page, "(exit code 130)</p>");
    assert_has_figures(&page, &done.exits(130).end());
    case.dst.sweep();
    let done = case.copy(&["--report", name], "none", "a");
    done.exits(9);
    let page = self::page(&report);
    assert_shows(&page, ">incomplete</span>");
    assert_shows(&page, "none: no such file or directory</li>");
}

fn a_page_that_cannot_be_written_at_the_end_fails_no_copy(case: &Case) {
    let dir = case.scratch.dir("gone");
    let report = dir.path("report.html");
    let name = report.to_str().expect("text");
    let running = slow::started(case, 10 * MIB, &["-q", "--report", name]);
    fs::remove_dir(&dir.0).expect("it is empty");
    let told =
        format!("fastcp: {name}: the report was not written (--report): no such file or directory");
    running.wait().succeeds().says(&told);
}

fn a_page_that_cannot_be_written_is_refused_first(case: &Case) {
    case.src.file("a", "x");
    let missing = case.scratch.path("none/report.html");
    case.scratch.dir("directory");
    for (file, why) in [
        (missing, "no such file or directory"),
        (case.scratch.path("directory"), "it is not a regular file"),
        (case.scratch.path("new/"), "no such file or directory"),
        ("/dev/null".into(), "it is not a regular file"),
        ("/dev/stdout".into(), "it is an open file of this process"),
    ] {
        let file = file.to_str().expect("text");
        let done = case.copy(&["--report", file], "a", "a");
        let told = format!("fastcp: {file}: cannot write the report (--report): {why}");
        done.exits(8).says(&told);
        assert!(!case.dst.has("a"), "nothing was to be copied");
    }
    case.copy(&["--report", "-"], "a", "a").exits(2).says("./-");
    let done = case.fastcp().args(["--probe", "--report", "x"]).run();
    done.exits(2).says("--report shows a copy");
    // Without FILE, the source takes its place.
    let source = case.src.path("a");
    let done = case.copy(&["--report", source.to_str().expect("text")], "a", "a");
    done.exits(8).says("it has other content than a page");
    assert_eq!(case.src.read("a"), b"x");
    // A link stays, and so does the mode of an existing page.
    let target = case.scratch.path("target");
    let link = case.scratch.link("link.html", "target");
    let link = link.to_str().expect("text");
    case.copy(&["--report", link], "a", "a").succeeds();
    case.scratch.mode("target", 0o600);
    case.copy(&["--report", link], "a", "a").succeeds();
    assert!(page(&target).contains("</html>"));
    assert_eq!(case.scratch.meta("target").mode() & 0o777, 0o600);
    assert!(fs::symlink_metadata(link).expect("the link").is_symlink());
    // Another user may have planted it.
    if rustix::process::geteuid().is_root() {
        lchown(link, Some(12345), None).expect("give it away");
        let done = case.copy(&["--report", link], "a", "b");
        done.exits(8)
            .says("link.html is a symbolic link of another user (uid 12345)");
        assert!(!case.dst.has("b"), "nothing was to be copied");
    }
}

/// Not in CI, where there is no browser.
fn a_browser_draws_it(case: &Case) {
    let Some(browser) = find_program("chromium") else {
        return lacks("chromium");
    };
    case.src.file("a", noise(1, 5 * MIB));
    let report = case.scratch.path("report.html");
    let name = report.to_str().expect("text");
    let flags = ["-l", "20000", "--memory", "16Mi", "--report", name];
    case.copy(&flags, "a", "a").succeeds();
    page(&report);
    // A window cannot be as narrow as a phone.
    let frame = "<body style='margin: 0'><iframe src='report.html' style='width: 380px; \
                 height: 2900px; border: 0'></iframe>";
    let phone = case.scratch.file("phone.html", frame);
    let home = case.scratch.dir("home");
    let shot = |file: &Path, width: u32, is_dark: bool| {
        let picture = case.scratch.path("picture.png");
        let scheme = u8::from(!is_dark);
        Run::new(&browser, &case.scratch.0)
            .env("HOME", &home.0)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .arg(format!("--window-size={width},2900"))
            .arg(format!("--screenshot={}", picture.display()))
            .arg(file)
            .limit(Duration::from_secs(60))
            .run()
            .succeeds();
        Picture::read(&picture)
    };
    // The lines of throughput on disk and on the wire, of the ratio, and of the number of
    // connections, whose colours busy stages have too; and the fastest cell of a connection.
    let light = shot(&report, 1000, false);
    let colours = [0x1f6fb8, 0xd06a10, 0x2f8f57, 0x8456b8, 0x0d4f8b];
    light.has(0xffffff, colours, 500);
    let dark = shot(&phone, 500, true);
    let colours = [0x58a6ff, 0xf0a04b, 0x56c27f, 0xb78cf0, 0x9ad0ff];
    dark.has(0x0d1117, colours, 200);
    assert_eq!(dark.reaches(0x0d1117), 379, "it is as wide as the frame");
}

/// The pixels of a picture.
struct Picture {
    width: usize,
    /// Red, green and blue.
    pixels: Vec<u32>,
}

impl Picture {
    /// Reads a PNG as browsers write it: 8 bits of each colour, not interlaced.
    fn read(path: &Path) -> Picture {
        let png = fs::read(path).expect("a picture");
        let mut rest = &png[8..];
        let (mut header, mut packed) = (&rest[..0], Vec::new());
        while let Some((size, after)) = rest.split_first_chunk::<4>() {
            let size = u32::from_be_bytes(*size) as usize;
            let (kind, body) = (&after[..4], &after[4..4 + size]);
            match kind {
                b"IHDR" => header = body,
                b"IDAT" => packed.extend_from_slice(body),
                _ => {}
            }
            rest = &after[8 + size..];
        }
        let width = u32::from_be_bytes(header[..4].try_into().expect("4 bytes")) as usize;
        let each = match header[8..] {
            [8, 2, 0, 0, 0] => 3,
            [8, 6, 0, 0, 0] => 4,
            _ => panic!("another kind of picture: {header:?}"),
        };
        let mut bytes = Vec::new();
        let mut unpacked = ZlibDecoder::new(&packed[..]);
        unpacked.read_to_end(&mut bytes).expect("packed pixels");
        let mut above = vec![0_u8; width * each];
        let mut pixels = Vec::new();
        for line in bytes.chunks_exact(1 + width * each) {
            let mut row = line[1..].to_vec();
            for at in 0..row.len() {
                let left = if at < each { 0 } else { row[at - each] };
                let corner = if at < each { 0 } else { above[at - each] };
                row[at] = row[at].wrapping_add(match line[0] {
                    0 => 0,
                    1 => left,
                    2 => above[at],
                    3 => ((u16::from(left) + u16::from(above[at])) / 2) as u8,
                    _ => nearest(left, above[at], corner),
                });
            }
            let pixel = |it: &[u8]| u32::from_be_bytes([0, it[0], it[1], it[2]]);
            pixels.extend(row.chunks_exact(each).map(pixel));
            above = row;
        }
        Picture { width, pixels }
    }

    fn count(&self, colour: u32) -> usize {
        self.pixels.iter().filter(|pixel| **pixel == colour).count()
    }

    /// Most of it is the ground, and each of the colours has this many pixels.
    #[track_caller]
    fn has(&self, ground: u32, colours: [u32; 5], least: usize) {
        let all = self.pixels.len();
        assert!(self.count(ground) > all / 3, "{}", self.count(ground));
        let counts = colours.map(|colour| (format!("{colour:06x}"), self.count(colour)));
        assert!(counts.iter().all(|it| it.1 >= least), "{counts:?}");
    }

    /// The last column in which the colour is.
    fn reaches(&self, colour: u32) -> usize {
        let rows = self.pixels.chunks_exact(self.width);
        let last = rows.filter_map(|row| row.iter().rposition(|pixel| *pixel == colour));
        last.max().expect("the colour")
    }
}

/// PNG's choice of the neighbour that is nearest to left + above - corner.
fn nearest(left: u8, above: u8, corner: u8) -> u8 {
    let (a, b, c) = (i16::from(left), i16::from(above), i16::from(corner));
    let (to_left, to_above, to_corner) = ((b - c).abs(), (a - c).abs(), (a + b - 2 * c).abs());
    if to_left <= to_above && to_left <= to_corner {
        left
    } else if to_above <= to_corner {
        above
    } else {
        corner
    }
}

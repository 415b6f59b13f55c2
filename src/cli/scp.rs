//! scp's command line (`--scp`, or this program under the name scp): its letters, read as scp reads
//! them, and the steps that scp takes for the operands, one after the other.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Parser;

use crate::error::{Error, Kind, Result, Side};
use crate::session::schedule::Wait;
use crate::session::{EndKind, Operand, Rsh};
use crate::source;
use crate::ui::Output;
use crate::units::printable;

use super::args::Args;
use super::check::Order;
use super::exit::{SCP_ERROR, SCP_FATAL, ScpExit};
use super::operand;
use super::request::{rate_limit, request};

/// The option that precedes scp's own.
const FLAG: &str = "--scp";

/// scp's letters with a value, and those without.
const WITH_VALUE: &[u8] = b"DFJPSciloX";
const ALONE: &[u8] = b"12346ABCOTRdfpqrstv";

const USAGE: &str = "\
usage: scp [-346ABCOpqRrsTv] [-c cipher] [-D sftp_server_path] [-F ssh_config]
           [-i identity_file] [-J destination] [-l limit] [-o ssh_option]
           [-P port] [-S program] [-X sftp_option] source ... target
";

/// Long options that copy nothing. A program under the name scp has them too: fastcp starts itself
/// on the far host under the name that it finds there.
const COPY_NOTHING: [&[u8]; 11] = [
    b"--help",
    b"--man",
    b"--completions",
    b"--licenses",
    b"--version",
    b"--remove",
    b"--show-config",
    b"--server",
    b"--speaks",
    b"--syncfs",
    b"--placed",
];

/// Largest value of `-X buffer` and `-X nrequests`.
const SFTP_MAX: u64 = 256 << 10;

/// How long a copy waits for another one to the same place.
const WAIT: Duration = Duration::from_secs(300);

/// Largest value of `-l`, in Kbit/s.
const KBIT_MAX: u64 = 100 << 20;

/// The words of scp's command line, if `words` (with the program's name) ask for it. A program under
/// the name scp answers long options that copy nothing as usual, such as `--help`; scp has none.
pub(super) fn line(mut words: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let program = words.next()?;
    let is_scp = Path::new(&program).file_name() == Some(OsStr::new("scp"));
    let mut line: Vec<_> = words.collect();
    let first = line.first().map_or(&b""[..], |word| word.as_bytes());
    if first == FLAG.as_bytes() {
        line.remove(0);
        return Some(line);
    }
    let name = first.split(|byte| *byte == b'=').next().unwrap_or(first);
    (is_scp && !COPY_NOTHING.contains(&name)).then_some(line)
}

/// Why scp does not begin, with its exit code.
#[derive(Debug)]
pub(super) struct Refused {
    pub message: String,
    pub code: i32,
    /// What scp on another host reads from stdout as the error of its partner.
    pub for_partner: Option<String>,
}

impl Refused {
    fn usage(message: impl std::fmt::Display) -> Refused {
        Refused {
            message: format!("fastcp: {message}\n{USAGE}"),
            code: SCP_ERROR,
            for_partner: None,
        }
    }

    fn fatal(message: impl std::fmt::Display) -> Refused {
        Refused {
            message: format!("fastcp: {message}\n"),
            code: SCP_FATAL,
            for_partner: None,
        }
    }

    /// For `-t` and `-f`, with which scp of another host starts scp here (`scp -O`).
    fn old_protocol() -> Refused {
        let why =
            "fastcp, which is installed as scp here, does not speak the old protocol of scp -O";
        Refused {
            message: format!("fastcp: {why}\n"),
            code: SCP_ERROR,
            // The byte announces a fatal error.
            for_partner: Some(format!("\x02scp: {why}\n")),
        }
    }
}

/// scp's command line, parsed.
#[derive(Debug, Default)]
pub(super) struct ScpLine {
    /// The letters without a value, as often as they were given.
    letters: Vec<u8>,
    identities: Vec<OsString>,
    options: Vec<String>,
    config: Option<OsString>,
    jump: Option<String>,
    cipher: Option<String>,
    program: Option<OsString>,
    port: Option<u16>,
    kbit: Option<u64>,
    /// `-D`: no ssh, and the other end is on this machine.
    sftp_server: bool,
    sources: Vec<OsString>,
    dest: OsString,
}

/// One of the steps that scp takes. A later one may depend on what an earlier one has made.
pub(super) enum ScpStep {
    Copy(Box<Order>),
    /// Between two paths of this machine.
    Cp(CpCommand),
    /// Nothing is copied.
    Failed(Error, ScpExit),
}

/// The program that scp runs for two paths of this machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CpCommand {
    words: Vec<OsString>,
}

impl CpCommand {
    /// Blocks until it has ended. It tells its errors itself.
    pub(super) fn run(&self) -> Result<ScpExit> {
        let ran = Command::new("cp").args(&self.words).status();
        let ran =
            ran.map_err(|cause| Error::io(Kind::Entry, Side::Here, "cp", "cannot run it", cause))?;
        Ok(ScpExit::of_entries(ran.success()))
    }
}

impl ScpLine {
    /// Parses the words after the program's name.
    pub(super) fn parse(words: Vec<OsString>) -> Result<ScpLine, Refused> {
        let mut line = ScpLine::default();
        let mut words = words.into_iter().peekable();
        // The first word that is no option ends the options.
        while let Some(word) =
            words.next_if(|word| word.len() > 1 && word.as_bytes().starts_with(b"-"))
        {
            if word == "--" {
                break;
            }
            let mut rest = &word.as_bytes()[1..];
            while let Some((&letter, after)) = rest.split_first() {
                rest = after;
                if WITH_VALUE.contains(&letter) {
                    let value = match rest {
                        [] => words.next(),
                        _ => Some(OsString::from_vec(rest.to_vec())),
                    };
                    let shown = char::from(letter);
                    let value = value
                        .ok_or_else(|| Refused::usage(format!("option -{shown} needs a value")))?;
                    line.set(letter, value)?;
                    break;
                }
                match letter {
                    b't' | b'f' => return Err(Refused::old_protocol()),
                    b'1' => {
                        return Err(Refused::fatal(
                            "-1: ssh no longer speaks protocol version 1",
                        ));
                    }
                    _ if ALONE.contains(&letter) => line.letters.push(letter),
                    _ => {
                        let shown = match word.as_bytes() {
                            long if long.starts_with(b"--") => printable(long),
                            _ => format!("-{}", printable(&[letter])),
                        };
                        return Err(Refused::usage(format!("scp has no option {shown} (--scp)")));
                    }
                }
            }
        }
        line.sources = words.collect();
        match line.sources.pop() {
            Some(dest) if !line.sources.is_empty() => line.dest = dest,
            _ => return Err(Refused::usage("a source and a destination are needed")),
        }
        Ok(line)
    }

    fn set(&mut self, letter: u8, value: OsString) -> Result<(), Refused> {
        let shown = printable(value.as_bytes());
        let text = || {
            let text = value.to_str().map(str::to_owned);
            text.ok_or_else(|| Refused::fatal(format!("-{} {shown}: is not UTF-8", letter as char)))
        };
        match letter {
            b'D' => self.sftp_server = true,
            b'F' => self.config = Some(value),
            b'J' => self.jump = Some(text()?),
            b'S' => self.program = Some(value),
            b'c' => self.cipher = Some(text()?),
            b'i' => self.identities.push(value),
            b'o' => self.options.push(text()?),
            b'P' => {
                let port = value.to_str().and_then(|text| text.parse().ok());
                let port = port.filter(|port| *port > 0);
                let why = || Refused::fatal(format!("-P {shown}: a port is from 1 to 65535"));
                self.port = Some(port.ok_or_else(why)?);
            }
            b'l' => {
                let kbit = value.to_str().and_then(|text| text.parse().ok());
                let kbit = kbit.filter(|kbit| (1..=KBIT_MAX).contains(kbit));
                let why = || {
                    Refused::usage(format!(
                        "-l {shown}: expected a number of Kbit/s from 1 to {KBIT_MAX}"
                    ))
                };
                self.kbit = Some(kbit.ok_or_else(why)?);
            }
            // -X, which is only checked.
            _ => {
                let is_valid = value.to_str().is_some_and(is_sftp_option);
                if !is_valid {
                    return Err(Refused::fatal(format!(
                        "-X {shown}: scp knows -X buffer=SIZE (up to 256K) and -X nrequests=N"
                    )));
                }
            }
        }
        Ok(())
    }

    fn has(&self, letter: u8) -> bool {
        self.letters.contains(&letter)
    }

    fn has_several(&self) -> bool {
        self.sources.len() > 1 || self.has(b'd')
    }

    /// The steps for the operands, in order.
    pub(super) fn steps(&self) -> Vec<ScpStep> {
        let is_of_host = |error: &Error| error.kind == Kind::Connect;
        let dest = match operand::parse_as_scp(self.dest.clone()) {
            Ok(dest) => operand::as_destination(dest),
            Err(error) => {
                let code = if is_of_host(&error) {
                    SCP_FATAL
                } else {
                    SCP_ERROR
                };
                return vec![ScpStep::Failed(error, ScpExit::fatal(code))];
            }
        };
        if dest.host.is_none()
            && let Err(error) = self.check_local(&dest)
        {
            return vec![ScpStep::Failed(error, ScpExit::fatal(SCP_ERROR))];
        }
        let mut steps = Vec::new();
        let mut group: Vec<Operand> = Vec::new();
        for typed in &self.sources {
            let source = match operand::parse_as_scp(typed.clone()) {
                Ok(source) => source,
                Err(error) => {
                    self.copy(&mut group, &dest, &mut steps);
                    if is_of_host(&error) {
                        // scp ends at a host that it does not reach.
                        steps.push(ScpStep::Failed(error, ScpExit::fatal(SCP_FATAL)));
                        return steps;
                    }
                    steps.push(ScpStep::Failed(error, ScpExit::of_entries(false)));
                    continue;
                }
            };
            let is_local = source.host.is_none();
            if group.last().is_some_and(|last| last.host != source.host)
                || group.iter().any(|other| may_meet(other, &source))
            {
                self.copy(&mut group, &dest, &mut steps);
            }
            if is_local && dest.host.is_none() {
                self.copy(&mut group, &dest, &mut steps);
                steps.push(ScpStep::Cp(self.cp(typed)));
                continue;
            }
            let missing = is_local.then(|| std::fs::metadata(&source.typed).err());
            if let Some(cause) = missing.flatten() {
                self.copy(&mut group, &dest, &mut steps);
                // scp ends at the first file that it does not find here.
                let error = Error::io(Kind::Read, Side::Here, typed, "", cause);
                steps.push(ScpStep::Failed(error, ScpExit::fatal(SCP_FATAL)));
                return steps;
            }
            group.push(source);
        }
        self.copy(&mut group, &dest, &mut steps);
        steps
    }

    /// # Errors
    /// If the destination, a path of this machine, is no directory and has to be one.
    fn check_local(&self, dest: &Operand) -> Result<()> {
        let path: &Path = OsStr::from_bytes(&dest.path).as_ref();
        let found = std::fs::metadata(path);
        let what = match found {
            Err(cause) if self.has_several() || dest.path.is_empty() => {
                return Err(Error::io(Kind::Write, Side::Here, path, "", cause));
            }
            Ok(found) if self.has_several() && !found.is_dir() => {
                "is not a directory; several sources or -d need one"
            }
            _ => return Ok(()),
        };
        Err(Error::new(Kind::Write, Side::Here, what).at(path))
    }

    fn cp(&self, source: &OsStr) -> CpCommand {
        let options = [(b'r', "-r"), (b'p', "-p")];
        let options = options.into_iter().filter(|(letter, _)| self.has(*letter));
        let mut words: Vec<OsString> = options.map(|(_, option)| option.into()).collect();
        words.extend(["--".into(), source.to_owned(), self.dest.clone()]);
        CpCommand { words }
    }

    /// Adds the copy of `group`, which is empty afterwards.
    fn copy(&self, group: &mut Vec<Operand>, dest: &Operand, steps: &mut Vec<ScpStep>) {
        if group.is_empty() {
            return;
        }
        steps.push(match self.order(std::mem::take(group), dest.clone()) {
            Ok(order) => ScpStep::Copy(Box::new(order)),
            Err(error) => ScpStep::Failed(error, ScpExit::fatal(SCP_ERROR)),
        });
    }

    fn order(&self, sources: Vec<Operand>, dest: Operand) -> Result<Order> {
        let args = self.args();
        let output = Output {
            quiet: args.quiet,
            verbose: args.verbose > 0,
            names_files: args.names_files(),
            summary: false,
            progress: None,
            plain: dest.what != EndKind::Path,
            json: false,
            changes: false,
            check: false,
        };
        let rate_limit = rate_limit(&args)?;
        let mut request = request(args, sources, dest, rate_limit)?;
        request.options.scp = true;
        request.options.is_beside = self.has_several();
        // Two copies to one name at once both succeed, as scp's do.
        request.schedule.wait = Wait::For(WAIT);
        // The later letter wins.
        let way = self.letters.iter().rfind(|letter| b"3R".contains(letter));
        request.route.through_here = way != Some(&b'R');
        let mut ignored = self.ignored();
        if request.hosts().is_some() && !request.route.through_here {
            ignored.push(
                "-R: data may go directly between the hosts; this machine logs in to both".into(),
            );
        }
        Ok(Order {
            log_file: None,
            report: None,
            request,
            output,
            warnings: Vec::new(),
            ignored,
        })
    }

    /// The same wishes as arguments of a usual copy.
    fn args(&self) -> Args {
        let mut args = Args::parse_from(["fastcp"]);
        let count = |letter| {
            self.letters
                .iter()
                .filter(|given| **given == letter)
                .count()
        };
        args.recursive = self.has(b'r');
        args.preserve = self.has(b'p');
        args.quiet = self.has(b'q');
        args.verbose = u8::try_from(count(b'v')).unwrap_or(u8::MAX);
        args.ipv4 = self.has(b'4');
        args.ipv6 = self.has(b'6');
        args.batch = self.has(b'B');
        args.forward_agent = self.has(b'A');
        args.port = self.port;
        args.limit_kbit_per_s = self.kbit;
        args.identities = self.identities.iter().map(Into::into).collect();
        args.config = self.config.clone().map(Into::into);
        args.program = self.program.clone().map(Into::into);
        args.options.clone_from(&self.options);
        args.jump.clone_from(&self.jump);
        args.cipher.clone_from(&self.cipher);
        if self.sftp_server {
            args.rsh = Rsh::Local;
        }
        // scp writes into existing files even if others have them open, and copies changing files.
        args.inplace = true;
        args.force = true;
        args.live = true;
        args
    }

    /// A line for each letter that means nothing here.
    fn ignored(&self) -> Vec<String> {
        let letters = [
            (b'C', "compression is automatic"),
            (b'O', "fastcp uses its own protocol"),
            (b's', "fastcp uses its own protocol"),
            (b'T', "names are always checked"),
        ];
        let given = letters.iter().filter(|(letter, _)| self.has(*letter));
        given
            .map(|(letter, why)| format!("-{} has no effect: {why}", char::from(*letter)))
            .collect()
    }
}

/// True for a value of `-X` that scp accepts.
fn is_sftp_option(value: &str) -> bool {
    let number = |text: &str, unit: u64| {
        let number: Option<u64> = text.parse().ok();
        let number = number.and_then(|number| number.checked_mul(unit));
        number.is_some_and(|number| (1..=SFTP_MAX).contains(&number))
    };
    match value.split_once('=') {
        Some(("nrequests", text)) => number(text, 1),
        Some(("buffer", text)) => match text.strip_suffix(['k', 'K']) {
            Some(text) => number(text, 1 << 10),
            None => number(text, 1),
        },
        _ => false,
    }
}

/// True if the copies of two sources may get one name. scp then overwrites the first one.
fn may_meet(one: &Operand, other: &Operand) -> bool {
    let last = |operand: &Operand| {
        let path = &operand.path[..];
        let end = path.iter().rposition(|byte| *byte != b'/');
        let path = &path[..end.map_or(0, |end| end + 1)];
        // The contents of a directory have any name.
        source::name_in_copy(path).map(<[u8]>::to_vec)
    };
    let is_open = |operand: &Operand| operand.host.is_some() && source::is_pattern(&operand.path);
    match (last(one), last(other)) {
        _ if is_open(one) || is_open(other) => true,
        (Some(one), Some(other)) => one == other,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    fn parsed(text: &str) -> ScpLine {
        ScpLine::parse(words(text)).unwrap_or_else(|refused| panic!("{text}: {}", refused.message))
    }

    #[test]
    fn the_name_or_a_first_flag_makes_it_scp() {
        for (typed, is_scp) in [
            ("scp a h:", true),
            ("/usr/bin/scp -- a h:", true),
            ("scp", true),
            ("fastcp --scp a h:", true),
            ("fastcp a h:", false),
            ("fastcp -r --scp a h:", false),
            ("scp --server", false),
            ("scp --placed 0 --server", false),
            ("scp --completions=bash", false),
            ("scp --json a h:", true),
            ("scp --helpless a h:", true),
            ("scp --version", false),
            ("/bin/fastcp", false),
        ] {
            let found = line(words(typed).into_iter());
            assert_eq!(found.is_some(), is_scp, "{typed}");
            assert!(found.unwrap_or_default().iter().all(|word| word != FLAG));
        }
    }

    #[test]
    fn letters_are_read_as_getopt_reads_them() {
        let line = parsed("-rpP 2222 -vvl8 -oBatchMode=yes -i a -ib -d x -q h:");
        assert_eq!((line.port, line.kbit), (Some(2222), Some(8)));
        assert_eq!(line.options, ["BatchMode=yes"]);
        assert_eq!(line.identities, ["a", "b"]);
        assert_eq!(line.sources, ["x", "-q"]);
        let args = line.args();
        assert!(args.recursive && args.preserve && !args.quiet);
        assert_eq!(args.verbose, 2);
        assert_eq!(parsed("-- -r h:").sources, ["-r"]);
        assert_eq!(parsed("- h:").sources, ["-"]);
    }

    #[test]
    fn what_scp_refuses_has_scps_exit_code() {
        for (typed, code, told) in [
            ("a", 1, "a source and a destination"),
            ("-n a h:", 1, "no option -n"),
            ("--json a h:", 1, "no option --json (--scp)"),
            ("-P", 1, "option -P needs a value"),
            ("-P 0 a h:", 255, "a port is from 1"),
            ("-l x a h:", 1, "a number of Kbit/s"),
            ("-X window=1 a h:", 255, "-X buffer=SIZE"),
            ("-X buffer=x a h:", 255, "-X buffer=SIZE"),
            ("-X buffer=257k a h:", 255, "-X buffer=SIZE"),
            ("-X nrequests=0 a h:", 255, "nrequests=N"),
            ("-1 a h:", 255, "protocol version 1"),
            ("-t d", 1, "the old protocol"),
        ] {
            let refused = ScpLine::parse(words(typed)).expect_err(typed);
            assert_eq!(refused.code, code, "{typed}");
            assert!(refused.message.contains(told), "{}", refused.message);
        }
        let partner = ScpLine::parse(words("-r -f x")).expect_err("the old protocol");
        assert!(
            partner
                .for_partner
                .is_some_and(|line| line.starts_with("\x02scp: "))
        );
    }

    /// The steps as `source,source>dest`, with `@` for a copy through this machine.
    fn steps(text: &str) -> Vec<String> {
        let name = |operand: &Operand| operand.typed.to_string_lossy().into_owned();
        let shown = |step: ScpStep| match step {
            ScpStep::Copy(order) => {
                let request = &order.request;
                let sources: Vec<_> = request.sources.iter().map(name).collect();
                let way = match request.hosts() {
                    Some(_) if request.route.through_here => "@",
                    _ => ">",
                };
                format!("{}{way}{}", sources.join(","), name(&request.dest))
            }
            ScpStep::Cp(cp) => format!("cp {}", cp.words.join(OsStr::new(" ")).display()),
            ScpStep::Failed(_, exit) => {
                format!("{}{}", exit.code, if exit.ends { "!" } else { "" })
            }
        };
        parsed(text).steps().into_iter().map(shown).collect()
    }

    #[test]
    fn operands_are_copied_in_scps_order() {
        for (typed, wanted) in [
            (
                "/etc/passwd /etc/group h:",
                &["/etc/passwd,/etc/group>h:"][..],
            ),
            (
                "/etc/passwd /no/file /etc/group h:",
                &["/etc/passwd>h:", "255!"],
            ),
            ("h:a h:b i:c /tmp", &["h:a,h:b>/tmp", "i:c>/tmp"]),
            ("h:a h:d/a /tmp", &["h:a>/tmp", "h:d/a>/tmp"]),
            ("h:d/a/ h:a /tmp", &["h:d/a/>/tmp", "h:a>/tmp"]),
            ("h:*.x h:b /tmp", &["h:*.x>/tmp", "h:b>/tmp"]),
            ("h:a b /tmp", &["h:a>/tmp", "cp -- b /tmp"]),
            ("-rp a b", &["cp -r -p -- a b"]),
            ("h:a h:b /no/dir", &["1!"]),
            ("h:a h:b /etc/passwd", &["1!"]),
            ("h:a i:", &["h:a@i:"]),
            ("-3 h:a i:", &["h:a@i:"]),
            ("-R h:a i:", &["h:a>i:"]),
            ("-R3 h:a i:", &["h:a@i:"]),
            ("-3R h:a i:", &["h:a>i:"]),
            ("@h:a h:b /tmp", &["1", "h:b>/tmp"]),
            ("u@:a h:b /tmp", &["255!"]),
            ("/etc/passwd u@:", &["255!"]),
        ] {
            assert_eq!(steps(typed), wanted, "{typed}");
        }
    }
}

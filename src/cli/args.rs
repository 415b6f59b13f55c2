//! The command line as typed: scp's letters with scp's meanings, some of rsync's, and long flags.
//! [`values`](super::values) checks each value, [`check`](super::check) checks combinations.

// The texts of the flags have defaults in brackets.
#![allow(rustdoc::broken_intra_doc_links)]

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser};
use clap_complete::Shell;

use crate::error::{Error, Result};
use crate::session::{Compress, Ports, Route, Rsh};
use crate::units;

use super::completions;
use super::earlier_args::EarlierArgs;
use super::forced_command::Permits;
use super::keep_args::KeepArgs;
use super::mirror_args::MirrorArgs;
use super::rule_args::{CHOOSING, RuleArgs};
use super::schedule_args::ScheduleArgs;
use super::values::{
    RateArgument, address, age, compress, congestion, idle, interval, kbit, memory, ports, rate,
    retry_for, route, rsh, timeout, user,
};

const USAGE: &str = "fastcp [OPTIONS] SOURCE... DEST";

const ABOUT: &str = "\
Copies files between hosts like scp: compressed, encrypted and verified, over
parallel streams. SOURCE and DEST are [USER@]HOST:PATH, a local PATH (./a:b if
it has a colon), scp://[USER@]HOST[:PORT]/PATH or - for stdin and stdout.";

const AFTER: &str = "\
Topics: scp rsync destination archive mirror dry-run check choosing pipes
devices many-hosts backups snapshots database-moves routes tuning resume
exit-codes events install config confined-keys security changelog developing

Accepted without effect: -C -O -R -s -T -D -X

Exit codes: 0 complete and verified; 1 other or several reasons; 2 usage;
3 no connection or login; 4 a host cannot run fastcp; 5 lost connection;
6 verification failed; 7 source changed; 8 no space or write error; 9 source
missing or unreadable; 10 a command failed; 11 refused to replace a file or
device; 12 another fastcp writes there; 13 internal error; 14 a file grew;
15 stopped at the set time; 128+n signal n

Examples:
  fastcp big.iso host:                    into the remote home directory
  fastcp -r host:/var/db .                a remote directory, as ./db
  fastcp -r db/ host:/data/db             the content of db, into /data/db
  fastcp -r db1:/srv/x db2:/srv           between hosts, directly if possible
  fastcp -P 2222 'me@host:*.log' logs/    remote files that match
  pg_dump x | fastcp - host:x.sql         a pipe (- as destination: stdout)
  fastcp --rsh local -r a anyhost:/tmp/b  a trial on this machine, without ssh";

const COPYING: &str = "Copying";
const STREAMS: &str = "Pipes and commands";
const METADATA: &str = "Metadata and links";
pub(super) const SSH: &str = "ssh";
pub(super) const DATA: &str = "Data";
const OUTPUT: &str = "Output";

#[derive(Debug, Parser)]
#[command(
    name = "fastcp",
    about = ABOUT,
    override_usage = USAGE,
    after_help = AFTER,
    help_template = "{about}\n\n{usage-heading} {usage}\n\n{all-args}{after-help}",
    // Lines are laid out for 80 columns, so a wider terminal must not reflow them.
    max_term_width = 80,
    // As with getopt, the last of two values counts.
    args_override_self = true,
    disable_help_flag = true,
    disable_version_flag = true
)]
pub(super) struct Args {
    #[arg(hide = true)]
    pub operands: Vec<OsString>,

    /// Do as scp does; must come first (see --help scp)
    #[arg(long, help_heading = COPYING)]
    pub scp: bool,
    /// Copy directories recursively
    #[arg(short = 'r', long, help_heading = COPYING)]
    pub recursive: bool,
    /// Change nothing; show what would be done
    #[arg(short = 'n', long, help_heading = COPYING)]
    pub dry_run: bool,
    /// Compare with DEST or LIST; exit 1 if unequal
    #[arg(long, value_name = "LIST", help_heading = COPYING, num_args = 0..=1,
          require_equals = true)]
    pub check: Option<Option<OsString>>,
    /// Also copy to DEST (repeatable)
    #[arg(long, value_name = "DEST", help_heading = COPYING)]
    pub also: Vec<OsString>,
    /// Also copy to each DEST in FILE, one per line
    #[arg(long, value_name = "FILE", help_heading = COPYING)]
    pub also_from: Option<PathBuf>,
    /// Keep existing files; exit 11 if one differs
    #[arg(long, help_heading = COPYING)]
    pub no_clobber: bool,
    /// Copy to DEST, never to DEST/NAME
    #[arg(long, help_heading = COPYING)]
    pub no_target_directory: bool,
    /// Make missing directories of DEST
    #[arg(long, help_heading = COPYING)]
    pub mkpath: bool,
    /// Sync files and names to disk before exit 0
    #[arg(long, help_heading = COPYING)]
    pub fsync: bool,
    /// Do not resume an interrupted copy
    #[arg(long, help_heading = COPYING)]
    pub no_resume: bool,
    /// Resume without verifying data of earlier runs
    #[arg(long, help_heading = COPYING)]
    pub trust_partial: bool,
    /// Remove leftovers of copies in [HOST:]DIR; -n: list
    #[arg(long, help_heading = COPYING)]
    pub clean: bool,
    /// Write in place; a failure may leave half a file
    #[arg(long, help_heading = COPYING)]
    pub inplace: bool,
    /// Send changed files whole, without comparing them
    #[arg(short = 'W', long, overrides_with = "no_whole_file", help_heading = COPYING)]
    whole_file: bool,
    #[arg(long, hide = true, overrides_with = "whole_file")]
    no_whole_file: bool,
    /// Overwrite files in use; let --delete ignore errors
    #[arg(long, help_heading = COPYING)]
    pub force: bool,
    /// Bypass the page cache on block devices, or fail
    #[arg(long, help_heading = COPYING)]
    pub direct_io: bool,
    /// Copy files that change while they are read
    #[arg(long, help_heading = COPYING)]
    pub live: bool,
    /// Keep SOURCE's path below DEST (from /./, if any)
    #[arg(long, help_heading = COPYING)]
    pub relative: bool,
    /// Do not change existing parents of copied files
    #[arg(long, help_heading = COPYING)]
    pub no_implied_dirs: bool,
    /// Write a list of digests for --check=LIST or b3sum
    #[arg(long, value_name = "FILE", help_heading = COPYING)]
    pub digests: Option<PathBuf>,

    /// Copy FROM, a part of SOURCE, to TO (repeatable)
    #[arg(long, value_name = "FROM=TO", help_heading = CHOOSING)]
    pub map: Vec<OsString>,
    /// Copy files below SOURCE named in LIST (-: stdin)
    #[arg(long, value_name = "LIST", help_heading = CHOOSING, allow_hyphen_values = true)]
    pub files_from: Option<OsString>,
    /// NUL, not newline, ends items of LIST and rules
    #[arg(short = '0', long = "from0", help_heading = CHOOSING)]
    pub from0: bool,
    #[command(flatten)]
    pub rules: RuleArgs,
    /// Leave out what CVS ignores: *.o, *~, .git/ ...
    #[arg(long, help_heading = CHOOSING)]
    pub cvs_exclude: bool,
    /// Leave out files larger than SIZE
    #[arg(long, value_name = "SIZE", help_heading = CHOOSING, value_parser = units::parse_size)]
    pub max_size: Option<u64>,
    /// Leave out files smaller than SIZE
    #[arg(long, value_name = "SIZE", help_heading = CHOOSING, value_parser = units::parse_size)]
    pub min_size: Option<u64>,
    /// Leave out files modified more than AGE ago (7d)
    #[arg(long, value_name = "AGE", help_heading = CHOOSING, value_parser = age)]
    pub max_age: Option<Duration>,
    /// Leave out files modified less than AGE ago
    #[arg(long, value_name = "AGE", help_heading = CHOOSING, value_parser = age)]
    pub min_age: Option<Duration>,
    /// Do not enter other file systems
    #[arg(short = 'x', long, help_heading = CHOOSING)]
    pub one_file_system: bool,

    /// Copy the output of CMD, which runs here or at HOST:
    #[arg(long, value_name = "CMD", help_heading = STREAMS)]
    pub from_command: Option<OsString>,
    /// Pipe data into CMD, which runs here or at HOST:
    #[arg(long, value_name = "CMD", help_heading = STREAMS)]
    pub to_command: Option<OsString>,
    /// Expected length of a pipe; length for /dev/zero
    #[arg(long, value_name = "SIZE", help_heading = STREAMS, value_parser = units::parse_size)]
    pub size: Option<u64>,
    /// Keep the received part of a pipe that was cut off
    #[arg(long, help_heading = STREAMS)]
    pub spool: bool,
    /// Let an empty pipe replace a non-empty file
    #[arg(long, help_heading = STREAMS)]
    pub allow_empty: bool,
    /// Follow a growing file until idle [1min] or SIGUSR2
    #[arg(long = "follow", value_name = "IDLE", help_heading = STREAMS, num_args = 0..=1,
          require_equals = true, default_missing_value = "1min", value_parser = idle)]
    pub follow_ms: Option<u64>,

    /// Keep modes and times; set-id bits if same owner
    #[arg(short = 'p', long, help_heading = METADATA)]
    pub preserve: bool,
    /// Follow symbolic links in directories
    #[arg(short = 'L', help_heading = METADATA)]
    pub follow_links: bool,
    #[command(flatten)]
    pub keep: KeepArgs,
    #[command(flatten)]
    pub mirror: MirrorArgs,
    #[command(flatten)]
    pub earlier: EarlierArgs,

    #[arg(short = 'P', long, value_name = "PORT", help_heading = SSH,
          value_parser = clap::value_parser!(u16).range(1..), help = "Port")]
    pub port: Option<u16>,
    #[arg(short = 'i', long = "identity", value_name = "FILE", help_heading = SSH,
          help = "Identity (private key)")]
    pub identities: Vec<PathBuf>,
    #[arg(short = 'F', value_name = "FILE", help_heading = SSH, help = "ssh's configuration")]
    pub config: Option<PathBuf>,
    #[arg(short = 'J', value_name = "HOST", help_heading = SSH, help = "Jump host")]
    pub jump: Option<String>,
    #[arg(short = 'o', value_name = "OPTION", help_heading = SSH, help = "Option as in ssh_config")]
    pub options: Vec<String>,
    #[arg(short = 'c', value_name = "CIPHER", help_heading = SSH, help = "Cipher of the ssh login")]
    pub cipher: Option<String>,
    #[arg(short = 'S', value_name = "PROGRAM", help_heading = SSH, help = "Program to run instead of ssh")]
    pub program: Option<PathBuf>,
    /// IPv4 only; -6: IPv6 only
    #[arg(short = '4', help_heading = SSH)]
    pub ipv4: bool,
    #[arg(short = '6', hide = true)]
    pub ipv6: bool,
    /// Batch mode: never ask for a password
    #[arg(short = 'B', help_heading = SSH)]
    pub batch: bool,
    /// Forward the ssh agent
    #[arg(short = 'A', help_heading = SSH)]
    pub forward_agent: bool,
    /// Command that runs fastcp on HOST ("sudo -n fastcp")
    #[arg(long, value_name = "CMD", help_heading = SSH)]
    pub remote_path: Option<String>,
    /// Run fastcp on HOST with sudo, as USER [root]
    #[arg(long, value_name = "USER", help_heading = SSH, num_args = 0..=1, require_equals = true,
          default_missing_value = "root", value_parser = user)]
    pub sudo: Option<String>,
    /// Do not install fastcp on HOST if it is missing
    #[arg(long, help_heading = SSH)]
    pub no_install: bool,
    /// Write no line about the copy to HOST's syslog
    #[arg(long, help_heading = SSH)]
    pub no_syslog: bool,
    /// Remove the installed fastcp from HOST: (no copy)
    #[arg(long, help_heading = SSH)]
    pub remove: bool,
    /// How to start fastcp on HOST: ssh, local [ssh]
    #[arg(long, value_name = "HOW", help_heading = SSH, default_value = "ssh", value_parser = rsh(),
          hide_default_value = true, hide_possible_values = true)]
    pub rsh: Rsh,

    /// Limit in Kbit/s
    #[arg(short = 'l', value_name = "KBIT", help_heading = DATA,
          value_parser = kbit)]
    pub limit_kbit_per_s: Option<u64>,
    /// Limit in bytes per second: 40M, or @FILE to read it
    #[arg(long, value_name = "RATE", help_heading = DATA, value_parser = rate,
          conflicts_with = "limit_kbit_per_s")]
    pub bwlimit: Option<RateArgument>,
    /// Give way to other traffic on the link
    #[arg(long, help_heading = DATA)]
    pub polite: bool,
    /// Run at idle CPU and I/O priority at both ends
    #[arg(long, help_heading = DATA)]
    pub nice: bool,
    /// Do not fill the page cache at either end
    #[arg(long, help_heading = DATA)]
    pub drop_cache: bool,
    /// Parallel streams, 1 to 256 [automatic]
    #[arg(long, value_name = "N", help_heading = DATA,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub streams: Option<u16>,
    /// Use only this route: direct, reverse or ssh
    #[arg(long, value_name = "HOW", help_heading = DATA, hide_possible_values = true,
          value_parser = route())]
    pub route: Option<Route>,
    /// Data between two hosts goes through this one
    #[arg(short = '3', help_heading = DATA)]
    pub through_here: bool,
    /// Ports of the listening end, such as 9001-9016
    #[arg(long, value_name = "RANGE", help_heading = DATA, value_parser = ports)]
    pub ports: Option<Ports>,
    /// Address of this machine for data connections
    #[arg(long, value_name = "ADDR", help_heading = DATA)]
    pub bind: Option<IpAddr>,
    /// Connect to ADDR to reach the listening end
    #[arg(long, value_name = "ADDR", help_heading = DATA, value_parser = address)]
    pub address: Option<String>,
    /// auto, none, lz4, zstd[:N], gzip[:N], lzma[:N]
    #[arg(long, value_name = "CODEC", help_heading = DATA, default_value = "auto",
          hide_default_value = true, allow_hyphen_values = true, value_parser = compress)]
    pub compress: Compress,
    /// TCP congestion control of the sending host
    #[arg(long, value_name = "NAME", help_heading = DATA, value_parser = congestion)]
    pub congestion: Option<String>,
    /// Retry a lost connection for this long [5min]
    #[arg(long, value_name = "TIME", help_heading = DATA, value_parser = retry_for)]
    pub retry_for: Option<Duration>,
    /// Of version 0.1: logins after a lost connection, 0 to 999.
    #[arg(long, value_name = "N", hide = true,
          value_parser = clap::value_parser!(u16).range(..=999))]
    pub retries: Option<u16>,
    /// Treat silence of TIME as a lost connection [60s]
    #[arg(long = "timeout", value_name = "TIME", help_heading = DATA, default_value = "60s",
          hide_default_value = true, value_parser = timeout)]
    pub timeout_s: u16,
    /// Worker threads [number of processors]
    #[arg(long, value_name = "N", help_heading = DATA,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Buffers of each process [256Mi, at most RAM/8]
    #[arg(long, value_name = "SIZE", help_heading = DATA, value_parser = memory)]
    pub memory: Option<u64>,
    /// Do not encrypt data; it is still authenticated
    #[arg(long, help_heading = DATA)]
    pub no_encrypt: bool,

    #[command(flatten)]
    pub schedule: ScheduleArgs,

    /// Errors only
    #[arg(short = 'q', long, help_heading = OUTPUT)]
    pub quiet: bool,
    /// Explain the copy; -vv: each file; -vvv: ssh -v too
    #[arg(short = 'v', long, action = ArgAction::Count, help_heading = OUTPUT)]
    pub verbose: u8,
    /// Print the summary even if stderr is not a terminal
    #[arg(long, help_heading = OUTPUT)]
    pub summary: bool,
    /// Print a line of progress each TIME [10s]
    #[arg(long, value_name = "TIME", help_heading = OUTPUT, num_args = 0..=1,
          require_equals = true, default_missing_value = "10s", value_parser = interval)]
    pub progress: Option<Duration>,
    /// Print events as lines of JSON (see --help events)
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
    /// Append events to FILE, one line each
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub log_file: Option<PathBuf>,
    /// Write a page with drawings of the copy to FILE.html
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub report: Option<PathBuf>,
    /// Print a line for each change, as rsync does
    #[arg(long, help_heading = OUTPUT)]
    pub itemize_changes: bool,
    /// Measure link and disks for up to 15 s; copy nothing
    #[arg(long, help_heading = OUTPUT)]
    pub probe: bool,
    /// File that the probe reads and compresses
    #[arg(long, value_name = "FILE", requires = "probe", help_heading = OUTPUT)]
    pub sample: Option<PathBuf>,
    /// Print configured options; with HOST: also HOST's
    #[arg(long, help_heading = OUTPUT)]
    pub show_config: bool,
    /// Ignore configuration files and FASTCP_FLAGS
    #[arg(long, help_heading = OUTPUT)]
    pub no_config: bool,
    /// Print the version; with HOST: also HOST's
    #[arg(short = 'V', long, help_heading = OUTPUT)]
    pub version: bool,
    /// Print the manual page; --man TOPIC: that of TOPIC
    #[arg(long, help_heading = OUTPUT)]
    pub man: bool,
    /// Print the completions for SHELL: bash, zsh, fish
    #[arg(long, value_name = "SHELL", help_heading = OUTPUT, hide_possible_values = true,
          value_parser = completions::shell)]
    pub completions: Option<Shell>,
    /// Print the licenses of the libraries in fastcp
    #[arg(long, help_heading = OUTPUT)]
    pub licenses: bool,
    /// Print help; --help all, --help TOPIC: more
    #[arg(long, short = 'h', action = ArgAction::Help, help_heading = OUTPUT)]
    pub help: Option<bool>,

    #[command(flatten)]
    pub ignored: Ignored,

    /// Syncs the file system of the directory that is stdin, for a process that must not block.
    #[arg(long, hide = true)]
    pub syncfs: bool,

    /// The far end: speaks the protocol on stdin and stdout.
    #[arg(long, hide = true)]
    pub server: bool,
    /// Answers whether one of these versions of the protocol is spoken.
    #[arg(long, hide = true, value_name = "MIN-MAX")]
    pub speaks: Option<String>,
    /// The digest of this program, which a client has placed.
    #[arg(long, hide = true, value_name = "DIGEST")]
    pub placed: Option<String>,
    #[command(flatten)]
    pub permit: Permits,
}

impl Args {
    /// True if the user wants a line for each change.
    pub(super) fn lists_changes(&self) -> bool {
        self.itemize_changes || self.dry_run && !self.quiet
    }

    /// True if the user wants a line on stderr for each entry.
    pub(super) fn names_files(&self) -> bool {
        self.verbose > 1 && !self.quiet
    }

    /// `--check` is a dry run with these options, which shows differences.
    ///
    /// # Errors
    /// Usage, if combined with an option that keeps existing files or has an effect only on a copy.
    pub(super) fn set_check(&mut self) -> Result<()> {
        if self.check.is_none() {
            return Ok(());
        }
        let keep = &self.keep;
        let others = [
            ("--update", keep.update),
            ("--existing", keep.existing),
            ("--ignore-existing", keep.ignore_existing),
            ("--size-only", keep.size_only),
            ("--no-clobber", self.no_clobber),
            ("--itemize-changes", self.itemize_changes),
            ("--backup", self.mirror.keeps_backups()),
            ("--max-delete", self.mirror.limits_deletion()),
            ("--digests", self.digests.is_some()),
            ("--follow", self.follow_ms.is_some()),
            ("--remove-source-files", self.mirror.removes_sources()),
            (
                self.earlier.flag().unwrap_or_default(),
                self.earlier.flag().is_some(),
            ),
        ];
        if let Some((other, _)) = others.iter().find(|(_, is_given)| *is_given) {
            return Err(Error::usage(format!(
                "--check compares all files and copies none: leave out {other}"
            )));
        }
        self.dry_run = true;
        // A list names all files to compare.
        self.recursive |= self.files_from.is_none();
        self.keep.checksum = true;
        self.mirror.compare_names();
        Ok(())
    }

    /// # Errors
    /// Usage, if the user wants to know what `option` would change: it copies nothing.
    pub(super) fn refuse_dry_run(&self, option: &str) -> Result<()> {
        if !self.dry_run && !self.itemize_changes {
            return Ok(());
        }
        Err(Error::usage(format!(
            "{option} copies nothing: leave out -n and --itemize-changes"
        )))
    }
}

/// Letters of scp that a script may have and that mean nothing here.
#[derive(Debug, clap::Args)]
pub(super) struct Ignored {
    #[arg(short = 'C', hide = true)]
    compression: bool,
    #[arg(short = 'O', hide = true)]
    old_protocol: bool,
    #[arg(short = 'R', hide = true)]
    from_there: bool,
    #[arg(short = 's', hide = true)]
    sftp: bool,
    #[arg(short = 'T', hide = true)]
    no_name_check: bool,
    #[arg(short = 'D', hide = true)]
    sftp_server: Option<OsString>,
    #[arg(short = 'X', hide = true)]
    sftp_options: Vec<OsString>,
}

impl Args {
    /// Whether existing files are compared, if the user has said so.
    pub(super) fn compares(&self) -> Option<bool> {
        match (self.whole_file, self.no_whole_file) {
            _ if self.keep.checksum => Some(true),
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }
}

impl Ignored {
    /// `-R`, which rsync has for `--relative`.
    pub(super) fn has_relative_letter(&self) -> bool {
        self.from_there
    }

    /// `-X`, which takes a value; rsync's takes none.
    pub(super) fn has_sftp_options(&self) -> bool {
        !self.sftp_options.is_empty()
    }

    /// A line for each letter that was given.
    pub(super) fn told(&self) -> Vec<String> {
        [
            (self.compression, "-C", "compression is automatic"),
            (self.old_protocol, "-O", "fastcp uses its own protocol"),
            (
                self.from_there,
                "-R",
                "this machine logs in to both hosts; rsync's -R is --relative",
            ),
            (self.sftp, "-s", "fastcp uses its own protocol"),
            (self.no_name_check, "-T", "names are always checked"),
            (self.sftp_server.is_some(), "-D", "there is no SFTP server"),
            (!self.sftp_options.is_empty(), "-X", "there is no SFTP"),
        ]
        .into_iter()
        .filter(|(given, ..)| *given)
        .map(|(_, letter, why)| format!("{letter} has no effect: {why}"))
        .collect()
    }
}

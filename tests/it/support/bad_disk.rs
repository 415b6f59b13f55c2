//! Disk and kernel faults for one copy, chosen by a seed: a script of faults in system calls on
//! the files of a case, and the copy's options. The same seed makes the same script everywhere.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;

use super::case::Way;
use super::chaos::Dice;
use super::inject::{Inject, UNFINISHED};

/// The files that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Source,
    Dest,
    Partial,
    Journal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Fail(Errno),
    Delay(Duration),
    Kill,
}

/// A fault in `times` calls of one name, after `after` calls that succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub call: &'static str,
    pub on: On,
    pub what: What,
    pub after: usize,
    pub times: usize,
}

/// All faults of one copy, and its options.
#[derive(Clone, Debug)]
pub(crate) struct BadDisk {
    pub seed: u64,
    pub way: Way,
    pub flags: Vec<&'static str>,
    pub troubles: Vec<Trouble>,
    /// The destination has other files already.
    pub replaces: bool,
    /// Bytes of the biggest file.
    pub big: usize,
}

const READ: &[Errno] = &[Errno::IO, Errno::INTR, Errno::STALE];
const WRITE: &[Errno] = &[
    Errno::NOSPC,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::IO,
    Errno::INTR,
];
/// Errors that the kernel reports about data written earlier.
const LATE: &[Errno] = &[Errno::IO, Errno::NOSPC, Errno::DQUOT];
const NAME: &[Errno] = &[Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS];
const OPEN: &[Errno] = &[Errno::IO, Errno::MFILE, Errno::NFILE, Errno::INTR];

/// Calls, the files that they work on, and their possible errors.
pub(super) type Files = &'static [(&'static str, &'static [On], &'static [Errno])];

pub(super) const CALLS: Files = &[
    ("pread64", &[On::Source, On::Partial], READ),
    ("read", &[On::Source, On::Journal], READ),
    ("pwrite64", &[On::Partial, On::Dest], WRITE),
    ("pwrite64", &[On::Partial, On::Dest], WRITE),
    ("write", &[On::Journal, On::Dest], WRITE),
    ("close", &[On::Partial, On::Dest, On::Journal], LATE),
    ("fsync", &[On::Partial, On::Dest, On::Journal], LATE),
    ("fdatasync", &[On::Partial, On::Dest, On::Journal], LATE),
    ("syncfs", &[On::Dest, On::Journal, On::Partial], LATE),
    ("sync_file_range", &[On::Partial, On::Dest], LATE),
    ("rename", &[On::Partial, On::Dest], NAME),
    ("link", &[On::Partial, On::Dest], NAME),
    ("unlink", &[On::Partial, On::Journal], NAME),
    ("mkdir", &[On::Dest], NAME),
    ("symlinkat", &[On::Dest], NAME),
    (
        "lease",
        &[On::Dest, On::Source],
        &[Errno::AGAIN, Errno::INVAL, Errno::IO],
    ),
    (
        "flock",
        &[On::Partial, On::Journal],
        &[Errno::NOLCK, Errno::IO, Errno::INTR],
    ),
    (
        "fallocate",
        &[On::Partial, On::Dest],
        &[Errno::NOSPC, Errno::OPNOTSUPP, Errno::IO],
    ),
    ("ftruncate", &[On::Partial, On::Dest], NAME),
    (
        "open",
        &[On::Source, On::Dest, On::Partial, On::Journal],
        OPEN,
    ),
    (
        "stat",
        &[On::Source, On::Dest, On::Partial],
        &[Errno::IO, Errno::STALE],
    ),
    ("getdents64", &[On::Source, On::Dest], &[Errno::IO]),
    ("seek_data", &[On::Source], &[Errno::IO, Errno::INVAL]),
    (
        "chmod",
        &[On::Partial, On::Dest],
        &[Errno::IO, Errno::PERM, Errno::ROFS],
    ),
    (
        "utimensat",
        &[On::Partial, On::Dest],
        &[Errno::IO, Errno::PERM],
    ),
];

const WAYS: &[Way] = &[Way::Here, Way::LocalPush, Way::LocalPull, Way::LocalBetween];
const TROUBLES_MAX: u64 = 3;

impl BadDisk {
    pub(crate) fn of(seed: u64) -> BadDisk {
        let mut dice = Dice::new(seed ^ 0xD15C_0000_0000);
        let way = WAYS[(seed % WAYS.len() as u64) as usize];
        let mut flags = vec!["--compress", dice.one_of(&["none", "auto"])];
        for flag in ["--fsync", "--drop-cache", "--inplace", "-p"] {
            // A third of the scripts have each flag, independently of the other flags.
            if dice.below(3) == 0 {
                flags.push(flag);
            }
        }
        let troubles = (0..=dice.below(TROUBLES_MAX)).map(|_| trouble(&mut dice, CALLS));
        let mut troubles: Vec<_> = troubles.collect();
        if dice.below(4) == 0 {
            troubles.insert(0, kill(&mut dice));
        }
        BadDisk {
            seed,
            way,
            flags,
            troubles,
            replaces: dice.below(3) == 0,
            big: (1 << 20) + dice.below(2 << 20) as usize,
        }
    }

    pub(crate) fn is_in_place(&self) -> bool {
        self.flags.contains(&"--inplace")
    }

    /// The faults of the script, one rule each.
    pub(crate) fn inject(&self) -> Inject {
        inject(&self.troubles)
    }
}

/// One rule for each fault.
pub(crate) fn inject(troubles: &[Trouble]) -> Inject {
    let rule = |inject: Inject, trouble: &Trouble| {
        let inject = match trouble.what {
            What::Fail(error) => inject.fail(trouble.call, error),
            What::Delay(time) => inject.delay(trouble.call, time),
            What::Kill => inject.kill(trouble.call),
        };
        let inject = inject.on(match trouble.on {
            On::Source => "*/case-*/src/*",
            On::Dest => "*/case-*/dst/*",
            On::Partial => UNFINISHED,
            On::Journal => ".fastcp-*.journal",
        });
        inject.after(trouble.after).times(trouble.times)
    };
    troubles.iter().fold(Inject::new(), rule)
}

impl Trouble {
    /// An exit code of 0 would hide the loss of data that the kernel has reported.
    pub(crate) fn must_be_told(&self) -> bool {
        let What::Fail(error) = self.what else {
            return false;
        };
        let lost = LATE.contains(&error) && self.on == On::Partial;
        match self.call {
            "fsync" | "fdatasync" | "sync_file_range" => lost,
            // The kernel reports the error to one of several descriptors of a file.
            "close" => lost && self.after == 0 && self.times == usize::MAX,
            _ => false,
        }
    }

    /// An unfinished file may stay after a complete copy: it cannot be removed, or its owner
    /// cannot be determined.
    pub(crate) fn may_leave_files(&self) -> bool {
        // Faults on the destination strike partial files and journals too.
        self.on != On::Source && matches!(self.call, "unlink" | "flock" | "stat")
    }
}

/// A fault in one of `calls`.
pub(super) fn trouble(dice: &mut Dice, calls: Files) -> Trouble {
    let (call, files, errors) = dice.one_of(calls);
    let what = match dice.below(8) {
        0 => What::Delay(Duration::from_millis(50 + dice.below(1500))),
        _ => What::Fail(dice.one_of(errors)),
    };
    let times = match what {
        // Otherwise the sum of the delays would be long.
        What::Delay(_) => 1,
        _ => dice.one_of(&[1, 1, 3, 20, usize::MAX]),
    };
    // An interrupted call is retried without end, so this error does not occur every time.
    let is_odd = what == What::Fail(Errno::INTR);
    Trouble {
        call,
        on: dice.one_of(files),
        what,
        after: dice.one_of(&[0, 0, 1, 2, 5, 15]),
        times: if is_odd { times.min(3) } else { times },
    }
}

fn kill(dice: &mut Dice) -> Trouble {
    let (call, on) = dice.one_of(&[
        ("pwrite64", On::Partial),
        ("pwrite64", On::Dest),
        ("write", On::Journal),
        ("rename", On::Partial),
        ("fsync", On::Partial),
        ("unlink", On::Journal),
        ("close", On::Partial),
        ("pread64", On::Source),
        ("open", On::Dest),
        ("mkdir", On::Dest),
    ]);
    Trouble {
        call,
        on,
        what: What::Kill,
        after: dice.below(30) as usize,
        times: 1,
    }
}

impl fmt::Display for BadDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadDisk {
            seed,
            way,
            flags,
            replaces,
            big,
            ..
        } = self;
        let flags = flags.join(" ");
        writeln!(
            f,
            "FASTCP_CHAOS_DISK_SEED={seed}: {way:?} {flags}, {big} bytes, replaces {replaces}"
        )?;
        for trouble in &self.troubles {
            writeln!(f, "  {trouble}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trouble {
            call,
            on,
            what,
            after,
            times,
        } = self;
        write!(f, "{call} on {on:?} after {after}, {times} times: {what:?}")
    }
}

#[test]
fn every_call_has_its_turn() {
    let scripts: Vec<_> = (0..1000).map(BadDisk::of).collect();
    assert_eq!(scripts[7].to_string(), BadDisk::of(7).to_string());
    for (call, files, _) in CALLS {
        for on in *files {
            let mut troubles = scripts.iter().flat_map(|script| &script.troubles);
            assert!(
                troubles.any(|it| (it.call, it.on) == (*call, *on)),
                "{call} {on:?}"
            );
        }
    }
    // Every name is in the injector's table.
    scripts.iter().for_each(|script| drop(script.inject()));
}

//! Faults in system calls. A run starts under a seccomp filter that reports the named calls to
//! this process, which fails them, delays them, or lets them happen. Children inherit the filter,
//! so with `--rsh local` it covers both ends; a host behind sshd is not covered.
//!
//! ```text
//! let inject = Inject::new().fail("fsync", Errno::IO).on("*.part").at_server().nth(2);
//! let done = case.copying(&["--fsync"], "a", "a").inject(&inject).run();
//! inject.assert_struck(1);
//! ```
//!
//! A name is that of a call ("pwrite64"), of a family ("open", "stat", "rename", "unlink", …) or
//! "lease", "dup", "seek_data", "seek_hole", "look_at_link", "look_through_link"; the table is in
//! `calls.rs`. Each action starts a rule, and the methods called after it narrow that rule. If
//! several rules fit a call, the first one acts. `hold` keeps calls until `release`, or
//! `release_first` for those of the first rules; `wait_until_struck` waits until rules have
//! struck. Rules strike only processes of fastcp, unless `of` names another program. A failed
//! `close` still closes, as the kernel's does; every other failed call has no effect. Start a
//! test with `if !inject::permitted() { return skip("seccomp user notification"); }`.

mod calls;
mod seccomp;
mod tests;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use globset::{GlobBuilder, GlobMatcher};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use calls::{Files, Wanted};
use seccomp::{Listener, Notice};

/// How long a test waits for a fault that it expects.
const STRIKE_LIMIT: Duration = Duration::from_secs(60);

/// Matches a file without a name (yet), as /proc shows its descriptor.
pub(crate) const NAMELESS: &str = "#* (deleted)";

/// Matches a file that does not have its final name yet: it has a temporary name or none.
pub(crate) const UNFINISHED: &str = "{*.part,#* (deleted)}";

/// The effect on a call.
#[derive(Clone, Copy, Debug)]
enum Act {
    Fail(Errno),
    /// The call returns this number without having done anything.
    Return(u32),
    /// The call happens after this time.
    Delay(Duration),
    /// The call happens after [`Inject::release`].
    Hold,
    /// The process is killed before the call.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Any,
    Server,
    Client,
}

#[derive(Debug)]
struct Rule {
    act: Act,
    calls: Vec<Wanted>,
    program: String,
    end: End,
    pattern: Option<GlobMatcher>,
    /// A file without which it strikes nothing.
    armed_by: Option<PathBuf>,
    /// Calls that fit but happen normally before the first strike.
    spared: usize,
    /// The largest number of strikes.
    times: usize,
    /// How many in a thousand fitting calls are struck, and the seed for the choice.
    chance: Option<(u64, u64)>,
    seen: AtomicUsize,
    struck: AtomicUsize,
}

/// The faults of one run, or of several runs in a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inject {
    rules: Vec<Arc<Rule>>,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    struck: usize,
    released: bool,
    /// How many rules, from the first on, let their calls happen.
    released_rules: usize,
}

/// True where this machine allows tests to filter system calls.
pub(crate) fn permitted() -> bool {
    let filter = || seccomp::install(&calls::named("syncfs")).is_ok();
    thread::spawn(filter).join().expect("it does not panic")
}

impl Inject {
    pub(crate) fn new() -> Inject {
        Inject::default()
    }

    /// The call returns this error and does nothing.
    pub(crate) fn fail(self, call: &str, error: Errno) -> Inject {
        self.rule(call, Act::Fail(error))
    }

    /// The call returns this number, as if it had succeeded, and does nothing.
    pub(crate) fn pretend(self, call: &str, value: u32) -> Inject {
        self.rule(call, Act::Return(value))
    }

    /// The call happens later. Other calls are not delayed.
    pub(crate) fn delay(self, call: &str, time: Duration) -> Inject {
        self.rule(call, Act::Delay(time))
    }

    /// The call happens after `release`. As with a hung disk, only a deadly signal ends the wait.
    pub(crate) fn hold(self, call: &str) -> Inject {
        self.rule(call, Act::Hold)
    }

    /// SIGKILL instead of the call.
    pub(crate) fn kill(self, call: &str) -> Inject {
        self.rule(call, Act::Kill)
    }

    fn rule(mut self, call: &str, act: Act) -> Inject {
        self.rules.push(Arc::new(Rule {
            act,
            calls: calls::named(call),
            program: "fastcp".to_owned(),
            end: End::Any,
            pattern: None,
            armed_by: None,
            spared: 0,
            times: usize::MAX,
            chance: None,
            seen: AtomicUsize::new(0),
            struck: AtomicUsize::new(0),
        }));
        self
    }

    fn narrow(mut self, how: impl FnOnce(&mut Rule)) -> Inject {
        let last = self.rules.last_mut().expect("an action comes first");
        how(Arc::get_mut(last).expect("before the run starts"));
        self
    }

    /// Only calls on a file with this name, or with this path if the pattern has a slash.
    pub(crate) fn on(self, pattern: &str) -> Inject {
        let glob = GlobBuilder::new(pattern).backslash_escape(true).build();
        let matcher = glob.expect("a pattern").compile_matcher();
        self.narrow(|rule| rule.pattern = Some(matcher))
    }

    /// Only while the test keeps a file at this path.
    pub(crate) fn armed_by(self, path: PathBuf) -> Inject {
        self.narrow(|rule| rule.armed_by = Some(path))
    }

    /// Only in processes with `--server`.
    pub(crate) fn at_server(self) -> Inject {
        self.narrow(|rule| rule.end = End::Server)
    }

    pub(crate) fn at_client(self) -> Inject {
        self.narrow(|rule| rule.end = End::Client)
    }

    /// Only the nth call that fits, counted from 1.
    pub(crate) fn nth(self, number: usize) -> Inject {
        self.after(number - 1).times(1)
    }

    /// Lets the first `spared` calls that fit happen.
    pub(crate) fn after(self, spared: usize) -> Inject {
        self.narrow(|rule| rule.spared = spared)
    }

    /// At most this many strikes.
    pub(crate) fn times(self, times: usize) -> Inject {
        self.narrow(|rule| rule.times = times)
    }

    /// Strikes `per_mille` of a thousand calls that fit; the seed decides which ones.
    pub(crate) fn chance(self, per_mille: u64, seed: u64) -> Inject {
        self.narrow(|rule| rule.chance = Some((per_mille, seed)))
    }

    /// Only in programs whose file name starts with `program`.
    pub(crate) fn of(self, program: &str) -> Inject {
        self.narrow(|rule| rule.program = program.to_owned())
    }

    /// Strikes so far, by all rules.
    pub(crate) fn struck(&self) -> usize {
        self.bell.state.lock().expect("no panic while held").struck
    }

    /// Strikes so far, by each rule.
    pub(crate) fn struck_by_rule(&self) -> Vec<usize> {
        let struck = |rule: &Arc<Rule>| rule.struck.load(SeqCst);
        self.rules.iter().map(struck).collect()
    }

    /// Waits for this many strikes in total.
    #[track_caller]
    pub(crate) fn wait_until_struck(&self, times: usize) {
        self.wait_until_struck_within(times, STRIKE_LIMIT);
    }

    #[track_caller]
    pub(crate) fn wait_until_struck_within(&self, times: usize, limit: Duration) {
        let state = self.bell.state.lock().expect("no panic while held");
        let fewer = |state: &mut State| state.struck < times;
        let waited = self.bell.changed.wait_timeout_while(state, limit, fewer);
        let (state, waited) = waited.expect("no panic while held");
        let struck = state.struck;
        assert!(
            !waited.timed_out(),
            "only {struck} of {times} faults: {self}"
        );
    }

    #[track_caller]
    pub(crate) fn assert_struck(&self, times: usize) {
        assert_eq!(self.struck(), times, "faults of {self}");
    }

    /// Lets every held or delayed call happen, and later ones at once.
    pub(crate) fn release(&self) {
        self.bell
            .state
            .lock()
            .expect("no panic while held")
            .released = true;
        self.bell.changed.notify_all();
    }

    /// The same for the first `rules` rules only.
    pub(crate) fn release_first(&self, rules: usize) {
        let mut state = self.bell.state.lock().expect("no panic while held");
        state.released_rules = rules;
        self.bell.changed.notify_all();
    }

    /// Starts a command under the filter, from a thread that lives as long as the [`Keeper`].
    pub(crate) fn spawn(&self, mut command: Command) -> io::Result<(Child, Keeper)> {
        let wanted: Vec<Wanted> = self
            .rules
            .iter()
            .flat_map(|rule| rule.calls.clone())
            .collect();
        let (sender, listener) = mpsc::channel();
        let (child_sender, child) = mpsc::channel();
        let (supervised, ready) = mpsc::channel::<()>();
        let (keeper, kept) = mpsc::channel::<()>();
        thread::spawn(move || {
            sender.send(seccomp::install(&wanted)).ok();
            // Waits for the supervisor: the filter may report this thread's calls from here on.
            if ready.recv().is_err() {
                return;
            }
            let spawned = command.spawn();
            // It keeps the run's terminal open.
            drop(command);
            child_sender.send(spawned).ok();
            // The kernel kills the child when this thread ends.
            kept.recv().ok();
        });
        let listener = listener.recv().expect("it does not panic")?;
        let inject = self.clone();
        thread::spawn(move || inject.supervise(Arc::new(listener)));
        supervised.send(()).expect("it waits");
        let child = child.recv().expect("it does not panic")?;
        Ok((child, Keeper(keeper)))
    }

    /// Runs until the last process under the filter has ended.
    fn supervise(self, listener: Arc<Listener>) {
        while let Some(notice) = listener.next() {
            let mut rules = self.rules.iter().enumerate();
            match rules.find(|(_, rule)| rule.strikes(&notice)) {
                None => listener.go_on(&notice),
                Some((nth, rule)) => {
                    // Counted before the answer, after which the run may be over.
                    rule.struck.fetch_add(1, SeqCst);
                    self.bell.state.lock().expect("no panic while held").struck += 1;
                    self.bell.changed.notify_all();
                    self.act(nth, rule.act, &listener, notice);
                }
            }
        }
    }

    fn act(&self, nth: usize, act: Act, listener: &Arc<Listener>, notice: Notice) {
        match act {
            Act::Fail(error) => {
                if i64::from(notice.data.nr) == nix::libc::SYS_close {
                    listener.replace_by_null(&notice, notice.data.args[0] as u32);
                }
                listener.returns(&notice, -i64::from(error.raw_os_error()));
            }
            Act::Return(value) => listener.returns(&notice, value.into()),
            Act::Delay(time) => self.later(nth, listener, notice, Some(Instant::now() + time)),
            Act::Hold => self.later(nth, listener, notice, None),
            Act::Kill => {
                if let Some(pid) = process_of(notice.pid) {
                    rustix::process::kill_process(pid, Signal::KILL).ok();
                }
            }
        }
    }

    /// Uses a new thread, so that a waiting call delays no other call.
    fn later(&self, nth: usize, listener: &Arc<Listener>, notice: Notice, until: Option<Instant>) {
        let (bell, listener) = (self.bell.clone(), listener.clone());
        thread::spawn(move || {
            let mut state = bell.state.lock().expect("no panic while held");
            let is_held = |state: &State| !state.released && nth >= state.released_rules;
            while is_held(&state) && listener.still_waits(&notice) {
                let mut wait = Duration::from_secs(1);
                if let Some(until) = until {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    wait = wait.min(left);
                }
                let waited = bell.changed.wait_timeout(state, wait);
                state = waited.expect("no panic while held").0;
            }
            drop(state);
            listener.go_on(&notice);
        });
    }
}

/// Keeps the thread that started a child alive, and so the child.
#[derive(Debug)]
pub(crate) struct Keeper(
    #[expect(dead_code, reason = "dropping it tells the thread")] mpsc::Sender<()>,
);

impl Rule {
    /// True if this call is struck. Counts the calls that fit.
    fn strikes(&self, notice: &Notice) -> bool {
        if !self.fits(notice) {
            return false;
        }
        let number = self.seen.fetch_add(1, SeqCst);
        let by_chance = self.chance.is_none_or(|(per_mille, seed)| {
            let input = [seed.to_le_bytes(), (number as u64).to_le_bytes()].concat();
            let digest = blake3::hash(&input);
            let number = digest.as_bytes()[..8].try_into().expect("8 bytes");
            u64::from_le_bytes(number) % 1000 < per_mille
        });
        number >= self.spared && by_chance && self.struck.load(SeqCst) < self.times
    }

    fn fits(&self, notice: &Notice) -> bool {
        if self.armed_by.as_ref().is_some_and(|path| !path.exists()) {
            return false;
        }
        let data = &notice.data;
        let wanted = |(call, argument): &&Wanted| {
            let same = |(index, value): (usize, u64)| data.args[index] as u32 == value as u32;
            call.number == i64::from(data.nr) && argument.is_none_or(same)
        };
        let Some((call, _)) = self.calls.iter().find(wanted) else {
            return false;
        };
        let process = PathBuf::from(format!("/proc/{}", notice.pid));
        let exe = process.join("exe").read_link().unwrap_or_default();
        let program = exe.file_name().unwrap_or_default().to_string_lossy();
        program.starts_with(&self.program)
            && self.is_of_end(&process)
            && self.pattern.as_ref().is_none_or(|pattern| {
                let files = files(call.files, &data.args, &process);
                files.iter().any(|path| is_match(pattern, path))
            })
    }

    fn is_of_end(&self, process: &Path) -> bool {
        if self.end == End::Any {
            return true;
        }
        let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let is_server = words
            .split(|byte| *byte == 0)
            .any(|word| word == b"--server");
        is_server == (self.end == End::Server)
    }
}

impl fmt::Display for Inject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.rules {
            let name = rule.calls[0].0.name;
            let on = rule.pattern.as_ref().map_or("*", |glob| glob.glob().glob());
            let struck = rule.struck.load(SeqCst);
            let seen = rule.seen.load(SeqCst);
            write!(f, "\n  {name} on {on} at {:?}: {:?}", rule.end, rule.act)?;
            write!(f, " after {}; struck {struck} of {seen}", rule.spared)?;
        }
        Ok(())
    }
}

/// The process of a thread.
fn process_of(thread: u32) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}

fn is_match(pattern: &GlobMatcher, path: &Path) -> bool {
    match pattern.glob().glob().contains('/') {
        true => pattern.is_match(path),
        false => path.file_name().is_some_and(|name| pattern.is_match(name)),
    }
}

/// Full paths of the files that a call works on.
fn files(files: Files, args: &[u64; 6], process: &Path) -> Vec<PathBuf> {
    let open = |fd: u64| process.join(format!("fd/{}", fd as i32)).read_link().ok();
    let cwd = || process.join("cwd").read_link().ok();
    let below = |dir: Option<PathBuf>, at: usize| match text(process, args[at]) {
        // With AT_EMPTY_PATH or without a path, the directory's descriptor is the file.
        None => dir,
        Some(path) if path.as_os_str().is_empty() => dir,
        Some(path) => Some(dir.unwrap_or_default().join(path)),
    };
    match files {
        Files::None => Vec::new(),
        Files::Fds(fds) => fds.iter().filter_map(|at| open(args[*at])).collect(),
        Files::At(pairs) => pairs
            .iter()
            .filter_map(|(dir, path)| match args[*dir] as i32 {
                nix::libc::AT_FDCWD => below(cwd(), *path),
                _ => below(open(args[*dir]), *path),
            })
            .collect(),
        Files::Paths(paths) => paths.iter().filter_map(|at| below(cwd(), *at)).collect(),
    }
}

/// A string in the memory of a process.
fn text(process: &Path, address: u64) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    const PAGE: u64 = 4096;
    let memory = std::fs::File::open(process.join("mem")).ok()?;
    let mut bytes = Vec::new();
    let mut at = address;
    // Page by page: the page after the string may not be mapped.
    while address != 0 && bytes.len() < PAGE as usize {
        let mut block = vec![0; (PAGE - at % PAGE) as usize];
        memory.read_exact_at(&mut block, at).ok()?;
        at += block.len() as u64;
        if let Some(end) = block.iter().position(|byte| *byte == 0) {
            bytes.extend(&block[..end]);
            return Some(std::ffi::OsString::from_vec(bytes).into());
        }
        bytes.extend(block);
    }
    None
}

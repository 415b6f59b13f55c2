//! The client's login to a host: it starts the server there, shows its stderr and ends it.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::bootstrap::{Bootstrap, NoHello};
use super::control_reader::lost;
use super::host_pin;
use crate::control::{ControlError, Incoming, Outgoing, say_hello};
use crate::error::{Error, Kind, Result, Side};
use crate::outcome::Verdict;
use crate::report::Reporter;
use crate::report::event::{CopyEvent, HostEnd, Login};
use crate::session::context::ClientContext;
use crate::session::converse::RunningEnd;
use crate::session::request::Request;
use crate::session::runtime::off_task;
use crate::session::{host as this_host, owner};
use crate::ssh::{self, Errand, Host, LastOutput, Process, Rsh, SshOptions, Startup, Stderr};
use crate::units::printable;
use crate::wire::hello::Hello;
use crate::wire::message::{Conclusion, Fault, Message};

/// How long the server may take to exit after a copy, and after a failed one. The second also limits
/// the wait for its last lines.
const END_PATIENCE: Duration = Duration::from_secs(10);
const ABORT_PATIENCE: Duration = Duration::from_millis(500);

/// How long the program that asks for ssh may take to leave the terminal: to restore the echo and
/// to end its line. Only a busy machine needs it.
const QUESTION_PATIENCE: Duration = Duration::from_millis(1200);

/// The same for a command, which may take its time to obey TERM.
const COMMAND_PATIENCE: Duration = Duration::from_secs(3);

/// How long the server may take to say what limited the copy.
const CONCLUSION_PATIENCE: Duration = Duration::from_secs(2);

/// How long a login after a lost connection may take at most: ssh's own limit, and the time that
/// the server needs to start on a busy host.
const AGAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Characters of a server's text that are recorded.
const TEXT_MAX: usize = 200;

/// ssh's exit code if ssh itself fails. Otherwise it is that of the command there.
const SSH_FAILED: i32 = 255;

/// The role of a far end that speaks control.
const SERVER: Errand = Errand::Become("--server");

/// How much later than ssh this process may receive a signal that was sent to both. On a busy host
/// it may take long; it is waited for so long only where a signal may have ended ssh.
pub const SAME_SIGNAL: Duration = Duration::from_millis(500);
pub const SAME_SIGNAL_BRIEF: Duration = Duration::from_millis(100);

/// Which login of a copy this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// ssh may ask the user.
    First,
    /// After a connection was lost. `afresh`: do not use a master connection.
    Again { afresh: bool },
}

/// A server that has said hello and has not been sent one.
pub struct Met {
    host: Host,
    pub hello: Hello,
    rsh: Rsh,
    process: Process,
    /// How long the server may take to exit after a failed copy, and then its last lines.
    abort_patience: Duration,
    words: ServerStderr,
    incoming: Incoming<ChildStdout>,
    stdin: ChildStdin,
}

/// A server that has exchanged hellos with this client.
pub struct LoggedIn {
    pub host: Host,
    pub hello: Hello,
    rsh: Rsh,
    process: Process,
    abort_patience: Duration,
    words: ServerStderr,
    pub incoming: Incoming<ChildStdout>,
    pub control: Outgoing,
}

impl Met {
    /// Logs in, starts the server and waits for its hello, at most `--timeout`. The time in which
    /// the user types a password or confirms a host key does not count. If the copy ends, this
    /// returns once ssh has ended. Dropping the future leaves ssh no time to restore the terminal.
    pub async fn connect(
        host: &Host,
        request: &Request,
        client: &ClientContext,
        attempt: Attempt,
    ) -> Result<Met> {
        let (options, is_pinned) = tokio::select! {
            options = options(host, request, client, attempt) => options,
            () = client.shutdown.wait() => return Err(client.shutdown.error()),
        };
        let asked = request.clone();
        let startup = tokio::select! {
            startup = off_task(move || asked.startup()) => startup??,
            () = client.shutdown.wait() => return Err(client.shutdown.error()),
        };
        let far_end = ssh::start(request.rsh, host, &options, &startup, SERVER)?;
        let (mut process, mut stdin, stdout, stderr) = far_end.split();
        let mut words = ServerStderr::relay(
            stderr,
            printable(host.name.as_bytes()),
            client,
            SeenLines::of(request, attempt),
        );
        let mut incoming = Incoming::new(stdout);
        let placing = Bootstrap {
            host,
            may_install: !request.no_install,
            reporter: &*client.reporter,
            options: &options,
            limit: limit(request, attempt),
            prompts: process.id().filter(|_| may_ask(request, attempt)),
        };
        let hello = placing.hello(&mut incoming, &mut stdin);
        let hello = tokio::select! {
            hello = hello => hello,
            () = client.shutdown.wait() => {
                process.end_by_signal(ABORT_PATIENCE).await;
                // A program that asks for ssh restores the terminal's echo, and then closes stderr.
                words.last().await;
                return Err(client.shutdown.error());
            }
        };
        let hello = match hello {
            Ok(hello) => hello,
            Err(why @ (NoHello::Refused(_) | NoHello::DoesNotRun)) => {
                // The far side would wait for a program that it will not get.
                drop(stdin);
                let status = process.end(ABORT_PATIENCE).await;
                words.last().await;
                words.show_own(&*client.reporter, None);
                let said = words.said(b"");
                return Err(no_hello(why, host, request, &options, &startup, status, &said).await);
            }
            Err(why) => {
                let status = process.end(ABORT_PATIENCE).await;
                // A signal that ended ssh (Ctrl-C at its prompt) may reach this process a little
                // later.
                let is_ended = status.is_some_and(|status| status.signal().is_some());
                let patience = if is_ended {
                    SAME_SIGNAL
                } else {
                    SAME_SIGNAL_BRIEF
                };
                let _ = timeout(patience, client.shutdown.wait()).await;
                // ssh's message about it comes before the error.
                let last = words.last().await;
                let noise = incoming.noise();
                let said = words.said(&noise);
                let mut error =
                    no_hello(why, host, request, &options, &startup, status, &said).await;
                words.show_own(&*client.reporter, Some(&error));
                if is_pinned {
                    client.reached.missed(host, &last);
                }
                ssh::classify(&mut error, &last);
                let code = status.and_then(|status| status.code());
                match attempt {
                    // Not ssh failed, but sudo or the shell there: the error says what to do.
                    _ if request.rsh != Rsh::Ssh || code != Some(SSH_FAILED) => {}
                    // The error contains the server's own line, or the user has seen it.
                    _ if last.is_empty() || last.starts_with(ssh::OWN) => {}
                    Attempt::Again { .. } => error.message = last,
                    Attempt::First if is_retried(request) => {
                        error.message = format!("{}: {last}", printable(host.name.as_bytes()));
                    }
                    Attempt::First => {}
                }
                return Err(error);
            }
        };
        words.said_hello();
        words.show_own(&*client.reporter, None);
        client.reached.note(host, &hello.reached);
        client.reporter.detail(&format!(
            "{}: started fastcp {} there",
            printable(host.name.as_bytes()),
            printable(hello.build.as_bytes()),
        ));
        client
            .reporter
            .event(CopyEvent::LoggedIn(login_to(host, request, &hello)));
        Ok(Met {
            host: host.clone(),
            hello,
            rsh: request.rsh,
            process,
            abort_patience: match request.has_far_command() {
                true => COMMAND_PATIENCE,
                false => ABORT_PATIENCE,
            },
            words,
            incoming,
            stdin,
        })
    }

    /// Sends the server the hello of the copy's other end.
    pub async fn greet(mut self, hello: &Hello) -> Result<LoggedIn> {
        if let Err(cause) = say_hello(&mut self.stdin, hello).await {
            drop(self.stdin);
            let status = self.process.end(ABORT_PATIENCE).await;
            self.words.last().await;
            let said = self.words.said(b"");
            let why = status.and_then(|status| ssh::why_lost(status, &said, self.rsh));
            let why = why.unwrap_or_else(|| lost(cause.into()));
            let name = printable(self.host.name.as_bytes());
            // There is no session yet whose end would name the host.
            return Err(Error {
                message: format!("{name}: {}", why.message),
                ..why
            });
        }
        Ok(self.begin())
    }

    fn begin(self) -> LoggedIn {
        let (control, _writer) = Outgoing::start(self.stdin);
        LoggedIn {
            host: self.host,
            hello: self.hello,
            rsh: self.rsh,
            process: self.process,
            abort_patience: self.abort_patience,
            words: self.words,
            incoming: self.incoming,
            control,
        }
    }
}

impl LoggedIn {
    /// Logs in to a server whose other end is this client.
    pub async fn connect(
        host: &Host,
        request: &Request,
        client: &ClientContext,
        attempt: Attempt,
    ) -> Result<LoggedIn> {
        let met = Met::connect(host, request, client, attempt).await?;
        met.greet(&owner::introduce(client.hello(), request)).await
    }

    /// Ends both ends after a complete copy. Returns the sender's conclusion if the server sent.
    /// `late` gets the messages before it: files come on other connections, and may be in place
    /// before the messages about them.
    pub async fn end_well(
        mut self,
        end: Option<RunningEnd>,
        late: impl FnMut(Message),
    ) -> Option<Conclusion> {
        let has_sent = matches!(end, Some(RunningEnd::Receiving(_)));
        if let Some(end) = end {
            end.stop().await;
        }
        // When the last handle is dropped, the server's stdin closes and the server exits.
        drop(self.control);
        let mut conclusion = None;
        if has_sent {
            let said = timeout(CONCLUSION_PATIENCE, concluded(&mut self.incoming, late)).await;
            conclusion = said.ok().flatten();
        }
        if self.process.end(END_PATIENCE).await.is_some() {
            self.words.shown(self.abort_patience).await;
        }
        conclusion
    }

    /// Ends both ends. After a failure, the server gets the error and less time to exit. Returns
    /// the cause of a lost connection, if the server's exit status shows it.
    pub async fn end(mut self, end: Option<RunningEnd>, error: Option<&Error>) -> Option<Error> {
        if let Some(error) = error {
            // If control is lost, the server ends without this message.
            let _ = timeout(
                ABORT_PATIENCE,
                self.control.send(Message::Abort(Fault::of(error, 0, 0))),
            )
            .await;
        }
        if let Some(end) = end {
            end.stop().await;
        }
        // When the last handle is dropped, the server's stdin closes and the server exits.
        drop(self.control);
        let patience = if error.is_some() {
            self.abort_patience
        } else {
            END_PATIENCE
        };
        let status = self.process.end(patience).await?;
        self.words.shown(self.abort_patience).await;
        error.filter(|error| error.kind == Kind::Lost)?;
        ssh::why_lost(status, &self.words.said(b""), self.rsh)
    }
}

/// Waits for the sender's conclusion.
async fn concluded(
    incoming: &mut Incoming<ChildStdout>,
    mut late: impl FnMut(Message),
) -> Option<Conclusion> {
    loop {
        match incoming.next().await.ok()? {
            Message::Conclusion(conclusion) => {
                return Some(Conclusion {
                    verdict: conclusion.verdict.map(Verdict::harmless),
                    remembered: conclusion.remembered,
                });
            }
            message => late(message),
        }
    }
}

/// The options of a login, and whether they lead it to the host's known address.
async fn options(
    host: &Host,
    request: &Request,
    client: &ClientContext,
    attempt: Attempt,
) -> (SshOptions, bool) {
    let typed = &request.ssh;
    match attempt {
        _ if request.rsh != Rsh::Ssh => (typed.clone(), false),
        Attempt::First if is_retried(request) => {
            (ssh::with_reasons(host, typed.clone()).await, false)
        }
        Attempt::First => (typed.clone(), false),
        Attempt::Again { afresh } => {
            let options = ssh::unattended(host, typed, afresh).await;
            let (pin, reporter) = (&client.reached, &*client.reporter);
            match host_pin::again(host, pin, reporter, &options).await {
                Some(pinned) => (pinned, true),
                None => (options, false),
            }
        }
    }
}

/// What a server says of itself, for the records of the copy.
fn login_to(host: &Host, request: &Request, hello: &Hello) -> Login {
    let is_dest = request
        .dest
        .host
        .as_ref()
        .is_some_and(|dest| std::ptr::eq(dest, host));
    let text = |text: &str| -> String {
        let short: String = text.chars().take(TEXT_MAX).collect();
        printable(short.as_bytes())
    };
    Login {
        end: match is_dest {
            true => HostEnd::Dest,
            false => HostEnd::Source,
        },
        host: printable(host.name.as_bytes()),
        name: text(&hello.host),
        user: text(&hello.user),
        version: text(&hello.build),
    }
}

async fn no_hello(
    why: NoHello,
    host: &Host,
    request: &Request,
    options: &SshOptions,
    startup: &Startup,
    status: Option<ExitStatus>,
    said: &LastOutput<'_>,
) -> Error {
    let name = printable(host.name.as_bytes());
    match why {
        NoHello::Refused(error) => error,
        NoHello::DoesNotRun => ssh::does_not_run(host, said),
        NoHello::Late(limit) => ssh::no_answer(host, limit, request.rsh),
        NoHello::CutShort => {
            let message = format!(
                "{name}: the connection ended while fastcp was being installed there; try again"
            );
            Error::new(Kind::Lost, Side::Here, message)
        }
        NoHello::Control(ControlError::Closed | ControlError::Io(_)) => {
            let login = ssh::login_name(host, options, startup).await;
            ssh::why_no_hello(host, &login, status, request.rsh, startup, said)
        }
        NoHello::Control(other) => Error::new(Kind::FarEnd, Side::Here, format!("{name}: {other}")),
    }
}

/// How long the login may take until the server's hello, without the time in which ssh asks.
fn limit(request: &Request, attempt: Attempt) -> Duration {
    let timeout = Duration::from_secs(request.options.timeout_s.into());
    match attempt {
        Attempt::First => timeout,
        Attempt::Again { .. } => timeout.min(AGAIN_TIMEOUT),
    }
}

/// True if the first login is retried after an outage.
fn is_retried(request: &Request) -> bool {
    request.retry.first && request.retry.time.is_some_and(|time| !time.is_zero())
}

/// True if ssh may ask for a password or a confirmation.
pub fn may_ask(request: &Request, attempt: Attempt) -> bool {
    let is_unattended = attempt != Attempt::First || request.ssh.batch;
    request.rsh == Rsh::Ssh && !is_unattended && this_host::has_terminal()
}

/// The lines of a server's process that the user reads without `-v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeenLines {
    All,
    /// Not those of the login, because the outage is reported as a whole.
    AfterLogin,
    /// None (`-q`).
    None,
}

impl SeenLines {
    fn of(request: &Request, attempt: Attempt) -> SeenLines {
        match attempt {
            _ if request.ssh.quiet => SeenLines::None,
            Attempt::First if !is_retried(request) => SeenLines::All,
            Attempt::First | Attempt::Again { .. } => SeenLines::AfterLogin,
        }
    }
}

/// The stderr of the server's process: shown line by line, and the last lines kept.
struct ServerStderr {
    host: String,
    seen: SeenLines,
    last: Arc<Mutex<String>>,
    /// All lines of the login, and then those since, up to [`LINES_MAX`].
    lines: Arc<Mutex<String>>,
    /// The server's own lines during the login, kept because an error may quote them.
    own: Arc<Mutex<Vec<String>>>,
    is_login: Arc<AtomicBool>,
    /// A question of ssh is on the terminal.
    is_asking: Arc<AtomicBool>,
    relay: JoinHandle<()>,
}

/// Bytes of lines that are kept. Beyond this, all older lines are dropped.
const LINES_MAX: usize = 8 << 10;

/// The server's own lines that are kept until the login is over.
const OWN_MAX: usize = 8;

/// A line of fastcp on `host`, with the host as in errors: `fastcp: db1:/data/a: ...`. Lines of ssh
/// stay as they are.
fn with_host(host: &str, line: &str) -> String {
    match line.strip_prefix(ssh::OWN) {
        Some(own) => {
            let gap = if own.starts_with('/') { "" } else { " " };
            format!("{}{host}:{gap}{own}", ssh::OWN)
        }
        None => line.to_owned(),
    }
}

impl ServerStderr {
    /// Shows ssh's lines, and those of fastcp there with the name of its host, as `seen` says.
    fn relay(
        stderr: Stderr,
        host: String,
        client: &ClientContext,
        seen: SeenLines,
    ) -> ServerStderr {
        let hidden = seen == SeenLines::AfterLogin;
        let last = Arc::new(Mutex::new(String::new()));
        let is_login = Arc::new(AtomicBool::new(true));
        let (reporter, keep, asks) = (client.reporter.clone(), last.clone(), is_login.clone());
        let lines = Arc::new(Mutex::new(String::new()));
        let own = Arc::<Mutex<Vec<String>>>::default();
        let keep_own = own.clone();
        let keep_lines = lines.clone();
        let at = host.clone();
        let show = move |line: &str| {
            let mut last = keep.lock();
            // Keeps a refusal, because further lines may follow it.
            if !(asks.load(Relaxed) && ssh::is_refusal(&last)) {
                line.clone_into(&mut last);
            }
            drop(last);
            let mut lines = keep_lines.lock();
            if lines.len() + line.len() >= LINES_MAX {
                lines.clear();
            }
            lines.push_str(line);
            lines.push('\n');
            drop(lines);
            if asks.load(Relaxed) && line.starts_with(ssh::OWN) {
                let mut own = keep_own.lock();
                if own.len() < OWN_MAX {
                    own.push(line.to_owned());
                }
            } else if hidden && asks.load(Relaxed) {
                reporter.detail(line);
            } else {
                reporter.notice(&with_host(&at, line));
            }
        };
        let (reporter, said) = (client.reporter.clone(), last.clone());
        let is_asking = Arc::<AtomicBool>::default();
        let asking = is_asking.clone();
        let hold = move || {
            let said = said.lock();
            // A wrong password is no outage: the user must see it before the next prompt.
            if hidden && ssh::is_refusal(&said) {
                reporter.notice(&said);
            }
            let (held, asked) = (hold(reporter.clone()), OpenQuestion::begin(&asking));
            async move { (held.await, asked) }
        };
        let relay = ssh::relay_stderr(stderr, show, hold);
        let relay = tokio::spawn(relay);
        ServerStderr {
            host,
            seen,
            last,
            lines,
            own,
            is_login,
            is_asking,
            relay,
        }
    }

    /// The last output of its process, whose stdout ended with these bytes.
    fn said<'a>(&self, stdout: &'a [u8]) -> LastOutput<'a> {
        LastOutput {
            stdout,
            stderr: self.lines.lock().clone(),
            is_shown: match self.seen {
                SeenLines::All => true,
                SeenLines::AfterLogin => !self.is_login.load(Relaxed),
                SeenLines::None => false,
            },
        }
    }

    /// Shows the server's own lines of the login, except a line that `error` quotes.
    fn show_own(&self, reporter: &dyn Reporter, error: Option<&Error>) {
        let quotes = |line: &str| {
            error.is_some_and(|error| error.message.ends_with(line.trim_start_matches(ssh::OWN)))
        };
        let own = std::mem::take(&mut *self.own.lock());
        for line in own.iter().filter(|line| !quotes(line)) {
            reporter.notice(&with_host(&self.host, line));
        }
    }

    /// Lines of the login do not explain later errors.
    fn said_hello(&self) {
        self.is_login.store(false, Relaxed);
        self.last.lock().clear();
        self.lines.lock().clear();
    }

    /// Waits for the last lines of a process that has ended. Bounded, because another process may
    /// hold its stderr open.
    async fn last(&mut self) -> String {
        let patience = match self.is_asking.load(Relaxed) {
            true => QUESTION_PATIENCE,
            false => ABORT_PATIENCE,
        };
        self.shown(patience).await;
        self.last.lock().clone()
    }

    /// Waits until all lines of a process that has ended are shown, for at most `patience`. To be
    /// called once.
    async fn shown(&mut self, patience: Duration) {
        let _ = timeout(patience, &mut self.relay).await;
    }
}

/// A question of ssh on the terminal, until it is dropped.
struct OpenQuestion(Arc<AtomicBool>);

impl OpenQuestion {
    fn begin(is_asking: &Arc<AtomicBool>) -> OpenQuestion {
        is_asking.store(true, Relaxed);
        OpenQuestion(is_asking.clone())
    }
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

/// Clears the terminal for a question of ssh. Nothing else is written while the value lives.
async fn hold(reporter: Arc<dyn Reporter>) -> Box<dyn Send> {
    let (told, shown) = oneshot::channel();
    let held = reporter.hold(Box::new(move || {
        // Fails if the login has ended.
        let _ = told.send(());
    }));
    // Fails if the screen is closed or full of lines; ssh asks all the same.
    let _ = shown.await;
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::itemize::ItemizedEntry;
    use crate::report::SilentReporter;

    /// Takes its time for each line.
    #[derive(Default)]
    struct SlowReporter(Mutex<Vec<String>>);

    impl Reporter for SlowReporter {
        fn failure(&self, _: &Error) {}
        fn left_out(&self, _: &Error) {}
        fn notice(&self, line: &str) {
            std::thread::sleep(Duration::from_millis(100));
            self.0.lock().push(line.to_owned());
        }
        fn waiting(&self, _: &Error) {}
        fn installing(&self, _: &str) {}
        fn detail(&self, _: &str) {}
        fn itemized(&self, _: &ItemizedEntry) {}
        fn deleted(&self, _: &[u8]) {}
        fn event(&self, _: CopyEvent) {}
        fn changes_waiting(&self) -> usize {
            0
        }
        fn status(&self) {}
    }

    /// A process that writes two lines and exits, and its stderr.
    fn talkative(
        client: &ClientContext,
        seen: SeenLines,
    ) -> (Process, ChildStdin, ServerStderr, Incoming<ChildStdout>) {
        let host = host();
        let startup = Startup {
            path: Some("sh -c 'echo one >&2; echo two >&2'".to_owned()),
            ..Startup::default()
        };
        let options = SshOptions::default();
        let started = ssh::start(Rsh::Local, &host, &options, &startup, SERVER);
        let (process, stdin, stdout, stderr) = started.expect("it starts").split();
        let words = ServerStderr::relay(stderr, "h".to_owned(), client, seen);
        (process, stdin, words, Incoming::new(stdout))
    }

    fn host() -> Host {
        Host {
            user: None,
            name: "h".into(),
            port: None,
        }
    }

    /// A server that writes two lines and exits.
    fn met(reporter: &Arc<SlowReporter>) -> Met {
        let client = ClientContext::new(Arc::default(), reporter.clone());
        let (process, stdin, words, incoming) = talkative(&client, SeenLines::All);
        words.said_hello();
        Met {
            host: host(),
            hello: this_host::hello(),
            rsh: Rsh::Local,
            process,
            // Generous, because the machine may be busy.
            abort_patience: Duration::from_secs(60),
            words,
            incoming,
            stdin,
        }
    }

    fn logged_in(reporter: &Arc<SlowReporter>) -> LoggedIn {
        met(reporter).begin()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_has_gone_before_it_is_greeted_is_named() {
        let mut met = met(&Arc::default());
        assert!(met.incoming.next().await.is_err(), "it has ended");
        let error = met.greet(&this_host::hello()).await.err();
        let message = error.expect("nobody reads the hello").message;
        assert_eq!(message, "h: the control connection failed: broken pipe");
    }

    #[tokio::test]
    async fn lines_that_the_user_does_not_read_are_known_as_such() {
        let client = ClientContext::new(Arc::default(), Arc::new(SilentReporter));
        for (seen, in_login, later) in [
            (SeenLines::All, true, true),
            (SeenLines::AfterLogin, false, true),
            (SeenLines::None, false, false),
        ] {
            let (_process, _stdin, mut words, _incoming) = talkative(&client, seen);
            // Generous, because the machine may be busy.
            words.shown(Duration::from_secs(60)).await;
            let said = words.said(b"");
            assert_eq!((&*said.stderr, said.is_shown), ("one\ntwo\n", in_login));
            words.said_hello();
            let said = words.said(b"");
            assert_eq!((&*said.stderr, said.is_shown), ("", later));
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_last_lines_of_a_server_are_shown_before_its_session_is_over() {
        let reporter = Arc::<SlowReporter>::default();
        logged_in(&reporter).end_well(None, |_| ()).await;
        assert_eq!(*reporter.0.lock(), ["one", "two"]);
        let error = Error::new(Kind::Write, Side::Dest, "no space left");
        logged_in(&reporter).end(None, Some(&error)).await;
        assert_eq!(reporter.0.lock().len(), 4);
    }
}

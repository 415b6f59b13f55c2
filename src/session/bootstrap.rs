//! The client's part in installing fastcp on a host that has none: it answers the requests of the
//! start-up script on the host until the sent program says hello.

use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::control::{ControlError, FirstMessage, Incoming};
use crate::error::{Error, Kind, Result, Side};
use crate::program::{self, PIECE, Program};
use crate::report::Reporter;
use crate::session::runtime::off_task;
use crate::ssh::{self, Host, SshOptions};
use crate::units::{printable, size};
use crate::wire::greeting::{Failure, Greeting, PROGRAM_MAX, offer};
use crate::wire::hello::Hello;

/// After the last byte went to ssh, the placed program may take this many times the limit to say
/// hello. ssh's buffers may still hold all of it, and 6 MB at 20 kB/s take 300 s.
const ARRIVAL_LIMITS: u32 = 5;

/// For a wait that [`ssh::within`] bounds.
const UNLIMITED: Duration = Duration::from_secs(1 << 32);

/// Why there was no hello.
pub enum NoHello {
    /// The far side did not answer within this time.
    Late(Duration),
    /// The connection ended, or something other than a hello arrived.
    Control(ControlError),
    /// The connection ended while the program was being sent.
    CutShort,
    /// The program that was sent does not run there. Its process has printed why.
    DoesNotRun,
    Refused(Error),
}

impl From<ControlError> for NoHello {
    fn from(error: ControlError) -> NoHello {
        NoHello::Control(error)
    }
}

impl From<Error> for NoHello {
    fn from(error: Error) -> NoHello {
        NoHello::Refused(error)
    }
}

/// One login to a host on which the program may have to be placed.
pub struct Bootstrap<'a> {
    pub host: &'a Host,
    /// `--no-install` was not given.
    pub may_install: bool,
    pub reporter: &'a dyn Reporter,
    pub options: &'a SshOptions,
    /// Limits each wait of this login.
    pub limit: Duration,
    /// ssh's process, at which the user may be typing a password: that time does not count.
    pub prompts: Option<u32>,
}

/// A program, and the bytes that are sent of it.
struct Parcel {
    program: Program,
    sha256: String,
    /// Compressed, for a host that has gzip.
    gzipped: Option<Vec<u8>>,
}

impl Parcel {
    /// The number of bytes to send.
    fn length(&self) -> u64 {
        match &self.gzipped {
            Some(bytes) => bytes.len() as u64,
            None => self.program.length(),
        }
    }

    /// Reads the bytes to send at `offset`; returns 0 at their end.
    fn read(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let Some(bytes) = &self.gzipped else {
            return self.program.read(into, offset);
        };
        let rest = &bytes[bytes.len().min(offset as usize)..];
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

impl Bootstrap<'_> {
    /// Waits for the far side's hello; places the program first if necessary.
    pub async fn hello<R, W>(
        &self,
        incoming: &mut Incoming<R>,
        stdin: &mut W,
    ) -> Result<Hello, NoHello>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let (system, machine, gzip) = match self.first(incoming).await? {
            FirstMessage::Hello(hello) => return Ok(hello),
            FirstMessage::Greeting(Greeting::Want {
                system,
                machine,
                gzip,
            }) => (system, machine, gzip),
            FirstMessage::Greeting(Greeting::Forbidden) => return Err(self.forbidden().into()),
            FirstMessage::Greeting(_) => return Err(self.out_of_place().into()),
        };
        let parcel = self.parcel(&system, &machine, gzip).await?;
        let program = &parcel.program;
        let gzipped = parcel.gzipped.as_ref().map(|bytes| bytes.len() as u64);
        let line = offer(program.digest(), program.length(), &parcel.sha256, gzipped);
        // If the far side does not listen, it reports the reason itself.
        let _ = timeout(self.limit, write(stdin, line.as_bytes())).await;
        let directory = match self.first(incoming).await? {
            // A program with this digest was already there, for another kind of machine.
            FirstMessage::Hello(hello) => return self.checked(hello, program),
            FirstMessage::Greeting(Greeting::Send { directory }) => directory,
            FirstMessage::Greeting(Greeting::Failed(failure)) => return Err(self.failed(failure)),
            FirstMessage::Greeting(_) => return Err(self.out_of_place().into()),
        };
        self.reporter.installing(&format!(
            "fastcp: {}: installing fastcp there, in {} ({})",
            self.name(),
            printable(&directory),
            size(gzipped.unwrap_or(program.length())),
        ));
        self.send(stdin, &parcel).await?;
        match incoming.first(self.limit * ARRIVAL_LIMITS).await {
            Ok(FirstMessage::Hello(hello)) => self.checked(hello, program),
            Ok(FirstMessage::Greeting(Greeting::Failed(failure))) => Err(self.failed(failure)),
            Ok(FirstMessage::Greeting(_)) => Err(self.out_of_place().into()),
            Err(ControlError::Closed | ControlError::Io(_)) => Err(NoHello::CutShort),
            Err(ControlError::Silent(limit)) => Err(NoHello::Late(limit)),
            Err(other) => Err(other.into()),
        }
    }

    /// The far side's next line. If the user's own `ConnectTimeout` is longer than the limit, it
    /// applies.
    async fn first<R: AsyncRead + Unpin>(
        &self,
        incoming: &mut Incoming<R>,
    ) -> Result<FirstMessage, NoHello> {
        let asks = || self.prompts.is_some_and(ssh::asks_on_terminal);
        let mut first = pin!(incoming.first(UNLIMITED));
        if let Some(first) = ssh::within(self.limit, asks, &mut first).await {
            return Ok(first?);
        }
        let own = ssh::connect_timeout(self.host, self.options).await;
        let more = own.unwrap_or_default().saturating_sub(self.limit);
        match ssh::within(more, asks, first).await {
            Some(first) => Ok(first?),
            None => Err(NoHello::Late(self.limit + more)),
        }
    }

    /// The program for the host's machine, ready to send.
    async fn parcel(&self, system: &str, machine: &str, gzip: bool) -> Result<Arc<Parcel>> {
        let name = self.name();
        let (shown_system, shown) = (printable(system.as_bytes()), printable(machine.as_bytes()));
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if system != "Linux" || !machine.chars().all(is_name) {
            let message = format!("fastcp does not support {shown_system} on {shown}; use scp");
            return Err(self.refusal(message));
        }
        if !self.may_install {
            let message = "no compatible fastcp on its PATH, and --no-install was given: \
                           install it there, or give its path with --remote-path";
            return Err(self.refusal(message));
        }
        let wanted = machine.to_owned();
        let found = off_task(move || Program::for_machine(&wanted)).await??;
        let program = found.ok_or_else(|| {
            let target = program::target_of(machine);
            self.refusal(format!(
                "no compatible fastcp on its PATH, and none here for its processor ({shown}): \
                 build one (cargo build --release --target {target}) and put it at {} on this \
                 machine, or install it on {name}",
                program::wanted_path(machine),
            ))
        })?;
        if program.length() > PROGRAM_MAX {
            let file = printable(program.path().as_os_str().as_bytes());
            return Err(self.refusal(format!(
                "{file} on this machine is too large to be fastcp, so it is not sent; replace it"
            )));
        }
        off_task(move || {
            Ok(Arc::new(Parcel {
                sha256: program.sha256()?,
                gzipped: gzip.then(|| program.gzipped()).transpose()?,
                program,
            }))
        })
        .await?
    }

    async fn send<W>(&self, stdin: &mut W, parcel: &Arc<Parcel>) -> Result<()>
    where
        W: AsyncWrite + Unpin,
    {
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < parcel.length() {
            let (reader, mut buffer) = (parcel.clone(), piece);
            let read = off_task(move || (reader.read(&mut buffer, at), buffer));
            let read = read.await?;
            piece = read.1;
            let read = read.0?;
            if read == 0 {
                let file = printable(parcel.program.path().as_os_str().as_bytes());
                return Err(self.refusal(format!(
                    "{file} on this machine shrank while it was sent; try again"
                )));
            }
            match timeout(self.limit, write(stdin, &piece[..read])).await {
                Ok(Ok(())) => at += read as u64,
                // The far side reports the reason itself.
                Ok(Err(_)) => break,
                Err(_) => {
                    let seconds = self.limit.as_secs();
                    let message = format!(
                        "sending fastcp there stalled for {seconds} s; try again, or install it \
                         there"
                    );
                    return Err(self.refusal(message));
                }
            }
        }
        Ok(())
    }

    /// Checks that the sent program said hello, and no other.
    fn checked(&self, hello: Hello, program: &Program) -> Result<Hello, NoHello> {
        match hello.program == program.digest() {
            true => Ok(hello),
            false => Err(self
                .refusal(format!(
                    "the fastcp that started is not the one that was sent; run fastcp --remove \
                     {}: and try again",
                    self.name()
                ))
                .into()),
        }
    }

    fn failed(&self, failure: Failure) -> NoHello {
        let message = match failure {
            Failure::Nowhere => {
                "no compatible fastcp on its PATH, and no directory to install it in: \
                 ~/.cache/fastcp, /tmp, /var/tmp and /dev/shm are full, not writable or mounted \
                 noexec; install it there, or give its path with --remote-path"
            }
            Failure::Length => "fastcp could not be written there completely (a full disk?)",
            Failure::Digest => "the program that was sent failed verification; try again",
            Failure::Start => return NoHello::DoesNotRun,
        };
        self.refusal(message).into()
    }

    fn forbidden(&self) -> Error {
        self.refusal(
            "no compatible fastcp on its PATH, and /etc/fastcp/no-install there forbids installing \
             one; ask its administrator to install it",
        )
    }

    fn out_of_place(&self) -> Error {
        self.refusal(
            "sent unexpected output before fastcp started (a login script, or another program: see \
             --remote-path)",
        )
    }

    fn refusal(&self, message: impl AsRef<str>) -> Error {
        let message = format!("{}: {}", self.name(), message.as_ref());
        Error::new(Kind::FarEnd, Side::Here, message)
    }

    fn name(&self) -> String {
        printable(self.host.name.as_bytes())
    }
}

async fn write<W: AsyncWrite + Unpin>(stdin: &mut W, bytes: &[u8]) -> std::io::Result<()> {
    stdin.write_all(bytes).await?;
    stdin.flush().await
}

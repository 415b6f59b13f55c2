//! A Unix socket on the far host, where further ssh logins meet the server that waits for them.
//!
//! A further login runs the same command as the first, so that the rules for finding, installing
//! and confining the far end apply to it too. Its first bytes distinguish it from a session (see
//! [`JOIN`]). It passes its stdin and stdout to the server and waits until the server has finished
//! with them. The server reads and writes sshd's descriptors itself, so no byte is copied through
//! the login's process.
//!
//! The socket has an abstract name: it needs no writable directory and leaves no file behind. Its
//! name derives from the session's, which both ends know and which is not secret. Each end checks
//! that the other is a process of the same user. The connection proves itself like any other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncRead, AsyncReadExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::Connection;
use super::unproven::Unproven;
use crate::control::stdio::Stdio;
use crate::transport::connection::duplex::{Duplex, Piped};
use crate::transport::connection::handshake::{Keyring, OPENING_TIMEOUT};
use crate::wire::hello::MAGIC;

/// A client sends this in place of its hello to turn a login into a data connection. It is as long
/// as the mark of a hello. The session's name in hexadecimal and a newline follow.
pub const JOIN: &[u8; MAGIC.len()] = b"\0fastcp\0join  ";

/// A name in hexadecimal and the newline.
const REST_LEN: usize = 33;

/// The pause when descriptors run out: others may free some.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The first bytes of a login that becomes a data connection of this session.
pub fn joining(session: &[u8; 16]) -> Vec<u8> {
    let mut words = JOIN.to_vec();
    words.extend_from_slice(hex(session).as_bytes());
    words.push(b'\n');
    words
}

fn hex(session: &[u8; 16]) -> String {
    session.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("fastcp-{name}"))
}

/// The socket at which the server of a session waits.
pub struct Meeting(UnixListener);

impl Meeting {
    /// Opens the socket of a session.
    ///
    /// # Errors
    /// If no socket can be made; a copy works without it.
    pub fn open(session: &[u8; 16]) -> io::Result<Meeting> {
        let address = address(&hex(session))?;
        let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        Ok(Meeting(UnixListener::from_std(listener)?))
    }

    /// Accepts logins and hands on connections that prove themselves, until `hand_on` returns
    /// false.
    pub async fn run(self, keyring: Arc<Keyring>, mut hand_on: impl FnMut(Connection) -> bool) {
        let mut unproven = Unproven::default();
        loop {
            tokio::select! {
                accepted = self.0.accept() => match accepted {
                    Ok((login, _)) => unproven.add(take(login, keyring.clone())),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
                connection = unproven.next() => {
                    if !hand_on(connection) {
                        return;
                    }
                }
            }
        }
    }
}

async fn take(login: UnixStream, keyring: Arc<Keyring>) -> io::Result<Connection> {
    check_user(login.peer_cred()?.uid())?;
    let handed = login.async_io(Interest::READABLE, || receive_two(login.as_fd()));
    let [stdin, stdout] = timeout(OPENING_TIMEOUT, handed).await??;
    // The login's process ends when `login` is dropped.
    let mut link = Duplex::Piped(Piped::new(Stdio::new(stdin)?, Stdio::new(stdout)?, login));
    let id = keyring.welcome(&mut link).await?;
    Ok(Connection {
        id,
        link,
        expected: None,
        fate: None,
    })
}

fn check_user(uid: u32) -> io::Result<()> {
    if uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let what = "another user's process is at the other end";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

fn receive_two(from: BorrowedFd<'_>) -> io::Result<[OwnedFd; 2]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut all = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(handed) = message {
            all.extend(handed);
        }
    }
    all.try_into()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// The request in the first bytes of a client.
pub enum MeetingRequest {
    /// A session; these bytes of its hello were read.
    Session([u8; MAGIC.len()]),
    /// A data connection of the session with this name.
    Stream(String),
}

/// Reads the first bytes of a client. Reads no byte beyond the request.
///
/// # Errors
/// `InvalidData` for a malformed name.
pub async fn greeting(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<MeetingRequest> {
    let mut first = [0; MAGIC.len()];
    reader.read_exact(&mut first).await?;
    if first != *JOIN {
        return Ok(MeetingRequest::Session(first));
    }
    let mut rest = [0; REST_LEN];
    reader.read_exact(&mut rest).await?;
    let (name, newline) = rest.split_at(REST_LEN - 1);
    let is_name = newline == b"\n" && name.iter().all(u8::is_ascii_hexdigit);
    match str::from_utf8(name) {
        Ok(name) if is_name => Ok(MeetingRequest::Stream(name.to_ascii_lowercase())),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Passes this process's stdin and stdout to the server of the session, and waits until the server
/// has finished with them or has exited.
///
/// # Errors
/// If there is no such server, or it belongs to another user.
pub async fn join(session: &str) -> io::Result<()> {
    let meeting = std::os::unix::net::UnixStream::connect_addr(&address(session)?)?;
    meeting.set_nonblocking(true)?;
    let mut meeting = UnixStream::from_std(meeting)?;
    check_user(meeting.peer_cred()?.uid())?;
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let handed = [stdin.as_fd(), stdout.as_fd()];
    let sent = meeting.async_io(Interest::WRITABLE, || send_two(meeting.as_fd(), &handed));
    timeout(OPENING_TIMEOUT, sent).await??;
    // The server sends nothing here; the read returns when it closes the socket.
    let _ = meeting.read(&mut [0]).await;
    Ok(())
}

fn send_two(to: BorrowedFd<'_>, handed: &[BorrowedFd<'_>; 2]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    // The buffer has room for exactly these.
    ancillary.push(SendAncillaryMessage::ScmRights(handed));
    sendmsg(
        to,
        &[IoSlice::new(&[0])],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_bytes_tell_a_stream_from_a_session() {
        let mut words = joining(&[0xab; 16]);
        words.extend_from_slice(b"opening");
        let mut reader = &words[..];
        match greeting(&mut reader).await.unwrap() {
            MeetingRequest::Stream(name) => assert_eq!(name, "ab".repeat(16)),
            MeetingRequest::Session(_) => panic!("a stream was asked for"),
        }
        assert_eq!(reader, b"opening", "what follows is left where it is");
        let hello = [MAGIC, b"{}\n"].concat();
        let session = greeting(&mut &hello[..]).await.unwrap();
        assert!(matches!(session, MeetingRequest::Session(first) if first == MAGIC));
        let odd = [JOIN, &b"../../../../../../../../../etc/x\n"[..]].concat();
        assert!(greeting(&mut &odd[..]).await.is_err());
    }
}

//! What the kernel knows of a connection: whether the other host still acknowledges, how much, and
//! what holds it back; and which congestion control it goes by.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::libc;
use socket2::{Domain, SockRef, Socket, Type};

const DEFAULT_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const ALLOWED_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// A part of `struct tcp_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Segments on their way. None are while the other host's window is closed, however much is
    /// to be sent: a slow reader is not a dead link.
    pub unacknowledged: u32,
    /// Since the last acknowledgement came.
    pub since_ack: Duration,
    /// Smoothed.
    pub round_trip: Duration,
    /// Bytes that the other kernel acknowledged; 0 where this one does not count them.
    pub acked_bytes: u64,
    /// Bytes that were sent once more.
    pub retransmitted_bytes: u64,
    /// Bytes that the other end's window lets be under way; 0 where that is not told.
    pub receive_window: u32,
    /// Bytes that this end's buffer holds.
    pub send_buffer: u32,
}

/// The congestion control that sockets have unless told otherwise.
pub fn congestion_default() -> Option<String> {
    let name = std::fs::read_to_string(DEFAULT_CONGESTION).ok()?;
    Some(name.trim().to_owned())
}

/// # Errors
/// Where there is none of this name here, or this user may not choose it.
pub fn set_congestion(socket: impl AsFd, name: &str) -> io::Result<()> {
    SockRef::from(&socket).set_tcp_congestion(name.as_bytes())
}

/// True if data sockets may go by this congestion control here.
pub fn may_use(name: &str) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    socket.is_ok_and(|socket| set_congestion(&socket, name).is_ok())
}

/// Those that any user may choose, for a message.
pub fn congestions_allowed() -> String {
    let names = std::fs::read_to_string(ALLOWED_CONGESTION);
    names.map_or_else(|_| String::new(), |names| names.trim().to_owned())
}

/// None for what is no TCP connection.
pub fn facts(socket: impl AsFd) -> Option<KernelFacts> {
    let send_buffer = SockRef::from(&socket).send_buffer_size().unwrap_or(0);
    // SAFETY: the structure is plain numbers, for which all zeros are a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, so it is open; the kernel writes at most `len` bytes,
    // which is the size of `info`, and both live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut len,
        )
    };
    (result == 0).then(|| KernelFacts {
        unacknowledged: info.tcpi_unacked,
        since_ack: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
        // What an older kernel does not know stays zero.
        acked_bytes: info.tcpi_bytes_acked,
        retransmitted_bytes: info.tcpi_bytes_retrans,
        receive_window: info.tcpi_snd_wnd,
        send_buffer: u32::try_from(send_buffer).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_facts_and_a_file_has_none() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let facts = facts(&socket).unwrap();
        assert_eq!(facts.unacknowledged, 0);
        assert!(facts.round_trip < Duration::from_secs(10), "{facts:?}");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(super::facts(&file), None);
    }
}

//! What the kernel knows of a connection: whether the other host still acknowledges.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::libc;

/// A part of `struct tcp_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Segments on their way. None are while the other host's window is closed, however much is
    /// to be sent: a slow reader is not a dead link.
    pub unacknowledged: u32,
    /// Since the last acknowledgement came.
    pub since_ack: Duration,
    /// Smoothed.
    pub round_trip: Duration,
}

/// None for what is no TCP connection.
pub fn facts(socket: impl AsFd) -> Option<KernelFacts> {
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

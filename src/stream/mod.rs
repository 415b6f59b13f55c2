//! Frames on connections: sending, receiving, and the opening that proves who is at the other end.
//! Does not know what a file is.

pub mod crowd;
pub mod frames;
pub mod kernel;
pub mod limit;
pub mod link;
pub mod meter;
pub mod opening;
pub mod recv;
pub mod send;
pub mod stall;

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Probes of a silent connection begin after this; a host that vanished is noticed by them.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Bytes that the kernel may hold and not have sent until it is known what the stream carries
/// (`kernel::KernelFacts::unsent_max`): half a second of a link of 1 Mbit/s, and more than a fast one
/// sends in its first two round trips.
const UNSENT_MAX: u32 = 64 << 10;

/// Options of a data connection: no delay, probes while it is silent, and little unsent data in
/// the kernel, so that a stream which is free for a frame is one whose network has room, and a
/// slow one does not hoard frames that a fast one could send. A connection that is dropped is
/// reset: what it still held is sent again elsewhere, and no kernel goes on sending it to a link
/// that is dead.
pub fn prepare(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    // Not on every kernel; without it streams are only less even.
    let _ = socket.set_tcp_notsent_lowat(UNSENT_MAX);
    Ok(())
}

/// What was written is delivered although the connection is dropped now.
fn linger(socket: &TcpStream) -> io::Result<()> {
    SockRef::from(socket).set_linger(None)
}

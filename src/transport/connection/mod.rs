//! Frames on connections: sending, receiving, and the opening that proves who is at the other end.
//! This module does not know about files.

pub mod duplex;
pub mod handshake;
pub mod kernel;
pub mod receive;
pub mod send;
pub mod stall;
pub mod stats;

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Keepalive probes begin after this much silence; they detect a host that vanished.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The most unsent bytes in the kernel until the throughput is known
/// (`kernel::KernelFacts::unsent_max`): half a second of a 1 Mbit/s link, and more than a fast one
/// sends in its first two round trips.
const UNSENT_MAX: u32 = 64 << 10;

/// Sets the options of a data connection: no delay, keepalive probes, and little unsent data in
/// the kernel. With little unsent data a connection is ready for a frame only when its network has
/// room, and a slow one does not hoard frames that a fast one could send. Dropping a connection
/// resets it: its chunks are sent again on others, and no kernel goes on sending to a dead link.
pub fn prepare(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    // Not every kernel has this option; without it the load of connections is only less even.
    let _ = socket.set_tcp_notsent_lowat(UNSENT_MAX);
    Ok(())
}

/// Makes the kernel deliver all written bytes even if the connection is dropped now.
fn linger(socket: &TcpStream) -> io::Result<()> {
    SockRef::from(socket).set_linger(None)
}

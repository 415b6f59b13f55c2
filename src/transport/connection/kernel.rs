//! Facts that the kernel reports about a TCP connection (acknowledgements, windows, rates), and
//! the choice of its congestion control.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::libc;
use socket2::{Domain, SockRef, Socket, Type};

const DEFAULT_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const ALLOWED_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// A subset of `struct tcp_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Segments in flight. Zero while the other host's window is closed, however much is unsent: a
    /// slow reader is not a dead link.
    pub unacknowledged: u32,
    /// Since the last acknowledgement.
    pub since_ack: Duration,
    /// Smoothed round trip.
    pub round_trip: Duration,
    /// The shortest round trip of the last minutes; zero if the kernel does not report it.
    pub round_trip_min: Duration,
    /// Segments received from the other host.
    pub segments_in: u32,
    /// Bytes that the other kernel acknowledged; 0 if this kernel does not count them.
    pub acked_bytes: u64,
    /// Bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Bytes that the other end's window allows in flight; 0 if the kernel does not report it.
    pub receive_window: u32,
    /// Bytes of data in a full segment.
    pub segment: u64,
    /// Size of this end's send buffer, in bytes.
    pub send_buffer: u32,
    /// Bytes a second that the congestion window and the pacing rate allow.
    pub rate: u64,
    /// In slow start `rate` doubles with each round trip up to this. Slow start is over if this is
    /// not above `rate`.
    pub grows_to: u64,
    /// Bytes in flight, in whole segments.
    pub under_way: u64,
    /// Bytes in flight or not yet sent; the bytes in flight count as whole segments.
    pub held: u64,
}

/// Unsent bytes allowed in a socket's buffer: what the connection sends in a tenth of a second. No
/// other connection can take these bytes, and a buffer that once grew for a fast connection never
/// shrinks: at 300 KB/s a megabyte stays in it for 3 s.
const UNSENT_PARTS: u64 = 10;
pub const UNSENT_MIN: u32 = 16 << 10;
const UNSENT_MAX: u32 = 4 << 20;

/// Before this many bytes are acknowledged, the rate is that of a window which nothing confirms.
const UNCONFIRMED: u64 = 64 << 10;

/// A queue has formed on the path if a round trip exceeds the shortest by this factor and this
/// time.
const QUEUED: f64 = 1.25;
const QUEUED_MIN: Duration = Duration::from_millis(5);

impl KernelFacts {
    /// The time until `more` bytes, queued behind the held ones, are acknowledged.
    pub fn due(&self, more: u64) -> Duration {
        self.takes(self.held.saturating_add(more))
    }

    /// The time in which the connection carries so many bytes.
    pub fn takes(&self, bytes: u64) -> Duration {
        let (rate, bytes) = (self.rate.max(1), bytes as f64);
        let round_trip = self.round_trip.as_secs_f64();
        // The windows of n round trips are 1 + 2 + 4 + ... = 2^n - 1 times the present one.
        let in_slow_start = bytes.min(self.grows_to.saturating_sub(rate) as f64 * round_trip);
        let mut seconds = (bytes - in_slow_start) / rate.max(self.grows_to) as f64;
        if in_slow_start > 0.0 {
            let windows = in_slow_start / (rate as f64 * round_trip);
            seconds += round_trip * (1.0 + windows).log2();
        }
        Duration::from_secs_f64(seconds.min(3600.0))
    }

    /// True if segments are in flight and the round trip is clearly longer than the shortest: the
    /// segments wait in a queue. If no segment is in flight, the reader is slow.
    pub fn is_queued(&self) -> bool {
        let min = self.round_trip_min;
        let is_slow = !min.is_zero() && self.round_trip > min.mul_f64(QUEUED) + QUEUED_MIN;
        is_slow && self.unacknowledged > 0
    }

    /// The bound on unsent bytes in the socket's buffer; a power of two.
    pub fn unsent_max(&self) -> u32 {
        if self.acked_bytes < UNCONFIRMED {
            return UNSENT_MIN;
        }
        let wanted = u32::try_from(self.rate / UNSENT_PARTS).unwrap_or(UNSENT_MAX);
        wanted.clamp(UNSENT_MIN, UNSENT_MAX).next_power_of_two()
    }
}

/// The congestion control that the kernel gives to new sockets.
pub fn congestion_default() -> Option<String> {
    let name = std::fs::read_to_string(DEFAULT_CONGESTION).ok()?;
    Some(name.trim().to_owned())
}

/// Sets the congestion control of a socket.
///
/// # Errors
/// If this host has no congestion control of this name, or this user may not choose it.
pub fn set_congestion(socket: impl AsFd, name: &str) -> io::Result<()> {
    SockRef::from(&socket).set_tcp_congestion(name.as_bytes())
}

/// Bounds unsent bytes, see [`KernelFacts::unsent_max`]. Has no effect on a system without this
/// option.
pub fn bound_unsent(socket: impl AsFd, bytes: u32) {
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(bytes);
}

/// Limits the socket to this many bytes a second; the kernel itself spaces the packets. Congestion
/// control may allow less.
///
/// # Errors
/// If this is not a socket.
pub fn set_pace(socket: impl AsFd, bytes_per_s: u64) -> io::Result<()> {
    // A value with all bits set would mean no limit.
    let most = libc::c_ulong::MAX - 1;
    let rate = libc::c_ulong::try_from(bytes_per_s).map_or(most, |rate| rate.clamp(1, most));
    // SAFETY: the descriptor is borrowed, so it is open; the kernel reads `size_of_val(&rate)`
    // bytes of `rate`, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const rate).cast(),
            size_of_val(&rate) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// True if data sockets on this host may use this congestion control.
pub fn may_use(name: &str) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    socket.is_ok_and(|socket| set_congestion(&socket, name).is_ok())
}

/// The congestion controls that any user may choose, for a message.
pub fn congestions_allowed() -> String {
    let names = std::fs::read_to_string(ALLOWED_CONGESTION);
    names.map_or_else(|_| String::new(), |names| names.trim().to_owned())
}

/// The kernel's facts about a connection; None if it is not a TCP connection.
pub fn facts(socket: impl AsFd) -> Option<KernelFacts> {
    let send_buffer = SockRef::from(&socket).send_buffer_size().unwrap_or(0);
    // SAFETY: the structure consists of plain numbers, for which all zeros is a valid value.
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
    // An older kernel without this field leaves zero.
    let pace = match info.tcpi_max_pacing_rate {
        0 => u64::MAX,
        pace => pace,
    };
    let segments = |count: u32| u64::from(count) * u64::from(info.tcpi_snd_mss);
    // Before the first loss the slow start threshold is as good as infinite.
    let per_s = |window: u32| {
        let round_trip = u64::from(info.tcpi_rtt.max(1));
        (segments(window).saturating_mul(1_000_000) / round_trip).min(pace)
    };
    (result == 0).then(|| KernelFacts {
        unacknowledged: info.tcpi_unacked,
        since_ack: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
        round_trip_min: Duration::from_micros(info.tcpi_min_rtt.into()),
        // Fields that an older kernel does not have stay zero.
        segments_in: info.tcpi_segs_in,
        acked_bytes: info.tcpi_bytes_acked,
        retransmitted_bytes: info.tcpi_bytes_retrans,
        receive_window: info.tcpi_snd_wnd,
        segment: segments(1),
        send_buffer: u32::try_from(send_buffer).unwrap_or(u32::MAX),
        rate: per_s(info.tcpi_snd_cwnd),
        grows_to: per_s(info.tcpi_snd_ssthresh),
        under_way: segments(info.tcpi_unacked),
        held: segments(info.tcpi_unacked) + u64::from(info.tcpi_notsent_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_connection_keeps_little_in_its_buffer_and_is_late_soon() {
        let facts = |rate| KernelFacts {
            rate,
            held: 100_000,
            acked_bytes: UNCONFIRMED,
            ..KernelFacts::default()
        };
        assert_eq!(facts(100_000).unsent_max(), UNSENT_MIN);
        assert_eq!(facts(300_000).unsent_max(), 32 << 10);
        assert_eq!(facts(5_000_000).unsent_max(), 512 << 10);
        assert_eq!(facts(u64::MAX).unsent_max(), UNSENT_MAX);
        let new = KernelFacts {
            acked_bytes: UNCONFIRMED - 1,
            ..facts(5_000_000)
        };
        assert_eq!(new.unsent_max(), UNSENT_MIN);
        assert_eq!(facts(300_000).due(200_000), Duration::from_secs(1));
        assert!(facts(0).due(u64::MAX / 2) >= Duration::from_secs(3600));
        let growing = KernelFacts {
            grows_to: u64::MAX,
            round_trip: Duration::from_millis(100),
            ..facts(300_000)
        };
        // Windows of 30, 60, 120 and 240 KB.
        assert_eq!(growing.due(350_000), Duration::from_millis(400));
        // Windows of 30 and 60 KB, and from then on 120 KB in each round trip.
        let grown = KernelFacts {
            grows_to: 1_200_000,
            ..growing
        };
        assert_eq!(grown.due(350_000), Duration::from_millis(500));
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        bound_unsent(&socket, UNSENT_MIN);
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), UNSENT_MIN);
    }

    #[test]
    fn a_connection_has_facts_and_a_file_has_none() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let unpaced = facts(&socket).unwrap();
        set_pace(&socket, 20_000).unwrap();
        let facts = facts(&socket).unwrap();
        assert!(unpaced.rate > 20_000 && facts.rate == 20_000, "{unpaced:?}");
        assert_eq!(facts.unacknowledged, 0);
        assert!(facts.round_trip < Duration::from_secs(10), "{facts:?}");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(super::facts(&file), None);
        assert!(set_pace(&file, 20_000).is_err());
    }
}

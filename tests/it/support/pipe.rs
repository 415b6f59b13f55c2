//! One direction of a data connection through a [`Storm`](super::storm::Storm): passes bytes on
//! with the script's faults.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::chaos::Fault;
use super::storm::Shared;

/// One direction of a data connection.
pub(super) struct Pipe {
    pub(super) from: TcpStream,
    pub(super) to: TcpStream,
    pub(super) shared: Arc<Shared>,
}

impl Pipe {
    pub(super) fn pass(mut self, faults: Vec<(usize, Fault)>) {
        let mut faults = faults.into_iter().peekable();
        let mut block = [0; 16 << 10];
        let (mut passed, mut late, mut rate) = (0, Duration::ZERO, None);
        'pass: while let Ok(len @ 1..) = self.from.read(&mut block) {
            let mut bytes = block[..len].to_vec();
            // Fault positions count the bytes that arrive, not the bytes passed on.
            while let Some((at, fault)) = faults.next_if(|(at, _)| *at < passed + len) {
                self.shared.strike();
                let here = at.saturating_sub(passed).min(bytes.len());
                match fault {
                    Fault::Delay(time) => late = time,
                    Fault::Throttle(bytes_per_s) => rate = Some(bytes_per_s),
                    Fault::Stall(time) => {
                        self.send(&bytes.drain(..here).collect::<Vec<_>>());
                        self.shared.pause(time);
                    }
                    fault => {
                        if self.strike(fault, here, &mut bytes) {
                            break 'pass;
                        }
                    }
                }
            }
            passed += len;
            if !late.is_zero() {
                self.shared.pause(late);
            }
            if let Some(rate) = rate {
                self.shared
                    .pause(Duration::from_secs(len as u64) / rate as u32);
            }
            if !self.send(&bytes) {
                break;
            }
        }
        self.to.shutdown(Shutdown::Write).ok();
    }

    /// True if no byte passes after this fault.
    fn strike(&mut self, fault: Fault, here: usize, bytes: &mut Vec<u8>) -> bool {
        match fault {
            Fault::Corrupt => {
                if let Some(byte) = bytes.get_mut(here) {
                    *byte ^= 0x10;
                }
                return false;
            }
            Fault::Duplicate(run) => {
                let run = &bytes[here.saturating_sub(run)..here].to_vec();
                bytes.splice(here..here, run.iter().copied());
                return false;
            }
            Fault::Swallow(run) => {
                bytes.drain(here..(here + run).min(bytes.len()));
                return false;
            }
            _ => {}
        }
        self.send(&bytes[..here]);
        match fault {
            Fault::HalfClose => {
                self.to.shutdown(Shutdown::Write).ok();
                std::io::copy(&mut self.from, &mut std::io::sink()).ok();
            }
            // Stops reading: sent bytes fill the buffers and stay there.
            Fault::BlackHole => self.shared.hold(|| false),
            _ => {
                for socket in [&self.from, &self.to] {
                    if fault == Fault::Reset {
                        rustix::net::connect_unspec(socket).ok();
                    }
                    socket.shutdown(Shutdown::Both).ok();
                }
            }
        }
        true
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        self.shared.count(bytes.len());
        self.to.write_all(bytes).is_ok()
    }
}

//! A bad link between two hosts: packets arrive late, out of order, twice, damaged, or not at
//! all. It uses two TUN devices and a thread for each direction, since few kernels have netem.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How many of ten thousand packets get each fault.
const LATE: u64 = 2000;
const TWICE: u64 = 100;
const DAMAGED: u64 = 10;
const LOST: u64 = 10;

/// The most late packets that are held back; they are all sent when there are more, or after
/// this long without a packet.
const OVERTAKE: usize = 3;
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Carries packets until dropped.
pub(crate) struct Wire {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Wire {
    /// Joins these devices.
    pub(crate) fn new(near: File, far: File) -> Wire {
        let stop = Arc::<AtomicBool>::default();
        let there = (near.try_clone(), far.try_clone());
        let (near_in, far_in) = (there.0.expect("a handle"), there.1.expect("a handle"));
        let threads = [(near_in, far, 1), (far_in, near, 2)].map(|(from, to, seed)| {
            let stop = stop.clone();
            std::thread::spawn(move || carry(from, to, seed, &stop))
        });
        Wire {
            stop,
            threads: threads.into(),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("it does not panic");
        }
    }
}

/// A new TUN device in this thread's network namespace. None where this machine provides none.
pub(crate) fn device(name: &str) -> Option<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).open("/dev/net/tun").ok()?;
    // struct ifreq: the name, then the flags IFF_TUN and IFF_NO_PI.
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&0x1001u16.to_ne_bytes());
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    // SAFETY: the kernel reads and writes no more than a struct ifreq, which has 40 bytes.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) };
    (made == 0).then_some(file)
}

fn carry(mut from: File, mut to: File, mut chance: u64, stop: &AtomicBool) {
    let mut packet = [0; 1 << 16];
    let mut late = VecDeque::new();
    // A packet that cannot be written is lost: the device may be down already.
    let mut give = |packet: &[u8]| drop(to.write(packet));
    while !stop.load(Relaxed) {
        let mut fds = [PollFd::new(&from, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&PATIENCE)).unwrap_or(0);
        if ready == 0 || late.len() > OVERTAKE {
            late.drain(..).for_each(|packet: Vec<u8>| give(&packet));
        }
        if ready == 0 {
            continue;
        }
        let Ok(len) = from.read(&mut packet) else {
            return;
        };
        let packet = &mut packet[..len];
        let mut happens = |share: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005);
            chance = chance.wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % 10_000 < share
        };
        if happens(LOST) {
            continue;
        }
        if happens(DAMAGED) {
            packet[len / 2] ^= 0x10;
        }
        if happens(TWICE) {
            give(packet);
        }
        match happens(LATE) {
            true => late.push_back(packet.to_vec()),
            false => give(packet),
        }
    }
}

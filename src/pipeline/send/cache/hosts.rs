//! A set of hosts.

/// The most hosts of one cache. A set of them is the bits of a word.
pub const HOSTS_MAX: usize = 64;

/// Numbers of hosts, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(u64);

impl Hosts {
    pub(super) fn one(host: usize) -> Hosts {
        Hosts(1 << host)
    }

    pub(super) fn has(self, host: usize) -> bool {
        self.0 & Hosts::one(host).0 != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn add(&mut self, host: usize) {
        self.0 |= Hosts::one(host).0;
    }

    pub(super) fn remove(&mut self, host: usize) {
        self.0 &= !Hosts::one(host).0;
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..HOSTS_MAX).filter(move |host| self.has(*host))
    }
}

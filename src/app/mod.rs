//! The work of one command: a copy on this machine, with one host, between two hosts, to
//! several hosts or from several hosts; a comparison with a list of digests; a probe; the removal
//! of leftovers; listing or removing programs on hosts.

pub mod clean;
pub mod copy;
pub mod fan_out;
pub mod gather;
pub mod list_check;
pub mod local;
pub mod probe;
pub mod relay;
pub mod remote_admin;
pub mod retries;
pub mod turn;

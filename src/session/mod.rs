//! One session of a copy, from the ssh login to `Done`. The user starts the [`client`], which
//! starts the [`server`] on the other host. Each runs one [`endpoint`] of the copy; [`converse`]
//! exchanges messages with the other.

pub mod bootstrap;
pub mod checking_end;
pub mod client;
pub mod connection_control;
pub mod context;
pub mod control_reader;
pub mod converse;
pub mod data_connections;
pub mod endpoint;
pub mod file_names;
pub mod heartbeat;
pub mod host;
pub mod host_pin;
pub mod listed_lines;
pub mod login;
pub mod login_turns;
pub mod operands;
pub mod owner;
pub mod permit;
pub mod polite;
pub mod probe_place;
pub mod progress_relay;
pub mod rate_file;
pub mod request;
pub mod route_choice;
pub mod runtime;
pub mod saved_settings;
pub mod schedule;
pub mod server;
pub mod taken_names;
pub mod tuning;

pub use permit::{Permit, PermittedAccess};
pub use request::{
    Bottleneck, Compress, CopyOptions, DigestsFrom, EndKind, Host, Operand, Outcome, Ports,
    Request, Retry, Route, RouteOptions, Rsh, Shares, SshOptions, Verdict,
};

//! Data connections between two ends, and the frames on them.
//!
//! The modules in [`routes`] make connections. [`dial`] keeps the wanted number of them up.
//! [`connections`] holds the live ones and finds dead ones. Each connection sends from the queue in
//! [`frames`] or receives into buffers. Nothing here knows about files.

pub mod backoff;
pub mod connection;
pub mod connections;
pub mod dial;
pub mod frames;
pub mod idle_time;
pub mod rate_limit;
pub mod routes;

//! Data connections between two ends, and the frames on them.
//!
//! A [`routes`] module makes connections. [`dial`] keeps the wanted number of them up.
//! [`connections`] holds those that are up and finds dead ones. Each sends from the queue of
//! [`frames`] or receives into buffers. Nothing here knows about files.

pub mod backoff;
pub mod connection;
pub mod connections;
pub mod dial;
pub mod frames;
pub mod idle_time;
pub mod rate_limit;
pub mod routes;

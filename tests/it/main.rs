//! fastcp from the outside: the built binary against real sshd, files, terminals and signals.
//!
//! Plain `cargo test` needs neither root, network nor sshd: a test that lacks one of them prints
//! one line and is skipped. With FASTCP_TEST_STRICT=1 a skip is a failure.

#[macro_use]
mod support;

/// Arguments, help, messages, signals and the terminal.
mod cli {
    mod bad_input;
    mod complete;
    mod config;
    mod events;
    mod help;
    mod operands;
    mod output;
    mod password;
    mod probe;
    mod progress;
    mod report;
    mod signals;
    mod terminal;
}

/// Copies: which files they take, how the content arrives, and which entries the destination keeps.
mod copy {
    mod alike;
    mod archive;
    mod backup;
    mod changing;
    mod checksum;
    mod choosing;
    mod churn;
    mod counting;
    mod delta;
    mod devices;
    mod dry_run;
    mod earlier;
    mod kept;
    mod landing;
    mod list_check;
    mod live;
    mod map;
    mod mirror;
    mod own_names;
    mod permissions;
    mod pipes;
    mod placement;
    mod postgres;
    mod scp;
    mod small_files;
    mod snapshots;
    mod special;
    mod verification;
}

/// Hosts, logins and keys, and hosts with few resources.
mod ends {
    mod confined;
    mod far_side;
    mod limits;
    mod logins;
    mod memory;
    mod scarce;
    mod ssh;
    mod syslog;
}

/// Copies that are cut short, damaged or hindered, and how they go on.
mod recover {
    mod chaos;
    mod concurrent_changes;
    mod damaged;
    mod disk;
    mod hung;
    mod interrupted;
    mod killed;
    mod left_behind;
    mod leftovers;
    mod reconnect;
    mod resume;
    mod schedule;
    mod second;
    mod stopped;
    mod stuck;
    mod write_errors;
}

/// Routes, connections, the tuner, and networks that fail.
mod net {
    mod faults;
    mod flow;
    mod routes;
    mod streams;
    mod tuning;
}

/// More than one other host.
mod hosts {
    mod also;
    mod between;
    mod several;
}

/// The tests of the test support.
mod fixture;
/// Peers that break the protocol, and the protocol byte for byte.
mod hostile;
/// The structure of the source.
mod layers;

//! fastcp from the outside: the built binary against real sshd, files, terminals and signals.
//!
//! Plain `cargo test` needs neither root, network nor sshd: a test that lacks one of them prints
//! one line and is skipped. With FASTCP_TEST_STRICT=1 a skip is a failure.

#[macro_use]
mod support;

mod alike;
mod also;
mod bad_input;
mod between;
mod changing;
mod chaos;
mod churn;
mod confined;
mod corpus;
mod damaged;
mod devices;
mod disk;
mod far_side;
mod faults;
mod fixture;
mod flow;
mod help;
mod hostile;
mod hung;
mod interrupted;
mod kept;
mod killed;
mod landing;
mod layers;
mod left_behind;
mod limits;
mod live;
mod logins;
mod meanwhile;
mod memory;
mod neighbours;
mod operands;
mod output;
mod own_names;
mod password;
mod permissions;
mod pipes;
mod placement;
mod postgres;
mod probe;
mod reconnect;
mod resume;
mod routes;
mod scarce;
mod signals;
mod small_files;
mod special;
mod ssh;
mod stopped;
mod streams;
mod stuck;
mod terminal;
mod tuning;
mod verification;
mod wanted;
mod wire;
mod write_errors;

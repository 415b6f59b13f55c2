//! The foundation of every test: a far host, runs with a time limit, and trees to compare.

pub mod bad_disk;
pub mod case;
pub mod chaos;
pub mod cut_short;
pub mod disk;
pub mod done;
pub mod ending;
pub mod fake_server;
pub mod host;
pub mod inject;
pub mod journals;
pub mod keys;
pub mod limits;
pub mod loops;
pub mod net;
pub mod offspring;
pub mod peer;
pub mod pipe;
pub mod procs;
pub mod proxy;
pub mod pty;
pub mod run;
pub mod slow;
pub mod ssh_once;
pub mod storm;
pub mod tree;
pub mod wire;

pub use case::{Case, Way, skip};
pub use host::Login;
pub use run::Run;
pub use tree::{Also, Dir, Tree, assert_same, digits, noise, prose};

pub const MIB: usize = 1 << 20;

/// Runs parts of a test at the same time, since each waits most of its time.
pub fn at_once<T: Send>(parts: impl IntoIterator<Item = T>, play: impl Fn(T) + Sync) {
    let play = &play;
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(move || play(part));
        }
    });
}

/// Makes a test of each function for each way of copying: `ways! { push, pull => a, b }`.
macro_rules! ways {
    ($($way:ident),+ => $($name:ident),+ $(,)?) => {
        ways!(@names [$($way),+] $($name),+);
    };
    (@names $ways:tt $($name:ident),+) => {
        $(mod $name { ways!(@tests $ways $name); })+
    };
    (@tests [$($way:ident),+] $name:ident) => {
        $(#[test]
        fn $way() {
            $crate::support::Case::run(ways!(@way $way), super::$name);
        })+
    };
    (@way push) => { $crate::support::Way::Push };
    (@way pull) => { $crate::support::Way::Pull };
    (@way here) => { $crate::support::Way::Here };
    (@way local_push) => { $crate::support::Way::LocalPush };
    (@way local_pull) => { $crate::support::Way::LocalPull };
    (@way between) => { $crate::support::Way::Between };
    (@way local_between) => { $crate::support::Way::LocalBetween };
}

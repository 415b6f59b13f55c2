//! The foundation of every test: a far host, runs with a time limit, and trees to compare.

pub(crate) mod bad_disk;
pub(crate) mod case;
pub(crate) mod chaos;
pub(crate) mod cut_short;
pub(crate) mod disk;
pub(crate) mod done;
pub(crate) mod ending;
pub(crate) mod fake_server;
pub(crate) mod host;
pub(crate) mod inject;
pub(crate) mod journals;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod loops;
pub(crate) mod net;
pub(crate) mod offspring;
pub(crate) mod peer;
pub(crate) mod pipe;
pub(crate) mod procs;
pub(crate) mod proxy;
pub(crate) mod pty;
pub(crate) mod routes;
pub(crate) mod run;
pub(crate) mod scp;
pub(crate) mod second;
pub(crate) mod slow;
pub(crate) mod ssh_once;
pub(crate) mod storm;
pub(crate) mod tree;
pub(crate) mod wire;

pub(crate) use case::{Case, Way, lacks, skip};
pub(crate) use host::Login;
pub(crate) use run::Run;
pub(crate) use tree::{Also, Dir, Tree, assert_same, digits, noise, prose};

pub(crate) const MIB: usize = 1 << 20;

/// Runs parts of a test at the same time, since each waits most of its time.
pub(crate) fn at_once<T: Send>(parts: impl IntoIterator<Item = T>, play: impl Fn(T) + Sync) {
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

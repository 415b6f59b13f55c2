//! Sources other than finished regular files: FIFOs, files of /proc, devices without an end, files
//! that are still being written, and symbolic links.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;

use crate::support::loops::Loop;
use crate::support::procs::until;
use crate::support::*;

ways! { push, pull, here =>
    a_fifo_is_read_to_its_end_and_written_in_order,
    a_file_of_proc_that_says_it_is_empty_arrives_whole,
    files_whose_sizes_are_made_up_arrive_whole,
    a_tree_of_proc_arrives_whole_with_a_file_that_outgrows_its_pack,
    zeros_into_nothing_show_the_link_alone,
}

ways! { here =>
    a_message_queue_arrives_whole,
}

ways! { here, local_push, local_pull, local_between =>
    links_that_lead_out_of_their_tree_are_told,
}

ways! { pull, between =>
    a_signal_before_the_session_says_enough,
}

ways! { local_push, local_pull =>
    a_growing_file_is_followed_until_it_is_idle,
    a_growing_file_is_followed_until_a_signal_says_enough,
    a_stream_is_written_into_a_device,
}

fn fifo(dir: &Dir, name: &str) -> PathBuf {
    let path = dir.path(name);
    mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).expect("make a FIFO");
    path
}

fn a_fifo_is_read_to_its_end_and_written_in_order(case: &Case) {
    let content = noise(1, 5 * MIB + 9);
    let path = case.src.file("a", &content);
    let (source, dest) = (fifo(&case.scratch, "in"), fifo(&case.scratch, "out"));
    let written = content.clone();
    let writer = {
        let source = source.clone();
        thread::spawn(move || {
            let mut fifo = File::options()
                .write(true)
                .open(source)
                .expect("open a FIFO");
            fifo.write_all(&written).expect("write to a FIFO");
        })
    };
    let done = case
        .fastcp()
        .arg(case.from(&source))
        .arg(case.dst(""))
        .run();
    done.succeeds();
    writer.join().expect("it was read to its end");
    assert_same(&path, case.dst.path("in"), Also::Nothing);

    let reader = {
        let dest = dest.clone();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            File::open(dest)
                .expect("open a FIFO")
                .read_to_end(&mut bytes)
                .expect("read");
            bytes
        })
    };
    case.fastcp()
        .arg(case.src("a"))
        .arg(case.to(&dest))
        .run()
        .succeeds();
    assert!(reader.join().expect("it was closed") == content);
}

fn links_that_lead_out_of_their_tree_are_told(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("file", "content");
    case.src.file("beside", "content");
    for (name, target) in [
        ("inside", "sub/../file"),
        ("dangling", "nowhere"),
        ("sub/inside", "../file"),
    ] {
        tree.link(name, target);
    }
    tree.link("sub/outside", "../../beside");
    // It leads to the source's own file, and so out of the copy.
    tree.link("absolute", tree.path("file"));
    // A name may be, or become, another link: `sub/..` is not certain to lead back.
    const TOLD: &str =
        "5 symlinks kept, 3 of them lead outside the tree (-L copies what they point to)";
    let counts = |line: &str| {
        line.contains("\"symlinks_kept\":5") && line.contains("\"symlinks_outside\":3")
    };
    let done = case.copy(&["-rn", "--summary"], "tree", "");
    done.succeeds()
        .says("5 symlinks would be kept, 3 of them lead");
    // A second run compares the links, and keeps them as well.
    for _ in 0..2 {
        let done = case.copy(&["-a", "--summary", "--json"], "tree", "");
        done.succeeds().says(TOLD);
        assert!(counts(&done.stdout_text()), "{done}");
    }
    case.copy(&["--check", "-a", "--summary"], "tree/", "tree")
        .succeeds()
        .never_says("symlink");
    case.copy(&["-aq", "--summary"], "tree", "").is_silent();
    case.copy(&["-r"], "tree", "").is_silent();
    // With -L there are no links.
    std::fs::remove_file(tree.path("dangling")).expect("remove");
    case.copy(&["-rL", "--summary"], "tree", "followed")
        .succeeds()
        .never_says("symlink");
    // All links stay inside.
    for name in ["inside", "absolute", "sub/outside"] {
        std::fs::remove_file(tree.path(name)).expect("remove");
    }
    case.copy(&["-r", "--summary"], "tree", "inside")
        .succeeds()
        .never_says("symlink");
}

fn a_file_of_proc_that_says_it_is_empty_arrives_whole(case: &Case) {
    let version = std::fs::read("/proc/version").expect("read");
    let types = std::fs::read("/proc/filesystems").expect("read");
    case.src.file("version", &version);
    case.src.file("filesystems", &types);
    case.src.file("empty", "");
    let run = case
        .fastcp()
        .arg(case.from("/proc/version"))
        .arg(case.src("empty"));
    let run = run.arg(case.from("/proc/filesystems")).arg(case.dst(""));
    run.run().succeeds();
    assert_same(&case.src.0, &case.dst.0, Also::Nothing);
}

/// The kernel gives their size as 4096.
fn files_whose_sizes_are_made_up_arrive_whole(case: &Case) {
    let dir = Path::new("/sys/kernel/mm/transparent_hugepage");
    let names = ["enabled", "defrag"];
    for name in names {
        let Ok(content) = std::fs::read(dir.join(name)) else {
            return skip("/sys with transparent_hugepage");
        };
        case.src.file(name, content);
    }
    let run = case
        .fastcp()
        .args(names.map(|name| case.from(dir.join(name))));
    run.arg(case.dst("")).run().succeeds();
    assert_same(&case.src.0, &case.dst.0, Also::Nothing);
}

/// A message queue says in fewer bytes than its size how it is.
fn a_message_queue_arrives_whole(case: &Case) {
    let queues = case.src.dir("queues");
    let mount = "mount -t mqueue none \"$0\" && : >\"$0/queue\" && cat \"$0/queue\" && \"$@\"";
    let under = |run: Run| {
        let words = ["unshare", "-m", "-i", "sh", "-c", mount].map(OsStr::new);
        run.under(words.into_iter().chain([queues.0.as_os_str()]))
    };
    if under(Run::new("true", "/")).run().code != Some(0) {
        return skip("mounts");
    }
    let run = case
        .fastcp()
        .arg("-r")
        .arg(&queues.0)
        .arg(case.dst("there"));
    let done = under(run).run();
    done.succeeds();
    case.src.file("expected", &done.stdout);
    assert_eq!(case.dst.read("there/queue"), done.stdout);
}

/// Short files share a pack. The list of the kernel's symbols takes megabytes.
fn a_tree_of_proc_arrives_whole_with_a_file_that_outgrows_its_pack(case: &Case) {
    let conf = Path::new("/proc/sys/net/ipv4/conf/lo");
    let expected = case.src.dir("lo");
    for entry in std::fs::read_dir(conf).expect("list").flatten() {
        let content = std::fs::read(entry.path()).expect("read");
        expected.file(entry.file_name(), content);
    }
    let symbols = std::fs::read("/proc/kallsyms").expect("read");
    assert!(symbols.len() > MIB, "it is long");
    case.src.file("kallsyms", symbols);
    case.src
        .file("version", std::fs::read("/proc/version").expect("read"));
    let sources = [conf, "/proc/kallsyms".as_ref(), "/proc/version".as_ref()];
    let run = case
        .fastcp()
        .args(["-r", "--summary"])
        .args(sources.map(|path| case.from(path)));
    let done = run.arg(case.dst("")).run();
    let bytes: u64 = [&case.src, &expected]
        .iter()
        .flat_map(|dir| dir.names().into_iter().map(|name| dir.meta(name)))
        .filter(|meta| meta.is_file())
        .map(|meta| meta.len())
        .sum();
    let files = expected.names().len() + 2;
    let said = format!("{files} files, {} in", fastcp::units::size(bytes));
    done.succeeds().says(&said);
    assert_same(&case.src.0, &case.dst.0, Also::Nothing);
}

fn zeros_into_nothing_show_the_link_alone(case: &Case) {
    let ends = |run: Run| run.arg(case.from("/dev/zero")).arg(case.to("/dev/null"));
    let run = case.fastcp().args(["--size", "20M", "--summary"]);
    let done = ends(run).run();
    done.succeeds().says("1 file, 20.0 MB in");
    if case.way != Way::Here {
        assert!(done.wire_bytes() >= 20_000_000, "{done}");
    }
    ends(case.fastcp())
        .run()
        .exits(2)
        .says("set the bytes to read with --size");
}

/// Appends data `times` times, with a short pause after each. Returns the longest time between two
/// writes; `grown` is the time of the last write before.
fn grow(path: &Path, times: usize, mut grown: Instant) -> Duration {
    let mut file = File::options().append(true).open(path).expect("open");
    let mut longest = Duration::ZERO;
    for n in 0..times {
        let part = noise(n as u64, 100_000);
        let before = Instant::now();
        file.write_all(&part).expect("append");
        longest = longest.max(grown.elapsed());
        grown = before;
        thread::sleep(Duration::from_millis(50));
    }
    longest
}

/// On a busy machine a write may come too late, so that the copy is right to end.
fn a_growing_file_is_followed_until_it_is_idle(case: &Case) {
    const IDLE: Duration = Duration::from_secs(5);
    let is_whole = (0..5).any(|_| {
        case.src.file("log", prose(1, 3 * MIB));
        let started = Instant::now();
        let run = case.copying(&["--follow=5s"], "log", "log").start();
        until("it is being read", || case.dst.has_partial().then_some(()));
        let longest = grow(&case.src.path("log"), 20, started);
        run.wait().succeeds();
        let is_whole = case.src.read("log") == case.dst.read("log");
        assert!(is_whole || longest >= IDLE, "ended after {longest:?}");
        is_whole
    });
    assert!(is_whole, "a write came too late, five times");
}

fn a_growing_file_is_followed_until_a_signal_says_enough(case: &Case) {
    let path = case.src.file("log", prose(1, 3 * MIB));
    let run = case.copying(&["--follow=1day"], "log", "log").start();
    until("it is being read", || {
        (case.dst.partial_bytes() >= 3 * MIB as u64).then_some(())
    });
    grow(&path, 5, Instant::now());
    run.signal(Signal::USR2);
    run.wait().succeeds();
    assert_same(&path, case.dst.path("log"), Also::Nothing);
}

fn a_signal_before_the_session_says_enough(case: &Case) {
    let path = case.src.file("log", prose(1, MIB));
    let (waits, goes) = (case.scratch.path("waits"), case.scratch.path("goes"));
    let (waits, goes) = (waits.display(), goes.display());
    case.host().set_login(&Login {
        before: format!("touch '{waits}'; until [ -e '{goes}' ]; do sleep 0.05; done"),
        ..Login::default()
    });
    let run = case.copying(&["--follow=1day"], "log", "log").start();
    until("it logs in", || case.scratch.has("waits").then_some(()));
    run.signal(Signal::USR2);
    case.scratch.file("goes", "");
    run.wait().succeeds();
    assert_same(&path, case.dst.path("log"), Also::Nothing);
}

fn a_stream_is_written_into_a_device(case: &Case) {
    let Some(disk) = Loop::new(&case.dst, "disk", vec![0; 8 * MIB]) else {
        return skip("root and loop devices");
    };
    let mut content = noise(1, 8 * MIB);
    content[6 * MIB + 4096..].fill(0);
    let path = case.src.file("image", &content[..6 * MIB + 4096]);
    case.src.file("whole", &content);
    let from = format!("cat '{}'", path.display());
    let run = case.fastcp().args(["--from-command", &from]);
    let run = match case.way {
        Way::LocalPull => run.arg(case.from("")),
        _ => run,
    };
    run.arg(case.to(&disk.path)).run().succeeds();
    assert!(std::fs::read(&disk.path).expect("read the device") == content);
}

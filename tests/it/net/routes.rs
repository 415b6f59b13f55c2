//! Routes for connections: each route alone, and the route that the client finds behind firewalls.

use std::ffi::OsStr;
use std::time::Duration;

use fastcp::wire::message::Message;

use crate::support::done::Done;
use crate::support::fake_server::{FakeServer, against_free};
use crate::support::host::Host;
use crate::support::net::{At, Ip, Net, Wall};
use crate::support::peer::root;
use crate::support::routes::{self, goes};
use crate::support::slow::{held_back, let_go};
use crate::support::ssh_once::SshOnce;
use crate::support::*;

ways! { push, pull, local_push, local_pull => each_route_carries_a_copy_alone }

ways! { local_push, local_pull =>
    a_rate_is_changed_while_the_copy_runs,
    a_nice_copy_is_idle_and_leaves_caches_alone,
}

ways! { push, pull =>
    a_login_refused_before_it_says_who_it_is_is_tried_again,
    where_a_further_login_would_ask_the_first_carries_all,
    further_logins_pass_a_jump_host_and_no_shared_connection,
    an_ssh_stream_that_is_killed_is_logged_in_again,
}

/// Options that force no route and print the one in use.
const FREE: [&str; 3] = ["--summary", "--streams=4", "-W"];

#[track_caller]
fn arrives(case: &Case, flags: &[&str]) -> Done {
    case.src.file("a", noise(1, 6 * MIB));
    let done = case.copying(&FREE, "a", "a").args(flags).run();
    done.succeeds().never_says("panicked");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    done
}

/// Copies by this route with one login.
#[track_caller]
fn arrives_by(case: &Case, route: &str, flags: &[&str]) {
    let logins = || [case.host().logins()];
    routes::arrives_by(case, route, logins, || arrives(case, flags));
}

/// Like [`arrives`], but slow until three servers run. Each connection needs a login that starts a
/// server, which takes longer on some machines than on others.
#[track_caller]
fn arrives_by_logins(case: &Case, flags: &[&str]) -> Done {
    case.src.file("a", noise(1, 8 * MIB));
    let rate = case.scratch.file("rate", "150K");
    let limit = format!("@{}", rate.display());
    let run = case.copying(&FREE, "a", "a").args(["--bwlimit", &limit]);
    let run = run.args(flags).start();
    procs::until("there are streams", || {
        (case.servers().len() >= 3).then_some(())
    });
    case.scratch.file("rate", "4M");
    let done = run.wait();
    done.succeeds().never_says("panicked");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    done
}

fn each_route_carries_a_copy_alone(case: &Case) {
    for route in ["direct", "reverse", "ssh"] {
        let done = arrives(case, &["--route", route]);
        // With ssh, the first login may carry this small file before other logins are up.
        if route != "ssh" {
            goes(&done, route);
        }
        case.copy(&["--route", route], "a", route).succeeds();
    }
    case.copy(&["--route", "carrier pigeon"], "a", "no")
        .exits(2);
}

fn a_login_refused_before_it_says_who_it_is_is_tried_again(case: &Case) {
    // By itself, sshd refuses such logins only at random.
    case.host().refuse(2, 3);
    goes(&arrives_by_logins(case, &["--route", "ssh"]), "ssh");
}

fn where_a_further_login_would_ask_the_first_carries_all(case: &Case) {
    // With this level ssh does not say that the key is refused.
    let own = std::fs::read_to_string(case.host().ssh_config()).expect("read the configuration");
    let config = format!("Host far\n\tLogLevel QUIET\n\tConnectTimeout 60\n{own}");
    std::fs::write(case.host().ssh_config(), config).expect("write the configuration");
    let words = "me@far: Permission denied (publickey,password).";
    let ssh = SshOnce::saying_only_with("LogLevel=ERROR", case, words);
    let program = ssh.program();
    // Slow enough that the further login comes in time on a busy machine.
    let done = arrives(case, &["--route", "ssh", "-S", &program, "-l", "10000"]);
    goes(&done, "inside the ssh login");
    let logins = ssh.logins();
    assert_eq!(logins.len(), 2, "a refused key is not tried again: {done}");
    for option in ["BatchMode=yes", "ControlPath=none", "ControlMaster=no"] {
        assert!(logins[1].contains(option), "{}", logins[1]);
    }
    assert!(!logins[1].contains("ConnectTimeout"), "{}", logins[1]);
}

fn further_logins_pass_a_jump_host_and_no_shared_connection(case: &Case) {
    // Short: the path of a socket has at most 108 bytes.
    let dir = tempfile::Builder::new()
        .prefix("fcp")
        .tempdir()
        .expect("a directory");
    let path = format!("ControlPath={}/s", dir.path().display());
    let flags = ["-o", "ControlMaster=auto", "-o", &path, "-J", "far"];
    let done = arrives_by_logins(case, &[&flags[..], &["--route", "ssh"]].concat());
    goes(&done, "ssh");
    // To the jump host and behind it, for control and some of the streams.
    assert!(case.host().logins() >= 6, "{}", case.host().logins());
}

fn an_ssh_stream_that_is_killed_is_logged_in_again(case: &Case) {
    case.src.file("a", noise(1, 24 * MIB));
    let flags = ["--route=ssh", "--streams=2", "-l16000", "--summary"];
    let run = case.copying(&flags, "a", "a").start();
    let ssh = procs::until("streams are up", || {
        let mut all = procs::marked(case.mark());
        all.retain(|process| {
            process.line.starts_with("ssh ") && process.line.contains("BatchMode")
        });
        (all.len() == 2 && case.dst.partial_bytes() > 4 << 20).then(|| all.remove(0))
    });
    ssh.kill();
    let done = run.wait();
    done.succeeds().never_says("logged in again");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    goes(&done, "ssh");
}

/// At the first rate the copy would take longer than the test may.
fn a_rate_is_changed_while_the_copy_runs(case: &Case) {
    case.src.file("a", noise(1, 12 * MIB));
    let file = case.scratch.file("rate", "100K");
    let limit = format!("@{}", file.display());
    let run = case.copying(&["--bwlimit", &limit, "-v"], "a", "a").start();
    // Waits for the partial file only: the first chunk may take longer than `until` waits.
    procs::until("the copy is under way", || {
        (!case.dst.partials().is_empty()).then_some(())
    });
    case.scratch.file("rate", "fast");
    procs::until("the user is told", || {
        run.stderr
            .text()
            .contains("the rate limit is unchanged")
            .then_some(())
    });
    case.scratch.file("rate", "0");
    let done = run.wait();
    done.succeeds()
        .says("the rate limit is unchanged")
        .says("rate limit: none");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

/// Reads the scheduling policy that the kernel shows for each process of a `--nice` copy.
fn a_nice_copy_is_idle_and_leaves_caches_alone(case: &Case) {
    let tree = case.src.dir("tree");
    tree.file("big", noise(1, 12 * MIB));
    tree.file("small", "small");
    let flags = ["-r", "--nice", "--drop-cache", &held_back(case, "500K")];
    let run = case.copying(&flags, "tree/", "tree").apart().start();
    procs::until_idle_enough("both ends give way", || {
        let mut all = case.servers();
        all.extend(
            procs::marked(case.mark())
                .into_iter()
                .filter(|it| it.pid == run.pid()),
        );
        (all.len() >= 2 && all.iter().all(procs::Process::is_idle)).then_some(())
    });
    let_go(case);
    run.wait().succeeds();
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}

fn between(ip: Ip, body: impl Fn(&Case, &Net)) {
    for way in [Way::Push, Way::Pull] {
        Case::run_between(way, ip, &body);
    }
}

#[test]
fn an_open_network_is_gone_by_directly() {
    for ip in [Ip::V4AndV6, Ip::V6Only] {
        between(ip, |case, _| {
            arrives_by(case, "direct", &[]);
        });
    }
}

#[test]
fn where_only_ssh_comes_through_streams_are_logins() {
    for wall in [Wall::Drop, Wall::Reject] {
        between(Ip::V4AndV6, |case, net| {
            net.open_only(At::Far, &["22"], wall);
            net.open_only(At::Near, &[], wall);
            goes(&arrives_by_logins(case, &[]), "ssh");
            // A small copy does not wait for other routes.
            case.src.file("small", "one");
            let done = case.copy(&["--summary"], "small", "small");
            done.succeeds();
            goes(&done, "inside the ssh login");
        });
    }
}

#[test]
fn a_polite_copy_that_only_ssh_lets_through_is_warned_of_once() {
    const WARNING: &str = "--polite has no effect on data that goes through ssh";
    between(Ip::V4AndV6, |case, net| {
        let warns = |done: &Done| done.stderr.matches(WARNING).count();
        // On a busy machine another route might be up first.
        let done = arrives(case, &["--polite", "--route=direct"]);
        assert_eq!(warns(&done), 0, "streams are direct");
        net.open_only(At::Far, &["22"], Wall::Reject);
        net.open_only(At::Near, &[], Wall::Reject);
        let done = arrives_by_logins(case, &["--polite"]);
        goes(&done, "ssh");
        assert_eq!(warns(&done), 1, "{done}");
        // Further logins fail, so the first login carries all data.
        let ssh = SshOnce::new(case, "me@far: Permission denied (publickey,password).");
        let done = arrives(case, &["--polite", "-S", &ssh.program(), "-l", "10000"]);
        goes(&done, "inside the ssh login");
        assert_eq!(warns(&done), 1, "{done}");
    });
}

/// The far end does not even send the port on which it accepts connections.
#[test]
fn a_small_copy_waits_for_no_route() {
    Case::run(Way::LocalPush, |case| {
        case.src.file("one", "1");
        let (one, there) = (case.src.path("one"), "far:there".as_ref());
        comes_at_once(case, &[one.as_os_str(), there], |server| {
            server.say(Message::Credit(256 << 10));
            server.hear_roots();
            server.landed_as(vec![b"there".to_vec()]);
            |message| matches!(message, Message::Data(_))
        });
    });
    Case::run(Way::LocalPull, |case| {
        let words = ["far:one".as_ref(), case.dst.0.as_os_str()];
        comes_at_once(case, &words, |server| {
            server.roots(vec![root(1, "one", false)]);
            |message| matches!(message, Message::Credit(_))
        });
    });
}

/// Expects the message that `begin` returns before the client's first heartbeat, which comes after
/// a second. On a busy machine the client may need longer for another reason, so there are a few
/// tries.
#[track_caller]
fn comes_at_once(
    case: &Case,
    words: &[&OsStr],
    begin: impl Fn(&mut FakeServer) -> fn(&Message) -> bool + Sync,
) {
    let try_once = || {
        let mut is_first = false;
        let done = against_free(case, words, |mut server| {
            let wanted = begin(&mut server);
            let beat = |message: &Message| matches!(message, Message::Heartbeat(_));
            let first = server
                .control
                .hear_until(|message| wanted(message) || beat(message));
            is_first = wanted(&first.expect("the client is there"));
            server.leave();
        });
        done.never_says("panicked");
        is_first
    };
    assert!((0..8).any(|_| try_once()), "a heartbeat came first");
}

#[test]
fn a_host_that_lets_nothing_in_is_told_where_to_dial() {
    between(Ip::V4AndV6, |case, net| {
        net.open_only(At::Far, &["22"], Wall::Drop);
        arrives_by(case, "reverse", &["-l", "24000"]);
    });
}

#[test]
fn ports_that_are_open_are_used_and_when_all_are_taken_the_next_route_is() {
    between(Ip::V4AndV6, |case, net| {
        net.open_only(At::Far, &["22", "9001:9016"], Wall::Drop);
        net.open_only(At::Near, &[], Wall::Drop);
        let range = ["--ports", "9001-9016"];
        arrives_by(case, "direct", &range);

        let _taken = net.within(At::Far, || std::net::TcpListener::bind("[::]:9001"));
        let done = arrives(case, &["-v", "--ports", "9001", "-l", "10000"]);
        done.says("a port of 9001-9001")
            .says("route: direct failed")
            .says("further ssh logins");
        let done = case.copy(&["--ports", "9001", "--route", "direct"], "a", "b");
        done.exits(3).says("no stream");
    });
}

#[test]
fn a_link_that_loses_full_packets_is_not_taken_for_one_that_is_up() {
    between(Ip::V4AndV6, |case, net| {
        for at in [At::Near, At::Far] {
            net.lose_full_packets(at);
        }
        goes(&arrives_by_logins(case, &[]), "ssh");
    });
}

/// Starts a second host with the same login as the first. The name `turns` may resolve to either,
/// and ssh accepts the keys of both.
fn in_turns(case: &Case, net: &Net) -> Host {
    let ip = [10, 77, 0, 3].into();
    net.add_address(At::Far, ip);
    let dir = case.scratch.dir("other");
    let space = net.path(At::Far);
    let other = Host::start_in(&space, ip, dir, &case.home.0, case.mark()).expect("as the first");
    let text = |host: &Host, file: &str| String::from_utf8(host.dir().read(file)).expect("text");
    let keys = [case.host(), &other].map(|host| text(host, "known_hosts"));
    let keys = keys.concat().replace("10.77.0.2 ", "turns ");
    let keys = keys.replace("10.77.0.3 ", "turns ");
    case.host().dir().append("known_hosts", keys);
    let key = text(case.host(), "key.pub");
    other.dir().file("authorized_keys", key);
    other
}

#[test]
fn where_a_name_stands_for_several_hosts_all_logins_of_a_copy_reach_the_same() {
    let turn = |net: &Net, first: u8, second: u8| {
        let names = [first, second].map(|nth| format!("10.77.0.{nth} turns\n"));
        net.set_names(At::Near, &names.concat());
    };
    between(Ip::V4AndV6, |case, net| {
        let other = in_turns(case, net);
        turn(net, 2, 3);
        case.src.file("a", noise(1, 24 * MIB));
        let flags = ["-o", "HostName=turns", "--route=ssh", "--streams=2"];
        let flags = [&flags[..], &["-l", "40000", "--memory", "16Mi"]].concat();
        let run = case.copying(&flags, "a", "a").start();
        let under_way = || (case.dst.partial_bytes() > 4 << 20).then_some(());
        procs::until("the copy is under way", under_way);
        turn(net, 3, 2);
        case.servers().iter().for_each(procs::Process::kill);
        let done = run.wait();
        done.succeeds().says("logging in again");
        assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
        assert_eq!(other.logins(), 0, "{done}");

        // If the first host refuses every login, the client tries the other in the end.
        turn(net, 2, 3);
        let run = case.copying(&flags, "a", "b").start();
        procs::until("the copy is under way", under_way);
        turn(net, 3, 2);
        case.host().refuse(0, usize::MAX);
        case.servers().iter().for_each(procs::Process::kill);
        let done = run.wait();
        done.succeeds();
        assert_same(case.src.path("a"), case.dst.path("b"), Also::Nothing);
        assert!(other.logins() > 0, "{done}");
    });
}

#[test]
fn ports_that_are_closed_again_and_again_while_it_copies_cost_time_and_no_copy() {
    between(Ip::V4AndV6, |case, net| {
        case.src.file("a", noise(1, 64 * MIB));
        let flags = ["--streams=4", "--route=direct", "-l", "32000"];
        let run = case.copying(&flags, "a", "a").start();
        procs::until("the copy is under way", || {
            (case.dst.partial_bytes() > 2 << 20).then_some(())
        });
        for n in 0..25 {
            let wall = [Wall::Reject, Wall::Drop][n % 2];
            net.close_for(Duration::from_millis(250), At::Far, wall);
            std::thread::sleep(Duration::from_millis(250));
        }
        run.wait().succeeds().never_says("logging in again");
        assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
    });
}

#[test]
fn packets_that_come_late_twice_out_of_order_or_damaged_cost_time_and_no_copy() {
    between(Ip::V4AndV6, |case, net| {
        if !net.spoil() {
            return skip("TUN devices");
        }
        let tree = case.src.dir("tree");
        for number in 0..50 {
            tree.file(number.to_string(), noise(number, 20_000));
        }
        tree.file("big", noise(100, 6 * MIB));
        case.copy(&["-r", "--streams=4"], "tree/", "tree")
            .succeeds();
        assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
    });
}

#[test]
fn data_goes_by_the_address_that_is_given_on_either_end() {
    between(Ip::V4AndV6, |case, _| {
        // The route is forced: on a busy machine the reverse connection may come up first.
        let flags = [
            "--route=direct",
            "--bind",
            "fd77::1",
            "--address",
            "fd77::2",
        ];
        goes(&arrives(case, &flags), "direct");
        let done = arrives(case, &["--route", "reverse", "--bind", "10.77.0.1"]);
        goes(&done, "reverse");
        let flags = ["--route", "direct", "--address", "10.77.0.99"];
        case.copy(&flags, "a", "b").exits(3).says("10.77.0.99");
    });
}

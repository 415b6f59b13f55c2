//! Streams that are reset, closed, corrupted or silent: they cost speed, but never the copy or a
//! byte of the file.

use std::ffi::OsStr;

use crate::support::peer::readable;
use crate::support::procs::{TcpState, until};
use crate::support::proxy::{self, Fault, Proxied};
use crate::support::*;

const SIZE: usize = 24 * MIB;

/// Bytes before the first frame, in the data's direction: the dialler's opening or the answer.
fn start(case: &Case) -> usize {
    if case.way == Way::LocalPush { 64 } else { 40 }
}

ways! { local_push, local_pull =>
    a_reset_stream_costs_speed_not_the_copy,
    all_streams_but_one_may_be_lost,
    a_stream_that_ends_in_the_middle_of_a_frame_is_replaced,
    a_byte_that_is_bent_on_the_way_never_reaches_the_file,
    noise_in_the_middle_of_a_stream_never_reaches_the_file,
    bytes_that_come_twice_change_nothing,
    a_stream_that_stalls_at_its_opening_is_not_waited_for,
    when_all_streams_are_lost_they_are_dialled_again,
    streams_are_lost_again_and_again,
    damage_again_and_again_ends_no_copy,
    all_streams_are_lost_at_once_twice,
    a_stream_that_falls_silent_is_given_up,
    a_stream_that_is_closed_to_its_reader_alone_is_replaced,
    a_stream_that_became_slow_holds_nobody_up,
    a_tree_survives_the_loss_of_streams,
}

/// Copies a file of [`SIZE`] bytes, or a tree, with one stream for each fault.
fn through(case: &Case, what: &str, faults: &[Fault]) -> Proxied {
    through_streams(case, what, faults, faults.len(), &[])
}

fn through_streams(
    case: &Case,
    what: &str,
    faults: &[Fault],
    streams: usize,
    flags: &[&str],
) -> Proxied {
    let streams = streams.to_string();
    let (from, to) = (case.src(what), case.dst(""));
    let own = ["-rW", "--compress", "none", "--streams", &streams];
    let flags = own.iter().chain(flags).map(OsStr::new);
    let words: Vec<_> = flags.chain([from.as_os_str(), to.as_os_str()]).collect();
    let is_push = case.way == Way::LocalPush;
    let proxied = proxy::copy(case, &words, is_push, faults);
    readable(&proxied.done);
    proxied
}

/// Checks that the copy is complete, and that at least `struck` faults occurred.
#[track_caller]
fn survives(case: &Case, faults: &[Fault], struck: usize) {
    survives_with(case, SIZE, faults, struck);
}

/// The same for a file of this size.
#[track_caller]
fn survives_with(case: &Case, size: usize, faults: &[Fault], struck: usize) {
    case.src.file("a", noise(1, size));
    let proxied = through(case, "a", faults);
    proxied.done.succeeds();
    assert!(proxied.struck >= struck, "only {} faults", proxied.struck);
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn a_reset_stream_costs_speed_not_the_copy(case: &Case) {
    use Fault::*;
    survives(case, &[None, Reset(3 * MIB / 2), None, None], 1);
}

fn all_streams_but_one_may_be_lost(case: &Case) {
    use Fault::*;
    let faults = [
        Reset(MIB / 2),
        Close(2 * MIB + 77),
        None,
        Reset(start(case) + 1),
        Close(start(case) + 64),
        Reset(MIB + 200),
    ];
    survives(case, &faults, 5);
}

fn a_stream_that_ends_in_the_middle_of_a_frame_is_replaced(case: &Case) {
    use Fault::*;
    // In the middle of the header, of the digest, of the data, of the tag.
    for at in [30, 64 + 10, 5000, 64 + 32 + MIB + 8] {
        survives_with(case, 6 * MIB, &[Close(start(case) + at), None], 1);
    }
}

fn a_byte_that_is_bent_on_the_way_never_reaches_the_file(case: &Case) {
    use Fault::*;
    // In the header: version, kind, codec, epoch, counter, chunk, entry, offset, lengths, spare.
    // Then in the digest, the data and the tag.
    let header = [0, 1, 2, 3, 5, 8, 17, 25, 33, 42, 49, 50, 54, 55, 60];
    let places = header
        .iter()
        .chain(&[64 + 3, 64 + 32 + 1000, 64 + 32 + MIB + 3]);
    for at in places {
        // The stream without a fault waits for the other one, which has a fault in its first chunk.
        survives_with(case, 6 * MIB, &[Flip(start(case) + at), None], 1);
    }
    // In the opening itself.
    survives(case, &[Flip(10), Flip(35), None], 2);
}

fn noise_in_the_middle_of_a_stream_never_reaches_the_file(case: &Case) {
    use Fault::*;
    let faults = [Noise(start(case)), Noise(MIB + 1), Noise(2 * MIB), None];
    survives(case, &faults, 3);
}

fn bytes_that_come_twice_change_nothing(case: &Case) {
    use Fault::*;
    survives(case, &[Replay(start(case)), Replay(2 * MIB), None], 2);
}

fn a_stream_that_stalls_at_its_opening_is_not_waited_for(case: &Case) {
    use Fault::*;
    survives(case, &[Silent, None, Refused, Silent], 3);
}

fn when_all_streams_are_lost_they_are_dialled_again(case: &Case) {
    use Fault::*;
    survives(case, &[Reset(MIB), Close(2 * MIB)], 2);
    survives(case, &[Noise(start(case)), Flip(MIB)], 2);
    survives(case, &[Refused, Refused], 2);
}

/// Checks that the copy is complete although the first connections have these faults.
#[track_caller]
fn outlives(case: &Case, faults: &[Fault], streams: usize) {
    case.src.file("a", noise(1, SIZE));
    // While all streams are lost, data goes through control. Without a limit, all of it could.
    let slow = ["--bwlimit", "12M"];
    let proxied = through_streams(case, "a", faults, streams, &slow);
    proxied.done.succeeds();
    let struck = proxied.struck;
    assert!(struck >= faults.len() / 2, "only {struck} faults");
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn streams_are_lost_again_and_again(case: &Case) {
    let fault = |n: usize| match n % 3 {
        0 => Fault::Reset(MIB + n * 1000),
        1 => Fault::Close(3 * MIB / 2),
        _ => Fault::HalfClose(MIB / 2),
    };
    outlives(case, &(0..15).map(fault).collect::<Vec<_>>(), 3);
}

fn damage_again_and_again_ends_no_copy(case: &Case) {
    let first = start(case) + 1000;
    let faults: Vec<_> = (0..6).map(|n| Fault::Flip(first + n * MIB / 2)).collect();
    outlives(case, &faults, 2);
}

fn all_streams_are_lost_at_once_twice(case: &Case) {
    if !procs::may_tamper() {
        return skip("the right to call pidfd_getfd");
    }
    case.src.file("a", noise(1, 12 * MIB));
    let slow = ["-l", "16000", "--streams", "3"];
    let run = case.copying(&slow, "a", "a").start();
    let sockets = || procs::tcp_sockets(run.pid(), TcpState::Established);
    for _ in 0..2 {
        until("the streams are up", || {
            (sockets().len() >= 3 && case.dst.has_partial()).then_some(())
        });
        let reset = sockets().iter().filter(|socket| socket.reset()).count();
        assert!(reset >= 3, "the copy was over before it could be disturbed");
    }
    run.wait().succeeds();
    assert_same(case.src.path("a"), case.dst.path("a"), Also::Nothing);
}

fn a_stream_that_falls_silent_is_given_up(case: &Case) {
    use Fault::*;
    survives(
        case,
        &[BlackHole(MIB + 5), None, BlackHole(start(case) + 30)],
        2,
    );
    // All streams are lost.
    survives(case, &[BlackHole(MIB + 5), BlackHole(2 * MIB)], 2);
}

fn a_stream_that_is_closed_to_its_reader_alone_is_replaced(case: &Case) {
    use Fault::*;
    survives(
        case,
        &[HalfClose(MIB + 5), HalfClose(start(case) + 64), None],
        1,
    );
}

/// When other streams are idle, they also send the chunks assigned to a slow stream. So the copy
/// does not wait for the slow stream.
fn a_stream_that_became_slow_holds_nobody_up(case: &Case) {
    // The slow stream would need a minute and a half for a single chunk.
    survives(
        case,
        &[Fault::Throttle(12_000), Fault::None, Fault::None],
        1,
    );
}

fn a_tree_survives_the_loss_of_streams(case: &Case) {
    use Fault::*;
    let tree = case.src.dir("tree");
    for number in 0..400 {
        let len = (number as usize * 977) % 60_000;
        tree.file(format!("{}/{number}", number % 7), noise(number, len));
    }
    tree.file("big", noise(1, 6 * MIB));
    let faults = [
        Reset(MIB / 3),
        Close(MIB + 5),
        None,
        Flip(MIB / 2),
        Noise(2 * MIB),
    ];
    let proxied = through(case, "tree", &faults);
    proxied.done.succeeds();
    assert!(proxied.struck >= 2, "only {} faults", proxied.struck);
    assert_same(&tree.0, case.dst.path("tree"), Also::Nothing);
}

//! Streams that are reset, closed, bent or silent on the way: they cost speed, not the copy, and
//! never a byte of the file.

use std::ffi::OsStr;

use crate::support::peer::readable;
use crate::support::proxy::{self, Fault, Proxied};
use crate::support::*;

const SIZE: usize = 24 * MIB;

/// What goes the way of the data before the first frame: the dialler's opening, or the answer.
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
    when_all_streams_are_lost_the_copy_fails,
    a_tree_survives_the_loss_of_streams,
}

/// Copies a file of [`SIZE`] bytes, or a tree, with as many streams as there are faults.
fn through(case: &Case, what: &str, faults: &[Fault]) -> Proxied {
    let streams = faults.len().to_string();
    let (from, to) = (case.src(what), case.dst(""));
    let words = [
        "-r".as_ref(),
        "--streams".as_ref(),
        streams.as_ref(),
        "--compress".as_ref(),
        "none".as_ref(),
        from.as_os_str(),
        to.as_os_str(),
    ];
    let is_push = case.way == Way::LocalPush;
    let words: Vec<&OsStr> = words.to_vec();
    let proxied = proxy::copy(case, &words, is_push, faults);
    readable(&proxied.done);
    proxied
}

/// The copy is whole, and `struck` faults or more took place.
#[track_caller]
fn survives(case: &Case, faults: &[Fault], struck: usize) {
    case.src.file("a", noise(1, SIZE));
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
        survives(case, &[Close(start(case) + at), None], 1);
    }
}

fn a_byte_that_is_bent_on_the_way_never_reaches_the_file(case: &Case) {
    use Fault::*;
    // Of the header: version, kind, codec, epoch, counter, chunk, entry, offset, lengths, spare;
    // then of the digest, the data and the tag.
    let header = [0, 1, 2, 3, 5, 8, 17, 25, 33, 42, 49, 50, 54, 55, 60];
    let places = header
        .iter()
        .chain(&[64 + 3, 64 + 32 + 1000, 64 + 32 + MIB + 3]);
    for at in places {
        survives(case, &[Flip(start(case) + at), None], 1);
    }
    // Of the opening itself.
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

fn when_all_streams_are_lost_the_copy_fails(case: &Case) {
    use Fault::*;
    case.src.file("a", noise(1, SIZE));
    for faults in [
        [Reset(MIB), Close(2 * MIB)],
        [Noise(start(case)), Flip(MIB)],
    ] {
        let proxied = through(case, "a", &faults);
        proxied.done.exits(5).says("data connections were lost");
        case.dst.sweep();
        assert!(case.dst.names().is_empty());
    }
    let proxied = through(case, "a", &[Refused, Refused]);
    proxied.done.fails();
    assert!(case.dst.names().is_empty());
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

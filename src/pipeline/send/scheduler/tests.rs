//! The scheduler with packs and pipes that exist only here, without a disk, a network or a clock. Two
//! tests have a big file on a disk.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::chunk::split::Cut;
use crate::chunk::{Buffer, CHUNK_SIZE};
use crate::manifest::EntryId;
use crate::pipeline::send::plan::{FileReading, SendPipe};
use crate::source::found::trees;
use crate::source::{Changes, PipeOrigin, PipeSpec, SourceFile};

/// Plans with this many packs to be merged by three, and at most one large pack at work.
fn plans(packs: usize) -> Scheduler {
    let plans = Scheduler::of(8, 1, false, 1);
    plans.start(SmallFileMode::Fresh, 8);
    plans.steer(32, 1, 3);
    (0..packs).for_each(|_| plans.add_pack(Vec::new()).expect("it goes on"));
    plans
}

/// Returns the next chunk and how many packs it has.
fn next(plans: &Scheduler) -> (Arc<Plan>, usize) {
    let Ok(NextTask::Chunk(plan)) = plans.next() else {
        panic!("a pack comes");
    };
    let packs = match &plan.what {
        PlannedContent::Large(packs) => packs.len(),
        _ => 1,
    };
    (plan, packs)
}

#[test]
fn packs_go_as_one_while_there_is_memory_for_it() {
    let plans = plans(8);
    let (first, packs) = next(&plans);
    assert_eq!(packs, 3);
    assert_eq!(next(&plans).1, 1, "the other is at work");
    plans.large_is_made(first.chunk);
    assert_eq!(next(&plans).1, 3);
}

#[test]
fn towards_the_end_fewer_go_as_one() {
    let plans = plans(4);
    plans.state.lock().planned = true;
    let sizes: Vec<usize> = std::iter::from_fn(|| {
        let is_left = plans.state.lock().ready.len() > 0;
        is_left.then(|| {
            let (plan, packs) = next(&plans);
            plans.large_is_made(plan.chunk);
            packs
        })
    })
    .collect();
    assert_eq!(sizes, [2, 1, 1]);
}

#[test]
fn one_that_is_taken_apart_goes_pack_by_pack_and_all_of_it() {
    let plans = plans(3);
    let (large, packs) = next(&plans);
    assert_eq!(packs, 3);
    plans.large_is_made(large.chunk);
    plans.take_apart(&large, 1 << 20);
    plans.take_apart(&large, 1 << 20);
    let apart: Vec<(u64, usize)> = (0..3)
        .map(|_| next(&plans))
        .map(|(it, n)| (it.chunk, n))
        .collect();
    assert_eq!(apart, [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(plans.state.lock().ready.len(), 0);
    assert_eq!(plans.taken(0, 1), Taken::Settled);
}

/// It was sent twice: the receiver had no memory for the first copy, and places the second one when
/// it has been taken apart.
#[test]
fn one_that_is_taken_apart_and_arrives_all_the_same_is_done_and_counts() {
    let plans = plans(3);
    let (large, _) = next(&plans);
    plans.large_is_made(large.chunk);
    plans.end_planning(std::iter::empty());
    plans.nacked(large.chunk);
    assert_eq!(next(&plans).0.chunk, large.chunk);
    plans.take_apart(&large, 1 << 20);
    let (begun, _) = next(&plans);
    assert!(plans.is_done());
    let counted = std::cell::RefCell::new(Vec::new());
    plans.settle_rest(|plan| counted.borrow_mut().push(plan.chunk));
    let chunks = (begun.chunk..).take(3);
    assert!(chunks.eq(counted.into_inner()));
    assert_eq!(plans.taken(begun.chunk, 1), Taken::Settled);
}

#[test]
fn after_one_that_did_not_arrive_there_are_no_more() {
    let plans = plans(6);
    plans.end_large();
    assert_eq!(next(&plans).1, 1);
}

#[test]
fn no_part_is_read_beyond_the_window_and_a_lost_one_goes_first() {
    let origin = PipeOrigin::Own(PipeSpec::Command("x".into()));
    let pipe = Arc::new(SendPipe::new(origin.spec().entry(1), &origin, None, true));
    let plans = Scheduler::default();
    plans.start(SmallFileMode::Fresh, 2);
    plans.announce_pipe(pipe.clone());
    assert!(plans.want_pipe(1) && plans.wait_wanted(1).unwrap());
    let add = |n: u64| {
        let part = PipePart::read(&pipe, n * 1024, 1024, Buffer::loose(1024));
        plans.add_part(part).unwrap();
    };
    let next = || match plans.next().unwrap() {
        NextTask::Chunk(plan) => plan.chunk,
        NextTask::End(_) | NextTask::Reopen(..) | NextTask::Compare(_) => panic!("no file"),
    };
    let has_room = || {
        let state = plans.state.lock();
        state.chunks.is_in_window(state.window)
    };
    add(0);
    assert!(has_room());
    add(1);
    assert!(!has_room());
    assert_eq!((next(), next()), (0, 1));
    plans.taken(0, 7);
    plans.taken(1, 8);
    plans.settle_chunks(1..2, |_| {});
    assert!(!has_room(), "the first is still on its way");
    assert_eq!(plans.connection_lost(7), 1);
    assert_eq!(next(), 0);
    plans.settle_chunks(0..1, |_| {});
    assert!(has_room());
    plans.close(1);
    assert!(pipe.stop.is_set());
    assert!(
        !plans.wait_digested(&pipe, 2048).unwrap(),
        "it is not open any more"
    );
}

#[test]
fn of_a_connection_whose_last_frame_is_late_only_that_one_goes_twice() {
    let plans = Scheduler::default();
    plans.start(SmallFileMode::Fresh, 8);
    plans.steer(8, 1, 1);
    for chunk in 0..3 {
        plans.add_pack(Vec::new()).expect("it goes on");
        assert!(matches!(plans.next(), Ok(NextTask::Chunk(_))));
        plans.taken(chunk, if chunk == 2 { 8 } else { 7 });
    }
    assert_eq!(plans.repeat(&[], &[7], 9), 1);
    let Ok(NextTask::Chunk(plan)) = plans.next() else {
        panic!("it is sent again");
    };
    assert_eq!(plan.chunk, 1);
    plans.taken(1, 8);
    assert_eq!(plans.repeat(&[7], &[], 9), 1, "the other one");
}

#[test]
fn nothing_goes_twice_while_something_waits_to_go_once() {
    let plans = Scheduler::default();
    plans.start(SmallFileMode::Fresh, 8);
    plans.steer(1, 1, 1);
    plans.add_pack(Vec::new()).expect("it goes on");
    plans.add_pack(Vec::new()).expect("it goes on");
    assert!(matches!(plans.next(), Ok(NextTask::Chunk(_))));
    assert_eq!(plans.taken(0, 7), Taken::First);
    assert_eq!(plans.repeat(&[7], &[], 9), 0, "the other waits for room");
    drop(plans.state.lock().ready.take_all());
    assert_eq!(plans.repeat(&[6], &[], 9), 0);
    assert_eq!(plans.repeat(&[7], &[], 9), 1);
    assert_eq!(plans.taken(0, 8), Taken::Again);
    plans.settle_chunks(0..1, |_| {});
    assert_eq!(plans.taken(0, 9), Taken::Settled);
}

/// Sends a file of two chunks, of which the receiver has the bytes in `had`. Returns its entry.
fn send_file(plans: &Scheduler, dir: &std::path::Path, had: RangeSet) -> EntryId {
    let (_, found) = trees::one(dir, &vec![1; 2 * CHUNK_SIZE]);
    let (id, size) = (found.entry.id, found.entry.size);
    let source = SourceFile::open(&found, Changes::Told).expect("open it");
    assert!(plans.wait_entry_room(id, || Ok(())).expect("it goes on"));
    plans
        .announce(id, source, None, || Ok(()))
        .expect("it goes on");
    let made = plans.want(id, |Unanswered { source, .. }| {
        let cut = Cut::skipping(size, CHUNK_SIZE as u64, CHUNK_SIZE as u64, &had);
        let reading = FileReading::new(false, None);
        Ok::<_, Ended>(SendFile::new(found, *source, had, cut, reading))
    });
    assert!(made.is_ok_and(|file| file.is_some()));
    id
}

/// The receiver may be done while a worker waits for the disk.
#[test]
fn a_look_for_the_data_of_a_failed_file_does_not_keep_the_copy_from_its_end() {
    let temp = tempfile::tempdir().expect("a directory");
    let plans = Scheduler::of(8, 1, false, 1);
    plans.start(SmallFileMode::Fresh, 8);
    let id = send_file(&plans, temp.path(), RangeSet::new());
    let next = plans.state.lock().next();
    let Some(NextWork::Look(file, from)) = next else {
        panic!("nobody has looked for its data");
    };
    plans.end_planning(std::iter::empty());
    assert!(!plans.is_done());
    plans.entry_failed(id);
    plans.close(id);
    plans.settle_entries(1..id + 1);
    assert!(plans.is_done());
    plans.look(file, from);
    assert!(plans.is_done());
}

#[test]
fn a_file_of_which_the_receiver_had_half_is_whole_only_with_the_other_half() {
    let temp = tempfile::tempdir().expect("a directory");
    let plans = Scheduler::of(8, 1, false, 1);
    plans.start(SmallFileMode::Fresh, 8);
    let half = CHUNK_SIZE as u64;
    let id = send_file(&plans, temp.path(), std::iter::once(0..half).collect());
    let Some(EntryAtClose::Sending(file)) = plans.close(id) else {
        panic!("it is sent");
    };
    assert!(!EntryAtClose::Sending(file.clone()).is_whole());
    file.coverage.add_placed(half);
    assert!(EntryAtClose::Sending(file).is_whole());
}

/// A copy with connections that die, stall and damage what they carry: each chunk stays in flight
/// until it is settled, nothing is lost, and the copy ends.
#[test]
fn every_chunk_is_settled_however_often_connections_fail() {
    const PACKS: u64 = 40;
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let scheduler = Scheduler::default();
        scheduler.start(SmallFileMode::Fresh, 8);
        scheduler.steer(random.u16(1..9), 4, 1);
        let (mut planned, mut settled) = (0, BTreeSet::new());
        // Frames that a connection has taken.
        let mut carried: Vec<(u64, u16)> = Vec::new();
        for step in 0.. {
            let state = scheduler.state.lock();
            if state.planned && state.is_idle() {
                break;
            }
            drop(state);
            assert!(step < 10_000, "seed {seed}: only {settled:?}");
            if planned < PACKS && random.bool() {
                scheduler.add_pack(Vec::new()).expect("it goes on");
                planned += 1;
                if planned == PACKS {
                    scheduler.end_planning(std::iter::empty());
                }
            }
            let connection = random.u16(0..4);
            if scheduler.state.lock().has_work() {
                let Ok(NextTask::Chunk(plan)) = scheduler.next() else {
                    panic!("only packs are planned");
                };
                if random.u8(..) < 32 {
                    // It waits in the queue, and a stronger method was chosen.
                    scheduler.put_back(plan.chunk);
                } else {
                    let taken = scheduler.taken(plan.chunk, connection);
                    let is_settled = settled.contains(&plan.chunk);
                    assert_eq!(taken == Taken::Settled, is_settled, "seed {seed}");
                    carried.push((plan.chunk, connection));
                }
            }
            let arrives = (!carried.is_empty()).then(|| random.usize(..carried.len()));
            match (random.u8(0..8), arrives) {
                (0, _) => {
                    scheduler.connection_lost(connection);
                    carried.retain(|(_, on)| *on != connection);
                }
                (1, _) => {
                    let (all, newest) = ([connection], [connection ^ 1]);
                    scheduler.repeat(&all, &newest, 3);
                }
                (2, Some(damaged)) => scheduler.nacked(carried.swap_remove(damaged).0),
                (_, Some(whole)) => {
                    let (chunk, _) = carried.swap_remove(whole);
                    scheduler.settle_chunks(chunk..chunk + 1, |_| ());
                    settled.insert(chunk);
                }
                (_, None) => {}
            }
        }
        assert_eq!(settled, (0..PACKS).collect(), "seed {seed}");
    }
}

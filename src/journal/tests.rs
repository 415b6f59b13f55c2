use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::record::File as Begin;
use super::*;
use crate::dir::Handles;
use crate::error::Kind;
use crate::manifest::{Inode, Timestamp};

const C: u64 = 1 << 20;

fn place(dir: &Path) -> Place {
    let dir = Dir::root(dir, &Arc::new(Handles::default())).unwrap();
    Place::new(dir, [&b"a"[..]].into_iter())
}

fn path(dir: &Path) -> PathBuf {
    dir.join(place(dir).name)
}

fn opening(session: u8) -> Opening {
    Opening {
        session: [session; 16],
        roots: [7; 16],
        chunk_size: C as u32,
        afresh: false,
    }
}

fn try_open(dir: &Path, opening: &Opening, before: &[[u8; 16]]) -> Result<Option<Journal>> {
    let waiting = Waiting {
        before,
        path: dir,
        is_ending: &|| false,
        tell: &|_| (),
    };
    Journal::open(place(dir), opening, &waiting)
}

fn open(dir: &Path) -> Journal {
    try_open(dir, &opening(1), &[]).unwrap().expect("a journal")
}

fn file(path: u8, dev: u64) -> Begin {
    let birth = Timestamp::default();
    Begin {
        path: [path; 16],
        identity: [2; 16],
        size: 100 * C,
        inode: Inode { dev, ino: 1, birth },
        young: false,
        inplace: false,
    }
}

fn done(path: u8) -> Finished {
    Finished {
        path: [path; 16],
        identity: [2; 16],
        placed: [3; 16],
        digest: Some([4; 32]),
        young: false,
    }
}

/// Two files begun, ten chunks of each by turns, and one finished.
fn fill(journal: &Journal) {
    let numbers = [1, 2].map(|path| journal.begin(&file(path, journal.identity.0)));
    for chunk in 0..10 {
        for number in numbers {
            journal.chunk(number, chunk * C, C, Some([chunk as u8; 32]));
        }
    }
    journal.finished(&[done(3), done(4)]);
    journal.directory(Directory {
        path: [5; 16],
        made: true,
        restore: None,
    });
}

/// Without names for mounts nothing is certain before it was synced.
fn tells_mounts(journal: &Journal) -> bool {
    process::mount(&journal.file) != 0
}

/// Offsets of the chunks, and how many of them are certain.
fn chunks(journal: &Journal, begun: &Begun) -> (Vec<u64>, usize) {
    let (mut offsets, mut sure) = (Vec::new(), 0);
    journal.replay(begun, |chunk, certain| {
        offsets.push(chunk.offset / C);
        sure += usize::from(certain);
        ControlFlow::Continue(())
    });
    (offsets, sure)
}

#[test]
fn what_one_session_records_the_next_one_reads() {
    let temp = tempfile::tempdir().unwrap();
    let first = open(temp.path());
    assert!(!first.is_useful());
    fill(&first);
    drop(first);
    assert_eq!(place(temp.path()).roots(), Some([7; 16]));
    let second = open(temp.path());
    assert!(second.has_finished() && second.is_useful());
    assert_eq!(second.begun_bytes(), 20 * C);
    let begun = second.take_begun(&[2; 16]).unwrap();
    assert_eq!((begun.chunks, begun.bytes), (10, 10 * C));
    let certain = tells_mounts(&second);
    let sure = if certain { 10 } else { 0 };
    assert_eq!(chunks(&second, &begun), ((0..10).collect(), sure));
    let dev = second.identity.0;
    let before = |path, dev| second.finished_before(&[path; 16], dev);
    assert_eq!(before(3, dev), Some((done(3), certain)));
    assert_eq!(before(3, dev + 1), Some((done(3), false)));
    assert_eq!(before(9, dev), None);
    assert!(second.directory_before(&[5; 16]).unwrap().made);
    // What is gone on with keeps its number, and a new file gets another.
    second.chunk(begun.number, 10 * C, C, None);
    second.dropped(second.take_begun(&[1; 16]).unwrap().number);
    second.finished(&[done(1)]);
    assert!(second.begin(&file(6, 0)) > begun.number);
    drop(second);
    let third = open(temp.path());
    assert_eq!(third.take_begun(&[2; 16]).unwrap().chunks, 11);
    assert!(third.take_begun(&[1; 16]).is_none());
    assert!(third.finished_before(&[1; 16], 0).is_some());
    third.remove();
    assert!(!path(temp.path()).exists());
}

#[test]
fn a_journal_cut_or_bent_anywhere_is_read_up_to_there() {
    let temp = tempfile::tempdir().unwrap();
    fill(&open(temp.path()));
    let whole = std::fs::read(path(temp.path())).unwrap();
    let records = whole.len() / LEN;
    for at in (0..whole.len()).step_by(41) {
        let mut bent = whole.clone();
        bent[at] ^= 0x10;
        for bytes in [&whole[..at], &bent] {
            std::fs::write(path(temp.path()), bytes).unwrap();
            let journal = open(temp.path());
            let kept = std::fs::metadata(path(temp.path())).unwrap().len() as usize / LEN;
            // Header or first session gone: it begins anew. Else one session more than was whole.
            let expected = if at < 2 * LEN { 2 } else { at / LEN + 1 };
            assert_eq!(kept, expected, "at {at} of {records} records");
            let begun = journal.take_begun(&[1; 16]);
            assert_eq!(begun.is_some(), at >= 3 * LEN, "at {at}");
        }
    }
}

#[test]
fn a_foreign_journal_is_replaced_and_what_is_not_ours_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    fill(&open(temp.path()));
    fill(&open(other.path()));
    // The records of one behind the header of the other.
    let (mut one, two) = (
        std::fs::read(path(temp.path())).unwrap(),
        std::fs::read(path(other.path())).unwrap(),
    );
    one[LEN..].copy_from_slice(&two[LEN..]);
    for foreign in [one, vec![0; 5000], b"somebody's notes".to_vec(), vec![]] {
        std::fs::write(path(temp.path()), foreign).unwrap();
        let journal = open(temp.path());
        assert!(!journal.is_useful());
        drop(journal);
        assert_eq!(
            std::fs::metadata(path(temp.path())).unwrap().len(),
            2 * LEN as u64
        );
    }
    std::fs::remove_file(path(temp.path())).unwrap();
    let victim = other.path().join("victim");
    std::fs::write(&victim, b"precious").unwrap();
    std::os::unix::fs::symlink(&victim, path(temp.path())).unwrap();
    assert!(try_open(temp.path(), &opening(1), &[]).unwrap().is_none());
    std::fs::remove_file(path(temp.path())).unwrap();
    std::fs::hard_link(&victim, path(temp.path())).unwrap();
    assert!(try_open(temp.path(), &opening(1), &[]).unwrap().is_none());
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn other_chunks_and_no_resume_begin_anew() {
    let temp = tempfile::tempdir().unwrap();
    let others = [
        Opening {
            afresh: true,
            ..opening(1)
        },
        Opening {
            chunk_size: 4096,
            ..opening(1)
        },
    ];
    for other in others {
        fill(&try_open(temp.path(), &opening(1), &[]).unwrap().unwrap());
        let journal = try_open(temp.path(), &other, &[]).unwrap().unwrap();
        assert!(!journal.is_useful() && !journal.has_finished());
    }
}

/// Writes the last session anew as if it had been `changed` since.
fn since(dir: &Path, changed: fn(&mut Session)) {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path(dir))
        .unwrap();
    let key = past::key(&file).unwrap();
    let mut session = past::last_session(&file).unwrap();
    changed(&mut session);
    file.write_all_at(&Body::Session(session).encode(&key), LEN as u64)
        .unwrap();
}

#[test]
fn after_a_reboot_what_was_synced_is_certain_and_what_came_later_is_not() {
    certain_as_far_as_synced(|session| session.boot_id = [0xee; 16]);
}

/// A disk that was lost takes along what was not yet written back.
#[test]
fn on_another_mount_what_was_synced_is_certain_and_what_came_later_is_not() {
    certain_as_far_as_synced(|session| session.mount += 1);
}

fn certain_as_far_as_synced(changed: fn(&mut Session)) {
    let temp = tempfile::tempdir().unwrap();
    let first = open(temp.path());
    let number = first.begin(&file(1, first.identity.0));
    first.chunk(number, 0, C, Some([0; 32]));
    first.finished(&[done(3)]);
    let position = first.position();
    first.chunk(number, C, C, Some([1; 32]));
    first.synced(position);
    first.chunk(number, 2 * C, C, None);
    first.finished(&[done(4)]);
    let dev = first.identity.0;
    drop(first);
    since(temp.path(), changed);
    let second = open(temp.path());
    let begun = second.take_begun(&[1; 16]).unwrap();
    assert_eq!(chunks(&second, &begun), (vec![0, 1, 2], 1));
    assert_eq!(second.finished_before(&[3; 16], dev), Some((done(3), true)));
    assert_eq!(
        second.finished_before(&[3; 16], dev + 1),
        Some((done(3), false))
    );
    assert_eq!(
        second.finished_before(&[4; 16], dev),
        Some((done(4), false))
    );
    // Another reboot later it still is so.
    drop(second);
    let third = open(temp.path());
    let begun = third.take_begun(&[1; 16]).unwrap();
    assert_eq!(
        chunks(&third, &begun),
        (vec![0, 1, 2], 1),
        "nobody has checked it since"
    );
}

#[test]
fn a_second_writer_fails_at_once_and_waits_only_for_a_silent_or_former_one() {
    let temp = tempfile::tempdir().unwrap();
    let first = open(temp.path());
    let busy = try_open(temp.path(), &opening(2), &[])
        .err()
        .expect("refused");
    assert_eq!(busy.kind, Kind::Busy);
    // A former session of the same command: its process ends, here this one lets it go.
    let release = |first: Journal| {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(first);
        })
    };
    let released = release(first);
    let second = try_open(temp.path(), &opening(2), &[[1; 16]])
        .unwrap()
        .unwrap();
    released.join().unwrap();
    // One that has heard nothing for long.
    let old = SystemTime::now() - Duration::from_secs(60);
    let times = std::fs::FileTimes::new().set_modified(old);
    second.file.set_times(times).unwrap();
    let released = release(second);
    let told = Mutex::new(Vec::new());
    let waiting = Waiting {
        before: &[],
        path: temp.path(),
        is_ending: &|| false,
        tell: &|line| told.lock().unwrap().push(line.to_owned()),
    };
    Journal::open(place(temp.path()), &opening(3), &waiting)
        .unwrap()
        .unwrap();
    released.join().unwrap();
    assert_eq!(told.into_inner().unwrap().len(), 1);
}

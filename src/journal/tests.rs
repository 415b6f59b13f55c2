//! Journals that are written, damaged, locked and read back.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::record::BegunFile as Begin;
use super::*;
use crate::dir::Handles;
use crate::error::Kind;
use crate::manifest::{Inode, Timestamp};

const C: u64 = 1 << 20;
const USER: JournalUserKey = [5; 32];
/// Records in a journal that replaces an unreadable one: header, session, owner, and doubt about what
/// the unreadable one was for.
const REPLACED: usize = 4;

fn place(dir: &Path) -> JournalPlace {
    let dir = Dir::root(dir, &Arc::new(Handles::default())).unwrap();
    JournalPlace::new(dir, [&b"a"[..]].into_iter())
}

fn path(dir: &Path) -> PathBuf {
    dir.join(place(dir).name)
}

fn opening(session: u8) -> Opening {
    Opening {
        user: USER,
        is_user_lasting: true,
        session: [session; 16],
        owner: [9; 16],
        roots: [7; 16],
        chunk_size: C as u32,
        afresh: false,
        own_only: false,
    }
}

fn try_open(dir: &Path, opening: &Opening, before: &[[u8; 16]]) -> Result<Option<Journal>> {
    let waiting = WaitForLock {
        before,
        owner: opening.owner,
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

/// Begins two files, writes ten chunks of each by turns, and finishes a third.
fn fill(journal: &Journal) {
    let numbers = [1, 2].map(|path| journal.begin(&file(path, journal.identity.0)));
    for chunk in 0..10 {
        for number in numbers {
            journal.chunk(number, chunk * C, C, Some([chunk as u8; 32]));
        }
    }
    journal.finished(&[done(3), done(4)]);
    journal.directory(MadeDirectory {
        path: [5; 16],
        made: true,
        restore: None,
    });
}

/// True if it has data of files to resume from.
fn resumes(journal: &Journal) -> bool {
    journal.has_finished() || journal.begun_bytes() > 0
}

/// Without unique mount IDs nothing is trusted unread.
fn tells_mounts(journal: &Journal) -> bool {
    process::mount(&journal.file) != 0
}

/// Offsets of the chunks.
fn chunks(journal: &Journal, begun: &UnfinishedFile) -> Vec<u64> {
    let mut offsets = Vec::new();
    journal.replay(begun, |chunk| {
        offsets.push(chunk.offset / C);
        ControlFlow::Continue(())
    });
    offsets
}

#[test]
fn what_one_session_records_the_next_one_reads() {
    let temp = tempfile::tempdir().unwrap();
    let first = open(temp.path());
    assert!(!first.is_useful());
    fill(&first);
    drop(first);
    assert!(place(temp.path()).holds_copy_of(&[[8; 16], [7; 16]], &USER));
    assert!(
        !place(temp.path()).holds_copy_of(&[[7; 16]], &[6; 32]),
        "of another user"
    );
    assert!(place(temp.path()).is_of(&[[7; 16]], &USER));
    assert!(
        !place(temp.path()).is_of(&[[8; 16]], &USER),
        "of other roots"
    );
    assert!(
        !place(temp.path()).is_of(&[[7; 16]], &[6; 32]),
        "of another user"
    );
    let second = open(temp.path());
    assert!(second.has_finished() && second.is_useful());
    assert_eq!(second.begun_bytes(), 20 * C);
    let begun = second.take_begun(&[2; 16]).unwrap();
    assert_eq!((begun.chunks, begun.bytes), (10, 10 * C));
    let certain = tells_mounts(&second);
    assert_eq!(second.trusts(&begun), certain);
    assert_eq!(chunks(&second, &begun), Vec::from_iter(0..10));
    let dev = second.identity.0;
    let before = |path, dev| second.finished_before(&[path; 16], dev);
    let trust = [Trust::None, Trust::OfBoot][usize::from(certain)];
    assert_eq!(before(3, dev), Some((done(3), trust)));
    assert_eq!(before(3, dev + 1), Some((done(3), Trust::None)));
    assert_eq!(before(9, dev), None);
    assert!(second.directory_before(&[5; 16]).unwrap().made);
    // A resumed file keeps its number, and a new file gets another.
    second.chunk(begun.number, 10 * C, C, None);
    second.dropped(second.take_begun(&[1; 16]).unwrap().number);
    second.finished(&[done(1)]);
    assert!(second.begin(&file(6, 0)) > begun.number);
    drop(second);
    let third = open(temp.path());
    assert_eq!(third.take_begun(&[2; 16]).unwrap().chunks, 11);
    assert!(third.take_begun(&[1; 16]).is_none());
    assert!(third.finished_before(&[1; 16], 0).is_some());
    third.remove().unwrap();
    assert!(!path(temp.path()).exists());
}

/// As of a tree of which no file has arrived.
#[test]
fn a_directory_that_was_made_is_something_to_resume_in() {
    let temp = tempfile::tempdir().unwrap();
    let made = MadeDirectory {
        path: [5; 16],
        made: true,
        restore: None,
    };
    open(temp.path()).directory(made);
    for _ in 0..2 {
        assert!(open(temp.path()).is_useful());
    }
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
            // Damage in the header or first session replaces the journal. Otherwise it gains a
            // session.
            let expected = if at < 2 * LEN { REPLACED } else { at / LEN + 2 };
            assert_eq!(kept, expected, "at {at} of {records} records");
            let begun = journal.take_begun(&[1; 16]);
            assert_eq!(begun.is_some(), at >= 4 * LEN, "at {at}");
        }
    }
}

#[test]
fn a_child_that_still_has_its_file_does_not_hold_its_lock() {
    let temp = tempfile::tempdir().unwrap();
    let journal = open(temp.path());
    let of_child = journal.file.try_clone().unwrap();
    assert!(try_open(temp.path(), &opening(1), &[]).is_err());
    drop(journal);
    open(temp.path());
    drop(of_child);
}

#[test]
fn a_foreign_journal_is_replaced_and_what_is_not_ours_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    fill(&open(temp.path()));
    fill(&open(other.path()));
    // The records of one journal after the header of the other.
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
            (REPLACED * LEN) as u64
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
fn other_chunks_and_no_resume_start_again() {
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
        fill(&open(temp.path()));
        let journal = try_open(temp.path(), &other, &[]).unwrap().unwrap();
        assert!(!resumes(&journal));
        let number = journal.begin(&file(1, 0));
        journal.chunk(number, 0, C, None);
        drop(journal);
        // Nor does a later session of this kind use what was discarded.
        let later = Opening {
            afresh: false,
            ..other
        };
        let journal = try_open(temp.path(), &later, &[]).unwrap().unwrap();
        assert!(!journal.has_finished());
        assert!(journal.placed_before(&[3; 16], 0).is_some());
        assert_eq!(journal.begun_bytes(), C);
        assert_eq!(journal.take_begun(&[2; 16]).unwrap().chunks, 0);
        // But it gives the directories their modes.
        assert!(journal.directory_before(&[5; 16]).unwrap().made);
    }
}

/// A file that a session began to write in place is half written until a session finishes it, even
/// if it failed, or if a later session began with a new file.
#[test]
fn a_file_that_was_begun_in_place_is_half_written_until_it_is_finished() {
    let temp = tempfile::tempdir().unwrap();
    let in_place = Begin {
        inplace: true,
        ..file(1, 0)
    };
    let is_half_written = |journal: &Journal| {
        assert_eq!(journal.has_doubt(), journal.is_half_written(&[1; 16]));
        journal.has_doubt()
    };
    let first = open(temp.path());
    first.begin(&file(2, 0));
    assert!(!is_half_written(&first));
    let number = first.begin(&in_place);
    first.dropped(number);
    assert!(is_half_written(&first));
    drop(first);
    let second = open(temp.path());
    assert!(is_half_written(&second) && second.take_begun(&[1; 16]).is_none());
    second.begin(&file(1, 0));
    drop(second);
    let third = open(temp.path());
    assert!(is_half_written(&third));
    drop(third);
    let afresh = Opening {
        afresh: true,
        ..opening(2)
    };
    let fourth = try_open(temp.path(), &afresh, &[]).unwrap().unwrap();
    assert!(is_half_written(&fourth));
    fourth.finished(&[done(1)]);
    assert!(!is_half_written(&fourth));
    drop(fourth);
    assert!(!is_half_written(&open(temp.path())));
}

/// Changes the first session.
fn since(dir: &Path, changed: fn(&mut JournalSession)) {
    let file = File::options()
        .read(true)
        .write(true)
        .open(path(dir))
        .unwrap();
    let key = past::key(&file, &USER).unwrap();
    let (mut session, _) = past::last_session(&file, &USER).unwrap();
    changed(&mut session);
    file.write_all_at(&RecordBody::Session(session).encode(&key), LEN as u64)
        .unwrap();
    rest(dir, Duration::from_secs(10));
}

/// Nobody has touched the journal for this long.
fn rest(dir: &Path, time: Duration) {
    let file = File::options().write(true).open(path(dir)).unwrap();
    file.set_modified(SystemTime::now() - time).unwrap();
}

#[test]
fn nothing_is_trusted_after_a_reboot_a_mount_a_lost_write_or_damage() {
    let changes: [fn(&Path); 4] = [
        |_| {},
        |dir| since(dir, |session| session.boot_id = [0xee; 16]),
        |dir| since(dir, |session| session.mount += 1),
        |dir| open(dir).doubted(),
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let temp = tempfile::tempdir().unwrap();
        let first = open(temp.path());
        fill(&first);
        first.synced(first.position());
        let (dev, tells) = (first.identity.0, tells_mounts(&first));
        drop(first);
        change(temp.path());
        // This still holds one session later.
        drop(open(temp.path()));
        let then = open(temp.path());
        let begun = then.take_begun(&[1; 16]).unwrap();
        assert_eq!(chunks(&then, &begun), Vec::from_iter(0..10));
        let is_trusted = nth == 0 && tells;
        assert_eq!(then.trusts(&begun), is_trusted, "change {nth}");
        let (_, trust) = then.finished_before(&[3; 16], dev).unwrap();
        assert_eq!(trust == Trust::OfBoot, is_trusted, "change {nth}");
        // Chunks written from now on are trusted.
        let number = then.begin(&file(6, dev));
        then.chunk(number, 0, C, None);
        drop(then);
        let last = open(temp.path());
        let begun = last.take_begun(&[6; 16]).unwrap();
        assert_eq!(last.trusts(&begun), tells);
    }
}

#[test]
fn size_and_time_show_nothing_after_a_reboot_a_lost_write_or_the_loss_of_the_journal() {
    let changes: [fn(&Path); 5] = [
        |_| {},
        |dir| since(dir, |session| session.boot_id = [0xee; 16]),
        |dir| open(dir).doubted(),
        |dir| std::fs::write(path(dir), b"").unwrap(),
        |dir| {
            let file = File::options().write(true).open(path(dir)).unwrap();
            file.set_len(LEN as u64).unwrap();
        },
    ];
    let afresh = Opening {
        afresh: true,
        ..opening(2)
    };
    for (nth, change) in changes.into_iter().enumerate() {
        let temp = tempfile::tempdir().unwrap();
        let first = open(temp.path());
        let now = born(&first.file);
        assert!(!first.may_have_lost_any(), "nothing was written before");
        fill(&first);
        drop(first);
        change(temp.path());
        let is_lost = nth > 0;
        // The second session discards the records, but not the doubt.
        for opening in [opening(2), afresh, opening(2)] {
            let journal = try_open(temp.path(), &opening, &[]).unwrap().unwrap();
            assert_eq!(journal.may_have_lost_any(), is_lost, "change {nth}");
            assert_eq!(journal.may_have_lost(now), is_lost, "change {nth}");
            let earlier = Timestamp {
                s: now.s.saturating_sub(60),
                ns: 0,
            };
            // Some file systems do not tell when a file was made.
            let is_known = now != BEFORE_ALL;
            assert_eq!(journal.may_have_lost(earlier), is_lost && !is_known);
        }
        // Without a lasting secret no session can read the journal of another.
        let stranger = Opening {
            user: [6; 32],
            is_user_lasting: false,
            ..opening(3)
        };
        let journal = try_open(temp.path(), &stranger, &[]).unwrap().unwrap();
        assert!(!journal.may_have_lost_any());
    }
}

#[test]
fn a_time_after_the_present_is_of_a_clock_that_was_set_back() {
    let now = Timestamp {
        s: 1000,
        ns: 900_000_000,
    };
    let is_past = |s: i64| is_past(Timestamp { s, ns: 950_000_000 }, now);
    assert!(is_past(-1) && is_past(1000));
    assert!(!is_past(1001));
}

/// A command that logs in again reads the chunks of other commands once, and its own not at all.
#[test]
fn what_a_command_wrote_or_read_is_certain_for_its_later_sessions_alone() {
    let temp = tempfile::tempdir().unwrap();
    let opened = |session: u8, before: &[[u8; 16]]| {
        let opened = try_open(temp.path(), &opening(session), before);
        opened.unwrap().expect("a journal")
    };
    let first = opened(1, &[]);
    let (dev, tells) = (first.identity.0, tells_mounts(&first));
    fill(&first);
    drop(first);
    let second = opened(2, &[]);
    let begun = second.take_begun(&[1; 16]).unwrap();
    assert!(second.certain(&begun).is_empty(), "of another command");
    second.checked(begun.number, 2 * C..4 * C);
    second.chunk(begun.number, 20 * C, C, None);
    second.finished(&[done(4)]);
    drop(second);
    let certain = |journal: &Journal| {
        let begun = journal.take_begun(&[1; 16]).unwrap();
        assert_eq!(begun.bytes, 11 * C, "read bytes do not count twice");
        Vec::from_iter(journal.certain(&begun).iter())
    };
    let of_run = |journal: &Journal, path: u8| {
        let (_, trust) = journal.finished_before(&[path; 16], dev).unwrap();
        trust == Trust::OfRun
    };
    let third = opened(3, &[[2; 16]]);
    let wanted = [2 * C..4 * C, 20 * C..21 * C];
    assert_eq!(certain(&third), if tells { &wanted[..] } else { &[] });
    assert_eq!((of_run(&third, 4), of_run(&third, 3)), (tells, false));
    drop(third);
    // A session that names no earlier ones, and one that finds a session of others after its own.
    for before in [&[][..], &[[2; 16]]] {
        let other = opened(9, before);
        assert_eq!(certain(&other), [], "{before:?}");
        assert!(!of_run(&other, 4));
        drop(other);
    }
    let fourth = opened(4, &[[2; 16], [3; 16], [9; 16]]);
    assert_eq!(of_run(&fourth, 4), tells);
    fourth.doubted();
    drop(fourth);
    let fifth = opened(5, &[[2; 16], [3; 16], [9; 16], [4; 16]]);
    assert_eq!(certain(&fifth), [], "after damage was found");
    assert!(!of_run(&fifth, 4));
}

#[test]
fn another_users_key_makes_it_nobodys_and_another_owner_may_be_refused() {
    let temp = tempfile::tempdir().unwrap();
    let of = |owner: u8, own_only| Opening {
        owner: [owner; 16],
        own_only,
        ..opening(1)
    };
    let opened = |opening: &Opening| try_open(temp.path(), opening, &[]).unwrap().unwrap();
    fill(&opened(&of(1, true)));
    assert!(resumes(&opened(&of(1, true))), "its own");
    // A journal of several owners belongs to none of them.
    assert!(resumes(&opened(&of(2, false))));
    assert!(!resumes(&opened(&of(1, true))));
    fill(&opened(&of(1, true)));
    assert!(resumes(&opened(&of(1, true))), "its own again");
    fill(&opened(&of(0, true)));
    assert!(!resumes(&opened(&of(0, true))), "without an owner");
    fill(&opened(&of(1, true)));
    let stranger = Opening {
        user: [6; 32],
        ..of(1, true)
    };
    assert!(!opened(&stranger).is_useful());
}

#[test]
fn what_others_could_write_is_not_believed_and_becomes_private() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    fill(&open(temp.path()));
    let mode = std::fs::Permissions::from_mode(0o620);
    std::fs::set_permissions(path(temp.path()), mode).unwrap();
    assert!(!open(temp.path()).is_useful());
    let meta = std::fs::metadata(path(temp.path())).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
}

/// A file may be finished without a digest if nobody needed one; then its chunks verify it.
#[test]
fn the_chunks_of_a_file_that_is_finished_without_a_digest_are_kept() {
    let temp = tempfile::tempdir().unwrap();
    let first = open(temp.path());
    fill(&first);
    let without = |path| Finished {
        digest: None,
        ..done(path)
    };
    first.finished(&[without(1), done(2)]);
    drop(first);
    let second = open(temp.path());
    assert_eq!(second.begun_bytes(), 0, "nothing is unfinished");
    assert_eq!(second.take_begun(&[1; 16]).unwrap().chunks, 10);
    assert!(second.take_begun(&[2; 16]).is_none());
}

#[test]
fn a_second_writer_fails_at_once_and_waits_only_for_a_silent_or_former_one() {
    let temp = tempfile::tempdir().unwrap();
    let first = open(temp.path());
    let busy = try_open(temp.path(), &opening(2), &[])
        .err()
        .expect("refused");
    assert_eq!(busy.kind, Kind::Busy);
    // Another client that claims this session as its own earlier one still fails.
    let stranger = Opening {
        owner: [8; 16],
        ..opening(2)
    };
    let busy = try_open(temp.path(), &stranger, &[[1; 16]]).err();
    assert_eq!(busy.expect("refused").kind, Kind::Busy);
    // An earlier session of the same command. In real use its process ends; here it is dropped.
    let released = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(first);
    });
    let second = try_open(temp.path(), &opening(2), &[[1; 16]])
        .unwrap()
        .unwrap();
    released.join().unwrap();
    // A session that has heard nothing for a long time.
    let old = SystemTime::now() - Duration::from_secs(60);
    let times = std::fs::FileTimes::new().set_modified(old);
    second.file.set_times(times).unwrap();
    // It is dropped when the user is told that the next one waits.
    let second = Mutex::new(Some(second));
    let told = Mutex::new(Vec::new());
    let waiting = WaitForLock {
        before: &[],
        owner: [9; 16],
        path: temp.path(),
        is_ending: &|| false,
        tell: &|line| {
            told.lock().push(line.to_owned());
            drop(second.lock().take());
        },
    };
    Journal::open(place(temp.path()), &opening(3), &waiting)
        .unwrap()
        .unwrap();
    assert_eq!(told.into_inner().len(), 1);
}

/// The lock of a process on another host may not be seen, but it touches the journal.
#[test]
fn a_journal_of_another_host_is_taken_when_it_is_silent() {
    let temp = tempfile::tempdir().unwrap();
    fill(&open(temp.path()));
    since(temp.path(), |session| session.boot_id = [0xee; 16]);
    let told = Mutex::new(0);
    let take = |before: &[[u8; 16]]| {
        let waiting = WaitForLock {
            before,
            owner: [9; 16],
            path: temp.path(),
            is_ending: &|| false,
            tell: &|_| *told.lock() += 1,
        };
        Journal::open(place(temp.path()), &opening(2), &waiting)
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        rest(temp.path(), Duration::ZERO);
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                rest(temp.path(), Duration::ZERO);
            }
        });
        let busy = take(&[]).err().expect("refused");
        assert_eq!(busy.kind, Kind::Busy);
        is_over.store(true, Relaxed);
    });
    // It ended a moment ago.
    rest(temp.path(), Duration::from_millis(4800));
    let journal = take(&[]).unwrap().unwrap();
    assert!(resumes(&journal));
    assert_eq!(*told.lock(), 2);
    // A session of this host, whose lock is seen, does not delay the next.
    drop(journal);
    take(&[]).unwrap().unwrap();
    assert_eq!(*told.lock(), 2);
}

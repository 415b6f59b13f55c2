//! Partial files with holes and zeros, files that are resumed, and files written in place.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::super::testing::*;
use super::*;

const SIZE: u64 = 4 << 20;

fn sparse(size: u64) -> Arc<Entry> {
    let mut entry = file(size, 0o644);
    entry.allocated = 0;
    Arc::new(entry)
}

#[test]
fn holes_of_a_sparse_source_stay_holes_and_zeros_of_another_take_room() {
    let temp = tempfile::tempdir().unwrap();
    let mut data = vec![0; 1 << 20];
    data[5000] = 1;
    data[70_000] = 2;
    let dense = Arc::new(file(SIZE, 0o644));
    for (name, entry) in [("sparse", sparse(SIZE)), ("dense", dense)] {
        let partial = Partial::create(&slot(temp.path(), name), entry, &rules()).unwrap();
        partial.write_at(&data, 1 << 20).unwrap();
        partial.write_zeros(2 << 20, 1 << 20, true).unwrap();
        partial.write_at(&[3; 100], SIZE - 100).unwrap();
        partial.commit(None).unwrap();
    }
    let read = |name| std::fs::read(temp.path().join(name)).unwrap();
    assert_eq!(read("sparse"), read("dense"));
    assert_eq!(&read("sparse")[1 << 20..2 << 20], data);
    let taken = |name| std::fs::metadata(temp.path().join(name)).unwrap().blocks() * 512;
    assert!(taken("sparse") <= 64 << 10, "{}", taken("sparse"));
    assert!(taken("dense") >= 2 << 20, "{}", taken("dense"));
}

#[test]
fn an_old_version_that_changes_while_it_is_compared_is_not_taken_for_the_new_one() {
    let temp = tempfile::tempdir().unwrap();
    let old = temp.path().join("a");
    let slot = slot(temp.path(), "a");
    let entry = Arc::new(file(SIZE, 0o644));
    let begin = || {
        std::fs::write(&old, vec![7; SIZE as usize]).unwrap();
        let opened = Partial::equal(&slot, &entry, &rules()).unwrap();
        let (partial, basis) = opened.expect("it has that size");
        let equal = |offset: u64, len: u64| {
            let PartialTarget::Equal(equal) = &partial.target else {
                unreachable!("it was made above");
            };
            let mut there = vec![0; len as usize];
            basis.read(&mut there, offset).unwrap();
            assert!(equal.keeps(offset..offset + len));
        };
        equal(0, SIZE - 4096);
        partial
    };
    let change = || {
        let file = File::options().write(true).open(&old).unwrap();
        file.write_all_at(b"x", 10).unwrap();
    };
    // Unchanged, only the end of it differs.
    let partial = begin();
    assert!(!partial.is_made());
    partial.write_at(&[8; 4096], SIZE - 4096).unwrap();
    assert!(partial.is_made());
    partial.commit(None).unwrap();
    let content = std::fs::read(&old).unwrap();
    assert!(
        content[..SIZE as usize - 4096]
            .iter()
            .all(|byte| *byte == 7)
    );
    assert!(
        content[SIZE as usize - 4096..]
            .iter()
            .all(|byte| *byte == 8)
    );
    // Changed before something differs, after it, and with nothing that differs.
    for (before, after) in [(true, true), (false, true), (true, false)] {
        let partial = begin();
        if before {
            change();
        }
        let written = match after {
            true => partial.write_at(&[8; 4096], SIZE - 4096),
            false => Ok(()),
        };
        if !before {
            change();
        }
        let committed = written.and_then(|()| partial.commit(None));
        let refused = committed.expect_err("the old version changed");
        assert!(refused.message.contains("another process"), "{refused}");
        assert_eq!(std::fs::read(&old).unwrap()[10], b'x');
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
    }
}

#[test]
fn an_old_version_that_was_written_and_has_its_time_back_is_not_taken_for_the_new_one() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("a");
    let slot = slot(temp.path(), "a");
    let entry = Arc::new(file(SIZE, 0o644));
    let (same, end) = (vec![7; SIZE as usize], SIZE - 4096);
    let differs = [&same[..end as usize], &[8; 4096][..]].concat();
    let change = || {
        let file = File::options().write(true).open(&path).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(b"x", 10).unwrap();
        let times = std::fs::FileTimes::new().set_modified(modified);
        file.set_times(times).unwrap();
    };
    let link = || std::fs::hard_link(&path, temp.path().join("b")).unwrap();
    let unlink = || std::fs::remove_file(temp.path().join("b")).unwrap();
    for content in [&same, &differs] {
        for is_changed in [true, false] {
            std::fs::write(&path, &same).unwrap();
            let opened = Partial::equal(&slot, &entry, &rules()).unwrap();
            let (partial, _) = opened.expect("it has that size");
            let PartialTarget::Equal(equal) = &partial.target else {
                unreachable!("it was made above");
            };
            assert!(equal.keeps(0..end));
            // More than the steps in which the kernel keeps times.
            std::thread::sleep(std::time::Duration::from_millis(30));
            match is_changed {
                true => change(),
                // The ctime alone shows nothing.
                false => link(),
            }
            match content == &same {
                true => assert!(equal.keeps(end..SIZE)),
                false => partial.write_at(&[8; 4096], end).unwrap(),
            }
            if !is_changed {
                unlink();
            }
            let root = *blake3::hash(content).as_bytes();
            let committed = partial.commit(Some(&root));
            assert_eq!(committed.is_err(), is_changed, "{:?}", committed.err());
            if !is_changed {
                assert!(&std::fs::read(&path).unwrap() == content);
            }
        }
    }
}

#[test]
fn a_kept_partial_is_resumed_if_it_is_the_same_file() {
    let temp = tempfile::tempdir().unwrap();
    let slot = slot(temp.path(), "a");
    let entry = sparse(SIZE);
    let kept = |content: &[u8]| {
        let partial = Partial::create(&slot, entry.clone(), &rules()).unwrap();
        partial.write_at(content, 0).unwrap();
        let inode = partial.inode().unwrap();
        partial.keep();
        inode
    };
    let resume =
        |inode| Partial::resume(&slot, entry.clone(), &rules(), (inode, SIZE), false).unwrap();
    let inode = kept(&[7; 5000]);
    let other = Inode {
        ino: inode.ino + 1,
        ..inode
    };
    assert!(resume(&other).is_none());
    let partial = resume(&inode).expect("it is there");
    let mut there = [0; 5000];
    let disk = partial.readback().unwrap();
    assert!(disk.prepare(&(0..5000)));
    disk.read(&mut there, 0).unwrap();
    assert_eq!(there, [7; 5000]);
    // New content replaces the old, even if it is zeros.
    partial.write_zeros(0, 4096, true).unwrap();
    partial.write_at(&[0; 904], 4096).unwrap();
    partial.commit(None).unwrap();
    let content = std::fs::read(temp.path().join("a")).unwrap();
    assert!(content.len() as u64 == SIZE && content.iter().all(|&byte| byte == 0));
    // A file that others may have written is not resumed.
    let inode = kept(&[7; 5000]);
    let name = &names(temp.path())[0];
    std::fs::hard_link(temp.path().join(name), temp.path().join("more")).unwrap();
    assert!(resume(&inode).is_none());
}

#[test]
fn a_copy_in_place_removes_the_partial_file_that_it_does_not_resume() {
    let temp = tempfile::tempdir().unwrap();
    let slot = slot(temp.path(), "a");
    std::fs::write(temp.path().join("a"), b"old").unwrap();
    let partial = Partial::create(&slot, sparse(SIZE), &rules()).unwrap();
    let inode = partial.inode().unwrap();
    partial.keep();
    assert_eq!(names(temp.path()).len(), 2);
    let inplace = Rules {
        inplace: true,
        ..rules()
    };
    let resumed = Partial::resume(&slot, sparse(SIZE), &inplace, (&inode, SIZE), false);
    assert!(resumed.unwrap().is_none());
    assert_eq!(names(temp.path()), ["a"]);
    assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), b"old");
}

#[test]
fn in_place_is_the_same_file_with_the_new_length_and_no_link_is_followed() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("a");
    let inplace = Rules {
        inplace: true,
        ..rules()
    };
    for len in [10, 9000] {
        std::fs::write(&path, vec![9; len]).unwrap();
        let before = std::fs::metadata(&path).unwrap().ino();
        let entry = Arc::new(file(5000, 0o644));
        let partial = Partial::create(&slot(temp.path(), "a"), entry, &inplace).unwrap();
        assert_eq!(names(temp.path()), ["a"]);
        partial.write_at(&[1; 5000], 0).unwrap();
        partial.commit(None).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [1; 5000]);
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), before);
    }
    std::os::unix::fs::symlink("a", temp.path().join("link")).unwrap();
    let linked = Partial::create(&slot(temp.path(), "link"), sparse(5), &inplace);
    assert_eq!(linked.err().expect("refused").kind, Kind::Refused);
}

#[test]
fn a_file_in_place_that_others_cut_removed_or_replaced_is_not_complete() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("a");
    let inplace = Rules {
        inplace: true,
        ..rules()
    };
    type Change = fn(&Path);
    let changes: [(Change, &str); 3] = [
        (|path| std::fs::write(path, b"").unwrap(), "was cut"),
        (|path| std::fs::remove_file(path).unwrap(), "was removed"),
        (
            |path| {
                let other = path.with_file_name("other");
                std::fs::write(&other, b"other").unwrap();
                std::fs::rename(other, path).unwrap();
            },
            "was removed or replaced",
        ),
    ];
    for (change, words) in changes {
        std::fs::write(&path, b"old").unwrap();
        let entry = Arc::new(file(5000, 0o644));
        let partial = Partial::create(&slot(temp.path(), "a"), entry, &inplace).unwrap();
        partial.write_at(&[1; 5000], 0).unwrap();
        change(&path);
        let refused = partial.commit(None).expect_err(words);
        assert_eq!(refused.kind, Kind::Refused);
        assert!(refused.message.contains(words), "{refused}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"other");
}

#[test]
fn runs_of_zeros_at_odd_offsets_come_out_right() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("f");
    let mut expected = vec![0; 30_000];
    for at in [0, 4095, 4096, 12_287, 20_480, 29_999] {
        expected[at] = 9;
    }
    for offset in [0, 1, 4095, 4096, 4097] {
        let file = File::create(&path).unwrap();
        let end = write_sparse(&file, &expected[offset..], offset as u64).unwrap();
        assert_eq!(end, 30_000);
        assert_eq!(
            &std::fs::read(&path).unwrap()[offset..],
            &expected[offset..]
        );
    }
}

#[test]
fn nothing_is_left_of_a_dropped_partial_and_nothing_is_written_beyond_its_end() {
    let temp = tempfile::tempdir().unwrap();
    let slot = slot(temp.path(), "a");
    let partial = Partial::create(&slot, Arc::new(file(10, 0o644)), &rules()).unwrap();
    assert_eq!(names(temp.path()).len(), 1);
    for (offset, len) in [(0, 11), (10, 1), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(partial.write_zeros(offset, len, true).is_err());
    }
    drop(partial);
    assert_eq!(names(temp.path()), [""; 0]);
    for size in [u64::MAX, 1 << 63] {
        let huge = Partial::create(&slot, sparse(size), &rules());
        let message = huge.err().expect("refused").message;
        assert!(message.contains("allows no file"), "{message}");
    }
    assert_eq!(names(temp.path()), [""; 0]);
}

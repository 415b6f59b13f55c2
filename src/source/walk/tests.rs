//! Trees as the walk finds them, and trees that change during the walk.

use super::*;
use crate::source::found::Changes;
use crate::source::operand::{Lookup, expand};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

fn named(path: &Path) -> Vec<NamedSource> {
    let lookup = Lookup {
        confine: None,
        base: PathBuf::new(),
        remote: false,
        scp: false,
    };
    let (found, failed) = expand(
        path.as_os_str().as_bytes(),
        &lookup,
        true,
        &Selector::default(),
    );
    assert_eq!(failed, []);
    found
}

/// One line per step: `id<parent name kind`, `end id children` or the error.
fn walked(roots: Vec<NamedSource>, follow_links: bool) -> Vec<String> {
    let options = WalkOptions {
        follow_links,
        ..WalkOptions::default()
    };
    let lines = Walk::new(roots, options, Arc::default()).map(|step| match step {
        Step::Entry(found) | Step::Unnumbered(found) => {
            let entry = &found.entry;
            assert!(entry.parent < entry.id);
            let name = String::from_utf8_lossy(entry.name.as_bytes()).into_owned();
            format!("{}<{} {name} {:?}", entry.id, entry.parent, entry.kind)
        }
        Step::EndDirectory { id, children, .. } => format!("end {id} {children}"),
        Step::Failed(error) | Step::Missing(error) | Step::Special(error) => error.to_string(),
        Step::LeftOut => "left out".to_owned(),
    });
    lines.collect()
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// A file system may reuse an inode number when all names of the file are gone.
#[test]
fn another_file_with_the_inode_of_an_earlier_one_is_no_further_name_of_it() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path().join("top");
    std::fs::create_dir(&top).unwrap();
    std::fs::write(top.join("one"), b"12345").unwrap();
    std::fs::hard_link(top.join("one"), top.join("other")).unwrap();
    let walk = Walk::new(named(&top), WalkOptions::default(), Arc::default());
    let mut kinds = Vec::new();
    for step in walk {
        if let Step::Entry(found) = step {
            if found.entry.kind == EntryKind::File && kinds.len() == 1 {
                std::fs::write(top.join("one"), b"another").unwrap();
            }
            kinds.push(found.entry.kind);
        }
    }
    let file = EntryKind::File;
    assert_eq!(kinds, [EntryKind::Directory, file.clone(), file]);
}

#[test]
fn every_kind_of_entry_is_announced_as_what_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path().join("top");
    for (dir, file) in [("", "file"), ("sub", "first")] {
        std::fs::create_dir_all(top.join(dir)).unwrap();
        std::fs::write(top.join(dir).join(file), b"12345").unwrap();
    }
    let lines = walked(named(&top.join("file")), false);
    assert_eq!(lines, ["1<0 file File"]);

    std::fs::remove_file(top.join("file")).unwrap();
    let lines = walked(named(&top), false);
    let wanted = [
        "1<0 top Directory",
        "2<1 sub Directory",
        "3<2 first File",
        "end 2 1",
        "end 1 1",
    ];
    assert_eq!(lines, wanted);

    std::fs::hard_link(top.join("sub/first"), top.join("sub/second")).unwrap();
    symlink("/nowhere/at all", top.join("sub/link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, top.join("sub/fifo"), 0o600.into()).unwrap();
    std::fs::create_dir(top.join("sub/empty")).unwrap();
    let lines = walked(named(&top), false);
    let link = lines.last().unwrap();
    let first = lines.iter().find(|line| line.ends_with(" File")).unwrap();
    let (first_id, _) = first.split_once('<').unwrap();
    assert!(link.starts_with("6<2 "), "the last phase: {link}");
    assert!(link.ends_with(&format!(" HardLink({first_id})")), "{link}");
    let text = format!("{:?}", b"/nowhere/at all".to_vec());
    assert!(
        lines
            .iter()
            .any(|line| line.ends_with(&format!("link Symlink({text})")))
    );
    assert!(
        lines
            .iter()
            .any(|line| line.ends_with("/sub/fifo: is a FIFO, which is not copied"))
    );
    assert!(
        lines.contains(&"end 2 4".into()),
        "hard link in, FIFO out: {lines:?}"
    );
    assert!(lines.iter().any(|line| line.ends_with("empty Directory")));

    let mut told = Vec::new();
    let totals = crate::source::scan(&named(&top), &WalkOptions::default(), &mut |totals| {
        told.push((totals.files, totals.bytes));
        true
    });
    let totals = totals.unwrap();
    assert_eq!((totals.files, totals.directories, totals.bytes), (3, 3, 5));
    // The walk of a copy counts the same.
    let options = WalkOptions {
        holds: true,
        sums_names: true,
        ..WalkOptions::default()
    };
    let mut met = crate::manifest::Totals::default();
    for step in Walk::new(named(&top), options, Arc::default()) {
        if let Step::Entry(found) | Step::Unnumbered(found) = step {
            crate::source::count(&mut met, &found);
        }
    }
    assert_eq!(met, totals);
    assert_eq!(told, [(3, 5)]);
}

#[test]
fn what_the_user_named_comes_first_with_numbers_known_before() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("d")).unwrap();
    std::fs::write(temp.path().join("d/in"), b"").unwrap();
    std::fs::write(temp.path().join("f"), b"x").unwrap();
    std::fs::hard_link(temp.path().join("f"), temp.path().join("g")).unwrap();
    symlink("f", temp.path().join("l")).unwrap();
    let roots = ["d", "f", "g", "l"]
        .iter()
        .flat_map(|name| named(&temp.path().join(name)))
        .collect();
    let wanted = [
        "1<0 d Directory",
        "2<0 f File",
        "5<1 in File",
        "end 1 1",
        "3<0 g HardLink(2)",
        "4<0 l HardLink(2)",
    ];
    assert_eq!(walked(roots, false), wanted);
}

#[test]
fn links_are_followed_when_asked_but_not_in_circles() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path().join("top");
    std::fs::create_dir_all(top.join("a/b")).unwrap();
    std::fs::create_dir(temp.path().join("outside")).unwrap();
    std::fs::write(temp.path().join("outside/file"), b"").unwrap();
    symlink("../../../outside", top.join("a/b/out")).unwrap();
    symlink("../..", top.join("a/b/up")).unwrap();
    symlink("nowhere", top.join("a/dangling")).unwrap();
    let lines = sorted(walked(named(&top), true));
    let shown = top.display();
    let find = |end: &str| lines.iter().filter(|line| line.ends_with(end)).count();
    assert_eq!(find(" out Directory"), 1, "{lines:?}");
    assert_eq!(find(" file File"), 1, "through the link");
    assert!(lines.contains(&format!(
        "source: {shown}/a/b/up: leads back to a directory above it, so it is not copied"
    )));
    assert!(lines.contains(&format!(
        "source: {shown}/a/dangling: is a dangling link: no such file or directory"
    )));
    assert_eq!(lines.len(), 5 + 4 + 2);
}

#[test]
fn a_tree_deeper_than_any_path_is_walked_to_its_end() {
    const DEPTH: usize = 100;
    let temp = tempfile::tempdir().unwrap();
    let handles = Arc::new(Handles::default());
    let mut dir = Dir::root(temp.path(), &handles).unwrap();
    for level in 0..DEPTH {
        // Because of the siblings, reading each level continues after its subtrees were walked.
        for letter in ["a", "b"] {
            let name = Name::try_from(letter.repeat(200).into_bytes()).unwrap();
            let handle = dir.handle().unwrap();
            rustix::fs::mkdirat(&*handle, name.as_os_str(), 0o700.into()).unwrap();
        }
        let letter = if level % 2 == 0 { "a" } else { "b" };
        let name = Name::try_from(letter.repeat(200).into_bytes()).unwrap();
        dir = dir.child(&name).unwrap();
    }
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let file = dir.open("deep".as_ref(), flags, Mode::RUSR).unwrap();
    rustix::io::write(&file, b"found").unwrap();
    drop((dir, file));

    let mut directories = 0;
    let mut content = String::new();
    for step in Walk::new(named(temp.path()), WalkOptions::default(), handles) {
        match step {
            Step::Entry(found) if found.entry.kind == EntryKind::File => {
                assert!(found.path().as_os_str().len() > 200 * DEPTH);
                content = io::read_to_string(found.open(Changes::Told).unwrap().0).unwrap();
            }
            Step::Entry(_) | Step::Unnumbered(_) => directories += 1,
            Step::EndDirectory { .. } => {}
            Step::Failed(error) | Step::Missing(error) | Step::Special(error) => panic!("{error}"),
            Step::LeftOut => {}
        }
    }
    assert_eq!((directories, content.as_str()), (1 + 2 * DEPTH, "found"));
}

#[test]
fn a_directory_that_vanishes_or_is_replaced_ends_empty_and_is_reported() {
    let temp = tempfile::tempdir().unwrap();
    let top = temp.path().join("top");
    std::fs::create_dir_all(top.join("sub/inner")).unwrap();
    let mut walk = Walk::new(named(&top), WalkOptions::default(), Arc::default());
    assert!(matches!(walk.next(), Some(Step::Entry(_))));
    assert!(matches!(walk.next(), Some(Step::Entry(_))));
    std::fs::rename(top.join("sub"), temp.path().join("away")).unwrap();
    symlink("/etc", top.join("sub")).unwrap();
    let Some(Step::Failed(error)) = walk.next() else {
        panic!("the link is not entered");
    };
    assert_eq!(error.kind, Kind::Read);
    assert!(matches!(
        walk.next(),
        Some(Step::EndDirectory {
            id: 2,
            children: 0,
            ..
        })
    ));
    assert!(matches!(
        walk.next(),
        Some(Step::EndDirectory {
            id: 1,
            children: 1,
            ..
        })
    ));
    assert!(walk.next().is_none());
}

#[test]
fn a_further_name_that_is_replaced_is_linked_and_reported() {
    let temp = tempfile::tempdir().unwrap();
    let (one, two) = (temp.path().join("d/one"), temp.path().join("d/two"));
    std::fs::create_dir(temp.path().join("d")).unwrap();
    std::fs::write(&one, b"").unwrap();
    std::fs::hard_link(&one, &two).unwrap();
    let mut walk = Walk::new(
        named(&temp.path().join("d")),
        WalkOptions::default(),
        Arc::default(),
    );
    let end = walk.find(|step| matches!(step, Step::EndDirectory { .. }));
    assert!(matches!(
        end,
        Some(Step::EndDirectory {
            id: 1,
            children: 2,
            ..
        })
    ));
    for path in [&one, &two] {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, b"other").unwrap();
    }
    let Some(Step::Entry(found)) = walk.next() else {
        panic!("announced all the same");
    };
    assert_eq!(found.entry.kind, EntryKind::HardLink(2));
    assert!(matches!(walk.next(), Some(Step::Failed(error)) if error.kind == Kind::Changed));
}

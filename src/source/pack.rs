//! The reading of many small files into one pack. The status of each file is compared before and
//! after its bytes are read; a file that changed is read once more. If it grows in both readings, the
//! second shows whether the bytes of the first have stayed. The same holds for a file that has
//! grown when its pack is read again, after the loss of a stream.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{Stat, fstat};
use rustix::io::Errno;

use crate::cache::is_cached;
use crate::chunk::pack::{PackWriter, TableForm};
use crate::chunk::{Buffer, SMALL_FILE_MAX};
use crate::digest::{Digest, of_range};
use crate::error::{Error, Kind, Result};
use crate::manifest::Entry;

use super::found::{Changes, FoundFile, has_grown, refresh};
use super::read::{behind, read_up_to};

/// A pack in its buffer.
pub struct PackRead {
    /// Bytes of contents and table.
    pub raw_len: u32,
    /// Digest of the table, which contains the digests of the files.
    pub digest: Digest,
    pub packed: Vec<Packed>,
    /// The other files, by their index in the plan.
    pub left_out: Vec<(usize, Unpacked)>,
}

/// A file that is in a pack.
pub struct Packed {
    /// Its index in the plan.
    pub place: usize,
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
    /// The file grew while it was read, and the pack has only its first bytes.
    pub has_grown: bool,
}

/// Why a file is not in its pack.
#[derive(Debug)]
pub enum Unpacked {
    Failed(Error),
    /// The pack has no room for it, because this file or others have grown. The sender must send it
    /// as a big file, or as a pipe if its size is unknown.
    Grew,
}

/// A file to pack.
pub struct ToPack<'a> {
    pub found: &'a FoundFile,
    /// Bytes and digest of it in an earlier reading of this pack.
    pub read_before: Option<(u64, Digest)>,
}

impl ToPack<'_> {
    /// The most bytes to read. A file that may grow is not read beyond its length in an earlier
    /// reading of the pack, since the others need the room.
    fn most(&self, changes: Changes) -> u64 {
        match (changes, self.read_before) {
            (Changes::Taken, Some((size, _))) => size,
            _ => u64::MAX,
        }
    }

    /// Length and digest of an earlier reading, if the file has more bytes `now` and the user is to
    /// be told that it grew.
    fn outgrown(&self, now: u64, changes: Changes) -> Option<(u64, Digest)> {
        self.read_before
            .filter(|(size, _)| changes == Changes::GrowthTaken && now > *size)
    }
}

/// Reads small files into one pack, one after another, so that only one descriptor is open at a
/// time. Their entries in the pack have the sizes and times from when they were opened. A file that
/// changed while it was read is read once more, unless `changes` allows changes. With
/// `drops_pages`, the bytes read are dropped from the page cache again.
pub fn read_pack<'a>(
    members: impl Iterator<Item = ToPack<'a>>,
    changes: Changes,
    drops_pages: bool,
    form: TableForm,
    buffer: &mut Buffer,
) -> PackRead {
    let mut pack = PackWriter::new(buffer, form);
    let mut packed = Vec::with_capacity(members.size_hint().0);
    let mut left_out = Vec::new();
    for (place, member) in members.enumerate() {
        match read_member(&member, changes, drops_pages, &mut pack) {
            Ok(read) => packed.push(Packed {
                place,
                digest: read.digest,
                size: read.size,
                has_grown: read.has_grown,
            }),
            Err(why) => left_out.push((place, why)),
        }
    }
    let (raw_len, digest) = pack.finish();
    PackRead {
        raw_len,
        digest,
        packed,
        left_out,
    }
}

/// A file whose content is in the pack.
#[derive(Debug, PartialEq, Eq)]
struct MemberRead {
    digest: Digest,
    size: u64,
    has_grown: bool,
}

impl MemberRead {
    fn whole(digest: Digest, size: u64) -> MemberRead {
        MemberRead {
            digest,
            size,
            has_grown: false,
        }
    }
}

/// What the first reading found of a file that grew: its entry at that time, and the digest of its
/// content.
type FirstReading = Option<(Entry, Digest)>;

fn read_member(
    member: &ToPack<'_>,
    changes: Changes,
    drops_pages: bool,
    pack: &mut PackWriter,
) -> Result<MemberRead, Unpacked> {
    let found = member.found;
    let mut first = None;
    twice_if_changed(|| {
        let (file, before) = found.open(changes)?;
        if found.entry.is_made_up() {
            return read_made_up(member, &file, &before, changes, pack);
        }
        let len = found.entry.size as usize;
        let brings = drops_pages && !is_cached(&file, 0..len as u64);
        behind(&file, brings, 0, len, || {
            read_open(member, &file, &before, changes, &mut first, pack)
        })
    })
}

fn twice_if_changed<T>(mut read: impl FnMut() -> Result<T, Unpacked>) -> Result<T, Unpacked> {
    match read() {
        Err(Unpacked::Failed(first)) if first.kind == Kind::Changed => {
            read().map_err(|why| match why {
                // The file was then removed or replaced: that change is the cause.
                Unpacked::Failed(error) if error.kind != Kind::Changed => Unpacked::Failed(first),
                why => why,
            })
        }
        once => once,
    }
}

/// Reads a file of /proc or the like to its end, whatever its size claims.
fn read_made_up(
    member: &ToPack<'_>,
    file: &File,
    stat: &Stat,
    changes: Changes,
    pack: &mut PackWriter,
) -> Result<MemberRead, Unpacked> {
    let found = member.found;
    let mut entry = found.entry.clone();
    refresh(&mut entry, file, stat, &found.keep);
    entry.links = 1;
    let room = pack.room_left(&entry).ok_or(Unpacked::Grew)?;
    let most = usize::try_from(member.most(changes)).unwrap_or(usize::MAX);
    let end = room.len().min(most);
    let (mut len, mut is_whole) = (0, true);
    while len < most {
        // A file that fills the room may have more.
        if len == room.len() {
            is_whole = false;
            break;
        }
        // In order, because some of these files cannot be read at an offset.
        match rustix::io::read(file, &mut room[len..end]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(Errno::INTR) => {}
            Err(cause) => return Err(found.cannot_read(cause.into()).into()),
        }
    }
    let earlier = member.outgrown(len as u64, changes);
    let earlier = earlier.filter(|(size, digest)| hash(&room[..*size as usize]) == *digest);
    if earlier.is_none() && !is_whole {
        return Err(Unpacked::Grew);
    }
    let size = earlier.map_or(len as u64, |(size, _)| size);
    (entry.size, entry.allocated) = (size, size);
    Ok(MemberRead {
        digest: pack.push(entry),
        size,
        has_grown: earlier.is_some(),
    })
}

fn read_open(
    member: &ToPack<'_>,
    file: &File,
    before: &Stat,
    changes: Changes,
    first: &mut FirstReading,
    pack: &mut PackWriter,
) -> Result<MemberRead, Unpacked> {
    let found = member.found;
    let mut entry = found.entry.clone();
    refresh(&mut entry, file, before, &found.keep);
    entry.size = entry.size.min(member.most(changes));
    if let Some(earlier) = member.outgrown(entry.size, changes)
        && let Some(read) = read_grown(member, file, &entry, earlier, pack)?
    {
        return Ok(read);
    }
    if entry.size > SMALL_FILE_MAX {
        return Err(Unpacked::Grew);
    }
    let room = pack.room(&entry).ok_or(Unpacked::Grew)?;
    if changes == Changes::Taken {
        let read = read_up_to(file, 0, room).map_err(|cause| found.cannot_read(cause))?;
        entry.size = read as u64;
        return Ok(MemberRead::whole(pack.push(entry), read as u64));
    }
    read_all(file, room).map_err(|cause| found.cannot_read(cause))?;
    let after = fstat(file).map_err(|cause| found.cannot_read(cause.into()))?;
    match found.compare(before, &after) {
        Ok(()) => {
            let size = entry.size;
            Ok(MemberRead::whole(pack.push(entry), size))
        }
        Err(error) if changes == Changes::GrowthTaken && has_grown(&error) => {
            let Some((earlier, digest)) = first.take() else {
                *first = Some((entry, hash(room)));
                return Err(error.into());
            };
            let part = room.get(..earlier.size as usize);
            if part.is_none_or(|part| hash(part) != digest) {
                return Err(error.into());
            }
            let size = earlier.size;
            Ok(MemberRead {
                digest: pack.push(earlier),
                size,
                has_grown: true,
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads as much of a file as an earlier reading of its pack, of this size and digest. None if that
/// part has changed since then: the file did not only grow.
fn read_grown(
    member: &ToPack<'_>,
    file: &File,
    entry: &Entry,
    (size, digest): (u64, Digest),
    pack: &mut PackWriter,
) -> Result<Option<MemberRead>, Unpacked> {
    let entry = Entry {
        size,
        // Nearer to the time of its content than the time of its growth.
        mtime: member.found.entry.mtime,
        ..entry.clone()
    };
    let room = pack.room(&entry).ok_or(Unpacked::Grew)?;
    read_all(file, room).map_err(|cause| member.found.cannot_read(cause))?;
    if hash(room) != digest {
        return Ok(None);
    }
    Ok(Some(MemberRead {
        digest: pack.push(entry),
        size,
        has_grown: true,
    }))
}

/// The digest of a whole file.
fn hash(content: &[u8]) -> Digest {
    of_range(content, 0, true)
}

fn read_all(file: &File, room: &mut [u8]) -> std::io::Result<()> {
    if room.is_empty() {
        return Ok(());
    }
    file.read_exact_at(room, 0)
}

impl From<Error> for Unpacked {
    fn from(error: Error) -> Self {
        Unpacked::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::pack::Pack;
    use crate::chunk::{CHUNK_SIZE, Chunk, ChunkKind, ChunkPlace};
    use crate::source::found::trees::{append, files, one};

    fn to_pack(found: &FoundFile) -> ToPack<'_> {
        ToPack {
            found,
            read_before: None,
        }
    }

    #[test]
    fn a_pack_leaves_out_what_failed_and_takes_what_changed_before_as_it_is() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        for name in ["a", "b", "c", "d", "e"] {
            std::fs::write(at(name), name.repeat(10)).unwrap();
        }
        std::fs::write(at("f"), b"").unwrap();
        let found = files(temp.path());
        std::fs::remove_file(at("b")).unwrap();
        append(&at("c"), b"more");
        File::options()
            .write(true)
            .open(at("d"))
            .unwrap()
            .set_len(300 << 10)
            .unwrap();

        let mut buffer = Buffer::loose(CHUNK_SIZE);
        let pack = read_pack(
            found.iter().map(to_pack),
            Changes::Told,
            false,
            TableForm::Columns,
            &mut buffer,
        );
        assert_eq!(pack.packed.len(), 4);
        assert_eq!(pack.raw_len as usize, buffer.len());
        let [(1, Unpacked::Failed(gone)), (3, Unpacked::Grew)] = &pack.left_out[..] else {
            panic!("{:?}", pack.left_out);
        };
        assert_eq!(gone.kind, Kind::Read);

        let place = ChunkPlace {
            kind: ChunkKind::Pack,
            chunk: 0,
            entry: 0,
            offset: 0,
            raw_len: pack.raw_len,
        };
        let chunk = Chunk { place, buffer };
        let verified = chunk.verify_pack(pack.digest).ok().unwrap();
        let members = Pack::parse(&verified).unwrap();
        let contents: Vec<_> = members
            .map(|(entry, content)| (entry.name.as_bytes().to_vec(), content.to_vec()))
            .collect();
        let wanted = [
            ("a", "aaaaaaaaaa"),
            ("c", "ccccccccccmore"),
            ("e", "eeeeeeeeee"),
            ("f", ""),
        ];
        let wanted: Vec<_> = wanted.map(|(a, b)| (a.into(), b.into())).to_vec();
        assert_eq!(contents, wanted);
    }

    #[test]
    fn a_file_that_changed_once_is_read_again_and_no_third_time() {
        for (changes, length) in [(1, Some(14)), (2, None)] {
            let temp = tempfile::tempdir().unwrap();
            let (path, found) = one(temp.path(), b"0123456789");
            let mut buffer = Buffer::loose(CHUNK_SIZE);
            let mut pack = PackWriter::new(&mut buffer, TableForm::Records);
            let mut readings = 0;
            let read = twice_if_changed(|| {
                let (file, before) = found.open(Changes::Told)?;
                readings += 1;
                if readings <= changes {
                    append(&path, b"more");
                }
                let member = to_pack(&found);
                read_open(&member, &file, &before, Changes::Told, &mut None, &mut pack)
            });
            assert_eq!(readings, 2);
            match length {
                Some(length) => {
                    let content = std::fs::read(&path).unwrap();
                    assert_eq!(content.len(), length);
                    assert_eq!(read.unwrap().digest, *blake3::hash(&content).as_bytes());
                }
                None => assert!(
                    matches!(read, Err(Unpacked::Failed(error)) if error.kind == Kind::Changed)
                ),
            }
        }
    }

    #[test]
    fn a_file_that_only_grows_is_packed_as_the_first_reading_found_it() {
        type Change = fn(&std::path::Path);
        let changes: [(Change, bool); 3] = [
            (|path| append(path, b"more"), true),
            // It grows, and its first bytes change too.
            (
                |path| std::fs::write(path, b"0123456780 and more").unwrap(),
                false,
            ),
            (
                |path| {
                    let file = File::options().write(true).open(path).unwrap();
                    file.write_all_at(b"9", 0).unwrap();
                    append(path, b"more");
                },
                false,
            ),
        ];
        for (second_change, only_grows) in changes {
            let temp = tempfile::tempdir().unwrap();
            let (path, found) = one(temp.path(), b"0123456789");
            let mut buffer = Buffer::loose(CHUNK_SIZE);
            let mut pack = PackWriter::new(&mut buffer, TableForm::Records);
            let (mut first, mut readings) = (None, 0);
            let read = twice_if_changed(|| {
                readings += 1;
                if readings == 2 {
                    second_change(&path);
                }
                let (file, before) = found.open(Changes::GrowthTaken)?;
                append(&path, b"more");
                let changes = Changes::GrowthTaken;
                read_open(
                    &to_pack(&found),
                    &file,
                    &before,
                    changes,
                    &mut first,
                    &mut pack,
                )
            });
            assert_eq!(readings, 2);
            let Ok(read) = read else {
                assert!(!only_grows);
                continue;
            };
            assert!(only_grows && read.has_grown);
            assert_eq!(read.size, 10);
            assert_eq!(read.digest, *blake3::hash(b"0123456789").as_bytes());
        }
    }

    #[test]
    fn a_pack_that_is_read_again_has_no_more_of_a_file_that_only_grew() {
        let temp = tempfile::tempdir().unwrap();
        let (path, found) = one(temp.path(), b"0123456789");
        let again = ToPack {
            read_before: Some((10, hash(b"0123456789"))),
            ..to_pack(&found)
        };
        let read = |changes| {
            let mut buffer = Buffer::loose(CHUNK_SIZE);
            let mut pack = PackWriter::new(&mut buffer, TableForm::Records);
            read_member(&again, changes, false, &mut pack)
        };
        let takes = Changes::GrowthTaken;
        append(&path, b"more");
        let first = MemberRead {
            has_grown: true,
            ..MemberRead::whole(hash(b"0123456789"), 10)
        };
        assert_eq!(read(takes).unwrap(), first);
        assert_eq!(read(Changes::Told).unwrap().size, 14);
        append(&path, &[7; SMALL_FILE_MAX as usize]);
        assert_eq!(read(takes).unwrap(), first);
        assert!(matches!(read(Changes::Told), Err(Unpacked::Grew)));
        // What has changed otherwise is copied whole, as far as there is room.
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"9", 0).unwrap();
        assert!(matches!(read(takes), Err(Unpacked::Grew)));
        file.set_len(12).unwrap();
        assert_eq!(
            read(takes).unwrap(),
            MemberRead::whole(hash(b"9123456789mo"), 12)
        );
    }

    #[test]
    fn a_live_file_is_packed_up_to_the_end_that_is_there() {
        let temp = tempfile::tempdir().unwrap();
        let (path, found) = one(temp.path(), b"0123456789");
        let mut buffer = Buffer::loose(CHUNK_SIZE);
        let mut pack = PackWriter::new(&mut buffer, TableForm::Records);
        let (file, before) = found.open(Changes::Taken).unwrap();
        append(&path, b"more");
        let (_, grown) = found.open(Changes::Taken).unwrap();
        let mut read = |member: &ToPack<'_>, before: &Stat| {
            let taken = Changes::Taken;
            read_open(member, &file, before, taken, &mut None, &mut pack).unwrap()
        };
        let whole = |content: &[u8]| {
            MemberRead::whole(*blake3::hash(content).as_bytes(), content.len() as u64)
        };
        let member = to_pack(&found);
        assert_eq!(read(&member, &before), whole(b"0123456789"));
        let again = ToPack {
            read_before: Some((10, hash(b"0123456789"))),
            ..to_pack(&found)
        };
        assert_eq!(read(&again, &grown), whole(b"0123456789"), "as before");
        std::fs::write(&path, b"01").unwrap();
        assert_eq!(read(&member, &before), whole(b"01"));

        std::fs::remove_file(&path).unwrap();
        let gone = found.open(Changes::Taken).unwrap_err();
        assert!(crate::source::has_vanished(&gone));
        std::fs::write(&path, b"another").unwrap();
        let (_, stat) = found.open(Changes::Taken).unwrap();
        assert_eq!(stat.st_size, 7, "the file that has its name now");
    }

    #[test]
    fn what_is_made_up_is_packed_as_long_as_it_is_and_left_out_where_it_has_no_room() {
        let temp = tempfile::tempdir().unwrap();
        for (len, fits) in [
            (0, true),
            (100_000, true),
            (260_000, true),
            (300_000, false),
        ] {
            let (path, mut found) = one(temp.path(), b"x");
            found.entry.extensions.push(crate::manifest::Extension {
                tag: crate::manifest::MADE_UP,
                bytes: Vec::new(),
            });
            // Longer or shorter than its entry says.
            std::fs::write(&path, vec![7; len]).unwrap();
            let mut buffer = Buffer::loose(CHUNK_SIZE);
            let pack = read_pack(
                [&found].into_iter().map(to_pack),
                Changes::Told,
                false,
                TableForm::Columns,
                &mut buffer,
            );
            match (&pack.packed[..], &pack.left_out[..]) {
                ([packed], []) if fits => {
                    assert_eq!(packed.size, len as u64);
                    assert_eq!(packed.digest, *blake3::hash(&vec![7; len]).as_bytes());
                }
                ([], [(0, Unpacked::Grew)]) if !fits => {}
                _ => panic!("{len}"),
            }
        }
    }

    #[test]
    fn a_file_that_changes_while_it_is_packed_leaves_no_trace_in_the_pack() {
        let temp = tempfile::tempdir().unwrap();
        let (path, found) = one(temp.path(), b"0123456789");
        let mut buffer = Buffer::loose(CHUNK_SIZE);
        let mut pack = PackWriter::new(&mut buffer, TableForm::Records);
        let (file, before) = found.open(Changes::Told).unwrap();
        append(&path, b"more");
        for message in [
            crate::source::GREW,
            "shrank during the copy; --live copies files that are in use",
        ] {
            let member = to_pack(&found);
            match read_open(&member, &file, &before, Changes::Told, &mut None, &mut pack) {
                Err(Unpacked::Failed(error)) => assert_eq!(error.message, message),
                _ => panic!("taken for whole"),
            }
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(5).unwrap();
        }
        let (raw_len, _) = pack.finish();
        assert_eq!(raw_len, 5, "an empty table and its length");
    }
}

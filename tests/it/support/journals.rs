//! Journals left by copies, and changes to them for a test.

use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fastcp::journal::record::{ChecksumKey, JournalSession, LEN, Record, RecordBody};

/// The byte ranges that a journal records as written, in the order of the writes.
pub(crate) fn recorded(path: &Path) -> Vec<Range<u64>> {
    let content = std::fs::read(path).expect("read the journal");
    let chunks = bodies(path, &content).into_iter();
    let chunks = chunks.filter_map(|body| match body {
        RecordBody::Chunk(_, chunk) => Some(chunk.offset..chunk.offset + chunk.len),
        _ => None,
    });
    chunks.collect()
}

/// The valid records of the journal at `path` with this content.
pub(crate) fn bodies(path: &Path, content: &[u8]) -> Vec<RecordBody> {
    let (records, _) = content.as_chunks::<LEN>();
    // The journal is empty for a moment after its creation.
    let Some(key) = records.first().and_then(|header| key(path, header)) else {
        return Vec::new();
    };
    let decode = |record| RecordBody::decode(record, &key);
    records.iter().filter_map(decode).collect()
}

/// Makes the journal's first session one from before the last boot, or of another host that has
/// written nothing for some seconds.
pub(crate) fn age_by_a_boot(path: &Path) {
    change(path, |session| session.boot_id = [1; 16]);
    rest(path);
}

/// Makes the journal one that no process has touched for some seconds.
pub(crate) fn rest(path: &Path) {
    let file = OpenOptions::new().write(true).open(path);
    let time = SystemTime::now() - Duration::from_secs(10);
    file.and_then(|file| file.set_modified(time))
        .expect("set its time");
}

/// Makes the journal's first session one with another chunk size.
pub(crate) fn cut_otherwise(path: &Path) {
    change(path, |session| session.chunk_size /= 2);
}

/// The key of a journal that begins with `header`, derived from the user key in the case's home.
pub(crate) fn key(path: &Path, header: &Record) -> Option<ChecksumKey> {
    let in_home = |above: &Path| std::fs::read(above.join("home/.local/state/fastcp/key")).ok();
    let user = path.ancestors().find_map(in_home)?;
    ChecksumKey::read(header, &user.try_into().ok()?)
}

fn change(path: &Path, how: impl FnOnce(&mut JournalSession)) {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.expect("open the journal");
    let mut record = [0; LEN];
    file.read_exact_at(&mut record, 0).expect("read the header");
    let key = key(path, &record).expect("a journal");
    let at = LEN as u64;
    file.read_exact_at(&mut record, at)
        .expect("read the session");
    let Some(RecordBody::Session(mut session)) = RecordBody::decode(&record, &key) else {
        panic!("it begins with a session");
    };
    how(&mut session);
    let record = RecordBody::Session(session).encode(&key);
    file.write_all_at(&record, at).expect("write the session");
}

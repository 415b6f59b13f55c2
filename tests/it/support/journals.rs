//! Journals that copies have left, changed for a test.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fastcp::journal::record::{Body, Key, LEN, Session};

/// Makes its first session one of before the machine was started.
pub fn age_by_a_boot(path: &Path) {
    change(path, |session| session.boot_id = [1; 16]);
}

/// Makes its first session one of a fastcp that cut files into chunks of another size.
pub fn cut_otherwise(path: &Path) {
    change(path, |session| session.chunk_size /= 2);
}

fn change(path: &Path, how: impl FnOnce(&mut Session)) {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.expect("open the journal");
    let mut record = [0; LEN];
    file.read_exact_at(&mut record, 0).expect("read the header");
    let key = Key::read(&record).expect("a journal");
    let at = LEN as u64;
    file.read_exact_at(&mut record, at)
        .expect("read the session");
    let Some(Body::Session(mut session)) = Body::decode(&record, &key) else {
        panic!("it begins with a session");
    };
    how(&mut session);
    let record = Body::Session(session).encode(&key);
    file.write_all_at(&record, at).expect("write the session");
}

//! Tests with real pipes, FIFOs and growing files.

use std::io::Write;
use std::thread::{scope, sleep};

use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

const C: usize = 4096;

/// Reads the whole pipe, chunk by chunk.
fn read_all(mut source: PipeSource) -> Result<Vec<u8>> {
    let mut buffer = Buffer::loose(C);
    let mut bytes = Vec::new();
    loop {
        let filled = source.fill(&mut buffer, C)?;
        assert_eq!(filled.len, buffer.len());
        bytes.extend_from_slice(buffer.data());
        if filled.end {
            assert_eq!(source.read, bytes.len() as u64);
            return Ok(bytes);
        }
    }
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n ^ ((n >> 8) * 31)) as u8).collect()
}

fn pipe(stop: &Stop) -> (PipeSource, File) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let source = PipeSource::from_fd(read, "-", PipeEnd::Closed, stop.clone());
    (source, write.into())
}

#[test]
fn short_writes_make_full_chunks_in_order() {
    for len in [0, 1, C - 1, C, C + 1, 3 * C, 10 * C + 77] {
        let data = noise(len);
        let (source, mut to) = pipe(&Stop::new());
        scope(|scope| {
            scope.spawn(|| {
                let mut rest = &data[..];
                for n in (1..).map(|n| n * 37 % 1500 + 1) {
                    let (now, then) = rest.split_at(rest.len().min(n));
                    to.write_all(now).unwrap();
                    rest = then;
                    if rest.is_empty() {
                        break;
                    }
                }
                drop(to);
            });
            assert!(read_all(source).unwrap() == data, "{len} bytes");
        });
    }
}

#[test]
fn what_a_slow_producer_has_written_does_not_wait_for_a_full_chunk() {
    let (mut source, mut to) = pipe(&Stop::new());
    let mut buffer = Buffer::loose(C);
    let mut fill = |most| source.fill(&mut buffer, most).unwrap();
    let some = |len| Filled { len, end: false };
    to.write_all(b"a line\n").unwrap();
    assert_eq!(fill(C), some(7));
    to.write_all(&noise(C)).unwrap();
    assert_eq!(fill(C - 7), some(C - 7), "full up to the next chunk");
    assert_eq!(fill(C), some(7));
    drop(to);
    assert_eq!(fill(C - 7), Filled { len: 0, end: true });
}

#[test]
fn a_reader_of_a_silent_producer_comes_back_when_it_is_stopped() {
    let stop = Stop::new();
    let (mut source, mut to) = pipe(&stop);
    to.write_all(b"half").unwrap();
    let filled = source.fill(&mut Buffer::loose(C), C).unwrap();
    assert_eq!(filled, Filled { len: 4, end: false });
    scope(|scope| {
        let reading = scope.spawn(move || source.fill(&mut Buffer::loose(C), C).unwrap_err());
        sleep(Duration::from_millis(50));
        stop.set();
        assert_eq!(reading.join().unwrap().kind, Kind::Lost);
    });
    drop(to);
}

#[test]
fn a_fifo_is_read_from_its_first_writer_on() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    let source = PipeSource::open(&path, PipeEnd::Closed, Stop::new()).unwrap();
    let data = noise(2 * C + 1);
    scope(|scope| {
        let reading = scope.spawn(|| read_all(source).unwrap());
        // Nobody has written so far, which is not the end.
        sleep(Duration::from_millis(300));
        assert!(!reading.is_finished());
        std::fs::write(&path, &data).unwrap();
        assert!(reading.join().unwrap() == data);
    });
}

#[test]
fn a_file_of_proc_arrives_whole() {
    let path = Path::new("/proc/self/status");
    let file = File::open(path).unwrap();
    assert!(has_unsaid_content(&file, &fstat(&file).unwrap()));
    let source = PipeSource::open(path, PipeEnd::Closed, Stop::new()).unwrap();
    let text = String::from_utf8(read_all(source).unwrap()).unwrap();
    assert!(text.starts_with("Name:") && text.ends_with('\n'));

    assert_eq!(sizes(&file), Sizes::MadeUp);
    if let Ok(file) = File::open("/sys/kernel/mm/transparent_hugepage/enabled") {
        assert_eq!(sizes(&file), Sizes::MadeUp);
    }

    let empty = tempfile::tempfile().unwrap();
    assert_eq!(sizes(&empty), Sizes::True);
    assert!(!has_unsaid_content(&empty, &fstat(&empty).unwrap()));
}

#[test]
fn a_size_ends_what_never_ends_and_an_end_before_it_is_an_error() {
    let zeros = |size| PipeSource::open(Path::new("/dev/zero"), PipeEnd::Size(size), Stop::new());
    for size in [0, 5, C, 2 * C, 2 * C + 5] {
        let read = read_all(zeros(size as u64).unwrap()).unwrap();
        assert!(read == vec![0; size], "{size}");
    }
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("short");
    std::fs::write(&path, b"12345").unwrap();
    let source = PipeSource::open(&path, PipeEnd::Size(6), Stop::new()).unwrap();
    let error = read_all(source).unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (Kind::Read, "ended after 5 of 6 bytes (--size)")
    );
}

#[test]
fn a_growing_file_is_followed_until_it_is_still() {
    const IDLE: Duration = Duration::from_secs(3);
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("log");
    let expected = [noise(C), b"moremoremore".to_vec()].concat();
    // Follows the file once; returns what was read, and the longest pause of the writer.
    let follow = || {
        std::fs::write(&path, noise(C)).unwrap();
        let end = PipeEnd::Still {
            idle: IDLE,
            enough: Stop::new(),
        };
        let (mut grown, mut longest) = (Instant::now(), Duration::ZERO);
        let source = PipeSource::open(&path, end, Stop::new()).unwrap();
        scope(|scope| {
            let reading = scope.spawn(|| read_all(source).unwrap());
            for _ in 0..3 {
                sleep(Duration::from_millis(300));
                let mut file = File::options().append(true).open(&path).unwrap();
                let before = Instant::now();
                file.write_all(b"more").unwrap();
                longest = longest.max(grown.elapsed());
                grown = before;
            }
            (reading.join().unwrap(), longest)
        })
    };
    // On a busy machine the writer may pause for too long, so that the reader is right to end.
    let is_whole = (0..5).any(|_| {
        let (read, longest) = follow();
        assert!(expected.starts_with(&read));
        let is_whole = read.len() == expected.len();
        assert!(is_whole || longest >= IDLE, "ended after {longest:?}");
        is_whole
    });
    assert!(is_whole, "the writer paused for too long, five times");
}

/// A file with some content that ends only by the user's word.
fn growing(dir: &Path) -> (PathBuf, PipeEnd, Stop) {
    let path = dir.join("log");
    std::fs::write(&path, b"all of it").unwrap();
    let enough = Stop::new();
    let end = PipeEnd::Still {
        idle: Duration::MAX,
        enough: enough.clone(),
    };
    (path, end, enough)
}

#[test]
fn a_growing_file_ends_when_somebody_says_enough_and_fails_when_it_shrinks() {
    let temp = tempfile::tempdir().unwrap();
    let (path, end, enough) = growing(temp.path());
    let open = || PipeSource::open(&path, end.clone(), Stop::new()).unwrap();
    let mut source = open();
    let mut buffer = Buffer::loose(C);
    source.fill(&mut buffer, 4).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(3)
        .unwrap();
    let error = source.fill(&mut buffer, 4).unwrap_err();
    assert_eq!(error.message, "was truncated while --follow read it");
    assert_eq!(error.kind, Kind::Changed);
    scope(|scope| {
        let reading = scope.spawn(|| read_all(open()).unwrap());
        sleep(Duration::from_millis(50));
        assert!(!reading.is_finished());
        enough.set();
        assert_eq!(reading.join().unwrap(), b"all");
    });
}

/// The read found nothing, then the last bytes were written, and then the user said so.
#[test]
fn after_the_users_word_a_growing_file_is_read_once_more() {
    let temp = tempfile::tempdir().unwrap();
    let (path, end, enough) = growing(temp.path());
    let mut source = PipeSource::open(&path, end, Stop::new()).unwrap();
    source.fill(&mut Buffer::loose(C), C).unwrap();
    enough.set();
    let is_at_end = |was_said| {
        let most = Some(Duration::ZERO);
        source.is_at_end(Duration::ZERO, was_said, most).unwrap()
    };
    assert!(!is_at_end(false));
    assert!(is_at_end(true));
}

#[test]
fn what_is_no_stream_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [temp.path(), &socket] {
        let error = PipeSource::open(path, PipeEnd::Closed, Stop::new())
            .err()
            .unwrap();
        assert_eq!(error.kind, Kind::Entry, "{error}");
    }
    let gone = temp.path().join("gone");
    let error = PipeSource::open(&gone, PipeEnd::Closed, Stop::new())
        .err()
        .unwrap();
    assert_eq!(error.kind, Kind::Read);
}

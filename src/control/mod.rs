//! The control connection: typed messages between two ends over any reader and writer, such as
//! ssh's stdin and stdout, a child's, or a pipe in memory. This module gives messages no meaning,
//! with one exception: in the errors of a server that a confined key started, it makes paths
//! relative to the key's directory.
//!
//! A separate task does the writing, so that a reader never waits for the far end to read. The
//! task's queue is bounded in messages and in bytes. A sender waits while the queue is full.

pub mod room;
pub mod stdio;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeroize::{Zeroize, Zeroizing};

use room::{Room, RoomShare};

use crate::error::reason_of;
use crate::wire::greeting::{self, Greeting};
use crate::wire::hello::{BadHello, Hello, LINE_MAX, MAGIC, NOISE_MAX};
use crate::wire::message::{BadMessage, HEADER_LEN, Message, parse_header};

/// Messages that may wait to be written.
const QUEUE: usize = 256;

/// Bytes of memory that queued messages may take. One larger message may be queued alone.
const QUEUE_BYTES: usize = 4 << 20;

/// A buffer that one message made larger than this is freed afterwards.
const BUFFER_KEPT: usize = 256 << 10;

/// Bytes that are collected into one write, so that many small messages cost one system call.
const BATCH_MAX: usize = 64 << 10;
/// Bytes; more than the message with the secret takes.
const SECRET_ROOM: usize = 1 << 10;

/// Time that the other end has to send its hello once the connection is open.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the control connection was closed")]
    Closed,
    #[error("the control connection failed: {}", reason_of(.0))]
    Io(#[from] io::Error),
    #[error("fastcp there sent an invalid message: {0}; please report this bug")]
    BadMessage(#[from] BadMessage),
    #[error("{0}")]
    BadHello(#[from] BadHello),
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
}

/// The reading half.
pub struct Incoming<R> {
    reader: R,
    /// Bytes that were read, of which those from `start` on are not yet parsed.
    buffer: Vec<u8>,
    start: usize,
    /// Messages parsed so far. The secret is one of the first two; later ones need no wiping.
    parsed: u8,
    heard: Arc<AtomicU64>,
    /// The last bytes before a mark that has not arrived yet.
    noise: Vec<u8>,
}

/// Most bytes of noise that are kept for an error message.
const NOISE_KEPT: usize = 1 << 10;

/// A handle to the writing half. Clones write to the same connection, one whole message at a
/// time.
#[derive(Clone)]
pub struct Outgoing {
    queue: mpsc::Sender<Word>,
    /// Messages that are written only while `queue` is empty.
    data: mpsc::Sender<Word>,
    room: Arc<Room>,
    /// Faults name paths below this directory relative to it.
    root: Arc<OnceLock<PathBuf>>,
}

/// A handle that does not keep the connection open.
pub struct WeakOutgoing(mpsc::WeakSender<Word>, Arc<Room>);

/// The first message of a far end.
// A login has one, so boxing the larger variant would save nothing.
#[allow(clippy::large_enum_variant)]
pub enum FirstMessage {
    Hello(Hello),
    Greeting(Greeting),
}
/// A queued message, and the sender that waits until it is written.
struct Word {
    message: Message,
    waits: Option<oneshot::Sender<()>>,
    /// The message's share of the queue's bytes.
    _share: RoomShare,
}

/// The writer has ended: the connection is lost or closing. Its reader reports the reason.
#[derive(Debug, thiserror::Error)]
#[error("the control connection is closed")]
pub struct WriterEnded;

impl<R: AsyncRead + Unpin> Incoming<R> {
    pub fn new(reader: R) -> Self {
        Incoming {
            reader,
            buffer: Vec::with_capacity(16 << 10),
            start: 0,
            parsed: 0,
            heard: Arc::default(),
            noise: Vec::new(),
        }
    }

    /// For an end that has read the first bytes itself, to find out what its peer wants.
    pub fn after(first: &[u8], reader: R) -> Self {
        let mut incoming = Incoming::new(reader);
        incoming.buffer.extend_from_slice(first);
        incoming
    }

    /// Takes back the reader when the connection stops being a control connection. None if more
    /// bytes were read than parsed.
    pub fn into_reader(self) -> Option<R> {
        (self.start == self.buffer.len()).then_some(self.reader)
    }

    /// Counts received bytes. While the count rises, the other end is alive.
    pub fn heard(&self) -> Arc<AtomicU64> {
        self.heard.clone()
    }

    /// The last bytes that arrived instead of a first message.
    pub fn noise(&self) -> Vec<u8> {
        [&self.noise, &self.buffer[self.start..]].concat()
    }

    /// Waits for the other end's hello. Skips anything that a login shell prints before it.
    pub async fn hello(&mut self, patience: Duration) -> Result<Hello, ControlError> {
        let (_, json) = self.first_words(patience, &[MAGIC]).await?;
        Ok(Hello::parse(&json)?)
    }

    /// Waits for the far end's hello, or for its request for a program.
    pub async fn first(&mut self, patience: Duration) -> Result<FirstMessage, ControlError> {
        let marks = [MAGIC, greeting::MARK.as_bytes()];
        match self.first_words(patience, &marks).await? {
            (0, json) => Ok(FirstMessage::Hello(Hello::parse(&json)?)),
            (_, line) => match Greeting::parse(&line) {
                Some(greeting) => Ok(FirstMessage::Greeting(greeting)),
                None => Err(BadHello::NotAHello.into()),
            },
        }
    }

    async fn first_words(
        &mut self,
        patience: Duration,
        marks: &[&[u8]],
    ) -> Result<(usize, Vec<u8>), ControlError> {
        let line = timeout(patience, self.find_line(marks)).await;
        line.unwrap_or(Err(ControlError::Silent(patience)))
    }

    /// Finds the next line with one of `marks`. Returns the mark's index and the rest of the
    /// line.
    async fn find_line(&mut self, marks: &[&[u8]]) -> Result<(usize, Vec<u8>), ControlError> {
        let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
        let mut noise = 0;
        loop {
            let unread = &self.buffer[self.start..];
            let found = marks
                .iter()
                .enumerate()
                .filter_map(|(which, mark)| Some((find(unread, mark)?, which)))
                .min();
            if let Some((at, which)) = found {
                let line = &unread[at + marks[which].len()..];
                if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
                    let line = line[..end].to_vec();
                    self.start += at + marks[which].len() + end + 1;
                    self.noise.clear();
                    return Ok((which, line));
                }
                if line.len() > LINE_MAX {
                    return Err(BadHello::NotAHello.into());
                }
            } else {
                // Keeps bytes that may begin a mark.
                let skip = unread.len().saturating_sub(longest - 1);
                noise += skip;
                self.noise.extend_from_slice(&unread[..skip]);
                let excess = self.noise.len().saturating_sub(NOISE_KEPT);
                self.noise.drain(..excess);
                self.start += skip;
                if noise > NOISE_MAX {
                    return Err(BadHello::NotAHello.into());
                }
            }
            self.fill().await?;
        }
    }

    /// The next message of a type that this version knows.
    ///
    /// # Errors
    /// `WriterEnded` at the end of the connection, even in the middle of a message.
    pub async fn next(&mut self) -> Result<Message, ControlError> {
        loop {
            while self.buffer.len() - self.start < HEADER_LEN {
                self.fill().await?;
            }
            let header = self.buffer[self.start..][..HEADER_LEN]
                .try_into()
                .expect("its length");
            let (number, len) = parse_header(header)?;
            let whole = HEADER_LEN + len as usize;
            while self.buffer.len() - self.start < whole {
                self.fill().await?;
            }
            let body = &mut self.buffer[self.start + HEADER_LEN..self.start + whole];
            let message = Message::decode(number, body);
            if matches!(message, Ok(Some(Message::Secret(_)))) {
                body.zeroize();
            }
            self.start += whole;
            self.parsed = self.parsed.saturating_add(1);
            if let Some(message) = message? {
                return Ok(message);
            }
        }
    }

    async fn fill(&mut self) -> Result<(), ControlError> {
        if self.start > 0 {
            let len = self.buffer.len();
            self.buffer.copy_within(self.start.., 0);
            // Moving the bytes must not leave a second copy: they may contain the secret.
            if self.parsed < 2 {
                self.buffer[len - self.start..].zeroize();
            }
            self.buffer.truncate(len - self.start);
            self.start = 0;
        }
        if self.buffer.is_empty() && self.buffer.capacity() > BUFFER_KEPT {
            self.buffer = Vec::new();
        }
        grow(&mut self.buffer, 16 << 10, self.parsed < 2);
        match self.reader.read_buf(&mut self.buffer).await? {
            0 => Err(ControlError::Closed),
            read => {
                self.heard.fetch_add(read as u64, Relaxed);
                Ok(())
            }
        }
    }
}

impl Outgoing {
    /// Starts the writing task. When all handles are gone, it closes the connection for writing
    /// and ends. Its result is the first error.
    pub fn start<W>(mut writer: W) -> (Outgoing, JoinHandle<io::Result<()>>)
    where
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (queue, mut messages) = mpsc::channel(QUEUE);
        let (data, mut pieces) = mpsc::channel::<Word>(1);
        let task = tokio::spawn(async move {
            let mut bytes = Vec::with_capacity(2 * BATCH_MAX);
            let mut waiting = Vec::new();
            // Both queues close at the same time.
            while let Some(word) = next(&mut messages, &mut pieces).await {
                let mut secret = word.encode(&mut bytes);
                waiting.extend(word.waits);
                while bytes.len() < BATCH_MAX && secret.is_none() {
                    let Ok(word) = messages.try_recv() else {
                        break;
                    };
                    secret = word.encode(&mut bytes);
                    waiting.extend(word.waits);
                }
                writer.write_all(&bytes).await?;
                if let Some(secret) = secret {
                    writer.write_all(&secret).await?;
                }
                writer.flush().await?;
                bytes.clear();
                bytes.shrink_to(2 * BATCH_MAX);
                for waits in waiting.drain(..) {
                    // The sender may have stopped waiting.
                    let _ = waits.send(());
                }
            }
            writer.shutdown().await
        });
        let room = Room::new(QUEUE_BYTES);
        let outgoing = Outgoing {
            queue,
            data,
            room,
            root: Arc::default(),
        };
        (outgoing, task)
    }

    /// From now on, faults name paths below `root` as a client does whose relative paths begin there.
    /// Only the first call has an effect.
    pub fn name_paths_from(&self, root: &Path) {
        self.root.get_or_init(|| root.to_owned());
    }

    fn told(&self, mut message: Message) -> Message {
        if let Some(root) = self.root.get() {
            message.each_fault(|fault| fault.name_path_from(root));
        }
        message
    }

    pub fn downgrade(&self) -> WeakOutgoing {
        WeakOutgoing(self.queue.downgrade(), self.room.clone())
    }

    /// Sends a piece of data after all other messages, including those queued while it waits.
    pub async fn send_data(&self, message: Message) -> Result<(), WriterEnded> {
        let word = self.word(message, None).await;
        self.data.send(word).await.map_err(|_| WriterEnded)
    }

    pub async fn send(&self, message: Message) -> Result<(), WriterEnded> {
        let word = self.word(message, None).await;
        self.queue.send(word).await.map_err(|_| WriterEnded)
    }

    /// Sends the last message and waits until it is written, so that the process may exit then.
    pub async fn send_through(&self, message: Message) -> Result<(), WriterEnded> {
        let (waits, written) = oneshot::channel();
        let word = self.word(message, Some(waits)).await;
        self.queue.send(word).await.map_err(|_| WriterEnded)?;
        written.await.map_err(|_| WriterEnded)
    }

    /// Sends a message that is useful only now, or drops it if the queue is full.
    pub fn try_send(&self, message: Message) {
        // A closed connection is reported by its reader.
        if let Some(word) = Word::at_once(&self.room, self.told(message)) {
            let _ = self.queue.try_send(word);
        }
    }

    /// For threads outside the runtime.
    pub fn send_blocking(&self, message: Message) -> Result<(), WriterEnded> {
        let message = self.told(message);
        let _share = self.room.take_blocking(message.weight());
        let word = Word {
            message,
            waits: None,
            _share,
        };
        self.queue.blocking_send(word).map_err(|_| WriterEnded)
    }

    async fn word(&self, message: Message, waits: Option<oneshot::Sender<()>>) -> Word {
        let message = self.told(message);
        let _share = self.room.take(message.weight()).await;
        Word {
            message,
            waits,
            _share,
        }
    }
}

impl Word {
    /// Appends the message to `bytes`. The secret is returned instead, in a buffer that never
    /// grows and is wiped when it is dropped.
    fn encode(&self, bytes: &mut Vec<u8>) -> Option<Zeroizing<Vec<u8>>> {
        if !matches!(self.message, Message::Secret(_)) {
            self.message.encode(bytes);
            return None;
        }
        let mut secret = Zeroizing::new(Vec::with_capacity(SECRET_ROOM));
        self.message.encode(&mut secret);
        Some(secret)
    }

    /// None if the queue has no room now.
    fn at_once(room: &Arc<Room>, message: Message) -> Option<Word> {
        let _share = room.try_take(message.weight())?;
        Some(Word {
            message,
            waits: None,
            _share,
        })
    }
}

/// Makes room for `more` bytes. A vector that grows by itself frees its old memory with the
/// content. Where that may be the secret, this function wipes it first.
fn grow(buffer: &mut Vec<u8>, more: usize, wipe: bool) {
    let (len, capacity) = (buffer.len(), buffer.capacity());
    if capacity - len >= more {
        return;
    }
    let wanted = (len + more).max(capacity + capacity / 2);
    let mut grown = Vec::with_capacity(wanted);
    grown.extend_from_slice(buffer);
    if wipe {
        buffer.zeroize();
    }
    *buffer = grown;
}

async fn next(
    messages: &mut mpsc::Receiver<Word>,
    pieces: &mut mpsc::Receiver<Word>,
) -> Option<Word> {
    tokio::select! {
        biased;
        message = messages.recv() => message,
        Some(piece) = pieces.recv() => Some(piece),
    }
}

/// Writes a hello, which precedes everything else on the connection.
pub async fn say_hello<W: AsyncWrite + Unpin>(writer: &mut W, hello: &Hello) -> io::Result<()> {
    writer.write_all(&hello.to_line()).await?;
    writer.flush().await
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

impl WeakOutgoing {
    /// As [`Outgoing::try_send`], if the connection is still open.
    pub fn try_send(&self, message: Message) {
        if let Some(queue) = self.0.upgrade()
            && let Some(word) = Word::at_once(&self.1, message)
        {
            let _ = queue.try_send(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_signal_does_not_keep_a_connection_open() {
        let (mut read, write) = tokio::io::duplex(1 << 10);
        let (outgoing, task) = Outgoing::start(write);
        let weak = outgoing.downgrade();
        weak.try_send(Message::Enough(()));
        drop(outgoing);
        let mut said = Vec::new();
        let minute = Duration::from_secs(60);
        let ended = timeout(minute, read.read_to_end(&mut said)).await;
        ended.expect("it is closed").expect("and was written");
        assert!(!said.is_empty());
        task.await.expect("no panic").expect("no error");
        weak.try_send(Message::Enough(()));
    }

    #[tokio::test]
    async fn a_hello_is_found_behind_the_noise_of_a_login_shell() {
        let hello = Hello::of_this_build(String::new(), 1, vec![], vec![]);
        let mut bytes = b"Welcome!\r\nfastcp\0\0fastcp".to_vec();
        bytes.extend(hello.to_line());
        Message::Credit(7).encode(&mut bytes);
        let mut incoming = Incoming::new(&bytes[..]);
        assert_eq!(incoming.hello(HELLO_TIMEOUT).await.unwrap(), hello);
        assert_eq!(incoming.next().await.unwrap(), Message::Credit(7));
        assert!(matches!(incoming.next().await, Err(ControlError::Closed)));
    }

    #[tokio::test]
    async fn a_far_side_without_a_program_says_so_behind_the_same_noise() {
        let mut bytes = b"Welcome!=fastcp= want Linux x86_64\n".to_vec();
        bytes.extend(Hello::of_this_build(String::new(), 1, vec![], vec![]).to_line());
        let mut incoming = Incoming::new(&bytes[..]);
        let first = incoming.first(HELLO_TIMEOUT).await.unwrap();
        assert!(matches!(
            first,
            FirstMessage::Greeting(Greeting::Want { .. })
        ));
        let second = incoming.first(HELLO_TIMEOUT).await.unwrap();
        assert!(matches!(second, FirstMessage::Hello(_)));
        let mut lying = Incoming::new(&b"=fastcp= give me everything\n"[..]);
        let refusal = lying.first(HELLO_TIMEOUT).await;
        assert!(matches!(refusal, Err(ControlError::BadHello(_))));
    }

    #[tokio::test]
    async fn endless_noise_is_given_up() {
        let noise = vec![b'x'; NOISE_MAX + 100];
        let refusal = Incoming::new(&noise[..]).hello(HELLO_TIMEOUT).await;
        assert!(matches!(
            refusal,
            Err(ControlError::BadHello(BadHello::NotAHello))
        ));
    }

    #[tokio::test]
    async fn an_oversized_message_is_refused_before_memory_is_taken() {
        let bytes = [7, 0, 0xff, 0xff, 0xff, 0xff];
        let refusal = Incoming::new(&bytes[..]).next().await;
        assert!(matches!(
            refusal,
            Err(ControlError::BadMessage(BadMessage::TooLong(u32::MAX)))
        ));
    }
}

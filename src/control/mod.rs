//! Typed messages between two ends over any reader and writer: ssh's stdin and stdout, a child's,
//! or a pipe in memory. Says nothing of what the messages mean.
//!
//! Writing goes through a task of its own, so that whoever reads never waits for the far end to
//! read. The queue to it is bounded in messages and in bytes; who says something waits for room.

mod room;
pub mod stdio;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeroize::{Zeroize, Zeroizing};

use room::{Room, Share};

use crate::wire::greeting::{self, Greeting};
use crate::wire::hello::{BadHello, Hello, LINE_MAX, MAGIC, NOISE_MAX};
use crate::wire::message::{BadMessage, HEADER_LEN, Message, parse_header};

/// Messages that wait to be written.
const QUEUE: usize = 256;

/// Bytes of memory that they take together, but for one message that is larger by itself.
const QUEUE_BYTES: usize = 4 << 20;

/// A buffer that has grown beyond this for one message is given back after it.
const BUFFER_KEPT: usize = 256 << 10;

/// Bytes that are gathered into one write, so that many small messages cost one system call.
const BATCH_MAX: usize = 64 << 10;
/// Bytes, more than the message with the secret has.
const SECRET_ROOM: usize = 1 << 10;

/// How long the other end may take to say hello once the connection stands.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the connection was closed")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer broke the protocol: {0}")]
    BadMessage(#[from] BadMessage),
    #[error("{0}")]
    BadHello(#[from] BadHello),
    #[error("the far end gave no answer within {} s", .0.as_secs())]
    Silent(Duration),
}

/// The reading half.
pub struct Incoming<R> {
    reader: R,
    /// Bytes that were read and not yet parsed stand at `start..`.
    buffer: Vec<u8>,
    start: usize,
    /// The secret is among the first two messages; what comes later needs no wiping.
    parsed: u8,
    heard: Arc<AtomicU64>,
    /// The last bytes that came before a mark which has not come yet.
    noise: Vec<u8>,
}

/// Most bytes of noise that are kept.
const NOISE_KEPT: usize = 1 << 10;

/// A handle to the writing half; clones write to the same connection, each message whole.
#[derive(Clone)]
pub struct Outgoing {
    queue: mpsc::Sender<Word>,
    /// What is said only while nothing else is to be.
    data: mpsc::Sender<Word>,
    room: Arc<Room>,
}

/// For whoever may outlive the connection: it does not keep it open.
pub struct WeakOutgoing(mpsc::WeakSender<Word>, Arc<Room>);

/// What a far side says first.
pub enum First {
    Hello(Hello),
    Greeting(Greeting),
}
/// A message, and who waits until it is written.
struct Word {
    message: Message,
    waits: Option<oneshot::Sender<()>>,
    /// What it takes of the queue's bytes.
    _share: Share,
}

/// The writer has ended: the connection is lost or closing, which its reader tells better.
#[derive(Debug, thiserror::Error)]
#[error("the control connection is closed")]
pub struct Closed;

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

    /// For an end whose first bytes were read to find out what it wants.
    pub fn after(first: &[u8], reader: R) -> Self {
        let mut incoming = Incoming::new(reader);
        incoming.buffer.extend_from_slice(first);
        incoming
    }

    /// For a connection that is no control from now on; None where more was read than was parsed.
    pub fn into_reader(self) -> Option<R> {
        (self.start == self.buffer.len()).then_some(self.reader)
    }

    /// Counts the bytes that come: while it goes up, the other end is there.
    pub fn heard(&self) -> Arc<AtomicU64> {
        self.heard.clone()
    }

    /// The end of what came instead of a first message.
    pub fn noise(&self) -> Vec<u8> {
        [&self.noise, &self.buffer[self.start..]].concat()
    }

    /// Waits for the other end's hello, skipping what its login shell prints before.
    pub async fn hello(&mut self, patience: Duration) -> Result<Hello, ControlError> {
        let (_, json) = self.first_words(patience, &[MAGIC]).await?;
        Ok(Hello::parse(&json)?)
    }

    /// Waits for what a far side says first: its hello, or that it wants a program.
    pub async fn first(&mut self, patience: Duration) -> Result<First, ControlError> {
        let marks = [MAGIC, greeting::MARK.as_bytes()];
        match self.first_words(patience, &marks).await? {
            (0, json) => Ok(First::Hello(Hello::parse(&json)?)),
            (_, line) => match Greeting::parse(&line) {
                Some(greeting) => Ok(First::Greeting(greeting)),
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

    /// The next line that begins with one of `marks`, without it: which one, and the rest.
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
                // Keep what may be the beginning of a mark.
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

    /// The next message that this version knows.
    ///
    /// # Errors
    /// `Closed` at the end of the connection, wherever in a message that falls.
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
            // What was moved leaves no second copy behind: it may be the secret.
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
    /// Starts the task that writes. It ends, and closes the connection for writing, when all
    /// handles are gone; its result is the first error.
    pub fn start<W>(mut writer: W) -> (Outgoing, JoinHandle<io::Result<()>>)
    where
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (queue, mut messages) = mpsc::channel(QUEUE);
        let (data, mut pieces) = mpsc::channel::<Word>(1);
        let task = tokio::spawn(async move {
            let mut bytes = Vec::with_capacity(2 * BATCH_MAX);
            let mut waiting = Vec::new();
            // Both queues close together.
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
                    // Nobody waits that long.
                    let _ = waits.send(());
                }
            }
            writer.shutdown().await
        });
        let room = Room::new(QUEUE_BYTES);
        (Outgoing { queue, data, room }, task)
    }

    pub fn downgrade(&self) -> WeakOutgoing {
        WeakOutgoing(self.queue.downgrade(), self.room.clone())
    }

    /// Says a piece of data, behind every other message that is to be said, those that come
    /// while it waits too.
    pub async fn send_data(&self, message: Message) -> Result<(), Closed> {
        let word = self.word(message, None).await;
        self.data.send(word).await.map_err(|_| Closed)
    }

    pub async fn send(&self, message: Message) -> Result<(), Closed> {
        let word = self.word(message, None).await;
        self.queue.send(word).await.map_err(|_| Closed)
    }

    /// Sends the last message, and waits until it is written: who ends then takes nothing with it.
    pub async fn send_through(&self, message: Message) -> Result<(), Closed> {
        let (waits, written) = oneshot::channel();
        let word = self.word(message, Some(waits)).await;
        self.queue.send(word).await.map_err(|_| Closed)?;
        written.await.map_err(|_| Closed)
    }

    /// Says something that is worth nothing later: dropped where much waits to be said already.
    pub fn try_send(&self, message: Message) {
        // Closed: its reader tells better.
        if let Some(word) = Word::at_once(&self.room, message) {
            let _ = self.queue.try_send(word);
        }
    }

    /// For threads.
    pub fn send_blocking(&self, message: Message) -> Result<(), Closed> {
        let _share = self.room.take_blocking(message.weight());
        let word = Word {
            message,
            waits: None,
            _share,
        };
        self.queue.blocking_send(word).map_err(|_| Closed)
    }

    async fn word(&self, message: Message, waits: Option<oneshot::Sender<()>>) -> Word {
        let _share = self.room.take(message.weight()).await;
        Word {
            message,
            waits,
            _share,
        }
    }
}

impl Word {
    /// Appends it to `bytes`. The secret is returned instead, in a buffer that never grows and is
    /// wiped when it is dropped.
    fn encode(&self, bytes: &mut Vec<u8>) -> Option<Zeroizing<Vec<u8>>> {
        if !matches!(self.message, Message::Secret(_)) {
            self.message.encode(bytes);
            return None;
        }
        let mut secret = Zeroizing::new(Vec::with_capacity(SECRET_ROOM));
        self.message.encode(&mut secret);
        Some(secret)
    }

    /// None where there is no room now.
    fn at_once(room: &Arc<Room>, message: Message) -> Option<Word> {
        let _share = room.try_take(message.weight())?;
        Some(Word {
            message,
            waits: None,
            _share,
        })
    }
}

/// Makes room for `more` bytes. A vector that grew by itself would leave what it held in memory
/// that it gives back: where that may be the secret, it is wiped.
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

/// Writes a hello; comes before anything else on the connection.
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
    /// As [`Outgoing::try_send`], if there is a connection still.
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
        assert!(matches!(first, First::Greeting(Greeting::Want { .. })));
        let second = incoming.first(HELLO_TIMEOUT).await.unwrap();
        assert!(matches!(second, First::Hello(_)));
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

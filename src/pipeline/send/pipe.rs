//! A pipe at the sender: a named pipe, a command's output, or a file that is read to its end. One
//! thread reads it in order and hands each part to the workers. No part can be read again, so its
//! frame is kept until it is acknowledged. The window limits the kept frames.

use std::sync::Arc;
use std::time::Duration;

use super::chunk_maker::SendWorker;
use super::encoder_control::Compression;
use super::plan::{Bytes, PipePart, Plan, SendPipe};
use super::read::is_zero;
use super::scheduler::Ended;
use crate::algorithms::{Compress, Method};
use crate::chunk::{Buffer, Chunk, ChunkKind, ChunkPlace};
use crate::digest::pipe::PipePiece;
use crate::digest::{self, Digest};
use crate::error::{Error, Kind, Result, Side};
use crate::pipeline::send::Sender;
use crate::pipeline::shutdown::PipeFinished;
use crate::pipeline::worker_time::Activity;
use crate::source::{PipeInput, PipeLimits, PipeOrigin};
use crate::transport::frames::{Frame, SealedChunk};
use crate::wire::message::{EntryEnd, Message};

impl Sender {
    /// Sends an announced pipe, from its first byte to its end.
    pub(super) fn pipe(&self, pipe: &Arc<SendPipe>, origin: &PipeOrigin) -> Result<(), Ended> {
        use std::os::unix::ffi::OsStrExt;
        let id = pipe.entry.id;
        // A command is started only if its output is wanted.
        if !self.scheduler.wait_wanted(id)? {
            return Ok(());
        }
        let path = pipe.path.as_os_str().as_bytes();
        if pipe.is_once {
            self.context.shutdown.set_once();
        } else if origin.spec().is_once() && !self.context.shutdown.begin_once(path) {
            self.report
                .fail_pipe(pipe, begun_before(Side::Source).at(&pipe.path));
            return Ok(());
        }
        self.context.progress.start_name(id, || path.to_vec());
        let tell = self.context.tell.clone();
        let on_line = move |line: &[u8]| tell(&String::from_utf8_lossy(line));
        let opened = origin.open(self.limits(), &pipe.stop, on_line);
        match opened.and_then(|reader| self.read_pipe(pipe, reader)) {
            Ok(None) => {}
            Ok(Some(length)) if self.scheduler.wait_digested(pipe, length)? => {
                let root = pipe.tree.lock().root(length);
                if origin.spec().is_once() {
                    let digest = root;
                    self.context
                        .shutdown
                        .read_once(path, PipeFinished { length, digest });
                }
                self.report.say(Message::EntryEnd(vec![EntryEnd {
                    entry: id,
                    length,
                    root,
                }]));
            }
            Ok(Some(_)) => {}
            // The thread that stopped it reports why.
            Err(_) if pipe.stop.is_set() => {}
            Err(error) => self.report.fail_pipe(pipe, error),
        }
        Ok(())
    }

    fn limits(&self) -> PipeLimits {
        let idle = self.context.options.follow_ms.map(Duration::from_millis);
        PipeLimits {
            size: self.context.options.size,
            follow: idle.map(|idle| (idle, self.enough.clone())),
        }
    }

    /// Returns the length; None if the copy ends first.
    fn read_pipe(&self, pipe: &Arc<SendPipe>, mut reader: PipeInput) -> Result<Option<u64>> {
        let mut offset = 0;
        // Waiting for a producer counts as waiting for a disk, since both can be the bottleneck.
        let mut clock = self.chunks.encoder_control.worker_time.begin();
        loop {
            clock.turn_to(Activity::Held);
            if self.scheduler.wait_part_room().is_err() {
                return Ok(None);
            }
            let Ok(mut buffer) = self.context.pool.take_blocking() else {
                return Ok(None);
            };
            // After a pause, reads to the end of the chunk, so that later chunks are subtrees
            // again.
            let into = (offset % self.context.chunk_size as u64) as usize;
            clock.turn_to(Activity::Disk);
            let filled = reader.fill(&mut buffer, self.context.chunk_size - into)?;
            clock.turn_to(Activity::Nothing);
            if filled.len > 0 {
                let part = PipePart::read(pipe, offset, filled.len, buffer);
                if self.scheduler.add_part(part).is_err() {
                    return Ok(None);
                }
            }
            offset += filled.len as u64;
            if filled.end {
                reader.finish(&pipe.stop)?;
                return Ok(Some(offset));
            }
        }
    }

    /// Encodes and seals a part. A part that already has a frame is sent again unchanged.
    pub(super) fn frame_for_part(
        &self,
        plan: &Plan,
        part: &PipePart,
        worker: &mut SendWorker<'_>,
    ) -> Option<Frame> {
        let mut bytes = part.bytes.lock();
        let buffer = match std::mem::replace(&mut *bytes, Bytes::Gone) {
            Bytes::Read(buffer) => buffer,
            Bytes::Framed(frame) => {
                *bytes = Bytes::Framed(frame.clone());
                return Some(Frame::Kept(frame));
            }
            Bytes::Gone => {
                let message = "a chunk failed verification, and a pipe cannot be read again; \
                               start the copy again";
                let error = Error::new(Kind::Verify, Side::Source, message);
                self.report.fail_pipe(&part.pipe, error.at(&part.pipe.path));
                return None;
            }
        };
        worker.clock.turn_to(Activity::Rest);
        let (chunk, digest) = self.digest_part(plan, part, buffer);
        let compression = match self.context.options.compress {
            // Zeros that test a link must fill it.
            Compress::Auto if part.pipe.is_test => Compression::Forced(Method::None),
            _ => self.chunks.encoder_control.next(),
        };
        let encoded = self
            .chunks
            .encode_part(&part.pipe, chunk, digest, compression, worker);
        worker.clock.turn_to(Activity::Rest);
        let frame = SealedChunk::seal(encoded, &self.sealer);
        if !self.keeps {
            return Some(Frame::Own(frame));
        }
        let frame = Arc::new(frame);
        *bytes = Bytes::Framed(frame.clone());
        Some(Frame::Kept(frame))
    }

    fn digest_part(&self, plan: &Plan, part: &PipePart, mut buffer: Buffer) -> (Chunk, Digest) {
        let pipe = &part.pipe;
        let data = buffer.data();
        let value = digest::of_range(data, part.offset, false);
        let piece = PipePiece::new(data, part.offset, value);
        let (kind, digest) = match is_zero(data) && !pipe.is_test {
            true => (ChunkKind::Zeros, digest::NONE),
            false => (ChunkKind::Range, value),
        };
        if kind == ChunkKind::Zeros {
            buffer.set_len(0);
        }
        let tree = &pipe.tree;
        tree.lock().add(piece);
        let _ = plan.digest.set(digest);
        self.scheduler.part_digested();
        let place = ChunkPlace {
            kind,
            chunk: plan.chunk,
            entry: pipe.entry.id,
            offset: part.offset,
            raw_len: part.len,
        };
        (Chunk { place, buffer }, digest)
    }
}

/// An earlier session of this copy started a pipe that cannot be read a second time.
pub(in crate::pipeline) fn begun_before(side: Side) -> Error {
    let message = "the connection was lost, and a pipe cannot be read again; start the copy again";
    Error::new(Kind::Read, side, message)
}

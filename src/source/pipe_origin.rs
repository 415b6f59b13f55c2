//! The pipe that one copy reads: its own pipe, or its share of a pipe that several copies read.

use std::sync::Arc;

use super::broadcast::{Broadcast, BroadcastTap};
use super::pipe::Filled;
use super::pipe_spec::{PipeLimits, PipeReader, PipeSpec};
use crate::chunk::Buffer;
use crate::error::Result;
use crate::pipe::Stop;

#[derive(Clone)]
pub enum PipeOrigin {
    Own(PipeSpec),
    /// Shared by several copies, and the index of this copy.
    Shared(Arc<Broadcast>, usize),
}

/// An open pipe, or an open share of one.
pub enum PipeInput {
    Own(PipeReader),
    Shared(BroadcastTap),
}

impl PipeOrigin {
    pub fn spec(&self) -> &PipeSpec {
        match self {
            PipeOrigin::Own(spec) => spec,
            PipeOrigin::Shared(broadcast, _) => broadcast.pipe_spec(),
        }
    }

    pub fn is_shared(&self) -> bool {
        matches!(self, PipeOrigin::Shared(..))
    }

    /// See [`PipeSpec::length`]; of a shared pipe before its first byte was read.
    pub fn length(&self) -> Option<u64> {
        match self {
            PipeOrigin::Own(spec) => spec.length(),
            PipeOrigin::Shared(broadcast, _) => broadcast.length(),
        }
    }

    /// See [`PipeSpec::open`].
    ///
    /// # Errors
    /// As there. Those of a shared pipe come when it is read.
    pub fn open(
        &self,
        limits: PipeLimits,
        stop: &Stop,
        on_line: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<PipeInput> {
        Ok(match self {
            PipeOrigin::Own(spec) => PipeInput::Own(spec.open(limits, stop, on_line)?),
            PipeOrigin::Shared(broadcast, copy) => {
                PipeInput::Shared(broadcast.tap(*copy, limits, stop, on_line))
            }
        })
    }
}

impl PipeInput {
    /// See [`PipeSource::fill`](super::pipe::PipeSource::fill). All copies that share a pipe get
    /// the same chunks.
    pub fn fill(&mut self, buffer: &mut Buffer, most: usize) -> Result<Filled> {
        match self {
            PipeInput::Own(reader) => reader.fill(buffer, most),
            PipeInput::Shared(tap) => tap.fill(buffer),
        }
    }

    /// See [`PipeReader::finish`].
    ///
    /// # Errors
    /// `Kind::Command` if the command that produces the pipe failed.
    pub fn finish(self, stop: &Stop) -> Result<()> {
        match self {
            PipeInput::Own(reader) => reader.finish(stop),
            PipeInput::Shared(tap) => tap.finish(),
        }
    }
}

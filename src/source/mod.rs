//! The source of a copy: operands, the walk over directories, and the reading of files. The
//! functions block, so callers run them on threads.

mod attributes;
pub mod broadcast;
mod count;
pub mod device;
pub mod found;
pub mod listed;
pub mod listed_place;
pub mod lookup;
pub mod operand;
pub mod operand_path;
pub mod pack;
mod part;
mod part_lookup;
pub mod pattern;
pub mod pipe;
pub mod pipe_origin;
pub mod pipe_spec;
pub mod read;
mod removal;
mod requested_paths;
pub mod scan;
pub mod walk;

pub use self::broadcast::Broadcast;
pub use self::operand_path::{may_answer, may_be_named, name_in_copy};
pub use self::pipe_origin::{PipeInput, PipeOrigin};
pub use self::pipe_spec::{PipeLimits, PipeReader, PipeSpec, is_pipe_at};
pub use count::{CountStart, Counter, SourceCount};
pub use found::{
    Changes, FoundFile, GREW, WRITTEN, has_grown, has_vanished, is_dangling, is_just_written,
    mark_young,
};
pub use listed::{ListBase, ListedOperands, ListedSource, RelativeOperands, find_list, read_list};
pub use listed_place::{ListedFile, ListedPlace};
pub use lookup::{LookupDirectory, Presence};
pub use operand::{Lookup, NamedSource, expand};
pub use pack::{PackRead, Packed, ToPack, Unpacked, read_pack};
pub use part::{PartOf, Parts};
pub use part_lookup::find_parts;
pub use pattern::is_pattern;
pub use read::{SourceFile, read_up_to};
pub use removal::{CopiedFile, SourceRemover};
pub use requested_paths::{RequestedPaths, requested_paths};
pub use scan::{count, scan};
pub use walk::{EntryNumbers, Step, SymlinkCounts, Walk, WalkOptions, root_id};

/// The data that a copy sends.
pub enum Sources {
    Files(Box<Walk>),
    /// A single pipe without a walk, such as standard input or a command.
    Pipe(PipeOrigin),
}

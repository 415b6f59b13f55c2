//! Limits on the contents of messages, besides the length of their bodies.

/// Operands of one copy. The receiver takes some 400 bytes for each, about 50 MB in all.
pub const ROOTS_MAX: usize = 1 << 17;

/// Spans in one list of an acknowledgement, and in the list of unused entry numbers.
pub const SPANS_MAX: usize = 1 << 17;

/// Entries in one message. Senders put in at most 256.
pub(super) const ENTRIES_MAX: usize = 1024;

/// Directories in one message about names. Senders put in at most 64.
pub(super) const DIRECTORIES_MAX: usize = 256;

/// Wants in one message, which answers a message of entries.
pub(super) const WANTS_MAX: usize = ENTRIES_MAX;

/// Most bytes of a body: enough for the roots of some 100,000 operands.
pub const MESSAGE_MAX: u32 = 8 << 20;

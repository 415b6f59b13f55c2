//! Limits on rules.

/// Most rules: in the command, and in a directory's files and those above it, even where these no
/// longer apply. A longer list takes too long for each entry.
pub const RULES_MAX: usize = 10_000;

/// Most bytes of all patterns in the command. They fit into a message.
pub(super) const RULES_BYTES_MAX: usize = 512 << 10;

/// Most bytes of a rule file in a directory.
pub const RULE_FILE_MAX: usize = 64 << 10;

/// Most bytes of the rule files in a directory and in those above it, with the paths of these.
pub(super) const FILES_BYTES_MAX: usize = 4 << 20;

/// Most rules that name a file: each is opened in every directory.
pub(super) const FILES_MAX: usize = 16;

/// The longest pattern, in bytes; that of a path on Linux.
pub(super) const PATTERN_MAX: usize = 4096;

//! Settings that fastcp has stored for a link, changed into those of another link.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cells::WRONG_STREAMS;

/// The file of stored settings below the cache directory.
fn file(cache: &Path) -> PathBuf {
    cache.join("fastcp").join("routes.json")
}

/// The settings that the last copy stored, with the number of connections of another link.
///
/// # Errors
/// If the copy stored none, because it was too short.
pub(crate) fn of_other_link(cache: &Path) -> Result<String, String> {
    let path = file(cache);
    let fault = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
    let text = fs::read_to_string(&path).map_err(|e| fault(&e))?;
    let mut memory: serde_json::Value = serde_json::from_str(&text).map_err(|e| fault(&e))?;
    let streams = memory
        .pointer_mut("/routes/0/1/streams")
        .filter(|streams| streams.is_u64())
        .ok_or_else(|| fault(&"no streams are remembered"))?;
    *streams = WRONG_STREAMS.into();
    Ok(memory.to_string())
}

/// # Errors
/// If the file cannot be written.
pub(crate) fn put(cache: &Path, memory: &str) -> Result<(), String> {
    let path = file(cache);
    let dir = path.parent().unwrap_or(cache);
    let written = fs::create_dir_all(dir).and_then(|()| fs::write(&path, memory));
    written.map_err(|e| format!("{}: {e}", path.display()))
}

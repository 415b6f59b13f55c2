//! The result of a copy in JSON, for the last event.

use serde_json::{Map, Value, json};

use crate::session::Outcome;

use super::errors::{EndHosts, cause};
use super::summary::{codecs, time, verdict};

/// Sizes are in bytes, times in seconds, shares from 0 to 1.
pub(super) fn summary(outcome: &Outcome, hosts: &EndHosts) -> Value {
    let counters = &outcome.counters;
    let data_seconds = time(outcome).as_secs_f64();
    let placed = counters.placed_bytes();
    let copied = placed.saturating_sub(counters.already_bytes);
    let chunks: Map<String, Value> = codecs(counters)
        .map(|(name, chunks)| (name.to_owned(), chunks.into()))
        .collect();
    let error = outcome.fatal.as_ref().map(|error| cause(error, hosts));
    json!({
        "exit_code": outcome.exit_code(),
        "error": error,
        "failed": outcome.failures.len() as u64 + outcome.more_failures.number,
        "files": counters.files,
        "special_files_skipped": counters.special,
        "files_not_linked": counters.unlinked,
        "files_grown": counters.grown,
        "symlinks_kept": counters.symlinks,
        "symlinks_outside": counters.symlinks_outside,
        "files_unchanged": counters.unchanged,
        "entries_left": counters.staying,
        "dry_run": outcome.dry_run,
        "check": outcome.check.then(|| json!({
            "same_files": counters.unchanged,
            "differing": counters.different,
            "missing": counters.missing,
            "extra": outcome.deleted.count,
            "metadata": counters.other_metadata,
        })),
        "would_send_files": counters.would_send_files,
        "would_send_bytes": counters.would_send_bytes,
        "deleted": outcome.deleted.count,
        "deleted_paths": outcome.deleted.paths,
        "removed_sources": outcome.removed.count,
        "removed_source_paths": outcome.removed.paths,
        "snapshot": outcome.snapshot.as_ref().map(|made| json!({
            "name": made.name,
            "linked": made.linked,
            "copied": made.copied,
            "removed": made.removed,
            "clock_is_behind": made.is_clock_behind,
        })),
        "not_kept": {
            "owners": counters.not_kept.owners,
            "groups": counters.not_kept.groups,
            "acls": counters.not_kept.acls,
            "xattrs": counters.not_kept.xattrs,
            "devices": counters.not_kept.devices,
            "specials": counters.not_kept.specials,
            "unread": counters.not_kept.unread,
            "links": counters.not_kept.links,
            "set_ids": counters.not_kept.set_ids,
        },
        "bytes": placed,
        "already_bytes": counters.already_bytes,
        "verified_bytes": counters.checked_bytes,
        "damaged_bytes": counters.damaged_bytes,
        "unsent_bytes": counters.unsent_bytes,
        "wire_bytes": counters.wire_bytes,
        "sent_again_bytes": counters.sent_again_bytes,
        "seconds": outcome.elapsed.as_secs_f64(),
        "waited_seconds": counters.waited.as_secs_f64(),
        "login_seconds": outcome.login.map(|login| login.as_secs_f64()),
        "data_seconds": data_seconds,
        "bytes_per_s": copied as f64 / data_seconds.max(1e-3),
        "chunks": chunks,
        "streams": counters.streams,
        "route": outcome.route,
        "logins_again": counters.logins_again,
        "verdict": verdict(outcome),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Kind, Side};
    use crate::ui::summary::tests::outcome;

    #[test]
    fn a_program_reads_what_a_person_is_told() {
        let (mut outcome, hosts) = (outcome(), EndHosts::default());
        let read = summary(&outcome, &hosts);
        assert_eq!(read["exit_code"], 0);
        assert_eq!(read["bytes"], 1_073_741_824);
        assert_eq!(read["chunks"]["zstd"], 1);
        assert_eq!(
            (&read["seconds"], &read["data_seconds"]),
            (&json!(5.0), &json!(4.7))
        );
        assert_eq!(
            (&read["login_seconds"], &read["waited_seconds"]),
            (&json!(0.3), &json!(0.0))
        );
        assert_eq!(read["verdict"]["limit"], "network");
        assert_eq!(read["verdict"]["shares"]["network"], 0.97);
        assert!(read["error"].is_null());
        outcome.data = std::time::Duration::from_millis(999);
        let read = summary(&outcome, &hosts);
        assert!(
            read["verdict"].is_null(),
            "less than a second of data tells nothing"
        );
        outcome.fatal = Some(Error::new(Kind::Lost, Side::Here, "a\nb \u{1b}[31m"));
        let text = summary(&outcome, &hosts).to_string();
        assert!(!text.contains('\n') && !text.contains('\u{1b}'), "{text}");
        let read: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read["exit_code"], 5);
        let dest = Some("db1".to_owned());
        let hosts = EndHosts {
            dest,
            ..EndHosts::default()
        };
        let full = Error::new(Kind::Write, Side::Dest, "no space left").at("/srv/x");
        outcome.fatal = Some(full);
        let read = summary(&outcome, &hosts);
        assert_eq!(read["error"], "db1:/srv/x: no space left");
    }
}

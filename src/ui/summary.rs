//! The summary of a copy, in a few lines.

use std::collections::BTreeMap;
use std::time::Duration;

use super::errors::EndHosts;
use super::tell::Verbosity;
use crate::algorithms::Codec;
use crate::error::{Error, Kind};
use crate::keep::NotKept;
use crate::progress::Snapshot;
use crate::session::{Outcome, Verdict};
use crate::units::{count, duration, harmless, plural, rate, size};

/// The summary, and what limited the copy. Empty if the session failed before it copied anything.
pub(super) fn lines(outcome: &Outcome, width: usize, tell: Verbosity) -> Vec<String> {
    let mut lines = figures(outcome, width, tell);
    if let Some(verdict) = verdict(outcome) {
        lines.extend(told(verdict, width));
    }
    lines
}

/// `3 files, 1.07 GB in 4.7 s, 229 MB/s (wire 430 MB, 2.5:1, zstd, 8 streams, direct)`. It
/// includes the data that was already there, repeated logins and the number of failures, if any.
/// Lines that are wider than `width` are broken after commas.
pub(super) fn figures(outcome: &Outcome, width: usize, tell: Verbosity) -> Vec<String> {
    let mut lines = Vec::new();
    let counters = &outcome.counters;
    if outcome.dry_run {
        let told = match outcome.check {
            true => checked(outcome),
            false => would_do(outcome),
        };
        lines.extend(outcome.fatal.is_none().then_some(told));
    } else if outcome.fatal.is_none() || counters.done_bytes > 0 || counters.files > 0 {
        lines.extend(copied(outcome, width, tell));
    }
    if counters.special > 0 {
        let what = plural(counters.special, "special file", "special files");
        lines.push(format!("{what} skipped (FIFOs, sockets, devices)"));
    }
    lines.extend(links_outside(outcome));
    if counters.staying > 0 {
        const OPTIONS: &str = "(--update, --existing or --ignore-existing)";
        let what = plural(counters.staying, "entry", "entries");
        lines.push(match outcome.dry_run {
            true => format!("{what} would not be copied {OPTIONS}"),
            false => format!("{what} not copied {OPTIONS}"),
        });
    }
    if outcome.deleted.count > 0 && !outcome.check {
        let what = plural(outcome.deleted.count, "entry", "entries");
        let done = if outcome.dry_run {
            "would be deleted"
        } else {
            "deleted"
        };
        lines.push(format!("{what} {done} at the destination"));
    }
    if outcome.removed.count > 0 {
        let what = plural(outcome.removed.count, "file", "files");
        lines.push(format!("{what} removed at the source"));
    }
    lines.extend(snapshot(outcome));
    if counters.grown > 0 {
        lines.push(match counters.grown {
            1 => "1 file grew: only its first part was copied".to_owned(),
            more => format!(
                "{} files grew: only their first parts were copied",
                count(more)
            ),
        });
    }
    lines.extend(failed(outcome));
    lines.iter().flat_map(|line| broken(line, width)).collect()
}

/// The line of a copy. If it is wider than `width`, the part in brackets gets its own line; that of a
/// short copy is shortened instead, unless the user wants all (`-v`).
fn copied(outcome: &Outcome, width: usize, tell: Verbosity) -> Vec<String> {
    let how = how(outcome);
    let parts = |(wording, least): (Wording, Worth)| -> Vec<String> {
        let parts = [done(outcome, wording), in_brackets(&how, least)];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.collect()
    };
    let forms = match is_short(outcome) && tell < Verbosity::All {
        true => &FORMS[..],
        false => &FORMS[..1],
    };
    let mut joined = forms.iter().map(|form| parts(*form).join(" "));
    match joined.find(|line| line.len() <= width) {
        Some(line) => vec![line],
        None => parts(FORMS[0]),
    }
}

/// `12 symlinks kept, 3 of them lead outside the tree (-L copies what they point to)`. Users of scp
/// expect files in their place.
fn links_outside(outcome: &Outcome) -> Option<String> {
    let (all, outside) = (outcome.counters.symlinks, outcome.counters.symlinks_outside);
    if outside == 0 || outcome.check || outcome.fatal.is_some() {
        return None;
    }
    let kept = if outcome.dry_run {
        "would be kept"
    } else {
        "kept"
    };
    let all_kept = format!("{} {kept}", plural(all, "symlink", "symlinks"));
    let which = match (all, outside) {
        (1, _) => "which leads".to_owned(),
        (_, 1) => "1 of them leads".to_owned(),
        _ => format!("{} of them lead", count(outside)),
    };
    let they = if outside == 1 {
        "it points"
    } else {
        "they point"
    };
    Some(format!(
        "{all_kept}, {which} outside the tree (-L copies what {they} to)"
    ))
}

/// What became of a snapshot.
fn snapshot(outcome: &Outcome) -> Vec<String> {
    let Some(made) = &outcome.snapshot else {
        return Vec::new();
    };
    let mut told = format!("snapshot {} is complete", harmless(&made.name));
    if made.linked > 0 {
        let what = plural(made.linked, "entry", "entries");
        told.push_str(&format!(", {what} linked to the snapshot before it"));
    }
    let mut lines = vec![told];
    if made.copied > 0 {
        let what = plural(made.copied, "unchanged file", "unchanged files");
        lines.push(format!(
            "{what} copied from the snapshot before it, because the file system allows no more \
             links"
        ));
    }
    if !made.removed.is_empty() {
        let what = plural(made.removed.len() as u64, "old snapshot", "old snapshots");
        lines.push(format!("{what} removed (--keep)"));
    }
    if made.is_clock_behind {
        lines.push(
            "no old snapshot was removed: an old one is dated later than the new one, so the clock \
             is or was wrong; correct the clock, or remove that snapshot by hand"
                .to_owned(),
        );
    }
    lines
}

/// If the data moved for a shorter time, the start-up limited the copy.
const TELLING: Duration = Duration::from_secs(1);

/// The bottleneck of the copy, if the copy was long enough to tell.
pub(super) fn verdict(outcome: &Outcome) -> Option<&Verdict> {
    outcome
        .verdict
        .as_ref()
        .filter(|_| !is_short(outcome) && !outcome.dry_run)
}

fn is_short(outcome: &Outcome) -> bool {
    outcome.data < TELLING
}

/// The bottleneck, followed by hints.
fn told(verdict: &Verdict, width: usize) -> Vec<String> {
    let hints = verdict.hints.iter().map(|hint| format!("  {hint}"));
    std::iter::once(verdict.sentence.clone())
        .chain(hints)
        .flat_map(|line| broken(&line, width))
        .collect()
}

/// Breaks `line` into as few lines of `width` columns as possible, after commas, or between words
/// if it has no comma. The line must be ASCII.
fn broken(line: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let between = if line.contains(", ") { ", " } else { " " };
    for part in line.split_inclusive(between) {
        match lines.last_mut() {
            Some(last) if last.len() + part.trim_end().len() <= width => last.push_str(part),
            _ => lines.push(part.to_owned()),
        }
    }
    for line in &mut lines {
        line.truncate(line.trim_end().len());
    }
    lines
}

/// A notice about hard links that were not kept.
pub(super) fn unlinked(names: u64) -> String {
    format!(
        "fastcp: too many hard links to remember: {} copied as separate files",
        plural(names, "hard link was", "hard links were")
    )
}

/// Notices about metadata that was not kept.
pub(super) fn not_kept(not_kept: &NotKept, hosts: &EndHosts) -> Vec<String> {
    let at = |host: &Option<String>| match host {
        Some(host) => (format!("{host}: "), "there"),
        None => (String::new(), "here"),
    };
    let (source, _) = at(&hosts.source);
    let (dest, there) = at(&hosts.dest);
    let other = "the file system or this user does not allow it";
    let not_root = match not_kept.as_root {
        0 => format!("fastcp is not root {there}"),
        _ => other.to_owned(),
    };
    let not_member = match not_kept.as_root {
        0 => "this user is not in them",
        _ => other,
    };
    let files = |count| plural(count, "file", "files");
    let kept = |what: &str, count, why: &str| {
        let line = format!(
            "fastcp: {dest}{what} of {} were not kept: {why}",
            files(count)
        );
        (count > 0).then_some(line)
    };
    let made = |one: &str, many: &str, count, why: &str| {
        let line = format!("fastcp: {dest}{} not made: {why}", plural(count, one, many));
        (count > 0).then_some(line)
    };
    let unread = not_kept.unread;
    let lines = [
        kept("owners", not_kept.owners, &not_root),
        kept("groups", not_kept.groups, not_member),
        kept("access control lists", not_kept.acls, other),
        kept("extended attributes", not_kept.xattrs, other),
        kept(
            "set-id bits",
            not_kept.set_ids,
            "only a copy with the same owner and group keeps them, and a confined key keeps none",
        ),
        (not_kept.links > 0).then(|| {
            let names = plural(not_kept.links, "hard link was", "hard links were");
            format!(
                "fastcp: {dest}{names} not kept: the file system could not link the files, so \
                 they are separate files"
            )
        }),
        made("device was", "devices were", not_kept.devices, &not_root),
        made(
            "FIFO or socket was",
            "FIFOs or sockets were",
            not_kept.specials,
            other,
        ),
        (unread > 0).then(|| {
            let what = "extended attributes of";
            format!("fastcp: {source}{what} {} could not be read", files(unread))
        }),
    ];
    lines
        .into_iter()
        .flatten()
        .map(|line| harmless(&line))
        .collect()
}

/// A notice about names that `--digests` could not list.
pub(super) fn unlisted(names: u64) -> String {
    format!(
        "fastcp: --digests: left out of the list: {} (not UTF-8, or with the character U+FFFD)",
        plural(names, "name", "names")
    )
}

/// `dry run: 3 files (1.07 GB) would be sent, 7 unchanged, in 0.3 s (direct)`
fn would_do(outcome: &Outcome) -> String {
    let counters = &outcome.counters;
    let files = plural(counters.would_send_files, "file", "files");
    let bytes = size(counters.would_send_bytes);
    let mut line = format!("dry run: {files} ({bytes}) would be sent");
    if counters.unchanged > 0 {
        line += &format!(", {} unchanged", count(counters.unchanged));
    }
    line += &format!(", in {}", duration(outcome.elapsed));
    if !outcome.route.is_empty() {
        line += &format!(" ({})", outcome.route);
    }
    line
}

/// `check: 41 files have the same content; 2 entries differ, 1 is missing, 3 are extra, in 0.3 s`
fn checked(outcome: &Outcome) -> String {
    let counters = &outcome.counters;
    let be = |number: u64| {
        let verb = if number == 1 { "is" } else { "are" };
        format!("{} {verb}", count(number))
    };
    let same = plural(counters.unchanged, "file has", "files have");
    let differ = plural(counters.different, "entry differs", "entries differ");
    let metadata = plural(counters.other_metadata, "entry", "entries");
    let found = [
        (counters.different, differ),
        (counters.missing, be(counters.missing) + " missing"),
        (outcome.deleted.count, be(outcome.deleted.count) + " extra"),
        (
            counters.other_metadata,
            format!("the metadata of {metadata} differs"),
        ),
    ];
    let found: Vec<String> = found
        .into_iter()
        .filter_map(|(number, told)| (number > 0).then_some(told))
        .collect();
    let mut line = format!("check: {same} the same content");
    if !found.is_empty() {
        line += &format!("; {}", found.join(", "));
    }
    line += &format!(", in {}", duration(outcome.elapsed));
    if !outcome.route.is_empty() {
        line += &format!(" ({})", outcome.route);
    }
    line
}

/// How much of the line of a copy is told.
#[derive(Clone, Copy, PartialEq)]
enum Wording {
    Full,
    /// Without the reason why data was not sent, and without a rate if no data was sent.
    Brief,
}

fn done(outcome: &Outcome, wording: Wording) -> String {
    let counters = &outcome.counters;
    let mut line = plural(counters.files, "file", "files");
    if counters.unchanged > 0 {
        line += &format!(" ({} unchanged)", count(counters.unchanged));
    }
    line += &format!(", {}", size(counters.placed_bytes()));
    let changed = counters.again_bytes.saturating_sub(counters.damaged_bytes);
    if changed > 0 {
        line += &format!(" ({} sent again: the source changed)", size(changed));
    }
    if counters.unsent_bytes > 0 {
        let unsent = size(counters.unsent_bytes);
        line += &match wording {
            Wording::Full => format!(" ({unsent} not sent: equal at the destination, or zeros)"),
            Wording::Brief => format!(" ({unsent} not sent)"),
        };
    }
    if counters.already_bytes > 0 {
        let already = size(counters.already_bytes);
        line += &match counters.checked_bytes {
            checked if checked >= counters.already_bytes => {
                format!(", {already} of it already there and verified,")
            }
            0 => format!(", {already} of it already there and not read again,"),
            some => format!(", {already} of it already there ({} verified),", size(some)),
        };
    }
    if counters.damaged_bytes > 0 {
        let damaged = size(counters.damaged_bytes);
        let comma = if line.ends_with(',') { "" } else { "," };
        line += &format!("{comma} {damaged} were damaged at the destination and sent again,");
    }
    let time = time(outcome);
    line += &format!(" in {}", duration(time));
    if let Some(login) = outcome.login.filter(|login| *login > time / LOGIN_PART) {
        line += &format!(" after {} of login", duration(login));
    }
    let copied = counters
        .placed_bytes()
        .saturating_sub(counters.already_bytes);
    let is_telling = wording == Wording::Full || copied > counters.unsent_bytes;
    if copied > 0 && is_telling {
        line += &format!(", {}", rate(copied as f64 / time.as_secs_f64().max(1e-3)));
    }
    line
}

/// The login time is shown if it exceeds the data time divided by this.
const LOGIN_PART: u32 = 10;

/// The time that data was moving, or the whole time without the login if none moved.
pub(super) fn time(outcome: &Outcome) -> Duration {
    match outcome.data {
        Duration::ZERO => outcome
            .elapsed
            .saturating_sub(outcome.login.unwrap_or_default()),
        data => data,
    }
}

/// True if the data went through an ssh login and not through separate connections.
fn is_inside_login(route: &str) -> bool {
    ["inside the ssh login", "through this host"]
        .iter()
        .any(|it| route.starts_with(it))
}

/// How much the reader needs to know a fact about a short copy, from least to most.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Worth {
    Figure,
    Route,
    Trouble,
}

/// The forms of a short copy's line. The first one that fits is shown.
const FORMS: [(Wording, Worth); 5] = [
    (Wording::Full, Worth::Figure),
    (Wording::Full, Worth::Route),
    (Wording::Full, Worth::Trouble),
    (Wording::Brief, Worth::Route),
    (Wording::Brief, Worth::Trouble),
];

/// The facts that are worth at least this much, in brackets; empty without any.
fn in_brackets(facts: &[(Worth, String)], least: Worth) -> String {
    let facts = facts.iter().filter(|(worth, _)| *worth >= least);
    let facts: Vec<_> = facts.map(|(_, fact)| fact.as_str()).collect();
    match facts.is_empty() {
        true => String::new(),
        false => format!("({})", facts.join(", ")),
    }
}

/// The facts in brackets.
fn how(outcome: &Outcome) -> Vec<(Worth, String)> {
    let counters = &outcome.counters;
    let mut how = Vec::new();
    if counters.wire_bytes > 0 {
        how.push((Worth::Figure, format!("wire {}", size(counters.wire_bytes))));
        let ratio = counters.moved_bytes as f64 / counters.wire_bytes as f64;
        // For zeros and for a few small files, headers are larger than the content.
        if ratio >= 0.95 {
            how.push((Worth::Figure, format!("{ratio:.1}:1")));
        }
        if counters.sent_again_bytes > 0 {
            let again = size(counters.sent_again_bytes);
            how.push((Worth::Trouble, format!("{again} sent again")));
        }
    }
    let codecs: Vec<_> = codecs(counters).map(|(name, _)| name).collect();
    if !codecs.is_empty() {
        how.push((Worth::Figure, codecs.join("+")));
    }
    if counters.streams > 0 && !is_inside_login(&outcome.route) {
        let streams = plural(counters.streams.into(), "stream", "streams");
        how.push((Worth::Figure, streams));
    }
    if !outcome.route.is_empty() {
        how.push((Worth::Route, outcome.route.clone()));
    }
    let again = match counters.logins_again {
        0 => return how,
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        times => format!("{times} times"),
    };
    how.push((Worth::Trouble, format!("logged in again {again}")));
    how
}

/// Names of the codecs that were used, and the number of chunks of each.
pub(super) fn codecs(counters: &Snapshot) -> impl Iterator<Item = (&'static str, u64)> {
    (0u8..)
        .zip(counters.codec_chunks)
        .filter(|(_, chunks)| *chunks > 0)
        .filter_map(|(number, chunks)| Some((name(Codec::from_number(number)?), chunks)))
}

/// As in `--compress`.
fn name(codec: Codec) -> &'static str {
    match codec {
        Codec::None => "none",
        Codec::Lz4 => "lz4",
        Codec::Zstd => "zstd",
        Codec::Gzip => "gzip",
        Codec::Lzma => "lzma",
    }
}

/// `2 failed: 1 missing or unreadable, 1 changed while being copied`, ordered by exit code.
fn failed(outcome: &Outcome) -> Option<String> {
    let mut codes = BTreeMap::<i32, (Kind, u64)>::new();
    for Error { kind, .. } in &outcome.failures {
        codes.entry(kind.exit_code()).or_insert((*kind, 0)).1 += 1;
    }
    let more = outcome.more_failures.number;
    let all = outcome.failures.len() as u64 + more;
    let listed = codes
        .values()
        .map(|(kind, number)| format!("{} {}", count(*number), words(*kind)))
        .chain((more > 0).then(|| format!("{} more", count(more))))
        .collect::<Vec<_>>()
        .join(", ");
    (all > 0).then(|| format!("{} failed: {listed}", count(all)))
}

/// Describes failed entries of this kind; fits one entry and many.
pub(super) fn words(kind: Kind) -> &'static str {
    match kind {
        Kind::Entry => "cannot be copied",
        Kind::Usage => "not possible with these options",
        Kind::Connect => "no connection",
        Kind::FarEnd => "not possible on a host",
        Kind::Lost => "connection lost",
        Kind::Breach => "ended by an internal error",
        Kind::Verify => "failed verification",
        Kind::Changed => "changed while being copied",
        Kind::Write => "could not be written",
        Kind::Read => "missing or unreadable",
        Kind::Command => "command failed",
        Kind::Refused => "refused",
        Kind::Busy => "in use by another fastcp",
        Kind::Signal(_) => "interrupted",
        Kind::Stopped => "stopped at the set time",
        Kind::Grew => "grew during the copy",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::error::Side;
    use crate::progress::Progress;
    use crate::session::{Bottleneck, Shares};

    pub(crate) fn outcome() -> Outcome {
        let progress = Progress::default();
        progress.add_files(3);
        progress.add_bytes(1_073_741_824);
        progress.add_frame(Codec::Zstd.number(), 1_073_741_824, 430_000_000);
        progress.set_streams(8);
        Outcome {
            fatal: None,
            failures: Vec::new(),
            more_failures: Default::default(),
            deleted: Default::default(),
            removed: Default::default(),
            snapshot: None,
            dry_run: false,
            check: false,
            counters: progress.snapshot(),
            elapsed: Duration::from_millis(5000),
            login: Some(Duration::from_millis(300)),
            data: Duration::from_millis(4700),
            route: "direct".to_owned(),
            unlisted: 0,
            verdict: Some(Verdict {
                limit: Some(Bottleneck::Network),
                shares: Shares {
                    network: 0.97,
                    ..Shares::default()
                },
                sentence: "limited by: the network, 97 % busy (source 12 %, compression 61 %)"
                    .to_owned(),
                hints: vec!["a word of advice that is so long that it takes two lines".to_owned()],
            }),
            slowest: Vec::new(),
        }
    }

    #[test]
    fn the_summary_is_one_line_and_failures_add_another() {
        let mut outcome = outcome();
        outcome.verdict = None;
        assert_eq!(
            lines(&outcome, usize::MAX, Verbosity::Each),
            ["3 files, 1.07 GB in 4.7 s, 228 MB/s (wire 430 MB, 2.5:1, zstd, 8 streams, direct)"]
        );
        assert_eq!(
            lines(&outcome, 80, Verbosity::Each),
            [
                "3 files, 1.07 GB in 4.7 s, 228 MB/s",
                "(wire 430 MB, 2.5:1, zstd, 8 streams, direct)"
            ]
        );
        assert_eq!(
            lines(&outcome, 40, Verbosity::Each),
            [
                "3 files, 1.07 GB in 4.7 s, 228 MB/s",
                "(wire 430 MB, 2.5:1, zstd, 8 streams,",
                "direct)"
            ]
        );
        let failure = |kind| Error::new(kind, Side::Source, "x");
        outcome.failures = vec![
            failure(Kind::Read),
            failure(Kind::Changed),
            failure(Kind::Read),
        ];
        outcome.more_failures.number = 1000;
        assert_eq!(
            lines(&outcome, usize::MAX, Verbosity::Each)[1],
            "1,003 failed: 1 changed while being copied, 2 missing or unreadable, 1,000 more"
        );
    }

    #[test]
    fn links_are_told_where_some_lead_out_of_the_tree() {
        let mut outcome = outcome();
        outcome.verdict = None;
        let mut told = |all, outside| {
            outcome.counters.symlinks = all;
            outcome.counters.symlinks_outside = outside;
            lines(&outcome, usize::MAX, Verbosity::Each).get(1).cloned()
        };
        assert_eq!(told(12, 0), None);
        for (all, outside, line) in [
            (
                12,
                3,
                "12 symlinks kept, 3 of them lead outside the tree (-L copies what they point to)",
            ),
            (
                1200,
                1,
                "1,200 symlinks kept, 1 of them leads outside the tree (-L copies what it points to)",
            ),
            (
                1,
                1,
                "1 symlink kept, which leads outside the tree (-L copies what it points to)",
            ),
        ] {
            assert_eq!(told(all, outside).as_deref(), Some(line));
        }
        outcome.dry_run = true;
        let told = lines(&outcome, usize::MAX, Verbosity::Each);
        assert!(told[1].starts_with("1 symlink would be kept, which leads"));
        outcome.check = true;
        assert_eq!(lines(&outcome, usize::MAX, Verbosity::Each).len(), 1);
        // The walk may have counted links that were not copied.
        (outcome.dry_run, outcome.check) = (false, false);
        outcome.fatal = Some(Error::new(Kind::Write, Side::Dest, "x"));
        assert_eq!(lines(&outcome, usize::MAX, Verbosity::Each).len(), 1);
    }

    #[test]
    fn files_that_grew_are_counted() {
        let mut outcome = outcome();
        outcome.verdict = None;
        for (grown, told) in [
            (1, "1 file grew: only its first part was copied"),
            (1200, "1,200 files grew: only their first parts were copied"),
        ] {
            outcome.counters.grown = grown;
            assert_eq!(lines(&outcome, 80, Verbosity::Each)[2], told);
            assert_eq!(outcome.exit_code(), 14);
        }
        outcome.failures = vec![Error::new(Kind::Read, Side::Source, "x")];
        assert_eq!(outcome.exit_code(), 9);
    }

    #[test]
    fn a_dry_run_tells_what_would_be_done() {
        let mut outcome = outcome();
        outcome.dry_run = true;
        outcome.counters.would_send_files = 1;
        outcome.counters.would_send_bytes = 1000;
        outcome.counters.unchanged = 2000;
        outcome.deleted.count = 2;
        assert_eq!(
            lines(&outcome, usize::MAX, Verbosity::Each),
            [
                "dry run: 1 file (1.00 KB) would be sent, 2,000 unchanged, in 5.0 s (direct)",
                "2 entries would be deleted at the destination"
            ]
        );
    }

    #[test]
    fn what_was_there_before_is_told_and_makes_nothing_look_fast() {
        let mut outcome = outcome();
        outcome.verdict = None;
        outcome.counters.already_bytes = 600_000_000;
        outcome.counters.checked_bytes = 603_000_000;
        outcome.counters.damaged_bytes = 3_000_000;
        outcome.counters.unsent_bytes = 1_000_000;
        outcome.counters.logins_again = 1;
        assert_eq!(
            lines(&outcome, 80, Verbosity::Each),
            [
                "3 files, 1.07 GB (1.00 MB not sent: equal at the destination, or zeros),",
                "600 MB of it already there and verified,",
                "3.00 MB were damaged at the destination and sent again, in 4.7 s, 101 MB/s",
                "(wire 430 MB, 2.5:1, zstd, 8 streams, direct, logged in again once)"
            ]
        );
        outcome.counters.damaged_bytes = 0;
        outcome.counters.checked_bytes = 0;
        let trusted = lines(&outcome, usize::MAX, Verbosity::Each).remove(0);
        assert!(trusted.contains("600 MB of it already there and not read again, in"));
        outcome.counters.damaged_bytes = 3_000_000;
        outcome.counters.already_bytes = 0;
        let damaged = lines(&outcome, usize::MAX, Verbosity::Each).remove(0);
        assert!(damaged.contains(", 3.00 MB were damaged at the destination and sent again, in"));
        assert!(!damaged.contains(",,"));
    }

    #[test]
    fn what_came_twice_counts_once() {
        let mut outcome = outcome();
        outcome.verdict = None;
        outcome.counters.done_bytes += 300_000_000;
        outcome.counters.again_bytes = 300_000_000;
        assert_eq!(
            lines(&outcome, 80, Verbosity::Each)[0],
            "3 files, 1.07 GB (300 MB sent again: the source changed) in 4.7 s, 228 MB/s"
        );
    }

    #[test]
    fn what_limited_the_copy_comes_last_with_what_would_help() {
        let mut outcome = outcome();
        assert_eq!(
            lines(&outcome, 50, Verbosity::Each)[2..],
            [
                "limited by: the network, 97 % busy (source 12 %,",
                "compression 61 %)",
                "  a word of advice that is so long that it takes",
                "two lines",
            ]
        );
        outcome.data = Duration::from_millis(900);
        assert_eq!(
            lines(&outcome, usize::MAX, Verbosity::Each).len(),
            1,
            "too short to say"
        );
    }

    #[test]
    fn the_login_is_apart_and_what_goes_inside_it_is_no_stream() {
        let mut outcome = outcome();
        outcome.login = Some(Duration::from_secs(4));
        outcome.data = Duration::from_millis(250);
        outcome.counters.done_bytes = 1_000_000;
        outcome.route = "inside the ssh login".to_owned();
        assert_eq!(
            lines(&outcome, 80, Verbosity::All),
            [
                "3 files, 1.00 MB in 250 ms after 4.0 s of login, 4.00 MB/s",
                "(wire 430 MB, 2.5:1, zstd, inside the ssh login)"
            ]
        );
    }

    #[test]
    fn a_short_copy_has_one_line_where_its_route_and_its_troubles_fit() {
        let mut outcome = outcome();
        (outcome.login, outcome.data) = (None, Duration::from_millis(470));
        let at = |outcome: &Outcome, width| lines(outcome, width, Verbosity::Each);
        let done = "3 files, 1.07 GB in 470 ms, 2.28 GB/s";
        assert_eq!(at(&outcome, 80), [format!("{done} (direct)")]);
        assert_eq!(at(&outcome, 40), [done]);
        let all = format!("{done} (wire 430 MB, 2.5:1, zstd, 8 streams, direct)");
        assert_eq!(at(&outcome, 200), [all]);
        assert_eq!(lines(&outcome, 80, Verbosity::All).len(), 2, "-v");
        outcome.counters.logins_again = 1;
        let again = format!("{done} (direct, logged in again once)");
        assert_eq!(at(&outcome, 80), [again]);
        assert_eq!(at(&outcome, 50).len(), 3);
        // A second run that sends nothing.
        outcome.counters.logins_again = 0;
        outcome.counters.unchanged = 3;
        outcome.counters.unsent_bytes = outcome.counters.done_bytes;
        let unsent = "3 files (3 unchanged), 1.07 GB (1.07 GB not sent) in 470 ms (direct)";
        assert_eq!(at(&outcome, 80), [unsent]);
    }

    #[test]
    fn what_was_not_there_is_not_told() {
        let mut outcome = outcome();
        outcome.verdict = None;
        outcome.counters = Progress::default().snapshot();
        outcome.route.clear();
        outcome.data = Duration::ZERO;
        assert_eq!(
            lines(&outcome, usize::MAX, Verbosity::Each),
            ["0 files, 0 B in 4.7 s"]
        );
        outcome.fatal = Some(Error::new(Kind::Connect, Side::Here, "x"));
        assert!(lines(&outcome, usize::MAX, Verbosity::Each).is_empty());
    }
}

//! Memory that decoded messages take, in bytes. Queues of messages are bounded by it.

use crate::digest::Digest;
use crate::earlier::EarlierPath;
use crate::itemize::ItemizedEntry;
use crate::manifest::{Entry, NAME_MAX, Root};
use crate::mapping::Mapping;
use crate::report::event::FileDone;
use crate::selection::Rule;

use super::{
    ByteRange, ConnectionFacts, DirectoryNames, ExtraEntries, FileDigest, Leftover, ListedDigest,
    Message, NamesSource, NumberRanges, Open, OwnEntry, OwnNames, Role, Roots, SumsFound,
    UncountedRoots, VerifiedFile, Want,
};

impl Message {
    /// Approximate bytes of memory.
    pub fn weight(&self) -> usize {
        let inside = match self {
            Message::Open(open) => weight_of_open(open),
            Message::Listen(listen) | Message::Dial(listen) => {
                listen.addresses.iter().map(|one| text(one.len())).sum()
            }
            Message::Entries(entries) | Message::Ask(entries) => {
                entries.iter().map(entry_weight).sum()
            }
            Message::Want(wants) => wants.iter().map(weight_of_want).sum(),
            Message::Ack(ack) => {
                let lists = [&ack.chunks, &ack.entries, &ack.failed];
                lists.map(NumberRanges::len).iter().sum::<usize>() * size_of::<ByteRange>()
            }
            Message::Relative(terms) => match &terms.names {
                NamesSource::File { path, .. } => path.len(),
                NamesSource::Operands | NamesSource::Sent => 0,
            },
            Message::Map(terms) => terms.maps.iter().map(weight_of_map).sum(),
            Message::RootSpaces(spaces) => size_of_val(&spaces.each[..]),
            Message::FileNames(names) => names.names.len(),
            Message::Differs(differing) => differing.pages.len(),
            Message::Missing(missing) => size_of_val(&missing.spans[..]),
            Message::Nack(chunks) => chunks.len() * size_of::<u64>(),
            Message::Digests((_, digests)) => digests.len() * size_of::<Digest>(),
            Message::EntryEnd(ends) => size_of_val(&ends[..]),
            Message::Roots(Roots { roots, .. }) | Message::Uncounted(UncountedRoots { roots }) => {
                roots.len() * (size_of::<Root>() + NAME_MAX)
            }
            Message::Landed(landed) => texts(&landed.names),
            Message::AllSent(all) => size_of_val(&all.unused[..]),
            Message::Fault(fault)
            | Message::Abort(fault)
            | Message::Vanished(fault)
            | Message::Grew(fault) => fault.path.len() + fault.text.len(),
            Message::Data(data) => data.bytes.len(),
            Message::Heartbeat(heartbeat) => heartbeat.streams.len() * size_of::<ConnectionFacts>(),
            Message::Tune(tune) => tune.reason.len(),
            Message::Activity(activity) => size_of_val(&activity.connections[..]),
            Message::Relay(relay) => relay.body.len(),
            Message::Account(account) => {
                let names: usize = account.names.iter().map(|name| text(name.len())).sum();
                names + account.cause.len()
            }
            Message::FileDigests(files) => {
                let one = |file: &FileDigest| size_of::<FileDigest>() + file.path.len();
                files.iter().map(one).sum()
            }
            Message::ListedDigests(listed) => listed.files.iter().map(ListedDigest::weight).sum(),
            Message::VerifiedFiles(found) => found.files.iter().map(VerifiedFile::weight).sum(),
            Message::Leftovers(found) => found.files.iter().map(Leftover::weight).sum(),
            Message::DirectorySums(sums) => size_of_val(&sums[..]),
            Message::EntrySums(sums) => sums.sums.len(),
            Message::Summed(answer) => match &answer.found {
                SumsFound::Some(bits) => bits.len(),
                SumsFound::Same | SumsFound::Differ | SumsFound::New => 0,
            },
            Message::Names(directories) => directories.iter().map(weight_of_names).sum(),
            Message::OwnNames(directories) => directories.iter().map(weight_of_own_names).sum(),
            Message::Extra(ExtraEntries::Some(entries)) => size_of_val(&entries[..]),
            Message::Extra(ExtraEntries::Unknown) => 0,
            Message::SourcePlaces(places) => size_of_val(&places.0[..]),
            Message::Deleted(deleted) => texts(&deleted.paths),
            Message::Snapshot(report) => report.name.len() + texts(&report.removed),
            Message::Durable(ranges) => ranges.len() * size_of::<ByteRange>(),
            Message::SourcesRemoved(message) => texts(&message.removed.paths),
            Message::Itemized(changes) => changes.entries.iter().map(ItemizedEntry::weight).sum(),
            Message::FilesDone(done) => done.files.iter().map(FileDone::weight).sum(),
            Message::Archive(archive) => {
                let earlier = archive.earlier.iter().flat_map(|it| &it.directories);
                earlier.map(|EarlierPath(path)| text(path.len())).sum()
            }
            Message::Select(selection) => selection
                .rules
                .iter()
                .map(|rule| size_of::<Rule>() + rule.text().len())
                .sum(),
            Message::Secret(_)
            | Message::Done(())
            | Message::Credit(_)
            | Message::Enough(())
            | Message::Busy(_)
            | Message::Conclusion(_)
            | Message::Tried(_)
            | Message::Checked(_)
            | Message::Special(_)
            | Message::Unlinked(_)
            | Message::Symlinks(_)
            | Message::SumUp(_)
            | Message::Counted(_)
            | Message::Stayed(_)
            | Message::NotKept(_) => 0,
        };
        size_of::<Message>() + inside
    }
}

/// Memory of a string or name in a list: the handle and its bytes.
fn text(len: usize) -> usize {
    size_of::<Vec<u8>>() + len
}

fn texts(texts: &[Vec<u8>]) -> usize {
    texts.iter().map(|one| text(one.len())).sum()
}

fn weight_of_map(map: &Mapping) -> usize {
    text(map.from.len()) + text(map.to.len())
}

fn weight_of_open(open: &Open) -> usize {
    open.before.len() * size_of::<[u8; 16]>()
        + match &open.role {
            Role::Sender { operands } => texts(operands),
            Role::Receiver { path, sources } => path.len() + texts(sources),
            Role::Producer { command } => command.len(),
            Role::Consumer { command, source } => command.len() + source.len(),
            Role::Probe { path } | Role::Verifier { path } | Role::Cleaner { path } => path.len(),
        }
}

fn weight_of_want(want: &Want) -> usize {
    let (have, compare) = want.kind.ranges();
    size_of::<Want>() + size_of_val(have) + size_of_val(compare)
}

fn weight_of_names(directory: &DirectoryNames) -> usize {
    size_of::<DirectoryNames>() + size_of_val(&directory.sums[..])
}

fn weight_of_own_names(directory: &OwnNames) -> usize {
    let one = |entry: &OwnEntry| size_of::<OwnEntry>() + entry.name.len();
    let entries: usize = directory.entries.iter().map(one).sum();
    size_of::<OwnNames>() + directory.below.len() + entries
}

/// Approximate bytes of memory that an entry takes.
pub fn entry_weight(entry: &Entry) -> usize {
    size_of::<Entry>() + entry.heap_bytes()
}

//! The first line that each end sends on control: JSON with its protocol versions and limits. Any
//! two versions can read it, because unknown fields are ignored.

use serde::{Deserialize, Serialize};

use super::message::Listen;
use super::{PROTOCOL_MAX, PROTOCOL_MIN};
use crate::chunk::pack::TableForm;
use crate::chunk::{CHUNK_SIZE, GRAINS, LARGE_PACK};

/// The feature of a sender that reports recently written files and resends damaged data on
/// request ([`Missing`](super::message::Missing)): ranges of big files, and small files in packs.
const TELLS: &str = "missing-packs";

/// The feature of a receiver that accepts packs whose table is stored by columns.
const COLUMNS: &str = "pack-columns";

/// The feature of a sender that copies only what the client selects.
const SELECTS: &str = "selection-sides";

/// The feature of an end that keeps what the client says besides content, compares existing files,
/// deletes what the source does not have, makes backups, removes copied files at the source, and uses
/// earlier copies, and makes snapshots.
const ARCHIVES: &str = "archive-snapshots";

/// The feature of an end that compares pages by their keyed digests and, as a sender, sends only the
/// changed pages of a chunk.
const PATCHES: &str = "keyed-patches";

/// The feature of a sender that offers pieces with their anchors, and of a receiver that finds them by
/// these in other places of the existing file.
const SHIFTS: &str = "shifts";

/// The feature of an end that knows dry runs and, as a receiver, reports each change.
const ITEMIZES: &str = "dry-run-and-check";

/// The feature of an end that copies listed files, and files with their paths.
const LISTS: &str = "file-lists";

/// The feature of an end that copies parts of a source to separate places, and of a receiver that
/// knows of sources on other hosts.
const PLACES: &str = "places";

/// The feature of an end that copies by scp's rules.
const SCP: &str = "scp-rules";

/// The feature of a server that compares files with a list of digests.
const VERIFIES: &str = "verify-list";

/// The feature of a server that removes what copies have left.
const CLEANS: &str = "clean";

/// The feature of a receiver that takes the totals after the roots.
const COUNTS_LATER: &str = "late-totals";

/// The feature of a client between two hosts that passes such totals on. It adds this to the
/// receiver's hello.
const RELAYS_COUNTS: &str = "relays-late-totals";

/// Precedes the hello. The reader skips anything that a login shell prints before it.
pub const MAGIC: &[u8] = b"\0fastcp\0hello ";

/// The feature of an end that accepts pieces of files smaller than a chunk.
const FINE: &str = "grains";

/// The feature of a receiver that takes large pieces of files.
const LARGE: &str = "large";

/// The feature of a receiver that remembers any number of files with several names.
const LINKS: &str = "many-links";

/// Most bytes that may come before the magic.
pub const NOISE_MAX: usize = 64 << 10;

/// Most bytes of the line.
pub const LINE_MAX: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol_min: u16,
    pub protocol_max: u16,
    /// The program's version, used only in messages.
    pub build: String,
    #[serde(default)]
    pub features: Vec<String>,
    /// Numbers of the seal suites, most preferred first.
    #[serde(default)]
    pub suites: Vec<u8>,
    /// Numbers of codecs.
    #[serde(default)]
    pub codecs: Vec<u8>,
    pub limits: PeerLimits,
    /// The kernel's boot id; empty where it cannot be read. Equal ids mean that both ends run on
    /// one machine.
    #[serde(default)]
    pub boot_id: String,
    #[serde(default)]
    pub processors: u16,
    /// BLAKE3 of the program in hexadecimal, if a client uploaded it and it has verified itself;
    /// else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// The address of this host that the login reached, as sshd reports it; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reached: String,
    /// Sent by a server: the name of its host, and the user that it runs as, for the client's records.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Sent by a server: where it accepts data connections from now on, if the client does not choose
    /// the ports. It says the same once more in answer to the request
    /// ([`Message::Listen`](super::message::Message::Listen)), a round trip later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,
    /// Sent by a client: a hash in hexadecimal of this destination that only its user can
    /// compute. It identifies the owner of unfinished copies.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Sent by a client: `--trust-partial`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust_partial: bool,
    /// Sent by a client: an empty pipe may replace a file that has content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_empty: bool,
    /// Sent by a client: `--polite`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub polite: bool,
    /// Sent by a client: existing files are compared if the ends can do that, so without
    /// `--whole-file`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compares: bool,
    /// Sent by a client: `--mkpath`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mkpath: bool,
    /// Sent by a client: [`Select`](super::message::Message::Select) follows the secret.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub selects: bool,
    /// Sent by a client: [`Archive`](super::message::Message::Archive) follows these messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archives: bool,
    /// Sent by a client: `--dry-run`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Sent by a client: `--itemize-changes`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub itemizes: bool,
    /// Sent by a client with `itemizes`: a key that forbids it allows the copy without it (`-vv`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub itemizes_if_allowed: bool,
    /// Sent by a client: it wants to know which files are in place
    /// ([`FilesDone`](super::message::Message::FilesDone)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reports_files: bool,
    /// Sent by a client: `--check`, which is a dry run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
    /// Sent by a client: files keep their paths below the destination. To a sender,
    /// [`Relative`](super::message::Message::Relative) follows these messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relative: bool,
    /// Sent by a client: [`Map`](super::message::Message::Map) follows these messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maps: bool,
    /// Sent by a client: sources on other hosts go to the same destination.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
    /// Sent by a client: `--scp`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scp: bool,
    /// Sent by a client: it tells its user of files that only grew
    /// ([`Grew`](super::message::Message::Grew)). For any other client, such a file fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tells_growth: bool,
    /// Sent by a client: it wants no line in the system log of the server's host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_syslog: bool,
}

/// Limits on what an end accepts from its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLimits {
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Bytes of a control message's body.
    pub message: u32,
    /// Packs in one large pack; 0 in builds that do not support large packs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub packs: u16,
    /// Data connections at once.
    pub streams: u16,
    /// Big files that are announced and not yet finished.
    pub open_entries: u32,
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadHello {
    #[error(
        "sent unexpected output before fastcp started (a login script, or another program: see \
         --remote-path)"
    )]
    NotAHello,
    #[error(
        "fastcp {build} there speaks protocol {theirs_min} to {theirs_max}, and fastcp {} here \
         speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}: install the same version on both hosts",
        env!("CARGO_PKG_VERSION")
    )]
    NoCommonVersion {
        theirs_min: u16,
        theirs_max: u16,
        build: String,
    },
}

/// Entries of one kind that may be announced and not yet finished.
pub const OPEN_ENTRIES: u32 = 256;

/// More data connections than any link needs.
pub const STREAMS_MAX: u16 = 256;

impl Hello {
    pub fn of_this_build(
        boot_id: String,
        processors: u16,
        suites: Vec<u8>,
        codecs: Vec<u8>,
    ) -> Self {
        Hello {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            features: [
                FINE,
                TELLS,
                COLUMNS,
                LARGE,
                LINKS,
                SELECTS,
                ARCHIVES,
                PATCHES,
                ITEMIZES,
                LISTS,
                SHIFTS,
                VERIFIES,
                PLACES,
                COUNTS_LATER,
                SCP,
                CLEANS,
            ]
            .map(str::to_owned)
            .to_vec(),
            suites,
            codecs,
            limits: PeerLimits {
                chunk: CHUNK_SIZE as u32,
                message: super::message::MESSAGE_MAX,
                packs: LARGE_PACK as u16,
                streams: STREAMS_MAX,
                open_entries: OPEN_ENTRIES,
            },
            boot_id,
            processors,
            program: String::new(),
            reached: String::new(),
            host: String::new(),
            user: String::new(),
            listen: None,
            owner: String::new(),
            trust_partial: false,
            allow_empty: false,
            polite: false,
            compares: false,
            mkpath: false,
            selects: false,
            archives: false,
            dry_run: false,
            itemizes: false,
            itemizes_if_allowed: false,
            reports_files: false,
            check: false,
            relative: false,
            maps: false,
            beside: false,
            scp: false,
            tells_growth: false,
            no_syslog: false,
        }
    }

    /// The client's owner hash; zero if it sent none.
    pub fn owner(&self) -> [u8; 16] {
        match self.owner.len() {
            32 => u128::from_str_radix(&self.owner, 16)
                .unwrap_or(0)
                .to_be_bytes(),
            _ => [0; 16],
        }
    }

    /// True if this end, as a sender, reports recently written files and resends damaged ranges.
    pub fn tells(&self) -> bool {
        self.features.iter().any(|feature| feature == TELLS)
    }

    /// True if this end, as a sender, copies only what the client selects.
    pub fn can_select(&self) -> bool {
        self.features.iter().any(|feature| feature == SELECTS)
    }

    /// True if this end keeps what the client says besides content, and compares existing files.
    pub fn can_archive(&self) -> bool {
        self.features.iter().any(|feature| feature == ARCHIVES)
    }

    /// True if this end compares pages by their keyed digests and, as a sender, sends only the changed
    /// pages of a chunk on request.
    pub fn can_patch(&self) -> bool {
        self.features.iter().any(|feature| feature == PATCHES)
    }

    /// True if this end finds content that has moved within a file.
    pub fn can_shift(&self) -> bool {
        self.features.iter().any(|feature| feature == SHIFTS)
    }

    /// True if this end knows dry runs and reports each change.
    pub fn can_itemize(&self) -> bool {
        self.features.iter().any(|feature| feature == ITEMIZES)
    }

    /// True if this end copies listed files, and files with their paths.
    pub fn can_list(&self) -> bool {
        self.features.iter().any(|feature| feature == LISTS)
    }

    /// True if this end copies parts of a source to separate places, and knows of sources on
    /// other hosts.
    pub fn can_place(&self) -> bool {
        self.features.iter().any(|feature| feature == PLACES)
    }

    /// True if this end copies by scp's rules on request.
    pub fn can_copy_as_scp(&self) -> bool {
        self.features.iter().any(|feature| feature == SCP)
    }

    /// True if this end, as a receiver, takes the totals after the roots. `between`: a client between
    /// two hosts has passed this hello on.
    pub fn can_count_later(&self, between: bool) -> bool {
        let has = |wanted: &str| self.features.iter().any(|feature| feature == wanted);
        has(COUNTS_LATER) && (!between || has(RELAYS_COUNTS))
    }

    /// The hello of a receiver, for a sender whose messages this client passes on.
    pub fn relayed(mut self) -> Hello {
        self.features.push(RELAYS_COUNTS.to_owned());
        self
    }

    /// True if this end compares files with a list of digests.
    pub fn can_verify(&self) -> bool {
        self.features.iter().any(|feature| feature == VERIFIES)
    }

    /// True if this end removes what copies have left.
    pub fn can_clean(&self) -> bool {
        self.features.iter().any(|feature| feature == CLEANS)
    }

    /// The form of pack tables that this end can receive.
    pub fn table_form(&self) -> TableForm {
        match self.features.iter().any(|feature| feature == COLUMNS) {
            true => TableForm::Columns,
            false => TableForm::Records,
        }
    }

    /// True if this end accepts large pieces of files.
    pub fn takes_large_pieces(&self) -> bool {
        self.features.iter().any(|feature| feature == LARGE)
    }

    /// True if this end remembers any number of files with several names.
    pub fn remembers_links(&self) -> bool {
        self.features.iter().any(|feature| feature == LINKS)
    }

    /// True if this end accepts large packs.
    pub fn takes_large_packs(&self) -> bool {
        usize::from(self.limits.packs) >= LARGE_PACK
    }

    /// Makes the other end send only whole chunks.
    pub fn without_grains(mut self) -> Hello {
        self.features.retain(|feature| feature != FINE);
        self
    }

    /// Pieces of files end at multiples of this many bytes, in a session between this end and
    /// `other` with chunks of `chunk_size` bytes.
    pub fn grain(&self, other: &Hello, chunk_size: u32) -> u64 {
        let is_fine = |hello: &Hello| hello.features.iter().any(|feature| feature == FINE);
        let parts = if is_fine(self) && is_fine(other) {
            GRAINS
        } else {
            1
        };
        u64::from(chunk_size) / parts as u64
    }

    /// Magic, JSON and a newline.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = MAGIC.to_vec();
        serde_json::to_writer(&mut line, self).expect("a hello has no map keys to refuse");
        line.push(b'\n');
        line
    }

    /// Parses the text between the magic and the newline.
    pub fn parse(json: &[u8]) -> Result<Hello, BadHello> {
        let hello: Hello = serde_json::from_slice(json).map_err(|_| {
            // A later version may change any field except the two protocol numbers.
            match serde_json::from_slice::<Versions>(json) {
                Ok(versions) => versions.refusal(),
                Err(_) => BadHello::NotAHello,
            }
        })?;
        let common = hello.protocol_max.min(PROTOCOL_MAX);
        if common < hello.protocol_min.max(PROTOCOL_MIN) {
            let Hello {
                protocol_min,
                protocol_max,
                build,
                ..
            } = hello;
            return Err(Versions {
                protocol_min,
                protocol_max,
                build,
            }
            .refusal());
        }
        Ok(hello)
    }
}

#[derive(Deserialize)]
struct Versions {
    protocol_min: u16,
    protocol_max: u16,
    #[serde(default)]
    build: String,
}

impl Versions {
    fn refusal(self) -> BadHello {
        BadHello::NoCommonVersion {
            theirs_min: self.protocol_min,
            theirs_max: self.protocol_max,
            build: crate::units::printable(self.build.as_bytes())
                .chars()
                .take(40)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_reads_back_and_ignores_what_it_does_not_know() {
        let hello = Hello::of_this_build("b".into(), 2, vec![1], vec![0, 2]);
        let line = hello.to_line();
        let json = line
            .strip_prefix(MAGIC)
            .unwrap()
            .strip_suffix(b"\n")
            .unwrap();
        assert_eq!(Hello::parse(json), Ok(hello));
        let newer = String::from_utf8(json.to_vec())
            .unwrap()
            .replacen('{', "{\"later\":[1],", 1);
        assert!(Hello::parse(newer.as_bytes()).is_ok());
    }

    #[test]
    fn chunks_are_cut_finer_only_where_both_ends_know_of_it() {
        let this = Hello::of_this_build("b".into(), 2, vec![1], vec![0, 2]);
        assert_eq!(this.grain(&this, 1 << 20), 128 << 10);
        let former = this.clone().without_grains();
        assert_eq!(this.grain(&former, 1 << 20), 1 << 20);
        assert_eq!(former.grain(&this, 1 << 20), 1 << 20);
    }

    #[test]
    fn another_protocol_is_refused_by_both_numbers() {
        let refusal =
            Hello::parse(br#"{"protocol_min":7,"protocol_max":9,"build":"3.0","limits":0}"#);
        let text = refusal.unwrap_err().to_string();
        assert!(
            text.contains("fastcp 3.0 there speaks protocol 7 to 9")
                && text.contains("protocol 1 to 1"),
            "{text}"
        );
        assert_eq!(Hello::parse(b"[]"), Err(BadHello::NotAHello));
    }
}

//! Version 1 of the protocol, byte for byte. A build that fails here cannot talk to other builds.

use fastcp::algorithms::{Compress, Method};
use fastcp::backup::BackupPlace;
use fastcp::earlier::{EarlierCopies, EarlierPath, Reuse};
use fastcp::error::{Kind, Side};
use fastcp::itemize::{ItemAction, ItemChanges, ItemKind, ItemizedEntry};
use fastcp::manifest::{Entry, EntryKind, Extension, Name, Root, Timestamp, Totals};
use fastcp::mapping::Mapping;
use fastcp::mirror::Mirror;
use fastcp::outcome::{Bottleneck, CarriedBytes, CopyActivity, Counts, Shares, Verdict};
use fastcp::report::event::{FileDone, FileResult};
use fastcp::selection::{Rule, RulePattern, Selection};
use fastcp::snapshot::{Retention, SnapshotTerms};
use fastcp::tuner::RememberedRoutes;
use fastcp::wire::hello::Hello;
use fastcp::wire::message::*;
use fastcp::wire::progress_report::{ProgressReport, RouteFacts};

fn name(text: &str) -> Name {
    Name::try_from(text.as_bytes().to_vec()).expect("a name")
}

fn entry() -> Entry {
    let time = |s| Timestamp { s, ns: 7 };
    Entry {
        id: 300,
        parent: 2,
        name: name("n"),
        kind: EntryKind::Symlink(b"to".to_vec()),
        mode: 0o640,
        uid: 1,
        gid: 2,
        user: b"u".to_vec(),
        group: b"g".to_vec(),
        size: 3,
        allocated: 4,
        mtime: time(-1),
        atime: time(2),
        ctime: time(3),
        birth: time(4),
        dev: 5,
        ino: 6,
        links: 1,
        rdev: 0,
        extensions: vec![Extension {
            tag: 0x8001,
            bytes: vec![9],
        }],
    }
}

fn fault() -> Fault {
    Fault {
        kind: Kind::Write,
        errno: 28,
        side: Side::Dest,
        entry: 1,
        parent: 2,
        path: b"/p".to_vec(),
        text: "full".into(),
    }
}

/// The stored settings of one pair of hosts.
const ROUTES: &[u8] =
    br#"{"version":1,"routes":[["a",{"round_trip_us":50000,"streams":32,"method":{"Zstd":3}}]]}"#;

fn verdict() -> Verdict {
    Verdict {
        limit: Some(Bottleneck::Network),
        shares: Shares {
            network: 0.5,
            ..Shares::default()
        },
        sentence: "s".into(),
        hints: vec!["h".into()],
    }
}

/// One message of each type, ordered by type number.
fn messages() -> Vec<Message> {
    let options = CopyOptions {
        recursive: true,
        preserve: false,
        follow_links: true,
        no_clobber: false,
        fsync: true,
        no_target_directory: false,
        compress: Compress::Zstd(-3),
        digests: true,
        rate_limit: Some(1000),
        threads: None,
        memory: Some(1 << 28),
        no_resume: false,
        live: true,
        inplace: false,
        force: true,
        congestion: None,
        timeout_s: 60,
        direct_io: true,
        size: Some(7),
        follow_ms: None,
        spool: true,
        nice: true,
        drop_cache: true,
        polite: false,
        compares: None,
        relative: None,
        maps: Default::default(),
        is_beside: false,
        scp: false,
        mkpath: false,
        dry_run: false,
        itemizes: false,
        reports_files: false,
        check: false,
        keep: Default::default(),
        update: Default::default(),
        changes: Default::default(),
        mirror: Default::default(),
        backup: None,
        earlier: None,
        snapshot: None,
        selector: Default::default(),
    };
    let receiver = Role::Receiver {
        path: b"x".to_vec(),
        sources: vec![b"a".to_vec()],
    };
    let root = Root {
        id: 1,
        operand: 0,
        name: name("r"),
        is_directory: true,
        contents: false,
        dev: 2,
        ino: 3,
    };
    let totals = Totals {
        files: 1,
        directories: 2,
        bytes: 3,
        allocated: 4,
        largest: 5,
        streams: 6,
    };
    let span = |start, end| ByteRange { start, end };
    vec![
        Message::Open(Open {
            role: receiver,
            options,
            session: [0xab; 16],
            suite: 1,
            streams: Some(8),
            remembered: None,
            chunk_size: 1 << 20,
            before: vec![[0xef; 16]],
            listens: true,
            ports: Some(Ports {
                first: 9001,
                last: 9016,
            }),
            between: true,
        }),
        Message::Secret(SessionSecret([0xcd; 32])),
        Message::Listen(Listen {
            addresses: vec!["::1".into()],
            port: 9001,
        }),
        Message::Dial(Listen {
            addresses: vec![],
            port: 1,
        }),
        Message::Roots(Roots {
            roots: vec![root],
            totals,
        }),
        Message::Landed(RootsResolved {
            names: vec![b"r".to_vec()],
            resumes: true,
            ordered: false,
            window: 200,
        }),
        Message::Entries(vec![entry()]),
        Message::Want(vec![Want {
            entry: 300,
            kind: WantKind::Have(vec![(span(0, 1), [1; 32])]),
        }]),
        Message::Digests((1, vec![[2; 32]])),
        Message::Ack(Ack {
            chunks: [span(1, 3)].into_iter().collect(),
            entries: [].into_iter().collect(),
            failed: [span(4, 5)].into_iter().collect(),
        }),
        Message::Nack(vec![7]),
        Message::EntryEnd(vec![EntryEnd {
            entry: 1,
            length: 2,
            root: Some([3; 32]),
        }]),
        Message::AllSent(AllSent {
            last: 9,
            unused: vec![span(2, 3)],
        }),
        Message::Done(()),
        Message::Data(Data { bytes: vec![1, 2] }),
        Message::Credit(65536),
        Message::Heartbeat(Heartbeat {
            counter: 1,
            streams: vec![ConnectionFacts {
                stream: 0,
                attempt: 2,
                bytes: 5,
                waits: true,
            }],
        }),
        Message::Tune(Tune {
            streams: Some(16),
            rate_limit: Some(1000),
            reason: "loss".into(),
        }),
        Message::Fault(fault()),
        Message::Abort(fault()),
        Message::Relay(Relay {
            number: 14,
            body: vec![],
        }),
        Message::Ask(vec![entry()]),
        Message::Vanished(fault()),
        Message::Enough(()),
        Message::Busy(Busy {
            elapsed_us: 1000,
            workers_us: 2,
            decode_us: 1,
            write_us: 3,
            waits_us: 4,
        }),
        Message::Conclusion(Conclusion {
            verdict: Some(verdict()),
            remembered: RememberedRoutes::read(ROUTES).get("a"),
        }),
        Message::Tried(Tried {
            bytes: 1,
            written_us: 2,
            synced_us: 300,
        }),
        Message::Account(ProgressReport {
            counts: Counts {
                bytes: 1,
                skipped_bytes: 2,
                resumed_bytes: 3,
                resumed_files: 4,
                wire_bytes: 5,
                raw_bytes: 6,
                files: 7,
                failed: 8,
                again_bytes: 9,
                codec_chunks: [0, 1, 0, 0, 0, 0, 0, 2],
                streams: 10,
            },
            names: vec!["n".into()],
            is_flushing: true,
            ways: [RouteFacts {
                sound: 1,
                up: 2,
                carried: 300,
            }; 4],
            cause: "c".into(),
        }),
        Message::Checked(300),
        Message::FileDigests(vec![FileDigest {
            path: b"a/b".to_vec(),
            digest: [1; 32],
        }]),
    ]
}

const GOLDEN: [&str; 30] = [
    "01005500000001017801016101000100010003050101e8070001808080800100010001003c0101070001\
     0101abababababababababababababababab0101088080400001efefefefefefefefefefefefefefefef\
     0101a946b84601",
    "020020000000cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
    "03000700000001033a3a31a946",
    "0400020000000001",
    "05000f000000010100017201000203010203040506",
    "06000700000001017201\
     00c801",
    "07002600000001ac0202016e0202746fa003010201750167030401070407060708070506010001818002\
     0109",
    "08002700000001ac02020100010101010101010101010101010101010101010101010101010101010101\
     010101",
    "09002200000001010202020202020202020202020202020202020202020202020202020202020202",
    "0a000700000001010300010405",
    "0b00020000000107",
    "0c0024000000010102010303030303030303030303030303030303030303030303030303030303030303",
    "0d000400000009010203",
    "0e0000000000",
    "0f0003000000020102",
    "100003000000808004",
    "110006000000010100020501",
    "12000a000000011001e807046c6f7373",
    "13000d0000000738020102022f700466756c6c",
    "14000d0000000738020102022f700466756c6c",
    "1500020000000e00",
    "16002600000001ac0202016e0202746fa003010201750167030401070407060708070506010001818002\
     0109",
    "17000d0000000738020102022f700466756c6c",
    "180000000000",
    "190006000000e80702010304",
    "1a0049000000010100000000000000e03f00000000000000000000000000000000000000000000000000\
     0000000000000000000000000000000000000000000000017301016801d086030120010206",
    "1b00040000000102ac02",
    "1c00280000000102030405060708090001000000000002\
     0a01016e01\
     0102ac020102ac020102ac020102ac02\
     0163",
    "1d8002000000ac02",
    "1e00250000000103612f62\
     0101010101010101010101010101010101010101010101010101010101010101",
];

#[test]
fn every_control_message_is_these_bytes() {
    for (number, (message, golden)) in messages().iter().zip(GOLDEN).enumerate() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden, "{message:?}");
        let (found, len) = parse_header(bytes[..HEADER_LEN].try_into().expect("its length"))
            .expect("a header that was just written");
        // The top bit allows the receiver to skip the message.
        assert_eq!(usize::from(found & 0x7fff), number + 1);
        assert_eq!(len as usize, bytes.len() - HEADER_LEN);
        let read = Message::decode(found, &bytes[HEADER_LEN..]).expect("it reads back");
        assert_eq!(read.as_ref(), Some(message));
        // With one byte too many the message is invalid in this version.
        bytes.push(0);
        assert!(Message::decode(found, &bytes[HEADER_LEN..]).is_err());
    }
}

#[test]
fn a_selection_is_these_bytes() {
    let selection = Selection {
        rules: vec![
            Rule::Pattern(RulePattern {
                side: Default::default(),
                takes: false,
                negated: true,
                pattern: b"*.o".to_vec(),
            }),
            Rule::cvs_file(),
        ],
        min_size: Some(300),
        modified_to: Some(-1),
        one_file_system: true,
        ..Selection::default()
    };
    let message = Message::Select(selection);
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = "2100210000000200000001032a2e6f010a2e63767369676e6f72650002000101ac020000010101";
    assert_eq!(hex, golden);
    let read = Message::decode(33, &bytes[HEADER_LEN..]).expect("it reads back");
    assert_eq!(read, Some(message));
}

#[test]
fn an_itemized_change_is_these_bytes() {
    let message = Message::Itemized(ItemizedEntries {
        files: 1,
        bytes: 300,
        unchanged: 7,
        entries: vec![
            ItemizedEntry {
                action: ItemAction::Sent,
                kind: ItemKind::File,
                changes: ItemChanges {
                    size: true,
                    time: true,
                    ..ItemChanges::default()
                },
                size: 300,
                path: b"d/a".to_vec(),
                target: Vec::new(),
            },
            ItemizedEntry {
                action: ItemAction::Made,
                kind: ItemKind::Symlink,
                changes: ItemChanges::of_new(),
                size: 0,
                path: b"l".to_vec(),
                target: b"a".to_vec(),
            },
        ],
    });
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = "2b002b00000001ac020702\
                  000000000001010000000000 00ac020364 2f6100\
                  010201000000000000000000 0000016c0161"
        .replace(' ', "");
    assert_eq!(hex, golden);
    let read = Message::decode(43, &bytes[HEADER_LEN..]).expect("it reads back");
    assert_eq!(read.as_ref(), Some(&message));

    let Message::Itemized(changes) = message else {
        unreachable!("it was made above");
    };
    let many = ItemizedEntries {
        entries: vec![changes.entries[1].clone(); ITEMIZED_MAX + 1],
        ..changes
    };
    let mut bytes = Vec::new();
    Message::Itemized(many).encode(&mut bytes);
    assert_eq!(
        Message::decode(43, &bytes[HEADER_LEN..]),
        Err(BadMessage::Malformed(43))
    );
    assert!(
        parse_header([43, 0, 1, 0, 16, 0]).is_err(),
        "more than 1 MiB"
    );
}

#[test]
fn names_removals_at_the_source_and_places_of_backups_are_these_bytes() {
    let removed = DeletedEntries {
        count: 300,
        paths: vec![b"d/a".to_vec()],
    };
    let place = BackupPlace {
        suffix: b"~".to_vec(),
        directory: b"old".to_vec(),
    };
    let archive = Archive {
        mirror: Mirror {
            removes_sources: true,
            ..Mirror::default()
        },
        backup: Some(place),
        earlier: Some(EarlierCopies {
            reuse: Reuse::Link,
            directories: vec![EarlierPath(b"../old".to_vec())],
        }),
        snapshot: Some(SnapshotTerms {
            strict: true,
            keep: Some(Retention::parse("7d,4w,12m").expect("a policy")),
        }),
        ..Archive::default()
    };
    for (message, golden) in [
        (
            Message::Durable([ByteRange { start: 1, end: 300 }].into_iter().collect()),
            "2d0004000000 0101ac02",
        ),
        (
            Message::SourcesRemoved(RemovedSources {
                removed,
                is_last: true,
            }),
            "2e0008000000 ac020103642f6101",
        ),
        (
            Message::Names(vec![DirectoryNames {
                directory: 1,
                is_named: true,
                sums: vec![0],
            }]),
            "270005000000 0101010100",
        ),
        (
            Message::Snapshot(SnapshotReport {
                name: b"2026-11-22T020000Z".to_vec(),
                linked: 300,
                copied: 1,
                removed: vec![b"a".to_vec()],
                is_clock_behind: true,
            }),
            "26801a000000 12323032362d31312d3232543032303030305aac020101016101",
        ),
        (
            Message::FilesDone(FilesDone {
                files: vec![FileDone {
                    path: b"d/a".to_vec(),
                    size: 300,
                    digest: Some([7; 32]),
                    result: FileResult::Linked,
                }],
            }),
            "328029000000 0103642f61ac0201\
             07070707070707070707070707070707 07070707070707070707070707070707 04",
        ),
        (
            Message::Archive(archive),
            "2200320000000000000000000000000000000000000000000000000001000001017e036f6c6401000106\
             2e2e2f6f6c6401010100 0704 0c00",
        ),
    ] {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.replace(' ', ""));
        let number = u16::from_le_bytes([bytes[0], bytes[1]]);
        let read = Message::decode(number, &bytes[HEADER_LEN..]).expect("it reads back");
        assert_eq!(read, Some(message));
    }
}

#[test]
fn a_list_of_files_is_these_bytes() {
    let of_file = NamesSource::File {
        path: b"l".to_vec(),
        nul: true,
    };
    let messages = [
        (NamesSource::Operands, "2f00020000000100"),
        (NamesSource::Sent, "2f00020000000101"),
        (of_file, "2f000500000001020 16c01"),
    ];
    let relative = messages.map(|(names, golden)| {
        let plain_parents = true;
        let terms = RelativeTerms {
            plain_parents,
            names,
        };
        (47, Message::Relative(terms), golden)
    });
    let names = FileNames {
        names: b"./a/\0".to_vec(),
        is_last: true,
    };
    let names = (48, Message::FileNames(names), "300007000000 052e2f612f0001");
    let listed = ListedDigests {
        files: vec![ListedDigest {
            number: 300,
            path: b"a/b".to_vec(),
            digest: [1; 32],
        }],
        is_last: true,
    };
    let digest = "01".repeat(32);
    let listed_golden = format!("310028000000 01 ac02 03612f62 {digest} 01");
    let listed = (49, Message::ListedDigests(listed), &*listed_golden);
    let found = [
        FoundContent::Same(300),
        FoundContent::Differs,
        FoundContent::Missing,
        FoundContent::Failed(fault()),
    ];
    let file = |(number, found)| VerifiedFile { number, found };
    let files = VerifiedFiles {
        files: (0..).zip(found).map(file).collect(),
    };
    let golden = "320018000000 04 00 00ac02 0101 0202 0303 07380201 02022f700466756c6c";
    let verified = (50, Message::VerifiedFiles(files), golden);
    let roots = Vec::new();
    let uncounted = (
        53,
        Message::Uncounted(UncountedRoots { roots }),
        "350001000000 00",
    );
    let totals = Totals {
        files: 300,
        directories: 1,
        bytes: 2,
        allocated: 3,
        largest: 4,
        streams: 5,
    };
    let counted = (
        54,
        Message::Counted(totals),
        "360007000000 ac02 01 02 03 04 05",
    );
    let fates = [
        (b"a", 300, 5, LeftoverFate::Removed),
        (b"b", 0, 0, LeftoverFate::OfUser(1000)),
        (b"c", 0, 0, LeftoverFate::Failed(fault())),
        (b"d", 0, 0, LeftoverFate::MaybeInUse),
    ];
    let leftover = |(path, bytes, age_s, fate): (&[u8; 1], u64, u64, LeftoverFate)| Leftover {
        path: path.to_vec(),
        bytes,
        age_s,
        fate,
    };
    let leftovers = Leftovers {
        files: fates.map(leftover).into(),
        is_last: true,
    };
    let golden = "370026000000 04 0161ac020500 0162000002e807 0163000004 \
                  07380201 02022f700466756c6c 0164000005 01";
    let leftovers = (55, Message::Leftovers(leftovers), golden);
    let others = [names, listed, verified, uncounted, counted, leftovers];
    for (number, message, golden) in relative.into_iter().chain(others) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.replace(' ', ""));
        let read = Message::decode(number, &bytes[HEADER_LEN..]).expect("it reads back");
        assert_eq!(read, Some(message));
        // Paths in lists of digests come with errors, up to 1 MiB.
        let most = match number {
            49 | 50 | 55 => 17,
            // As many roots as one copy has.
            53 => 129,
            _ => 2,
        };
        let too_long = [number as u8, 0, 1, 0, most, 0];
        assert!(parse_header(too_long).is_err(), "more than its limit");
    }
}

#[test]
fn parts_of_a_source_are_these_bytes() {
    let terms = MapTerms {
        maps: vec![Mapping {
            from: b"a/b".to_vec(),
            to: b"/t".to_vec(),
        }],
    };
    let space = RootSpace {
        allocated: 300,
        largest: 2,
    };
    let spaces = RootSpaces {
        each: vec![space; 2],
    };
    for (message, golden) in [
        (Message::Map(terms), "330008000000 01 03612f62 022f74"),
        (Message::RootSpaces(spaces), "340007000000 02 ac0202 ac0202"),
    ] {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.replace(' ', ""));
        let number = u16::from_le_bytes([bytes[0], bytes[1]]);
        let read = Message::decode(number, &bytes[HEADER_LEN..]).expect("it reads back");
        assert_eq!(read, Some(message));
    }
    let many = RootSpaces {
        each: vec![space; 66],
    };
    let mut bytes = Vec::new();
    Message::RootSpaces(many).encode(&mut bytes);
    assert!(Message::decode(52, &bytes[HEADER_LEN..]).is_err());
}

#[test]
fn what_a_sender_does_now_is_these_bytes() {
    let message = Message::Activity(CopyActivity {
        elapsed_us: 300,
        shares: Shares {
            network: 0.5,
            destination_disk: 1.0,
            ..Shares::default()
        },
        method: Method::Zstd(3),
        connections: vec![CarriedBytes {
            stream: 300,
            attempt: 1,
            bytes: 2,
        }],
    });
    let golden = "338041000000 ac02 000000000000e03f \
                  0000000000000000 0000000000000000 0000000000000000 \
                  0000000000000000 0000000000000000 000000000000f03f 0206 01ac020102";
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.replace(' ', ""));
    assert_eq!(
        Message::decode(0x8033, &bytes[HEADER_LEN..]),
        Ok(Some(message))
    );
    // A longer list than a heartbeat's is not read.
    assert!(Message::decode(0x8033, &vec![0; 1 << 17]).is_err());
}

#[test]
fn a_file_that_grew_and_counts_of_links_are_these_bytes() {
    for (message, golden) in [
        (
            Message::Grew(fault()),
            "30800d0000000738020102022f700466756c6c",
        ),
        (Message::Symlinks((300, 2)), "318003000000ac0202"),
    ] {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        let number = u16::from_le_bytes([bytes[0], bytes[1]]);
        let read = Message::decode(number, &bytes[HEADER_LEN..]);
        assert_eq!(read, Ok(Some(message)));
    }
}

#[test]
fn a_type_with_the_top_bit_may_be_skipped_and_no_other() {
    assert_eq!(Message::decode(0x8123, b"later"), Ok(None));
    assert_eq!(
        Message::decode(0x0123, b""),
        Err(BadMessage::Unknown(0x0123))
    );
}

#[test]
fn a_hello_is_this_line() {
    let hello = Hello::of_this_build("boot".into(), 2, vec![1, 2, 3], vec![0, 1]);
    let line = String::from_utf8(hello.to_line()).expect("JSON");
    let version = env!("CARGO_PKG_VERSION");
    let wanted = format!(
        "\0fastcp\0hello {{\"protocol_min\":1,\"protocol_max\":1,\"build\":\"{version}\",\
         \"features\":[\"grains\",\"missing-packs\",\"pack-columns\",\"large\",\"many-links\",\"selection-sides\",\"archive-snapshots\",\"keyed-patches\",\"dry-run-and-check\",\"file-lists\",\"shifts\",\"verify-list\",\"places\",\"late-totals\",\"scp-rules\",\"clean\"],\"suites\":[1,2,3],\"codecs\":[0,1],\
         \"limits\":{{\"chunk\":1048576,\"message\":8388608,\"packs\":4,\"streams\":256,\"open_entries\":256}},\
         \"boot_id\":\"boot\",\"processors\":2}}\n"
    );
    assert_eq!(line, wanted);
}

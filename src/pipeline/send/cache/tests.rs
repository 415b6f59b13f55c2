//! The cache with hosts of different speeds, and a clock that the test sets.

use super::chunk::PACKS;
use super::state::{CacheLookup, CacheState};
use super::*;
use crate::chunk::pack::TableForm;
use crate::manifest::{Entry, Timestamp};

const MIB: u64 = 1 << 20;
const LEN: u32 = MIB as u32;

fn key(ino: u64) -> CacheKey {
    CacheKey {
        dev: 1,
        ino,
        rdev: 0,
        size: 1 << 40,
        mtime: (0, 0),
        ctime: (0, 0),
    }
}

fn made() -> CachedChunk {
    CachedChunk {
        digest: [7; 32],
        codec: 0,
        raw_len: LEN,
        is_zeros: false,
        members: Vec::new(),
        bytes: vec![0; MIB as usize].into(),
    }
}

/// Hosts that have joined, with a clock that the test sets.
struct CacheHosts {
    state: CacheState,
    now: Instant,
}

impl CacheHosts {
    /// With room for this many chunks.
    fn new(hosts: usize, chunks: usize) -> CacheHosts {
        let now = Instant::now();
        let mut state = CacheState::new(hosts, chunks << 20);
        (0..hosts).for_each(|host| state.join(host, now));
        CacheHosts { state, now }
    }

    fn look(&mut self, host: usize, ino: u64, nth: u64) -> CacheLookup {
        let at = nth * MIB;
        self.state.ask(host, key(ino), at, LEN);
        self.state.look(host, key(ino), (at, LEN), true, self.now)
    }

    /// How a host gets a chunk: made for others too, taken, alone, or not yet.
    fn step(&mut self, host: usize, ino: u64, nth: u64) -> &'static str {
        match self.look(host, ino, nth) {
            CacheLookup::Make => {
                self.state.put(key(ino), nth * MIB, made());
                "made"
            }
            CacheLookup::Taken(_) => "taken",
            CacheLookup::Alone => "alone",
            CacheLookup::BeingMade => "being made",
            CacheLookup::Full => "waits",
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }
}

#[test]
fn a_chunk_is_made_once_and_lies_there_until_all_have_it() {
    let mut table = CacheHosts::new(3, 4);
    for nth in 0..20 {
        assert_eq!(table.step(0, 1, nth), "made");
        assert_eq!(table.step(2, 1, nth), "taken");
        assert_eq!(table.state.filled(), MIB as usize);
        assert_eq!(table.step(1, 1, nth), "taken");
        assert_eq!(table.state.filled(), 0);
    }
    assert_eq!(
        table.step(1, 1, 3),
        "alone",
        "sent again: nobody else is to have it"
    );
    assert!(matches!(table.look(0, 1, 50), CacheLookup::Make));
    assert_eq!(table.step(1, 1, 50), "being made");
    table.state.cancel(key(1), 50 * MIB);
    assert_eq!(
        table.step(1, 1, 50),
        "made",
        "host 0 could not, and 2 is to have it"
    );
}

#[test]
fn who_wants_nothing_of_a_file_or_is_gone_counts_as_having_had_it() {
    let mut table = CacheHosts::new(3, 4);
    table.state.end(2, key(1));
    let mut had = RangeSet::new();
    had.insert(0..2 * MIB);
    table.state.begin(1, key(1), &had);
    assert_eq!(table.step(0, 1, 0), "alone");
    assert_eq!(table.step(0, 1, 2), "made");
    table.state.leave(1);
    assert_eq!(table.state.filled(), 0);
    assert_eq!(table.step(0, 1, 3), "alone");
    table.state.join(1, table.now);
    assert_eq!(table.step(0, 1, 4), "made", "it is back");
    table.state.end(0, key(1));
    assert_eq!(table.step(1, 1, 0), "alone", "0 is done, and 2 never began");
}

#[test]
fn a_host_that_lags_is_waited_for_and_not_for_long() {
    let mut table = CacheHosts::new(2, 4);
    let (mut first, mut second, mut waits) = (0, 0, 0);
    // Host 1 takes a chunk every 100 ms; host 0 could take ten.
    for _ in 0..600 {
        for _ in 0..10 {
            if table.step(0, 1, first) == "waits" {
                waits += 1;
                break;
            }
            first += 1;
        }
        // All of this time counts as waiting, which reduces the time that is left for waiting.
        table.state.wait_begins(0, table.now);
        table.pass(100);
        table.state.wait_ends(0, table.now);
        table.step(1, 1, second);
        second += 1;
    }
    assert!(
        (20..30).contains(&waits),
        "two seconds and a fifth: {waits}"
    );
    assert!(first > 5700, "then it went on: {first}");
    assert!(table.state.filled() <= 4 << 20);
}

#[test]
fn hosts_of_about_the_same_speed_stay_together() {
    let mut table = CacheHosts::new(2, 8);
    let (mut at, mut taken) = ([0u64; 2], 0);
    for tick in 0..50_000u64 {
        // One chunk every 10 ms, and every 11 ms.
        for (host, every) in [(0, 10), (1, 11)] {
            if tick % every != 0 {
                continue;
            }
            match table.step(host, 1, at[host]) {
                "waits" => {
                    table.state.wait_begins(host, table.now);
                    let then = table.now + Duration::from_millis(every);
                    table.state.wait_ends(host, then);
                    continue;
                }
                "taken" => taken += 1,
                "alone" => panic!("read twice after {at:?}"),
                _ => {}
            }
            at[host] += 1;
        }
        table.pass(1);
    }
    assert!(taken > 4500, "{taken}");
}

#[test]
fn a_host_that_stands_still_or_is_far_behind_holds_nobody() {
    let mut table = CacheHosts::new(3, 4);
    for nth in 0..4 {
        assert_eq!(table.step(0, 1, nth), "made");
    }
    assert_eq!(table.step(0, 1, 4), "waits");
    table.pass(4000);
    assert_eq!(
        table.step(0, 1, 4),
        "made",
        "in place of what nobody comes for"
    );

    // Host 0 resumes where an earlier run ended. The others begin, and share.
    let mut table = CacheHosts::new(3, 4);
    let mut had = RangeSet::new();
    had.insert(0..100 * MIB);
    table.state.begin(0, key(1), &had);
    for nth in 100..110 {
        let step = table.step(0, 1, nth);
        assert!(["made", "alone"].contains(&step), "{nth}: {step}");
    }
    for nth in 0..50 {
        assert_eq!(table.step(1, 1, nth), "made", "{nth}");
        assert_eq!(table.step(2, 1, nth), "taken", "{nth}");
        assert_ne!(table.step(0, 1, 110 + nth), "waits");
    }
}

#[test]
fn a_host_whose_packs_differ_is_waited_for_by_nobody() {
    let now = Instant::now();
    let mut state = CacheState::new(2, 2 << 20);
    (0..2).for_each(|host| state.join(host, now));
    let pack = |nth| CacheKey {
        dev: PACKS,
        ..key(nth)
    };
    let step = |state: &mut CacheState, nth| {
        state.ask(0, pack(nth), 0, LEN);
        let look = state.look(0, pack(nth), (0, LEN), true, now);
        if matches!(look, CacheLookup::Make) {
            state.put(pack(nth), 0, made());
        }
        look
    };
    for nth in 0..2 {
        assert!(matches!(step(&mut state, nth), CacheLookup::Make));
    }
    assert!(matches!(step(&mut state, 2), CacheLookup::Full));
    state.packs_differ(1);
    assert_eq!(state.filled(), 0);
    assert!(matches!(step(&mut state, 2), CacheLookup::Alone));
    state.join(1, now);
    assert!(matches!(step(&mut state, 3), CacheLookup::Make));
}

#[test]
fn packs_of_the_same_files_are_the_same() {
    let entry = |id: u64, ino: u64| Entry {
        ino,
        mtime: Timestamp::default(),
        ..crate::source::PipeSpec::Stdin.entry(id)
    };
    let of = |entries: &[Entry]| CacheKey::of_pack(entries.iter(), TableForm::Records);
    let (a, b) = (entry(1, 10), entry(2, 11));
    assert_eq!(of(&[a.clone(), b.clone()]), of(&[a.clone(), b.clone()]));
    assert_ne!(of(&[a.clone(), b.clone()]), of(&[b.clone(), a.clone()]));
    assert_ne!(of(&[a]), of(&[entry(1, 11)]));
    assert_ne!(of(&[b]), of(&[entry(3, 11)]));
}

#[test]
fn a_worker_takes_what_another_makes_while_it_waits() {
    let cache = Arc::new(ChunkCache::new(2, 4 << 20));
    let shares = [0, 1].map(|host| CacheShare::new(cache.clone(), host));
    shares.iter().for_each(CacheShare::join);
    let Got::Make(ticket) = shares[0].chunk(key(1), 0, LEN, true) else {
        panic!("it is the first");
    };
    let waiting = shares[1].clone();
    let taking = std::thread::spawn(move || waiting.chunk(key(1), 0, LEN, true));
    std::thread::sleep(Duration::from_millis(20));
    ticket.put(made());
    let Got::Taken(made) = taking.join().expect("no panic") else {
        panic!("it was made");
    };
    assert_eq!(made.digest, [7; 32]);
    let Got::Make(_) = shares[0].chunk(key(1), MIB, LEN, true) else {
        panic!("it is the first");
    };
    shares[1].leave();
    assert!(matches!(
        shares[1].chunk(key(1), MIB, LEN, true),
        Got::Alone
    ));
}

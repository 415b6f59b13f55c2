//! Seeded sessions whose connections stall, vanish and are dialled again: no network or clock.

use fastrand::Rng;

use super::*;

/// Connections in a session, and its length in seconds, one heartbeat each.
const CONNECTIONS: u16 = 8;
const SECONDS: u32 = 60;

/// The latest second in which something goes wrong: the rest is enough to find it.
const LAST_FAULT: u32 = 30;

#[derive(Clone, Copy, Debug, PartialEq)]
enum ActorFate {
    Carries,
    /// From this second on, the other end parses nothing more.
    Stalls(u32),
    /// From this second on, the other end does not list it.
    Vanishes(u32),
}

struct Actor {
    registration: Registration,
    fate: ActorFate,
    /// Bytes a second, while it works.
    rate: usize,
    /// Bytes that the other end has parsed.
    parsed: u64,
}

impl Actor {
    /// A second passes. Returns the bytes that it sent, and what the other end lists.
    fn passes(&mut self, second: u32) -> (u64, Option<ConnectionFacts>) {
        let Registration { id, stats, .. } = &self.registration;
        let sent = if stats.is_parked() { 0 } else { self.rate };
        stats.add(sent);
        if !matches!(self.fate, ActorFate::Stalls(from) if second >= from) {
            self.parsed = stats.bytes();
        }
        let is_listed = !matches!(self.fate, ActorFate::Vanishes(from) if second >= from);
        let facts = ConnectionFacts {
            stream: id.stream,
            attempt: id.attempt,
            bytes: self.parsed,
            waits: false,
        };
        (sent as u64, is_listed.then_some(facts))
    }
}

struct FaultySession {
    set: Arc<ConnectionSet>,
    random: Rng,
    actors: Vec<Actor>,
    at_work: u16,
    sent: u64,
}

impl FaultySession {
    fn new(seed: u64) -> FaultySession {
        let mut random = Rng::with_seed(seed);
        let at_work = random.u16(1..=CONNECTIONS);
        let set = ConnectionSet::new(Flow::Out);
        set.put_to_work(at_work);
        let mut session = FaultySession {
            set,
            random,
            actors: Vec::new(),
            at_work,
            sent: 0,
        };
        for stream in 0..CONNECTIONS {
            let second = session.random.u32(3..LAST_FAULT);
            let fates = [
                ActorFate::Carries,
                ActorFate::Stalls(second),
                ActorFate::Vanishes(second),
            ];
            let fate = fates[session.random.usize(..fates.len())];
            session.join(ConnectionId { stream, attempt: 0 }, fate);
        }
        session
    }

    fn join(&mut self, id: ConnectionId, fate: ActorFate) {
        let registration = self.set.join(id).expect("a place");
        registration.stats.set_proven();
        self.actors.push(Actor {
            registration,
            fate,
            rate: self.random.usize(100_000..2_000_000),
            parsed: 0,
        });
    }

    /// A second passes; connections that were ended are dialled again, and then carry.
    fn passes(&mut self, second: u32) {
        let mut listed = Vec::new();
        for actor in &mut self.actors {
            let (sent, facts) = actor.passes(second);
            self.sent += sent;
            listed.extend(facts);
        }
        let beats = second.into();
        self.set.look(Duration::from_secs(beats), beats, &listed);
        let is_ended = |actor: &mut Actor| actor.registration.token().is_cancelled();
        let ended: Vec<Actor> = self.actors.extract_if(.., is_ended).collect();
        for Actor {
            registration, fate, ..
        } in ended
        {
            let why = registration.why();
            match fate {
                ActorFate::Carries => panic!("{why:?} in second {second}"),
                ActorFate::Stalls(from) => assert!(second >= from, "{why:?} in second {second}"),
                ActorFate::Vanishes(_) => assert_eq!(why, Some(Dead::NotListed)),
            }
            let ConnectionId { stream, attempt } = registration.id;
            drop(registration);
            let attempt = attempt + 1;
            self.join(ConnectionId { stream, attempt }, ActorFate::Carries);
        }
        let parked = |actor: &&Actor| actor.registration.stats.is_parked();
        let resting = self.actors.iter().filter(parked).count();
        assert_eq!(self.actors.len() - resting, usize::from(self.at_work));
        assert_eq!(self.set.carried().iter().sum::<u64>(), self.sent);
    }
}

#[test]
fn what_stalls_or_vanishes_is_found_and_replaced_and_nothing_else_is_ended() {
    for seed in 0..300 {
        let mut session = FaultySession::new(seed);
        (1..=SECONDS).for_each(|second| session.passes(second));
        for actor in &session.actors {
            let may_be_left = match actor.fate {
                ActorFate::Carries => true,
                // Without data, nothing shows.
                ActorFate::Stalls(_) => actor.registration.stats.is_parked(),
                ActorFate::Vanishes(_) => false,
            };
            assert!(may_be_left, "seed {seed}: {:?} was not found", actor.fate);
        }
    }
}

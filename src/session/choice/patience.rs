//! How long a route waits for those before it, from what those have shown so far. Pure: what is
//! known is passed in.

use std::time::Duration;

use crate::route::direct::Answer;

/// How much later than direct the others begin.
struct Delays {
    reverse: Duration,
    last: Duration,
}

/// At the start.
const FIRST: Delays = Delays {
    reverse: Duration::from_millis(250),
    last: Duration::from_secs(1),
};

/// After a route that was in use has lost all its streams, which may come back by it.
const AGAIN: Delays = Delays {
    reverse: Duration::from_secs(5),
    last: Duration::from_secs(10),
};

/// Direct streams that are connected have this many round trips to come up before reverse begins,
/// three of which they need, but no more time than leaves it some before further logins.
const ROUND_TRIPS: u32 = 4;
const FAR_MAX: Duration = Duration::from_millis(750);

/// For data inside the login, which is begun sooner: what goes there is slower, and what comes
/// later has to wait behind it.
const INBAND_LEAST: Duration = Duration::from_millis(100);
const INBAND_MOST: Duration = Duration::from_millis(400);

/// Since when is told by who asks.
#[derive(Default)]
pub struct Patience {
    /// Of control, and what the other end had to do meanwhile; None while it has not answered.
    answered: Option<Duration>,
    /// Data has come through by some route.
    was_up: bool,
}

impl Patience {
    pub fn heard(&mut self, answered: Duration) {
        self.answered = Some(answered);
    }

    pub fn came_up(&mut self) {
        self.was_up = true;
    }

    /// How long other streams have before data goes inside the login: on an open network one is
    /// there by then, after two round trips.
    pub fn inband(&self, answer: Answer) -> Duration {
        let Some(answered) = self.answered else {
            return self.last();
        };
        match answer {
            Answer::Refused => Duration::ZERO,
            Answer::Silent => (answered * 3 / 2).clamp(INBAND_LEAST, INBAND_MOST),
            Answer::Connected => (answered * 5 / 2).clamp(INBAND_LEAST, INBAND_MOST),
        }
    }

    pub fn reverse(&self, answer: Answer) -> Duration {
        let delay = self.delays().reverse;
        let answered = self.answered.unwrap_or_default();
        match answer {
            Answer::Refused if !self.was_up => Duration::ZERO,
            Answer::Connected => delay.max((ROUND_TRIPS * answered).min(FAR_MAX)),
            Answer::Silent | Answer::Refused => delay.max((answered * 3 / 2).min(FAR_MAX)),
        }
    }

    /// How long all before have until the last resort.
    pub fn last(&self) -> Duration {
        self.delays().last
    }

    fn delays(&self) -> &Delays {
        match self.was_up {
            true => &AGAIN,
            false => &FIRST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Duration = Duration::from_millis(1);

    /// In milliseconds: when data goes inside the login, and when reverse begins.
    fn begins(round_trip_ms: u64, answer: Answer) -> (u128, u128) {
        let mut patience = Patience::default();
        patience.heard(Duration::from_millis(round_trip_ms));
        let (inband, reverse) = (patience.inband(answer), patience.reverse(answer));
        (inband.as_millis(), reverse.as_millis())
    }

    #[test]
    fn nothing_waits_for_who_has_refused_and_little_for_who_says_nothing() {
        for round_trip in [1, 50, 100, 300] {
            assert_eq!(begins(round_trip, Answer::Refused), (0, 0));
            let (inband, reverse) = begins(round_trip, Answer::Silent);
            assert!(inband > u128::from(round_trip), "an answer has its time");
            // A second is all that the first byte may come later than by the right route.
            let latest = 1000 - u128::from(round_trip);
            assert!(inband <= 400.min(latest) && reverse <= 450.min(latest));
        }
        assert_eq!(begins(1, Answer::Silent), (100, 250));
        assert_eq!(begins(100, Answer::Silent), (150, 250));
    }

    #[test]
    fn what_has_connected_has_the_round_trips_that_its_stream_needs() {
        for round_trip in [1, 50, 100] {
            let (inband, reverse) = begins(round_trip, Answer::Connected);
            assert!(inband > u128::from(2 * round_trip));
            assert!(reverse > u128::from(3 * round_trip));
        }
    }

    #[test]
    fn a_route_that_was_in_use_may_come_back_before_another_is_tried() {
        let mut patience = Patience::default();
        patience.heard(NEAR);
        patience.came_up();
        for answer in [Answer::Silent, Answer::Connected, Answer::Refused] {
            assert_eq!(patience.reverse(answer), AGAIN.reverse);
            assert!(patience.inband(answer) <= INBAND_LEAST);
        }
        assert_eq!(patience.last(), AGAIN.last);
    }

    #[test]
    fn a_server_that_has_not_said_where_it_listens_is_waited_for() {
        let patience = Patience::default();
        assert_eq!(patience.inband(Answer::Silent), FIRST.last);
        assert_eq!(patience.reverse(Answer::Silent), FIRST.reverse);
    }
}

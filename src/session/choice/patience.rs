//! How long a route waits for those before it, from what those have shown so far. Pure: what is
//! known is passed in.

use std::time::Duration;

use crate::route::direct::Answer;

/// How much later than direct the others begin.
#[derive(Clone, Copy)]
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

/// Where nothing is heard for so many round trips, nothing will be: something drops what is sent.
const SILENT: Spans = Spans {
    inband: 1.5,
    inband_most: Duration::from_millis(750),
    reverse: 1.5,
    reverse_most: Duration::from_millis(750),
    last: 0.0,
};

/// A stream needs two round trips more where it sends, three where it receives, until it is known
/// to stand. Data inside the login is begun soonest: it is slower, and holds up what comes later.
const CONNECTED: Spans = Spans {
    inband: 2.5,
    inband_most: Duration::from_secs(1),
    reverse: 4.0,
    reverse_most: Duration::from_secs(2),
    last: 5.0,
};

const INBAND_LEAST: Duration = Duration::from_millis(100);
const LAST_MOST: Duration = Duration::from_secs(3);

/// In round trips, each with its bound.
struct Spans {
    inband: f64,
    inband_most: Duration,
    reverse: f64,
    reverse_most: Duration,
    last: f64,
}

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
        match (self.answered, spans(answer)) {
            (None, _) => self.delays().last,
            (_, None) => Duration::ZERO,
            (Some(answered), Some(spans)) => {
                let wait = answered.mul_f64(spans.inband);
                wait.clamp(INBAND_LEAST, spans.inband_most)
            }
        }
    }

    /// How long direct has before reverse begins. How far the other end is nobody knows before it
    /// has answered.
    pub fn reverse(&self, answer: Answer) -> Duration {
        let Delays { reverse, last } = self.delays();
        match (self.answered, spans(answer)) {
            (None, _) => last,
            (_, None) if self.was_up => reverse,
            (_, None) => Duration::ZERO,
            (Some(answered), Some(spans)) => {
                let wait = answered.mul_f64(spans.reverse);
                reverse.max(wait.min(spans.reverse_most))
            }
        }
    }

    /// How long all before have until the last resort.
    pub fn last(&self, answer: Answer) -> Duration {
        let (answered, spans) = (self.answered.unwrap_or_default(), spans(answer));
        let wait = spans.map_or(Duration::ZERO, |spans| answered.mul_f64(spans.last));
        self.delays().last.max(wait.min(LAST_MOST))
    }

    fn delays(&self) -> Delays {
        match self.was_up {
            true => AGAIN,
            false => FIRST,
        }
    }
}

/// None: nothing is waited for.
fn spans(answer: Answer) -> Option<&'static Spans> {
    match answer {
        Answer::Silent => Some(&SILENT),
        Answer::Connected => Some(&CONNECTED),
        Answer::Refused => None,
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
            assert!(inband <= latest && reverse <= latest);
        }
        assert_eq!(begins(1, Answer::Silent), (100, 250));
        assert_eq!(begins(100, Answer::Silent), (150, 250));
    }

    #[test]
    fn what_has_connected_has_the_round_trips_that_its_stream_needs() {
        for round_trip in [1, 50, 100, 400] {
            let (inband, reverse) = begins(round_trip, Answer::Connected);
            assert!(inband >= u128::from(2 * round_trip));
            assert!(reverse > u128::from(3 * round_trip));
            let mut patience = Patience::default();
            patience.heard(Duration::from_millis(round_trip));
            assert!(patience.last(Answer::Connected).as_millis() > reverse);
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
        assert_eq!(patience.last(Answer::Silent), AGAIN.last);
    }

    #[test]
    fn a_server_that_has_not_said_where_it_listens_is_waited_for() {
        let patience = Patience::default();
        assert_eq!(patience.inband(Answer::Silent), FIRST.last);
        // It may be that far away: no port is opened here that may not be needed.
        assert_eq!(patience.reverse(Answer::Silent), FIRST.last);
    }
}

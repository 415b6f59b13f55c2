//! How long each route waits for the better ones. Pure: time and state are passed in.

use std::time::Duration;

use crate::transport::routes::direct::DialAnswer;

/// How much later than direct the other routes begin.
#[derive(Clone, Copy)]
struct Delays {
    reverse: Duration,
    last: Duration,
}

/// Before any route has carried data.
const FIRST: Delays = Delays {
    reverse: Duration::from_millis(250),
    last: Duration::from_secs(1),
};

/// After the route in use has lost all connections. They may come back.
const AGAIN: Delays = Delays {
    reverse: Duration::from_secs(5),
    last: Duration::from_secs(10),
};

/// Before anything has answered. After so many round trips nothing will: something drops the
/// packets.
const SILENT: RouteWaits = RouteWaits {
    inband: 1.5,
    inband_most: Duration::from_millis(750),
    reverse: 1.5,
    reverse_most: Duration::from_millis(750),
    last: 0.0,
};

/// After an address has accepted a TCP connection, which is known to work two round trips later at
/// a sender, and three at a receiver. Data through control begins before the other routes, but not
/// at once: it is slower, and delays later data.
const CONNECTED: RouteWaits = RouteWaits {
    inband: 2.5,
    inband_most: Duration::from_secs(1),
    reverse: 4.0,
    reverse_most: Duration::from_secs(2),
    last: 5.0,
};

const INBAND_LEAST: Duration = Duration::from_millis(100);
const LAST_MOST: Duration = Duration::from_secs(3);

/// Waits in round trips, with an upper bound for each.
struct RouteWaits {
    inband: f64,
    inband_most: Duration,
    reverse: f64,
    reverse_most: Duration,
    last: f64,
}

/// Decides the waits. The caller knows when they began.
#[derive(Default)]
pub struct RoutePatience {
    /// Time until the server's first answer: a round trip, and the server's work. None before that.
    answered: Option<Duration>,
    /// Some route has carried data.
    was_up: bool,
}

impl RoutePatience {
    pub fn heard(&mut self, answered: Duration) {
        self.answered = Some(answered);
    }

    pub fn came_up(&mut self) {
        self.was_up = true;
    }

    /// How long to wait for other connections before data goes through control. On an open network,
    /// one is there after two round trips.
    pub fn inband(&self, answer: DialAnswer) -> Duration {
        match (self.answered, spans(answer)) {
            (None, _) => self.delays().last,
            (_, None) => Duration::ZERO,
            (Some(answered), Some(spans)) => {
                let wait = answered.mul_f64(spans.inband);
                wait.clamp(INBAND_LEAST, spans.inband_most)
            }
        }
    }

    /// How long to wait for direct before reverse begins. Before the server's first answer nobody
    /// knows how far away it is.
    pub fn reverse(&self, answer: DialAnswer) -> Duration {
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

    /// How long to wait for the other routes before the last resort.
    pub fn last(&self, answer: DialAnswer) -> Duration {
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

/// None: there is nothing to wait for.
fn spans(answer: DialAnswer) -> Option<&'static RouteWaits> {
    match answer {
        DialAnswer::Silent => Some(&SILENT),
        DialAnswer::Connected => Some(&CONNECTED),
        DialAnswer::Refused => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Duration = Duration::from_millis(1);

    /// In milliseconds: when data goes through control, and when reverse begins.
    fn begins(round_trip_ms: u64, answer: DialAnswer) -> (u128, u128) {
        let mut patience = RoutePatience::default();
        patience.heard(Duration::from_millis(round_trip_ms));
        let (inband, reverse) = (patience.inband(answer), patience.reverse(answer));
        (inband.as_millis(), reverse.as_millis())
    }

    #[test]
    fn nothing_waits_for_who_has_refused_and_little_for_who_says_nothing() {
        for round_trip in [1, 50, 100, 300] {
            assert_eq!(begins(round_trip, DialAnswer::Refused), (0, 0));
            let (inband, reverse) = begins(round_trip, DialAnswer::Silent);
            assert!(inband > u128::from(round_trip), "an answer has its time");
            // The first byte may come a second later than by the best route, and no more.
            let latest = 1000 - u128::from(round_trip);
            assert!(inband <= latest && reverse <= latest);
        }
        assert_eq!(begins(1, DialAnswer::Silent), (100, 250));
        assert_eq!(begins(100, DialAnswer::Silent), (150, 250));
    }

    #[test]
    fn what_has_connected_has_the_round_trips_that_its_stream_needs() {
        for round_trip in [1, 50, 100, 400] {
            let (inband, reverse) = begins(round_trip, DialAnswer::Connected);
            assert!(inband >= u128::from(2 * round_trip));
            assert!(reverse > u128::from(3 * round_trip));
            let mut patience = RoutePatience::default();
            patience.heard(Duration::from_millis(round_trip));
            assert!(patience.last(DialAnswer::Connected).as_millis() > reverse);
        }
    }

    #[test]
    fn a_route_that_was_in_use_may_come_back_before_another_is_tried() {
        let mut patience = RoutePatience::default();
        patience.heard(NEAR);
        patience.came_up();
        for answer in [
            DialAnswer::Silent,
            DialAnswer::Connected,
            DialAnswer::Refused,
        ] {
            assert_eq!(patience.reverse(answer), AGAIN.reverse);
            assert!(patience.inband(answer) <= INBAND_LEAST);
        }
        assert_eq!(patience.last(DialAnswer::Silent), AGAIN.last);
    }

    #[test]
    fn a_server_that_has_not_said_where_it_listens_is_waited_for() {
        let patience = RoutePatience::default();
        assert_eq!(patience.inband(DialAnswer::Silent), FIRST.last);
        // The server may be that far away. No port is opened here before it is needed.
        assert_eq!(patience.reverse(DialAnswer::Silent), FIRST.last);
    }
}

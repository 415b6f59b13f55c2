//! The choice of the route, for a copy with this machine and for one between two hosts: which route
//! is tried when, and which is used. Pure: time and facts are passed in.
//!
//! A connection is sound when its other end has proved itself. The routes are tried in parallel, the
//! best first: direct at once, reverse a little later, further ssh logins after a second or more,
//! each only while no connection is sound. If none is sound after a moment, data goes through
//! control. The route of the first connection that is up is used, until all its connections are
//! lost.

use std::time::Duration;

use super::Route;
use super::direct::DialAnswer;

/// The facts of a session that the choice depends on.
#[derive(Clone, Copy, Debug)]
pub struct RouteView {
    /// A connection is sound.
    pub has_sound: bool,
    /// The end that dials is past its preparations, so connections can be expected.
    pub is_dialling: bool,
    /// What the direct route has answered.
    pub answer: DialAnswer,
}

/// What to do now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RouteSteps {
    /// Let data go through control.
    pub inband: bool,
    /// Begin to try these routes.
    pub begin: Vec<Route>,
    /// The better routes had all the time that they get.
    pub is_last: bool,
}

/// The choice in one session. Times are since the session was opened.
#[derive(Default)]
pub struct RouteChoice {
    patience: RoutePatience,
    chosen: Option<Route>,
    /// The time since which no connection is sound.
    without: Duration,
}

impl RouteChoice {
    /// The choice begins `now`.
    pub fn begin(&mut self, now: Duration) {
        self.without = now;
    }

    /// A host has said where it listens, `now`.
    pub fn heard(&mut self, now: Duration) {
        self.patience.heard(now);
        self.without = now;
    }

    /// Takes the best route that has carried data. Returns it if it is another than before: it is
    /// used from now on, and the other attempts end.
    pub fn settle(&mut self, up: Option<Route>) -> Option<Route> {
        let up = up?;
        self.patience.came_up();
        (self.chosen.replace(up) != Some(up)).then_some(up)
    }

    /// What to do `now`, after [`RouteChoice::settle`]. `may_begin` is false for a route that is
    /// being tried, has failed, or is not allowed.
    pub fn next(
        &mut self,
        now: Duration,
        view: RouteView,
        may_begin: impl Fn(Route) -> bool,
    ) -> RouteSteps {
        let mut steps = RouteSteps::default();
        if view.has_sound || !view.is_dialling {
            self.without = now;
            return steps;
        }
        let waited = now.saturating_sub(self.without);
        steps.inband = waited >= self.patience.inband(view.answer);
        if waited >= self.patience.reverse(view.answer) && may_begin(Route::Reverse) {
            steps.begin.push(Route::Reverse);
        }
        steps.is_last = waited >= self.patience.last(view.answer);
        if steps.is_last {
            // Direct was ended when another route was chosen.
            let direct = self.chosen.map(|_| Route::Direct);
            let last = [Some(Route::Ssh), direct].into_iter().flatten();
            steps.begin.extend(last.filter(|&route| may_begin(route)));
        }
        steps
    }
}

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
struct RoutePatience {
    /// Time until the server's first answer: a round trip, and the server's work. None before that.
    answered: Option<Duration>,
    /// Some route has carried data.
    was_up: bool,
}

impl RoutePatience {
    fn heard(&mut self, answered: Duration) {
        self.answered = Some(answered);
    }

    fn came_up(&mut self) {
        self.was_up = true;
    }

    /// How long to wait for other connections before data goes through control. On an open network,
    /// one is there after two round trips.
    fn inband(&self, answer: DialAnswer) -> Duration {
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
    fn reverse(&self, answer: DialAnswer) -> Duration {
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
    fn last(&self, answer: DialAnswer) -> Duration {
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

    /// A session with a server 40 ms away: facts change, and the steps are noted with their times.
    struct Scenario {
        choice: RouteChoice,
        up: Option<Route>,
        view: RouteView,
        running: Vec<Route>,
        steps: Vec<(u64, String)>,
    }

    impl Scenario {
        fn new(answer: DialAnswer) -> Scenario {
            let mut choice = RouteChoice::default();
            choice.heard(Duration::from_millis(40));
            Scenario {
                choice,
                up: None,
                view: RouteView {
                    has_sound: false,
                    is_dialling: true,
                    answer,
                },
                running: vec![Route::Direct],
                steps: Vec::new(),
            }
        }

        /// Looks every 10 ms in this span.
        fn run(&mut self, ms: std::ops::Range<u64>) -> &mut Self {
            for now in ms.step_by(10) {
                let settled = self.choice.settle(self.up);
                if let Some(route) = settled {
                    self.running.retain(|it| *it == route);
                }
                let running = self.running.clone();
                let may_begin = |route: Route| !running.contains(&route);
                let at = Duration::from_millis(now);
                let steps = self.choice.next(at, self.view, may_begin);
                let mut note = |what: String| {
                    if !self.steps.iter().any(|(_, told)| *told == what) {
                        self.steps.push((now, what));
                    }
                };
                if let Some(route) = settled {
                    note(format!("settle {}", route.name()));
                }
                if steps.inband {
                    note("inband".to_owned());
                }
                for route in steps.begin {
                    note(format!("begin {}", route.name()));
                    self.running.push(route);
                }
            }
            self
        }

        fn told(&self) -> Vec<(u64, &str)> {
            let told = self.steps.iter().map(|(at, what)| (*at, &what[..]));
            told.collect()
        }
    }

    #[test]
    fn silence_brings_one_route_after_the_other() {
        let mut silent = Scenario::new(DialAnswer::Silent);
        silent.run(40..4000);
        let expected = [(140, "inband"), (290, "begin reverse"), (1040, "begin ssh")];
        assert_eq!(silent.told(), expected);
    }

    #[test]
    fn a_refusal_is_not_waited_for_and_ssh_still_comes_last() {
        let mut refused = Scenario::new(DialAnswer::Refused);
        refused.run(40..4000);
        let expected = [(40, "inband"), (40, "begin reverse"), (1040, "begin ssh")];
        assert_eq!(refused.told(), expected);
    }

    #[test]
    fn who_still_looks_for_files_is_waited_for_without_end() {
        let mut busy = Scenario::new(DialAnswer::Silent);
        busy.view.is_dialling = false;
        busy.run(40..60_000);
        assert_eq!(busy.told(), []);
        busy.view.is_dialling = true;
        busy.run(60_000..60_200);
        assert_eq!(busy.told(), [(60_090, "inband")]);
    }

    #[test]
    fn the_route_in_use_comes_back_before_others_and_all_are_tried_again_once() {
        let mut reverse = Scenario::new(DialAnswer::Silent);
        reverse.run(40..300);
        (reverse.up, reverse.view.has_sound) = (Some(Route::Reverse), true);
        reverse.run(300..1000);
        assert_eq!(reverse.running, [Route::Reverse]);
        reverse.steps.clear();
        // All connections are lost.
        (reverse.up, reverse.view.has_sound) = (None, false);
        reverse.run(1000..30_000);
        let expected = [
            (1090, "inband"),
            (10_990, "begin ssh"),
            (10_990, "begin direct"),
        ];
        assert_eq!(reverse.told(), expected);
        // The route that was lost comes back: the others end.
        (reverse.up, reverse.view.has_sound) = (Some(Route::Direct), true);
        reverse.run(30_000..30_020);
        assert_eq!(reverse.running, [Route::Direct]);
        // The next outage begins like the one before, with a connection that is up but not sound.
        reverse.steps.clear();
        reverse.view.has_sound = false;
        reverse.run(30_020..60_000);
        let last = (40_010, "begin ssh");
        assert_eq!(reverse.told().last(), Some(&last), "{:?}", reverse.told());
    }

    #[test]
    fn the_first_answer_has_its_time_however_long_the_sources_were_counted() {
        let mut choice = RouteChoice::default();
        choice.begin(Duration::from_secs(60));
        let view = RouteView {
            has_sound: false,
            is_dialling: true,
            answer: DialAnswer::Silent,
        };
        let soon = Duration::from_millis(60_900);
        assert_eq!(choice.next(soon, view, |_| true), RouteSteps::default());
    }
}

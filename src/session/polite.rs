//! The loop of a polite copy: it samples the sending connections and sets their pace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::transport::connections::ConnectionSet;
use crate::transport::rate_limit::RateLimiter;
use crate::tuner::{LOOK, PoliteRate};

/// The round trip assumed until a connection is up.
const ROUND_TRIP_GUESS: Duration = Duration::from_millis(20);

/// A warning for copies whose data goes inside ssh.
pub const NO_EFFECT: &str = "fastcp: warning: --polite has no effect on data that goes through ssh; limit the rate with --bwlimit";

/// Keeps the connections of `connection_set` at the rate of a polite copy until it is dropped, and
/// never above `limit`. `tell` receives a line for each clear change of the rate.
pub async fn keep(
    connection_set: Arc<ConnectionSet>,
    limit: Arc<RateLimiter>,
    tell: impl Fn(String) + Send,
) {
    // A connection that comes up now starts slowly.
    connection_set.pace(PoliteRate::new(ROUND_TRIP_GUESS).rate());
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let first = loop {
        looks.tick().await;
        if let Some(round_trip) = connection_set.round_trip() {
            break round_trip;
        }
    };
    let began = Instant::now();
    let mut polite = PoliteRate::new(first);
    loop {
        // The next round reads the answers to this request.
        connection_set.ask();
        looks.tick().await;
        let now = began.elapsed();
        polite.limit(limit.rate());
        connection_set.pace(polite.look(now, &connection_set.sights()));
        if let Some(line) = polite.news(now) {
            tell(line);
        }
    }
}

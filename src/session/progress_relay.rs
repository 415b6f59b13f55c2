//! Reports of the sender of a copy between two hosts, which inform the client of its progress
//! several times a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use crate::control::Outgoing;
use crate::pipeline::send::Sender;
use crate::progress::Phase;
use crate::transport::connections::ConnectionSet;
use crate::transport::routes::Route;
use crate::wire::message::Message;
use crate::wire::progress_report::{ProgressReport, RouteFacts};

/// Interval between checks for new or lost connections, which the client waits for.
const LOOK: Duration = Duration::from_millis(50);

/// Interval between reports of the counters, which the user watches.
const TELL: Duration = Duration::from_millis(250);

/// Characters of a cause that are reported.
const CAUSE_MAX: usize = 200;

pub struct ProgressRelay {
    teller: ProgressTeller,
    telling: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct ProgressTeller {
    sender: Arc<Sender>,
    connection_set: Arc<ConnectionSet>,
    control: Outgoing,
}

impl ProgressRelay {
    pub fn start(
        sender: &Arc<Sender>,
        connection_set: &Arc<ConnectionSet>,
        control: &Outgoing,
    ) -> ProgressRelay {
        let teller = ProgressTeller {
            sender: sender.clone(),
            connection_set: connection_set.clone(),
            control: control.clone(),
        };
        let telling = tokio::spawn(teller.clone().run());
        ProgressRelay {
            teller,
            telling: AbortOnDropHandle::new(telling),
        }
    }

    /// Sends the last report.
    pub async fn end(self) {
        // No report that was begun earlier may follow the last one.
        self.telling.abort();
        let _ = self.telling.await;
        let last = Message::Account(self.teller.account());
        // The reader reports a lost connection.
        let _ = self.teller.control.send(last).await;
    }
}

impl ProgressTeller {
    async fn run(self) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut told_at, mut told) = (Instant::now(), None);
        loop {
            ticks.tick().await;
            let account = self.account();
            let stands = account.ways.map(|way| (way.sound, way.up));
            if told == Some(stands) && told_at.elapsed() < TELL {
                continue;
            }
            (told_at, told) = (Instant::now(), Some(stands));
            // Dropped if the queue is full; the next report has the same facts.
            self.control.try_send(Message::Account(account));
        }
    }

    fn account(&self) -> ProgressReport {
        let ProgressTeller {
            sender,
            connection_set,
            ..
        } = self;
        let carried = connection_set.carried();
        let snapshot = sender.context.progress.snapshot();
        let cause = connection_set.last_cause().unwrap_or_default();
        ProgressReport {
            counts: sender.context.progress.counts(),
            names: snapshot.names,
            is_flushing: snapshot.phase == Phase::Flushing,
            ways: Route::ALL.map(|route| {
                let route_state = connection_set.route_state(route);
                RouteFacts {
                    sound: route_state.sound as u16,
                    up: route_state.up as u16,
                    carried: carried[route as usize],
                }
            }),
            cause: cause.chars().take(CAUSE_MAX).collect(),
        }
    }
}

//! The figures of a copy over time: a point for each second, and fewer once the copy is long.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::algorithms::Method;
use crate::outcome::{CopyActivity, Shares};
use crate::progress::Traffic;

/// When there are more points than this, each two become one.
const POINTS_MAX: usize = 512;

/// Connections of one point; further ones are only counted. With these limits the points take less
/// than 300 KB.
const CONNECTIONS_MAX: usize = 64;

/// After so many seconds without a word of the sending end, its last one no longer holds.
const SILENCE_S: f64 = 3.5;

/// The stages whose use is shown, in the order of the data.
pub(super) const STAGES: [&str; 5] = [
    "source",
    "compression",
    "network",
    "decompression",
    "destination",
];

/// What happened between two moments, in seconds since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Point {
    pub from: f64,
    pub until: f64,
    /// Readings that it stands for.
    readings: u32,
    /// Bytes written at the destination.
    pub content: u64,
    /// Bytes sent, and the content in them.
    pub wire: u64,
    pub raw: u64,
    pub again: u64,
    /// How busy each stage was, 0 to 1.
    pub shares: Option<[f32; STAGES.len()]>,
    pub method: Option<Method>,
    /// The most connections that were up at once.
    pub connections: Option<u16>,
    /// Bytes a second of each stream.
    pub streams: Vec<(u16, f32)>,
}

impl Point {
    pub(super) fn seconds(&self) -> f64 {
        (self.until - self.from).max(1e-3)
    }

    pub(super) fn per_s(&self, bytes: u64) -> f64 {
        bytes as f64 / self.seconds()
    }

    /// Adds the point that follows it.
    fn add(&mut self, later: Point) {
        let (own, all) = (self.seconds(), self.seconds() + later.seconds());
        let mean = |one: f32, two: f32| {
            ((f64::from(one) * own + f64::from(two) * (all - own)) / all) as f32
        };
        self.shares = match (self.shares, later.shares) {
            (Some(one), Some(two)) => Some(std::array::from_fn(|nth| mean(one[nth], two[nth]))),
            (one, two) => two.or(one),
        };
        for stream in &mut self.streams {
            let same = later.streams.iter().find(|other| other.0 == stream.0);
            stream.1 = mean(stream.1, same.map_or(0.0, |same| same.1));
        }
        let known: Vec<u16> = self.streams.iter().map(|stream| stream.0).collect();
        let new = later.streams.iter();
        let new = new.filter(|stream| !known.contains(&stream.0));
        let new = new.map(|stream| (stream.0, mean(0.0, stream.1)));
        self.streams.extend(new);
        self.streams.truncate(CONNECTIONS_MAX);
        self.until = later.until;
        self.readings += later.readings;
        self.content += later.content;
        self.wire += later.wire;
        self.raw += later.raw;
        self.again += later.again;
        self.method = later.method.or(self.method);
        self.connections = self.connections.max(later.connections);
    }
}

/// The counters of a copy at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// Bytes written at the destination.
    pub content: u64,
    pub traffic: Traffic,
}

#[derive(Default)]
pub(super) struct Series {
    points: Vec<Point>,
    /// Readings that one point stands for.
    readings_each: u32,
    before: Reading,
    streams: StreamRates,
}

impl Series {
    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Readings that one point stands for.
    pub(super) fn readings_each(&self) -> u32 {
        self.readings_each.max(1)
    }

    /// The bytes of each stream.
    pub(super) fn stream_totals(&self) -> &BTreeMap<u16, u64> {
        &self.streams.totals
    }

    /// Adds the figures between two moments. Returns how many streams have been dialled again.
    pub(super) fn add(&mut self, (from, until): (f64, f64), now: Reading) -> u32 {
        let before = std::mem::replace(&mut self.before, now);
        let (now, was) = (&self.before, &before.traffic);
        // The next of several sources begins with 0.
        let more = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let traffic = &now.traffic;
        let again = self.streams.note(traffic.activity.as_ref(), until - from);
        let activity = traffic
            .activity
            .as_ref()
            .filter(|_| !self.streams.is_silent());
        let point = Point {
            from,
            until,
            readings: 1,
            content: more(now.content, before.content),
            wire: more(traffic.wire_bytes, was.wire_bytes),
            raw: more(traffic.raw_bytes, was.raw_bytes),
            again: more(traffic.sent_again_bytes, was.sent_again_bytes),
            shares: activity.map(|it| of_stages(&it.shares)),
            method: activity.map(|it| it.method),
            connections: activity.map(|it| it.connections.len() as u16),
            streams: activity.map_or_else(Vec::new, |_| self.streams.rates.clone()),
        };
        self.readings_each = self.readings_each.max(1);
        match self.points.last_mut() {
            Some(last) if last.readings < self.readings_each => last.add(point),
            _ => self.points.push(point),
        }
        if self.points.len() > POINTS_MAX {
            self.thin_out();
        }
        again
    }

    fn thin_out(&mut self) {
        self.readings_each *= 2;
        let mut points: Vec<Point> = Vec::with_capacity(POINTS_MAX);
        for point in self.points.drain(..) {
            match points.last_mut() {
                Some(last) if last.readings < self.readings_each => last.add(point),
                _ => points.push(point),
            }
        }
        self.points = points;
    }
}

fn of_stages(shares: &Shares) -> [f32; STAGES.len()] {
    [
        shares.source_disk,
        shares.compression,
        shares.network,
        shares.decompression,
        shares.destination_disk,
    ]
    .map(|share| share as f32)
}

/// The throughput of each stream, from what the sending end tells.
#[derive(Default)]
struct StreamRates {
    /// When it was told, by the clock of the sending end.
    told_us: u64,
    silence_s: f64,
    /// By stream and attempt.
    bytes: BTreeMap<(u16, u16), u64>,
    attempts: BTreeMap<u16, u16>,
    rates: Vec<(u16, f32)>,
    totals: BTreeMap<u16, u64>,
}

impl StreamRates {
    /// Returns how many streams have been dialled again. `passed` seconds lie between two calls.
    fn note(&mut self, activity: Option<&Arc<CopyActivity>>, passed: f64) -> u32 {
        self.silence_s += passed;
        let Some(activity) = activity.filter(|it| it.elapsed_us != self.told_us) else {
            return 0;
        };
        self.silence_s = 0.0;
        if activity.elapsed_us < self.told_us {
            // Another session.
            self.told_us = 0;
            self.bytes.clear();
            self.attempts.clear();
        }
        let seconds = (activity.elapsed_us - self.told_us) as f64 / 1e6;
        self.told_us = activity.elapsed_us;
        let mut again = 0;
        self.rates.clear();
        let before = std::mem::take(&mut self.bytes);
        for connection in &activity.connections {
            let (stream, attempt) = (connection.stream, connection.attempt);
            let had = before.get(&(stream, attempt)).copied();
            let more = connection.bytes.saturating_sub(had.unwrap_or(0));
            self.bytes.insert((stream, attempt), connection.bytes);
            let total = self.totals.entry(stream).or_default();
            *total = total.saturating_add(more);
            let former = self.attempts.insert(stream, attempt);
            again += u32::from(former.is_some_and(|former| former != attempt));
            if self.rates.len() < CONNECTIONS_MAX {
                self.rates.push((stream, (more as f64 / seconds) as f32));
            }
        }
        again
    }

    fn is_silent(&self) -> bool {
        self.silence_s > SILENCE_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::CarriedBytes;

    fn reading(second: u64) -> Reading {
        let connections = vec![CarriedBytes {
            stream: 7,
            attempt: u16::from(second > 5),
            bytes: if second > 5 { second - 5 } else { second } * 100,
        }];
        let activity = CopyActivity {
            elapsed_us: second * 1_000_000,
            shares: Shares {
                network: 0.5,
                ..Shares::default()
            },
            method: Method::Zstd(3),
            connections,
        };
        Reading {
            content: second * 1000,
            traffic: Traffic {
                wire_bytes: second * 100,
                raw_bytes: second * 400,
                sent_again_bytes: second,
                activity: Some(Arc::new(activity)),
            },
        }
    }

    #[test]
    fn a_long_copy_has_few_points_that_lose_nothing() {
        let mut series = Series::default();
        let mut again = 0;
        for second in 1..=10_000 {
            let time = ((second - 1) as f64, second as f64);
            again += series.add(time, reading(second));
        }
        let points = series.points();
        assert!(points.len() <= POINTS_MAX && points.len() > POINTS_MAX / 4);
        let sum = |get: fn(&Point) -> u64| points.iter().map(get).sum::<u64>();
        assert_eq!(sum(|it| it.content), 10_000_000);
        assert_eq!(
            (sum(|it| it.wire), sum(|it| it.raw)),
            (1_000_000, 4_000_000)
        );
        assert_eq!(sum(|it| it.again), 10_000);
        assert_eq!((again, series.stream_totals()[&7]), (1, 1_000_000));
        let pairs = points.windows(2);
        assert!({ pairs }.all(|pair| pair[0].until == pair[1].from));
        assert_eq!(points.last().expect("some").until, 10_000.0);
        for point in points {
            assert!((point.streams[0].1 - 100.0).abs() < 1.0, "{point:?}");
            assert_eq!(point.shares.expect("known")[2], 0.5);
        }
    }

    #[test]
    fn a_silent_sender_is_not_drawn_as_a_busy_one() {
        let mut series = Series::default();
        for second in 0..8 {
            series.add((second as f64, (second + 1) as f64), reading(1));
        }
        let known = series.points().iter().filter(|it| it.shares.is_some());
        assert_eq!(known.count(), 4);
    }
}

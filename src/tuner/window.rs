//! The most recent samples, and the rates between any two of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use super::method::{Facts, RUNGS};
use super::sample::{MethodWork, ReceiverSample, Sample};

/// Samples to keep. Even at intervals of [`APART`] they cover 12.8 s; the longest span asked for
/// is 12 s, twenty round trips of 600 ms.
const SAMPLES_MAX: usize = 320;

/// A sample that follows the last one sooner is ignored.
const APART: Duration = Duration::from_millis(40);

/// The shortest useful span of the receiver's counters: data arrives there in bursts.
const FAR_LEAST: Duration = Duration::from_millis(900);

/// A method's figures count only if it was offered more content than this.
const OFFERED_MIN: u64 = 64 << 10;

/// Worker threads at each end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workers {
    pub here: f64,
    pub there: f64,
}

/// Means over a span of time. Rates are bytes a second, shares are 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub seconds: f64,
    /// Content that the link carried, computed from the carried bytes and their ratio. It is
    /// smooth where acknowledgements come by the megabyte.
    pub goodput: f64,
    pub acked: f64,
    /// Content that workers encoded.
    pub encoded: f64,
    pub wire: f64,
    /// Bytes that the rate limit admitted, for all copies that share it.
    pub admitted: f64,
    /// Bytes of content for each byte on the wire.
    pub ratio: f64,
    pub frame_bytes: f64,
    /// Connections had bytes to send, and the receiver took them.
    pub link: f64,
    pub workers: f64,
    pub encode: f64,
    pub read: f64,
    pub far_workers: f64,
    pub decode: f64,
    pub write: f64,
    /// The share of carried bytes that were retransmitted.
    pub loss: f64,
    pub facts: [Option<Facts>; RUNGS],
}

#[derive(Default)]
pub(super) struct SampleWindow {
    samples: VecDeque<(Duration, Sample)>,
    /// The rates that [`SampleWindow::last`] returned since the last sample, by span: one decision asks
    /// for the same ones again and again.
    lasts: RefCell<Vec<(Duration, Option<Rates>)>>,
}

impl SampleWindow {
    /// Returns false if it ignored the sample.
    pub(super) fn push(&mut self, now: Duration, sample: &Sample) -> bool {
        if let Some((last, _)) = self.samples.back()
            && now < *last + APART
        {
            return false;
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back((now, *sample));
        self.lasts.get_mut().clear();
        true
    }

    /// The last `span`, or slightly more; None if the samples do not cover it yet. `workers` are always
    /// the same.
    pub(super) fn last(&self, span: Duration, workers: Workers) -> Option<Rates> {
        let known = self.lasts.borrow().iter().find(|it| it.0 == span).copied();
        if let Some((_, rates)) = known {
            return rates;
        }
        let rates = self.compute_last(span, workers);
        self.lasts.borrow_mut().push((span, rates));
        rates
    }

    fn compute_last(&self, span: Duration, workers: Workers) -> Option<Rates> {
        let (now, sample) = self.samples.back()?;
        // The first sample covers the time since the start.
        if now.saturating_sub(span) == Duration::ZERO {
            return (*now >= span).then(|| between(*now, &Sample::default(), sample, workers));
        }
        let most = now.checked_sub(span)?;
        let mut samples = self.samples.iter().rev();
        let (then, before) = samples.find(|(at, _)| *at <= most)?;
        let far = self.far_before(span.max(FAR_LEAST));
        Some(between_with(*now - *then, before, &far, sample, workers))
    }

    /// From the first sample after `then` to the last one; None if they are one sample.
    pub(super) fn since(&self, then: Duration, workers: Workers) -> Option<Rates> {
        let (now, sample) = self.samples.back()?;
        let first = self.samples.partition_point(|(at, _)| *at <= then);
        let (at, before) = self.samples.get(first).filter(|(at, _)| at < now)?;
        Some(between(*now - *at, before, sample, workers))
    }

    /// Both halves of the last `span`; None if the samples do not cover it yet.
    pub(super) fn halves(&self, span: Duration, workers: Workers) -> Option<(Rates, Rates)> {
        let (now, sample) = self.samples.back()?;
        let at = |ago: Duration| self.samples.iter().rev().find(|(at, _)| *at + ago <= *now);
        let ((first, before), (middle, between_them)) = (at(span)?, at(span / 2)?);
        Some((
            between(*middle - *first, before, between_them, workers),
            between(*now - *middle, between_them, sample, workers),
        ))
    }

    /// The receiver's counters from `span` before its newest ones, else its first counters: the
    /// time before it had any work does not count.
    fn far_before(&self, span: Duration) -> ReceiverSample {
        let elapsed = |(_, sample): &(Duration, Sample)| sample.far.elapsed;
        let newest = self.samples.back().map_or(Duration::ZERO, elapsed);
        let first = || {
            let mut samples = self.samples.iter();
            samples.find(|it| !elapsed(it).is_zero() && elapsed(it) < newest)
        };
        let before = newest.checked_sub(span).and_then(|most| {
            let mut samples = self.samples.iter().rev();
            samples.find(|it| elapsed(it) <= most)
        });
        before
            .filter(|it| !elapsed(it).is_zero())
            .or_else(first)
            .map_or_else(ReceiverSample::default, |(_, sample)| sample.far)
    }

    /// From the start to the last sample.
    pub(super) fn whole(&self, workers: Workers) -> Rates {
        match self.samples.back() {
            None => Rates::default(),
            Some((now, sample)) => between(*now, &Sample::default(), sample, workers),
        }
    }

    pub(super) fn newest(&self) -> Sample {
        self.samples
            .back()
            .map(|(_, sample)| *sample)
            .unwrap_or_default()
    }

    /// The longest round trip among the samples of the last `span`.
    pub(super) fn longest_round_trip(&self, span: Duration) -> Duration {
        let now = self.samples.back().map_or(Duration::ZERO, |(now, _)| *now);
        let samples = self.samples.iter().rev();
        let lately = samples.take_while(|(at, _)| *at + span >= now);
        let round_trips = lately.map(|(_, sample)| sample.round_trip);
        round_trips.max().unwrap_or_default()
    }

    /// The unevenness of the wire rate over the last `span`: the standard error of the mean,
    /// relative to the mean.
    pub(super) fn unevenness(&self, span: Duration) -> f64 {
        let Some((now, _)) = self.samples.back() else {
            return 0.0;
        };
        let rates: Vec<f64> = (self.samples.iter().zip(self.samples.iter().skip(1)))
            .filter(|((then, _), _)| *then + span >= *now)
            .map(|((then, a), (at, b))| {
                b.carried_bytes.saturating_sub(a.carried_bytes) as f64 / (*at - *then).as_secs_f64()
            })
            .collect();
        let count = rates.len() as f64;
        let mean = rates.iter().sum::<f64>() / count;
        if count < 2.0 || mean <= 0.0 {
            return 0.0;
        }
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (variance / count).sqrt() / mean
    }
}

/// The rates in `span`, between two samples.
pub(super) fn between(span: Duration, before: &Sample, after: &Sample, workers: Workers) -> Rates {
    between_with(span, before, &before.far, after, workers)
}

/// The same, with these counters of the receiver for those of the first sample.
fn between_with(
    span: Duration,
    before: &Sample,
    far_before: &ReceiverSample,
    after: &Sample,
    workers: Workers,
) -> Rates {
    let seconds = span.as_secs_f64().max(1e-3);
    let per_s = |get: fn(&Sample) -> u64| get(after).saturating_sub(get(before)) as f64 / seconds;
    let share = |get: fn(&Sample) -> Duration| {
        (get(after).saturating_sub(get(before)).as_secs_f64() / seconds).min(1.0)
    };
    let workers_share = |get: fn(&Sample) -> Duration| {
        let busy = get(after).saturating_sub(get(before)).as_secs_f64();
        (busy / seconds / workers.here).min(1.0)
    };
    let far_seconds = after
        .far
        .elapsed
        .saturating_sub(far_before.elapsed)
        .as_secs_f64();
    let far = |get: fn(&ReceiverSample) -> Duration, of: f64| {
        let busy = get(&after.far)
            .saturating_sub(get(far_before))
            .as_secs_f64();
        if far_seconds > 0.0 {
            (busy / far_seconds / of).min(1.0)
        } else {
            0.0
        }
    };
    let (raw, framed) = (per_s(|s| s.raw_bytes), per_s(|s| s.wire_bytes));
    let wire = per_s(|s| s.carried_bytes);
    let ratio = if framed > 0.0 { raw / framed } else { 1.0 };
    let frames = per_s(|s| s.frames);
    Rates {
        seconds,
        goodput: wire * ratio,
        acked: per_s(|s| s.acked_bytes),
        encoded: per_s(|s| s.codecs.iter().map(|codec| codec.offered_bytes).sum()),
        wire,
        admitted: per_s(|s| s.admitted_bytes),
        ratio,
        frame_bytes: if frames > 0.0 { framed / frames } else { 0.0 },
        link: share(|s| s.link_busy) * (1.0 - far(|f| f.waits, 1.0)),
        workers: workers_share(|s| s.workers_busy),
        encode: workers_share(|s| s.encode_busy),
        read: share(|s| s.read_busy),
        far_workers: far(|f| f.workers_busy, workers.there),
        decode: far(|f| f.decode_busy, workers.there),
        write: far(|f| f.write_busy, 1.0),
        loss: per_s(|s| s.retransmitted_bytes) / wire.max(1.0),
        facts: std::array::from_fn(|rung| facts(rung, &before.codecs[rung], &after.codecs[rung])),
    }
}

fn facts(rung: usize, before: &MethodWork, after: &MethodWork) -> Option<Facts> {
    let offered = after.offered_bytes.saturating_sub(before.offered_bytes);
    let made = after.made_bytes.saturating_sub(before.made_bytes);
    if rung == 0 {
        return Some(Facts {
            ns_per_byte: 0.0,
            ratio: 1.0,
        });
    }
    (offered >= OFFERED_MIN).then(|| Facts {
        ns_per_byte: after.busy.saturating_sub(before.busy).as_nanos() as f64 / offered as f64,
        ratio: (offered as f64 / made.max(1) as f64).max(1.0),
    })
}

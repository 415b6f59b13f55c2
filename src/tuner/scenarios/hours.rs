//! An hour of simulated time on thirty kinds of links and loads.

use super::*;

/// The events of an hour's copies, in order.
const HOURS: [&[Event]; 6] = [
    &[
        (600.0, |w| w.link /= 5.0),
        (1200.0, |w| w.link *= 10.0),
        (2400.0, |w| w.link /= 2.0),
    ],
    &[(900.0, |w| w.loss = 0.001), (2100.0, |w| w.loss = 0.0)],
    &[
        (900.0, |w| w.write = 40e6),
        (1800.0, |w| w.write = 2e9),
        (2700.0, |w| w.read = 40e6),
    ],
    &[(900.0, |w| w.here /= 4.0), (2100.0, |w| w.here *= 4.0)],
    &[
        (600.0, |w| w.data = SimulatedData::Random),
        (1500.0, |w| w.data = SimulatedData::Text),
        (2400.0, |w| w.data = SimulatedData::Random),
    ],
    &[
        (900.0, |w| w.competing = 12.0),
        (2100.0, |w| w.competing = 0.0),
    ],
];

/// The most changes in an hour. A change that does not pay is tried again after 30 s, a minute and
/// so on up to ten minutes: ten trials of two lines for each of about four changes.
const CHANGES_MAX: usize = 80;

#[test]
fn an_hour_of_thirty_kinds_of_links_and_loads_passes_without_oscillation() {
    let worlds = [LAN, WORLD, OCEAN, SLOW, WINDOWS];
    for seed in 0..30 {
        let (world, events) = (worlds[seed % 5], HOURS[seed / 5]);
        let run = run(world, start(&world), seed as u64, 3600.0, events);
        let changes = run.changes_since(0.0);
        assert!(changes <= CHANGES_MAX, "{seed}: {changes}\n{}", told(&run));
        // From a minute after each event on, at most 2 % of the seconds are over 15 % below the
        // mean.
        let mut bounds: Vec<f64> = events.iter().map(|(at, _)| *at).collect();
        bounds.insert(0, 0.0);
        bounds.push(3600.0);
        for stretch in bounds.windows(2) {
            let (from, to) = (stretch[0] as usize + 60, stretch[1] as usize);
            let mean = run.mean(from as f64, to as f64);
            let low = (from..to).filter(|at| run.mean(*at as f64, *at as f64 + 1.0) < 0.85 * mean);
            let low = low.count();
            assert!(
                low <= (to - from) / 50,
                "{seed}: {low} s from {from} s on\n{}",
                told(&run)
            );
            has_found_its_way(&format!("{seed}"), &run, from as f64, to as f64);
        }
    }
}

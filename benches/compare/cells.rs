//! The cells of the comparison: the links, the inputs and tools on each, and fastcp's goals.
//! Another comparison needs only another list.

/// A link between two hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub name: &'static str,
    pub round_trip_ms: u32,
    /// 0: as fast as this machine is.
    pub mbit_per_s: u32,
    /// Lost packets, in percent.
    pub loss: f64,
    /// Only ssh's port accepts new connections.
    pub only_ssh: bool,
}

const fn link(name: &'static str, round_trip_ms: u32, mbit_per_s: u32) -> Link {
    Link {
        name,
        round_trip_ms,
        mbit_per_s,
        loss: 0.0,
        only_ssh: false,
    }
}

pub(crate) const LINKS: [Link; 7] = [
    link("unshaped", 0, 0),
    link("1 Gbit/s", 0, 1000),
    link("1 Gbit/s, 50 ms", 50, 1000),
    link("1 Gbit/s, 150 ms", 150, 1000),
    Link {
        loss: 0.1,
        ..link("500 Mbit/s, 150 ms, 0.1 % lost", 150, 500)
    },
    link("50 Mbit/s, 80 ms", 80, 50),
    Link {
        only_ssh: true,
        ..link("port 22 alone, 100 ms", 100, 1000)
    },
];

/// The ratio of fastcp's time to this tool's must be at most `most`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// [`BEST`] is the fastest tool.
    pub tool: &'static str,
    pub most: f64,
    /// fastcp's time counts without a login, because the tool has none.
    pub without_login: bool,
}

pub(crate) const BEST: &str = "the best of them";

const fn goal(tool: &'static str, most: f64) -> Goal {
    Goal {
        tool,
        most,
        without_login: false,
    }
}

/// At least this part of the rate of a tool that only sends bytes.
const fn of_rate(tool: &'static str, part: f64) -> Goal {
    Goal {
        tool,
        most: 1.0 / part,
        without_login: true,
    }
}

/// An input on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub link: &'static str,
    pub input: &'static str,
    /// Bytes of the input to copy; 0 for all.
    pub bytes: u64,
    /// Tools besides those of the goals.
    pub tools: &'static [&'static str],
    pub goals: &'static [Goal],
}

/// Besides the goals' tools, a cell has only tools that come close to fastcp. Other rows would take
/// more time than the rest of their cell. Over 50 ms, ssh's window limits scp and rsync to 40 MB/s
/// (calculated, not measured), and rsync sends the zeros of a sparse image.
pub(crate) const CELLS: &[Cell] = &[
    Cell {
        link: "unshaped",
        input: "random",
        bytes: 0,
        tools: &[],
        goals: &[
            goal("bbcp", 0.9),
            goal("tar|nc", 0.6),
            goal("scp", 0.2),
            goal("cat", 1.8),
        ],
    },
    Cell {
        link: "unshaped",
        input: "database",
        bytes: 0,
        tools: &["scp", "tar|nc", "tar|lz4|nc", "tar|zstd|nc", "bbcp"],
        goals: &[goal(BEST, 0.8)],
    },
    Cell {
        link: "1 Gbit/s",
        input: "database",
        bytes: 0,
        tools: &["tar|zstd|nc"],
        goals: &[goal("tar|lz4|nc", 0.75), goal("scp", 0.35)],
    },
    Cell {
        link: "1 Gbit/s, 50 ms",
        input: "random",
        bytes: 0,
        tools: &["bbcp"],
        goals: &[of_rate("iperf3 -P 16", 0.95)],
    },
    Cell {
        link: "1 Gbit/s, 50 ms",
        input: "database",
        bytes: 0,
        tools: &["tar|lz4|nc"],
        goals: &[goal("tar|zstd|nc", 0.55), goal("scp", 0.15)],
    },
    Cell {
        link: "1 Gbit/s, 50 ms",
        input: "files",
        bytes: 0,
        tools: &[],
        goals: &[goal("tar|zstd|nc", 0.7), goal("rsync -a", 0.6)],
    },
    Cell {
        link: "1 Gbit/s, 50 ms",
        input: "log",
        bytes: 0,
        tools: &["tar|zstd|nc"],
        goals: &[],
    },
    Cell {
        link: "1 Gbit/s, 50 ms",
        input: "sparse",
        bytes: 0,
        tools: &["tar|zstd|nc"],
        goals: &[],
    },
    Cell {
        link: "1 Gbit/s, 150 ms",
        input: "random",
        bytes: 0,
        tools: &[],
        goals: &[
            of_rate("iperf3 -P 16", 0.92),
            goal("bbcp", 0.6),
            goal("scp", 0.2),
        ],
    },
    Cell {
        link: "500 Mbit/s, 150 ms, 0.1 % lost",
        input: "random",
        bytes: 1 << 30,
        tools: &[],
        goals: &[
            of_rate("iperf3 like fastcp", 0.9),
            // Possible where the sender may choose bbr.
            of_rate("iperf3 -P 32", 1.5),
        ],
    },
    Cell {
        link: "50 Mbit/s, 80 ms",
        input: "database",
        bytes: 256 << 20,
        tools: &[],
        goals: &[goal("tar|zstd -9|ssh", 1.0)],
    },
    Cell {
        link: "port 22 alone, 100 ms",
        input: "database",
        bytes: 512 << 20,
        tools: &["scp", "tar|zstd -9|ssh"],
        goals: &[],
    },
];

const SLOW_MBIT_PER_S: [u32; 6] = [1, 2, 5, 10, 20, 50];
const SLOW_ROUND_TRIPS_MS: [u32; 3] = [20, 100, 300];

/// Seconds that a cell's data takes on a slow link.
const SLOW_SECONDS: u64 = 25;

const SLOW_GOALS: &[Goal] = &[goal("scp", 1.03)];

/// Slow links with every combination of rate and round trip.
pub(crate) fn slow_links() -> Vec<Link> {
    let links = SLOW_MBIT_PER_S.into_iter().flat_map(|rate| {
        SLOW_ROUND_TRIPS_MS.map(|round_trip| {
            // The names last as long as the bench.
            let name = format!("{rate} Mbit/s, {round_trip} ms").leak();
            link(name, round_trip, rate)
        })
    });
    links.collect()
}

/// Random data on a slow link, where only the link matters.
pub(crate) fn slow_cell(link: &Link) -> Cell {
    Cell {
        link: link.name,
        input: "random",
        bytes: u64::from(link.mbit_per_s) * 125_000 * SLOW_SECONDS,
        tools: &[],
        goals: SLOW_GOALS,
    }
}

/// Connections that a distant link with losses needed. The next copy finds them in its stored
/// settings.
pub(crate) const WRONG_STREAMS: u16 = 128;

/// Largest ratio of a copy's time with the settings of another link to its time without any.
pub(crate) const WRONG_MEMORY_MAX: f64 = 1.05;

/// Settings that the sweep of the regret tries once each, before the best three run again.
pub(crate) const SWEEP_CODECS: [&str; 5] = ["none", "lz4", "zstd:1", "zstd:3", "zstd:9"];
pub(crate) const SWEEP_STREAMS: [u16; 3] = [16, 4, 1];

/// Largest ratio of the defaults' time to that of the sweep's best, in each cell and as the mean.
pub(crate) const REGRET_MAX: f64 = 1.10;
pub(crate) const REGRET_MEAN_MAX: f64 = 1.05;

/// Shortest time of a copy in the sweep, on a link that has a rate.
pub(crate) const SWEEP_SECONDS: f64 = 5.0;

/// About how many times smaller a suitable codec makes an input. The sweep copies this many times
/// more of it.
pub(crate) fn shrinks(input: &str) -> f64 {
    match input {
        "random" => 1.0,
        "sparse" => 8.0,
        _ => 3.0,
    }
}

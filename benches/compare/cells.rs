//! What is compared: the links, and on each the inputs, the tools, and how fastcp is to do beside
//! them. This list is all there is to change for another comparison.

/// A link between two hosts.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub name: &'static str,
    pub round_trip_ms: u32,
    /// 0: as fast as this machine goes.
    pub mbit_per_s: u32,
    /// Packets that are lost, in percent.
    pub loss: f64,
    /// Nothing but ssh's port lets new connections in.
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

pub const LINKS: [Link; 7] = [
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

/// The ratio of fastcp's time to this tool's is to be `most` or less.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// [`BEST`] is whichever took least.
    pub tool: &'static str,
    pub most: f64,
    /// fastcp's time without that of a login: the tool has none.
    pub without_login: bool,
}

pub const BEST: &str = "the best of them";

const fn goal(tool: &'static str, most: f64) -> Goal {
    Goal {
        tool,
        most,
        without_login: false,
    }
}

/// At least this part of the rate of a tool that sends bytes and does nothing else.
const fn of_rate(tool: &'static str, part: f64) -> Goal {
    Goal {
        tool,
        most: 1.0 / part,
        without_login: true,
    }
}

/// An input on a link.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub link: &'static str,
    pub input: &'static str,
    /// How much of it; 0 is all.
    pub bytes: u64,
    /// Beside those that goals name.
    pub tools: &'static [&'static str],
    pub goals: &'static [Goal],
}

/// Beside what the goals name only what comes close to fastcp: over 50 ms scp and rsync are held by
/// ssh's window to 40 MB/s (reckoned, not measured), and rsync sends the zeros of a sparse image: such a row
/// would take more time than the rest of its cell.
pub const CELLS: &[Cell] = &[
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
            // Where the sender may choose bbr.
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

/// How long a slow link carries what is copied over it.
const SLOW_SECONDS: u64 = 25;

const SLOW_GOALS: &[Goal] = &[goal("scp", 1.03)];

/// Links of every rate and round trip.
pub fn slow_links() -> Vec<Link> {
    let links = SLOW_MBIT_PER_S.into_iter().flat_map(|rate| {
        SLOW_ROUND_TRIPS_MS.map(|round_trip| {
            // They last as long as the bench.
            let name = format!("{rate} Mbit/s, {round_trip} ms").leak();
            link(name, round_trip, rate)
        })
    });
    links.collect()
}

/// Random data on a slow link: nothing but the link counts.
pub fn slow_cell(link: &Link) -> Cell {
    Cell {
        link: link.name,
        input: "random",
        bytes: u64::from(link.mbit_per_s) * 125_000 * SLOW_SECONDS,
        tools: &[],
        goals: SLOW_GOALS,
    }
}

/// Streams that a link wanted that loses packets far away: what the next copy finds in its memory.
pub const WRONG_STREAMS: u16 = 128;

/// A copy with the memory of another link may take so many times one with none.
pub const WRONG_MEMORY_MAX: f64 = 1.05;

/// What fastcp is tried with once for the regret, before the best three are run again.
pub const SWEEP_CODECS: [&str; 5] = ["none", "lz4", "zstd:1", "zstd:3", "zstd:9"];
pub const SWEEP_STREAMS: [u16; 3] = [16, 4, 1];

/// Defaults may take so many times the best of the sweep, in each cell and as the mean of all.
pub const REGRET_MAX: f64 = 1.10;
pub const REGRET_MEAN_MAX: f64 = 1.05;

/// How long a copy of the sweep is to take at least, on a link that has a rate.
pub const SWEEP_SECONDS: f64 = 5.0;

/// About how much smaller a method that suits the link makes an input: so much more of it is copied
/// in the sweep.
pub fn shrinks(input: &str) -> f64 {
    match input {
        "random" => 1.0,
        "sparse" => 8.0,
        _ => 3.0,
    }
}

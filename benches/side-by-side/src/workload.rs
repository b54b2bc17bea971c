use std::time::Duration;

use crate::popularity::Popularity;

/// A workload: which keys are requested how often, under which limits, and the expected answers.
#[derive(Debug)]
pub(crate) struct Workload {
    /// The name on the command line and in the report.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) popularity: Popularity,
    pub(crate) bucket_limits: &'static BucketLimits,
    /// How many buckets each request takes from.
    pub(crate) limits: usize,
    /// Number of processes, each with its own tasks.
    pub(crate) processes: u32,
    /// Numbers of tasks. Default: those of the command line.
    pub(crate) tasks: Option<&'static [usize]>,
    /// Whether a commit waits for the disk.
    pub(crate) durable: bool,
    /// Whether tollgate can answer denials from the process. Otherwise the store decides each denial.
    pub(crate) denials_cached: bool,
    /// How long the tokens of one lease should last.
    pub(crate) lease: Duration,
    /// Whether the keys are in requests to an HTTP server that limits them.
    pub(crate) http: bool,
}

/// A quota, and the state of its buckets at the start.
#[derive(Debug)]
pub(crate) struct BucketLimits {
    /// Part of the keys' names, because every store has buckets of each kind.
    pub(crate) name: &'static str,
    pub(crate) capacity: u64,
    /// The time in which a token returns.
    pub(crate) token: Duration,
    /// Tokens taken when the bucket is created. With 0, the first request creates the bucket.
    pub(crate) used: u64,
    pub(crate) expect: Expect,
    /// Number of keys. Default: that of the command line.
    pub(crate) keys: Option<u32>,
}

/// The answers that a measurement must consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Grants,
    Denials,
    Both,
}

/// Never empty, and not full for hours. Otherwise Redis and tollgate could delete the bucket, and the next request
/// would create it again.
static PLENTY: BucketLimits = BucketLimits {
    name: "plenty",
    capacity: 1_000_000_000,
    token: Duration::from_micros(10),
    used: 500_000_000,
    expect: Expect::Grants,
    keys: None,
};

static EMPTY: BucketLimits = BucketLimits {
    name: "empty",
    capacity: 1,
    token: Duration::from_hours(24),
    used: 1,
    expect: Expect::Denials,
    keys: None,
};

/// A hundred clients that send thousands of times as many requests as the limit allows.
static ATTACKED: BucketLimits = BucketLimits {
    name: "attacked",
    capacity: 10,
    token: Duration::from_millis(100),
    used: 1,
    expect: Expect::Both,
    keys: Some(100),
};

/// Enough clients for each to come once, for longer than a measurement.
static FIRST: BucketLimits = BucketLimits {
    name: "first",
    capacity: 10,
    token: Duration::from_hours(24),
    used: 0,
    expect: Expect::Grants,
    keys: Some(400_000),
};

/// Popular keys run dry, and the others do not. Excess grants show here.
static SCARCE: BucketLimits = BucketLimits {
    name: "scarce",
    capacity: 100,
    token: Duration::from_millis(10),
    used: 1,
    expect: Expect::Both,
    keys: None,
};

const PLAIN: Workload = Workload {
    name: "",
    about: "",
    popularity: Popularity::Uniform,
    bucket_limits: &PLENTY,
    limits: 1,
    processes: 1,
    tasks: None,
    durable: false,
    denials_cached: true,
    lease: Duration::from_millis(100),
    http: false,
};

pub(crate) static WORKLOADS: [Workload; 18] = [
    Workload { name: "uniform", about: "all keys alike, all granted", ..PLAIN },
    Workload { name: "hot", about: "one key, all granted", popularity: Popularity::One, ..PLAIN },
    Workload {
        name: "zipf",
        about: "popularity by Zipf's law, 1.1; all granted",
        popularity: Popularity::Zipf,
        // Long enough for a lease of the hottest thousand keys.
        lease: Duration::from_secs(1),
        ..PLAIN
    },
    Workload {
        name: "saturated",
        about: "popularity by Zipf's law, 100/s for each key: the popular ones run dry",
        popularity: Popularity::Zipf,
        bucket_limits: &SCARCE,
        ..PLAIN
    },
    Workload {
        name: "denied",
        about: "all keys alike, all denied, each by the store",
        bucket_limits: &EMPTY,
        denials_cached: false,
        ..PLAIN
    },
    Workload {
        name: "attack",
        about: "a hundred keys, 10/s each, as fast as can be",
        bucket_limits: &ATTACKED,
        ..PLAIN
    },
    Workload {
        name: "leased",
        about: "one key, all granted, by those who may hold tokens in the process",
        popularity: Popularity::One,
        ..PLAIN
    },
    Workload { name: "five_limits", about: "five of the keys at once, all granted", limits: 5, ..PLAIN },
    Workload {
        name: "processes",
        about: "8 processes of 16 tasks, one key, all granted",
        popularity: Popularity::One,
        processes: 8,
        tasks: Some(&[TASKS_OF_A_PROCESS]),
        ..PLAIN
    },
    Workload {
        name: "low_load",
        about: "so few tasks that none has to wait for another, all keys alike, all granted",
        tasks: Some(&[1, 4]),
        ..PLAIN
    },
    Workload {
        name: "first_use",
        about: "keys that nobody has asked for before, all granted",
        popularity: Popularity::Each,
        bucket_limits: &FIRST,
        tasks: Some(&[256]),
        ..PLAIN
    },
    Workload { name: "http", about: "requests to an HTTP server, all keys alike, all granted", http: true, ..PLAIN },
    Workload {
        name: "http_hot",
        about: "requests to an HTTP server, one key, all granted",
        popularity: Popularity::One,
        http: true,
        ..PLAIN
    },
    Workload {
        name: "http_zipf",
        about: "requests to an HTTP server, popularity by Zipf's law, 1.1; all granted",
        popularity: Popularity::Zipf,
        http: true,
        ..PLAIN
    },
    Workload {
        name: "http_attack",
        about: "a hundred keys, 10/s each, as fast as an HTTP server answers",
        bucket_limits: &ATTACKED,
        http: true,
        ..PLAIN
    },
    Workload {
        name: "sync_hot",
        about: "one key, all granted, each commit on the disk",
        popularity: Popularity::One,
        durable: true,
        ..PLAIN
    },
    Workload {
        name: "sync_uniform",
        about: "all keys alike, all granted, each commit on the disk",
        durable: true,
        ..PLAIN
    },
    Workload {
        name: "sync_low_load",
        about: "as low_load, each commit on the disk",
        tasks: Some(&[1, 4]),
        durable: true,
        ..PLAIN
    },
];

/// The keys of a long load: rows with constant updates, and rows with rare updates.
pub(crate) static STEADY: Workload = Workload {
    name: "steady",
    about: "half of it one key, half all keys alike, all granted",
    popularity: Popularity::HalfOne,
    ..PLAIN
};

impl BucketLimits {
    /// Whether each measurement uses new buckets.
    pub(crate) fn first_use(&self) -> bool {
        self.used == 0
    }

    /// Whether the buckets outlast a run. Full buckets can be swept, and their accounting with them.
    pub(crate) fn stays(&self) -> bool {
        u128::from(self.used) * self.token.as_nanos() > LONGER_THAN_A_RUN.as_nanos()
    }
}

const LONGER_THAN_A_RUN: Duration = Duration::from_hours(1);

pub(crate) const TASKS_OF_A_PROCESS: usize = 16;

impl Workload {
    /// Returns the workload of that name.
    pub(crate) fn named(name: &str) -> anyhow::Result<&'static Self> {
        let names = || WORKLOADS.iter().map(|workload| workload.name).collect::<Vec<_>>().join(", ");
        WORKLOADS
            .iter()
            .find(|workload| workload.name == name)
            .ok_or_else(|| anyhow::anyhow!("there is no workload '{name}', only: {}", names()))
    }
}

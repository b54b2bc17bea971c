use clap::ValueEnum;

use crate::system::System;

/// A workload: the keys of the requests, and their limit. Each workload has a domain of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// One exhausted key.
    Attack,
    /// One key, all granted.
    Hot,
    /// All keys alike, all granted.
    Uniform,
    /// 1,000 requests a second, regardless of the answers.
    Paced,
}

impl Workload {
    pub(crate) const ALL: [Self; 4] = [Self::Attack, Self::Hot, Self::Uniform, Self::Paced];

    /// Returns the name, which is also the domain of the requests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Attack => "attack",
            Self::Hot => "hot",
            Self::Uniform => "uniform",
            Self::Paced => "paced",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Attack => "one exhausted key, all denied",
            Self::Hot => "one key, all granted",
            Self::Uniform => "all keys alike, all granted",
            Self::Paced => "1,000 requests a second regardless of the answers, 1,000 keys alike, all granted",
        }
    }

    /// Returns the limit of each key.
    pub(crate) fn requests_per_day(self) -> u32 {
        match self {
            Self::Attack => 1000,
            Self::Hot | Self::Uniform | Self::Paced => 1_000_000_000,
        }
    }

    /// Returns the number of keys. `many`: for a workload with many keys.
    pub(crate) fn keys(self, many: u32) -> u32 {
        match self {
            Self::Attack | Self::Hot => 1,
            Self::Uniform => many,
            Self::Paced => 1000,
        }
    }

    /// Whether a system takes part.
    pub(crate) fn includes(self, system: System) -> bool {
        self == Self::Paced || system != System::InProcess
    }
}

/// The entry of the descriptors whose value is the key.
pub(crate) const ENTRY: &str = "key";
/// The length of a window in seconds.
pub(crate) const DAY: u64 = 86_400;
/// The rate of `paced`.
pub(crate) const PACE: u32 = 1000;

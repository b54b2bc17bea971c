use std::{fs, thread};

use serde::Serialize;

/// The machine that ran the measurements.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory: String,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn this() -> Self {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
            line.map_or_else(|| "unknown".to_owned(), |value| value.trim().to_owned())
        };
        Self {
            processor: field("/proc/cpuinfo", "model name"),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory: field("/proc/meminfo", "MemTotal"),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        }
    }
}

/// Returns the versions of the measured crates and of the client crates.
pub(crate) fn crates() -> impl Iterator<Item = String> {
    LOCK.split("[[package]]").filter_map(|package| {
        let field = |name: &str| package.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix('"'));
        let name = field("name = \"")?;
        let version = field("version = \"")?;
        ["governor", "redis", "sqlx", "tokio", "tollgate"].contains(&name).then(|| format!("{name} {version}"))
    })
}

const LOCK: &str = include_str!("../../../../Cargo.lock");

//! Processor time, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context;

/// Returns the seconds that this process has used.
pub(crate) fn own() -> anyhow::Result<f64> {
    let times = Times::read("self").context("/proc/self/stat cannot be read: the report needs Linux")?;
    Ok(times.own)
}

/// Returns the seconds that a server has used: the process, its descendants, and those that have ended.
pub(crate) fn of_server(pid: u32) -> Option<f64> {
    let mut children: BTreeMap<u32, Vec<(u32, Times)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // The times of a process that has just ended are in those of its parent.
        if let Some(times) = Times::read(&pid.to_string()) {
            children.entry(times.parent).or_default().push((pid, times));
        }
    }
    let root = Times::read(&pid.to_string())?;
    let (mut sum, mut left) = (root.own + root.ended, vec![pid]);
    while let Some(parent) = left.pop() {
        for (child, times) in children.get(&parent).into_iter().flatten() {
            sum += times.own + times.ended;
            left.push(*child);
        }
    }
    Some(sum)
}

struct Times {
    parent: u32,
    own: f64,
    ended: f64,
}

impl Times {
    /// Reads fields 4 and 14 to 17 of `proc_pid_stat(5)`. The second field, a name in brackets, can contain spaces.
    fn read(pid: &str) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let seconds = |place: usize| fields.get(place)?.parse::<f64>().ok().map(|ticks| ticks / TICKS);
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own: seconds(11)? + seconds(12)?,
            ended: seconds(13)? + seconds(14)?,
        })
    }
}

/// Linux reports hundredths of a second, regardless of the kernel's own unit.
const TICKS: f64 = 100.0;

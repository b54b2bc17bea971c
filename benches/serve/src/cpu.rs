//! Processor time of threads, from `/proc`.

use std::fs;

/// Returns the seconds that the threads of this process with this name have used.
pub(crate) fn of_threads(name: &str) -> f64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0.0 };
    let mut sum = 0.0;
    for thread in threads.flatten() {
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { continue };
        sum += seconds(&stat, name).unwrap_or_default();
    }
    sum
}

/// Reads fields 14 and 15 of `proc_pid_stat(5)`. The second field is the name in brackets.
fn seconds(stat: &str, name: &str) -> Option<f64> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, thread) = before.split_once('(')?;
    if thread != name {
        return None;
    }
    let fields: Vec<&str> = after.split_whitespace().collect();
    let (user, system): (f64, f64) = (fields.get(11)?.parse().ok()?, fields.get(12)?.parse().ok()?);
    Some((user + system) / TICKS)
}

/// Linux reports hundredths of a second, regardless of the kernel's own unit.
const TICKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_those_of_threads_of_the_name() {
        let stat = "7 (stand-in) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!(seconds(stat, "stand-in"), Some(2.0));
        assert_eq!(seconds(stat, "stand"), None);
    }
}

//! Processes that run beside a test.

use std::process::Child;

pub(crate) fn kill(child: &Child, signal: &str) {
    self::signal(&child.id().to_string(), signal);
}

/// Sends a process, or `-` and a group of them, a signal.
pub(crate) fn signal(client: &str, signal: &str) {
    assert!(std::process::Command::new("kill").args(["-s", signal, "--", client]).status().expect("kill").success());
}

/// Whether the process catches SIGTERM.
pub(crate) fn is_listening(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
    u64::from_str_radix(caught, 16).unwrap_or(0) >> 14 & 1 == 1
}

/// Waits for a condition that another process fulfils.
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it has not come about in half a minute");
}

//! Processes of this host, read from Linux's `/proc`.

use std::process::Command;

use anyhow::{Context, ensure};

/// Returns the command and the arguments of a process.
pub fn command_line(pid: u32) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
    let words: Vec<String> = text.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    ensure!(!words[0].is_empty(), "process {pid} has ended");
    Ok(words)
}

/// Returns the user and the group of a process.
pub fn owner(pid: u32) -> anyhow::Result<(u32, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("there is such a line")?;
        Ok::<_, anyhow::Error>(line.split_whitespace().next().context("it names four")?.parse()?)
    };
    Ok((of("Uid:")?, of("Gid:")?))
}

/// Kills a process and its children. They can still be ending when this returns.
pub fn kill(pid: u32) -> anyhow::Result<Vec<u32>> {
    let pids = stop(pid)?;
    signal("KILL", &pids)?;
    Ok(pids)
}

/// Stops a process and its children. Returns their ids, the parent's last, so that no child sees its parent end first.
pub fn stop(pid: u32) -> anyhow::Result<Vec<u32>> {
    // A stopped process starts no more children.
    signal("STOP", &[pid])?;
    while !matches!(state_and_parent(pid), None | Some(('T' | 'Z', _))) {
        std::thread::yield_now();
    }
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let child = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        pids.extend(child.filter(|&child| state_and_parent(child).is_some_and(|(_, parent)| parent == pid)));
    }
    pids.push(pid);
    signal("STOP", &pids)?;
    Ok(pids)
}

/// Whether a process has ended. Its parent need not have read the exit status.
pub fn has_ended(pid: u32) -> bool {
    matches!(state_and_parent(pid), None | Some(('Z' | 'X', _)))
}

pub fn signal(name: &str, pids: &[u32]) -> anyhow::Result<()> {
    let pids = pids.iter().map(u32::to_string);
    // Ignores the status: a child may have ended meanwhile.
    Command::new("bash").args(["-c", r#"kill -s "$0" "$@" 2>/dev/null"#, name]).args(pids).status()?;
    Ok(())
}

fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last `)` can contain any characters.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

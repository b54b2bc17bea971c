//! The commands `simulate` and `watch`, as the real program runs them.

#[path = "../cli/command.rs"]
mod command;
#[path = "../cli/databases.rs"]
#[allow(dead_code, reason = "those of other commands do more with databases")]
mod databases;
mod documentation;
mod messages;
mod progress;
mod pty;
mod simulate;
mod watch;

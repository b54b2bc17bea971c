//! The commands `simulate` and `watch`, as the real program runs them.

mod documentation;
mod messages;
mod progress;
mod pty;
mod simulate;
mod watch;

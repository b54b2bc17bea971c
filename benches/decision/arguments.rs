use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::engine::Durability;

#[derive(Parser)]
#[command(about = "Measures decisions, granted and denied, against a bare UPDATE")]
pub(crate) struct Arguments {
    /// Engines to measure. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    engine: Vec<Name>,
    /// Durability of commits. Default: both.
    #[arg(long, value_enum, value_delimiter = ',')]
    durability: Vec<Durability>,
    /// Seconds to measure each value, all rounds together.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often bare, granted and denied take turns.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Arguments {
    pub(crate) fn engines(&self) -> Vec<Name> {
        or_all(&self.engine)
    }

    pub(crate) fn durabilities(&self) -> Vec<Durability> {
        or_all(&self.durability)
    }

    /// How long one kind of call runs in a round.
    pub(crate) fn slice(&self) -> Duration {
        Duration::from_secs_f64(self.seconds / f64::from(self.rounds))
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Name {
    Sqlite,
    Postgres15,
    Postgres,
    Mysql,
    Mariadb,
}

fn or_all<T: ValueEnum>(chosen: &[T]) -> Vec<T> {
    if chosen.is_empty() { T::value_variants().to_vec() } else { chosen.to_vec() }
}

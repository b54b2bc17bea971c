//! The commands, and which of them need a database.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sqlx::{MySql, Postgres, Sqlite};

use crate::database::{Engine, Missing, open};
use crate::url::{self, Url};
use crate::{
    completions, create, delete, doctor, exit, explain, list, migrate, mode, next, peek, plan, reset, run, simulate,
    sweep, take, watch,
};

/// Exact, distributed rate limits in your SQL database: makes, looks at and changes them.
#[derive(Parser)]
#[command(name = "tollgate", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    database: url::Args,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Migrate(migrate::Args),
    Create(create::Args),
    Take(take::Args),
    Run(run::Args),
    Peek(peek::Args),
    List(list::Args),
    Explain(explain::Args),
    /// Plans, whose terms many buckets follow, and overrides for single keys
    #[command(subcommand)]
    Plan(plan::Command),
    Mode(mode::Args),
    Reset(reset::Args),
    Delete(delete::Args),
    Sweep(sweep::Args),
    Doctor(doctor::Args),
    Watch(watch::Args),
    Simulate(simulate::Args),
    Completions(completions::Args),
}

impl Arguments {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Some(Command::Completions(args)) => args.run::<Self>(),
            Some(Command::Simulate(args)) => args.run().await,
            Some(Command::Migrate(args)) if args.prints() => args.print(&self.database),
            // No database, so there is nothing to look into yet.
            None if !self.database.is_given() => next::first(),
            command => match self.database.url()? {
                Url::MySql(url) => on::<MySql>(command, &url).await,
                Url::Postgres(url) => on::<Postgres>(command, &url).await,
                Url::Sqlite(url) => on::<Sqlite>(command, &url).await,
            },
        }
    }
}

async fn on<DB: Engine>(command: Option<Command>, url: &str) -> anyhow::Result<ExitCode> {
    let missing = match &command {
        Some(Command::Migrate(args)) => args.missing(),
        _ => Missing::Refuse,
    };
    let store = match (open::<DB>(url, missing).await, &command) {
        (Ok(store), _) => store,
        (Err(error), Some(Command::Doctor(args))) => return args.unreachable::<DB>(&error),
        (Err(error), _) => return Err(error),
    };
    let pool = store.pool().clone();
    let result = match command {
        None => next::run(store).await,
        // A look may be under way that a slow database does not end: nobody who quits waits for it.
        Some(Command::Watch(args)) => return args.run(store).await,
        Some(command) => command.run(store).await,
    };
    pool.close().await;
    result
}

impl Command {
    async fn run<DB: Engine>(self, store: tollgate::SqlStore<DB>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Create(args) => args.run(&store).await,
            Self::Delete(args) => args.run(&store).await,
            Self::Doctor(args) => args.run(&store).await,
            Self::Explain(args) => args.run(&store).await,
            Self::List(args) => args.run(&store).await,
            Self::Migrate(args) => args.run(store.pool()).await,
            Self::Mode(args) => args.run(&store).await,
            Self::Peek(args) => args.run(&store).await,
            Self::Plan(command) => command.run(&store).await,
            Self::Reset(args) => args.run(&store).await,
            Self::Run(args) => args.run(store).await,
            Self::Sweep(args) => args.run(&store).await,
            Self::Take(args) => args.run(store).await,
            Self::Watch(args) => args.run(store).await,
            Self::Completions(args) => args.run::<Arguments>(),
            Self::Simulate(args) => args.run().await,
        }
    }
}

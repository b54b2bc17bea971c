//! Parses the commands and runs them, with a database if they need one.

use std::future::ready;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sqlx::{MySql, Postgres, Sqlite};
use tollgate::MemoryStore;

use crate::command_effect::CommandEffect;
use crate::database::{Engine, Missing, close, open, rest};
use crate::doctor::Examine;
use crate::exit::CliError;
#[cfg(all(feature = "serve", unix))]
use crate::serve;
use crate::url::Url;
use crate::{
    apply, blockers, charge, completions, create, delete, denied, doctor, exit, explain, failure, json_schema, list,
    man, migrate, mode, next_steps, peek, plan, redact, request, reset, run, simulate, sweep, take, url, usage, watch,
};

/// Exact, distributed rate limits in your SQL database: creates, inspects and changes them.
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
    #[command(flatten)]
    Online(Online),
    #[command(flatten)]
    Offline(Offline),
}

/// Commands that need a database.
#[derive(Subcommand)]
enum Online {
    Migrate(migrate::Args),
    Create(create::Args),
    Apply(apply::Args),
    Take(take::Args),
    Charge(charge::Args),
    Run(run::Args),
    Peek(peek::Args),
    List(list::Args),
    Denied(denied::Args),
    Usage(usage::Args),
    Explain(explain::Args),
    /// Plans, which set the limits of many buckets, and overrides for single keys
    #[command(subcommand)]
    Plan(plan::Command),
    Mode(mode::Args),
    Reset(reset::Args),
    Delete(delete::Args),
    Sweep(sweep::Args),
    Doctor(doctor::Args),
    Watch(watch::Args),
    #[cfg(all(feature = "serve", unix))]
    Serve(serve::Args),
}

/// Commands that need no database.
#[derive(Subcommand)]
enum Offline {
    Simulate(simulate::Args),
    Completions(completions::Args),
    /// Print the JSON Schema of what each command prints with --json
    JsonSchema,
    Man(man::Args),
}

impl Arguments {
    pub(crate) async fn run(mut self) -> anyhow::Result<ExitCode> {
        if let Some(Command::Online(command)) = &mut self.command {
            command.check()?;
        }
        let command = match self.command {
            Some(Command::Offline(Offline::Completions(args))) => return args.run::<Self>(),
            Some(Command::Offline(Offline::JsonSchema)) => return json_schema::run(),
            Some(Command::Offline(Offline::Man(args))) => return args.run::<Self>(),
            Some(Command::Offline(Offline::Simulate(args))) => return args.run().await,
            Some(Command::Online(Online::Migrate(args))) if args.prints() => return args.print(&self.database),
            #[cfg(all(feature = "serve", unix))]
            Some(Command::Online(Online::Serve(args))) => {
                if let Some(checked) = args.checked()? {
                    return Ok(checked);
                }
                // Starts while the database is down, and answers as `on_error` says.
                return match self.database.url()? {
                    Url::MySql(url) => args.run::<MySql>(&url).await,
                    Url::Postgres(url) => args.run::<Postgres>(&url).await,
                    Url::Sqlite(url) => args.run::<Sqlite>(&url).await,
                };
            }
            // Decided without the database, because `TOLLGATE_MODE` must work while the database is down.
            Some(Command::Online(Online::Take(args))) if request::is_decided_by_mode()? => {
                return args.run(MemoryStore::new(), ready(())).await;
            }
            Some(Command::Online(Online::Run(args))) if request::is_decided_by_mode()? => {
                return args.run(MemoryStore::new(), ready(()), ready(())).await;
            }
            // Without a database, prints the first steps.
            None if !self.database.is_given() => return next_steps::introduce(),
            Some(Command::Online(command)) => Some(command),
            None => None,
        };
        match self.database.url()? {
            Url::MySql(url) => on::<MySql>(command, &url).await,
            Url::Postgres(url) => on::<Postgres>(command, &url).await,
            Url::Sqlite(url) => on::<Sqlite>(command, &url).await,
        }
    }
}

async fn on<DB: Engine + Examine>(command: Option<Online>, url: &str) -> anyhow::Result<ExitCode> {
    let missing = match &command {
        Some(Online::Migrate(args)) => args.missing(),
        _ => Missing::Refuse,
    };
    let store = match (open::<DB>(url, missing).await, &command) {
        (Ok(store), _) => store,
        (Err(error), Some(Online::Doctor(args))) => return args.unreachable(&error),
        (Err(error), Some(Online::Run(args))) => return args.run_without_token(error),
        (Err(error), _) => return Err(error),
    };
    let pool = store.pool().clone();
    // Does not wait for a slow read of `watch` when the user quits.
    let is_left_open = matches!(command, Some(Online::Watch(_)));
    let effect = command.as_ref().map_or(CommandEffect::Read, Online::effect);
    let result = match command {
        None => next_steps::run(store).await,
        Some(command) => command.run(store, url).await,
    };
    let blockers = match &result {
        Err(error) if failure::is_lock_wait(error) => blockers::hint(&pool).await,
        _ => String::new(),
    };
    if !is_left_open {
        close(&pool).await;
    }
    result.map_err(|error| effect.explain_error(error, &blockers))
}

impl Online {
    /// Refuses arguments and files before it connects to the database.
    fn check(&mut self) -> Result<(), CliError> {
        match self {
            Self::Apply(args) => args.read(),
            Self::Run(args) => args.check_command(),
            Self::Mode(args) => args.check_target(),
            _ => Ok(()),
        }
    }

    fn effect(&self) -> CommandEffect {
        match self {
            Self::Run(_) => CommandEffect::Run,
            Self::Take(_) => CommandEffect::Take,
            Self::Denied(_) | Self::Doctor(_) | Self::Explain(_) | Self::List(_) | Self::Peek(_) | Self::Watch(_) => {
                CommandEffect::Read
            }
            Self::Apply(args) if args.is_read_only() => CommandEffect::Read,
            Self::Mode(args) if args.is_read_only() => CommandEffect::Read,
            Self::Plan(command) if command.is_read_only() => CommandEffect::Read,
            Self::Reset(args) if args.is_read_only() => CommandEffect::Read,
            Self::Usage(args) if args.is_read_only() => CommandEffect::Read,
            Self::Apply(_)
            | Self::Charge(_)
            | Self::Create(_)
            | Self::Delete(_)
            | Self::Migrate(_)
            | Self::Mode(_)
            | Self::Plan(_)
            | Self::Reset(_)
            | Self::Sweep(_)
            | Self::Usage(_) => CommandEffect::Change,
            #[cfg(all(feature = "serve", unix))]
            Self::Serve(_) => CommandEffect::Change,
        }
    }

    async fn run<DB: Engine + Examine>(self, store: tollgate::SqlStore<DB>, url: &str) -> anyhow::Result<ExitCode> {
        match self {
            Self::Apply(args) => args.run(&store).await,
            Self::Charge(args) => args.run(store).await,
            Self::Create(args) => args.run(&store).await,
            Self::Delete(args) => args.run(&store).await,
            Self::Denied(args) => args.run(&store).await,
            Self::Doctor(args) => args.run(&store).await,
            Self::Explain(args) => args.run(&store).await,
            Self::List(args) => args.run(&store).await,
            Self::Migrate(args) => args.run(store.pool()).await,
            Self::Mode(args) => args.run(&store).await,
            Self::Peek(args) => args.run(&store).await,
            Self::Plan(command) => command.run(&store).await,
            Self::Reset(args) => args.run(&store).await,
            Self::Run(args) => {
                let pool = store.pool().clone();
                args.run(store, rest(&pool), close(&pool)).await
            }
            Self::Sweep(args) => args.run(&store).await,
            Self::Take(args) => {
                let pool = store.pool().clone();
                args.run(store, rest(&pool)).await
            }
            Self::Usage(args) => args.run(&store).await,
            Self::Watch(args) => args.run(store, redact::database(url)).await,
            #[cfg(all(feature = "serve", unix))]
            Self::Serve(args) => args.run::<DB>(url).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, CommandFactory};

    use super::Arguments;
    use crate::json_schema;

    /// The full name of each command and its long options.
    fn commands(parent: &str, command: &Command, found: &mut Vec<(String, BTreeSet<String>)>) {
        for command in command.get_subcommands() {
            let name = format!("{parent}{}", command.get_name());
            if command.has_subcommands() {
                commands(&format!("{name} "), command, found);
            } else {
                found.push((name, options(command)));
            }
        }
    }

    fn options(command: &Command) -> BTreeSet<String> {
        command.get_arguments().filter_map(|option| option.get_long()).map(|option| format!("--{option}")).collect()
    }

    #[test]
    fn documentation_names_each_command_and_no_unknown_option() {
        let arguments = Arguments::command();
        let mut found = Vec::new();
        commands("", &arguments, &mut found);
        assert!(found.len() > 15, "{found:?}");

        let (_, table) = PAGE.split_once("\n## Every command\n").expect("it is there");
        let table = table.split("\n## ").next().unwrap_or_default();
        let named: BTreeSet<_> = table.split('`').skip(1).step_by(2).collect();
        let commands: BTreeSet<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(named, commands);

        let mut known = options(&arguments);
        known.insert("--help".to_owned());
        known.extend(found.into_iter().flat_map(|(_, options)| options));
        // Fences have three backticks, so code spans still alternate with text after a block.
        let spans = PAGE.split('`').skip(1).step_by(2).filter(|span| span.starts_with("--"));
        let shown: BTreeSet<_> = spans.filter_map(|span| span.split(' ').next()).map(str::to_owned).collect();
        assert!(shown.len() > 10 && shown.is_subset(&known), "{:?}", shown.difference(&known));
    }

    #[test]
    fn json_schema_describes_each_command_with_json() {
        let mut found = Vec::new();
        commands("", &Arguments::command(), &mut found);
        let printing = found.into_iter().filter(|(_, options)| options.contains("--json")).map(|(name, _)| name);
        let document = json_schema::document();
        let described = document["properties"].as_object().expect("commands").keys().cloned();
        assert_eq!(printing.collect::<BTreeSet<_>>(), described.collect());
    }

    const PAGE: &str = include_str!("../../docs/cli.md");
}

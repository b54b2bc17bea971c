use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use sqlx::{Database as _, MySql, Pool, Postgres, Sqlite};
use tollgate::{
    Error,
    store::{Migrate, Migration, migrations, pending_migrations},
};

use crate::database::{Engine, Missing};
use crate::exit::CliError;
use crate::output::{progress, say};
use crate::text::counted;
use crate::url::Url;
use crate::{failure, url};

mod files;
mod script;
mod versions;

use script::{Format, ScriptDialect};

/// Run the pending migrations, or print the SQL for other tools
///
/// Safe to repeat and to run concurrently, also beside your own migrations. Completes a database that was restored without
/// its routines or without the rows of its ledger.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate migrate --distributed citus              # the coordinator's database\n\
\x20 tollgate migrate --print psql | psql --set ON_ERROR_STOP=1 app\n\
\x20 tollgate migrate --print mysql | mysql app\n\
\x20 tollgate migrate --print psql --after 9 > upgrade.sql\n\
\x20 tollgate migrate --print grants | psql app         # roles for services and operators; mysql too\n\
\x20 tollgate migrate --print sqlx --into migrations   # repeat after an update: adds new files\n\n\
Migrations that you run from printed SQL count as applied.")]
pub(crate) struct Args {
    /// List the pending migrations without running them
    #[arg(long, conflicts_with_all = ["print", "after", "into", "engine"])]
    dry_run: bool,
    /// Run every migration again: recreates routines, views and triggers as this role, and keeps the rows of every table
    #[arg(long, conflicts_with_all = ["dry_run", "print", "after", "into", "engine"])]
    repair: bool,
    /// Distribute the tables over the nodes of a cluster: give the URL of its coordinator. Moves existing rows; requests fail
    /// meanwhile
    #[arg(long, value_name = "CLUSTER", value_enum, conflicts_with_all = ["dry_run", "repair", "print", "after", "into", "engine"])]
    distributed: Option<Cluster>,
    /// Print the SQL instead of running it, without a connection
    #[arg(long, value_name = "FORMAT", value_enum)]
    print: Option<Format>,
    /// Print only the migrations after this version; the script fails on a database at any other version
    #[arg(long, value_name = "VERSION", requires = "print", conflicts_with = "into")]
    after: Option<i64>,
    /// Write one file per migration into this directory
    #[arg(long, value_name = "DIR", requires = "print")]
    into: Option<PathBuf>,
    /// The prefix of the roles' names in `grants`, for a server with several databases; on PostgreSQL, only these roles may
    /// then connect [default: tollgate]
    #[arg(long, value_name = "NAME", requires = "print", value_parser = prefix)]
    prefix: Option<Prefix>,
    /// The engine to print SQL for [default: from the format or the database URL]
    #[arg(long, value_enum, requires = "print")]
    engine: Option<ScriptDialect>,
}

/// Software that distributes tables over several servers.
#[derive(Clone, Copy, ValueEnum)]
enum Cluster {
    /// The extension of PostgreSQL
    Citus,
}

/// The prefix of a role's name. Needs no quotes, and leaves room for the suffix.
#[derive(Clone)]
struct Prefix(String);

fn prefix(text: &str) -> Result<Prefix, CliError> {
    let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let is_name =
        text.len() <= 20 && text.starts_with(|first: char| first.is_ascii_lowercase()) && text.chars().all(is_of_name);
    if !is_name {
        Err(CliError::arguments("not a prefix of a role", "give up to 20 of a-z, 0-9 and _, a letter first"))
    } else if text == "pg" || text.starts_with("pg_") {
        Err(CliError::arguments("PostgreSQL reserves role names that begin with pg_", "give another one"))
    } else {
        Ok(Prefix(text.to_owned()))
    }
}

impl Args {
    pub(crate) fn prints(&self) -> bool {
        self.print.is_some()
    }

    /// How to handle an SQLite file that does not exist.
    pub(crate) fn missing(&self) -> Missing {
        if self.dry_run { Missing::Imagine } else { Missing::Make }
    }

    pub(crate) async fn run<DB: Engine>(self, pool: &Pool<DB>) -> anyhow::Result<ExitCode> {
        if let Some(Cluster::Citus) = self.distributed {
            let bar = progress("distributing the tables and routines");
            let done = DB::migrate_citus(pool).await?;
            bar.finish_and_clear();
            let done = counted(done.len(), "migration");
            say(format!("{done} run, and distributed by Citus: the schema is at {}", version(pool).await?))?;
            return Ok(ExitCode::SUCCESS);
        }
        let pending = pending_migrations(pool).await?;
        if self.repair {
            let bar = progress("running every migration again");
            let done = tollgate::store::repair(pool).await?;
            bar.finish_and_clear();
            let done = counted(done.len(), "migration");
            // Recreated MySQL procedures have no grants. An SQLite file never has any.
            let grants = if DB::NAME == Sqlite::NAME {
                ""
            } else {
                "; run the grants again: `tollgate migrate --print grants`, with its `--prefix` if it has one"
            };
            say(format!("{done} run again: the schema is at {}{grants}", version(pool).await?))?;
        } else if pending.is_empty() {
            say(format!("nothing is pending: the schema is at {}", version(pool).await?))?;
        } else if self.dry_run {
            let names: Vec<_> = pending.iter().map(|migration| format!("  {}\n", migration.name())).collect();
            say(format!("pending, to be run by `tollgate migrate`:\n{}{} in all", names.concat(), pending.len()))?;
        } else {
            let bar = progress(format!("running {}", counted(pending.len(), "migration")));
            let done = tollgate::migrate(pool).await.map_err(found_without_ledger)?;
            bar.finish_and_clear();
            let done = counted(done.len(), "migration");
            say(format!("{done} run: the schema is at {}", version(pool).await?))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(crate) fn print(self, database: &url::Args) -> anyhow::Result<ExitCode> {
        let format = self.print.expect("it is asked only if a format is given");
        let dialect = dialect(self.engine, format, database)?;
        let migrations = match dialect {
            ScriptDialect::Postgres => migrations::<Postgres>(),
            ScriptDialect::Mysql => migrations::<MySql>(),
            ScriptDialect::Sqlite => migrations::<Sqlite>(),
        };
        let after = self.after.unwrap_or(0);
        let migrations = &migrations[migrations.partition_point(|migration| migration.version() <= after)..];
        if self.prefix.is_some() && format != Format::Grants {
            return Err(CliError::arguments("--prefix is for --print grants", "leave --prefix out").into());
        }
        match (self.into, format.is_for_files()) {
            (Some(directory), true) => files::write(&directory, format, dialect, migrations)?,
            (None, _) if self.after.is_some() && (format.is_for_roles() || format.is_for_files()) => {
                let hint = "leave --after out: --into DIR writes only new files, and grants are always complete";
                return Err(CliError::arguments("--after is for the scripts of psql, mysql and sqlite3", hint).into());
            }
            (None, false) if migrations.is_empty() => say(format!("-- nothing comes after version {after}"))?,
            (None, false) if format == Format::Owner => say(script::OWNER.trim_end())?,
            (None, false) if format == Format::Grants => {
                let no_roles = || {
                    let hint = "every user that can write the file and its directory has all privileges";
                    CliError::arguments("SQLite has no roles", hint)
                };
                let prefix = self.prefix.as_ref().map(|Prefix(prefix)| prefix.as_str());
                say(script::grants(dialect, prefix).ok_or_else(no_roles)?.trim_end())?;
            }
            (None, false) => say(script::whole(dialect, migrations, self.after.filter(|after| *after > 0)).trim_end())?,
            (None, true) => {
                let message = "this tool wants one file for each migration";
                return Err(CliError::arguments(message, "name their directory: --into migrations").into());
            }
            (Some(_), false) => {
                let message = "this format is one script";
                return Err(CliError::arguments(message, "leave --into out, and redirect the output").into());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Adds a hint for existing objects, which may be tollgate's, restored without the ledger.
fn found_without_ledger(error: Error) -> anyhow::Error {
    let error = anyhow::Error::from(error);
    let message = failure::chain(&error);
    if !message.contains("already exists") {
        return error;
    }
    let hint =
        "after a restore without its ledger: `tollgate migrate --repair` keeps every row; if it is yours, rename it";
    CliError::database(message, hint).into()
}

/// The schema version in the ledger, which may be newer than the version that this CLI knows.
pub(crate) async fn version<DB: Migrate>(pool: &Pool<DB>) -> Result<String, Error> {
    let known = migrations::<DB>().last().map_or(0, Migration::version);
    let found = DB::applied(pool).await?.into_iter().max().unwrap_or(known);
    let newer = if found > known {
        format!(", made by a newer program; this `tollgate` knows version {known}")
    } else {
        String::new()
    };
    Ok(format!("version {found}{newer}"))
}

/// The engine of `--engine`, of the format or of the database URL, in this order.
fn dialect(requested: Option<ScriptDialect>, format: Format, database: &url::Args) -> anyhow::Result<ScriptDialect> {
    let own = format.dialect();
    match (requested, own) {
        (Some(requested), Some(own)) if requested != own => {
            let [requested, own] =
                [requested, own].map(|dialect| dialect.to_possible_value().expect("none is skipped"));
            let (requested, own) = (requested.get_name(), own.get_name());
            Err(CliError::arguments(format!("this format is for {own}"), format!("leave out --engine {requested}"))
                .into())
        }
        (Some(dialect), _) | (None, Some(dialect)) => Ok(dialect),
        (None, None) if !database.is_given() => {
            Err(CliError::arguments("whose SQL?", "add --engine postgres, mysql or sqlite").into())
        }
        (None, None) => Ok(match database.url()? {
            Url::MySql(_) => ScriptDialect::Mysql,
            Url::Postgres(_) => ScriptDialect::Postgres,
            Url::Sqlite(_) => ScriptDialect::Sqlite,
        }),
    }
}

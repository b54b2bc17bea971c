//! `tollgate` without a command: suggests the next step.

use std::process::ExitCode;

use tollgate::{
    Admin, Error, Key, SqlStore, Store, Take,
    admin::Filter,
    store::{Dialect, Migrate, pending_migrations},
};

use crate::exit::CliError;
use crate::output::say;
use crate::text::{counted, operand, plain};

/// The first steps, without a database.
pub(crate) fn introduce() -> anyhow::Result<ExitCode> {
    say("\
Exact rate limits in your SQL database. Name the database, create the tables, create a bucket, take a token:

  export DATABASE_URL=sqlite:app.db        # or postgres://…, mysql://…
  tollgate migrate
  tollgate create third-party-api --capacity 2 --per 1h
  tollgate take third-party-api

`tollgate --help` lists the commands.")?;
    Ok(ExitCode::SUCCESS)
}

/// The next step for this database.
pub(crate) async fn run<DB: Dialect + Migrate>(store: SqlStore<DB>) -> anyhow::Result<ExitCode> {
    let pending = match pending_migrations(store.pool()).await {
        Err(Error::NotPermitted(_)) => Vec::new(),
        pending => pending?,
    };
    let next = if pending.len() == tollgate::store::migrations::<DB>().len() {
        "this database has no tables of tollgate's yet. Next:\n\n  tollgate migrate".to_owned()
    } else if !pending.is_empty() {
        format!("pending: {}. Next:\n\n  tollgate migrate", counted(pending.len(), "migration"))
    } else {
        let bucket = match store.list(&Filter::default(), None, 1).await {
            Err(Error::NotPermitted(_)) => return for_application_role(&store).await,
            levels => levels?.into_iter().next(),
        };
        match bucket {
            None => {
                "there are no buckets yet. Next:\n\n  tollgate create third-party-api --capacity 2 --per 1h".to_owned()
            }
            Some(level) => {
                let key = plain(&operand(level.key().as_str()));
                format!("all is there. Next:\n\n  tollgate list\n  tollgate explain {key}\n  tollgate doctor")
            }
        }
    };
    say(format!("{next}\n\n`tollgate --help` lists the commands."))?;
    Ok(ExitCode::SUCCESS)
}

/// The next step for a role that cannot read buckets but may take tokens.
async fn for_application_role(store: &impl Store) -> anyhow::Result<ExitCode> {
    // Requests a bucket that does not exist, so no token is taken.
    let unused_key = Key::try_from(format!("nobody:{:032x}", fastrand::u128(..)))?;
    if let Err(error) = store.take_one(&Take::from(unused_key)).await {
        return Err(match error {
            Error::NotPermitted(_) => CliError::missing_grants().into(),
            error => error.into(),
        });
    }
    say(
        "all is there, and this role may take tokens, but look at nothing. Next:\n\n  tollgate take KEY\n  tollgate doctor",
    )?;
    Ok(ExitCode::SUCCESS)
}

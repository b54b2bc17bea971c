//! The account that the routines run as: whichever made them.

use std::collections::BTreeMap;

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{MySql, MySqlConnection};
use tollgate::store::migrations;

use super::super::report::DoctorReport;
use super::super::settings::Settings;
use super::{NOT_GRANTED, REQUIRED_ROUTINES, may_call, quoted_account, quoted_pattern};

/// The advice for a call that the server refused like this. If the definer is gone or has no rights here, no grant to the caller helps.
pub(super) async fn remedy(
    connection: &mut MySqlConnection,
    error: &dyn DatabaseError,
) -> Result<Option<String>, sqlx::Error> {
    const REPAIR: &str = "make them anew as an account with all rights on this database: `tollgate migrate --repair`";
    let (definer, database): (Option<String>, String) = sqlx::query_as(
        "select (select definer from information_schema.routines
                  where routine_schema = database() and routine_name = 'token_take_v1'),
                database()",
    )
    .fetch_one(&mut *connection)
    .await?;
    let database = quoted_pattern(&database);
    let definer = definer.map(|definer| quoted_account(&definer));
    // Hidden from an account that may not see it, which the server names all the same.
    let definer = definer.or_else(|| account(error.message()).map(str::to_owned)).unwrap_or_default();
    Ok(match error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number) {
        NO_DEFINER => Some(format!("the routines run as {definer}; {REPAIR}")),
        NOT_GRANTED | NOT_GRANTED_TABLE | NOT_GRANTED_DATABASE
            if may_call(connection, REQUIRED_ROUTINES[0]).await? =>
        {
            Some(format!("the routines run as {definer}: grant all on {database} to {definer}; or {REPAIR}"))
        }
        READ_ONLY_OPTION | READ_ONLY_MODE => Some("connect to the primary, or set global read_only = off".to_owned()),
        READ_ONLY_TRANSACTION => {
            let name: Option<(String, String)> =
                sqlx::query_as("show variables where variable_name in ('transaction_read_only', 'tx_read_only')")
                    .fetch_optional(&mut *connection)
                    .await?;
            let name = name.map_or_else(|| "transaction_read_only".to_owned(), |(name, _)| name);
            Some(format!("set global {name} = off, and connect again"))
        }
        _ => None,
    })
}

/// Routines of two accounts may not call each other, so what one has begun and another finished works in part.
pub(super) async fn of_two_accounts(
    connection: &mut MySqlConnection,
    report: &mut DoctorReport,
) -> Result<(), sqlx::Error> {
    let routines: Vec<(String, String)> = sqlx::query_as(
        "select routine_name, definer from information_schema.routines where routine_schema = database()",
    )
    .fetch_all(connection)
    .await?;
    let mut ours: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (routine, definer) in routines {
        let creates = format!("create procedure {routine}(");
        if migrations::<MySql>().iter().any(|migration| migration.sql().contains(&creates)) {
            ours.entry(definer).or_default().push(routine);
        }
    }
    let fewest = ours.iter().min_by_key(|(_, routines)| routines.len());
    if let (2.., Some((definer, routines))) = (ours.len(), fewest) {
        let all = ours.keys().map(String::as_str).collect::<Vec<_>>().join(" and ");
        let found = format!(
            "the routines run as {all}: without all rights on this database, one account's routines cannot call another's"
        );
        let names = routines.join(", ");
        let advice =
            format!("{definer} has {names}; recreate all routines as one account: `tollgate migrate --repair`");
        report.warn("definers", found, advice);
    }
    Ok(())
}

/// The routines run with the rights of the account that migrated, as far as this account may see those.
pub(super) async fn of_an_administrator(
    connection: &mut MySqlConnection,
    settings: &Settings,
    report: &mut DoctorReport,
) -> Result<(), sqlx::Error> {
    let mariadb = settings.get("version").contains("MariaDB");
    let rights = if mariadb { ["READ_ONLY ADMIN", "READ ONLY ADMIN"] } else { ["SUPER", "CONNECTION_ADMIN"] };
    let definer: Option<String> = sqlx::query_scalar(
        "select r.definer
           from information_schema.routines r
           join information_schema.user_privileges p
             on p.grantee = concat('''', replace(r.definer, '@', '''@'''), '''') and p.privilege_type in (?, ?)
          where r.routine_schema = database() and r.routine_name = 'token_take_v1'
          limit 1",
    )
    .bind(rights[0])
    .bind(rights[1])
    .fetch_optional(connection)
    .await?;
    if let Some(definer) = definer {
        let found =
            format!("the routines run as {definer}, who may write where read_only is on: a replica would grant");
        let advice = if mariadb {
            let account = quoted_account(&definer);
            format!("revoke read_only admin on *.* from {account}, or migrate as another account")
        } else {
            "set global super_read_only = on, on replicas, or migrate as an account with this database alone".to_owned()
        };
        report.warn("definer", found, advice);
    }
    Ok(())
}

/// The account that a message of the server's names.
fn account(message: &str) -> Option<&str> {
    let at = message.find("'@'")?;
    let host = at + 3;
    Some(&message[message[..at].rfind('\'')?..=host + message[host..].find('\'')?])
}

const NOT_GRANTED_DATABASE: u16 = 1044;
const NOT_GRANTED_TABLE: u16 = 1142;
const READ_ONLY_OPTION: u16 = 1290;
const NO_DEFINER: u16 = 1449;
const READ_ONLY_TRANSACTION: u16 = 1792;
const READ_ONLY_MODE: u16 = 1836;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definer_account_is_parsed_from_server_message() {
        for (message, found) in [
            ("The user specified as a definer ('gone'@'%') does not exist", Some("'gone'@'%'")),
            ("SELECT command denied to user 'app'@'10.0.0.1' for table 'token_mode'", Some("'app'@'10.0.0.1'")),
            ("Unknown table 'a'", None),
        ] {
            assert_eq!(account(message), found);
        }
    }
}

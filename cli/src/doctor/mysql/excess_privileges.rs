//! Privileges beyond those of the printed grants, such as those on the whole database.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{AssertSqlSafe, MySql, MySqlConnection};
use tollgate::store::{grants, migrations};

use super::super::documented_grants::documented_grants;
use super::super::report::DoctorReport;
use super::{Names, may_call, quoted_account};

/// The session's privileges beyond the grants, and the remedy. `None` for the account that the routines run as, and for an
/// administrator of the server. Only warns of an account that could migrate, because it may be an owner.
pub(super) async fn of_session(
    connection: &mut MySqlConnection,
    names: &Names,
    operates: bool,
    report: &mut DoctorReport,
) -> Result<Option<(String, String)>, sqlx::Error> {
    let is_administrator: bool = sqlx::query_scalar(
        "select count(*) > 0 from information_schema.user_privileges where grantee = ? and privilege_type = 'UPDATE'",
    )
    .bind(&names.account)
    .fetch_one(&mut *connection)
    .await?;
    if is_administrator || definer(connection).await?.as_deref() == Some(&*names.account) {
        return Ok(None);
    }
    let documented_grants = documented_grants(grants::<MySql>().unwrap_or_default());
    let is_documented = |object: &str, column: Option<&str>, privilege: &str| {
        documented_grants.iter().any(|one| {
            let is_whole = one.column.is_none() || one.column.as_deref() == column;
            let is_of_role = !one.of_operator || operates || privilege == "select";
            one.object == object && one.privilege == privilege && is_whole && is_of_role
        })
    };
    let mut excess_privileges: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    // The catalog counts the privileges of the session's roles here.
    let columns: Vec<(String, String, String)> = sqlx::query_as(
        "select table_name, column_name, privileges from information_schema.columns where table_schema = database()",
    )
    .fetch_all(&mut *connection)
    .await?;
    for (table, column, privileges) in &columns {
        for privilege in ["select", "insert", "update"] {
            let has_privilege = privileges.split(',').any(|granted| granted == privilege);
            if has_privilege && creates(table) && !is_documented(table, Some(column), privilege) {
                excess_privileges.entry(table.clone()).or_default().insert(privilege);
            }
        }
    }
    for table in columns.iter().map(|(table, ..)| table).filter(|table| creates(table)) {
        let is_known = excess_privileges.get(table).is_some_and(|privileges| privileges.contains("delete"));
        // Deletes nothing; the server checks the privilege first.
        let delete = AssertSqlSafe(format!("delete from {table} limit 0"));
        if !is_known
            && !is_documented(table, None, "delete")
            && sqlx::raw_sql(delete).execute(&mut *connection).await.is_ok()
        {
            excess_privileges.entry(table.clone()).or_default().insert("delete");
        }
    }
    let mut description: Vec<String> = excess_privileges
        .iter()
        .map(|(table, privileges)| format!("{} on {table}", privileges.iter().copied().collect::<Vec<_>>().join(", ")))
        .collect();
    // A call without arguments does nothing, because each helper has some.
    if !is_documented(HELPER, None, "execute") && may_call(connection, HELPER).await? {
        description.push(format!("call {HELPER} and other helpers"));
    }
    if description.is_empty() {
        return Ok(None);
    }
    let wide = on_the_database(connection).await?.into_iter().find(|(account, ..)| *account == names.account);
    match wide {
        Some((account, pattern, true)) => {
            let found = format!("{account} may migrate, and write every bucket: no service needs that");
            report.warn("privileges", found, format!("for a service: {}", remedy(&account, &pattern)));
            Ok(None)
        }
        Some((account, pattern, false)) => Ok(Some((description.join("; "), remedy(&account, &pattern)))),
        None => Ok(Some((description.join("; "), format!("`show grants` names the grant or the role; {OWN_TABLES}")))),
    }
}

/// Reports other accounts with privileges on the whole database, as far as this account may see them. No privilege of theirs
/// can be revoked for tollgate's tables alone.
pub(super) async fn of_others(
    connection: &mut MySqlConnection,
    names: &Names,
    report: &mut DoctorReport,
) -> Result<(), sqlx::Error> {
    let owner = definer(connection).await?;
    for (account, pattern, _) in on_the_database(connection).await? {
        if account != names.account && owner.as_ref() != Some(&account) {
            let found = format!("{account} can write every bucket, by its privileges on {pattern}");
            report.warn("privileges", found, remedy(&account, &pattern));
        }
    }
    Ok(())
}

/// The accounts with a grant on the whole database that includes the tables' rows, the grant's pattern, and whether the
/// account can create routines.
async fn on_the_database(connection: &mut MySqlConnection) -> Result<Vec<(String, String, bool)>, sqlx::Error> {
    sqlx::query_as(
        "select grantee, concat('`', replace(table_schema, '`', '``'), '`.*'), max(privilege_type = 'CREATE ROUTINE') > 0
           from information_schema.schema_privileges
          where privilege_type in ('DELETE', 'INSERT', 'UPDATE', 'CREATE ROUTINE')
            and database() like replace(replace(table_schema, '|', '||'), char(92 using utf8mb4), '|') escape '|'
          group by grantee, table_schema
         having max(privilege_type <> 'CREATE ROUTINE') > 0
          order by 1, 2",
    )
    .fetch_all(connection)
    .await
}

/// The account that the routines run as, if this account may see it.
async fn definer(connection: &mut MySqlConnection) -> Result<Option<String>, sqlx::Error> {
    let definer: Option<String> = sqlx::query_scalar(
        "select definer from information_schema.routines
          where routine_schema = database() and routine_name = 'token_take_v1'",
    )
    .fetch_optional(connection)
    .await?;
    Ok(definer.map(|definer| quoted_account(&definer)))
}

/// Whether a migration creates a table of this name.
fn creates(name: &str) -> bool {
    let create = format!("create table if not exists {name} (");
    migrations::<MySql>().iter().any(|migration| migration.sql().contains(&create))
}

fn remedy(account: &str, pattern: &str) -> String {
    format!("revoke all privileges on {pattern} from {account}; {OWN_TABLES}")
}

const OWN_TABLES: &str = "grant it its own tables and tollgate_app, or keep tollgate in a database of its own (`tollgate migrate --print grants`)";

/// A routine that no role may call: it decides at the time that it is given.
const HELPER: &str = "token_claim";

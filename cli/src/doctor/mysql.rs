use std::time::SystemTime;

use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, MySqlPool, Row as _};

use super::encryption::Tls;
use super::examine::Examine;
use super::report::DoctorReport;
use super::settings::Settings;
use super::{clocks, encryption};
use crate::clock::mysql_now;
use crate::text::counted;

mod definer;
mod excess_privileges;

impl Examine for MySql {
    async fn examine(pool: &MySqlPool, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
        let mut connection = pool.acquire().await?;
        encryption(&mut connection, &pool.connect_options(), report).await?;
        let settings = settings(&mut connection).await?;
        server(&settings, report);
        let names = Names::find(&mut connection).await?;
        if grants(&mut connection, &names, report).await? {
            temporary_tables(&mut connection, &names, report).await?;
        }
        let before = SystemTime::now();
        let now = mysql_now(&mut connection).await?;
        clocks::compare(before, now, SystemTime::now(), report);
        report.isolation(&settings.any(["transaction_isolation", "tx_isolation"]).replace('-', " ").to_lowercase());
        durability(&settings, report);
        sessions(&settings, &names.account, report);
        definer::of_two_accounts(&mut connection, report).await?;
        definer::of_an_administrator(&mut connection, &settings, report).await?;
        prepared(&mut connection, report).await;
        Ok(())
    }

    async fn content(pool: &MySqlPool, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
        let mode = sqlx::query("select one from token_mode").fetch_optional(pool).await?;
        report.mode_row(mode.is_some(), "insert into token_mode () values ()");
        Ok(())
    }

    async fn remedy(pool: &MySqlPool, error: &dyn DatabaseError) -> Result<Option<String>, sqlx::Error> {
        if error.try_downcast_ref::<MySqlDatabaseError>().is_some_and(|error| error.number() == TOO_MANY_STATEMENTS) {
            return Ok(Some("raise max_prepared_stmt_count: each connection keeps up to 100 statements".to_owned()));
        }
        definer::remedy(&mut *pool.acquire().await?, error).await
    }

    async fn count_orphans(
        pool: &MySqlPool,
        most: i64,
        deleted: &str,
    ) -> Result<Vec<(Option<String>, i64)>, sqlx::Error> {
        let count_orphans: Vec<(Option<Vec<u8>>, i64)> = sqlx::query_as(
            "select case when p.name is null then b.plan end, count(*)
               from (select plan from token_buckets limit ?) b
               left join token_plans p on p.name = b.plan and p.name <> ?
              group by 1",
        )
        .bind(most)
        .bind(deleted)
        .fetch_all(pool)
        .await?;
        let text = |plan: Vec<u8>| String::from_utf8_lossy(&plan).into_owned();
        Ok(count_orphans.into_iter().map(|(plan, buckets)| (plan.map(text), buckets)).collect())
    }
}

async fn encryption(
    connection: &mut MySqlConnection,
    options: &MySqlConnectOptions,
    report: &mut DoctorReport,
) -> Result<(), sqlx::Error> {
    let (_, cipher): (String, String) =
        sqlx::query_as("show session status like 'Ssl_cipher'").fetch_one(connection).await?;
    let tls = match options.get_ssl_mode() {
        MySqlSslMode::Disabled => Tls::Off,
        MySqlSslMode::Preferred => Tls::Offered,
        // Any name will do for `VERIFY_CA`.
        MySqlSslMode::Required | MySqlSslMode::VerifyCa => Tls::Required,
        MySqlSslMode::VerifyIdentity => Tls::Verified,
    };
    let is_socket = options.get_socket().is_some();
    let verify = "add ssl-mode=VERIFY_IDENTITY to the URL, and ssl-ca=FILE for a CA of your own";
    encryption::examine(options.get_host(), is_socket, tls, !cipher.is_empty(), verify, report);
    Ok(())
}

async fn settings(connection: &mut MySqlConnection) -> Result<Settings, sqlx::Error> {
    let settings: Vec<(String, String)> = sqlx::query_as(
        "show variables where variable_name in
           ('autocommit', 'binlog_format', 'event_scheduler', 'innodb_flush_log_at_trx_commit', 'innodb_rollback_on_timeout',
            'log_bin', 'max_statement_time', 'read_only', 'super_read_only', 'sync_binlog', 'transaction_isolation',
            'tx_isolation', 'version', 'version_comment')",
    )
    .fetch_all(connection)
    .await?;
    Ok(settings.into_iter().collect())
}

fn server(settings: &Settings, report: &mut DoctorReport) {
    let version = settings.get("version");
    let (name, oldest, needed) = if version.contains("MariaDB") {
        ("MariaDB", [10, 6, 0], "tollgate needs MariaDB 10.6 or newer")
    } else {
        ("MySQL", [8, 0, 16], "tollgate needs MySQL 8.0.16 or newer")
    };
    let numbers: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    let found = format!("{name} {version}");
    if numbers.as_slice() < oldest.as_slice() {
        report.fail("server", found, needed);
    } else if settings.is_on("read_only") || settings.is_on("super_read_only") {
        report.fail(
            "server",
            format!("{found}, which only reads"),
            "connect to the primary, or set global read_only = off",
        );
    } else {
        report.ok("server", found);
    }
}

/// The account of the session and its database, as grants write them.
struct Names {
    account: String,
    database: String,
}

impl Names {
    async fn find(connection: &mut MySqlConnection) -> Result<Self, sqlx::Error> {
        let (account, database): (String, String) =
            sqlx::query_as("select current_user(), database()").fetch_one(connection).await?;
        Ok(Self { account: quoted_account(&account), database: quoted_pattern(&database) })
    }
}

/// An account, `user@host` to the server, as a statement names it.
fn quoted_account(account: &str) -> String {
    let (user, host) = account.rsplit_once('@').unwrap_or((account, "%"));
    format!("{}@{}", quoted_text(user), quoted_text(host))
}

/// The tables of one database in a grant, where `_` and `%` stand for other characters.
fn quoted_pattern(database: &str) -> String {
    format!("`{}`.*", database.replace('`', "``").replace('_', r"\_").replace('%', r"\%"))
}

fn quoted_text(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', "''"))
}

/// Says whether there is something that the account may call.
async fn grants(
    connection: &mut MySqlConnection,
    names: &Names,
    report: &mut DoctorReport,
) -> Result<bool, sqlx::Error> {
    if sqlx::raw_sql("select 1 from token_migrations limit 0").execute(&mut *connection).await.is_err() {
        return Ok(false);
    }
    let account: String = sqlx::query_scalar("select current_user()").fetch_one(&mut *connection).await?;
    let (mut required, mut optional) = (Vec::new(), Vec::new());
    for (names, forbidden) in [(&REQUIRED_ROUTINES[..], &mut required), (&OPTIONAL_ROUTINES[..], &mut optional)] {
        for name in names {
            if !may_call(connection, name).await? {
                forbidden.push((*name).to_owned());
            }
        }
    }
    let operates = may_call(connection, "token_create_bucket").await?;
    let excess_privileges = excess_privileges::of_session(connection, names, operates, report).await?;
    report.grants(&account, &required, &optional, operates, excess_privileges);
    excess_privileges::of_others(connection, names, report).await?;
    Ok(true)
}

/// Whether the account may call a procedure that has parameters. MySQL's catalog lists none that it may call by a role; a call
/// without arguments runs nothing, and grants are looked at before those are counted.
async fn may_call(connection: &mut MySqlConnection, name: &str) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql(AssertSqlSafe(format!("call {name}()"))).execute(connection).await {
        Err(sqlx::Error::Database(error)) => {
            let number = error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number);
            Ok(![NOT_GRANTED, NO_SUCH_ROUTINE].contains(&number))
        }
        called => called.map(|_| true),
    }
}

/// Checks whether the account can create temporary tables, which hide tollgate's tables from the routines. Skips accounts that can
/// write the real tables.
async fn temporary_tables(
    connection: &mut MySqlConnection,
    names: &Names,
    report: &mut DoctorReport,
) -> Result<(), sqlx::Error> {
    let writes: i64 = sqlx::query_scalar(
        "select count(*) from information_schema.columns
          where table_schema = database() and table_name = 'token_buckets' and column_name = 'full_at'
            and find_in_set('update', privileges) > 0",
    )
    .fetch_one(&mut *connection)
    .await?;
    if writes > 0 {
        return Ok(());
    }
    // It comes to nothing in any case, but whether it is allowed, by a role or a pattern too, is looked at first.
    let tried = sqlx::raw_sql("create temporary table token_doctor (n int, n int)").execute(&mut *connection).await;
    let error = tried.err().and_then(sqlx::Error::into_database_error);
    if error.and_then(|error| Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())) == Some(DUPLICATE_COLUMN)
    {
        let found =
            "this account may create temporary tables here: one hides the table of its name from the routines, too";
        let (place, owner) = granted_temporary_tables(connection, names).await;
        report.warn("temporary tables", found, format!("revoke create temporary tables on {place} from {owner}"));
    }
    Ok(())
}

/// On what the right is granted, as far as the account may see that, and to whom: if not to itself, to a role.
async fn granted_temporary_tables(connection: &mut MySqlConnection, names: &Names) -> (String, String) {
    let place: Option<String> = sqlx::query_scalar(
        "select concat('`', replace(table_schema, '`', '``'), '`.*')
           from information_schema.schema_privileges
          where grantee = ? and privilege_type = 'CREATE TEMPORARY TABLES'
            and database() like replace(replace(table_schema, '|', '||'), char(92 using utf8mb4), '|') escape '|'
         union all
         select '*.*' from information_schema.user_privileges
          where grantee = ? and privilege_type = 'CREATE TEMPORARY TABLES'
          limit 1",
    )
    .bind(&names.account)
    .bind(&names.account)
    .fetch_optional(&mut *connection)
    .await
    .unwrap_or_default();
    if let Some(place) = place {
        return (place, names.account.clone());
    }
    // Older servers do not list them.
    let roles: Vec<String> = sqlx::query_scalar(
        "select distinct role_name from information_schema.enabled_roles where role_name is not null order by 1",
    )
    .fetch_all(&mut *connection)
    .await
    .unwrap_or_default();
    let roles: Vec<_> = roles.iter().map(|role| quoted_text(role)).collect();
    let owner = match roles.as_slice() {
        [] => format!("the role of {} that has it", names.account),
        [role] => role.clone(),
        roles => format!("whichever of {} has it", roles.join(", ")),
    };
    // A REVOKE must write the name as the GRANT did, here of a role.
    let grants: Vec<String> = sqlx::raw_sql("show grants")
        .fetch_all(&mut *connection)
        .await
        .unwrap_or_default()
        .iter()
        .filter_map(|row| row.try_get(0).ok())
        .collect();
    let unescaped = names.database.replace('\\', "");
    let is_unescaped =
        |grant: &String| grant.contains("CREATE TEMPORARY TABLES") && grant.contains(&format!(" ON {unescaped} "));
    let place = if grants.iter().any(is_unescaped) { unescaped } else { names.database.clone() };
    (place, owner)
}

fn durability(settings: &Settings, report: &mut DoctorReport) {
    let (flush, sync) = (settings.get("innodb_flush_log_at_trx_commit"), settings.get("sync_binlog"));
    let logged = settings.is_on("log_bin");
    if flush == "1" && (!logged || sync == "1") {
        report.ok("durability", "each commit is on disk: a crash forgets no grant");
    } else {
        let found = format!("innodb_flush_log_at_trx_commit is {flush}, sync_binlog is {sync}");
        report.ok("durability", format!("{found}: faster; a crash forgets the grants of the last second or so"));
    }
    if logged && settings.get("binlog_format").eq_ignore_ascii_case("statement") {
        let found = "binlog_format is STATEMENT: replicas would repeat each decision, with other results";
        report.fail("binary log", found, "set global binlog_format = 'ROW', then reconnect");
    }
}

fn sessions(settings: &Settings, account: &str, report: &mut DoctorReport) {
    if !settings.is_on("autocommit") {
        let found = "autocommit is off: after a call in SQL, the bucket stays locked until the caller commits";
        report.warn("autocommit", found, "set global autocommit = on, and look into init_connect");
    }
    if settings.is_on("innodb_rollback_on_timeout") {
        let found = "innodb_rollback_on_timeout is on: a transaction of yours that calls tollgate and waits too long for a \
                     lock loses its own changes";
        report.warn("rollback", found, "call tollgate outside your transactions, or set it off and restart the server");
    }
    // MariaDB's alone.
    let longest: f64 = settings.get("max_statement_time").parse().unwrap_or(0.0);
    if longest > 0.0 && longest < 1.0 {
        let found = format!("max_statement_time is {longest} s: requests that wait for a busy bucket end with 1969");
        let advice = format!("set global max_statement_time = 5, or alter user {account} with max_statement_time 5");
        report.warn("timeouts", found, advice);
    }
    if settings.is_on("event_scheduler") {
        report.ok("events", "event_scheduler is on");
    } else {
        let found = "event_scheduler is off: no event sweeps; limiters of the Rust crate do by themselves";
        report.ok("events", format!("{found}, for others `tollgate sweep` in cron does"));
    }
}

/// Warns of prepared XA transactions, which keep their locks after their sessions have ended. MySQL lists them only to
/// accounts with `XA_RECOVER_ADMIN`.
async fn prepared(connection: &mut MySqlConnection, report: &mut DoctorReport) {
    let Ok(prepared) = sqlx::raw_sql("xa recover").fetch_all(connection).await else { return };
    if prepared.is_empty() {
        return;
    }
    let transactions = counted(prepared.len(), "prepared XA transaction");
    let found = format!("{transactions} on this server: each holds its locks until it is committed or rolled back");
    let rollbacks: Vec<_> = prepared.iter().filter_map(rollback).take(MAX_ROLLBACKS).collect();
    report.warn("locks", found, format!("if the coordinator is gone: {}", rollbacks.join(", ")));
}

/// Returns the statement that rolls back a transaction, from its row of `xa recover`.
fn rollback(row: &MySqlRow) -> Option<String> {
    let number = |column| row.try_get_unchecked::<i64, _>(column).ok();
    let (format, length) = (number("formatID")?, usize::try_from(number("gtrid_length")?).ok()?);
    let data: Vec<u8> = row.try_get_unchecked("data").ok()?;
    let (global, branch) = data.split_at_checked(length)?;
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    Some(format!("`xa rollback X'{}', X'{}', {format}`", hex(global), hex(branch)))
}

const TOO_MANY_STATEMENTS: u16 = 1461;
const DUPLICATE_COLUMN: u16 = 1060;
const NO_SUCH_ROUTINE: u16 = 1305;
const NOT_GRANTED: u16 = 1370;

/// As many as fit on a line.
const MAX_ROLLBACKS: usize = 5;

/// The routines that a limiter's requests and reservations call, and those by which it peeks.
const REQUIRED_ROUTINES: [&str; 13] = [
    "token_adjust_batch_v1",
    "token_adjust_v1",
    "token_adjust_window_v1",
    "token_explain",
    "token_peek",
    "token_plan_limits_v1",
    "token_take_all_batch_v1",
    "token_take_all_v1",
    "token_take_batch_v1",
    "token_take_uniform_v1",
    "token_take_v1",
    "token_take_window_v1",
    "token_throttle_v1",
];

/// Those that it calls beside: without them it takes tokens all the same.
const OPTIONAL_ROUTINES: [&str; 4] =
    ["token_count_denials_v1", "token_peek_window", "token_record_usage_v1", "token_sweep_v1"];

#[cfg(test)]
mod tests {
    use super::*;

    fn set(settings: &[(&str, &str)]) -> Settings {
        settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn old_read_only_or_statement_logging_server_fails() {
        for (settings, status) in [
            (&[("version", "9.7.4"), ("innodb_flush_log_at_trx_commit", "1")][..], "ok"),
            (&[("version", "8.0.16-log")], "ok"),
            (&[("version", "8.0.15")], "fail"),
            (&[("version", "10.11.18-MariaDB-0+deb12u1")], "ok"),
            (&[("version", "10.5.9-MariaDB")], "fail"),
            (&[("version", "9.7.4"), ("super_read_only", "ON")], "fail"),
            (&[("version", "9.7.4"), ("log_bin", "ON"), ("binlog_format", "STATEMENT")], "fail"),
            (&[("version", "9.7.4"), ("log_bin", "ON"), ("binlog_format", "ROW")], "ok"),
        ] {
            let mut report = DoctorReport::default();
            let settings = set(settings);
            server(&settings, &mut report);
            durability(&settings, &mut report);
            assert_eq!(report.status(), status);
        }
    }

    #[test]
    fn missing_autocommit_warns_and_missing_events_does_not() {
        for (autocommit, events, warned) in [("ON", "ON", &[][..]), ("ON", "OFF", &[]), ("OFF", "OFF", &["autocommit"])]
        {
            let mut report = DoctorReport::default();
            sessions(&set(&[("autocommit", autocommit), ("event_scheduler", events)]), "'app'@'%'", &mut report);
            assert_eq!(report.warnings(), warned, "autocommit {autocommit}, event_scheduler {events}");
        }
    }

    #[test]
    fn statement_timeout_below_lock_wait_is_a_warning() {
        for (longest, warned) in [("0.000000", &[][..]), ("0.050000", &["timeouts"]), ("5.000000", &[])] {
            let mut report = DoctorReport::default();
            let settings = [("autocommit", "ON"), ("event_scheduler", "ON"), ("max_statement_time", longest)];
            sessions(&set(&settings), "'app'@'%'", &mut report);
            assert_eq!(report.warnings(), warned, "max_statement_time {longest}");
        }
    }

    #[test]
    fn rollback_on_timeout_is_a_warning() {
        for (value, warned) in [("OFF", &[][..]), ("ON", &["rollback"])] {
            let mut report = DoctorReport::default();
            let settings = [("autocommit", "ON"), ("event_scheduler", "ON"), ("innodb_rollback_on_timeout", value)];
            sessions(&set(&settings), "'app'@'%'", &mut report);
            assert_eq!(report.warnings(), warned, "{value}");
        }
    }

    #[test]
    fn crash_unsafe_settings_are_reported() {
        for (flush, logged, sync, forgets) in [
            ("1", "OFF", "0", "forgets no grant"),
            ("1", "ON", "1", "forgets no grant"),
            ("1", "ON", "0", "sync_binlog is 0: faster; a crash forgets the grants of the last second"),
            ("2", "OFF", "1", "innodb_flush_log_at_trx_commit is 2, "),
            ("0", "ON", "1", "innodb_flush_log_at_trx_commit is 0, "),
        ] {
            let mut report = DoctorReport::default();
            let settings = [("innodb_flush_log_at_trx_commit", flush), ("log_bin", logged), ("sync_binlog", sync)];
            durability(&set(&settings), &mut report);
            assert!(report.found("durability").contains(forgets), "{settings:?}: {}", report.found("durability"));
        }
    }

    #[test]
    fn account_is_quoted_as_in_statements() {
        for (account, quoted) in [
            ("app@%", "'app'@'%'"),
            ("o'neil@10.0.0.%", "'o''neil'@'10.0.0.%'"),
            ("a@b@localhost", "'a@b'@'localhost'"),
        ] {
            assert_eq!(quoted_account(account), quoted);
        }
    }
}

use std::time::SystemTime;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{PgConnection, PgPool, Postgres};

use super::encryption::Tls;
use super::settings::Settings;
use super::{DoctorReport, Examine, clocks, encryption};
use crate::database::begin;
use crate::output::plain;

impl Examine for Postgres {
    async fn examine(pool: &PgPool, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
        prepared_statements(pool, report).await?;
        let mut connection = begin(pool).await?;
        encryption(&mut connection, &pool.connect_options(), report).await?;
        server(&mut connection, report).await?;
        pooler(&mut connection, pool.connect_options().get_port(), report).await?;
        grants(&mut connection, report).await?;
        public(&mut connection, report).await?;
        let before = SystemTime::now();
        let now = now(&mut *pool.acquire().await?).await?;
        clocks::compare(before, now, SystemTime::now(), report);
        let names = Names::find(&mut connection).await?;
        examine(&settings(&mut connection).await?, &names, report);
        definer(&mut connection, report).await?;
        vacuum(&mut connection, report).await
    }

    async fn content(pool: &PgPool, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
        let mut connection = begin(pool).await?;
        let disabled: Vec<String> = sqlx::query_scalar(
            "select format('alter table %s enable always trigger %I', t.tgrelid::regclass, t.tgname)
               from pg_trigger t join pg_class c on c.oid = t.tgrelid
              where c.relnamespace = 'tollgate'::regnamespace and not t.tgisinternal and t.tgenabled = 'D'
              order by 1",
        )
        .fetch_all(&mut *connection)
        .await?;
        if !disabled.is_empty() {
            let found = "triggers are disabled: rows written to the tables are neither checked nor settled";
            report.fail("triggers", found, disabled.join("; "));
        }
        let mode = sqlx::query("select one from tollgate.token_mode").fetch_optional(&mut *connection).await?;
        report.mode_row(mode.is_some(), "insert into tollgate.token_mode default values");
        let strange: Option<String> = sqlx::query_scalar(
            "select b.id from (select * from tollgate.token_buckets limit $1) b
              where not b.overridden
                and tollgate.bucket_limits('bucket ' || quote_literal(b.id), b.capacity, b.refill_seconds, b.refill)
                    <> row(b.burst, b.step_ns, b.step_ticks, b.token_ticks)
              limit 1",
        )
        .bind(MIN_DEAD_ROWS)
        .fetch_optional(&mut *connection)
        .await?;
        if let Some(id) = strange {
            let found = format!("bucket {} has other limits than its row says", plain(&id));
            let advice = "settle all that are: update tollgate.token_buckets set capacity = capacity";
            report.warn("content", found, advice);
        }
        Ok(())
    }

    async fn now(pool: &PgPool) -> Result<i64, sqlx::Error> {
        now(&mut *pool.acquire().await?).await
    }

    /// Routines run as their owner. If a table became another role's, no grant to the caller helps.
    async fn mending(pool: &PgPool, said: &dyn DatabaseError) -> Result<Option<String>, sqlx::Error> {
        if said.code().as_deref() != Some("42501") {
            return Ok(None);
        }
        sqlx::query_scalar(
            "select string_agg(format('alter %s owner to %I', w.name, r.rolname), '; ')
               from pg_namespace n
               join pg_proc p on p.pronamespace = n.oid and p.proname = 'take_v1'
               join pg_roles r on r.oid = p.proowner
              cross join lateral (
                select format('table tollgate.%I', relname), relowner from pg_class
                 where relnamespace = n.oid and relkind in ('r', 'v')
                 union all
                select format('function %s', oid::regprocedure), proowner from pg_proc where pronamespace = n.oid
              ) as w (name, owner)
              where n.nspname = 'tollgate' and w.owner <> p.proowner",
        )
        .fetch_one(&mut *begin(pool).await?)
        .await
    }

    async fn planless(pool: &PgPool, most: i64, deleted: &str) -> Result<Vec<(Option<String>, i64)>, sqlx::Error> {
        sqlx::query_as(
            "select case when p.name is null then b.plan end, count(*)
               from (select plan from tollgate.token_buckets limit $1) b
               left join tollgate.token_plans p on p.name = b.plan and p.name <> $2
              group by 1",
        )
        .bind(most)
        .bind(deleted)
        .fetch_all(&mut *begin(pool).await?)
        .await
    }
}

async fn encryption(
    connection: &mut PgConnection,
    options: &PgConnectOptions,
    report: &mut DoctorReport,
) -> Result<(), sqlx::Error> {
    let encrypted: Option<bool> = sqlx::query_scalar("select ssl from pg_stat_ssl where pid = pg_backend_pid()")
        .fetch_optional(connection)
        .await?;
    let tls = match options.get_ssl_mode() {
        PgSslMode::Disable => Tls::Off,
        PgSslMode::Allow | PgSslMode::Prefer => Tls::Offered,
        // Any name will do for `verify-ca`.
        PgSslMode::Require | PgSslMode::VerifyCa => Tls::Required,
        PgSslMode::VerifyFull => Tls::Verified,
    };
    let is_socket = options.get_socket().is_some() || options.get_host().starts_with('/');
    let verify = "add sslmode=verify-full to the URL, and sslrootcert=FILE for a CA of your own";
    encryption::examine(options.get_host(), is_socket, tls, encrypted.unwrap_or_default(), verify, report);
    Ok(())
}

async fn now(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    // Under the role's own search path, so the multiplication names its schema.
    let now = "select (extract(epoch from clock_timestamp()) operator(pg_catalog.*) 1000000::numeric)::bigint";
    sqlx::query_scalar(now).fetch_one(connection).await
}

/// The role and the database of the session, as statements write them.
struct Names {
    role: String,
    database: String,
}

impl Names {
    async fn find(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        // Settings are those of the role that logged in, whichever it became.
        let (role, database) = sqlx::query_as("select quote_ident(session_user), quote_ident(current_database())")
            .fetch_one(connection)
            .await?;
        Ok(Self { role, database })
    }

    /// A name for another database.
    fn beside(&self) -> String {
        match self.database.strip_suffix('"') {
            Some(quoted) => format!("{quoted}_utf8\""),
            None => format!("{}_utf8", self.database),
        }
    }

    /// The statement that changes a setting here, and overrides other places that set it.
    fn set(&self, name: &str, value: &str) -> String {
        format!("alter role {} in database {} set {name} = {value}", self.role, self.database)
    }
}

/// A pooler that shares connections must know which of them has which statement: both of ours call theirs by one name.
async fn prepared_statements(pool: &PgPool, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let (mut one, mut other) = (pool.acquire().await?, pool.acquire().await?);
    for _ in 0..3 {
        for connection in [&mut one, &mut other] {
            let ran = sqlx::query("select 1").execute(&mut **connection).await;
            let Err(error) = ran else { continue };
            let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default().into_owned();
            if !["26000", "42P05", "08P01"].contains(&code.as_str()) {
                return Err(error);
            }
            let advice = "a pooler mixes connections up: PgBouncer 1.21 or newer with max_prepared_statements = 200, or pool_mode = session";
            report.fail("prepared statements", error.to_string(), advice);
            return Ok(());
        }
    }
    report.ok("prepared statements", "work");
    Ok(())
}

async fn server(connection: &mut PgConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let (version, number, standby): (String, String, bool) =
        sqlx::query_as("select version(), current_setting('server_version_num'), pg_is_in_recovery()")
            .fetch_one(connection)
            .await?;
    let name = version.split(" on ").next().unwrap_or(&version).to_owned();
    if number.parse().unwrap_or(0) < MIN_SERVER_VERSION {
        report.fail("server", name, "tollgate needs PostgreSQL 15, or YugabyteDB 2025.1, or newer");
    } else if standby {
        report.fail("server", format!("{name}, a standby, which only reads"), "connect to the primary");
    } else {
        report.ok("server", name);
    }
    Ok(())
}

/// Reports a pooler or proxy that listens in the place of the server.
async fn pooler(connection: &mut PgConnection, port: u16, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let own: Option<i32> = sqlx::query_scalar("select inet_server_port()").fetch_one(connection).await?;
    if let Some(own) = own.filter(|own| *own != i32::from(port)) {
        let found = format!("a pooler or proxy is between: the server's own port is {own}");
        report.ok(
            "pooler",
            format!(
                "{found}; `PgStore::connect` needs ignore_startup_parameters = extra_float_digits, options in PgBouncer"
            ),
        );
    }
    Ok(())
}

async fn grants(connection: &mut PgConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    // Of taking: the functions that a limiter's requests and reservations call, holds, and those by which it peeks. Beside: those
    // without which it takes tokens all the same.
    let (role, is_there, taking, beside, operates): (String, bool, Vec<String>, Vec<String>, bool) = sqlx::query_as(
        "select current_user::text,
                count(*) filter (where p.takes) > 0,
                coalesce(array_agg(distinct p.name) filter (where p.takes and not p.may), '{}'),
                coalesce(array_agg(distinct p.name) filter (where p.beside and not p.may), '{}'),
                coalesce(bool_and(p.may) filter (where p.operates), false)
           from (select format('tollgate.%s', p.proname) as name,
                        p.proname in ('adjust_batch_v1', 'adjust_v1', 'adjust_window_v1', 'explain', 'peek',
                                      'take_all_batch_v1', 'take_all_v1', 'take_batch_v1', 'take_each_v1',
                                      'take_equal_v1', 'take_v1', 'take_window_v1', 'throttle_v1') as takes,
                        p.proname in ('count_denials_v1', 'peek_window', 'sweep_v1') as beside,
                        p.proname = 'create_bucket' as operates,
                        has_schema_privilege(n.oid, 'usage') and has_function_privilege(p.oid, 'execute') as may
                   from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                  where n.nspname = 'tollgate') p",
    )
    .fetch_one(connection)
    .await?;
    if is_there {
        report.grants(&role, &taking, &beside, operates);
    }
    Ok(())
}

/// A restore without privileges leaves every function to every role that may use the schema.
async fn public(connection: &mut PgConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let (functions, uses): (i64, bool) = sqlx::query_as(
        "select count(*), coalesce(bool_or(has_schema_privilege('public', n.oid, 'usage')), false)
           from pg_proc p join pg_namespace n on n.oid = p.pronamespace
          where n.nspname = 'tollgate' and has_function_privilege('public', p.oid, 'execute')",
    )
    .fetch_one(connection)
    .await?;
    if functions > 0 {
        let so = if uses { "every role may call them" } else { "only the missing usage on the schema keeps roles out" };
        let found = format!("PUBLIC may execute {functions} functions of the schema: {so}");
        report.warn("public", found, "revoke execute on all functions in schema tollgate from public");
    }
    Ok(())
}

/// The routines run with the rights of their owner.
async fn definer(connection: &mut PgConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let superuser: Option<String> = sqlx::query_scalar(
        "select r.rolname::text
           from pg_proc p
           join pg_namespace n on n.oid = p.pronamespace
           join pg_roles r on r.oid = p.proowner
          where n.nspname = 'tollgate' and p.prosecdef and r.rolsuper
          limit 1",
    )
    .fetch_optional(connection)
    .await?;
    if let Some(superuser) = superuser {
        let found = format!("the routines run as {superuser}, who may do everything on this server");
        report.warn(
            "definer",
            found,
            "as a superuser, give them to a role without rights: `tollgate migrate --print owner | psql`",
        );
    }
    Ok(())
}

async fn settings(connection: &mut PgConnection) -> Result<Settings, sqlx::Error> {
    let settings: Vec<(String, String)> = sqlx::query_as(
        "select name, setting from pg_settings
          where name in ('autovacuum', 'default_transaction_isolation', 'default_transaction_read_only', 'fsync',
                         'full_page_writes', 'lock_timeout', 'server_encoding', 'statement_timeout',
                         'synchronous_commit')",
    )
    .fetch_all(connection)
    .await?;
    Ok(settings.into_iter().collect())
}

fn examine(settings: &Settings, names: &Names, report: &mut DoctorReport) {
    report.isolation(settings.get("default_transaction_isolation"));
    if settings.is_on("default_transaction_read_only") {
        let advice = format!("begin read write; {}; commit", names.set("default_transaction_read_only", "off"));
        report.fail("read only", "default_transaction_read_only is on: nothing can be taken", advice);
    }
    let commit = settings.get("synchronous_commit");
    if !settings.is_on("fsync") || !settings.is_on("full_page_writes") {
        let advice = "switch both on, unless this server may lose everything in a crash";
        report.warn("durability", "fsync or full_page_writes is off", advice);
    } else if commit == "off" {
        report
            .ok("durability", "synchronous_commit is off: faster; a crash forgets the grants of the last 0.6 s or so");
    } else {
        report.ok("durability", format!("synchronous_commit is {commit}: a crash forgets no grant"));
    }
    for (name, becomes) in
        [("statement_timeout", "end with 57014"), ("lock_timeout", "are repeated again and again (55P03)")]
    {
        let timeout: u64 = settings.get(name).parse().unwrap_or(0);
        if (1..MIN_LOCK_TIMEOUT_MS).contains(&timeout) {
            let found = format!("{name} is {timeout} ms: requests that wait for a busy bucket {becomes}");
            report.warn("timeouts", found, names.set(name, "'5s'"));
        }
    }
    let encoding = settings.get("server_encoding");
    if encoding != "UTF8" {
        let found =
            format!("the database's encoding is {encoding}: keys of others need not be UTF-8, and fail to be listed");
        let advice = format!("create database {} encoding 'UTF8' template template0, and move to it", names.beside());
        report.warn("encoding", found, advice);
    }
    if !settings.is_on("autovacuum") {
        let found = "autovacuum is off: each grant leaves a dead row version";
        report.warn("autovacuum", found, "alter system set autovacuum = on; select pg_reload_conf()");
    }
}

/// Checks that vacuum removes the dead versions of busy rows.
async fn vacuum(connection: &mut PgConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let table: Option<(i64, i64, i64, i64)> = sqlx::query_as(
        "select n_live_tup, n_dead_tup, n_tup_upd, n_tup_hot_upd
           from pg_stat_user_tables where schemaname = 'tollgate' and relname = 'token_buckets'",
    )
    .fetch_optional(&mut *connection)
    .await?;
    let oldest: Option<i64> = sqlx::query_scalar(
        "select max(extract(epoch from clock_timestamp() - xact_start))::bigint
           from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()",
    )
    .fetch_one(connection)
    .await?;
    let Some((live, dead, updates, hot)) = table else { return Ok(()) };
    let percent = (hot * 100).checked_div(updates).unwrap_or(100);
    let found = format!("{live} buckets, {dead} dead versions, {percent} % of updates in place");
    if oldest.unwrap_or(0) > MAX_TRANSACTION_SECONDS {
        let seconds = oldest.unwrap_or(0);
        let found = format!("{found}; a transaction is open for {seconds} s, and keeps every one since");
        report.warn("table", found, "end it: select pid, query from pg_stat_activity order by xact_start");
    } else if dead > MIN_DEAD_ROWS && dead > live * 5 {
        let advice =
            "vacuum tollgate.token_buckets; alter table tollgate.token_buckets set (autovacuum_vacuum_cost_delay = 0)";
        report.warn("table", found, advice);
    } else {
        report.ok("table", found);
    }
    Ok(())
}

const MIN_SERVER_VERSION: u32 = 150_000;
const MIN_LOCK_TIMEOUT_MS: u64 = 1000;
const MAX_TRANSACTION_SECONDS: i64 = 600;
const MIN_DEAD_ROWS: i64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Names {
        Names { role: "app".to_owned(), database: "\"My app\"".to_owned() }
    }

    #[test]
    fn crash_unsafe_or_unvacuumed_server_is_a_warning() {
        for (off, warned) in [
            ("none", &[][..]),
            ("fsync", &["durability"]),
            ("full_page_writes", &["durability"]),
            ("autovacuum", &["autovacuum"]),
            // Chosen for speed, and told: no fault.
            ("synchronous_commit", &[]),
        ] {
            let setting = |name: &str| (name.to_owned(), if name == off { "off" } else { "on" }.to_owned());
            let names = ["autovacuum", "fsync", "full_page_writes", "synchronous_commit"];
            let mut report = DoctorReport::default();
            let encoding = ("server_encoding".to_owned(), "UTF8".to_owned());
            examine(&names.into_iter().map(setting).chain([encoding]).collect(), &here(), &mut report);
            assert_eq!(report.warnings(), warned, "{off} is off");
        }
    }

    #[test]
    fn timeout_below_lock_wait_is_a_warning() {
        for (name, milliseconds, warned) in [
            ("statement_timeout", "0", false),
            ("statement_timeout", "50", true),
            ("statement_timeout", "5000", false),
            ("lock_timeout", "0", false),
            ("lock_timeout", "50", true),
            ("lock_timeout", "5000", false),
        ] {
            let mut report = DoctorReport::default();
            let others = ["autovacuum", "fsync", "full_page_writes"].map(|name| (name, "on"));
            let settings = others.into_iter().chain([("server_encoding", "UTF8"), (name, milliseconds)]);
            let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
            examine(&settings.collect(), &here(), &mut report);
            assert_eq!(report.warnings() == ["timeouts"], warned, "{name} = {milliseconds}");
        }
    }

    #[test]
    fn a_statement_names_the_role_and_the_database() {
        assert_eq!(here().set("lock_timeout", "'5s'"), "alter role app in database \"My app\" set lock_timeout = '5s'");
        assert_eq!(here().beside(), "\"My app_utf8\"");
    }
}

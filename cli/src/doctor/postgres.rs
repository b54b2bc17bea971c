use std::time::SystemTime;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{PgConnection, PgPool, Postgres};

use super::documented_grants::documented_grants;
use super::encryption::Tls;
use super::examine::Examine;
use super::report::DoctorReport;
use super::settings::Settings;
use super::{citus, clocks, encryption};
use crate::clock::ServerClock;
use crate::database::begin;
use crate::text::{counted, plain};

impl Examine for Postgres {
    async fn examine(pool: &PgPool, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
        prepared_statements(pool, report).await?;
        let mut connection = begin(pool).await?;
        encryption(&mut connection, &pool.connect_options(), report).await?;
        server(&mut connection, report).await?;
        pooler(&mut connection, pool.connect_options().get_port(), report).await?;
        grants(&mut connection, report).await?;
        public(&mut connection, report).await?;
        row_security(&mut connection, report).await?;
        let before = SystemTime::now();
        let now = <Self as ServerClock>::now(pool).await?;
        clocks::compare(before, now, SystemTime::now(), report);
        let names = Names::find(&mut connection).await?;
        examine(&settings(&mut connection).await?, &names, report);
        definer(&mut connection, report).await?;
        // Each node has the statistics of its own shards.
        if citus::examine(&mut connection, report).await? { Ok(()) } else { vacuum(&mut connection, report).await }
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
              where not b.overridden and b.refill not like 'calendar %'
                and (select (t.burst, t.step_ns, t.step_ticks, t.token_ticks) <> (b.burst, b.step_ns, b.step_ticks, b.token_ticks)
                       from tollgate.bucket_limits(
                              'bucket ' || quote_literal(b.id), b.capacity, b.refill_seconds, b.refill, b.anchor) t)
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

    /// Routines run as their owner. If a table became another role's, no grant to the caller helps.
    async fn remedy(pool: &PgPool, error: &dyn DatabaseError) -> Result<Option<String>, sqlx::Error> {
        if error.code().as_deref() != Some("42501") {
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

    async fn count_orphans(pool: &PgPool, most: i64, deleted: &str) -> Result<Vec<(Option<String>, i64)>, sqlx::Error> {
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
    fn optional(&self) -> String {
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
    let (role, is_migrated, required, optional, operates): (String, bool, Vec<String>, Vec<String>, bool) =
        sqlx::query_as(
            "select current_user::text,
                count(*) filter (where p.takes) > 0,
                coalesce(array_agg(distinct p.name) filter (where p.takes and not p.may), '{}'),
                coalesce(array_agg(distinct p.name) filter (where p.beside and not p.may), '{}'),
                coalesce(bool_and(p.may) filter (where p.operates), false)
           from (select format('tollgate.%s', p.proname) as name,
                        p.proname in ('adjust_batch_v1', 'adjust_v1', 'adjust_window_v1', 'explain', 'grant_v1', 'peek',
                                      'plan_limits_v1', 'take_all_batch_v1', 'take_all_v1', 'take_batch_v1', 'take_each_v1',
                                      'take_equal_v1', 'take_v1', 'take_window_v1', 'throttle_v1') as takes,
                        p.proname in ('count_denials_v1', 'peek_window', 'record_usage_v1', 'sweep_v1') as beside,
                        p.proname = 'create_bucket' as operates,
                        has_schema_privilege(n.oid, 'usage') and has_function_privilege(p.oid, 'execute') as may
                   from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                  where n.nspname = 'tollgate') p",
        )
        .fetch_one(&mut *connection)
        .await?;
    if !is_migrated {
        return Ok(());
    }
    let all = Excess::find(connection).await?;
    let advice = match all.iter().filter(|one| one.is_holder && one.is_own_role).map(Excess::revoke).collect::<Vec<_>>()
    {
        revokes if revokes.is_empty() => "revoke its memberships, such as pg_write_all_data".to_owned(),
        revokes => format!("{}; then run the grants again", revokes.join("; ")),
    };
    let own = all.iter().find(|one| one.is_session);
    report.grants(&role, &required, &optional, operates, own.map(|own| (own.description(), advice)));
    for other in all.iter().filter(|one| one.is_holder && !one.is_session) {
        let found = format!("{} may do more than the grants allow: {}", other.role, other.description());
        report.warn("privileges", found, format!("{}; then run the grants again", other.revoke()));
    }
    Ok(())
}

type ExcessColumns = (String, bool, bool, bool, Vec<String>, Vec<String>);

/// The privileges of a role beyond those of the printed grants, as after `alter default privileges`.
struct Excess {
    /// The name, quoted.
    role: String,
    /// Whether it is the role of the session.
    is_session: bool,
    /// Whether the session has its privileges.
    is_own_role: bool,
    /// Whether privileges were granted to it, and not only to a role that it is a member of.
    is_holder: bool,
    /// The privileges on tables, columns and the schema.
    tables: Vec<String>,
    functions: Vec<String>,
}

impl Excess {
    /// Compares the effective privileges of each role that has a grant on tollgate's objects, and of the session's. Skips
    /// superusers and members of the owner. A role that cannot create buckets may still read what an operator may read.
    async fn find(connection: &mut PgConnection) -> Result<Vec<Self>, sqlx::Error> {
        let documented_grants = documented_grants(tollgate::store::grants::<Postgres>().unwrap_or_default());
        let (mut objects, mut columns, mut privileges, mut of_operator) = (vec![], vec![], vec![], vec![]);
        for one in documented_grants {
            objects.push(one.object);
            columns.push(one.column);
            privileges.push(one.privilege);
            of_operator.push(one.of_operator);
        }
        let rows: Vec<ExcessColumns> = sqlx::query_as(
            "with documented as (
               select replace(replace(object, ', ', ','), 'timestamptz', 'timestamp with time zone') as object,
                      col, privilege, of_operator
                 from unnest($1::text[], $2::text[], $3::text[], $4::boolean[])
                        d (object, col, privilege, of_operator)
             ), object as (
               select 'n' as kind, oid, nspname::text as name, nspacl as acl, nspowner as owner
                 from pg_namespace where nspname = 'tollgate'
                union all
               select 'r', oid, oid::regclass::text, relacl, relowner from pg_class
                where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
                union all
               select 'f', oid, oid::regprocedure::text, coalesce(proacl, acldefault('f', proowner)), proowner from pg_proc
                where pronamespace = 'tollgate'::regnamespace
             ), acl as (
               select grantee, privilege_type from object cross join aclexplode(acl)
                union all
               select a.grantee, a.privilege_type from pg_attribute t cross join aclexplode(t.attacl) a
                where t.attrelid in (select oid from object where kind = 'r')
             ), role as (
               select r.oid, r.rolname, r.rolname = current_user as is_session,
                      r.oid in (select grantee from acl) as is_holder, pg_has_role(r.oid, 'usage') as is_ours,
                      exists (select from object o where o.name like 'tollgate.create\\_bucket(%' and has_function_privilege(r.oid, o.oid, 'execute'))
                        as operates
                 from pg_roles r
                where (r.rolname = current_user or r.oid in (select grantee from acl)) and not r.rolsuper
                  and not exists (select from object o where pg_has_role(r.oid, o.owner, 'usage'))
             ), held as (
               select r.oid as role, o.kind, o.oid, o.name, p.privilege, null::name as col
                 from role r cross join object o
                cross join unnest(case o.kind when 'n' then '{create,usage}' when 'f' then '{execute}'
                                              else '{delete,truncate,references,trigger}' end::text[]) as p (privilege)
                where case o.kind when 'n' then has_schema_privilege(r.oid, o.oid, p.privilege)
                                  when 'f' then has_function_privilege(r.oid, o.oid, p.privilege)
                                  else has_table_privilege(r.oid, o.oid, p.privilege) end
                union all
               select r.oid, o.kind, o.oid, o.name, p.privilege, t.attname
                 from role r cross join object o
                 join pg_attribute t on t.attrelid = o.oid and t.attnum > 0 and not t.attisdropped
                cross join unnest('{select,insert,update}'::text[]) as p (privilege)
                where o.kind = 'r' and has_column_privilege(r.oid, o.oid, t.attnum, p.privilege)
             ), excess as (
               select h.role, h.kind, h.name, string_agg(distinct h.privilege, ', ') as privileges
                 from held h join role r on r.oid = h.role
                where not exists (select from documented d
                                   where d.object = h.name and d.privilege = h.privilege and coalesce(d.col = h.col, true)
                                     and (not d.of_operator or r.operates or d.privilege = 'select'))
                group by 1, 2, 3
             )
             select quote_ident(r.rolname) as role, r.is_session, r.is_ours, r.is_holder,
                    coalesce(array_agg(e.privileges || ' on ' || e.name order by e.name) filter (where e.kind <> 'f'), '{}')
                      as tables,
                    coalesce(array_agg(e.name order by e.name) filter (where e.kind = 'f'), '{}') as functions
               from role r join excess e on e.role = r.oid
              group by r.rolname, r.is_session, r.is_ours, r.is_holder
              order by r.rolname",
        )
        .bind(objects)
        .bind(columns)
        .bind(privileges)
        .bind(of_operator)
        .fetch_all(connection)
        .await?;
        let excess_privileges = |(role, is_session, is_own_role, is_holder, tables, functions)| Self {
            role,
            is_session,
            is_own_role,
            is_holder,
            tables,
            functions,
        };
        Ok(rows.into_iter().map(excess_privileges).collect())
    }

    fn description(&self) -> String {
        let functions = self.functions.first().map(|first| {
            let rest = self.functions.len() - 1;
            let others = if rest == 0 { String::new() } else { format!(" and {}", counted(rest, "other function")) };
            format!("execute {first}{others}")
        });
        self.tables.iter().cloned().chain(functions).collect::<Vec<_>>().join("; ")
    }

    fn revoke(&self) -> String {
        let role = &self.role;
        let mut revokes = Vec::new();
        if !self.tables.is_empty() {
            revokes.push(format!("revoke all on all tables in schema tollgate from {role}"));
            revokes.push(format!("revoke create on schema tollgate from {role}"));
        }
        if !self.functions.is_empty() {
            revokes.push(format!("revoke all on all functions in schema tollgate from {role}"));
        }
        revokes.join("; ")
    }
}

/// Row level security hides rows without a policy that shows them: plans from operators and, where it is forced, blocked
/// keys from the routines.
async fn row_security(connection: &mut PgConnection, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text from pg_class c
          where c.relnamespace = to_regnamespace('tollgate') and c.relrowsecurity
            and (exists (select from pg_policy p where p.polrelid = c.oid and not p.polpermissive)
                 or not exists (select from pg_policy p
                                 where p.polrelid = c.oid and p.polpermissive and p.polcmd = '*' and 0 = any (p.polroles)
                                   and pg_get_expr(p.polqual, c.oid) = 'true'
                                   and coalesce(pg_get_expr(p.polwithcheck, c.oid), 'true') = 'true'))
          order by 1",
    )
    .fetch_all(connection)
    .await?;
    if !tables.is_empty() {
        let disable =
            |table: &String| format!("alter table {table} disable row level security, no force row level security");
        let found = format!("row level security hides rows of {}: blocked keys may be granted", tables.join(", "));
        report.fail("row security", found, tables.iter().map(disable).collect::<Vec<_>>().join("; "));
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
        let advice = format!("create database {} encoding 'UTF8' template template0, and move to it", names.optional());
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
        assert_eq!(here().optional(), "\"My app_utf8\"");
    }
}

//! Privileges beyond those of the printed grants, and the checks that report them.

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tokio::runtime::Runtime;

use crate::command::{Ran, SECRET, tollgate};
use crate::databases::{Database, Engine};

#[test]
fn default_privileges_give_no_role_tollgates_objects() {
    for way in ["migrate", "psql"] {
        let database = Database::empty(Engine::Postgres);
        let [own, app] = ["own", "app"].map(name);
        database.sql(&format!(
            "create role {own} login; create role {app} login;
             grant create on database {} to {own};
             alter default privileges for role {own} grant all on schemas to {app};
             alter default privileges for role {own} grant select, insert, update, delete on tables to {app};
             alter default privileges for role {own} grant execute on functions to {app}",
            database.name()
        ));
        let as_owner = |arguments: &[&str]| run_as(&database, &own, arguments);
        let migrated = if way == "migrate" {
            as_owner(&["migrate"]).code
        } else {
            let script = as_owner(&["migrate", "--print", "psql"]).out;
            database.sql(&format!("set session authorization {own}; {script}"));
            0
        };
        let given = holders(&database, &own);
        // Grants on existing objects stay.
        database.sql(&format!("grant execute on function tollgate.request_token(text) to {app}"));
        let repaired = as_owner(&["migrate", "--repair"]).code;
        let kept = holders(&database, &own);
        // As after a restore without privileges.
        database.sql(&format!("grant all on all tables in schema tollgate to {app}"));
        database.sql(&as_owner(&["migrate", "--print", "grants"]).out);
        let revoked = holders(&database, &own);
        database.sql(&format!(
            "drop owned by {app}; reassign owned by {own} to postgres; drop owned by {own}; drop role {own}, {app}"
        ));
        assert_eq!((migrated, repaired), (0, 0), "{way}");
        assert_eq!(given, [""; 0], "{way}");
        assert_eq!(kept, [format!("{app} request_token")], "{way}");
        assert!(revoked.iter().all(|holder| holder.starts_with("tollgate_")), "{way}: {revoked:?}");
    }
}

#[test]
fn doctor_reports_privileges_beyond_the_grants() {
    let database = Database::migrated(Engine::Postgres);
    database.sql(&database.run(&["migrate", "--print", "grants"]).ended(0).out);
    let [app, group] = ["app", "group"].map(name);
    database.sql(&format!("create role {app} login; create role {group}; grant tollgate_app, {group} to {app}"));
    let doctor = || run_as(&database, &app, &["doctor", "--json"]).json();
    let before = doctor();
    let reports: Vec<(Value, Value, Value)> = [
        "update (full_at) on tollgate.token_buckets",
        "delete on tollgate.token_overrides",
        "select on tollgate.token_receipts",
        "execute on function tollgate.clock()",
        "create on schema tollgate",
    ]
    .map(|privilege| {
        database.sql(&format!("grant {privilege} to {group}"));
        let (own, all) = (doctor(), run_as(&database, "postgres", &["doctor", "--json"]).json());
        let advice = check(&own, "grants")["advice"].as_str().unwrap_or_default().to_owned();
        database.sql(advice.strip_suffix("; then run the grants again").unwrap_or("select 'no statements'"));
        (own, all, doctor())
    })
    .into();
    database.sql(&format!("drop owned by {group}; drop role {app}, {group}"));

    assert_eq!(check(&before, "grants")["status"], "ok", "{before:#}");
    let expected = [
        "update on tollgate.token_buckets",
        "delete on tollgate.token_overrides",
        "select on tollgate.token_receipts",
        "clock()",
        "create on tollgate",
    ];
    for ((own, all, after), privilege) in reports.iter().zip(expected) {
        for (report, name, status) in [(own, "grants", "fail"), (all, "privileges", "warn")] {
            assert_eq!(check(report, name)["status"], status, "{privilege}: {report:#}");
            assert!(check(report, name)["found"].as_str().expect("text").contains(privilege), "{report:#}");
        }
        assert_eq!(check(after, "grants")["status"], "ok", "{privilege}: {after:#}");
    }
}

#[test]
fn grant_on_the_whole_database_is_reported() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let service = name("wide");
        let pattern = database.name().replace('_', "\\_");
        database.sql(&format!(
            "create user '{service}'@'%' identified by '{SECRET}'; grant select, insert, update, delete, execute on `{pattern}`.* to '{service}'@'%'"
        ));
        let listed = rows(&database, &database.run(&["migrate", "--print", "grants"]).ended(0).out);
        let own = run_as(&database, &service, &["doctor", "--json"]);
        database.sql(&format!("grant all on `{pattern}`.* to '{service}'@'%'"));
        let owner_like = run_as(&database, &service, &["doctor", "--json"]).json();
        let root = tollgate(Some(&database.url_of_root()), &database.directory).args(["doctor", "--json"]).output();
        let owner = database.run(&["doctor", "--json"]).ended(0).json();
        let (own, root) = (own.json(), Ran::new(root.expect("it starts")).json());
        let remedy = check(&own, "grants")["advice"].as_str().unwrap_or_default().to_owned();
        let revoke = remedy.split("; ").next().expect("a statement").to_owned();
        database.sql(&format!("set sql_mode = 'NO_BACKSLASH_ESCAPES'; {revoke}"));
        let after = rows(&database, &database.run(&["migrate", "--print", "grants"]).ended(0).out);
        database.sql(&format!("drop user '{service}'@'%'"));

        assert_eq!(check(&own, "grants")["status"], "fail", "{engine:?}: {own:#}");
        let found = check(&own, "grants")["found"].as_str().expect("text").to_owned();
        for excess in ["update on token_buckets", "delete", "token_claim"] {
            assert!(found.contains(excess), "{engine:?}: {found}");
        }
        for report in [&owner_like, &root] {
            assert_eq!(check(report, "privileges")["status"], "warn", "{engine:?}: {report:#}");
        }
        assert_eq!(check(&owner, "grants")["status"], "ok", "{engine:?}: {owner:#}");
        let account = format!("'{service}'@'%'");
        assert!(listed.contains(&account) && !after.contains(&account), "{engine:?}: {listed:?}, {after:?}");
    }
}

#[test]
fn row_level_security_hides_no_rule() {
    let database = Database::migrated(Engine::Postgres);
    let own = name("own");
    database.sql(&database.run(&["migrate", "--print", "grants"]).ended(0).out);
    let operator = name("operator");
    database.sql(&format!(
        "create role {own}; create role {operator} login; grant tollgate_operator to {operator};
         grant create on database {} to {own}; alter schema tollgate owner to {own}",
        database.name()
    ));
    database.sql(&format!(
        "do $$ declare t record; begin
           for t in select oid::regclass as name from pg_class
                     where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v') loop
             execute format('alter table %s owner to {own}', t.name);
           end loop;
           for t in select oid::regprocedure as name from pg_proc where pronamespace = 'tollgate'::regnamespace loop
             execute format('alter function %s owner to {own}', t.name);
           end loop;
         end $$"
    ));
    let run = |arguments: &[&str]| run_as(&database, &operator, arguments);
    let set = [
        run(&["create", "k", "--quota", "5/h"]),
        run(&["plan", "set", "free", "--quota", "5/h"]),
        run(&["mode", "block", "--key", "k", "--reason", "abuse"]),
    ];
    let forced = |tables: &str| {
        database.sql(&format!(
            "do $$ declare t record; begin
               for t in select oid::regclass as name from pg_class
                         where relnamespace = 'tollgate'::regnamespace and relkind = 'r' loop
                 execute format('alter table %s {tables}', t.name);
               end loop;
             end $$"
        ));
    };
    forced("enable row level security, force row level security");
    let shown = [run(&["take", "k"]), run(&["plan", "list"]), run(&["doctor", "--json"])];
    database.sql("drop policy all_rows on tollgate.token_overrides");
    let hidden = run(&["doctor", "--json"]).json();
    let advice = check(&hidden, "row security")["advice"].as_str().unwrap_or("select 'none'").to_owned();
    database.sql(&advice);
    let mended = [run(&["take", "k"]), run(&["doctor", "--json"])];
    database.sql(&format!("reassign owned by {own} to postgres; drop owned by {own}; drop role {own}, {operator}"));

    for ran in set {
        ran.ended(0);
    }
    let [taken, plans, report] = shown;
    taken.ended(75);
    plans.ended(0).says(&["free"]);
    let report = report.ended(0).json();
    assert_eq!(check(&report, "row security"), Value::Null, "{report:#}");
    assert_eq!(check(&hidden, "row security")["status"], "fail", "{hidden:#}");
    let [taken, report] = mended;
    taken.ended(75);
    report.ended(0);
}

#[test]
fn printed_grants_refuse_a_role_that_can_log_in() {
    for engine in [Engine::Postgres, Engine::MySql] {
        let database = Database::migrated(engine);
        let prefix = name("p")[..20].to_owned();
        let script = database.run(&["migrate", "--print", "grants", "--prefix", &prefix]).ended(0).out;
        let (create, drop) = if engine == Engine::Postgres {
            (format!("create role {prefix}_operator login"), format!("drop role {prefix}_operator"))
        } else {
            (
                format!("create user {prefix}_operator identified by '{SECRET}'"),
                format!("drop user {prefix}_operator; drop role if exists {prefix}_app"),
            )
        };
        database.sql(&create);
        let ran = execute(&database.url_of_root(), &script);
        database.sql(&drop);
        let error = ran.expect_err("an account of another").to_string();
        assert!(error.contains("can log in") || error.contains("can_log_in"), "{engine:?}: {error}");
    }
}

/// The holders of privileges on tollgate's objects beside the owner: the grantee and the object.
fn holders(database: &Database, own: &str) -> Vec<String> {
    let sql = format!(
        "select distinct a.grantee::regrole || ' ' || o.name as holder
           from (select relname as name, relacl as acl from pg_class where relnamespace = 'tollgate'::regnamespace
                  union all
                 select proname, coalesce(proacl, acldefault('f', proowner)) from pg_proc
                  where pronamespace = 'tollgate'::regnamespace
                  union all
                 select nspname, nspacl from pg_namespace where nspname = 'tollgate') o
          cross join aclexplode(o.acl) a
          where a.grantee <> '{own}'::regrole
          order by 1"
    );
    runtime().block_on(async {
        let mut connection = PgConnection::connect(&database.url_of_root()).await.expect("it connects");
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await.expect("an answer")
    })
}

/// The texts in the first column of all results of a script.
fn rows(database: &Database, script: &str) -> Vec<String> {
    use sqlx::Row as _;
    let script = AssertSqlSafe(script.to_owned());
    runtime().block_on(async {
        let mut connection = MySqlConnection::connect(&database.url_of_root()).await.expect("it connects");
        let rows = sqlx::raw_sql(script).fetch_all(&mut connection).await.expect("it runs");
        rows.iter().filter_map(|row| row.try_get(0).ok()).collect()
    })
}

fn execute(url: &str, script: &str) -> Result<(), sqlx::Error> {
    let script = AssertSqlSafe(script.to_owned());
    runtime().block_on(async {
        if url.starts_with("postgres") {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::raw_sql(script).execute(&mut connection).await.map(drop)
        } else {
            let mut connection = MySqlConnection::connect(url).await?;
            sqlx::raw_sql(script).execute(&mut connection).await.map(drop)
        }
    })
}

fn run_as(database: &Database, role: &str, arguments: &[&str]) -> Ran {
    let ran = tollgate(Some(&database.url_of(role)), &database.directory).args(arguments).output();
    Ran::new(ran.expect("it starts"))
}

fn check(report: &Value, name: &str) -> Value {
    let checks = report["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["name"] == name).cloned().unwrap_or_default()
}

fn name(kind: &str) -> String {
    format!("tg_{kind}_{}", &uuid::Uuid::new_v4().simple().to_string()[..20])
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

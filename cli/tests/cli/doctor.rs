//! The findings of `tollgate doctor`.

use std::process::Stdio;

use serde_json::Value;
use sqlx::{Connection, MySqlConnection, PgConnection};

use crate::command::{Ran, SECRET, tollgate};
use crate::databases::{Database, EACH, Engine};

#[test]
fn ready_database_has_no_failure() {
    for engine in EACH.into_iter().chain([Engine::PgBouncer]) {
        let database = Database::migrated(engine);
        let report = database.run(&["doctor", "--json"]).ended(0).json();
        let mut expected = vec!["calls", "connection", "durability", "mode", "schema", "server"];
        expected.extend(match engine {
            #[cfg(unix)]
            Engine::Sqlite => &["access", "busy timeout", "file", "journal", "write lock"][..],
            #[cfg(not(unix))]
            Engine::Sqlite => &["busy timeout", "file", "journal", "write lock"][..],
            Engine::Postgres | Engine::PgBouncer => {
                &["clock", "encryption", "grants", "isolation", "prepared statements", "table"]
            }
            Engine::MySql | Engine::MariaDb => &["clock", "encryption", "events", "grants", "isolation"],
        });
        for name in expected {
            assert_eq!(status(&report, name), "ok", "{name} of {engine:?} in {report:#}");
        }
        assert!(engine != Engine::MariaDb || !report.to_string().contains("MySQL"), "{report:#}");
        assert_eq!(status(&report, "pooler") == "ok", engine == Engine::PgBouncer, "{engine:?}: {report:#}");
    }
}

#[test]
fn doctor_does_not_wait_for_a_locked_table() {
    let database = Database::migrated(Engine::Postgres);
    database.run(&["plan", "set", "free", "--quota", "5/h"]).ended(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut connection = runtime.block_on(PgConnection::connect(&database.url)).expect("it connects");
    let lock =
        sqlx::raw_sql("begin; lock table tollgate.token_buckets in access exclusive mode").execute(&mut connection);
    runtime.block_on(lock).expect("it is locked");
    // Both at once, as each waits for as long as it has patience.
    let ran = [&["doctor"][..], &["plan", "delete", "free", "--force"]].map(|arguments| {
        let mut command = database.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    });
    let [report, deleted] = ran.map(|child| Ran::new(child.wait_with_output().expect("it ends")));
    report.ended(1).says(&[
        "ok    connection",
        "ok    schema",
        "no answer within 10s: is a table locked?",
        "→ look on the server",
    ]);
    deleted.ended(0).says(&["plan free: deleted; it was 5/h"]);
}

#[test]
fn doctor_names_session_that_blocks_schema_change() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (lock_holder, end) =
            runtime.block_on(LockHolder::new(&database.url_of_root(), engine)).expect("it is held");
        let as_root = |arguments: &[&str]| {
            let ran = tollgate(Some(&database.url_of_root()), &database.directory).args(arguments).output();
            Ran::new(ran.expect("it starts"))
        };
        // By when its transaction is more than a second old.
        as_root(&["mode", "off", "--all"]).ended(69).says(&[
            "the change was rolled back and is not retried",
            "session ",
            &end,
        ]);
        as_root(&["doctor"]).ended(0).says(&["warn  locks", "has held locks in an open transaction for", &end]);
        if engine.is_mysql() {
            let ran = database.run(&["mode", "off", "--all"]).ended(69);
            ran.says(&["the change was rolled back", "whose account has PROCESS", "`grant PROCESS on *.* to"]);
        }
        drop(lock_holder);
        database.run(&["mode"]).ended(0).says(&["enforce"]);
    }
}

#[test]
fn doctor_names_privilege_that_shows_lock_owner() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut holder = runtime.block_on(MySqlConnection::connect(&database.url_of_root())).expect("it connects");
        // New rows wait for the gap that this locks.
        let hold = sqlx::raw_sql("start transaction; select * from token_buckets for update").execute(&mut holder);
        runtime.block_on(hold).expect("it is held");
        let ran = database.run(&["doctor"]).ended(1);
        ran.says(&["fail  calls", "Lock wait timeout", "ok    locks", "→ an administrator, whose account has PROCESS"]);
    }
}

#[test]
fn prepared_xa_transaction_is_a_warning() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let id = uuid::Uuid::new_v4().simple().to_string();
        let xid = format!("'{id}', 'b', 7");
        let update = "update token_mode set reason = 'x'";
        database.sql(&format!("xa start {xid}; {update}; xa end {xid}; xa prepare {xid}"));
        let root = tollgate(Some(&database.url_of_root()), &database.directory).arg("doctor").output();
        let unprivileged = database.run(&["doctor"]);
        // Rolled back before the assertions: its locks would keep the database from being dropped.
        database.sql(&format!("xa rollback {xid}"));
        let hex = id.bytes().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        Ran::new(root.expect("it starts"))
            .ended(0)
            .says(&["prepared XA transaction", &format!("`xa rollback X'{hex}', X'62', 7`")]);
        assert_eq!(unprivileged.ended(0).out.contains("prepared XA"), engine == Engine::MariaDb, "{engine:?}");
    }
}

/// An open transaction that holds the mode.
enum LockHolder {
    MySql(#[expect(dead_code, reason = "it is open")] MySqlConnection),
    Postgres(#[expect(dead_code, reason = "it is open")] PgConnection),
}

impl LockHolder {
    /// And the statement that ends it.
    async fn new(url: &str, engine: Engine) -> Result<(Self, String), sqlx::Error> {
        if engine.is_mysql() {
            let mut connection = MySqlConnection::connect(url).await?;
            let hold = "start transaction; update token_mode set reason = 'held' where one = true";
            sqlx::raw_sql(hold).execute(&mut connection).await?;
            let id: i64 =
                sqlx::query_scalar("select cast(connection_id() as signed)").fetch_one(&mut connection).await?;
            return Ok((Self::MySql(connection), format!("`kill {id}`")));
        }
        let mut connection = PgConnection::connect(url).await?;
        sqlx::raw_sql("begin; update tollgate.token_mode set reason = 'held'").execute(&mut connection).await?;
        let id: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut connection).await?;
        Ok((Self::Postgres(connection), format!("`select pg_terminate_backend({id})`")))
    }
}

#[test]
fn pending_migrations_are_reported_with_advice() {
    let database = Database::migrated(Engine::Postgres);
    database.sql("delete from tollgate.migrations where version > 8");
    database.run(&["doctor"]).ended(1).says(&["pending: ", "run `tollgate migrate`, or", "`tollgate migrate --print`"]);
}

#[test]
fn encoding_without_full_unicode_warns_or_fails() {
    let database = Database::encoded("SQL_ASCII");
    database.run(&["migrate"]).ended(0);
    database.run(&["doctor"]).ended(0).says(&["warn  encoding", "SQL_ASCII", "encoding 'UTF8' template template0"]);
    let latin = Database::encoded("LATIN1");
    latin.run(&["migrate"]).ended(69).says(&["LATIN1", "encoding 'UTF8' template template0"]);
}

#[test]
fn non_default_mode_is_a_warning() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["mode", "off", "--all", "--reason", "incident 42"]).ended(0);
    database.run(&["doctor"]).ended(0).says(&["warn  mode", "off: incident 42", "tollgate mode --clear --all"]);
}

#[test]
fn missing_mode_row_and_unsettled_bucket_are_warnings() {
    for engine in EACH {
        let database = Database::migrated(engine);
        let schema = if engine == Engine::Postgres { "tollgate." } else { "" };
        database.sql(&format!("delete from {schema}token_mode"));
        database.run(&["doctor"]).ended(0).says(&["warn  content", "token_mode has no row", "insert into"]);
        database.run(&["mode", "block", "--all", "--reason", "incident 42"]).ended(0);
        database.run(&["mode"]).ended(0).says(&["block: incident 42"]);
    }

    let database = Database::migrated(Engine::Postgres);
    database.run(&["create", "a", "--capacity", "5", "--per", "60s"]).ended(0);
    let doctor = || database.run(&["doctor"]);
    database.sql("alter table tollgate.token_buckets disable trigger new_limits");
    doctor().ended(1).says(&["fail  triggers", "alter table tollgate.token_buckets enable always trigger new_limits"]);
    database.sql("update tollgate.token_buckets set capacity = 7");
    database.sql("alter table tollgate.token_buckets enable always trigger new_limits");
    doctor().ended(0).says(&["warn  content", "bucket a has other limits", "set capacity = capacity"]);
    database.sql("update tollgate.token_buckets set capacity = capacity");
    assert!(!doctor().ended(0).out.contains("other limits"));
}

#[test]
fn app_role_is_reported_and_role_without_grants_fails() {
    let database = Database::migrated(Engine::Postgres);
    let grants = database.run(&["migrate", "--print", "grants"]).ended(0).out;
    assert_eq!(grants, include_str!("../../../migrations/grants/postgres.sql"));
    database.sql(&grants);
    let [app, none] = ["app", "none"].map(|name| format!("tollgate_cli_{name}_{}", uuid::Uuid::new_v4().simple()));
    database.sql(&format!("create role {app} login; grant tollgate_app to {app}; create role {none} login"));
    let run = |role: &str, arguments: &[&str]| {
        let ran = tollgate(Some(&database.url_of(role)), &database.directory).args(arguments).output();
        Ran::new(ran.expect("it starts"))
    };
    let app_report = run(&app, &["doctor", "--json"]).ended(0).json();
    let none_report = run(&none, &["doctor", "--json"]).ended(1).json();
    let denied = run(&app, &["reset", "a"]);
    let next = [run(&app, &[]), run(&none, &[])];
    database.sql(&format!("drop role {app}; drop role {none}"));

    assert!(found(&app_report, "grants").contains("may take tokens, and not operate"), "{app_report:#}");
    assert_eq!(status(&none_report, "grants"), "fail", "{none_report:#}");
    let denied = denied.ended(77).says(&["may not do that", "tollgate doctor", "tollgate migrate --print grants"]);
    assert!(!denied.err.contains("at line"), "{denied:?}");
    let [app_next, none_next] = next;
    app_next.ended(0).says(&["this role may take tokens"]);
    none_next.ended(77).says(&["has no privileges here", "grant tollgate_app to", "tollgate migrate --print grants"]);
}

#[test]
fn routines_without_grant_are_named() {
    let half = format!("tg_half_{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let (grant, revoke, may, may_not) = if engine.is_mysql() {
            let grant = format!(
                "create user '{half}'@'%' identified by '{SECRET}';
                 grant select on token_migrations to '{half}'@'%';
                 grant execute on procedure token_take_v1 to '{half}'@'%';
                 grant execute on procedure token_adjust_v1 to '{half}'@'%'"
            );
            let may_not =
                ["token_take_batch_v1", "token_take_all_v1", "token_take_window_v1", "token_adjust_window_v1"];
            (grant, format!("drop user '{half}'@'%'"), ["token_take_v1", "token_adjust_v1"], may_not)
        } else {
            let grant = format!(
                "create role {half} login; grant usage on schema tollgate to {half};
                 grant execute on function tollgate.applied_migrations, tollgate.take_v1, tollgate.adjust_v1 to {half}"
            );
            let may_not =
                ["tollgate.take_batch_v1", "tollgate.take_all_v1", "tollgate.take_equal_v1", "tollgate.take_window_v1"];
            (
                grant,
                format!("drop owned by {half}; drop role {half}"),
                ["tollgate.take_v1", "tollgate.adjust_v1"],
                may_not,
            )
        };
        database.sql(&grant);
        let ran = tollgate(Some(&database.url_of(&half)), &database.directory).args(["doctor", "--json"]).output();
        let ran = Ran::new(ran.expect("it starts"));
        database.sql(&revoke);
        let report = ran.ended(1).json();
        assert_eq!(status(&report, "grants"), "fail", "{engine:?}: {report:#}");
        for routine in may_not {
            assert!(found(&report, "grants").contains(routine), "{engine:?}, {routine}: {report:#}");
        }
        for routine in may {
            assert!(!found(&report, "grants").contains(routine), "{engine:?}, {routine}: {report:#}");
        }
    }
}

#[test]
fn missing_grant_for_background_work_is_a_warning() {
    let role = format!("tg_less_{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let grants = database.run(&["migrate", "--print", "grants"]).ended(0).out;
        // A role of the test's own, as the one of the file belongs to the whole server.
        let (grants, removal, names) = if engine.is_mysql() {
            let to = format!("to '{role}'@'%'");
            let lines = grants.lines().filter(|line| line.ends_with(" to tollgate_app;"));
            let lines =
                lines.filter(|line| OPTIONAL_ROUTINES.iter().all(|name| !line.contains(&format!("token_{name} "))));
            let grants = lines.map(|line| line.replace("to tollgate_app", &to)).collect::<String>();
            let user = format!("create user '{role}'@'%' identified by '{SECRET}';");
            (user + &grants, format!("drop user '{role}'@'%'"), OPTIONAL_ROUTINES.map(|name| format!("token_{name}")))
        } else {
            let begin = grants.find("\ngrant usage on").expect("grants");
            let end = grants.find("\ngrant tollgate_app to").expect("the operators'");
            let lines = grants[begin..end].replace("to tollgate_app", &format!("to {role}"));
            let revoked = OPTIONAL_ROUTINES
                .map(|name| format!("revoke execute on function tollgate.{name} from {role};"))
                .join("");
            let user = format!("create role {role} login;");
            let names = OPTIONAL_ROUTINES.map(|name| format!("tollgate.{name}"));
            (user + &lines + &revoked, format!("drop owned by {role}; drop role {role}"), names)
        };
        database.sql(&grants);
        let ran = tollgate(Some(&database.url_of(&role)), &database.directory).args(["doctor", "--json"]).output();
        let ran = Ran::new(ran.expect("it starts"));
        database.sql(&removal);
        let report = ran.ended(0).json();
        assert_eq!(status(&report, "grants"), "warn", "{engine:?}: {report:#}");
        let reported = found(&report, "grants").rsplit_once("may not call ").expect("names").1;
        assert_eq!(reported, names.join(", "), "{engine:?}: {report:#}");
    }
}

#[test]
fn harmful_settings_warn_with_a_remedy() {
    let database = Database::migrated(Engine::Postgres);
    let name = database.url.rsplit('/').next().expect("a name");
    let role = "alter role postgres in database";
    for setting in [
        "default_transaction_isolation = serializable",
        "lock_timeout = 40",
        "statement_timeout = 900",
        "synchronous_commit = off",
    ] {
        database.sql(&format!("alter database {name} set {setting}"));
    }
    let ran = database.run(&["doctor"]).ended(0);
    ran.says(&["warn  isolation", "warn  timeouts", "57014", "set statement_timeout", "synchronous_commit is off"])
        .says(&["lock_timeout is 40 ms", "55P03", &format!("{role} {name} set lock_timeout = '5s'")]);
    database.sql(&format!("alter database {name} set default_transaction_read_only = on"));
    let report = database.run(&["doctor", "--json"]).ended(1).json();
    assert_eq!(status(&report, "read only"), "fail", "{report:#}");
    // The advice is the remedy.
    let checks = report["checks"].as_array().expect("checks");
    let advice = checks.iter().filter_map(|check| check["advice"].as_str());
    for statement in advice.filter(|advice| advice.contains(role)) {
        // Nothing else can be written meanwhile.
        let statement = statement.trim_start_matches("begin read write; ").trim_end_matches("; commit");
        database.sql(&format!("begin read write; {statement}; commit"));
    }
    let report = database.run(&["doctor", "--json"]).ended(0).json();
    assert_eq!([status(&report, "read only"), status(&report, "timeouts")], ["missing", "missing"], "{report:#}");
}

#[test]
fn routines_with_a_superusers_rights_are_a_warning() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::empty(engine);
        let root = |arguments: &[&str]| {
            let ran = tollgate(Some(&database.url_of_root()), &database.directory).args(arguments).output();
            Ran::new(ran.expect("it starts")).ended(0)
        };
        root(&["migrate"]);
        let remedy = if engine == Engine::MySql {
            "set global super_read_only = on"
        } else {
            "revoke read_only admin on *.* from 'root'@"
        };
        root(&["doctor"]).says(&["warn  definer", "run as root@", remedy]);
    }
}

#[test]
fn routines_of_two_accounts_are_a_warning() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        assert_eq!(status(&database.run(&["doctor", "--json"]).json(), "definers"), "missing");
        database.sql("create definer = 'nobody'@'%' procedure host_routine() begin end; drop procedure request_token");
        database.sql("create definer = 'nobody'@'%' procedure request_token(in p_id varchar(256)) begin end");
        database.run(&["doctor"]).says(&["warn  definers", "nobody@%", "request_token", "tollgate migrate --repair"]);
        database.run(&["migrate", "--repair"]).ended(0);
        assert_eq!(status(&database.run(&["doctor", "--json"]).json(), "definers"), "missing");
    }
}

#[test]
fn table_of_another_owner_fails_with_its_remedy() {
    let database = Database::migrated(Engine::Postgres);
    let id = uuid::Uuid::new_v4().simple().to_string();
    let [owner, other, app] = ["owner", "other", "app"].map(|name| format!("tollgate_{name}_{id}"));
    database.sql(&database.run(&["migrate", "--print", "owner"]).ended(0).out.replace("tollgate_owner", &owner));
    database.sql(&database.run(&["migrate", "--print", "grants"]).ended(0).out);
    database.sql(&format!(
        "create role {other}; create role {app} login; grant tollgate_app to {app};
         alter table tollgate.token_receipts owner to {other}; alter table tollgate.migrations owner to {other}"
    ));
    let as_app = tollgate(Some(&database.url_of(&app)), &database.directory).arg("doctor").output();
    let (as_app, as_superuser) = (Ran::new(as_app.expect("it starts")), database.run(&["doctor"]));
    let statements =
        ["migrations", "token_receipts"].map(|table| format!("alter table tollgate.{table} owner to {owner}"));
    for statement in &statements {
        database.sql(statement);
    }
    let mended = database.run(&["doctor"]);
    database.sql(&format!("drop owned by {owner} cascade; drop owned by {app}; drop role {owner}, {other}, {app}"));
    let printed = ["permission denied for table migrations", &statements[0], &statements[1]];
    as_app.ended(1).says(&["fail  schema"]).says(&printed);
    as_superuser.ended(1).says(&["ok    schema", "fail  calls", "permission denied for table"]).says(&printed[1..]);
    mended.ended(0).says(&["ok    calls"]);
}

#[test]
fn routines_owned_by_superuser_are_a_warning() {
    let owner = format!("tollgate_owner_{}", uuid::Uuid::new_v4().simple());
    let database = Database::migrated(Engine::Postgres);
    database.run(&["doctor"]).ended(0).says(&[
        "warn  definer",
        "run as postgres",
        "tollgate migrate --print owner | psql",
    ]);
    let given_away = database.run(&["migrate", "--print", "owner"]).ended(0).out.replace("tollgate_owner", &owner);
    // As after an upgrade.
    database.sql(&given_away);
    database.sql(&given_away);
    let report = database.run(&["doctor", "--json"]).ended(0).json();
    let taken = database.run(&["take", "a", "--quota", "5/h"]);
    let denied = database.run(&["take", "a", "--quota", "5/h", "--cost", "5"]);
    database.sql(&format!("drop owned by {owner} cascade; drop role {owner}"));
    assert_eq!(status(&report, "definer"), "missing", "{report:#}");
    assert_eq!(status(&report, "schema"), "ok", "{report:#}");
    taken.ended(0);
    denied.ended(75);
}

#[test]
fn account_with_only_temporary_tables_is_a_warning() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let name = database.url.rsplit('/').next().expect("a name").to_owned();
        let id = &uuid::Uuid::new_v4().simple().to_string()[..20];
        let (account, prefix) = (format!("tg_app_{id}"), format!("tg_{}", &id[..12]));
        let role = format!("{prefix}_app");
        let default = if engine == Engine::MySql { "to" } else { "for" };
        let grants = database.run(&["migrate", "--print", "grants", "--prefix", &prefix]).ended(0).out;
        database.sql(&grants);
        database.sql(&format!(
            "create user '{account}'@'%' identified by '{SECRET}';
             grant {role} to '{account}'@'%';
             set default role {role} {default} '{account}'@'%'"
        ));
        let doctor = || {
            let ran =
                tollgate(Some(&database.url_of(&account)), &database.directory).args(["doctor", "--json"]).output();
            Ran::new(ran.expect("it starts"))
        };
        let without = doctor();
        database.sql(&format!("grant create temporary tables on {name}.* to {role}"));
        let by_role = doctor();
        database.sql(&format!(
            "drop role {role}; {grants} grant {role} to '{account}'@'%';
             set default role {role} {default} '{account}'@'%';
             grant create temporary tables on `{}`.* to '{account}'@'%'",
            name.replace('_', "\\_")
        ));
        let by_pattern = doctor();
        database.sql(&format!("drop user '{account}'@'%'; drop role {role}, {prefix}_operator"));
        let owner = database.run(&["doctor", "--json"]);
        let of_role = format!("revoke create temporary tables on `{name}`.* from '{role}'");
        let of_account =
            format!("revoke create temporary tables on `{}`.* from '{account}'@'%'", name.replace('_', "\\_"));
        for (ran, expected, advice) in [
            (without, "missing", None),
            (by_role, "warn", Some(of_role)),
            (by_pattern, "warn", Some(of_account)),
            (owner, "missing", None),
        ] {
            let report = ran.ended(0).json();
            assert_eq!(check(&report, "temporary tables")["advice"].as_str(), advice.as_deref(), "{engine:?}");
            assert_eq!(status(&report, "temporary tables"), expected, "{engine:?}: {report:#}");
            assert_eq!(status(&report, "grants"), "ok", "{engine:?}: {report:#}");
        }
    }
}

#[test]
fn sqlite_without_wal_or_with_busy_writer_is_a_warning() {
    let database = Database::empty(Engine::Sqlite);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let path = database.directory.join("app.db");
    let open = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut connection = runtime.block_on(sqlx::ConnectOptions::connect(&open)).expect("a file");
    runtime
        .block_on(async { sqlx::raw_sql("create table host (n int)").execute(&mut connection).await })
        .expect("a table");
    database.run(&["migrate"]).ended(0);
    database.run(&["doctor"]).ended(0).says(&["warn  journal", "pragma journal_mode = wal"]);
    runtime.block_on(async { sqlx::raw_sql("begin immediate").execute(&mut connection).await }).expect("the lock");
    database.run(&["doctor"]).ended(1).says(&["fail  write lock", "locked"]);
}

#[test]
fn read_only_sqlite_file_is_reported() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "a", "--quota", "1/s"]).ended(0);
    let read_only = ["--database-url", "sqlite:app.db?mode=ro"];
    let run = |arguments: &[&str]| database.run(&[&read_only, arguments].concat());
    run(&["doctor"]).ended(1).says(&["fail  write lock", "leave mode=ro and immutable out"]);
    run(&["take", "a"]).ended(77).says(&["file or its URL is read-only", "leave mode=ro"]);
    run(&["peek", "a"]).ended(0);
    database.run(&["doctor"]).ended(0).says(&["ok    write lock"]);
}

#[cfg(unix)]
#[test]
fn sqlite_file_open_to_other_accounts_is_a_warning() {
    use std::os::unix::fs::PermissionsExt;

    let database = Database::migrated(Engine::Sqlite);
    let set = |name, mode| {
        let path = database.directory.join(name);
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is its owner's");
    };
    for (mode, found) in [
        (0o640, "ok    access        0640: not open to every account of this host"),
        (0o644, "warn  access        0644: every account of this host can read its keys"),
        (0o666, "warn  access        0666: every account of this host can change it"),
    ] {
        set("app.db", mode);
        database.run(&["doctor"]).ended(0).says(&[found]);
    }
    database.run(&["doctor"]).says(&["→ chmod o= app.db*"]);
    set(".", 0o750);
    database.run(&["doctor"]).ended(0).says(&["ok    access        0666: not open"]);
    set(".", 0o755);
}

#[test]
fn grown_sqlite_wal_is_a_warning_and_shrinks_after_the_read() {
    use sqlx::SqliteConnection;
    use tollgate::{SqliteStore, store::Durability};

    let database = Database::migrated(Engine::Sqlite);
    let url = format!("sqlite:{}", database.directory.join("app.db").display());
    let wal = database.directory.join("app.db-wal");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStore::connect(&url, Durability::Asynchronous).expect("a URL");
        let mut reader = SqliteConnection::connect(&url).await.expect("a connection");
        let execute = async |sql: &'static str| sqlx::raw_sql(sql).execute(store.pool()).await.expect("a statement");
        execute("create table host (n blob)").await;
        sqlx::raw_sql("begin; select * from host").execute(&mut reader).await.expect("a read");
        for _ in 0..40 {
            execute("insert into host values (randomblob(1024 * 1024))").await;
        }
        database.run(&["doctor"]).ended(0).says(&["warn  journal", "wal of 4", "→ end long reads"]);
        sqlx::raw_sql("commit").execute(&mut reader).await.expect("its end");
        for _ in 0..3 {
            execute("insert into host values (1)").await;
        }
        let left = wal.metadata().expect("a file").len();
        assert!(left <= 8 * 1024 * 1024, "{left} bytes");
        database.run(&["doctor"]).ended(0).says(&["ok    journal"]);
    });
}

fn check<'r>(report: &'r Value, name: &str) -> &'r Value {
    let checks = report["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["name"] == name).unwrap_or(&Value::Null)
}

fn status<'r>(report: &'r Value, name: &str) -> &'r str {
    check(report, name)["status"].as_str().unwrap_or("missing")
}

fn found<'r>(report: &'r Value, name: &str) -> &'r str {
    check(report, name)["found"].as_str().unwrap_or("missing")
}

/// Routines that a limiter calls in addition to its requests.
const OPTIONAL_ROUTINES: [&str; 4] = ["count_denials_v1", "peek_window", "record_usage_v1", "sweep_v1"];

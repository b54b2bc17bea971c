//! Connections that a server refuses for a reason of its own: the exit code and the hint.

use sqlx::{Connection, MySqlConnection, PgConnection};
use uuid::Uuid;

use crate::command::{Ran, SECRET, tollgate};
use crate::databases::{Database, Engine};

#[test]
fn account_without_privilege_on_the_database_gets_a_hint() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let account = name();
        let (create, drop) = if engine.is_mysql() {
            let own = format!("{}_app", &account[..20]);
            let script = database.run(&["migrate", "--print", "grants", "--prefix", &account[..20]]).ended(0).out;
            database.sql(&script);
            (
                // Granted, and not a default role.
                format!("create user '{account}'@'%' identified by '{SECRET}'; grant {own} to '{account}'@'%'"),
                format!("drop user '{account}'@'%'; drop role {own}, {}_operator", &account[..20]),
            )
        } else {
            (
                format!("create role {account} login; revoke connect on database {} from public", database.name()),
                format!("drop role {account}"),
            )
        };
        database.sql(&create);
        let ran = [&["list"][..], &["doctor"], &["run", "a", "--if-unavailable", "run", "--", "true"]]
            .map(|arguments| run_as(&database, &account, arguments));
        database.sql(&drop);
        let next = if engine.is_mysql() { "set default role" } else { "grant connect on database" };
        for ran in ran {
            ran.ended(77).says(&["cannot connect to", next]);
        }
    }
}

#[test]
fn full_server_is_not_reported_as_down() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let account = name();
        let url = database.url_of(&account);
        database.sql(&if engine.is_mysql() {
            format!(
                "create user '{account}'@'%' identified by '{SECRET}' with max_user_connections 1;
                 grant all on {}.* to '{account}'@'%'",
                database.name()
            )
        } else {
            format!("create role {account} login connection limit 1")
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let ran = runtime.block_on(async {
            if engine.is_mysql() {
                let occupant = MySqlConnection::connect(&url).await.expect("the only one");
                let ran = run_as(&database, &account, &["list"]);
                occupant.close().await.map(|()| ran)
            } else {
                let occupant = PgConnection::connect(&url).await.expect("the only one");
                let ran = run_as(&database, &account, &["list"]);
                occupant.close().await.map(|()| ran)
            }
        });
        let drop =
            if engine.is_mysql() { format!("drop user '{account}'@'%'") } else { format!("drop role {account}") };
        database.sql(&drop);
        let ran = ran.expect("it closes").ended(69).says(&["end sessions, or raise max_connections"]);
        assert!(!ran.err.contains("is the server up"), "{engine:?}: {ran:?}");
    }
}

#[test]
fn expired_password_hint_sets_a_new_one() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let account = name();
        database.sql(&format!(
            "create user '{account}'@'%' identified by '{SECRET}' password expire;
             grant all on {}.* to '{account}'@'%'",
            database.name()
        ));
        let ran = run_as(&database, &account, &["list"]);
        database.sql(&format!("drop user '{account}'@'%'"));
        ran.ended(69).says(&["hint: set a new password: `alter user"]);
    }
}

fn run_as(database: &Database, account: &str, arguments: &[&str]) -> Ran {
    let ran = tollgate(Some(&database.url_of(account)), &database.directory).args(arguments).output();
    Ran::new(ran.expect("it starts"))
}

fn name() -> String {
    format!("tg_no_{}", &Uuid::new_v4().simple().to_string()[..20])
}

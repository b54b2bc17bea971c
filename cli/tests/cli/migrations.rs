//! `tollgate migrate` and its printed scripts create the same schema.

use crate::clients;
use crate::command::{Ran, SECRET, tollgate};
use crate::databases::{Database, EACH, Engine};
use crate::schema;

#[test]
fn dry_run_lists_what_migrate_then_does_once() {
    for engine in EACH {
        let database = Database::empty(engine);
        let listed = database.run(&["migrate", "--dry-run"]).ended(0).says(&["0001_tables", "in all"]);
        assert!(listed.out.contains("pending"), "{listed:?}");
        database.run(&["migrate"]).ended(0).says(&["migrations run"]);
        database.run(&["migrate"]).ended(0).says(&["nothing is pending"]);
        database.run(&["migrate", "--dry-run"]).ended(0).says(&["nothing is pending"]);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn sqlite_files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;

    use tollgate::{SqliteStore, store::Durability};

    let database = Database::migrated(Engine::Sqlite);
    let [migrated, connected] = ["app.db", "other.db"].map(|name| database.directory.join(name));
    // The journals exist while the database is open.
    let mut stores = Vec::new();
    for file in [&migrated, &connected] {
        let store =
            SqliteStore::connect(&format!("sqlite:{}", file.display()), Durability::Synchronous).expect("a URL");
        tollgate::migrate(store.pool()).await.expect("tables");
        stores.push(store);
    }
    let mode = |path: std::path::PathBuf| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    for file in [&migrated, &connected] {
        for end in ["", "-wal", "-shm"] {
            let path = format!("{}{end}", file.display());
            assert_eq!(mode(path.clone().into()), 0o600, "{path}");
        }
    }
    // Creates no file if SQLite would not create one.
    let file = database.directory.join("ro");
    SqliteStore::connect(&format!("sqlite:{}?mode=ro", file.display()), Durability::Synchronous).expect("a URL");
    assert!(!file.exists());
    // The permissions of an existing file were chosen by its owner.
    std::fs::set_permissions(&migrated, PermissionsExt::from_mode(0o640)).expect("it is its owner's");
    database.run(&["migrate"]).ended(0);
    assert_eq!(mode(migrated), 0o640);
    // SQLite creates the file behind a link.
    std::os::unix::fs::symlink("target.db", database.directory.join("link.db")).expect("a link");
    database.run(&["--database-url", "sqlite:link.db", "migrate"]).ended(0);
    assert_eq!(mode(database.directory.join("target.db")), 0o600);
}

#[test]
fn newer_schema_is_reported_and_still_works() {
    let database = Database::migrated(Engine::Postgres);
    database.sql("insert into tollgate.migrations (version, name) values (999, 'later')");
    database.run(&["migrate"]).ended(0).says(&["nothing is pending", "version 999, made by a newer program"]);
    database.run(&["doctor"]).ended(0).says(&["version 999, made by a newer program"]);
    works(&database);
    database.sql("delete from tollgate.migrations where version = 5");
    database.run(&["migrate"]).ended(78).says(&["version 999", "install a newer `tollgate`"]);
    database.run(&["doctor"]).ended(1).says(&["version 999", "install a newer `tollgate`"]);
}

#[test]
fn printed_client_script_is_the_whole_schema() {
    for (engine, format) in
        [(Engine::Postgres, "psql"), (Engine::MySql, "mysql"), (Engine::MariaDb, "mysql"), (Engine::Sqlite, "sqlite3")]
    {
        let database = Database::empty(engine);
        let script = database.run(&["migrate", "--print", format]).ended(0).out;
        clients::feed(&database, &script);
        schema::is_that_of_migrate(&database);
        works(&database);
    }
}

#[test]
fn script_after_a_version_is_the_rest_of_the_schema() {
    for (engine, format) in
        [(Engine::Postgres, "psql"), (Engine::MySql, "mysql"), (Engine::MariaDb, "mysql"), (Engine::Sqlite, "sqlite3")]
    {
        let database = Database::empty(engine);
        let print = |after: &str| database.run(&["migrate", "--print", format, "--after", after]).ended(0).out;
        let (whole, rest) = (database.run(&["migrate", "--print", format]).ended(0).out, print("2"));
        assert!(rest.len() < whole.len() && print("0") == whole);
        // The state after an older version.
        let new = &rest[rest.find("-- ").expect("each begins with a comment")..];
        let old = whole.strip_suffix(new).expect("they end alike");
        let end = if engine.is_mysql() { "delimiter ;\n\nselect 1;\n" } else { "commit;\n" };
        clients::feed(&database, &format!("{old}{end}"));
        let refused = clients::try_feed(&database, &print("1")).expect_err("it is not at that one");
        assert!(refused.contains("the_database_is_not_at_version_1"), "{refused}");
        // The state after a killed migration.
        if engine.is_mysql() {
            database.sql("insert into token_migrations (version, name, applied_at) values (3, 'killed', null)");
            let refused = clients::try_feed(&database, &print("3")).expect_err("the third is announced only");
            assert!(refused.contains("the_database_is_not_at_version_3"), "{refused}");
            database.sql("delete from token_migrations where version = 3");
        }
        clients::feed(&database, &rest);
        schema::is_that_of_migrate(&database);
        works(&database);
        assert!(print("9999").contains("nothing comes after version 9999"));
    }
    for wrong in [&["--print", "grants", "--engine", "mysql"][..], &["--print", "goose"], &["--dry-run"]] {
        let ran = Database::empty(Engine::Sqlite).run(&[&["migrate", "--after", "2"], wrong].concat());
        assert_eq!(ran.code, 2, "{ran:?}");
    }
}

#[test]
fn grants_are_printed_for_engines_with_roles() {
    for engine in EACH {
        let database = Database::empty(engine);
        let print = database.run(&["migrate", "--print", "grants"]);
        match engine {
            Engine::Sqlite => drop(print.ended(2).says(&["SQLite has no roles"])),
            _ => drop(print.ended(0).says(&["to tollgate_operator"])),
        }
    }
    let print = ["migrate", "--print", "grants", "--engine", "mysql"];
    Database::empty(Engine::Sqlite).run(&print).ended(0).says(&["create role if not exists tollgate_app"]);
}

/// Asserts that no migration is pending and that the schema works.
pub(crate) fn works(database: &Database) {
    database.run(&["migrate"]).ended(0).says(&["nothing is pending"]);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    database.run(&["take", "a"]).ended(0);
    database.run(&["take", "a"]).ended(75);
}

#[test]
fn role_without_migration_rights_gets_the_grant_statement() {
    let name = format!("tg_none_{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let database = Database::empty(engine);
        let role = if engine.is_mysql() { format!("'{name}'@'%'") } else { name.clone() };
        let (create, hints) = if engine.is_mysql() {
            let create =
                format!("create user {role} identified by '{SECRET}'; grant select on {}.* to {role}", database.name());
            // An underscore would also stand for other letters.
            (create, vec![format!("grant all on `{}`.* to {role}", database.name().replace('_', "\\_"))])
        } else {
            let hints = vec![format!("grant create on database {} to {role}", database.name())];
            (format!("create role {role} login"), hints)
        };
        database.sql(&create);
        let migrate = || {
            let ran = tollgate(Some(&database.url_of(&name)), &database.directory).arg("migrate").output();
            Ran::new(ran.expect("it starts"))
        };
        let mut refused = vec![migrate()];
        for hint in &hints {
            database.sql(hint);
        }
        let migrated = migrate();
        // An administrator can create the schema instead.
        let mut made = Vec::new();
        if engine == Engine::Postgres {
            database.sql(&format!(
                "drop schema tollgate cascade; revoke create on database {} from {role}",
                database.name()
            ));
            database.sql("create schema tollgate");
            refused.push(migrate());
            database.sql(&format!("grant usage, create on schema tollgate to {role}"));
            made.push(migrate());
        }
        let removal = if engine.is_mysql() { "" } else { "drop owned by ROLE cascade; " };
        let kind = if engine.is_mysql() { "user" } else { "role" };
        database.sql(&format!("{}drop {kind} {role}", removal.replace("ROLE", &role)));
        migrated.ended(0);
        for made in made {
            made.ended(0);
        }
        let hints = hints.into_iter().chain([format!("grant usage, create on schema tollgate to {role}")]);
        for (refused, hint) in refused.into_iter().zip(hints) {
            refused.ended(77).says(&["may not migrate", "denied", &hint]);
        }
    }
}

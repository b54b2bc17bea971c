//! No output contains the password of a URL.

use crate::command::{Ran, SECRET, tollgate};
use crate::databases::{Database, EACH, Engine};

#[test]
fn no_output_shows_a_password() {
    let database = Database::empty(Engine::Sqlite);
    let urls = [
        format!("postgres://app:{SECRET}@localhost:1/app"),
        format!("postgres://app:{SECRET}@no-such-host.invalid/app"),
        format!("postgres://localhost:1/app?user=app&password={SECRET}"),
        format!("postgres://app:x/{SECRET}@localhost:1/app"),
        format!("postgres://app:x#{SECRET}@localhost:1/app"),
        format!("postgres://app:{SECRET}@localhost:port/app"),
        format!("mysql://app:{SECRET}@localhost:1/app"),
        format!("mariadb://app:1?{SECRET}@localhost:1/app"),
        format!("postgresql://app:{SECRET}@localhost:1/app?sslmode=nosuch"),
        format!("oracle://app:{SECRET}@localhost:1/app"),
        format!("postgres://app@x:12/{SECRET}@localhost/app"),
        format!("postgres://app@x:12?{SECRET}@localhost/app"),
        format!("postgres://app:x@{SECRET}@localhost:1/app"),
        format!("postgres:app:{SECRET}@localhost/app"),
        format!("app:{SECRET}@localhost/app"),
        format!("postgres://app:it's {SECRET}@localhost:1/app"),
        format!("postgres://localhost:1/app?PASSWORD={SECRET}"),
        format!("postgres://localhost:1/app?pass%77ord={SECRET}"),
        format!("postgres://app%3A{SECRET}@localhost:1/app"),
        format!("mysql://app%3a{SECRET}@localhost:1/app"),
        format!("postgres://app%3A{SECRET}%40localhost:1/app"),
        format!("mysql://app:{SECRET}%40localhost/app"),
        format!("postgres://localhost:1/app%3Fpassword%3D{SECRET}"),
        format!("postgres://localhost%2Fapp%3Fpassword%3D{SECRET}"),
        format!("mysql://localhost:1/app%40{SECRET}"),
        format!("sqlite:app.db?key={SECRET}"),
    ];
    // In parallel, because most URLs wait for a server that does not exist.
    std::thread::scope(|scope| {
        for url in &urls {
            scope.spawn(|| shows_no_password(url, &database));
        }
    });
}

fn shows_no_password(url: &str, database: &Database) {
    for arguments in [&["list"][..], &["doctor"], &["doctor", "--json"], &["--help"], &["help", "take"], &["lst"], &[]]
    {
        // `Ran` checks each output for the password.
        let by_environment = tollgate(Some(url), &database.directory).args(arguments).output().expect("it starts");
        let by_option = tollgate(None, &database.directory).args(["--database-url", url]).args(arguments).output();
        assert_ne!(Ran::new(by_environment).out + &Ran::new(by_option.expect("it starts")).out, SECRET);
    }
    let glued = format!("--database-url{url}");
    for misplaced in [
        &[url][..],
        &["take", "a", url],
        &["take", "a", "--max-wait", url],
        &["create", "a", "--quota", url],
        &["create", "a", url],
        &["--url", url],
        &["list", &glued],
    ] {
        Ran::new(tollgate(None, &database.directory).args(misplaced).output().expect("it starts"));
    }
}

#[test]
fn hidden_secret_error_says_where_to_put_it() {
    let database = Database::empty(Engine::Sqlite);
    let url = format!("postgres:app:{SECRET}@localhost/app");
    let ran = database.run(&["create", "a", "--quota", &url]).ended(2);
    ran.says(&["--quota <QUOTA>: hidden, because it may contain a password", "hint: give the database as"]);
}

#[test]
fn percent_encoded_name_is_accepted() {
    let database = Database::empty(Engine::Sqlite);
    for (url, shown) in [
        ("postgres://app:pw@%2Fno%2Fsuch%3Aeurope%3Asocket/app", "app at /no/such:europe:socket as app"),
        ("postgres://app%40server:p%3Aw%40@[::1]:1/app", "app at [::1]:1 as app@server"),
    ] {
        let ran = tollgate(Some(url), &database.directory).arg("list").output().expect("it starts");
        Ran::new(ran).ended(69).says(&[shown]);
    }
}

#[test]
fn example_url_is_shown_in_full() {
    let database = Database::empty(Engine::Sqlite);
    let ran = tollgate(None, &database.directory).arg("list").output().expect("it starts");
    Ran::new(ran).ended(2).says(&["# or postgres://app:password@localhost/app"]);
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "a://b@c"]).ended(64).says(&["no bucket 'a://b@c'", "--per 1h a://b@c`"]);
}

#[test]
fn password_is_never_shown() {
    for engine in EACH.into_iter().filter(|engine| *engine != Engine::Sqlite) {
        let database = Database::migrated(engine);
        assert!(database.url.contains(SECRET));
        for arguments in [&["doctor"][..], &["doctor", "--json"], &["list"], &[], &["migrate"], &["take", "none"]] {
            database.run(arguments);
        }
        // MySQL and MariaDB do not tell whether another database exists.
        let elsewhere = if matches!(engine, Engine::MySql | Engine::MariaDb) { 77 } else { 69 };
        for (url, code) in [(database.url_of("nobody"), 69), (database.url.clone() + "x", elsewhere)] {
            let ran = tollgate(Some(&url), &database.directory).arg("list").output().expect("it starts");
            Ran::new(ran).ended(code).says(&["cannot connect to"]);
        }
    }
}

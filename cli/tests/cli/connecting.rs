//! How often the CLI connects to a server.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use sqlx::{MySql, Postgres};
use tollgate::{
    Error, SqlStore,
    store::{Durability, Migrate},
};

use crate::command::{Ran, tollgate};
use crate::databases::{Database, Engine};

#[test]
fn command_connects_again_only_to_find_blockers() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let connections = |latency| {
            let (url, connections) = distant(&database.url, "127.0.0.1:0", latency);
            let list = tollgate(Some(&url), &database.directory).arg("list").output().expect("it starts");
            Ran::new(list).ended(0);
            connections.load(Relaxed)
        };
        // Leaves room for a busy machine.
        assert!((0..5).any(|_| connections(Duration::ZERO) == 1), "on {engine:?}");
        assert_eq!(connections(Duration::from_millis(700)), 2, "on {engine:?}");
    }
}

#[test]
fn ipv6_address_in_a_url_connects() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        // Without IPv6 on this host, only parsing is checked.
        if TcpListener::bind("[::1]:0").is_err() {
            continue;
        }
        let database = Database::migrated(engine);
        let (url, _) = distant(&database.url, "[::1]:0", Duration::ZERO);
        let list = tollgate(Some(&url), &database.directory).arg("list").output().expect("it starts");
        Ran::new(list).ended(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let pending = match engine {
            Engine::Postgres => runtime.block_on(pending::<Postgres>(&url)),
            _ => runtime.block_on(pending::<MySql>(&url)),
        };
        assert_eq!(pending.expect("it connects"), 0, "on {engine:?}");
    }
    assert_eq!(SqlStore::<Postgres>::parse_url("postgres://app@[::1]:1/app").expect("a URL").get_host(), "::1");
    assert_eq!(SqlStore::<MySql>::parse_url("mysql://app@[::1]:1/app").expect("a URL").get_host(), "::1");
}

/// Requests like a service.
async fn pending<DB: Migrate>(url: &str) -> Result<usize, Error> {
    let store = SqlStore::<DB>::connect(url, Durability::Synchronous)?;
    Ok(tollgate::store::pending_migrations(store.pool()).await?.len())
}

#[test]
fn several_hosts_in_a_url_are_refused() {
    let database = Database::empty(Engine::Sqlite);
    for url in [
        "postgres://app@one:5432,two:5432/app",
        "postgres://app@one,two/app",
        "postgres://app@/app?host=one,two&port=1,2",
        "postgres://app@one/app?port=1%2C2",
        "mysql://app@one:3306,two:3306/app",
    ] {
        let ran = tollgate(Some(url), &database.directory).arg("list").output().expect("it starts");
        Ran::new(ran).ended(2).says(&["the URL names several hosts", "a proxy or a DNS name"]);
        let read = if url.starts_with("mysql") {
            SqlStore::<MySql>::parse_url(url).map(drop)
        } else {
            SqlStore::<Postgres>::parse_url(url).map(drop)
        };
        assert!(read.expect_err("two hosts").to_string().contains("several hosts"), "{url}");
    }
    // Commas elsewhere do not separate hosts.
    assert_eq!(SqlStore::<Postgres>::parse_url("postgres://a,b:c,d@one/e,f").expect("a URL").get_host(), "one");
}

#[test]
fn file_uri_names_one_file_for_every_command() {
    let database = Database::empty(Engine::Sqlite);
    let run = |url: &str, arguments: &[&str]| {
        let ran = tollgate(Some(url), &database.directory).args(arguments).output().expect("it starts");
        Ran::new(ran)
    };
    run("sqlite:file:app.db", &["migrate"]).ended(0);
    run("sqlite:file:app.db", &["take", "key", "--quota", "2 once"]).ended(0).says(&["1 left"]);
    let file = database.directory.join("app.db");
    let file = file.display();
    for url in
        [format!("sqlite:file:{file}?mode=rw"), format!("sqlite:file://localhost{file}"), format!("sqlite:{file}")]
    {
        run(&url, &["list"]).ended(0).says(&["key"]);
        assert_eq!(
            SqlStore::<sqlx::Sqlite>::parse_url(&url).expect("a URL").get_filename().display().to_string(),
            file.to_string()
        );
    }
    run("sqlite:file://host/app.db", &["list"]).ended(2).says(&["a file URI names no host"]);
}

/// The URL of a proxy that delays each connection, and the number of connections through it.
fn distant(url: &str, proxy: &str, latency: Duration) -> (String, Arc<AtomicUsize>) {
    let host = url.rsplit_once('@').expect("a user").1.split('/').next().expect("a host").to_owned();
    let listener = TcpListener::bind(proxy).expect("a port");
    let proxy = listener.local_addr().expect("its address").to_string();
    let (url, connections) = (url.replace(&host, &proxy), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&connections);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            counted.fetch_add(1, Relaxed);
            let host = host.clone();
            std::thread::spawn(move || -> io::Result<()> {
                let (client, server) = (client?, TcpStream::connect(&host)?);
                std::thread::sleep(latency);
                let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
                std::thread::spawn(move || io::copy(&mut from, &mut to));
                io::copy(&mut &server, &mut &client)?;
                client.shutdown(std::net::Shutdown::Both)
            });
        }
    });
    (url, connections)
}

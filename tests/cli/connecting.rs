//! How often the program connects to a server.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::command::{Ran, tollgate};
use crate::databases::{Database, Engine};

#[test]
fn a_command_connects_once_and_again_only_to_find_out_what_takes_so_long() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let database = Database::migrated(engine);
        let connections = |latency| {
            let (url, connections) = distant(&database.url, latency);
            let list = tollgate(Some(&url), &database.directory).arg("list").output().expect("it starts");
            Ran::new(list).ended(0);
            connections.load(Relaxed)
        };
        // A busy machine may be slow, too.
        assert!((0..5).any(|_| connections(Duration::ZERO) == 1), "on {engine:?}");
        assert_eq!(connections(Duration::from_millis(700)), 2, "on {engine:?}");
    }
}

/// The URL by way of a proxy, which lets the server wait before it says anything; and how many connections come that way.
fn distant(url: &str, latency: Duration) -> (String, Arc<AtomicUsize>) {
    let host = url.rsplit_once('@').expect("a user").1.split('/').next().expect("a host").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
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

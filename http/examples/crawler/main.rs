//! A crawler with many replicas, which share one limit for each host.
//!
//! Each replica is a process that shares only the database with the others. The hosts are small servers that the
//! example starts, and count requests that come too soon. One host answers 429 in between, and all replicas then pause
//! until the time that it states.
//!
//! ```text
//! cargo run -p tollgate-http --example crawler                             # on a SQLite database that is removed afterwards
//! cargo run -p tollgate-http --example crawler -- postgres://localhost/app # or on a database of yours; also mysql:// and sqlite://
//! ```
//!
//! ```text
//! $ cargo run -p tollgate-http --example crawler
//! 4 processes crawl 2 hosts, 20 pages a second of each
//! one: 32 pages
//! the other: 32 pages, after it was left alone for 1s
//! violations: 0
//! ```

use anyhow::ensure;
use common::processes::Processes;
use tokio::process::Command;
use uuid::Uuid;

use crate::host::Host;
use crate::replica::Orders;

mod host;
mod replica;

const REPLICAS: usize = 4;
const PAGES: usize = 32;
/// The limit of each host, for all replicas together.
const POLITE: &str = "20/s burst 1";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some(REPLICA) => replica::crawl().await,
        Some(url) => run(url).await,
        None => {
            let directory = std::env::temp_dir().join(format!("tollgate-{}", Uuid::new_v4()));
            std::fs::create_dir(&directory)?;
            let crawled = run(&format!("sqlite://{}?mode=rwc", directory.join("app.db").display())).await;
            std::fs::remove_dir_all(&directory)?;
            crawled
        }
    }
}

async fn run(url: &str) -> anyhow::Result<()> {
    ensure!(
        !url.contains(":memory:"),
        "processes cannot share a database in memory: give the URL of a file or a server"
    );
    common::open_at(url).await?; // and migrate it
    let hosts = [Host::start(None).await?, Host::start(Some(10)).await?];
    let (addresses, crawl) = (hosts.iter().map(Host::address), Uuid::new_v4().to_string());
    let orders = Orders { url: url.to_owned(), crawl, hosts: addresses.collect(), first: 0 };
    let orders: Vec<_> = (0..REPLICAS).map(|first| Orders { first, ..orders.clone() }).collect();
    let program = std::env::current_exe()?;
    let replicas = Processes::start(&orders, || {
        let mut command = Command::new(&program);
        command.arg(REPLICA);
        command
    });
    let replicas = replicas.await?;
    println!("{REPLICAS} processes crawl {} hosts, 20 pages a second of each", hosts.len());
    let fetched: Vec<usize> = replicas.run(&()).await?;
    ensure!(fetched.iter().sum::<usize>() == hosts.len() * PAGES, "{fetched:?} pages");

    for (host, name) in hosts.iter().zip(["one", "the other"]) {
        println!("{name}: {}", host.seen());
    }
    println!("violations: {}", hosts.iter().map(Host::violations).sum::<usize>());
    Ok(())
}

/// The argument of the example's own replica processes.
const REPLICA: &str = "replica";

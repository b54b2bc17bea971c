//! Simulates a network between client and servers: proxies that forward all data with a delay.

use std::env;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::server::Server;

/// Runs this program again, behind proxies for its servers. The proxies run in this process, so that the client's
/// processor time excludes theirs.
pub(crate) fn run_behind(delay: Duration) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(env::current_exe()?);
    let mut arguments = env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--delay-us") => drop(arguments.next()),
            Some(text) if text.starts_with("--delay-us=") => {}
            _ => drop(command.arg(argument)),
        }
    }
    for server in NETWORKED {
        if let Ok(url) = server.url() {
            let (start, address, end) = address(&url).context("a server's URL names no host and port")?;
            let to = address.to_socket_addrs()?.next().context("a server's host has no address")?;
            let proxy = listen(to, delay)?;
            command.env(server.variable("URL"), format!("{start}{proxy}{end}"));
        }
    }
    let status = command.env(DELAY, delay.as_micros().to_string()).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the delay in each direction in microseconds, for the report.
pub(crate) fn delay() -> u64 {
    env::var(DELAY).ok().and_then(|delay| delay.parse().ok()).unwrap_or(0)
}

/// Splits a URL into the part before host and port, host and port, and the rest.
fn address(url: &str) -> Option<(&str, &str, &str)> {
    let scheme = url.find("://")? + 3;
    let end = url[scheme..].find('/').map_or(url.len(), |end| scheme + end);
    let start = url[scheme..end].rfind('@').map_or(scheme, |at| scheme + at + 1);
    Some((&url[..start], &url[start..end], &url[end..]))
}

fn listen(to: SocketAddr, delay: Duration) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // If the server is gone, the client sees a closed connection.
            drop(connect(client, to, delay));
        }
    });
    Ok(address)
}

fn connect(client: TcpStream, to: SocketAddr, delay: Duration) -> anyhow::Result<()> {
    let server = TcpStream::connect(to)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    pass(client.try_clone()?, server.try_clone()?, delay);
    pass(server, client, delay);
    Ok(())
}

/// Uses threads instead of tasks, because the runtime's timers are exact only to a millisecond.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // The connection can be closed already.
        drop(to.shutdown(Shutdown::Both));
    });
}

const NETWORKED: [Server; 7] = [
    Server::Postgres,
    Server::Postgres15,
    Server::Mysql,
    Server::Mariadb,
    Server::Redis,
    Server::RedisAlways,
    Server::RedisCell,
];
const DELAY: &str = "TOLLGATE_BENCH_DELAY";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_found_in_every_url() {
        assert_eq!(address("redis://127.0.0.1:1/"), Some(("redis://", "127.0.0.1:1", "/")));
        assert_eq!(address("postgres://me@host:2/db"), Some(("postgres://me@", "host:2", "/db")));
        assert_eq!(address("redis://host:3"), Some(("redis://", "host:3", "")));
    }
}

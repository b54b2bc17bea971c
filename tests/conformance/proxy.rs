//! A TCP proxy in front of a server: it records what passes, and fails where a test says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Goes with its owner, and its connections with it.
pub struct Proxy {
    port: u16,
    shared: Arc<Mutex<Shared>>,
    accepting: JoinHandle<()>,
}

/// What happens to the first request that has these bytes in it; whatever comes after it passes.
#[derive(Clone, Debug)]
pub struct Fault {
    pub on: Vec<u8>,
    pub then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It never reaches the server, and the connection is cut.
    Lose,
    /// The server answers, and the connection is cut after that many bytes of its answer.
    Cut(usize),
    /// The server answers, and nobody hears it; the connection stays.
    Swallow,
}

/// What went one way before anything went the other way, on one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flight {
    Request(Vec<u8>),
    Reply,
}

#[derive(Default)]
struct Shared {
    flights: Vec<Flight>,
    fault: Option<Fault>,
    refuses: bool,
}

impl Proxy {
    pub async fn before(host: &str, port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let own_port = listener.local_addr()?.port();
        let server = tokio::net::lookup_host((host, port)).await?.next().expect("the server has an address");
        let shared = Arc::new(Mutex::new(Shared::default()));
        let accepting = tokio::spawn(accept(listener, server, Arc::clone(&shared)));
        Ok(Self { port: own_port, shared, accepting })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Arms it for one request.
    pub fn fail(&self, on: impl AsRef<[u8]>, then: Then) {
        self.lock().fault = Some(Fault { on: on.as_ref().to_vec(), then });
    }

    /// Cuts new connections at once, or accepts them again.
    pub fn refuse(&self, refuses: bool) {
        self.lock().refuses = refuses;
    }

    /// What passed since it was last asked.
    pub fn flights(&self) -> Vec<Flight> {
        std::mem::take(&mut self.lock().flights)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().expect("no test panics while it holds this")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Flight {
    pub fn mentions(&self, text: &str) -> bool {
        matches!(self, Self::Request(bytes) if contains(bytes, text.as_bytes()))
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Mutex<Shared>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        if !shared.lock().expect("not poisoned").refuses {
            connections.spawn(pass(client, server, Arc::clone(&shared)));
        }
    }
}

/// One connection, until either side closes it or a fault does.
async fn pass(mut client: TcpStream, server: SocketAddr, shared: Arc<Mutex<Shared>>) -> std::io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let (mut upwards, mut fault) = (None, None);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let bytes = &up[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                fault = shared.lock().expect("not poisoned").request(bytes, upwards == Some(true)).or(fault);
                upwards = Some(true);
                if fault == Some(Then::Lose) {
                    return Ok(());
                }
                server.write_all(bytes).await?;
            }
            read = server.read(&mut down) => {
                let bytes = &down[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                if upwards != Some(false) {
                    shared.lock().expect("not poisoned").flights.push(Flight::Reply);
                    upwards = Some(false);
                }
                match fault {
                    Some(Then::Cut(most)) => return client.write_all(&bytes[..most.min(bytes.len())]).await,
                    Some(_) => {}
                    None => client.write_all(bytes).await?,
                }
            }
        }
    }
}

impl Shared {
    /// Records a request, or more of it, and says whether it is the one to fail.
    fn request(&mut self, bytes: &[u8], goes_on: bool) -> Option<Then> {
        match self.flights.last_mut() {
            Some(Flight::Request(before)) if goes_on => before.extend_from_slice(bytes),
            _ => self.flights.push(Flight::Request(bytes.to_vec())),
        }
        let armed = self.fault.take_if(|fault| contains(bytes, &fault.on));
        armed.map(|fault| fault.then)
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

//! A TCP proxy for a server: it records requests, and fails where a test says.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use self::messages::{Messages, Protocol};

mod messages;

/// Closed on drop, with its connections.
pub struct Proxy {
    port: u16,
    shared: Arc<Mutex<Shared>>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The request never reaches the server, and the connection is cut.
    Lose,
    /// The server answers, and the connection is cut after so many bytes of the answer.
    Cut(usize),
    /// The server answers, but the answer is dropped. The connection stays open.
    Swallow,
}

/// The bytes that a client sends for one answer: one round trip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip(Vec<u8>);

#[derive(Default)]
struct Shared {
    requests: Vec<RoundTrip>,
    fault: Option<Fault>,
    refuses: bool,
}

/// The fault of the first request that contains these bytes. Later requests pass.
struct Fault {
    on: Vec<u8>,
    then: Then,
}

impl Proxy {
    pub async fn before(host: &str, port: u16) -> std::io::Result<Self> {
        Self::on(refusing()?, host, port).await
    }

    /// Listens on a socket that has refused connections until now.
    pub async fn on(socket: TcpSocket, host: &str, port: u16) -> std::io::Result<Self> {
        let listener = socket.listen(1024)?;
        let own_port = listener.local_addr()?.port();
        let server = tokio::net::lookup_host((host, port)).await?.next().expect("the server has an address");
        let shared = Arc::new(Mutex::new(Shared::default()));
        let accepting = tokio::spawn(accept(listener, server, Arc::clone(&shared)));
        Ok(Self { port: own_port, shared, accepting })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Arms the proxy for one request.
    pub fn fail(&self, on: impl AsRef<[u8]>, then: Then) {
        self.lock().fault = Some(Fault { on: on.as_ref().to_vec(), then });
    }

    /// Cuts new connections at once, or accepts them again.
    pub fn refuse(&self, refuses: bool) {
        self.lock().refuses = refuses;
    }

    /// The requests since the last call.
    pub fn requests(&self) -> Vec<RoundTrip> {
        std::mem::take(&mut self.lock().requests)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().expect("no test panics while it holds this")
    }
}

/// An unused port that refuses connections until a listener is opened.
pub fn refusing() -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into())?;
    Ok(socket)
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl RoundTrip {
    pub fn mentions(&self, text: impl AsRef<[u8]>) -> bool {
        self.0.windows(text.as_ref().len()).any(|window| window == text.as_ref())
    }

    /// Whether the request only checks that the server is alive.
    pub fn is_ping(&self) -> bool {
        const SYNC: &[u8] = b"S\0\0\0\x04";
        const COM_PING: &[u8] = b"\x01\0\0\0\x0e";
        [SYNC, COM_PING].contains(&&*self.0)
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

/// Passes one connection on, until either side closes it or a fault does.
async fn pass(mut client: TcpStream, server: SocketAddr, shared: Arc<Mutex<Shared>>) -> std::io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    // MySQL's server sends the first message, and PostgreSQL's waits for the client's.
    let (mut up, mut down) = ([0; PIECE], [0; PIECE]);
    let protocol = tokio::select! {
        heard = client.peek(&mut up) => heard.map(|_| Protocol::Postgres)?,
        heard = server.peek(&mut down) => heard.map(|_| Protocol::MySql)?,
    };
    let (mut asking, mut answering) = (Messages::of_client(protocol), Messages::of_server(protocol));
    let mut request = RoundTrip::default();
    // The faults of pending answers. A client can send a request before it has read the last answer completely.
    let mut due: VecDeque<Option<Then>> = VecDeque::new();
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let bytes = &up[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                for message in asking.read(bytes) {
                    request.0.extend_from_slice(&message);
                    if !protocol.acts_on(&message) {
                        continue;
                    }
                    let request = std::mem::take(&mut request);
                    let then = shared.lock().expect("not poisoned").record(&request);
                    if then == Some(Then::Lose) {
                        return Ok(());
                    }
                    server.write_all(&request.0).await?;
                    if protocol == Protocol::MySql {
                        due.clear();
                    }
                    if !protocol.continues_request(&message) {
                        due.push_back(then);
                    }
                }
            }
            read = server.read(&mut down) => {
                let bytes = &down[..read?];
                if bytes.is_empty() {
                    return Ok(());
                }
                for message in answering.read(bytes) {
                    match due.front_mut() {
                        Some(Some(Then::Cut(left))) if *left <= message.len() => {
                            return client.write_all(&message[..*left]).await;
                        }
                        Some(Some(Then::Cut(left))) => *left -= message.len(),
                        Some(Some(_)) => continue,
                        Some(None) if protocol.ends_answer(&message) => drop(due.pop_front()),
                        _ => {}
                    }
                    for piece in message.chunks(PIECE) {
                        client.write_all(piece).await?;
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Records a request, and returns whether it is the one to fail.
    fn record(&mut self, request: &RoundTrip) -> Option<Then> {
        self.requests.push(request.clone());
        self.fault.take_if(|fault| request.mentions(&fault.on)).map(|fault| fault.then)
    }
}

/// So small that code that expects whole messages fails.
const PIECE: usize = 7;

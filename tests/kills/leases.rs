//! Processes that lease tokens of one bucket. Some are stopped, and some are killed.

use std::io::{Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use common::fleet::checker::{Call, Limit};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tollgate::model::bucket::BucketQuota;
use tollgate::{
    Bound, Limiter, Quota, SqlStore, Store,
    clock::{Clock, SystemClock},
    layers::LeaseOptions,
    model::Source,
};

use crate::database::{Database, Engine};
use crate::guard::Guard;
use crate::process;
use crate::server::Server;

/// The variable with the database to lease from. It is set in processes that lease tokens instead of running the tests.
const PLACE: &str = "TOLLGATE_KILLS_LEASES";
const PROCESSES: usize = 4;
const MAX_TOKENS: u64 = 50;

/// A request and its answer.
#[derive(Clone, Copy, Deserialize, Serialize)]
struct AnsweredCall {
    call: Call,
    source: Origin,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Serialize)]
enum Origin {
    Store,
    Lease,
    /// A denial that the store gave a moment before.
    Memory,
}

/// The database that the processes share.
#[derive(Deserialize, Serialize)]
enum Place {
    File(PathBuf),
    Server(Engine, String),
}

impl Place {
    async fn open(&self) -> Result<Database, sqlx::Error> {
        match self {
            Self::File(file) => Database::file(file, |_| {}).await,
            Self::Server(engine, url) => Database::open(*engine, url).await,
        }
    }
}

impl AnsweredCall {
    fn is_leased(&self) -> bool {
        self.source == Origin::Lease
    }
}

/// The number of a process and a call that it made, or `None` if the process has ended.
type Printed = (usize, Option<AnsweredCall>);

/// Makes requests until the process ends, if it was started for that. Pauses between them for a while, so that there are
/// tokens to lease. Then makes them as fast as it can, so that there are none left.
pub fn work() -> Option<anyhow::Result<()>> {
    let place = std::env::var(PLACE).ok()?;
    std::thread::spawn(|| {
        let _ = stdin().read(&mut [0]);
        // The process that started this one has ended.
        std::process::exit(1);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Some(runtime.map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            match serde_json::from_str::<Place>(&place)?.open().await? {
                Database::Postgres(pool) => request_forever(SqlStore::from(pool)).await,
                Database::MySql(pool) => request_forever(SqlStore::from(pool)).await,
                Database::Sqlite(pool) => request_forever(SqlStore::from(pool)).await,
            }
        })
    }))
}

/// Makes requests through all layers of a limiter.
async fn request_forever<S: Store>(store: S) -> anyhow::Result<()> {
    let limiter = Limiter::builder(store).lease(options()).build(quota()?)?.bind("leased")?;
    loop {
        let calm = fastrand::u32(0..200);
        for _ in 0..calm {
            print(&send_request(&limiter).await?)?;
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
        // Eight at once, because a slow server would limit the rate of single calls.
        for _ in 0..calm {
            for answer in join_all((0..8).map(|_| send_request(&limiter))).await {
                print(&answer?)?;
            }
        }
    }
}

async fn send_request<S: Store>(limiter: &Bound<S>) -> anyhow::Result<AnsweredCall> {
    let sent = SystemClock.now();
    let decision = limiter.allow().await?;
    let call = Call { sent, done: SystemClock.now(), at: None, cost: 1, granted: decision.is_granted() };
    let source = match decision.source() {
        Source::Lease => Origin::Lease,
        Source::DenyCache => Origin::Memory,
        _ => Origin::Store,
    };
    Ok(AnsweredCall { call, source })
}

/// Prints a line in one write, so that it is printed entirely or not at all.
fn print(answer: &AnsweredCall) -> anyhow::Result<()> {
    Ok(stdout().write_all((serde_json::to_string(answer)? + "\n").as_bytes())?)
}

/// No window exceeds the quota plus the tokens that the processes can hold at its start. A process that was stopped uses no
/// token that it leased before.
pub async fn leases_of_stopped_and_killed_processes_keep_the_bound(engine: Option<Engine>) -> anyhow::Result<()> {
    let guard = Guard::new()?;
    let mut server = None;
    let place = match engine {
        None => Place::File(guard.path().join("leases.db")),
        Some(engine) => Place::Server(engine, server.insert(Server::start(engine).await?).url().to_owned()),
    };
    let database = match &mut server {
        None => place.open().await?,
        Some(server) => server.connect().await?,
    };
    database.migrate().await?;
    database.close().await;

    let (sender, receiver) = unbounded_channel();
    let processes =
        (0..PROCESSES).map(|number| start(&place, number, sender.clone())).collect::<Result<Vec<_>, _>>()?;
    let mut fleet = Fleet { receiver, calls: vec![Vec::new(); PROCESSES], killed: 0 };
    let pids = processes.iter().map(|child| child.id().context("it runs")).collect::<anyhow::Result<Vec<_>>>()?;
    for number in 0..PROCESSES {
        fleet.until(|process, answer| process == number && answer.is_leased()).await?;
    }
    for (number, &pid) in pids.iter().enumerate().cycle().take(2 * PROCESSES - 1) {
        process::signal("STOP", &[pid])?;
        fleet.listen(3 * options().lifetime()).await?;
        let resumed = SystemClock.now();
        process::signal("CONT", &[pid])?;
        fleet.until(|process, answer| process == number && answer.is_leased() && answer.call.sent >= resumed).await?;
        fleet.began_anew(number, resumed)?;
    }
    for &pid in &pids[1..] {
        fleet.killed += 1;
        process::kill(pid)?;
        let killed = SystemClock.now();
        fleet.until(|process, answer| process == 0 && answer.is_leased() && answer.call.sent >= killed).await?;
    }
    drop(processes);

    let mut quota = BucketQuota::at(&quota()?, 0);
    quota.capacity += i64::try_from(PROCESSES)? * i64::try_from(MAX_TOKENS)?;
    let calls: Vec<Call> = fleet.calls.iter().flatten().map(|answer| answer.call).collect();
    ensure!(calls.iter().any(|call| !call.granted), "no request was denied");
    let faults = Limit { quota, anchor: 0 }.faults(&calls);
    ensure!(faults.is_empty(), "{} faults in {} calls, the first: {}", faults.len(), calls.len(), faults[0]);
    Ok(())
}

fn start(place: &Place, number: usize, sender: UnboundedSender<Printed>) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    let command = command
        .env(PLACE, serde_json::to_string(place)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let answer = serde_json::from_str(&line).expect("a process prints calls only");
            if sender.send((number, Some(answer))).is_err() {
                return;
            }
        }
        let _ = sender.send((number, None));
    });
    Ok(child)
}

/// The calls that the processes have printed.
struct Fleet {
    receiver: UnboundedReceiver<Printed>,
    calls: Vec<Vec<AnsweredCall>>,
    /// How many processes have been killed.
    killed: usize,
}

impl Fleet {
    /// Reads calls until one matches.
    async fn until(&mut self, matches: impl Fn(usize, AnsweredCall) -> bool) -> anyhow::Result<()> {
        loop {
            let (process, answer) = self.receiver.recv().await.context("all processes have ended")?;
            let Some(answer) = answer else {
                ensure!(self.killed > 0, "process {process} has ended by itself");
                continue;
            };
            self.calls[process].push(answer);
            if matches(process, answer) {
                return Ok(());
            }
        }
    }

    /// Reads calls for `time`. There can be none, because a stopped process can hold the lock of the file.
    async fn listen(&mut self, time: Duration) -> anyhow::Result<()> {
        tokio::time::timeout(time, self.until(|_, _| false)).await.unwrap_or(Ok(()))
    }

    /// Checks that a resumed process called the store before it used a lease again. Ignores the request that it was deciding
    /// when it was stopped.
    fn began_anew(&self, number: usize, resumed: i64) -> anyhow::Result<()> {
        let later = || self.calls[number].iter().filter(|answer| answer.call.done >= resumed);
        let leased =
            later().position(|answer| answer.is_leased() && answer.call.sent >= resumed).context("it was served")?;
        ensure!(
            later().take(leased).any(|answer| answer.source == Origin::Store),
            "it used what it had leased before it was stopped"
        );
        Ok(())
    }
}

fn options() -> LeaseOptions {
    LeaseOptions::default().target(Duration::from_millis(40)).max_tokens(MAX_TOKENS)
}

fn quota() -> Result<Quota, tollgate::model::QuotaError> {
    Quota::per_second(1500).burst(400).build()
}

//! Cases × engines × isolation levels and layers, from one list.

use std::future::Future;
use std::pin::Pin;

use libtest_mimic::Trial;
use parking_lot::{Mutex, RwLock};
use tollgate::store::Isolation;

use crate::cases;
use crate::engines::{ENGINES, Engine};
use crate::layers::Layers;
use crate::test_db::TestDb;

/// A case, its requirements, and where it runs.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// At each isolation level of the engine, or only at the pool's default.
    pub levels: Levels,
    /// The clock that decides.
    pub time: Time,
    /// Whether an engine with these capabilities can run the case.
    pub needs: fn(&Engine) -> bool,
    pub run: fn(TestDb) -> Running,
}

/// A running case.
pub type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Levels {
    Every,
    Pools,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// An injected clock in the routines that the migrations ship.
    Injected,
    /// The database's clock.
    Real,
}

/// Lists cases with their requirements: `list!(Levels::Every, Time::Injected, |engine| …; first, second)`.
macro_rules! list {
    ($levels:expr, $time:expr, $needs:expr; $($case:ident),+ $(,)?) => {
        [$($crate::matrix::Case {
            name: concat!(module_path!(), "::", stringify!($case)),
            levels: $levels,
            time: $time,
            needs: $needs,
            run: |db| Box::pin($case(db)),
        }),+]
    };
}
pub(crate) use list;

pub fn trials() -> Vec<Trial> {
    let (mut trials, cases) = (Vec::new(), cases::all());
    for listed in [WITHOUT_LAYERS, ALONE, RANDOM, LAYERED_EVERYWHERE].concat() {
        assert!(cases.iter().any(|&case| is_listed(case, &[listed])), "no case is named {listed}");
    }
    for case in cases {
        for engine in ENGINES.iter().filter(|engine| engine.takes_part() && (case.needs)(engine)) {
            if case.time == Time::Injected && !engine.time_can_be_injected {
                continue;
            }
            for &level in engine.levels {
                if case.levels == Levels::Every || level.is_none() {
                    trials.push(trial(case, engine, level, Layers::None));
                }
            }
            if is_listed(case, WITHOUT_LAYERS) {
                continue;
            }
            trials.extend(engine.layers.iter().map(|&layers| trial(case, engine, None, layers)));
            for &(layers, level) in engine.layers_in_brief.iter().filter(|_| is_listed(case, LAYERED_EVERYWHERE)) {
                if case.levels == Levels::Every || level.is_none() {
                    trials.push(trial(case, engine, level, layers));
                }
            }
        }
    }
    trials
}

fn trial(case: Case, engine: &'static Engine, level: Option<Isolation>, layers: Layers) -> Trial {
    let (_, case_name) = case.name.split_once("cases::").expect("cases live in cases/");
    let layered = match layers {
        Layers::None => None,
        Layers::Denying => Some("denying"),
        Layers::Batched => Some("batched"),
        Layers::Stacked => Some("stacked"),
    };
    let variant = match (layered, level) {
        (None, level) => level_name(level).to_owned(),
        (Some(layered), None) => layered.to_owned(),
        (Some(layered), level) => format!("{layered}_{}", level_name(level)),
    };
    let name = format!("{}::{variant}::{case_name}", engine.name);
    Trial::test(name.clone(), move || {
        let run = || {
            let run = move || {
                let _processors = wait_for_processors(case);
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
                runtime.block_on(async {
                    let running = async { (case.run)(TestDb::new(engine, level, layers, case.time).await?).await };
                    let guarded = tokio::time::timeout(HUNG, running).await;
                    guarded.unwrap_or_else(|_| Err(anyhow::anyhow!("the case hangs")))
                })
            };
            let thread = std::thread::Builder::new().name(name.clone()).stack_size(STACK).spawn(run)?;
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the case panicked")))
        };
        let mut ran = run();
        if let Err(error) = &ran
            && is_retried(case)
        {
            eprintln!("{name} is tried again: {error:?}");
            ran = run();
            if ran.is_ok() {
                FLAKY.lock().push(name);
            }
        }
        ran.map_err(|error| format!("{error:?}").into())
    })
}

/// The names of the trials that needed a second try.
pub static FLAKY: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether a failure is tried again: in `scripts/test`, unless the case is random.
fn is_retried(case: Case) -> bool {
    std::env::var_os("TOLLGATE_RETRIES").is_some() && !is_listed(case, RANDOM)
}

/// Waits until the case can run: alone if it keeps all processors busy, and otherwise with any others of its kind.
fn wait_for_processors(case: Case) -> impl Sized {
    static PROCESSORS: RwLock<()> = RwLock::new(());
    if is_listed(case, ALONE) { (None, Some(PROCESSORS.write())) } else { (Some(PROCESSORS.read()), None) }
}

fn level_name(level: Option<Isolation>) -> &'static str {
    match level {
        None => "pool",
        Some(Isolation::ReadCommitted) => "read_committed",
        Some(Isolation::RepeatableRead) => "repeatable_read",
        Some(Isolation::Serializable) => "serializable",
    }
}

fn is_listed(case: Case, names: &[&str]) -> bool {
    names.iter().any(|cases| case.name.contains(cases))
}

/// Cases that skip the layers, because no layer is involved or a layer would hide the tested behaviour.
const WITHOUT_LAYERS: &[&str] = &[
    // Sets the mode of a whole database, in a separate database, by operators' functions.
    "cases::admin",
    // Uses SQL only, by a login of the application's role.
    "cases::attacks",
    // Calls `take` with many requests some thousand times, which no layer coalesces.
    "cases::batches",
    // Uses operators' lists, with rows that its SQL broke.
    "cases::bounds",
    // Uses operators' SQL, with its own sessions and databases.
    "cases::by_hand",
    // Uses its own sessions and database.
    "cases::charsets",
    // Builds limiters with these layers and with a lease.
    "cases::cancellation::cancelled_calls_of_every_method",
    // Waits until each request has a separate session.
    "cases::concurrency::waiters",
    // Builds a limiter with these layers, and counts its calls.
    "cases::denial_flood",
    // A cached denial never writes.
    "cases::denials",
    // Uses its own lease.
    "cases::faults::leased",
    // Uses the host's SQL, in its transactions.
    "cases::host",
    // Reads a view and operators' lists.
    "cases::levels",
    // Builds a limiter with these layers.
    "cases::locked",
    // Runs before a store exists.
    "cases::migrations",
    // Uses its own routines.
    "cases::mutants",
    // Tests the SQL that a role can execute.
    "cases::privileges",
    // Counts attempts. A cached answer has none, and a batched answer has those of another request.
    "cases::retries",
    // Counts the round trips of a call.
    "cases::round_trips",
    // Uses SQL only.
    "cases::routines",
    // Counts attempts, and how often a session reads the clock.
    "cases::slow_storage",
    // Uses operators' functions.
    "cases::sweeping",
    // Uses SQL only, as the documents show it.
    "cases::transcripts",
    // Counts the writes of calls with many rows.
    "cases::updates",
    // Builds a limiter for each process.
    "cases::upgrades",
    // Calls routines thousands of times, at one instant each.
    "cases::vectors",
    // Makes hundreds of calls that every layer passes on unchanged.
    "cases::windows",
];

/// Cases with eight busy processes each, whose answers are put in an order to a millisecond.
const ALONE: &[&str] = &["cases::concurrency::eight_processes"];

/// Cases with a new seed in each run, and cases that count tokens under load. A failure is a fault, however rare.
const RANDOM: &[&str] = &[
    "cases::batches",
    "cases::concurrency::batches",
    "cases::concurrency::eight_processes",
    "cases::concurrency::first_requests",
    "cases::concurrency::several",
    "cases::fleet",
    "cases::invariants",
    "cases::oracle",
    "cases::sequences",
];

/// Cases that run through the layers on every engine: many concurrent callers, random sequences, locks, broken connections.
/// SQLite alone runs the others through the layers, which pass them the same requests on each engine.
const LAYERED_EVERYWHERE: &[&str] = &[
    "cases::cancellation",
    "cases::concurrency",
    "cases::faults",
    "cases::fleet",
    "cases::reads",
    "cases::sequences",
    "cases::throttling",
];

/// As much as the main thread of a process has. Futures are large in a build without optimisation.
const STACK: usize = 8 << 20;

/// Long enough for the slowest case on the slowest machine.
const HUNG: std::time::Duration = std::time::Duration::from_secs(240);

//! Cases × engines × isolation levels and layers, from one list.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use parking_lot::{Mutex, RwLock};
use tollgate::store::Isolation;

use crate::cases;
use crate::engines::{ENGINES, Engine};
use crate::layers::Layers;
use crate::test_db::TestDb;

/// A case, and where and how it runs.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub setup: Setup,
    pub run: fn(TestDb) -> Running,
}

/// Where and how cases run.
#[derive(Clone, Copy)]
pub struct Setup {
    pub levels: IsolationLevels,
    /// The clock that decides.
    pub time: Time,
    /// Whether an engine with these capabilities can run the cases.
    pub needs: fn(&Engine) -> bool,
    /// Where the cases run once more, through the layers.
    pub layered: LayeredOn,
    /// Whether each case keeps all processors busy, and so runs while no other case does.
    pub runs_alone: bool,
    /// Whether the cases try random values, or count tokens under load. A failure is a fault, however rare.
    pub is_random: bool,
}

impl Setup {
    /// On every engine, by the database's clock, at the pool's isolation level. SQLite runs the cases through the layers, which
    /// pass them the same requests on each engine.
    pub const DEFAULT: Self = Self {
        levels: IsolationLevels::PoolDefault,
        time: Time::Real,
        needs: |_| true,
        layered: LayeredOn::Sqlite,
        runs_alone: false,
        is_random: false,
    };

    /// Without layers, because no layer is involved, or a layer would hide the tested behaviour.
    pub const WITHOUT_LAYERS: Self = Self { layered: LayeredOn::NoEngine, ..Self::DEFAULT };

    /// Through the layers on every engine: many concurrent callers, random sequences, locks, broken connections.
    pub const LAYERED_EVERYWHERE: Self = Self { layered: LayeredOn::EveryEngine, ..Self::DEFAULT };
}

/// A running case.
pub type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum IsolationLevels {
    /// Each level of the engine.
    Every,
    PoolDefault,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// An injected clock in the routines that the migrations ship.
    Injected,
    /// The database's clock.
    Real,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LayeredOn {
    EveryEngine,
    NoEngine,
    /// The engine with `layers`.
    Sqlite,
}

/// Lists cases with their setup: `list!(Setup { time: Time::Injected, ..Setup::DEFAULT }; first, second)`.
macro_rules! list {
    ($setup:expr; $($case:ident),+ $(,)?) => {
        vec![$($crate::matrix::Case {
            name: concat!(module_path!(), "::", stringify!($case)),
            setup: $setup,
            run: |db| Box::pin($case(db)),
        }),+]
    };
}
pub(crate) use list;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for case in cases::all() {
        let Setup { levels, time, needs, layered, .. } = case.setup;
        let runs_at = |level: Option<Isolation>| levels == IsolationLevels::Every || level.is_none();
        for engine in ENGINES.iter().filter(|engine| engine.takes_part() && needs(engine)) {
            if time == Time::Injected && !engine.time_can_be_injected {
                continue;
            }
            let levels = engine.levels.iter().filter(|level| runs_at(**level));
            trials.extend(levels.map(|&level| trial(case, engine, level, Layers::None)));
            if layered == LayeredOn::NoEngine {
                continue;
            }
            trials.extend(engine.layers.iter().map(|&layers| trial(case, engine, None, layers)));
            if layered == LayeredOn::EveryEngine {
                let in_brief = engine.layers_in_brief.iter().filter(|(_, level)| runs_at(*level));
                trials.extend(in_brief.map(|&(layers, level)| trial(case, engine, level, layers)));
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
            let recorded = name.clone();
            let run = move || {
                let _processors = wait_for_processors(case);
                let started = Instant::now();
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
                let ended = runtime.block_on(async {
                    let running =
                        async { (case.run)(TestDb::new(engine, level, layers, case.setup.time).await?).await };
                    let guarded = tokio::time::timeout(HUNG, running).await;
                    guarded.unwrap_or_else(|_| Err(anyhow::anyhow!("the case hangs")))
                });
                TIMES.lock().push((started.elapsed(), recorded));
                ended
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

/// How long each trial ran, and its name.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// The slowest trials of those that took five seconds, the slowest first.
pub fn slowest(count: usize) -> Vec<(Duration, String)> {
    let mut times = std::mem::take(&mut *TIMES.lock());
    times.retain(|(elapsed, _)| elapsed.as_secs() >= 5);
    times.sort_unstable_by(|a, b| b.cmp(a));
    times.truncate(count);
    times
}

/// Whether a failure is tried again: in `scripts/test`, unless the case is random.
fn is_retried(case: Case) -> bool {
    std::env::var_os("TOLLGATE_RETRIES").is_some() && !case.setup.is_random
}

/// Waits until the case can run: alone if it keeps all processors busy, and otherwise with any others of its kind.
fn wait_for_processors(case: Case) -> impl Sized {
    static PROCESSORS: RwLock<()> = RwLock::new(());
    if case.setup.runs_alone { (None, Some(PROCESSORS.write())) } else { (Some(PROCESSORS.read()), None) }
}

fn level_name(level: Option<Isolation>) -> &'static str {
    match level {
        None => "pool",
        Some(Isolation::ReadCommitted) => "read_committed",
        Some(Isolation::RepeatableRead) => "repeatable_read",
        Some(Isolation::Serializable) => "serializable",
    }
}

/// As much as the main thread of a process has. Futures are large in a build without optimisation.
const STACK: usize = 8 << 20;

/// Long enough for the slowest case on the slowest machine.
const HUNG: Duration = Duration::from_secs(240);

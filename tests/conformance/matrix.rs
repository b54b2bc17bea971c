//! Cases × engines × isolation levels and layers, from one list.

use std::future::Future;
use std::pin::Pin;

use libtest_mimic::Trial;
use tollgate::store::Isolation;

use crate::cases;
use crate::engines::{ENGINES, Engine};
use crate::layers::Layers;
use crate::rig::Rig;

/// What a case needs, and where it runs.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// At each isolation level of the engine, or only at the pool's own.
    pub levels: Levels,
    /// Whose time decides.
    pub time: Time,
    /// Whether an engine of these capabilities can run it.
    pub needs: fn(&Engine) -> bool,
    pub run: fn(Rig) -> Running,
}

/// A case at work.
pub type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Levels {
    Every,
    Pools,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The test's: the routines that the migrations ship, with their clock replaced.
    Injected,
    /// The database's.
    Real,
}

/// Names cases and says what they need: `list!(Levels::Every, Time::Injected, |engine| …; first, second)`.
macro_rules! list {
    ($levels:expr, $time:expr, $needs:expr; $($case:ident),+ $(,)?) => {
        [$($crate::matrix::Case {
            name: concat!(module_path!(), "::", stringify!($case)),
            levels: $levels,
            time: $time,
            needs: $needs,
            run: |rig| Box::pin($case(rig)),
        }),+]
    };
}
pub(crate) use list;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for case in cases::all() {
        for engine in ENGINES.iter().filter(|engine| engine.takes_part() && (case.needs)(engine)) {
            if case.time == Time::Injected && !engine.time_can_be_injected {
                continue;
            }
            for &level in engine.levels {
                if case.levels == Levels::Every || level.is_none() {
                    trials.push(trial(case, engine, level, Layers::None));
                }
            }
            if named(case, BENEATH) {
                continue;
            }
            trials.extend(engine.layers.iter().map(|&layers| trial(case, engine, None, layers)));
            for &(layers, level) in engine.layers_in_brief.iter().filter(|_| named(case, IN_BRIEF)) {
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
    let way = match (layered, level) {
        (None, level) => level_name(level).to_owned(),
        (Some(layered), None) => layered.to_owned(),
        (Some(layered), level) => format!("{layered}_{}", level_name(level)),
    };
    let name = format!("{}::{way}::{case_name}", engine.name);
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime
            .block_on(async {
                let running = async { (case.run)(Rig::new(engine, level, layers, case.time).await?).await };
                let guarded = tokio::time::timeout(HUNG, running).await;
                guarded.unwrap_or_else(|_| Err(anyhow::anyhow!("the case hangs")))
            })
            .map_err(|error| format!("{error:?}").into())
    })
}

fn level_name(level: Option<Isolation>) -> &'static str {
    match level {
        None => "pool",
        Some(Isolation::ReadCommitted) => "read_committed",
        Some(Isolation::RepeatableRead) => "repeatable_read",
        Some(Isolation::Serializable) => "serializable",
    }
}

fn named(case: Case, among: &[&str]) -> bool {
    among.iter().any(|cases| case.name.contains(cases))
}

/// Cases that no layer takes part in, or which could not show through one what they show beneath, each for its reason.
const BENEATH: &[&str] = &[
    // A mode of the whole database, in a database of the case's own, by an operator's functions.
    "cases::admin",
    // A limiter of its own, with these layers, whose calls are counted.
    "cases::attack",
    // SQL alone, by a login of the application's role.
    "cases::attacks",
    // A store's `take` of many, which no layer gathers, some thousand times.
    "cases::batches",
    // An operator's lists, of rows that its SQL broke.
    "cases::bounds",
    // An operator's SQL, and sessions and databases of the case's own.
    "cases::by_hand",
    // Sessions and a database of the case's own.
    "cases::charsets",
    // Limiters of its own, with these layers and with a lease.
    "cases::cancellation::calls_of_every_verb",
    // Waits until each request has a session of its own.
    "cases::concurrency::waiters",
    // From memory a denial would write nothing anyway.
    "cases::denials",
    // A lease of its own.
    "cases::faults::leased",
    // The host's SQL, in its transactions.
    "cases::host",
    // A view, and an operator's listing.
    "cases::levels",
    // A limiter of its own, with these layers.
    "cases::locked",
    // Comes before there is a store.
    "cases::migrations",
    // Routines of its own.
    "cases::mutants",
    // What a role may do by SQL.
    "cases::privileges",
    // Counts attempts, of which an answer from memory has none and one for many has another's.
    "cases::retries",
    // Counts what goes over the wire for a call.
    "cases::round_trips",
    // SQL alone.
    "cases::routines",
    // An operator's function.
    "cases::sweeping",
    // SQL alone, as the documents show it.
    "cases::transcripts",
    // Counts what calls of many rows write.
    "cases::updates",
    // Limiters of its own, one for each process.
    "cases::upgrades",
    // Routines called thousands of times, one instant each.
    "cases::vectors",
    // Passed on as they are by every layer, hundreds of times.
    "cases::windows",
];

/// Cases of many callers at once, and of anything in any order: the others find through other layers, or by an engine of the
/// same kind, what they would find here.
const IN_BRIEF: &[&str] = &["cases::cancellation", "cases::concurrency", "cases::fleet", "cases::sequences"];

/// Long enough for the slowest case on the slowest machine.
const HUNG: std::time::Duration = std::time::Duration::from_secs(240);

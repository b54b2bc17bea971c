mod seen;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use self::seen::{AllSeen, Asked, OnItsWay, Seen};
use crate::model::answer::Word;
use crate::model::decision::Source;
use crate::model::{
    Adjusted, Adjustment, Counted, Decision, Error, HoldBack, Key, Mode, Outcome, Rule, Take, TakeError, Window,
};
use crate::store::{Capabilities, Maintenance, SharedWindows, Store};

/// A store that decides requests under sliding windows from what this process has seen of them.
///
/// A denial makes no call. A grant is counted in the store before it is answered, and brings back what all processes have
/// counted; after the end of each sub-interval, and each second while it denies, the counts are read anew. The sub-interval that the window has in part is
/// weighed by that part. So between two grants of its own a process knows nothing of the others', and together they can
/// grant more than the maximum, or deny a little early: `docs/sliding-windows.md` has the measure of it. Sub-intervals
/// are those of the store's clock.
///
/// Requests that may wait, keep some for others, or have an id, and those under any other rule, are the store's to
/// decide: exactly.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{layers::LocalReads, Limiter, MemoryStore, Window};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// // PgStore::from(pool), or MySqlStore or SqliteStore, where processes share a database.
/// let store = LocalReads::new(MemoryStore::new());
/// let limiter = Limiter::new(store, Window::new(100, Duration::from_secs(60), Duration::from_secs(5))?)?;
/// assert!(limiter.allow("/search").await?.is_granted());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LocalReads<S> {
    store: Arc<S>,
    seen: Arc<Mutex<AllSeen>>,
    most_keys: usize,
}

impl<S: SharedWindows> LocalReads<S> {
    /// Over a store.
    pub fn new(store: S) -> Self {
        Self { store: Arc::new(store), seen: Arc::default(), most_keys: MOST_KEYS }
    }

    /// How many keys it remembers at most; 100,000 if not said. Beyond that, windows that are empty are forgotten, and if
    /// there are none, requests for other keys are the store's to decide.
    #[must_use]
    pub fn most_keys(self, most_keys: usize) -> Self {
        Self { most_keys, ..self }
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Whether the store has just been `asked` is told with a denial.
    async fn take_locally(&self, take: &Take, window: &Window, asked: bool) -> Result<Outcome, Error> {
        let request = match take.request() {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let key = take.key();
        let known = self.seen.lock().windows.get_mut(key).map(|known| {
            known.decide(window, request.cost).map_err(|counted| (known.is_due(window, counted.now), counted))
        });
        let Some(decided) = known else {
            if !self.seen.lock().has_room(key, self.most_keys) {
                return self.store.take_one(take).await;
            }
            self.ask(key, window, None).await?;
            return Box::pin(self.take_locally(take, window, true)).await;
        };
        let had_room = match decided {
            Ok(had_room) => had_room,
            Err((due, counted)) => {
                if due {
                    self.ask_behind(key.clone(), *window);
                }
                let word = if request.cost > window.most() { Word::Never } else { Word::Denied };
                let outcome = Counted { word, ..counted }.outcome(take, window, request);
                let decision = |decision: Decision| if asked { decision } else { decision.aged(Duration::ZERO) };
                return Ok(outcome.map(|denied| decision(denied).by(Source::LocalReads)));
            }
        };
        let granted = OnItsWay { seen: &self.seen, key, window, cost: request.cost };
        let mut counted = self.ask(key, window, Some(granted)).await?;
        if had_room && counted.mode == Mode::Shadow {
            // It would have passed without.
            counted.mode = Mode::Enforce;
        }
        Ok(counted.outcome(take, window, request).map(|decision| decision.untaken().by(Source::LocalReads)))
    }

    fn ask_behind(&self, key: Key, window: Window) {
        let asking = Self { store: Arc::clone(&self.store), seen: Arc::clone(&self.seen), ..*self };
        let asked = Asked { seen: Arc::clone(&self.seen), key, failed: false };
        // Without a runtime the next one who is denied may have one.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut asked = asked;
            // Who is denied later asks again.
            asked.failed = asking.ask(&asked.key, &window, None).await.is_err();
        });
    }

    /// Counts what was granted in the store, if anything was, and replaces what is known by what it answers.
    async fn ask(&self, key: &Key, window: &Window, granted: Option<OnItsWay<'_>>) -> Result<Counted, Error> {
        let cost = granted.as_ref().map_or(0, |granted| granted.cost.unsigned_abs());
        let sent = Instant::now();
        let counted = self.store.count(key, window, cost).await?;
        let answer = Seen::new(window, &counted, sent, Instant::now());
        let mut seen = self.seen.lock();
        if let Some(granted) = granted {
            granted.arrive(&mut seen);
        }
        seen.learn(key, window, answer);
        Ok(counted)
    }
}

impl<S: SharedWindows> Store for LocalReads<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// In one call of the store, unless a window is among them: those are decided one by one.
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        if takes.iter().all(|take| local(take).is_none()) {
            return self.store.take(takes).await;
        }
        let mut outcomes = Vec::with_capacity(takes.len());
        for take in takes {
            let outcome = match local(take) {
                Some(window) => self.take_locally(take, window, false).await,
                None => self.store.take_one(take).await,
            };
            match outcome {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => return Err(error.after(outcomes.iter().flatten().any(Decision::is_granted))),
            }
        }
        Ok(outcomes)
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust(adjustments).await
    }

    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        self.store.hold_back(key, rule, hold).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.store.maintenance()
    }
}

/// The window of a request that is decided from what was seen.
fn local(take: &Take) -> Option<&Window> {
    take.window().filter(|_| take.max_wait == Duration::ZERO && take.keep == 0 && take.id.is_none())
}

const MOST_KEYS: usize = 100_000;

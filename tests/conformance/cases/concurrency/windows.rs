//! Callers that count in one sliding window at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Rule, Store, Take, Window};

use crate::caller_sessions::CallerSessions;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { levels: IsolationLevels::Every, ..Setup::LAYERED_EVERYWHERE };
        window_counted_by_many_sessions_grants_its_maximum,
    )
}

/// In every other round, the window exists already. Otherwise the first request creates it. No count expires in the meantime.
async fn window_counted_by_many_sessions_grants_its_maximum(db: TestDb) -> anyhow::Result<()> {
    let sessions = CallerSessions::new(&db, CALLERS).await?;
    let store = sessions.db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    let window = Window::new(MAX_REQUESTS, Duration::from_hours(1), Duration::from_mins(1))?;
    for round in 0..ROUNDS {
        let take = Take::from(db.key()).rule(Rule::Window(window));
        let mut granted = 0;
        if round % 2 == 0 {
            granted += u64::from(store.take_one(&take).await??.is_granted());
        }
        let start = Arc::new(Barrier::new(usize::try_from(CALLERS)?));
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let (store, start, take) = (store.clone(), Arc::clone(&start), take.clone());
            callers.spawn(async move {
                start.wait().await;
                let mut granted = 0;
                while store.take_one(&take).await??.is_granted() {
                    granted += 1;
                }
                anyhow::Ok(granted)
            });
        }
        for caller in callers.join_all().await {
            granted += caller?;
        }
        assert_eq!(granted, MAX_REQUESTS, "in round {round}");
    }
    Ok(())
}

const CALLERS: u32 = 8;
const MAX_REQUESTS: u64 = 20;
const ROUNDS: u32 = 4;

//! The database as the dashboard shows it: the buckets as `watch` shows them, the plans and the modes.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tollgate::admin::{BucketLevel, ModeSetting};
use tollgate::{Admin, Error};
use tollgate_serve::BoardSource;

use crate::mode::setting;
use crate::times;
use crate::watch::board::Board;
use crate::watch::order::WatchOrder;
use crate::watch::reader::BoardReader;
use crate::watch::row::BoardRow;

/// Reads the buckets in the way of `watch`.
pub(super) struct ServeBoard<S> {
    store: S,
    database: String,
    watched: Mutex<(BoardReader<S>, Board)>,
}

impl<S: Admin + Clone> ServeBoard<S> {
    pub(super) fn new(store: S, database: String) -> Self {
        let watched = (BoardReader::new(store.clone(), None, MAX_READ), Board::new(WatchOrder::Hottest));
        Self { store, database, watched: Mutex::new(watched) }
    }

    async fn board(&self) -> Result<Value, Error> {
        let mut watched = self.watched.lock().await;
        let (reader, board) = &mut *watched;
        let required = board.required_keys();
        board.apply(reader.read(&required).await?);
        let rows = |order: WatchOrder| -> Value { board.first(order).into_iter().take(MAX_SHOWN).map(row).collect() };
        let totals = board.totals();
        let is_whole = board.scan.as_ref().is_none_or(|scan| scan.all);
        let mut answer = json!({
            "database": { "name": self.database, "error": null },
            "totals": {
                "buckets": totals.buckets, "empty": totals.empty, "all": is_whole, "granted_per_s": totals.rate,
                "denied_per_s": board.denials.all(),
            },
            "hottest": rows(WatchOrder::Hottest),
            "most_denied": rows(WatchOrder::Denied),
            "emptiest": rows(WatchOrder::Emptiest),
            "unreadable": board.unreadable,
            "note": board.denials.now.missing_reason,
        });
        (answer["plans"], answer["modes"]) = self.settings().await?;
        Ok(answer)
    }

    /// The plans, and the modes that are set.
    async fn settings(&self) -> Result<(Value, Value), Error> {
        let (mut plans, mut modes) = (Vec::<Value>::new(), Vec::new());
        let all = self.store.mode().await?;
        if all != ModeSetting::default() {
            modes.push(mode("all", None, None, &all));
        }
        for plan in self.store.plans(None, MAX_PLANS).await?.into_vec() {
            let name = plan.name.without_limit().to_string();
            let limit = match &plan.limit {
                Some(limit) => format!("{limit}: {}", plan.quota),
                None => plan.quota.to_string(),
            };
            if let Some(setting) = &plan.mode {
                modes.push(mode("plan", Some(&name), plan.name.limit_name(), setting));
            }
            if let Some(last) = plans.last_mut().filter(|last| last["name"] == name) {
                let known = last["limits"].as_str().unwrap_or_default();
                last["limits"] = format!("{known}; {limit}").into();
            } else {
                let set = plan.mode.as_ref().map(|setting| setting.mode.as_str());
                plans.push(json!({ "name": name, "limits": limit, "mode": set }));
            }
        }
        for (key, over) in self.store.overrides(None, MAX_PLANS).await?.into_vec() {
            if let Some(set) = over.mode {
                let setting = setting(set, Some(over.reason), over.expires_at);
                modes.push(mode("key", Some(key.without_limit().as_ref()), key.limit_name(), &setting));
            }
        }
        Ok((plans.into(), modes.into()))
    }
}

impl<S: Admin + Clone> BoardSource for ServeBoard<S> {
    fn read(&self) -> Pin<Box<dyn Future<Output = Result<Value, Error>> + Send + '_>> {
        Box::pin(self.board())
    }
}

fn row(row: &BoardRow) -> Value {
    json!({
        "key": row.key.without_limit().as_str(),
        "limit": row.key.limit_name(),
        "quota": row.quota(),
        "available": row.level.as_ref().map(BucketLevel::available),
        "capacity": row.level.as_ref().map(|level| level.quota().capacity()),
        "granted_per_s": row.rate,
        "denied": row.denied,
        "denied_per_s": row.denied_rate,
        "history": row.past,
    })
}

fn mode(scope: &str, name: Option<&str>, limit: Option<&str>, setting: &ModeSetting) -> Value {
    json!({
        "scope": scope, "name": name, "limit": limit, "mode": setting.mode.as_str(), "reason": setting.reason,
        "until": times::timestamp(setting.until),
    })
}

const MAX_READ: u32 = 10_000;
const MAX_SHOWN: usize = 20;
const MAX_PLANS: u32 = 200;

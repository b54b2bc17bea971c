//! The option `--limit`, which names one limit of a plan.

use tollgate::{Admin, Key, model::LimitName, store::Maintenance};

use crate::exit::CliError;
use crate::paging::readable;
use crate::text::plain;

/// The bucket that a key has for the named limit, or the key itself.
///
/// Unless the key follows a plan already, its limits are in the code of a service, and each name is taken as it is.
pub(crate) async fn bucket(
    store: &(impl Admin + Maintenance),
    key: Key,
    limit: Option<&LimitName>,
) -> anyhow::Result<Key> {
    let Some(name) = limit else { return Ok(key) };
    let plan = readable(store.peek(&key).await)?.flatten().and_then(|level| level.plan().cloned());
    match plan {
        Some(plan) if store.plan(&plan).await?.is_some() => of_limit(store, &plan, &key, name).await,
        _ => Ok(key.limit(name)),
    }
}

/// The buckets that the keys have for the named limit, or the keys themselves.
pub(crate) async fn buckets(
    store: &(impl Admin + Maintenance),
    keys: Vec<Key>,
    limit: Option<&LimitName>,
) -> anyhow::Result<Vec<Key>> {
    let mut buckets = Vec::with_capacity(keys.len());
    for key in keys {
        buckets.push(bucket(store, key, limit).await?);
    }
    Ok(buckets)
}

/// The plan's row for the named limit, or the plan itself.
pub(crate) async fn plan(
    store: &(impl Admin + Maintenance),
    plan: Key,
    limit: Option<&LimitName>,
) -> anyhow::Result<Key> {
    match limit {
        Some(_) if readable(store.plan(&plan).await)?.is_some_and(|row| row.is_none()) => {
            Err(CliError::unknown_plan(&plan).into())
        }
        Some(name) => of_limit(store, &plan, &plan, name).await,
        None => Ok(plan),
    }
}

/// The id that a key or plan has for a limit of the plan. The first limit has the id itself.
async fn of_limit(store: &impl Maintenance, plan: &Key, id: &Key, name: &LimitName) -> anyhow::Result<Key> {
    let limits = store.read_plan(plan).await?;
    match limits.iter().position(|limit| limit.get_name() == Some(name)) {
        Some(0) => Ok(id.clone()),
        Some(_) => Ok(id.limit(name)),
        None => {
            let names: Vec<&str> = limits.iter().filter_map(|limit| limit.get_name().map(LimitName::as_str)).collect();
            let message = format!("plan '{}' has no limit '{name}'", plain(plan.as_str()));
            let hint = if names.is_empty() {
                "leave out --limit: its limit has no name".to_owned()
            } else {
                format!("it has {}", names.join(", "))
            };
            Err(CliError::absent(message, hint).into())
        }
    }
}

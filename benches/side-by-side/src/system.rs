use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};

use crate::server::Server;
use crate::workload::Workload;

/// A system under test: a limiter and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct System {
    pub(crate) kind: Kind,
    pub(crate) server: Option<Server>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The `redis` crate and a script, as users run it.
    Redis,
    /// Redis with merged and pipelined requests, which no library provides.
    RedisPipelined,
    /// The module redis-cell.
    RedisCell,
    Tollgate,
    /// tollgate with a lease, which prefetches tokens.
    Leased,
    /// tollgate with one call per request.
    Unbatched,
    /// rate-limiter-flexible on node.
    Flexible,
    /// `UPDATE … WHERE id`, which limits nothing.
    Bare,
    /// An `UPDATE` of many rows in one statement, with tollgate's batching.
    BareBatches,
    /// An `UPDATE` of many buckets that returns their contents: the minimum cost of grants.
    AnsweredBatches,
    /// A `SELECT` of many rows in one statement, with the same batching: the minimum cost of denials.
    BareReads,
    /// A limiter over a store that does nothing: the client's cost.
    Nothing,
    /// `SELECT 1`, which does not even write.
    SelectOne,
    /// No limiter, to see the cost of the rest.
    Unlimited,
    /// `governor` in this process.
    Governor,
    /// tollgate in this process.
    Memory,
}

impl Kind {
    /// Returns the default server, which names omit.
    fn usual(self) -> Option<Server> {
        match self {
            Self::Redis | Self::RedisPipelined => Some(Server::Redis),
            Self::RedisCell => Some(Server::RedisCell),
            Self::Flexible => Some(Server::Postgres),
            _ => None,
        }
    }
}

impl System {
    /// Returns the systems to measure under a workload, on these SQL engines. The others are compared with the first.
    pub(crate) fn all(workload: &Workload, engines: &[Server]) -> Vec<Self> {
        let here = |kind| vec![Self { kind, server: None }];
        let on = |kind, server| vec![Self { kind, server: Some(server) }];
        let each = |kind| engines.iter().map(|&engine| Self { kind, server: Some(engine) }).collect();
        let redis = if workload.durable { Server::RedisAlways } else { Server::Redis };
        let of = |kind| match kind {
            Kind::Redis | Kind::RedisPipelined => on(kind, redis),
            Kind::RedisCell => on(kind, Server::RedisCell),
            Kind::Flexible => on(kind, Server::Postgres),
            Kind::Tollgate
            | Kind::Leased
            | Kind::Unbatched
            | Kind::Bare
            | Kind::BareBatches
            | Kind::AnsweredBatches
            | Kind::BareReads
            | Kind::SelectOne => each(kind),
            Kind::Nothing | Kind::Unlimited | Kind::Governor | Kind::Memory => here(kind),
        };
        kinds(workload.name).iter().copied().flat_map(of).collect()
    }

    /// Returns the system whose buckets it takes from. Systems on the same Redis or database share buckets.
    pub(crate) fn owner(self) -> Self {
        let kind = match self.kind {
            Kind::RedisPipelined => Kind::Redis,
            Kind::Leased | Kind::Unbatched | Kind::AnsweredBatches => Kind::Tollgate,
            Kind::BareBatches | Kind::BareReads => Kind::Bare,
            kind => kind,
        };
        Self { kind, ..self }
    }

    /// Returns why this machine cannot run the system, or `None` if it can.
    pub(crate) fn missing(self) -> Option<String> {
        match (self.kind, self.server) {
            (Kind::Flexible, _) if std::env::var_os("TOLLGATE_FLEXIBLE").is_none() => {
                Some("node or the npm package cannot be found".to_owned())
            }
            (_, Some(server)) if !server.is_there() => Some(format!("{} does not run", server.name())),
            _ => None,
        }
    }
}

/// The systems to measure under a workload. To add a variant, add a line.
fn kinds(workload: &str) -> &'static [Kind] {
    use Kind::{
        AnsweredBatches, Bare, BareBatches, BareReads, Flexible, Governor, Leased, Memory, Nothing, Redis, RedisCell,
        RedisPipelined, SelectOne, Tollgate, Unbatched, Unlimited,
    };
    match workload {
        "uniform" => &[
            Redis,
            RedisPipelined,
            RedisCell,
            Tollgate,
            Flexible,
            Bare,
            BareBatches,
            AnsweredBatches,
            SelectOne,
            Nothing,
            Governor,
            Memory,
        ],
        "hot" => &[Redis, RedisPipelined, RedisCell, Tollgate, Flexible, Bare, BareBatches, Nothing, Governor, Memory],
        "zipf" => &[Redis, RedisPipelined, RedisCell, Tollgate, Leased, BareBatches, Governor, Memory],
        // Leases debit tokens before they hand them out, so the grants of a whole run have the same bound.
        "saturated" | "attack" => &[Redis, RedisPipelined, RedisCell, Tollgate, Leased, Governor, Memory],
        "denied" => &[Redis, RedisPipelined, RedisCell, Tollgate, BareReads],
        "leased" => &[Redis, RedisPipelined, Leased, Governor, Memory],
        "http" | "http_hot" | "http_zipf" => &[Redis, Unlimited, Governor, Memory, Leased, Tollgate],
        "http_attack" => &[Redis, Governor, Memory, Tollgate],
        "low_load" | "sync_low_load" => &[Redis, Tollgate, Unbatched, Bare],
        "first_use" => &[Redis, RedisPipelined, Tollgate, BareBatches],
        "five_limits" => &[Redis, RedisPipelined, Tollgate, BareBatches, AnsweredBatches],
        _ => &[Redis, RedisPipelined, Tollgate, Bare, BareBatches],
    }
}

const KINDS: [(Kind, &str); 16] = [
    (Kind::Redis, "redis"),
    (Kind::RedisPipelined, "redis-pipelined"),
    (Kind::RedisCell, "redis-cell"),
    (Kind::Tollgate, "tollgate"),
    (Kind::Leased, "tollgate-leased"),
    (Kind::Unbatched, "tollgate-unbatched"),
    (Kind::Flexible, "rate-limiter-flexible"),
    (Kind::Bare, "bare-update"),
    (Kind::BareBatches, "bare-batches"),
    (Kind::AnsweredBatches, "answered-batches"),
    (Kind::BareReads, "bare-reads"),
    (Kind::SelectOne, "select-1"),
    (Kind::Nothing, "tollgate-over-nothing"),
    (Kind::Unlimited, "no-limiter"),
    (Kind::Governor, "governor"),
    (Kind::Memory, "tollgate-memory"),
];

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = KINDS.iter().find(|(kind, _)| *kind == self.kind).ok_or(fmt::Error)?;
        match self.server {
            Some(server) if Some(server) != self.kind.usual() => write!(f, "{name}@{}", server.name()),
            _ => f.write_str(name),
        }
    }
}

impl FromStr for System {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, server) = text.split_once('@').map_or((text, None), |(name, server)| (name, Some(server)));
        let Some((kind, _)) = KINDS.iter().find(|(_, known)| *known == name) else {
            bail!("there is no contestant '{name}'");
        };
        let named = server.map(|server| {
            serde_json::from_value(server.into()).with_context(|| format!("there is no server '{server}'"))
        });
        Ok(Self { kind: *kind, server: named.transpose()?.or_else(|| kind.usual()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::WORKLOADS;

    #[test]
    fn every_system_is_found_by_its_name() {
        for workload in &WORKLOADS {
            for system in System::all(workload, &[Server::Postgres, Server::Sqlite]) {
                assert_eq!(system.to_string().parse::<System>().unwrap(), system);
            }
        }
    }
}

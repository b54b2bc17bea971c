use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};

use crate::server::Server;
use crate::workload::Workload;

/// Who takes part: a way to limit, and the store it does so in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct System {
    pub(crate) kind: Kind,
    pub(crate) server: Option<Server>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The `redis` crate and a script, as users run it.
    Redis,
    /// The same, merged and pipelined, as nobody ships it: what could be made of Redis.
    RedisPipelined,
    /// The module redis-cell.
    RedisCell,
    Tollgate,
    /// The same, taking tokens ahead.
    Leased,
    /// The same, with a call for each request.
    Unbatched,
    /// rate-limiter-flexible on node.
    Flexible,
    /// `UPDATE … WHERE id`, which limits nothing.
    Bare,
    /// `UPDATE` of many rows in one statement, gathered as tollgate gathers requests.
    BareBatches,
    /// The same of buckets' rows, answering what is in each then: what grants cost at least.
    AnsweredBatches,
    /// A `SELECT` of many rows, gathered likewise: what denials cost at least.
    BareReads,
    /// A limiter over nothing: what it costs the client.
    Nothing,
    /// `SELECT 1`, which does not even write.
    SelectOne,
    /// Nothing, to see what the rest costs.
    Unlimited,
    /// In this process.
    Governor,
    /// tollgate in this process.
    Memory,
}

impl Kind {
    /// The server that goes without saying.
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
    /// Who is measured under a workload, on these SQL engines; the first one is what the others are compared with.
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

    /// Whose buckets it takes from: both users of a Redis have the same, and so have both of a database.
    pub(crate) fn owner(self) -> Self {
        let kind = match self.kind {
            Kind::RedisPipelined => Kind::Redis,
            Kind::Leased | Kind::Unbatched | Kind::AnsweredBatches => Kind::Tollgate,
            Kind::BareBatches | Kind::BareReads => Kind::Bare,
            kind => kind,
        };
        Self { kind, ..self }
    }

    /// Whether this machine has what it needs; if not, why.
    pub(crate) fn missing(self) -> Option<String> {
        match (self.kind, self.server) {
            (Kind::Flexible, _) if std::env::var_os("TOLLGATE_FLEXIBLE").is_none() => {
                Some("node or the npm package is not to be had".to_owned())
            }
            (_, Some(server)) if !server.is_there() => Some(format!("{} does not run", server.name())),
            _ => None,
        }
    }
}

/// Who is worth measuring under a workload. To add a variant, add a line.
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
        // Tokens are debited before they are leased, so what a whole run grants is bounded as without.
        "saturated" | "attack" => &[Redis, RedisPipelined, RedisCell, Tollgate, Leased, Governor, Memory],
        "denied" => &[Redis, RedisPipelined, RedisCell, Tollgate, BareReads],
        "leased" => &[Redis, RedisPipelined, Leased, Governor, Memory],
        "http" | "http_hot" | "http_zipf" => &[Redis, Unlimited, Governor, Memory, Leased, Tollgate],
        "http_attack" => &[Redis, Governor, Memory, Tollgate],
        "low_load" => &[Redis, Tollgate, Unbatched],
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
    fn every_contestant_is_found_by_its_name() {
        for workload in &WORKLOADS {
            for system in System::all(workload, &[Server::Postgres, Server::Sqlite]) {
                assert_eq!(system.to_string().parse::<System>().unwrap(), system);
            }
        }
    }
}

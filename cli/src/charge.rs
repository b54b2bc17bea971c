use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{Admin, Key, Limit, model::LimitName, store::Maintenance};
use uuid::Uuid;

use crate::limit_option;
use crate::output::{say, say_json};
use crate::quota_args::{key, limit_name};
use crate::request::{RequestArgs, limiter};
use crate::text::{counted, plain};

/// Take tokens that were used already, also if the bucket holds fewer
///
/// The bucket then denies requests until it has refilled.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate charge user:42 --cost 1200 --plan free\n\
\x20 tollgate charge account:7 --plan llm --cost-of tokens=1200 --id $(uuidgen)")]
pub(crate) struct Args {
    #[arg(value_name = "KEY", value_parser = key)]
    key: Key,
    /// Only this limit of the key's plan
    #[arg(long, value_name = "NAME", value_parser = limit_name, conflicts_with_all = ["plan", "quota", "cost_of"])]
    limit: Option<LimitName>,
    #[command(flatten)]
    request: RequestArgs,
    /// The charge's id, to repeat a charge whose outcome is unknown without charging twice
    #[arg(long, value_name = "UUID")]
    id: Option<Uuid>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A charge.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ChargeJson {
    /// Whether the tokens were charged. False: a charge with this id was made before.
    charged: bool,
    /// The tokens left, of the limit with the fewest. Negative: owed. Null: they cannot be read.
    available: Option<i64>,
}

impl Args {
    pub(crate) async fn run<S: Admin + Maintenance>(self, store: S) -> anyhow::Result<ExitCode> {
        let key = limit_option::bucket(&store, self.key, self.limit.as_ref()).await?;
        let limiter = limiter(store)?;
        let take = self.request.take(std::slice::from_ref(&key));
        let take = self.id.into_iter().fold(take, |take, id| take.id(id, REMEMBERED));
        let charged = limiter.charge_request(&take).await?;
        // The charge is made, also if the role may not read.
        let level = limiter.peek_limit(&Limit::new(key.clone(), self.request.rule())).await;
        let available = level.ok().map(|level| level.available());
        if self.json {
            say_json(&ChargeJson { charged, available })?;
        } else {
            let outcome = if charged { "charged" } else { "charged before, with this id" };
            let left = available.map_or_else(String::new, |left| format!("; {} available", counted(left, "token")));
            say(format!("{}: {outcome}{left}", plain(key.as_str())))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The store remembers a charge for a day, whatever the request says.
const REMEMBERED: std::time::Duration = std::time::Duration::from_secs(86_400);

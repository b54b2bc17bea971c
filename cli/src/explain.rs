use std::process::ExitCode;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{
    Admin, Key, Mode, SqlStore,
    admin::{ExpectedOutcome, Explanation, Origin},
    model::{NamedLimit, Refill},
    store::{Maintenance, Migrate},
};

use crate::doctor::{Examine, recreate_command};
use crate::modes::ModeArg;
use crate::output::{say, say_json, width_to_fit};
use crate::quota_args::key;
use crate::text::{GREEN, RED, plain, shortened, wrapped};
use crate::{clock, times};

mod sliding;

use sliding::{Sliding, SlidingJson};

/// Show the effective limit and mode of a key, their source and end, and the outcome of a request
///
/// Takes no tokens.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(value_parser = key)]
    key: Key,
    /// As for a request that names this plan
    #[arg(long, value_name = "NAME", value_parser = key)]
    plan: Option<Key>,
    /// As for a request that takes so many tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    cost: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print a long key in full and each line unbroken, even if they do not fit the terminal
    #[arg(long, conflicts_with = "json")]
    wide: bool,
}

impl Args {
    pub(crate) async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<ExitCode> {
        let explanation = store.explain(&self.key, self.plan.as_ref()).await?;
        let now = clock::now(store.pool()).await?;
        let sliding = Sliding::find(store, &self.key, &explanation, now).await?;
        let further = further_limits(store, &self.key, &explanation).await?;
        if self.json {
            let window = sliding.as_ref().map(|sliding| sliding.json(self.cost));
            let further = further.iter().map(|(key, one)| ExplainJson::new(key, one, shortfall(one, self.cost), None));
            let further_limits = further.collect();
            let first = ExplainJson::new(&self.key, &explanation, shortfall(&explanation, self.cost), window);
            say_json(&ExplainJson { further_limits, ..first })?;
        } else {
            self.say(&self.key, &explanation, sliding.as_ref(), now)?;
            for (key, explanation) in &further {
                self.say(key, explanation, None, now)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the explanation of one limit.
    fn say(
        &self,
        key: &Key,
        explanation: &Explanation,
        sliding: Option<&Sliding>,
        now: DateTime<Utc>,
    ) -> anyhow::Result<()> {
        // Omits a missing bucket if the key has a window and no plan is named.
        let bucket = explanation.known || sliding.is_none() || self.plan.is_some();
        let mut lines = if bucket { bucket_lines(explanation, self.plan.is_some(), now) } else { Vec::new() };
        lines.extend(sliding.map(|sliding| ("window", sliding.counted())));
        lines.push(("mode", mode_line(explanation, now)));
        lines.extend(bucket.then(|| ("a request", expected_outcome(explanation, shortfall(explanation, self.cost)))));
        let name = if bucket { "in window" } else { "a request" };
        lines.extend(sliding.map(|sliding| (name, sliding.expected_outcome(self.cost))));
        let (width, key) = (width_to_fit(self.wide), plain(key.as_str()));
        let key = width.map_or_else(|| key.clone(), |width| shortened(&key, width));
        let lines = lines.into_iter().map(|(name, text)| format!("  {name:<10} {}", wrapped(&text, width, 13)));
        Ok(say(format!("{key}\n{}", lines.collect::<Vec<_>>().join("\n")))?)
    }
}

/// The further limits of the key's plan, each with the id of its bucket.
async fn further_limits<DB: Migrate + Examine>(
    store: &SqlStore<DB>,
    key: &Key,
    explanation: &Explanation,
) -> anyhow::Result<Vec<(Key, Explanation)>> {
    let mut explained = Vec::new();
    let Some(plan) = explanation.plan.as_ref().filter(|_| key.limit_name().is_none()) else { return Ok(explained) };
    for limit in store.read_plan(plan).await?.iter().skip(1).filter_map(NamedLimit::get_name) {
        let id = key.limit(limit);
        let explanation = store.explain(&id, Some(&plan.limit(limit))).await?;
        explained.push((id, explanation));
    }
    Ok(explained)
}

fn reason(text: Option<&String>) -> String {
    text.filter(|text| !text.is_empty()).map_or_else(String::new, |text| format!(": {}", plain(text)))
}

fn name(explanation: &Explanation, origin: Origin) -> String {
    match (origin, &explanation.plan) {
        (Origin::Plan, Some(plan)) => format!("plan {}", plain(plan.as_str())),
        (origin, _) => origin_name(origin).to_owned(),
    }
}

fn bucket_lines(explanation: &Explanation, named: bool, now: DateTime<Utc>) -> Vec<(&'static str, String)> {
    let bucket = match explanation.available {
        _ if !explanation.known => "none yet".to_owned(),
        Some(available) => format!("{available} available"),
        None => "exists".to_owned(),
    };
    let limit = match (explanation.quota, explanation.quota_from) {
        // A missing plan precedes the quota of the bucket or an override.
        _ if explanation.expected_outcome == ExpectedOutcome::UnknownPlan => {
            let article = if named { "the" } else { "its" };
            format!("none: {article} plan{} is not there", quoted_plan(explanation))
        }
        (Some(quota), Some(Origin::Override)) => {
            let ending = times::ending(explanation.override_until, now);
            format!("{quota}, from an override{ending}{}", reason(explanation.override_reason.as_ref()))
        }
        (Some(quota), from) => {
            format!("{quota}, from {}", from.map_or_else(String::new, |from| name(explanation, from)))
        }
        (None, _) => "none: no quota, plan or override is known".to_owned(),
    };
    vec![("bucket", bucket), ("limit", limit)]
}

fn mode_line(explanation: &Explanation, now: DateTime<Utc>) -> String {
    let Some(from) = explanation.mode_from else { return explanation.mode.to_string() };
    let ending = times::ending(explanation.mode_until, now);
    format!(
        "{}, from {}{ending}{}",
        explanation.mode,
        name(explanation, from),
        reason(explanation.mode_reason.as_ref())
    )
}

/// Why a request for so many tokens is not granted where one for a single token might be.
#[derive(Clone, Copy)]
enum Shortfall {
    /// The bucket never holds so many.
    Ever,
    /// So many are missing now.
    Now(i128),
}

fn shortfall(explanation: &Explanation, cost: u64) -> Option<Shortfall> {
    let by_tokens = matches!(explanation.mode, Mode::Enforce | Mode::Shadow)
        && matches!(explanation.expected_outcome, ExpectedOutcome::Granted | ExpectedOutcome::Denied);
    let quota = explanation.quota.filter(|quota| by_tokens && quota.refill() != Refill::Unlimited)?;
    if cost > quota.capacity() {
        return Some(Shortfall::Ever);
    }
    // The bucket that a first request makes is full.
    let available = explanation.available.map_or_else(|| i128::from(quota.capacity()), i128::from);
    let missing = i128::from(cost) - available;
    (cost > 1 && missing > 0 && explanation.mode == Mode::Enforce).then_some(Shortfall::Now(missing))
}

fn expected_outcome(explanation: &Explanation, shortfall: Option<Shortfall>) -> String {
    match shortfall {
        Some(Shortfall::Ever) => return "would fail: it costs more than the bucket ever holds".to_owned(),
        Some(Shortfall::Now(1)) => return format!("would be {RED}denied{RED:#}: a token is missing"),
        Some(Shortfall::Now(tokens)) => return format!("would be {RED}denied{RED:#}: {tokens} tokens are missing"),
        None => {}
    }
    match explanation.expected_outcome {
        ExpectedOutcome::Granted if explanation.mode == Mode::Off => {
            format!("would be {GREEN}granted{GREEN:#}, whatever the tokens")
        }
        ExpectedOutcome::Denied if explanation.mode == Mode::Block => {
            format!("would be {RED}denied{RED:#}, whatever the tokens")
        }
        ExpectedOutcome::Granted => format!("would be {GREEN}granted{GREEN:#}"),
        ExpectedOutcome::Denied => match explanation.retry_after {
            None => format!("would be {RED}denied{RED:#}, and no token comes back by itself"),
            Some(after) => format!("would be {RED}denied{RED:#}: a token comes in {}", times::span(after)),
        },
        ExpectedOutcome::UnknownPlan => {
            format!("would fail: there is no plan{}{}", quoted_plan(explanation), recreate_hint(explanation))
        }
        ExpectedOutcome::Conflict => "would fail if it named that plan: the bucket has another limit".to_owned(),
        _ => "would fail, unless it names its limits: there is no such bucket".to_owned(),
    }
}

fn quoted_plan(explanation: &Explanation) -> String {
    explanation.plan.as_ref().map_or_else(String::new, |plan| format!(" '{}'", plain(plan.as_str())))
}

/// The command that makes the plan again, with the limits that the bucket has from it if they are known.
fn recreate_hint(explanation: &Explanation) -> String {
    let quota = explanation.quota.filter(|_| explanation.quota_from == Some(Origin::Bucket));
    let quota = quota.map_or_else(|| "QUOTA".to_owned(), |quota| quota.to_string());
    explanation
        .plan
        .as_ref()
        .map_or_else(String::new, |plan| format!("; `{}` makes it", recreate_command(plan.as_str(), &quota)))
}

/// The effective limit and mode of a key, and the result of a request.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainJson {
    /// The key that requests name.
    key: String,
    /// Whether the bucket exists.
    known: bool,
    /// Whole tokens now. Negative: promised to requests that wait.
    available: Option<i64>,
    /// The effective quota as text. Null: none is known.
    quota: Option<String>,
    /// The source of the quota: `override`, `plan` or `bucket`.
    quota_from: Option<&'static str>,
    /// The plan that the bucket follows, or the plan of `--plan`.
    plan: Option<String>,
    /// The effective mode.
    #[schemars(with = "ModeArg")]
    mode: &'static str,
    /// The source of the mode: `override`, `plan` or `all`. Null: no mode is set.
    mode_from: Option<&'static str>,
    /// Why the mode is set.
    mode_reason: Option<String>,
    /// When the mode ends. Null: never.
    #[schemars(extend("format" = "date-time"))]
    mode_until: Option<String>,
    /// Why the key's override is set.
    override_reason: Option<String>,
    /// When the key's override ends. Null: never.
    #[schemars(extend("format" = "date-time"))]
    override_until: Option<String>,
    /// The result of a request of cost 1, or of `--cost`.
    expected_outcome: OutcomeJson,
    /// The time until the next token. Null: never, or `--cost` is above 1 and more than is available.
    retry_after_ms: Option<u64>,
    /// The sliding window of the key.
    window: Option<SlidingJson>,
    /// The further limits of the plan. The key of each is the key, U+0001 and the name of the limit.
    further_limits: Vec<Self>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum OutcomeJson {
    Granted,
    Denied,
    Never,
    #[serde(rename = "unknown bucket")]
    UnknownBucket,
    #[serde(rename = "unknown plan")]
    UnknownPlan,
    Conflict,
}

impl ExplainJson {
    fn new(key: &Key, explanation: &Explanation, shortfall: Option<Shortfall>, window: Option<SlidingJson>) -> Self {
        let non_empty = |reason: &Option<String>| reason.clone().filter(|reason| !reason.is_empty());
        Self {
            key: key.to_string(),
            known: explanation.known,
            available: explanation.available,
            quota: explanation.quota.map(|quota| quota.to_string()),
            quota_from: explanation.quota_from.map(origin_name),
            plan: explanation.plan.as_ref().map(ToString::to_string),
            mode: explanation.mode.as_str(),
            mode_from: explanation.mode_from.map(origin_name),
            mode_reason: non_empty(&explanation.mode_reason),
            mode_until: times::timestamp(explanation.mode_until),
            override_reason: non_empty(&explanation.override_reason),
            override_until: times::timestamp(explanation.override_until),
            expected_outcome: match (shortfall, explanation.expected_outcome) {
                (Some(Shortfall::Ever), _) => OutcomeJson::Never,
                (Some(Shortfall::Now(_)), _) | (_, ExpectedOutcome::Denied) => OutcomeJson::Denied,
                (_, ExpectedOutcome::Granted) => OutcomeJson::Granted,
                (_, ExpectedOutcome::UnknownPlan) => OutcomeJson::UnknownPlan,
                (_, ExpectedOutcome::Conflict) => OutcomeJson::Conflict,
                _ => OutcomeJson::UnknownBucket,
            },
            retry_after_ms: explanation.retry_after.filter(|_| shortfall.is_none()).and_then(times::milliseconds),
            window,
            further_limits: Vec::new(),
        }
    }
}

fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Override => "override",
        Origin::Plan => "plan",
        Origin::Bucket => "bucket",
        _ => "all",
    }
}

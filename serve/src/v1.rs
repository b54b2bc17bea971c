//! `/v1`: limits for every language, in JSON.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use http::header::RETRY_AFTER;
use http::{Request, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tollgate::admin::{AdminError, BucketLevel, ExpectedOutcome, Explanation, Origin};
use tollgate::chrono::SecondsFormat;
use tollgate::model::LimitName;
use tollgate::{Adjusted, Adjustment, Decision, Error, Key, Limit, Limiter, Mode, Receipt, Rule, Take, Throttle};

use tokio::time::timeout;
use uuid::Uuid;

use crate::config::FailureMode;
use crate::problem::{Problem, read_json};
use crate::server::State as ServerState;

pub(crate) fn routes() -> Router<Arc<ServerState>> {
    Router::new()
        .route("/take", routing::post(take))
        .route("/charge", routing::post(charge))
        .route("/settle", routing::post(settle))
        .route("/refund", routing::post(refund))
        .route("/cancel", routing::post(cancel))
        .route("/throttle", routing::post(throttle))
        .route("/peek", routing::get(peek))
        .route("/explain", routing::get(explain))
}

/// A limit of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a limit, as an object")]
struct LimitBody {
    key: String,
    limit: Option<String>,
    plan: Option<String>,
    cost: Option<u64>,
    min_remaining: Option<u64>,
    mode: Option<Mode>,
}

/// The tokens of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TakeBody {
    limits: Vec<LimitBody>,
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    costs: BTreeMap<String, u64>,
    #[serde(default)]
    min_remaining: u64,
    #[serde(default)]
    max_wait_ms: u64,
    id: Option<Uuid>,
    remember_s: Option<u64>,
}

const fn one() -> u64 {
    1
}

impl LimitBody {
    fn limit(&self) -> Result<Limit, Problem> {
        let limit = Limit::new(key(&self.key)?, rule(self.limit.as_deref(), self.plan.as_deref())?);
        let limit = self.cost.into_iter().fold(limit, Limit::cost);
        let limit = self.min_remaining.into_iter().fold(limit, Limit::min_remaining);
        Ok(self.mode.into_iter().fold(limit, Limit::mode))
    }
}

impl TakeBody {
    fn take(&self) -> Result<Take, Problem> {
        if self.limits.is_empty() || self.limits.len() > MAX_LIMITS {
            return Err(Problem::invalid(format!("{} limits: give 1 to {MAX_LIMITS}", self.limits.len())));
        }
        if self.costs.len() > MAX_LIMITS {
            return Err(Problem::invalid(format!("{} costs: give at most {MAX_LIMITS}", self.costs.len())));
        }
        if self.max_wait_ms > MAX_WAIT_MS {
            return Err(Problem::invalid(format!("max_wait_ms is {}: give at most {MAX_WAIT_MS}", self.max_wait_ms)));
        }
        let limits = self.limits.iter().map(LimitBody::limit).collect::<Result<Vec<_>, _>>()?;
        let mut limits = limits.into_iter();
        let first = limits.next().map(Take::from).ok_or_else(|| Problem::invalid("no limit: give one"))?;
        // A limit's own values precede those of the request.
        let first = match self.limits[0].cost {
            None => first.cost(self.cost),
            Some(_) => first,
        };
        let take = limits.fold(first, Take::and_limit);
        let take = if self.limits.len() > 1 { take.cost(self.cost) } else { take };
        let take = if self.min_remaining > 0 { take.min_remaining(self.min_remaining) } else { take };
        let mut take = take.max_wait(Duration::from_millis(self.max_wait_ms));
        for (name, cost) in &self.costs {
            take = take.cost_of(limit_name(name)?, *cost);
        }
        let remember = Duration::from_secs(self.remember_s.unwrap_or(DAY));
        Ok(self.id.into_iter().fold(take, |take, id| take.id(id, remember)))
    }
}

fn key(text: &str) -> Result<Key, Problem> {
    Key::try_from(text).map_err(|error| Problem::invalid(format!("key: {error}")))
}

fn limit_name(text: &str) -> Result<LimitName, Problem> {
    LimitName::try_from(text).map_err(|error| Problem::invalid(error.to_string()))
}

/// The limit or the plan of a request, or else the bucket's own.
fn rule(limit: Option<&str>, plan: Option<&str>) -> Result<Rule, Problem> {
    match (limit, plan) {
        (Some(_), Some(_)) => Err(Problem::invalid("a limit and a plan: give one of them")),
        (Some(text), None) => Rule::try_from(text).map_err(|error| Problem::invalid(format!("limit: {error}"))),
        (None, Some(plan)) => {
            Key::try_from(plan).map(Rule::Plan).map_err(|error| Problem::invalid(format!("plan: {error}")))
        }
        (None, None) => Ok(Rule::Provisioned),
    }
}

/// The answer to a request, and that of each limit.
#[derive(Serialize)]
struct TakeAnswer {
    granted: bool,
    #[serde(flatten)]
    limit: LimitAnswer,
    waited_ms: u64,
    source: &'static str,
    each: Vec<LimitAnswer>,
}

#[derive(Serialize)]
struct LimitAnswer {
    key: String,
    limit: Option<String>,
    capacity: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    mode: &'static str,
}

impl LimitAnswer {
    fn of(decision: &Decision, take: &Take) -> Self {
        let key = take.keys().nth(decision.limit_index()).unwrap_or_else(|| take.key());
        Self {
            key: key.without_limit().to_string(),
            limit: decision.limit_name().map(str::to_owned),
            capacity: decision.capacity(),
            remaining: decision.remaining(),
            retry_after_ms: decision.retry_after().map(milliseconds),
            reset_after_ms: decision.reset_after().map(milliseconds),
            mode: decision.mode().as_str(),
        }
    }
}

/// Rounds up, because an earlier request is denied again.
fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

async fn take(State(state): State<Arc<ServerState>>, request: Request<Body>) -> Result<Response, Problem> {
    let body: TakeBody = read_json(request).await?;
    let take = body.take()?;
    // A client that leaves while it waits gets its tokens back.
    let decision = state.limiter().wait_request(&take).await?.decision().clone();
    let answer = TakeAnswer {
        granted: decision.is_granted(),
        limit: LimitAnswer::of(&decision, &take),
        waited_ms: milliseconds(decision.wait()),
        source: decision.source().as_str(),
        each: decision.each().iter().map(|one| LimitAnswer::of(one, &take)).collect(),
    };
    if decision.is_granted() {
        return Ok(Json(answer).into_response());
    }
    let mut response = (StatusCode::TOO_MANY_REQUESTS, Json(answer)).into_response();
    if let Some(retry_after) = decision.retry_after() {
        let seconds = milliseconds(retry_after).div_ceil(1000).max(1);
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    Ok(response)
}

#[derive(Serialize)]
struct ChargeAnswer {
    /// False: a charge with this id was made before, or the server's mode is off or block.
    charged: bool,
}

async fn charge(State(state): State<Arc<ServerState>>, request: Request<Body>) -> Result<Json<ChargeAnswer>, Problem> {
    let body: TakeBody = read_json(request).await?;
    let leaves_tokens = body.min_remaining > 0 || body.limits.iter().any(|limit| limit.min_remaining.is_some());
    if body.max_wait_ms > 0 || leaves_tokens || body.remember_s.is_some() {
        let detail = "a charge neither waits nor leaves tokens: leave out max_wait_ms, min_remaining and remember_s";
        return Err(Problem::invalid(detail));
    }
    let charged = state.limiter().charge_request(&body.take()?).await?;
    Ok(Json(ChargeAnswer { charged }))
}

/// A request with an id, which granted tokens of one bucket.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdjustBody {
    id: Uuid,
    key: String,
    /// The name of the limit, if the key has several.
    limit_name: Option<String>,
    /// The tokens that the request took.
    taken: u64,
    /// Of a settlement: the tokens that were used.
    used: Option<u64>,
    /// Of a refund: the tokens to give back.
    unused: Option<u64>,
}

#[derive(Serialize)]
struct AdjustAnswer {
    /// `done`; `late` if the id is forgotten or its time has passed; `repeated` if it was adjusted before.
    outcome: &'static str,
    /// The tokens that were given back. Negative: charged.
    given_back: i64,
}

impl AdjustBody {
    fn receipt(&self) -> Result<Receipt, Problem> {
        let key = key(&self.key)?;
        let key = match &self.limit_name {
            None => key,
            Some(name) => key.limit(&limit_name(name)?),
        };
        if self.taken == 0 {
            return Err(Problem::invalid("taken is 0: give the tokens that the request took, at least 1"));
        }
        Ok(Receipt::new(self.id, key, self.taken))
    }

    /// Refuses numbers that the call does not use.
    fn check(&self, uses_used: bool, uses_unused: bool) -> Result<(), Problem> {
        match (self.used, self.unused) {
            (Some(_), _) if !uses_used => Err(Problem::invalid("`used` belongs to a settlement: leave it out")),
            (_, Some(_)) if !uses_unused => Err(Problem::invalid("`unused` belongs to a refund: leave it out")),
            (None, _) if uses_used => Err(Problem::invalid("a settlement needs `used`: the tokens that were used")),
            (_, None) if uses_unused => Err(Problem::invalid("a refund needs `unused`: the tokens to give back")),
            _ => Ok(()),
        }
    }
}

async fn settle(state: State<Arc<ServerState>>, request: Request<Body>) -> Result<Json<AdjustAnswer>, Problem> {
    let body: AdjustBody = read_json(request).await?;
    body.check(true, false)?;
    adjust(&state, body.receipt()?.settle(body.used.unwrap_or_default())).await
}

async fn refund(state: State<Arc<ServerState>>, request: Request<Body>) -> Result<Json<AdjustAnswer>, Problem> {
    let body: AdjustBody = read_json(request).await?;
    body.check(false, true)?;
    adjust(&state, body.receipt()?.refund(body.unused.unwrap_or_default())).await
}

async fn cancel(state: State<Arc<ServerState>>, request: Request<Body>) -> Result<Json<AdjustAnswer>, Problem> {
    let body: AdjustBody = read_json(request).await?;
    body.check(false, false)?;
    adjust(&state, body.receipt()?.cancel()).await
}

async fn adjust(state: &ServerState, adjustment: Adjustment) -> Result<Json<AdjustAnswer>, Problem> {
    let (outcome, given_back) =
        match state.limiter().adjust(vec![adjustment]).await?.pop().transpose().map_err(Error::from)? {
            Some(Adjusted::Done(tokens)) => ("done", tokens),
            Some(Adjusted::Repeated) => ("repeated", 0),
            _ => ("late", 0),
        };
    Ok(Json(AdjustAnswer { outcome, given_back }))
}

/// The level that an upstream states.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ThrottleBody {
    key: String,
    limit: Option<String>,
    plan: Option<String>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
}

#[derive(Serialize)]
struct ThrottleAnswer {
    /// Whether the bucket held more.
    lowered: bool,
}

async fn throttle(
    State(state): State<Arc<ServerState>>,
    request: Request<Body>,
) -> Result<Json<ThrottleAnswer>, Problem> {
    let body: ThrottleBody = read_json(request).await?;
    let throttle = match (body.remaining, body.retry_after_ms.map(Duration::from_millis)) {
        (Some(tokens), Some(span)) => Throttle::remaining(tokens).and(Throttle::retry_after(span)),
        (Some(tokens), None) => Throttle::remaining(tokens),
        (None, Some(span)) => Throttle::retry_after(span),
        (None, None) => return Err(Problem::invalid("no level: give remaining, retry_after_ms, or both")),
    };
    let limit = Limit::new(key(&body.key)?, rule(body.limit.as_deref(), body.plan.as_deref())?);
    let lowered = state.limiter().throttle_limit(&limit, throttle).await?;
    Ok(Json(ThrottleAnswer { lowered }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadQuery {
    key: String,
    limit: Option<String>,
    plan: Option<String>,
}

/// A bucket's level, as the next request would find it.
#[derive(Serialize)]
struct LevelAnswer {
    key: String,
    limit: Option<String>,
    quota: String,
    capacity: u64,
    available: i64,
    next_refill_at: Option<String>,
    full_at: Option<String>,
}

#[derive(Serialize)]
struct PeekAnswer {
    each: Vec<LevelAnswer>,
}

impl From<&BucketLevel> for LevelAnswer {
    fn from(level: &BucketLevel) -> Self {
        let time =
            |at: tollgate::chrono::DateTime<tollgate::chrono::Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
        Self {
            key: level.key().without_limit().to_string(),
            limit: level.key().limit_name().map(str::to_owned),
            quota: level.quota().to_string(),
            capacity: level.quota().capacity(),
            available: level.available(),
            next_refill_at: level.next_refill_at().map(time),
            full_at: level.full_at().map(time),
        }
    }
}

/// Refuses a query that is not valid, or no text: its bytes would be those of another key.
fn checked_query(query: Result<Query<ReadQuery>, QueryRejection>, uri: &Uri) -> Result<ReadQuery, Problem> {
    let Query(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
    let is_replaced =
        |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(char::REPLACEMENT_CHARACTER));
    let has_sent_it = uri.query().is_some_and(|query| query.to_ascii_uppercase().contains("%EF%BF%BD"));
    if !has_sent_it && (query.key.contains(char::REPLACEMENT_CHARACTER) || is_replaced(&query.plan)) {
        return Err(Problem::invalid("the query is not UTF-8: encode the key as UTF-8"));
    }
    Ok(query)
}

async fn peek(
    State(state): State<Arc<ServerState>>,
    uri: Uri,
    query: Result<Query<ReadQuery>, QueryRejection>,
) -> Result<Json<PeekAnswer>, Problem> {
    let query = checked_query(query, &uri)?;
    let limit = Limit::new(key(&query.key)?, rule(query.limit.as_deref(), query.plan.as_deref())?);
    if let Rule::Window(_) = limit.rule() {
        return Err(AdminError::Window(limit.key().clone()).into());
    }
    let levels = state.limiter().peek_each(&limit).await?;
    Ok(Json(PeekAnswer { each: levels.iter().map(LevelAnswer::from).collect() }))
}

/// The limit and the mode of a key, where they come from, and what would happen to a request for one token.
#[derive(Serialize)]
struct ExplainAnswer {
    key: String,
    known: bool,
    quota: Option<String>,
    quota_from: Option<&'static str>,
    plan: Option<String>,
    mode: &'static str,
    mode_from: Option<&'static str>,
    mode_reason: Option<String>,
    override_reason: Option<String>,
    available: Option<i64>,
    expected: &'static str,
    retry_after_ms: Option<u64>,
}

async fn explain(
    State(state): State<Arc<ServerState>>,
    uri: Uri,
    query: Result<Query<ReadQuery>, QueryRejection>,
) -> Result<Json<ExplainAnswer>, Problem> {
    let query = checked_query(query, &uri)?;
    if query.limit.is_some() {
        return Err(Problem::invalid("explain takes a key and a plan: leave out limit"));
    }
    let plan = query.plan.as_deref().map(Key::try_from).transpose();
    let plan = plan.map_err(|error| Problem::invalid(format!("plan: {error}")))?;
    let key = key(&query.key)?;
    let reading = state.operator.explain(&key, plan.as_ref());
    let deadline = state.limiter().deadline().unwrap_or(MAX_READ);
    let explained = timeout(deadline, reading).await.map_err(|_| Error::DeadlineExceeded(deadline))??;
    Ok(Json(ExplainAnswer::new(&key, explained)))
}

impl ExplainAnswer {
    fn new(key: &Key, explained: Explanation) -> Self {
        Self {
            key: key.to_string(),
            known: explained.known,
            quota: explained.quota.map(|quota| quota.to_string()),
            quota_from: explained.quota_from.map(origin),
            plan: explained.plan.map(|plan| plan.to_string()),
            mode: explained.mode.as_str(),
            mode_from: explained.mode_from.map(origin),
            mode_reason: explained.mode_reason,
            override_reason: explained.override_reason,
            available: explained.available,
            expected: match explained.expected_outcome {
                ExpectedOutcome::Granted => "granted",
                ExpectedOutcome::Denied => "denied",
                ExpectedOutcome::UnknownBucket => "unknown_bucket",
                ExpectedOutcome::UnknownPlan => "unknown_plan",
                ExpectedOutcome::Conflict => "conflict",
                _ => "unknown",
            },
            retry_after_ms: explained.retry_after.map(milliseconds),
        }
    }
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Override => "override",
        Origin::Plan => "plan",
        Origin::Bucket => "bucket",
        Origin::All => "all",
        _ => "unknown",
    }
}

impl ServerState {
    /// The limiter of requests without a setting of their own for failures.
    fn limiter(&self) -> &Limiter {
        self.gate.limiters.get(FailureMode::Error)
    }
}

/// Longer than the store's own deadline.
const MAX_READ: Duration = Duration::from_secs(10);
const MAX_LIMITS: usize = 16;
const MAX_WAIT_MS: u64 = 30_000;
const DAY: u64 = 86_400;

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{Admin, Explanation, Key, Mode, Origin, Prospect};

use crate::output::{GREEN, RED, plain, say, say_json};
use crate::terms::key;
use crate::times;

/// What rules a key, where that comes from and until when, and what a request would come to
///
/// Nothing is taken.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(value_parser = key)]
    key: Key,
    /// As for a request that names this plan
    #[arg(long, value_name = "NAME", value_parser = key)]
    plan: Option<Key>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let why = store.explain(&self.key, self.plan.as_ref()).await?;
        if self.json {
            say_json(&as_json(&self.key, &why))?;
        } else {
            say(words(&self.key, &why))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn words(key: &Key, why: &Explanation) -> String {
    let reason = |text: &Option<String>| {
        text.as_ref().filter(|text| !text.is_empty()).map_or_else(String::new, |text| format!(": {}", plain(text)))
    };
    let name = |origin| match (origin, &why.plan) {
        (Origin::Plan, Some(plan)) => format!("plan {}", plain(plan.as_str())),
        (origin, _) => word(origin).to_owned(),
    };
    let mut lines = vec![(
        "bucket",
        match why.available {
            _ if !why.known => "none yet".to_owned(),
            Some(available) => format!("{available} available"),
            None => "exists".to_owned(),
        },
    )];
    lines.push(match (why.quota, why.quota_from) {
        (Some(quota), Some(Origin::Override)) => (
            "terms",
            format!("{quota}, from an override{}{}", times::ending(why.override_until), reason(&why.override_reason)),
        ),
        (Some(quota), from) => ("terms", format!("{quota}, from {}", from.map_or_else(String::new, name))),
        (None, _) => ("terms", "none: nothing says".to_owned()),
    });
    lines.push(match why.mode_from {
        None => ("mode", why.mode.to_string()),
        Some(from) => (
            "mode",
            format!("{}, from {}{}{}", why.mode, name(from), times::ending(why.mode_until), reason(&why.mode_reason)),
        ),
    });
    lines.push(("a request", prospect(why)));
    let lines = lines.into_iter().map(|(name, text)| format!("  {name:<10} {text}"));
    format!("{}\n{}", plain(key.as_str()), lines.collect::<Vec<_>>().join("\n"))
}

fn prospect(why: &Explanation) -> String {
    match why.prospect {
        Prospect::Granted if why.mode == Mode::Off => format!("would be {GREEN}granted{GREEN:#}, whatever the tokens"),
        Prospect::Denied if why.mode == Mode::Block => format!("would be {RED}denied{RED:#}, whatever the tokens"),
        Prospect::Granted => format!("would be {GREEN}granted{GREEN:#}"),
        Prospect::Denied => match why.retry_after {
            Duration::MAX => format!("would be {RED}denied{RED:#}, and no token comes back by itself"),
            after => format!("would be {RED}denied{RED:#}: a token comes in {}", times::span(after)),
        },
        Prospect::UnknownPlan => "would fail: there is no such plan".to_owned(),
        Prospect::Conflict => "would fail if it named that plan: the bucket has terms of its own".to_owned(),
        _ => "would fail, unless it names its terms: there is no such bucket".to_owned(),
    }
}

fn as_json(key: &Key, why: &Explanation) -> Value {
    json!({
        "key": key.as_str(),
        "known": why.known,
        "available": why.available,
        "quota": why.quota.map(|quota| quota.to_string()),
        "quota_from": why.quota_from.map(word),
        "plan": why.plan.as_ref().map(Key::as_str),
        "mode": why.mode.as_str(),
        "mode_from": why.mode_from.map(word),
        "mode_reason": why.mode_reason,
        "mode_until": times::timestamp(why.mode_until),
        "override_reason": why.override_reason,
        "override_until": times::timestamp(why.override_until),
        "prospect": match why.prospect {
            Prospect::Granted => "granted",
            Prospect::Denied => "denied",
            Prospect::UnknownPlan => "unknown plan",
            Prospect::Conflict => "conflict",
            _ => "unknown bucket",
        },
        "retry_after_ms": times::milliseconds(why.retry_after),
    })
}

fn word(origin: Origin) -> &'static str {
    match origin {
        Origin::Override => "override",
        Origin::Plan => "plan",
        Origin::Bucket => "bucket",
        _ => "all",
    }
}

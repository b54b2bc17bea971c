//! Checks a configuration file, and adds its descriptors and checks.

use std::sync::Arc;
use std::time::Duration;

use serde_saphyr::{Location, Spanned};
use tollgate::{Mode, Rule};

use super::descriptors::{Children, Node};
use super::yaml::{Descriptor, File, OnError, RateLimit, Refill, Settings};
use super::{Check, Config, ConfigError, DescriptorRule, FailureMode, Inherited, LimitSource, Unit};

/// Adds the text of a file.
pub(super) fn add(config: &mut Config, yaml: &str) -> Result<(), ConfigError> {
    let file: File = serde_saphyr::from_str(yaml).map_err(|error| {
        let error = error.without_snippet();
        let message = error.to_string();
        let message = message.lines().next().unwrap_or_default();
        // The place comes first in each message.
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        match error.location() {
            Some(location) => ConfigError::at(location, message),
            None => ConfigError::new(message),
        }
    })?;
    let defaults = Inherited::default().within(&file.tollgate)?;
    if let Some(limit) = limit_place(&file.tollgate) {
        return Err(ConfigError::at(limit, "a whole file has no limit: set it for a descriptor"));
    }
    match &file.domain {
        Some(domain) if domain.value.is_empty() => {
            return Err(ConfigError::at(domain.referenced, "the domain is empty: name it as the proxy does"));
        }
        Some(domain) => {
            let domain = config.domains.entry(domain.value.clone()).or_default();
            domain.inherited = defaults;
            for descriptor in file.descriptors.iter().flatten() {
                add_descriptor(&mut domain.children, descriptor, "", &defaults)?;
            }
        }
        None => {
            if let Some(descriptor) = file.descriptors.iter().flatten().next() {
                let message = "the file has descriptors and no domain: add `domain: NAME`";
                return Err(ConfigError::at(descriptor.key.referenced, message));
            }
        }
    }
    for (name, check) in file.checks {
        let place = check.referenced;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            let message = format!("'{name}' is not a name of a check: use letters, digits, '-', '_' and '.'");
            return Err(ConfigError::at(place, message));
        }
        let built = Arc::new(Check::build(&name, &check.value, place)?);
        if config.checks.insert(name.clone(), built).is_some() {
            return Err(ConfigError::at(place, format!("another file has a check '{name}': rename one")));
        }
    }
    Ok(())
}

impl Inherited {
    fn within(self, settings: &Settings) -> Result<Self, ConfigError> {
        Ok(Self {
            is_continuous: settings.refill.map_or(self.is_continuous, |refill| matches!(refill, Refill::Continuous)),
            after_use: settings.after_use.unwrap_or(self.after_use),
            refunds: settings.refunds.unwrap_or(self.refunds),
            on_failure: settings.on_error.as_ref().map_or(Ok(self.on_failure), on_failure)?,
            deadline: settings.deadline.as_ref().map(deadline).transpose()?.or(self.deadline),
        })
    }
}

fn limit_place(settings: &Settings) -> Option<Location> {
    let place = |text: &Spanned<String>| text.referenced;
    [&settings.limit, &settings.plan, &settings.plan_of].into_iter().flatten().map(place).next()
}

fn add_descriptor(
    siblings: &mut Children,
    descriptor: &Descriptor,
    parent: &str,
    inherited: &Inherited,
) -> Result<(), ConfigError> {
    let Descriptor { key, value, .. } = descriptor;
    let place = key.referenced;
    if key.value.is_empty() {
        return Err(ConfigError::at(place, "the key of a descriptor is empty: name it as the proxy does"));
    }
    let value = value.as_ref().map(|value| value.value.as_str()).filter(|value| !value.is_empty());
    let own = value.map_or_else(|| key.value.clone(), |value| format!("{}_{value}", key.value));
    let label = if parent.is_empty() { own.clone() } else { format!("{parent}.{own}") };
    let inherited = inherited.within(&descriptor.tollgate)?;
    if descriptor.share_threshold && !value.is_some_and(|value| value.contains('*')) {
        return Err(ConfigError::at(place, "share_threshold needs a value with '*': add one, or leave it out"));
    }
    let rule = match &descriptor.rate_limit {
        Some(limit) => Some(rule(descriptor, limit, &label, &inherited)?),
        None => match limit_place(&descriptor.tollgate) {
            Some(place) => return Err(ConfigError::at(place, "a limit belongs below rate_limit: move it there")),
            None => None,
        },
    };
    let values = siblings.entry(key.value.clone()).or_default();
    let node = match value {
        None => values.any.get_or_insert_default(),
        Some(pattern) if pattern.contains('*') => {
            let known = values.wildcards.iter().position(|(other, _)| other == pattern);
            let at = known.unwrap_or_else(|| {
                values.wildcards.push((pattern.to_owned(), Node::default()));
                values.wildcards.len() - 1
            });
            &mut values.wildcards[at].1
        }
        Some(value) => values.exact.entry(value.to_owned()).or_default(),
    };
    node.is_shared |= descriptor.share_threshold;
    if let Some(rule) = rule {
        if node.rule.is_some() {
            let message = format!(
                "descriptor '{label}' has a limit already: remove one, or name several in `tollgate: {{ limit }}`"
            );
            return Err(ConfigError::at(place, message));
        }
        node.rule = Some(Arc::new(rule));
    }
    for child in descriptor.descriptors.iter().flatten() {
        add_descriptor(&mut node.children, child, &label, &inherited)?;
    }
    Ok(())
}

fn rule(
    descriptor: &Descriptor,
    limit: &Spanned<RateLimit>,
    label: &str,
    inherited: &Inherited,
) -> Result<DescriptorRule, ConfigError> {
    let (place, limit) = (limit.referenced, &limit.value);
    let inherited = inherited.within(&limit.tollgate)?;
    let stated = match (&limit.unit, limit.requests_per_unit) {
        (Some(unit), Some(requests)) => {
            let units = "write second, minute, hour, day, week, month or year";
            let unknown = || ConfigError::at(unit.referenced, format!("unknown unit '{}': {units}", unit.value));
            Some((requests, Unit::parse(&unit.value).ok_or_else(unknown)?))
        }
        (None, None) => None,
        // As envoyproxy/ratelimit does.
        (None, Some(_)) if limit.unlimited => None,
        (Some(_), None) => return Err(ConfigError::at(place, "requests_per_unit is missing: add it beside unit")),
        (None, Some(_)) => return Err(ConfigError::at(place, "unit is missing: add it beside requests_per_unit")),
    };
    let own = &limit.tollgate;
    let sources = [stated.is_some(), limit.unlimited, own.limit.is_some(), own.plan.is_some(), own.plan_of.is_some()];
    if sources.into_iter().filter(|is_stated| *is_stated).count() != 1 {
        let message =
            "give one limit: unit and requests_per_unit, unlimited, or `limit`, `plan` or `plan_of` in `tollgate`";
        return Err(ConfigError::at(place, message));
    }
    let source = match (stated, &own.limit, &own.plan, &own.plan_of) {
        (Some((requests, unit)), ..) => LimitSource::of_unit(requests, unit, inherited.is_continuous),
        (_, Some(text), ..) => LimitSource::Rule(text_rule(text)?),
        (_, _, Some(plan), _) => {
            LimitSource::plan(&plan.value).map_err(|error| ConfigError::at(plan.referenced, error.to_string()))?
        }
        (.., Some(entry)) => LimitSource::PlanOf(entry.value.clone()),
        _ => LimitSource::Unlimited,
    };
    let own_name = limit.name.as_deref();
    if limit
        .replaces
        .iter()
        .flatten()
        .any(|replaced| replaced.name.is_empty() || Some(replaced.name.as_str()) == own_name)
    {
        let message = "replaces names no limit, or the limit itself: name another one";
        return Err(ConfigError::at(place, message));
    }
    if inherited.refunds && matches!(source, LimitSource::Rule(Rule::Window(_))) {
        return Err(ConfigError::at(
            place,
            "a sliding window takes nothing back: give a quota, or set `refunds: false` for this limit",
        ));
    }
    if inherited.after_use && matches!(source, LimitSource::Rule(Rule::Window(_)) | LimitSource::Nothing) {
        return Err(ConfigError::at(place, "a sliding window cannot be charged after use: give a quota"));
    }
    Ok(DescriptorRule {
        label: label.to_owned(),
        source,
        stated,
        mode: if descriptor.shadow_mode { Mode::Shadow } else { Mode::Enforce },
        name: limit.name.clone(),
        replaces: limit.replaces.iter().flatten().map(|replaced| replaced.name.clone()).collect(),
        is_quota: descriptor.quota_mode,
        detailed_metric: descriptor.detailed_metric || descriptor.value_to_metric,
        metadata: descriptor.metadata.clone(),
        after_use: inherited.after_use,
        refunds: inherited.refunds,
        on_failure: inherited.on_failure,
        deadline: inherited.deadline,
    })
}

/// Reads a quota, a sliding window, or several limits.
pub(super) fn text_rule(text: &Spanned<String>) -> Result<Rule, ConfigError> {
    let rule =
        Rule::try_from(text.value.as_str()).map_err(|error| ConfigError::at(text.referenced, error.to_string()))?;
    match &rule {
        Rule::Limits(limits) if limits.iter().any(|limit| limit.get_cost().is_some()) => {
            let message = "proxies state no named costs: leave out `cost`, or call /v1/take for this limit";
            Err(ConfigError::at(text.referenced, message))
        }
        _ => Ok(rule),
    }
}

pub(super) fn on_failure(on_error: &OnError) -> Result<FailureMode, ConfigError> {
    Ok(match on_error {
        OnError::Error => FailureMode::Error,
        OnError::Open => FailureMode::Open,
        OnError::Closed => FailureMode::Closed,
        OnError::Local(text) => match text_rule(text)? {
            Rule::Quota(quota) => FailureMode::Local(quota),
            _ => return Err(ConfigError::at(text.referenced, "a local limit is one quota: write it like 10/s")),
        },
    })
}

pub(super) fn deadline(text: &Spanned<String>) -> Result<Duration, ConfigError> {
    let span = humantime::parse_duration(&text.value).ok().filter(|span| (MIN_DEADLINE..=MAX_DEADLINE).contains(span));
    let wrong = || ConfigError::at(text.referenced, format!("'{}' is not a deadline: give 1ms to 30s", text.value));
    span.ok_or_else(wrong)
}

const MIN_DEADLINE: Duration = Duration::from_millis(1);
const MAX_DEADLINE: Duration = Duration::from_secs(30);

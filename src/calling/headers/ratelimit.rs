//! The `RateLimit` field, a structured one.

use std::time::Duration;

use http::HeaderMap;
use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

use super::{LONGEST, left};
use crate::HoldBack;

/// What it says, the strictest of its policies.
pub(super) fn read(headers: &HeaderMap) -> Option<HoldBack> {
    let lines: Vec<&[u8]> = headers.get_all("ratelimit").iter().map(http::HeaderValue::as_bytes).collect();
    if lines.iter().map(|line| line.len()).sum::<usize>() > LONGEST {
        return None;
    }
    let field = lines.join(&b", "[..]);
    let policies = || {
        let list = Parser::new(&field).parse::<List>().ok()?;
        list.iter().filter_map(policy).reduce(HoldBack::and)
    };
    policies().or_else(|| {
        let dictionary = Parser::new(&field).parse::<Dictionary>().ok()?;
        let figure = |name| match dictionary.get(name)? {
            ListEntry::Item(item) => figure(&item.bare_item),
            ListEntry::InnerList(_) => None,
        };
        Some(left(figure("remaining")?, || figure("reset").map(Duration::from_secs)))
    })
}

/// `"name";r=50;t=30`
fn policy(entry: &ListEntry) -> Option<HoldBack> {
    let ListEntry::Item(item) = entry else { return None };
    let parameter = |parameters: &Parameters, name| figure(parameters.get(name)?);
    let remaining = parameter(&item.params, "r")?;
    Some(left(remaining, || parameter(&item.params, "t").map(Duration::from_secs)))
}

fn figure(item: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(item.as_integer()?)).ok()
}

//! Parses `RateLimit`, a structured field.

use std::time::Duration;

use http::HeaderMap;
use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

use super::{MAX_FIELD_BYTES, throttle_of};
use tollgate::Throttle;

/// Returns the strictest policy of the field.
pub(super) fn read(headers: &HeaderMap) -> Option<Throttle> {
    let field = field(headers)?;
    policies(&field, |_| true).or_else(|| {
        let dictionary = Parser::new(&field).parse::<Dictionary>().ok()?;
        let integer = |name| match dictionary.get(name)? {
            ListEntry::Item(item) => integer(&item.bare_item),
            ListEntry::InnerList(_) => None,
        };
        Some(throttle_of(integer("remaining")?, || integer("reset").map(Duration::from_secs)))
    })
}

/// Returns one policy of the field.
pub(super) fn read_policy(headers: &HeaderMap, name: &str) -> Option<Throttle> {
    let is_named = |item: &BareItem| match item {
        BareItem::String(text) => text.as_str() == name,
        BareItem::Token(text) => text.as_str() == name,
        _ => false,
    };
    policies(&field(headers)?, is_named)
}

fn field(headers: &HeaderMap) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = headers.get_all("ratelimit").iter().map(http::HeaderValue::as_bytes).collect();
    (lines.iter().map(|line| line.len()).sum::<usize>() <= MAX_FIELD_BYTES).then(|| lines.join(&b", "[..]))
}

fn policies(field: &[u8], is_read: impl Fn(&BareItem) -> bool) -> Option<Throttle> {
    let list = Parser::new(field).parse::<List>().ok()?;
    list.iter().filter_map(|entry| policy(entry, &is_read)).reduce(Throttle::and)
}

/// Parses `"name";r=50;t=30`.
fn policy(entry: &ListEntry, is_read: impl Fn(&BareItem) -> bool) -> Option<Throttle> {
    let ListEntry::Item(item) = entry else { return None };
    if !is_read(&item.bare_item) {
        return None;
    }
    let parameter = |parameters: &Parameters, name| integer(parameters.get(name)?);
    let remaining = parameter(&item.params, "r")?;
    Some(throttle_of(remaining, || parameter(&item.params, "t").map(Duration::from_secs)))
}

fn integer(item: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(item.as_integer()?)).ok()
}

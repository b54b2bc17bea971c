//! The tree of a domain's descriptors, and how a request finds its limit in it.

use std::collections::HashMap;
use std::sync::Arc;

use super::{DescriptorRule, Inherited};

/// A key and a value of a request's descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
}

/// The limits of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domain {
    pub(super) children: Children,
    /// The settings of the file, for limits that a request states.
    pub(crate) inherited: Inherited,
}

/// The descriptors below another one, by their keys.
pub(super) type Children = HashMap<String, Values>;

/// The descriptors of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    pub(super) exact: HashMap<String, Node>,
    /// Values with `*`, in the order of the configuration.
    pub(super) wildcards: Vec<(String, Node)>,
    /// Without a value.
    pub(super) any: Option<Box<Node>>,
}

/// A descriptor.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) rule: Option<Arc<DescriptorRule>>,
    pub(super) children: Children,
    /// Whether all values of the wildcard share one bucket.
    pub(super) is_shared: bool,
}

/// The limit that a descriptor of a request found.
#[derive(Clone, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) rule: &'a Arc<DescriptorRule>,
    /// The value of each entry in the bucket's key: the pattern, where values share a bucket.
    pub(crate) values: Vec<&'a str>,
}

impl Domain {
    /// Finds the limit of a descriptor. It must be as deep as the descriptor: each entry takes the descriptor of its value, or
    /// else the first wildcard that matches, or else the one without a value.
    pub(crate) fn find<'a>(&'a self, entries: &[Entry<'a>]) -> Option<Found<'a>> {
        let (mut children, mut rule, mut values) = (&self.children, None, Vec::with_capacity(entries.len()));
        for entry in entries {
            let (node, value) = children.get(entry.key)?.find(entry.value)?;
            (children, rule) = (&node.children, node.rule.as_ref());
            values.push(value);
        }
        Some(Found { rule: rule?, values })
    }

    /// All limits, in the order of their labels.
    pub(crate) fn rules(&self) -> Vec<&Arc<DescriptorRule>> {
        let mut rules = Vec::new();
        collect(&self.children, &mut rules);
        rules.sort_by(|one, other| one.label.cmp(&other.label));
        rules
    }
}

fn collect<'a>(children: &'a Children, rules: &mut Vec<&'a Arc<DescriptorRule>>) {
    for values in children.values() {
        let wildcards = values.wildcards.iter().map(|(_, node)| node);
        for node in values.exact.values().chain(wildcards).chain(values.any.as_deref()) {
            rules.extend(&node.rule);
            collect(&node.children, rules);
        }
    }
}

impl Values {
    fn find<'a>(&'a self, value: &'a str) -> Option<(&'a Node, &'a str)> {
        if let Some(node) = self.exact.get(value) {
            return Some((node, value));
        }
        let wildcard = self.wildcards.iter().find(|(pattern, _)| matches(pattern, value));
        match wildcard {
            Some((pattern, node)) => Some((node, if node.is_shared { pattern } else { value })),
            None => self.any.as_deref().map(|node| (node, value)),
        }
    }
}

/// Whether a value matches a pattern, in which `*` stands for any characters, also none.
fn matches(pattern: &str, value: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| value.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, value) in
            [("*", ""), ("*", "a"), ("a*", "a"), ("a*c", "abc"), ("a*b*c", "a-b-b-c"), ("*/v1/*", "/v1/")]
        {
            assert!(matches(pattern, value), "{pattern} {value}");
        }
        for (pattern, value) in [("a*", "ba"), ("a*a", "a"), ("a*b*c", "a-c-b"), ("*b", "ba"), ("a", "ab")] {
            assert!(!matches(pattern, value), "{pattern} {value}");
        }
    }
}

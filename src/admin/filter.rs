use crate::model::Key;

/// Which buckets to list; all of them if nothing is said.
///
/// ```
/// use tollgate::{admin::Filter, Key};
///
/// let filter = Filter::default().prefix(Key::try_from("user:")?).provisioned(false);
/// # Ok::<(), tollgate::model::KeyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub(crate) prefix: Option<Key>,
    pub(crate) plan: Option<Key>,
    pub(crate) provisioned: Option<bool>,
}

impl Filter {
    /// Those whose key begins with this, byte for byte.
    #[must_use]
    pub fn prefix(self, prefix: Key) -> Self {
        Self { prefix: Some(prefix), ..self }
    }

    /// Those that follow a plan.
    #[must_use]
    pub fn plan(self, plan: Key) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Those that were provisioned, or those that were not.
    #[must_use]
    pub fn provisioned(self, provisioned: bool) -> Self {
        Self { provisioned: Some(provisioned), ..self }
    }

    /// Whether it lets a bucket through.
    pub(crate) fn admits(&self, key: &Key, plan: Option<&Key>, provisioned: bool) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| key.as_str().starts_with(prefix.as_str()))
            && self.plan.as_ref().is_none_or(|wanted| plan == Some(wanted))
            && self.provisioned.is_none_or(|wanted| provisioned == wanted)
    }

    /// The first and the last text of at most 255 bytes that begin with the prefix, in byte order: an index finds what lies
    /// between, and all of it begins so.
    #[cfg(feature = "_sql")]
    pub(crate) fn range(&self) -> (String, String) {
        let first = self.prefix.as_ref().map_or_else(String::new, Key::to_string);
        let last = first.clone() + &"\u{10ffff}".repeat(64);
        (first, last)
    }
}

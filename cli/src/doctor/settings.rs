//! A server's settings, by name.

use std::collections::HashMap;

/// As the server reports them.
pub(super) struct Settings(HashMap<String, String>);

impl FromIterator<(String, String)> for Settings {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(settings: I) -> Self {
        Self(settings.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect())
    }
}

impl Settings {
    /// A value; empty if this server has no such setting.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// The first of the settings that this server has: names change with versions.
    pub(super) fn any(&self, names: [&str; 2]) -> &str {
        names.into_iter().map(|name| self.get(name)).find(|value| !value.is_empty()).unwrap_or_default()
    }

    /// Whether it is `on`, `ON`, `1` or the like.
    pub(super) fn is_on(&self, name: &str) -> bool {
        ["on", "1", "true"].contains(&self.get(name).to_lowercase().as_str())
    }
}

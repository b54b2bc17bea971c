//! The configuration: the domains and the checks of its files.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod build;
mod check;
mod descriptors;
mod files;
mod rule;
mod yaml;

pub(crate) use check::{Check, CheckLimit};
pub(crate) use descriptors::{Domain, Entry};
pub(crate) use files::Sources;
pub(crate) use rule::{DescriptorRule, FailureMode, Inherited, LimitSource, Unit};

/// The domains and checks of one or more files.
///
/// The files are those of envoyproxy/ratelimit, with an optional block `tollgate` and optional `checks`. Files can name one
/// domain together. A mistake is an error with its line and column.
///
/// ```
/// use tollgate_serve::Config;
///
/// let yaml = "
/// domain: edge
/// descriptors:
///   - key: remote_address
///     rate_limit: { unit: minute, requests_per_unit: 100 }
/// ";
/// assert_eq!(Config::parse(yaml)?.to_string(), "edge remote_address: 100 per calendar 1m\n");
/// let mistake = Config::parse(&yaml.replace("minute", "decade")).unwrap_err();
/// assert!(mistake.to_string().starts_with("5:25: unknown unit 'decade'"));
/// # Ok::<(), tollgate_serve::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(crate) domains: HashMap<String, Domain>,
    pub(crate) checks: BTreeMap<String, Arc<Check>>,
    /// The files that it was read from.
    pub(crate) files: Vec<PathBuf>,
}

impl Config {
    /// Reads a file, or each `.yaml` and `.yml` file of a directory and its subdirectories.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or is not valid.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::of_sources(&Sources::read(path)?)
    }

    /// Reads a configuration from a text.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not valid.
    pub fn parse(yaml: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        build::add(&mut config, yaml)?;
        Ok(config)
    }

    pub(crate) fn of_sources(Sources(sources): &Sources) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (file, yaml) in sources {
            build::add(&mut config, yaml).map_err(|error| error.in_file(file))?;
            config.files.push(file.clone());
        }
        Ok(config)
    }

    /// Returns whether it has neither a domain nor a check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty() && self.checks.is_empty()
    }
}

/// One line for each limit.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut domains: Vec<_> = self.domains.iter().collect();
        domains.sort_by_key(|(name, _)| *name);
        for (name, domain) in domains {
            for rule in domain.rules() {
                writeln!(f, "{name} {}: {rule}", rule.label)?;
            }
        }
        for (name, check) in &self.checks {
            writeln!(f, "check {name}: {check}")?;
        }
        Ok(())
    }
}

/// A configuration that is not valid, with the place of the mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: Option<PathBuf>,
    /// The line and column, from 1.
    place: Option<(u64, u64)>,
    message: String,
}

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { file: None, place: None, message: message.into() }
    }

    fn at(location: serde_saphyr::Location, message: impl Into<String>) -> Self {
        Self { place: Some((location.line(), location.column())), ..Self::new(message) }
    }

    fn in_file(self, file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..self }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
        }
        match self.place {
            Some((line, column)) => write!(f, "{line}:{column}: {}", self.message),
            None if self.file.is_some() => write!(f, " {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

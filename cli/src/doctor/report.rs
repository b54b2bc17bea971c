//! Reports what each check found, and its remedy.

use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::{CliError, GRANT_HINT};
use crate::failure::chain;
use crate::output::{say, say_json};
use crate::redact::redact;
use crate::text::{GREEN, RED, YELLOW, plain, wrapped};

/// The checks, in the order in which they were made.
#[derive(Default)]
pub(crate) struct DoctorReport(Vec<Check>);

struct Check {
    name: &'static str,
    status: Status,
    found: String,
    advice: String,
}

/// The checks of a database.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DoctorJson<'a> {
    /// The worst status of all checks.
    status: Status,
    /// The checks, in the order in which they were made.
    checks: Vec<CheckJson<'a>>,
}

/// A check.
#[derive(Serialize, JsonSchema)]
struct CheckJson<'a> {
    /// The name of the check.
    name: &'static str,
    /// The result of the check.
    status: Status,
    /// The finding.
    found: &'a str,
    /// The action to take.
    advice: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

impl DoctorReport {
    pub(crate) fn ok(&mut self, name: &'static str, found: impl Into<String>) {
        self.add(name, Status::Ok, found, "");
    }

    /// Something that costs time or safety.
    pub(crate) fn warn(&mut self, name: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        self.add(name, Status::Warn, found, advice);
    }

    /// Something without which limits do not work.
    pub(crate) fn fail(&mut self, name: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        self.add(name, Status::Fail, found, advice);
    }

    /// An error, with what to do about it if it says nothing of that itself.
    pub(super) fn failed(&mut self, name: &'static str, error: &anyhow::Error, otherwise: &str) {
        let hint = error.downcast_ref::<CliError>().map_or(otherwise, |refusal| &refusal.hint);
        self.fail(name, chain(error), hint);
    }

    /// Reports the privileges of a role by the routines that it cannot call: those that take tokens, and the limiter's others.
    /// `excess_privileges` is what the role may do beyond the printed grants, with the remedy.
    pub(super) fn grants(
        &mut self,
        role: &str,
        required: &[String],
        optional: &[String],
        operates: bool,
        excess_privileges: Option<(String, String)>,
    ) {
        let has_excess = excess_privileges.is_some();
        if let Some((excess_privileges, advice)) = excess_privileges {
            self.fail("grants", format!("{role} may do more than the grants allow: {excess_privileges}"), advice);
        }
        if !required.is_empty() {
            let names = required.join(", ");
            let found = format!("{role} may not do all that a limiter does: it may not call {names}");
            self.fail("grants", found, GRANT_HINT);
        } else if !optional.is_empty() {
            let names = optional.join(", ");
            let found =
                format!("{role} may take tokens, but not all that a limiter does beside: it may not call {names}");
            self.warn("grants", found, GRANT_HINT);
        } else if !has_excess {
            let operate = if operates { " and operate" } else { ", and not operate" };
            self.ok("grants", format!("{role} may take tokens{operate}"));
        }
    }

    /// The level that transactions have if they say nothing.
    pub(super) fn isolation(&mut self, level: &str) {
        if level == "serializable" {
            let advice = "decisions are as exact at read committed";
            self.warn("isolation", format!("{level} by default: requests for one bucket repeat each other"), advice);
        } else {
            self.ok("isolation", format!("{level} by default"));
        }
    }

    /// Whether the table of the mode has its row, and the statement that makes it.
    pub(super) fn mode_row(&mut self, is_migrated: bool, insert: &str) {
        if !is_migrated {
            let found = "token_mode has no row: the mode is enforce, and an `update` of it changes nothing";
            self.warn("content", found, insert);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.worst() == Status::Fail
    }

    /// Prints the checks as JSON, or as lines that fit the width.
    pub(crate) fn say(&self, as_json: bool, fit: Option<usize>) -> Result<(), CliError> {
        if as_json {
            let checks = self.0.iter().map(|Check { name, status, found, advice }| {
                let advice = Some(&**advice).filter(|advice| !advice.is_empty());
                CheckJson { name, status: *status, found, advice }
            });
            return say_json(&DoctorJson { status: self.worst(), checks: checks.collect() });
        }
        let width = self.0.iter().map(|check| check.name.len()).max().unwrap_or(0);
        for Check { name, status, found, advice } in &self.0 {
            let style = status.style();
            let found = wrapped(&plain(found), fit, width + 8);
            say(format!("{style}{:4}{style:#}  {name:width$}  {found}", status.word()))?;
            if !advice.is_empty() {
                say(format!("{:width$}        → {}", "", wrapped(&plain(advice), fit, width + 10)))?;
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &'static str, status: Status, found: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Check { name, status, found: redact(&found.into()), advice: advice.into() });
    }

    /// The worst of all, as a word.
    #[cfg(test)]
    pub(super) fn status(&self) -> &'static str {
        self.worst().word()
    }

    /// The names of the warnings.
    #[cfg(test)]
    pub(super) fn warnings(&self) -> Vec<&'static str> {
        self.0.iter().filter(|check| check.status == Status::Warn).map(|check| check.name).collect()
    }

    /// Returns the finding of a check.
    #[cfg(test)]
    pub(super) fn found(&self, name: &str) -> &str {
        self.0.iter().find(|check| check.name == name).map_or("", |check| &check.found)
    }

    fn worst(&self) -> Status {
        self.0.iter().map(|check| check.status).max().unwrap_or(Status::Ok)
    }
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }

    fn style(self) -> anstyle::Style {
        match self {
            Self::Ok => GREEN,
            Self::Warn => YELLOW,
            Self::Fail => RED,
        }
    }
}

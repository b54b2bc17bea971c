//! Exit codes, hints, and the error of the CLI itself.

use tollgate::Key;

use crate::text::plain;

/// An error of the CLI itself, with its exit code and its hint.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    pub(crate) code: u8,
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl CliError {
    /// Arguments that conflict or are incomplete.
    pub(crate) fn arguments(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: WRONG_ARGUMENTS, message: message.into(), hint: hint.into() }
    }

    /// A file that cannot be read or parsed.
    pub(crate) fn unreadable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: UNREADABLE, message: message.into(), hint: hint.into() }
    }

    /// A file or an output that cannot be written.
    pub(crate) fn unwritable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: UNWRITABLE, message: message.into(), hint: hint.into() }
    }

    /// A bucket, a plan or an override that does not exist.
    pub(crate) fn absent(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: ABSENT, message: message.into(), hint: hint.into() }
    }

    /// Buckets that do not exist.
    pub(crate) fn no_buckets(absent: &[Key], hint: impl Into<String>) -> Self {
        let names: Vec<_> = absent.iter().map(|key| format!("'{}'", plain(key.as_str()))).collect();
        Self::absent(format!("there is no bucket {}", names.join(", ")), hint)
    }

    /// A database that cannot be used.
    pub(crate) fn database(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: DATABASE, message: message.into(), hint: hint.into() }
    }

    /// A plan that does not exist.
    pub(crate) fn unknown_plan(name: &Key) -> Self {
        let hint = "`tollgate plan list` shows those that there are, `tollgate plan set NAME --quota 10/s` makes one";
        Self::absent(format!("there is no plan '{}'", plain(name.as_str())), hint)
    }

    /// The error of a role without grants.
    pub(crate) fn missing_grants() -> Self {
        Self {
            code: NOT_PERMITTED,
            message: "this role has no privileges here".to_owned(),
            hint: GRANT_HINT.to_owned(),
        }
    }

    /// The error of a request that can never be granted.
    pub(crate) fn never(message: String, hint: &str) -> Self {
        Self { code: NEVER, message, hint: hint.to_owned() }
    }
}

/// The exit codes in `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
   0  done; granted
   1  a check failed (`doctor`, `apply --check`); there is no such bucket, plan or override
   2  wrong arguments
  64  the request can never be granted: unknown bucket or plan, or cost above the capacity
  66  a file cannot be read or parsed
  69  the database failed; the message says whether anything was done
  70  another error, such as a terminal that cannot show `watch`
  73  a file or the output cannot be written
  75  denied: no token now
  77  the database role lacks a privilege
  78  the database has no tollgate schema, or one that is too new
 128 + N  ended by signal N (130: interrupt); gives tokens back, or says that it cannot
`tollgate run` exits with the code of its command, or with 126 or 127 if the command cannot start.";

const ABSENT: u8 = 1;
/// A failed check of `doctor` or `apply --check`.
pub(crate) const CHECK_FAILED: u8 = 1;
pub(crate) const WRONG_ARGUMENTS: u8 = 2;
pub(crate) const DATABASE: u8 = 69;
pub(crate) const DENIED: u8 = 75;
pub(crate) const NEVER: u8 = 64;
pub(crate) const INTERNAL: u8 = 70;
const UNREADABLE: u8 = 66;
const UNWRITABLE: u8 = 73;
pub(crate) const NOT_PERMITTED: u8 = 77;
pub(crate) const NOT_MIGRATED: u8 = 78;

pub(crate) const DOCTOR_HINT: &str = "run `tollgate doctor` to find the cause";

/// The hint that grants a role its privileges.
pub(crate) const GRANT_HINT: &str = "`grant tollgate_app to ROLE` allows it to take tokens and to read a key; tollgate_operator allows everything. `tollgate migrate --print grants` creates both roles: run it after each upgrade, with the database's `--prefix` if it has one. On MySQL and MariaDB, also make the role the account's default: `set default role tollgate_app to ACCOUNT` (MariaDB: `for`)";

/// The hint about a database that is newer than the CLI.
pub(crate) const UPDATE_HINT: &str = "install a newer `tollgate`: the version of the crate that the services use";

/// The hint about a file that cannot be written.
pub(crate) const READ_ONLY_HINT: &str =
    "leave mode=ro and immutable out of the URL, and let this user write the file and its directory";

/// The hint about rows that cannot be read.
pub(crate) const UNREADABLE_ROWS: &str = "run `tollgate doctor`: it names the tables that hold such rows";

//! The database URL, from the option, the environment or a file.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::exit::CliError;
use crate::output::complain;
use crate::text::plain;

/// The database of the buckets.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// postgres://, mysql://, mariadb:// or sqlite:; a password is safer in the environment or a .env file
    #[arg(long, global = true, display_order = 900, value_name = "URL", env = VARIABLE, hide_env_values = true)]
    database_url: Option<OsString>,
}

/// A URL, by engine.
pub(crate) enum Url {
    MySql(String),
    Postgres(String),
    Sqlite(String),
}

impl Args {
    /// The URL of the option, of the environment, or of a `.env` file here or in a directory above.
    pub(crate) fn url(&self) -> Result<Url, CliError> {
        let given = match &self.database_url {
            Some(url) => Some(url.to_str().ok_or_else(not_utf8)?.to_owned()),
            None => from_file(complain)?,
        };
        let none = || CliError::arguments("no database is given", EXPORT);
        // A secret from a file often ends with a line break.
        let given = given.map(|url| url.trim().to_owned());
        Url::try_from(given.filter(|url| !url.is_empty()).ok_or_else(none)?)
    }

    pub(crate) fn is_given(&self) -> bool {
        self.database_url.is_some() || !matches!(from_file(|_| ()), Ok(None))
    }
}

/// Reads only this variable, so that the commands of `tollgate run` inherit no other. Reports a file in a parent directory,
/// because the user may not know of it.
fn from_file(say: impl Fn(&str)) -> Result<Option<String>, CliError> {
    let here = std::env::current_dir().unwrap_or_default();
    let Some(file) = here.ancestors().map(|directory| directory.join(".env")).find(|file| file.is_file()) else {
        return Ok(None);
    };
    let name = file.display().to_string();
    let name = plain(&name);
    let unreadable = |error: io::Error| {
        CliError::unreadable(format!("cannot read {name}: {error}"), "or export DATABASE_URL instead")
    };
    let opened = File::open(&file).map_err(unreadable)?;
    if let Some(cause) = distrust(&file, &opened).map_err(unreadable)? {
        return Err(CliError::unreadable(format!("{name} is not trusted: {cause}"), TRUST));
    }
    let text = io::read_to_string(&opened).map_err(unreadable)?;
    // Editors on Windows add a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let mut unreadable = None;
    for variable in dotenvy::from_read_iter(text.as_bytes()) {
        match variable {
            Ok((variable, value)) if variable == VARIABLE => {
                if file.parent() != Some(&here) {
                    say(&format!("{VARIABLE} is that of {name}"));
                }
                return Ok(Some(value));
            }
            Err(dotenvy::Error::LineParse(line, _)) => drop(unreadable.get_or_insert(line)),
            Ok(_) | Err(_) => {}
        }
    }
    // Reports an invalid line only if no valid line sets the variable.
    let Some(line) = unreadable else { return Ok(None) };
    // The error contains only the value, which may span several lines.
    let begin = line.trim().lines().next().unwrap_or_default();
    let number = text.lines().position(|line| line.contains(begin));
    let place = number.map_or_else(String::new, |number| format!("line {} of ", number + 1));
    Err(CliError::unreadable(format!("{place}{name} cannot be read"), "put the value in single quotes: NAME='value'"))
}

/// Returns the reason not to trust the file, if any. Another user's file could send this user's password to a foreign server.
#[cfg(unix)]
fn distrust(path: &Path, opened: &File) -> io::Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;

    // Checks a symbolic link and its target.
    for metadata in [path.symlink_metadata()?, opened.metadata()?] {
        let owner = metadata.uid();
        if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
            return Ok(Some(format!("user {owner} owns it")));
        }
        if metadata.is_file() && metadata.mode() & WRITABLE_BY_OTHERS != 0 {
            return Ok(Some("other users can write it".to_owned()));
        }
    }
    Ok(None)
}

#[cfg(not(unix))]
fn distrust(_: &Path, _: &File) -> io::Result<Option<String>> {
    Ok(None)
}

fn not_utf8() -> CliError {
    CliError::arguments("the database URL is not UTF-8", "write such bytes percent-encoded, as %FF")
}

impl TryFrom<String> for Url {
    type Error = CliError;

    fn try_from(url: String) -> Result<Self, CliError> {
        let wrong = |message: &str| Err(CliError::arguments(message, format!("write it like {FORMS}")));
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        if scheme == "sqlite" {
            return Ok(Self::Sqlite(url));
        }
        if !["postgres", "postgresql", "mysql", "mariadb"].contains(&scheme) {
            return wrong("the database URL begins with none of postgres://, mysql://, mariadb:// and sqlite:");
        }
        let Some((_, rest)) = url.split_once("://") else {
            return wrong("the database URL has no // after its scheme");
        };
        if is_cut_short(rest) {
            let hint = "write them percent-encoded: / is %2F, ? is %3F, # is %23, @ is %40";
            return Err(CliError::arguments("the database URL has a / ? # or @ within its user or password", hint));
        }
        if is_run_together(rest) {
            let hint = "write user:password@host/database with that : @ and / as they are; only what is within a part is encoded";
            return Err(CliError::arguments("the database URL has an encoded : @ / or ? between its parts", hint));
        }
        Ok(if scheme.starts_with("postgres") { Self::Postgres(url) } else { Self::MySql(url) })
    }
}

/// Whether the URL parser would read a part of the password as host, port or database, and messages would show it. A misplaced
/// `@` or a `#` reveals this.
fn is_cut_short(rest: &str) -> bool {
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = address.split_once('/').unwrap_or((address, ""));
    let is_no_parameter = |part: &str| {
        let name = part.split_once('=').map_or("", |(name, _)| name);
        part.contains('@') && !["user", "password", "dbname", "application_name", "options"].contains(&name)
    };
    rest.contains('#')
        || path.contains('@')
        || authority.matches('@').count() > 1
        || query.split('&').any(is_no_parameter)
}

/// Whether an encoded separator makes the password a part of another name, which messages would show. A user name may contain
/// an `@`, and a socket directory any character.
fn is_run_together(rest: &str) -> bool {
    let rest = rest.to_ascii_lowercase();
    let (address, _) = rest.split_once('?').unwrap_or((&rest, ""));
    let (authority, database) = address.split_once('/').unwrap_or((address, ""));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user = user.split(':').next().unwrap_or(user);
    let is_any_in = |text: &str, encoded: &[&str]| encoded.iter().any(|one| text.contains(one));
    is_any_in(user, &["%3a"])
        || !host.starts_with("%2f") && is_any_in(host, &["%2f", "%3a", "%3f", "%40"])
        || is_any_in(database, &["%3f", "%40"])
}

/// Whether a text may be a database URL, or a part with the password.
pub(crate) fn may_be(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let schemes = ["://", "postgres:", "postgresql:", "mysql:", "mariadb:", "sqlite:"];
    text.contains('@') || schemes.iter().any(|scheme| text.contains(scheme))
}

/// The only variable that names a database, in the environment and in a file.
pub(crate) const VARIABLE: &str = "DATABASE_URL";

#[cfg(unix)]
const WRITABLE_BY_OTHERS: u32 = 0o022;

const TRUST: &str = "make it yours (chown) and `chmod go-w` it, or export DATABASE_URL";

const FORMS: &str = "postgres://app:password@localhost/app, mysql://… or sqlite:app.db";

/// A shell command; the alternatives are a comment.
const EXPORT: &str = "export DATABASE_URL=sqlite:app.db   # or postgres://app:password@localhost/app, mysql://…";

//! The command that `tollgate run` becomes.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Command;

use crate::exit::CliError;
#[cfg(target_os = "linux")]
use crate::signals;
use crate::text::plain;
use crate::url;

/// Refuses a program that does not exist, before a token is taken. In doubt, accepts it: the system reports the error later.
pub(super) fn refuse_absent(program: &OsStr) -> Result<(), CliError> {
    if is_absent(program) {
        let absent = io::Error::new(io::ErrorKind::NotFound, "there is no such program");
        return Err(cannot_start(program, &absent, "no token was taken"));
    }
    Ok(())
}

/// Replaces this process with the command, so that signals and exit codes pass exactly.
#[cfg(unix)]
pub(super) fn become_command(command: &[OsString], keep_url: bool) -> Result<Infallible, CliError> {
    use std::os::unix::process::CommandExt;

    #[cfg(target_os = "linux")]
    if signals::was_ignored(SIGPIPE) {
        return Err(cannot_start(&command[0], &exec_as_is(command, keep_url), USED));
    }
    Err(cannot_start(&command[0], &with_environment(command, keep_url).exec(), USED))
}

/// Like the standard library's `exec`, which would reset an ignored SIGPIPE to its default.
#[cfg(target_os = "linux")]
fn exec_as_is(command: &[OsString], keep_url: bool) -> io::Error {
    use std::ffi::{CString, NulError};
    use std::os::unix::ffi::OsStringExt;

    let words = || command.iter().cloned().map(|word| CString::new(word.into_vec())).collect::<Result<Vec<_>, _>>();
    let variables = || {
        let kept = std::env::vars_os().filter(|(name, _)| keep_url || name != url::VARIABLE);
        kept.map(|(name, value)| CString::new([name.into_vec(), value.into_vec()].join(&b'=')))
            .collect::<Result<_, _>>()
    };
    let exec = |words: Vec<CString>, variables: Vec<CString>| nix::unistd::execvpe(&words[0], &words, &variables);
    match words().and_then(|words| Ok::<_, NulError>(exec(words, variables()?))) {
        Ok(Err(errno)) => errno.into(),
        Err(nul) => nul.into(),
    }
}

#[cfg(not(unix))]
pub(super) fn become_command(command: &[OsString], keep_url: bool) -> Result<Infallible, CliError> {
    let status = with_environment(command, keep_url).status();
    let status = status.map_err(|error| cannot_start(&command[0], &error, USED))?;
    std::process::exit(status.code().unwrap_or(1));
}

/// Removes the database URL from the command's environment, because it contains a password.
fn with_environment(command: &[OsString], keep_url: bool) -> Command {
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]);
    if !keep_url {
        child.env_remove(url::VARIABLE);
    }
    child
}

fn cannot_start(program: &OsStr, error: &io::Error, token: &str) -> CliError {
    CliError {
        code: if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 },
        message: format!("cannot start '{}': {error}", plain(&program.to_string_lossy())),
        hint: format!("give a program and its arguments after --; {token}"),
    }
}

/// Searches like the system: at the path, or in each directory of `PATH`.
#[cfg(unix)]
fn is_absent(program: &OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt;

    let is_absent = |path: &std::path::Path| path.try_exists().is_ok_and(|exists| !exists);
    if program.as_bytes().contains(&b'/') {
        return is_absent(program.as_ref());
    }
    if program.is_empty() {
        return true;
    }
    // Without `PATH`, the system searches its default directories.
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).all(|directory| is_absent(&directory.join(program)))
}

/// Accepts every name, because only the system knows which suffixes it adds, such as `.exe`.
#[cfg(not(unix))]
fn is_absent(_: &OsStr) -> bool {
    false
}

#[cfg(target_os = "linux")]
const SIGPIPE: u8 = 13;

const USED: &str = "its token is used";

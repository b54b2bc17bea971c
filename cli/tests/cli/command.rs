//! One run of the CLI.

use std::path::Path;
use std::process::{Command, ExitStatus, Output};

use serde_json::Value;

/// The password in the database URLs of these tests.
pub(crate) const SECRET: &str = "tr0ub4dor";

/// The CLI without the environment variables that change its behaviour.
pub(crate) fn tollgate(url: Option<&str>, directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(directory).env_remove("DATABASE_URL").env_remove("CLICOLOR_FORCE");
    if let Some(url) = url {
        command.env("DATABASE_URL", url);
    }
    command
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Asserts for every test that no output contains the password.
    pub(crate) fn new(output: Output) -> Self {
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
        for text in [&out, &err] {
            assert!(!text.contains(SECRET), "a password is shown: {}", text.replace(SECRET, "[it]"));
        }
        Self { code: code(output.status), out, err }
    }

    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts that the outputs contain all of these texts.
    #[track_caller]
    pub(crate) fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.out.contains(text) || self.err.contains(text), "no '{text}' in {self:?}");
        }
        self
    }
}

/// The exit code as in a shell: 128 plus the number of the signal that ended the process.
pub(crate) fn code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    let died = std::os::unix::process::ExitStatusExt::signal(&status).map(|signal| 128 + signal);
    #[cfg(not(unix))]
    let died = None;
    status.code().or(died).unwrap_or(-1)
}

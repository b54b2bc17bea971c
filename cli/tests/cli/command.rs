//! One run of the program.

use std::path::Path;
use std::process::{Command, ExitStatus, Output};

use serde_json::Value;

/// The password of every database URL of these tests that has one.
pub(crate) const SECRET: &str = "tr0ub4dor";

/// The program, with nothing of the environment that would change what it does.
pub(crate) fn tollgate(url: Option<&str>, directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(directory).env_remove("DATABASE_URL").env_remove("CLICOLOR_FORCE");
    if let Some(url) = url {
        command.env("DATABASE_URL", url);
    }
    command
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Every output of every test is looked through for the password.
    pub(crate) fn new(output: Output) -> Self {
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
        for text in [&out, &err] {
            assert!(!text.contains(SECRET), "a password is shown: {}", text.replace(SECRET, "[it]"));
        }
        Self { code: code(output.status), out, err }
    }

    /// The output, if the code is this one.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Whether it says all of this, on either output.
    #[track_caller]
    pub(crate) fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.out.contains(text) || self.err.contains(text), "no '{text}' in {self:?}");
        }
        self
    }
}

/// As a shell says it: 128 and the signal that the program died of.
pub(crate) fn code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    let died = std::os::unix::process::ExitStatusExt::signal(&status).map(|signal| 128 + signal);
    #[cfg(not(unix))]
    let died = None;
    status.code().or(died).unwrap_or(-1)
}

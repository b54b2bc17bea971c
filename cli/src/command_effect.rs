use tollgate::Error;

use crate::exit::{CliError, DATABASE, DOCTOR_HINT};
use crate::failure::{library_error, sql_message};
use crate::redact::redact;

/// The kind of a command's request, which decides the message if the database does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEffect {
    Read,
    Change,
    Take,
    /// Asks for tokens on behalf of a command that then runs.
    Run,
}

impl CommandEffect {
    /// Rewords the error of a blocked command or of a command with an unknown outcome, and names the blocking sessions if they are
    /// known. The library's own messages are about tokens.
    pub(crate) fn explain_error(self, error: anyhow::Error, blockers: &str) -> anyhow::Error {
        let cause = match library_error(&error) {
            Some(Error::Contended { .. }) if self == Self::Change => {
                let message =
                    "other transactions hold locks on these rows; the change was rolled back and is not retried";
                let hint = format!("{blockers}then repeat it; {DOCTOR_HINT}");
                return CliError { code: DATABASE, message: message.to_owned(), hint }.into();
            }
            Some(Error::DeadlineExceeded(deadline)) => format!("no answer within {deadline:?}"),
            Some(Error::OutcomeUnknown(cause)) => {
                format!("the connection broke during the request: {}", redact(&sql_message(cause.as_ref())))
            }
            _ => return error,
        };
        let (effect, hint) = match self {
            Self::Take => return error,
            Self::Read => ("nothing was changed", "repeat it"),
            Self::Change => (
                "whether anything was changed is unknown",
                "repeat it, or check with `tollgate explain`, `mode` and `plan list`",
            ),
            Self::Run => {
                ("whether a token was taken is unknown", "add `--if-unavailable run` to run the command regardless")
            }
        };
        CliError {
            code: DATABASE,
            message: format!("{cause}; {effect}"),
            hint: format!("{blockers}{hint}; {DOCTOR_HINT}"),
        }
        .into()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::failure::explain;

    #[test]
    fn unanswered_read_does_not_mention_tokens() {
        let broken = Arc::new(io::Error::other("reset by peer"));
        for error in [Error::DeadlineExceeded(Duration::from_secs(5)), Error::OutcomeUnknown(broken.clone())] {
            for (effect, expected) in [
                (CommandEffect::Read, "nothing was changed"),
                (CommandEffect::Change, "whether anything was changed is unknown"),
                (CommandEffect::Take, "whether the tokens were taken is unknown"),
                (CommandEffect::Run, "whether a token was taken is unknown"),
            ] {
                let (code, message, hint) = explain(&effect.explain_error(error.clone().into(), ""));
                assert!(code == DATABASE && message.contains(expected), "{message}");
                assert!(hint.ends_with(DOCTOR_HINT), "{hint}");
                assert_eq!(hint.contains("take --id"), effect == CommandEffect::Take, "{hint}");
                assert_eq!(message.contains("reset by peer"), error.to_string().contains("broke"), "{message}");
            }
        }
        let (_, message, _) =
            explain(&CommandEffect::Change.explain_error(Error::Unavailable(broken.clone()).into(), ""));
        assert!(message.contains("no connection to the database"), "{message}");
        let contended = Error::Contended { attempts: 3, source: broken };
        let (_, message, hint) =
            explain(&CommandEffect::Change.explain_error(contended.into(), "session 7 holds it; "));
        assert!(message.contains("the change was rolled back and is not retried"), "{message}");
        assert!(hint.starts_with("session 7 holds it; then repeat it"), "{hint}");
    }
}

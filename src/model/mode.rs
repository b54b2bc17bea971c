//! The modes of keys: enforce, shadow, off and block.

use std::fmt;
use std::str::FromStr;

/// Whether the tokens of a bucket decide. An operator sets the mode of all keys, of a plan, or of a key.
///
/// The mode of a key takes precedence over that of its plan, and that of a plan over the mode of all keys. Default:
/// [`Enforce`](Self::Enforce).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The tokens decide.
    Enforce,
    /// Requests take tokens. A request that finds no token passes all the same: it takes nothing, and its
    /// [`Decision::mode`](crate::Decision::mode) is `Shadow`.
    ///
    /// No request waits, except those that were already scheduled. Use it to try out a limit, or to lift a limit in an
    /// incident.
    Shadow,
    /// Every request passes, and no bucket is touched.
    Off,
    /// Every request is denied.
    Block,
}

impl Mode {
    /// Returns the word for the mode in databases, configuration and the CLI.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Off => "off",
            Self::Block => "block",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::Enforce, Self::Shadow, Self::Off, Self::Block].into_iter().find(|mode| mode.as_str() == word)
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    /// Parses `enforce`, `shadow`, `off` or `block`.
    fn from_str(word: &str) -> Result<Self, ModeError> {
        Self::parse(word).ok_or_else(|| ModeError(word.chars().take(40).collect()))
    }
}

/// The word is not a [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a mode: {hint}", hint = self.hint())]
pub struct ModeError(String);

impl ModeError {
    /// Returns what to do about the error. The message ends with it, after a colon.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "give \"enforce\", \"shadow\", \"off\" or \"block\""
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

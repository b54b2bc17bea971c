use std::fmt;
use std::str::FromStr;

/// What rules a bucket beside its tokens: chosen for all, for a plan or for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The tokens decide.
    Enforce,
    /// Tokens are taken as usual, and requests that find none now pass all the same, take nothing, and are told so: to try a
    /// limit out, or let go of it in an incident. Nobody waits: whoever would have to passes, too, unless it was given its turn
    /// before.
    Shadow,
    /// Every request passes, and no bucket is touched.
    Off,
    /// Every request is denied.
    Block,
}

impl Mode {
    /// The word that databases hold.
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

    /// A mode in words: `enforce`, `shadow`, `off` or `block`.
    fn from_str(word: &str) -> Result<Self, ModeError> {
        Self::parse(word).ok_or_else(|| ModeError(word.chars().take(40).collect()))
    }
}

/// A word that is no [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mode: give \"enforce\", \"shadow\", \"off\" or \"block\"")]
pub struct ModeError(String);

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

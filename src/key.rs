use std::fmt;

use smol_str::{SmolStr, format_smolstr};
use uuid::Uuid;

/// Whose tokens: the id of a bucket.
///
/// Keys are compared byte for byte, on every engine: `A`, `a` and `a ` are three buckets. A key has 1 to 255
/// bytes of UTF-8, no NUL, and does not begin with U+0001; hash longer ones, or raw bytes. Up to 23 bytes need no
/// allocation, and clones never do.
///
/// ```
/// use tollgate::Key;
///
/// let key = Key::try_from("user:42")?;
/// assert_eq!(key.as_str(), "user:42");
/// assert!(Key::try_from("").is_err());
/// # Ok::<(), tollgate::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(SmolStr);

impl std::hash::Hash for Key {
    #[inline]
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
    }
}

impl Key {
    /// Under which the receipts of a key's window are kept, beside those of its bucket. It is nobody's key.
    pub(crate) fn of_window(&self) -> Self {
        Self(format_smolstr!("{OF_WINDOW}{}", self.0))
    }

    /// That of a 64-bit hash: its 16 hexadecimal digits.
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// assert_eq!(Key::from_hash(42).as_str(), "000000000000002a");
    /// // A number that people know the bucket by is text.
    /// assert_eq!(Key::try_from(42.to_string())?.as_str(), "42");
    /// # Ok::<(), tollgate::KeyError>(())
    /// ```
    #[must_use]
    pub fn from_hash(hash: u64) -> Self {
        Self(format_smolstr!("{hash:016x}"))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0.into()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Uuid> for Key {
    /// The hyphenated form, 36 characters.
    fn from(id: Uuid) -> Self {
        Self(format_smolstr!("{}", id.hyphenated()))
    }
}

impl TryFrom<&str> for Key {
    type Error = KeyError;

    fn try_from(key: &str) -> Result<Self, KeyError> {
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        if key.len() > MAX_BYTES {
            return Err(KeyError::TooLong(key.len()));
        }
        if key.starts_with(OF_WINDOW) {
            return Err(KeyError::Reserved);
        }
        match key.find('\0') {
            Some(at) => Err(KeyError::Nul(at)),
            None => Ok(Self(key.into())),
        }
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;

    fn try_from(key: String) -> Result<Self, KeyError> {
        Self::try_from(key.as_str())
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

impl TryFrom<&String> for Key {
    type Error = KeyError;

    fn try_from(key: &String) -> Result<Self, KeyError> {
        Self::try_from(key.as_str())
    }
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No text at all.
    #[error("a key has 1 to 255 bytes, and this one is empty")]
    Empty,
    /// A NUL, which PostgreSQL's text cannot hold.
    #[error("a key has no NUL byte, and this one has one at byte {0}")]
    Nul(usize),
    /// U+0001 at the beginning, under which the receipts of windows are kept.
    #[error("a key does not begin with U+0001, and this one does: put something before it, or hash it")]
    Reserved,
    /// More than 255 bytes.
    #[error("a key has 1 to 255 bytes, and this one has {0}: hash it, or choose a shorter one")]
    TooLong(usize),
}

const MAX_BYTES: usize = 255;

/// Before the key of a window's receipts.
const OF_WINDOW: char = '\u{1}';

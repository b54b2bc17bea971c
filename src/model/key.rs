//! The ids of buckets, and their checks.

use std::fmt;

#[cfg(feature = "hashed-keys")]
use hmac::{Hmac, KeyInit, Mac};
use smol_str::{SmolStr, format_smolstr};
use uuid::Uuid;

use crate::model::LimitName;

/// The id of a bucket: whose tokens it holds, or what it limits.
///
/// A key has 1 to 255 bytes of UTF-8, without NUL and U+0001. Hash longer texts and raw bytes: [`Key::from_hash`]. Every engine compares keys byte for byte: `A`, `a` and `a ` are three buckets. Keys of up to 23
/// bytes need no allocation, and clones never do.
///
/// ```
/// use tollgate::Key;
///
/// let key = Key::try_from("user:42")?;
/// assert_eq!(key.as_str(), "user:42");
/// assert!(Key::try_from("").is_err());
/// # Ok::<(), tollgate::model::KeyError>(())
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
    /// Returns the id of the bucket that a further limit of this key has: the key, U+0001, and the name. The first limit of a key
    /// has the key itself.
    ///
    /// Use it where a method takes the key of a bucket, for instance to [override](crate::Admin::set_override) one limit of a
    /// user's plan. Requests name the key alone. An id of more than 255 bytes names no bucket.
    ///
    /// ```
    /// use tollgate::{Key, model::LimitName};
    ///
    /// let daily = Key::try_from("user:42")?.limit(&LimitName::try_from("day")?);
    /// assert_eq!((daily.limit_name(), daily.without_limit().as_str()), (Some("day"), "user:42"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn limit(&self, name: &LimitName) -> Self {
        self.with_suffix(name.as_str())
    }

    /// Returns the name of the limit, if this is the id of a [further limit's](Self::limit) bucket.
    #[must_use]
    pub fn limit_name(&self) -> Option<&str> {
        self.0.split_once(LIMIT_SEPARATOR).map(|(_, name)| name)
    }

    /// Returns the key whose limit this is.
    #[must_use]
    pub fn without_limit(&self) -> Self {
        self.0.split_once(LIMIT_SEPARATOR).map_or_else(|| self.clone(), |(key, _)| Self(key.into()))
    }

    /// The id of a bucket beside this one. No limit has a name that begins with a digit.
    pub(crate) fn with_suffix(&self, suffix: &str) -> Self {
        let separator = if self.limit_name().is_some() { '.' } else { LIMIT_SEPARATOR };
        Self(format_smolstr!("{}{separator}{suffix}", self.0))
    }

    /// Whether the id has more bytes than a store holds.
    pub(crate) fn is_too_long(&self) -> bool {
        self.0.len() > MAX_KEY_BYTES
    }

    /// The id in a row of a store.
    #[cfg(feature = "_sql")]
    pub(crate) fn stored(id: String) -> Result<Self, KeyError> {
        match Self::try_from(id.as_str()) {
            Err(KeyError::Reserved) if !id.starts_with(LIMIT_SEPARATOR) => Ok(Self(id.into())),
            checked => checked,
        }
    }

    /// The key of the receipts of a key's window, apart from those of its bucket. No caller can have this key.
    pub(crate) fn window_receipt_key(&self) -> Self {
        Self(format_smolstr!("{LIMIT_SEPARATOR}{}", self.0))
    }

    /// Returns the key of a 64-bit hash: its 16 hexadecimal digits.
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// assert_eq!(Key::from_hash(42).as_str(), "000000000000002a");
    /// // A number that people know the bucket by is text.
    /// assert_eq!(Key::try_from(42.to_string())?.as_str(), "42");
    /// # Ok::<(), tollgate::model::KeyError>(())
    /// ```
    #[must_use]
    pub fn from_hash(hash: u64) -> Self {
        Self(format_smolstr!("{hash:016x}"))
    }

    /// Returns the key of personal data, such as an address or a user's name. The key is a keyed hash, which cannot be
    /// traced to the text without the secret.
    ///
    /// The format is stable across processes and versions: `hmac=`, then the first 16 bytes of the HMAC-SHA-256 of
    /// `tollgate-key-v1:` and the text, in lower-case hexadecimal.
    ///
    /// ```
    /// use tollgate::{model::KeySecret, Key};
    ///
    /// let secret = KeySecret::new(b"0123456789abcdef0123456789abcdef")?;
    /// assert_eq!(Key::hashed(&secret, "ada@example.com").as_str(), "hmac=40d46f1b9a879993ceef355803e51651");
    /// # Ok::<(), tollgate::model::KeySecretError>(())
    /// ```
    #[cfg(feature = "hashed-keys")]
    #[must_use]
    pub fn hashed(secret: &KeySecret, text: impl AsRef<[u8]>) -> Self {
        Self(format_smolstr!("hmac={:032x}", secret.hash(text.as_ref())))
    }

    /// Returns the key as text.
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
        if key.len() > MAX_KEY_BYTES {
            return Err(KeyError::TooLong(key.len()));
        }
        match key.find('\0') {
            Some(at) => Err(KeyError::Nul(at)),
            None if key.contains(LIMIT_SEPARATOR) => Err(KeyError::Reserved),
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

/// The secret that [`Key::hashed`] uses. All processes that share limits need the same secret, because another secret makes
/// other keys.
///
/// `Debug` does not print the secret.
#[cfg(feature = "hashed-keys")]
#[derive(Clone)]
pub struct KeySecret(Hmac<sha2::Sha256>);

#[cfg(feature = "hashed-keys")]
impl KeySecret {
    /// Creates a secret from at least 32 random bytes, such as those of `openssl rand -hex 32`.
    ///
    /// # Errors
    ///
    /// Returns [`KeySecretError`] if the secret has fewer than 32 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, KeySecretError> {
        let secret = secret.as_ref();
        let too_short = KeySecretError(secret.len());
        if secret.len() < MIN_SECRET_BYTES {
            Err(too_short)
        } else {
            Hmac::new_from_slice(secret).map(Self).map_err(|_| too_short)
        }
    }

    /// The first half of the hash.
    fn hash(&self, text: &[u8]) -> u128 {
        let hash: [u8; 32] = self.0.clone().chain_update(HASH_DOMAIN).chain_update(text).finalize().into_bytes().into();
        hash[..16].iter().fold(0, |half, byte| half << 8 | u128::from(*byte))
    }
}

#[cfg(feature = "hashed-keys")]
impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySecret").finish_non_exhaustive()
    }
}

/// The secret has fewer than 32 bytes.
#[cfg(feature = "hashed-keys")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret for keys has 32 bytes or more, and this one has {0}: make one, such as by `openssl rand -hex 32`")]
pub struct KeySecretError(usize);

/// The reason why a text is not a valid key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is empty.
    #[error("a key has 1 to 255 bytes, and this one is empty: {hint}", hint = self.hint())]
    Empty,
    /// The text has a NUL, which PostgreSQL's text cannot hold. Holds its position in bytes.
    #[error("a key has no NUL byte, and this one has one at byte {0}: {hint}", hint = self.hint())]
    Nul(usize),
    /// The text contains U+0001, which is reserved for the ids of [further limits](Key::limit) and for windows' receipts.
    #[error("a key does not contain U+0001, and this one does: {hint}", hint = self.hint())]
    Reserved,
    /// The text has more than 255 bytes. Holds the number of bytes.
    #[error("a key has 1 to 255 bytes, and this one has {0}: {hint}", hint = self.hint())]
    TooLong(usize),
}

impl KeyError {
    /// Returns what to do about the error. The message ends with it, after a colon.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Empty => "give it a name",
            Self::Nul(_) | Self::Reserved => "encode it, or hash the key",
            Self::TooLong(_) => "hash it, or choose a shorter one",
        }
    }
}

const MAX_KEY_BYTES: usize = 255;
#[cfg(feature = "hashed-keys")]
const MIN_SECRET_BYTES: usize = 32;
/// Precedes the text to hash, so that other uses of the secret make other hashes.
#[cfg(feature = "hashed-keys")]
const HASH_DOMAIN: &[u8] = b"tollgate-key-v1:";

/// Separates a key from the name of a further limit. Also precedes the key of a window's receipts.
const LIMIT_SEPARATOR: char = '\u{1}';

//! Builds keys from the texts of a request: hashes long texts, and joins several texts.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use tollgate::{Key, model::KeyError};

/// Joins texts so that different lists give different results. Writes the length in bytes before each text but the
/// last.
pub(super) fn join(parts: &[&str]) -> String {
    let mut joined = String::new();
    for (place, part) in parts.iter().enumerate() {
        let last = place + 1 == parts.len();
        if !last || begins_with_length(part) {
            // Writing to a `String` cannot fail.
            let _ = write!(joined, "{}=", part.len());
        }
        joined.push_str(part);
        if !last {
            joined.push(' ');
        }
    }
    joined
}

/// Returns the key that joins texts, such as a domain and a user. Different lists have different keys.
///
/// Each text but the last has its length in bytes before it: `5=login 203.0.113.7`, as the keys of a
/// [named layer](super::RateLimitLayer::name) have. A key of more than 255 bytes becomes its SHA-256 hash.
///
/// # Errors
///
/// Returns an error if there is no text, or an empty one alone.
///
/// ```
/// assert_eq!(tollgate_http::joined_key(&["login", "203.0.113.7"])?.as_str(), "5=login 203.0.113.7");
/// # Ok::<(), tollgate::model::KeyError>(())
/// ```
pub fn joined_key(texts: &[&str]) -> Result<Key, KeyError> {
    key(&join(texts))
}

/// Returns a single text unchanged, unless it looks like the result of [`join`].
pub(super) fn alone(text: String) -> String {
    if begins_with_length(&text) { join(&[&text]) } else { text }
}

/// Returns the key of a text. Hashes a text that is too long for a key, contains a NUL or begins with U+0001.
pub(super) fn key(text: &str) -> Result<Key, KeyError> {
    if text.starts_with(LONG_KEY_PREFIX) {
        return Key::try_from(format!("{LONG_KEY_PREFIX}{}", sha256(text.as_bytes())));
    }
    Key::try_from(text).or_else(|error| match error {
        KeyError::Empty => Err(error),
        _ => Key::try_from(format!("{LONG_KEY_PREFIX}{}", sha256(text.as_bytes()))),
    })
}

/// Returns the SHA-256 hash as 64 hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing to a `String` cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// Whether a single text looks like the result of [`join`].
fn begins_with_length(part: &str) -> bool {
    part.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with('=')
}

/// Prefix of a key that is the hash of a text.
const LONG_KEY_PREFIX: &str = "long:sha256=";

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn different_parts_never_join_to_the_same_text() {
        let mut made: HashMap<String, Vec<&str>> = HashMap::new();
        let texts = ["", " ", "=", "1", "a", "ab", "1=a", "1=a ", "1=a b", "0= ", "0=", "2=1= a", "4=1=a "];
        let mut try_parts = |parts: Vec<&'static str>| {
            let joined = join(&parts);
            assert_eq!(made.insert(joined.clone(), parts.clone()), None, "{joined:?} is also {parts:?}");
        };
        for a in texts {
            try_parts(vec![a]);
            for b in texts {
                try_parts(vec![a, b]);
                for c in texts {
                    try_parts(vec![a, b, c]);
                }
            }
        }
    }

    #[test]
    fn text_of_any_length_has_its_own_key() {
        let long = "x".repeat(256);
        let hashed = key(&long).unwrap();
        assert_eq!(hashed.as_str(), format!("{LONG_KEY_PREFIX}{}", sha256(long.as_bytes())));
        assert_ne!(hashed, key(&"x".repeat(257)).unwrap());
        assert_ne!(hashed, key(hashed.as_str()).unwrap(), "who sends the hash is somebody else");
        assert_eq!(key(&"x".repeat(255)).unwrap().as_str(), "x".repeat(255));
        assert!(key("a\0b").unwrap().as_str().starts_with(LONG_KEY_PREFIX));
        assert!(key("\u{1}a").unwrap().as_str().starts_with(LONG_KEY_PREFIX));
        assert_eq!(key(""), Err(KeyError::Empty));
    }
}

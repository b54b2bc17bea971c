//! JSON arrays, which SQLite reads as tables: any number of values in one parameter.

use std::fmt::Write as _;

/// An array that grows.
pub(super) struct Array(String);

/// A member of an array.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Null,
    Number(i64),
    Text(&'a str),
}

impl Array {
    /// Adds a value.
    pub(super) fn push(&mut self, value: Value<'_>) {
        self.separate();
        match value {
            Value::Null => self.0.push_str("null"),
            Value::Number(number) => write!(self.0, "{number}").expect(ROOM),
            Value::Text(text) => self.quote(text),
        }
    }

    /// Adds an array of values.
    pub(super) fn push_row(&mut self, values: &[Value<'_>]) {
        self.separate();
        self.0.push('[');
        for value in values {
            self.push(*value);
        }
        self.0.push(']');
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 1
    }

    /// The text of the whole array.
    pub(super) fn into_text(mut self) -> String {
        self.0.push(']');
        self.0
    }

    fn separate(&mut self) {
        if !self.0.ends_with('[') {
            self.0.push(',');
        }
    }

    fn quote(&mut self, text: &str) {
        self.0.push('"');
        for character in text.chars() {
            match character {
                '"' | '\\' => self.0.extend(['\\', character]),
                '\0'..'\x20' => write!(self.0, "\\u{:04x}", u32::from(character)).expect(ROOM),
                _ => self.0.push(character),
            }
        }
        self.0.push('"');
    }
}

impl Default for Array {
    fn default() -> Self {
        Self("[".to_owned())
    }
}

impl<'a> FromIterator<&'a str> for Array {
    fn from_iter<T: IntoIterator<Item = &'a str>>(texts: T) -> Self {
        let mut array = Self::default();
        texts.into_iter().for_each(|text| array.push(Value::Text(text)));
        array
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value<'_> {
    fn from(yes: bool) -> Self {
        Self::Number(yes.into())
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value<'_> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

const ROOM: &str = "a String takes everything";

#[cfg(test)]
mod tests {
    use super::{Array, Value};

    #[test]
    fn json_read_returns_the_added_values() {
        let texts = ["", "a", "\"", "\\\"]", "\u{1}\t\n\u{1f}\u{7f}", "']['", "🦀\u{2028}é"];
        let mut array: Array = texts.into_iter().collect();
        array.push_row(&[i64::MIN.into(), i64::MAX.into(), true.into(), Value::from(None::<i64>), "[".into()]);
        array.push_row(&[]);
        array.push(Value::Null);
        let read: serde_json::Value = serde_json::from_str(&array.into_text()).unwrap();
        let row = serde_json::json!([i64::MIN, i64::MAX, 1, null, "["]);
        assert_eq!(read.as_array().unwrap()[..7], texts.map(serde_json::Value::from));
        assert_eq!(read.as_array().unwrap()[7..], [row, serde_json::json!([]), serde_json::Value::Null]);
        assert!(Array::default().is_empty());
        assert_eq!(Array::default().into_text(), "[]");
    }
}

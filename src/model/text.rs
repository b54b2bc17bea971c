//! Serialization of the model's types as text, for configuration files. Needs the feature `serde`.

use std::borrow::Cow;
use std::fmt::Display;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::model::{Key, Limits, Mode, Quota, Rule, Window};

macro_rules! as_text {
    ($($name:ident)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                read(deserializer, |text| text.parse::<Self>())
            }
        }
    )*};
}

as_text!(Limits Mode Quota Window);

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, |text| Self::try_from(text))
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Quota(quota) => quota.serialize(serializer),
            Self::Window(window) => window.serialize(serializer),
            Self::Limits(limits) => limits.serialize(serializer),
            _ => Err(ser::Error::custom("only limits have words")),
        }
    }
}

/// A quota, a sliding window or several limits as text.
impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer, |text| Self::try_from(text))
    }
}

fn read<'de, D: Deserializer<'de>, T, E: Display>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    parse(&Cow::<'de, str>::deserialize(deserializer)?).map_err(de::Error::custom)
}

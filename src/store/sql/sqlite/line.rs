use super::super::admin::columns::{key, quota, switch};
use super::times;
use crate::model::bucket::Bucket;
use crate::model::decide::{Override, Plan, Row, Setting};
use crate::model::{Key, Quota};

/// A row of read.sql, of adjust.sql or of `take_all.sql`.
pub(super) struct Line<'a>([&'a str; 14]);

impl<'a> From<&'a str> for Line<'a> {
    fn from(text: &'a str) -> Self {
        let mut words = [""; 14];
        words.iter_mut().zip(text.split(' ')).for_each(|(word, text)| *word = text);
        Self(words)
    }
}

impl<'a> Line<'a> {
    pub(super) fn word(&self, place: usize) -> &'a str {
        self.0[place]
    }

    pub(super) fn number(&self, place: usize) -> Result<i64, sqlx::Error> {
        self.0[place].parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }

    /// A bucket.
    pub(super) fn row(&self) -> Result<Row, sqlx::Error> {
        let over = match self.0[11] {
            "" => None,
            _ => Some(quota(self.number(11)?, self.number(12)?, self.0[13])?),
        };
        Ok(Row {
            own: self.quota()?,
            over: over.map(Box::new),
            plan: if self.0[10].is_empty() { None } else { Some(Box::new(self.name()?)) },
            provisioned: self.number(9)? != 0,
            bucket: Bucket {
                anchor: self.number(2)?,
                full_at: self.number(3)?,
                granted: self.number(4)?,
                longest_wait: self.number(5)?,
            },
        })
    }

    /// A plan, and its name.
    pub(super) fn plan(&self) -> Result<(Key, Plan), sqlx::Error> {
        Ok((self.name()?, Plan { quota: self.quota()?, setting: self.setting()? }))
    }

    /// A key's override.
    pub(super) fn over(&self) -> Result<Override, sqlx::Error> {
        let quota = if self.0[6].is_empty() { None } else { Some(self.quota()?) };
        Ok(Override { quota, setting: self.setting()? })
    }

    /// A mode, if one is set, and its end; of an override, that of its terms too.
    pub(super) fn setting(&self) -> Result<Setting, sqlx::Error> {
        let until = if self.0[2].is_empty() { None } else { times::instant(self.number(2)?) };
        let mode = Some(self.0[13]).filter(|word| !word.is_empty()).map(str::to_owned);
        Ok(Setting::new(switch((mode, None, None))?.map(|switch| switch.mode), until))
    }

    fn quota(&self) -> Result<Quota, sqlx::Error> {
        quota(self.number(6)?, self.number(7)?, self.0[8])
    }

    fn name(&self) -> Result<Key, sqlx::Error> {
        let digits = self.0[10].as_bytes().chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok();
            pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
        });
        let bytes: Option<Vec<u8>> = digits.collect();
        let name = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        key(name.ok_or_else(|| sqlx::Error::Protocol(format!("the name {:?}", self.0[10])))?)
    }
}

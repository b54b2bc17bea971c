use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::dialect::Operation;
use super::operations::{After, Read};
use super::{Dialect, SqlStore};
use crate::admin::limited;
use crate::admin::{Admin, BucketLevel, Denials, Explanation, Filter, Override, Page, Plan, Switch};
use crate::model::{Error, Key, Mode, Quota, WindowLevel};

pub(super) mod columns;

impl<DB: Dialect> Admin for SqlStore<DB> {
    async fn create_bucket(&self, key: &Key, quota: Quota) -> Result<(), Error> {
        self.change((key.clone(), limited(quota)?), DB::create_bucket).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<BucketLevel>, Error> {
        let found = self.operate(key.clone(), DB::peek).await?;
        found.map(|row| row.map_err(|why| unreadable(key, why))).transpose()
    }

    async fn peek_window(&self, key: &Key) -> Result<Option<WindowLevel>, Error> {
        let found = self.operate(key.clone(), DB::peek_window).await?;
        found.map(|row| row.map_err(|why| unreadable(key, why))).transpose()
    }

    async fn list(&self, filter: &Filter, after: Option<&Key>, limit: u32) -> Result<Page<BucketLevel>, Error> {
        self.page(after, limit, |after| (filter.clone(), after, limit), DB::list).await
    }

    async fn windows(&self, prefix: Option<&Key>, after: Option<&Key>, limit: u32) -> Result<Page<WindowLevel>, Error> {
        let filter = prefix.cloned().into_iter().fold(Filter::default(), Filter::prefix);
        self.page(after, limit, |after| (filter.clone(), after, limit), DB::windows).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.change(key.clone(), DB::reset).await
    }

    async fn delete(&self, key: &Key) -> Result<bool, Error> {
        self.change(key.clone(), DB::delete).await
    }

    async fn explain(&self, key: &Key, plan: Option<&Key>) -> Result<Explanation, Error> {
        let explained = self.operate((key.clone(), plan.cloned()), DB::explain).await?;
        explained.map_err(|why| unreadable(key, why))
    }

    async fn create_plan(&self, name: &Key, quota: Quota) -> Result<(), Error> {
        self.change((name.clone(), limited(quota)?), DB::create_plan).await
    }

    async fn set_plan_mode(
        &self,
        name: &Key,
        mode: Option<Mode>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> Result<bool, Error> {
        let switch = mode.map(|mode| Switch::checked(mode, reason, until, self.now())).transpose()?;
        self.change((name.clone(), switch), DB::set_plan_mode).await
    }

    async fn plan(&self, name: &Key) -> Result<Option<Plan>, Error> {
        let found = self.operate(name.clone(), DB::plan).await?;
        found.map(|row| row.map_err(|why| unreadable(name, why))).transpose()
    }

    async fn plans(&self, after: Option<&Key>, limit: u32) -> Result<Page<Plan>, Error> {
        self.page(after, limit, |after| (after, limit), DB::plans).await
    }

    async fn delete_plan(&self, name: &Key) -> Result<bool, Error> {
        self.change(name.clone(), DB::delete_plan).await
    }

    async fn set_mode(&self, mode: Mode, reason: Option<&str>, until: Option<DateTime<Utc>>) -> Result<(), Error> {
        self.change(Switch::checked(mode, reason, until, self.now())?, DB::set_mode).await
    }

    async fn mode(&self) -> Result<Switch, Error> {
        let (table, mode) = (Key::try_from("token_mode")?, self.operate((), DB::mode).await?);
        mode.map_err(|why| unreadable(&table, why))
    }

    async fn set_override(&self, key: &Key, over: Override) -> Result<(), Error> {
        self.change((key.clone(), over.checked(self.now())?), DB::set_override).await
    }

    async fn clear_override(&self, key: &Key) -> Result<bool, Error> {
        self.change(key.clone(), DB::clear_override).await
    }

    async fn overrides(&self, after: Option<&Key>, limit: u32) -> Result<Page<(Key, Override)>, Error> {
        self.page(after, limit, |after| (after, limit), DB::overrides).await
    }

    async fn most_denied(&self, limit: u32) -> Result<Page<Denials>, Error> {
        self.page(None, limit, |after| (after, limit), DB::most_denied).await
    }
}

impl<DB: Dialect> SqlStore<DB> {
    /// Reads rows until a page is full, or there are no more: those that cannot be read are skipped and counted.
    async fn page<A, T>(
        &self,
        after: Option<&Key>,
        limit: u32,
        arguments: impl Fn(After) -> A + Send + Sync,
        operation: Operation<DB, A, Vec<Read<T>>>,
    ) -> Result<Page<T>, Error>
    where
        A: Send + Sync + 'static,
        T: Row + Send + 'static,
    {
        let (mut page, mut after) = (Page::default(), After { key: after.cloned(), skip: 0 });
        loop {
            let rows = self.operate(arguments(after.clone()), operation).await?;
            let is_last = rows.len() < limit as usize;
            for row in rows {
                if page.len() == limit as usize {
                    break;
                }
                after.skip += 1;
                match row {
                    Ok(row) => {
                        if let Some(key) = row.place() {
                            after = After { key: Some(key.clone()), skip: 0 };
                        }
                        page.push(row);
                    }
                    Err(_) => page.skip_unreadable(),
                }
            }
            if is_last || page.len() == limit as usize {
                return Ok(page);
            }
        }
    }
}

/// A row of a page.
trait Row {
    /// The key after which the next row is looked for, if pages are in the order of keys.
    fn place(&self) -> Option<&Key>;
}

impl Row for BucketLevel {
    fn place(&self) -> Option<&Key> {
        Some(&self.key)
    }
}

impl Row for WindowLevel {
    fn place(&self) -> Option<&Key> {
        Some(&self.key)
    }
}

impl Row for Plan {
    fn place(&self) -> Option<&Key> {
        Some(&self.name)
    }
}

impl Row for (Key, Override) {
    fn place(&self) -> Option<&Key> {
        Some(&self.0)
    }
}

impl Row for Denials {
    fn place(&self) -> Option<&Key> {
        None
    }
}

fn unreadable(key: &Key, why: sqlx::Error) -> Error {
    Error::Unreadable { key: key.clone(), source: Arc::new(why) }
}

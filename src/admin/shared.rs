use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::{Admin, BucketLevel, Denials, Explanation, Filter, Override, Page, Plan, Switch};
use crate::model::{Error, Key, Mode, Quota, WindowLevel};

impl<T: Admin> Admin for Arc<T> {
    async fn create_bucket(&self, key: &Key, quota: Quota) -> Result<(), Error> {
        (**self).create_bucket(key, quota).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<BucketLevel>, Error> {
        (**self).peek(key).await
    }

    async fn peek_window(&self, key: &Key) -> Result<Option<WindowLevel>, Error> {
        (**self).peek_window(key).await
    }

    async fn list(&self, filter: &Filter, after: Option<&Key>, limit: u32) -> Result<Page<BucketLevel>, Error> {
        (**self).list(filter, after, limit).await
    }

    async fn windows(&self, prefix: Option<&Key>, after: Option<&Key>, limit: u32) -> Result<Page<WindowLevel>, Error> {
        (**self).windows(prefix, after, limit).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        (**self).reset(key).await
    }

    async fn delete(&self, key: &Key) -> Result<bool, Error> {
        (**self).delete(key).await
    }

    async fn explain(&self, key: &Key, plan: Option<&Key>) -> Result<Explanation, Error> {
        (**self).explain(key, plan).await
    }

    async fn create_plan(&self, name: &Key, quota: Quota) -> Result<(), Error> {
        (**self).create_plan(name, quota).await
    }

    async fn set_plan_mode(
        &self,
        name: &Key,
        mode: Option<Mode>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> Result<bool, Error> {
        (**self).set_plan_mode(name, mode, reason, until).await
    }

    async fn plan(&self, name: &Key) -> Result<Option<Plan>, Error> {
        (**self).plan(name).await
    }

    async fn plans(&self, after: Option<&Key>, limit: u32) -> Result<Page<Plan>, Error> {
        (**self).plans(after, limit).await
    }

    async fn delete_plan(&self, name: &Key) -> Result<bool, Error> {
        (**self).delete_plan(name).await
    }

    async fn set_mode(&self, mode: Mode, reason: Option<&str>, until: Option<DateTime<Utc>>) -> Result<(), Error> {
        (**self).set_mode(mode, reason, until).await
    }

    async fn mode(&self) -> Result<Switch, Error> {
        (**self).mode().await
    }

    async fn set_override(&self, key: &Key, over: Override) -> Result<(), Error> {
        (**self).set_override(key, over).await
    }

    async fn clear_override(&self, key: &Key) -> Result<bool, Error> {
        (**self).clear_override(key).await
    }

    async fn overrides(&self, after: Option<&Key>, limit: u32) -> Result<Page<(Key, Override)>, Error> {
        (**self).overrides(after, limit).await
    }

    async fn most_denied(&self, limit: u32) -> Result<Page<Denials>, Error> {
        (**self).most_denied(limit).await
    }
}

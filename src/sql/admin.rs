use chrono::{DateTime, Utc};

use super::{Dialect, SqlStore};
use crate::admin::limited;
use crate::{
    Admin, BucketLevel, Denials, Error, Explanation, Filter, Key, Mode, Override, Plan, Quota, Switch, WindowLevel,
};

pub(super) mod columns;

impl<DB: Dialect> Admin for SqlStore<DB> {
    async fn create_bucket(&self, key: &Key, quota: Quota) -> Result<(), Error> {
        self.change((key.clone(), limited(quota)?), DB::create_bucket).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<BucketLevel>, Error> {
        self.operate(key.clone(), DB::peek).await
    }

    async fn peek_window(&self, key: &Key) -> Result<Option<WindowLevel>, Error> {
        self.operate(key.clone(), DB::peek_window).await
    }

    async fn list(&self, filter: &Filter, after: Option<&Key>, limit: u32) -> Result<Vec<BucketLevel>, Error> {
        self.operate((filter.clone(), after.cloned(), limit), DB::list).await
    }

    async fn windows(&self, prefix: Option<&Key>, after: Option<&Key>, limit: u32) -> Result<Vec<WindowLevel>, Error> {
        let filter = prefix.cloned().into_iter().fold(Filter::default(), Filter::prefix);
        self.operate((filter, after.cloned(), limit), DB::windows).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.change(key.clone(), DB::reset).await
    }

    async fn delete(&self, key: &Key) -> Result<bool, Error> {
        self.change(key.clone(), DB::delete).await
    }

    async fn explain(&self, key: &Key, plan: Option<&Key>) -> Result<Explanation, Error> {
        self.operate((key.clone(), plan.cloned()), DB::explain).await
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
        self.operate(name.clone(), DB::plan).await
    }

    async fn plans(&self, after: Option<&Key>, limit: u32) -> Result<Vec<Plan>, Error> {
        self.operate((after.cloned(), limit), DB::plans).await
    }

    async fn delete_plan(&self, name: &Key) -> Result<bool, Error> {
        self.change(name.clone(), DB::delete_plan).await
    }

    async fn set_mode(&self, mode: Mode, reason: Option<&str>, until: Option<DateTime<Utc>>) -> Result<(), Error> {
        self.change(Switch::checked(mode, reason, until, self.now())?, DB::set_mode).await
    }

    async fn mode(&self) -> Result<Switch, Error> {
        self.operate((), DB::mode).await
    }

    async fn set_override(&self, key: &Key, over: Override) -> Result<(), Error> {
        self.change((key.clone(), over.checked(self.now())?), DB::set_override).await
    }

    async fn clear_override(&self, key: &Key) -> Result<bool, Error> {
        self.change(key.clone(), DB::clear_override).await
    }

    async fn overrides(&self, after: Option<&Key>, limit: u32) -> Result<Vec<(Key, Override)>, Error> {
        self.operate((after.cloned(), limit), DB::overrides).await
    }

    async fn most_denied(&self, limit: u32) -> Result<Vec<Denials>, Error> {
        self.operate(limit, DB::most_denied).await
    }
}

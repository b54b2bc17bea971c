//! Operators' changes, on any engine.

use chrono::{DateTime, Utc};
use tollgate::model::Limits;
use tollgate::{
    Admin, Error, Key, Mode, Quota,
    admin::{
        AdminError, BucketLevel, DenialCount, Explanation, Filter, ModeSetting, Override, Page, Plan, Usage,
        UsageFilter, UsageRecording,
    },
    model::WindowLevel,
};

use crate::store::{AnyOf, AnyStore, on};

macro_rules! on_each {
    ($any:ident.$method:ident($($argument:expr),*)) => {{
        let done = on!(&$any.database, store => store.$method($($argument),*).await);
        $any.changes.add();
        done
    }};
}

impl Admin for AnyStore {
    async fn create_bucket(&self, key: &Key, quota: Quota) -> Result<(), AdminError> {
        on_each!(self.create_bucket(key, quota))
    }

    async fn peek(&self, key: &Key) -> Result<Option<BucketLevel>, Error> {
        on_each!(self.peek(key))
    }

    async fn peek_window(&self, key: &Key) -> Result<Option<WindowLevel>, Error> {
        on_each!(self.peek_window(key))
    }

    async fn list(&self, filter: &Filter, after: Option<&Key>, limit: u32) -> Result<Page<BucketLevel>, Error> {
        on_each!(self.list(filter, after, limit))
    }

    async fn windows(&self, prefix: Option<&Key>, after: Option<&Key>, limit: u32) -> Result<Page<WindowLevel>, Error> {
        on_each!(self.windows(prefix, after, limit))
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        on_each!(self.reset(key))
    }

    async fn delete(&self, key: &Key) -> Result<bool, Error> {
        on_each!(self.delete(key))
    }

    async fn explain(&self, key: &Key, plan: Option<&Key>) -> Result<Explanation, Error> {
        on_each!(self.explain(key, plan))
    }

    async fn create_plan(&self, name: &Key, limits: Limits) -> Result<(), AdminError> {
        on_each!(self.create_plan(name, limits))
    }

    async fn set_plan_mode(
        &self,
        name: &Key,
        mode: Option<Mode>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> Result<bool, AdminError> {
        on_each!(self.set_plan_mode(name, mode, reason, until))
    }

    async fn plan(&self, name: &Key) -> Result<Option<Plan>, Error> {
        on_each!(self.plan(name))
    }

    async fn plans(&self, after: Option<&Key>, limit: u32) -> Result<Page<Plan>, Error> {
        on_each!(self.plans(after, limit))
    }

    async fn delete_plan(&self, name: &Key) -> Result<bool, Error> {
        on_each!(self.delete_plan(name))
    }

    async fn set_mode(&self, mode: Mode, reason: Option<&str>, until: Option<DateTime<Utc>>) -> Result<(), AdminError> {
        on_each!(self.set_mode(mode, reason, until))
    }

    async fn mode(&self) -> Result<ModeSetting, Error> {
        on_each!(self.mode())
    }

    async fn set_override(&self, key: &Key, over: Override) -> Result<(), AdminError> {
        on_each!(self.set_override(key, over))
    }

    async fn clear_override(&self, key: &Key) -> Result<bool, Error> {
        on_each!(self.clear_override(key))
    }

    async fn overrides(&self, after: Option<&Key>, limit: u32) -> Result<Page<(Key, Override)>, Error> {
        on_each!(self.overrides(after, limit))
    }

    async fn most_denied(&self, limit: u32) -> Result<Page<DenialCount>, Error> {
        on_each!(self.most_denied(limit))
    }

    async fn set_usage_recording(&self, recording: Option<UsageRecording>) -> Result<(), AdminError> {
        on_each!(self.set_usage_recording(recording))
    }

    async fn usage_recording(&self) -> Result<Option<UsageRecording>, Error> {
        on_each!(self.usage_recording())
    }

    async fn usage(&self, filter: &UsageFilter, after: Option<&Key>, limit: u32) -> Result<Vec<Usage>, Error> {
        on_each!(self.usage(filter, after, limit))
    }
}

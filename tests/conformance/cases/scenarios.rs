//! What every store must do, on every engine.

use tollgate::{Key, Mode, Quota};

use crate::engines::Kind;
use crate::matrix::{Case, Levels, Time};
use crate::rig::{AnyStore, Rig};
use crate::scenarios::{self, World};

macro_rules! cases {
    ($($module:ident: $scenario:ident),+ $(,)?) => {
        vec![$(Case {
            name: concat!(module_path!(), "::", stringify!($module), "::", stringify!($scenario)),
            levels: Levels::Pools,
            time: Time::Injected,
            needs: |_| true,
            run: |rig| Box::pin(async move { scenarios::$module::$scenario(&rig).await }),
        }),+]
    };
}

pub fn cases() -> Vec<Case> {
    crate::for_each_scenario!(cases)
}

impl World for Rig {
    type Store = AnyStore;

    fn store(&self) -> AnyStore {
        Self::store(self)
    }

    async fn at(&self, now: i64) -> anyhow::Result<()> {
        Self::at(self, now).await
    }

    fn key(&self) -> Key {
        Self::key(self)
    }

    async fn create(&self, key: &Key, quota: Quota) -> anyhow::Result<()> {
        Ok(Self::create(self, key, quota).await?)
    }

    async fn plan(&self, name: &Key, quota: Quota, mode: Option<Mode>) -> anyhow::Result<()> {
        let table = if self.engine.kind == Kind::Postgres { "tollgate.token_plans" } else { "token_plans" };
        let name = self.literal(name);
        let mode = mode.map_or_else(|| "null".into(), |mode| format!("'{mode}'"));
        let (capacity, time) = (quota.capacity(), quota.refill_time());
        let seconds = format!("{}.{:09}", time.as_secs(), time.subsec_nanos());
        let refill = format!("{:?}", quota.refill()).to_lowercase();
        self.pool.run(format!("delete from {table} where name = {name}")).await?;
        let insert = format!(
            "insert into {table} (name, capacity, refill_seconds, refill, mode)
             values ({name}, {capacity}, {seconds}, '{refill}', {mode})"
        );
        Ok(self.pool.run(insert).await?)
    }
}

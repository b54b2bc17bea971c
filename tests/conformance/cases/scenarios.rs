//! The contract of every store, on every engine.

use tollgate::Key;
use tollgate_tests::scenarios::{self, World};

use crate::matrix::{Case, Setup, Time};
use crate::store::AnyStore;
use crate::test_db::TestDb;

macro_rules! cases {
    ($($module:ident: $scenario:ident),+ $(,)?) => {
        vec![$(Case {
            name: concat!(module_path!(), "::", stringify!($module), "::", stringify!($scenario)),
            setup: Setup { time: Time::Injected, ..Setup::DEFAULT },
            run: |db| Box::pin(async move { scenarios::$module::$scenario(&db).await }),
        }),+]
    };
}

pub fn cases() -> Vec<Case> {
    tollgate_tests::for_each_scenario!(cases)
}

impl World for TestDb {
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
}
